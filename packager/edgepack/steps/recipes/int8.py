"""What the recipes of int8 have in common: the steps before them, and the opsets they need."""

from __future__ import annotations

from edgepack.project.profile import Dialect, Variant
from edgepack.steps.base import Step
from edgepack.steps.graph.opset import AtLeastOpset
from edgepack.steps.graph.rewritten import Rewritten
from edgepack.steps.recipes.kind import Asked

INT8_OPSET = 13
"""The least opset for int8: scales per channel came with it (QuantizeLinear, onnx Changelog.md)."""
OPSET_OF_16_BITS = 21
"""The least opset for activations of 16 bits (the same)."""


def make_float_steps(asked: Asked) -> tuple[Step, ...]:
    """Return the steps that float models go through before int8, whatever their recipe.

    Large channels behind LayerNormalizations are moved into weights.
    """
    raised = AtLeastOpset(INT8_OPSET)
    if "LayerNormalization" not in asked.op_counts:
        return (raised,)
    return raised, Rewritten(("smooth-norms",))


def find_dialect(variant: Variant) -> Dialect:
    """Return the dialect of a variant of int8, which a profile is checked to have.

    Raises:
        TypeError: It has none.
    """
    if variant.dialect is None:
        raise TypeError(f"the variant {variant.id!r} has no dialect")
    return variant.dialect
