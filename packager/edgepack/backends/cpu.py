"""onnxruntime's CPU execution provider: it takes every operator that onnxruntime has."""

from __future__ import annotations

from edgepack.backends.base import CPU, Backend, Misfit, Refusal, count_session_cores
from edgepack.model.graph import Graph
from edgepack.project.profile import DeviceKind, Variant


def find_misfits(variant: Variant, device: DeviceKind) -> list[Misfit]:
    """Find int8 activations where they leave convolutions in float: anywhere but on Arm.

    Source: 1 of 3 Conv became QLinearConv with int8 activations, 3 of 3 with uint8 (onnxruntime
    1.31.1, measured); on aarch64 all did with both. WebAssembly fuses as x86-64 does
    (:mod:`edgepack.model.fusion`).
    """
    dialect = variant.dialect
    if dialect is None or device.arch == "aarch64" or dialect.activations == "uint8":
        return []
    problem = (
        f"the CPU of {device.arch} runs {dialect.activations} activations as float, slower than"
        " fp32"
    )
    return [Misfit(("dialect", "activations"), problem, "write activations: uint8")]


def find_refusals(graph: Graph, variant: Variant) -> dict[int, Refusal]:
    """Return nothing: the CPU takes every node of a model that loads."""
    del graph, variant
    return {}


BACKEND = Backend(
    name="cpu",
    provider=CPU,
    recipes=frozenset({"fp32", "int8-static", "int8-dynamic", "int4-weight"}),
    # In int8 its kernel was slower than the nodes that it takes the place of (decision 030).
    fuses=frozenset({"fp32"}),
    formats=frozenset({"onnx", "ort-fixed", "ort-runtime"}),
    misfits=find_misfits,
    refusals=find_refusals,
    # A Clip costs nothing behind a convolution, and int8 has no Min.
    early_rewrites=("fuse-clip", "fuse-mish"),
    # Joined, it has one range in int8; split, it is faster than with onnxruntime's Softplus.
    last_rewrites=("split-mish",),
    on_processor=True,
    cores=count_session_cores,
)
