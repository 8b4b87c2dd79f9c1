"""Decides which variants ship: those whose provider takes the model and that lose little enough."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any, NamedTuple

from edgepack.base.schema import NotMeasured
from edgepack.builder.execution import Execution
from edgepack.builder.plan import Plan, PlannedBundle, PlannedVariant
from edgepack.bundle.manifest import Accuracy, Attempt, Simulated, find_decisive
from edgepack.bundle.unused import Unused, make_failed
from edgepack.errors import BugError, EdgepackError, LimitError, format_list
from edgepack.metrics.accuracy import EQUAL_SQNR_DB
from edgepack.metrics.labelled import OKS, PRECISIONS, compute_whole
from edgepack.model.finding import Finding, group_findings
from edgepack.project.limits import Limits
from edgepack.quantization.search.outside import BrokenOutput
from edgepack.quantization.search.search import SearchLine, describe
from edgepack.records.limits import explain_missed_limit, explain_size
from edgepack.steps.base import read_notes
from edgepack.steps.graph.placed import read_placement
from edgepack.steps.proofs.evaluation_result import NO_FP32, make_accuracy
from edgepack.steps.proofs.goldens import read_goldens
from edgepack.steps.proofs.input_check import InputCheck
from edgepack.steps.proofs.outside import read_outside
from edgepack.steps.proofs.read_answers import ReadAnswers
from edgepack.steps.proofs.simulated import read_simulated
from edgepack.steps.recipes.calibration import Calibration
from edgepack.steps.recipes.recipes import RECIPES

UNJUDGED = "it is shipped whatever it loses; build from the float model to have them judged"
"""The text for limits that cannot be compared with fp32."""
NOTICEABLE_DROP = 0.01
"""The share of fp32's metric that a variant may lose to be in a bundle without a float variant."""
MOST_LOST = 0.05
"""The share of fp32's metric above which a variant comes after fp32, if the user sets no limit."""
_TO_MEET = "give more or better calibration samples, or raise the limit that is named"
_HALF = 0.5
LEAST_SAMPLES = 8
"""The fewest samples that show something about a variant."""
_REASONS_SHOWN = 12
_NODES_SHOWN = 4
_KINDS_SHOWN = 3


@dataclass(frozen=True)
class Verdict:
    """The variants of one target that are shipped, and those that are not."""

    target: str
    shipped: tuple[tuple[PlannedVariant, Accuracy | NotMeasured], ...]
    unused: tuple[Unused, ...]
    errors: tuple[EdgepackError, ...]
    """Of those that were asked for, and of bugs: each names target and variant as its place."""
    limits: Limits = field(default_factory=Limits)
    """By which they were judged."""


def require_whole(bundles: Sequence[PlannedBundle], execution: Execution) -> None:
    """Check that what variants are judged by is unchanged: once, whatever number of them share it.

    Raises:
        ToolError: A step's output in the cache was changed.
    """
    steps = {step for bundle in bundles for variant in bundle.variants for step in variant.steps}
    found = (execution.artifacts[step] for step in sorted(steps) if step in execution.artifacts)
    for artifact in {artifact.path: artifact for artifact in found}.values():
        artifact.require_whole()


def judge(planned: PlannedBundle, execution: Execution, limits: Limits) -> Verdict:
    """Decide about every variant of a bundle.

    One that failed or missed a limit is no error where nobody asked for it, or if it was offered.
    What it is judged by is checked before, by :func:`require_whole`.

    Raises:
        ToolError: The output of a simulator in the cache was changed.
    """
    shipped: list[tuple[PlannedVariant, Accuracy | NotMeasured]] = []
    unused = [*planned.unused]
    errors: list[EdgepackError] = []
    missing: dict[str, _Missed] = {}
    decisive: dict[str, Accuracy | NotMeasured] = {}
    for variant in planned.variants:
        name = variant.variant.id
        where = f"{planned.profile.id} {name}"
        if error := next(
            (execution.failed[s] for s in variant.steps if s in execution.failed), None
        ):
            unused.append(make_failed(name, error))
            # A bug is reported whoever asked for the variant; the others ship all the same.
            if not variant.may_fail or isinstance(error, BugError):
                errors.append(type(error)(unused[-1].reason, hint=error.hint, where=where))
            continue
        accuracy = read_accuracy(variant, execution)
        decisive[name] = read_decisive(variant, execution)
        missed = _find_missed(variant, decisive[name], execution, limits)
        if reason := _explain_refusal(variant, execution):
            unused.append(Unused(variant=name, stage="refused", reason=reason))
        elif missed:
            missing[name] = missed
        else:
            shipped.append((variant, accuracy))
    missed_by = _report_missed(
        planned.profile.id, missing, [each.variant.id for each, _ in shipped]
    )
    unused += missed_by[0]
    errors += missed_by[1]
    # The profile's order, which is by speed; variants that are not shown to be as good come last,
    # unless the user set the order.
    shipped.sort(
        key=lambda e: (
            not e[0].named and bool(explain_unproven(e[0], decisive[e[0].variant.id], limits))
        )
    )
    verdict = Verdict(planned.profile.id, tuple(shipped), tuple(unused), tuple(errors), limits)
    return ship_most(verdict, planned.most, decisive)


