"""Finds by halving what places of a quantized model add to the error of its outputs.

Rounding errors of different places are as good as independent, so their energies add up: on
nanodet_m in uint8, the parts into which 242 tensors were divided, each rounded alone, together have
1.12 times the error that all have at once (onnxruntime 1.31.1, x86-64, 2026-11-21). So one run
settles neighbours that cost little together, and the other runs remain for those that cost much.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from edgepack.model.reading import write_model
from edgepack.model.running import make_session, run_session
from edgepack.quantization.qdq.dialect import DEQUANTIZE
from edgepack.quantization.qdq.kept_float import write_qdq
from edgepack.quantization.qdq.preparation import copy_model
from edgepack.quantization.qdq.writer import QdqWriter
from edgepack.quantization.search.closeness import HeldOut
from edgepack.quantization.search.pairs import find_pairs

if TYPE_CHECKING:
    import onnx

_NOISE = 0.5
MOST_RUNS = 64
"""For nodes, and again for tensors. On nanodet_m, with 242 tensors, one takes 0.15 s and fitting
all weights 8 s (2 cores, onnxruntime 1.31.1, x86-64, 2026-11-21)."""


@dataclass(frozen=True)
class PlaceStretch:
    """Neighbouring places, and what they cost."""

    places: tuple[str, ...]
    """In the order of the graph; one or more."""
    cost: float
    """Share of the outputs' energy that is error if only these are quantized."""

    @property
    def density(self) -> float:
        """What each of its places costs on average."""
        return self.cost / len(self.places)


@dataclass(frozen=True)
class Costs:
    """What a model's places cost, the highest density first."""

    nodes: tuple[PlaceStretch, ...]
    """By name of a node: its constants as integers."""
    tensors: tuple[PlaceStretch, ...]
    """By name of an activation in the float model: its Q/DQ pair."""

    @property
    def tensors_db(self) -> float:
        """By how many dB the error would be smaller if tensors cost nothing."""
        nodes, tensors = self._totals
        if not tensors:
            return 0.0
        return 10 * math.log10((nodes + tensors) / nodes) if nodes else math.inf

    def shrink_to_fitted_weights(self, error_share: float) -> Costs:
        """Return the costs for fitted weights, which cost less than plain ones.

        Their gain cannot be measured node by node: an error that compensates for another one is
        itself an error where the other is missing. So the costs of all nodes shrink alike, to the
        whole model's error less that of its tensors.

        Args:
            error_share: Of the model with fitted weights. Half and more is noise, whose parts do
                not add up: nothing is changed then.
        """
        nodes, tensors = self._totals
        if error_share >= _NOISE or not nodes:
            return self
        factor = min(max(error_share - tensors, 0.0) / nodes, 1.0)
        shrunk = (replace(each, cost=each.cost * factor) for each in self.nodes)
        return replace(self, nodes=tuple(shrunk))

    @property
    def _totals(self) -> tuple[float, float]:
        nodes, tensors = (sum(each.cost for each in kind) for kind in (self.nodes, self.tensors))
        return nodes, tensors


def measure_costs(writer: QdqWriter, left: Collection[str], held_out: HeldOut) -> Costs:
    """Return what the constants of nodes, and the pairs of tensors, add to the outputs' error.

    Tensors that have 16 bits already are none of its places, and are float while others are judged.

    Args:
        writer: Writes the model in question, with plain weights.
        left: Nodes that stay float.
        held_out: Judges by a few samples; :data:`MOST_RUNS` models are judged for either kind.

    Raises:
        StepError: The writer cannot write a model.
        ModelError: onnxruntime refuses one.
    """
    source, whole = writer.model, writer.write(left)
    made = {name for node in source.graph.node for name in node.output}
    every_node = {node.name for node in source.graph.node}
    pairs = list(find_pairs(whole, made))
    tensors = [name for name in pairs if name not in writer.wide]

    with tempfile.TemporaryDirectory(prefix="edgepack-costs-") as folder:
        path = Path(folder) / "model.onnx"
        rounded = _find_rounded_constants(source, whole, path)

        def measure_cost(model: onnx.ModelProto) -> float:
            write_model(model, path)
            return held_out.measure_closeness(path).error_share

        def measure_nodes(places: Sequence[str]) -> float:
            partly = _replace_constants(source, {name: rounded[name] for name in places})
            return measure_cost(partly)

        def measure_tensors(places: Sequence[str]) -> float:
            others = set(pairs).difference(places)
            partly = replace(writer, unpaired=writer.unpaired | others)
            return measure_cost(write_qdq(partly, left, exact=every_node))

        return Costs(
            find_costs(list(rounded), measure_nodes, MOST_RUNS),
            find_costs(tensors, measure_tensors, MOST_RUNS),
        )


