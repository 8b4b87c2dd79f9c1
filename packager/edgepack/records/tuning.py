"""``TuneReport``: every setting that was tried on a device, what it did, and what to use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field

from edgepack.base import statistics
from edgepack.base.schema import NotMeasured, StrictModel
from edgepack.bundle.unused import Unused
from edgepack.project.profile import Provider, SessionSettings
from edgepack.records.comparison import ComparedMetric
from edgepack.records.deciding import Outcome
from edgepack.records.run import (
    Count,
    DeviceFacts,
    Memory,
    Name,
    Ns,
    ReportId,
    Sha256,
    VariantFacts,
)
from edgepack.records.topology import Topology

SCHEMA_VERSION: Literal[1] = 1


class Settings(StrictModel):
    """One variant with the settings of its session, in the manifest's words."""

    variant: Name
    session: SessionSettings
    providers: Annotated[list[Provider], Field(min_length=1)]

    @property
    def key(self) -> str:
        """The same for the same settings."""
        session = sorted(self.session.config.items())
        level = self.session.graph_optimization_level
        listed = [(provider.name, sorted(provider.options.items())) for provider in self.providers]
        key = self.variant, self.session.intra_op_num_threads, level, session, listed
        named = {"intra_op_num_threads", "graph_optimization_level", "config"}
        others = self.session.model_dump(exclude=named, exclude_defaults=True)
        return repr((*key, sorted(others.items())) if others else key)

    @property
    def override(self) -> str:
        """What the harness on the device takes: JSON without the variant."""
        return self.model_dump_json(exclude={"variant"})


class RunTimes(StrictModel):
    """The latencies of one process run."""

    p50_ns: Ns
    p90_ns: Ns
    energy_mj: Annotated[float | None, Field(exclude_if=lambda given: given is None)] = None
    """Of one inference, idle power included; None where no sensor tells."""


class Latency(StrictModel):
    """The p50 over process runs, in nanoseconds."""

    p50_ns: float
    """The median over the runs' medians."""
    low_ns: float | None
    """The 95 % interval of the geometric mean over the runs; None with one run."""
    high_ns: float | None


class Candidate(StrictModel):
    """Settings that were tried, and what they did."""

    number: Count
    settings: Settings
    defaults: bool
    """Whether they are onnxruntime's own."""
    present: bool
    """Whether they are the bundle's."""
    runs: list[RunTimes]
    """In the order in which they were made."""
    rung: Count
    """The last rung that the candidate reached, from 1; 0 if it reached none."""
    latency: Latency | NotMeasured
    memory: Memory | NotMeasured
    problem: Name = ""
    """Why it is out: it crashed, or its outputs were wrong."""

    @property
    def energy_mj(self) -> float | None:
        """What an inference took in the median of the runs; None where no sensor tells."""
        return find_energy(self.runs)


def find_energy(runs: Sequence[RunTimes]) -> float | None:
    """Return what an inference took in the median of runs, in mJ; None where no sensor tells."""
    found = [run.energy_mj for run in runs if run.energy_mj is not None]
    return statistics.median(found) if found else None


class Confirmation(StrictModel):
    """The fastest settings against others, in pairs of process runs in ABBA order."""

    base: Count
    """The number of the fastest defaults; if they are the fastest, of what the bundle has."""
    candidate: Count
    base_runs: list[RunTimes]
    candidate_runs: list[RunTimes]
    """The candidate's run of each pair."""
    metrics: list[ComparedMetric]
    outcome: Outcome
    """PASS: it is not slower at p50, and nothing shows that it is at p90."""


class TuneReport(StrictModel):
    """The search for the best settings of one bundle on one device."""

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
    target: Name
    variants: list[VariantFacts]
    unused: list[Unused]
    """Variants that the device does not take, or that miss the project's limits."""
    seed: int
    budget_s: float
    elapsed_s: float
    """How long the measurements took, in seconds."""
    candidates: list[Candidate]
    front: list[Count]
    """Candidates that no other is at least as good as in latency, accuracy, memory, size and
    energy, and better in one; of those that were in the last rung of their variant. Fastest
    first."""
    confirmation: Confirmation | NotMeasured
    answer: Count
    """The candidate to use: the fastest if that was confirmed, or else the fastest defaults, or
    what the bundle has where those failed against it."""
    why: Name
    unfinished: Name = ""
    """Why it ended early; then what was measured until then is here."""
    notes: list[str] = []

    def candidate(self, number: int) -> Candidate:
        """Return a candidate by its number."""
        return self.candidates[number]

    @property
    def confirmed(self) -> bool:
        """Whether pairs showed that the answer is no slower than what it was compared with."""
        found = self.confirmation
        return (
            isinstance(found, Confirmation)
            and found.outcome == "PASS"
            and found.candidate == self.answer
        )
