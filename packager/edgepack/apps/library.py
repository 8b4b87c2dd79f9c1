"""The runtime library: what all models of an app have in common, once, beside their bundles."""

from __future__ import annotations

from dataclasses import dataclass

import edgepack
from edgepack.apps.names import find_runtime_version
from edgepack.project.profile import Profile

NAME = "edgepack-runtime"
_LOWEST_ANDROID = "24"
"""The lowest API level of all Android targets: one library is for the bundles of each."""


@dataclass(frozen=True)
class RuntimeLibrary:
    """``app`` in the templates of a runtime library; a bundle's is :class:`~.names.App`."""

    version: str
    """edgepack's: the code of a bundle and the library's are of one version."""
    min_version: str
    """The lowest Android API level or iOS version; empty for browsers."""
    runtime_version: str
    """The version of onnxruntime."""
    runtime_checksum: str
    """The sha256 of onnxruntime's archive for iOS; empty where there is none."""
    packages: tuple[str, ...]
    """onnxruntime's packages that the target pins, as ``name:version``."""
    kotlin_package: str = "edgepack.runtime"
    package_path: str = "edgepack/runtime"
    swift_module: str = "EdgepackRuntime"
    npm_package: str = NAME
    group: str = "edgepack"
    artifact: str = NAME


def make_library(profile: Profile) -> RuntimeLibrary:
    """Return what the templates of a target's runtime library are filled with.

    Raises:
        ProfileError: The target pins no onnxruntime.
    """
    is_android = profile.family == "android"
    return RuntimeLibrary(
        version=edgepack.__version__,
        min_version=_LOWEST_ANDROID if is_android else profile.device.min_version or "",
        runtime_version=find_runtime_version(profile),
        runtime_checksum=profile.runtime.checksums.get("onnxruntime-c", ""),
        packages=tuple(f"{name}:{version}" for name, version in profile.runtime.packages.items()),
    )
