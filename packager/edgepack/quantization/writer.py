"""Writing a QDQ model with onnxruntime's quantizer, from ranges that are known already."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from edgepack.profile import Dialect
from edgepack.quantization.dialect import CHANNELED, attribute, weight_axes
from edgepack.quantization.errors import quantizer_errors

if TYPE_CHECKING:
    import onnx

Array = np.ndarray[Any, Any]
_NO_RANGE = "the tensor {!r} has no known type or no finite range"
_FLAT_BIAS = "its bias is no vector, which onnxruntime's quantizer takes alone"


@dataclass(frozen=True)
class QdqWriter:
    """Writes QDQ models of one dialect. Nothing is calibrated: the ranges are given.

    The model is what :func:`quantizable` returned.
    """

    model: onnx.ModelProto
    ranges: Mapping[str, tuple[float, float]]
    dialect: Dialect
    per_tensor_ops: tuple[str, ...] = ()
    """Operators whose weights have one scale even where the dialect is per channel."""
    every_op: bool = False
    """Quantize operators of every type with the options that onnxruntime gives for QNN, instead of
    those types that onnxruntime's quantizer knows."""

    def candidates(self) -> frozenset[str]:
        """Return the names of the nodes that are quantized unless they are excluded."""
        types = set(self._options(self.model)[0])
        return frozenset(node.name for node in self.model.graph.node if node.op_type in types)

    def unusable(self) -> dict[str, str]:
        """Return the candidates that the quantizer cannot take, each with the reason."""
        candidates = self.candidates()
        dims = {t.name: tuple(t.dims) for t in self.model.graph.initializer}
        integers, endless = self._integers(), self._endless()
        found: dict[str, str] = {}
        for node in self.model.graph.node:
            if node.name not in candidates:
                continue
            for name in filter(None, (*node.input, *node.output)):
                ranged = name in dims or name in self.ranges or name in integers
                if name in endless or not ranged:
                    found.setdefault(node.name, _NO_RANGE.format(name))
            if node.op_type == "Gemm" and len(node.input) > 2:
                bias = dims.get(node.input[2])
                if bias is not None and len(bias) != 1:
                    found.setdefault(node.name, _FLAT_BIAS)
        return found

    def write(self, excluded: Collection[str]) -> onnx.ModelProto:
        """Return the QDQ model; nodes named in ``excluded`` are left as they are.

        Raises:
            StepError: onnxruntime's quantizer fails.
        """
        import onnx
        from onnxruntime.quantization import QuantFormat
        from onnxruntime.quantization.qdq_quantizer import QDQQuantizer
        from onnxruntime.quantization.quantize import check_static_quant_arguments

        copy = onnx.ModelProto()
        copy.CopyFrom(self.model)
        _part_constants(copy, excluded, everywhere=self.dialect.activations == "int8")
        activations, weights = self._types()
        with quantizer_errors("quantizer"):
            check_static_quant_arguments(QuantFormat.QDQ, activations, weights)
            op_types, options = self._options(copy)
            quantizer = QDQQuantizer(
                copy,
                per_channel=self.dialect.per_channel,
                reduce_range=False,
                weight_qType=weights,
                activation_qType=activations,
                tensors_range=self._tensors_data(),
                nodes_to_quantize=[],
                nodes_to_exclude=list(excluded),
                op_types_to_quantize=op_types,
                extra_options=options,
            )
            quantizer.quantize_model()
            quantizer.model.topological_sort()
        written: onnx.ModelProto = quantizer.model.model
        return written

    def _types(self) -> tuple[Any, Any]:
        from onnxruntime.quantization import QuantType

        types = {
            "uint8": QuantType.QUInt8,
            "int8": QuantType.QInt8,
            "uint16": QuantType.QUInt16,
        }
        return types[self.dialect.activations], types[self.dialect.weights]

    def _options(self, model: onnx.ModelProto) -> tuple[list[str], dict[str, Any]]:
        """Return the operator types to quantize, and the quantizer's extra options."""
        from onnxruntime.quantization.registry import QDQRegistry, QLinearOpsRegistry

        signed = self.dialect.weights == "int8"
        options: dict[str, Any] = {
            "ActivationSymmetric": self.dialect.symmetric,
            "WeightSymmetric": signed,
            "QuantizeBias": self.dialect.bias == "int32",
        }
        op_types = sorted({*QLinearOpsRegistry, *QDQRegistry})
        if self.every_op:
            op_types, for_qnn = self._qnn_options(model)
            options = {**for_qnn, **options}
        overrides = dict(options.get("TensorQuantOverrides", {}))
        if self.dialect.per_channel:
            # A lone override without an axis is how the quantizer is told one scale for all.
            for name in self._one_scale(model):
                overrides.setdefault(name, [{"symmetric": signed}])
        return op_types, {**options, "TensorQuantOverrides": overrides}

    def _qnn_options(self, model: onnx.ModelProto) -> tuple[list[str], dict[str, Any]]:
        from onnxruntime.quantization.execution_providers.qnn import get_qnn_qdq_config

        activations, weights = self._types()
        config = get_qnn_qdq_config(
            model,
            None,
            activation_type=activations,
            weight_type=weights,
            per_channel=self.dialect.per_channel,
            activation_symmetric=self.dialect.symmetric,
            weight_symmetric=self.dialect.weights == "int8",
        )
        return sorted(config.op_types_to_quantize), config.extra_options

    def _one_scale(self, model: onnx.ModelProto) -> list[str]:
        from onnx import TensorProto

        dims = {
            tensor.name: tuple(tensor.dims)
            for tensor in model.graph.initializer
            if tensor.data_type in (TensorProto.FLOAT, TensorProto.FLOAT16)
        }
        axes = weight_axes(model.graph.node, dims, self.per_tensor_ops)
        return sorted(name for name, axis in axes.items() if axis is None)

    def _element_types(self) -> dict[str, int]:
        graph = self.model.graph
        return {
            value.name: value.type.tensor_type.elem_type
            for value in (*graph.value_info, *graph.input, *graph.output)
            if value.type.HasField("tensor_type")
        }

    def _integers(self) -> set[str]:
        """Return the tensors of which it is known that they are not float."""
        from onnx import TensorProto

        floats = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.UNDEFINED)
        return {name for name, kind in self._element_types().items() if kind not in floats}

    def _endless(self) -> set[str]:
        """Return the constants whose range no float32 scale can express; masks hold infinity."""
        found = set()
        for tensor in self.model.graph.initializer:
            values = _values(tensor)
            if values.dtype.kind == "f" and values.size:
                with np.errstate(over="ignore", invalid="ignore"):
                    span = np.float32(values.max()) - np.float32(values.min())
                if not np.isfinite(span):
                    found.add(tensor.name)
        return found

    def _tensors_data(self) -> Any:  # noqa: ANN401  (onnxruntime has no types)
        from onnx import TensorProto
        from onnxruntime.quantization.calibrate import CalibrationMethod, TensorData, TensorsData

        half = {name for name, k in self._element_types().items() if k == TensorProto.FLOAT16}
        data = {}
        constants = {tensor.name for tensor in self.model.graph.initializer}
        for name, limits in self.ranges.items():
            if name in constants:
                continue
            low, high = np.asarray(limits, np.float16 if name in half else np.float32)
            data[name] = TensorData(lowest=np.asarray(low), highest=np.asarray(high))
        return TensorsData(CalibrationMethod.MinMax, data)


