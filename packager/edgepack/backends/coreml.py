"""Apple's CoreML, on iOS and macOS: float32 and float16, never int8.

Which operators it has is read from the installed onnxruntime
(:mod:`edgepack.backends.wheel_tables`), for the model format that the provider option
``ModelFormat`` names: NeuralNetwork unless given, or MLProgram. What the nodes must be is read from
the op builders, ``core/providers/coreml/builders/impl`` of onnxruntime main, 2023 to 2026 as each
file was stored (looked up 2026-11-21); 1.31.1's own were not at hand.

Not predicted: weights in external files (onnxruntime refuses them), and the unit (CPU, GPU or
Neural Engine) on which CoreML runs an operator that it takes.
"""

from __future__ import annotations

from math import prod
from typing import Literal

from edgepack.backends.base import Backend, Knob, Misfit, Refusal
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
from edgepack.backends.qdq import DEQUANTIZE, QUANTIZE, NodeUnit, make_single_unit
from edgepack.backends.wheel_tables import WheelOpTable, load_op_table
from edgepack.model.graph import Graph
from edgepack.project.profile import DeviceKind, Variant

Format = Literal["NeuralNetwork", "MLProgram"]

MAX_RANK = 5
"""The limit of every input (helper.cc, ``IsInputSupported``; coremltools issue 832)."""
MAX_CONV_DIMENSION = 16384
"""The limit of a convolution's input and weights (helper.cc, ``CheckShapeForConvMemoryLimit``)."""

_REWRITTEN = {
    "Flatten": "edgepack rewrites Flatten as Reshape (flatten-to-reshape) where the shape is known",
    "BatchNormalization": "edgepack folds it into the convolution before it (fold-batch-norm)",
}


def find_model_format(variant: Variant) -> Format:
    """Return what the variant's provider option ``ModelFormat`` says.

    Source: coreml_options.cc: NeuralNetwork where the option is left out.
    """
    return "MLProgram" if _find_option(variant, "ModelFormat") == "MLProgram" else "NeuralNetwork"


def find_misfits(variant: Variant, device: DeviceKind) -> list[Misfit]:
    """Find float16 models in the NeuralNetwork format, where they stay on the CPU."""
    del device
    if variant.recipe != "fp16" or find_model_format(variant) == "MLProgram":
        return []
    problem = "CoreML's NeuralNetwork format takes no float16 models: all would run on the CPU"
    hint = f"give {BACKEND.provider} the option ModelFormat: MLProgram"
    return [Misfit(("providers",), problem, hint)]


def find_refusals(graph: Graph, variant: Variant) -> dict[int, Refusal]:
    """Return the nodes that CoreML does not take, by index, each with the reason.

    Raises:
        ToolError: The installed onnxruntime has no list of CoreML's operators.
    """
    chosen = find_model_format(variant)
    static = _find_option(variant, "RequireStaticInputShapes") == "1"
    found = {}
    for node in graph.nodes:
        if refusal := _find_refusal(graph, make_single_unit(node), chosen, static=static):
            found[node.index] = refusal
    return found


BACKEND = Backend(
    name="coreml",
    provider="CoreMLExecutionProvider",
    recipes=frozenset({"fp32", "fp16"}),
    # A fixed .ort file has fused operators of the CPU, and CoreML lacks most of them.
    formats=frozenset({"onnx", "ort-runtime"}),
    misfits=find_misfits,
    refusals=find_refusals,
    on_processor=True,
    # Dynamic shapes are taken (slowly), unless the option RequireStaticInputShapes is 1.
    static_shapes=False,
    # Source: the same as nnapi's; not tried on a phone.
    inline_weights=True,
    # Its models are float: what is split here is not quantized.
    early_rewrites=("split-hard-swish", "split-mish", "fuse-clip"),
    rewrites=("flatten-to-reshape", "fold-batch-norm"),
    last_rewrites=("coreml-cache-key",),
    knobs=(
        Knob(
            "SpecializationStrategy",
            ("FastPrediction",),
            "compiles for low latency at the cost of a slower load:"
            " onnxruntime.ai/docs/execution-providers/CoreML-ExecutionProvider.html",
        ),
    ),
)


def find_operator_table(chosen: Format) -> WheelOpTable:
    """Return the list of operators of a model format.

    Raises:
        ToolError: The installed onnxruntime has no such list.
    """
    if chosen == "MLProgram":
        return load_op_table("coreml_supported_mlprogram_ops")
    return load_op_table("coreml_supported_neuralnetwork_ops")


