"""XNNPACK, a library of fast kernels for ARM and x86 CPUs, in onnxruntime's mobile packages.

It takes a handful of operators one by one: float32 ones, and int8 ones as QDQ groups. Weights must
be constant, and all dimensions of images but the batch known. From the sources, onnxruntime 1.24
and older (stored copies, looked up 2026-11-21; nothing was tried, for no wheel has XNNPACK):
``core/providers/xnnpack/detail/node_support_checker.cc``, ``detail/utils.cc``, ``nn/*.cc``,
``math/*.cc``, ``tensor/resize.cc``.

A Gemm computes as many rows as its input's shape says when the session is made (``math/gemm.cc``):
with a dynamic batch this is only one. Fix the batch for models that end in one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from edgepack.backends.base import THREADS, Backend, Knob, Misfit, Refusal
from edgepack.backends.builder_rules import (
    EXPORT,
    FIX_DIMENSIONS,
    MAKE_CONSTANT,
    ON_THE_CPU,
    Rule,
    all_ones,
    attribute_in,
    constant_inputs,
    find_attribute,
    find_first_refusal,
    find_input_name,
    find_shape,
    find_values,
    format_shape,
    kernel_2d,
    one_output,
    rank_in,
)
from edgepack.backends.op_table import find_kernel_refusal, read_table
from edgepack.backends.qdq import (
    DEQUANTIZE,
    QUANTIZE,
    NodeUnit,
    QdqValue,
    find_node_units,
    spread_refusals,
)
from edgepack.model.graph import Graph
from edgepack.project.profile import DeviceKind, Variant

_LAYOUTS = "int8 activations with int8 weights, or uint8 with uint8 per tensor"
_REQUANTIZE = "quantize with activations: int8 and weights: int8"


def misfits(variant: Variant, device: DeviceKind) -> list[Misfit]:
    """Refuse dialects that XNNPACK leaves to the CPU.

    Source: ``GetConvCompType`` in ``core/providers/xnnpack/nn/conv_base.cc``.
    """
    del device
    dialect = variant.dialect
    if dialect is None:
        return []
    found = []
    if dialect.activations not in ("int8", "uint8"):
        problem = f"XNNPACK leaves {dialect.activations} activations to the CPU"
        found.append(Misfit(("dialect", "activations"), problem, "write activations: int8"))
    elif dialect.weights != dialect.activations:
        problem = (
            f"XNNPACK leaves {dialect.activations} activations with {dialect.weights} weights to"
            " the CPU: it wants both alike"
        )
        found.append(
            Misfit(("dialect", "weights"), problem, "write activations: int8 and weights: int8")
        )
    if dialect.weights == "uint8" and dialect.per_channel:
        problem = "XNNPACK leaves uint8 weights with one scale per channel to the CPU"
        hint = "write weights: int8 and activations: int8, or per_channel: false"
        found.append(Misfit(("dialect", "per_channel"), problem, hint))
    if dialect.bias == "float32":
        problem = "XNNPACK leaves quantized operators with a float bias to the CPU"
        found.append(Misfit(("dialect", "bias"), problem, "write bias: int32"))
    return found


def refusals(graph: Graph, variant: Variant) -> dict[int, Refusal]:
    """Return the nodes that XNNPACK leaves to the CPU.

    XNNPACK also takes a Relu or Clip behind a float Conv or pool that it takes.
    """
    del variant
    refused: dict[NodeUnit, Refusal] = {}
    fusable: set[str] = set()
    """Outputs of the float operators taken that a Relu or Clip can join."""
    for unit in find_node_units(graph):
        if unit.op in ("Relu", "Clip") and not unit.is_group:
            refusal = _fusion_refusal(graph, unit, fusable)
        else:
            refusal = _refusal(graph, unit)
        if refusal:
            refused[unit] = refusal
        elif unit.op in _TAKE_ACTIVATIONS and not unit.is_group:
            fusable.update(unit.target.outputs)
    return spread_refusals(refused)


def cores(options: Mapping[str, str], session_threads: int, cpu_count: int) -> int:
    """Return the number of threads of its own pool; by default the session's."""
    return int(options.get("intra_op_num_threads", session_threads)) or cpu_count


