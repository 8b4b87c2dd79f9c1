"""A C99 program asks for answers, right and wrong; they are those of the Python loader."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from edgepack.base.processes import run_program
from edgepack.ondevice.runtime import edgepack_loader as loader

from tests.mobile.proofs import Proof, require
from tests.mobile.signatures import DETECTOR, FACES, READER, TEXT, Signature
from tests.native.cpp_run import SOUND, require_same, write_answers
from tests.native.programs import RUN_TIMEOUT_S, build_bundle, compile_program, find_library
from tests.native.text_cases import IN_MODEL_TEXTS, list_files

WIDTH, HEIGHT = 97, 61


def predict(work: Path, *flags: str) -> str:
    """A picture's answers are Python's, as JSON and as structs; what is wrong is a code."""
    signatures = (DETECTOR, FACES, READER)
    for signature in signatures:
        _compare(signature, compile_program("predict.c", *flags))
    program = compile_program("predict.c", *flags)
    texts = [text for text in IN_MODEL_TEXTS if "\0" not in text]
    sounds = list(list_files(work / "scratch.wav", 3))[::4]
    for kind, signature, given in (("text", TEXT, texts), ("sound", SOUND, sounds)):
        model = loader.load(build_bundle(signature))
        for each in given:
            _compare_other(program, kind, model, each)
    count = len(texts) + len(sounds)
    return f"{len(signatures)} bundles, 15 wrong calls each; {count} texts and sounds"


def _compare_other(program: Path, kind: str, model: loader.Model, given: str | bytes) -> None:
    argv = [str(program), str(find_library()), str(model.bundle.folder), kind]
    stdin = given.encode() if isinstance(given, str) else given
    done = run_program(argv, timeout_s=RUN_TIMEOUT_S, input_bytes=stdin)
    require(done.exit_code == 0, f"{given!r}: {done.text}{done.last_lines}")
    try:
        expected = [write_answers(model.predict(given))]
    except ValueError as error:
        require(done.text == f'"7: {error}"\n', f"{done.text!r}, not {error}")
        return
    require_same(expected, [json.loads(done.text)], f"{kind} {given!r}")


def _compare(signature: Signature, program: Path) -> None:
    bundle = build_bundle(signature)
    pixels = np.random.default_rng(5).integers(0, 256, (HEIGHT, WIDTH, 3), np.uint8)
    argv = [str(program), str(find_library()), str(bundle), str(WIDTH), str(HEIGHT)]
    done = run_program(argv, timeout_s=RUN_TIMEOUT_S, input_bytes=pixels.tobytes())
    require(done.exit_code == 0, f"{done.text}{done.last_lines}")
    found = json.loads(done.text)
    require_same([write_answers(loader.load(bundle).predict(pixels))], [found], signature.name)
    for line in done.stderr.decode().splitlines():
        name, *words = line.split()
        if name in found and isinstance(found[name], list) and words[0] == "2":
            told = [f"{each['score']:.6f}" for each in found[name]]
            require(words[4::4] == told, f"{signature.name}: {line}, not {told}")


def predict_sanitized(work: Path) -> str:
    """The same with what finds wrong memory and undefined behaviour."""
    return predict(work, "-fsanitize=address,undefined", "-fno-sanitize-recover=all")


PROOFS = (
    Proof("answers through the C ABI", predict),
    Proof("the same under sanitizers", predict_sanitized),
)
