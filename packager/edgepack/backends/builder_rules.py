"""Rules that onnxruntime's compiling providers share: which nodes their op builders take.

A rule checks one thing: it gets the graph and a node unit, and returns a
:class:`~edgepack.backends.base.Refusal` or None. The backends say which rules apply to which
operator, and name the source.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from edgepack.backends.base import Refusal
from edgepack.backends.qdq import NodeUnit
from edgepack.model.graph import Graph

Rule = Callable[[Graph, NodeUnit], Refusal | None]

ON_THE_CPU = "it runs on the CPU; if that splits the model too much, export it differently"
EXPORT = "export the model so, or leave the node to the CPU"
MAKE_CONSTANT = "export the model with that input as a constant (an initializer)"
FIX_DIMENSIONS = (
    "give each of the model's symbolic dimensions a size under 'dims' in edgepack.yaml; what is"
    " still not known then depends on the data"
)


def find_first_refusal(rules: Iterable[Rule], graph: Graph, unit: NodeUnit) -> Refusal | None:
    """Return the refusal of the first rule that the node breaks."""
    return next((found for rule in rules if (found := rule(graph, unit))), None)


def find_input_name(unit: NodeUnit, place: int) -> str:
    """Return the name of an input; nothing where it is left out."""
    return unit.inputs[place].tensor if place < len(unit.inputs) else ""


def find_shape(graph: Graph, unit: NodeUnit, place: int = 0) -> tuple[int | str, ...] | None:
    """Return an input's shape; None where it has no known rank."""
    return graph.shape(find_input_name(unit, place))


def find_values(graph: Graph, unit: NodeUnit, place: int) -> list[Any] | None:
    """Return a constant input's values, flat; None where it is left out or not constant."""
    array = graph.constants.get(find_input_name(unit, place))
    return None if array is None else list(np.ravel(array).tolist())


def find_attribute(unit: NodeUnit, name: str, default: Any) -> Any:  # noqa: ANN401
    """Return an attribute of the operator, or ONNX's default where the node has none."""
    return unit.target.attributes.get(name, default)


def format_shape(shape: Sequence[int | str] | None) -> str:
    """Return a shape as text."""
    return "no known shape" if shape is None else f"shape [{', '.join(map(str, shape))}]"


def check_rank(*ranks: int) -> Rule:
    """Return the rule that the first input has one of these ranks."""
    allowed = f"{ranks[0]}" if len(ranks) == 1 else f"{ranks[0]} to {ranks[-1]}"

    def check(graph: Graph, unit: NodeUnit) -> Refusal | None:
        shape = find_shape(graph, unit)
        if shape is not None and len(shape) in ranks:
            return None
        reason = (
            f"{find_input_name(unit, 0)!r} has {format_shape(shape)}; its rank must be {allowed}"
        )
        return Refusal(reason, EXPORT)

    return check


def check_constants(**places: int) -> Rule:
    """Return the rule that inputs are constants, if present: ONNX's name for each, to its index."""

    def check(graph: Graph, unit: NodeUnit) -> Refusal | None:
        for name, place in places.items():
            tensor = find_input_name(unit, place)
            if tensor and not graph.is_constant(tensor):
                return Refusal(
                    f"the input {name!r} is computed, but must be constant", MAKE_CONSTANT
                )
        return None

    return check


def check_attribute(name: str, default: Any, *allowed: Any) -> Rule:  # noqa: ANN401
    """Return the rule that an attribute has one of these values."""

    def check(graph: Graph, unit: NodeUnit) -> Refusal | None:
        del graph
        found = find_attribute(unit, name, default)
        if found in allowed:
            return None
        wanted = " or ".join(repr(value) for value in allowed)
        return Refusal(f"{name} is {found!r}; it must be {wanted}", EXPORT)

    return check


def check_ones(name: str) -> Rule:
    """Return the rule that an attribute has only ones: a list, such as ``dilations``."""

    def check(graph: Graph, unit: NodeUnit) -> Refusal | None:
        del graph
        found = find_attribute(unit, name, [1])
        return None if set(found) <= {1} else Refusal(f"{name} are {found}; they must be 1", EXPORT)

    return check


def check_kernel_2d(graph: Graph, unit: NodeUnit) -> Refusal | None:
    """Check that a pool's window has two dimensions."""
    del graph
    found = find_attribute(unit, "kernel_shape", [1, 1])
    return (
        None
        if len(found) == 2
        else Refusal(f"its window is {len(found)}-D; it must be 2-D", EXPORT)
    )


def check_one_output(graph: Graph, unit: NodeUnit) -> Refusal | None:
    """Check that only the first output is used: no indices of a MaxPool, no training statistics."""
    del graph
    made = [name for name in unit.target.outputs if name]
    return None if len(made) == 1 else Refusal(f"it makes {len(made)} outputs, not 1", EXPORT)


def check_opset(least: int) -> Rule:
    """Return the rule that the model has at least this opset: older ones write it otherwise."""

    def check(graph: Graph, unit: NodeUnit) -> Refusal | None:
        del unit
        if graph.opset >= least:
            return None
        return Refusal(
            f"opset {graph.opset} writes it in an old way; opset {least} or newer is taken",
            f"export the model with opset {least} or newer",
        )

    return check
