"""Whether the numbers of a benchmark may be used. Pure: decides over what was recorded."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from edgepack.base import statistics
from edgepack.base.schema import NotMeasured
from edgepack.bundle.manifest import ManifestVariant
from edgepack.errors import InconclusiveError
from edgepack.records.other_work import count_threads, explain_work
from edgepack.records.presets import PRESETS, Preset
from edgepack.records.run import (
    ALL_VARIANTS,
    HIDDEN,
    LOW_POWER,
    Cause,
    Conditions,
    Inconclusive,
    Invalid,
    Joined,
    OtherWork,
    Placement,
    ProcessRun,
    RunReport,
    Sample,
    Sampling,
    Scenario,
    Selection,
    SweepPoint,
    Valid,
    Verdict,
)
from edgepack.records.scenarios import format_command_options, list_scenario_reasons

CLOSE = 0.03
"""The reach of p50's 95 % interval that is close enough to be called known."""
MOST_RUNS = 200
"""More are not proposed: so noisy a device is better mended."""
NOTED_SPREAD = 0.1
"""Between the fastest and the slowest run median; from here on it is noted."""
TOO_WIDE_SPREAD = 0.25
"""The spread above which the runs measured different machines, in effect: no number describes
them."""
CLOCK_KEPT = 0.97
"""The share of the first window's median below which a clock has dropped."""
DROPPED_SHARE = 0.05
"""The share of the timed part in which a clock may be below that."""
FIRST_WINDOW = 3
"""The number of samples in a clock's first window."""
WORKING = 0.9
"""Of one core, or of another unit's time: what works less may clock down."""
TRIP_MARGIN_C = 3.0
"""Within this distance of a trip point the system may already slow the device down."""
WARMER_C = 10.0
"""A run is noted if it began warmer than the device was at first by this much."""
SAMPLER_SHARE = 0.01
"""The share of one core that the sampler may take without being noted."""
HEAVY_TAIL = 10
"""Times p50: a p99 beyond this comes from what interrupted the model; then only p50 is usable."""
LOW_BATTERY_PERCENT = 20.0
"""Below it phones offer to save power, and may slow down to save the battery; it is noted."""
_SUPPLY = ("under-voltage", "average over-current", "instantaneous over-current")


class _Reason(NamedTuple):
    cause: Cause
    text: str


_PRIORITY: tuple[Cause, ...] = (
    "outputs", "stream", "placement", "supply", "work", "hidden", "settings", "queries",
    "conditions",
)  # fmt: skip
"""What has to be fixed first: the other reasons mean nothing before."""


def judge(
    selection: Selection,
    runs: Sequence[ProcessRun],
    placement: Placement | NotMeasured,
    variant: ManifestVariant,
    preset: Preset,
    *,
    unfinished: str = "",
) -> Valid | Invalid | Inconclusive:
    """Return the verdict, with every reason against the numbers, not only the first."""
    reasons = [_Reason("conditions", f"it ended early: {unfinished}")] if unfinished else []
    reasons += _list_reasons(selection, runs, placement, variant, preset)
    if len(runs) < preset.runs:
        why = f"{len(runs)} process runs were made, not {preset.runs}"
        reasons.append(_Reason("conditions", why))
    if reasons:
        causes = {reason.cause for reason in reasons}
        first = next(cause for cause in _PRIORITY if cause in causes)
        return Invalid(reasons=[reason.text for reason in reasons], cause=first)
    if selection.device.emulated:
        return Inconclusive(reason=EMULATED)
    if not preset.conclusive:
        return Inconclusive(reason=f"preset {preset.name!r} is too short to conclude anything")
    if _compute_spread(runs) > TOO_WIDE_SPREAD:
        return Inconclusive(reason=f"run medians differ by {_compute_spread(runs):.0%}")
    return Valid()


def judge_sweep(verdict: Verdict, sweep: Sequence[SweepPoint]) -> Verdict:
    """Return the verdict of a report with a sweep: wrong outputs at a point make it INVALID."""
    wrong = [f"{point}: {point.problem}" for point in sweep if point.is_wrong]
    if not wrong:
        return verdict
    others = verdict.reasons if isinstance(verdict, Invalid) else []
    return Invalid(reasons=[*others, *wrong], cause="outputs")


