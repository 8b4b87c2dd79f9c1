"""``edgepack_run``, the sample of bundles for Linux, answers what the Python loader answers."""

from __future__ import annotations

import csv
import json
import os
import select
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from edgepack.base.processes import run_program
from edgepack.builder.build import build
from edgepack.ondevice.runtime import edgepack_answers as answers
from edgepack.ondevice.runtime import edgepack_loader as loader
from onnx import TensorProto, helper

from tests.mobile.comparing import differences
from tests.mobile.proofs import ROOT, Proof, require
from tests.mobile.signatures import (
    DETECTOR,
    FACES,
    PIXELS,
    READER,
    SAMPLES,
    SEVERAL_INPUTS,
    TEXT,
    Signature,
)
from tests.mobile.vectors import TEXTS
from tests.native.programs import (
    RUN_TIMEOUT_S,
    TARGET,
    build_bundle,
    compile_sample,
    find_library,
)
from tests.support.media import write_sound

PICTURES = (DETECTOR, FACES, READER, PIXELS)
SIZES = ((97, 61), (64, 64), (33, 120))
SOUND = Signature(
    "sound",
    (
        helper.make_node("Cast", ["sound"], ["levels"], "cast", to=TensorProto.FLOAT),
        helper.make_node("MatMul", ["levels", "weights"], ["y"], "linear"),
    ),
    (("sound", TensorProto.INT16, [1, 2, 40]),),
    (("y", TensorProto.FLOAT, [1, 2, 3]),),
    lambda random: {"sound": random.integers(-999, 999, (SAMPLES, 1, 2, 40), np.int16)},
    (("weights", np.random.default_rng(2).standard_normal((40, 3)).astype(np.float32)),),
    "inputs: {sound: {sound: {rate: 16000, channels: 2, length: 40}}}",
)
"""Two channels of a sound, as levels of 16 bits."""


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
    bundle = build_bundle(SEVERAL_INPUTS)
    tensors = {
        "values": rng.standard_normal((1, 4)).astype(np.float32),
        "step count": np.array([[3]], np.int32),
        "class": np.array([2], np.int64),
    }
    words = [f"{name}={work / name}.npy" for name in tensors]
    for name, array in tensors.items():
        np.save(work / name, array)
    expected = [write_answers(loader.load(bundle).predict(tensors))]
    require_same(expected, run_sample(bundle, *words)[1], "several inputs")
    return f"{count} pictures of {len(PICTURES)} bundles, {len(tensors)} tensors of one"


def answer_streams(work: Path) -> str:
    """Each picture of stdin and each text of a pipe is answered before the next is written."""
    pictures = [np.full((h, w, 3), w, np.uint8) for w, h in SIZES]
    answer_stream(DETECTOR, pictures, [make_netpbm(pixels) + b"\n" for pixels in pictures])
    texts, pipe = ["turn the lights on", "a b", "c"], work / "pipe.txt"
    os.mkfifo(pipe)
    answer_stream(TEXT, texts, [f"{text}\n".encode() for text in texts], pipe)
    return f"{len(pictures)} pictures, {len(texts)} texts"


