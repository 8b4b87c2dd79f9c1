"""Memory that fails while a bundle opens and answers: each allocation, one after the other."""

from __future__ import annotations

from pathlib import Path

from edgepack.base.processes import run_program

from tests.mobile.proofs import Proof, require
from tests.mobile.signatures import DYNAMIC_BATCH, FACES
from tests.native.programs import RUN_TIMEOUT_S, build_bundle, compile_program, find_library

STEPS = ((DYNAMIC_BATCH, 1), (FACES, 7))
"""Bundles, and every how many-th allocation of theirs fails."""


def fail_each(_work: Path) -> str:
    """Each call says that there is no memory, or gives the same answer, and keeps nothing."""
    # A C++ library of its own: onnxruntime's allocations do not fail, as they are not looked at.
    own = ("-static-libstdc++", "-static-libgcc")
    source = build_bundle(DYNAMIC_BATCH) / "cpp" / "src" / "edgepack_c.cc"
    program = compile_program("memory.cc", *own, str(source))
    seen = []
    for signature, step in STEPS:
        bundle = build_bundle(signature)
        argv = [str(program), str(find_library()), str(bundle), str(step)]
        done = run_program(argv, timeout_s=RUN_TIMEOUT_S)
        require(
            done.exit_code == 0, f"{signature.name}: {done.exit_code}: {done.text}{done.last_lines}"
        )
        seen.append(f"{signature.name}: each {step}. of {done.text.strip()}")
    return "; ".join(seen)


PROOFS = (Proof("memory that fails", fail_each),)
