"""A C99 program calls the C functions, right and wrong; what it is told is as it should be."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from edgepack.base.processes import run_program
from edgepack.ondevice.runtime import edgepack_loader as loader

from tests.mobile.proofs import Proof, require
from tests.mobile.signatures import DETECTOR, DYNAMIC_BATCH
from tests.native.programs import (
    HERE,
    build_bundle,
    compile_library,
    compile_program,
    find_library,
    list_declared,
    require_exported,
)


def call(_work: Path) -> str:
    """Null pointers, wrong names, types, sizes and bytes are codes; an output is Python's."""
    return call_compiled(compile_program("calls.c"))


def call_compiled(program: Path) -> str:
    """Run the program over bundles, and compare what it prints."""
    for signature in (DYNAMIC_BATCH, DETECTOR):
        bundle = build_bundle(signature)
        argv = [str(program), str(find_library()), str(bundle)]
        done = run_program(argv, timeout_s=300)
        require(done.exit_code == 0, f"{done.text}{done.last_lines}")
        model = loader.load(bundle)
        spec = model.inputs[0]
        shape = [1 if isinstance(dim, str) else dim for dim in spec.shape]
        name, array = next(iter(model({spec.name: np.zeros(shape, spec.dtype)}).items()))
        opened, output = done.text.splitlines()
        manifest = json.loads((bundle / "manifest.json").read_text(encoding="utf-8"))
        expected = [model.variant, manifest["name"], manifest["version"]]
        require(opened.split()[:3] == expected, f"{opened}, not {expected}")
        value = float.fromhex(output.split()[-1])
        same = output.split()[:2] == [name, str(array.nbytes)] and value == array.flat[0]
        require(same, f"{output}, not {name} {array.nbytes} {array.flat[0]}")
    return "2 bundles, 45 wrong calls each"


def give_null(_work: Path) -> str:
    """The program calls each function of the header with a null pointer where it takes one."""
    declared = list_declared()
    calls = (HERE / "cpp" / "calls.c").read_text(encoding="utf-8")
    missing = sorted(name for name in declared if f"{name}(NULL" not in calls)
    require(len(declared) > 15 and not missing, f"not called with null: {missing}")
    return f"{len(declared)} functions"


def export(_work: Path) -> str:
    """A shared library shows the functions of the header, and nothing of the C++ in it."""
    return f"{require_exported(compile_library())} functions"


PROOFS = (
    Proof("calls", call),
    Proof("null pointers", give_null),
    Proof("what a shared library shows", export),
)