def _find_option(variant: Variant, key: str) -> str:
    return next(
        (p.options.get(key, "") for p in variant.providers if p.name == BACKEND.provider), ""
    )


def _find_refusal(graph: Graph, unit: NodeUnit, chosen: Format, *, static: bool) -> Refusal | None:
    if unit.op in (QUANTIZE, DEQUANTIZE) or "QLinear" in unit.op:
        return Refusal("CoreML takes no quantized tensors", "use fp32 or fp16 with CoreML")
    if unit.op not in find_operator_table(chosen):
        return Refusal(f"CoreML's {chosen} has no {unit.op}", _REWRITTEN.get(unit.op, ON_THE_CPU))
    rules = _PROGRAM_RULES if chosen == "MLProgram" else _NETWORK_RULES
    general = (*((_check_static,) if static else ()), _check_shapes, _check_dtype(chosen))
    return find_first_refusal((*general, *rules.get(unit.op, ())), graph, unit)


# --- shapes and dtypes ------------------------------------------------------------------------


def _check_static(graph: Graph, unit: NodeUnit) -> Refusal | None:
    """Check that all inputs have known dimensions, as RequireStaticInputShapes wants."""
    for value in unit.inputs:
        if value.tensor and not graph.is_static(value.tensor):
            reason = (
                f"{value.tensor!r} has {format_shape(graph.shape(value.tensor))}, and the option"
            )
            return Refusal(f"{reason} RequireStaticInputShapes is 1", FIX_DIMENSIONS)
    return None


def _check_shapes(graph: Graph, unit: NodeUnit) -> Refusal | None:
    """Check that all inputs have a rank up to 5 and no dimension of 0 (``IsInputSupported``)."""
    for value in unit.inputs:
        if not value.tensor:
            continue
        shape = graph.shape(value.tensor)
        if shape is None:
            return Refusal(f"the rank of {value.tensor!r} is not known", FIX_DIMENSIONS)
        if len(shape) > MAX_RANK:
            reason = (
                f"{value.tensor!r} has {format_shape(shape)}; CoreML takes up to"
                f" {MAX_RANK} dimensions"
            )
            return Refusal(reason, EXPORT)
        # Resize may have an empty 'roi' or 'scales'.
        if 0 in shape and unit.op != "Resize":
            return Refusal(f"{value.tensor!r} is empty: {format_shape(shape)}", EXPORT)
    return None


_PROGRAM = f"give {BACKEND.provider} the option ModelFormat: MLProgram"
_NUMBERS = frozenset({"float32", "float16", "int64"})


def _list_dtypes(op: str, chosen: Format) -> frozenset[str]:
    """Return the dtypes that the first input of an operator may have."""
    if op in ("And", "Where"):
        return frozenset({"bool"})
    if chosen == "MLProgram":
        return _NUMBERS | {"int32"} if op in ("Cast", "Shape") else _NUMBERS
    if op == "Cast":
        return frozenset({"int64"})
    return frozenset({"float32", "int64"} if op in ("Gather", "Slice") else {"float32"})


def _check_dtype(chosen: Format) -> Rule:
    """Return the rule that the first input has a dtype of :func:`_list_dtypes`.

    Source: base_op_builder.cc, ``IsInputDtypeSupport``, and the builders that override it; that
    MLProgram takes int64 was read in a tree of March 2026 (1.24).
    """

    def check(graph: Graph, unit: NodeUnit) -> Refusal | None:
        name = find_input_name(unit, 0)
        allowed = _list_dtypes(unit.op, chosen)
        if not name or graph.dtype(name) in allowed:
            return None
        reason = f"the input {name!r} is {graph.dtype(name) or 'of no known type'};"
        takes = " or ".join(sorted(allowed, reverse=True))
        remedy = _PROGRAM if graph.dtype(name) == "float16" else ON_THE_CPU
        return Refusal(f"{reason} {chosen} takes {takes} there", remedy)

    return check


# --- rules of operators -----------------------------------------------------------------------