def _explain_refusal(variant: PlannedVariant, execution: Execution) -> str:
    """Return why its provider would not do for a variant; the simulator knows, if it ran."""
    is_simulated = isinstance(read_simulation(variant, execution), Simulated)
    return (explain_refused if is_simulated else explain_unplaced)(variant, execution)


class _Missed(NamedTuple):
    reason: str
    is_error: bool
    """Whether it is one although others of the target are shipped."""


def _find_missed(
    variant: PlannedVariant,
    decisive: Accuracy | NotMeasured,
    execution: Execution,
    limits: Limits,
) -> _Missed | None:
    """Return why a variant is too poor to ship, or how it misses a limit, with what was tried."""
    unworthy = explain_unworthy(variant, decisive)
    if reason := unworthy or explain_missed_limit(decisive, limits):
        found = list_tried(variant, execution)
        searched = [each for each in found if each.stage == "limit"]
        tried = f"; this is the best of what was tried: {describe(searched)}" if found else ""
        on_cpu = decisive == read_accuracy(variant, execution)
        where = "" if on_cpu else ", in the provider's simulator"
        is_error = not variant.offered and not (variant.may_fail and bool(unworthy))
        return _Missed(f"{reason}{where}{tried}", is_error)
    if reason := explain_size(_count_model_bytes(variant, execution), limits):
        return _Missed(reason, is_error=variant.named)
    return None


def _report_missed(
    target: str, missing: Mapping[str, _Missed], shipped: Sequence[str]
) -> tuple[list[Unused], list[LimitError]]:
    """Return what is told of variants that miss a limit, and the errors of those asked for.

    Each says which others meet all limits.
    """
    hint = f"{' and '.join(shipped)} met all limits; or {_TO_MEET}" if shipped else _TO_MEET
    return (
        [
            Unused(variant=name, stage="missed", reason=reason, hint=hint)
            for name, (reason, _) in missing.items()
        ],
        [
            LimitError(reason, hint=hint, where=f"{target} {name}")
            for name, (reason, is_error) in missing.items()
            if is_error or not shipped
        ],
    )


def _count_model_bytes(variant: PlannedVariant, execution: Execution) -> int:
    folder = execution.artifacts[variant.shipped].path
    return sum(file.stat().st_size for file in folder.glob("model*"))


def explain_unworthy(variant: PlannedVariant, accuracy: Accuracy | NotMeasured) -> str:
    """Return why a variant's outputs are too poor to ship it; empty if they are not.

    A variant is too poor if it is no better than a constant. A variant that nobody named is too
    poor, too, if it reaches less than half of fp32's value, by the output's own metric, the labels
    or the user's metric.
    """
    if isinstance(accuracy, NotMeasured):
        return ""
    if accuracy.says_nothing:
        return f"it is no better than a constant: {accuracy.says_nothing}"
    if not variant.may_fail:
        return ""
    if accuracy.says_little and accuracy.output:
        return f"it keeps less than half of what fp32 says: {accuracy.says_little}"
    lost, metric = find_largest_loss(accuracy)
    return f"it loses {lost:.0%} of fp32's {metric}" if lost > _HALF else ""


def explain_unproven(
    variant: PlannedVariant, accuracy: Accuracy | NotMeasured, limits: Limits
) -> str:
    """Return why a quantized variant is not shown to be good enough; empty if it is."""
    if variant.carried or not is_quantized(variant):
        return ""
    if isinstance(accuracy, NotMeasured):
        return f"its accuracy was not measured: {accuracy.reason}"
    if accuracy.samples < LEAST_SAMPLES:
        return f"{accuracy.samples} samples are too few to show what it loses"
    lost, metric = find_largest_loss(accuracy)
    if limits.metric_drop is None and metric == accuracy.metric and lost > MOST_LOST:
        return (
            f"it loses {lost:.0%} of fp32's {metric}, more than {MOST_LOST:.0%}; say in"
            " edgepack.yaml what may be lost: limits:"
            f" {{metric_drop: {_round_up_limit(accuracy.drop)}}}"
        )
    if metric != accuracy.metric and lost > MOST_LOST:
        return f"it loses {lost:.0%} of fp32's {metric}, which no limit is about"
    return explain_unsettled(accuracy, limits)


