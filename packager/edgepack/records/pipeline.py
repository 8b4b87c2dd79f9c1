"""What a measurement of a bundle of several models leaves: each stage, and the whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

from pydantic import Field

from edgepack.base.schema import NotMeasured, StrictModel
from edgepack.base.statistics import percentile
from edgepack.bundle.manifest import ManifestVariant
from edgepack.bundle.unused import Unused
from edgepack.records.presets import Preset
from edgepack.records.run import (
    Cause,
    Count,
    DeviceFacts,
    Inconclusive,
    Invalid,
    Name,
    Ns,
    Placement,
    ProcessRun,
    ReportId,
    Selection,
    Sha256,
    Valid,
    Verdict,
)
from edgepack.records.verdict import judge


class StageTimes(StrictModel):
    """The times of one stage in the timed calls of a process run."""

    part: Name
    latencies_ns: Annotated[list[Ns], Field(min_length=1)]
    """In order; of more than 100,000 calls, evenly chosen ones."""
    tokens: list[Count]
    """How many tokens each of those calls gave; empty where the stage decodes none."""
    crops: list[Count] = []
    """How many objects each of those calls cut out; empty where the stage cuts none."""


class StagedRun(ProcessRun):
    """One process that loaded all parts, checked them and the whole, and timed calls."""

    stages: Annotated[list[StageTimes], Field(min_length=1)]
    """In the order of the stages."""


class PipelineReport(StrictModel):
    """One bundle of several models, measured on one device."""

    schema_version: Literal[1]
    kind: Literal["pipeline"]
    id: ReportId
    created: str
    """ISO 8601, UTC, by the host's clock."""
    device: Name
    facts: DeviceFacts
    project: Name
    bundle: Name
    manifest_sha256: Sha256
    target: Name
    variants: Name
    """Of each part in use: ``encoder=cpu-fp32 decoder=cpu-int8-static``."""
    unused: list[Unused]
    """Variants of parts that were passed over on the device."""
    preset: Name
    edgepack: Name
    runs: Annotated[list[StagedRun], Field(min_length=1)]
    placement: dict[Name, Placement | NotMeasured]
    """By part."""
    verdict: Verdict
    notes: list[str]


class StageSummary(StrictModel):
    """A stage, or the whole, over all runs."""

    name: str
    p50_ms: float
    p90_ms: float
    share: float
    """The median's part of the whole's, 0 to 1."""
    tokens: float | None
    """On average in a call; None where none are decoded."""
    crops: float | None = None
    """On average in a call; None where none are cut out."""


def summarize_stages(report: PipelineReport) -> list[StageSummary]:
    """Return the stages in order, and the whole call, which is ``pipeline``, at the end."""
    whole = [latency for run in report.runs for latency in run.latencies_ns]
    whole_p50 = percentile(whole, 50)
    found = []
    for number, first in enumerate(report.runs[0].stages):
        times = [ns for run in report.runs for ns in run.stages[number].latencies_ns]
        tokens = [count for run in report.runs for count in run.stages[number].tokens]
        crops = [count for run in report.runs for count in run.stages[number].crops]
        found.append(_summarize(first.part, times, whole_p50, tokens, crops))
    return [*found, _summarize("pipeline", whole, whole_p50)]


def _summarize(
    name: str,
    times_ns: Sequence[int],
    whole_p50: float,
    tokens: Sequence[int] = (),
    crops: Sequence[int] = (),
) -> StageSummary:
    p50 = percentile(times_ns, 50)
    return StageSummary(
        name=name,
        p50_ms=p50 / 1e6,
        p90_ms=percentile(times_ns, 90) / 1e6,
        share=p50 / whole_p50,
        tokens=sum(tokens) / len(tokens) if tokens else None,
        crops=sum(crops) / len(crops) if crops else None,
    )


def judge_pipeline(
    selection: Selection,
    runs: Sequence[StagedRun],
    placement: Mapping[str, Placement | NotMeasured],
    used: Mapping[str, ManifestVariant],
    preset: Preset,
) -> Valid | Invalid | Inconclusive:
    """Return the verdict: the runs are held to what each part in use asks for.

    Args:
        selection: What works on the device.
        runs: The process runs of the whole.
        placement: By part, where its nodes ran.
        used: By part, its variant.
        preset: What was asked for.
    """
    # The loader has held the whole to its own limits: each combination and output has one.
    same = {"id": selection.variant, "min_sqnr_db": 0.0}
    verdicts = [
        judge(selection, runs, placement[name], variant.model_copy(update=same), preset)
        for name, variant in used.items()
    ]
    invalid = [verdict for verdict in verdicts if isinstance(verdict, Invalid)]
    if invalid:
        causes: list[Cause] = [verdict.cause for verdict in invalid]
        reasons = dict.fromkeys(reason for verdict in invalid for reason in verdict.reasons)
        return Invalid(reasons=[*reasons], cause=causes[0])
    open_ends = [verdict for verdict in verdicts if isinstance(verdict, Inconclusive)]
    return open_ends[0] if open_ends else Valid()
