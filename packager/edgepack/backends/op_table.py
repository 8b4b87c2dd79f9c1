"""Tables of the operators that providers take: ``data/<backend>.yaml``, each fact with its source.

A table lists kernels: operator, the versions of it that one serves, and the element types. It is
read once, when it is first needed. Conditions that a table cannot express (shapes, attributes) are
code in the backend.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from edgepack.backends.base import Refusal
from edgepack.base.schema import StrictModel
from edgepack.base.yaml_source import read_yaml
from edgepack.model.graph import Graph, Node

if TYPE_CHECKING:
    import onnx

_NO_END = 10_000
CAST = "export the model in a dtype that is taken, or leave the node to where it falls back"


class KernelLines(StrictModel):
    """One kernel, or several that differ in types alone."""

    opsets: str
    """Versions of the operator (not of the model): ``7-12`` is a range; ``13`` is only that
    version, as onnxruntime matches kernels that were registered without an end; ``11-`` is 11 and
    all later ones."""
    types: dict[str, str] = {}
    """Dtypes, or names of groups, by ONNX's name of the type (``T``) or of the input (``shape``);
    ``first`` for the first input, ``all`` for every input and output."""


class OpTable(StrictModel):
    """One provider's kernels."""

    source: str
    """File or page that the facts come from."""
    version: str
    """The version of onnxruntime or of the compiler, or the date of the source's commit."""
    checked: str
    """Date."""
    unverified: bool = False
    """Whether the source describes another version than profiles pin, or was never tried."""
    groups: dict[str, str] = {}
    """Names for sets of dtypes."""
    ops: dict[str, list[KernelLines]]
    """By operator, with its domain unless that is ai.onnx."""

    @cached_property
    def kernels(self) -> Mapping[str, tuple[Kernel, ...]]:
        """The parsed kernels of each operator."""
        return {
            op: tuple(Kernel(lines, self.groups) for lines in lines_of_op)
            for op, lines_of_op in self.ops.items()
        }


class Kernel:
    """One kernel of a table."""

    def __init__(self, lines: KernelLines, groups: Mapping[str, str]) -> None:
        self.opsets = lines.opsets
        first, dash, last = lines.opsets.partition("-")
        self.first = int(first)
        self.last = int(last) if last else _NO_END if dash else self.first
        self.types = {name: _parse_dtypes(words, groups) for name, words in lines.types.items()}

    def can_serve(self, version: int | None) -> bool:
        """Return whether the kernel serves this version of its operator; an unknown one may fit."""
        return version is None or self.first <= version <= self.last


def _parse_dtypes(words: str, groups: Mapping[str, str]) -> frozenset[str]:
    return frozenset(dtype for word in words.split() for dtype in groups.get(word, word).split())


@cache
def read_table(backend: str) -> OpTable:
    """Return the table of a backend.

    Raises:
        ProfileError: The file is wrong.
    """
    return read_yaml(Path(__file__).parent / "data" / f"{backend}.yaml").parse(OpTable)


def find_kernel_refusal(table: OpTable, graph: Graph, node: Node) -> Refusal | None:
    """Return why no kernel of a table serves a node: operator, version or dtype; None if one does.

    Dtypes that are not known count as served.
    """
    kernels = table.kernels.get(node.qualified_op)
    if kernels is None:
        return Refusal(
            f"it has no kernel for {node.qualified_op}",
            "it runs where it falls back; if that splits the model too much, export it with"
            " other operators",
        )
    version = find_op_version(node, graph.opset)
    serving = [kernel for kernel in kernels if kernel.can_serve(version)]
    if not serving:
        known = ", ".join(kernel.opsets for kernel in kernels)
        return Refusal(
            f"{node.qualified_op} of opset {graph.opset} is its version {version}; kernels are"
            f" there for {known}",
            _suggest_opset(kernels, version),
        )
    unserved = [_find_unserved_part(kernel, graph, node) for kernel in serving]
    return None if None in unserved else unserved[0]


def _suggest_opset(kernels: tuple[Kernel, ...], version: int | None) -> str:
    newest = max(kernel.last for kernel in kernels)
    if version is not None and version > newest:
        return "export the model with an older opset"
    return "export the model with a newer opset"


def _find_unserved_part(kernel: Kernel, graph: Graph, node: Node) -> Refusal | None:
    for tensor, names in list_typed_tensors(node, graph.opset):
        dtype = graph.dtype(tensor).replace("_", "")  # float8_e4m3fn, as ml_dtypes writes it
        for name in names:
            taken = kernel.types.get(name)
            if dtype and taken is not None and dtype not in taken:
                return Refusal(f"{tensor!r} is {dtype}; it takes {', '.join(sorted(taken))}", CAST)
    return None


def list_typed_tensors(node: Node, opset: int) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the inputs and outputs that are present, with the names of their types in tables."""
    schema = _find_schema(node.op, opset, node.domain)
    sides = ((node.inputs, schema.inputs), (node.outputs, schema.outputs)) if schema else ()
    if not schema:
        yield from ((tensor, ("all",)) for tensor in (*node.inputs, *node.outputs) if tensor)
    for tensors, formals in sides:
        for place, tensor in enumerate(tensors):
            if tensor and formals:
                formal = formals[min(place, len(formals) - 1)]
                first = ("first",) if tensors is node.inputs and place == 0 else ()
                yield tensor, (formal.type_str, formal.name, "all", *first)


def find_op_version(node: Node, opset: int) -> int | None:
    """Return the version of a node's operator; None where onnx does not know it."""
    schema = _find_schema(node.op, opset, node.domain)
    return schema.since_version if schema else None


@cache
def _find_schema(op: str, opset: int, domain: str) -> onnx.defs.OpSchema | None:
    import onnx

    if domain not in ("", "ai.onnx.ml"):
        return None
    try:
        if domain:
            return onnx.defs.get_schema(op, domain=domain)
        return onnx.defs.get_schema(op, max_inclusive_version=opset)
    except onnx.defs.SchemaError:
        return None
