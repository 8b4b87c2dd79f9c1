"""Converting a model to float16, node by node, and computing in float32 what it would compute.

Every tensor keeps its name in float32 and may have a float16 form beside it; Casts are put between
the two where both are needed.
"""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from edgepack.errors import ModelError
from edgepack.model.editing import move_constants_to_initializers, read_float_constant, take_name
from edgepack.model.facts import find_default_opset
from edgepack.model.files import MODEL
from edgepack.model.reading import write_model
from edgepack.model.refusals import list_operator_schemas
from edgepack.model.running import Arrays, format_runtime_error, list_runtime_errors, make_session
from edgepack.quantization.qdq.preparation import list_body_reads

if TYPE_CHECKING:
    import onnx
    import onnxruntime

SUFFIX = "_fp16"
"""Ends the name of a tensor's float16 form."""

# How many intermediate tensors are in memory at once.
_AT_ONCE = 128
# Cast reads the exact tensor where there is a choice: float16 cannot hold all integers above 2048.
# The output type of the next four follows an attribute or, without one, the input. Scales of
# quantized tensors are what providers match patterns on.
_FLOAT32_OPS = {
    "Cast",
    "Bernoulli", "EyeLike", "RandomNormalLike", "RandomUniformLike",
    "QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear",
}  # fmt: skip


@dataclass(frozen=True)
class Tracer:
    """A model whose nodes all have names, with the type of every tensor as onnxruntime has it."""

    model: onnx.ModelProto
    """Constants are initializers in it; there are no Constant nodes of floats."""
    session: onnxruntime.InferenceSession
    """All tensors of the main graph are its outputs; not optimized."""
    types: Mapping[str, str]
    """Tensor name to type, as ``tensor(float)``."""
    constants: Mapping[str, np.ndarray[Any, Any]]

    @classmethod
    def of(cls, model: onnx.ModelProto) -> Tracer:
        """Return a tracer of a model, which is changed: nodes get names, constants move.

        Raises:
            ModelError: onnxruntime refuses the model.
        """
        name_nodes(model)
        move_constants_to_initializers(model)
        session = open_all_outputs_session(model)
        types = {o.name: o.type for o in (*session.get_inputs(), *session.get_outputs())}
        constants = read_float32_constants(model)
        for tensor in model.graph.initializer:
            types.setdefault(tensor.name, _find_type(tensor))
        return cls(model, session, types, constants)

    def is_float32(self, tensor: str) -> bool:
        """Return whether a tensor is a float32 one."""
        return self.types.get(tensor) == "tensor(float)"

    def trace(self, feed: Arrays) -> Iterator[Arrays]:
        """Yield all float32 tensors that nodes make, some at a time."""
        made = [name for node in self.model.graph.node for name in node.output]
        yield from trace_outputs(self.session, filter(self.is_float32, made), feed)


def trace_outputs(
    session: onnxruntime.InferenceSession, names: Iterable[str], feed: Arrays
) -> Iterator[Arrays]:
    """Yield chosen outputs of a session by name, some at a time; the model runs for each lot."""
    chosen = list(names)
    for start in range(0, len(chosen), _AT_ONCE):
        some = chosen[start : start + _AT_ONCE]
        yield run_some(session, some, feed)


def run_some(session: onnxruntime.InferenceSession, names: list[str], feed: Arrays) -> Arrays:
    """Return chosen outputs of a session by name.

    Raises:
        ModelError: The run fails; the error names the node if known.
    """
    try:
        return dict(zip(names, session.run(names, feed), strict=True))
    except list_runtime_errors() as error:
        raise ModelError(
            f"onnxruntime does not run the model: {format_runtime_error(error)}",
            hint="check the samples' shapes and values, and 'dims' in edgepack.yaml",
        ) from error


def name_nodes(model: onnx.ModelProto) -> None:
    """Give the main graph's nodes that have no name one: ``<op>_<index>``."""
    used = {node.name for node in model.graph.node}
    for index, node in enumerate(model.graph.node):
        if not node.name:
            node.name = take_name(f"{node.op_type}_{index}", used)


def read_float32_constants(model: onnx.ModelProto) -> dict[str, np.ndarray[Any, Any]]:
    """Return the values of float32 initializers that no input overrides, and of Constant nodes."""
    from onnx import TensorProto, numpy_helper

    inputs = {value.name for value in model.graph.input}
    found = {
        t.name: np.asarray(numpy_helper.to_array(t))
        for t in model.graph.initializer
        if t.name not in inputs and t.data_type == TensorProto.FLOAT
    }
    for node in model.graph.node:
        if (value := read_float_constant(node)) is not None:
            found[node.output[0]] = value
    return found


def _find_type(tensor: onnx.TensorProto) -> str:
    from onnx import TensorProto

    return f"tensor({TensorProto.DataType.Name(tensor.data_type).lower()})"


