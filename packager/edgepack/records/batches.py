"""Which batch of a sweep to use. Pure: decides over what was recorded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from edgepack.base import statistics
from edgepack.base.schema import NotMeasured
from edgepack.records.run import BestBatch, SweepPoint

NS_PER_MS = 1e6


def choose_best_batch(points: Sequence[SweepPoint], bound_ms: float) -> BestBatch | NotMeasured:
    """Return the batch with the most samples a second whose latencies are within a bound.

    If none is, the one whose latencies are nearest to it. Of equal ones, the smaller. Points
    without latencies, such as those whose outputs are wrong, are left out.

    Args:
        points: The sweep's batches.
        bound_ms: What the 99th percentile must not exceed, or the 90th if a point has too few
            inferences for that.
    """
    timed = [point for point in points if point.latencies_ns]
    if not timed:
        why = "; ".join(dict.fromkeys(point.problem for point in points if point.problem))
        return NotMeasured(reason=why or "no batch was measured")
    least = min(len(point.latencies_ns) for point in timed)
    percentile: Literal[90, 99] = 99 if least >= statistics.MIN_SAMPLES_P99 else 90
    found = [_judge(point, percentile, bound_ms) for point in timed]
    within = [each for each in found if each.is_within]
    if within:
        return max(within, key=lambda each: (each.samples_per_s, -each.batch))
    return min(found, key=lambda each: (each.latency_ms, each.batch))


def _judge(point: SweepPoint, percentile: Literal[90, 99], bound_ms: float) -> BestBatch:
    p50_ms = max(statistics.median(point.latencies_ns) / NS_PER_MS, 1e-9)
    latency_ms = statistics.percentile(point.latencies_ns, percentile) / NS_PER_MS
    return BestBatch(
        batch=point.batch,
        samples_per_s=point.batch / p50_ms * 1e3,
        percentile=percentile,
        latency_ms=latency_ms,
        bound_ms=bound_ms,
        is_within=latency_ms <= bound_ms,
    )
