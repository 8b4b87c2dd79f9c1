"""What each recipe asks of a profile's variants.

What a recipe does is in :mod:`edgepack.steps.recipes.recipes`, which has the same names.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Since:
    """The onnxruntime that first loads what a recipe writes."""

    onnxruntime: str
    """Its version."""
    writes: str
    """What older ones do not load."""
    instead: str
    """The recipe to use with those."""


@dataclass(frozen=True)
class RecipeRules:
    """What a variant with a recipe has to be."""

    dialect: bool = False
    """Whether it has a dialect, as int8 has."""
    since: Since | None = None
    """None where all load it."""


RECIPE_RULES: dict[str, RecipeRules] = {
    "fp32": RecipeRules(),
    "fp16": RecipeRules(),
    "int8-static": RecipeRules(dialect=True),
    "int8-dynamic": RecipeRules(dialect=True),
    # Source: edgepack.steps.recipes.int4_weight.
    "int4-weight": RecipeRules(since=Since("1.23", "weights in blocks of 4 bits", "int8-dynamic")),
}
"""By the name that profiles use, in the order in which people read them."""