def _round_up_limit(drop: float | None) -> str:
    """Return a limit of two digits that a drop meets."""
    digits = 1 - math.floor(math.log10(drop)) if drop else 0
    return f"{math.ceil((drop or 0) * 10**digits) / 10**digits:g}"


def find_largest_loss(accuracy: Accuracy) -> tuple[float, str]:
    """Return which share of fp32's value is lost, and of which metric.

    It is 0 where the value has no meaningful shares; of errors it is of what is right. F1 counts
    beside mean average precision, which sees only the order of scores: if all scores become lower,
    an application's threshold drops them.
    """
    own = accuracy.metric
    found = {own: _compute_share(own, accuracy.fp32, accuracy.drop)}
    if own in (*PRECISIONS, OKS) and (f1 := accuracy.values.get("f1")):
        lost = None if f1.fp32 is None else f1.fp32 - f1.value
        found["f1"] = _compute_share("f1", f1.fp32, lost)
    metric = max(found, key=found.__getitem__)
    return found[metric], metric


def _compute_share(metric: str, fp32: float | NotMeasured | None, drop: float | None) -> float:
    if drop is None or not isinstance(fp32, float):
        return 0.0
    whole = compute_whole(metric, fp32)
    return drop / whole if whole else 0.0


def is_quantized(variant: PlannedVariant) -> bool:
    """Return whether a variant's recipe makes integers."""
    return RECIPES[variant.variant.recipe].in_integers


def ship_most(
    verdict: Verdict, most: int | None, decisive: Mapping[str, Accuracy | NotMeasured] | None = None
) -> Verdict:
    """Return a verdict that ships the best variants; all where there is no limit to their number.

    They include the best of each provider as far as there is room, the CPU's before all, and one
    in float where quantized ones among them lose something or their loss is unknown. Quantized
    variants that come after all in float lose too much to be included for their provider's sake.
    ``decisive`` has by variant the accuracy that decides, where that is not the one shipped.
    """
    if most is None:
        return verdict
    order = [variant for variant, _ in verdict.shipped]
    floats = [place for place, variant in enumerate(order) if not is_quantized(variant)]
    wanted = order[: max(floats, default=len(order)) + 1]
    accuracies = {planned.variant.id: a for planned, a in verdict.shipped} | dict(decisive or {})

    def loses(planned: PlannedVariant) -> bool:
        made = is_quantized(planned) and not planned.carried
        return made and _is_losing(accuracies[planned.variant.id])

    def rate(chosen: Sequence[tuple[PlannedVariant, object]]) -> tuple[int, int]:
        variants = [variant for variant, _ in chosen]
        has_cpu = any(each.variant.backend == "cpu" for each in variants)
        is_safe = not all(map(is_quantized, variants)) or not any(map(loses, variants))
        return has_cpu + is_safe, len({each.variant.backend for each in variants if each in wanted})

    # They are in order of preference, so the first of equally good choices wins.
    best = max(combinations(verdict.shipped, min(most, len(order))), key=rate)
    reason = (
        f"a bundle for {verdict.target} holds {most} at most, which are"
        f" {' and '.join(entry[0].variant.id for entry in best)}; --variant names others"
    )
    surplus = [entry[0].variant.id for entry in verdict.shipped if entry not in best]
    left_out = [Unused(variant=name, stage="left out", reason=reason) for name in surplus]
    return replace(verdict, shipped=best, unused=(*verdict.unused, *left_out))


def _is_losing(accuracy: Accuracy | NotMeasured) -> bool:
    if isinstance(accuracy, NotMeasured) or accuracy.drop is None:
        return True
    return find_largest_loss(accuracy)[0] > NOTICEABLE_DROP


def list_tried(variant: PlannedVariant, execution: Execution) -> list[SearchLine]:
    """Return what was tried to keep a variant's accuracy."""
    for step_id in variant.history:
        facts = read_notes(execution.artifacts[step_id].path).facts
        if facts.get("tried"):
            return [SearchLine(**entry) for entry in facts["tried"]]
    return []


