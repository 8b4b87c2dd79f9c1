"""Which variants are shipped: those whose provider takes the model, and that lose little enough."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from edgepack.build.execution import Execution
from edgepack.bundle.manifest import Accuracy
from edgepack.errors import EdgepackError
from edgepack.model.finding import Finding, alike
from edgepack.plan import PlannedBundle, PlannedVariant
from edgepack.project import Limits
from edgepack.quantization.search import Tried, describe
from edgepack.steps.base import read_notes
from edgepack.steps.evaluation import as_accuracy
from edgepack.steps.placed import read_placement

_REASONS_SHOWN = 12
_NODES_SHOWN = 4


@dataclass(frozen=True)
class MissedLimit:
    """A variant that lost more than the project allows."""

    target: str
    variant: str
    reason: str


@dataclass(frozen=True)
class FailedVariant:
    """A variant that could not be made."""

    target: str
    variant: str
    error: EdgepackError

    @property
    def reason(self) -> str:
        """What went wrong, and in which step."""
        return (
            f"{self.error.where}: {self.error.problem}" if self.error.where else self.error.problem
        )


@dataclass(frozen=True)
class RefusedVariant:
    """A variant whose provider would leave too much of the model to another one."""

    target: str
    variant: str
    reason: str
    """With the nodes that the provider does not take, and why."""


@dataclass(frozen=True)
class Verdict:
    """The variants of one target that are shipped, and those that are not."""

    target: str
    shipped: tuple[tuple[PlannedVariant, Accuracy | None], ...]
    missed: tuple[MissedLimit, ...]
    failed: tuple[FailedVariant, ...]
    refused: tuple[RefusedVariant, ...]


def judge(planned: PlannedBundle, execution: Execution, limits: Limits) -> Verdict:
    """Decide about every variant of a bundle.

    Raises:
        ToolError: What a step found is not what the cache kept.
    """
    target = planned.profile.id
    shipped, missed, failed = [], [], []
    refused = [RefusedVariant(target, name, reason) for name, reason in planned.left_out]
    for variant in planned.variants:
        if error := next(
            (execution.failed[s] for s in variant.steps if s in execution.failed), None
        ):
            lost = FailedVariant(target, variant.variant.id, error)
            if variant.offered:
                refused.append(RefusedVariant(target, lost.variant, lost.reason))
            else:
                failed.append(lost)
            continue
        for step_id in variant.steps:
            execution.artifacts[step_id].require_whole()
        accuracy = read_accuracy(variant, execution)
        if reason := unplaced(variant, execution):
            refused.append(RefusedVariant(target, variant.variant.id, reason))
        elif reason := missed_limit(accuracy, limits) if accuracy else "":
            found = described_search(variant, execution)
            tried = f"; this is the best of what was tried: {found}" if found else ""
            if variant.offered:
                refused.append(RefusedVariant(target, variant.variant.id, reason))
            else:
                missed.append(MissedLimit(target, variant.variant.id, f"{reason}{tried}"))
        else:
            shipped.append((variant, accuracy))
    return Verdict(target, tuple(shipped), tuple(missed), tuple(failed), tuple(refused))


def described_search(variant: PlannedVariant, execution: Execution) -> str:
    """Return what was tried to keep a variant's accuracy, or nothing if nothing was."""
    for step_id in variant.history:
        facts = read_notes(execution.artifacts[step_id].path).facts
        if facts.get("tried"):
            return describe([Tried(**entry) for entry in facts["tried"]])
    return ""


def searches(planned: PlannedBundle, execution: Execution) -> Iterator[str]:
    """Yield a line for each variant for which something was tried."""
    for variant in planned.variants:
        made = all(step_id in execution.artifacts for step_id in variant.history)
        if made and (found := described_search(variant, execution)):
            yield f"{planned.profile.id} {variant.variant.id}: tried {found}"


def unplaced(planned: PlannedVariant, execution: Execution) -> str:
    """Return why a variant would run elsewhere than it says, or nothing."""
    if planned.placed is None:
        return ""
    placement = read_placement(execution.artifacts[planned.placed].path)
    wanted = 1.0 if planned.variant.placement == "all" else planned.variant.placement
    if placement["share"] >= wanted:
        return ""
    provider = planned.variant.providers[0].name
    return (
        f"{provider} would take {placement['share']:.0%} of {len(placement['nodes'])} nodes,"
        f" {wanted:.0%} are needed; it does not take{_listed(placement['nodes'])}"
    )


def _listed(nodes: Sequence[dict[str, Any]]) -> str:
    """Return the nodes that are not taken, a line for those with the same kind of reason."""
    groups = alike(
        Finding("", "blocks", f"{node['name']!r} ({node['op']})", node["reason"], node["remedy"])
        for node in nodes
        if node["reason"]
    )
    lines = [
        f"\n    {_few([found.node for found in group])}: {group[0].reason}; {group[0].remedy}"
        for group in groups[:_REASONS_SHOWN]
    ]
    if len(groups) > _REASONS_SHOWN:
        lines.append(f"\n    and {len(groups) - _REASONS_SHOWN} more reasons (edgepack inspect)")
    return "".join(lines)


def _few(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NODES_SHOWN} more" if len(names) > _NODES_SHOWN else ""
    return f"{', '.join(names[:_NODES_SHOWN])}{more}"


def read_accuracy(variant: PlannedVariant, execution: Execution) -> Accuracy | None:
    """Return what the evaluation step found, or None if the plan has none."""
    if variant.evaluation is None:
        return None
    return as_accuracy(read_notes(execution.artifacts[variant.evaluation].path).facts)


def missed_limit(accuracy: Accuracy, limits: Limits) -> str:
    """Return why a limit is missed, or nothing.

    The drop that was measured decides, and its interval says how sure that is: a limit is missed
    even if the interval reaches below it, because nothing has shown that it is met.
    """
    if limits.metric_drop is not None and accuracy.drop > limits.metric_drop:
        interval = accuracy.drop_interval
        sure = f", 95 % interval {interval[0]:.4f} to {interval[1]:.4f}" if interval else ""
        return (
            f"{accuracy.metric} drops by {accuracy.drop:.4f}{sure} on {accuracy.samples} samples,"
            f" the limit is {limits.metric_drop:g}"
        )
    worst = accuracy.worst
    if limits.min_sqnr_db is not None and worst.sqnr_db < limits.min_sqnr_db:
        return (
            f"output {worst.output!r} is {worst.sqnr_db:.1f} dB from fp32,"
            f" the limit is {limits.min_sqnr_db:g} dB"
        )
    return ""