def answer_stream(
    signature: Signature, given: Sequence[Any], pieces: Sequence[bytes], pipe: Path | None = None
) -> None:
    """Write pieces, and raise NotHeldError unless each is answered before the next."""
    bundle = build_bundle(signature)
    model = loader.load(bundle)
    argv = [compile_sample(), "--runtime", find_library(), bundle, pipe or "-"]
    with subprocess.Popen(
        list(map(str, argv)), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as program:
        # For both ways, as it would wait for a program that does not open it.
        stream = program.stdin if pipe is None else pipe.open("r+b", buffering=0)
        assert stream is not None
        assert program.stdout is not None
        for each, piece in zip(given, pieces, strict=True):
            stream.write(piece)
            stream.flush()
            if not select.select([program.stdout], [], [], RUN_TIMEOUT_S)[0]:
                program.kill()
            line = program.stdout.readline()
            require(bool(line), "there is no answer before the stream ends")
            require_same([write_answers(model.predict(each))], [json.loads(line)], signature.name)
        stream.close()
    require(program.returncode == 0, f"exit code {program.returncode}")


def write_answers(found: dict[str, Any]) -> dict[str, Any]:
    """Return Python's answers as JSON has them."""
    written = {name: answers.make_json(each) for name, each in found.items()}
    return dict(json.loads(json.dumps(written)))


def require_same(expected: list[Any], found: list[Any], which: str) -> None:
    """Raise NotHeldError unless answers are the same."""
    for difference in differences(expected, found):
        require(held=False, otherwise=f"{which}: {difference}")


def answer_texts(work: Path) -> str:
    """Texts of a file and of the command line, and sounds, give Python's answers."""
    bundle = build_bundle(TEXT)
    model = loader.load(bundle)
    lines = [text for text in TEXTS if "\n" not in text and "\0" not in text]
    (work / "lines.txt").write_text("\r\n".join([*lines, ""]), encoding="utf-8", newline="")
    expected = [write_answers(model.predict(text)) for text in (*lines[2:4], *lines)]
    words = ("--text", lines[2], "--text", lines[3], bundle, work / "lines.txt")
    require_same(expected, run_sample(*words)[1], "texts")
    sound = loader.load(build_bundle(SOUND))
    write_sound(work / "a.wav", np.random.default_rng(4).uniform(-1, 1, (60, 2)), kind="s24")
    expected = [write_answers(sound.predict((work / "a.wav").read_bytes()))]
    require_same(expected, run_sample(build_bundle(SOUND), work / "a.wav")[1], "a sound")
    return f"{len(lines)} texts, a sound; {answer_commands(work)}"


def answer_commands(work: Path) -> str:
    """The example for commands answers each text of its evaluation as Python does."""
    project = ROOT / "examples" / "commands"
    build(project=project / "edgepack.yaml", targets=[TARGET], out=work / "dist")
    bundle = next(path for path in (work / "dist").iterdir() if path.is_dir())
    with (project / "evaluation.csv").open(encoding="utf-8", newline="") as file:
        texts = [text for text, _ in csv.reader(file)]
    (work / "evaluation.txt").write_text("\n".join(texts), encoding="utf-8")
    model = loader.load(bundle)
    expected = [write_answers(model.predict(text)) for text in texts]
    code, found, said = run_sample(bundle, work / "evaluation.txt")
    require(code == 0 and f"running {model.variant} " in said, said)
    require_same(expected, found, "commands")
    return f"{len(texts)} commands of the example"


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
        (1, ("--text", "a text", bundle), b""),
        (1, (build_bundle(SOUND),), b"RIFF"),
        (1, ("--text", "caf\udce9", build_bundle(TEXT)), b""),
    ]
    for code, words, stdin in cases:
        found, lines, said = run_sample(*words, stdin=stdin)
        require(found == code, f"{words}: exit code {found}, not {code}: {said}")
        require(not lines and "error: " in said and "hint: " in said, f"{words}: {said}")
    name = loader.load(bundle).inputs[0].name
    (work / "one.ppm").write_bytes(good)
    one = f"{name}={work / 'one.ppm'}"
    named = (
        (good + good, (f"{name}=-",), f"- is not one thing for the input {name}"),
        (b"", (f"{name}=-",), f"- is not one thing for the input {name}"),
        (b"", (one, one), f"the input {name} is there twice"),
        (b"", (work,), f"{work} cannot be read: Is a directory"),
        (good + b"\n text", (), "- has no picture behind a picture"),
    )
    for given, words, text in named:
        code, _, said = run_sample(bundle, *words, stdin=given)
        require(code != 0 and f"error: {text}\n" in said, f"{words}: exit code {code}: {said}")
    return f"{len(cases) + len(named)} cases"


PROOFS = (
    Proof("the sample answers what Python answers", answer),
    Proof("the sample answers texts and sounds", answer_texts),
    Proof("the sample answers while a stream goes on", answer_streams),
    Proof("what the sample does not take", refuse),
)
