"""Whether what was found of a variant's accuracy is within limits."""

from __future__ import annotations

from edgepack.base.schema import NotMeasured
from edgepack.bundle.manifest import Accuracy
from edgepack.project.limits import Limits


def explain_size(size_bytes: int, limits: Limits) -> str:
    """Return why a variant's model files, with their weights, are too large; or nothing."""
    size_mb = size_bytes / 1e6
    if limits.size_mb is None or size_mb <= limits.size_mb:
        return ""
    return f"its model has {size_mb:.3g} MB, the limit is {limits.size_mb:g} MB"


def explain_missed_limit(accuracy: Accuracy | NotMeasured, limits: Limits) -> str:
    """Return why a limit is missed, or nothing: also where there is no fp32 model to lose against.

    The measured drop decides, and its interval says how certain that is. A limit is missed even if
    the interval reaches below it, because nothing has shown that it is met.
    """
    if isinstance(accuracy, NotMeasured):
        return ""
    if missed := _explain_missed_value(accuracy, limits):
        return missed
    if accuracy.drop is None or accuracy.worst is None:
        return ""
    too_large, too_low = limits.compute_excess(accuracy.drop, accuracy.worst.sqnr_db)
    if limits.metric_drop is not None and too_large:
        interval = accuracy.drop_interval
        sure = f", 95 % interval {interval[0]:.4f} to {interval[1]:.4f}" if interval else ""
        return (
            f"{accuracy.metric} drops by {accuracy.drop:.4f}{sure} on {accuracy.samples} samples,"
            f" the limit is {limits.metric_drop:g}"
        )
    worst = accuracy.worst
    if limits.min_sqnr_db is not None and too_low:
        return (
            f"output {worst.output!r} is {worst.sqnr_db:.1f} dB from fp32,"
            f" the limit is {limits.min_sqnr_db:g} dB"
        )
    return ""


def _explain_missed_value(accuracy: Accuracy, limits: Limits) -> str:
    """Return why a limit of the metric's own value is missed, or nothing."""
    better = "higher" if accuracy.higher_is_better else "lower"
    name = "metric_at_least" if accuracy.higher_is_better else "metric_at_most"
    other = {"metric_at_least", "metric_at_most"} - {name}
    if limits.given.keys() & other:
        return f"{accuracy.metric} is better when {better}, so the limit has to be {name}"
    limit = limits.given.get(name)
    if limit is None or (
        accuracy.value >= limit if accuracy.higher_is_better else accuracy.value <= limit
    ):
        return ""
    fp32 = "" if isinstance(accuracy.fp32, NotMeasured) else f" (fp32 {accuracy.fp32:.4f})"
    return (
        f"{accuracy.metric} is {accuracy.value:.4f}{fp32} on {accuracy.samples} samples,"
        f" the limit is {name}: {limit:g}"
    )
