"""Collects the nodes and constants of a network that a test makes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from onnx import NodeProto, helper

Array = np.ndarray[Any, Any]


@dataclass
class NetBuilder:
    """Nodes in order, and constants; each method returns the name of what it adds."""

    random: np.random.Generator
    nodes: list[NodeProto] = field(default_factory=list)
    constants: list[tuple[str, Array]] = field(default_factory=list)

    def add(self, op: str, inputs: Sequence[str], output: str, **attributes: Any) -> str:
        """Add a node with one output."""
        self.nodes.append(helper.make_node(op, inputs, [output], f"{op}/{output}", **attributes))
        return output

    def constant(self, name: str, values: Any) -> str:
        """Add a constant: integers as int64, all else as float32."""
        array = np.asarray(values)
        kind = np.int64 if array.dtype.kind == "i" else np.float32
        self.constants.append((name, array.astype(kind)))
        return name
