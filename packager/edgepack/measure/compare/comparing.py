"""``edgepack compare``: two bundles on the same device, in turn, until it is clear which is slower.

Both lie beside the device's current release, which is not touched. Each pair is one process run of
each bundle, and every second pair begins with the candidate.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath

from edgepack.base import statistics
from edgepack.base.clock import format_now
from edgepack.base.progress import Progress, Silent, Work
from edgepack.base.schema import NotMeasured
from edgepack.bundle.manifest import MANIFEST, MANIFEST_DIGEST, ManifestVariant
from edgepack.bundle.reading import Bundle, load_bundle
from edgepack.deploy.leases import leased
from edgepack.deploy.transfer.client import PushedRelease
from edgepack.devices.harness import Measurer
from edgepack.devices.inventory import Device
from edgepack.devices.transport import Transport
from edgepack.devices.transports import connect
from edgepack.errors import DeviceError, EdgepackError, UsageError
from edgepack.measure.bench.assemble import NOT_REACHED
from edgepack.measure.bench.conditions import tuned
from edgepack.measure.bench.session import (
    INTERRUPTED,
    INTERRUPTS,
    explain_end,
    prepared,
    read_bundle,
    stage_bundle,
)
from edgepack.native.harness import NativeHarness
from edgepack.records.comparison import (
    SCHEMA_VERSION,
    ComparedMetric,
    Comparison,
    DeviceComparison,
    NotCompared,
    Side,
)
from edgepack.records.deciding import (
    Metric,
    MetricDecision,
    Outcome,
    Rule,
    decide,
    decide_overall,
    is_settled,
)
from edgepack.records.presets import Preset, find_preset
from edgepack.records.run import Placement, ProcessRun, Selection, list_latencies_ns
from edgepack.records.verdict import EMULATED, explain_heavy_tail_of, list_reasons_against

MARGINS: Mapping[str, float] = {"p50": 0.03, "p90": 0.05}
_KEPT = 3
"""Releases that have to stay on the device during this: base, candidate and the current one."""


@dataclass(frozen=True)
class CompareQuestion:
    """What is to be compared, and how."""

    candidate: Path
    base: Path | None = None
    """None means the release in use on the device."""
    variant: str | None = None
    """The variant of both bundles; default: each bundle's first one that works there."""
    preset: Preset = field(default_factory=lambda: find_preset("gate"))
    margins: Mapping[str, float] = field(default_factory=lambda: MARGINS)
    """By metric: ``p50``, ``p90`` or another percentile."""
    rule: Rule = field(default_factory=Rule)
    tune: bool = False
    """Whether to keep the devices' clocks at their highest during the comparison."""
    every_pair: bool = False
    """Make ``rule.max_pairs`` pairs, whatever their results."""
    wait_s: float = 0.0

    def list_percentiles(self) -> dict[str, float]:
        """Return the percentile that each metric is.

        Raises:
            UsageError: A metric is no percentile, or its margin is below 0.
        """
        found = {}
        for name, margin in self.margins.items():
            number = name.removeprefix("p")
            if not (name.startswith("p") and number.isdecimal() and 0 < int(number) < 100):
                raise UsageError(
                    f"there is no metric {name!r}", hint="use p50, p90 or another percentile"
                )
            if margin < 0:
                raise UsageError(
                    f"the margin of {name} is {margin:g}", hint="give 3 for 3 %, or 0 for none"
                )
            found[name] = float(number)
        return found

    def compute_ratios(
        self, device: str, base: Sequence[ProcessRun], candidate: Sequence[ProcessRun]
    ) -> dict[Metric, list[float]]:
        """Return candidate over base for every metric and pair."""
        return {
            Metric(device, name, self.margins[name]): compute_pair_ratios(base, candidate, percent)
            for name, percent in self.list_percentiles().items()
        }


