"""How far each node of an int8 model is from the float model, over some samples."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from edgepack.base.worker import report
from edgepack.errors import BugError
from edgepack.metrics.accuracy import EQUAL_SQNR_DB, OutputCloseness
from edgepack.model.files import MODEL
from edgepack.model.reading import read_structure
from edgepack.quantization.ranges.observing import Observer
from edgepack.quantization.search.pairs import find_pairs
from edgepack.samples.sample_set import SampleSet
from edgepack.samples.spreading import choose_spread
from edgepack.steps.base import EXACT, Inputs, Notes

if TYPE_CHECKING:
    import onnx

LAYER_ERRORS = "layers.json"
"""A list in graph order: ``node``, ``op``, ``tensor`` and ``sqnr_db`` of each."""


@dataclass(frozen=True)
class LayerErrors:
    """The error of each tensor that both models have, as the int8 model's readers see it.

    Inputs: ``reference``, the float model that ``model`` was made from; ``model``; ``samples``.
    Where the step that made ``model`` scaled channels, its own float model is the reference. The
    error of a tensor includes that of everything before it. Tensors of subgraphs are not seen.
    """

    name: ClassVar[str] = "layer-errors"
    libraries: ClassVar[tuple[str, ...]] = ("onnx", "onnxruntime")
    cacheable = True
    count: int
    """How many of the samples are looked at, evenly spread over them."""
    processor: str
    """The kind of processor that this runs on: it decides the last bits."""

    def check(self, inputs: Inputs) -> None:
        """Accept any two models that their steps have proven."""

    def run(self, inputs: Inputs, out: Path) -> Notes:
        """Write ``layers.json``.

        Raises:
            ModelError: onnxruntime refuses one of the models with its tensors as outputs.
        """
        paths = _find_reference(inputs), inputs["model"] / MODEL
        reference, model = map(read_structure, paths)
        pairs = find_compared_tensors(reference, model)
        samples = SampleSet.read(inputs["samples"])
        feeds = _report_samples(samples, choose_spread(range(len(samples)), self.count))
        first = Observer.open(paths[0], reference, pairs)
        second = Observer.open(paths[1], model, pairs.values())
        found = _compute_errors(first, second, pairs, feeds)
        producers = {name: node for node in reference.graph.node for name in node.output}
        layers = [
            {
                "node": producers[name].name or name,
                "op": producers[name].op_type,
                "tensor": name,
                "sqnr_db": round(max(found[name], -EQUAL_SQNR_DB), 2),
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
        nodes = read_structure(_find_reference(inputs)).graph.node
        names = {name for node in nodes for name in node.output}
        for layer in read_layer_errors(out):
            if layer["tensor"] not in names or not math.isfinite(layer["sqnr_db"]):
                raise BugError(f"the error of {layer['tensor']!r} is {layer['sqnr_db']}")


def _report_samples(samples: SampleSet, indices: Sequence[int]) -> Iterator[Mapping[str, Any]]:
    """Yield samples, and report how many are done with."""
    for done, index in enumerate(indices, 1):
        yield samples.read_inputs(index)
        report(done, len(indices))


def read_layer_errors(folder: Path) -> Any:  # noqa: ANN401  (plain JSON, written above)
    """Return the list that :class:`LayerErrors` wrote."""
    return json.loads((folder / LAYER_ERRORS).read_text(encoding="utf-8"))


def _find_reference(inputs: Inputs) -> Path:
    """Return the float model whose tensors have the int8 model's channels."""
    exact = inputs["model"] / EXACT
    return exact if exact.exists() else inputs["reference"] / MODEL


def find_compared_tensors(reference: onnx.ModelProto, model: onnx.ModelProto) -> dict[str, str]:
    """Return the float model's tensors that the QDQ model has too, in graph order.

    The value is the QDQ model's tensor to compare with: the one that comes out of the pair, where
    there is a pair, because that is what the readers get.
    """
    made = [name for node in reference.graph.node for name in node.output if name]
    pairs = find_pairs(model, set(made))
    produced = {name for node in model.graph.node for name in node.output}
    return {name: pairs.get(name, name) for name in made if name in pairs or name in produced}


def _compute_errors(
    first: Observer,
    second: Observer,
    pairs: Mapping[str, str],
    feeds: Iterator[Mapping[str, Any]],
) -> dict[str, float]:
    """Return the SQNR in dB of each float tensor over all samples, with one in memory at a time."""
    found: dict[str, OutputCloseness] = {}
    for feed in feeds:
        # No name here refers to the tensors: they are freed before the next sample runs.
        _add(found, pairs, first.run(feed), second.run(feed))
    return {name: closeness.whole_sqnr_db for name, closeness in found.items()}


def _add(
    found: dict[str, OutputCloseness],
    pairs: Mapping[str, str],
    ours: Mapping[str, Any],
    theirs: Mapping[str, Any],
) -> None:
    for name, other in pairs.items():
        if name in ours and ours[name].shape == theirs[other].shape:
            found.setdefault(name, OutputCloseness()).add(ours[name], theirs[other])
