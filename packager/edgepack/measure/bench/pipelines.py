"""``edgepack bench`` of several models: each stage and the whole, in the same calls."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

from edgepack import __version__
from edgepack.base.clock import format_now
from edgepack.base.progress import Progress, Silent, Work
from edgepack.base.schema import NotMeasured
from edgepack.bundle.manifest import ManifestVariant
from edgepack.bundle.reading import PipelineBundle, load_bundle, verify_any
from edgepack.deploy.transfer.client import open_for
from edgepack.devices.harness import STAGES, Harness
from edgepack.devices.inventory import Device
from edgepack.errors import InconclusiveError, RemoteCommandError, UsageError, format_one_line
from edgepack.measure.bench.assemble import make_report_id
from edgepack.measure.bench.measuring import RUN
from edgepack.measure.bench.session import open_harness
from edgepack.records.other_work import count_threads, list_work_notes
from edgepack.records.pipeline import PipelineReport, StagedRun, judge_pipeline
from edgepack.records.presets import Preset, find_preset
from edgepack.records.run import Placement, Selection
from edgepack.records.verdict import explain_unusable, list_condition_notes, list_spread_notes


def bench_pipeline(
    bundle: Path,
    device: Device,
    *,
    preset: str = "standard",
    runs: int | None = None,
    wait_s: float = 0.0,
    progress: Progress | None = None,
) -> PipelineReport:
    """Measure a bundle of several models on a device, and return the report; nothing is stored.

    The device is leased for this, and its current release is not touched. Each process run opens
    all parts with the variants that work there, checks their goldens and the whole's, warms up,
    and times calls over the golden inputs: every stage, and all of it. With a state the calls are
    one stream.

    Args:
        bundle: The bundle's folder.
        device: Where to measure.
        preset: ``quick``, ``standard``, ``gate``, ``sustained`` or ``smoke``.
        runs: How many process runs to make, rather than as many as the preset has.
        wait_s: How long to wait while others hold the device.
        progress: Where to report; default: nowhere.

    Raises:
        UsageError: There is no such preset, or the bundle has one model.
        BundleError: The bundle is incomplete or altered.
        DeviceError: The device cannot be reached or used, or is not the bundle's target; others
            hold it, or may have used it meanwhile.
        RemoteCommandError: The harness crashed, hung or printed nonsense, or no variants work.
    """
    chosen = find_preset(preset).with_runs(runs)
    open_for(device, bundle)
    opened = verify_any(bundle)
    if not isinstance(opened, PipelineBundle):
        raise UsageError(f"{str(bundle)!r} has one model", hint="measure it with api.bench")
    progress = progress or Silent()
    with (
        open_harness(opened, device, "bench", wait_s=wait_s, progress=progress) as found_harness,
        progress.start_task(
            Work(f"bench on {device.name}", total=2 + chosen.runs, kinds={RUN: chosen.runs})
        ) as task,
    ):
        task.begin("select", "choosing variants that work there")
        harness = cast(Harness, found_harness)  # without Python, opening refuses a pipeline
        stages = replace(harness, program=STAGES)
        selection = stages.select(None)
        task("select")
        used = _find_used(opened, selection)
        found: list[StagedRun] = []
        for number in range(1, chosen.runs + 1):
            run = f"process run {number}"
            task.begin(run, f"latency of each stage, process run {number} of {chosen.runs}", RUN)
            stages.cool_down(selection.device.conditions, chosen.pause_s, progress.note)
            found.append(stages.measure_stages(chosen))
            task(run)
        task.begin("placement", "which provider runs each node of each part")
        placement = {name: _profile(harness, opened, name, used[name].id) for name in used}
        task("placement")
    return _Measured(device.name, opened, chosen, selection, found, placement, used).make_report()


def _find_used(bundle: PipelineBundle, selection: Selection) -> dict[str, ManifestVariant]:
    """Return the variant in use of each part, from ``part=variant part=variant``."""
    chosen = dict(name.split("=", 1) for name in selection.variant.split(" "))
    return {
        name: load_bundle(bundle.path / part.path).manifest.find_variant(chosen[name])
        for name, part in bundle.manifest.parts.items()
    }


def _profile(
    harness: Harness, bundle: PipelineBundle, part: str, variant: str
) -> Placement | NotMeasured:
    """Return where a part's nodes run: it is a bundle of its own, with a harness of its own."""
    place = harness.release / bundle.manifest.parts[part].path
    try:
        return replace(harness, release=place).profile(variant)
    except RemoteCommandError as error:
        return NotMeasured(reason=f"part {part}: {format_one_line(error.problem)}")


@dataclass(frozen=True)
class _Measured:
    """The device's answers."""

    device: str
    bundle: PipelineBundle
    preset: Preset
    selection: Selection
    runs: list[StagedRun]
    placement: dict[str, Placement | NotMeasured]
    used: dict[str, ManifestVariant]

    def make_report(self) -> PipelineReport:
        manifest, created = self.bundle.manifest, format_now()
        cpu_count = self.selection.device.cpu_count
        threads = max(
            count_threads(each, self.preset.scenario, cpu_count) for each in self.used.values()
        )
        return PipelineReport(
            schema_version=1,
            kind="pipeline",
            id=make_report_id(created),
            created=created,
            device=self.device,
            facts=self.selection.device,
            project=manifest.name,
            bundle=manifest.id,
            manifest_sha256=self.bundle.digest,
            target=manifest.target,
            variants=self.selection.variant,
            unused=self.selection.unused,
            preset=self.preset.name,
            edgepack=__version__,
            runs=self.runs,
            placement=self.placement,
            verdict=judge_pipeline(
                self.selection, self.runs, self.placement, self.used, self.preset
            ),
            notes=[
                *list_spread_notes(self.runs),
                *list_work_notes(self.runs, threads, judged=self.preset.conclusive),
                *list_condition_notes(self.selection, self.runs, self.preset),
            ],
        )


def require_valid_pipeline(report: PipelineReport) -> None:
    """Check that a report's numbers may be used.

    Raises:
        InconclusiveError: They may not; the message has the verdict and all its reasons.
    """
    if problem := explain_unusable(report.verdict):
        raise InconclusiveError(
            problem,
            hint="measure again when the device is idle, with a preset that is long enough:"
            " standard",
            where=report.device,
        )
