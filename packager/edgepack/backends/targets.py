"""Checks that backends take a profile's variants, before anything is built."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import Version

from edgepack.backends.base import Backend, Misfit
from edgepack.backends.plugin import PLUGIN, check_plugins
from edgepack.backends.registry import BACKENDS, find_backend
from edgepack.backends.sessions import find_idle_settings
from edgepack.errors import EdgepackError, ProfileError, suggest_nearest
from edgepack.ondevice.runtime.edgepack_names import (
    find_provider_option_problem,
    find_session_key_problem,
)
from edgepack.ondevice.runtime.edgepack_providers import CACHE
from edgepack.project.loading import LoadedProject
from edgepack.project.profile import (
    ORT_PLATFORMS,
    Family,
    OrtFormat,
    Profile,
    Variant,
    VariantChange,
    change_profile,
    find_target_file,
    find_target_ids,
    parse_release,
    read_profile_source,
)
from edgepack.project.project import ChangedTarget
from edgepack.project.recipes import RECIPE_RULES

FAMILIES: dict[str, Family] = {
    "linux": "linux",
    "macos": "linux",
    "android": "android",
    "ios": "apple",
    "browser": "web",
}
"""The folder in ``templates/`` with the files for a device's bundles, by its operating system."""

_REPLAYS_SINCE = "1.30"
"""An onnxruntime that loads .ort files of style runtime: see :func:`_check_replays`."""
_AS_PEP_440 = 'write a PEP 440 specifier, such as ">=3.11" or "==1.31.1"'
_AS_SPELT = "keys and values are spelt as onnxruntime spells them"


def load_target(target: str) -> Profile:
    """Return the profile of a target after checking that its backends take its variants.

    Raises:
        UsageError: There is no such target.
        ProfileError: Its file is wrong; the error names every place.
    """
    return check_target(find_target_file(target))


def check_target(path: Path) -> Profile:
    """Return the profile in a file after checking that its backends take its variants.

    Raises:
        ProfileError: The file is wrong; the error names every place.
    """
    profile, source = read_profile_source(path)
    problems = [*_check_device(profile), *_check_pins(profile)]
    problems += [
        (("variants", index, *misfit.key), f"variant {variant.id!r}: {misfit.problem}", misfit.hint)
        for index, variant in enumerate(profile.variants)
        for misfit in find_misfits(variant, profile)
    ]
    if problems:
        raise source.refuse(problems)
    return profile


_Problem = tuple[tuple[str | int, ...], str, str]
"""A key's path, what is wrong, and what to do."""


def _check_device(profile: Profile) -> Iterator[_Problem]:
    family = FAMILIES[profile.device.os]
    if profile.family != family:
        problem = f"a device with {profile.device.os} is not of the family {profile.family!r}"
        yield ("family",), problem, f"write family: {family}"
    if profile.device.python is not None and not _is_specifier(profile.device.python):
        problem = f"{profile.device.python!r} says no Python versions"
        yield ("device", "python"), problem, _AS_PEP_440


def _check_pins(profile: Profile) -> Iterator[_Problem]:
    """Yield pins that no version can match: the device check and pip would fail on them."""
    on_python = profile.device.python is not None
    for name, pin in profile.runtime.packages.items():
        if on_python and not _is_specifier(pin):
            place = ("runtime", "packages", name)
            yield place, f"{pin!r} says no versions of {name}", _AS_PEP_440


def _is_specifier(text: str) -> bool:
    try:
        SpecifierSet(text)
    except InvalidSpecifier:
        return False
    return True


def read_project_targets(loaded: LoadedProject) -> Iterator[Profile]:
    """Yield the profiles of a project's targets, with the project's own variants.

    Raises:
        ProfileError: A target does not exist or is given twice with other variants, its file is
            wrong, or a variant does not fit. The error names the place in the project file.
    """
    seen: dict[str, Profile] = {}
    entries = [
        (index, name)
        for index, entry in enumerate(loaded.project.targets)
        for name in (find_target_ids([entry]) if isinstance(entry, str) else [entry])
    ]
    for index, entry in entries:
        name = entry if isinstance(entry, str) else entry.id
        place = ("targets", index) if isinstance(entry, str) else ("targets", index, "id")
        try:
            profile = load_target(name)
        except EdgepackError as error:
            if isinstance(error, ProfileError):
                raise
            raise ProfileError(
                error.problem, hint=error.hint, where=loaded.locate(*place)
            ) from error
        if not isinstance(entry, str) and entry.variants:
            profile = _make_changed_profile(loaded, index, entry, profile)
        if seen.setdefault(profile.id, profile) != profile:
            raise ProfileError(
                f"the target {profile.id!r} is given twice, with other variants",
                hint="give it once, with all the variants it is to have: a target has one bundle",
                where=loaded.locate(*place),
            )
        yield profile


