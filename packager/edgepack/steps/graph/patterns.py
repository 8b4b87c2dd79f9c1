"""Finds where nodes together compute one operator, and puts the operator in their place.

A pattern is a tree: a tuple of an operator and its inputs, ``"?x"`` for any tensor (the same one
wherever the name is), ``"#scale"`` for any constant, and a number for a constant of one value near
it. Add and Mul take their inputs in both orders.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from edgepack.base.arrays import Array
from edgepack.model.facts import STANDARD
from edgepack.quantization.qdq.preparation import list_body_reads

if TYPE_CHECKING:
    import onnx

Pattern = Any
_COMMUTATIVE = {"Add", "Mul", "Max", "Min"}
_NEAR = 1e-5
"""Relative: exporters round factors such as 1/6 to float32, and 0.044715 as it was published."""


@dataclass
class Match:
    """Where a pattern was found."""

    root: onnx.NodeProto
    tensors: dict[str, str] = field(default_factory=dict)
    """What the pattern's names stand for."""
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    """Those that the pattern has, each once, the root among them."""


@dataclass
class Finder:
    """The main graph of a model, to be searched for patterns."""

    model: onnx.ModelProto

    def __post_init__(self) -> None:
        graph = self.model.graph
        self.makers = {name: node for node in graph.node for name in node.output if name}
        self.constants = _read_constants(graph)
        self.readers: dict[str, list[str]] = defaultdict(list)
        for node in graph.node:
            for name in (*node.input, *list_body_reads(node)):
                self.readers[name].append(node.output[0] if name in node.input else "")
        for value in graph.output:
            self.readers[value.name].append("")

    def find(self, patterns: Sequence[Pattern]) -> Iterator[Match]:
        """Yield where a pattern ends, each node once, the first pattern that fits there."""
        for node in list(self.model.graph.node):
            for pattern in patterns:
                if node.output[0] in self.makers and (found := self._match_root(node, pattern)):
                    yield found
                    break

    def replace(self, match: Match, node: onnx.NodeProto) -> None:
        """Put a node, with the root's output, in the place of those that matched."""
        for old in match.nodes:
            for name in old.output:
                self.makers.pop(name, None)
            if old is not match.root:
                self.model.graph.node.remove(old)
        match.root.CopyFrom(node)
        self.makers[node.output[0]] = match.root

    def _match_root(self, node: onnx.NodeProto, pattern: Pattern) -> Match | None:
        match = Match(node)
        if not self._match(node.output[0], pattern, match):
            return None
        inside = {each.output[0] for each in match.nodes}
        for each in match.nodes:
            if each is not node and not inside.issuperset(self.readers[each.output[0]]):
                return None
        return match

    def _match(self, tensor: str, pattern: Pattern, match: Match) -> bool:
        if isinstance(pattern, tuple):
            return self._match_node(tensor, pattern, match)
        if isinstance(pattern, str):
            is_constant = pattern[0] == "#"
            if is_constant and tensor not in self.constants:
                return False
            return match.tensors.setdefault(pattern[1:], tensor) == tensor
        value = self.constants.get(tensor)
        # One of more axes would give the result these axes.
        is_one = value is not None and value.size == 1 and value.ndim <= 1
        return is_one and math.isclose(value.item(), pattern, rel_tol=_NEAR)  # type: ignore[union-attr]

    def _match_node(self, tensor: str, pattern: tuple[Any, ...], match: Match) -> bool:
        op, *inputs = pattern
        node = self.makers.get(tensor)
        if node is None or node.op_type != op or node.domain not in STANDARD:
            return False
        names = self._list_inputs(node)
        orders = [names, names[::-1]] if op in _COMMUTATIVE and len(names) == 2 else [names]
        for order in orders:
            tried = Match(match.root, dict(match.tensors), list(match.nodes))
            # All inputs of a Max or Min count; a ReduceMean's second one is an option.
            if len(order) < len(inputs) or (op in _COMMUTATIVE and len(order) != len(inputs)):
                continue
            pairs = zip(order, inputs, strict=False)
            if all(self._match(name, each, tried) for name, each in pairs):
                known = {each.output[0] for each in tried.nodes}
                match.tensors = tried.tensors
                match.nodes = tried.nodes + ([] if node.output[0] in known else [node])
                return True
        return False

    def _list_inputs(self, node: onnx.NodeProto) -> list[str]:
        """Return a node's inputs; a Clip's ends are attributes until opset 10."""
        from onnx import helper

        names = list(node.input)
        if node.op_type == "Clip" and len(names) == 1:
            given = {entry.name: helper.get_attribute_value(entry) for entry in node.attribute}
            for end in ("min", "max"):
                name = f"{node.output[0]}/{end}"
                if end in given:
                    self.constants[name] = np.array(given[end], np.float32)
                names.append(name)
        return names


def _read_constants(graph: onnx.GraphProto) -> dict[str, Array]:
    from onnx import numpy_helper

    inputs = {value.name for value in graph.input}
    found = {
        tensor.name: np.asarray(numpy_helper.to_array(tensor))
        for tensor in graph.initializer
        if tensor.name not in inputs
    }
    for node in graph.node:
        if node.op_type == "Constant" and node.attribute and node.attribute[0].name == "value":
            found[node.output[0]] = np.asarray(numpy_helper.to_array(node.attribute[0].t))
    return found


def replace_all(
    model: onnx.ModelProto,
    patterns: Mapping[str, Sequence[Pattern]],
    make: Callable[[str, Match, Finder], onnx.NodeProto | None],
) -> list[str]:
    """Put operators in the place of patterns; return what was done, naming nodes.

    Args:
        model: Is changed. Only its main graph is searched.
        patterns: By operator; those of the first are found first.
        make: Returns the node for a match, or None where it does not fit after all.
    """
    done = []
    for op, wanted in patterns.items():
        finder = Finder(model)
        for match in finder.find(wanted):
            last, count = match.root.name or match.root.output[0], len(match.nodes)
            if (node := make(op, match, finder)) is not None:
                finder.replace(match, node)
                done.append(f"{op} of {count} nodes to {last!r}")
    return done
