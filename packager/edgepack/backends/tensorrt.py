"""NVIDIA's TensorRT: the subgraphs that its ONNX parser takes, compiled on the device.

What the parser does not take goes to CUDA, and to the CPU what CUDA does not take either. The
operators and their conditions are those of TensorRT 10.15's own list (``data/tensorrt.yaml``);
JetPack 6 has 10.3, so a newer operator may fall back there. TensorRT takes int8 with zero point 0
(the same list: DequantizeLinear, QuantizeLinear). An int32 bias that a DequantizeLinear reads is
folded by onnxruntime's provider before TensorRT sees it (the class ConstantFoldingDQ, named in the
library of onnxruntime-gpu 1.31.1).

Not predicted: whether TensorRT takes the bodies of If, Loop and Scan, and so the operators
themselves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from edgepack.backends.base import CPU, Backend, Knob, Misfit, Refusal, find_partitions
from edgepack.backends.builder_rules import (
    EXPORT,
    MAKE_CONSTANT,
    Rule,
    check_attribute,
    check_constants,
    check_one_output,
    check_ones,
    check_rank,
    find_first_refusal,
    find_values,
)
from edgepack.backends.op_table import find_kernel_refusal, read_table
from edgepack.backends.qdq import DEQUANTIZE, QUANTIZE, NodeUnit, make_single_unit
from edgepack.model.graph import Graph, Node
from edgepack.project.profile import DeviceKind, Variant

_DIALECT = "quantize with int8 for both, symmetric: true and bias: float32"


def find_misfits(variant: Variant, device: DeviceKind) -> list[Misfit]:
    """Find dialects that TensorRT does not take as int8.

    Source: that of data/tensorrt.yaml; NVIDIA's guide leaves biases in float.
    """
    del device
    dialect = variant.dialect
    if dialect is None:
        return []
    found = []
    for key, dtype in (("activations", dialect.activations), ("weights", dialect.weights)):
        if dtype != "int8":
            problem = f"TensorRT takes {key} as int8, not as {dtype}"
            found.append(Misfit(("dialect", key), problem, f"write {key}: int8"))
    if not dialect.symmetric:
        problem = "TensorRT takes activations with zero point 0 alone"
        found.append(Misfit(("dialect", "symmetric"), problem, "write symmetric: true"))
    if dialect.bias != "float32":
        problem = "TensorRT takes biases in float, not as int32"
        found.append(Misfit(("dialect", "bias"), problem, "write bias: float32"))
    return found


def find_refusals(graph: Graph, variant: Variant) -> dict[int, Refusal]:
    """Return the nodes that TensorRT does not get.

    The provider options ``trt_op_types_to_exclude`` and ``trt_min_subgraph_size`` of the variant
    are followed. In onnxruntime 1.31.1 nothing is excluded unless the first one says so (releases
    around 1.21 left out NonMaxSuppression, NonZero and RoiAlign by themselves).
    """
    options = next((p.options for p in variant.providers if p.name == BACKEND.provider), {})
    excluded = set(options.get("trt_op_types_to_exclude", "").split(","))
    found = {
        node.index: refusal
        for node in graph.nodes
        if (refusal := _find_refusal(graph, node, excluded))
    }
    least = options.get("trt_min_subgraph_size", "1")
    taken = [node for node in graph.nodes if node.index not in found]
    for piece in find_partitions(graph, taken):
        if least.isdecimal() and len(piece) < int(least):
            found |= dict.fromkeys([node.index for node in piece], _refuse_few(len(piece), least))
    return found


BACKEND = Backend(
    name="tensorrt",
    provider="TensorrtExecutionProvider",
    fallbacks=frozenset({"CUDAExecutionProvider", CPU}),
    recipes=frozenset({"fp32", "fp16", "int8-static"}),
    misfits=find_misfits,
    refusals=find_refusals,
    returns_early=True,
    device_files=("/dev/nvidia*",),  # as for CUDA
    # Dynamic shapes work with a given range (shape_options); known shapes work best.
    static_shapes=False,
    # An engine is built for a range of sizes, and built again for each size outside it, which takes
    # minutes. Source: onnxruntime.ai/docs/execution-providers/TensorRT-ExecutionProvider.html,
    # "Explicit shape range for dynamic shape input": all three keys, every dynamic input.
    shape_options=("trt_profile_min_shapes", "trt_profile_opt_shapes", "trt_profile_max_shapes"),
    # TensorRT takes these only in float32 (data/tensorrt.yaml).
    float32_ops=frozenset({"STFT"}),
    knobs=(
        Knob(
            "trt_builder_optimization_level",
            ("4", "5"),
            "how long the builder looks for tactics; 3 is the default, and less is for faster"
            " builds:"
            " onnxruntime.ai/docs/execution-providers/TensorRT-ExecutionProvider.html",
        ),
        Knob(
            "trt_auxiliary_streams",
            ("0",),
            "streams beside the main one; -1, the default, leaves it to heuristics: the same page",
        ),
    ),
)


def _refuse_few(nodes: int, least: str) -> Refusal:
    reason = f"its piece of the graph has {nodes} nodes; trt_min_subgraph_size is {least}"
    return Refusal(reason, "lower the provider option trt_min_subgraph_size")


def _find_refusal(graph: Graph, node: Node, excluded: set[str]) -> Refusal | None:
    if node.op in excluded:
        reason = f"the provider option trt_op_types_to_exclude names {node.op}"
        return Refusal(reason, "take it out of the option")
    unit = make_single_unit(node)
    refusal = find_kernel_refusal(read_table(BACKEND.name), graph, node)
    return refusal or find_first_refusal(_RULES.get(node.qualified_op, ()), graph, unit)


def _check_quantization(graph: Graph, unit: NodeUnit) -> Refusal | None:
    node = unit.target
    stored = node.inputs[0] if node.op == DEQUANTIZE else node.outputs[0]
    dtype = graph.dtype(stored)
    if node.op == DEQUANTIZE and dtype == "int32" and graph.is_constant(stored):
        return None
    if dtype and dtype.replace("_", "") not in _STORED:
        return Refusal(f"it is quantized as {dtype}; TensorRT takes int8", _DIALECT)
    if not graph.is_constant(node.inputs[1]):
        return Refusal("its scale is computed, but must be constant", MAKE_CONSTANT)
    zero_point = node.inputs[2] if len(node.inputs) > 2 else ""
    zeros = graph.constants.get(zero_point)
    if zero_point and (zeros is None or np.any(zeros.astype(np.float32))):
        return Refusal("its zero point is not 0", _DIALECT)
    return None


_STORED = ("int8", "int4", "float8e4m3fn", "float4e2m1")


def _check_top_k(graph: Graph, unit: NodeUnit) -> Refusal | None:
    """Check that K is less than 3840, where it is known."""
    count = find_values(graph, unit, 1)
    if not count or count[0] < 3840:
        return None
    return Refusal(f"K is {count[0]}; less than 3840 is taken", EXPORT)


_POOL: tuple[Rule, ...] = (check_rank(4, 5), check_ones("dilations"))
_AXES: tuple[Rule, ...] = (check_constants(axes=1),)
_REDUCTIONS = ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")
_RULES: Mapping[str, Sequence[Rule]] = {
    **dict.fromkeys((f"Reduce{name}" for name in _REDUCTIONS), _AXES),
    **dict.fromkeys(("Squeeze", "Unsqueeze"), _AXES),
    **dict.fromkeys((QUANTIZE, DEQUANTIZE), (_check_quantization,)),
    **dict.fromkeys(("AveragePool", "LpPool"), _POOL),
    "MaxPool": (*_POOL, check_one_output),
    "Attention": (check_rank(4), check_one_output),
    "CumSum": (check_constants(axis=1),),
    "GridSample": (check_rank(4),),
    "LayerNormalization": (check_one_output,),
    "LSTM": (check_attribute("input_forget", 0, 0), check_attribute("layout", 0, 0)),
    "OneHot": (check_constants(depth=1),),
    "Resize": (
        check_attribute("mode", "nearest", "nearest", "linear"),
        check_attribute(
            "coordinate_transformation_mode",
            "half_pixel",
            *("half_pixel", "pytorch_half_pixel", "tf_half_pixel_for_nn"),
            *("asymmetric", "align_corners"),
        ),
        check_attribute("keep_aspect_ratio_policy", "stretch", "stretch"),
        check_attribute("antialias", 0, 0),
    ),
    "ScatterND": (check_attribute("reduction", "none", "none"),),
    "STFT": (check_constants(frame_step=1, window=2),),
    "TopK": (check_attribute("sorted", 1, 1), _check_top_k),
}
