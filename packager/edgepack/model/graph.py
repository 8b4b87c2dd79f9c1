"""A model's main graph as execution providers see it: nodes with types, shapes and constants.

onnxruntime offers nodes to a provider after its basic optimizations: constants folded, identities
removed, Q/DQ pairs moved. :func:`make_partitioned_graph` makes onnxruntime do this.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from edgepack.model.facts import STANDARD, TensorSpec, find_default_opset, read_tensor_spec
from edgepack.model.inferring import infer_graph

if TYPE_CHECKING:
    import onnx


@dataclass(frozen=True)
class Node:
    """One node of the main graph."""

    index: int
    """Position in topological order."""
    name: str
    op: str
    domain: str
    """Empty for ai.onnx."""
    inputs: tuple[str, ...]
    """Tensor names; empty where an optional input is left out."""
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]
    """As Python values: int, float, str, lists of these, numpy arrays; subgraphs are left out."""
    outer_inputs: tuple[str, ...] = ()
    """Tensors of the main graph that its bodies read."""

    @property
    def qualified_op(self) -> str:
        """The operator, with its domain unless that is ai.onnx."""
        return f"{self.domain}:{self.op}" if self.domain else self.op

    def __str__(self) -> str:
        return f"{self.name!r} ({self.qualified_op})"


@dataclass(frozen=True)
class Graph:
    """The main graph of a model. Bodies of If, Loop and Scan are not in it."""

    nodes: tuple[Node, ...]
    """In topological order."""
    inputs: tuple[TensorSpec, ...]
    """Without those that have an initializer."""
    outputs: tuple[str, ...]
    opset: int
    """Version of ai.onnx."""
    tensors: Mapping[str, TensorSpec]
    """Type and shape of every tensor that is known: inputs, outputs, constants, inferred ones."""
    constants: Mapping[str, np.ndarray[Any, Any]]
    """Initializers and outputs of Constant nodes, by tensor name."""

    def dtype(self, tensor: str) -> str:
        """Return a tensor's numpy dtype name, or nothing where it is not known."""
        return self.tensors[tensor].dtype if tensor in self.tensors else ""

    def shape(self, tensor: str) -> tuple[int | str, ...] | None:
        """Return a tensor's shape as :class:`TensorSpec` has it; None where it has no rank."""
        return self.tensors[tensor].shape if tensor in self.tensors else None

    def is_static(self, tensor: str) -> bool:
        """Return whether every dimension of a tensor is known."""
        shape = self.shape(tensor)
        return shape is not None and all(isinstance(size, int) for size in shape)

    def is_constant(self, tensor: str) -> bool:
        """Return whether a tensor's values are in the model."""
        return tensor in self.constants

    @cached_property
    def producers(self) -> Mapping[str, Node]:
        """Tensor name to the node that makes it."""
        return {name: node for node in self.nodes for name in node.outputs if name}

    @cached_property
    def consumers(self) -> Mapping[str, tuple[Node, ...]]:
        """Tensor name to the nodes that read it, bodies included; unread tensors are left out."""
        found: dict[str, list[Node]] = {}
        for node in self.nodes:
            for name in dict.fromkeys(filter(None, (*node.inputs, *node.outer_inputs))):
                found.setdefault(name, []).append(node)
        return {name: tuple(nodes) for name, nodes in found.items()}


def read_graph(model: onnx.ModelProto) -> Graph:
    """Return the main graph, with shapes inferred as far as onnx can.

    Constant nodes are constants, not nodes. Nodes that have no name get ``<op>_<index>``.
    """
    import onnx

    graph = model.graph
    values = (*graph.value_info, *graph.input, *graph.output)
    # Operators of other domains cause an error: then only the shapes in the file itself are known.
    with contextlib.suppress(onnx.shape_inference.InferenceError):
        found = infer_graph(model)
        values = (*found.value_info, *found.input, *found.output)
    # From IR 4 on, a caller may override an initializer that is also an input: it is no constant.
    overridable = {value.name for value in graph.input if model.ir_version >= _SEPARATE_IR}
    constants = {t.name: _read_constant(t) for t in graph.initializer if t.name not in overridable}
    nodes: list[Node] = []
    for proto in graph.node:
        if proto.op_type == "Constant" and proto.domain in STANDARD:
            constants[proto.output[0]] = _read_constant_node(proto)
        else:
            nodes.append(_make_node(len(nodes), proto))
    tensors = {value.name: read_tensor_spec(value) for value in values}
    for name, array in constants.items():
        tensors[name] = TensorSpec(name, array.dtype.name, array.shape)
    return Graph(
        nodes=tuple(nodes),
        inputs=tuple(tensors[v.name] for v in graph.input if v.name not in constants),
        outputs=tuple(value.name for value in graph.output),
        opset=find_default_opset(model),
        tensors=tensors,
        constants=constants,
    )


def make_partitioned_graph(model: Path) -> Graph:
    """Return the graph that onnxruntime shows to execution providers for a model file.

    Raises:
        ModelError: onnxruntime refuses the model.
    """
    from edgepack.model.reading import list_external_files, read_model, read_outline
    from edgepack.model.running import make_session

    with tempfile.TemporaryDirectory(prefix="edgepack-graph-") as folder:
        optimized = Path(folder) / "basic.onnx"
        config = {}
        if list_external_files(read_outline(model)):
            # Else the saved graph would still point at the file beside the model.
            config["session.optimized_model_external_initializers_file_name"] = "weights.bin"
        make_session(model, save_basic=optimized, config=config)
        saved = read_model(optimized)
        _add_foreign_shapes(saved, optimized)
    _undo_inserted_casts(saved)
    # onnx infers nothing from initializers that are no inputs in a model of an older IR version.
    saved.ir_version = max(saved.ir_version, _SEPARATE_IR)
    return read_graph(saved)


