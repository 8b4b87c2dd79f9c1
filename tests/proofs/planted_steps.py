"""edgepack's recipes with a breakage after each: what worker processes run where one is planted."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgepack.model.files import MODEL
from edgepack.model.reading import read_model, write_model
from edgepack.samples.sample_set import SampleSet
from edgepack.steps.recipes.fp16 import Fp16
from edgepack.steps.recipes.fp32 import Fp32
from edgepack.steps.recipes.int4_weight import Int4Weight
from edgepack.steps.recipes.int8_dynamic import Int8Dynamic
from edgepack.steps.recipes.int8_static import Int8Static

from tests.proofs.breakages import BREAKAGES, Breakage

RECIPES = {
    "Int8Static": Int8Static,
    "Int8Dynamic": Int8Dynamic,
    "Int4Weight": Int4Weight,
    "Fp16": Fp16,
    "Fp32": Fp32,
}


def planted_step(recipe: str, breakage: str) -> type:
    """Return a recipe's step that leaves its file broken."""
    return globals()[_name(recipe, breakage)]


def _name(recipe: str, breakage: str) -> str:
    return recipe + "".join(word.capitalize() for word in breakage.split("-"))


def _make(recipe: str, breakage: str, change: Breakage) -> type:
    base: Any = RECIPES[recipe]

    def run(self: Any, inputs: Any, out: Path) -> Any:
        notes = base.run(self, inputs, out)
        model = read_model(out / MODEL)
        change(model, list(SampleSet.read(inputs["samples"])) if "samples" in inputs else [])
        write_model(model, out / MODEL)
        return notes

    body = {"run": run, "__module__": __name__, "__doc__": change.__doc__}
    return dataclass(frozen=True)(type(_name(recipe, breakage), (base,), body))


# Workers find a class by its module and name.
globals().update(
    {
        _name(recipe, breakage): _make(recipe, breakage, change)
        for recipe in RECIPES
        for breakage, change in BREAKAGES.items()
    }
)
