"""Bundles for Linux and the programs that open them without Python: built, run and read.

Programs are compiled from the ``cpp`` folder of a bundle as it was built. What they print and write
is read here; the Python loader is asked the same.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
from edgepack.base.processes import ProgramResult, run_program
from edgepack.builder.build import build
from edgepack.errors import ToolError
from edgepack.ondevice.runtime import edgepack_loader as loader

from tests.mobile.proofs import ROOT, require
from tests.mobile.signatures import BUCKETS, Signature

KEPT = ROOT / ".native"
"""What proofs make; git ignores it."""
HERE = Path(__file__).parent
TARGET = "linux-x86-64"
WARNINGS = ("-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Wshadow", "-Werror")
COMPILE_TIMEOUT_S = 900.0
RUN_TIMEOUT_S = 300.0

Arrays = Mapping[str, np.ndarray]


@cache
def find_library() -> Path:
    """Return the library of the onnxruntime that the Python loader uses here."""
    found = importlib.util.find_spec("onnxruntime")
    return next(Path(str(found and found.origin)).parent.glob("capi/libonnxruntime.so.*"))


_BUILT: dict[tuple[str, str], Path] = {}


def build_bundle(signature: Signature, target: str = TARGET) -> Path:
    """Build a bundle once in a run, and return its folder."""
    key = (signature.name, target)
    if key not in _BUILT:
        _BUILT[key] = _build(signature, target)
    return _BUILT[key]


def _build(signature: Signature, target: str) -> Path:
    work = KEPT / "bundles" / target / signature.name
    shutil.rmtree(work, ignore_errors=True)
    work.parent.mkdir(parents=True, exist_ok=True)
    project = signature.write(work / "project", target)
    build(project=project, out=work / "dist")
    return next(path for path in (work / "dist").iterdir() if path.is_dir())


def find_compilers() -> list[str]:
    """Return the C++ compilers of this machine, g++ first.

    Raises:
        ToolError: There is none.
    """
    found = [name for name in ("g++", "clang++", "clang++-19") if shutil.which(name)]
    if not found:
        raise ToolError("there is no C++ compiler on PATH", hint="install g++ or clang")
    return found


@cache
def compile_program(name: str, *flags: str, compiler: str = "") -> Path:
    """Compile a program of ``cpp`` once in a run, warnings being errors; ``.c`` with the C ABI."""
    compiler = compiler or find_compilers()[0]
    folder = Path(mkdtemp(prefix="programs-", dir=_make_kept()))
    code = build_bundle(BUCKETS) / "cpp"
    source = HERE / "cpp" / name
    wanted = [*WARNINGS, "-O1", "-g", "-pthread", "-I", str(code / "include"), *flags]
    linked = [str(source)]
    if source.suffix == ".c":
        for language, each in (("c99", source), ("c++17", code / "src" / "edgepack_c.cc")):
            kind = "c" if language == "c99" else "c++"
            made = str(folder / f"{each.stem}.o")
            _run([compiler, "-x", kind, f"-std={language}", *wanted, "-c", str(each), "-o", made])
        linked = [str(folder / f"{stem}.o") for stem in (source.stem, "edgepack_c")]
    program = folder / source.stem
    _run([compiler, "-std=c++17", *wanted, *linked, "-o", str(program), "-ldl"])
    return program


@cache
def compile_sample(optimization: str = "-O1") -> Path:
    """Compile the sample that bundles carry, as an integrator would, once in a run."""
    code = build_bundle(BUCKETS) / "cpp"
    program = Path(mkdtemp(prefix="programs-", dir=_make_kept())) / "edgepack_run"
    flags = ["-std=c++17", *WARNINGS, optimization, "-ffp-contract=off"]
    flags += ["-I", str(code / "include")]
    source = str(code / "samples" / "edgepack_run.cc")
    _run([find_compilers()[0], *flags, source, "-o", str(program), "-ldl", "-pthread"])
    return program


@cache
def compile_library() -> Path:
    """Compile the C functions as a shared library, as examples/bindings does, once in a run."""
    code = build_bundle(BUCKETS) / "cpp"
    library = Path(mkdtemp(prefix="programs-", dir=_make_kept())) / "libedgepack.so"
    flags = ["-std=c++17", *WARNINGS, "-O2", "-ffp-contract=off", "-fPIC", "-shared"]
    flags.append(f"-Wl,--version-script={code / 'src' / 'edgepack_c.map'}")
    source = str(code / "src" / "edgepack_c.cc")
    argv = [find_compilers()[0], *flags, "-I", str(code / "include"), source]
    _run([*argv, "-o", str(library), "-ldl", "-pthread"])
    return library


def list_declared() -> set[str]:
    """Return the names of the functions in the C header."""
    header = (build_bundle(BUCKETS) / "cpp" / "include" / "edgepack" / "edgepack.h").read_text()
    return set(re.findall(r"^\S.*?\b(edgepack_\w+)\(", header, re.MULTILINE))


def require_exported(library: Path) -> int:
    """Return how many functions a shared library of the C functions shows to others.

    Raises:
        NotHeldError: They are not those of the header.
    """
    argv = ["nm", "--dynamic", "--defined-only", "--format=posix", str(library)]
    shown = {line.split()[0] for line in run_program(argv, timeout_s=60).text.splitlines()}
    wrong = sorted(shown ^ list_declared())
    require(not wrong, f"{len(wrong)} are shown or declared alone: {wrong[:3]}")
    return len(shown)


def _make_kept() -> Path:
    KEPT.mkdir(exist_ok=True)
    return KEPT


def _run(argv: Sequence[str]) -> None:
    done = run_program(argv, timeout_s=COMPILE_TIMEOUT_S)
    said = done.stderr.decode("utf-8", "replace")
    require(done.exit_code == 0, f"{argv[0]} does not compile: {said[:3000]}")


@dataclass(frozen=True)
class Opened:
    """What a loader says of a bundle that it opened."""

    variant: str
    passed_over: list[list[str]]
    golden_sqnr_db: float

    def require_equal(self, other: Opened) -> None:
        """Raise NotHeldError unless another loader says the same."""
        require(self.variant == other.variant, f"{self.variant} is chosen, not {other.variant}")
        require(
            self.passed_over == other.passed_over,
            f"passed over: {self.passed_over}, not {other.passed_over}",
        )
        apart_db = abs(self.golden_sqnr_db - other.golden_sqnr_db)
        require(apart_db < 1e-6, f"goldens: {self.golden_sqnr_db}, not {other.golden_sqnr_db}")


def run_described(
    bundle: str | Path, *words: str | Path, program: Path | None = None, **environment: str
) -> ProgramResult:
    """Run the program that describes a bundle."""
    argv = [program or compile_program("describe.cc"), find_library(), bundle, *words]
    return run_program(
        list(map(str, argv)), timeout_s=RUN_TIMEOUT_S, environment={**os.environ, **environment}
    )


def describe(bundle: Path, *words: str | Path) -> Opened:
    """Return what the C++ library says of a bundle.

    Raises:
        NotHeldError: It does not open it.
    """
    done = run_described(bundle, *words)
    require(done.exit_code == 0, f"{done.text}{done.last_lines}")
    return read_opened(json.loads(done.text.splitlines()[0]))


def read_opened(said: Mapping[str, Any]) -> Opened:
    """Return what the program printed of a bundle."""
    return Opened(said["variant"], said["passed_over"], said["golden_sqnr_db"])


def describe_in_python(bundle: Path, variant: str | None = None) -> Opened:
    """Return what the Python loader says of a bundle."""
    model = loader.load(bundle, variant)
    return Opened(model.variant, list(map(list, model.passed_over)), model.golden_sqnr_db)


def find_refusal(bundle: str | Path, *words: str | Path) -> tuple[int, str]:
    """Return the code and text of the error with which the C++ library refuses a bundle.

    Raises:
        NotHeldError: It opens the bundle, or says no hint.
    """
    done = run_described(bundle, *words)
    require(done.exit_code == 3, f"exit code {done.exit_code}: {done.text}{done.last_lines}")
    said = json.loads(done.text.splitlines()[-1])
    require(bool(said["hint"]), f"no hint: {said}")
    return said["code"], said["text"]


def write_tensors(folder: Path, names: Sequence[str], tensors: Arrays) -> Path:
    """Write tensors as the programs read them, numbered by their place in ``names``."""
    folder.mkdir(parents=True)
    lines = []
    for name, array in tensors.items():
        number = names.index(name)
        (folder / str(number)).write_bytes(np.ascontiguousarray(array).tobytes())
        lines.append(" ".join(map(str, (number, array.dtype, *array.shape))) + "\n")
    (folder / "shapes").write_text("".join(lines))
    return folder


def read_tensors(folder: Path, names: Sequence[str]) -> dict[str, np.ndarray]:
    """Read the tensors that a program wrote."""
    found = {}
    for line in (folder / "shapes").read_text().splitlines():
        number, dtype, *sizes = line.split()
        data = (folder / number).read_bytes()
        found[names[int(number)]] = np.frombuffer(data, dtype).reshape([int(s) for s in sizes])
    return found
