"""XNNPACK, a library of fast kernels for ARM and x86 CPUs, in onnxruntime's mobile packages.

It takes a handful of operators one by one: float32 ones, and int8 ones as QDQ groups. Weights must
be constant, and all dimensions of images but the batch known. From the sources, onnxruntime 1.24
and older (stored copies, looked up 2026-11-21): ``core/providers/xnnpack/``
``detail/node_support_checker.cc``, ``detail/utils.cc``, ``nn/*.cc``, ``math/*.cc``,
``tensor/resize.cc``; tried with Debian's onnxruntime 1.21.0 on x86-64 (2026-11-26, ``make
placement``). There no session is made of a uint8 Softmax that is taken, nor of the 1-D Conv of
silero_vad.

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
    check_attribute,
    check_constants,
    check_kernel_2d,
    check_one_output,
    check_ones,
    check_rank,
    find_attribute,
    find_first_refusal,
    find_input_name,
    find_shape,
    find_values,
    format_shape,
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


def find_misfits(variant: Variant, device: DeviceKind) -> list[Misfit]:
    """Find dialects that XNNPACK leaves to the CPU.

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


def find_refusals(graph: Graph, variant: Variant) -> dict[int, Refusal]:
    """Return the nodes that XNNPACK leaves to the CPU.

    XNNPACK also takes a Relu or Clip behind a float Conv or pool that it takes.
    """
    del variant
    refused: dict[NodeUnit, Refusal] = {}
    fusable: set[str] = set()
    """Outputs of the float operators taken that a Relu or Clip can join."""
    for unit in find_node_units(graph):
        if unit.op in ("Relu", "Clip") and not unit.is_group:
            refusal = _check_fusion(graph, unit, fusable)
        else:
            refusal = _find_refusal(graph, unit)
        if refusal:
            refused[unit] = refusal
        elif unit.op in _TAKE_ACTIVATIONS and not unit.is_group:
            fusable.update(unit.target.outputs)
    return spread_refusals(refused)


def count_cores(options: Mapping[str, str], session_threads: int, cpu_count: int) -> int:
    """Return the number of threads of its own pool; by default the session's."""
    return int(options.get("intra_op_num_threads", session_threads)) or cpu_count


BACKEND = Backend(
    name="xnnpack",
    provider="XnnpackExecutionProvider",
    recipes=frozenset({"fp32", "int8-static"}),
    # Not .ort: onnxruntime would call XNNPACK's compiler, which does not exist (from the source).
    formats=frozenset({"onnx"}),
    misfits=find_misfits,
    refusals=find_refusals,
    early_rewrites=("fuse-clip", "fuse-mish"),
    last_rewrites=("split-mish",),
    on_processor=True,
    per_tensor_ops=("ConvTranspose",),
    knobs=(
        Knob(
            "intra_op_num_threads",
            (THREADS,),
            "threads of its own pool; 0, the default, takes as many as the session has:"
            " xnnpack_execution_provider.cc and .h in onnxruntime (the documentation says 1)",
        ),
    ),
    cores=count_cores,
)


_TAKE_ACTIVATIONS = ("Conv", "MaxPool", "AveragePool")


def _find_refusal(graph: Graph, unit: NodeUnit) -> Refusal | None:
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


def _check_fusion(graph: Graph, unit: NodeUnit, fusable: set[str]) -> Refusal | None:
    if find_input_name(unit, 0) not in fusable:
        reason = f"{unit.op} is taken behind a float Conv, MaxPool or AveragePool that is taken"
        return Refusal(reason, ON_THE_CPU)
    return check_constants(min=1, max=2)(graph, unit)


# --- what shapes and attributes must be -------------------------------------------------------


def _check_image_size(graph: Graph, unit: NodeUnit) -> Refusal | None:
    shape = find_shape(graph, unit) or ()
    if all(isinstance(size, int) for size in shape[1:]):
        return None
    reason = (
        f"{find_input_name(unit, 0)!r} has {format_shape(shape)}; all but the batch must be known"
    )
    return Refusal(reason, FIX_DIMENSIONS)


def _check_padding(graph: Graph, unit: NodeUnit) -> Refusal | None:
    """Refuse SAME_LOWER; where pads are given, auto_pad does not count."""
    if "pads" in unit.target.attributes:
        return None
    return check_attribute("auto_pad", "NOTSET", "NOTSET", "VALID", "SAME_UPPER")(graph, unit)


def _check_window(graph: Graph, unit: NodeUnit) -> Refusal | None:
    del graph
    if list(find_attribute(unit, "kernel_shape", [1, 1])) != [1, 1]:
        return None
    return Refusal("its window is 1 x 1", EXPORT)


def _check_last_axis(graph: Graph, unit: NodeUnit) -> Refusal | None:
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


def _check_gemm(graph: Graph, unit: NodeUnit) -> Refusal | None:
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


def _check_matrices(graph: Graph, unit: NodeUnit) -> Refusal | None:
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


def _check_resize_size(graph: Graph, unit: NodeUnit) -> Refusal | None:
    """Check that constant scales or sizes keep the channels and shrink by whole factors."""
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
    if all(scale >= 1.0 for _, scale in shrinks) or all(_can_shrink(*pair) for pair in shrinks):
        return None
    return Refusal("it shrinks by what does not divide height and width", EXPORT)


