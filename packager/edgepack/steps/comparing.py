"""Running two models on the same samples, for steps that must not change what is computed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from edgepack.accuracy import min_sqnr_db
from edgepack.data import SampleSet
from edgepack.model.facts import signature
from edgepack.model.reading import read_structure
from edgepack.model.running import Arrays, make_session, random_inputs, run_session

SEED = 20260101


def probe_inputs(model: Path, samples: Path | None, count: int) -> Iterator[Arrays]:
    """Yield up to ``count`` inputs: real samples, evenly spread, or seeded random ones."""
    if samples is None:
        specs, _ = signature(read_structure(model))
        for n in range(min(count, 2)):
            yield random_inputs(specs, seed=SEED + n)
        return
    real = SampleSet.read(samples)
    taken = min(count, len(real))
    for n in range(taken):
        yield real.inputs(n * len(real) // taken)


def worst_sqnr_db(before: Path, after: Path, samples: Path | None, count: int = 8) -> float:
    """Return the worst SQNR of ``after`` against ``before`` over outputs and probe inputs.

    Raises:
        ModelError: One of the two does not load or run.
    """
    old, new = make_session(before), make_session(after)
    return min(
        min_sqnr_db(run_session(old, feed), run_session(new, feed))
        for feed in probe_inputs(before, samples, count)
    )
