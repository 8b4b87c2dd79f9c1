"""Quantized operators as onnxruntime's providers see them: an operator with its Q/DQ nodes.

In a QDQ model an int8 operator is written as DequantizeLinear(s) -> operator -> QuantizeLinear(s).
Providers that compile (NNAPI, QNN) or match kernels (XNNPACK) take or refuse such a group as one
*node unit*; a Q or DQ that belongs to no group is a unit of its own.

::

    units = find_node_units(graph)          # in topological order of their targets
    for unit in units:
        unit.op, unit.is_group              # "Conv", True
        unit.nodes                          # DQ nodes, the operator, (redundant clip,) Q nodes
        unit.inputs[0].tensor               # what the DQ reads: the uint8 or int8 tensor
        unit.inputs[0].scale                # tensor name; graph.constants may have its value
    refusals = spread_refusals(refused)     # {unit: Refusal} to {node index: Refusal}

:func:`find_node_units` says what may form a group; the backend decides whether a provider takes it
(by dtypes above all). Pass it the graph of :func:`~edgepack.model.graph.make_partitioned_graph`:
the groups form only after onnxruntime gave every operator DQ nodes of its own.

Source: onnxruntime main of 2026 (read in a stored copy, 2026-11-21; the nearest to 1.31.1 that was
available), ``core/optimizer/qdq_transformer/selectors_actions/qdq_selectors.cc`` (what forms a
group), ``.../shared/utils.cc`` (which operators), ``core/framework/node_unit.cc`` (inputs and
outputs).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from edgepack.backends.base import Refusal
from edgepack.model.graph import Graph, Node

QUANTIZE = "QuantizeLinear"
DEQUANTIZE = "DequantizeLinear"


@dataclass(frozen=True)
class QdqValue:
    """An input or output of a node unit."""

    tensor: str
    """Name of the tensor outside the unit; empty where an optional one is left out."""
    scale: str = ""
    """Name of the scale; empty where the tensor is not quantized."""
    zero_point: str = ""
    """Name of the zero point; empty where there is none, which means 0."""
    axis: int | None = None
    """The ``axis`` attribute of the Q or DQ node, if it has one."""

    @property
    def is_quantized(self) -> bool:
        """Whether it has a scale."""
        return bool(self.scale)


@dataclass(frozen=True)
class NodeUnit:
    """What a provider takes or refuses as a whole: a node, or one with its Q and DQ nodes."""

    target: Node
    """The operator itself."""
    dequantizers: tuple[Node, ...]
    """DQ nodes before the operator, in the order of its inputs; empty where the unit is no
    group."""
    quantizers: tuple[Node, ...]
    """Q nodes after the operator."""
    clip: Node | None
    """A Relu or Clip between target and Q that the Q makes redundant."""
    inputs: tuple[QdqValue, ...]
    """Inputs in the order of the target's; for QLinear operators, only the data inputs."""
    outputs: tuple[QdqValue, ...]

    @property
    def is_group(self) -> bool:
        """Whether Q or DQ nodes belong to it."""
        return bool(self.dequantizers or self.quantizers)

    @property
    def op(self) -> str:
        """The target's operator, with its domain unless that is ai.onnx."""
        return self.target.qualified_op

    @property
    def nodes(self) -> tuple[Node, ...]:
        """All its nodes."""
        clip = (self.clip,) if self.clip else ()
        return (*self.dequantizers, self.target, *clip, *self.quantizers)

    def __hash__(self) -> int:
        return hash(self.target.index)


def find_node_units(graph: Graph) -> tuple[NodeUnit, ...]:
    """Return the units of a graph, in topological order of their targets.

    Every node is in exactly one.
    """
    groups = [group for node in graph.nodes if (group := _find_group(graph, node))]
    grouped = {node.index for group in groups for node in group.nodes}
    alone = [make_single_unit(node) for node in graph.nodes if node.index not in grouped]
    return tuple(sorted([*groups, *alone], key=lambda unit: unit.target.index))


