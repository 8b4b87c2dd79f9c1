"""A report such as a benchmark makes, for tests of what is done with reports."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from edgepack.base.schema import NotMeasured
from edgepack.bundle.manifest import R2, Accuracy, Closeness, LayerError
from edgepack.bundle.unused import Unused
from edgepack.records.run import (
    IN_HOST_MEMORY,
    Canary,
    Conditions,
    Creation,
    DeviceFacts,
    Energy,
    EvaluationReport,
    Inconclusive,
    Invalid,
    Memory,
    Move,
    NodeSizes,
    OtherWork,
    Peak,
    Phases,
    PlacedNode,
    Placement,
    ProcessRun,
    RunReport,
    Sample,
    Sampling,
    Scenario,
    SweepPoint,
    TensorSize,
    TunedSetting,
    Valid,
    VariantFacts,
)

CPU = "CPUExecutionProvider"
COOL = Conditions(
    governor="performance",
    temperature_c=41.5,
    throttle_events=3,
    throttled_now=[],
    throttled_since_boot=["under-voltage"],
    power_mode=NotMeasured(reason="this device has none"),
    load=0.4,
)
HZ = 2
WATTS = 5.0
BETWEEN_RUNS_S = 12.0


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
        driver=NotMeasured(reason="there is no NVIDIA driver"),
        boot_id="boot-1",
        conditions=COOL,
    )


def example_sampling(
    seconds: float, *, from_ns: int = 0, degrees: float = 0.0, drop: float = 0.0
) -> Sampling:
    """Describe the sensors over one run at 2 Hz.

    Args:
        seconds: How long the run's timed part is.
        from_ns: When it begins.
        degrees: How much warmer it gets.
        drop: The part of the clock that is lost from half of the time on, when the device says
            that it slows itself down.
    """
    count = int(seconds * HZ) + 1
    samples = []
    for index in range(count):
        slow = bool(drop) and index * 2 >= count
        heat = degrees * (1 - 0.5 ** (4 * index / count))
        sample = Sample(
            at_ns=from_ns + int(index * 1e9 / HZ),
            temperatures_c={"cpu-thermal": round(47 + heat, 1), "rp1": round(45 + heat / 3, 1)},
            clocks_hz={"policy0": int(2_400_000_000 * (1 - drop * slow))},
            power_w={"VDD_IN": round(WATTS + heat / 20, 2)},
            throttled=["hot"] if slow else [],
            load=1.1,
        )
        samples.append(sample)
    return Sampling(
        interval_s=1 / HZ,
        samples=samples,
        unknown={},
        trip_points_c={"cpu-thermal": 85.0},
        cpu_ns=count * 300_000,
        elapsed_ns=int(seconds * 1e9) + 1,
    )


QUIET = OtherWork(cores=4, own_cores=3.9, other_cores=0.02, stolen_cores=0.0, waiting=0.01)
"""On a device that does nothing else."""


def example_run(
    seed: int = 0,
    samples: int = 200,
    *,
    scale: float = 1.0,
    degrees: float = 4.0,
    drop: float = 0.0,
    **changes: Any,
) -> ProcessRun:
    """Describe one process run of about 10 ms an inference, times ``scale``.

    What ``degrees`` and ``drop`` are, :func:`example_sampling` says; inferences take as much longer
    as the clock drops.
    """
    noise = np.random.default_rng(seed).lognormal(0, 0.02, samples)
    latencies = [int(10e6 * scale * value) for value in noise]
    if drop:
        slow = [int(ns / (1 - drop)) for ns in latencies[samples // 2 :]]
        latencies = [*latencies[: samples // 2], *slow]
    latencies = changes.get("latencies_ns", latencies)
    elapsed_ns = sum(latencies) + 2_000 * len(latencies)
    begun_ns = int(seed * (BETWEEN_RUNS_S * 1e9 + elapsed_ns)) + 7_000_000_000
    sampling = example_sampling(elapsed_ns / 1e9, from_ns=begun_ns, degrees=degrees, drop=drop)
    return ProcessRun(
        variant="cpu-int8-static",
        session_create_ns=80_000_000,
        first_inference_ns=15_000_000,
        warm_up_iterations=400,
        steady=True,
        latencies_ns=latencies,
        timed_from_ns=begun_ns,
        timed_to_ns=begun_ns + elapsed_ns,
        inferences=len(latencies),
        golden_min_sqnr_db=48.5,
        boot_id="boot-1",
        before=COOL,
        after=COOL,
        sampling=sampling,
        energy=Energy(joules=WATTS * elapsed_ns / 1e9, source="INA3221 VDD_IN"),
        other_work=QUIET,
    ).model_copy(update=changes)


def interrupted_run(seed: int = 0, times: int = 6, **changes: Any) -> ProcessRun:
    """Describe a process run of 1 ms an inference, some of which others interrupted for 50 ms."""
    latencies = [50_000_000] * times + [1_000_000] * (200 - times)
    return example_run(seed, latencies_ns=latencies, **changes)


def example_accuracy(value: float, sqnr_db: float) -> Accuracy:
    """Describe the accuracy of a variant."""
    drop = 0.9861 - value
    return Accuracy(
        metric="top1",
        higher_is_better=True,
        samples=360,
        fp32=0.9861,
        value=value,
        drop=drop,
        drop_interval=(round(drop - 0.0055, 4), round(drop + 0.0055, 4)),
        agreement=0.9944,
        worst=Closeness(output="y", cosine=0.9987, sqnr_db=sqnr_db),
        r2={"y": R2(value=0.9951, low=0.9944, high=0.9958)},
    )


def example_placement(provider: str = CPU) -> Placement:
    """Place two nodes on a provider."""
    nodes = [
        PlacedNode(name=name, op=op, provider=provider, mean_us=1.1 * us, median_us=us)
        for name, op, us in (("conv_quant", "QLinearConv", 8123.4), ("fc", "QGemm", 95.2))
    ]
    return Placement(variant="cpu-int8-static", runs=10, nodes=nodes)


def example_phases(scale: float = 1.0) -> Phases:
    """Describe calls with a picture, on a processor: 23.7 ms, of which the run takes 10, times
    ``scale``, and the answers half of one.
    """
    parts_ms = {"decode": 6.1, "preprocess": 13.2, "run": 10 * scale, "answers": 0.5}
    spread = np.random.default_rng(7).lognormal(0, 0.02, 99)
    spread /= np.median(spread)
    times = {f"{n}_ns": [int(1e6 * ms * s) for s in spread] for n, ms in parts_ms.items()}
    whole_ms = 13.2 + 10 * scale + 0.5
    return Phases(
        given="a picture of 1280 x 720 (JPEG of 88 kB)",
        found="y: 5",
        copy_in_ns=IN_HOST_MEMORY,
        copy_out_ns=IN_HOST_MEMORY,
        predict_ns=[int(1e6 * whole_ms * s) for s in spread],
        **times,
    )


def example_report(**changes: Any) -> RunReport:
    """Return a valid report; ``changes`` replace fields without being checked."""
    return RunReport(
        schema_version=2,
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
        unused=[Unused(variant="xnnpack-int8", stage="passed over", reason="XNNPACK is not there")],
        preset="standard",
        scenario=Scenario(),
        project="digits",
        argv=["python3", "harness/edgepack_harness.py", "bench", "--iterations=130"],
        runs=[example_run(seed) for seed in range(5)],
        creation=Creation(
            cold_ns=[210_000_000, 205_000_000, 231_000_000],
            warm_ns=[81_000_000, 79_500_000, 80_200_000],
        ),
        memory=Memory(baseline_bytes=40 << 20, loaded_bytes=46 << 20, peak_bytes=52 << 20, runs=20),
        placement=example_placement(),
        phases=example_phases(),
        sweep=[
            SweepPoint(
                shapes={"x": [batch, 1, 8, 8]}, batch=batch, latencies_ns=[1_000_000 * each] * 30
            )
            for batch, each in ((1, 10), (2, 18), (4, 33))
        ],
        canary=Canary(model_sha256="ca" * 32, medians_ns=[1_010_000, 1_002_000, 1_015_000]),
        tuned=[
            TunedSetting(
                name="governor of policy0", before="ondemand", during="performance", restored=True
            )
        ],
        verdict=Valid(),
        notes=["throttling unknown: no counter can be read"],
    ).model_copy(update=changes)


def example_evaluation(**changes: Any) -> EvaluationReport:
    """Return the metric of :func:`example_report`'s variant through the device."""
    return EvaluationReport(
        schema_version=1,
        id="20261121T094512Z-e1b2c3",
        created="2026-11-21T09:45:12Z",
        device="pi5-a",
        facts=example_facts(),
        bundle="digits-1.0.0-raspberry-pi",
        manifest_sha256="ab" * 32,
        target="raspberry-pi",
        variant="cpu-int8-static",
        unused=[],
        samples_sha256="cd" * 32,
        measured=example_accuracy(0.9806, 23.9),
        interval=NotMeasured(reason="there are too few samples"),
        simulated=example_accuracy(0.9833, 24.3),
        placement=example_placement(),
        inference_ns=[10_000_000 + 1_000 * index for index in range(360)],
        elapsed_ns=4_100_000_000,
    ).model_copy(update=changes)