BACKEND = Backend(
    name="xnnpack",
    provider="XnnpackExecutionProvider",
    recipes=frozenset({"fp32", "int8-static"}),
    # Not .ort: onnxruntime would call XNNPACK's compiler, which does not exist (from the source).
    formats=frozenset({"onnx"}),
    misfits=misfits,
    refusals=refusals,
    per_tensor_ops=("ConvTranspose",),
    knobs=(
        Knob(
            "intra_op_num_threads",
            (THREADS,),
            "threads of its own pool; 0, the default, takes as many as the session has:"
            " xnnpack_execution_provider.cc and .h in onnxruntime (the documentation says 1)",
        ),
    ),
    cores=cores,
)


_TAKE_ACTIVATIONS = ("Conv", "MaxPool", "AveragePool")


def _refusal(graph: Graph, unit: NodeUnit) -> Refusal | None:
    if unit.target.op in (QUANTIZE, DEQUANTIZE):
        return Refusal("no int8 operator that XNNPACK takes is beside it", ON_THE_CPU)
    rules = _RULES.get(unit.op, ())
    if unit.is_group:
        if unit.op not in _QUANTIZED_RULES:
            return Refusal(f"it has no int8 kernel for {unit.op}", ON_THE_CPU)
        rules = (_QUANTIZED_RULES[unit.op], *rules)
    else:
        rules = (*_FLOAT_RULES.get(unit.op, ()), *rules)
    return find_kernel_refusal(read_table(BACKEND.name), graph, unit.target) or find_first_refusal(
        rules, graph, unit
    )


def _fusion_refusal(graph: Graph, unit: NodeUnit, fusable: set[str]) -> Refusal | None:
    if find_input_name(unit, 0) not in fusable:
        reason = f"{unit.op} is taken behind a float Conv, MaxPool or AveragePool that is taken"
        return Refusal(reason, ON_THE_CPU)
    return constant_inputs(min=1, max=2)(graph, unit)


# --- what shapes and attributes must be -------------------------------------------------------


def _image_size_known(graph: Graph, unit: NodeUnit) -> Refusal | None:
    shape = find_shape(graph, unit) or ()
    if all(isinstance(size, int) for size in shape[1:]):
        return None
    reason = (
        f"{find_input_name(unit, 0)!r} has {format_shape(shape)}; all but the batch must be known"
    )
    return Refusal(reason, FIX_DIMENSIONS)


def _padding(graph: Graph, unit: NodeUnit) -> Refusal | None:
    """SAME_LOWER is not taken; where pads are given, auto_pad does not count."""
    if "pads" in unit.target.attributes:
        return None
    return attribute_in("auto_pad", "NOTSET", "NOTSET", "VALID", "SAME_UPPER")(graph, unit)


def _more_than_one_pixel(graph: Graph, unit: NodeUnit) -> Refusal | None:
    del graph
    if list(find_attribute(unit, "kernel_shape", [1, 1])) != [1, 1]:
        return None
    return Refusal("its window is 1 x 1", EXPORT)


def _last_axis(graph: Graph, unit: NodeUnit) -> Refusal | None:
    shape = find_shape(graph, unit)
    if not shape:
        return Refusal(f"{find_input_name(unit, 0)!r} has {format_shape(shape)}", FIX_DIMENSIONS)
    if graph.opset < 13:  # all dimensions from the axis on are one, whichever it is
        return None
    if find_attribute(unit, "axis", -1) not in (-1, len(shape) - 1):
        return Refusal("its axis is not the last one", EXPORT)
    if not isinstance(shape[-1], int):
        return Refusal(f"{find_input_name(unit, 0)!r} has {format_shape(shape)}", FIX_DIMENSIONS)
    return None


