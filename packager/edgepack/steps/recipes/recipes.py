"""Every recipe: one file each, in one dict."""

from __future__ import annotations

from edgepack.project.profile import Recipe
from edgepack.steps.recipes import fp16, fp32, int4_weight, int8_dynamic, int8_static
from edgepack.steps.recipes.kind import RecipeKind

RECIPES: dict[Recipe, RecipeKind] = {
    "fp32": fp32.KIND,
    "fp16": fp16.KIND,
    "int8-static": int8_static.KIND,
    "int8-dynamic": int8_dynamic.KIND,
    "int4-weight": int4_weight.KIND,
}
"""Every recipe by the name that profiles use."""