def _can_shrink(size: int | str, scale: float) -> bool:
    factor = round(1 / scale) if scale > 0 else 0
    return isinstance(size, int) and factor > 0 and factor * scale == 1.0 and size % factor == 0


_CONVOLUTION: tuple[Rule, ...] = (
    check_rank(3, 4),
    _check_image_size,
    check_constants(W=1, B=2),
    _check_padding,
)
_POOL: tuple[Rule, ...] = (
    check_rank(4),
    _check_image_size,
    check_attribute("ceil_mode", 0, 0),
    check_attribute("auto_pad", "NOTSET", "NOTSET", "VALID", "SAME_UPPER"),
    check_kernel_2d,
    _check_window,
    check_one_output,
)
_RULES: Mapping[str, Sequence[Rule]] = {
    "Conv": _CONVOLUTION,
    "ConvTranspose": _CONVOLUTION,
    "QLinearConv": (check_rank(4), _check_image_size, _check_padding),
    "MaxPool": _POOL,
    "AveragePool": (*_POOL, check_ones("dilations")),
    "Softmax": (_check_last_axis,),
    "Resize": (
        check_rank(4),
        _check_resize_size,
        check_attribute("mode", "nearest", "linear"),
        check_attribute("antialias", 0, 0),
        check_attribute("axes", [], []),
        check_attribute("keep_aspect_ratio_policy", "stretch", "stretch"),
        check_attribute("extrapolation_value", 0.0, 0.0),
        check_attribute("exclude_outside", 0, 0),
        check_attribute(
            "coordinate_transformation_mode",
            "half_pixel",
            *("asymmetric", "half_pixel", "align_corners", "pytorch_half_pixel"),
        ),
    ),
    "Gemm": (
        check_attribute("alpha", 1.0, 1.0),
        check_attribute("beta", 1.0, 1.0),
        check_constants(B=1, C=2),
        _check_gemm,
    ),
    "MatMul": (check_constants(B=1), _check_matrices),
}
_FLOAT_RULES: Mapping[str, Sequence[Rule]] = {
    "AveragePool": (check_attribute("count_include_pad", 0, 0),),
}


# --- int8 layouts -----------------------------------------------------------------------------


def _find_dtype(graph: Graph, value: QdqValue) -> str:
    return graph.dtype(value.tensor) if value.is_quantized else "not quantized"


def _count_scales(graph: Graph, value: QdqValue) -> int:
    """Return how many scales a tensor has; 0 where they are not constant."""
    scales = graph.constants.get(value.scale)
    return 0 if scales is None else scales.size


def _read_scalar(graph: Graph, name: str, default: float) -> float:
    array: np.ndarray[Any, Any] | None = graph.constants.get(name)
    return default if array is None or array.size != 1 else float(array.item())


def _check_weights(graph: Graph, unit: NodeUnit) -> Refusal | None:
    """Check the types (``GetConvCompType``, ``IsValidQuantConv``, ``GetTensorQuantType``)."""
    first, weights, *_ = unit.inputs
    found = [_find_dtype(graph, value) for value in (first, weights, unit.outputs[0])]
    scales = _count_scales(graph, weights)
    if not scales or not _count_scales(graph, first):
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


def _check_same_8_bits(graph: Graph, unit: NodeUnit) -> Refusal | None:
    found = {_find_dtype(graph, value) for value in (unit.inputs[0], unit.outputs[0])}
    if found in ({"int8"}, {"uint8"}):
        return None
    return Refusal(f"it is quantized as {' and '.join(sorted(found))}, not in 8 bits", _REQUANTIZE)


def _check_uint8(graph: Graph, unit: NodeUnit) -> Refusal | None:
    found = _find_dtype(graph, unit.inputs[0])
    if found == _find_dtype(graph, unit.outputs[0]) == "uint8":
        return None
    return Refusal(f"{unit.op} is quantized as {found}; it is taken as uint8", ON_THE_CPU)


def _check_quantized_average(graph: Graph, unit: NodeUnit) -> Refusal | None:
    """Check that the padding counts, as it must with int8 numbers; with float ones it must not."""
    return _check_uint8(graph, unit) or check_attribute("count_include_pad", 0, 1)(graph, unit)


def _check_quantized_softmax(graph: Graph, unit: NodeUnit) -> Refusal | None:
    out = unit.outputs[0]
    is_unit = abs(_read_scalar(graph, out.scale, 0.0) - 1 / 256) <= 1e-4
    if (
        _check_uint8(graph, unit) is None
        and is_unit
        and _read_scalar(graph, out.zero_point, 0.0) == 0.0
    ):
        return None
    reason = "its result is not uint8 with scale 1/256 and zero point 0"
    return Refusal(reason, ON_THE_CPU)


_QUANTIZED_RULES: Mapping[str, Rule] = {
    "Conv": _check_weights,
    "ConvTranspose": _check_weights,
    "MaxPool": _check_same_8_bits,
    "Resize": _check_same_8_bits,
    "AveragePool": _check_quantized_average,
    "Softmax": _check_quantized_softmax,
}
