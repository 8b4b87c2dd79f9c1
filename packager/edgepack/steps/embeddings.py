"""The proof that a variant's embeddings still say what float32's say.

Embeddings are compared with each other by their angle. An error that leaves classes alone, because
the highest score stays the highest, changes every comparison.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from edgepack.errors import StepError
from edgepack.model.running import Arrays, make_session, run_session
from edgepack.steps.comparing import LEAST_COSINE, probe_inputs

Array = np.ndarray[Any, Any]

MOST_SAMPLES = 32
_UNIT = 1e-3
_HINT = (
    "leave this variant out under 'targets' in edgepack.yaml: fp16, then int8-dynamic, keep more of"
    " an encoder than int8-static"
)


def require_close_embeddings(
    reference: Path, model: Path, samples: Path | None, hint: str = _HINT
) -> None:
    """Refuse a model whose embeddings are far from the reference's.

    Nothing but the values tells embeddings from class scores: they are vectors of length 1, one in
    a sample, and have negative values. Models without such outputs pass.

    Args:
        reference: The float32 model.
        model: What was made of it.
        samples: Up to 32 are taken, evenly spread; without them two seeded random inputs.
        hint: What to do about it.

    Raises:
        StepError: The worst cosine is below :data:`~edgepack.steps.comparing.LEAST_COSINE`; names
            the output and the number of samples.
        ModelError: One of the two does not load or run.
    """
    float_session = make_session(reference)
    feeds = probe_inputs(reference, samples, MOST_SAMPLES)
    runs = ((feed, run_session(float_session, feed)) for feed in feeds)
    first = next(runs)
    if not embeddings([first[1]]):
        return
    expected = [first, *runs]
    session = make_session(model)
    found = [(outputs, run_session(session, feed)) for feed, outputs in expected]
    for name in embeddings([outputs for _, outputs in expected]):
        worst = min(cosine(ours[name], theirs[name]) for ours, theirs in found)
        if worst < LEAST_COSINE:
            raise StepError(
                f"the embedding {name!r} is too far from float32's: the worst cosine of"
                f" {len(found)} samples is {worst:.4f}, {LEAST_COSINE} is the least",
                hint=hint,
            )


def embeddings(outputs: Sequence[Arrays]) -> list[str]:
    """Return the names of the outputs that hold an embedding in every sample, of one or more."""
    return [name for name in outputs[0] if all(_is_embedding(one[name]) for one in outputs)]


def _is_embedding(values: Array) -> bool:
    vector = values.squeeze()
    if values.dtype.kind != "f" or vector.ndim != 1 or vector.size < 2:
        return False
    length = float(np.linalg.norm(vector.astype(np.float64)))
    return abs(length - 1) < _UNIT and bool((vector < 0).any())


def cosine(ours: Array, theirs: Array) -> float:
    """Return the cosine of two vectors; 0 where one is all zero or holds no numbers."""
    a, b = (values.astype(np.float64).ravel() for values in (ours, theirs))
    lengths = float(np.linalg.norm(a) * np.linalg.norm(b))
    found = float(a @ b) / lengths if lengths else 0.0
    return found if np.isfinite(found) else 0.0
