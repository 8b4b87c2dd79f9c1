"""Memory that fails while a bundle opens and answers: each allocation, one after the other."""

from __future__ import annotations

from pathlib import Path

from edgepack.base.processes import run_program

from tests.mobile.proofs import Proof, require
from tests.mobile.signatures import DYNAMIC_BATCH, FACES
from tests.native.programs import RUN_TIMEOUT_S, build_bundle, compile_program, find_library

STEPS = ((DYNAMIC_BATCH, 1, False), (DYNAMIC_BATCH, 1, True), (FACES, 7, False))
"""Bundles, every how many-th allocation of theirs fails, and whether C++ asks and counts."""


def fail_each(work: Path) -> str:
    """Each call says that there is no memory, or gives the same answer, and keeps nothing."""
    # A C++ library of its own: onnxruntime's allocations do not fail, as they are not looked at.
    own = ("-static-libstdc++", "-static-libgcc")
    source = build_bundle(DYNAMIC_BATCH) / "cpp" / "src" / "edgepack_c.cc"
    program = compile_program("memory.cc", *own, str(source))
    seen = []
    for signature, step, counts in STEPS:
        bundle = build_bundle(signature)
        argv = [str(program), str(find_library()), str(bundle), str(step)]
        argv += [str(work / "stats")] if counts else []
        done = run_program(argv, timeout_s=RUN_TIMEOUT_S)
        require(
            done.exit_code == 0, f"{signature.name}: {done.exit_code}: {done.text}{done.last_lines}"
        )
        seen.append(f"{signature.name}: each {step}. of {done.text.strip()}")
    return "; ".join(seen)


PROOFS = (Proof("memory that fails", fail_each),)
