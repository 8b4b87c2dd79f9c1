"""Says which libraries of custom operators a build uses, and for which variants there are none."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from pathlib import Path

from edgepack.base.files import hash_file
from edgepack.base.machine import find_architecture
from edgepack.base.processes import Workers
from edgepack.builder.plan import PlanBuilder, find_library_source
from edgepack.errors import ModelError, ProfileError, ToolError
from edgepack.model.custom_ops import explain_unusable
from edgepack.model.running import load_library
from edgepack.project.loading import LoadedProject
from edgepack.project.profile import Profile, Variant

FOLDER = "custom_ops"
"""Where a bundle has the libraries, in a folder for each kind of machine."""


def find_libraries(loaded: LoadedProject) -> dict[str, Path]:
    """Return a project's libraries by machine, as far as can be said without loading them.

    Raises:
        ProfileError: One is missing, is for another architecture or no such library; or there are
            some, and none for this machine, where a build has to run the model.
    """
    given = loaded.project.custom_ops
    found = {machine: _find_library(loaded, machine, name) for machine, name in given.items()}
    here = find_machine()
    if found and here not in found:
        raise ProfileError(
            f"a build runs the model on this machine, {here}, and custom_ops has no library for it,"
            f" only for {', '.join(found)}",
            hint=f"add custom_ops: {{{here}: LIBRARY}}"
            if platform.system() == "Linux"
            else "build on Linux: the libraries are for it alone",
            where=loaded.locate("custom_ops"),
        )
    return found


def _find_library(loaded: LoadedProject, machine: str, name: str) -> Path:
    path, where = (loaded.folder / name).resolve(), loaded.locate("custom_ops", machine)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ProfileError(
            f"the library of custom operators {name!r} cannot be read: {error.strerror}",
            hint="give its path, relative to edgepack.yaml",
            where=where,
        ) from error
    architecture = machine.removeprefix("linux-")
    if why := explain_unusable(data, architecture):
        raise ProfileError(
            f"{name!r} is no library of custom operators for {machine}: {why}",
            hint=f"build it for {machine} against onnxruntime_c_api.h, with the function"
            " RegisterCustomOps, which onnxruntime calls",
            where=where,
        )
    return path


def find_machine() -> str:
    """Return the kind of machine that this one is, as ``custom_ops`` names them."""
    return f"{platform.system().lower()}-{find_architecture()}"


def add_library_sources(libraries: Mapping[str, Path], builder: PlanBuilder) -> None:
    """Add the libraries to the sources of a plan, whose steps use this machine's."""
    for machine, path in libraries.items():
        source = find_library_source("" if machine == find_machine() else machine)
        builder.add_source(source, path, hash_file(path))


def require_loading(loaded: LoadedProject, library: Path | None, workers: Workers) -> None:
    """Check that this machine's library loads, in a worker, which it may end.

    Raises:
        ProfileError: It does not, or it ended the worker.
    """
    if library is None:
        return
    where = loaded.locate("custom_ops", find_machine())
    try:
        workers.call(load_library, library)
    except ModelError as error:
        raise ProfileError(error.problem, hint=error.hint, where=where) from error
    except ToolError as error:
        raise ProfileError(
            f"the library of custom operators ends the process that loads it: {error.problem}",
            hint="build it against the headers of the oldest onnxruntime that it is to run with: it"
            " gets no API of a newer one, and has to check that",
            where=where,
        ) from error


def explain_missing_library(
    libraries: Mapping[str, Path], profile: Profile, variant: Variant
) -> str:
    """Return why a variant of a target cannot have custom operators; empty if it can."""
    device = profile.device
    if device.os != "linux":
        return (
            f"the model has custom operators, and their libraries are for Linux: {_WHY[device.os]}"
        )
    machine = f"{device.os}-{device.arch}"
    if machine not in libraries:
        return f"custom_ops has no library for {machine}, only for {', '.join(libraries)}"
    if variant.model_format != "onnx":
        return "custom operators are not put into .ort files: give the variant model_format: onnx"
    return ""


_WHY = {
    "android": "an app brings its native libraries with itself, and packages of edgepack load none"
    " but onnxruntime's",
    "ios": "an app may load no library that it was not signed with, and packages of edgepack"
    " register none",
    "macos": "macOS loads .dylib files, which bundles do not carry",
    "browser": "onnxruntime-web is WebAssembly, which loads no library",
}