def _find_rounded_constants(
    source: onnx.ModelProto, written: onnx.ModelProto, path: Path
) -> dict[str, dict[int, onnx.TensorProto]]:
    """Return the values of the QDQ model's integer constants, by node and place in its inputs.

    They are floats again: behind a DequantizeLinear, onnxruntime would use integer kernels for some
    products, which also round the other operand.

    Args:
        source: The float model, in the order of whose nodes they are.
        written: The QDQ model that was made from it.
        path: Where a model may be written.
    """
    import onnx

    constants = {tensor.name: tensor for tensor in written.graph.initializer}
    conversions = {
        node.output[0]: node
        for node in written.graph.node
        if node.op_type == DEQUANTIZE and node.input[0] in constants
    }
    if not conversions:
        return {}
    model = onnx.ModelProto()
    model.ir_version = written.ir_version
    model.opset_import.extend(written.opset_import)
    model.graph.name = "constants"
    model.graph.node.extend(conversions.values())
    read = dict.fromkeys(name for node in conversions.values() for name in node.input)
    model.graph.initializer.extend(constants[name] for name in read)
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in conversions)
    write_model(model, path)
    values = {
        name: onnx.numpy_helper.from_array(array, name)
        for name, array in run_session(make_session(path), {}).items()
    }
    inputs = {node.name: node.input for node in written.graph.node}
    found = {
        node.name: {k: values[n] for k, n in enumerate(inputs.get(node.name, ())) if n in values}
        for node in source.graph.node
    }
    return {name: places for name, places in found.items() if places}


def _replace_constants(
    source: onnx.ModelProto, given: Mapping[str, Mapping[int, onnx.TensorProto]]
) -> onnx.ModelProto:
    """Return a model in which some nodes have other constants, by place in their inputs."""
    model = copy_model(source)
    added: dict[str, onnx.TensorProto] = {}
    for node in model.graph.node:
        for place, tensor in given.get(node.name, {}).items():
            node.input[place] = tensor.name
            added[tensor.name] = tensor
    model.graph.initializer.extend(added.values())
    return model


def find_costs(
    places: Sequence[str], cost: Callable[[Sequence[str]], float], most_runs: int
) -> tuple[PlaceStretch, ...]:
    """Return stretches that together are all the places, the highest density first.

    The function repeatedly halves the stretch that costs most, until it is a single place, nothing
    costs anything, or no runs are left.

    Args:
        places: In the order of the graph, so that neighbours have to do with each other.
        cost: Returns the cost of some of them: one run.
        most_runs: How often that is asked for at most.
    """
    if not places:
        return ()
    found = [PlaceStretch(tuple(places), cost(places))]
    for _ in range((most_runs - 1) // 2):
        divisible = [each for each in found if len(each.places) > 1 and each.cost > 0]
        if not divisible:
            break
        whole = max(divisible, key=lambda each: each.cost)
        half = len(whole.places) // 2
        found.remove(whole)
        found += [
            PlaceStretch(part, cost(part)) for part in (whole.places[:half], whole.places[half:])
        ]
    return tuple(sorted(found, key=lambda each: -each.density))
