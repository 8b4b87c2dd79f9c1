"""``edgepack_run``, the sample of bundles for Linux, answers what the Python loader answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from edgepack.base.processes import run_program
from edgepack.ondevice.runtime import edgepack_answers as answers
from edgepack.ondevice.runtime import edgepack_loader as loader

from tests.mobile.comparing import differences
from tests.mobile.proofs import Proof, require
from tests.mobile.signatures import DETECTOR, FACES, PIXELS, READER
from tests.native.programs import RUN_TIMEOUT_S, build_bundle, compile_sample, find_library

PICTURES = (DETECTOR, FACES, READER, PIXELS)
SIZES = ((97, 61), (64, 64), (33, 120))


def make_netpbm(pixels: np.ndarray, comment: bytes = b"") -> bytes:
    """Return a picture as a PPM file has it."""
    height, width = pixels.shape[:2]
    return b"P6\n%s%d %d\n255\n" % (comment, width, height) + pixels.tobytes()


def run_sample(*words: str | Path, stdin: bytes = b"") -> tuple[int, list[Any], str]:
    """Return the exit code, the answers, and what stood on stderr."""
    argv = [str(compile_sample()), "--runtime", str(find_library()), *map(str, words)]
    done = run_program(argv, timeout_s=RUN_TIMEOUT_S, input_bytes=stdin)
    said = done.stderr.decode("utf-8", "replace")
    return done.exit_code, [json.loads(line) for line in done.text.splitlines()], said


def answer(work: Path) -> str:
    """Pictures from a file, from stdin one behind the other, and tensors give Python's answers."""
    rng = np.random.default_rng(3)
    count = 0
    for signature in PICTURES:
        bundle = build_bundle(signature)
        model = loader.load(bundle)
        given = [rng.integers(0, 256, (h, w, 3), np.uint8) for w, h in SIZES]
        expected = [write_answers(model.predict(pixels)) for pixels in given]
        stream = b"".join(make_netpbm(pixels, b"# a comment\n") for pixels in given)
        code, found, said = run_sample(bundle, stdin=stream)
        require(code == 0, f"{signature.name}: {said}")
        require(f"running {model.variant} " in said, said)
        require_same(expected, found, signature.name)
        file = work / "one.ppm"
        file.write_bytes(make_netpbm(given[0]))
        require_same(expected[:1], run_sample(bundle, file)[1], signature.name)
        count += len(given)
    return f"{count} pictures of {len(PICTURES)} bundles"


def write_answers(found: dict[str, Any]) -> dict[str, Any]:
    """Return Python's answers as JSON has them."""
    written = {name: answers.make_json(each) for name, each in found.items()}
    return dict(json.loads(json.dumps(written)))


def require_same(expected: list[Any], found: list[Any], which: str) -> None:
    """Raise NotHeldError unless answers are the same."""
    for difference in differences(expected, found):
        require(held=False, otherwise=f"{which}: {difference}")


def refuse(work: Path) -> str:
    """Wrong arguments and damaged files are an exit code, an error and a hint."""
    bundle = build_bundle(DETECTOR)
    good = make_netpbm(np.zeros((9, 9, 3), np.uint8))
    (work / "bad.npy").write_bytes(b"\x93NUMPY\x01\x00\xff\xff{")
    cases: list[tuple[int, tuple[str | Path, ...], bytes]] = [
        (2, (), b""),
        (2, ("--none", "1", bundle), good),
        (2, ("--score", "7", bundle), good),
        (1, (work / "missing",), good),
        (1, (bundle, work / "missing.ppm"), b""),
        (1, (bundle,), good[:-1]),
        (1, (bundle,), b"P6 9 9 65535\n" + bytes(600)),
        (1, (bundle,), b"P6 99999999999999999999 9 255\n"),
        (1, (bundle, work / "bad.npy"), b""),
        (1, (bundle,), b"P6"),
        (1, (bundle,), b"P6 #"),
        (1, (bundle,), b"text"),
    ]
    for code, words, stdin in cases:
        found, lines, said = run_sample(*words, stdin=stdin)
        require(found == code, f"{words}: exit code {found}, not {code}: {said}")
        require(not lines and "error: " in said and "hint: " in said, f"{words}: {said}")
    return f"{len(cases)} cases"


PROOFS = (
    Proof("the sample answers what Python answers", answer),
    Proof("what the sample does not take", refuse),
)
