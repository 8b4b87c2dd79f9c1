"""Reads a model's facts: inputs, outputs, operators, sizes. This executes nothing."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from edgepack.errors import ModelError
from edgepack.model.quantized import Quantization, find_quantization, walk_nested
from edgepack.model.reading import hash_model, list_external_files, read_outline

if TYPE_CHECKING:
    import onnx

# ONNX element types with a numpy type of the same name (onnx.proto, TensorProto.DataType).
NUMPY_DTYPES = {
    1: "float32", 2: "uint8", 3: "int8", 4: "uint16", 5: "int16", 6: "int32", 7: "int64",
    9: "bool", 10: "float16", 11: "float64", 12: "uint32", 13: "uint64",
}  # fmt: skip

EXTENSIONS = "com.microsoft.extensions"
CONTRIBUTED = "ai.onnx.contrib"
_LARGE = 100_000
"""Of a constant, in values: smaller ones make no file large."""
STANDARD = ("", "ai.onnx")
"""Names of the domain of ONNX's own operators."""
EXTENSION_DOMAINS = (EXTENSIONS, CONTRIBUTED)
"""The domains of the operators of onnxruntime-extensions."""


@dataclass(frozen=True)
class TensorSpec:
    """One input or output."""

    name: str
    dtype: str
    """A numpy dtype name, or ONNX's own name where numpy has none (``string``, ``bfloat16``), or
    ``sequence``, ``map``, ``optional``, ``sparse_tensor``."""
    shape: tuple[int | str, ...] | None
    """An int where fixed, a name where symbolic, ``?`` where unknown; None where the rank is."""

    @property
    def is_plain(self) -> bool:
        """Whether a numpy array can represent it."""
        return self.dtype in NUMPY_DTYPES.values()

    def __str__(self) -> str:
        shape = "?" if self.shape is None else ", ".join(str(size) for size in self.shape)
        return f"{self.name}: {self.dtype}[{shape}]"


@dataclass(frozen=True)
class ModelFacts:
    """Facts of one model file."""

    name: str
    """File name."""
    sha256: str
    """The bytes of the file, and of its external data if it has any."""
    file_bytes: int
    ir_version: int
    opset: int
    """Version of the default operator set; 0 where the model imports none."""
    domains: dict[str, int]
    """Other operator sets and their versions."""
    producer: str
    inputs: tuple[TensorSpec, ...]
    """Without those that have an initializer."""
    outputs: tuple[TensorSpec, ...]
    op_counts: dict[str, int]
    """Operators with how often they occur, subgraphs included."""
    initializer_bytes: int
    has_narrow_weights: bool
    """Whether a large constant is stored in fewer bits than float32."""
    quantization: Quantization | None
    """How the model is quantized already, or that it is float16; None for a float32 one."""
    external_data: tuple[str, ...]
    """Files that hold weights, relative to the model."""
    metadata: dict[str, str]
    table_rows: dict[str, int]
    """Inputs whose values choose rows of a table of weights, as token ids do, with how many rows it
    has. Inputs that are changed by arithmetic first are left out."""

    @property
    def label_outputs(self) -> tuple[str, ...]:
        """Outputs of one whole number for each sample, as classifiers name the best class."""
        return tuple(
            spec.name
            for spec in self.outputs
            if spec.dtype.startswith(("int", "uint"))
            and spec.shape is not None
            and (len(spec.shape) == 1 or spec.shape[1:] == (1,))
        )


def read_model_facts(path: Path) -> ModelFacts:
    """Return the facts of a model file.

    Raises:
        ModelError: The file cannot be read as a model (see :mod:`edgepack.model.reading`).
    """
    # Before the model is read: this reads it too.
    digest = hash_model(path)
    model = read_outline(path)
    opsets = {entry.domain: entry.version for entry in model.opset_import}
    inputs, outputs = read_signature(model)
    return ModelFacts(
        name=path.name,
        sha256=digest,
        file_bytes=path.stat().st_size,
        ir_version=model.ir_version,
        opset=opsets.get("", opsets.get("ai.onnx", 0)),
        domains={d: v for d, v in sorted(opsets.items()) if d not in STANDARD},
        producer=f"{model.producer_name} {model.producer_version}".strip(),
        inputs=inputs,
        outputs=outputs,
        op_counts=dict(
            sorted(Counter(_format_op(node) for node in walk_nested(model.graph.node)).items())
        ),
        initializer_bytes=sum(_count_bytes(t) for t in model.graph.initializer),
        has_narrow_weights=any(map(_is_narrow, model.graph.initializer)),
        quantization=find_quantization(model),
        external_data=tuple(list_external_files(model)),
        metadata={entry.key: entry.value for entry in model.metadata_props},
        table_rows=_find_table_rows(model.graph),
    )


def _is_narrow(tensor: onnx.TensorProto) -> bool:
    """Return whether a constant is large, and its numbers have fewer than 32 bits."""
    from onnx import TensorProto

    wide = {TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.INT64, TensorProto.INT32}
    return tensor.data_type not in wide and math.prod(tensor.dims) >= _LARGE


