"""Arm's Compute Library (ACL): a few kernels beside the CPU's, in builds that users make.

It takes nodes one by one if it has a kernel, and has more conditions for convolutions and matrix
products: known shapes, constant weights. From the sources, onnxruntime of 2024 (stored copies,
looked up 2026-11-21): ``core/providers/acl/acl_execution_provider.cc``, ``nn/conv.cc``,
``math/matmul.cc``. Kernels were registered for the opsets of years ago: from opset 13 on, Relu,
Gemm, Concat and BatchNormalization stay on the CPU, and from 22 on, Conv does too.

Tried with onnxruntime 1.21.0 and ACL 24.11, built for aarch64 and run under qemu-user (2026-11-27),
with nets of one operator: kernels are where they were read to be, and of a QDQ group ACL gets a
QLinearConv. Convolutions are right, also depthwise and in int8 per tensor. What ACL takes and
computes wrongly, or fails in, is refused here, too: pools of several pictures or of one that is not
square, depthwise convolutions with several outputs for a channel, matrix products with a constant.
With weights of one scale per channel, or depthwise ones of another type than the activations, no
session is made at all; the loader takes the next variant then. Up to opset 12 onnxruntime joins a
Relu with a convolution, and ACL loses it: the golden outputs tell. When a session ends, those that
are left crash (``NEVER_ENDED`` in edgepack_providers.py).

The recipe fp16 is left out: only Conv and MatMul have float16 kernels, and the CPU would convert
around each of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from edgepack.backends.base import Backend, Misfit, Refusal, count_session_cores
from edgepack.backends.builder_rules import (
    EXPORT,
    FIX_DIMENSIONS,
    MAKE_CONSTANT,
    ON_THE_CPU,
    Rule,
    check_constants,
    find_attribute,
    find_first_refusal,
    find_input_name,
    find_shape,
    format_shape,
)
from edgepack.backends.op_table import find_kernel_refusal, read_table
from edgepack.backends.qdq import DEQUANTIZE, QUANTIZE, NodeUnit, find_node_units, spread_refusals
from edgepack.model.graph import Graph
from edgepack.project.profile import DeviceKind, Variant

_PER_TENSOR = "quantize with per_channel: false"
_WRONG = ": ACL takes that and computes it wrongly"
_POOLS = ("AveragePool", "GlobalAveragePool", "GlobalMaxPool", "MaxPool")


def find_misfits(variant: Variant, device: DeviceKind) -> list[Misfit]:
    """Find dialects that no QLinearConv kernel of ACL serves.

    Source: the registrations in ``acl_execution_provider.cc``, and ``ParseConv`` in
    ``nn/conv.cc``, which refuses one scale per channel.
    """
    del device
    dialect = variant.dialect
    if dialect is None:
        return []
    found = []
    if dialect.activations == "uint16":
        problem = "ACL has kernels for int8 and uint8 activations, not for uint16"
        found.append(Misfit(("dialect", "activations"), problem, "write activations: uint8"))
    if dialect.activations == "int8" and dialect.weights == "uint8":
        problem = "onnxruntime runs int8 activations with uint8 weights as float"
        found.append(Misfit(("dialect", "weights"), problem, "write weights: int8"))
    if dialect.per_channel:
        problem = "ACL does not take weights with one scale per channel"
        found.append(Misfit(("dialect", "per_channel"), problem, "write per_channel: false"))
    if dialect.bias == "float32":
        problem = "onnxruntime runs a quantized convolution with a float bias as float"
        found.append(Misfit(("dialect", "bias"), problem, "write bias: int32"))
    return found


def find_refusals(graph: Graph, variant: Variant) -> dict[int, Refusal]:
    """Return the nodes that ACL leaves to the CPU."""
    del variant
    return spread_refusals(
        {
            unit: refusal
            for unit in find_node_units(graph)
            if (refusal := _find_refusal(graph, unit))
        }
    )


BACKEND = Backend(
    name="acl",
    provider="ACLExecutionProvider",
    recipes=frozenset({"fp32", "int8-static"}),
    misfits=find_misfits,
    refusals=find_refusals,
    early_rewrites=("fuse-mish",),
    last_rewrites=("split-mish",),
    on_processor=True,
    # Only convolutions and matrix products need known shapes.
    static_shapes=False,
    cores=count_session_cores,
)


def _find_refusal(graph: Graph, unit: NodeUnit) -> Refusal | None:
    if unit.target.op in (QUANTIZE, DEQUANTIZE):
        return Refusal("no int8 operator that ACL takes is beside it", ON_THE_CPU)
    if unit.is_group and unit.op != "Conv":
        reason = f"onnxruntime makes a quantized {unit.op} of it, which ACL has no kernel for"
        return Refusal(reason, ON_THE_CPU)
    rules = _RULES.get(unit.op, ())
    return find_kernel_refusal(read_table(BACKEND.name), graph, unit.target) or find_first_refusal(
        rules, graph, unit
    )


def _check_static(graph: Graph, unit: NodeUnit) -> Refusal | None:
    for place in (0, 1):
        name = find_input_name(unit, place)
        if not graph.is_static(name):
            reason = f"{name!r} has {format_shape(graph.shape(name))}; all of it must be known"
            return Refusal(reason, FIX_DIMENSIONS)
    return None


def _check_conv(graph: Graph, unit: NodeUnit) -> Refusal | None:
    shape, weights = find_shape(graph, unit) or (), find_shape(graph, unit, 1) or ()
    if not 3 <= len(weights) <= 4 or len(shape) != len(weights):
        return Refusal(f"it is {max(len(weights) - 2, 0)}-D; taken are 1-D and 2-D", EXPORT)
    group = find_attribute(unit, "group", 1)
    if group not in (1, shape[1]):
        return Refusal("its groups are neither one nor one per channel", EXPORT)
    if group != 1 and weights[0] != group:
        return Refusal(f"it is depthwise with several outputs for a channel{_WRONG}", EXPORT)
    return None


def _check_layout(graph: Graph, unit: NodeUnit) -> Refusal | None:
    first, weights, *_ = unit.inputs
    if not weights.is_quantized:
        return None
    scales = graph.constants.get(weights.scale)
    if scales is None:
        return Refusal("the scale of its weights is computed, but must be constant", MAKE_CONSTANT)
    if scales.size > 1:
        return Refusal("its weights have one scale per channel", _PER_TENSOR)
    found = [graph.dtype(first.tensor), graph.dtype(weights.tensor)]
    if not set(found) <= {"int8", "uint8"}:
        return Refusal(f"it has {found[0]} activations with {found[1]} weights", EXPORT)
    if find_attribute(unit, "group", 1) != 1 and found[0] != found[1]:
        reason = f"it is depthwise, with {found[0]} activations and {found[1]} weights"
        return Refusal(reason, "quantize activations and weights alike")
    return None


def _check_factor(graph: Graph, unit: NodeUnit) -> Refusal | None:
    if graph.is_constant(find_input_name(unit, 1)):
        return Refusal("a factor is constant, which ACL loses: every run fails", ON_THE_CPU)
    return None


def _check_square(graph: Graph, unit: NodeUnit) -> Refusal | None:
    shape = find_shape(graph, unit) or ()
    if len(shape) == 4 and shape[0] == 1 and shape[2] == shape[3]:
        return None
    reason = f"its input is {format_shape(shape)}, not one square picture{_WRONG}"
    return Refusal(reason, ON_THE_CPU)


def _check_batches(graph: Graph, unit: NodeUnit) -> Refusal | None:
    first, second = find_shape(graph, unit) or (), find_shape(graph, unit, 1) or ()
    if not first or not second:
        return Refusal("one of its inputs is a single number", EXPORT)
    batch, other = prod(map(int, first[:-2])), prod(map(int, second[:-2]))
    if other in (1, batch):
        return None
    return Refusal(f"it broadcasts {batch} matrices with {other}", EXPORT)


_CONVOLUTION: tuple[Rule, ...] = (
    _check_static,
    check_constants(W=1, B=2),
    _check_conv,
    _check_layout,
)
_RULES: Mapping[str, Sequence[Rule]] = {
    "Conv": _CONVOLUTION,
    "QLinearConv": _CONVOLUTION,
    "com.microsoft:NhwcConv": (_check_static, check_constants(W=1, B=2)),
    "MatMul": (_check_static, _check_batches, _check_factor),
    "com.microsoft:FusedMatMul": (_check_static, _check_batches, _check_factor),
    **dict.fromkeys(_POOLS, (_check_square,)),
}