def list_reasons_against(
    selection: Selection,
    runs: Sequence[ProcessRun],
    placement: Placement | NotMeasured,
    variant: ManifestVariant,
    preset: Preset,
) -> list[str]:
    """Return why numbers must not be used, a sentence each; too few runs are no reason here."""
    return [reason.text for reason in _list_reasons(selection, runs, placement, variant, preset)]


def _list_reasons(
    selection: Selection,
    runs: Sequence[ProcessRun],
    placement: Placement | NotMeasured,
    variant: ManifestVariant,
    preset: Preset,
) -> list[_Reason]:
    placed: Cause = "conditions" if isinstance(placement, NotMeasured) else "placement"
    return [
        *_list_run_reasons(runs, variant, preset),
        *_list_work_reasons(selection, runs, variant, preset),
        *(_Reason("queries", why) for why in list_scenario_reasons(preset.scenario, runs)),
        *(() if preset.heats else _list_sampled_reasons(runs)),
        *_list_setting_reasons(runs),
        *_list_boot_reasons(selection, runs),
        *(_Reason(placed, why) for why in list_placement_reasons(placement, variant)),
    ]


EMULATED = "the processor or GPU is emulated: its time is not a device's time"
PHONES = ("Android", "iOS", "iPadOS")
"""How the system's name in a phone's report begins. edgepack cannot set phones' clocks."""
IN_BROWSER = "wasm32"
"""The architecture in a browser's report: nor can it hold clocks for one."""
_STRONGER = "give the device a stronger power supply"
_CHARGE = "charge the phone and switch its battery saver or low power mode off"
_REAL_DEVICE = "measure on a real device: edgepack device list"


def require_valid(report: RunReport, bundle: Path) -> None:
    """Check that a report's numbers may be used; ``bundle`` is the bundle's path, for the hint.

    Raises:
        InconclusiveError: They may not; the message has the verdict and all its reasons.
    """
    if problem := explain_unusable(report.verdict):
        raise InconclusiveError(problem, hint=find_remedy(report, bundle), where=report.device)


def explain_unusable(verdict: Verdict) -> str:
    """Return a verdict with all its reasons; empty where the numbers may be used."""
    if isinstance(verdict, Valid):
        return ""
    if isinstance(verdict, Invalid):
        return "the measurement is INVALID" + "".join(f"\n  - {why}" for why in verdict.reasons)
    return f"the measurement is INCONCLUSIVE: {verdict.reason}"


def find_remedy(report: RunReport, bundle: Path) -> str:
    """Return what to do about a verdict, with the one command for it; nothing if it is VALID."""
    match report.verdict:
        case Valid():
            return ""
        case Invalid(cause="outputs") if _is_right_alone(report):
            return f"use it one by one, in its own sizes: {_format_again(_part(report), bundle)}"
        case Invalid() as verdict:
            return _find_invalid_remedy(report, verdict, bundle)
        case Inconclusive():
            return _REAL_DEVICE if report.facts.emulated else _format_again(report, bundle)


def _find_invalid_remedy(report: RunReport, verdict: Invalid, bundle: Path) -> str:
    """Return what to do about the reason that weighs most, with the one command for it."""
    phone = report.facts.os.startswith(PHONES)
    if verdict.cause == "outputs" and not phone:
        device = shlex.quote(report.device)
        return f"the runtime there computes something else: edgepack device check {device}"
    if verdict.cause == "stream":
        argv = ["edgepack", "evaluate", str(bundle), "--device", report.device]
        return f"give samples with streams as long as a device's, then: {shlex.join(argv)}"
    if report.facts.emulated:
        return _REAL_DEVICE
    if verdict.cause in ("outputs", "placement"):
        others = [variant.id for variant in report.variants if variant.id != report.variant_used]
        if others:
            return f"measure another variant: {_format_again(report, bundle, variant=others[0])}"
        if verdict.cause == "placement":
            return f"see which nodes stay behind: edgepack inspect MODEL --target {report.target}"
    again = _format_again(report, bundle)
    held = phone or report.facts.arch == IN_BROWSER or bool(report.tuned)
    cause = "conditions" if held and verdict.cause == "settings" else verdict.cause
    return {
        "outputs": f"the runtime there computes something else: {again}",
        "supply": f"{_CHARGE if phone else _STRONGER}, then: {again}",
        "settings": f"hold the device's clocks: {_format_again(report, bundle, tune=True)}",
        "queries": f"let fewer queries arrive, or allow more time for each, then: {again}",
        "work": f"end what else runs there (top shows it), or on its host, then: {again}",
        "hidden": f"keep the page open and in front, then: {again}",
        "conditions": f"let the device cool down and idle, then: {again}",
    }[cause]


