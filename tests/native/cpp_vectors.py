"""Pictures and frames in C++, as Python has them: to the bit."""

from __future__ import annotations

from pathlib import Path

from edgepack.base.processes import run_program

from tests.mobile.comparing import compare_frames, compare_images, compare_prescaled
from tests.mobile.proofs import Proof, require
from tests.mobile.vectors import write as write_vectors
from tests.native.programs import RUN_TIMEOUT_S, compile_program


def compare(work: Path) -> str:
    """Run the program on all cases, and compare what it makes."""
    write_vectors(work / "cases")
    program = compile_program("pictures.cc", "-ffp-contract=off")
    done = run_program([program, work / "cases", work / "out"], timeout_s=RUN_TIMEOUT_S)
    require(done.exit_code == 0, f"{done.text}{done.last_lines}")
    comparisons = (compare_images, compare_frames, compare_prescaled)
    return "; ".join(each(work / "cases", work / "out") for each in comparisons)


PROOFS = (Proof("pictures and frames are those of Python", compare),)
