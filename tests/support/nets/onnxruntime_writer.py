"""QDQ models written by onnxruntime's quantizer, as the reference for our own writer."""

from __future__ import annotations

import logging

import numpy as np
import onnx
import onnxruntime
from edgepack.quantization.qdq.dialect import CHANNELED, find_weight_axes
from onnx import TensorProto
from onnxruntime.quantization import QuantType
from onnxruntime.quantization.calibrate import CalibrationMethod, TensorData, TensorsData
from onnxruntime.quantization.execution_providers.qnn import get_qnn_qdq_config
from onnxruntime.quantization.qdq_quantizer import QDQQuantizer
from onnxruntime.quantization.quant_utils import add_infer_metadata
from onnxruntime.quantization.registry import QDQRegistry, QLinearOpsRegistry

TYPES = {"uint8": QuantType.QUInt8, "int8": QuantType.QInt8, "uint16": QuantType.QUInt16}
OP_TYPES = frozenset({*QLinearOpsRegistry, *QDQRegistry})
_WEIGHTED = (*CHANNELED, "LayerNormalization", "InstanceNormalization", "BatchNormalization")


def written_by_onnxruntime(
    model, ranges, dialect, *, per_tensor_ops=(), every_op=False, excluded=()
):
    """The QDQ model that onnxruntime's quantizer writes, of what ``quantizable`` returned."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    add_infer_metadata(copy)
    _part_constants(copy, excluded, everywhere=dialect.activations == "int8")
    signed = dialect.weights == "int8"
    activations, weights = TYPES[dialect.activations], TYPES[dialect.weights]
    options = {
        "ActivationSymmetric": dialect.symmetric,
        "WeightSymmetric": signed,
        "QuantizeBias": dialect.bias == "int32",
        "TensorQuantOverrides": {},
    }
    op_types = sorted(OP_TYPES)
    if every_op:
        config = get_qnn_qdq_config(
            copy,
            None,
            activation_type=activations,
            weight_type=weights,
            per_channel=dialect.per_channel,
            activation_symmetric=dialect.symmetric,
            weight_symmetric=signed,
        )
        op_types = sorted(config.op_types_to_quantize)
        overrides = config.extra_options["TensorQuantOverrides"]
        options = {**config.extra_options, **options, "TensorQuantOverrides": overrides}
    if dialect.per_channel:
        dims = {t.name: tuple(t.dims) for t in copy.graph.initializer if t.data_type == 1}
        for name, axis in find_weight_axes(copy.graph.node, dims, per_tensor_ops).items():
            if axis is None:
                # A lone override without an axis tells it to take one scale for all.
                options["TensorQuantOverrides"].setdefault(name, [{"symmetric": signed}])
    logging.disable(logging.WARNING)
    try:
        quantizer = QDQQuantizer(
            copy,
            per_channel=dialect.per_channel,
            reduce_range=False,
            weight_qType=weights,
            activation_qType=activations,
            tensors_range=_tensors_data(copy, ranges),
            nodes_to_quantize=[],
            nodes_to_exclude=list(excluded),
            op_types_to_quantize=op_types,
            extra_options=options,
        )
        quantizer.quantize_model()
        quantizer.model.topological_sort()
    finally:
        logging.disable(logging.NOTSET)
    return quantizer.model.model


def _tensors_data(model, ranges):
    constants = {tensor.name for tensor in model.graph.initializer}
    data = {
        name: TensorData(lowest=np.asarray(low, np.float32), highest=np.asarray(high, np.float32))
        for name, (low, high) in ranges.items()
        if name not in constants
    }
    return TensorsData(CalibrationMethod.MinMax, data)


def _part_constants(model, excluded, *, everywhere):
    """Give nodes constants of their own: onnxruntime replaces one for all its readers."""
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    taken = {}
    for node in model.graph.node:
        own = f"/{node.name}" if everywhere or node.op_type in _WEIGHTED else "/shared"
        own = "/float" if node.name in excluded else own
        for place, name in enumerate(node.input):
            if name not in constants or taken.setdefault(name, own) == own:
                continue
            node.input[place] = f"{name}{own}"
            if node.input[place] not in constants:
                constants[node.input[place]] = model.graph.initializer.add()
                constants[node.input[place]].CopyFrom(constants[name])
                constants[node.input[place]].name = node.input[place]


def plain_session(model, *, optimized=True):
    """A session of a model in memory, on one thread, in which int8 does not saturate."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    level = "ORT_ENABLE_ALL" if optimized else "ORT_DISABLE_ALL"
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
    options.add_session_config_entry("session.x64quantprecision", "1")
    return onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def extreme_ranges(model, feeds):
    """The lowest and the highest value of every float32 activation over the samples."""
    whole = onnx.ModelProto()
    whole.CopyFrom(model)
    known = {value.name for value in whole.graph.output}
    for node in whole.graph.node:
        for name in filter(None, node.output):
            if name not in known:
                whole.graph.output.append(onnx.ValueInfoProto(name=name))
                known.add(name)
    session = plain_session(whole, optimized=False)
    names = [value.name for value in session.get_outputs() if value.type == "tensor(float)"]
    found = {}
    for feed in feeds:
        values = {**dict(zip(names, session.run(names, feed), strict=True)), **feed}
        for name, array in values.items():
            if array.dtype == np.float32 and array.size:
                found.setdefault(name, []).append((array.min(), array.max()))
    constants = {tensor.name for tensor in model.graph.initializer}
    return {
        name: (float(min(low for low, _ in ends)), float(max(high for _, high in ends)))
        for name, ends in found.items()
        if name not in constants and np.isfinite(ends).all()
    }


def float_inputs(model):
    """The names of a model's float32 inputs."""
    values = model.graph.input
    return [v.name for v in values if v.type.tensor_type.elem_type == TensorProto.FLOAT]