def _gemm(graph: Graph, unit: NodeUnit) -> Refusal | None:
    names = [find_input_name(unit, place) for place in range(3)]
    if not names[2]:
        reason = "it has no bias, which onnxruntime's check for XNNPACK reads without asking"
        return Refusal(reason, "export it with a bias, of zeros if need be")
    for name in names:
        shape = graph.shape(name)
        if shape is None or len(shape) > 2:
            return Refusal(f"{name!r} has {format_shape(shape)}; its rank must be 1 or 2", EXPORT)
    bias, weights = graph.constants[names[2]].shape, graph.constants[names[1]].shape
    if not bias or bias[0] not in weights:
        return Refusal(f"the bias has {format_shape(bias)}, one number per output is taken", EXPORT)
    return None


def _matrices(graph: Graph, unit: NodeUnit) -> Refusal | None:
    for place in (0, 1):
        shape = find_shape(graph, unit, place)
        if not shape or len(shape) > 2:
            reason = (
                f"{find_input_name(unit, place)!r} has {format_shape(shape)}; its rank"
                " must be 1 or 2"
            )
            return Refusal(reason, "use Gemm or Conv, or leave the node to the CPU")
        if not all(isinstance(size, int) for size in shape):
            reason = (
                f"{find_input_name(unit, place)!r} has {format_shape(shape)}; all of"
                " it must be known"
            )
            return Refusal(reason, FIX_DIMENSIONS)
    return None


def _resize_size(graph: Graph, unit: NodeUnit) -> Refusal | None:
    """Scales or sizes are constant, keep the channels, and shrink by whole factors."""
    shape = find_shape(graph, unit) or ()
    scales = find_values(graph, unit, 1 if graph.opset == 10 else 2)
    sizes = find_values(graph, unit, 3)
    if not scales and not sizes:
        return Refusal("neither scales nor sizes are constant", MAKE_CONSTANT)
    if len(shape) < 2 or not isinstance(shape[1], int):
        return Refusal(f"{find_input_name(unit, 0)!r} has {format_shape(shape)}", FIX_DIMENSIONS)
    if (scales and scales[1] != 1.0) or (sizes and sizes[1] != shape[1]):
        return Refusal("it resizes the channels", EXPORT)
    shrinks = [(size, scale) for size, scale in zip(shape[2:], (scales or [])[2:], strict=False)]
    if all(scale >= 1.0 for _, scale in shrinks) or all(_divides(*pair) for pair in shrinks):
        return None
    return Refusal("it shrinks by what does not divide height and width", EXPORT)


def _divides(size: int | str, scale: float) -> bool:
    factor = round(1 / scale) if scale > 0 else 0
    return isinstance(size, int) and factor > 0 and factor * scale == 1.0 and size % factor == 0


_CONVOLUTION: tuple[Rule, ...] = (
    rank_in(3, 4),
    _image_size_known,
    constant_inputs(W=1, B=2),
    _padding,
)
_POOL: tuple[Rule, ...] = (
    rank_in(4),
    _image_size_known,
    attribute_in("ceil_mode", 0, 0),
    attribute_in("auto_pad", "NOTSET", "NOTSET", "VALID", "SAME_UPPER"),
    kernel_2d,
    _more_than_one_pixel,
    one_output,
)
_RULES: Mapping[str, Sequence[Rule]] = {
    "Conv": _CONVOLUTION,
    "ConvTranspose": _CONVOLUTION,
    "QLinearConv": (rank_in(4), _image_size_known, _padding),
    "MaxPool": _POOL,
    "AveragePool": (*_POOL, all_ones("dilations")),
    "Softmax": (_last_axis,),
    "Resize": (
        rank_in(4),
        _resize_size,
        attribute_in("mode", "nearest", "linear"),
        attribute_in("antialias", 0, 0),
        attribute_in("axes", [], []),
        attribute_in("keep_aspect_ratio_policy", "stretch", "stretch"),
        attribute_in("extrapolation_value", 0.0, 0.0),
        attribute_in("exclude_outside", 0, 0),
        attribute_in(
            "coordinate_transformation_mode",
            "half_pixel",
            *("asymmetric", "half_pixel", "align_corners", "pytorch_half_pixel"),
        ),
    ),
    "Gemm": (
        attribute_in("alpha", 1.0, 1.0),
        attribute_in("beta", 1.0, 1.0),
        constant_inputs(B=1, C=2),
        _gemm,
    ),
    "MatMul": (constant_inputs(B=1), _matrices),
}
_FLOAT_RULES: Mapping[str, Sequence[Rule]] = {
    "AveragePool": (attribute_in("count_include_pad", 0, 0),),
}


