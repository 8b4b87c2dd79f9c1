"""Variants that the plan adds to a profile's, because of what a model is."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from edgepack.model.facts import ModelFacts
from edgepack.model.workload import MATRIX_PRODUCTS, matrix_share
from edgepack.processes import Workers
from edgepack.profile import Dialect, Profile, Variant, target_file
from edgepack.project import LoadedProject

MAINLY = 0.5
"""The part of multiply-adds from which on a model is one of matrix products."""

_AFTER = "int8-static"
_OFFERED = "int8-dynamic"


@dataclass(frozen=True)
class Offer:
    """A variant that was added; if it cannot be had, that is no failure of the build."""

    target: str
    variant: str
    reason: str


def offer_int8_dynamic(
    model: Path,
    facts: ModelFacts,
    profiles: Sequence[Profile],
    named: Collection[str],
    workers: Workers,
) -> tuple[list[Profile], list[Offer]]:
    """Return profiles in which CPUs try int8-dynamic before int8-static, where that suits a model.

    It suits float models most of whose multiply-adds are in matrix products with constant weights,
    as those of transformers: it needs no samples, and the activations of each run get a range that
    fits them. Profiles that have the recipe on the CPU already stay as they are.

    Args:
        model: The model file.
        facts: Of the model.
        profiles: The targets'.
        named: Targets whose variants the project names: they stay as they are too.
        workers: Where the model is looked at.
    """
    changed = {p.id: _with_int8_dynamic(p) for p in profiles if p.id not in named}
    offers = [(p.id, v.id) for p in changed.values() for v in p.variants if _is_new(v, p, profiles)]
    products = sum(facts.op_counts.get(op, 0) for op in MATRIX_PRODUCTS)
    if not offers or not products or facts.quantization is not None:
        return list(profiles), []
    share = workers.call(matrix_share, model)
    if share <= MAINLY:
        return list(profiles), []
    reason = f"{share:.0%} of the multiply-adds are in matrix products, so it comes before {_AFTER}"
    return (
        [changed.get(profile.id, profile) for profile in profiles],
        [Offer(target, variant, reason) for target, variant in offers],
    )


def _is_new(variant: Variant, profile: Profile, profiles: Sequence[Profile]) -> bool:
    before = next(own for own in profiles if own.id == profile.id)
    return variant not in before.variants


def named_targets(loaded: LoadedProject) -> set[str]:
    """Return the ids of the targets whose variants the project names."""
    entries = (entry for entry in loaded.project.targets if not isinstance(entry, str))
    return {target_file(entry.id).stem for entry in entries}


def _with_int8_dynamic(profile: Profile) -> Profile:
    """Return a profile with int8-dynamic on the CPU before int8-static, if it has just that."""
    on_cpu = [variant for variant in profile.variants if variant.backend == "cpu"]
    if any(variant.recipe == _OFFERED for variant in on_cpu):
        return profile
    variants: list[Variant] = []
    for variant in profile.variants:
        if variant.backend == "cpu" and variant.recipe == _AFTER and variant.dialect is not None:
            variants.append(_dynamic(variant, variant.dialect))
        variants.append(variant)
    return profile.model_copy(update={"variants": variants})


def _dynamic(static: Variant, dialect: Dialect) -> Variant:
    """Return the int8-dynamic variant beside an int8-static one; activations are always uint8."""
    changed = dialect.model_copy(update={"activations": "uint8", "symmetric": False})
    name = static.id.replace(_AFTER, _OFFERED)
    return static.model_copy(update={"id": name, "recipe": _OFFERED, "dialect": changed})
