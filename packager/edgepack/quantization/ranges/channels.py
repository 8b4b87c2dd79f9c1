"""Finds the channel axis of a tensor from the nodes around it, else from its shape."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from edgepack.model.facts import STANDARD

if TYPE_CHECKING:
    import onnx

# Operators whose data are (N, C, D1, ...) and stay so (onnx/docs/Operators.md, opset 26).
_CHANNELS_SECOND = frozenset({
    "AveragePool", "BatchNormalization", "Conv", "ConvTranspose", "DepthToSpace",
    "GlobalAveragePool", "GlobalLpPool", "GlobalMaxPool", "GroupNormalization",
    "InstanceNormalization", "LRN", "LpPool", "MaxPool", "SpaceToDepth",
})  # fmt: skip
# Operators that leave every axis where it is.
_PASSING = frozenset({
    "Abs", "Add", "Cast", "Ceil", "Clip", "Concat", "Div", "Dropout", "Elu", "Erf", "Exp", "Floor",
    "Gelu", "HardSigmoid", "HardSwish", "Identity", "LeakyRelu", "Log", "Max", "Min", "Mish", "Mul",
    "Neg", "PRelu", "Pad", "Pow", "Relu", "Resize", "Round", "Selu", "Sigmoid", "Sign", "Slice",
    "Softplus", "Split", "Sqrt", "Sub", "Tanh", "ThresholdedRelu", "Upsample", "Where",
})  # fmt: skip


def find_channels_second(model: onnx.ModelProto) -> frozenset[str]:
    """Return the tensors whose axis 1 counts channels, as a node that reads or makes them shows.

    A convolution's data are ``(N, C, ...)``, and so is what is added to them or clipped of them. If
    no such node is near, :func:`find_channel_axis` uses shapes.
    """
    nodes = [node for node in model.graph.node if node.domain in STANDARD]
    found: set[str] = set()
    for node in nodes:
        if node.op_type in _CHANNELS_SECOND:
            found |= {node.input[0], node.output[0]}
    passing = [node for node in nodes if node.op_type in _PASSING]
    constants = {tensor.name for tensor in model.graph.initializer}
    count = -1
    while count != len(found):
        count = len(found)
        for node in (*passing, *reversed(passing)):
            tensors = {*node.input, *node.output} - constants - {""}
            if not found.isdisjoint(tensors):
                found |= tensors
    return frozenset(found)


def find_channel_axis(shape: Sequence[int], *, is_second: bool = False) -> int | None:
    """Return the axis that counts channels.

    It is axis 1 from rank 4 on, as in NCHW, and for rank 3 where that is known; otherwise, for rank
    3, the shorter of axes 1 and 2. Below rank 3 there is none.

    Args:
        shape: Of one array.
        is_second: Whether :func:`find_channels_second` has the tensor.
    """
    if len(shape) < 3:
        return None
    return 2 if len(shape) == 3 and not is_second and shape[2] < shape[1] else 1
