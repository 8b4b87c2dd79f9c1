"""From a profile's variant to the step that makes its numbers."""

from __future__ import annotations

from edgepack.backends.registry import BACKENDS
from edgepack.base.machine import processor
from edgepack.project.profile import Profile, Variant
from edgepack.steps.recipes.fp16 import Fp16
from edgepack.steps.recipes.fp32 import Fp32
from edgepack.steps.recipes.int4_weight import Int4Weight
from edgepack.steps.recipes.int8_dynamic import Int8Dynamic
from edgepack.steps.recipes.int8_static import Int8Static

INT8_OPSET = 13
"""The least opset for int8: scales per channel came with it (QuantizeLinear, onnx Changelog.md)."""
OPSET_OF_16_BITS = 21
"""The least opset for activations of 16 bits (the same)."""


def least_opset(variant: Variant) -> int:
    """Return the opset that a quantized variant needs: 16-bit activations came with 21.

    Source: QuantizeLinear in onnx's Changelog.md. onnxruntime also has them in a domain of its own
    for older opsets, where no shapes are inferred.
    """
    return (
        OPSET_OF_16_BITS
        if variant.dialect and variant.dialect.activations == "uint16"
        else INT8_OPSET
    )


def takes_16_bits(profile: Profile, variant: Variant) -> bool:
    """Return whether operators of an 8-bit variant can have 16 bits: its backend's rules say so.

    A CPU runs those as float; there leaving them float is as good.
    """
    dialect = variant.dialect
    if dialect is None or dialect.activations != "uint8" or variant.backend == "cpu":
        return False
    wide = dialect.model_copy(update={"activations": "uint16"})
    changed = variant.model_copy(update={"dialect": wide})
    refused = BACKENDS[variant.backend].misfits(changed, profile.device)
    return not refused and profile.runtime.max_opset >= OPSET_OF_16_BITS


def recipe_step(
    profile: Profile, variant: Variant
) -> Fp32 | Fp16 | Int4Weight | Int8Dynamic | Int8Static:
    """Return the step of a variant's recipe, as its backend and the target's runtime want it."""
    backend, max_ir = BACKENDS[variant.backend], profile.runtime.max_ir
    if variant.recipe == "int4-weight":
        return Int4Weight(max_ir)
    if variant.dialect is None:
        kept = tuple(sorted(backend.float32_ops))
        return Fp32(max_ir) if variant.recipe == "fp32" else Fp16(max_ir, kept)
    if variant.recipe == "int8-dynamic":
        return Int8Dynamic(variant.dialect, max_ir)
    return Int8Static(
        variant.dialect,
        max_ir,
        cpu=profile.device.arch if variant.backend == "cpu" else None,
        per_tensor_ops=backend.per_tensor_ops,
        every_op=backend.every_op,
        least_span=backend.least_span,
        output_grids=backend.output_grids,
        processor=processor(),
    )
