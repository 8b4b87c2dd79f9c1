"""How much of a QDQ model a CPU of one architecture runs with integer kernels.

onnxruntime's optimizer turns DequantizeLinear -> operator -> QuantizeLinear into an integer kernel
where it has one; the rest runs as float between conversions, slower than in the float model. That
can be seen on any host: the optimizer's rules for x86-64 and for ARM are chosen by the session
config entry ``session.qdqisint8allowed`` (onnxruntime_session_options_config_keys.h; the default is
1 on ARM and 0 elsewhere), so an x86-64 host can predict what an ARM one will fuse. Measured with
onnxruntime 1.31.1: MobileNetV2 in onnxruntime's default int8 dialect leaves 25 float operators
under the rule of x86-64, and none under that of ARM. WebAssembly has the rule of x86-64: int8
activations with uint8 weights become QLinearConv there, as they do not under that of ARM (profiles
of onnxruntime-web 1.30.0 in Node 20).
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from edgepack.model.graph import Graph, Node, read_graph
from edgepack.model.reading import read_model
from edgepack.model.running import list_runtime_errors

Architecture = Literal["x86-64", "aarch64", "wasm32"]

QUANTIZE = "QuantizeLinear"
DEQUANTIZE = "DequantizeLinear"
PRODUCTS = frozenset(
    ("Conv", "ConvTranspose", "DeformConv", "Gemm", "MatMul", "Einsum", "LSTM", "GRU", "RNN")
)
"""Operators that cost most where they run as float, without what onnxruntime's fusions put before
their names (FusedConv, NhwcFusedConv, TransposeMatMul)."""

_FUSED = re.compile(r"^(Fused|Nhwc|Transpose(?=MatMul))+")
# What onnxruntime's fusions and layout changes do to a node's name, as seen in 1.31.1.
_RENAMED = re.compile(r"^fused |(_nchwc|/MatMulAddFusion|_token_\d+)$")
_INTEGER = re.compile(r"^(QLinear|QGemm|QAttention|QMoE|MatMulInteger|ConvInteger|DynamicQuantize)")
_INTEGER_PRODUCT = re.compile(r"Conv|Gemm|MatMul|Attention")


@dataclass(frozen=True)
class FloatNode:
    """An operator of the model that runs as float in the optimized graph."""

    name: str
    """The name of the model's node, not of the fused one."""
    op: str
    """As the optimized graph has it."""
    is_product: bool
    """Whether it is a convolution, a matrix product or another of the costly operators."""
    is_island: bool
    """Whether it lies between a DequantizeLinear and a QuantizeLinear: in a piece of float graph
    that integers go into and come out of."""


@dataclass(frozen=True)
class FusionCoverage:
    """What onnxruntime's optimizer made of a QDQ model."""

    leftover_quantize: int
    """QuantizeLinear nodes that remain; those of the model's float inputs always do."""
    leftover_dequantize: int
    """DequantizeLinear nodes that remain, of activations and of weights."""
    integer_ops: int
    """Integer kernels. Operators that only move 8-bit values (MaxPool, Reshape) are not counted."""
    integer_products: int
    """Those of them that are convolutions or matrix products."""
    float_nodes: tuple[FloatNode, ...]
    """Float products, and other operators that read a DequantizeLinear or feed a QuantizeLinear, in
    topological order. A node of the model that was split is here once per piece."""
    lone: tuple[str, ...]
    """Names of the model's nodes that run as integers without an integer product beside them: the
    conversions around them cost more than they save."""

    @property
    def islands(self) -> tuple[str, ...]:
        """The names of the float nodes between DequantizeLinear and QuantizeLinear, each once."""
        return tuple(dict.fromkeys(node.name for node in self.float_nodes if node.is_island))

    @property
    def coverage(self) -> float:
        """Integer kernels as a share of integer kernels and float nodes, 0 to 1.

        1 means that everything that can be integer is; 0 means that nothing is. It counts kernels,
        not their cost.
        """
        all_of_them = self.integer_ops + len(self.float_nodes)
        return self.integer_ops / all_of_them if all_of_them else 0.0

    def make_facts(self) -> dict[str, Any]:
        """Return it as JSON-ready values; ``coverage`` is rounded to 4 places."""
        return {
            "leftover_quantize": self.leftover_quantize,
            "leftover_dequantize": self.leftover_dequantize,
            "integer_ops": self.integer_ops,
            "integer_products": self.integer_products,
            "float_ops": len(self.float_nodes),
            "islands": list(self.islands),
            "coverage": round(self.coverage, 4),
        }


def measure_fusion_coverage(model: Path, cpu: Architecture) -> FusionCoverage:
    """Return what onnxruntime's optimizer makes of a QDQ model for a CPU of an architecture.

    All optimizations run as in a session on that CPU, but for the two that only change the layout
    of tensors (NCHWc, NHWC), which fuse no Q or DQ and rename what they touch. On a host of another
    architecture this is a forecast.

    Raises:
        ModelError: onnxruntime refuses the model.
    """
    with tempfile.TemporaryDirectory(prefix="edgepack-fusion-") as folder:
        optimized = Path(folder) / "optimized.onnx"
        _optimize(model, optimized, cpu)
        return count_coverage(read_graph(read_model(optimized)), read_graph(read_model(model)))


