"""A report such as a benchmark makes, for tests of what is done with reports."""

from __future__ import annotations

from typing import Any

import numpy as np
from edgepack.bench.report import (
    Conditions,
    DeviceFacts,
    Memory,
    PassedOver,
    PlacedNode,
    Placement,
    ProcessRun,
    RunReport,
    Valid,
    VariantFacts,
)
from edgepack.bundle.manifest import Accuracy, Closeness, LayerError, NotMeasured

CPU = "CPUExecutionProvider"
COOL = Conditions(
    governor="performance",
    temperature_c=41.5,
    throttle_events=3,
    throttled_now=[],
    throttled_since_boot=["under-voltage"],
)


def example_facts() -> DeviceFacts:
    """Describe a small board."""
    return DeviceFacts(
        os="Linux 6.12",
        arch="aarch64",
        model="Raspberry Pi 5 Model B",
        cpu=NotMeasured(reason="this system does not name its processor"),
        cpu_count=4,
        emulated=False,
        python="3.11.2",
        numpy="2.3.1",
        onnxruntime="1.31.1",
        providers=[CPU],
        boot_id="boot-1",
        conditions=COOL,
    )


def example_run(seed: int = 0, samples: int = 200, **changes: Any) -> ProcessRun:
    """Describe one process run of about 10 ms an inference."""
    noise = np.random.default_rng(seed).lognormal(0, 0.02, samples)
    return ProcessRun(
        variant="cpu-int8-static",
        session_create_ns=80_000_000,
        first_inference_ns=15_000_000,
        warm_up_iterations=400,
        steady=True,
        latencies_ns=[int(10e6 * value) for value in noise],
        golden_min_sqnr_db=48.5,
        boot_id="boot-1",
        before=COOL,
        after=COOL,
    ).model_copy(update=changes)


def example_accuracy(value: float, sqnr_db: float) -> Accuracy:
    """Describe the accuracy of a variant."""
    return Accuracy(
        metric="top1",
        higher_is_better=True,
        samples=360,
        fp32=0.9861,
        value=value,
        drop=0.9861 - value,
        drop_interval=(-0.0027, 0.0083),
        agreement=0.9944,
        worst=Closeness(output="y", cosine=0.9987, sqnr_db=sqnr_db),
    )


def example_placement(provider: str = CPU) -> Placement:
    """Place two nodes on a provider."""
    nodes = [
        PlacedNode(name=name, op=op, provider=provider, mean_us=mean_us)
        for name, op, mean_us in (("conv_quant", "QLinearConv", 8123.4), ("fc", "QGemm", 95.2))
    ]
    return Placement(variant="cpu-int8-static", runs=10, nodes=nodes)


def example_report(**changes: Any) -> RunReport:
    """Return a valid report; ``changes`` replace fields without being checked."""
    return RunReport(
        schema_version=1,
        id="20261121T093012Z-a1b2c3",
        created="2026-11-21T09:30:12Z",
        device="pi5-a",
        facts=example_facts(),
        bundle="digits-1.0.0-raspberry-pi",
        manifest_sha256="ab" * 32,
        target="raspberry-pi",
        bundle_bytes=1_500_000,
        variants=[
            VariantFacts(
                id="cpu-int8-static",
                recipe="int8-static",
                model_bytes=310_000,
                min_sqnr_db=20.0,
                accuracy=example_accuracy(0.9833, 24.3),
                layers=[
                    LayerError(node="conv2", op="Conv", sqnr_db=17.4),
                    LayerError(node="conv1", op="Conv", sqnr_db=31.2),
                ],
            ),
            VariantFacts(
                id="cpu-fp32",
                recipe="fp32",
                model_bytes=1_190_000,
                min_sqnr_db=60.0,
                accuracy=example_accuracy(0.9861, 200.0),
            ),
        ],
        variant_requested="first that works",
        variant_used="cpu-int8-static",
        passed_over=[PassedOver(variant="xnnpack-int8", reason="XNNPACK is not there")],
        preset="standard",
        runs=[example_run(seed) for seed in range(5)],
        memory=Memory(baseline_bytes=40 << 20, loaded_bytes=46 << 20, peak_bytes=52 << 20, runs=20),
        placement=example_placement(),
        verdict=Valid(),
        notes=["throttling unknown: no counter can be read"],
    ).model_copy(update=changes)
