"""Builds the measuring program for Android, with the user's NDK and onnxruntime package.

Source: the NDK's guide "Other build systems" for the compilers' names; onnxruntime.ai's page
"Install ONNX Runtime", which says that the Android package holds ``headers/`` and
``jni/<abi>/libonnxruntime.so``. Not tried with an NDK.
"""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from edgepack.base.processes import run_program
from edgepack.base.resources import find_ondevice_dir
from edgepack.errors import BundleError, DeviceError, ToolError

API_LEVEL = 24
"""The lowest that onnxruntime's package is for."""
TRIPLES = {
    "arm64-v8a": "aarch64-linux-android",
    "armeabi-v7a": "armv7a-linux-androideabi",
    "x86_64": "x86_64-linux-android",
    "x86": "i686-linux-android",
}
"""By ABI, as the NDK's compilers are named."""
SOURCES = ("edgepack_measure.c", "edgepack_measure.h")
COMPILE_S = 300.0
HEADER = "headers/onnxruntime_c_api.h"


@dataclass(frozen=True)
class Built:
    """The files for a phone, on this machine."""

    program: Path
    library: Path
    key: str
    """Names what the two were made from."""


def find_package(given: str | None, runtime: str, pins: Mapping[str, str]) -> Path:
    """Return the onnxruntime package of a bundle's pin: an .aar file.

    Args:
        given: A path that the inventory names, or None.
        runtime: The package's Maven name, as the manifest's ``runtime`` has it.
        pins: The manifest's ``runtime``.

    Raises:
        BundleError: None is given, and the bundle pins none.
        ToolError: It is not on this machine.
    """
    group, artifact = runtime.split(":")
    version = pins.get(runtime, "VERSION")
    if given is not None:
        found = [Path(given).expanduser()]
    elif runtime not in pins:
        raise BundleError(
            f"the bundle's target pins no {runtime}",
            hint="name the .aar file to measure with as 'package' of the device in devices.yaml",
        )
    else:
        found = list(list_packages(group, artifact, version))
    for path in found:
        if path.is_file():
            return path
    fetch = f"mvn dependency:get -Dartifact={runtime}:{version}:aar"
    raise ToolError(
        f"{given or f'{artifact} {version}'} is not on this machine, and the measuring program is"
        " built with it",
        hint=f"fetch it ({fetch}), or name the .aar file as 'package' of the device in"
        " devices.yaml",
    )


def list_packages(group: str, artifact: str, version: str) -> Iterator[Path]:
    """Yield where Maven and Gradle keep a package, whether it is there or not."""
    name = f"{artifact}-{version}.aar"
    maven = Path.home() / ".m2" / "repository" / group.replace(".", "/") / artifact / version
    gradle = Path(os.environ.get("GRADLE_USER_HOME") or Path.home() / ".gradle")
    yield maven / name
    cached = gradle / "caches" / "modules-2" / "files-2.1" / group / artifact / version
    yield from sorted(cached.glob(f"*/{name}"))


def build_measure(package: Path, abi: str, cache: Path | None = None) -> Built:
    """Return the measuring program for an ABI, and the library out of the package.

    They are made once, and kept in the user's cache folder.

    Args:
        package: The onnxruntime package, an .aar file.
        abi: Of the phone.
        cache: Where to keep them; default: in the user's cache folder.

    Raises:
        DeviceError: There are no phones of this ABI.
        ToolError: There is no NDK here, the package is no such package, or the program does not
            compile.
    """
    require_abi(abi)
    compiler = find_compiler(abi)
    sources = [find_ondevice_dir() / "native" / name for name in SOURCES]
    key = make_key(f"{compiler} {abi}", abi, [*sources, package])
    folder = (cache or find_kept_folder()) / key
    built = Built(folder / "edgepack_measure", folder / "libonnxruntime.so", key)
    if not (built.program.is_file() and built.library.is_file()):
        _make(built, compiler, sources[0], package, abi)
    return built


def require_abi(abi: str) -> None:
    """Check that onnxruntime's package has a library for an ABI.

    Raises:
        DeviceError: It has none.
    """
    if abi not in TRIPLES:
        raise DeviceError(
            f"the phone's ABI is {abi!r}, for which there is no onnxruntime",
            hint=f"known are {', '.join(TRIPLES)}",
        )