def _is_right_alone(report: RunReport) -> bool:
    """Return whether outputs are wrong, but only those of batches and of other sizes."""
    limit_db = min(v.min_sqnr_db for v in report.variants if v.id == report.variant_used)
    joined = (run.joined for run in report.runs if isinstance(run.joined, Joined))
    return all(run.golden_min_sqnr_db >= limit_db for run in report.runs) and (
        any(point.is_wrong for point in report.sweep)
        or any(not each.min_sqnr_db >= limit_db for each in joined)
    )


def _part(report: RunReport) -> RunReport:
    """Return a report whose samples were to run one by one."""
    alone = report.scenario.model_copy(update={"max_batch": 1, "queue_delay_ms": 0.0})
    return report.model_copy(update={"scenario": alone})


def _format_again(
    report: RunReport, bundle: Path, *, variant: str | None = None, tune: bool = False
) -> str:
    """Return the command that asks the same question with a preset that can settle it."""
    known = PRESETS.get(report.preset)  # another edgepack may have had others
    preset = known.name if known and known.conclusive else "standard"
    argv = ["edgepack", "bench", str(bundle), "--device", report.device, "--preset", preset]
    if variant is None and report.variant_requested in (report.variant_used, ALL_VARIANTS):
        variant = report.variant_requested
    argv += ["--variant", variant] if variant else []
    argv += format_command_options(report.scenario)
    argv += ["--tune"] if tune or report.tuned else []
    return shlex.join(argv)


def _list_run_reasons(
    runs: Sequence[ProcessRun], variant: ManifestVariant, preset: Preset
) -> Iterator[_Reason]:
    for number, run in enumerate(runs, 1):
        if run.variant != variant.id:
            why = f"run {number} used variant {run.variant}, not {variant.id}"
            yield _Reason("placement", why)
        for cause, why in _list_wrong_outputs(run, variant):
            yield _Reason(cause, f"run {number}: {why}")
        if not run.steady and preset.conclusive:
            why = f"run {number} was not steady after {preset.warm_up_cap_s:g} s of warm-up"
            yield _Reason("conditions", why)
        samples = run.inferences if preset.scenario.name == "offline" else len(run.latencies_ns)
        if isinstance(samples, int) and samples < preset.iterations:
            why = f"run {number} has {samples} samples, not {preset.iterations}"
            yield _Reason("conditions", why)
        for cause, why in _list_throttling_reasons(run.before, run.after, _list_timed_samples(run)):
            if cause in ("supply", "hidden") or not preset.heats:
                yield _Reason(cause, f"run {number}: {why}")


def _list_wrong_outputs(run: ProcessRun, variant: ManifestVariant) -> Iterator[_Reason]:
    if not run.golden_min_sqnr_db >= variant.min_sqnr_db:  # so that NaN is wrong, too
        yield _Reason(
            "outputs",
            f"outputs are {run.golden_min_sqnr_db:.1f} dB near the golden ones,"
            f" {variant.min_sqnr_db:.1f} dB are needed",
        )
    if isinstance(run.joined, Joined) and not run.joined.min_sqnr_db >= variant.min_sqnr_db:
        yield _Reason(
            "outputs",
            f"in batches, outputs are {run.joined.min_sqnr_db:.1f} dB near the golden ones of their"
            f" samples, {variant.min_sqnr_db:.1f} dB are needed",
        )
    if run.not_finite:
        named = ", ".join(run.not_finite)
        why = f"the model was fed its own state, and {named} became NaN or infinite"
        yield _Reason("stream", why)


def _list_work_reasons(
    selection: Selection, runs: Sequence[ProcessRun], variant: ManifestVariant, preset: Preset
) -> Iterator[_Reason]:
    """Yield the runs in which others took much of the cores that the model runs on."""
    if not preset.conclusive:
        return
    threads = count_threads(variant, preset.scenario, selection.device.cpu_count)
    for number, run in enumerate(runs, 1):
        work = run.other_work
        if isinstance(work, OtherWork) and (why := explain_work(work, threads)):
            yield _Reason("work", f"run {number}: {why}")