def choose_targets(loaded: LoadedProject, targets: Sequence[str]) -> Iterator[Profile]:
    """Yield the profiles of targets, with the variants that the project names for one of them.

    Raises:
        UsageError: There is no such target.
        ProfileError: The same as for :func:`read_project_targets`.
    """
    names = find_target_ids(targets)
    own: dict[str, Profile] = {}
    if loaded.project.named_variants:
        own = {profile.id: profile for profile in read_project_targets(loaded)}
    for name in names:
        profile = load_target(name)
        yield own.get(profile.id, profile)


def _make_changed_profile(
    loaded: LoadedProject, index: int, entry: ChangedTarget, profile: Profile
) -> Profile:
    place = ("targets", index, "variants")
    for number, change in enumerate(entry.variants):
        for key, problem, hint in _check_change(profile, change):
            raise ProfileError(problem, hint=hint, where=loaded.locate(*place, number, *key))
    try:
        return change_profile(profile, entry.variants)
    except ValueError as error:
        problem, hint = _split_error(error)
        raise ProfileError(problem, hint=hint, where=loaded.locate(*place)) from error


def _check_change(
    profile: Profile, change: VariantChange
) -> Iterator[tuple[tuple[str | int, ...], str, str]]:
    if unknown := _check_backend(change.backend):
        yield unknown.key, unknown.problem, unknown.hint
        return
    try:
        new = change_profile(profile, [change])
    except ValueError as error:
        yield ((), *_split_error(error))
        return
    for misfit in find_misfits(new.variants[0], new):
        yield misfit.key, f"variant {new.variants[0].id!r}: {misfit.problem}", misfit.hint


def _split_error(error: ValueError) -> tuple[str, str]:
    """Return problem and hint of a validator's ``problem | hint``, without pydantic's frame."""
    from pydantic import ValidationError

    text = str(error)
    if isinstance(error, ValidationError):
        text = str(error.errors()[0]["msg"]).removeprefix("Value error, ")
    problem, _, hint = text.partition(" | ")
    return problem, hint or "see 'edgepack targets show' for how the profile's variants are written"


def find_misfits(variant: Variant, profile: Profile) -> list[Misfit]:
    """Return what is wrong with a variant of a profile."""
    if unknown := _check_backend(variant.backend):
        return [unknown]
    backend = find_backend(variant)
    found = [*_check_common(variant, backend), *_check_names(variant)]
    found += [*_check_kernels(variant, profile), *_check_replays(variant, profile)]
    found += _check_recipe(variant, profile)
    found += find_idle_settings(variant, backend, profile.device)
    found += _check_compiled(variant, backend, profile)
    found += check_plugins(variant, profile)
    return found + backend.misfits(variant, profile.device)


def _check_compiled(variant: Variant, backend: Backend, profile: Profile) -> Iterator[Misfit]:
    """Yield hardware for which nothing can be compiled, or that no loader takes."""
    if variant.compiled_for and not backend.hardware_option:
        problem = f"no model is compiled for {backend.provider} during a build"
        yield Misfit(
            ("compiled_for",), problem, "leave it out: the provider compiles on the device"
        )
    elif variant.compiled_for and profile.family != "linux":
        problem = "apps do not take compiled models yet"
        yield Misfit(("compiled_for",), problem, "leave it out: the provider compiles in the app")
    for place, hardware in enumerate(variant.compiled_for):
        if backend.hardware and hardware not in backend.hardware:
            problem = f"{backend.provider} knows no {backend.hardware_option} {hardware!r}"
            hint = f"one of {', '.join(backend.hardware)}"
            yield Misfit(("compiled_for", place), problem, hint)


def _check_backend(backend: str) -> Misfit | None:
    if backend in BACKENDS or backend == PLUGIN:
        return None
    return Misfit(
        ("backend",),
        f"there is no backend {backend!r}",
        suggest_nearest(backend, [*BACKENDS, PLUGIN]),
    )


