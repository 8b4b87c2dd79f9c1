"""onnxruntime's CUDA execution provider: it runs an operator if it has a kernel for it.

Kernels are matched node by node: operator, version, dtypes. The list in ``data/cuda.yaml`` is that
of onnxruntime-gpu 1.31.1 itself. We found two more rules by trying (1.31.1, no GPU needed to place
nodes, 2026-11-21): arithmetic on shapes stays on the CPU, and a few attributes send an operator
there.
"""

from __future__ import annotations

from edgepack.backends.base import Backend, Knob, Misfit, Refusal
from edgepack.backends.op_table import find_kernel_refusal, read_table
from edgepack.model.graph import Graph, Node
from edgepack.project.profile import DeviceKind, Variant


def find_misfits(variant: Variant, device: DeviceKind) -> list[Misfit]:
    """Find int8: no kernel multiplies what a QDQ model stores (the list of kernels, 1.31.1).

    The operators would run as float between Q and DQ nodes, slower than fp16.
    """
    del device
    if variant.dialect is None:
        return []
    problem = "CUDA runs int8 models as float, with the conversions on top"
    return [
        Misfit(("dialect",), problem, "use the recipe fp16, or the backend 'tensorrt' for int8")
    ]


def find_refusals(graph: Graph, variant: Variant) -> dict[int, Refusal]:
    """Return the nodes without a CUDA kernel, and those that onnxruntime keeps on the CPU."""
    del variant
    table = read_table(BACKEND.name)
    found = {
        node.index: refusal
        for node in graph.nodes
        if (refusal := find_kernel_refusal(table, graph, node) or _check_attributes(node))
    }
    return found | dict.fromkeys(_find_shape_arithmetic(graph, set(found)), _ON_SHAPES)


BACKEND = Backend(
    name="cuda",
    provider="CUDAExecutionProvider",
    recipes=frozenset({"fp32", "fp16"}),
    misfits=find_misfits,
    refusals=find_refusals,
    returns_early=True,
    # NVIDIA's driver: nvidia0, nvidiactl, nvidia-uvm; on a Jetson its kernel modules have more.
    # Source: abhik.xyz/concepts/gpu/nvidia-device-files (checked 2026-11-29).
    device_files=("/dev/nvidia*",),
    # These have float32 kernels and no float16 ones (data/cuda.yaml).
    float32_ops=frozenset({"EyeLike", "GridSample", "Range"}),
    knobs=(
        Knob(
            "cudnn_conv_algo_search",
            ("HEURISTIC", "DEFAULT"),
            "how convolution algorithms are chosen; EXHAUSTIVE is the default:"
            " onnxruntime.ai/docs/execution-providers/CUDA-ExecutionProvider.html",
        ),
        Knob(
            "prefer_nhwc",
            ("1",),
            "convolutions in NHWC; 0 is the default: the same page",
        ),
    ),
)


_ACTIVATIONS = {
    "LSTM": ["sigmoid", "tanh", "tanh"],
    "GRU": ["sigmoid", "tanh"],
    "RNN": ["tanh"],
}
"""All values of the attribute that cuDNN supports."""


def _check_attributes(node: Node) -> Refusal | None:
    """Return why a node goes to the CPU although it has a kernel.

    Source: tried, each attribute alone (onnxruntime-gpu 1.31.1).
    """
    problem = None
    if node.op in _ACTIVATIONS:
        problem = _find_recurrent_problem(node)
    elif node.op == "ConvTranspose":
        problem = _find_padding_problem(node)
    elif node.op in ("ArgMax", "ArgMin") and node.attributes.get("select_last_index"):
        problem = "select_last_index is set"
    return (
        Refusal(problem, "it runs on the CPU; export it without if that is slow")
        if problem
        else None
    )


def _find_recurrent_problem(node: Node) -> str | None:
    attributes = node.attributes
    for name in ("activation_alpha", "activation_beta", "clip"):
        if name in attributes:
            return f"{name} is set, which cuDNN has not"
    wanted = _ACTIVATIONS[node.op]
    found = [str(name).lower() for name in attributes.get("activations", wanted)]
    if found[: len(wanted)] != wanted or found[len(wanted) :] not in ([], wanted):
        return f"its activations are {', '.join(found)}; cuDNN has {', '.join(wanted)}"
    if node.op == "GRU" and not attributes.get("linear_before_reset"):
        return "linear_before_reset is 0; cuDNN has 1 alone"
    if node.op == "LSTM" and attributes.get("input_forget"):
        return "input_forget is set, which cuDNN has not"
    if node.op == "LSTM" and any(node.inputs[7:8]):
        return "it has peepholes, which cuDNN has not"
    return None


def _find_padding_problem(node: Node) -> str | None:
    pads = node.attributes.get("pads", [])
    half = len(pads) // 2
    if pads[:half] != pads[half:]:
        return f"its pads {pads} differ at the two ends"
    if str(node.attributes.get("auto_pad", "")).startswith("SAME"):
        return f"auto_pad is {node.attributes['auto_pad']}"
    return None


_ON_SHAPES = Refusal(
    "it computes with shapes, which onnxruntime keeps on the CPU", "nothing: it is quick there"
)
_MAKES_HOST_VALUES = ("Shape", "Size", "SequenceLength")
_REDUCTIONS = ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")
_READS_HOST_VALUES: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(("Expand", "Reshape", "Split", "Squeeze", "Tile", "TopK", "Unsqueeze"), (1,)),
    **dict.fromkeys((f"Reduce{name}" for name in _REDUCTIONS), (1,)),
    **dict.fromkeys(("CumSum", "OneHot", "Trilu"), (1,)),
    **dict.fromkeys(("Pad", "Resize", "Upsample"), (1, 2, 3)),
    **dict.fromkeys(("ConstantOfShape", "If"), (0,)),
    "Loop": (0, 1),
    "Range": (0, 1, 2),
    "Slice": (1, 2, 3, 4),
}
"""Inputs that the CUDA kernels themselves read from the CPU's memory."""
_SMALL = 100
"""The largest number of elements of a constant that moves to the CPU with its reader."""


def _find_shape_arithmetic(graph: Graph, refused: set[int]) -> set[int]:
    """Return the nodes that compute only from shapes, and so stay on the CPU.

    Source: GetCpuPreferredNodes in core/framework/fallback_cpu_capability.cc, as far as placements
    of 1.31.1 confirm it.
    """
    host = {
        name
        for node in graph.nodes
        if node.op in _MAKES_HOST_VALUES and node.index not in refused
        for name in node.outputs
    }
    kept = set()
    for node in graph.nodes:
        if node.index not in refused and _is_shape_arithmetic(graph, node, host):
            kept.add(node.index)
            host.update(node.outputs)
    return kept


def _is_shape_arithmetic(graph: Graph, node: Node, host: set[str]) -> bool:
    wanted = _READS_HOST_VALUES.get(node.op, ())
    reads = {place: name for place, name in enumerate(node.inputs) if name}
    from_shapes = [place for place, name in reads.items() if name in host]
    return (
        bool(from_shapes)
        and not any(place in wanted for place in from_shapes)
        and all(name in host or _is_small(graph, name) for name in reads.values())
        and not any("float16" in graph.dtype(name) for name in reads.values())
    )


def _is_small(graph: Graph, name: str) -> bool:
    return graph.is_constant(name) and graph.constants[name].size <= _SMALL