def spread_refusals(refused: Mapping[NodeUnit, Refusal]) -> dict[int, Refusal]:
    """Return the refusals of units for every node in them, by index."""
    return {node.index: refusal for unit, refusal in refused.items() for node in unit.nodes}


def has_same_quantization(graph: Graph, first: Node, second: Node) -> bool:
    """Return whether a Q and a DQ have equal, constant, scalar scales and zero points.

    Source: ``QDQ::IsQDQPairSupported`` in core/optimizer/qdq_transformer/qdq_util.cc.
    """
    return all(_is_scalar_pair(graph, node) for node in (first, second)) and all(
        _is_equal(graph, first.inputs[place], second.inputs[place]) for place in (1, 2)
    )


# --- how a group forms ------------------------------------------------------------------------


@dataclass(frozen=True)
class _Candidate:
    """A node with the Q and DQ nodes around it, before its operator's rules are applied."""

    graph: Graph
    node: Node
    dequantizers: tuple[Node, ...]
    quantizers: tuple[Node, ...]
    clip: Node | None

    @property
    def sources(self) -> list[str]:
        """Dtypes before the DQ nodes."""
        return [self.graph.dtype(node.inputs[0]) for node in self.dequantizers]

    @property
    def results(self) -> list[str]:
        """Dtypes behind the Q nodes."""
        return [self.graph.dtype(node.outputs[0]) for node in self.quantizers]


_Rule = Callable[[_Candidate], bool]


def _find_group(graph: Graph, node: Node) -> NodeUnit | None:
    rule = _RULES.get(node.op) if node.domain in ("", "com.microsoft") else None
    if rule is None or (node.op == "MaxPool" and not _is_max_pool_12(graph)):
        return None
    dequantizers = _list_makers(graph, node, DEQUANTIZE)
    clip = _find_clip(graph, node)
    quantizers = _list_readers(graph, clip or node, QUANTIZE)
    if clip and not (len(quantizers) == 1 and _is_redundant(graph, clip, quantizers[0])):
        return None
    candidate = _Candidate(graph, node, dequantizers, quantizers, clip)
    if not dequantizers or not _is_closed(candidate) or not rule(candidate):
        return None
    return NodeUnit(
        node, dequantizers, quantizers, clip, _find_inputs(candidate), _find_outputs(candidate)
    )


def _is_max_pool_12(graph: Graph) -> bool:
    """Return whether MaxPool is that of opset 12, until 22: the selector is registered for it."""
    return 12 <= graph.opset < 22


def _list_makers(graph: Graph, node: Node, op: str) -> tuple[Node, ...]:
    """Return the nodes of one kind before a node, once per input that they feed."""
    found = [graph.producers[name] for name in node.inputs if name in graph.producers]
    return tuple(source for source in found if source.op == op)


def _list_readers(graph: Graph, node: Node, op: str) -> tuple[Node, ...]:
    return tuple(
        reader
        for name in node.outputs
        for reader in graph.consumers.get(name, ())
        if reader.op == op
    )


def _count_edges(graph: Graph, node: Node) -> int:
    """Return how many inputs of other nodes a node feeds, including those in their bodies."""
    return sum(
        (*reader.inputs, *reader.outer_inputs).count(name)
        for name in node.outputs
        for reader in graph.consumers.get(name, ())
    )


def _has_graph_output(graph: Graph, node: Node) -> bool:
    return any(name in graph.outputs for name in node.outputs)


def _find_clip(graph: Graph, node: Node) -> Node | None:
    if _count_edges(graph, node) != 1 or _has_graph_output(graph, node):
        return None
    reader = next(r for name in node.outputs for r in graph.consumers.get(name, ()))
    takes = reader.op in ("Relu", "Clip") and _count_edges(graph, reader) == 1
    return reader if takes and not _has_graph_output(graph, reader) else None