def list_attempts(variant: PlannedVariant, execution: Execution) -> list[Attempt]:
    """Return what was tried to keep a variant's accuracy, as the manifest holds it."""
    return [
        Attempt(
            what=each.what.removeprefix("exact weights, "),
            stage=each.stage,
            kept=each.accepted,
            why=each.why,
            sqnr_db=each.sqnr_db,
            agreement=each.agreement,
            metric_drop=each.metric_drop,
        )
        for each in list_tried(variant, execution)
    ]


def list_warnings(plan: Plan, judged: Sequence[Verdict], execution: Execution) -> Iterator[str]:
    """Yield warnings about preprocessing, the calibration samples and the limits."""
    for topic, name in (("preprocessing", InputCheck.name), ("calibration", Calibration.name)):
        of_topic = [step.id for step in plan.steps if step.step.name == name]
        made = (
            execution.artifacts[step_id] for step_id in of_topic if step_id in execution.artifacts
        )
        # Targets may share a calibration or have one each of the same samples.
        texts = [text for artifact in made for text in read_notes(artifact.path).facts["warnings"]]
        yield from (f"{topic}: {text}" for text in dict.fromkeys(texts))
    yield from _list_unchecked(plan, execution)
    yield from _list_broken_outside(judged, execution)
    shipped = [(verdict, variant) for verdict in judged for variant, _ in verdict.shipped]
    told: list[Callable[[Verdict, PlannedVariant, Accuracy | NotMeasured], str]] = [
        lambda _, __, found: explain_drift(found),
        lambda verdict, *about: _explain_doubt(verdict.limits, *about),
    ]
    for about in told:
        for verdict, variant in shipped:
            if text := about(verdict, variant, read_decisive(variant, execution)):
                yield f"{verdict.target} {variant.variant.id}: {text}"


def _list_unchecked(plan: Plan, execution: Execution) -> Iterator[str]:
    """Yield the checks of samples and answers that failed although the model itself was made."""
    looks = [s for s in plan.steps if s.step.name in (InputCheck.name, ReadAnswers.name)]
    for look in looks:
        lost = execution.failed.get(look.id)
        if lost and look.inputs["model"] not in execution.failed:
            topic = "preprocessing" if look.step.name == InputCheck.name else "outputs"
            yield f"{topic}: it could not be looked at: {lost.problem}"


def _explain_doubt(
    limits: Limits, variant: PlannedVariant, accuracy: Accuracy | NotMeasured
) -> str:
    """Return what is not shown about a variant; empty if all is."""
    limited = limits.need_samples
    if variant.carried:
        return f"limits are not judged, {NO_FP32}: {UNJUDGED}" if limited else ""
    if isinstance(accuracy, NotMeasured):
        # Without limits the table says so.
        return f"limits are not judged: {accuracy.reason}" if limited else ""
    found = explain_unproven(variant, accuracy, limits)
    return found if variant.named or not found else f"{found}; what is proven comes before it"


def list_answers(plan: Plan, execution: Execution) -> Iterator[Sequence[str]]:
    """Yield fp32's answers to samples, a line for each output."""
    for step in plan.steps:
        if step.step.name == ReadAnswers.name and step.id in execution.artifacts:
            yield read_notes(execution.artifacts[step.id].path).facts["saw"]


def _list_broken_outside(judged: Sequence[Verdict], execution: Execution) -> Iterator[str]:
    """Yield the inputs unlike the samples on which shipped variants go wrong."""
    for target, variant in ((v.target, planned) for v in judged for planned, _ in v.shipped):
        artifact = execution.artifacts.get(variant.outside or "")
        if artifact and (found := read_outside(artifact.path)):
            yield f"{target} {variant.variant.id}: {_format_broken(found)}"


def _format_broken(found: Sequence[dict[str, Any]]) -> str:
    worst, *rest = (BrokenOutput(**each) for each in found)
    others = list(dict.fromkeys(each.words for each in rest if each.input != worst.input))
    more = f"; so it is, by less, with {format_list(others, _KINDS_SHOWN)}" if others else ""
    return f"{worst}{more}; give calibration samples like the inputs in use"


def explain_unplaced(planned: PlannedVariant, execution: Execution) -> str:
    """Return why a variant would not run on its own provider; empty if it would."""
    if planned.placed is None:
        return ""
    placement = read_placement(execution.artifacts[planned.placed].path)
    wanted = 1.0 if planned.variant.placement == "all" else planned.variant.placement
    if placement["share"] >= wanted:
        return ""
    provider = planned.variant.providers[0].name
    return (
        f"{provider} would take {placement['share']:.0%} of {len(placement['nodes'])} nodes,"
        f" {wanted:.0%} are needed; it does not take{_format_nodes(placement['nodes'])}"
    )


