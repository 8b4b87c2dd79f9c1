"""Finds models whose normalizations a session would join with the sum before them.

onnxruntime's SkipLayerNormFusion makes one operator of an Add and a LayerNormalization. On the CPU
that operator took longer than the two: without the fusion MiniLM-L3 and a made encoder of 6 layers
took 0.93 to 0.97 of the time in float32 and 0.88 to 0.95 in int8-dynamic (onnxruntime 1.31.1,
x86-64 with AVX-512, one thread, 16 to 128 words, 2026-11-28). No processor of Arm was measured.
"""

from __future__ import annotations

from edgepack.bundle.manifest import ManifestVariant
from edgepack.bundle.reading import Bundle
from edgepack.model.reading import read_outline

DISABLED = "optimization.disable_specified_optimizers"
"""Optimizations that a session leaves out, by name. Source:
onnxruntime_session_options_config_keys.h."""
JOINING = "SkipLayerNormFusion"
_SPELT_OUT = {"Pow", "ReduceMean", "Sqrt"}


def has_norms(bundle: Bundle, variant: ManifestVariant) -> bool:
    """Return whether the fusion may find something in a variant's model.

    That is a LayerNormalization, or what exporters for opsets below 17 write for it. Files of the
    ORT format are optimized already.

    Raises:
        ModelError: The bundle's model cannot be read.
    """
    if variant.model_format != "onnx":
        return False
    operators = {node.op_type for node in read_outline(bundle.path / variant.model).graph.node}
    return "LayerNormalization" in operators or operators >= _SPELT_OUT
