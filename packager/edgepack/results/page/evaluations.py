"""The metric that a device itself computed: beside the build host's, and in place of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from edgepack.base.schema import NotMeasured
from edgepack.bundle.manifest import Accuracy, find_decisive
from edgepack.records.run import EvaluationReport, RunReport
from edgepack.results.store.previous import find_used_variant
from edgepack.results.summary import format_fact, format_placement


@dataclass(frozen=True)
class EvaluationRow:
    """The metric through a device beside the one that the build host found."""

    device: str
    bundle: str
    variant: str
    metric: str
    measured: str
    interval: str
    simulated: str
    difference: str
    samples: int
    placement: str
    created: str
    reasons: list[str]
    """Why the metric must not be used; empty if it may."""


def make_evaluation_row(report: EvaluationReport) -> EvaluationRow:
    """Return an evaluation as a row of its table."""
    measured, simulated = report.measured, report.simulated
    low, _, high = find_accuracy_range(measured, report)
    of_drop = ", of its drop from fp32" if isinstance(report.interval, NotMeasured) else ""
    difference, host = "n/a", format_fact(simulated)
    if isinstance(simulated, Accuracy):
        is_same = simulated.samples == measured.samples
        host = f"{simulated.value:#.4g}" + ("" if is_same else f", {simulated.samples} samples")
        # Of other samples it would be the samples' difference, too.
        if is_same and simulated.metric == measured.metric:
            difference = f"{measured.value - simulated.value:+.4f}"
    return EvaluationRow(
        device=report.device,
        bundle=report.bundle,
        variant=report.variant,
        metric=measured.metric,
        measured=f"{measured.value:#.4g}",
        interval="n/a" if low == high else f"{low:#.4g} to {high:#.4g}{of_drop}",
        simulated=host,
        difference=difference,
        samples=measured.samples,
        placement=format_placement(report),
        created=report.created,
        reasons=report.reasons,
    )


def find_accuracy(
    report: RunReport, evaluations: Sequence[EvaluationReport]
) -> tuple[Accuracy | NotMeasured, EvaluationReport | None]:
    """Return the accuracy of what ran; with the evaluation, where the device itself computed it."""
    own = [
        each
        for each in evaluations
        if not each.reasons
        and (each.device, each.manifest_sha256, each.variant)
        == (report.device, report.manifest_sha256, report.variant_used)
    ]
    if own:
        newest = max(own, key=lambda each: each.created)
        return newest.measured, newest
    used = find_used_variant(report)
    return find_decisive(used.accuracy, used.simulated), None


def find_accuracy_range(
    accuracy: Accuracy, evaluation: EvaluationReport | None
) -> tuple[float, float, float]:
    """Return the metric with its interval on the device, or with that of its drop from fp32."""
    value, interval = accuracy.value, accuracy.drop_interval
    if evaluation is not None and not isinstance(evaluation.interval, NotMeasured):
        return evaluation.interval[0], value, evaluation.interval[1]
    if interval is None or isinstance(accuracy.fp32, NotMeasured):
        return value, value, value
    sign = -1 if accuracy.higher_is_better else 1
    ends = sorted(accuracy.fp32 + sign * drop for drop in interval)
    return ends[0], value, ends[1]