def _check_conv(graph: Graph, unit: NodeUnit) -> Refusal | None:
    """Check that it is 1-D or 2-D, up to 16384 in each dimension, with kernel_shape as weights."""
    weights = find_shape(graph, unit, 1)
    if weights is None or len(weights) not in (3, 4):
        return Refusal(
            f"its weights have {format_shape(weights)}; CoreML has 1-D and 2-D here", EXPORT
        )
    for shape in (weights, find_shape(graph, unit) or ()):
        if any(isinstance(size, int) and size > MAX_CONV_DIMENSION for size in shape):
            reason = f"{format_shape(shape)} has a dimension over {MAX_CONV_DIMENSION}"
            return Refusal(reason, "run it on smaller inputs")
    kernel = find_attribute(unit, "kernel_shape", list(weights[2:]))
    if list(kernel) != list(weights[2:]):
        return Refusal(f"kernel_shape {kernel} is not that of the weights", EXPORT)
    return None


def _check_conv_transpose(graph: Graph, unit: NodeUnit) -> Refusal | None:
    """Refuse unequal pads, output_shape and output_padding (convtranspose_op_builder.cc)."""
    del graph
    pads = find_attribute(unit, "pads", [0])
    if find_attribute(unit, "output_shape", None) or any(
        find_attribute(unit, "output_padding", [])
    ):
        return Refusal("output_shape and output_padding are not taken", EXPORT)
    if len(set(pads)) > 1:
        return Refusal(f"pads are {pads}; they must all be the same", EXPORT)
    return None


def _check_gemm(graph: Graph, unit: NodeUnit) -> Refusal | None:
    """Check that C of A x B + C is one value or a row (gemm_op_builder.cc)."""
    if not find_input_name(unit, 2):
        return None
    weights, shape = find_shape(graph, unit, 1) or (0, 0), find_shape(graph, unit, 2)
    columns = weights[0 if find_attribute(unit, "transB", 0) else 1]
    if shape in ((), (1,), (columns,), (1, columns)):
        return None
    return Refusal(
        f"C has {format_shape(shape)}; it must be one value or a row of {columns}", EXPORT
    )


def _check_matrices(graph: Graph, unit: NodeUnit) -> Refusal | None:
    shapes = [find_shape(graph, unit, place) for place in (0, 1)]
    if all(shape is not None and len(shape) == 2 for shape in shapes):
        return None
    reason = (
        f"A has {format_shape(shapes[0])} and B {format_shape(shapes[1])};"
        " NeuralNetwork takes matrices"
    )
    return Refusal(reason, _PROGRAM)


def _check_prelu(graph: Graph, unit: NodeUnit) -> Refusal | None:
    """Check that slopes have the shape [C, 1, 1], or are one (activation_op_builder.cc)."""
    shape, slope = find_shape(graph, unit) or (), find_shape(graph, unit, 1) or ()
    count = prod(int(size) for size in slope)
    if count != 1 and not (len(slope) == 3 and slope[1:] == (1, 1)):
        return Refusal(
            f"its slope has {format_shape(slope)}; it must be [C, 1, 1] or one value", EXPORT
        )
    if count == 1 and shape[-3] == 1:
        return Refusal("one slope for one channel makes CoreML crash", EXPORT)
    return None


def _check_reshape(graph: Graph, unit: NodeUnit) -> Refusal | None:
    """Check that the result has up to 5 dimensions (reshape_op_builder.cc)."""
    wanted = find_values(graph, unit, 1) or []
    if not wanted or len(wanted) > MAX_RANK:
        return Refusal(
            f"its new shape is {wanted}; CoreML takes 1 to {MAX_RANK} dimensions", EXPORT
        )
    if find_attribute(unit, "allowzero", 0) and 0 in wanted:
        return Refusal("its new shape has a 0 that allowzero takes literally", EXPORT)
    shape = find_shape(graph, unit) or ()
    kept = [shape[k] for k, size in enumerate(wanted) if size == 0 and k < len(shape)]
    if any(not isinstance(size, int) for size in kept):
        return Refusal("its new shape keeps a dimension that is not fixed", FIX_DIMENSIONS)
    return None


def _check_static_input(graph: Graph, unit: NodeUnit) -> Refusal | None:
    name = find_input_name(unit, 0)
    if graph.is_static(name):
        return None
    return Refusal(
        f"{name!r} has {format_shape(graph.shape(name))}, but must be fixed", FIX_DIMENSIONS
    )


