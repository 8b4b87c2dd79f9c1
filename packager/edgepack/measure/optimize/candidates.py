"""Which variants are worth building for a device. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from edgepack.backends.registry import find_backend
from edgepack.backends.targets import find_misfits
from edgepack.project.profile import Dialect, Profile, Variant, VariantChange, change_profile
from edgepack.project.recipes import RECIPE_RULES

_SHORT = {"uint8": "u8", "int8": "s8", "uint16": "u16"}


def add_candidates(profile: Profile, *, attention: bool = False) -> Profile:
    """Return a profile with all variants that its providers take, beside its own.

    For each provider: every recipe that it runs, and int8-static in every dialect that its rules
    allow, with weights per channel and per tensor.

    Args:
        profile: The target's.
        attention: Whether the model has attention and what fuses it is installed: then also the
            recipes with fused attention that the provider takes.
    """
    variants = {variant.id: variant for variant in profile.variants}
    seen = {_describe(variant) for variant in profile.variants}
    for change in _list_changes(profile, attention=attention):
        found = _try_change(profile, change)
        if found is None or found.id in variants or _describe(found) in seen:
            continue
        if not find_misfits(found, profile):
            variants[found.id] = found
            seen.add(_describe(found))
    # What a bundle for phones holds is no bound here.
    return profile.model_copy(update={"variants": [*variants.values()], "bundle": None})


def _try_change(profile: Profile, change: VariantChange) -> Variant | None:
    try:
        return change_profile(profile, [change]).variants[0]
    except ValueError:
        return None


def _describe(variant: Variant) -> str:
    """Return what makes a variant's model and where it runs, without its name and settings."""
    return variant.model_dump_json(exclude={"id", "session"})


def _list_changes(profile: Profile, *, attention: bool) -> Iterator[VariantChange]:
    for backend, variant in {each.backend: each for each in profile.variants}.items():
        for recipe, rules in RECIPE_RULES.items():
            if recipe not in find_backend(variant).recipes:
                continue
            yield VariantChange(backend=backend, recipe=recipe)
            if attention and recipe in find_backend(variant).fuses:
                yield VariantChange(backend=backend, recipe=recipe, fused_attention=True)
            if rules.dialect and recipe == "int8-static":
                for dialect in _list_dialects():
                    name = f"{backend}-{recipe}-{_name_dialect(dialect)}"
                    yield VariantChange(backend=backend, recipe=recipe, id=name, dialect=dialect)


def _list_dialects() -> Iterator[Dialect]:
    """Yield the dialects of 8 bits on both sides that differ in speed on some processor."""
    for activations, weights, symmetric in (
        ("uint8", "int8", False),
        ("int8", "int8", True),
        ("int8", "int8", False),
        ("uint8", "uint8", False),
    ):
        for per_channel in (True, False):
            yield Dialect.model_validate(
                {
                    "activations": activations,
                    "weights": weights,
                    "symmetric": symmetric,
                    "per_channel": per_channel,
                }
            )


def _name_dialect(dialect: Dialect) -> str:
    words = [f"{_SHORT[dialect.activations]}{_SHORT[dialect.weights]}"]
    words += ["symmetric"] if dialect.symmetric else []
    words += [] if dialect.per_channel else ["tensor"]
    return "-".join(words)
