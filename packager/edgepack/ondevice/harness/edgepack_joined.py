"""Samples that scenarios join to batches: whether they may be, and what comes out of them.

Needs what the loader needs: Python 3.8, numpy and onnxruntime.
"""

from __future__ import annotations

from typing import Any, Dict

import edgepack_batches as batches  # type: ignore[import-not-found]
import edgepack_load as load  # type: ignore[import-not-found]
import edgepack_providers as providers  # type: ignore[import-not-found]

INCOMPARABLE_DB = -200.0
"""Stands for minus infinity, which JSON cannot represent."""


class JoinedSamples:
    """Golden samples that scenarios join to batches, checked before they are timed and after.

    Args:
        model: The loader's.
        most: How many are joined.
        delay_ms: How long one waits for others, in milliseconds.

    Raises:
        Refused: The variant takes no such batches.
    """

    def __init__(self, model: Any, most: int, delay_ms: float) -> None:
        joining = model.joining
        self._joining = joining
        self._nearness_db = check_joined(model, most)
        names = [spec.name for spec in model.outputs]
        self._infer = load.Inferences(model.runner, names, [s.feed for s in joining.samples])
        chosen = [joining.choose(begin, most) for begin in range(len(joining.samples))]
        joined = [batches.join([each.feed for each in some], joining.axes) for some in chosen]
        self.full = load.Inferences(model.runner, names, joined)
        """Over full batches, to warm up."""
        self._joined = load.Joined(
            most,
            int(delay_ms * 1e6),
            lambda feeds: batches.join(feeds, joining.axes),
            lambda outputs, count: batches.split(
                dict(zip(names, outputs)),  # noqa: B905 (strict is unknown to Python 3.8)
                joining.output_axes,
                count,
            ),
        )
        self._pool: Any = None

    def open_pool(self, threads: int) -> Any:
        """Return the pool that answers the samples."""
        self._pool = load.JoinedPool(self._infer, threads, self._joined)
        return self._pool

    def summarize(self) -> Dict[str, Any]:
        """Return how many batches ran, and how near the worst sample's outputs were.

        Of those that were timed, the last of each golden sample is compared.
        """
        last = self._pool.last.items()
        near_db = [
            self._joining.compute_closeness_db(self._joining.samples[place], outputs)
            for place, outputs in last
        ]
        worst_db = max(min([self._nearness_db, *near_db]), INCOMPARABLE_DB)
        return {"batches": len(self._pool.sizes), "min_sqnr_db": worst_db}


def check_joined(model: Any, most: int) -> float:
    """Return how near golden samples are in batches of 2, of ``most``, and in each model's largest.

    A variant may have a model for each of several sizes.

    Raises:
        Refused: Samples of this variant cannot be joined to batches of so many.
    """
    joining = model.joining
    why = joining.explain_fixed()
    if why:
        raise providers.Refused(f"samples cannot be joined: {why}")
    first = joining.samples[0].feed
    buckets = {count: joining.find_bucket(first, count) for count in range(1, most + 1)}
    lacking = [count for count, bucket in buckets.items() if bucket is None]
    if lacking:
        raise providers.Refused(f"it has no model for a batch of {lacking[0]} samples")
    largest = {bucket: count for count, bucket in buckets.items() if count > 1}
    try:
        near_db = [joining.prove(n, buckets[n]) for n in sorted({2, most, *largest.values()})]
    except providers.Refused as refusal:
        raise providers.Refused(f"samples cannot be joined: {refusal}") from refusal
    except providers.ORT_ERRORS as error:
        why = " ".join(str(error).split())
        raise providers.Refused(f"samples cannot be joined: {why}") from error
    return float(max(min(near_db), INCOMPARABLE_DB))
