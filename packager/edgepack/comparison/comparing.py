"""``edgepack compare``: two bundles on the same device, in turn, until it is clear which is slower.

Both lie beside the device's current release, which is not touched. Each pair is one process run of
each, and every other pair begins with the candidate.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from edgepack import statistics
from edgepack.bench.harness import Harness
from edgepack.bench.presets import Preset, find_preset
from edgepack.bench.report import ProcessRun, Selection
from edgepack.bench.session import read_bundle, stage
from edgepack.bench.verdict import EMULATED, reasons_against
from edgepack.bundle import MANIFEST, MANIFEST_DIGEST, Bundle, load_bundle
from edgepack.bundle.manifest import ManifestVariant
from edgepack.clock import utc_now
from edgepack.comparison.deciding import Answer, Metric, Outcome, Rule, decide, overall, settled
from edgepack.comparison.report import (
    SCHEMA_VERSION,
    ComparedMetric,
    Comparison,
    DeviceComparison,
    Missed,
    Side,
)
from edgepack.devices import Device, Transport, connect
from edgepack.devices.checking import runtime_python
from edgepack.devices.leases import leased
from edgepack.devices.probing import probe
from edgepack.devices.pushing import PushedRelease
from edgepack.errors import DeviceError, EdgepackError, UsageError
from edgepack.progress import Progress, Silent

CURRENT = "current"
"""As the base: the release that is in use on the device."""
MARGINS: Mapping[str, float] = {"p50": 0.03, "p90": 0.05}
_KEPT = 3
"""Releases that have to stay on the device meanwhile: base, candidate and the current one."""


@dataclass(frozen=True)
class Question:
    """What is to be compared, and how."""

    candidate: Path
    base: Path | None = None
    """None stands for the release in use on the device."""
    variant: str | None = None
    """Of both; default: each bundle's first that works there."""
    preset: Preset = field(default_factory=lambda: find_preset("gate"))
    margins: Mapping[str, float] = field(default_factory=lambda: MARGINS)
    """By metric: ``p50``, ``p90`` or another percentile."""
    rule: Rule = field(default_factory=Rule)
    every_pair: bool = False
    """Make ``rule.max_pairs`` pairs, whatever they say."""
    wait_s: float = 0.0

    def percentiles(self) -> dict[str, float]:
        """Return the percentile that each metric is.

        Raises:
            UsageError: One is none.
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

    def ratios(
        self, device: str, base: Sequence[ProcessRun], candidate: Sequence[ProcessRun]
    ) -> dict[Metric, list[float]]:
        """Return candidate over base for every metric and pair."""
        return {
            Metric(device, name, self.margins[name]): pair_ratios(base, candidate, percent)
            for name, percent in self.percentiles().items()
        }


def compare(
    question: Question, devices: Sequence[Device], *, progress: Progress | None = None
) -> Comparison:
    """Compare a candidate with a base on every device, all devices at a time.

    Each device is leased meanwhile, and its current release is not touched. Pairs are made until
    each metric passes or one fails, or until ``rule.max_pairs``. What goes wrong on some of the
    devices is in the result.

    Raises:
        UsageError: There is no such variant or metric.
        BundleError: A bundle is incomplete or altered.
        DeviceError: No device can be compared on: it cannot be reached or used, is not the bundles'
            target, is held by others, or has no current release to compare with.
        RemoteCommandError: Likewise: the harness crashed or hung, or no variant works.
    """
    question.percentiles()
    found: list[_Found] = []
    missed: list[tuple[Device, EdgepackError]] = []
    with ThreadPoolExecutor(len(devices)) as pool:
        runs = [
            pool.submit(_on_device, question, device, len(devices), progress or Silent())
            for device in devices
        ]
    for device, run in zip(devices, runs, strict=True):
        try:
            found.append(run.result())
        except EdgepackError as error:
            missed.append((device, error))
    if not found:
        raise missed[0][1]
    return Comparison(
        schema_version=SCHEMA_VERSION,
        created=utc_now(),
        preset=question.preset.name,
        error=question.rule.error,
        max_pairs=question.rule.max_pairs,
        devices=_judged(question, found),
        missed=[
            Missed(device=device.name, problem=error.problem, hint=error.hint)
            for device, error in missed
        ],
    )


def pair_ratios(
    base: Sequence[ProcessRun], candidate: Sequence[ProcessRun], percent: float
) -> list[float]:
    """Return a percentile of each of the candidate's runs over that of the base's of its pair."""
    return [
        statistics.percentile(after.latencies_ns, percent)
        / max(1.0, statistics.percentile(before.latencies_ns, percent))
        for before, after in zip(base, candidate, strict=True)
    ]


@dataclass
class _Measured:
    """A bundle on a device, and what it did there so far."""

    harness: Harness
    bundle: Bundle
    selection: Selection
    runs: list[ProcessRun] = field(default_factory=list)

    @property
    def variant(self) -> ManifestVariant:
        variants = self.bundle.manifest.variants
        return next(entry for entry in variants if entry.id == self.selection.variant)

    def run(self, preset: Preset) -> None:
        self.runs.append(self.harness.measure(self.selection.variant, preset))

    def side(self, preset: Preset) -> Side:
        manifest = self.bundle.manifest
        placement = self.harness.profile(self.selection.variant)
        return Side(
            bundle=manifest.id,
            manifest_sha256=self.bundle.digest,
            bundle_bytes=sum(file.size_bytes for file in manifest.files),
            variant=self.selection.variant,
            passed_over=self.selection.passed_over,
            placement=placement,
            runs=self.runs,
            min_sqnr_db=self.variant.min_sqnr_db,
            reasons=reasons_against(self.selection, self.runs, placement, self.variant, preset),
        )


@dataclass(frozen=True)
class _Found:
    device: Device
    selection: Selection
    base: Side
    candidate: Side


def _on_device(question: Question, device: Device, devices: int, progress: Progress) -> _Found:
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
        python = runtime_python(device, probe(device, transport))
        kept = max(_KEPT, device.entry.keep_releases)
        roomy = Device(device.name, device.entry.model_copy(update={"keep_releases": kept}))
        pushed = stage(candidate, roomy, transport, progress)
        if base is None:
            base, base_path = _current(pushed, device, transport)
        else:
            base_path = stage(base, roomy, transport, progress).path
        prefix = tuple(device.entry.run_prefix)
        sides = []
        for bundle, path in ((base, base_path), (candidate, pushed.path)):
            harness = Harness(transport, path, python, prefix)
            sides.append(_Measured(harness, bundle, harness.select(question.variant)))
        _measure_pairs(question, device, sides[0], sides[1], devices, progress)
        first, second = (each.side(question.preset) for each in sides)
    return _Found(device, sides[1].selection, first, second)


def _measure_pairs(
    question: Question,
    device: Device,
    base: _Measured,
    candidate: _Measured,
    devices: int,
    progress: Progress,
) -> None:
    """Make pairs of process runs until the question is settled on this device."""
    rule = question.rule
    with progress.task(f"compare on {device.name}", total=rule.max_pairs) as advance:
        for number in range(1, rule.max_pairs + 1):
            for side in (base, candidate) if number % 2 else (candidate, base):
                side.run(question.preset)
            last = pair_ratios(base.runs[-1:], candidate.runs[-1:], 50)[0]
            advance(f"pair {number}: p50 {last - 1:+.1%}")
            if number in rule.looks and not question.every_pair:
                ratios = question.ratios(device.name, base.runs, candidate.runs)
                if settled(ratios, rule, families=devices):
                    break


def _judged(question: Question, found: Sequence[_Found]) -> list[DeviceComparison]:
    """Return each device's comparison; Holm's procedure runs over all devices and metrics."""
    every: dict[Metric, list[float]] = {}
    for each in found:
        every |= question.ratios(each.device.name, each.base.runs, each.candidate.runs)
    answers = decide(every, question.rule)
    return [
        _judged_device(question, each, [a for a in answers if a.metric.device == each.device.name])
        for each in found
    ]


def _judged_device(
    question: Question, found: _Found, answers: Sequence[Answer]
) -> DeviceComparison:
    reasons = [
        *(f"base: {reason}" for reason in found.base.reasons),
        *(f"candidate: {reason}" for reason in found.candidate.reasons),
    ]
    outcome: Outcome = overall([answer.outcome for answer in answers])
    if found.selection.device.emulated:
        reasons.append(EMULATED)
    if not question.preset.conclusive:
        reasons.append(f"preset {question.preset.name!r} is too short to conclude anything")
    if reasons:  # however fast it is, a candidate that is wrong fails
        outcome = "FAIL" if found.candidate.outputs_wrong else "INCONCLUSIVE"
    reasons += [reason for answer in answers if (reason := _reason(answer, question.rule))]
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
        metrics=[_compared(answer) for answer in answers],
        notes=notes,
    )


def _reason(answer: Answer, rule: Rule) -> str:
    name, margin = answer.metric.name, answer.metric.margin
    match answer.outcome:
        case "PASS":
            return ""
        case "FAIL":
            return f"{name} is {answer.ratio.estimate - 1:+.1%}, more than the {margin:.0%} allowed"
        case "INCONCLUSIVE":
            return (
                f"{name} is between {answer.ratio.low - 1:+.1%} and {answer.ratio.high - 1:+.1%}"
                f" after {answer.pairs} pairs, and {margin:+.0%} lies between: the device is"
                f" noisier than {rule.max_pairs} pairs can settle"
            )


def _compared(answer: Answer) -> ComparedMetric:
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


def _current(
    pushed: PushedRelease, device: Device, transport: Transport
) -> tuple[Bundle, PurePosixPath]:
    """Return the release in use on a device, as its manifest describes it, and where it lies.

    Raises:
        DeviceError: There is none.
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
    with tempfile.TemporaryDirectory(prefix="edgepack-") as folder:
        for name in (MANIFEST, MANIFEST_DIGEST):
            transport.get(path / name, Path(folder) / name, timeout_s=60)
        return load_bundle(Path(folder)), path
