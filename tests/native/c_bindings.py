"""The programs of examples/bindings call the C functions from Rust and Go; they answer as Python.

Needs rustc and Go.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from edgepack.base.processes import ProgramResult, run_program
from edgepack.ondevice.runtime import edgepack_loader as loader

from tests.mobile.proofs import ROOT, Proof, require
from tests.mobile.signatures import DETECTOR, FACES, READER
from tests.native.cpp_run import require_same, write_answers
from tests.native.programs import (
    COMPILE_TIMEOUT_S,
    RUN_TIMEOUT_S,
    build_bundle,
    compile_library,
    find_library,
)

EXAMPLES = ROOT / "examples" / "bindings"
WIDTH, HEIGHT = 97, 61


def compile_rust(work: Path) -> Path:
    """Compile the program of Rust as its README says."""
    library, program = compile_library().parent, work / "rust"
    argv = ["rustc", "-O", "-L", str(library), "-l", "edgepack"]
    argv += ["-C", f"link-arg=-Wl,-rpath,{library}", "-o", str(program)]
    _compile([*argv, str(EXAMPLES / "rust" / "main.rs")])
    return program


def compile_go(work: Path) -> Path:
    """Compile the program of Go as its README says."""
    library, program = compile_library().parent, work / "go"
    include = build_bundle(DETECTOR) / "cpp" / "include"
    environment = {
        **os.environ,
        "CGO_CFLAGS": f"-I {include}",
        "CGO_LDFLAGS": f"-L {library} -Wl,-rpath,{library}",
        "GO111MODULE": "off",
        "GOCACHE": str(work / "cache"),
    }
    _compile(["go", "build", "-o", str(program), str(EXAMPLES / "go" / "main.go")], environment)
    return program


def _compile(argv: list[str], environment: Mapping[str, str] | None = None) -> None:
    done = run_program(argv, timeout_s=COMPILE_TIMEOUT_S, environment=environment)
    require(done.exit_code == 0, done.stderr.decode("utf-8", "replace")[:3000])


def _run(program: Path, bundle: Path, pixels: bytes) -> ProgramResult:
    argv = [str(program), str(find_library()), str(bundle), str(WIDTH), str(HEIGHT)]
    return run_program(argv, timeout_s=RUN_TIMEOUT_S, input_bytes=pixels)


def answer(compile_example: Callable[[Path], Path], work: Path) -> str:
    """A picture's answers are Python's; a bundle and a picture that are wrong are an error."""
    program = compile_example(work)
    pixels = np.random.default_rng(5).integers(0, 256, (HEIGHT, WIDTH, 3), np.uint8)
    for signature in (DETECTOR, FACES, READER):
        bundle = build_bundle(signature)
        done = _run(program, bundle, pixels.tobytes())
        require(done.exit_code == 0, f"{signature.name}: {done.text}{done.last_lines}")
        expected = write_answers(loader.load(bundle).predict(pixels))
        require_same([expected], [json.loads(done.text)], signature.name)
    for code, bundle, given in (
        (2, work / "nowhere", pixels.tobytes()),
        (7, build_bundle(DETECTOR), pixels.tobytes()[:-1]),
    ):
        done = _run(program, bundle, given)
        said = done.stderr.decode("utf-8", "replace")
        require(done.exit_code == 1 and f"error {code}: " in said and "hint: " in said, said)
    return "3 bundles, 2 errors"


PROOFS = (
    Proof("Rust", lambda work: answer(compile_rust, work)),
    Proof("Go", lambda work: answer(compile_go, work)),
)
