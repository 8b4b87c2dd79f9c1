"""Finds operators that onnxruntime could run as one and did not, in the order in which they ran.

Source of each: the operators of onnx (``operators/onnx``: HardSwish from opset 14, Gelu from 20,
LayerNormalization from 17) and the fusions of onnxruntime 1.31.1's documentation ("Graph
optimizations": BatchNormalization into Conv, Relu, Clip, Sigmoid, Tanh, LeakyRelu and HardSigmoid
after Conv, Gelu, LayerNormalization).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from edgepack.results.explaining.roofline import NodeCost

_WHOLE: dict[str, list[tuple[str, ...]]] = {
    "hard swish": [
        ("Add", "Clip", "Mul", "Div"),
        ("Add", "Clip", "Div", "Mul"),
        ("HardSigmoid", "Mul"),
    ],
    "swish": [("Sigmoid", "Mul")],
    "gelu": [("Div", "Erf", "Add", "Mul", "Mul"), ("Mul", "Erf", "Add", "Mul", "Mul")],
    "layer normalization": [
        ("ReduceMean", "Sub", "Pow", "ReduceMean", "Add", "Sqrt", "Div"),
        ("ReduceMean", "Sub", "Mul", "ReduceMean", "Add", "Sqrt", "Div"),
    ],
    "softmax": [("ReduceMax", "Sub", "Exp", "ReduceSum", "Div")],
    "batch normalization": [("BatchNormalization",)],
}
"""By what is computed: the operators that it is written with, where they run one after another."""
_AFTER_CONVOLUTION = ("Relu", "Clip", "LeakyRelu", "HardSigmoid", "Sigmoid", "Tanh")
_CONVOLUTIONS = ("Conv", "FusedConv", "NhwcFusedConv")


@dataclass(frozen=True)
class Unfused:
    """Nodes that could be one, or part of the node before."""

    what: str
    nodes: list[NodeCost]
    kept: float
    """The part of their time that one node would still take."""


def find_unfused(costs: Sequence[NodeCost]) -> list[Unfused]:
    """Return what ran as several nodes; each node is in one of them at most."""
    found: list[Unfused] = []
    at = 0
    while at < len(costs):
        pattern = _match(costs, at)
        if pattern is None:
            at += 1
            continue
        found.append(pattern)
        at += len(pattern.nodes)
    return found


def _match(costs: Sequence[NodeCost], at: int) -> Unfused | None:
    """Return the longest pattern that begins with a node."""
    known = [(ops, what) for what, written in _WHOLE.items() for ops in written]
    for ops, what in sorted(known, key=lambda each: -len(each[0])):
        nodes = [*costs[at : at + len(ops)]]
        if tuple(cost.node.op for cost in nodes) == ops and _has_one_size(nodes):
            kept = 1 / len(ops) if len(ops) > 1 else 0.0
            return Unfused(what, nodes, kept)
    here = costs[at]
    before = costs[at - 1] if at else None
    if before is None or not _has_one_size([before, here]):
        return None
    if here.node.op in _AFTER_CONVOLUTION and before.node.op in _CONVOLUTIONS:
        return Unfused(f"{here.node.op} after a convolution", [here], 0.0)
    return None


def _has_one_size(costs: Sequence[NodeCost]) -> bool:
    """Return whether nodes make tensors of one size, but for reductions; true if none is known."""
    made = {
        cost.node.sizes.output_bytes
        for cost in costs
        if cost.node.sizes and not cost.node.op.startswith("Reduce")
    }
    return len(made) <= 1 or "ReduceMean" in {cost.node.op for cost in costs}
