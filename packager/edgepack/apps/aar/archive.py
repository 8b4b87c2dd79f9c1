"""Writes an AAR and its POM, laid out as a Maven repository; equal bundles give equal bytes."""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from xml.etree import ElementTree

from edgepack.apps.aar.toolchain import Toolchain, read_files
from edgepack.apps.library import NAME
from edgepack.apps.maven import MavenArtifact
from edgepack.base.files import holding
from edgepack.bundle.manifest import MANIFEST
from edgepack.bundle.reading import verify
from edgepack.bundle.writing import replacing
from edgepack.errors import BundleError

SOURCES = "src/main/kotlin"
_POM = "aar/pom.xml"
_ASSETS = "assets/edgepack/"
_NAMESPACE = "{http://maven.apache.org/POM/4.0.0}"
_READ_BY_THE_CODE = ("model", "golden", "file")
_METADATA = (
    b"aarFormatVersion=1.0\n"
    b"aarMetadataVersion=1.0\n"
    b"minCompileSdk=1\n"
    b"minCompileSdkExtension=0\n"
    b"minAndroidGradlePluginVersion=1.0.0\n"
    b"coreLibraryDesugaringEnabled=false\n"
)
"""What Android's Gradle plugin checks before an app uses an AAR: nothing beyond its own version."""


def write_aar(bundle: Path, repository: Path, toolchain: Toolchain) -> Path:
    """Compile a bundle's module and write it into a Maven repository; return the AAR's path.

    The repository also gets the ``.pom``, the sources, whose comments editors show, and checksums.
    All files of a version are replaced together or not at all.

    Args:
        bundle: The folder of a bundle for Android.
        repository: The repository's folder; made if it is not there.
        toolchain: What compiles it.

    Raises:
        BundleError: It is not a bundle for Android, somebody changed it, the repository has
            another project's library with the same Kotlin package, or it lacks the runtime library
            that the bundle shares.
        ToolError: The code does not compile, or the repository cannot be written.
    """
    manifest = verify(bundle).manifest
    assets = [MANIFEST, *(f.path for f in manifest.files if f.role in _READ_BY_THE_CODE)]
    return _write(
        bundle,
        repository,
        toolchain,
        {f"{_ASSETS}{manifest.name}/{path}": (bundle / path).read_bytes() for path in assets},
    )


def write_library_aar(library: Path, repository: Path, toolchain: Toolchain) -> Path:
    """Compile a runtime library and write it into a Maven repository; return the AAR's path.

    Args:
        library: The folder of the runtime library for Android, as a build wrote it.
        repository: The repository's folder; made if it is not there.
        toolchain: What compiles it.

    Raises:
        BundleError: The folder is no such library, or the repository has a project's library with
            the same Kotlin package.
        ToolError: The code does not compile, or the repository cannot be written.
    """
    return _write(library, repository, toolchain, {})


def _write(
    module: Path, repository: Path, toolchain: Toolchain, assets: Mapping[str, bytes]
) -> Path:
    artifact, shared = _read_artifacts(module)
    final = repository / artifact.folder
    _refuse_shared_package(module, _list_projects(assets), final)
    libraries = {f"{shared.artifact}.jar": _read_classes(shared, repository)} if shared else {}
    named = f"{artifact.group}.{artifact.artifact}"
    classes = toolchain.compile(module / SOURCES, named, libraries)
    aar, pom = artifact.make_file_name(".aar"), artifact.make_file_name(".pom")
    files = {
        aar: make_zip({**_find_parts(module, make_zip(classes)), **assets}),
        artifact.make_file_name("-sources.jar"): make_zip(read_files(module / SOURCES)),
        pom: (module / _POM).read_bytes(),
    }
    # Each build of a project that shares its runtime writes the library again.
    with holding(final), replacing(final, mark=pom) as folder:
        for name, data in files.items():
            _write_with_checksums(folder / name, data)
    return final / aar