BOARDS = (
    ("pi5-a", "raspberry-pi", "Raspberry Pi 5 Model B", 1.0, CPU),
    ("orin", "jetson", "Jetson Orin Nano", 0.12, "TensorrtExecutionProvider"),
    ("nuc", "intel", "NUC 13 Pro", 0.3, "OpenVINOExecutionProvider"),
    ("pixel", "android-nnapi", "Pixel 9", 0.45, "NnapiExecutionProvider"),
)
RECIPES = (
    ("int8-static", 1.0, 310_000, 0.9833, 24.3),
    ("fp16", 1.4, 600_000, 0.9860, 62.0),
    ("fp32", 2.1, 1_190_000, 0.9861, 200.0),
)


def many_nodes(count: int, *, provider: str) -> Placement:
    """Place nodes on a provider; the CPU keeps every ninth."""
    nodes = [
        PlacedNode(
            name=f"/model/stage{index // 6}/block{index % 6}/conv/Conv_quant",
            op="QLinearConv" if index % 3 else "QLinearAdd",
            provider=CPU if index % 9 == 4 else provider,
            mean_us=round(1000 / (1 + index), 2),
            median_us=round(900 / (1 + index), 2),
            sizes=_make_sizes(index, 8 << (index % 4)),
        )
        for index in range(count)
    ]
    return Placement(variant="cpu-int8-static", runs=10, nodes=nodes, between_us=84.0)


