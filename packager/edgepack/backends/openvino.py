"""OpenVINO's execution provider: Intel processors, graphics and NPUs.

The provider checks for each node alone whether its table has it, then gives pieces back by rules
about the graph around them. Source: onnxruntime core/providers/openvino/ov_versions/data_ops.cc,
capability.cc and utils.cc (trees for OpenVINO 2025.0 to 2025.2, read 2026-11-21), which
``tests/placement`` compares with onnxruntime-openvino 1.24.1 (OpenVINO 2025.4.1) on its CPU. The
rules for GPU and NPU were read, not tried.

The plugin onnxruntime-ep-openvino is another program, which queries OpenVINO itself. It took all
nodes that these rules take, and more (scalars, graphs of one node, Hardmax, IsInf): so for the
plugin the prediction is a lower bound (1.8.1 on an emulated Intel CPU, about 190 small models,
2026-11-21).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from functools import cache
from pathlib import Path

from edgepack.backends.base import THREADS, Backend, Knob, Misfit, Refusal, count_one_core
from edgepack.base.schema import StrictModel
from edgepack.base.yaml_source import read_yaml
from edgepack.model.graph import Graph, Node
from edgepack.project.profile import DeviceKind, Variant

_META_DEVICES = frozenset({"AUTO", "HETERO", "MULTI"})
_ON_CPU = "let them run on the CPU (placement: the share you accept), or change the model there"


class _Source(StrictModel):
    of: str
    file: str
    version: str


class _ByDevice(StrictModel):
    both: list[str]
    cpu_only: list[str]

    def list_for(self, device: str) -> frozenset[str]:
        """Return the operators of a device; the NPU uses the CPU's (capability.cc)."""
        return frozenset(self.both) | frozenset(self.cpu_only if device != "GPU" else ())


class _Types(StrictModel):
    CPU: list[str]
    GPU: list[str]


class _Tables(StrictModel):
    sources: list[_Source]
    ops: _ByDevice
    scalar_ops: _ByDevice
    empty_ops: list[str]
    only_in_models: list[str]
    dtypes: _Types


@cache
def _read_tables() -> _Tables:
    return read_yaml(Path(__file__).with_name("data") / "openvino.yaml").parse(_Tables)


def find_misfits(variant: Variant, device: DeviceKind) -> list[Misfit]:
    """Find dialects that the CPU runs as float, and device names that leave all nodes out.

    Source: onnxruntime-openvino 1.24.1, measured 2026-11-21 on an x86-64 CPU with AVX2. Time of one
    thread, SqueezeNet 1.1: fp32 78 ms; int8 weights with uint8 activations 40 ms, with int8 ones 45
    to 50; uint8 weights 89; uint16 activations 94 (ResNet-20 is similar). A bare ``AUTO`` put all
    12 nodes of a network on the CPU provider, ``AUTO:CPU`` none. GPU and NPU were not tried.
    """
    del device
    found: list[Misfit] = []
    name = find_device_type(variant)
    if variant.dialect is not None and name == "CPU":
        for key, dtype in (("activations", "uint16"), ("weights", "uint8")):
            if getattr(variant.dialect, key) == dtype:
                problem = f"OpenVINO runs {dtype} {key} on the CPU as float, slower than fp32"
                fitting = "uint8" if key == "activations" else "int8"
                found.append(Misfit(("dialect", key), problem, f"write {key}: {fitting}"))
    if name in _META_DEVICES:
        problem = f"OpenVINO takes no node for device_type {name} that names no device"
        found.append(Misfit(("providers",), problem, f"write device_type: {name}:CPU"))
    return found


def find_device_type(variant: Variant) -> str:
    """Return the device that a variant's OpenVINO provider uses, such as ``GPU``."""
    for provider in variant.providers:
        if provider.name == BACKEND.provider:
            return provider.options.get("device_type", "CPU")
    return "CPU"


