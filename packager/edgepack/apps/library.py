"""The runtime library: what all models of an app have in common, once, beside their bundles."""

from __future__ import annotations

import re
from dataclasses import dataclass

import edgepack
from edgepack.apps.maven import COROUTINES, KOTLIN_VERSION
from edgepack.apps.names import LIBRARY_NAMES, find_runtime_version
from edgepack.project.profile import Profile

NAME = LIBRARY_NAMES["web"]
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
    kotlin_version: str = KOTLIN_VERSION
    """The version of the standard library that an AAR is made with."""
    coroutines: str = COROUTINES.coordinates
    """The library that suspending functions in Kotlin are compiled against."""
    kotlin_package: str = LIBRARY_NAMES["android"]
    package_path: str = LIBRARY_NAMES["android"].replace(".", "/")
    swift_module: str = LIBRARY_NAMES["apple"]
    npm_package: str = LIBRARY_NAMES["web"]
    group: str = "edgepack"
    artifact: str = NAME
    shares_runtime: bool = False
    """It has the code itself, as a bundle has that shares none."""

    @property
    def edgepack_version(self) -> str:
        """The version, as a bundle's templates name it."""
        return self.version

    @property
    def npm_version(self) -> str:
        """The version for ``package.json``: three numbers, and what else it has as build metadata.

        Python's ``0.2.0rc1`` is no semantic version, and ``*``, the peer of the models' packages,
        has no pre-releases in it. Source: Semantic Versioning 2.0.0, 2, 9 and 10; node-semver's
        README, Prerelease Tags.
        """
        major, minor, patch, rest = re.split(r"^(\d+)(?:\.(\d+))?(?:\.(\d+))?", self.version)[1:]
        release = f"{major}.{minor or 0}.{patch or 0}"
        more = re.sub(r"[^0-9A-Za-z]+", ".", rest).strip(".")
        return f"{release}+{more}" if more else release


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
    )
