"""Which variants' settings are worth searching. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from edgepack.base.schema import NotMeasured
from edgepack.builder.judging import find_largest_loss
from edgepack.bundle.manifest import Accuracy, ManifestVariant, find_decisive
from edgepack.metrics.labelled import compute_whole
from edgepack.project.limits import Limits

GAIN = 1.5
"""More than settings bring. Measured: at most 1.03 in ten variants of two networks, on two x86-64
cores (tests/unit/measure/test_grid_replay.py); more is left for processors whose cores differ."""
MAY_LOSE = 0.01
"""The share of fp32's metric that may be lost where the project sets no limit."""


@dataclass(frozen=True)
class Screened:
    """A variant as it ran once with onnxruntime's defaults."""

    entry: ManifestVariant
    latency_ns: float


def find_pruned(screened: Mapping[str, Screened], limits: Limits) -> dict[str, str]:
    """Return the variants that cannot be the answer, by id, with the reason.

    A variant that loses more than may be lost, or that with onnxruntime's defaults is so much
    slower than the fastest of the others that no settings make up for it.

    Args:
        screened: By variant.
        limits: The project's for the device. What a build judges is met by all variants here.
    """
    pruned = {
        name: reason
        for name, each in screened.items()
        if (reason := explain_too_poor(_find_accuracy(each.entry), limits))
    }
    left = {name: each for name, each in screened.items() if name not in pruned}
    if not left:
        return pruned
    fastest = min(left, key=lambda name: left[name].latency_ns)
    for name, each in left.items():
        ratio = each.latency_ns / left[fastest].latency_ns
        if ratio > GAIN:
            pruned[name] = (
                f"with onnxruntime's defaults it takes {ratio:.2f} times as long as {fastest},"
                f" more than settings make up for ({GAIN:g})"
            )
    return pruned


def _find_accuracy(entry: ManifestVariant) -> Accuracy | NotMeasured:
    return find_decisive(entry.accuracy, entry.simulated)


def explain_too_poor(found: Accuracy | NotMeasured, limits: Limits) -> str:
    """Return why a variant loses too much where no limit says what may be lost; or nothing."""
    if limits.need_samples or not isinstance(found, Accuracy):
        return ""
    lost, metric = find_largest_loss(found)
    if lost <= MAY_LOSE:
        return ""
    return (
        f"it loses {lost:.1%} of fp32's {metric}, more than {MAY_LOSE:.0%}; say in edgepack.yaml"
        " what may be lost: limits: {metric_drop: ...}"
    )


def compute_drop(found: Accuracy, reference: float) -> float:
    """Return how much worse a metric is than a reference, in its unit; negative is better."""
    return (reference - found.value) * (1 if found.higher_is_better else -1)


def explain_lost(found: Accuracy, limits: Limits, reference: float | None) -> str:
    """Return why a variant loses too much against fp32 of another size; or nothing.

    Where no limit says what may be lost, that is as much as against its own fp32.
    """
    if reference is None:
        return ""
    drop = compute_drop(found, reference)
    most = limits.metric_drop
    if most is None and not limits.need_samples:
        most = MAY_LOSE * compute_whole(found.metric, reference)
    if most is None or drop <= most:
        return ""
    return f"{found.metric} drops by {drop:.4f} against fp32 at the first size, of at most {most:g}"


def explain_few_samples(found: Accuracy, limits: Limits) -> str:
    """Return that samples are too few to tell what may be lost, and how many would; or nothing.

    The interval of the drop shrinks with the square root of their number. Of a metric between 0 and
    1 that no sample changed, 3 / n may still be lost (the rule of three, at 95 %).
    """
    if found.drop_interval is None or isinstance(found.fp32, NotMeasured):
        return ""
    most = limits.metric_drop or MAY_LOSE * abs(found.fp32)
    low, high = found.drop_interval
    reach = max((high - low) / 2, 3 / found.samples if high == low else 0.0)
    if reach <= most or most <= 0:
        return ""
    needed = math.ceil(found.samples * (reach / most) ** (1 if high == low else 2))
    return (
        f"{found.samples} samples tell a loss of {most:.3g} in {found.metric} only to"
        f" ±{reach:.3g}: about {needed} would"
    )
