"""Maven artifacts: what Android bundles depend on, and where a repository has it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from edgepack.errors import ProfileError

KOTLIN_VERSION = "2.1.21"
"""The version of the compiler and standard library that an AAR is made with. Kotlin reads what a
compiler one release newer wrote (https://kotlinlang.org/docs/kotlin-evolution-principles.html), so
that apps on Kotlin 2.0 and newer can use it."""


@dataclass(frozen=True)
class MavenArtifact:
    """One version of one artifact."""

    group: str
    artifact: str
    version: str

    @property
    def coordinates(self) -> str:
        """``group:artifact:version``, as Gradle and Maven's command line spell it."""
        return f"{self.group}:{self.artifact}:{self.version}"

    @property
    def folder(self) -> str:
        """The artifact's folder, relative to the repository."""
        return f"{self.group.replace('.', '/')}/{self.artifact}/{self.version}"

    def make_file_name(self, ending: str) -> str:
        """Return the name of one of its files, such as that with the ending ``.jar``."""
        return f"{self.artifact}-{self.version}{ending}"


COROUTINES = MavenArtifact("org.jetbrains.kotlinx", "kotlinx-coroutines-core", "1.8.0")
"""What suspending functions in Kotlin are compiled against; only apps that use them need it."""


@dataclass(frozen=True)
class Licensed:
    """An artifact that apps ship, and whose notices they show."""

    artifact: MavenArtifact
    license: str
    notices: str
    """The place of the notices."""


_LICENSES = {
    "com.microsoft.onnxruntime": (
        "MIT, Microsoft",
        "https://github.com/microsoft/onnxruntime/blob/v{version}/ThirdPartyNotices.txt",
    ),
    "com.qualcomm.qti": ("Qualcomm's own: read it before you ship", "in the package"),
}
"""Sources: the POM and ThirdPartyNotices.txt in com.microsoft.onnxruntime:onnxruntime:1.29.0;
Qualcomm's packages were not checked."""
_UNKNOWN = ("not known to edgepack", "in the package")


def find_maven_artifact(name: str, version: str) -> MavenArtifact:
    """Return what a target's package and its pin name.

    Raises:
        ProfileError: The name is not ``group:artifact``, or the pin is not one version.
    """
    group, colon, artifact = name.partition(":")
    if not (group and colon and artifact) or not version[:1].isalnum():
        raise ProfileError(
            f"{name!r} with {version!r} is no artifact of a Maven repository",
            hint='give it as "com.microsoft.onnxruntime:onnxruntime-android": "1.29.0"',
            where="runtime.packages",
        )
    return MavenArtifact(group, artifact, version)


def find_licenses(packages: Mapping[str, str]) -> tuple[Licensed, ...]:
    """Return a target's packages with their licenses, sorted by name.

    Raises:
        ProfileError: A package is not an artifact of a Maven repository.
    """
    found = []
    for name, version in sorted(packages.items()):
        artifact = find_maven_artifact(name, version)
        license_name, notices = _LICENSES.get(artifact.group, _UNKNOWN)
        found.append(Licensed(artifact, license_name, notices.format(version=version)))
    return tuple(found)
