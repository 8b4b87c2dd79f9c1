"""Rewrites of activations and norms: many nodes to one operator, or one operator to many.

onnxruntime 1.31.1 itself joins LayerNormalization and Gelu in float models before it gives nodes to
providers, from opsets 17 and 20 on. It cannot in int8 models, where integers are written between
the nodes, and it does not join HardSwish.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from edgepack.model.editing import move_constants_to_initializers, take_name
from edgepack.model.facts import STANDARD, find_default_opset
from edgepack.quantization.qdq.preparation import infer_types
from edgepack.steps.cleaning.draft import read_attributes
from edgepack.steps.graph.half import drop_unread, find_inner_names
from edgepack.steps.graph.patterns import Finder, Match, replace_all

if TYPE_CHECKING:
    import onnx

_X = "?x"
_SHIFTED = ("Add", _X, 3.0)
# Min and Max of three ways to write a Clip between 0 and 6.
_SIX = ("Clip", _SHIFTED, 0.0, 6.0)
_HARD_SIGMOID = [("Mul", _SIX, 1 / 6), ("Div", _SIX, 6.0)]
_HARD_SWISH = [
    *(("Mul", _X, sigmoid) for sigmoid in _HARD_SIGMOID),
    ("Div", ("Mul", _X, _SIX), 6.0),
    ("Mul", ("Mul", _X, _SIX), 1 / 6),
    ("Mul", _SIX, ("Mul", _X, 1 / 6)),
    ("Mul", _SIX, ("Div", _X, 6.0)),
]
_ERFS = [("Erf", (op, _X, by)) for op, by in (("Div", math.sqrt(2)), ("Mul", math.sqrt(0.5)))]
_CUBES = [("Pow", _X, 3.0), ("Mul", _X, ("Mul", _X, _X))]
_TANHS = [
    ("Tanh", ("Mul", ("Add", _X, ("Mul", cube, 0.044715)), math.sqrt(2 / math.pi)))
    for cube in _CUBES
]


def _list_gelus(inner: list[Any]) -> list[Any]:
    """Return the ways to write x / 2 * (1 + inner)."""
    plus = [("Add", each, 1.0) for each in inner]
    return [
        *(("Mul", ("Mul", _X, each), 0.5) for each in plus),
        *(("Mul", _X, ("Mul", each, 0.5)) for each in plus),
        *(("Mul", ("Mul", _X, 0.5), each) for each in plus),
        *(("Mul", ("Div", _X, 2.0), each) for each in plus),
    ]


# By operator: the opset it came with (Operators.md), and how exporters write it in pieces.
_Patterns = dict[str, tuple[int, list[Any]]]
_HARD: _Patterns = {"HardSwish": (14, _HARD_SWISH), "HardSigmoid": (6, _HARD_SIGMOID)}
_GELU: _Patterns = {
    "Gelu": (20, _list_gelus(_ERFS)),
    "Gelu by tanh": (20, _list_gelus(_TANHS)),
}
_SOFTPLUSES = [("Softplus", _X), ("Log", ("Add", ("Exp", _X), 1.0))]
_MISHES = [("Mul", _X, ("Tanh", each)) for each in _SOFTPLUSES]
_MISH: _Patterns = {"Mish": (18, _MISHES)}
_ATTRIBUTES: dict[str, dict[str, Any]] = {
    "HardSigmoid": {"alpha": 1 / 6, "beta": 0.5},
    "Gelu by tanh": {"approximate": "tanh"},
}


def fuse_hard_swish(model: onnx.ModelProto) -> list[str]:
    """Join what HardSwish and HardSigmoid are made of, where the opset has them."""
    return _fuse(model, _HARD)


def fuse_gelu(model: onnx.ModelProto) -> list[str]:
    """Join what Gelu is made of, exact or by tanh, where the opset has it."""
    return _fuse(model, _GELU)


def fuse_mish(model: onnx.ModelProto) -> list[str]:
    """Join what Mish is made of, where the opset has it, and :func:`split_mish` can split it."""
    types = infer_types(model)
    return _fuse(model, _MISH, lambda x: types.get(x) == _FLOAT)


def _fuse(
    model: onnx.ModelProto, wanted: _Patterns, takes: Callable[[str], bool] = lambda _: True
) -> list[str]:
    from onnx import helper

    def make(op: str, match: Match, finder: Finder) -> onnx.NodeProto | None:
        del finder
        given, output, name = [match.tensors["x"]], match.root.output, match.root.name
        if not takes(given[0]):
            return None
        attributes = _ATTRIBUTES.get(op, {})
        return helper.make_node(op.removesuffix(" by tanh"), given, output, name, **attributes)

    opset = find_default_opset(model)
    patterns = {op: each for op, (least, each) in wanted.items() if opset >= least}
    return _tidy(model, replace_all(model, patterns, make))


def _tidy(model: onnx.ModelProto, done: list[str]) -> list[str]:
    """Drop the constants that nothing reads any more, if anything was done."""
    if done:
        move_constants_to_initializers(model)
        drop_unread(model)
    return done


# --- clips -------------------------------------------------------------------------------------

# Clip has its ends as inputs from opset 11 on; a Min of two constants is folded before.
_CLIP_OPSET = 11
_CLIPS = [
    ("Min", ("Max", _X, "#low"), "#high"),
    ("Max", ("Min", _X, "#high"), "#low"),
    ("Min", ("Relu", _X), "#high"),
]


def fuse_clip(model: onnx.ModelProto) -> list[str]:
    """Make a Clip of Max and Min, or Relu and Min, with constants of one value.

    ReLU6 comes in these pieces from older exporters; providers join a Clip with what is before it.
    """
    from onnx import helper, numpy_helper

    def make(op: str, match: Match, finder: Finder) -> onnx.NodeProto | None:
        ends = [finder.constants.get(match.tensors.get(each, "")) for each in ("low", "high")]
        high = ends[1]
        low = np.zeros_like(high) if "low" not in match.tensors and high is not None else ends[0]
        if low is None or high is None or {low.size, high.size} != {1} or low.item() > high.item():
            return None
        names = []
        for end, value in (("min", low), ("max", high)):
            name = _take_free_name(model, f"{match.root.output[0]}/{end}")
            model.graph.initializer.append(numpy_helper.from_array(value.reshape(()), name))
            names.append(name)
        given = [match.tensors["x"], *names]
        return helper.make_node(op, given, match.root.output, match.root.name)

    if find_default_opset(model) < _CLIP_OPSET:
        return []
    return _tidy(model, replace_all(model, {"Clip": _CLIPS}, make))


# --- layer norms -------------------------------------------------------------------------------

_LAYER_NORM_OPSET = 17
_CENTRED = ("Sub", _X, ("ReduceMean", _X))
_SQUARES = [("Pow", _CENTRED, 2.0), ("Mul", _CENTRED, _CENTRED)]
_NORMED = [
    ("Div", _CENTRED, ("Sqrt", ("Add", ("ReduceMean", square), "#epsilon"))) for square in _SQUARES
]
_LAYER_NORMS = [("Add", ("Mul", normed, "#scale"), "#bias") for normed in _NORMED]


def fuse_layer_norm(model: onnx.ModelProto) -> list[str]:
    """Join what LayerNormalization over the last axis is made of, with constant scale and bias."""
    from onnx import helper

    def make(op: str, match: Match, finder: Finder) -> onnx.NodeProto | None:
        scale, bias = (finder.constants[match.tensors[each]] for each in ("scale", "bias"))
        means = [node for node in match.nodes if node.op_type == "ReduceMean"]
        if scale.ndim != 1 or bias.shape != scale.shape:
            return None
        if not all(_is_over_last(node, finder) for node in means):
            return None
        epsilon = finder.constants[match.tensors["epsilon"]]
        if epsilon.size != 1:
            return None
        given = [match.tensors[each] for each in ("x", "scale", "bias")]
        return helper.make_node(
            op, given, match.root.output, match.root.name, epsilon=float(epsilon.item())
        )

    if find_default_opset(model) < _LAYER_NORM_OPSET:
        return []
    return _tidy(model, replace_all(model, {"LayerNormalization": _LAYER_NORMS}, make))


def _is_over_last(node: onnx.NodeProto, finder: Finder) -> bool:
    """Return whether a ReduceMean is over the last axis and keeps it; -1 as PyTorch writes it."""
    given = read_attributes(node)
    axes = given.get("axes")
    if len(node.input) > 1:
        axes = finder.constants.get(node.input[1])
    return axes is not None and list(axes) == [-1] and bool(given.get("keepdims", 1))


# --- split-hard-swish --------------------------------------------------------------------------


_FLOAT = 1
"""onnx.TensorProto.FLOAT."""


def split_hard_swish(model: onnx.ModelProto) -> list[str]:
    """Write HardSwish and HardSigmoid with Add, Mul and a Clip from 0 to 6.

    That is ``x * Clip(x + 3, 0, 6) / 6``. For providers that have neither: NNAPI has this Clip.
    """
    nodes = [n for n in model.graph.node if n.op_type in _HARD and n.domain in STANDARD]
    if not nodes or find_default_opset(model) < _CLIP_OPSET:
        return []
    return _split_all(model, nodes, infer_types(model), _write_hard)


def _write_hard(node: onnx.NodeProto, add: _Add) -> None:
    x, is_swish = node.input[0], node.op_type == "HardSwish"
    given = {"alpha": 1 / 6 if is_swish else 0.2, "beta": 0.5, **read_attributes(node)}
    alpha, beta = given["alpha"], given["beta"]
    scaled = x if math.isclose(6 * alpha, 1) else add("Mul", x, 6 * alpha)
    clipped = add("Clip", add("Add", scaled, 6 * beta), 0.0, 6.0)
    if is_swish:
        clipped = add("Mul", x, clipped)
    add("Mul", clipped, 1 / 6)


# --- split-mish --------------------------------------------------------------------------------

# Arithmetic broadcasts constants without an attribute from opset 7 on (Operators.md).
_BROADCASTING_OPSET = 7


def split_mish(model: onnx.ModelProto) -> list[str]:
    """Write Mish, whole or in pieces, without Softplus: ``x / (1 + 2 / (e * (e + 2)))``, e = exp x.

    That is ``x * tanh(log(1 + e))`` by another formula, exact to float32's last digits: where e
    overflows it is x. Below -88 the ratio overflows and it is 0 instead of -3e-37. onnxruntime
    takes Mish apart itself, with a Softplus that took its CPU 9 times as long as all these nodes
    (1.31.1, x86-64), and that NNAPI and XNNPACK have not.
    """
    from onnx import helper

    if find_default_opset(model) < _BROADCASTING_OPSET:
        return []
    types = infer_types(model)

    def make(op: str, match: Match, finder: Finder) -> onnx.NodeProto | None:
        del finder
        x, root = match.tensors["x"], match.root
        return helper.make_node(op, [x], root.output, root.name) if types.get(x) == _FLOAT else None

    replace_all(model, {"Mish": _MISHES}, make)
    nodes = [n for n in model.graph.node if n.op_type == "Mish" and n.domain in STANDARD]
    return _tidy(model, _split_all(model, nodes, types, _write_mish))


def _write_mish(node: onnx.NodeProto, add: _Add) -> None:
    power = add("Exp", node.input[0])
    ratio = add("Div", 2.0, add("Mul", power, add("Add", power, 2.0)))
    add("Div", node.input[0], add("Add", ratio, 1.0))


# --- splitting ---------------------------------------------------------------------------------


class _Add(Protocol):
    """Adds a node of an operator with tensors and constants as inputs; returns its output."""

    def __call__(self, op: str, *inputs: str | float) -> str: ...


def _split_all(
    model: onnx.ModelProto,
    nodes: Sequence[onnx.NodeProto],
    types: Mapping[str, int],
    write: Callable[[onnx.NodeProto, _Add], None],
) -> list[str]:
    """Put what ``write`` adds in the place of each node on float32; return what was done."""
    done = []
    for node in nodes:
        if types.get(node.input[0]) == _FLOAT:
            done.append(f"{node.op_type} {(node.name or node.output[0])!r}")
            _split(model, node, write)
    return done


def _split(
    model: onnx.ModelProto, node: onnx.NodeProto, write: Callable[[onnx.NodeProto, _Add], None]
) -> None:
    from onnx import helper, numpy_helper

    graph, stem = model.graph, node.name or node.output[0]
    first = place = list(graph.node).index(node)

    def add(op: str, *inputs: str | float) -> str:
        nonlocal place
        names = list[str]()
        for value in inputs:
            name = value
            if isinstance(value, float):
                name = _take_free_name(model, f"{stem}/{op}/{len(names)}")
                graph.initializer.append(numpy_helper.from_array(np.array(value, np.float32), name))
            names.append(str(name))
        output = _take_free_name(model, f"{stem}/{op}/{place - first}")
        # At once, so that no later name is the same.
        graph.node.insert(place, helper.make_node(op, names, [output], output))
        place += 1
        return output

    write(node, add)
    last = graph.node[place - 1]
    last.output[0], last.name = node.output[0], node.name
    graph.node.remove(node)


def _take_free_name(model: onnx.ModelProto, name: str) -> str:
    used = {t.name for t in model.graph.initializer} | {v.name for v in model.graph.input}
    for node in model.graph.node:
        used |= {*node.output, *find_inner_names(node)}
    return take_name(name, used)


_MISH_PIECES = tuple(frozenset({each, "Tanh", "Mul"}) for each in ("Softplus", "Log"))
NEEDED_OPS: dict[str, tuple[frozenset[str], ...]] = {
    "fuse-gelu": (frozenset({"Erf", "Mul"}), frozenset({"Tanh", "Add", "Mul"})),
    "fuse-hard-swish": (frozenset({"Clip", "Add", "Mul"}), frozenset({"Clip", "Add", "Div"})),
    "fuse-clip": (frozenset({"Min", "Max"}), frozenset({"Min", "Relu"})),
    "fuse-layer-norm": (frozenset({"ReduceMean", "Sub", "Sqrt"}),),
    "split-hard-swish": (frozenset({"HardSwish"}), frozenset({"HardSigmoid"})),
    "fuse-mish": _MISH_PIECES,
    "split-mish": (frozenset({"Mish"}), *_MISH_PIECES),
}
"""By rewrite: sets of operators of which a model has to have one for it to find anything."""