def find_refusals(graph: Graph, variant: Variant) -> dict[int, Refusal]:
    """Return the nodes that OpenVINO's provider leaves, by index, each with the reason.

    If it takes nodes that OpenVINO then cannot compile, no session can be made: in the known cases
    all nodes are refused, with that reason. Not predicted: an If with a body that the provider
    takes in part, and operands that OpenVINO's own importer refuses.
    """
    name = find_device_type(variant)
    if name in _META_DEVICES:
        reason = f"device_type {name} names no device, and then no operator is taken"
        return _refuse_all(graph.nodes, reason, f"write device_type: {name}:CPU")
    device = "GPU" if name.startswith("GPU") else "CPU"
    refused = {
        node.index: refusal
        for node in graph.nodes
        if (refusal := _find_refusal(graph, node, device)) is not None
    }
    if refused:
        refused |= _refuse_parts_of_whole(graph, refused)
        given_back, pieces = _find_given_back(graph, refused)
        refused |= given_back
    else:
        refused = _refuse_whole(graph)
        pieces = [] if refused else [list(graph.nodes)]
    broken = next(filter(None, (_explain_break(graph, piece) for piece in pieces)), None)
    return refused if broken is None else _refuse_all(graph.nodes, *broken)


def count_cores(options: Mapping[str, str], session_threads: int, cpu_count: int) -> int:
    """Return the provider's number of threads on the CPU; 1 for a GPU or an NPU."""
    if options.get("device_type", "CPU").startswith("CPU"):
        return int(options.get("num_of_threads", cpu_count))
    return count_one_core(options, session_threads, cpu_count)


BACKEND = Backend(
    name="openvino",
    provider="OpenVINOExecutionProvider",
    recipes=frozenset({"fp32", "fp16", "int8-static"}),
    formats=frozenset({"onnx", "ort-runtime"}),
    misfits=find_misfits,
    refusals=find_refusals,
    # A float model with the operator Mish it left to the CPU whole (1.24.1, tried).
    early_rewrites=("fuse-mish",),
    last_rewrites=("split-mish",),
    knobs=(
        Knob(
            "num_of_threads",
            (THREADS,),
            "limits inference threads on the CPU:"
            " onnxruntime.ai/docs/execution-providers/OpenVINO-ExecutionProvider.html",
            device_type="CPU",
        ),
    ),
    cores=count_cores,
    # GPU and NPU. Sources: intel.com/content/www/us/en/docs/oneapi-toolkit/
    # installation-guide-linux/latest/install-intel-gpu-drivers.html (render nodes), and
    # dlstreamer.github.io/dev_guide/advanced_install/advanced_install_guide_prerequisites.html
    device_files=("/dev/dri/renderD*", "/dev/accel/accel*"),
    plugin="onnxruntime-ep-openvino",
    plugin_replaces="onnxruntime-openvino",
)


def _refuse_parts_of_whole(graph: Graph, refused: Collection[int]) -> dict[int, Refusal]:
    nodes = [n for n in graph.nodes if n.op in ("TopK", "NonZero") and n.index not in refused]
    reason = "TopK and NonZero are taken only where the whole graph is"
    return _refuse_all(nodes, reason, "see the other nodes that are left")


def _refuse_all(nodes: Collection[Node], reason: str, remedy: str) -> dict[int, Refusal]:
    return {node.index: Refusal(reason, remedy) for node in nodes}


def _find_refusal(graph: Graph, node: Node, device: str) -> Refusal | None:
    """Return why a node is not taken whatever is around it (DataOps::node_is_supported)."""
    if node.op not in _read_tables().ops.list_for(device):
        reason = f"the operator {node.qualified_op} is not among those that OpenVINO's provider has"
        return Refusal(reason, f"replace {node.op}, or {_ON_CPU}")
    return (
        _check_dtypes(graph, node, device)
        or _check_dimensions(graph, node, device)
        or (_check_mode(graph, node) if not node.domain else None)
    )


def _list_tensors(node: Node) -> list[str]:
    """Return the tensors that a node reads, in its bodies too, and those that it makes."""
    return [name for name in (*node.inputs, *node.outer_inputs, *node.outputs) if name]


def _check_dtypes(graph: Graph, node: Node, device: str) -> Refusal | None:
    types = _read_tables().dtypes.GPU if device == "GPU" else _read_tables().dtypes.CPU
    for tensor in _list_tensors(node):
        dtype = graph.dtype(tensor)
        if dtype and dtype not in types:
            return Refusal(
                f"{tensor!r} is {dtype}; OpenVINO's provider takes {', '.join(types)}",
                "cast to float32 or int64 before it, or " + _ON_CPU,
            )
    return None


