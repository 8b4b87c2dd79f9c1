"""Compiles the measuring program for boards that have no Python.

It needs a C compiler for the board's processor and no header of onnxruntime. It is linked with
libraries made for this, of which it takes nothing but names: so its symbols have no versions, and
it starts with every glibc, however old, whichever glibc the compiler has. Sources: ``ld.so`` of
glibc (``dl-lookup.c``, "No specific version is selected": the oldest version is taken); "GNU gABI
gnu_version" of the Linux Standard Base.
"""

from __future__ import annotations

import hashlib
import platform
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from edgepack.base.processes import run_program
from edgepack.base.resources import find_ondevice_dir
from edgepack.errors import DeviceError, ToolError

PROGRAM = "edgepack_measure"
SOURCES = ("edgepack_measure.c", "edgepack_measure.h", "edgepack_ort.h")
TRIPLES = {"x86-64": "x86_64-linux-gnu", "aarch64": "aarch64-linux-gnu"}
"""By architecture, as the compilers of Debian and Fedora are named."""
COMPILE_S = 300.0
_FLAGS = ("-std=c11", "-O2", "-fPIC", "-U_FORTIFY_SOURCE", "-DEDGEPACK_DECLARED")
_LIBRARIES = ("libm.so.6", "libdl.so.2", "libpthread.so.0", "libc.so.6")
"""What the program loads. The last one has the names."""
_ALWAYS = ("__getauxval", "__libc_start_main", "abort", "raise")
"""What the compiler's own files call; on aarch64 its atomic operations ask for the processor's."""
_LINKS = ("-pie", "-nodefaultlibs", "-Wl,--no-as-needed")


def find_compiler(arch: str) -> tuple[str, str]:
    """Return the C compiler and ``nm`` for an architecture.

    Raises:
        DeviceError: There is no onnxruntime for it.
        ToolError: There is none on this machine.
    """
    if arch not in TRIPLES:
        raise DeviceError(
            f"there is no onnxruntime for boards without Python on {arch}",
            hint=f"known are {', '.join(TRIPLES)}; Debian 13 on armhf has onnxruntime as"
            " python3-onnxruntime",
        )
    triple = TRIPLES[arch]
    names = [(f"{triple}-gcc", f"{triple}-nm")]
    if sys.platform == "linux" and platform.machine() == triple.partition("-")[0]:
        names.append(("cc", "nm"))
    for compiler, lister in names:
        if shutil.which(compiler) and shutil.which(lister):
            return compiler, lister
    raise ToolError(
        f"there is no {names[0][0]} here, which compiles the measuring program for boards without"
        " Python",
        hint=f"sudo apt install gcc-{triple.replace('_', '-')} (Fedora: dnf install"
        f" gcc-{triple}); on the same kind of machine: sudo apt install gcc",
    )


def build_program(arch: str, cache: Path | None = None) -> Path:
    """Return the measuring program for an architecture, which is compiled once and then kept.

    Args:
        arch: Of the board, in the words of profiles.
        cache: Where to keep it; default: in the user's cache folder.

    Raises:
        DeviceError: There is no onnxruntime for it.
        ToolError: There is no compiler for it here, or it fails.
    """
    compiler, lister = find_compiler(arch)
    folder = find_ondevice_dir() / "native"
    made_from = hashlib.sha256(repr((compiler, _FLAGS, _LIBRARIES, _ALWAYS, _LINKS)).encode())
    for name in SOURCES:
        made_from.update((folder / name).read_bytes())
    built = (cache or find_kept_folder()) / f"{arch}-{made_from.hexdigest()[:16]}" / PROGRAM
    if not built.is_file():
        built.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=built.parent, prefix=".partial-") as name:
            _compile(compiler, lister, folder / SOURCES[0], Path(name)).replace(built)
    return built


def find_kept_folder() -> Path:
    """Return where what was made for boards without Python is kept."""
    from platformdirs import user_cache_path

    return user_cache_path("edgepack") / "boards"


def _compile(compiler: str, lister: str, source: Path, work: Path) -> Path:
    object_file = str(work / "program.o")
    _run([compiler, *_FLAGS, "-c", str(source), "-o", object_file])
    listed = _run([lister, "-u", "-P", object_file])
    names = {line.split()[0] for line in listed.splitlines()} - {"_GLOBAL_OFFSET_TABLE_"}
    for library in _LIBRARIES:
        held = sorted({*names, *_ALWAYS}) if library == _LIBRARIES[-1] else []
        lines = [f".globl {name}\n.type {name}, %function\n{name}:" for name in held]
        assembly = work / "names.s"
        assembly.write_text("\n".join([".text", *lines, ""]))
        makes = ["-shared", "-nostdlib", f"-Wl,-soname,{library}"]
        _run([compiler, *makes, str(assembly), "-o", str(work / library)])
    program = work / PROGRAM
    linked = [object_file, "-lgcc", *(str(work / name) for name in _LIBRARIES)]
    _run([compiler, *_LINKS, *linked, "-l:libc_nonshared.a", "-o", str(program)])
    return program


def _run(argv: Sequence[str]) -> str:
    result = run_program(argv, timeout_s=COMPILE_S)
    if result.exit_code:
        raise ToolError(
            f"the measuring program does not compile: {argv[0]} ended with exit code"
            f" {result.exit_code}{result.last_lines}",
            hint="take GCC 9 or newer with its libc6-dev",
        )
    return result.text