def find_default_opset(model: onnx.ModelProto) -> int:
    """Return the version of the default operator set, 0 if there is none."""
    return max((e.version for e in model.opset_import if e.domain in STANDARD), default=0)


def read_signature(
    model: onnx.ModelProto,
) -> tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]:
    """Return the inputs (without those that have an initializer) and outputs of a model."""
    constants = {tensor.name for tensor in model.graph.initializer}
    constants |= {tensor.values.name for tensor in model.graph.sparse_initializer}
    return (
        tuple(read_tensor_spec(v) for v in model.graph.input if v.name not in constants),
        tuple(read_tensor_spec(v) for v in model.graph.output),
    )


def read_tensor_spec(value: onnx.ValueInfoProto) -> TensorSpec:
    """Return the type of one graph input or output."""
    import onnx

    kind = value.type.WhichOneof("value")
    if kind != "tensor_type":
        return TensorSpec(value.name, (kind or "unknown_type").removesuffix("_type"), None)
    element = value.type.tensor_type.elem_type
    names = onnx.TensorProto.DataType
    dtype = NUMPY_DTYPES.get(element) or (
        names.Name(element).lower() if element in names.values() else f"type-{element}"
    )
    if not value.type.tensor_type.HasField("shape"):
        return TensorSpec(value.name, dtype, None)
    return TensorSpec(value.name, dtype, tuple(map(_read_size, value.type.tensor_type.shape.dim)))


_SAME_VALUES = {"Cast", "Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"}
"""Operators that leave the values of indices what they are."""


def _find_table_rows(graph: onnx.GraphProto) -> dict[str, int]:
    """Return the inputs that choose rows, with the number of rows of the smallest table."""
    weights = {tensor.name: tensor.dims for tensor in graph.initializer}
    origins = {value.name: value.name for value in graph.input if value.name not in weights}
    rows: dict[str, int] = {}
    for node in graph.node:
        first = node.input[0] if node.input else ""
        if node.op_type in _SAME_VALUES and first in origins:
            origins[node.output[0]] = origins[first]
        if node.op_type in ("Cast", "DequantizeLinear") and first in weights:
            weights[node.output[0]] = weights[first]
        axis = next((a.i for a in node.attribute if a.name == "axis"), 0)
        is_lookup = node.op_type == "Gather" and axis == 0 and bool(weights.get(first))
        if is_lookup and (name := origins.get(node.input[1])) is not None:
            rows[name] = min(weights[first][0], rows.get(name, weights[first][0]))
    return rows


def _read_size(dim: onnx.TensorShapeProto.Dimension) -> int | str:
    if dim.HasField("dim_value") and dim.dim_value >= 0:
        return int(dim.dim_value)
    return dim.dim_param or "?"


def _format_op(node: onnx.NodeProto) -> str:
    return node.op_type if node.domain in STANDARD else f"{node.domain}:{node.op_type}"


def _count_bytes(tensor: onnx.TensorProto) -> int:
    """Return the bytes of a tensor from its type and shape: its data may be in another file."""
    from math import prod

    from onnx.helper import tensor_dtype_to_np_dtype

    if tensor.data_type not in NUMPY_DTYPES:
        return len(tensor.raw_data)
    return int(prod(tensor.dims)) * tensor_dtype_to_np_dtype(tensor.data_type).itemsize


_ZIP_MAP = "ai.onnx.ml:ZipMap"


def _explain_unmapped(facts: ModelFacts) -> str:
    """Return how a classifier is converted so that its probabilities are a tensor.

    Sources: skl2onnx's documentation, "Choose appropriate output of a classifier"; onnxmltools,
    ``convert_lightgbm`` (https://github.com/onnx/onnxmltools, lightgbm/convert.py).
    """
    lines = {
        "skl2onnx": "skl2onnx.to_onnx(model, X, options={'zipmap': False})",
        "onnxmltools": "onnxmltools.convert_lightgbm(model, initial_types=types, zipmap=False)",
    }
    by = next((name for name in lines if facts.producer.lower().startswith(name)), "skl2onnx")
    others = "".join(f" (or {line})" for name, line in lines.items() if name != by)
    return (
        "its ZipMap makes a dictionary of each row; convert again with options={'zipmap': False},"
        f" which leaves a tensor: {lines[by]}{others}"
    )


def require_plain_signature(facts: ModelFacts) -> None:
    """Refuse models whose inputs or outputs no numpy array can hold.

    Raises:
        ModelError: There is one; the error names the first and says why.
    """
    for role, specs in (("input", facts.inputs), ("output", facts.outputs)):
        for spec in specs:
            if not spec.is_plain:
                article = "an" if spec.dtype[0] in "aeiou" else "a"
                raise ModelError(
                    f"the {role} {spec.name!r} is {article} {spec.dtype}, which bundles cannot"
                    " carry",
                    hint=_explain_unmapped(facts)
                    if role == "output" and spec.dtype == "sequence" and _ZIP_MAP in facts.op_counts
                    else "edgepack takes tensors of numbers and bools: export the model without"
                    f" that {role}, or do that part outside the model",
                    where=facts.name,
                )
    if not facts.outputs:
        raise ModelError("the model has no outputs", hint="export it again", where=facts.name)