def _list_throttling_reasons(
    before: Conditions, after: Conditions, samples: Sequence[Sample]
) -> Iterator[_Reason]:
    """Yield how the device was slowed down during a run, as far as it reports it."""
    counted = (before.throttle_events, after.throttle_events)
    if isinstance(counted[0], int) and isinstance(counted[1], int) and counted[1] > counted[0]:
        yield _Reason("conditions", f"the device throttled {counted[1] - counted[0]} times")
    causes = {cause for sample in samples for cause in sample.throttled}
    for now in (before.throttled_now, after.throttled_now):
        causes |= {*now} if isinstance(now, list) else set()
    since = (before.throttled_since_boot, after.throttled_since_boot)
    if isinstance(since[0], list) and isinstance(since[1], list):
        causes |= set(since[1]) - set(since[0])
    if LOW_POWER in (before.power_mode, after.power_mode):
        yield _Reason("supply", "the phone saved power")
    if HIDDEN in causes:
        yield _Reason("hidden", f"the device was slowed down: {HIDDEN}")
    if causes := causes - {HIDDEN}:
        of_supply: Cause = "supply" if causes & {*_SUPPLY} else "conditions"
        yield _Reason(of_supply, f"the device was slowed down: {', '.join(sorted(causes))}")


def _list_sampled_reasons(runs: Sequence[ProcessRun]) -> Iterator[_Reason]:
    """Yield which zones came near to where the system slows down, and which clocks dropped."""
    for number, run in enumerate(runs, 1):
        for zone, (hottest, trip) in _find_hottest(run).items():
            if hottest >= trip - TRIP_MARGIN_C:
                why = f"{zone} reached {hottest:.1f} °C, and slows down from {trip:.1f} °C on"
                yield _Reason("conditions", f"run {number}: {why}")
    samples = (sample for run in runs for sample in _list_timed_samples(run))
    for name in sorted({name for sample in samples for name in sample.clocks_hz}):
        yield from _list_dropped_clock_reasons(name, runs)


def _list_dropped_clock_reasons(name: str, runs: Sequence[ProcessRun]) -> Iterator[_Reason]:
    """Yield the runs in which a clock was lower than in the first window, while it had work."""
    expected_hz = None
    for number, run in enumerate(runs, 1):
        samples = _list_timed_samples(run)
        working = [sample for sample in samples if sample.busy.get(name, 0.0) >= WORKING]
        clocks = [sample.clocks_hz[name] for sample in working if name in sample.clocks_hz]
        if expected_hz is None and len(clocks) >= FIRST_WINDOW:
            expected_hz = statistics.median(clocks[:FIRST_WINDOW])
        low = [hz for hz in clocks if expected_hz and hz < CLOCK_KEPT * expected_hz]
        if expected_hz and len(low) > max(1, DROPPED_SHARE * len(samples)):
            governors = {run.before.governor, run.after.governor}
            yield _Reason(
                "conditions" if governors == {"performance"} else "settings",
                f"run {number}: the clock of {name} was {min(low) / 1e6:.0f} MHz, not"
                f" {expected_hz / 1e6:.0f} MHz, for {len(low) / len(samples):.0%} of the time",
            )


def _find_hottest(run: ProcessRun) -> dict[str, tuple[float, float]]:
    """Return the highest temperature of each zone that has a trip point, and that."""
    trips = {} if isinstance(run.sampling, NotMeasured) else run.sampling.trip_points_c
    found = {}
    for zone, trip in trips.items():
        celsius = [
            s.temperatures_c[zone] for s in _list_timed_samples(run) if zone in s.temperatures_c
        ]
        if celsius:
            found[zone] = (max(celsius), trip)
    return found


def _list_timed_samples(run: ProcessRun) -> list[Sample]:
    """Return the sensors' values in the timed part of a run."""
    begun_ns, ended_ns = run.timed_from_ns, run.timed_to_ns
    if (
        isinstance(run.sampling, NotMeasured)
        or isinstance(begun_ns, NotMeasured)
        or isinstance(ended_ns, NotMeasured)
    ):
        return []
    return [sample for sample in run.sampling.samples if begun_ns <= sample.at_ns <= ended_ns]


