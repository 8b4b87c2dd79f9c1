"""Finds operators that could run as fewer and did not, in the order in which they ran.

Source: onnx's operators (Gelu from opset 20, LayerNormalization from 17, HardSwish from 14) and the
fusions of onnxruntime 1.31.1's documentation ("Graph optimizations": BatchNormalization into Conv;
Relu, Clip, Sigmoid, Tanh, LeakyRelu and HardSigmoid after Conv; Gelu; LayerNormalization). Its CPU
has no kernel for HardSwish and runs that as HardSigmoid and Mul (1.31.1, tried 2026-11-27).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from edgepack.results.explaining.roofline import NodeCost

_NEWER = "export it with opset {} or newer, which has an operator for it"
_LEVEL = "see that the session's optimization level is 'all', and that nothing else reads what is"
_LEVEL += " between the nodes"


@dataclass(frozen=True)
class _Pattern:
    what: str
    written: tuple[tuple[str, ...], ...]
    """The operators that it is written with, where they run one after another."""
    nodes: int
    """As how many onnxruntime would run it; 0 if as part of the node before."""
    remedy: str


_PATTERNS = (
    _Pattern(
        "hard swish",
        (("Add", "Clip", "Mul", "Div"), ("Add", "Clip", "Div", "Mul")),
        2,
        _NEWER.format(14),
    ),
    _Pattern(
        "gelu",
        (("Div", "Erf", "Add", "Mul", "Mul"), ("Mul", "Erf", "Add", "Mul", "Mul")),
        1,
        _NEWER.format(20),
    ),
    _Pattern(
        "layer normalization",
        (
            ("ReduceMean", "Sub", "Pow", "ReduceMean", "Add", "Sqrt", "Div"),
            ("ReduceMean", "Sub", "Mul", "ReduceMean", "Add", "Sqrt", "Div"),
        ),
        1,
        _NEWER.format(17),
    ),
    _Pattern("softmax", (("ReduceMax", "Sub", "Exp", "ReduceSum", "Div"),), 1, _NEWER.format(13)),
    _Pattern("batch normalization", (("BatchNormalization",),), 0, _LEVEL),
)
_AFTER_CONVOLUTION = ("Relu", "Clip", "LeakyRelu", "HardSigmoid", "Sigmoid", "Tanh")
_CONVOLUTIONS = ("Conv", "FusedConv", "NhwcFusedConv")


@dataclass(frozen=True)
class Unfused:
    """Nodes that could be one, or part of the node before."""

    what: str
    nodes: list[NodeCost]
    kept: float
    """The part of their time that would still be taken."""
    remedy: str


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
    """Return the pattern that begins with a node."""
    for pattern in _PATTERNS:
        for ops in pattern.written:
            nodes = [*costs[at : at + len(ops)]]
            if tuple(cost.node.op for cost in nodes) == ops and _has_one_size(nodes):
                return Unfused(pattern.what, nodes, pattern.nodes / len(ops), pattern.remedy)
    here = costs[at]
    before = costs[at - 1] if at else None
    if before is None or not _has_one_size([before, here]):
        return None
    if here.node.op in _AFTER_CONVOLUTION and before.node.op in _CONVOLUTIONS:
        return Unfused(f"{here.node.op} after a convolution", [here], 0.0, _LEVEL)
    return None


def _has_one_size(costs: Sequence[NodeCost]) -> bool:
    """Return whether nodes make tensors of one size, but for reductions; true if none is known."""
    made = {
        cost.node.sizes.output_bytes
        for cost in costs
        if cost.node.sizes and not cost.node.op.startswith("Reduce")
    }
    return len(made) <= 1 or "ReduceMean" in {cost.node.op for cost in costs}
