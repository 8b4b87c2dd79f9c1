"""Which channels of a model can be scaled together without changing what it computes.

Multiplying a channel by a positive factor commutes with a Relu, a pooling or a Concat. So a factor
can be put into the weights before it and taken out again in the weights behind it. This module
finds which channels of which tensors have to share a factor, which constants contain them, and
which have none: the model's inputs and outputs, and what reaches an operator that does not commute.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from edgepack.base.arrays import Array
from edgepack.model.facts import STANDARD
from edgepack.quantization.qdq.dialect import find_attribute
from edgepack.quantization.qdq.preparation import (
    copy_model,
    count_reads,
    list_body_reads,
    read_clamp,
    read_values,
)

if TYPE_CHECKING:
    import onnx


@dataclass(frozen=True, eq=False)
class Scaled:
    """How factors go into a constant that one node reads."""

    node: int
    """Index of the node."""
    place: int
    """Of the constant among the node's inputs."""
    groups: Array
    """int64: indices of groups, in a shape that broadcasts to that of the constant."""
    power: int
    """1 where the constant is multiplied by the factors, -1 where it is divided."""


@dataclass(frozen=True, eq=False)
class Bound:
    """A Clip: it cuts off what a factor carries beyond these ends, so channels must stay inside."""

    tensor: str
    """The tensor that the Clip makes."""
    low: float
    """Minus infinity where it is 0: that cuts off the same after any scaling."""
    high: float


@dataclass(frozen=True, eq=False)
class ChannelGroups:
    """Groups of channels: those of one group have the same factor."""

    channels: Mapping[str, Array]
    """int64 (channels,): the group of each channel, axis 1, of each tensor that has factors."""
    fixed: Array
    """bool (groups,): whether the factor of a group can only be 1."""
    scaled: tuple[Scaled, ...]
    bounds: tuple[Bound, ...]
    moved: Mapping[str, str]
    """By tensor with values of another one, or means of them: that other tensor."""


def find_channel_groups(model: onnx.ModelProto) -> ChannelGroups:
    """Return the groups of channels of a model.

    Factors pass through Conv, ConvTranspose, Gemm, MatMul, BatchNormalization with constant weights
    (which hold them); Relu, LeakyRelu, PRelu, Clip, poolings, Resize, Add, Sub, Concat, Split,
    spatial Pad and Slice, products with a constant or with a tensor that has no factors, and what
    leaves out or joins spatial axes. All other operators read tensors without factors.

    Args:
        model: What :func:`edgepack.quantization.qdq.preparation.prepare_model` returned.
    """
    tracer = _Tracer(model)
    for index, node in enumerate(model.graph.node):
        tracer.follow(index, node)
    return tracer.make_groups()


