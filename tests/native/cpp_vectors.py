"""Pictures, frames, answers, texts, sounds and refusals in C++, as Python has them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from edgepack.base.processes import run_program

from tests.mobile.comparing import (
    compare_answers,
    compare_frames,
    compare_images,
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


def compare_numbers(_work: Path) -> str:
    """Numbers are the shortest texts of 15 to 17 digits that are read as them, in both ways."""
    random = np.random.default_rng(8)
    bits = random.integers(0, 2**64, 20000, np.uint64)
    values = np.concatenate([
        bits.view(np.float64),
        (bits & np.uint64(0xFFF0000000000000)).view(np.float64),  # powers of two
        (bits & np.uint64(0xFFFFFFFF)).view(np.float64),  # too small for all digits
        random.uniform(-9, 9, 20000).astype(np.float32).astype(np.float64),
        random.integers(-(10**7), 10**7, 20000) / 1000,
        np.array([0.0, -0.0, 0.1, 1e15, 1e16, 1e17, 5e-324, np.inf, -np.inf]),
    ])  # fmt: skip
    values = values[~np.isnan(values)]
    expected = [_format_number(float(value)) for value in values]
    for flags in ((), ("-DWITHOUT_TO_CHARS",)):
        program = compile_program("numbers.cc", *flags)
        done = run_program([str(program)], timeout_s=RUN_TIMEOUT_S, input_bytes=values.tobytes())
        pairs = zip(expected, done.text.splitlines(), strict=True)
        wrong = [f"{found}, not {text}" for text, found in pairs if found != text]
        require(not wrong, f"{len(wrong)} numbers {flags}: {wrong[:3]}")
    return f"{len(values)} numbers"


def _format_number(value: float) -> str:
    texts = [f"{value:.{digits}g}" for digits in (15, 16, 17)]
    return next((text for text in texts if float(text) == value), texts[-1])


PROOFS = (
    Proof("pictures, frames, answers, texts and sounds are those of Python", compare),
    Proof("the same under sanitizers", compare_sanitized),
    Proof("numbers have the fewest digits", compare_numbers),
)
