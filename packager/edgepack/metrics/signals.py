"""Signals: how small the error is where they are not silent."""

from __future__ import annotations

import numpy as np

from edgepack.base.arrays import Array
from edgepack.metrics.base import Arrays, Found, Nothing, OutputMetric

SILENT = 1e-4
"""The share of the loudest window's energy below which a window is silent: 40 dB."""


class Signal(OutputMetric):
    """One less the error's share of the energy, the mean over windows that are not silent."""

    name = "signal"
    about = "1 less the error's share of the signal's energy, over windows that are not silent"
    least = 0.75
    """The error is half as large as the signal."""

    def __init__(self, window: int) -> None:
        self.window = window
        self.energies: list[tuple[Array, Array]] = []
        """By sample: of the signal and of the error, of each window."""

    def add(self, reference: Array, output: Array, feed: Arrays) -> None:
        """Add one sample: windows lie along the last axis."""
        del feed
        ours = reference.astype(np.float64)
        theirs = output.astype(np.float64) if output.shape == reference.shape else 0 * ours
        self.energies.append((self._compute_energy(ours), self._compute_energy(ours - theirs)))

    def _compute_energy(self, values: Array) -> Array:
        """Return the energy of each window; the last one may be shorter."""
        rows = values.reshape(-1, values.shape[-1] if values.ndim else 1)
        starts = np.arange(0, rows.shape[1], self.window)
        return np.add.reduceat(rows**2, starts, axis=1).reshape(-1)

    def compute_value(self) -> Found | Nothing:
        """Return the mean, and the SQNR that nine in ten windows reach."""
        loudest = max((float(ours.max(initial=0)) for ours, _ in self.energies), default=0.0)
        if not loudest:
            return Nothing("fp32 gives silence for all samples")
        values, ratios = [], []
        for ours, noise in self.energies:
            loud = ours > SILENT * loudest
            share = np.nan_to_num(noise[loud] / ours[loud], nan=np.inf)
            if share.size:
                values.append(float(np.mean(1 - np.minimum(share, 2.0))))
                ratios.append(share)
        worst = float(np.quantile(np.concatenate(ratios), 0.9))
        decibels = -10 * np.log10(max(worst, 1e-20))
        mean = float(np.mean(values))
        no_better = None if mean > 0 else f"its error is as large as the signal ({mean:.3f})"
        return Found(values, others={"sqnr_db": float(decibels)}, no_better=no_better)
