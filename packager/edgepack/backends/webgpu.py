"""onnxruntime's WebGPU execution provider, in browsers: it runs an operator if it has a kernel.

Kernels are matched node by node: operator, version, dtypes. The list in ``data/webgpu.yaml`` is
what onnxruntime-web 1.30.0 itself placed. As CUDA's, the provider leaves arithmetic on shapes to
the CPU; and in browsers int64 has no kernels, so that most of it is there anyway.
"""

from __future__ import annotations

from edgepack.backends.base import Backend, Misfit, Refusal
from edgepack.backends.op_table import find_kernel_refusal, read_table
from edgepack.model.graph import Graph
from edgepack.project.profile import DeviceKind, Variant


def find_misfits(variant: Variant, device: DeviceKind) -> list[Misfit]:
    """Find int8, for which there are no kernels, and devices that are no browsers.

    Source: QLinearConv, QLinearMatMul and QuantizeLinear all went to the CPU (onnxruntime-web
    1.30.0, tried).
    """
    found = []
    if variant.dialect is not None:
        problem = "WebGPU runs int8 models as float, with the conversions on the CPU"
        found.append(Misfit(("dialect",), problem, "use the recipe fp16"))
    if device.os != "browser":
        problem = f"edgepack's code for {device.os} does not switch WebGPU on"
        found.append(Misfit(("backend",), problem, "use it in a target for browsers (web)"))
    return found


def find_refusals(graph: Graph, variant: Variant) -> dict[int, Refusal]:
    """Return the nodes without a WebGPU kernel."""
    del variant
    table = read_table(BACKEND.name)
    return {
        node.index: refusal
        for node in graph.nodes
        if (refusal := find_kernel_refusal(table, graph, node))
    }


BACKEND = Backend(
    name="webgpu",
    provider="WebGpuExecutionProvider",
    recipes=frozenset({"fp32", "fp16"}),
    misfits=find_misfits,
    refusals=find_refusals,
    returns_early=True,
    # These have float32 kernels and no float16 ones (data/webgpu.yaml).
    float32_ops=frozenset({"GRU", "LSTM", "RMSNormalization", "Range"}),
)