def _check_dimensions(graph: Graph, node: Node, device: str) -> Refusal | None:
    """Check rank and dimensions of the tensors that are not constant."""
    tables = _read_tables()
    constants = [tensor for tensor in _list_tensors(node) if graph.is_constant(tensor)]
    for tensor in _list_tensors(node):
        shape = None if tensor in constants else graph.shape(tensor)
        if shape == () and not _can_be_scalar(graph, node, device):
            return Refusal(
                f"{tensor!r} has no dimensions (rank 0), which {node.op} may not have there",
                "give the tensor a dimension of 1, or " + _ON_CPU,
            )
        if shape and 0 in shape and node.op not in tables.empty_ops:
            return Refusal(
                f"{tensor!r} has a dimension of 0", "leave out the empty tensor, or " + _ON_CPU
            )
    return None


def _can_be_scalar(graph: Graph, node: Node, device: str) -> bool:
    if node.op in _read_tables().scalar_ops.list_for(device):
        return True
    makers = [graph.producers[name].op for name in node.inputs if name in graph.producers]
    return node.op == "Pad" and "DequantizeLinear" in makers


def _check_mode(graph: Graph, node: Node) -> Refusal | None:
    """Check attributes and operands of an ai.onnx operator."""
    if node.op == "ReduceMax":
        for tensor in filter(None, node.inputs):
            if graph.dtype(tensor) in ("int8", "uint8"):
                return Refusal(f"ReduceMax of {graph.dtype(tensor)}", f"cast first, or {_ON_CPU}")
    if node.op == "Reshape" and len(node.inputs) > 1 and 0 in (graph.shape(node.inputs[1]) or ()):
        return Refusal("Reshape to no dimensions", f"use Squeeze, or {_ON_CPU}")
    if node.op == "Unsqueeze" and "axes" in node.inputs:
        return Refusal("Unsqueeze with an input called 'axes'", "give that tensor another name")
    if node.op == "Upsample" and (problem := _find_upsample_problem(graph, node)):
        return Refusal(f"Upsample {problem}", "convert the model to opset 13: Resize is taken")
    return None


def _find_upsample_problem(graph: Graph, node: Node) -> str | None:
    scales = list(node.attributes.get("scales", ()))
    if len(scales) > 2 and scales[:2] != [1.0, 1.0]:
        return f"with scales {scales}"
    dtype = graph.dtype(node.inputs[0])
    return None if dtype in ("float32", "float16", "int8") else f"of {dtype}"


def _refuse_whole(graph: Graph) -> dict[int, Refusal]:
    """Return the nodes that the provider gives back although it would take each of them alone."""
    if not graph.nodes:
        return {}
    if not graph.inputs:
        return _refuse_all(graph.nodes, "the graph has no inputs", "nothing: it is a constant")
    for value in graph.inputs:
        if value.shape is None:
            reason = f"the input {value.name!r} is no tensor with a known number of dimensions"
            return _refuse_all(graph.nodes, reason, "export the model with the input's shape")
    first = _sort_in_session_order(graph)[0]
    if len(graph.nodes) <= 3 and first.op in _read_tables().only_in_models:
        reason = f"a graph of {len(graph.nodes)} nodes that begins with {first.op} is left alone"
        return _refuse_all(graph.nodes, reason, "nothing: so small a graph gains nothing")
    if len(graph.nodes) == 1 and _is_given_back(graph, first):
        reason = f"a graph of nothing but {first.op} is left alone"
        return _refuse_all(graph.nodes, reason, "nothing: so small a graph gains nothing")
    return {}


def _is_given_back(graph: Graph, node: Node) -> bool:
    """Return whether a graph of this one node is given back (SpecialConditionForClusterSizeOne)."""
    if node.op == "Reshape":
        return not graph.is_constant(node.inputs[1])
    half = graph.dtype(node.outputs[0]) == "float16"
    return node.op == "RoiAlign" or (node.op == "Expand" and not half)


def _find_given_back(
    graph: Graph, refused: Collection[int]
) -> tuple[dict[int, Refusal], list[list[Node]]]:
    """Return the nodes that are given back because of their piece, and the pieces that stay.

    A piece of one node is given back unless it is the last; if the next piece reads it, it joins
    that piece. Source: GetCapability::Execute.
    """
    pieces = list(_find_pieces(graph, refused))
    found: dict[int, Refusal] = {}
    kept: list[list[Node]] = []
    for number, piece in enumerate(pieces):
        if len(piece) == 1 and number < len(pieces) - 1:
            if any(piece[0] in _list_sources(graph, other) for other in pieces[number + 1]):
                pieces[number + 1].append(piece[0])
                continue
            reason = "it stands alone between nodes that OpenVINO's provider does not take"
            found |= _refuse_all(piece, reason, "see the nodes around it: where they go it goes")
        elif (culprit := _find_culprit(graph, piece)) is not None:
            reason = f"its piece goes back, for the output of {culprit} has readers outside of it"
            remedy = "make those readers nodes that OpenVINO takes, and no outputs of the model"
            found |= _refuse_all(piece, reason, remedy)
        else:
            kept.append(piece)
    return found, kept


