"""How close the tensors inside quantized models are to those of the float model.

Of an output, few samples tell little: probabilities, say, are all but two or three nearly zero, and
their error is one number drawn by chance. The tensors before it have thousands of values each, and
what makes all of them better makes the output better. So they decide where outputs cannot.
On squeezenet1.1 with symmetric int8, 25 samples give the gain of better rounding at the output as
-1.4 dB with a standard error of 2.7 dB, and 8 of them give it inside as 0.37 with 0.11; 200 others
give 1.8 with 0.6 at the output (onnxruntime 1.31.1, x86-64, 2026-11-21).
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from edgepack.accuracy import OutputCloseness
from edgepack.model.reading import read_model, write_model
from edgepack.model.running import make_session, run_session
from edgepack.quantization.closeness import Chosen, Verdict, jackknife_error, verdict
from edgepack.quantization.sensitivity import channel_loss, find_pairs, with_outputs

if TYPE_CHECKING:
    import onnx

Array = np.ndarray[Any, Any]

_LEAST_LOSS = 1e-12


@dataclass(frozen=True)
class InnerCloseness:
    """The errors of the tensors of one model, each with all that was wrong before it."""

    tensors: tuple[str, ...]
    losses: Array
    """(samples, tensors) float64: energy of the error over energy of the signal, the mean over
    channels, so that it does not matter how channels are scaled."""

    def compare(self, other: InnerCloseness) -> Verdict:
        """Return whether this one is closer, on average over the tensors that both have."""
        common = [name for name in self.tensors if name in other.tensors]
        if not common:
            return "unclear"
        ours, theirs = self._of(common), other._of(common)
        count = len(ours)
        without = [
            _gain_db(*(np.delete(each, n, 0) for each in (ours, theirs))) for n in range(count)
        ]
        return verdict(_gain_db(ours, theirs), jackknife_error(without))

    def _of(self, names: list[str]) -> Array:
        return self.losses[:, [self.tensors.index(name) for name in names]]


def _gain_db(ours: Array, theirs: Array) -> float:
    means = (np.maximum(each.mean(0), _LEAST_LOSS) for each in (theirs, ours))
    before, after = (10 * np.log10(mean) for mean in means)
    return float(np.mean(before - after))


def inner_closeness(exact: onnx.ModelProto, model: Path, feeds: Chosen) -> InnerCloseness:
    """Return the errors of all tensors of a QDQ model that go through a pair.

    Needs memory for the activations of one sample, twice.

    Args:
        exact: The float model that it was made from.
        model: The QDQ model.
        feeds: A few samples.

    Raises:
        ModelError: onnxruntime refuses a model with its tensors as outputs.
    """
    quantized = read_model(model)
    made = {name for node in exact.graph.node for name in node.output}
    pairs = {name: pair for name, pair in find_pairs(quantized, made).items() if name in made}
    if not pairs:
        return InnerCloseness((), np.zeros((len(feeds), 0)))
    watched = (
        with_outputs(exact, pairs),
        with_outputs(quantized, [p.rounded for p in pairs.values()]),
    )
    losses = []
    with tempfile.TemporaryDirectory(prefix="edgepack-inner-") as folder:
        sessions = []
        for number, each in enumerate(watched):
            path = Path(folder) / str(number) / "model.onnx"
            path.parent.mkdir()
            write_model(each, path)
            sessions.append(make_session(path))
        for feed in feeds:
            expected, found = (run_session(session, feed) for session in sessions)
            losses.append([_loss(expected[n], found[p.rounded]) for n, p in pairs.items()])
    return InnerCloseness(
        tuple(pairs), np.array(losses, np.float64).reshape(len(feeds), len(pairs))
    )


def _loss(expected: Array, found: Array) -> float:
    one = OutputCloseness()
    one.add(expected, found)
    return channel_loss(one)
