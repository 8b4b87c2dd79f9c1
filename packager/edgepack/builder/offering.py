"""Variants that the plan adds to a profile's, because of what a model is."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from edgepack.base.processes import Workers
from edgepack.model.facts import ModelFacts
from edgepack.model.workload import MATRIX_PRODUCTS, compute_matrix_share
from edgepack.project.loading import LoadedProject
from edgepack.project.profile import Profile, Variant, find_target_file

MAINLY = 0.5
"""The share of multiply-adds in matrix products above which int8-dynamic suits a model."""

Offers = Mapping[tuple[str, str], str]
"""Why a variant was added, by target and variant; it is no failure if it cannot be made."""

_BEFORE = "int8-static"
_OFFERED = "int8-dynamic"


def offer_int8_dynamic(
    model: Path,
    facts: ModelFacts,
    profiles: Sequence[Profile],
    named: Collection[str],
    workers: Workers,
) -> tuple[list[Profile], Offers]:
    """Return profiles in which CPUs try int8-dynamic before int8-static, where that suits a model.

    It suits float models most of whose multiply-adds are in matrix products with constant weights,
    as those of transformers: it needs no samples, and the activations of each run get a range that
    fits them. Profiles that have the recipe on the CPU already stay as they are.

    Args:
        model: The model file.
        facts: Of the model.
        profiles: The targets'.
        named: Targets whose variants the project names: they stay as they are too.
        workers: The worker processes that read the model.
    """
    changed = {p.id: new for p in profiles if p.id not in named and (new := _add_offer(p))}
    products = sum(facts.op_counts.get(op, 0) for op in MATRIX_PRODUCTS)
    if not changed or not products or facts.quantization is not None:
        return list(profiles), {}
    share = workers.call(compute_matrix_share, model)
    if share <= MAINLY:
        return list(profiles), {}
    reason = (
        f"{share:.0%} of the multiply-adds are in matrix products, so it comes before {_BEFORE}"
    )
    return (
        [changed.get(profile.id, profile) for profile in profiles],
        dict.fromkeys(((target, f"cpu-{_OFFERED}") for target in changed), reason),
    )


def find_named_targets(loaded: LoadedProject) -> set[str]:
    """Return the ids of the targets whose variants the project names."""
    return {find_target_file(name).stem for name in loaded.project.named_variants}


def _add_offer(profile: Profile) -> Profile | None:
    """Return a profile with int8-dynamic before the CPU's first int8-static, if that is new."""
    recipes = [v.recipe if v.backend == "cpu" else "" for v in profile.variants]
    ids = [variant.id for variant in profile.variants]
    if _BEFORE not in recipes or _OFFERED in recipes or f"cpu-{_OFFERED}" in ids:
        return None
    place = recipes.index(_BEFORE)
    variants = list(profile.variants)
    variants.insert(place, _make_dynamic_variant(variants[place]))
    return profile.model_copy(update={"variants": variants})


def _make_dynamic_variant(static: Variant) -> Variant:
    """Return the int8-dynamic variant beside an int8-static one; activations are always uint8."""
    dialect = static.dialect and static.dialect.model_copy(
        update={"activations": "uint8", "symmetric": False}
    )
    changes = {"id": f"cpu-{_OFFERED}", "recipe": _OFFERED, "dialect": dialect}
    return static.model_copy(update=changes)
