"""Android's NNAPI, which Google deprecated in Android 15: it takes known shapes, and uint8.

Which operators it has is read from the installed onnxruntime
(:mod:`edgepack.backends.wheel_tables`). What the nodes must be is read from the op builders,
``core/providers/nnapi/nnapi_builtin/builders`` of onnxruntime main, 2023 to 2026 as each file was
stored (looked up 2026-11-21); 1.31.1's own were not available. The rules are those of Android 11
(API level 30): older versions of NNAPI have fewer operators, and the first one, 27, has no Abs,
Cast, Gather or Pow.

The builders' limit of opset 28 is above what onnxruntime 1.31.1 loads, so there is no rule for
that. Not predicted: transposes that onnxruntime adds for NHWC, weights in external files (refused),
and what the phone's driver does with an operator that onnxruntime hands to NNAPI.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from edgepack.backends.base import Backend, Misfit, Refusal, find_partitions
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
    check_opset,
    check_rank,
    find_attribute,
    find_first_refusal,
    find_input_name,
    find_shape,
    find_values,
    format_shape,
)
from edgepack.backends.qdq import NodeUnit, QdqValue, find_node_units, spread_refusals
from edgepack.backends.wheel_tables import load_op_table
from edgepack.model.graph import Graph
from edgepack.project.profile import DeviceKind, Variant

MIN_API_LEVEL = 27
"""The lowest API level with NNAPI. Source: nnapi_lib, ``GetMinSupportedNNAPIFeatureLevel``."""
STOP_OPS_KEY = "ep.nnapi.partitioning_stop_ops"
"""Session config key; its default is NonMaxSuppression (session_options_config_keys.h)."""

INT8_GROUPS = frozenset({
    "Add", "AveragePool", "Concat", "Conv", "Gemm", "MatMul", "Mul", "Reshape", "Resize", "Softmax",
    "Transpose",
})  # fmt: skip
"""Operators that it takes with their Q/DQ nodes (helper.cc, ``GetQuantizedOpType``)."""

_WEIGHTED = frozenset({"Conv", "Gemm", "MatMul", "QLinearConv", "QLinearMatMul"})
_UINT8_TOO = frozenset({"Concat", "MaxPool", "Resize", "Transpose"})
_COPIES = frozenset({"Flatten", "Identity", "Reshape"})


def find_misfits(variant: Variant, device: DeviceKind) -> list[Misfit]:
    """Find int8 activations, scales per channel with uint8 weights, and Android before 8.1."""
    found = []
    if device.os == "android" and int(device.min_version or 0) < MIN_API_LEVEL:
        problem = f"NNAPI begins with Android API level {MIN_API_LEVEL}, not {device.min_version}"
        found.append(Misfit(("backend",), problem, f"write min_version: '{MIN_API_LEVEL}'"))
    dialect = variant.dialect
    if dialect and dialect.activations != "uint8":
        problem = f"NNAPI takes no {dialect.activations} activations: all would run on the CPU"
        found.append(Misfit(("dialect", "activations"), problem, "write activations: uint8"))
    if dialect and dialect.per_channel and dialect.weights != "int8":
        problem = "NNAPI takes one scale per channel only with int8 weights"
        hint = "write weights: int8, or per_channel: false"
        found.append(Misfit(("dialect", "per_channel"), problem, hint))
    return found


def find_refusals(graph: Graph, variant: Variant) -> dict[int, Refusal]:
    """Return the nodes that NNAPI does not take, by index, each with the reason.

    Raises:
        ToolError: The installed onnxruntime has no list of NNAPI's operators.
    """
    units = find_node_units(graph)
    refused: dict[NodeUnit, Refusal] = {}
    for unit in units:
        if refusal := _find_refusal(graph, unit):
            refused[unit] = refusal
    refused |= _refuse_behind_stop_ops(units, refused, variant)
    refused |= _refuse_uint8_from_outside(graph, units, refused)
    return spread_refusals(refused) | _refuse_lone_copies(graph, spread_refusals(refused))


BACKEND = Backend(
    name="nnapi",
    provider="NnapiExecutionProvider",
    # Half precision is the flag USE_FP16 on a float32 model, not another model.
    recipes=frozenset({"fp32", "int8-static"}),
    # A fixed .ort file has fused operators of the CPU, which NNAPI lacks.
    formats=frozenset({"onnx", "ort-runtime"}),
    misfits=find_misfits,
    refusals=find_refusals,
    early_rewrites=("split-hard-swish", "fuse-clip", "fuse-mish"),
    last_rewrites=("split-mish",),
    on_processor=True,
    static_shapes=True,
    # Source: HasExternalInitializer in core/providers/{coreml,nnapi}/.../base_op_builder.cc of
    # onnxruntime (read as stored, looked up 2026-11-21; not tried on a phone).
    inline_weights=True,
    per_tensor_ops=("Gemm", "MatMul"),
)


def _find_refusal(graph: Graph, unit: NodeUnit) -> Refusal | None:
    if unit.op not in load_op_table("nnapi_supported_ops"):
        return Refusal(f"NNAPI has no {unit.op}", ON_THE_CPU)
    if unit.is_group and unit.op not in INT8_GROUPS:
        return Refusal(f"NNAPI has no int8 {unit.op}, only {', '.join(sorted(INT8_GROUPS))}", _OUT)
    rules = (_check_static, _check_dtype, *_RULES.get(unit.op, ()))
    return find_first_refusal(rules, graph, unit)


_OUT = "it runs on the CPU in int8; if that splits the model too much, export it differently"


# --- rules of more than one node --------------------------------------------------------------


def _refuse_behind_stop_ops(
    units: Sequence[NodeUnit], refused: dict[NodeUnit, Refusal], variant: Variant
) -> dict[NodeUnit, Refusal]:
    """Refuse nodes behind a stop operator (nnapi_execution_provider.cc, ``GetCapability``)."""
    listed = variant.session.config.get(STOP_OPS_KEY, "NonMaxSuppression")
    stops = {op.strip() for op in listed.split(",")}
    reached: dict[str, str] = {}
    found = {}
    for unit in units:
        stop = unit.op if unit.op in stops else None
        reads = (*(v.tensor for v in unit.inputs), *unit.target.outer_inputs)
        stop = stop or next((reached[name] for name in reads if name in reached), None)
        if stop is None:
            continue
        reached.update(dict.fromkeys((name for n in unit.nodes for name in n.outputs), stop))
        if unit not in refused:
            reason = f"it depends on {stop}, behind which onnxruntime gives NNAPI nothing"
            found[unit] = Refusal(reason, f"set the session config {STOP_OPS_KEY} to change that")
    return found


def _refuse_uint8_from_outside(
    graph: Graph, units: Sequence[NodeUnit], refused: dict[NodeUnit, Refusal]
) -> dict[NodeUnit, Refusal]:
    """Refuse uint8 tensors from outside: NNAPI cannot know their scale.

    Source: helper.cc, ``IsInternalQuantizationSupported``.
    """
    taken = {node.index for unit in units if unit not in refused for node in unit.nodes}
    found = {}
    for unit in units:
        if unit in refused or unit.is_group or unit.op not in _UINT8_TOO:
            continue
        names = [v.tensor for v in (unit.inputs if unit.op == "Concat" else unit.inputs[:1])]
        makers = [graph.producers.get(name) for name in names]
        inside = all(maker is not None and maker.index in taken for maker in makers)
        if graph.dtype(names[0]) == "uint8" and not inside:
            reason = f"its uint8 input {names[0]!r} comes without a scale from outside NNAPI"
            found[unit] = Refusal(reason, ON_THE_CPU)
            taken.discard(unit.target.index)
    return found


def _refuse_lone_copies(graph: Graph, refused: dict[int, Refusal]) -> dict[int, Refusal]:
    """Refuse pieces of one node that only copies (helper.cc, ``IsValidSupportedNodeGroup``)."""
    taken = [node for node in graph.nodes if node.index not in refused]
    lone = [piece[0] for piece in find_partitions(graph, taken) if len(piece) == 1]
    refusal = Refusal("alone it only copies, and onnxruntime hands it back to the CPU", ON_THE_CPU)
    return {node.index: refusal for node in lone if node.qualified_op in _COPIES}


# --- shapes and dtypes ------------------------------------------------------------------------


def _check_static(graph: Graph, unit: NodeUnit) -> Refusal | None:
    """Check that all dimensions are known (base_op_builder.cc, ``HasSupportedInputOutputs``)."""
    names = [name for v in unit.inputs for name in (v.tensor, v.scale, v.zero_point) if name]
    for name in names:
        if not graph.is_static(name):
            reason = (
                f"the input {name!r} has {format_shape(graph.shape(name))}; NNAPI"
                " takes fixed shapes"
            )
            return Refusal(reason, FIX_DIMENSIONS)
    return None


def _check_dtype(graph: Graph, unit: NodeUnit) -> Refusal | None:
    if any(value.is_quantized for value in (*unit.inputs, *unit.outputs)):
        return _check_quantized(graph, unit)
    return _check_floats(graph, unit)


def _check_floats(graph: Graph, unit: NodeUnit) -> Refusal | None:
    """Check that the first input, of Pow both, is float32, or uint8 for some operators."""
    places = (0, 1) if unit.op == "Pow" else (0,)
    allowed = ("float32", "uint8") if unit.op in _UINT8_TOO else ("float32",)
    for place in places:
        name = find_input_name(unit, place)
        if (found := graph.dtype(name)) not in allowed:
            reason = f"the input {name!r} is {found or 'of no known type'}, not {allowed[0]}"
            return Refusal(reason, ON_THE_CPU)
    return None


def _check_quantized(graph: Graph, unit: NodeUnit) -> Refusal | None:
    """Check that tensors are uint8 (weights int8 too), scales and zero points constant.

    The bias of a Conv or Gemm is not looked at here. Source: op_builder_helpers.cc,
    ``IsQuantizedIOSupported``.
    """
    limit = 2 if unit.op in _WEIGHTED else len(unit.inputs)
    for place, value in enumerate((*unit.inputs[:limit], *unit.outputs)):
        is_weight = place == 1 and unit.op in _WEIGHTED
        if value.is_quantized and (
            refusal := _check_tensor(graph, unit, value, is_weight=is_weight)
        ):
            return refusal
    return None


def _check_tensor(
    graph: Graph, unit: NodeUnit, value: QdqValue, *, is_weight: bool
) -> Refusal | None:
    dtype = graph.dtype(value.tensor)
    signed = is_weight and dtype == "int8"
    if dtype != "uint8" and not signed:
        wanted = "uint8 or int8" if is_weight else "uint8"
        reason = f"{value.tensor!r} is {dtype}; NNAPI takes {wanted} there"
        return Refusal(reason, f"quantize with {'weights' if is_weight else 'activations'}: uint8")
    for name in filter(None, (value.scale, value.zero_point)):
        if not graph.is_constant(name):
            return Refusal(f"the scale or zero point {name!r} is computed", MAKE_CONSTANT)
    if signed:
        return _check_signed_weights(graph, unit, value)
    if any(graph.constants[n].size != 1 for n in (value.scale, value.zero_point) if n):
        return Refusal(
            f"{value.tensor!r} has a scale per channel, which only int8 weights may", _PER
        )
    return None


_PER = "quantize with per_channel: false, or weights: int8"


def _check_signed_weights(graph: Graph, unit: NodeUnit, value: QdqValue) -> Refusal | None:
    """Check that int8 weights have zero point 0, and one scale or, not in MatMul, one a channel."""
    scales = graph.constants[value.scale].size
    shape = graph.shape(value.tensor) or (0,)
    if value.zero_point and np.any(graph.constants[value.zero_point]):
        return Refusal("its int8 weights have a zero point that is not 0", "quantize them anew")
    if scales == 1:
        return None
    if unit.op in ("MatMul", "QLinearMatMul"):
        return Refusal("its weights have a scale per channel, which NNAPI has in Conv alone", _PER)
    if scales != shape[0]:
        reason = (
            f"its weights have {scales} scales for {format_shape(shape)}: not one for"
            " each first index"
        )
        return Refusal(reason, _PER)
    return None


# --- rules of operators -----------------------------------------------------------------------


def _check_conv(graph: Graph, unit: NodeUnit) -> Refusal | None:
    """Check that it is 2-D, and dilated only where it is not grouped (conv_op_builder.cc)."""
    shape = find_shape(graph, unit, 1)
    if shape is None or len(shape) != 4:
        return Refusal(
            f"its weights have {format_shape(shape)}; NNAPI has 2-D convolutions alone", EXPORT
        )
    dilated = set(find_attribute(unit, "dilations", [1])) != {1}
    if dilated and find_attribute(unit, "group", 1) != 1 and shape[1] != 1:
        return Refusal("it is grouped and dilated, which NNAPI does not have together", EXPORT)
    if unit.is_group or unit.op == "QLinearConv":
        return check_constants(bias=2)(graph, unit)
    return None


def _check_gemm(graph: Graph, unit: NodeUnit) -> Refusal | None:
    """Check that it is A x B + C of matrices, C a row (gemm_op_builder.cc)."""
    transposed = find_attribute(unit, "transB", 0)
    bias = check_constants(C=2)(graph, unit) if unit.is_group else None
    if not transposed and not graph.is_constant(find_input_name(unit, 1)):
        return Refusal("B is computed; it must be constant unless transB is 1", MAKE_CONSTANT)
    if bias or not find_input_name(unit, 2):
        return bias
    weights, row = find_shape(graph, unit, 1), find_shape(graph, unit, 2)
    columns = (weights or (0, 0))[0 if transposed else 1]
    if not row or set(row[:-1]) - {1} or row[-1] != columns:
        return Refusal(f"C has {format_shape(row)}; it must be a row of {columns}", EXPORT)
    return None


def _check_matmul(graph: Graph, unit: NodeUnit) -> Refusal | None:
    """Check that B is a constant matrix, or both are equal float batches (gemm_op_builder.cc)."""
    first, second = find_shape(graph, unit, 0), find_shape(graph, unit, 1)
    if _is_batch(first, second) and not unit.is_group and unit.op == "MatMul":
        return None
    if [len(shape or ()) for shape in (first, second)] != [2, 2]:
        reason = (
            f"A has {format_shape(first)} and B {format_shape(second)}; they must be"
            " matrices or equal batches"
        )
        return Refusal(reason, EXPORT)
    return check_constants(B=1)(graph, unit)


def _is_batch(first: Sequence[int | str] | None, second: Sequence[int | str] | None) -> bool:
    if first is None or second is None or len(first) < 3 or len(first) != len(second):
        return False
    return tuple(first[:-2]) == tuple(second[:-2])


def _check_both_ranks(graph: Graph, unit: NodeUnit) -> Refusal | None:
    for place in (0, 1):
        shape = find_shape(graph, unit, place)
        if shape is None or len(shape) > 4:
            reason = (
                f"{find_input_name(unit, place)!r} has {format_shape(shape)}; NNAPI"
                " takes up to 4 dimensions"
            )
            return Refusal(reason, EXPORT)
    return None


def _check_two_inputs(graph: Graph, unit: NodeUnit) -> Refusal | None:
    del graph
    found = len(unit.inputs)
    return None if found == 2 else Refusal(f"it has {found} inputs; NNAPI takes 2", EXPORT)


def _check_average_scale(graph: Graph, unit: NodeUnit) -> Refusal | None:
    """Check that an int8 AveragePool keeps scale and zero point (pool_op_builder.cc)."""
    before, behind = unit.inputs[0], unit.outputs[0]
    if not before.is_quantized:
        return None
    pairs = ((before.scale, behind.scale), (before.zero_point, behind.zero_point))
    if all(_read_scalar(graph, one) == _read_scalar(graph, other) for one, other in pairs):
        return None
    return Refusal("its input and output have different scales or zero points", _OUT)


def _check_softmax_scale(graph: Graph, unit: NodeUnit) -> Refusal | None:
    """Check that an int8 Softmax or Sigmoid has the output scale 1/256 (softmax_op_builder.cc)."""
    result = unit.outputs[0]
    if not result.is_quantized:
        return None
    scale, zero_point = _read_scalar(graph, result.scale), _read_scalar(graph, result.zero_point)
    if scale == float(np.float32(1 / 256)) and zero_point == 0:
        return None
    reason = f"its output has scale {scale:.6g} and zero point {zero_point:g}; only 1/256 and 0 go"
    return Refusal(reason, _OUT)


def _read_scalar(graph: Graph, name: str) -> float:
    return float(graph.constants[name].item()) if name else 0.0


def _check_softmax_rank(graph: Graph, unit: NodeUnit) -> Refusal | None:
    # Before opset 13 Softmax works on a matrix, whatever the rank.
    return check_rank(0, 1, 2, 3, 4)(graph, unit) if graph.opset >= 13 else None


def _check_cast(graph: Graph, unit: NodeUnit) -> Refusal | None:
    """Check that it casts to float32 or int32 (cast_op_builder.cc)."""
    del graph
    if find_attribute(unit, "to", 0) in (1, 6):
        return None
    return Refusal("it casts to another type than float32 or int32", ON_THE_CPU)


def _check_clip(graph: Graph, unit: NodeUnit) -> Refusal | None:
    """Check that it clips to [0, 6] or [-1, 1] (clip_op_builder.cc)."""
    if refusal := check_constants(min=1, max=2)(graph, unit):
        return refusal
    bounds = tuple(
        _find_bound(graph, unit, place, name) for place, name in ((1, "min"), (2, "max"))
    )
    if bounds in ((0, 6), (-1, 1)):
        return None
    return Refusal(f"it clips to {bounds}; NNAPI has (0, 6) and (-1, 1) alone", EXPORT)


def _find_bound(graph: Graph, unit: NodeUnit, place: int, name: str) -> Any:  # noqa: ANN401
    found = find_values(graph, unit, place)
    return found[0] if found else find_attribute(unit, name, None)


def _check_reshape(graph: Graph, unit: NodeUnit) -> Refusal | None:
    if find_attribute(unit, "allowzero", 0) == 1 and 0 in (find_values(graph, unit, 1) or ()):
        return Refusal("its new shape has a 0 that allowzero takes literally", EXPORT)
    return None


def _check_gather(graph: Graph, unit: NodeUnit) -> Refusal | None:
    """Check that indices are constant unless int32 (gather_op_builder.cc)."""
    if graph.dtype(find_input_name(unit, 1)) == "int32":
        return None
    return check_constants(indices=1)(graph, unit)


def _check_not_empty(graph: Graph, unit: NodeUnit) -> Refusal | None:
    shape = find_shape(graph, unit)
    return Refusal(f"its input has {format_shape(shape)}", EXPORT) if shape and 0 in shape else None


def _check_pad(graph: Graph, unit: NodeUnit) -> Refusal | None:
    if any(size < 0 for size in find_values(graph, unit, 1) or ()):
        return Refusal("it cuts off: negative pads are not taken", EXPORT)
    return None


def _check_split(graph: Graph, unit: NodeUnit) -> Refusal | None:
    """Check that the parts are equal (split_op_builder.cc)."""
    shape = find_shape(graph, unit) or ()
    size = int(shape[find_attribute(unit, "axis", 0)])
    parts = find_values(graph, unit, 1) or find_attribute(unit, "split", None)
    equal = len(set(parts)) == 1 if parts else size % len(unit.outputs) == 0
    return None if equal else Refusal(f"it splits {size} into unequal parts", EXPORT)


def _check_resize_mode(graph: Graph, unit: NodeUnit) -> Refusal | None:
    """Check that it is linear, or nearest of a few kinds (resize_op_builder.cc)."""
    del graph
    how = find_attribute(unit, "coordinate_transformation_mode", "half_pixel")
    if find_attribute(unit, "mode", "nearest") == "linear":
        fits = how in ("half_pixel", "align_corners", "asymmetric")
    else:
        fits = (how, find_attribute(unit, "nearest_mode", "round_prefer_floor")) == (
            "asymmetric",
            "floor",
        )
    if fits:
        return None
    return Refusal(
        f"coordinates {how!r}: NNAPI resizes nearest only 'asymmetric' with 'floor'", EXPORT
    )


def _check_resize_size(graph: Graph, unit: NodeUnit) -> Refusal | None:
    """Check that only height and width change, and that they shrink without a remainder."""
    shape = find_shape(graph, unit) or ()
    scales, sizes = find_values(graph, unit, 2), find_values(graph, unit, 3)
    if not scales and not sizes:
        return Refusal("neither scales nor sizes are constant", MAKE_CONSTANT)
    factors = scales or [new / int(old) for new, old in zip(sizes or (), shape, strict=True)]
    channel = 1 if factors[1] == 1 else 3
    if factors[0] != 1 or factors[channel] != 1:
        return Refusal(f"it resizes batch or channels: {factors}", EXPORT)
    if scales and any(f < 1 and int(s) * f % 1 for f, s in zip(scales, shape, strict=True)):
        return Refusal(f"it shrinks {format_shape(shape)} by {factors} with a remainder", EXPORT)
    return None


def _check_reduce(graph: Graph, unit: NodeUnit) -> Refusal | None:
    del graph
    if find_attribute(unit, "noop_with_empty_axes", 0):
        return Refusal("noop_with_empty_axes is set", EXPORT)
    return None


_UP_TO_4D = check_rank(1, 2, 3, 4)
_4D = check_rank(4)
_POOL: tuple[Rule, ...] = (
    _4D,
    check_attribute("count_include_pad", 0, 0),
    check_attribute("storage_order", 0, 0),
    check_attribute("ceil_mode", 0, 0),
    check_kernel_2d,
    check_ones("dilations"),
    check_one_output,
)
_BINARY: tuple[Rule, ...] = (check_opset(7), _check_both_ranks)
_UNARY: tuple[Rule, ...] = (check_opset(6),)
_STATISTICS = check_constants(scale=1, B=2, mean=3, var=4)
_SCORE: tuple[Rule, ...] = (_check_softmax_scale,)

_RULES: dict[str, tuple[Rule, ...]] = {
    **dict.fromkeys(("Add", "Div", "Mul", "PRelu", "Pow", "Sub"), _BINARY),
    **dict.fromkeys(("Abs", "Exp", "Floor", "Log", "Neg", "Sin", "Sqrt", "Tanh"), _UNARY),
    "AveragePool": (*_POOL, _check_average_scale),
    "BatchNormalization": (check_one_output, check_rank(1, 2, 3, 4), _STATISTICS),
    "Cast": (check_opset(6), _check_cast),
    "Clip": (_check_clip,),
    "Concat": (_UP_TO_4D,),
    "Conv": (check_constants(W=1), _check_conv),
    "DepthToSpace": (_4D, check_attribute("mode", "DCR", "DCR")),
    "Flatten": (_UP_TO_4D,),
    "Gather": (_UP_TO_4D, _check_not_empty, _check_gather),
    "Gemm": (
        check_opset(7),
        check_rank(2),
        check_attribute("transA", 0, 0),
        check_attribute("alpha", 1.0, 1.0),
        check_attribute("beta", 1.0, 1.0),
        _check_gemm,
    ),
    "GlobalAveragePool": (_4D,),
    "GlobalMaxPool": (_4D,),
    "LRN": (_4D,),
    "LeakyRelu": (check_opset(6),),
    "MatMul": (_check_matmul,),
    "Max": (check_opset(6), _check_two_inputs),
    "MaxPool": _POOL,
    "Min": (check_opset(6), _check_two_inputs),
    "Pad": (
        check_opset(11),
        _UP_TO_4D,
        _check_not_empty,
        check_attribute("mode", "constant", "constant"),
        check_constants(pads=1, constant_value=2),
        _check_pad,
    ),
    "QLinearConv": (check_constants(w=1), _check_conv),
    "QLinearMatMul": (_check_matmul,),
    "ReduceMean": (_UP_TO_4D, check_constants(axes=1), _check_reduce),
    "Reshape": (check_opset(5), check_constants(shape=1), _UP_TO_4D, _check_reshape),
    "Resize": (
        check_opset(11),
        _4D,
        check_attribute("mode", "nearest", "nearest", "linear"),
        check_attribute("exclude_outside", 0, 0),
        check_attribute("antialias", 0, 0),
        check_attribute("axes", [], []),
        check_attribute("keep_aspect_ratio_policy", "stretch", "stretch"),
        _check_resize_mode,
        _check_resize_size,
    ),
    "Sigmoid": (check_opset(6), _UP_TO_4D),
    "Slice": (
        check_opset(10),
        check_rank(0, 1, 2, 3, 4),
        _check_not_empty,
        check_constants(starts=1, ends=2, axes=3, steps=4),
    ),
    "Softmax": (_check_softmax_rank, *_SCORE),
    "Split": (check_constants(split=1), _check_split),
    "Squeeze": (_UP_TO_4D, check_constants(axes=1)),
    "Transpose": (_UP_TO_4D,),
    "Unsqueeze": (_UP_TO_4D, check_constants(axes=1)),
    "com.microsoft:QLinearAdd": (_check_both_ranks,),
    "com.microsoft:QLinearAveragePool": (*_POOL, _check_average_scale),
    "com.microsoft:QLinearSigmoid": _SCORE,
}
