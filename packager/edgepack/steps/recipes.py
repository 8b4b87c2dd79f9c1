"""From a profile's variant to the step that makes its numbers."""

from __future__ import annotations

from edgepack.backends import BACKENDS
from edgepack.profile import Profile, Variant
from edgepack.steps.fp16 import Fp16
from edgepack.steps.fp32 import Fp32
from edgepack.steps.int8_dynamic import Int8Dynamic
from edgepack.steps.int8_static import Int8Static

INT8_OPSET = 13
"""The least opset for int8: scales per channel came with it (QuantizeLinear, onnx Changelog.md)."""


def least_opset(variant: Variant) -> int:
    """Return the opset that a quantized variant needs: 16-bit activations came with 21.

    Source: QuantizeLinear in onnx's Changelog.md. onnxruntime also has them in a domain of its own
    for older opsets, where no shapes are inferred.
    """
    return 21 if variant.dialect and variant.dialect.activations == "uint16" else INT8_OPSET


def recipe_step(profile: Profile, variant: Variant) -> Fp32 | Fp16 | Int8Dynamic | Int8Static:
    """Return the step of a variant's recipe, as its backend and the target's runtime want it."""
    backend, max_ir = BACKENDS[variant.backend], profile.runtime.max_ir
    if variant.dialect is None:
        kept = tuple(sorted(backend.FLOAT32_OPS))
        return Fp32(max_ir) if variant.recipe == "fp32" else Fp16(max_ir, kept)
    if variant.recipe == "int8-dynamic":
        return Int8Dynamic(variant.dialect, max_ir)
    return Int8Static(
        variant.dialect,
        max_ir,
        cpu=profile.device.arch if variant.backend == "cpu" else None,
        per_tensor_ops=backend.PER_TENSOR_OPS,
        every_op=backend.QUANTIZES_EVERY_OP,
    )
