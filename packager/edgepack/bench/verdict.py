"""Whether the numbers of a benchmark may be used. Pure: decides over what was recorded."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

from edgepack import statistics
from edgepack.bench.presets import Preset, find_preset
from edgepack.bench.report import (
    Conditions,
    Inconclusive,
    Invalid,
    Placement,
    ProcessRun,
    RunReport,
    Selection,
    Valid,
)
from edgepack.bundle.manifest import ManifestVariant, NotMeasured
from edgepack.errors import InconclusiveError

NOTED_SPREAD = 0.1
"""Between the fastest and the slowest run median; from here on it is noted."""
TOO_WIDE_SPREAD = 0.25
"""From here on the runs measured different machines, as it were: no number stands for them."""
WARM_NOTE = "session create is warm: the model's file was read before, when choosing the variant"


def judge(
    selection: Selection,
    runs: Sequence[ProcessRun],
    placement: Placement,
    variant: ManifestVariant,
    preset: Preset,
) -> Valid | Invalid | Inconclusive:
    """Return the verdict; every reason against the numbers is in it, not the first only."""
    reasons = reasons_against(selection, runs, placement, variant, preset)
    if len(runs) < preset.runs:
        reasons.append(f"{len(runs)} process runs were made, not {preset.runs}")
    if reasons:
        return Invalid(reasons=reasons)
    if selection.device.emulated:
        return Inconclusive(reason=EMULATED)
    if not preset.conclusive:
        return Inconclusive(reason=f"preset {preset.name!r} is too short to conclude anything")
    if _spread(runs) > TOO_WIDE_SPREAD:
        return Inconclusive(reason=f"run medians differ by {_spread(runs):.0%}")
    return Valid()


def reasons_against(
    selection: Selection,
    runs: Sequence[ProcessRun],
    placement: Placement,
    variant: ManifestVariant,
    preset: Preset,
) -> list[str]:
    """Return why numbers must not be used, a sentence each; of few runs it says nothing."""
    return [
        *_run_reasons(runs, variant, preset),
        *_boot_reasons(selection, runs),
        *placement_reasons(placement, variant),
    ]


EMULATED = "the processor is emulated: its time is not a device's time"
_REAL_DEVICE = "measure on a real device: edgepack device list"


def require_valid(report: RunReport, bundle: Path) -> None:
    """Return if a report's numbers may be used; ``bundle`` is where the bundle lies, for the hint.

    Raises:
        InconclusiveError: They may not; the message has the verdict and all its reasons.
    """
    match report.verdict:
        case Valid():
            return
        case Invalid(reasons=reasons):
            found = "".join(f"\n  - {reason}" for reason in reasons)
            raise InconclusiveError(
                f"the measurement is INVALID{found}",
                hint=_invalid_hint(report, bundle),
                where=report.device,
            )
        case Inconclusive(reason=reason):
            hint = _again(report, bundle)
            if report.facts.emulated:
                hint = _REAL_DEVICE
            raise InconclusiveError(
                f"the measurement is INCONCLUSIVE: {reason}", hint=hint, where=report.device
            )


def _invalid_hint(report: RunReport, bundle: Path) -> str:
    needed = next(v.min_sqnr_db for v in report.variants if v.id == report.variant_used)
    if min(run.golden_min_sqnr_db for run in report.runs) < needed:
        return (
            "the runtime there computes something else:"
            f" edgepack device check {shlex.quote(report.device)}"
        )
    if report.facts.emulated:
        return _REAL_DEVICE
    return f"let the device cool down and idle, then: {_again(report, bundle)}"


def _again(report: RunReport, bundle: Path) -> str:
    """Return the command that asks the same question with a preset that can settle it."""
    preset = report.preset if find_preset(report.preset).conclusive else "standard"
    argv = ["edgepack", "bench", str(bundle), "--device", report.device, "--preset", preset]
    if report.variant_requested == report.variant_used:
        argv += ["--variant", report.variant_used]
    return shlex.join(argv)


def _run_reasons(
    runs: Sequence[ProcessRun], variant: ManifestVariant, preset: Preset
) -> Iterator[str]:
    for number, run in enumerate(runs, 1):
        if run.variant != variant.id:
            yield f"run {number} used variant {run.variant}, not {variant.id}"
        if run.golden_min_sqnr_db < variant.min_sqnr_db:
            yield (
                f"run {number}: outputs are {run.golden_min_sqnr_db:.1f} dB near the golden ones,"
                f" {variant.min_sqnr_db:.1f} dB are needed"
            )
        if not run.steady and preset.conclusive:
            yield f"run {number} was not steady after {preset.warm_up_cap_s:g} s of warm-up"
        if len(run.latencies_ns) < preset.iterations:
            yield f"run {number} has {len(run.latencies_ns)} samples, not {preset.iterations}"
        yield from (f"run {number}: {why}" for why in throttling(run.before, run.after))


def throttling(before: Conditions, after: Conditions) -> Iterator[str]:
    """Yield how the device was slowed down during a run, as far as it tells."""
    counted = (before.throttle_events, after.throttle_events)
    if isinstance(counted[0], int) and isinstance(counted[1], int) and counted[1] > counted[0]:
        yield f"the processor throttled {counted[1] - counted[0]} times"
    for moment in (before, after):
        if isinstance(moment.throttled_now, list) and moment.throttled_now:
            yield f"the device is slowed down: {', '.join(moment.throttled_now)}"
            return
    since = (before.throttled_since_boot, after.throttled_since_boot)
    if isinstance(since[0], list) and isinstance(since[1], list) and set(since[1]) - set(since[0]):
        yield f"the device was slowed down: {', '.join(sorted(set(since[1]) - set(since[0])))}"
    if before.governor != after.governor:
        yield "the frequency governor changed"


def _boot_reasons(selection: Selection, runs: Sequence[ProcessRun]) -> Iterator[str]:
    boots = {selection.device.boot_id, *(run.boot_id for run in runs)}
    if len({boot for boot in boots if isinstance(boot, str)}) > 1:
        yield "the device was restarted during the benchmark"


def placement_reasons(placement: Placement, variant: ManifestVariant) -> Iterator[str]:
    """Yield how the placement of nodes is not what the variant asks for."""
    provider = variant.providers[0].name
    wanted: Literal["all"] | float = variant.placement
    share = placement.share(provider)
    if not placement.nodes:
        yield "the profile has no nodes"
    elif wanted == "all" and share < 1:
        others = {name: n for name, n in placement.counts.items() if name != provider}
        listed = ", ".join(f"{count} on {name}" for name, count in others.items())
        yield f"not all nodes ran on {provider}: {listed}"
    elif share == 0:
        yield f"no node ran on {provider}"


def spread_notes(runs: Sequence[ProcessRun]) -> list[str]:
    """Return a sentence if the process runs disagree so much that their interval is wide."""
    if _spread(runs) <= NOTED_SPREAD:
        return []
    return [
        (
            f"run medians differ by {_spread(runs):.0%}: other work on the device, or its clock,"
            " changed between runs; measure again when it is idle"
        )
    ]


def _spread(runs: Sequence[ProcessRun]) -> float:
    """Return how much slower the slowest run's median is than the fastest one's; 0.1 is 10 %."""
    medians = [statistics.median(run.latencies_ns) for run in runs]
    return max(medians) / max(1, min(medians)) - 1


def condition_notes(selection: Selection) -> list[str]:
    """Return what the reader has to know about the device's state, a sentence each."""
    conditions = selection.device.conditions
    state = {
        "clock governor": conditions.governor,
        "temperature": conditions.temperature_c,
    }
    notes = [WARM_NOTE]
    if selection.device.emulated:
        notes.append(EMULATED)
    notes += [
        f"{what} unknown: {value.reason}"
        for what, value in state.items()
        if isinstance(value, NotMeasured)
    ]
    unknown = (conditions.throttle_events, conditions.throttled_now)
    if all(isinstance(value, NotMeasured) for value in unknown):
        notes.append("throttling unknown: no counter can be read")
    return notes