@dataclass
class _Tracer:
    model: onnx.ModelProto
    ids: dict[str, Array] = field(default_factory=dict)
    """int64 (channels,) by tensor with factors."""
    parents: list[int] = field(default_factory=list)
    """By channel that got an id: one that is in the same group, itself if it is the first."""
    fixed: set[int] = field(default_factory=set)
    scaled: list[Scaled] = field(default_factory=list)
    bounds: list[Bound] = field(default_factory=list)
    moved: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        graph = self.model.graph
        self.constants = {tensor.name: tensor for tensor in graph.initializer}
        self.shapes = {
            value.name: tuple(
                d.dim_value if d.HasField("dim_value") else -1
                for d in value.type.tensor_type.shape.dim
            )
            for value in (*graph.value_info, *graph.input, *graph.output)
            if value.type.tensor_type.HasField("shape")
        }

    def follow(self, index: int, node: onnx.NodeProto) -> None:
        """Find out which factors a node's outputs have."""
        rule = _RULES.get(node.op_type) if node.domain in STANDARD else None
        outputs = rule(self, index, node) if rule else None
        if outputs is None:
            for name in (*node.input, *list_body_reads(node)):
                self.fix(name)
            return
        for name, ids in zip(node.output, outputs, strict=False):
            self._set_ids(name, ids)

    def make_groups(self) -> ChannelGroups:
        """Return what was found."""
        for value in self.model.graph.output:
            self.fix(value.name)
        roots = np.array([self._find_root(k) for k in range(len(self.parents))], np.int64)
        kept, group_of = np.unique(roots, return_inverse=True)
        fixed = np.isin(kept, [self._find_root(k) for k in self.fixed])
        return ChannelGroups(
            channels={name: group_of[ids] for name, ids in self.ids.items()},
            fixed=fixed,
            scaled=tuple(
                Scaled(each.node, each.place, group_of[each.groups], each.power)
                for each in self.scaled
            ),
            bounds=tuple(self.bounds),
            moved=self.moved,
        )

    def make_ids(self, count: int) -> Array:
        """Return ids for channels that have factors of their own."""
        start = len(self.parents)
        self.parents.extend(range(start, start + count))
        return np.arange(start, start + count)

    def fix(self, name: str) -> None:
        """Take the factors of a tensor away."""
        if name in self.ids:
            self.fixed.update(self.ids[name].tolist())

    def find_ids(self, name: str) -> Array:
        """Return a tensor's ids; fixed ones where it has no factors."""
        if name not in self.ids:
            ids = self.make_ids(max(self.shapes.get(name, (-1, -1))[1], 0))
            self.fixed.update(ids.tolist())
            return ids
        return self.ids[name]

    def tie(self, first: Array, second: Array) -> None:
        """Make pairs of channels share a factor."""
        for one, other in zip(first.tolist(), second.tolist(), strict=True):
            self.parents[self._find_root(other)] = self._find_root(one)

    def find_constant(self, node: onnx.NodeProto, place: int) -> Array | None:
        """Return a constant input; None where it is none, or is left out."""
        if len(node.input) <= place or node.input[place] not in self.constants:
            return None
        return read_values(self.constants[node.input[place]])

    def find_dims(self, node: onnx.NodeProto, place: int) -> tuple[int, ...] | None:
        """Return the shape of a float constant; None where the input is none."""
        from onnx import TensorProto

        tensor = self.constants.get(node.input[place]) if len(node.input) > place else None
        is_float = tensor is not None and tensor.data_type == TensorProto.FLOAT
        return tuple(tensor.dims) if tensor is not None and is_float else None

    def find_rank(self, name: str) -> int:
        """Return how many axes a tensor has; -1 where that is not known."""
        return len(self.shapes[name]) if name in self.shapes else -1

    def hold(self, index: int, place: int, groups: Array, power: int) -> None:
        """Record that a constant contains factors."""
        self.scaled.append(Scaled(index, place, groups, power))

    def _set_ids(self, name: str, ids: Array) -> None:
        """Note the factors of a tensor, or that it has none if its channels are not those."""
        if name and self.shapes.get(name, (-1, -1))[1:2] == (len(ids),):
            self.ids[name] = ids
        else:
            self.fixed.update(ids.tolist())

    def _find_root(self, one: int) -> int:
        while self.parents[one] != one:
            self.parents[one] = one = self.parents[self.parents[one]]
        return one


_Outputs = list[Array] | None
"""The ids of each output, or None where the operator does not commute with factors."""


def _has_bias(node: onnx.NodeProto) -> bool:
    return len(node.input) > 2 and bool(node.input[2])


def _follow_conv(found: _Tracer, index: int, node: onnx.NodeProto) -> _Outputs:
    dims = found.find_dims(node, 1)
    if dims is None or (_has_bias(node) and found.find_dims(node, 2) is None):
        return None
    count, width = dims[:2]
    first = np.arange(count) // (count // int(find_attribute(node, "group", 1))) * width
    spatial = (1,) * (len(dims) - 2)
    outputs = found.make_ids(count)
    found.hold(index, 1, outputs.reshape(count, 1, *spatial), 1)
    _hold_bias(found, index, node, outputs)
    if node.input[0] in found.ids:
        read = found.ids[node.input[0]][first[:, None] + np.arange(width)]
        found.hold(index, 1, read.reshape(count, width, *spatial), -1)
    return [outputs]