def _check_pad(graph: Graph, unit: NodeUnit) -> Refusal | None:
    """Check that only the last two dimensions grow, by a given constant (pad_op_builder.cc)."""
    if not find_input_name(unit, 2):
        return Refusal("it has no constant_value; CoreML needs one", EXPORT)
    rank = len(find_shape(graph, unit) or ())
    pads = find_values(graph, unit, 1) or []
    axes = find_values(graph, unit, 3) or list(range(rank))
    if any(size < 0 for size in pads):
        return Refusal("it cuts off: negative pads are not taken", EXPORT)
    starts, ends = pads[: len(axes)], pads[len(axes) :]
    for axis, *both in zip(axes, starts, ends, strict=True):
        if axis % rank < rank - 2 and any(both):
            return Refusal("it pads other dimensions than the last two", EXPORT)
    return None


def _check_split(graph: Graph, unit: NodeUnit) -> Refusal | None:
    """Check that there are two or more parts, of known size (split_op_builder.cc)."""
    shape = find_shape(graph, unit) or ()
    parts = find_values(graph, unit, 1)
    count = len(parts) if parts is not None else len(unit.target.outputs)
    if count < 2:
        return Refusal("it makes fewer than 2 parts", EXPORT)
    if isinstance(shape[find_attribute(unit, "axis", 0)], int):
        return None
    return Refusal(
        f"it splits a dimension that is not fixed: {format_shape(shape)}", FIX_DIMENSIONS
    )


def _check_concat(graph: Graph, unit: NodeUnit) -> Refusal | None:
    """Check that a NeuralNetwork joins 4-D tensors along channels (concat_op_builder.cc)."""
    rank = len(find_shape(graph, unit) or ())
    if rank == 4 and find_attribute(unit, "axis", 1) in (1, -3):
        return None
    reason = f"it joins along axis {find_attribute(unit, 'axis', 1)} of rank {rank}"
    return Refusal(f"{reason}; NeuralNetwork joins channels of rank 4", _PROGRAM)


def _check_two_or_more(graph: Graph, unit: NodeUnit) -> Refusal | None:
    del graph
    return None if len(unit.inputs) > 1 else Refusal("it joins one tensor alone", EXPORT)


def _check_unsqueeze(graph: Graph, unit: NodeUnit) -> Refusal | None:
    axes = find_values(graph, unit, 1) or find_attribute(unit, "axes", [])
    rank = len(find_shape(graph, unit) or ()) + len(axes)
    if rank <= MAX_RANK:
        return None
    return Refusal(f"its output has rank {rank}; CoreML takes up to {MAX_RANK}", EXPORT)


def _check_network_cast(graph: Graph, unit: NodeUnit) -> Refusal | None:
    """Check that a NeuralNetwork casts the result of an ArgMax, to int32 (cast_op_builder.cc)."""
    maker = graph.producers.get(find_input_name(unit, 0))
    if maker is not None and maker.op == "ArgMax" and find_attribute(unit, "to", 0) == 6:
        return None
    return Refusal("NeuralNetwork casts nothing but an ArgMax to int32", ON_THE_CPU)


def _check_program_cast(graph: Graph, unit: NodeUnit) -> Refusal | None:
    """Check that it casts to float32, float16, int32 or int64 (cast_op_builder.cc)."""
    del graph
    if find_attribute(unit, "to", 0) in (1, 6, 7, 10):
        return None
    return Refusal("it casts to a type that CoreML does not have", ON_THE_CPU)


def _check_nearest_mode(graph: Graph, unit: NodeUnit) -> Refusal | None:
    """Check that nearest rounds down (resize_op_builder.cc, like all rules of Resize)."""
    del graph
    rounding = find_attribute(unit, "nearest_mode", "round_prefer_floor")
    if find_attribute(unit, "mode", "nearest") != "nearest" or rounding == "floor":
        return None
    return Refusal(f"nearest_mode is {rounding!r}; CoreML has 'floor' alone", EXPORT)


def _check_network_resize(graph: Graph, unit: NodeUnit) -> Refusal | None:
    """Check that height and width grow by whole factors, with 'asymmetric' coordinates."""
    how = find_attribute(unit, "coordinate_transformation_mode", "half_pixel")
    if how != "asymmetric":
        return Refusal(f"coordinates are {how!r}; NeuralNetwork has 'asymmetric' alone", EXPORT)
    factors = _find_factors(graph, unit)
    if isinstance(factors, Refusal):
        return factors
    if all(factor >= 1 and factor == round(factor) for factor in factors):
        return None
    return Refusal(f"it resizes by {factors}; NeuralNetwork takes whole factors", EXPORT)