def _is_redundant(graph: Graph, clip: Node, quantizer: Node) -> bool:
    """Return whether quantization cuts off at least what a Relu or Clip does.

    Source: ``IsClipMadeRedundantByQ``, core/optimizer/qdq_transformer/qdq_util.cc.
    """
    dtype = graph.dtype(quantizer.outputs[0])
    scale, zero = (_read_scalar(graph, name) for name in (*quantizer.inputs[1:3], "")[:2])
    if scale is None or dtype not in ("int8", "uint8", "int16", "uint16"):
        return False
    least, most = np.iinfo(dtype).min, np.iinfo(dtype).max
    offset = 0 if zero is None else zero
    if clip.op == "Relu":
        return offset == least
    low, high = (*(_read_scalar(graph, name) for name in clip.inputs[1:3]), None, None)[:2]
    starts = low is None or np.rint(low / scale) + offset <= least
    return bool(starts and (high is None or np.rint(high / scale) + offset >= most))


def _is_closed(candidate: _Candidate) -> bool:
    """Return whether only the operator reads its DQ nodes, and only Q nodes read its results.

    Source: ``NodeGroup::CanCreateNodeGroup`` in core/framework/node_unit.cc.
    """
    graph, node = candidate.graph, candidate.node
    if any(
        _count_edges(graph, dq) != 1 or _has_graph_output(graph, dq)
        for dq in candidate.dequantizers
    ):
        return False
    if candidate.clip:
        return True
    for name in node.outputs:
        kinds = {reader.op == QUANTIZE for reader in graph.consumers.get(name, ())}
        if len(kinds) > 1 or (True in kinds and name in graph.outputs):
            return False
    return True


def _count_inputs(node: Node) -> int:
    return sum(bool(name) for name in node.inputs)


def _is_complete(
    candidate: _Candidate, wanted: int | None = None, *, open_end: bool = False
) -> bool:
    """Return whether inputs come from DQ nodes and outputs go to Q nodes, one each.

    Args:
        candidate: The node and what is around it.
        wanted: How many inputs must come from DQ nodes; default: all inputs of the node.
        open_end: Whether the node may have no Q nodes.

    Source: ``NodeGroupSelector::CheckQDQNodes``.
    """
    node, quantizers = candidate.node, candidate.quantizers
    if len(candidate.dequantizers) != (_count_inputs(node) if wanted is None else wanted):
        return False
    if not quantizers:
        return open_end
    outputs = sum(bool(name) for name in node.outputs)
    if _has_graph_output(candidate.graph, node):
        return False
    return outputs == len(quantizers) == _count_edges(candidate.graph, node)


def _has_one_dtype(candidate: _Candidate) -> bool:
    return len({*candidate.sources, *candidate.results}) == 1


def _has_input_dtype(candidate: _Candidate) -> bool:
    return all(dtype == candidate.sources[0] for dtype in candidate.results)


def _is_unary_group(candidate: _Candidate) -> bool:
    return _is_complete(candidate, 1) and _has_one_dtype(candidate)


def _is_variadic_group(candidate: _Candidate) -> bool:
    return _is_complete(candidate) and _has_one_dtype(candidate)


def _is_binary_group(candidate: _Candidate) -> bool:
    return _is_complete(candidate, 2) and _has_one_dtype(candidate)


def _make_group_rule(*, most: int) -> _Rule:
    """Return the rule that DQ nodes are before some of the inputs, at most so many."""

    def is_group(candidate: _Candidate) -> bool:
        found = len(candidate.dequantizers)
        return found <= most and _is_complete(candidate, found) and _has_one_dtype(candidate)

    return is_group


def _is_moving_group(candidate: _Candidate) -> bool:
    """Return whether it keeps scale and zero point, as it keeps the values."""
    return (
        candidate.clip is None
        and _is_unary_group(candidate)
        and has_same_quantization(
            candidate.graph, candidate.quantizers[0], candidate.dequantizers[0]
        )
    )


