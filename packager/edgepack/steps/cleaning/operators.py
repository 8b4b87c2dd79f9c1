"""The cleaning of operators under ONNX's name that it has not: exporters' own, and removed ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np

from edgepack.base.arrays import Array
from edgepack.errors import BugError
from edgepack.model.editing import MIN_IR, take_name
from edgepack.model.facts import find_default_opset
from edgepack.model.quantized import walk_nodes
from edgepack.model.reading import write_model
from edgepack.model.running import make_session, run_session
from edgepack.steps.cleaning.draft import Draft, is_op, read_attributes

if TYPE_CHECKING:
    import onnx

# Operators broadcast as numpy does from opset 7 on, Erf is of 9 (Operators.md).
_BROADCAST_OPSET, _ERF_OPSET = 7, 9
# onnxruntime 1.31.1 has the removed ones up to this opset, whose Slice has its ends as attributes.
_LAST_OPSET = 9
_END = np.iinfo(np.int64).max
_ANY = 1 << 31
# What a sign passes through; of the inputs all but one are no node's.
_LINEAR = ("Mul", "Div", "Transpose", "Reshape", "Identity")
_CLOSE = 1e-6
_GRID = np.linspace(-8, 8, 4001, dtype=np.float32)


@dataclass
class _Building:
    """The nodes that stand in for one node."""

    draft: Draft
    node: onnx.NodeProto
    nodes: list[onnx.NodeProto]
    taken: set[str]
    plain: bool

    def add(self, op: str, *inputs: str, last: bool = False, **given: Sequence[float]) -> str:
        """Add a node, the last of which gives what the old one gave; return its output."""
        from onnx import helper

        stem = self.node.name or self.node.output[0]
        output = self.node.output[0] if last else take_name(f"{stem}/{op}", self.taken)
        name = self.node.name if last else output
        self.nodes.append(helper.make_node(op, inputs, [output], name, **dict[str, Any](given)))
        return output

    def add_constant(self, values: Array) -> str:
        """Add a constant; return its name."""
        from onnx import numpy_helper

        stem = self.node.name or self.node.output[0]
        name = take_name(f"{stem}/constant", self.taken)
        model = self.draft.model
        model.graph.initializer.append(numpy_helper.from_array(values, name))
        model.ir_version = max(model.ir_version, MIN_IR)
        return name

    def add_number(self, value: float) -> str:
        """Add a number of the type that the node gives; float32 where that is not said."""
        from onnx import helper

        names = {*self.node.input, *self.node.output}
        graph = self.draft.model.graph
        types = [
            value.type.tensor_type.elem_type
            for value in (*graph.value_info, *graph.input, *graph.output)
            if value.name in names and value.type.tensor_type.elem_type
        ]
        dtype = helper.tensor_dtype_to_np_dtype(types[0]) if types else np.dtype(np.float32)
        return self.add_constant(np.array(value, dtype))


def _build_erfc(building: _Building) -> None:
    """Write ``1 - Erf(x)``, or of a negative ``1 + Erf(-x)``, in which providers know a Gelu."""
    negative = None if building.plain else _find_negative(building)
    if negative is not None:
        _drop_negative(building.draft.model, negative)
    erf = building.add("Erf", building.node.input[0])
    if negative is not None:
        building.add("Add", erf, building.add_number(1.0), last=True)
    else:
        building.add("Sub", building.add_number(1.0), erf, last=True)


def _find_negative(building: _Building) -> onnx.NodeProto | None:
    """Return the Neg that a node's input comes from, if nothing else reads what is between."""
    draft, tensor = building.draft, building.node.input[0]
    reads = draft.count_reads()
    while reads[tensor] == 1 and (maker := draft.find_maker(tensor)) is not None:
        if is_op(maker, "Neg"):
            return maker
        if not any(is_op(maker, op) for op in _LINEAR):
            return None
        made = [name for name in maker.input if draft.find_maker(name) is not None]
        if len(made) != 1:
            return None
        tensor = made[0]
    return None


def _drop_negative(model: onnx.ModelProto, node: onnx.NodeProto) -> None:
    for reader in model.graph.node:
        if node.output[0] in reader.input:
            names = [node.input[0] if n == node.output[0] else n for n in reader.input]
            reader.input[:] = names
    model.graph.node.remove(node)


def _build_affine(building: _Building) -> None:
    given = {"alpha": 1.0, "beta": 0.0, **read_attributes(building.node)}
    scaled = building.add("Mul", building.node.input[0], building.add_number(given["alpha"]))
    building.add("Add", scaled, building.add_number(given["beta"]), last=True)


def _build_image_scaler(building: _Building) -> None:
    given: dict[str, Any] = {"scale": 1.0, "bias": [0.0], **read_attributes(building.node)}
    scaled = building.add("Mul", building.node.input[0], building.add_number(given["scale"]))
    bias = building.add_constant(np.array(given["bias"], np.float32).reshape(1, -1, 1, 1))
    building.add("Add", scaled, bias, last=True)