def _check_program_resize(graph: Graph, unit: NodeUnit) -> Refusal | None:
    """Check that height and width change together; nearest with 'asymmetric', linear with most."""
    how = find_attribute(unit, "coordinate_transformation_mode", "half_pixel")
    by_sizes = find_values(graph, unit, 3) is not None
    if find_attribute(unit, "mode", "nearest") == "nearest":
        allowed = ["asymmetric"]
    else:
        allowed = ["half_pixel", "pytorch_half_pixel", "align_corners"] + by_sizes * ["asymmetric"]
    if how not in allowed:
        return Refusal(f"coordinates are {how!r}; CoreML has {' or '.join(allowed)} here", EXPORT)
    factors = _find_factors(graph, unit)
    if isinstance(factors, Refusal):
        return factors
    return None if by_sizes else _check_factors(graph, unit, factors)


def _check_factors(graph: Graph, unit: NodeUnit, factors: list[float]) -> Refusal | None:
    """Check that both grow by whole factors, or both shrink without a remainder."""
    shape = (find_shape(graph, unit) or ())[-2:]
    grow = all(f >= 1 and f == round(f) for f in factors)
    shrink = all(
        f <= 1 and isinstance(size, int) and size * f == round(size * f)
        for f, size in zip(factors, shape, strict=True)
    )
    return None if grow or shrink else Refusal(f"it resizes by {factors}", EXPORT)


def _find_factors(graph: Graph, unit: NodeUnit) -> list[float] | Refusal:
    """Return the constant factors of height and width, if nothing else changes."""
    shape = find_shape(graph, unit) or ()
    scales, sizes = find_values(graph, unit, 2), find_values(graph, unit, 3)
    if not scales and not sizes:
        return Refusal("neither scales nor sizes are constant", MAKE_CONSTANT)
    axes = [axis % len(shape) for axis in find_attribute(unit, "axes", range(len(shape)))]
    found = dict.fromkeys(range(len(shape)), 1.0)
    for place, axis in enumerate(axes):
        old = shape[axis]
        if not sizes:
            found[axis] = (scales or ())[place]
        elif isinstance(old, int):
            found[axis] = sizes[place] / old
        else:
            return Refusal(
                f"its input has {format_shape(shape)}, but sizes are given", FIX_DIMENSIONS
            )
    factors = [found[axis] for axis in sorted(found)]
    if any(factor != 1 for factor in factors[:-2]):
        return Refusal("it resizes batch or channels", EXPORT)
    return factors[-2:]


def _check_gather(graph: Graph, unit: NodeUnit) -> Refusal | None:
    """Refuse one index, which takes a dimension away (gather_op_builder.cc; the list's note)."""
    indices = find_shape(graph, unit, 1)
    if indices == ():
        return Refusal("its index is a scalar", "export it with a list of indices and a Squeeze")
    rank = len(find_shape(graph, unit) or ()) + len(indices or ()) - 1
    if rank > MAX_RANK:
        return Refusal(f"its output has rank {rank}; CoreML takes up to {MAX_RANK}", EXPORT)
    return None


def _check_pow(graph: Graph, unit: NodeUnit) -> Refusal | None:
    """Check that both inputs have one type (binary_op_builder.cc)."""
    first, second = (graph.dtype(find_input_name(unit, place)) for place in (0, 1))
    return None if first == second else Refusal(f"its inputs are {first} and {second}", EXPORT)


def _check_grid_sample(graph: Graph, unit: NodeUnit) -> Refusal | None:
    """Check that the node fits the note in onnxruntime's list."""
    del graph
    mode = find_attribute(unit, "mode", "linear")
    padding, aligned = (
        find_attribute(unit, "padding_mode", "zeros"),
        find_attribute(unit, "align_corners", 0),
    )
    if mode not in ("linear", "bilinear", "nearest") or (padding == "reflection" and not aligned):
        return Refusal(f"mode {mode!r} with padding {padding!r} is not taken", EXPORT)
    return None


def _check_where(graph: Graph, unit: NodeUnit) -> Refusal | None:
    dtype = graph.dtype(find_input_name(unit, 1))
    fits = dtype in ("float32", "float16")
    return None if fits else Refusal(f"it chooses between {dtype}, not floats", ON_THE_CPU)