def _check_common(variant: Variant, backend: Backend) -> Iterator[Misfit]:
    if not variant.id.startswith(f"{variant.backend}-") or variant.recipe not in variant.id:
        problem = "its id does not say backend and recipe"
        yield Misfit(("id",), problem, f"call it {variant.backend}-{variant.recipe}")
    if variant.recipe not in backend.recipes:
        yield Misfit(
            ("recipe",),
            f"the backend {backend.name!r} cannot take the recipe {variant.recipe!r}",
            f"it takes {', '.join(sorted(backend.recipes))}",
        )
    chosen = variant.model_format
    form = f"ort-{chosen.ort}" if isinstance(chosen, OrtFormat) else chosen
    if form not in backend.formats:
        yield Misfit(
            ("model_format",),
            f"{backend.provider} does not run files of format {form!r} as it should",
            f"it takes {', '.join(sorted(backend.formats))}",
        )
    names = [provider.name for provider in variant.providers]
    for index, name in enumerate(names):
        if name in names[:index]:
            place = ("providers", index, "name")
            yield Misfit(place, f"{name} is listed twice", "list each provider once")
        if name not in backend.providers:
            yield Misfit(
                ("providers", index, "name"),
                f"the backend {backend.name!r} does not go with {name!r}",
                suggest_nearest(name, backend.providers),
            )
    if names[:1] != [backend.provider]:
        yield Misfit(
            ("providers",),
            f"the first provider is {names[0] if names else 'missing'}",
            f"a variant of backend {backend.name!r} lists {backend.provider} first",
        )


def _check_kernels(variant: Variant, profile: Profile) -> Iterator[Misfit]:
    """Yield a problem if a file is written with kernels for other processors than the target's."""
    chosen = variant.model_format
    if isinstance(chosen, OrtFormat) and ORT_PLATFORMS[chosen.platform] != profile.device.arch:
        right = [word for word, arch in ORT_PLATFORMS.items() if arch == profile.device.arch]
        yield Misfit(
            ("model_format", "platform"),
            f"the file is for {chosen.platform}, and the target is {profile.device.arch}",
            f"write platform: {right[0]}" if right else "write model_format: onnx",
        )


def _check_replays(variant: Variant, profile: Profile) -> Iterator[Misfit]:
    """Yield why the target's session cannot do the optimizations that a file leaves to it.

    Source: a file that onnxruntime 1.31.1 writes does not load in 1.23.2 ("Missing action
    1DQ_CPU"), and does in 1.30.0 (tried 2026-11-21; versions between were not).
    """
    replays = isinstance(variant.model_format, OrtFormat) and variant.model_format.ort == "runtime"
    if replays and (runtime := _find_older_runtime(profile, _REPLAYS_SINCE)):
        yield Misfit(
            ("model_format", "ort"),
            f"{runtime} does not load .ort files of style runtime",
            "write {ort: fixed, platform: arm}, or model_format: onnx",
        )


def _check_recipe(variant: Variant, profile: Profile) -> Iterator[Misfit]:
    """Yield a problem if a provider or onnxruntime does not take what a variant's models hold."""
    backend = find_backend(variant)
    if variant.fused_attention and variant.recipe not in backend.fuses:
        yield Misfit(
            ("fused_attention",),
            f"{backend.provider} does not take fused attention with the recipe {variant.recipe!r}",
            "leave it out, or give it to a variant of the backend 'cpu' with the recipe fp32",
        )
    since = RECIPE_RULES[variant.recipe].since
    if since and (runtime := _find_older_runtime(profile, since.onnxruntime)):
        yield Misfit(
            ("recipe",),
            f"{runtime} does not load {since.writes}",
            f"pin {since.onnxruntime} or newer, or use {since.instead}",
        )


def _find_older_runtime(profile: Profile, version: str) -> str:
    """Return the onnxruntime that a profile pins if it may be older than a version, else ''."""
    pinned = profile.runtime.onnxruntime
    return " ".join(pinned) if pinned and parse_release(pinned[1]) < Version(version) else ""


def _check_names(variant: Variant) -> Iterator[Misfit]:
    """Yield options and session keys that onnxruntime does not know: it reports few of them."""
    for index, provider in enumerate(variant.providers):
        for key, value in provider.options.items():
            known = provider.plugin is None  # a plugin's options are its own
            if known and (problem := find_provider_option_problem(provider.name, key, value)):
                yield Misfit(("providers", index, "options", key), problem, _AS_SPELT)
            if "{" in value.replace(CACHE, ""):
                problem = f"the loader fills in {CACHE} alone, not what is in {value!r}"
                yield Misfit(("providers", index, "options", key), problem, f"write {CACHE}")
    for key, value in variant.session.config.items():
        if problem := find_session_key_problem(key, value):
            yield Misfit(("session", "config", key), problem, _AS_SPELT)
