"""``OptimizeReport``: all that was built and measured for a device, and what to ship there."""

from __future__ import annotations

from typing import Literal

from edgepack.base.schema import NotMeasured, StrictModel
from edgepack.bundle.manifest import Accuracy
from edgepack.bundle.unused import Unused
from edgepack.project.limits import Limits
from edgepack.records.run import Count, DeviceFacts, Name, ReportId, Sha256, VariantFacts
from edgepack.records.topology import Topology
from edgepack.records.tuning import Candidate, Confirmation

SCHEMA_VERSION: Literal[1] = 1
IS_BASE = NotMeasured(reason="the answer is that itself")


class OptimizeReport(StrictModel):
    """The search for the best variant with the best settings on one device."""

    schema_version: Literal[1]
    id: ReportId
    created: str
    """ISO 8601, UTC, by the host's clock."""
    edgepack: Name
    device: Name
    """The device's name in the inventory."""
    facts: DeviceFacts
    topology: Topology
    project: Name
    bundle: Name
    manifest_sha256: Sha256
    """Of the bundle with all variants that were built for this."""
    target: Name
    limits: Limits
    """What the answer has to be within."""
    variants: list[VariantFacts]
    unused: list[Unused]
    """Variants that were not built, or whose settings were not searched, and why."""
    seed: int
    budget_s: float
    elapsed_s: float
    """How long the device measured, in seconds."""
    runs: Count
    """How many process runs it made, pairs included."""
    resumed: Count = 0
    """How many of them an earlier call had made."""
    candidates: list[Candidate]
    front: list[Count]
    """Candidates that no other is at least as good as in latency, accuracy, memory, size and
    energy, and better in one. Fastest first."""
    on_device: dict[Name, Accuracy] = {}
    """The accuracy of variants on the device, by variant; of those that were candidates for the
    answer."""
    answer: Count | None
    """The candidate to ship first; None where none is within the limits."""
    why: Name
    over_fp32: Confirmation | NotMeasured
    """The answer against fp32 with onnxruntime's defaults, in pairs of process runs."""
    over_defaults: Confirmation | NotMeasured
    """The answer against its own variant with onnxruntime's defaults."""
    unfinished: Name = ""
    """Why it ended early; then what was measured until then is here."""
    notes: list[str] = []

    @property
    def confirmed(self) -> bool:
        """Whether pairs show that the answer is no slower than fp32, or it is that."""
        found = self.over_fp32
        return found.outcome == "PASS" if isinstance(found, Confirmation) else found == IS_BASE

    def candidate(self, number: int) -> Candidate:
        """Return a candidate by its number."""
        return self.candidates[number]

    def find_speedup(self, found: Confirmation | NotMeasured) -> tuple[float, ...] | NotMeasured:
        """Return how many times as fast the answer is, with the 95 % interval if there is one."""
        if isinstance(found, NotMeasured):
            return found
        p50 = next(metric for metric in found.metrics if metric.name == "p50")
        if p50.low is None or p50.high is None:
            return (1 / p50.ratio,)
        return 1 / p50.ratio, 1 / p50.high, 1 / p50.low
