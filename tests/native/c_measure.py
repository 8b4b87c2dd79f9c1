"""The program that measures without Python, under the compilers of boards that have no runtime yet.

There is no onnxruntime wheel for 32-bit ARM or musl, so it compiles, starts, and decides there; the
boards of x86-64 and aarch64 are measured in the tests and in the lab.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from edgepack.base.processes import run_program
from edgepack.base.resources import find_ondevice_dir
from edgepack.errors import ToolError
from edgepack.ondevice.harness import edgepack_load as load

from tests.mobile.proofs import NotHeldError, Proof, require

WARNINGS = ("-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Werror")
SOURCE = find_ondevice_dir() / "native" / "edgepack_measure.c"
COMPILERS: dict[str, tuple[tuple[str, ...], str]] = {
    "gcc": ((), "gcc"),
    "aarch64-linux-gnu-gcc": (
        ("qemu-aarch64-static", "-L", "/usr/aarch64-linux-gnu"), "gcc-aarch64-linux-gnu",
    ),
    "arm-linux-gnueabihf-gcc": (
        ("qemu-arm-static", "-L", "/usr/arm-linux-gnueabihf"), "gcc-arm-linux-gnueabihf",
    ),
    "musl-gcc": ((), "musl-tools"),
}  # fmt: skip
"""Each with what starts its programs here, and the Debian package."""
WINDOWS = (
    [(0.0, 100.0), (1.0, 101.0), (2.0, 100.5)],
    [(0.0, 100.0), (1.0, 104.0), (2.0, 100.0)],
    [(float(n), 100.0 + 0.5 * n) for n in range(7)],
)


def compile_for_boards(work: Path) -> str:
    """Each compiler says nothing, and what it made runs and decides as the Python harness."""
    for compiler, (starter, package) in COMPILERS.items():
        if shutil.which(compiler) is None:
            raise ToolError(f"there is no {compiler}", hint=f"sudo apt install {package}")
        program = compile_measure(compiler, SOURCE, work / compiler)
        require_alike([*starter, str(program)])
    broken = work / "broken.c"
    text = SOURCE.read_text(encoding="utf-8").replace("STEADY_SPREAD = 0.03", "STEADY_SPREAD = 0.5")
    broken.write_text(text, encoding="utf-8")
    try:
        require_alike([str(compile_measure("gcc", broken, work / "broken"))])
    except NotHeldError:
        return ", ".join(COMPILERS)
    raise NotHeldError("a planted difference is not seen")


def compile_measure(compiler: str, source: Path, program: Path) -> Path:
    """Compile the program, warnings being errors."""
    argv = [compiler, "-std=c11", "-O2", *WARNINGS, "-DEDGEPACK_DECLARED", "-I", str(SOURCE.parent)]
    argv += [str(source), "-o", str(program), "-lm", "-ldl", "-lpthread"]
    done = run_program(argv, timeout_s=300)
    require(done.exit_code == 0, f"{compiler}: {done.stderr.decode('utf-8', 'replace')[:2000]}")
    return program


def require_alike(argv: list[str]) -> None:
    """Raise NotHeldError unless a program starts, and finds steady what Python does."""
    done = run_program([*argv, "clock"], timeout_s=60)
    require(done.exit_code == 0 and '"ns"' in done.text, f"{argv}: {done.text}{done.last_lines}")
    for windows in WINDOWS:
        lines = "".join(f"{begin} {median}\n" for begin, median in windows).encode()
        done = run_program([*argv, "steady"], timeout_s=60, input_bytes=lines)
        wanted = str(load.is_steady(windows)).lower()
        require(done.text == f'{{"steady":{wanted}}}\n', f"{argv}: {windows}: {done.text}")


PROOFS = (Proof("the measuring program for boards", compile_for_boards),)