def _build_scaled_tanh(building: _Building) -> None:
    given = {"alpha": 1.0, "beta": 1.0, **read_attributes(building.node)}
    inner = building.add("Mul", building.node.input[0], building.add_number(given["beta"]))
    tanh = building.add("Tanh", inner)
    building.add("Mul", tanh, building.add_number(given["alpha"]), last=True)


def _build_crop(building: _Building) -> None:
    """Cut a picture: ``border`` is left, top, right, bottom; ``scale`` a height and width."""
    given = read_attributes(building.node)
    left, top, right, bottom = given["border"]
    ends = [-bottom or _END, -right or _END]
    if "scale" in given:
        ends = [top + given["scale"][0], left + given["scale"][1]]
    sides = {"starts": [top, left], "ends": ends, "axes": [2, 3]}
    building.add("Slice", building.node.input[0], last=True, **sides)


@dataclass(frozen=True)
class StandIn:
    """What takes the place of an operator."""

    build: Callable[[_Building], None]
    opset: int
    """The first that has what it is built of."""
    last_opset: int = _LAST_OPSET
    """The last of models that have the operator."""
    compute: Callable[[float], float] | None = None
    """The operator itself, of one number, where onnxruntime has it not."""


STAND_INS = {
    "Erfc": StandIn(_build_erfc, _ERF_OPSET, _ANY, math.erfc),
    "Affine": StandIn(_build_affine, _BROADCAST_OPSET),
    "ImageScaler": StandIn(_build_image_scaler, _BROADCAST_OPSET),
    "ScaledTanh": StandIn(_build_scaled_tanh, _BROADCAST_OPSET),
    "Crop": StandIn(_build_crop, _BROADCAST_OPSET),
}
"""By operator in ONNX's own domain. tf2onnx 1.17 writes TensorFlow's Erfc as it is, of which
Keras's exact GELU is made. The others were experimental, until ONNX 1.5 took them away:
onnxruntime still has them in old opsets, but no model of them can be converted to another one."""


def replace_operators(draft: Draft, *, plain: bool = False) -> list[str]:
    """Write operators that ONNX has not with those that it has; only in the main graph.

    Args:
        draft: Is changed.
        plain: Whether to write each as it is by itself, whatever is around it.
    """
    graph, done = draft.model.graph, []
    opset = find_default_opset(draft.model)
    taken = {name for node in graph.node for name in (*node.input, *node.output)}
    taken |= {tensor.name for tensor in graph.initializer}
    for node in list(graph.node):
        stand_in = STAND_INS.get(node.op_type)
        if stand_in is None or not is_op(node, node.op_type):
            continue
        if not stand_in.opset <= opset <= stand_in.last_opset:
            continue
        building = _Building(draft, node, [], taken, plain)
        stand_in.build(building)
        done.append(
            f"{node.op_type} {(node.name or node.output[0])!r} by"
            f" {', '.join(new.op_type for new in building.nodes)}"
        )
        place = list(graph.node).index(node)
        for offset, new in enumerate(building.nodes[:-1]):
            graph.node.insert(place + offset, new)
        node.CopyFrom(building.nodes[-1])
    return done


def list_unrunnable(model: onnx.ModelProto) -> list[str]:
    """Return the operators of a model that onnxruntime has not, and that have a stand-in."""
    found = {node.op_type for node in walk_nodes(model)}
    return [op for op, each in STAND_INS.items() if each.compute is not None and op in found]


def prove_stand_ins(ops: list[str]) -> None:
    """Prove that stand-ins compute what the operators do, on numbers from -8 to 8.

    Raises:
        BugError: One does not.
    """
    for op in ops:
        expected = np.array([*_compute(op)], np.float32)
        given = _run_stand_in(op)
        if not np.allclose(given, expected, rtol=0, atol=_CLOSE):
            raise BugError(f"what stands in for {op} is {abs(given - expected).max():g} from it")


def _compute(op: str) -> Iterator[float]:
    compute = STAND_INS[op].compute
    if compute is not None:
        yield from (compute(float(value)) for value in _GRID)


def _run_stand_in(op: str) -> Array:
    from onnx import TensorProto, helper

    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [len(_GRID)]) for n in "xy"]
    graph = helper.make_graph([helper.make_node(op, ["x"], ["y"])], op, values[:1], values[1:])
    imports = [helper.make_opsetid("", STAND_INS[op].opset)]
    draft = Draft(helper.make_model(graph, opset_imports=imports, ir_version=MIN_IR))
    replace_operators(draft, plain=True)
    with TemporaryDirectory(prefix="edgepack-stand-in-") as folder:
        path = Path(folder) / "model.onnx"
        write_model(draft.model, path)
        return np.asarray(run_session(make_session(path), {"x": _GRID})["y"])