def _list_setting_reasons(runs: Sequence[ProcessRun]) -> Iterator[_Reason]:
    moments = [moment for run in runs for moment in (run.before, run.after)]
    settings: tuple[tuple[Cause, str, list[str | NotMeasured]], ...] = (
        ("settings", "frequency governor", [moment.governor for moment in moments]),
        # --tune does not hold the power mode.
        ("conditions", "power mode", [moment.power_mode for moment in moments]),
    )
    for cause, what, values in settings:
        found = dict.fromkeys(value for value in values if isinstance(value, str))
        if len(found) > 1:
            yield _Reason(cause, f"the {what} changed: {', '.join(found)}")


def _list_boot_reasons(selection: Selection, runs: Sequence[ProcessRun]) -> Iterator[_Reason]:
    boots = {selection.device.boot_id, *(run.boot_id for run in runs)}
    if len({boot for boot in boots if isinstance(boot, str)}) > 1:
        yield _Reason("conditions", "the device was restarted during the benchmark")


def list_placement_reasons(
    placement: Placement | NotMeasured, variant: ManifestVariant
) -> Iterator[str]:
    """Yield how the placement of nodes is not what the variant asks for."""
    if isinstance(placement, NotMeasured):
        yield f"where the nodes ran is unknown: {placement.reason}"
        return
    provider = variant.providers[0].name
    wanted: Literal["all"] | float = variant.placement
    share = placement.compute_share(provider)
    if not placement.nodes:
        yield "the profile has no nodes"
    elif wanted == "all" and share < 1:
        others = {name: n for name, n in placement.counts.items() if name != provider}
        listed = ", ".join(f"{count} on {name}" for name, count in others.items())
        yield f"not all nodes ran on {provider}: {listed}"
    elif share == 0:
        yield f"no node ran on {provider}"


def list_spread_notes(runs: Sequence[ProcessRun]) -> list[str]:
    """Return a sentence if the process runs disagree so much that their interval is wide."""
    spread = _compute_spread(runs)
    if spread <= NOTED_SPREAD:
        return []
    why = "other work on the device, or its clock, changed between runs"
    return [
        f"run medians differ by {spread:.0%}: {why}; measure again when it is idle{_more(runs)}"
    ]


