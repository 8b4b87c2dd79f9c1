"""What histories need of stored runs: a point for each."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from edgepack.results.store.fingerprint import UNKNOWN
from edgepack.results.store.rows import RunRow, find_project

Blame = Literal["model", "device", "both", "unknown"]
"""What became slower, by the canary."""


@dataclass(frozen=True)
class HistoryPoint:
    """What a history needs of a stored run."""

    run: str
    created: str
    """ISO 8601, UTC."""
    project: str
    target: str
    device: str
    """Its name in the inventory."""
    device_model: str
    variant: str
    onnxruntime: str
    fingerprint: str
    bundle: str
    manifest_sha256: str
    """What distinguishes bundles of one name."""
    p50_ms: float
    """The median over process runs."""
    p90_ms: float
    """The median over process runs of each one's p90; NaN where it is inconclusive."""
    usable: bool
    """Whether it is neither invalid nor unfinished."""
    canary_sha256: str = ""
    """Which canary model; empty where none was measured."""
    canary_ns: float = math.nan

    @property
    def moment_s(self) -> float:
        """When it was, in seconds since 1970."""
        return datetime.fromisoformat(self.created).timestamp()


def make_point(row: RunRow) -> HistoryPoint | None:
    """Return what a history needs of a stored run; None if it is no benchmark with a time."""
    p90_ms = math.nan if row.run_p90_ms is None else row.run_p90_ms
    if row.run_p50_ms is None or row.run_p50_ms <= 0 or p90_ms <= 0:
        return None
    try:
        datetime.fromisoformat(row.created)
    except ValueError:  # of a report that was made elsewhere
        return None
    return HistoryPoint(
        run=row.id,
        created=row.created,
        project=find_project(row),
        target=row.target or "",
        device=row.device,
        device_model=row.device_model or UNKNOWN,
        variant=row.variant or "",
        onnxruntime=row.runtime or UNKNOWN,
        fingerprint=row.fingerprint or "",
        bundle=row.bundle,
        manifest_sha256=row.manifest_sha256 or "",
        p50_ms=row.run_p50_ms,
        p90_ms=p90_ms,
        usable=row.verdict != "INVALID" and not row.unfinished,
        canary_sha256=row.canary_sha256 or "",
        canary_ns=row.canary_ns or math.nan,
    )