def compare(
    question: CompareQuestion,
    devices: Sequence[Device],
    *,
    progress: Progress | None = None,
    on_interrupted: Callable[[Comparison], None] = lambda _: None,
) -> Comparison:
    """Compare a candidate with a base on every device, all devices at a time.

    Each device is leased meanwhile, and its current release is not touched. Pairs are made until
    each metric passes or one fails, or until ``rule.max_pairs``. Errors on some of the devices are
    in the result. A device that vanishes after its first pair is in the result with what it
    measured, marked as unfinished.

    Args:
        question: What is compared.
        devices: Where.
        progress: Where to report; default: nowhere.
        on_interrupted: Given what was measured, if the process is interrupted after the first pair;
            then the interrupt is raised.

    Raises:
        UsageError: There is no such variant or metric, or the preset is ``sustained``.
        BundleError: A bundle is incomplete or altered.
        DeviceError: No device can be compared on: it cannot be reached or used, is not the bundles'
            target, is held by others, or has no current release to compare with.
        RemoteCommandError: Likewise: the harness crashed or hung, or no variant works.
    """
    if question.preset.heats:
        raise UsageError(
            f"the preset {question.preset.name!r} heats the device, so its times do not compare",
            hint="use --preset gate",
            where="--preset",
        )
    preset = question.preset.with_samples_for(question.list_percentiles().values())
    question = replace(question, preset=preset)
    session = _Session(question, len(devices), progress or Silent())
    ends = list(zip(devices, _compare_on_all(session, devices), strict=True))
    found = [end for _, end in ends if isinstance(end, _Found)]
    lost = [(device, end) for device, end in ends if isinstance(end, EdgepackError)]
    if not found:
        raise session.interrupt or lost[0][1]
    comparison = Comparison(
        schema_version=SCHEMA_VERSION,
        created=format_now(),
        preset=question.preset.name,
        error=question.rule.error,
        max_pairs=question.rule.max_pairs,
        devices=_judge_devices(question, found),
        not_compared=[
            NotCompared(device=device.name, problem=error.problem, hint=error.hint)
            for device, error in lost
        ],
    )
    if session.interrupt:
        on_interrupted(comparison)
        raise session.interrupt
    return comparison


def compute_pair_ratios(
    base: Sequence[ProcessRun], candidate: Sequence[ProcessRun], percent: float
) -> list[float]:
    """Return a percentile of each of the candidate's runs over that of the base's of its pair.

    A last run without its partner does not count.
    """
    return [
        statistics.percentile(after.latencies_ns, percent)
        / max(1.0, statistics.percentile(before.latencies_ns, percent))
        for before, after in zip(base, candidate, strict=False)
    ]


@dataclass
class _Measured:
    """A bundle on a device, and what it did there so far."""

    harness: Measurer
    bundle: Bundle
    selection: Selection
    runs: list[ProcessRun] = field(default_factory=list)
    placement: Placement | NotMeasured = NOT_REACHED

    @property
    def variant(self) -> ManifestVariant:
        return self.bundle.manifest.find_variant(self.selection.variant)

    def run(self, preset: Preset) -> None:
        self.runs.append(self.harness.measure(self.selection.variant, preset))

    def make_side(self, preset: Preset) -> Side:
        manifest, placement = self.bundle.manifest, self.placement
        return Side(
            bundle=manifest.id,
            manifest_sha256=self.bundle.digest,
            bundle_bytes=sum(file.size_bytes for file in manifest.files),
            variant=self.selection.variant,
            unused=self.selection.unused,
            placement=placement,
            runs=self.runs,
            min_sqnr_db=self.variant.min_sqnr_db,
            reasons=list_reasons_against(
                self.selection, self.runs, placement, self.variant, preset
            ),
        )


@dataclass(frozen=True)
class _Found:
    device: Device
    selection: Selection
    base: Side
    candidate: Side
    unfinished: str


@dataclass
class _Session:
    """What the comparisons on all devices share."""

    question: CompareQuestion
    devices: int
    progress: Progress
    interrupt: BaseException | None = None
    """Once it is set, no process run begins."""


def _compare_on_all(session: _Session, devices: Sequence[Device]) -> list[_Found | EdgepackError]:
    """Compare on every device; a single one in this thread, where an interrupt works at once."""
    if len(devices) == 1:
        return [_compare_on_device(session, devices[0])]
    with ThreadPoolExecutor(len(devices)) as pool:
        runs = [pool.submit(_compare_on_device, session, device) for device in devices]
        try:
            wait(runs)
        except INTERRUPTS as interrupt:
            session.interrupt = interrupt
            session.progress.note("interrupted: waiting for the process runs on the devices to end")
    return [run.result() for run in runs]


