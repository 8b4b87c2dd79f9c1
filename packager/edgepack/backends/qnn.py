"""Qualcomm's QNN: phones and boards with a Hexagon processor (HTP), quantized models above all.

The provider takes node units (QDQ groups) by operator, compiles them, and wants every dimension
known. The operators are in ``data/qnn.yaml``. int8 there means uint8 or uint16 activations; float
models run in float16, on an HTP of version 73 or newer, with two options.

Sources: Qualcomm's simulator in onnxruntime-qnn 2.7.0 for x86-64, which also says why it refuses a
node (tried 2026-11-26, ``make placement``); onnxruntime/onnxruntime-qnn, the documentation of
provider 2.3.0 and ``builder/opbuilder/{gemm,resize}_op_builder.cc`` (stored copies of 2026). That
tensors have 5 dimensions at most is inferred: the provider fuses patterns just to avoid 6.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import cycle

from edgepack.backends.base import Backend, Knob, Misfit, Refusal
from edgepack.backends.builder_rules import (
    EXPORT,
    FIX_DIMENSIONS,
    MAKE_CONSTANT,
    ON_THE_CPU,
    Rule,
    check_attribute,
    check_constants,
    check_ones,
    find_attribute,
    find_first_refusal,
    find_values,
    format_shape,
)
from edgepack.backends.op_table import find_kernel_refusal, read_table
from edgepack.backends.qdq import (
    DEQUANTIZE,
    QUANTIZE,
    NodeUnit,
    find_node_units,
    spread_refusals,
)
from edgepack.model.graph import Graph
from edgepack.project.profile import DeviceKind, Variant

_MAX_RANK = 5
_ACTIVATIONS = ("uint8", "uint16")
_TAKEN = ("uint8", "uint16", "int8", "int16")
_REQUANTIZE = "quantize with activations: uint8 or uint16, and weights: int8 per channel"


def find_misfits(variant: Variant, device: DeviceKind) -> list[Misfit]:
    """Find dialects that the HTP does not run as integers, and options that float models need.

    Source: the provider's documentation ("QNN operators typically support the uint8 and uint16
    data types"; int8 activations are taken, and were computed wrongly, -0.1 dB, for one of three
    models); for weights per channel, ``get_qnn_qdq_config`` of onnxruntime 1.31.1; for float models
    the simulator: without the options it compiles no larger graph, and with one of them alone
    there is no session.
    """
    del device
    dialect = variant.dialect
    if dialect is None:
        return list(_find_missing_options(variant))
    found = []
    if dialect.activations not in _ACTIVATIONS:
        problem = f"QNN takes activations as uint8 or uint16, not as {dialect.activations}"
        hint = "write activations: uint8, or uint16 for accuracy"
        found.append(Misfit(("dialect", "activations"), problem, hint))
    if dialect.per_channel and dialect.weights != "int8":
        problem = f"QNN takes {dialect.weights} weights with one scale per tensor"
        hint = "write weights: int8, or per_channel: false"
        found.append(Misfit(("dialect", "per_channel"), problem, hint))
    if dialect.bias == "float32":
        problem = "QNN takes quantized operators with an int32 bias, not with a float one"
        found.append(Misfit(("dialect", "bias"), problem, "write bias: int32"))
    return found


def _find_missing_options(variant: Variant) -> Iterator[Misfit]:
    """Yield the options that a float model lacks on the HTP."""
    options = next((p.options for p in variant.providers if p.name == BACKEND.provider), {})
    if options.get("backend_type", "htp") != "htp":
        return
    if options.get("enable_htp_fp16_precision") != "1" or not options.get("soc_model"):
        yield Misfit(
            ("providers",),
            "the HTP computes float models in float16 alone, and only for a chip that is named",
            'give QNNExecutionProvider the options enable_htp_fp16_precision: "1" and soc_model'
            ' (such as "43" for SM8550): docs.qualcomm.com, QNN, supported Snapdragon devices',
        )


def find_refusals(graph: Graph, variant: Variant) -> dict[int, Refusal]:
    """Return the nodes that QNN leaves to the CPU.

    Unless the provider option ``offload_graph_io_quantization`` is 0, the Q nodes behind the
    model's inputs and the DQ nodes before its outputs are among them.
    """
    options = next((p.options for p in variant.providers if p.name == BACKEND.provider), {})
    offload = options.get("offload_graph_io_quantization", "1") != "0"
    refused = {
        unit: refusal
        for unit in find_node_units(graph)
        if (refusal := (offload and _check_border(graph, unit)) or _find_refusal(graph, unit))
    }
    return spread_refusals(refused)


BACKEND = Backend(
    name="qnn",
    provider="QNNExecutionProvider",
    recipes=frozenset({"fp32", "fp16", "int8-static"}),
    misfits=find_misfits,
    refusals=find_refusals,
    static_shapes=True,
    # It takes activations and norms as one node each, which then has one range in int8.
    early_rewrites=("fuse-clip", "fuse-hard-swish", "fuse-gelu", "fuse-layer-norm"),
    # It takes no Dropout, which would split the graph in two.
    rewrites=("drop-identities",),
    # What onnxruntime's configuration for QNN (1.31.1, execution_providers/qnn/quant_config.py)
    # requires: all operators, ranges at least this wide, and these scales of 16-bit outputs.
    every_op=True,
    least_span=1e-4,
    output_grids=(
        ("Sigmoid", "uint16", 1 / 65536, 0),
        ("Sigmoid", "int16", 1 / 32768, 0),
        ("Tanh", "uint16", 1 / 32768, 32768),
        ("Tanh", "int16", 1 / 32768, 0),
    ),
    knobs=(
        Knob(
            "htp_performance_mode",
            ("burst", "sustained_high_performance", "high_performance", "balanced"),
            "clocks and voltages of the HTP:"
            " onnxruntime.ai/docs/execution-providers/QNN-ExecutionProvider.html",
        ),
        Knob(
            "htp_graph_finalization_optimization_mode",
            ("2", "3"),
            "longer preparation for a better graph; 0 is the default, and 1 prepares faster for a"
            " worse one: the same page",
        ),
    ),
    plugin="onnxruntime-qnn",
    # Its libQnnHtp.so for x86-64 computes what the HTP does (2.7.0, tried 2026-11-26).
    simulated_on=("Linux", "x86_64"),
    hardware_option="htp_arch",
    # The libraries of the wheel 2.7.0 for aarch64 are of these versions.
    hardware=("68", "69", "73", "75", "79", "81"),
    # Source: onnxruntime.ai/docs/execution-providers/QNN-ExecutionProvider.html (checked 2026-11),
    # not tried on a phone.
    # Source: targets/qualcomm-linux.yaml.
    device_files=("/dev/fastrpc-cdsp",),
    native_libraries=("libcdsprpc.so",),
)


_BORDER = Refusal(
    "it converts an input or output of the model, which the provider leaves to the CPU",
    "set the provider option offload_graph_io_quantization to 0 to have it on the device",
)


def _check_border(graph: Graph, unit: NodeUnit) -> Refusal | None:
    inputs = {spec.name for spec in graph.inputs}
    first = unit.target.op == QUANTIZE and unit.target.inputs[0] in inputs
    last = unit.target.op == DEQUANTIZE and unit.target.outputs[0] in graph.outputs
    return _BORDER if first or last else None


def _find_refusal(graph: Graph, unit: NodeUnit) -> Refusal | None:
    return find_kernel_refusal(read_table(BACKEND.name), graph, unit.target) or find_first_refusal(
        (*_RULES.get(unit.op, ()), _check_shapes, _check_layout), graph, unit
    )


def _check_shapes(graph: Graph, unit: NodeUnit) -> Refusal | None:
    for value in (*unit.inputs, *unit.outputs):
        if not value.tensor:
            continue
        shape = graph.shape(value.tensor)
        if not graph.is_static(value.tensor):
            reason = f"{value.tensor!r} has {format_shape(shape)}; all of it must be known"
            return Refusal(reason, FIX_DIMENSIONS)
        if shape is not None and len(shape) > _MAX_RANK:
            reason = f"{value.tensor!r} has rank {len(shape)}; {_MAX_RANK} is the most"
            return Refusal(reason, EXPORT)
    return None


def _check_layout(graph: Graph, unit: NodeUnit) -> Refusal | None:
    """Check the dtypes of activations and weights.

    int8 activations and uint8 weights with several scales are taken, although no dialect should
    have them (:func:`find_misfits`).
    """
    if not unit.is_group:
        return None
    for value in (*unit.inputs, *unit.outputs):
        if not value.is_quantized:
            continue
        if value.scale not in graph.constants:
            return Refusal(f"the scale of {value.tensor!r} must be constant", MAKE_CONSTANT)
        dtype = graph.dtype(value.tensor)
        if not graph.is_constant(value.tensor) and dtype not in _TAKEN:
            reason = f"{value.tensor!r} is {dtype}; taken are {', '.join(_TAKEN)}"
            return Refusal(reason, _REQUANTIZE)
    return None


def _check_indices(graph: Graph, unit: NodeUnit) -> Refusal | None:
    indices = find_values(graph, unit, 1)
    if not indices or min(indices) >= 0:
        return None
    return Refusal("it has negative indices", "count the indices from the front, or " + ON_THE_CPU)


def _check_norm(graph: Graph, unit: NodeUnit) -> Refusal | None:
    """Check that activations of a normalization have a dtype without a sign."""
    for value in (unit.inputs[0], *unit.outputs):
        if value.is_quantized and (dtype := graph.dtype(value.tensor)) not in _ACTIVATIONS:
            reason = f"{value.tensor!r} is {dtype}; taken are {' and '.join(_ACTIVATIONS)}"
            return Refusal(reason, _REQUANTIZE)
    return None


def _check_gelu(graph: Graph, unit: NodeUnit) -> Refusal | None:
    """Check that an Erf belongs to a Gelu, which is taken as a pattern: x * (1 + Erf(x / √2))."""
    readers = graph.consumers.get(unit.target.outputs[0], ())
    if any(node.op == "Add" for node in readers):
        return None
    return Refusal("Erf is taken as a part of Gelu alone", ON_THE_CPU)


def _check_activations(graph: Graph, unit: NodeUnit) -> Refusal | None:
    """Check that an LSTM has its default activations."""
    del graph
    found = find_attribute(unit, "activations", [])
    if all(name == default for name, default in zip(found, cycle(_OF_LSTM), strict=False)):
        return None
    return Refusal(f"activations are {', '.join(map(str, found))}", EXPORT)


_OF_LSTM = ("Sigmoid", "Tanh", "Tanh")

_RULES: Mapping[str, Sequence[Rule]] = {
    "BatchNormalization": (_check_norm,),
    "ConvTranspose": (check_ones("dilations"),),
    "Erf": (_check_gelu,),
    "Expand": (check_constants(shape=1),),
    "Gather": (_check_indices,),
    "Gemm": (check_attribute("alpha", 1.0, 1.0), check_attribute("beta", 1.0, 0.0, 1.0)),
    "LSTM": (_check_activations,),
    "LpNormalization": (check_attribute("p", 2, 2),),
    "Pad": (check_constants(constant_value=2),),
    "Resize": (check_attribute("antialias", 0, 0),),
    "Slice": (check_constants(starts=1, ends=2, axes=3, steps=4),),
}
