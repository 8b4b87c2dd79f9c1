"""Histories of runs whose medians are known, for tests of what is done with many of them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
from edgepack.base.clock import format_time
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


def farm_logs(
    seed: int,
    devices: int,
    nights: int,
    *,
    within: float = 0.015,
    between: float = 0.02,
    spikes: float = 0.0,
    uneven: float = 1.0,
) -> np.ndarray:
    """Return logarithms of medians of about 10 ms, shape (devices, nights), with no slow device.

    Args:
        seed: Of everything random.
        devices: How many.
        nights: How many.
        within: The deviation of a device from night to night.
        between: The deviation of devices from each other; what a night does to all is as much.
        spikes: The share of runs that something else slowed down, by 10 % on average.
        uneven: How much noisier one device in ten is.
    """
    random = np.random.default_rng(seed)
    shape = devices, nights
    noise = np.where(random.random((devices, 1)) < 0.1, uneven, 1.0) * random.normal(
        0, within, shape
    )
    slowed = np.where(random.random(shape) < spikes, random.exponential(0.1, shape), 0)
    shared = random.normal(0, between, nights)
    return np.log(10) + random.normal(0, between, (devices, 1)) + shared + noise + slowed


def farm(
    logs_ms: np.ndarray, canary_ms: np.ndarray | None = None, **changes: Any
) -> list[RunReport]:
    """Make a report of each device and night, a bundle a night; NaN is no run."""
    reports = []
    for number, row in enumerate(np.exp(logs_ms)):
        canary = None if canary_ms is None else canary_ms[number]
        own = history(np.nan_to_num(row, nan=1.0), canary, device=f"pi5-{number:02}", **changes)
        for night, report in enumerate(own):
            begun = START + timedelta(days=night, hours=22, minutes=number)
            update = {"id": f"{report.id}-{number:02}", "created": format_time(begun)}
            if not np.isnan(row[night]):
                reports.append(report.model_copy(update=update))
    return reports