def _compare_on_device(session: _Session, device: Device) -> _Found | EdgepackError:
    """Return what was found on a device, or what ended it before the first pair was whole."""
    sides: list[_Measured] = []
    unfinished = ""
    try:
        _measure(session, device, sides)
    except (EdgepackError, *INTERRUPTS) as end:
        if isinstance(end, INTERRUPTS):
            session.interrupt = end
        unfinished = explain_end(end)
        if len(sides) < 2 or not all(side.runs for side in sides):
            if isinstance(end, EdgepackError):
                return end
            return DeviceError(INTERRUPTED, hint="compare again", where=device.name)
    base, candidate = (side.make_side(session.question.preset) for side in sides)
    return _Found(device, sides[1].selection, base, candidate, unfinished)


def _measure(session: _Session, device: Device, sides: list[_Measured]) -> None:
    """Add base and candidate to ``sides``, and measure both."""
    question, progress = session.question, session.progress
    candidate = read_bundle(question.candidate, device, question.variant)
    base = None
    if question.base is not None:
        base = read_bundle(question.base, device, question.variant)
    purpose = f"compare {candidate.manifest.id}"
    with ExitStack() as stack:
        transport = stack.enter_context(connect(device))
        stack.enter_context(
            leased(transport, device, purpose, wait_s=question.wait_s, progress=progress)
        )
        stack.enter_context(tuned(transport, device, tune=question.tune))
        make_harness = stack.enter_context(prepared(device, transport, progress))
        kept = max(_KEPT, device.entry.keep_releases)
        roomy = Device(device.name, device.entry.model_copy(update={"keep_releases": kept}))
        pushed = stage_bundle(candidate, roomy, transport, progress)
        if base is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="edgepack-")))
            base, base_path = _read_current(pushed, device, transport, folder)
        else:
            base_path = stage_bundle(base, roomy, transport, progress).path
        for bundle, path in ((base, base_path), (candidate, pushed.path)):
            harness = make_harness(bundle, path)
            if isinstance(harness, NativeHarness) and bundle is base and question.base is None:
                _fetch_goldens(bundle, path, transport)
            sides.append(_Measured(harness, bundle, harness.select(question.variant)))
        _measure_pairs(session, device, *sides)
        for side in sides:
            side.placement = side.harness.profile(side.selection.variant)


def _measure_pairs(
    session: _Session, device: Device, base: _Measured, candidate: _Measured
) -> None:
    """Make pairs of process runs until the question is settled on this device."""
    question = session.question
    rule = question.rule
    title = f"compare {candidate.selection.variant} on {device.name}"
    with session.progress.start_task(
        Work(title, total=rule.max_pairs, kinds={"pair": rule.max_pairs}, at_most=True, finds=True)
    ) as task:
        for number in range(1, rule.max_pairs + 1):
            task.begin(f"pair {number}", kind="pair")
            for side in (base, candidate) if number % 2 else (candidate, base):
                if session.interrupt:
                    raise session.interrupt
                side.run(question.preset)
            last = compute_pair_ratios(base.runs[-1:], candidate.runs[-1:], 50)[0]
            task(f"pair {number}", found=f"p50 {last - 1:+.1%} against the base's")
            if number in rule.looks and not question.every_pair:
                ratios = question.compute_ratios(device.name, base.runs, candidate.runs)
                if is_settled(ratios, rule, families=session.devices):
                    break


def _judge_devices(question: CompareQuestion, found: Sequence[_Found]) -> list[DeviceComparison]:
    """Return each device's comparison; Holm's procedure runs over all devices and metrics."""
    every: dict[Metric, list[float]] = {}
    for each in found:
        every |= question.compute_ratios(each.device.name, each.base.runs, each.candidate.runs)
    answers = decide(every, question.rule)
    return [
        _judge_device(question, each, [a for a in answers if a.metric.device == each.device.name])
        for each in found
    ]


