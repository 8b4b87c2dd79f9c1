"""Which variants are shipped: those that lose no more than the project allows."""

from __future__ import annotations

from dataclasses import dataclass

from edgepack.build.execution import Execution
from edgepack.bundle.manifest import Accuracy
from edgepack.plan import PlannedBundle, PlannedVariant
from edgepack.project import Limits
from edgepack.steps.base import read_notes
from edgepack.steps.evaluation import as_accuracy


@dataclass(frozen=True)
class MissedLimit:
    """A variant that lost more than the project allows."""

    target: str
    variant: str
    reason: str


@dataclass(frozen=True)
class Verdict:
    """The variants of one target that are shipped, and those that are not."""

    shipped: tuple[tuple[PlannedVariant, Accuracy | None], ...]
    missed: tuple[MissedLimit, ...]


def judge(planned: PlannedBundle, execution: Execution, limits: Limits) -> Verdict:
    """Hold every variant of a bundle against the limits.

    Raises:
        ToolError: What a step found is not what the cache kept.
    """
    shipped, missed = [], []
    for variant in planned.variants:
        for step_id in (*variant.history, variant.goldens, variant.evaluation):
            if step_id is not None:
                execution.artifacts[step_id].require_whole()
        accuracy = read_accuracy(variant, execution)
        reason = missed_limit(accuracy, limits) if accuracy else ""
        if reason:
            missed.append(MissedLimit(planned.profile.id, variant.variant.id, reason))
        else:
            shipped.append((variant, accuracy))
    return Verdict(tuple(shipped), tuple(missed))


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
