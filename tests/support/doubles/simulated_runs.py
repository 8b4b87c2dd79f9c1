"""A harness that simulates process runs, for searches of settings."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from edgepack.base.schema import NotMeasured
from edgepack.devices.harness import Harness
from edgepack.records.presets import Preset
from edgepack.records.run import Conditions, DeviceFacts, Memory, ProcessRun, Selection

UNKNOWN = NotMeasured(reason="it is simulated")
STATE = Conditions(
    governor=UNKNOWN,
    temperature_c=UNKNOWN,
    throttle_events=UNKNOWN,
    throttled_now=UNKNOWN,
    throttled_since_boot=UNKNOWN,
    power_mode=UNKNOWN,
    load=UNKNOWN,
)
FACTS = DeviceFacts(
    os="Linux",
    arch="x86_64",
    model=UNKNOWN,
    cpu=UNKNOWN,
    cpu_count=2,
    emulated=False,
    python="3.11.2",
    numpy="2.0.0",
    onnxruntime="1.31.1",
    providers=["CPUExecutionProvider"],
    driver=UNKNOWN,
    boot_id=UNKNOWN,
    conditions=STATE,
)
Ms = Callable[[dict[str, Any], Preset], float]


class Simulated:
    """Process runs that take what a function says; what it raises, they raise.

    The function gets the settings of the session, with the variant, and the preset, and returns
    milliseconds; 1 % of noise is added to those.
    """

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        ms: Ms,
        sqnr_db: Ms | None = None,
        after: Conditions = STATE,
        lasts: Callable[[dict[str, Any]], bool] = lambda _: True,
    ) -> None:
        self.runs = 0
        self.harness: Harness | None = None
        self.noise = Random(5)

        def measure(harness: Harness, variant: str, preset: Preset) -> ProcessRun:
            self.runs += 1
            self.harness = harness
            session = json.loads(harness.session)["session"] | {"variant": variant}
            p50 = ms(session, preset) * 1e6 * math.exp(self.noise.gauss(0, 0.01))
            return ProcessRun(
                variant=variant,
                session_create_ns=1,
                first_inference_ns=1,
                warm_up_iterations=1,
                steady=True,
                latencies_ns=[round(p50)] * 9 + [round(1.2 * p50)],
                timed_from_ns=UNKNOWN,
                timed_to_ns=UNKNOWN,
                inferences=UNKNOWN,
                golden_min_sqnr_db=sqnr_db(session, preset) if sqnr_db else 120.0,
                not_finite=[] if lasts(session) else ["h_out", "y"],
                boot_id=UNKNOWN,
                before=STATE,
                after=after,
                sampling=UNKNOWN,
                energy=UNKNOWN,
                other_work=UNKNOWN,
            )

        def memory(harness: Harness, variant: str) -> Memory:
            threads = json.loads(harness.session)["session"]["intra_op_num_threads"]
            peak = 60_000_000 + 1000 * threads
            return Memory(baseline_bytes=50, loaded_bytes=60, peak_bytes=peak, runs=20)

        def select(harness: Harness, variant: str | None) -> Selection:
            return Selection(variant=variant or "cpu-int8-static", unused=[], device=FACTS)

        monkeypatch.setattr(Harness, "select", select)
        monkeypatch.setattr(Harness, "measure", measure)
        monkeypatch.setattr(Harness, "memory", memory)
