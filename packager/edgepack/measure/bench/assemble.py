"""Builds a report from the device's answers and the bundle's facts, without a device."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field

from edgepack import __version__
from edgepack.base.clock import format_now
from edgepack.base.schema import NotMeasured
from edgepack.bundle.manifest import Manifest, ManifestVariant
from edgepack.devices.canary import CanaryRun, join_runs
from edgepack.devices.clocks import HeldSetting
from edgepack.devices.harness import Events, Quiet
from edgepack.measure.bench.conditions import make_tuned_settings
from edgepack.measure.bench.sweeps import Shapes
from edgepack.project.limits import Limits
from edgepack.records.batches import choose_best_batch
from edgepack.records.other_work import count_threads, list_work_notes
from edgepack.records.presets import Preset
from edgepack.records.run import (
    SCHEMA_VERSION,
    BoundRuns,
    Creation,
    Memory,
    Peak,
    Phases,
    Placement,
    ProcessRun,
    RunReport,
    Scenario,
    Selection,
    SweepPoint,
    VariantFacts,
    list_latencies_ns,
)
from edgepack.records.sustained import list_sustained_notes
from edgepack.records.topology import Topology
from edgepack.records.verdict import (
    explain_heavy_tail_of,
    judge,
    judge_sweep,
    list_condition_notes,
    list_spread_notes,
)

WORST_LAYERS = 20
"""Of each variant, kept in a report."""
NOT_REACHED = NotMeasured(reason="the measurement ended before")


@dataclass
class Measurements:
    """The device's answers so far, in the order of the questions."""

    selection: Selection
    runs: list[ProcessRun] = field(default_factory=list)
    memory: Memory | NotMeasured = NOT_REACHED
    bound: BoundRuns | NotMeasured = NOT_REACHED
    phases: Phases | NotMeasured = NOT_REACHED
    placement: Placement | NotMeasured = NOT_REACHED
    peak: Peak | NotMeasured = NOT_REACHED
    topology: Topology | NotMeasured = NOT_REACHED
    scenario: Scenario = field(default_factory=Scenario)
    argv: list[str] = field(default_factory=list)
    """Of the first timed process run."""
    creation: Creation | NotMeasured = NOT_REACHED
    start: Creation | NotMeasured = NOT_REACHED
    sweep: list[SweepPoint] = field(default_factory=list)
    events: Events = field(default_factory=list)
    """Of onnxruntime's profile, if they were asked for."""
    canary: list[CanaryRun | NotMeasured] = field(default_factory=list)
    """Before and after all that."""
    held: list[HeldSetting] = field(default_factory=list)
    """Settings of the device that are changed during the measurement."""
    quiet: list[Quiet] = field(default_factory=list)
    """How it came out to wait for quiet before the process runs."""


@dataclass(frozen=True)
class Question:
    """What the user asked to measure."""

    device: str
    manifest: Manifest
    manifest_sha256: str
    variant: str | None
    preset: Preset
    sweep: Sequence[Shapes] = ()
    """The shapes of all inputs at each point."""
    batches: int = 0
    """How many of these points, from the first on, are batches of joined samples."""
    batch_bound_ms: float | None = None
    """What the latency of the best of them must not exceed; None where none is asked for."""
    limits: Limits = field(default_factory=Limits)
    quiet_s: float = 0.0
    """How long to wait, over all process runs, while others use the device."""
    events: bool = False
    """Whether the report needs the events of onnxruntime's profile."""


def make_report(question: Question, measured: Measurements, *, unfinished: str = "") -> RunReport:
    """Return the report with its verdict; ``unfinished`` says why runs are missing."""
    manifest, selection = question.manifest, measured.selection
    used = manifest.find_variant(selection.variant)
    created = format_now()
    preset = question.preset.with_scenario(measured.scenario)
    threads = count_threads(used, preset.scenario, selection.device.cpu_count)
    return RunReport(
        schema_version=SCHEMA_VERSION,
        id=make_report_id(created),
        created=created,
        device=question.device,
        facts=selection.device,
        project=manifest.name,
        bundle=manifest.id,
        manifest_sha256=question.manifest_sha256,
        target=manifest.target,
        bundle_bytes=sum(file.size_bytes for file in manifest.files),
        variants=[make_variant_facts(manifest, entry) for entry in manifest.variants],
        variant_requested=question.variant or "first that works",
        variant_used=selection.variant,
        unused=[*manifest.unused, *selection.unused],
        preset=question.preset.name,
        scenario=measured.scenario,
        edgepack=__version__,
        argv=measured.argv,
        runs=list(measured.runs),
        creation=measured.creation,
        start=measured.start,
        memory=measured.memory,
        bound=measured.bound,
        peak=measured.peak,
        topology=measured.topology,
        phases=measured.phases,
        placement=measured.placement,
        sweep=measured.sweep,
        best_batch=None
        if question.batch_bound_ms is None
        else choose_best_batch(measured.sweep[: question.batches], question.batch_bound_ms),
        canary=join_runs(measured.canary),
        tuned=make_tuned_settings(measured.held),
        limits=question.limits,
        unfinished=unfinished,
        verdict=judge_sweep(
            judge(
                selection, measured.runs, measured.placement, used, preset, unfinished=unfinished
            ),
            measured.sweep,
        ),
        heavy_tail=explain_heavy_tail_of(measured.scenario, list_latencies_ns(measured.runs)),
        notes=[
            *_list_quiet_notes(measured.quiet),
            *list_spread_notes(measured.runs),
            *list_sustained_notes(measured.runs),
            *list_work_notes(measured.runs, threads, judged=preset.conclusive),
            *list_condition_notes(selection, measured.runs, question.preset),
        ],
    )


def _list_quiet_notes(found: Sequence[Quiet]) -> list[str]:
    """Return what waiting for quiet came to, if there was anything to wait for."""
    waited_s = sum(each.waited_s for each in found)
    busy = [each for each in found if each.quiet is False]
    if busy:
        taken = max(each.taken for each in busy if not isinstance(each.taken, NotMeasured))
        still = f", which still took {taken:.0%} of the model's cores: --quiet-wait waits longer"
        return [f"it waited {waited_s:.0f} s for other work to end{still}"]
    return [f"it waited {waited_s:.0f} s for other work to end"] if waited_s else []


def make_report_id(created: str) -> str:
    """Return an id for a report; ids sort by time."""
    return f"{created.replace(':', '').replace('-', '')}-{secrets.token_hex(3)}"


def make_variant_facts(manifest: Manifest, entry: ManifestVariant) -> VariantFacts:
    """Return the manifest's facts about a variant, as the report keeps them."""
    return VariantFacts(
        id=entry.id,
        recipe=entry.recipe,
        model_bytes=manifest.count_model_bytes(entry),
        min_sqnr_db=entry.min_sqnr_db,
        session=entry.session,
        providers=[provider.name for provider in entry.providers],
        accuracy=entry.accuracy,
        simulated=entry.simulated,
        layers=entry.layers
        if isinstance(entry.layers, NotMeasured)
        else sorted(entry.layers, key=lambda layer: layer.sqnr_db)[:WORST_LAYERS],
        tried=entry.tried,
        outside=entry.outside,
        input_ranges=entry.input_ranges,
        untold=entry.untold,
    )
