"""Vectors, tensors and classes of pixels beside the reference's. Pure."""

from __future__ import annotations

import math

import numpy as np

from edgepack.base.arrays import Array
from edgepack.trying.maps import MapKind, find_best_classes
from edgepack.trying.verdicts import Compared, Level, Numbers

SAME_COSINE, NEAR_COSINE = 0.999, 0.99
NEAR_DIFFERENCE = 0.1
"""A worst difference, as a part of the range, from which a tensor is near, not the same."""
SAME_SHARE, NEAR_SHARE = 0.99, 0.95
"""The shares of values that have to be equal, such as the class of a pixel."""


def make_vector_cells(vectors: Array) -> dict[str, str]:
    """Return what there is to say about an embedding alone."""
    norms = np.linalg.norm(vectors.astype(np.float64), axis=1)
    words = ", ".join(f"{norm:.4g}" for norm in norms[:3])
    return {"vector": f"{vectors.shape[1]} values, norm {words}"}


def compare_vectors(reference: Array, other: Array) -> Compared:
    """Compare vectors ``(B, D)`` by their cosines; the worst sample counts."""
    if reference.shape != other.shape:
        return _report_other_shape(other)
    cosines = [compute_cosine(one, two) for one, two in zip(reference, other, strict=True)]
    known = [each for each in cosines if each is not None]
    worst = min(known) if len(known) == len(cosines) and known else None
    norm = float(np.linalg.norm(other.astype(np.float64)))
    numbers: Numbers = {"cosine": worst, "norm": norm}
    if worst is None:
        same = np.array_equal(reference, other)
        return Compared("same" if same else "differs", "equal" if same else "no cosine", numbers)
    # Retrieval orders vectors by cosines that often differ by a few hundredths.
    level: Level = "same" if worst >= 0.99 else "near" if worst >= 0.95 else "differs"
    return Compared(level, f"cosine {worst:.4f}", numbers)


def make_tensor_cells(array: Array) -> dict[str, str]:
    """Return what there is to say about a tensor alone."""
    values = array.astype(np.float64).reshape(-1)
    finite = values[np.isfinite(values)]
    extent = "no finite value"
    if finite.size:
        extent = " to ".join(dict.fromkeys(f"{end:.4g}" for end in (finite.min(), finite.max())))
    lost = f", {values.size - finite.size} not finite" if finite.size < values.size else ""
    best = f", largest at {int(values.argmax())}" if _is_row(array) and not lost else ""
    shape = "x".join(map(str, array.shape)) or "one value"
    return {"values": f"{array.dtype} {shape}, {extent if values.size else 'empty'}{lost}{best}"}


def _is_row(array: Array) -> bool:
    """Return whether an output is one row of values, as scores of classes are."""
    return 2 < array.size == max(array.shape, default=1)


def compare_tensors(reference: Array, other: Array) -> Compared:
    """Compare tensors: floats by cosine and worst difference, others by how many are equal."""
    if reference.shape != other.shape:
        return _report_other_shape(other)
    if reference.dtype.kind != "f":
        return _compare_share(reference, other, "of the values are equal")
    one, two = reference.astype(np.float64).ravel(), other.astype(np.float64).ravel()
    if np.array_equal(one, two, equal_nan=True):
        return Compared("same", "equal", {"cosine": 1.0, "worst_difference": 0.0})
    known = np.isfinite(one)
    lost = int((known != np.isfinite(two)).sum())
    if lost:
        words = f"{lost} values are finite in one of the two alone"
        return Compared("differs", words, {"cosine": None, "worst_difference": None})
    one, two = one[known], two[known]
    worst = float(np.abs(one - two).max(initial=0.0))
    extent = float(np.ptp(one)) if one.size else 0.0
    found = compute_cosine(one, two)
    numbers: Numbers = {
        "cosine": found,
        "worst_difference": worst,
        "range": extent,
    }
    of_range = f" ({worst / extent:.1%} of the range)" if extent else ""
    level, word = _judge_nearness(found, worst / extent if extent else 0.0)
    words = f"{word}worst difference {worst:.3g}{of_range}"
    if _is_row(reference) and one.argmax() != two.argmax():
        level, words = "differs", f"another value is the largest; {words}"
    return Compared(level, words, numbers)


def _judge_nearness(found: float | None, farthest: float) -> tuple[Level, str]:
    """Return a level, and a cosine in words; no cosine is known where an output is all zeros.

    Args:
        found: The cosine.
        farthest: The worst difference, as a part of the range: where all values are alike, as in
            pictures, cosines are high whatever a few of them are.
    """
    if found is None:
        return "differs", ""
    shown = f"cosine {found:.4f}" if found < 0.99995 else "cosine above 0.9999"
    if found >= SAME_COSINE and farthest <= NEAR_DIFFERENCE:
        return "same", f"hardly differs: {shown}, "
    if found >= NEAR_COSINE:
        return "near", f"near: {shown}, "
    return "differs", f"{'differs' if found >= 0.9 else 'far off'}: {shown}, "


def compare_pixel_classes(shown: MapKind, reference: Array, other: Array) -> Compared:
    """Compare the best class of each pixel."""
    if reference.shape != other.shape:
        return _report_other_shape(other)
    one, two = find_best_classes(reference, shown), find_best_classes(other, shown)
    return _compare_share(one, two, "of the pixels have the same class")


def _compare_share(reference: Array, other: Array, words: str) -> Compared:
    share = float(np.mean(reference == other)) if reference.size else 1.0
    level: Level = "same" if share >= SAME_SHARE else "near" if share >= NEAR_SHARE else "differs"
    text = "equal" if share == 1 else f"{_format_percent(share)} {words}"
    return Compared(level, text, {"equal_share": share})


def _format_percent(share: float) -> str:
    """Return a share below 1 in percent, never rounded up to 100."""
    return f"{math.floor(share * 1000) / 10:.1f} %"


def _report_other_shape(other: Array) -> Compared:
    shape = list(other.shape)
    return Compared("differs", f"has another shape: {shape}", {"shape": shape})


def compute_cosine(one: Array, two: Array) -> float | None:
    """Return the cosine between two arrays' values; None where one has no length."""
    a, b = one.astype(np.float64).ravel(), two.astype(np.float64).ravel()
    lengths = float(np.linalg.norm(a) * np.linalg.norm(b))
    if not math.isfinite(lengths) or lengths == 0:
        return None
    return float(np.clip(a @ b / lengths, -1, 1))
