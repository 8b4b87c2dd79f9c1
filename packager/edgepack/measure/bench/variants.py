"""``edgepack bench --variant all``: every variant of a bundle on one device, their runs in turn.

Run ``n`` of each variant is made before run ``n + 1`` of any, every other round in the reverse
order, so that a device that gets warm slows all equally. So the runs of one number are a pair, and
the ratio to fp32 has an interval without more runs than the variants need anyway.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from edgepack.base import statistics
from edgepack.base.progress import Progress, Silent, Task, Work
from edgepack.base.schema import NotMeasured
from edgepack.bundle.manifest import Manifest
from edgepack.bundle.unused import Stage, Unused
from edgepack.devices.clocks import HeldSetting
from edgepack.devices.harness import Measurer
from edgepack.devices.inventory import Device
from edgepack.errors import (
    EdgepackError,
    RemoteCommandError,
    VariantRefusedError,
    format_one_line,
)
from edgepack.measure.bench.assemble import Measurements, Question, make_report
from edgepack.measure.bench.conditions import tuned
from edgepack.measure.bench.joining import require_joinable
from edgepack.measure.bench.measuring import ONCE, POINT, RUN, Subject, measure_canary
from edgepack.measure.bench.run import choose_opening
from edgepack.measure.bench.session import INTERRUPTS, explain_end, read_bundle
from edgepack.measure.bench.sweeps import make_sweep_points, require_bound
from edgepack.measure.limits import split_by_limits
from edgepack.project.limits import Limits
from edgepack.records.presets import find_preset
from edgepack.records.run import (
    ALL_VARIANTS,
    SINGLE_STREAM,
    ProcessRun,
    RunReport,
    Scenario,
    Speedup,
)

_NO_BASE = NotMeasured(reason="no fp32 variant was measured beside it")


@dataclass(frozen=True)
class VariantsBench:
    """What was measured of a bundle's variants on one device."""

    device: str
    reports: list[RunReport]
    """In the order of the manifest."""
    out: list[Unused]
    """Variants that do not work there (``passed over``) or failed while they were measured."""

    @property
    def failed(self) -> list[Unused]:
        """Those that crashed or hung, rather than being refused by the loader."""
        return [each for each in self.out if each.stage == "failed"]


def bench_variants(  # noqa: PLR0913  (the command's options)
    bundle: Path,
    device: Device,
    *,
    preset: str = "standard",
    runs: int | None = None,
    scenario: Scenario = SINGLE_STREAM,
    batches: Sequence[int] = (),
    shapes: Sequence[str] = (),
    batch_bound_ms: float | None = None,
    limits: Limits | None = None,
    quiet_s: float = 0.0,
    tune: bool = False,
    wait_s: float = 0.0,
    progress: Progress | None = None,
    on_unfinished: Callable[[RunReport], None] = lambda _: None,
) -> VariantsBench:
    """Measure all variants of a bundle that work on a device; nothing is stored.

    The device is leased once for all. A variant that fails does not stop the others. Each report is
    one of :func:`~edgepack.measure.bench.run.bench`'s, with ``beside`` and ``speedup``.

    Args:
        bundle: The bundle's folder.
        device: Where to measure.
        preset: ``quick``, ``standard``, ``gate``, ``sustained`` or ``smoke``.
        runs: How many process runs to make, rather than as many as the preset has.
        scenario: How queries arrive.
        batches: Also measure these batch sizes.
        shapes: Also measure inputs of these shapes.
        batch_bound_ms: Find each variant's batch of these with the most samples a second whose
            latencies are within so many milliseconds.
        limits: The project's for this device.
        quiet_s: How long to wait, over all process runs of a variant, while others use so much of
            the device that a run could not be used; it is measured then all the same.
        tune: Keep the device's clocks at their highest during this.
        wait_s: How long to wait while others hold the device.
        progress: Where to report; default: nowhere.
        on_unfinished: Called with what was measured of each variant that failed after a run; and of
            all, if it ends early.

    Raises:
        UsageError: There is no such preset or shape; or phones cannot do what was requested, or
            no variant's samples can be joined.
        BundleError: The bundle is incomplete or altered.
        LimitError: No variant can be within the limits, whatever the device does.
        DeviceError: The device cannot be reached or used, or is not the bundle's target; others
            hold it, or may have used it meanwhile.
        RemoteCommandError: No variant works there, or none could be measured.
    """
    chosen = find_preset(preset).with_runs(runs).with_scenario(scenario)
    opening = choose_opening(device, scenario, tune=tune)
    opened = read_bundle(bundle, device, None)
    limits = limits or Limits()
    require_joinable(opened.manifest, None, scenario.max_batch)
    split_by_limits(opened.manifest, (), limits)
    progress = progress or Silent()
    question = Question(
        device.name,
        opened.manifest,
        opened.digest,
        ALL_VARIANTS,
        chosen,
        sweep=make_sweep_points(opened.manifest, batches, shapes),
        batches=len(batches),
        batch_bound_ms=require_bound(batch_bound_ms, batches),
        limits=limits,
        quiet_s=quiet_s,
    )
    rounds = _Rounds(device.name, on_unfinished)
    try:
        with (
            opening(opened, device, "bench", wait_s=wait_s, progress=progress) as harness,
            tuned(harness.transport, device, tune=tune) as held,
            progress.start_task(_plan_work(question)) as task,
        ):
            for entry in opened.manifest.variants:
                task.begin(f"{entry.id}: trying", f"{entry.id}: whether it works there")
                rounds.add(entry.id, harness, question, held)
                task(f"{entry.id}: trying")
            rounds.measure(task, progress.note)
    except (EdgepackError, *INTERRUPTS) as end:
        for subject in rounds.subjects:
            rounds.keep(subject, explain_end(end))
        raise
    reports = [
        report.model_copy(update={"unused": [*report.unused, *rounds.out]})
        for report in pair_reports(rounds.make_reports(), opened.manifest)
    ]
    return VariantsBench(device.name, reports, rounds.out)