_4D = check_rank(4)
_POOL: tuple[Rule, ...] = (
    _4D,
    check_attribute("storage_order", 0, 0),
    check_kernel_2d,
    check_ones("dilations"),
    check_one_output,
)
_BINARY: tuple[Rule, ...] = (check_opset(7),)
_NORM: tuple[Rule, ...] = (
    check_one_output,
    check_attribute("stash_type", 1, 1),
    check_constants(scale=1, B=2),
)
_GEMM: tuple[Rule, ...] = (
    check_attribute("transA", 0, 0),
    check_attribute("alpha", 1.0, 1.0),
    check_attribute("beta", 1.0, 1.0),
    check_constants(B=1, C=2),
    _check_gemm,
)
_SLICE = (_check_static_input, check_opset(10), check_constants(starts=1, ends=2, axes=3, steps=4))
_RESHAPE: tuple[Rule, ...] = (check_opset(5), check_constants(shape=1), _check_reshape)

_RESIZE: tuple[Rule, ...] = (
    check_opset(11),
    check_attribute("mode", "nearest", "nearest", "linear"),
    check_attribute("exclude_outside", 0, 0),
    check_attribute("antialias", 0, 0),
    check_attribute("keep_aspect_ratio_policy", "stretch", "stretch"),
    _check_nearest_mode,
)

_SHARED: dict[str, tuple[Rule, ...]] = {
    **dict.fromkeys(("Add", "Div", "Mul", "Sub"), _BINARY),
    "ArgMax": (check_attribute("select_last_index", 0, 0),),
    "Clip": (check_constants(min=1, max=2),),
    "Gemm": _GEMM,
    "GlobalAveragePool": (_4D,),
    "GlobalMaxPool": (_4D,),
    "PRelu": (check_rank(3, 4), check_constants(slope=1), _check_prelu),
    "Pow": (*_BINARY, _check_pow),
    "ReduceMean": (check_constants(axes=1),),
    "ReduceSum": (check_constants(axes=1),),
    "Slice": _SLICE,
    "Softmax": (_check_static_input,),
    "Split": (check_constants(split=1), _check_split),
    "Squeeze": (check_constants(axes=1),),
}

_NETWORK_RULES: dict[str, tuple[Rule, ...]] = {
    **_SHARED,
    "AveragePool": (*_POOL, check_attribute("ceil_mode", 0, 0)),
    "BatchNormalization": (check_one_output, _4D, check_constants(scale=1, B=2, mean=3, var=4)),
    "Cast": (_check_network_cast,),
    "Concat": (_check_two_or_more, _check_concat),
    "Conv": (check_constants(W=1, B=2), _check_conv),
    "DepthToSpace": (check_attribute("mode", "DCR", "DCR"),),
    "Gather": (_check_gather,),
    "MatMul": (check_constants(B=1), _check_matrices),
    "MaxPool": (*_POOL, check_attribute("ceil_mode", 0, 0)),
    "Pad": (
        check_opset(11),
        check_attribute("mode", "constant", "constant"),
        check_constants(pads=1, constant_value=2, axes=3),
        _check_pad,
    ),
    "Reshape": (*_RESHAPE, _check_static_input),
    "Resize": (_4D, *_RESIZE, _check_network_resize),
    "Shape": (check_attribute("start", 0, 0), check_attribute("end", None, None)),
}

_PROGRAM_RULES: dict[str, tuple[Rule, ...]] = {
    **_SHARED,
    "AveragePool": _POOL,
    "Cast": (_check_program_cast,),
    "Concat": (_check_two_or_more,),
    "Conv": (check_constants(B=2), _check_conv),
    "ConvTranspose": (
        check_constants(W=1, B=2),
        check_attribute("auto_pad", "NOTSET", "NOTSET", "VALID"),
        _check_conv,
        _check_conv_transpose,
    ),
    "GatherND": (check_attribute("batch_dims", 0, 0),),
    "GridSample": (_4D, _check_grid_sample),
    "GroupNormalization": _NORM,
    "InstanceNormalization": _NORM,
    "LayerNormalization": _NORM,
    "Max": (*_BINARY,),
    "MaxPool": _POOL,
    "ReduceMax": (check_constants(axes=1),),
    "Reshape": _RESHAPE,
    "Resize": (check_rank(3, 4, 5), *_RESIZE, _check_program_resize),
    "Unsqueeze": (check_constants(axes=1), _check_unsqueeze),
    "Where": (_check_where,),
    "com.microsoft:FusedConv": (check_constants(B=2), _check_conv),
}
