"""Finds targets that require an older onnxruntime than the one that computes golden outputs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from edgepack.base.resources import find_targets_dir
from edgepack.project.profile import Profile, parse_release, read_profile

_PACKAGE = "onnxruntime"


def list_older_runtimes(profiles: Sequence[Profile], installed: str) -> Iterator[str]:
    """Yield a line if targets pin an older onnxruntime than the one that is installed here.

    The pin stays. It is the version that a profile's facts describe (the newest files it loads,
    what its providers take), that `device check` and `provision` require, and in which bundles were
    run. A pin that is older than the newest one of the shipped targets is expected: bundles built
    by the newest were run on that older version. No other combination was run.

    Args:
        profiles: The bundles' profiles.
        installed: The version of the onnxruntime that builds.
    """
    older = {
        p.id: pin
        for p in profiles
        if (pin := _find_pin(p)) and parse_release(pin) < parse_release(installed)
    }
    if not older:
        return
    tried = max(filter(None, map(_find_pin, _list_shipped_profiles())), key=parse_release)
    if parse_release(installed) <= parse_release(tried):
        return
    pins = ", ".join(f"{target} requires {pin}" for target, pin in older.items())
    yield (
        f"onnxruntime {installed} computed the golden outputs, and {pins}: no target was tried with"
        f" bundles that a newer one than {tried} built; build with {tried} (python -m pip install"
        f" onnxruntime=={tried}), or require what is installed in profiles of your own:"
        f" runtime: {{packages: {{onnxruntime: '=={installed}'}}}} in"
        f" targets/{next(iter(older))}.yaml"
    )


def _find_pin(profile: Profile) -> str | None:
    """Return the version of the plain package that a target pins; None where it pins another."""
    name, pin = profile.runtime.onnxruntime or ("", "")
    return pin if name == _PACKAGE else None


def _list_shipped_profiles() -> Iterator[Profile]:
    return map(read_profile, sorted(find_targets_dir().glob("*.yaml")))
