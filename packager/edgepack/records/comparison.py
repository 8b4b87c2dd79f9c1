"""``Comparison``: what a base and a candidate did on devices, and what follows from it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from edgepack.base.schema import NotMeasured, StrictModel
from edgepack.bundle.unused import Unused
from edgepack.records.deciding import Outcome, decide_overall
from edgepack.records.run import Count, DeviceFacts, Name, Placement, ProcessRun, Sha256

SCHEMA_VERSION: Literal[1] = 1


class Side(StrictModel):
    """One of the two bundles on one device, with its process runs in the order of the pairs."""

    bundle: Name
    manifest_sha256: Sha256
    bundle_bytes: Count
    variant: Name
    unused: list[Unused]
    placement: Placement | NotMeasured
    runs: list[ProcessRun]
    min_sqnr_db: float
    """What each run's ``golden_min_sqnr_db`` has to be."""
    reasons: list[str]
    """Why its numbers must not be used; empty if they may."""

    @property
    def outputs_wrong(self) -> bool:
        """Whether a run computed something else than the golden outputs, or ended in NaN."""
        return any(run.golden_min_sqnr_db < self.min_sqnr_db or run.not_finite for run in self.runs)


class ComparedMetric(StrictModel):
    """One number of the candidate over that of the base."""

    name: Name
    """``p50`` or ``p90``, of one process run's latencies."""
    margin: float
    """The difference that does not matter: 0.03 allows 3 % more."""
    outcome: Outcome
    ratio: float
    """The geometric mean over the pairs."""
    low: float | None
    """The interval's ends; None where there are too few pairs for any."""
    high: float | None
    fail_p: float
    """The chance of pairs like these if the candidate were slower by the margin at most."""
    pass_p: float
    """The same if it were slower by the margin at least."""


class DeviceComparison(StrictModel):
    """Base against candidate on one device."""

    device: Name
    facts: DeviceFacts
    base: Side
    candidate: Side
    outcome: Outcome
    reasons: list[str]
    """Why the outcome is not PASS."""
    metrics: list[ComparedMetric]
    notes: list[str]
    """What the reader has to know that changes no outcome."""
    unfinished: Name = ""
    """Why it ended early; then what was measured until then is here, and decides nothing."""

    @property
    def pairs(self) -> int:
        """How many pairs of process runs were made; one that ended early may lack its second."""
        return min(len(side.runs) for side in (self.base, self.candidate))


class NotCompared(StrictModel):
    """A device on which nothing could be compared."""

    device: Name
    problem: str
    hint: str


class Comparison(StrictModel):
    """A base and a candidate on one or more devices."""

    schema_version: Literal[1]
    created: str
    """ISO 8601, UTC, by the host's clock."""
    preset: Name
    error: float
    """The chance of a false FAIL over everything here, and that of a false PASS."""
    max_pairs: Count
    devices: Annotated[list[DeviceComparison], Field(min_length=1)]
    not_compared: list[NotCompared]

    @property
    def outcome(self) -> Outcome:
        """FAIL if one device fails, PASS if all pass and none was not compared."""
        others: list[Outcome] = ["INCONCLUSIVE"] * len(self.not_compared)
        return decide_overall([*(device.outcome for device in self.devices), *others])
