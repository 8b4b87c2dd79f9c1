"""Pictures, frames, answers, texts, sounds and refusals in C++, as Python has them."""

from __future__ import annotations

from pathlib import Path

from edgepack.base.processes import run_program

from tests.mobile.comparing import (
    compare_answers,
    compare_frames,
    compare_images,
    compare_prescaled,
    compare_tokens,
)
from tests.mobile.proofs import Proof, require
from tests.mobile.refusals import (
    compare_refused,
    write_refused,
    write_refused_frames,
    write_refused_options,
)
from tests.mobile.vectors import write as write_vectors
from tests.native import text_cases
from tests.native.programs import RUN_TIMEOUT_S, compile_program

COMPARISONS = (
    compare_images,
    compare_frames,
    compare_prescaled,
    compare_answers,
    compare_refused,
    compare_tokens,
    *text_cases.COMPARISONS,
)


def compare(work: Path, *flags: str) -> str:
    """Run the program on all cases, and compare what it makes."""
    write_vectors(work / "cases")
    text_cases.write_texts(work / "cases")
    for write in (write_refused, write_refused_frames, write_refused_options):
        write(work / "cases" / "refused")
    program = compile_program("vectors.cc", "-ffp-contract=off", *flags)
    argv = [str(program), str(work / "cases"), str(work / "out")]
    done = run_program(argv, timeout_s=RUN_TIMEOUT_S)
    require(done.exit_code == 0, f"{done.text}{done.last_lines}")
    return "; ".join(each(work / "cases", work / "out") for each in COMPARISONS)


def compare_sanitized(work: Path) -> str:
    """The same with what finds wrong memory and undefined behaviour."""
    return compare(work, "-fsanitize=address,undefined", "-fno-sanitize-recover=all")


PROOFS = (
    Proof("pictures, frames, answers, texts and sounds are those of Python", compare),
    Proof("the same under sanitizers", compare_sanitized),
)
