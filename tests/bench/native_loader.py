"""The C++ library against the Python loader: what a board waits for, and what it gives for it.

Both open the same bundle with the same onnxruntime, and answer one picture of 640 x 480. Whole
processes, in turn, each on one core.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from edgepack.base.processes import run_program
from edgepack.base.statistics import median

from tests.bench.measuring import (
    Row,
    Table,
    build_command,
    interleaved,
    one_core,
    process_seconds,
    ratio_text,
    run,
    scratch,
)
from tests.bench.projects import SQUEEZENET, public_data, write_project
from tests.mobile.signatures import DETECTOR
from tests.native.cpp_run import make_netpbm
from tests.native.programs import (
    build_bundle,
    compile_library,
    compile_program,
    compile_sample,
    find_library,
)

PAIRS = 20
SHAPE = (480, 640, 3)
LOAD = """
import sys, time
sys.path.insert(0, sys.argv[1])
began = time.perf_counter()
import edgepack_loader
model = edgepack_loader.load(sys.argv[1])
took = time.perf_counter() - began
began = time.perf_counter()
edgepack_loader.load(sys.argv[1])
again = time.perf_counter() - began
import numpy as np
answers = model.predict(np.full((480, 640, 3), 127, np.uint8))
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
import json
kib = int(status["VmRSS"].split()[0])
print(json.dumps({"open_s": took, "again_s": again, "resident_kib": kib}))
"""


def measure() -> Iterator[Row | Table]:
    """Yield the sizes, and for each bundle start to answer, opening and resident memory."""
    yield measure_sizes()
    bundles = {"a detector of 1 kB": build_bundle(DETECTOR)}
    data = public_data()
    with scratch() as folder, one_core():
        (folder / "picture.ppm").write_bytes(make_netpbm(np.full(SHAPE, 127, np.uint8)))
        if data is not None:
            bundles[SQUEEZENET.name] = _build(folder / "project", data)
        for name, bundle in bundles.items():
            yield from _measure_bundle(name, bundle, folder / "picture.ppm")


def measure_sizes() -> Table:
    """Return how large the compiled sample and the C functions are, without symbols."""
    rows = []
    with scratch() as folder:
        programs = {"edgepack_run": compile_sample("-O2"), "libedgepack.so": compile_library()}
        for name, program in programs.items():
            run(["strip", "-o", str(folder / name), str(program)])
            rows.append((name, f"{(folder / name).stat().st_size / 1024:.0f} KiB"))
    said = run_program(["g++", "-dumpfullversion"], timeout_s=60).text.strip()
    return Table(f"C++ at -O2, stripped (g++ {said})", ("file", "size"), tuple(rows))


def _build(folder: Path, data: Path) -> Path:
    folder.mkdir()
    samples = "{calibration: {images: images, limit: 8}, evaluation: {images: images, limit: 8}}"
    project = write_project(folder, SQUEEZENET, data, samples)
    run(build_command(project, folder / "dist"))
    return next(path for path in (folder / "dist").iterdir() if path.is_dir())


def _measure_bundle(name: str, bundle: Path, picture: Path) -> Iterator[Row]:
    ours = [str(compile_program("open.cc", "-O2")), str(find_library()), str(bundle)]
    theirs = [sys.executable, "-c", LOAD, str(bundle)]
    whole = [str(compile_sample("-O2")), "--runtime", str(find_library()), str(bundle)]
    for argv in (ours, theirs, whole):
        run(argv if argv is not whole else [*argv, str(picture)])
    pairs = interleaved(
        lambda: process_seconds([*whole, str(picture)]), lambda: process_seconds(theirs), PAIRS
    )
    yield _make_row(f"{name}: start to first answer, edgepack_run / Python", pairs, 1e3, "ms")
    said: list[tuple[dict[str, float], dict[str, float]]] = []
    for number in range(PAIRS):
        order = (ours, theirs) if number % 2 else (theirs, ours)
        found = {argv[0]: json.loads(run(argv)) for argv in order}
        said.append((found[ours[0]], found[theirs[0]]))
    for what, key, factor, unit in (
        ("the first open with onnxruntime's library, C++ / Python", "open_s", 1e3, "ms"),
        ("opened again, C++ / Python", "again_s", 1e3, "ms"),
        ("resident memory, C++ / Python", "resident_kib", 1 / 1024, "MiB"),
    ):
        values = [(cpp[key], python[key]) for cpp, python in said]
        yield _make_row(f"{name}: {what}", values, factor, unit)


def _make_row(what: str, pairs: list[tuple[float, float]], factor: float, unit: str) -> Row:
    ours, theirs = (median(side) * factor for side in zip(*pairs, strict=True))
    beside = f"medians {ours:.0f} {unit}, {theirs:.0f} {unit}"
    return Row(what, f"{len(pairs)} pairs", ratio_text(pairs), "at most 1", beside)