def _follow_transposed(found: _Tracer, index: int, node: onnx.NodeProto) -> _Outputs:
    dims = found.find_dims(node, 1)
    if dims is None or (_has_bias(node) and found.find_dims(node, 2) is None):
        return None
    count, width = dims[:2]
    parts = int(find_attribute(node, "group", 1))
    first = np.arange(count) // (count // parts) * width
    spatial = (1,) * (len(dims) - 2)
    outputs = found.make_ids(width * parts)
    made = outputs[first[:, None] + np.arange(width)]
    found.hold(index, 1, made.reshape(count, width, *spatial), 1)
    _hold_bias(found, index, node, outputs)
    if node.input[0] in found.ids:
        found.hold(index, 1, found.ids[node.input[0]].reshape(count, 1, *spatial), -1)
    return [outputs]


def _follow_gemm(found: _Tracer, index: int, node: onnx.NodeProto) -> _Outputs:
    dims = found.find_dims(node, 1)
    bias = found.find_dims(node, 2) if _has_bias(node) else (1,)
    if dims is None or bias is None or find_attribute(node, "transA", 0):
        return None
    columns = 0 if find_attribute(node, "transB", 0) else 1
    outputs = found.make_ids(dims[columns])
    if _has_bias(node) and bias[-1:] != (len(outputs),):
        return None
    return _follow_product(found, index, node, outputs, columns)


def _follow_matmul(found: _Tracer, index: int, node: onnx.NodeProto) -> _Outputs:
    dims = found.find_dims(node, 1)
    # Axis 1 has to be the last one, which is the one that is summed over.
    if dims is None or len(dims) != 2 or found.find_rank(node.input[0]) != 2:
        return None
    return _follow_product(found, index, node, found.make_ids(dims[1]), 1)


def _follow_product(
    found: _Tracer, index: int, node: onnx.NodeProto, outputs: Array, columns: int
) -> _Outputs:
    shape = (1, -1) if columns else (-1, 1)
    found.hold(index, 1, outputs.reshape(shape), 1)
    _hold_bias(found, index, node, outputs)
    if node.input[0] in found.ids:
        found.hold(index, 1, found.ids[node.input[0]].reshape(shape[::-1]), -1)
    return [outputs]


def _hold_bias(found: _Tracer, index: int, node: onnx.NodeProto, outputs: Array) -> None:
    if _has_bias(node):
        found.hold(index, 2, outputs, 1)


def _follow_normalization(found: _Tracer, index: int, node: onnx.NodeProto) -> _Outputs:
    dims = [found.find_dims(node, place) for place in range(1, 5)]
    if None in dims or len(node.output) > 1 or find_attribute(node, "training_mode", 0):
        return None
    # The variance stays: the scale takes the factors of input and output.
    outputs = found.make_ids((dims[0] or (0,))[0])
    for place in (1, 2):
        found.hold(index, place, outputs, 1)
    if node.input[0] in found.ids:
        read = found.ids[node.input[0]]
        found.hold(index, 1, read, -1)
        found.hold(index, 3, read, 1)
    return [outputs]


def _follow_same(found: _Tracer, _: int, node: onnx.NodeProto) -> _Outputs:
    if node.input[0] not in found.ids:
        return []
    found.moved[node.output[0]] = node.input[0]
    return [found.ids[node.input[0]]]


def _follow_activation(found: _Tracer, _: int, node: onnx.NodeProto) -> _Outputs:
    if node.op_type == "PRelu" and found.find_dims(node, 1) is None:
        return None
    return [found.ids[node.input[0]]] if node.input[0] in found.ids else []


def _follow_clip(found: _Tracer, _: int, node: onnx.NodeProto) -> _Outputs:
    if node.input[0] not in found.ids:
        return []
    ends = read_clamp(node, found.constants)
    if ends is None or ends[0] > 0 or ends[1] < 0:
        return None
    low, high = ends
    found.bounds.append(
        Bound(node.output[0], -math.inf if low == 0 else low, math.inf if high == 0 else high)
    )
    return [found.ids[node.input[0]]]