def _add_foreign_shapes(saved: onnx.ModelProto, file: Path) -> None:
    """Add types and shapes of what operators that onnx does not know make to a file's saved graph.

    onnxruntime knows them for its own operators, and for custom ones where the library says them
    (``InferOutputShapeFn`` of ``OrtCustomOp``), and so do providers, but it writes none into the
    graph that it saves, and onnx infers nothing behind such a node (1.31.1, tried).
    """
    import onnx

    from edgepack.model.reading import read_structure
    from edgepack.model.running import make_session

    foreign = [n for n in saved.graph.node if not onnx.defs.has(n.op_type, n.domain)]
    names = {name for node in foreign for name in node.output if name}
    names -= {value.name for value in (*saved.graph.output, *saved.graph.value_info)}
    if not names:
        return
    structure = read_structure(file)
    structure.graph.output.extend(onnx.ValueInfoProto(name=name) for name in sorted(names))
    observed = file.with_name("observed.onnx")
    observed.write_bytes(structure.SerializeToString())
    for value in make_session(observed, optimized=False).get_outputs():
        word = value.type.removeprefix("tensor(").removesuffix(")")
        # onnxruntime's words are ONNX's in lower case; what is no tensor has none.
        kind = dict(onnx.TensorProto.DataType.items()).get(word.upper())
        if value.name in names and kind and value.shape:
            info = onnx.helper.make_tensor_value_info(value.name, kind, value.shape)
            saved.graph.value_info.append(info)


# From this IR version on, initializers need not be inputs (onnx/docs/Versioning.md).
_SEPARATE_IR = 4
_INSERTED = "InsertedPrecisionFreeCast_"


def _undo_inserted_casts(model: onnx.ModelProto) -> None:
    """Take the Cast nodes out that a session puts around float16 nodes for the CPU.

    Providers do not see them: they come after the nodes are given out, and so are in the saved
    graph. If the model's own cast met such a node, onnxruntime has removed it, and it stays lost.
    Source: onnxruntime core/optimizer/insert_cast_transformer.cc; 1.31.1 tried 2026-11-21.
    """
    graph = model.graph
    for node in graph.node:
        for names in (node.input, node.output):
            names[:] = [name.removeprefix(_INSERTED) for name in names]
    kept = [n for n in graph.node if n.op_type != "Cast" or n.input[0] != n.output[0]]
    values = [value for value in graph.value_info if not value.name.startswith(_INSERTED)]
    del graph.node[:], graph.value_info[:]
    graph.node.extend(kept)
    graph.value_info.extend(values)


def _make_node(index: int, proto: onnx.NodeProto) -> Node:
    import onnx

    subgraphs = (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS)
    bodies = [body for a in proto.attribute for body in ([a.g] if a.type == a.GRAPH else a.graphs)]
    return Node(
        index=index,
        name=proto.name or f"{proto.op_type}_{index}",
        op=proto.op_type,
        domain="" if proto.domain == "ai.onnx" else proto.domain,
        inputs=tuple(proto.input),
        outputs=tuple(proto.output),
        attributes={
            a.name: _make_plain(onnx.helper.get_attribute_value(a))
            for a in proto.attribute
            if a.type not in subgraphs
        },
        outer_inputs=tuple(
            dict.fromkeys(name for body in bodies for name in _list_outer_names(body))
        ),
    )


def _list_outer_names(body: onnx.GraphProto) -> Iterator[str]:
    """Yield the names that a body reads and does not make itself."""
    own = {value.name for value in (*body.input, *body.initializer)}
    own.update(name for node in body.node for name in node.output)
    for node in body.node:
        yield from (name for name in node.input if name and name not in own)
        for attribute in node.attribute:
            inner = [attribute.g] if attribute.type == attribute.GRAPH else attribute.graphs
            for graph in inner:
                yield from (name for name in _list_outer_names(graph) if name not in own)


def _make_plain(value: Any) -> Any:  # noqa: ANN401  (whatever the attribute holds)
    import onnx

    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, onnx.TensorProto):
        return _read_constant(value)
    if isinstance(value, list | tuple):
        return [_make_plain(item) for item in value]
    return list(value) if hasattr(value, "__iter__") and not isinstance(value, str) else value


def _read_constant(tensor: onnx.TensorProto) -> np.ndarray[Any, Any]:
    from onnx import numpy_helper

    return np.asarray(numpy_helper.to_array(tensor))


def _read_constant_node(proto: onnx.NodeProto) -> np.ndarray[Any, Any]:
    import onnx

    value = onnx.helper.get_attribute_value(proto.attribute[0])
    if isinstance(value, onnx.TensorProto):
        return _read_constant(value)
    if proto.attribute[0].name in ("value_int", "value_ints"):
        return np.asarray(value, np.int64)
    if proto.attribute[0].name in ("value_float", "value_floats"):
        return np.asarray(value, np.float32)
    return np.asarray(value)
