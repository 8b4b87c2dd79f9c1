"""Checks the onnxruntime that lies in a package beside the bundle."""

from __future__ import annotations

from pathlib import Path

from edgepack.bundle.reading import AnyBundle
from edgepack.errors import UsageError
from edgepack.model.custom_ops import explain_unusable
from edgepack.project.profile import load_profile

_ENTRY = "OrtGetApiBase"
"""The function by which the C++ library of bundles finds all others."""


def find_architecture(library: Path, found: AnyBundle) -> str:
    """Return the architecture of a bundle's target, for which a libonnxruntime.so is built.

    Raises:
        UsageError: The library cannot be read, is none, or is for another processor; or the target
            is not known here.
    """
    architecture = load_profile(found.manifest.target).device.arch
    try:
        reason = explain_unusable(library.read_bytes(), architecture, _ENTRY)
    except OSError as error:
        reason = f"it cannot be read: {error.strerror}"
    if reason:
        raise UsageError(
            f"{str(library)!r} is no onnxruntime for {found.manifest.target}: {reason}",
            hint=f"name the libonnxruntime.so of a wheel for {architecture}: it is in"
            " onnxruntime/capi",
            where="--vendor-runtime",
        )
    return architecture
