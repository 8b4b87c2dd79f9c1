"""``RunReport``: the record of one bundle measured on one device.

Everything raw is kept; what a table shows is computed from it. What could not be measured is
:class:`~edgepack.bundle.manifest.NotMeasured` with its reason, never None or 0.
"""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Literal

from pydantic import Field

from edgepack.bundle.manifest import Accuracy, LayerError, NotMeasured
from edgepack.profile import Id, StrictModel

SCHEMA_VERSION = 1

Count = Annotated[int, Field(ge=0)]
Ns = Annotated[int, Field(ge=0)]
Name = Annotated[str, Field(max_length=10_000)]


class Valid(StrictModel):
    """The numbers are what they say they are."""

    kind: Literal["valid"] = "valid"


class Invalid(StrictModel):
    """The numbers must not be used."""

    kind: Literal["invalid"] = "invalid"
    reasons: Annotated[list[str], Field(min_length=1)]


class Inconclusive(StrictModel):
    """Nothing is wrong with the numbers, but there are too few to conclude anything."""

    kind: Literal["inconclusive"] = "inconclusive"
    reason: str


Verdict = Annotated[Valid | Invalid | Inconclusive, Field(discriminator="kind")]


class Conditions(StrictModel):
    """What decided the device's speed at one moment."""

    governor: Name | NotMeasured
    """Of all cores, joined by ``+`` where they differ."""
    temperature_c: float | NotMeasured
    """Of the hottest thermal zone."""
    throttle_events: Count | NotMeasured
    """Since boot, over all cores."""
    throttled_now: list[Name] | NotMeasured
    """Causes; empty if it runs at full speed."""
    throttled_since_boot: list[Name] | NotMeasured
    """Causes that occurred at any time since boot; they stay until the next one."""


class DeviceFacts(StrictModel):
    """What the device and its software are, as the harness found them."""

    os: Name
    arch: Name
    model: Name | NotMeasured
    cpu: Name | NotMeasured
    cpu_count: Annotated[int, Field(gt=0)]
    emulated: bool
    """Whether the processor is an emulated one, whose time is not a device's time."""
    python: Name
    numpy: Name
    onnxruntime: Name
    providers: list[Name]
    """All that this build of onnxruntime has."""
    boot_id: Name | NotMeasured
    conditions: Conditions


class PassedOver(StrictModel):
    """A variant that the loader did not use, and why."""

    variant: Name
    reason: Name


class Selection(StrictModel):
    """What the loader chose on the device."""

    variant: Name
    passed_over: list[PassedOver]
    device: DeviceFacts


class Trial(StrictModel):
    """How far the loader is with a variant, as the device says it every few seconds."""

    variant: Id
    building: bool
    """Whether nothing was kept of its engines and compiled models when it began."""
    seconds: Annotated[float, Field(ge=0)]
    kept_bytes: Count
    """What is kept of them by now."""

    def __str__(self) -> str:
        doing = "building engines of" if self.building else "trying"
        minutes, seconds = divmod(int(self.seconds), 60)
        took = f"{minutes} min {seconds} s" if minutes else f"{seconds} s"
        kept = f", {self.kept_bytes / 1e6:.1f} MB" if self.building and self.kept_bytes else ""
        return f"{doing} {self.variant}: {took}{kept}"


class ProcessRun(StrictModel):
    """One process that loaded the model, checked it, warmed up and timed it."""

    variant: Name
    session_create_ns: Ns
    first_inference_ns: Ns
    warm_up_iterations: Count
    steady: bool
    """Whether the last three windows of the warm-up agreed within 3 %."""
    latencies_ns: Annotated[list[Ns], Field(min_length=1)]
    """Every timed inference in order, by the device's monotonic clock. Nothing is dropped."""
    golden_min_sqnr_db: float
    """Over all goldens and outputs, checked on the timed session before timing; -200 stands for
    outputs that cannot be compared."""
    boot_id: Name | NotMeasured
    before: Conditions
    after: Conditions


class PlacedNode(StrictModel):
    """One node as it ran, and where. What a provider compiled is one node."""

    name: Name
    op: Name
    provider: Name
    mean_us: float
    """Microseconds, by onnxruntime's profiler, over all runs but the first."""


class Placement(StrictModel):
    """Which provider ran each node, from a profile made in a process of its own."""

    variant: Name
    runs: Count
    nodes: list[PlacedNode]

    @property
    def counts(self) -> dict[str, int]:
        """The number of nodes by provider, most first."""
        return dict(Counter(node.provider for node in self.nodes).most_common())

    def share(self, provider: str) -> float:
        """Return the share of nodes that ran on a provider."""
        return self.counts.get(provider, 0) / len(self.nodes) if self.nodes else 0.0


class Memory(StrictModel):
    """Peaks of resident memory of a process of its own."""

    baseline_bytes: Count
    """With Python, numpy and onnxruntime, before the model."""
    loaded_bytes: Count
    peak_bytes: Count
    """After ``runs`` inferences."""
    runs: Count

    @property
    def model_bytes(self) -> int:
        """What the model added to the peak."""
        return self.peak_bytes - self.baseline_bytes


class VariantFacts(StrictModel):
    """What the bundle's manifest says of one variant."""

    id: Name
    recipe: Name
    model_bytes: Count
    min_sqnr_db: float
    accuracy: Accuracy | NotMeasured
    """On the build host's CPU."""
    layers: list[LayerError] | NotMeasured = []
    """The error of each node on the build host's CPU, worst first; some of the worst."""


class RunReport(StrictModel):
    """One bundle, measured on one device."""

    schema_version: Literal[1]
    id: Annotated[str, Field(pattern=r"^[0-9A-Za-z-]{1,64}$")]
    created: str
    """ISO 8601, UTC, by the host's clock."""
    device: Name
    """The device's name in the inventory."""
    facts: DeviceFacts
    bundle: Name
    """The bundle's id."""
    manifest_sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    target: Name
    bundle_bytes: Count
    variants: list[VariantFacts]
    variant_requested: Name | Literal["first that works"]
    variant_used: Name
    passed_over: list[PassedOver]
    preset: Name
    runs: Annotated[list[ProcessRun], Field(min_length=1)]
    memory: Memory
    placement: Placement
    verdict: Verdict
    notes: list[str]
    """What the reader has to know that does not make the numbers invalid."""

    @property
    def latencies_ns(self) -> list[int]:
        """All latencies of all process runs, in order."""
        return [latency for run in self.runs for latency in run.latencies_ns]
