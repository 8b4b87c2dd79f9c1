"""Whether a profile's variants are what their backends take: found before anything is built."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from edgepack.backends import BACKENDS
from edgepack.backends.base import Backend, Misfit
from edgepack.errors import EdgepackError, ProfileError, nearest
from edgepack.harness.edgepack_names import provider_option_problem, session_key_problem
from edgepack.profile import (
    OrtFormat,
    Profile,
    Variant,
    VariantChange,
    changed,
    read_profile_source,
    target_file,
)
from edgepack.project import ChangedTarget, LoadedProject

_AS_SPELT = "keys and values are spelt as onnxruntime spells them"


def load_target(target: str) -> Profile:
    """Return the profile of a target, proven to be one that its backends take.

    Raises:
        UsageError: There is no such target.
        ProfileError: Its file is wrong; names every place.
    """
    return check_profile(target_file(target))


def check_profile(path: Path) -> Profile:
    """Return the profile in a file, proven to be one that its backends take.

    Raises:
        ProfileError: The file is wrong; names every place.
    """
    profile, source = read_profile_source(path)
    problems = [
        (("variants", index, *misfit.key), f"variant {variant.id!r}: {misfit.problem}", misfit.hint)
        for index, variant in enumerate(profile.variants)
        for misfit in misfits(variant, profile)
    ]
    if problems:
        raise source.refuse(problems)
    return profile


def project_targets(loaded: LoadedProject) -> Iterator[Profile]:
    """Yield the profiles of a project's targets, with the project's own variants.

    Raises:
        ProfileError: A target is not there, its file is wrong, or a variant does not fit; names
            the place in the project file.
    """
    for index, entry in enumerate(loaded.project.targets):
        name = entry if isinstance(entry, str) else entry.id
        place = ("targets", index) if isinstance(entry, str) else ("targets", index, "id")
        try:
            profile = load_target(name)
        except EdgepackError as error:
            if isinstance(error, ProfileError):
                raise
            raise ProfileError(
                error.problem, hint=error.hint, where=loaded.where(*place)
            ) from error
        yield profile if isinstance(entry, str) else _changed(loaded, index, entry, profile)


def _changed(loaded: LoadedProject, index: int, entry: ChangedTarget, profile: Profile) -> Profile:
    place = ("targets", index, "variants")
    for number, change in enumerate(entry.variants):
        for key, problem, hint in _change_problems(profile, change):
            raise ProfileError(problem, hint=hint, where=loaded.where(*place, number, *key))
    try:
        return changed(profile, entry.variants)
    except ValueError as error:
        problem, hint = _split(error)
        raise ProfileError(problem, hint=hint, where=loaded.where(*place)) from error


def _change_problems(
    profile: Profile, change: VariantChange
) -> Iterator[tuple[tuple[str | int, ...], str, str]]:
    try:
        new = changed(profile, [change])
    except ValueError as error:
        yield ((), *_split(error))
        return
    for misfit in misfits(new.variants[0], new):
        yield misfit.key, f"variant {new.variants[0].id!r}: {misfit.problem}", misfit.hint


def _split(error: ValueError) -> tuple[str, str]:
    """Return problem and hint of a validator's ``problem | hint``, without pydantic's frame."""
    from pydantic import ValidationError

    text = str(error)
    if isinstance(error, ValidationError):
        text = str(error.errors()[0]["msg"]).removeprefix("Value error, ")
    problem, _, hint = text.partition(" | ")
    return problem, hint or "see 'edgepack targets show' for how the profile's variants are written"


def misfits(variant: Variant, profile: Profile) -> list[Misfit]:
    """Return what is wrong with a variant of a profile."""
    backend = BACKENDS.get(variant.backend)
    if backend is None:
        known = nearest(variant.backend, BACKENDS)
        return [Misfit(("backend",), f"there is no backend {variant.backend!r}", known)]
    found = [*_common(variant, backend), *_names(variant)]
    return [*found, *backend.misfits(variant, profile.device)]


def _common(variant: Variant, backend: Backend) -> Iterator[Misfit]:
    if variant.recipe not in backend.RECIPES:
        yield Misfit(
            ("recipe",),
            f"the backend {backend.NAME!r} cannot take the recipe {variant.recipe!r}",
            f"it takes {', '.join(sorted(backend.RECIPES))}",
        )
    if _format(variant) not in backend.FORMATS:
        yield Misfit(
            ("model_format",),
            f"{backend.PROVIDER} does not run files of format {_format(variant)!r} as it should",
            f"it takes {', '.join(sorted(backend.FORMATS))}",
        )
    names = [provider.name for provider in variant.providers]
    for index, name in enumerate(names):
        if name not in backend.PROVIDERS:
            yield Misfit(
                ("providers", index, "name"),
                f"the backend {backend.NAME!r} does not go with {name!r}",
                nearest(name, backend.PROVIDERS),
            )
    if names[:1] != [backend.PROVIDER]:
        yield Misfit(
            ("providers",),
            f"the first provider is {names[0] if names else 'missing'}",
            f"a variant of backend {backend.NAME!r} lists {backend.PROVIDER} first",
        )


def _format(variant: Variant) -> str:
    chosen = variant.model_format
    return f"ort-{chosen.ort}" if isinstance(chosen, OrtFormat) else chosen


def _names(variant: Variant) -> Iterator[Misfit]:
    """Yield options and session keys that onnxruntime does not know: it accepts most in silence."""
    for index, provider in enumerate(variant.providers):
        for key, value in provider.options.items():
            if problem := provider_option_problem(provider.name, key, value):
                yield Misfit(("providers", index, "options", key), problem, _AS_SPELT)
    for key, value in variant.session.config.items():
        if problem := session_key_problem(key, value):
            yield Misfit(("session", "config", key), problem, _AS_SPELT)