def _follow_sum(found: _Tracer, _: int, node: onnx.NodeProto) -> _Outputs:
    known = [found.ids[name] for name in node.input if name in found.ids]
    shapes = {found.shapes.get(name) for name in node.input}
    if len(known) < len(node.input) or len(shapes) > 1 or None in shapes:
        return None if known else []
    for ids in known[1:]:
        found.tie(known[0], ids)
    return [known[0]]


def _follow_times(found: _Tracer, _: int, node: onnx.NodeProto) -> _Outputs:
    """Multiply or divide by something without factors of its own."""
    first, second = node.input
    if second in found.ids and (first in found.ids or node.op_type == "Div"):
        return None
    name = first if first in found.ids else second
    if name not in found.ids:
        return []
    # What is broadcast from one channel to several would have to have one factor for all.
    same = found.shapes.get(name, ())[:2] == found.shapes.get(node.output[0], ())[:2]
    same = same and found.find_rank(name) == found.find_rank(node.output[0])
    return [found.ids[name]] if same else None


def _follow_concat(found: _Tracer, _: int, node: onnx.NodeProto) -> _Outputs:
    if not any(name in found.ids for name in node.input):
        return []
    rank = found.find_rank(node.output[0])
    if rank < 2 or int(find_attribute(node, "axis", 1)) % rank != 1:
        return None
    return [np.concatenate([found.find_ids(name) for name in node.input])]


def _follow_split(found: _Tracer, _: int, node: onnx.NodeProto) -> _Outputs:
    name = node.input[0]
    if name not in found.ids:
        return []
    axis = int(find_attribute(node, "axis", 0)) % found.find_rank(name)
    if axis != 1:
        return [found.ids[name] for _ in node.output]
    sizes = [found.shapes.get(output, (-1, -1))[1] for output in node.output]
    if min(sizes) < 0 or sum(sizes) != len(found.ids[name]):
        return None
    return list(np.split(found.ids[name], np.cumsum(sizes)[:-1]))


def _follow_slice(found: _Tracer, _: int, node: onnx.NodeProto) -> _Outputs:
    name = node.input[0]
    if name not in found.ids:
        return []
    starts, ends, axes, steps = (found.find_constant(node, place) for place in range(1, 5))
    if starts is None or ends is None or (axes is None and len(node.input) > 3):
        return None
    if steps is None and len(node.input) > 4:
        return None
    over = np.arange(len(starts)) if axes is None else axes % found.find_rank(name)
    strides = np.ones(len(starts), np.int64) if steps is None else steps
    ids = found.ids[name]
    for axis, start, end, step in zip(over, starts, ends, strides, strict=True):
        if axis == 1:
            stop = None if step < 0 and end < -len(ids) else int(end)
            ids = ids[int(start) : stop : int(step)]
    return [ids]