# --- int8 layouts -----------------------------------------------------------------------------


def _dtype(graph: Graph, value: QdqValue) -> str:
    return graph.dtype(value.tensor) if value.is_quantized else "not quantized"


def _count(graph: Graph, value: QdqValue) -> int:
    """Return how many scales a tensor has; 0 where they are not constant."""
    scales = graph.constants.get(value.scale)
    return 0 if scales is None else scales.size


def _scalar(graph: Graph, name: str, default: float) -> float:
    array: np.ndarray[Any, Any] | None = graph.constants.get(name)
    return default if array is None or array.size != 1 else float(array.item())


def _weights(graph: Graph, unit: NodeUnit) -> Refusal | None:
    """Source: ``GetConvCompType``, ``IsValidQuantConv`` and ``GetTensorQuantType``."""
    first, weights, *_ = unit.inputs
    found = [_dtype(graph, value) for value in (first, weights, unit.outputs[0])]
    scales = _count(graph, weights)
    if not scales or not _count(graph, first):
        return Refusal("its scales are computed, but must be constant", MAKE_CONSTANT)
    if found not in (["int8"] * 3, ["uint8"] * 3) or (scales > 1 and found[0] == "uint8"):
        each = " per channel" if scales > 1 else ""
        reason = (
            f"it has {found[0]} activations with {found[1]} weights{each}; taken are {_LAYOUTS}"
        )
        return Refusal(reason, _REQUANTIZE)
    if scales > 1 and unit.op == "ConvTranspose":
        reason = "its weights have one scale per channel, which ConvTranspose is not taken with"
        return Refusal(reason, "quantize with per_channel: false")
    if scales > 1 and np.any(graph.constants.get(weights.zero_point, np.zeros(1))):
        return Refusal(
            "its weights have zero points other than 0", "quantize weights symmetrically"
        )
    return None


def _same_8_bits(graph: Graph, unit: NodeUnit) -> Refusal | None:
    found = {_dtype(graph, value) for value in (unit.inputs[0], unit.outputs[0])}
    if found in ({"int8"}, {"uint8"}):
        return None
    return Refusal(f"it is quantized as {' and '.join(sorted(found))}, not in 8 bits", _REQUANTIZE)


def _uint8(graph: Graph, unit: NodeUnit) -> Refusal | None:
    found = _dtype(graph, unit.inputs[0])
    if found == _dtype(graph, unit.outputs[0]) == "uint8":
        return None
    return Refusal(f"{unit.op} is quantized as {found}; it is taken as uint8", ON_THE_CPU)


def _quantized_average(graph: Graph, unit: NodeUnit) -> Refusal | None:
    """With int8 numbers the padding must count; with float ones it must not."""
    return _uint8(graph, unit) or attribute_in("count_include_pad", 0, 1)(graph, unit)


def _quantized_softmax(graph: Graph, unit: NodeUnit) -> Refusal | None:
    out = unit.outputs[0]
    is_unit = abs(_scalar(graph, out.scale, 0.0) - 1 / 256) <= 1e-4
    if _uint8(graph, unit) is None and is_unit and _scalar(graph, out.zero_point, 0.0) == 0.0:
        return None
    reason = "its result is not uint8 with scale 1/256 and zero point 0"
    return Refusal(reason, ON_THE_CPU)


_QUANTIZED_RULES: Mapping[str, Rule] = {
    "Conv": _weights,
    "ConvTranspose": _weights,
    "MaxPool": _same_8_bits,
    "Resize": _same_8_bits,
    "AveragePool": _quantized_average,
    "Softmax": _quantized_softmax,
}
