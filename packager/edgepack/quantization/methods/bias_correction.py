"""Bias and weight correction: undoes what quantized inputs do to a product's outputs.

The inputs of a product in a quantized network differ from those in the float network, and not only
by chance: what rounding, saturation and the layers before did to them is in part a linear function
of them. So other weights and another bias come closer to the float outputs. Samples decide which
ones (for biases alone: Nagel et al., arXiv 1906.04721). Inputs are patches as
:mod:`~edgepack.quantization.methods.layers` has them, "exact" those of the float network and
"quantized" those of the quantized one, at the same positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from edgepack.base.arrays import Array

NO_LIMITS = (-np.inf, np.inf)

# How strongly weights are kept near their old values, in units of the inputs' mean square.
_STRENGTHS = (0.03, 0.3, 3.0, 30.0)
_LEAST_POSITIONS_PER_TAP = 2
# Newton's method: on a function that is nearly linear, two steps are near enough.
_BIAS_STEPS = 2
_LEAST_POSITIONS = 20
"""The fewest positions within its limits with which an output shows its bias."""


@dataclass(frozen=True)
class Moments:
    """Means and second moments of (groups, positions, taps) inputs."""

    count: int
    """Of positions."""
    exact_mean: Array
    """(groups, taps) float64; zeros where moments are not about the mean."""
    quantized_mean: Array
    """The same of quantized inputs."""
    second: Array
    """(groups, taps, taps) float64: mean of q q^T, where q is a quantized input less its mean."""
    cross: Array
    """(groups, taps, taps) float64: mean of x q^T, where x is an exact input less its mean."""


def measure_moments(exact: Array, quantized: Array, *, centred: bool) -> Moments:
    """Return the moments of inputs at the same positions.

    Args:
        exact: (groups, positions, taps) float32, at least one position.
        quantized: The same of the quantized network.
        centred: Whether moments are about the mean. They are where a bias makes up for the means.
    """
    count = exact.shape[1]
    means = [x.mean(axis=1, dtype=np.float64) for x in (exact, quantized)]
    if not centred:
        means = [np.zeros_like(mean) for mean in means]
    x, q = (
        values - mean[:, None].astype(np.float32)
        for values, mean in zip((exact, quantized), means, strict=True)
    )
    second, cross = ((a.swapaxes(1, 2) @ q).astype(np.float64) / count for a in (q, x))
    return Moments(count, means[0], means[1], second, cross)


def join_moments(parts: Sequence[Moments]) -> Moments:
    """Return the moments of all positions from those of some each."""
    count = sum(part.count for part in parts)
    shares = [part.count / count for part in parts]

    def mean(values: Sequence[Array]) -> Array:
        return np.asarray(sum(s * v for s, v in zip(shares, values, strict=True)))

    exact = mean([part.exact_mean for part in parts])
    quantized = mean([part.quantized_mean for part in parts])
    second, cross = [], []
    for part in parts:
        x, q = part.exact_mean - exact, part.quantized_mean - quantized
        second.append(part.second + q[:, :, None] * q[:, None])
        cross.append(part.cross + x[:, :, None] * q[:, None])
    return Moments(count, exact, quantized, mean(second), mean(cross))


def correct_weights(rows: Array, parts: Sequence[Moments]) -> Array:
    """Return weights that with quantized inputs come closest to the float outputs.

    These are W' = W + W (C - H) (H + s m I)^-1, H being the second moment of the inputs, m the mean
    of its diagonal, and C the cross moment: the least squares solution that is regularized toward W
    with strength s. With few and similar samples, chance is hard to distinguish from error, so the
    function takes the s that is best on one part when fitted to the other. It returns W itself if
    no s is better.

    Args:
        rows: (groups, outputs, taps) float64: W.
        parts: Two parts of the samples. With only one part there is no check, and with fewer than
            two positions per tap there is no fit: then the function returns W.
    """
    least = _LEAST_POSITIONS_PER_TAP * rows.shape[2]
    if len(parts) != 2 or sum(part.count for part in parts) < least:
        return rows
    errors = dict.fromkeys((0.0, *_STRENGTHS), 0.0)
    for fitted, judge in (parts, parts[::-1]):
        missing, wanted = _compute_missing(rows, fitted), rows @ judge.cross
        for strength in errors:
            found = rows + _solve_step(missing, fitted, strength) if strength else rows
            # The mean squared error of the outputs, less what is the same for all weights.
            errors[strength] += float(np.sum((found @ judge.second - 2 * wanted) * found))
    best = min(errors, key=lambda strength: errors[strength])
    whole = join_moments(parts)
    return rows + _solve_step(_compute_missing(rows, whole), whole, best) if best else rows


def _compute_missing(rows: Array, found: Moments) -> Array:
    return np.asarray(rows @ (found.cross - found.second))


def _solve_step(missing: Array, found: Moments, strength: float) -> Array:
    held = found.second + np.eye(found.second.shape[1]) * (
        strength * compute_mean_square(found.second)
    )
    return np.linalg.solve(held, missing.swapaxes(1, 2)).swapaxes(1, 2)


def compute_mean_square(second: Array) -> Array:
    """Return (groups, 1, 1): the mean of the diagonals, 1 where all inputs are constant."""
    mean = np.trace(second, axis1=1, axis2=2)[:, None, None] / second.shape[1]
    return np.where(mean > 0, mean, 1.0)


def correct_bias(
    bias: Array, exact: Array, quantized: Array, limits: tuple[float, float] = NO_LIMITS
) -> Array:
    """Return the bias with which quantized outputs have the mean of the exact ones.

    If a Relu or Clip comes next, only values within limits matter. Then the function minimizes the
    error of the values that come through: an output that is cut off in both networks has no error.

    Args:
        bias: (outputs,) of the float network.
        exact: (outputs, positions) float32: outputs of the float network, less the bias.
        quantized: The same of the quantized network, of its weights and inputs.
        limits: Lowest and highest output that comes through.

    Returns:
        (outputs,) float32.
    """
    first = bias.astype(np.float64)
    found = first + (
        exact.mean(axis=1, dtype=np.float64) - quantized.mean(axis=1, dtype=np.float64)
    )
    if limits == NO_LIMITS:
        return np.asarray(found, np.float32)
    wanted = exact + first[:, None].astype(np.float32)
    for _ in range(_BIAS_STEPS):
        have = quantized + found[:, None].astype(np.float32)
        missing = np.clip(wanted, *limits) - np.clip(have, *limits)
        passed = (_find_passed(wanted, limits) | _find_passed(have, limits)).sum(axis=1)
        step = missing.sum(axis=1, dtype=np.float64) / np.maximum(passed, 1)
        found += np.where(passed >= _LEAST_POSITIONS, step, 0.0)
    return np.asarray(found, np.float32)


def _find_passed(values: Array, limits: tuple[float, float]) -> Array:
    return np.asarray((limits[0] < values) & (values < limits[1]))
