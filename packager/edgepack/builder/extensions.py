"""Says where a bundle's models may have operators of onnxruntime-extensions."""

from __future__ import annotations

from collections.abc import Iterable

from edgepack.model.facts import EXTENSION_DOMAINS, ModelFacts
from edgepack.project.profile import Profile, Variant
from edgepack.project.project import Project

PINS = {"onnxruntime-extensions": "==0.15.2"}
"""The Python package that a bundle with such operators needs besides the target's."""


def find_extension_operators(project: Project, facts: ModelFacts) -> str:
    """Return what needs onnxruntime-extensions, in words; empty where nothing does."""
    own = [name for name in facts.op_counts if name.split(":")[0] in EXTENSION_DOMAINS]
    return ", ".join([*project.preprocess.extensions, *own])


_INSTEAD = {
    "decode_image": ", which takes pixels with preprocess: {in_graph: true} alone",
    "tokenize": ", which makes the token ids of WordPiece itself without 'tokenize'",
}
"""The hint: what an app has to do itself where its model cannot."""


def add_extensions(variant: Variant) -> Variant:
    """Return a variant that requires onnxruntime-extensions on the device."""
    requires = variant.requires.model_copy(update={"extensions": True})
    return variant.model_copy(update={"requires": requires})


def explain_missing_extensions(operators: str, profile: Profile, variant: Variant) -> str:
    """Return why a variant of a target cannot have the operators; empty if it can.

    Source: github.com/microsoft/onnxruntime-extensions, issues 950 and 1093: the newest binaries
    for phones are 0.13.0 of October 2024, and the one for Android is not aligned to 16 KB pages;
    the Python package was at 0.15.2 in November 2026.
    """
    if profile.family != "linux":
        instead = "".join(text for name, text in _INSTEAD.items() if name in operators)
        if profile.family == "web":
            library = "which onnxruntime-web has not"
        else:
            library = "whose library for phones stopped at 0.13.0"
        play = " and which Google Play refuses for its 4 KB pages"
        return (
            f"{operators} needs onnxruntime-extensions, {library}"
            f"{play if profile.family == 'android' else ''}: let the app do it{instead}"
        )
    if variant.model_format != "onnx":
        return f"{operators} is not put into .ort files: give the variant model_format: onnx"
    return ""


def find_packages(profile: Profile, variants: Iterable[Variant]) -> dict[str, str]:
    """Return the packages that a bundle needs, with their pins, sorted by name."""
    pins = PINS if any(variant.requires.extensions for variant in variants) else {}
    return dict(sorted({**profile.runtime.packages, **pins}.items()))