def quantizable(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with inferred shapes, mended where onnxruntime's quantizer stumbles.

    - Constant nodes are initializers: the quantizer takes other constants for activations.
    - Every node has a name of its own: the quantizer tells nodes apart by name, and gives nodes
      without one that share a bias the wrong scale.
    - A Gemm's factors alpha and beta are multiplied into its constants, without which it is not
      fused, and its constant bias is a vector with one value per column, without which the
      quantizer fails (both measured with onnxruntime 1.31.1, 2026-11-21).

    What is computed stays the same, but for the rounding of those products.
    """
    from onnxruntime.quantization.quant_utils import save_and_reload_model_with_shape_infer

    with quantizer_errors("shape inference"):
        copy: onnx.ModelProto = save_and_reload_model_with_shape_infer(model)
    _store_constants(copy)
    _name_nodes(copy)
    constants = {tensor.name: tensor for tensor in copy.graph.initializer}
    for node in copy.graph.node:
        if node.op_type == "Gemm" and node.domain in ("", "ai.onnx"):
            _plain_gemm(copy, node, constants)
    return copy


def _part_constants(model: onnx.ModelProto, excluded: Collection[str], *, everywhere: bool) -> None:
    """Give excluded nodes, and each node with weights, copies of the constants they share.

    The quantizer replaces a constant for all its readers; excluded ones would then compute in float
    with quantized weights. And onnxruntime 1.31.1 does not load a model in which two operators
    share an int8 constant where ``session.x64quantprecision`` is set, as it is on x86-64 without
    VNNI ("Attempt to replace the existing tensor", measured 2026-11-21).

    Args:
        model: Changed in place.
        excluded: Names of the nodes that stay float.
        everywhere: Whether the constants of all other nodes become int8, not only weights.
    """
    weighted = (*CHANNELED, "LayerNormalization", "InstanceNormalization", "BatchNormalization")
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    taken: dict[str, str] = {}
    """By constant: the suffix that its first reader would get, who keeps it."""
    for node in model.graph.node:
        own = f"/{node.name}" if everywhere or node.op_type in weighted else "/shared"
        own = "/float" if node.name in excluded else own
        for place, name in enumerate(node.input):
            if name not in constants or taken.setdefault(name, own) == own:
                continue
            node.input[place] = f"{name}{own}"
            if node.input[place] not in constants:
                constants[node.input[place]] = model.graph.initializer.add()
                constants[node.input[place]].CopyFrom(constants[name])
                constants[node.input[place]].name = node.input[place]


def _store_constants(model: onnx.ModelProto) -> None:
    import onnx

    outputs = {value.name for value in model.graph.output}
    kept = []
    for node in model.graph.node:
        value = node.attribute[0] if node.op_type == "Constant" and node.attribute else None
        if value is None or value.type != onnx.AttributeProto.TENSOR or node.output[0] in outputs:
            kept.append(node)
            continue
        model.graph.initializer.add().CopyFrom(value.t)
        model.graph.initializer[-1].name = node.output[0]
    del model.graph.node[:]
    model.graph.node.extend(kept)


def _name_nodes(model: onnx.ModelProto) -> None:
    taken = {node.name for node in model.graph.node}
    seen: set[str] = set()
    for index, node in enumerate(model.graph.node):
        if not node.name or node.name in seen:
            node.name = _free_name(f"{node.name or node.op_type}_{index}", taken)
        seen.add(node.name)


def _free_name(stem: str, taken: set[str]) -> str:
    name, count = stem, 0
    while name in taken:
        count += 1
        name = f"{stem}_{count}"
    taken.add(name)
    return name


def _plain_gemm(
    model: onnx.ModelProto, node: onnx.NodeProto, constants: Mapping[str, onnx.TensorProto]
) -> None:
    """Rewrite one Gemm; its new constants are its own, those it shared stay as they are."""
    alpha, beta = attribute(node, "alpha", 1.0), attribute(node, "beta", 1.0)
    if node.input[1] not in constants:
        return
    weights = _values(constants[node.input[1]])
    bias = constants.get(node.input[2]) if len(node.input) > 2 else None
    if alpha != 1.0:
        scaled = weights * weights.dtype.type(alpha)
        node.input[1] = _add(model, f"{node.input[1]}/{node.name}", scaled)
        _drop(node, "alpha")
    if bias is None:
        return
    values = _values(bias)
    columns = weights.shape[0] if attribute(node, "transB", 0) else weights.shape[1]
    vector = values.size in (1, columns) and values.shape[:-1] in ((), (1,))
    if vector and (values.shape != (columns,) or beta != 1.0):
        flat = np.broadcast_to(values.ravel() * values.dtype.type(beta), (columns,))
        node.input[2] = _add(model, f"{bias.name}/{node.name}", flat)
        _drop(node, "beta")


def _values(tensor: onnx.TensorProto) -> Array:
    from onnx import numpy_helper

    return np.asarray(numpy_helper.to_array(tensor))


def _add(model: onnx.ModelProto, name: str, values: Array) -> str:
    from onnx import numpy_helper

    model.graph.initializer.append(numpy_helper.from_array(np.ascontiguousarray(values), name))
    return name


def _drop(node: onnx.NodeProto, name: str) -> None:
    kept = [entry for entry in node.attribute if entry.name != name]
    del node.attribute[:]
    node.attribute.extend(kept)