def _judge_device(
    question: CompareQuestion, found: _Found, answers: Sequence[MetricDecision]
) -> DeviceComparison:
    reasons = [
        *(f"base: {reason}" for reason in found.base.reasons),
        *(f"candidate: {reason}" for reason in found.candidate.reasons),
    ]
    tails = _list_tail_reasons(question, found)
    if tails:
        answers = [_judge_by_p50(answer) for answer in answers]
    outcome: Outcome = decide_overall([answer.outcome for answer in answers])
    if found.selection.device.emulated:
        reasons.append(EMULATED)
    if not question.preset.conclusive:
        reasons.append(f"preset {question.preset.name!r} is too short to conclude anything")
    if reasons:  # however fast it is, a candidate with wrong outputs fails
        outcome = "FAIL" if found.candidate.outputs_wrong else "INCONCLUSIVE"
    if found.unfinished:
        outcome = "INCONCLUSIVE"
        reasons.insert(0, f"it ended early: {found.unfinished}")
        answers = [replace(answer, outcome=outcome) for answer in answers]
    else:
        by_p50 = [answer for answer in answers if not tails or answer.metric.name == "p50"]
        reasons += [
            reason for answer in by_p50 if (reason := _explain_answer(answer, question.rule))
        ]
        reasons += tails
    notes = []
    if found.base.variant != found.candidate.variant:
        notes.append(
            f"different variants: base ran {found.base.variant}, candidate"
            f" {found.candidate.variant}"
        )
    return DeviceComparison(
        device=found.device.name,
        facts=found.selection.device,
        base=found.base,
        candidate=found.candidate,
        outcome=outcome,
        reasons=reasons,
        metrics=[make_compared_metric(answer) for answer in answers],
        notes=notes,
        unfinished=found.unfinished,
    )


def _list_tail_reasons(question: CompareQuestion, found: _Found) -> list[str]:
    """Return on which sides only p50 may be used, if another percentile is compared."""
    if not question.margins.keys() - {"p50"}:
        return []
    sides = {"base": found.base, "candidate": found.candidate}
    tails = {
        name: explain_heavy_tail_of(question.preset.scenario, list_latencies_ns(side.runs))
        for name, side in sides.items()
    }
    return [f"{name}: {tail}" for name, tail in tails.items() if tail]


def _judge_by_p50(answer: MetricDecision) -> MetricDecision:
    return answer if answer.metric.name == "p50" else replace(answer, outcome="INCONCLUSIVE")


def _explain_answer(answer: MetricDecision, rule: Rule) -> str | None:
    name, margin = answer.metric.name, answer.metric.margin
    match answer.outcome:
        case "PASS":
            return None
        case "FAIL":
            return f"{name} is {answer.ratio.estimate - 1:+.1%}, more than the {margin:.0%} allowed"
        case "INCONCLUSIVE":
            return (
                f"{name} is between {answer.ratio.low - 1:+.1%} and {answer.ratio.high - 1:+.1%}"
                f" after {answer.pairs} pairs, and {margin:+.0%} lies between: the device is"
                f" noisier than {rule.max_pairs} pairs can settle"
            )


def make_compared_metric(answer: MetricDecision) -> ComparedMetric:
    """Return an answer as reports keep it."""
    some = answer.pairs > 1
    return ComparedMetric(
        name=answer.metric.name,
        margin=answer.metric.margin,
        outcome=answer.outcome,
        ratio=answer.ratio.estimate,
        low=answer.ratio.low if some else None,
        high=answer.ratio.high if some else None,
        fail_p=answer.fail_p,
        pass_p=answer.pass_p,
    )


def _read_current(
    pushed: PushedRelease, device: Device, transport: Transport, folder: Path
) -> tuple[Bundle, PurePosixPath]:
    """Return the release in use on a device, as its manifest describes it, and its path.

    Of its files, a folder here has the manifest alone.

    Raises:
        DeviceError: The device has no current release.
        BundleError: Its manifest is altered.
    """
    release = pushed.switched_from
    if release is None:
        raise DeviceError(
            "no release is in use there to compare with",
            hint="name a bundle as the base, or push one: edgepack push BUNDLE --device"
            f" {device.name}",
            where=device.name,
        )
    path = pushed.path.parent / release
    for name in (MANIFEST, MANIFEST_DIGEST):
        transport.get(path / name, folder / name, timeout_s=60)
    return load_bundle(folder), path


def _fetch_goldens(bundle: Bundle, path: PurePosixPath, transport: Transport) -> None:
    """Copy a release's goldens from a device without Python, whose plans are made of them here."""
    for file in bundle.manifest.files:
        if file.role == "golden":
            (bundle.path / file.path).parent.mkdir(parents=True, exist_ok=True)
            transport.get(path / file.path, bundle.path / file.path, timeout_s=600)