def open_all_outputs_session(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    """Return an unoptimized session whose outputs are all tensors that nodes make."""
    import onnx

    traced = onnx.ModelProto()
    traced.CopyFrom(model)
    known = {value.name for value in traced.graph.output}
    for node in model.graph.node:
        for name in node.output:
            if name and name not in known:
                # onnxruntime infers the type of an output that says none.
                traced.graph.output.append(onnx.ValueInfoProto(name=name))
                known.add(name)
    with tempfile.TemporaryDirectory(prefix="edgepack-fp16-") as folder:
        write_model(traced, Path(folder) / MODEL)
        return make_session(Path(folder) / MODEL, optimized=False)


def round_half(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return values as float16: the nearest ones, infinity beyond 65520."""
    with np.errstate(over="ignore"):
        return values.astype(np.float16)


@dataclass
class Half:
    """A model being converted: every tensor keeps its name in float32 and may have a float16 form.

    So subgraphs, which read outer tensors by name, and the signature need no care: a float32 form
    exists wherever one is read.
    """

    model: onnx.ModelProto
    nodes: list[str] = field(default_factory=list)
    """Names of the nodes that compute in float16."""
    halves: dict[str, str] = field(default_factory=dict)
    """Tensor to the name of its float16 form, where it has one."""
    full: set[str] = field(default_factory=set)
    """Tensors whose float32 form exists."""
    flushed: int = 0
    """Weights that were not 0 and are 0 in float16."""
    used: set[str] = field(default_factory=set)
    """Names of all tensors and nodes."""

    def list_forms(self, tensor: str) -> tuple[str, ...]:
        """Return the names under which a tensor may be found."""
        return (tensor, self.halves[tensor]) if tensor in self.halves else (tensor,)

    def add_half(self, tensor: str, constant: np.ndarray[Any, Any] | None) -> str:
        """Return the name of a tensor's float16 form; made, if need be, where nodes now end."""
        from onnx import TensorProto, numpy_helper

        if tensor not in self.halves:
            name = self.halves[tensor] = take_name(tensor + SUFFIX, self.used)
            if constant is None:
                self._cast(tensor, name, TensorProto.FLOAT16)
            else:
                values = round_half(constant)
                self.flushed += int(np.count_nonzero(constant) - np.count_nonzero(values))
                self.model.graph.initializer.append(numpy_helper.from_array(values, name))
        return self.halves[tensor]

    def add_full(self, tensor: str) -> None:
        """Make sure that a tensor's float32 form exists for the nodes that follow."""
        from onnx import TensorProto

        if tensor in self.halves and tensor not in self.full:
            self._cast(self.halves[tensor], tensor, TensorProto.FLOAT)
            self.full.add(tensor)

    def _cast(self, source: str, result: str, to: int) -> None:
        from onnx import helper

        name = take_name(f"{result}_cast", self.used)
        self.model.graph.node.append(helper.make_node("Cast", [source], [result], name, to=to))


def convert(tracer: Tracer, float32_nodes: Collection[str]) -> Half:
    """Return the model with all nodes in float16 that can be, but for ``float32_nodes``.

    Nodes that only compute on shapes and constants, and those that hold subgraphs or take or give
    anything but tensors, stay float32. No tensor is rounded to float16 on its way between two
    float32 nodes. Constants that both kinds read are there twice.
    """
    half = _make_half(tracer)
    opset = _find_opsets(tracer.model)
    shape_only = _find_shape_nodes(tracer.model)
    for node in tracer.model.graph.node:
        kept = node.name in float32_nodes or node.name in shape_only or node.op_type in _FLOAT32_OPS
        parameters = set() if kept else _find_half_types(tracer, node, opset)
        if parameters:
            _append_half(tracer, half, node, parameters, opset)
        else:
            for name in sorted(find_reads(node)):
                half.add_full(name)
            half.full |= set(node.output)
            half.model.graph.node.append(node)
    for value in half.model.graph.output:
        half.add_full(value.name)
    drop_unread(half.model)
    return half


def _make_half(tracer: Tracer) -> Half:
    import onnx

    model = onnx.ModelProto()
    model.CopyFrom(tracer.model)
    del model.graph.node[:], model.graph.value_info[:]
    used = {node.name for node in tracer.model.graph.node} | set(tracer.types)
    for node in tracer.model.graph.node:
        used |= {*find_reads(node), *find_inner_names(node)}
    full = {value.name for value in model.graph.input} | set(tracer.constants)
    return Half(model, full=full, used=used)


def _append_half(
    tracer: Tracer,
    half: Half,
    node: onnx.NodeProto,
    parameters: set[str],
    opset: Mapping[str, int],
) -> None:
    import onnx

    schema = _find_schema(node, opset)
    inputs = [
        half.add_half(name, tracer.constants.get(name))
        if tracer.is_float32(name) and _find_parameter(schema.inputs, k) in parameters
        else name
        for k, name in enumerate(node.input)
    ]
    for name in node.input:
        if name in inputs:
            half.add_full(name)
    outputs = list(node.output)
    for k, name in enumerate(node.output):
        if tracer.is_float32(name) and _find_parameter(schema.outputs, k) in parameters:
            outputs[k] = half.halves[name] = take_name(name + SUFFIX, half.used)
        else:
            half.full.add(name)
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    copy.input[:], copy.output[:] = inputs, outputs
    half.model.graph.node.append(copy)
    half.nodes.append(node.name)


def _find_half_types(tracer: Tracer, node: onnx.NodeProto, opset: Mapping[str, int]) -> set[str]:
    """Return the type parameters of a node that can be float16; empty if it stays float32."""
    schema = _find_schema(node, opset)
    plain = all(
        tracer.types.get(name, "").startswith("tensor(")
        for name in (*node.input, *node.output)
        if name
    )
    if schema is None or not plain or _has_subgraph(node):
        return set()
    allowed = {
        c.type_param_str
        for c in schema.type_constraints
        if "tensor(float16)" in c.allowed_type_strs
    }
    taken = {
        _find_parameter(schema.inputs, k)
        for k, name in enumerate(node.input)
        if tracer.is_float32(name)
    }
    return taken & allowed


def _find_parameter(formal: Any, index: int) -> str:  # noqa: ANN401  (onnxruntime's schema)
    """Return the type parameter of one input or output; the last one may be repeated."""
    return str(formal[min(index, len(formal) - 1)].typeStr)


def _has_subgraph(node: onnx.NodeProto) -> bool:
    return any(a.HasField("g") or a.graphs for a in node.attribute)


def _find_opsets(model: onnx.ModelProto) -> dict[str, int]:
    sets = {entry.domain: entry.version for entry in model.opset_import}
    return (
        {"com.microsoft": 1}
        | sets
        | {"": find_default_opset(model), "ai.onnx": find_default_opset(model)}
    )


def _find_schema(node: onnx.NodeProto, opset: Mapping[str, int]) -> Any:  # noqa: ANN401
    """Return onnxruntime's definition of a node's operator; None where it has none."""
    domain = "" if node.domain == "ai.onnx" else node.domain
    versions = list_operator_schemas().get((domain, node.op_type), {})
    known = [version for version in versions if version <= opset.get(domain, 0)]
    return versions[max(known)] if known else None


def _find_shape_nodes(model: onnx.ModelProto) -> set[str]:
    """Return the nodes that compute on shapes and constants only: float16 has no 2049."""
    known = {t.name for t in model.graph.initializer} - {v.name for v in model.graph.input}
    found = set()
    for node in model.graph.node:
        if node.op_type in ("Shape", "Size") or (
            known.issuperset(filter(None, find_reads(node))) and not _is_random(node)
        ):
            known |= set(node.output)
            found.add(node.name)
    return found


def _is_random(node: onnx.NodeProto) -> bool:
    return node.op_type.startswith(("Random", "Multinomial", "Bernoulli"))


def find_reads(node: onnx.NodeProto) -> set[str]:
    """Return the tensors that a node, or a subgraph in it, reads."""
    return {*filter(None, node.input), *list_body_reads(node)}


def find_inner_names(node: onnx.NodeProto) -> set[str]:
    """Return the names that subgraphs of a node define."""
    found: set[str] = set()
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            found |= {value.name for value in graph.input} | {t.name for t in graph.initializer}
            for inner in graph.node:
                found |= {*inner.output, *find_inner_names(inner)}
    return found


def drop_unread(model: onnx.ModelProto) -> None:
    """Drop the initializers that nothing reads."""
    read = {name for node in model.graph.node for name in find_reads(node)}
    read |= {value.name for value in (*model.graph.output, *model.graph.input)}
    kept = [tensor for tensor in model.graph.initializer if tensor.name in read]
    del model.graph.initializer[:]
    model.graph.initializer.extend(kept)


def emulate_half(half: Half) -> onnx.ModelProto:
    """Return a float32 model that computes what a converted one does, rounding every result.

    Tensors keep their names: a node that made ``x_fp16`` makes it still, in float32, rounded to
    float16 by a pair of Casts. onnxruntime removes no pair that loses precision but those that it
    has put in itself (core/optimizer/insert_cast_transformer.cc, 1.24, read).
    """
    import onnx
    from onnx import TensorProto, numpy_helper

    names = set(half.halves.values())
    model = onnx.ModelProto()
    model.CopyFrom(half.model)
    for tensor in model.graph.initializer:
        if tensor.name in names:
            values = numpy_helper.to_array(tensor).astype(np.float32)
            tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
    nodes = list(model.graph.node)
    del model.graph.node[:]
    for node in nodes:
        rounded = [name for name in node.output if name in names]
        if node.op_type == "Cast" and rounded:
            node.attribute[0].i = TensorProto.FLOAT
        node.output[:] = [f"{name}/exact" if name in names else name for name in node.output]
        model.graph.node.append(node)
        for name in rounded:
            model.graph.node.extend(_make_rounding(name))
    return model


def _make_rounding(name: str) -> list[onnx.NodeProto]:
    from onnx import TensorProto, helper

    return [
        helper.make_node("Cast", [f"{name}/exact"], [f"{name}/half"], to=TensorProto.FLOAT16),
        helper.make_node("Cast", [f"{name}/half"], [name], to=TensorProto.FLOAT),
    ]