def _format_nodes(nodes: Sequence[dict[str, Any]]) -> str:
    """Return the refused nodes, a line for those with the same kind of reason."""
    groups = group_findings(
        Finding("", "blocks", f"{node['name']!r} ({node['op']})", node["reason"], node["remedy"])
        for node in nodes
        if node["reason"]
    )
    lines = [
        f"\n    {format_list([found.node for found in group], _NODES_SHOWN)}: {group[0].reason};"
        f" {group[0].remedy}"
        for group in groups[:_REASONS_SHOWN]
    ]
    if len(groups) > _REASONS_SHOWN:
        lines.append(f"\n    and {len(groups) - _REASONS_SHOWN} more reasons (edgepack inspect)")
    return "".join(lines)


def read_accuracy(variant: PlannedVariant, execution: Execution) -> Accuracy | NotMeasured:
    """Return the evaluation step's result, or that the plan has no such step."""
    if variant.evaluation is None:
        return NotMeasured(reason="the project has no evaluation samples")
    return make_accuracy(read_notes(execution.artifacts[variant.evaluation].path).facts)


def read_simulation(
    variant: PlannedVariant, execution: Execution
) -> Simulated | NotMeasured | None:
    """Return what a variant did in its provider's simulator; None where no vendor has one."""
    if not isinstance(variant.simulated, str):
        return variant.simulated
    if error := execution.failed.get(variant.simulated):
        return NotMeasured(reason=error.problem)
    execution.artifacts[variant.simulated].require_whole()
    found = read_simulated(execution.artifacts[variant.simulated].path)
    accuracy = make_accuracy(found["accuracy"]) if found["accuracy"] else None
    return Simulated(**{**found, "accuracy": accuracy})


def read_decisive(variant: PlannedVariant, execution: Execution) -> Accuracy | NotMeasured:
    """Return the accuracy that decides about a variant, of the CPU or a simulator."""
    return find_decisive(read_accuracy(variant, execution), read_simulation(variant, execution))


def explain_refused(variant: PlannedVariant, execution: Execution) -> str:
    """Return why a device would refuse a variant, as the simulator shows; empty if it would not."""
    found = read_simulation(variant, execution)
    if not isinstance(found, Simulated):
        return ""
    provider, wanted = variant.variant.providers[0].name, variant.variant.placement
    share, least = found.share(provider), 1.0 if wanted == "all" else wanted
    if share < least:
        return f"{found.simulator} takes {share:.0%} of the nodes, {least:.0%} are needed"
    needed_db = read_goldens(execution.artifacts[variant.goldens].path)["min_sqnr_db"]
    if found.golden_sqnr_db < needed_db:
        return (
            f"in {found.simulator} its golden outputs are {found.golden_sqnr_db:g} dB from the"
            f" CPU's, {needed_db:g} dB are needed"
        )
    return ""


def explain_drift(accuracy: Accuracy | NotMeasured) -> str:
    """Return that a variant's errors grow along streams, or nothing."""
    found = None if isinstance(accuracy, NotMeasured) else accuracy.drift
    if found is None or not found.grows:
        return ""
    return (
        f"its errors grow along a stream: the R² of {found.output!r} is {found.first:.3f} in the"
        f" first quarter of streams and {found.last:.3f} in the last; longer streams may be worse,"
        " so evaluate with some as long as a device will run, or start new streams earlier"
    )


def explain_unsettled(accuracy: Accuracy | NotMeasured, limits: Limits) -> str:
    """Return how many samples would show that a limit is met, if there are too few.

    Nothing where the limit is missed, where the interval is within it, where there is no interval,
    or where outputs equal fp32's.
    """
    if isinstance(accuracy, NotMeasured) or accuracy.worst is None or limits.metric_drop is None:
        return ""
    limit, drop, interval = limits.metric_drop, accuracy.drop, accuracy.drop_interval
    if drop is None or interval is None or not drop < limit < interval[1]:
        return ""
    if accuracy.worst.sqnr_db >= EQUAL_SQNR_DB:
        return ""
    times = (interval[1] - drop) / (limit - drop)
    # The interval of no difference at all, 3 in n, shrinks with the samples; others shrink with
    # their square root.
    by_three = drop == 0 and math.isclose(interval[1] * accuracy.samples, 3)
    enough = accuracy.samples * (times if by_three else times**2)
    return (
        f"{accuracy.metric} drops by {drop:.4f} on {accuracy.samples} samples, within the limit"
        f" {limit:g}, but its 95 % interval reaches {interval[1]:.4f}: about"
        f" {float(f'{enough:.1e}'):.0f} samples would settle it"
    )