def count_runs_for(runs: Sequence[ProcessRun], reach: float) -> int:
    """Return about how many process runs bring the 95 % interval of p50 to a reach; 0.03 is ±3 %.

    As far as the next runs deviate like these, of which there are two or more.
    """
    logs = [math.log(max(1, statistics.median(run.latencies_ns))) for run in runs]
    deviation = statistics.standard_deviation(logs)
    count = max(2, len(runs))
    while statistics.t_quantile(0.975, count - 1) * deviation / math.sqrt(count) > reach:
        count += max(1, count // 8)
        if count >= MOST_RUNS:
            return MOST_RUNS
    return count


def _more(runs: Sequence[ProcessRun]) -> str:
    """Return how many runs, and how long, would tell p50 all the same."""
    needed = count_runs_for(runs, CLOSE)
    if needed <= len(runs):
        return ""
    times = [run.timed_ns for run in runs]
    known = [each for each in times if not isinstance(each, NotMeasured)]
    if not known:
        return ""
    minutes = needed * sum(known) / len(known) / 60e9
    if needed >= MOST_RUNS:
        return f"; {MOST_RUNS} runs would not bring its p50 to ±{CLOSE:.0%}"
    return (
        f"; if it stays so, about {needed} runs, {max(1, math.ceil(minutes))} min of measuring,"
        f" bring its p50 to ±{CLOSE:.0%}: --runs {needed}"
    )


def explain_heavy_tail(scenario: Scenario, p50_ns: float, p99_ns: float) -> str:
    """Return why only p50 may be used of a run's times; nothing if all of them may.

    Of ``server`` all may: waiting belongs to its latencies, and its bound is one on p99.
    """
    if scenario.name == "server" or p99_ns <= HEAVY_TAIL * p50_ns:
        return ""
    return (
        f"p99 is {p99_ns / 1e6:.3g} ms, more than {HEAVY_TAIL} times the p50 of"
        f" {p50_ns / 1e6:.3g} ms: all figures but p50 show what interrupted the model"
    )


def explain_heavy_tail_of(scenario: Scenario, latencies_ns: Sequence[int]) -> str:
    """Return the same of latencies, of all process runs together."""
    ordered = sorted(latencies_ns)
    p50_ns, p99_ns = (statistics.sorted_percentile(ordered, percent) for percent in (50, 99))
    return explain_heavy_tail(scenario, p50_ns, p99_ns)


def _compute_spread(runs: Sequence[ProcessRun]) -> float:
    """Return how much slower the slowest run's median is than the fastest one's; 0.1 is 10 %."""
    medians = [statistics.median(run.latencies_ns) / run.samples_per_query for run in runs]
    return max(medians) / max(1, min(medians)) - 1


def list_condition_notes(
    selection: Selection, runs: Sequence[ProcessRun] = (), preset: Preset | None = None
) -> list[str]:
    """Return what the reader has to know about variant and device, a sentence each."""
    notes = [
        f"{selection.variant} is measured because {each.variant} was {each.stage}: {each.reason}"
        for each in selection.unused
    ]
    if selection.device.emulated:
        notes.append(EMULATED)
    unknown = _find_unknown(selection, runs)
    notes += [f"{what} unknown: {why}" for what, why in unknown.items()]
    blind = [what for what in ("temperature", "throttling") if what in unknown]
    if preset and preset.name == "gate" and blind:
        notes.append(
            f"warning: a gate without {' and '.join(blind)}: it cannot show if heat slowed the"
            " device down; before you believe a slower run, let the device cool down and gate again"
        )
    return [
        *notes,
        *_list_warmth_notes(selection, runs),
        *_list_battery_notes(selection, runs),
        *_list_sampler_notes(runs),
    ]


def _list_warmth_notes(selection: Selection, runs: Sequence[ProcessRun]) -> Iterator[str]:
    """Yield which runs did not begin nearly as cool as the device was at first."""
    first_c = selection.device.conditions.temperature_c
    if not isinstance(first_c, float):
        return
    for number, run in enumerate(runs, 1):
        began_c = run.before.temperature_c
        if isinstance(began_c, float) and began_c > first_c + WARMER_C:
            yield f"run {number} began at {began_c:.1f} °C, the device at {first_c:.1f} °C"


def _list_battery_notes(selection: Selection, runs: Sequence[ProcessRun]) -> Iterator[str]:
    """Yield that a phone's battery was low."""
    moments = [selection.device.conditions, *(m for run in runs for m in (run.before, run.after))]
    known = [m.battery_percent for m in moments if isinstance(m.battery_percent, float)]
    if known and min(known) < LOW_BATTERY_PERCENT:
        yield (
            f"the battery was at {min(known):.0f} %: below {LOW_BATTERY_PERCENT:.0f} % a phone may"
            " slow itself down"
        )


def _find_unknown(selection: Selection, runs: Sequence[ProcessRun]) -> dict[str, str]:
    """Return what no sensor reported, and why."""
    conditions = selection.device.conditions
    found = {
        what: value.reason
        for what, value in (
            ("clock governor", conditions.governor),
            ("temperature", conditions.temperature_c),
        )
        if isinstance(value, NotMeasured)
    }
    throttling = (conditions.throttle_events, conditions.throttled_now)
    if all(isinstance(value, NotMeasured) for value in throttling):
        found["throttling"] = "no counter can be read"
    for run in runs:
        if isinstance(run.sampling, NotMeasured):
            found["course of temperatures and clocks"] = run.sampling.reason
        elif "clocks" in run.sampling.unknown:
            found["clocks"] = run.sampling.unknown["clocks"]
        if isinstance(run.other_work, NotMeasured):
            found["other work"] = run.other_work.reason
    return found


def _list_sampler_notes(runs: Sequence[ProcessRun]) -> Iterator[str]:
    samplings = [run.sampling for run in runs if isinstance(run.sampling, Sampling)]
    share = max((each.cpu_ns / max(1, each.elapsed_ns) for each in samplings), default=0.0)
    if share > SAMPLER_SHARE:
        yield f"reading the sensors took {share:.1%} of a core, which the model did not have"
