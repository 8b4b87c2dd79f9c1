"""Histories of runs whose medians are known, for tests of what is done with many of them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
from edgepack.base.schema import NotMeasured
from edgepack.records.run import Canary, RunReport

from tests.support.reports.example_report import example_report, example_run

SHA = "cd" * 32
START = datetime(2026, 1, 1, tzinfo=UTC)


def history(
    p50_ms: Sequence[float],
    canary_ms: Sequence[float] | None = None,
    *,
    sha: str = SHA,
    **changes: Any,
) -> list[RunReport]:
    """Make one report a day, of one process run, each of another bundle, with the medians given."""
    reports = []
    for day, median_ms in enumerate(p50_ms):
        latencies = [int(median_ms * 1e6)] * 8 + [int(median_ms * 1.02e6)] * 2
        created = (START + timedelta(days=day)).strftime("%Y-%m-%dT%H:%M:%SZ")
        one: dict[str, Any] = {
            "id": f"run-{day:03}",
            "created": created,
            "manifest_sha256": f"{day:064x}",
        }
        one["canary"] = NotMeasured(reason="the canary failed")
        if canary_ms is not None:
            one["canary"] = Canary(model_sha256=sha, medians_ns=[int(canary_ms[day] * 1e6)])
        runs = [example_run(latencies_ns=latencies)]
        reports.append(example_report(**{"runs": runs, **one, **changes}))
    return reports


def noisy(
    seed: int, runs: int, step: float = 0.0, at: int = 0, deviation: float = 0.015
) -> np.ndarray:
    """Return medians of about 10 ms, which are greater by a step from one run on."""
    medians = 10 * np.exp(np.random.default_rng(seed).normal(0, deviation, runs))
    medians[at:] *= 1 + step
    return medians