def count_coverage(optimized: Graph, source: Graph) -> FusionCoverage:
    """Return the coverage of an optimized graph; names are those of the graph it came from."""
    operators = [node for node in optimized.nodes if node.op not in (QUANTIZE, DEQUANTIZE)]
    integer = [node for node in operators if _INTEGER.match(node.op)]
    islands = _find_islands(optimized)
    names = _Names(optimized, source)
    float_nodes = tuple(
        FloatNode(names.find(node), node.qualified_op, is_product(node), node.index in islands)
        for node in operators
        if not _INTEGER.match(node.op)
        if is_product(node) or _has_dequantizer(optimized, node) or _has_quantizer(optimized, node)
    )
    return FusionCoverage(
        leftover_quantize=_count_nodes(optimized, QUANTIZE),
        leftover_dequantize=_count_nodes(optimized, DEQUANTIZE),
        integer_ops=len(integer),
        integer_products=sum(bool(_INTEGER_PRODUCT.search(node.op)) for node in integer),
        float_nodes=float_nodes,
        lone=tuple(dict.fromkeys(names.find(node) for node in _find_lone(optimized))),
    )


def is_product(node: Node) -> bool:
    """Return whether a node is one of :data:`PRODUCTS`, fused with others or not."""
    return _FUSED.sub("", node.op) in PRODUCTS


def _optimize(model: Path, optimized: Path, cpu: Architecture) -> None:
    import onnxruntime

    from edgepack.errors import ModelError
    from edgepack.model.custom_ops import find_registered
    from edgepack.model.running import format_runtime_error, register_library

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.optimized_model_filepath = str(optimized)
    entries: Mapping[str, str] = {
        "session.qdqisint8allowed": "1" if cpu == "aarch64" else "0",
        "session.optimized_model_external_initializers_file_name": "weights.bin",
        "optimization.disable_specified_optimizers": "NchwcTransformer;NhwcTransformer",
    }
    for key, value in entries.items():
        options.add_session_config_entry(key, value)
    if library := find_registered():
        register_library(library, options)
    try:
        onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    except list_runtime_errors() as error:
        raise ModelError(
            f"onnxruntime {onnxruntime.__version__} does not optimize the model:"
            f" {format_runtime_error(error)}",
            hint="this is a fault in edgepack or in onnxruntime: please report it with the model",
            where=model.name,
        ) from error


def _count_nodes(graph: Graph, op: str) -> int:
    return sum(node.op == op for node in graph.nodes)


def _has_dequantizer(graph: Graph, node: Node, *, activations: bool = False) -> bool:
    """Return whether a node reads a DequantizeLinear; of an activation alone, where asked for."""
    sources = [graph.producers[name] for name in node.inputs if name in graph.producers]
    return any(
        source.op == DEQUANTIZE and not (activations and graph.is_constant(source.inputs[0]))
        for source in sources
    )


def _has_quantizer(graph: Graph, node: Node) -> bool:
    return any(reader.op == QUANTIZE for reader in _list_readers(graph, node))


def _list_readers(graph: Graph, node: Node) -> list[Node]:
    return [reader for name in node.outputs for reader in graph.consumers.get(name, ())]


def _find_islands(graph: Graph) -> set[int]:
    """Return the indices of the nodes between a DequantizeLinear and a QuantizeLinear.

    Between means: float nodes alone lead from the one through the node to the other.
    """
    behind: set[int] = set()
    for node in graph.nodes:
        if _is_border(node):
            continue
        before = (graph.producers[name] for name in node.inputs if name in graph.producers)
        if _has_dequantizer(graph, node, activations=True) or any(
            n.index in behind for n in before
        ):
            behind.add(node.index)
    ahead: set[int] = set()
    for node in reversed(graph.nodes):
        if _is_border(node):
            continue
        if _has_quantizer(graph, node) or any(n.index in ahead for n in _list_readers(graph, node)):
            ahead.add(node.index)
    return behind & ahead


def _find_lone(graph: Graph) -> list[Node]:
    """Return the integer kernels that no integer tensors connect with an integer product."""
    groups: dict[str, set[str]] = {}
    """By integer tensor: the integer tensors that nodes connect it with; one set per group."""
    members: list[tuple[Node, str]] = []
    for node in graph.nodes:
        if node.op == DEQUANTIZE:
            continue
        kernel = bool(_INTEGER.match(node.op))
        before = [name for name in node.inputs if name in groups]
        if not (kernel or before or node.op == QUANTIZE):
            continue
        group = set().union(*(groups[name] for name in before), node.outputs)
        groups.update(dict.fromkeys(group, group))
        if kernel:
            members.append((node, node.outputs[0]))
    useful = {id(groups[name]) for node, name in members if _INTEGER_PRODUCT.search(node.op)}
    return [node for node, name in members if id(groups[name]) not in useful]


def _is_border(node: Node) -> bool:
    return node.op in (QUANTIZE, DEQUANTIZE) or bool(_INTEGER.match(node.op))


class _Names:
    """Finds the node of the source graph that a node of the optimized graph came from."""

    def __init__(self, optimized: Graph, source: Graph) -> None:
        self._optimized = optimized
        self._source = source
        self._known = {node.name for node in source.nodes}

    def find(self, node: Node) -> str:
        """Return the source's name, or the optimized graph's own where there is no such node.

        Fusions and layout changes decorate names; inlined functions (HardSwish) leave nodes without
        names; then the first downstream tensor that the source has identifies the node.
        """
        plain = node.name
        while plain not in self._known and plain != (shorter := _RENAMED.sub("", plain)):
            plain = shorter
        if plain in self._known:
            return plain
        return self._find_by_tensor(node) or node.name

    def _find_by_tensor(self, node: Node) -> str:
        seen, waiting = {node.index}, [node]
        while waiting:
            current = waiting.pop(0)
            for name in current.outputs:
                if name in self._source.producers:
                    return self._source.producers[name].name
            for reader in _list_readers(self._optimized, current):
                if reader.index not in seen and not _is_border(reader):
                    seen.add(reader.index)
                    waiting.append(reader)
        return ""
