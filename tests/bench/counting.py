"""What counting costs each call of a bundle's model: with counters over without, in one process.

The small model is little but calls, as the worst case; the other takes some milliseconds, as models
do. Both have a calibrated range, so that every 17th call is checked against it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from edgepack.base.statistics import median
from edgepack.ondevice.runtime import edgepack_loader as loader

from tests.bench.measuring import Row, interleaved, one_core, ratio_text, scratch
from tests.support.reports.tiny_bundle import change_manifest, write_tiny_bundle

PAIRS = 40
CASES = ((8, 2000, "at most 1.5"), (256, 30, "at most 1.01"))
"""The side of the model's input, calls in a run, and the aim."""


def measure() -> Iterator[Row]:
    """Yield a row for each model."""
    for side, calls, aim in CASES:
        with scratch() as folder, one_core():
            bundle = write_tiny_bundle(folder / "bundle", size=side)
            change_manifest(bundle, _add_range)
            plain, counted = loader.load(bundle), loader.load(bundle, stats=folder / "stats")
            pairs = interleaved(
                lambda model=counted, n=calls: _time_calls(model, n),
                lambda model=plain, n=calls: _time_calls(model, n),
                PAIRS,
            )
            counted.counters.close()
        ours, theirs = (median(side) for side in zip(*pairs, strict=True))
        yield Row(
            f"a call that is counted / one that is not, input of {side} x {side}",
            f"{PAIRS} pairs of {calls} calls",
            ratio_text(pairs),
            aim,
            f"medians {ours * 1e6:.1f} us, {theirs * 1e6:.1f} us",
        )


def _add_range(manifest: dict[str, Any]) -> None:
    for entry in manifest["variants"]:
        entry["input_ranges"] = {"x": [-8.0, 8.0]}


def _time_calls(model: loader.Model, calls: int) -> float:
    feed = model.bundle.read_golden_inputs(0)
    began = time.perf_counter()
    for _ in range(calls):
        model(feed)
    return (time.perf_counter() - began) / calls
