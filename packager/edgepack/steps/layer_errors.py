"""How far each node of an int8 model is from the float model, over some samples."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from edgepack.accuracy import EQUAL_SQNR_DB, sqnr_db
from edgepack.calibration.observing import Observer
from edgepack.data import SampleSet
from edgepack.errors import StepError
from edgepack.model.reading import read_structure
from edgepack.quantization.sensitivity import find_pairs
from edgepack.steps.base import MODEL, Inputs, Notes
from edgepack.steps.int8_static import EXACT

if TYPE_CHECKING:
    import onnx

LAYER_ERRORS = "layers.json"
"""A list in graph order: ``node``, ``op``, ``tensor`` and ``sqnr_db`` of each."""
NO_SIGNAL_DB = -200.0
"""Stands in JSON, which has no infinity, for a tensor that is noise alone or not finite."""


@dataclass(frozen=True)
class LayerErrors:
    """The error of each tensor that both models have, as the int8 model's readers see it.

    Inputs: ``reference``, the float model that ``model`` was made from; ``model``; ``samples``.
    Where the step that made ``model`` scaled channels, its own float model is the reference.
    The error of a tensor holds that of everything before it. Tensors of subgraphs are not seen.
    """

    name: ClassVar[str] = "layer-errors"
    libraries: ClassVar[tuple[str, ...]] = ("onnx", "onnxruntime")
    cacheable = True
    count: int
    """How many of the samples are looked at."""
    processor: str
    """The kind of processor that this runs on: it decides the last bits."""

    def check(self, inputs: Inputs) -> None:
        """Accept any two models that their steps have proven."""

    def run(self, inputs: Inputs, out: Path) -> Notes:
        """Write ``layers.json``.

        Raises:
            ModelError: onnxruntime refuses one of the models with its tensors as outputs.
        """
        reference, model = _reference(inputs), inputs["model"] / MODEL
        pairs = compared_tensors(read_structure(reference), read_structure(model))
        samples = SampleSet.read(inputs["samples"])
        feeds = (samples.inputs(index) for index in range(min(self.count, len(samples))))
        found = _errors(reference, model, pairs, feeds)
        producers = {
            name: node for node in read_structure(reference).graph.node for name in node.output
        }
        layers = [
            {
                "node": producers[name].name or name,
                "op": producers[name].op_type,
                "tensor": name,
                "sqnr_db": round(max(found[name], NO_SIGNAL_DB), 2),
            }
            for name in pairs
            if name in found
        ]
        (out / LAYER_ERRORS).write_text(json.dumps(layers, indent=0), encoding="utf-8")
        worst = min(layers, key=lambda layer: layer["sqnr_db"], default=None)
        if worst is None:
            return Notes("the int8 model has no tensor of the float model", {"layers": 0})
        return Notes(
            f"{len(layers)} tensors, worst that of {worst['node']!r} ({worst['op']}):"
            f" {worst['sqnr_db']:.1f} dB",
            {"layers": len(layers)},
        )

    def verify(self, inputs: Inputs, out: Path) -> None:
        """Prove that every entry is about a tensor of the float model.

        Raises:
            StepError: One is not, or its error is not a number.
        """
        nodes = read_structure(_reference(inputs)).graph.node
        names = {name for node in nodes for name in node.output}
        for layer in read_layer_errors(out):
            if layer["tensor"] not in names or not math.isfinite(layer["sqnr_db"]):
                raise StepError(
                    f"the error of {layer['tensor']!r} is {layer['sqnr_db']}",
                    hint="this is a fault in edgepack: please report it with the model",
                )


def read_layer_errors(folder: Path) -> Any:  # noqa: ANN401  (plain JSON, written above)
    """Return the list that :class:`LayerErrors` wrote."""
    return json.loads((folder / LAYER_ERRORS).read_text(encoding="utf-8"))


def _reference(inputs: Inputs) -> Path:
    """Return the float model whose tensors have the int8 model's channels."""
    exact = inputs["model"] / EXACT
    return exact if exact.exists() else inputs["reference"] / MODEL


def compared_tensors(reference: onnx.ModelProto, model: onnx.ModelProto) -> dict[str, str]:
    """Return the float model's tensors that the QDQ model has too, in graph order.

    The value is the QDQ model's tensor to compare with: the one that comes out of the pair, where
    there is a pair, because that is what the readers get.
    """
    made = [name for node in reference.graph.node for name in node.output if name]
    pairs = find_pairs(model, set(made))
    produced = {name for node in model.graph.node for name in node.output}
    return {
        name: pairs[name].rounded if name in pairs else name
        for name in made
        if name in pairs or name in produced
    }


def _errors(
    reference: Path, model: Path, pairs: Mapping[str, str], feeds: Iterator[Mapping[str, Any]]
) -> dict[str, float]:
    """Return the SQNR in dB of each float tensor over all samples; one sample is held at a time."""
    signal: defaultdict[str, float] = defaultdict(float)
    noise: defaultdict[str, float] = defaultdict(float)
    first = Observer.open(reference, read_structure(reference), pairs)
    second = Observer.open(model, read_structure(model), pairs.values())
    for feed in feeds:
        ours, theirs = first.run(feed), second.run(feed)
        for name, other in pairs.items():
            if name not in ours or ours[name].shape != theirs[other].shape:
                continue
            exact = ours[name].astype(np.float64)
            with np.errstate(invalid="ignore", over="ignore"):
                signal[name] += float(np.sum(exact**2))
                noise[name] += float(np.sum((exact - theirs[other]) ** 2))
    return {name: _decibel(signal[name], noise[name]) for name in signal}


def _decibel(signal: float, noise: float) -> float:
    if noise == 0:
        return EQUAL_SQNR_DB
    return sqnr_db(signal, noise) if math.isfinite(signal) else -math.inf