def _is_index_group(candidate: _Candidate) -> bool:
    return (
        candidate.clip is None
        and len(candidate.dequantizers) == 1
        and _is_scalar_pair(candidate.graph, candidate.dequantizers[0])
    )


def _is_top_k_group(candidate: _Candidate) -> bool:
    """Return whether the values are quantized; the indices are not."""
    return (
        _is_index_group(candidate)
        and len(candidate.quantizers) == 1
        and _has_one_dtype(candidate)
        and has_same_quantization(
            candidate.graph, candidate.quantizers[0], candidate.dequantizers[0]
        )
    )


def _is_split_group(candidate: _Candidate) -> bool:
    return candidate.clip is None and _is_unary_group(candidate)


def _has_fitting_weights(candidate: _Candidate) -> bool:
    """Return whether weights and bias have dtypes that go with the input's."""
    first, weights, *bias = candidate.sources
    fits = first != "int8" or weights == "int8"
    return fits and bias in ([], ["int32"]) and _has_input_dtype(candidate)


def _is_conv_group(candidate: _Candidate) -> bool:
    return _is_complete(candidate) and _has_fitting_weights(candidate)


def _is_matmul_group(candidate: _Candidate) -> bool:
    return _is_complete(candidate, 2) and _has_fitting_weights(candidate)


def _is_gemm_group(candidate: _Candidate) -> bool:
    if not _is_complete(candidate, open_end=True) or not _has_fitting_weights(candidate):
        return False
    return len(candidate.sources) == 2 or candidate.node.attributes.get("beta", 1.0) == 1.0


def _is_normalization_group(candidate: _Candidate) -> bool:
    bias = candidate.sources[2:]
    return _is_complete(candidate) and _has_input_dtype(candidate) and bias in ([], ["int32"])


def _is_batch_normalization_group(candidate: _Candidate) -> bool:
    found = len(candidate.dequantizers)
    if found < 3 or not _is_complete(candidate, found):
        return False
    first, scale = candidate.sources[:2]
    return (first != "int8" or scale == "int8") and _has_input_dtype(candidate)


def _is_comparison_group(candidate: _Candidate) -> bool:
    return _is_complete(candidate, open_end=True) and len(set(candidate.sources)) == 1


def _is_open_group(candidate: _Candidate) -> bool:
    return _is_complete(candidate, open_end=True) and _has_input_dtype(candidate)


def _is_quantized_group(candidate: _Candidate) -> bool:
    return _is_complete(candidate) and _has_input_dtype(candidate)


_MOVING = "Expand Flatten Gather MaxPool Reshape Resize Squeeze Tile Transpose Unsqueeze"
_UNARY = """
    Abs Asin Atan AveragePool Ceil Cos CumSum DepthToSpace Elu Exp Floor Gelu GlobalAveragePool
    GlobalMaxPool HardSwish LRN LeakyRelu Log LogSoftmax LpNormalization Neg ReduceMax ReduceMean
    ReduceMin ReduceProd ReduceSum Relu Round Sigmoid Sign Sin Slice Softmax SpaceToDepth Sqrt Tanh
"""
_VARIADIC = "Add Concat Div GridSample Max Min Mul PRelu Pow Sub"

_RULES: dict[str, _Rule] = {
    **dict.fromkeys(_UNARY.split(), _is_unary_group),
    **dict.fromkeys(_MOVING.split(), _is_moving_group),
    **dict.fromkeys(_VARIADIC.split(), _is_variadic_group),
    **dict.fromkeys(
        ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"), _is_comparison_group
    ),
    **dict.fromkeys(("ArgMax", "ArgMin"), _is_index_group),
    **dict.fromkeys(("Conv", "ConvTranspose"), _is_conv_group),
    **dict.fromkeys(("Einsum", "Reciprocal"), _is_open_group),
    **dict.fromkeys(("InstanceNormalization", "LayerNormalization"), _is_normalization_group),
    **dict.fromkeys(("ScatterElements", "Where"), _is_binary_group),
    "BatchNormalization": _is_batch_normalization_group,
    "Clip": _make_group_rule(most=3),
    "Pad": _make_group_rule(most=2),
    "Gemm": _is_gemm_group,
    "MatMul": _is_matmul_group,
    "RMSNormalization": _is_quantized_group,
    "Split": _is_split_group,
    "TopK": _is_top_k_group,
}