def _plan_work(question: Question) -> Work:
    variants, preset = len(question.manifest.variants), question.preset
    runs, points = variants * preset.runs, variants * len(question.sweep)
    return Work(
        f"bench on {question.device}",
        total=variants * (1 + ONCE) + runs + points,
        kinds={RUN: runs, POINT: points},
        at_most=True,
    )


class _Rounds:
    """The variants that are measured in turn; one that fails is out."""

    def __init__(self, device: str, on_unfinished: Callable[[RunReport], None]) -> None:
        self.device = device
        self.on_unfinished = on_unfinished
        self.subjects: list[Subject] = []
        self.out: list[Unused] = []

    def add(
        self, variant: str, harness: Measurer, question: Question, held: list[HeldSetting]
    ) -> None:
        """Take a variant, if the device does."""
        try:
            subject = Subject(harness, question, Measurements(harness.select(variant), held=held))
        except RemoteCommandError as error:
            stage: Stage = "passed over" if isinstance(error, VariantRefusedError) else "failed"
            reason = format_one_line(error.problem)
            self.out.append(Unused(variant=variant, stage=stage, reason=reason))
            return
        self.subjects.append(subject)

    def measure(self, task: Task, note: Callable[[str], None]) -> None:
        """Measure all of them.

        Raises:
            DeviceError: The connection broke.
            RemoteCommandError: None is left.
        """
        self._add_canary()
        for number in range(max((each.preset.runs for each in self.subjects), default=0)):
            order = self.subjects if number % 2 == 0 else self.subjects[::-1]
            for subject in list(order):
                self._attempt(subject, lambda subject: subject.measure_run(task, note))
        for subject in list(self.subjects):
            self._attempt(subject, lambda subject: subject.measure_rest(task))
        self._add_canary()
        if not self.subjects:
            raise RemoteCommandError(
                "no variant could be measured there: "
                + "; ".join(f"{each.variant}: {each.reason}" for each in self.out),
                hint=f"see what the device lacks: edgepack device check {self.device}",
                where=self.device,
            )

    def keep(self, subject: Subject, why: str) -> None:
        """Keep what was measured of a variant that is not measured to the end."""
        if subject.measured.runs:
            self.on_unfinished(make_report(subject.question, subject.measured, unfinished=why))

    def make_reports(self) -> list[RunReport]:
        """Return a report of each."""
        return [make_report(subject.question, subject.measured) for subject in self.subjects]

    def _attempt(self, subject: Subject, measure: Callable[[Subject], None]) -> None:
        try:
            measure(subject)
        except RemoteCommandError as error:
            reason = format_one_line(error.problem)
            self.out.append(Unused(variant=subject.used, stage="failed", reason=reason))
            self.subjects.remove(subject)
            self.keep(subject, reason)

    def _add_canary(self) -> None:
        """Time the canary once, for the reports of all."""
        if self.subjects:
            found = measure_canary(self.subjects[0].harness)
            for subject in self.subjects:
                subject.measured.canary.append(found)


def pair_reports(reports: Sequence[RunReport], manifest: Manifest) -> list[RunReport]:
    """Return reports whose runs were made in turn, each with its speedup over fp32 on the CPU.

    Over another fp32 variant, if the CPU's is not among them.
    """
    ids = [report.id for report in reports]
    entries = {report.id: manifest.find_variant(report.variant_used) for report in reports}
    base = min(
        (report for report in reports if entries[report.id].recipe == "fp32"),
        key=lambda report: entries[report.id].backend != "cpu",
        default=None,
    )
    return [
        report.model_copy(
            update={
                "beside": [each for each in ids if each != report.id],
                "speedup": _NO_BASE if base is None else _compute_speedup(base, report),
            }
        )
        for report in reports
    ]


def _compute_time_ns(run: ProcessRun) -> float:
    """Return the median time of a query, by its inferences: of ``offline`` a run is one query."""
    return statistics.median(run.latencies_ns) / run.samples_per_query


def _compute_speedup(base: RunReport, report: RunReport) -> Speedup:
    pairs = zip(base.runs, report.runs, strict=False)
    ratios = [_compute_time_ns(one) / max(1.0, _compute_time_ns(other)) for one, other in pairs]
    found = statistics.log_t_interval(ratios) if len(ratios) > 1 else None
    return Speedup(
        over=base.variant_used,
        report=base.id,
        ratio=found.estimate if found else ratios[0],
        low=found.low if found else None,
        high=found.high if found else None,
        pairs=len(ratios),
    )