def _find_pieces(graph: Graph, refused: Collection[int]) -> Iterator[list[Node]]:
    """Yield the connected pieces between two refused nodes, in onnxruntime's order."""
    run: list[Node] = []
    for node in _sort_in_session_order(graph):
        if node.index in refused:
            yield from _split_connected(graph, run)
            run = []
        else:
            run.append(node)
    yield from _split_connected(graph, run)


def _sort_in_session_order(graph: Graph) -> list[Node]:
    """Return the nodes in a session's order: depth first from the last node that no other reads.

    Source: Graph::ReverseDFSFrom and GraphViewer, onnxruntime core/graph (1.24 tree).
    """
    order: list[Node] = []
    seen: set[int] = set()
    stack = [(node, False) for node in graph.nodes if not list(_list_readers(graph, node))]
    while stack:
        node, left = stack.pop()
        if left:
            order.append(node)
        elif node.index not in seen:
            seen.add(node.index)
            stack.append((node, True))
            sources = {source.index: source for source in _list_sources(graph, node)}
            stack += [(sources[key], False) for key in sorted(sources) if key not in seen]
    return order


def _split_connected(graph: Graph, nodes: list[Node]) -> Iterator[list[Node]]:
    left = {node.index: node for node in nodes}
    while left:
        start = left.pop(next(iter(left)))
        piece, front = [start], [start]
        while front:
            node = front.pop()
            for near in (*_list_sources(graph, node), *_list_readers(graph, node)):
                if near.index in left:
                    piece.append(left.pop(near.index))
                    front.append(near)
        yield piece


def _list_sources(graph: Graph, node: Node) -> Iterator[Node]:
    for name in (*node.inputs, *node.outer_inputs):
        if name in graph.producers:
            yield graph.producers[name]


def _list_readers(graph: Graph, node: Node) -> Iterator[Node]:
    for name in filter(None, node.outputs):
        yield from graph.consumers.get(name, ())


def _find_culprit(graph: Graph, piece: list[Node]) -> Node | None:
    """Return the Conv or Identity because of which a whole piece is given back.

    Its output leaves the piece, and some node reads it: it is not just an output of the model.
    """
    inside = {node.index for node in piece}
    for node in piece:
        if node.op not in ("Conv", "Identity"):
            continue
        readers = graph.consumers.get(node.outputs[0], ())
        outside = any(reader.index not in inside for reader in readers)
        if readers and (outside or node.outputs[0] in graph.outputs):
            return node
    return None


def _explain_break(graph: Graph, piece: list[Node]) -> tuple[str, str] | None:
    """Return reason and remedy if OpenVINO cannot compile a piece (measured by tests/placement)."""
    inside = {node.index for node in piece}
    for node in piece:
        if node.op == "Loop":
            reason = f"no session is made: the provider takes the body of {node} and {node} itself"
            return reason, "unroll the loop in the export, or leave OpenVINO out"
        for name in (*node.inputs, *node.outer_inputs):
            outside = name in graph.producers and graph.producers[name].index not in inside
            if outside and graph.shape(name) is None:
                reason = f"no session is made: {name!r} has an unknown rank, and {node} reads it"
                return reason, f"make the node that gives {name!r} one that OpenVINO takes"
    if _is_circular(graph, piece):
        reason = (
            f"no session is made: {piece[-1]} joins a piece that also reads it by way of a node"
            " that OpenVINO's provider does not take"
        )
        return reason, "make the node between them one that OpenVINO takes"
    return None


def _is_circular(graph: Graph, piece: list[Node]) -> bool:
    inside = {node.index for node in piece}
    front = [
        near for node in piece for near in _list_readers(graph, node) if near.index not in inside
    ]
    seen: set[int] = set()
    while front:
        node = front.pop()
        if node.index in inside:
            return True
        if node.index not in seen:
            seen.add(node.index)
            front.extend(_list_readers(graph, node))
    return False