# --- scales and zero points -------------------------------------------------------------------


def _read_scalar(graph: Graph, name: str) -> float | None:
    """Return a constant of one value."""
    array = graph.constants.get(name)
    return float(array.item()) if array is not None and array.size == 1 else None


def _is_scalar_pair(graph: Graph, node: Node) -> bool:
    pair = node.inputs[1:]
    return len(pair) == 2 and all(_read_scalar(graph, name) is not None for name in pair)


def _is_equal(graph: Graph, first: str, second: str) -> bool:
    one, other = graph.constants[first], graph.constants[second]
    return one.dtype == other.dtype and bool(one.item() == other.item())


# --- what the unit reads and makes ------------------------------------------------------------


def _find_qdq_value(tensor: str, node: Node) -> QdqValue:
    scale, zero_point = (*node.inputs[1:3], "")[:2]
    return QdqValue(tensor, scale, zero_point, node.attributes.get("axis"))


def _find_inputs(candidate: _Candidate) -> tuple[QdqValue, ...]:
    by_output = {node.outputs[0]: node for node in candidate.dequantizers}
    return tuple(
        _find_qdq_value(by_output[name].inputs[0], by_output[name])
        if name in by_output
        else QdqValue(name)
        for name in candidate.node.inputs
    )


def _find_outputs(candidate: _Candidate) -> tuple[QdqValue, ...]:
    by_input = {node.inputs[0]: node for node in candidate.quantizers}
    if candidate.clip:
        by_input = {candidate.node.outputs[0]: candidate.quantizers[0]}
    return tuple(
        _find_qdq_value(by_input[name].outputs[0], by_input[name])
        if name in by_input
        else QdqValue(name)
        for name in candidate.node.outputs
    )


_QLINEAR_UNARY = (
    "QLinearAveragePool",
    "QLinearGlobalAveragePool",
    "QLinearLeakyRelu",
    "QLinearReduceMean",
    "QLinearSigmoid",
)
_QLINEAR_BINARY = ("QLinearAdd", "QLinearConv", "QLinearMatMul", "QLinearMul")


def make_single_unit(node: Node) -> NodeUnit:
    """Return a node as a unit of its own."""
    before, behind = _find_own_values(node)
    return NodeUnit(node, (), (), None, before, behind)


def _find_own_values(node: Node) -> tuple[tuple[QdqValue, ...], tuple[QdqValue, ...]]:
    """Return inputs and outputs of a node that is no group, with the scales that it names itself.

    QLinear operators take x, scale, zero point (twice for two inputs), then the output's scale and
    zero point, then a bias.
    """
    plain = tuple(QdqValue(name) for name in node.outputs)
    if node.op == QUANTIZE:
        return (QdqValue(node.inputs[0]),), (_find_qdq_value(node.outputs[0], node),)
    if node.op == DEQUANTIZE:
        return (_find_qdq_value(node.inputs[0], node),), plain
    triples = 1 if node.op in _QLINEAR_UNARY else 2 if node.op in _QLINEAR_BINARY else 0
    if not triples:
        return tuple(QdqValue(name) for name in node.inputs), plain
    names = (*node.inputs, "")
    inputs = [QdqValue(names[k], names[k + 1], names[k + 2]) for k in range(0, 3 * triples, 3)]
    end = 3 * triples
    bias = [QdqValue(name) for name in names[end + 2 :] if name]
    return (*inputs, *bias), (QdqValue(node.outputs[0], names[end], names[end + 1]),)
