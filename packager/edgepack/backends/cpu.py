"""onnxruntime's CPU execution provider: it takes every operator that onnxruntime has."""

from __future__ import annotations

from edgepack.backends.base import Misfit, Refusal
from edgepack.model.graph import Graph
from edgepack.project.profile import BackendName, DeviceKind, Recipe, Variant

NAME: BackendName = "cpu"
PROVIDER = "CPUExecutionProvider"
PROVIDERS = frozenset({PROVIDER})
RECIPES: frozenset[Recipe] = frozenset({"fp32", "int8-static", "int8-dynamic", "int4-weight"})
FORMATS = frozenset({"onnx", "ort-fixed", "ort-runtime"})
STATIC_SHAPES = False
REWRITES: tuple[str, ...] = ()
LAST_REWRITES: tuple[str, ...] = ()
FLOAT32_OPS: frozenset[str] = frozenset()
PER_TENSOR_OPS: tuple[str, ...] = ()
QUANTIZES_EVERY_OP = False


def misfits(variant: Variant, device: DeviceKind) -> list[Misfit]:
    """Refuse int8 activations on x86-64, where they leave convolutions in float.

    Source: 1 of 3 Conv became QLinearConv with int8 activations, 3 of 3 with uint8 (onnxruntime
    1.31.1, measured); on aarch64 all do with either.
    """
    dialect = variant.dialect
    if dialect is None or device.arch != "x86-64" or dialect.activations == "uint8":
        return []
    problem = f"the CPU of x86-64 runs {dialect.activations} activations as float, slower than fp32"
    return [Misfit(("dialect", "activations"), problem, "write activations: uint8")]


def refusals(graph: Graph, variant: Variant) -> dict[int, Refusal]:
    """Return nothing: the CPU takes all that a session can be made of."""
    del graph, variant
    return {}