def _make_sizes(index: int, channels: int) -> NodeSizes:
    """Return the sizes of a pointwise convolution that takes about as long as the node."""
    side = max(1, round(math.sqrt(4.5e7 / (1 + index)) / channels))
    image = TensorSize(dtype="uint8", dims=[1, channels, side, side])
    weight = TensorSize(dtype="int8", dims=[channels, channels, 1, 1])
    moved = channels * side * side
    return NodeSizes(
        activation_bytes=moved,
        parameter_bytes=channels * channels,
        output_bytes=moved,
        inputs=[image, weight],
        outputs=[image],
    )


def varied_report(index: int, *, samples: int = 200, runs: int = 5) -> RunReport:
    """Return one of many reports: devices, variants, days and verdicts differ.

    The same device and variant come again every 12 reports, a day later. Every seventh is INVALID
    for its clocks dropped, every eleventh is INCONCLUSIVE and was cut short.
    """
    day, place = divmod(index, len(BOARDS) * len(RECIPES))
    (device, target, model, speed, provider), recipe = BOARDS[place % 4], RECIPES[place // 4]
    name, slower, size = recipe[:3]
    hot, cut = index % 7 == 6, index % 11 == 10
    scale = speed * slower * (1 + 0.01 * (day % 5))
    variants = [
        VariantFacts(
            id=f"cpu-{each}",
            recipe=each,
            model_bytes=bytes_,
            min_sqnr_db=20.0,
            accuracy=example_accuracy(metric, near),
            layers=[
                LayerError(node=f"/model/stage{n}/conv", op="Conv", sqnr_db=17.4 + 2.2 * n)
                for n in range(12)
            ]
            if each.startswith("int8")
            else [],
        )
        for each, _, bytes_, metric, near in RECIPES
    ]
    timed = [
        example_run(
            seed, samples, scale=scale, degrees=30.0 if hot else 6.0, drop=0.25 * hot,
            variant=f"cpu-{name}",
        )
        for seed in range(2 if cut else runs)
    ]  # fmt: skip
    verdict = Valid()
    if hot:
        verdict = Invalid(reasons=["run 1: the clock of policy0 fell to 75 % of what it was"])
    elif cut:
        verdict = Inconclusive(reason="2 of 5 process runs were made")
    return example_report(
        id=f"202611{1 + day % 28:02}T0930{index % 60:02}Z-{index:06x}",
        created=f"2026-11-{1 + day % 28:02}T09:30:{index % 60:02}Z",
        device=device,
        target=target,
        facts=example_facts().model_copy(update={"model": model, "providers": [provider, CPU]}),
        bundle=f"digits-1.0.{day}-{target}",
        manifest_sha256=f"{day:064x}",
        edgepack=f"0.{6 + day}.0",
        variants=variants,
        variant_used=f"cpu-{name}",
        variant_requested=f"cpu-{name}",
        unused=[],
        runs=timed,
        placement=many_nodes(54, provider=provider),
        peak=Peak(
            threads=4,
            moves=[
                Move(moved_bytes=1 << 18, bytes_per_s=3.1e10),
                Move(moved_bytes=1 << 21, bytes_per_s=1.9e10),
                Move(moved_bytes=1 << 26, bytes_per_s=8.4e9),
            ],
            multiply_adds_per_s={"float32": 1.7e10, "int8": 6.2e10},
        ),
        phases=example_phases(scale),
        unfinished="the device did not answer any more" if cut else "",
        verdict=verdict,
    ).model_copy(update={"bundle_bytes": size + 1_200_000, "notes": []})


def varied_reports(count: int, *, samples: int = 200) -> list[RunReport]:
    """Return many reports, oldest first."""
    return [varied_report(index, samples=samples) for index in range(count)]
