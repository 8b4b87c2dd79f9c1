"""Checks whether the native libraries of an app load where memory pages have 16 KB.

Google Play wants that of apps for Android 15 and newer. Only 64-bit processors have such pages, and
a library loads there if its LOAD segments are aligned to them. Sources: elf(5) for the format;
developer.android.com/guide/practices/page-sizes for what Android wants (read 2026-11-28).
"""

from __future__ import annotations

import re
import struct
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from edgepack.apps.aar.toolchain import find_artifact_file, find_maven_repository
from edgepack.apps.maven import MavenArtifact, find_maven_artifact

PAGE = 1 << 14
_MACHINES = {"arm64-v8a": 183, "x86_64": 62}
"""ABIs of 64 bits, each with its processor's number in an ELF header."""
_LOAD = 1
_HEADER, _SEGMENT = struct.Struct("<4sBB10xHH4x8xQ8x4xHHH"), struct.Struct("<II6Q")
"""Of 64-bit files: magic, class, byte order, type, machine, where the segments are, sizes of the
header and of a segment's entry, and their number; type, flags, offset, addresses, sizes."""


@dataclass(frozen=True)
class PageAnswer:
    """Whether one native library loads with pages of 16 KB."""

    package: str
    """Its Maven coordinates."""
    library: str
    """Its path in the package, such as ``jni/arm64-v8a/libonnxruntime.so``; empty where the package
    could not be looked into."""
    aligned: bool | None
    """None where that is not known, or nothing that Android loads."""
    about: str
    """Why not, or why that is not known; empty for one that is aligned."""

    def __str__(self) -> str:
        answer = {True: "yes", False: "NO", None: "not checked"}[self.aligned]
        what = f"{self.package} {self.library}".rstrip()
        return f"{answer}: {what}{f': {self.about}' if self.about else ''}"


def check_pages(packages: Iterable[tuple[str, str]], jars: Path | None = None) -> list[PageAnswer]:
    """Return an answer for each 64-bit native library of targets' packages.

    Args:
        packages: Their Maven names and versions, each once or more.
        jars: A Maven repository or a folder with .aar files, looked at before Maven's own.
    """
    folders = [folder for folder in (jars, find_maven_repository()) if folder is not None]
    artifacts = [find_maven_artifact(*each) for each in sorted(set(packages))]
    return [answer for each in artifacts for answer in _check_package(each, folders)]


def _check_package(artifact: MavenArtifact, folders: Iterable[Path]) -> Iterator[PageAnswer]:
    name = artifact.coordinates
    found = (find_artifact_file(folder, artifact, ".aar") for folder in folders)
    path = next((path for path in found if path), None)
    if path is None:
        about = f"it is not on this machine: mvn dependency:get -Dartifact={name}:aar"
        yield PageAnswer(name, "", None, about)
        return
    try:
        with zipfile.ZipFile(path) as archive:
            for place in sorted(archive.namelist()):
                if abi := re.fullmatch(r"jni/(arm64-v8a|x86_64)/[^/]+\.so", place):
                    aligned, about = _judge(archive.read(place), _MACHINES[abi[1]])
                    yield PageAnswer(name, place, aligned, about)
    except (zipfile.BadZipFile, OSError) as error:
        yield PageAnswer(name, "", None, f"{path} cannot be read: {error}")


def _judge(data: bytes, machine: int) -> tuple[bool | None, str]:
    """Return whether a library's segments are aligned, and what else there is to say."""
    if len(data) < _HEADER.size or data[:4] != b"\x7fELF":
        return None, "it is no ELF file"
    _, bits, order, _, found, start, _, size, count = _HEADER.unpack_from(data)
    if found != machine:
        return None, f"it is for another processor than its ABI's (machine {found})"
    if (bits, order) != (2, 1) or size < _SEGMENT.size or start + size * count > len(data):
        return None, "its ELF header is damaged"
    entries = (_SEGMENT.unpack_from(data, start + size * each) for each in range(count))
    loaded = [(offset, at, align) for kind, _, offset, at, *_, align in entries if kind == _LOAD]
    problem = _find_problem(loaded)
    return (not problem if loaded else None), problem


def _find_problem(loaded: Sequence[tuple[int, int, int]]) -> str:
    """Return what keeps LOAD segments, each with offset, address and alignment, from loading."""
    if not loaded:
        return "it has no LOAD segment"
    least = min(align for *_, align in loaded)
    if least < PAGE:
        return f"a LOAD segment is aligned to {least} bytes"
    if any((at - offset) % PAGE for offset, at, _ in loaded):
        return "a LOAD segment lies otherwise in a page than in the file"
    return ""