def make_key(tools: str, abi: str, files: Sequence[Path]) -> str:
    """Return a name of what tools make of files for an ABI."""
    made_from = hashlib.sha256(tools.encode())
    for path in files:
        made_from.update(path.read_bytes())
    return f"{abi}-{made_from.hexdigest()[:16]}"


def find_kept_folder() -> Path:
    """Return where what was built for phones is kept."""
    from platformdirs import user_cache_path

    return user_cache_path("edgepack") / "phones"


def _make(built: Built, compiler: Path, source: Path, package: Path, abi: str) -> None:
    """Make both in a temporary folder, then move them into place."""
    built.program.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=built.program.parent, prefix=".partial-") as name:
        work = Path(name)
        extract(package, abi, work)
        program = work / built.program.name
        argv = [str(compiler), "-std=c11", "-O2", "-fPIE", "-pie", str(source)]
        argv += ["-I", str(work / "headers"), "-o", str(program), "-lm", "-ldl"]
        result = run_program(argv, timeout_s=COMPILE_S)
        if result.exit_code != 0 or not program.is_file():
            raise ToolError(
                f"the measuring program does not compile{result.last_lines}",
                hint="take NDK r25 or newer, and onnxruntime-android 1.20 or newer",
            )
        (work / "jni" / abi / built.library.name).replace(built.library)
        program.replace(built.program)


def extract(package: Path, abi: str, folder: Path) -> None:
    """Take ``headers/`` and ``jni/<abi>/libonnxruntime.so`` out of a package.

    Raises:
        ToolError: It has none.
    """
    library = f"jni/{abi}/libonnxruntime.so"
    try:
        with zipfile.ZipFile(package) as archive:
            names = archive.namelist()
            if HEADER not in names or library not in names:
                raise ToolError(
                    f"{package} has no {HEADER if HEADER not in names else library}",
                    hint="take the package onnxruntime-android of Maven Central",
                )
            headers = [name for name in names if re.fullmatch(r"headers/\w+\.h", name)]
            archive.extractall(folder, [*headers, library])
    except zipfile.BadZipFile as error:
        raise ToolError(
            f"{package} is no .aar file: {error}", hint="remove it, and fetch it again"
        ) from error


def find_compiler(abi: str) -> Path:
    """Return the NDK's C compiler for an ABI; the newest NDK where there are several.

    Raises:
        ToolError: There is no NDK, or it has no such compiler.
    """
    pattern = f"toolchains/llvm/prebuilt/*/bin/{TRIPLES[abi]}{API_LEVEL}-clang"
    tried = list(_list_ndks())
    for ndk in tried:
        for compiler in sorted(ndk.glob(pattern)):
            return compiler
    looked = ", ".join(str(ndk) for ndk in tried) or "ANDROID_NDK_HOME and ANDROID_HOME are not set"
    raise ToolError(
        f"there is no Android NDK with {TRIPLES[abi]}{API_LEVEL}-clang here ({looked})",
        hint="install one (sdkmanager 'ndk;27.2.12479018') and set ANDROID_NDK_HOME to its folder",
    )


def _list_ndks() -> Iterator[Path]:
    """Yield the folders of NDKs: those that variables name, then those of the SDK."""
    for variable in ("ANDROID_NDK_HOME", "ANDROID_NDK_ROOT"):
        if os.environ.get(variable):
            yield Path(os.environ[variable])
    for sdk in list_sdk_folders():
        yield from sort_newest_first(sdk / "ndk")


def list_sdk_folders() -> Iterator[Path]:
    """Yield where Android's SDK may be: what variables name, and where its installers put it."""
    for variable in ("ANDROID_HOME", "ANDROID_SDK_ROOT"):
        if os.environ.get(variable):
            yield Path(os.environ[variable])
    yield Path.home() / "Android" / "Sdk"
    yield Path.home() / "Library" / "Android" / "sdk"


def sort_newest_first(folder: Path) -> list[Path]:
    """Return the folders in a folder by the numbers in their names, highest first."""
    found = [path for path in folder.glob("*") if path.is_dir()]
    return sorted(found, key=lambda path: [*map(int, re.findall(r"\d+", path.name))], reverse=True)