def _read_artifacts(module: Path) -> tuple[MavenArtifact, MavenArtifact | None]:
    """Return what a module's POM names it, and the runtime library that it shares, if any."""
    if not (module / _POM).is_file():
        raise BundleError(
            f"{str(module)!r} has no {_POM}, from which an AAR is made",
            hint="build it for a target of the family 'android' with this edgepack",
        )
    root = ElementTree.fromstring((module / _POM).read_bytes())  # noqa: S314  (edgepack wrote it)
    needed = [_read_artifact(each) for each in root.iter(f"{_NAMESPACE}dependency")]
    return _read_artifact(root), next((each for each in needed if each.artifact == NAME), None)


def _read_artifact(element: ElementTree.Element) -> MavenArtifact:
    texts = (element.findtext(f"{_NAMESPACE}{k}") for k in ("groupId", "artifactId", "version"))
    return MavenArtifact(*map(str, texts))


def _read_classes(library: MavenArtifact, repository: Path) -> bytes:
    aar = repository / library.folder / library.make_file_name(".aar")
    try:
        with zipfile.ZipFile(aar) as archive:
            return archive.read("classes.jar")
    except (FileNotFoundError, zipfile.BadZipFile, KeyError) as error:
        raise BundleError(
            f"{str(repository)!r} has no {library.coordinates}, which the bundle shares: {error}",
            hint="build it again with --aar and this edgepack, which writes both",
        ) from error


def _refuse_shared_package(module: Path, projects: set[str], version: Path) -> None:
    """Refuse a library whose package another project's has: an app could not hold both.

    Those with one package have one group, and so lie side by side. Libraries of one project for
    several targets share it: an app takes one of them.
    """
    package = _find_package((module / "aar/AndroidManifest.xml").read_bytes())
    # A folder that begins with a dot is one that another build has not finished.
    others = version.parent.parent.glob("*/[!.]*/*.aar")
    for aar in sorted(path for path in others if path.parent.parent != version.parent):
        try:
            with zipfile.ZipFile(aar) as archive:
                theirs = _find_package(archive.read("AndroidManifest.xml"))
                owners = _list_projects(archive.namelist())
        except (zipfile.BadZipFile, KeyError) as error:
            problem = f"{str(aar)!r} is no library for Android: {error}"
            raise BundleError(problem, hint="remove it, and build what it was again") from error
        if theirs == package and owners != projects:
            raise BundleError(
                f"{aar.name} of another project has the Kotlin package {package} too, and an app"
                " cannot hold both",
                hint="give one of them app: {package: com.acme.detector} in its edgepack.yaml; if"
                f" the other is gone for good, remove {str(aar.parent.parent)!r}",
            )


def _list_projects(paths: Iterable[str]) -> set[str]:
    """Return the projects that files of an AAR are of; none of the runtime library's."""
    return {path.split("/")[2] for path in paths if path.startswith(_ASSETS)}


def _find_package(manifest: bytes) -> str | None:
    return ElementTree.fromstring(manifest).get("package")  # noqa: S314  (edgepack wrote it)


def _find_parts(module: Path, classes: bytes) -> dict[str, bytes]:
    """Return the files of an AAR but assets, with the jar of its classes, by their paths in it."""
    return {
        "AndroidManifest.xml": (module / "aar/AndroidManifest.xml").read_bytes(),
        "classes.jar": classes,
        "R.txt": b"",
        "proguard.txt": (module / "consumer-rules.pro").read_bytes(),
        "META-INF/com/android/build/gradle/aar-metadata.properties": _METADATA,
    }


def make_zip(files: Mapping[str, bytes]) -> bytes:
    """Return a zip of files, sorted by path, not compressed and with one fixed time.

    The bytes of compressed files would depend on the installed zlib, and weights hardly compress.
    The app's build compresses what the app's users download.
    """
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name in sorted(files):
            entry = zipfile.ZipInfo(name)
            entry.create_system = 3
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, files[name])
    return buffer.getvalue()


def _write_with_checksums(path: Path, data: bytes) -> None:
    sha1, sha256 = hashlib.sha1(data, usedforsecurity=False), hashlib.sha256(data)
    files = {
        path: data,
        path.with_name(f"{path.name}.sha1"): sha1.hexdigest().encode(),
        path.with_name(f"{path.name}.sha256"): sha256.hexdigest().encode(),
    }
    for place, content in files.items():
        place.write_bytes(content)
        place.chmod(0o644)