def _follow_pad(found: _Tracer, _: int, node: onnx.NodeProto) -> _Outputs:
    name = node.input[0]
    if name not in found.ids:
        return []
    pads, value = found.find_constant(node, 1), found.find_constant(node, 2)
    mode = next((e.s.decode() for e in node.attribute if e.name == "mode"), "constant")
    zeros = len(node.input) < 3 or not node.input[2] or (value is not None and not value.any())
    if pads is None or len(pads) != 2 * found.find_rank(name) or len(node.input) > 3:
        return None
    if mode == "constant" and not zeros:
        return None
    before, after = int(pads[1]), int(pads[1 + len(pads) // 2])
    if min(before, after) < 0 or ((before or after) and mode != "constant"):
        return None
    if not (before or after):
        found.moved[node.output[0]] = name
    # Channels of zeros are zeros with any factor.
    return [np.concatenate([found.make_ids(before), found.ids[name], found.make_ids(after)])]


def _follow_reduction(found: _Tracer, index: int, node: onnx.NodeProto) -> _Outputs:
    """Follow an operator that averages over spatial axes, or removes those of size 1."""
    name = node.input[0]
    if name not in found.ids:
        return []
    axes = found.find_constant(node, 1)
    if axes is None:
        given = [list(entry.ints) for entry in node.attribute if entry.name == "axes"]
        axes = np.array(given[0]) if given else None
    if axes is None or (axes % found.find_rank(name) < 2).any():
        return None
    return _follow_same(found, index, node)


def _follow_flatten(found: _Tracer, _: int, node: onnx.NodeProto) -> _Outputs:
    """Follow a Flatten, or a Reshape to the same: each channel becomes a run of columns."""
    name, shape = node.input[0], found.shapes.get(node.output[0], ())
    if name not in found.ids:
        return []
    spatial = found.shapes[name][2:]
    ids = found.ids[name]
    whole = len(shape) == 2 and min(spatial, default=1) > 0
    if not whole or shape[1] != len(ids) * math.prod(spatial):
        return None
    found.moved[node.output[0]] = name
    return [np.repeat(ids, math.prod(spatial))]


def _follow_shape(_: _Tracer, __: int, ___: onnx.NodeProto) -> _Outputs:
    """Follow an operator that reads only a tensor's shape."""
    return []


def _follow_resize(found: _Tracer, index: int, node: onnx.NodeProto) -> _Outputs:
    crops = any(e.s == b"tf_crop_and_resize" for e in node.attribute)
    return None if crops else _follow_same(found, index, node)


_RULES: dict[str, Callable[[_Tracer, int, onnx.NodeProto], _Outputs]] = {
    "Conv": _follow_conv,
    "ConvTranspose": _follow_transposed,
    "Gemm": _follow_gemm,
    "MatMul": _follow_matmul,
    "BatchNormalization": _follow_normalization,
    **dict.fromkeys(("Relu", "LeakyRelu", "PRelu"), _follow_activation),
    **dict.fromkeys(
        ("Identity", "Dropout", "MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool"),
        _follow_same,
    ),
    **dict.fromkeys(("Resize", "Upsample"), _follow_resize),
    **dict.fromkeys(("ReduceMean", "ReduceMax", "Squeeze"), _follow_reduction),
    **dict.fromkeys(("Flatten", "Reshape"), _follow_flatten),
    **dict.fromkeys(("Add", "Sub", "Sum"), _follow_sum),
    **dict.fromkeys(("Mul", "Div"), _follow_times),
    **dict.fromkeys(("Shape", "Size"), _follow_shape),
    "Clip": _follow_clip,
    "Concat": _follow_concat,
    "Split": _follow_split,
    "Slice": _follow_slice,
    "Pad": _follow_pad,
}
"""What a rule returns: the ids of the outputs; nothing if no input has factors; None where the
operator does not commute, so that its inputs must have no factors."""


def scale_constants(
    model: onnx.ModelProto, scaled: Sequence[Scaled], factors: Array
) -> onnx.ModelProto:
    """Return a copy of a model with factors in its constants.

    A constant that others also read stays unchanged: the node gets its own copy.

    Args:
        model: Only read.
        scaled: Which constants hold which factors.
        factors: float64 (groups,), positive.
    """
    from onnx import numpy_helper

    copy = copy_model(model)
    constants = {tensor.name: tensor for tensor in copy.graph.initializer}
    readers = count_reads(copy.graph)
    readers.update(value.name for value in copy.graph.output)
    wanted: dict[tuple[int, int], Array] = {}
    for each in scaled:
        key = each.node, each.place
        wanted[key] = wanted.get(key, np.float64(1)) * factors[each.groups] ** each.power
    for (index, place), factor in wanted.items():
        if (factor == 1).all():
            continue
        node = copy.graph.node[index]
        name = node.input[place]
        values = read_values(constants[name])
        product = (values * factor).astype(values.dtype)
        if readers[name] > 1:
            name = f"{name}/{node.name}"
            node.input[place] = name
            constants[name] = copy.graph.initializer.add()
        constants[name].CopyFrom(numpy_helper.from_array(product, name))
    return copy
