"""A fuzzer looks for bytes of a bundle, or of what it is given, that end the process.

Each file of ``cpp/fuzz`` is a target for libFuzzer, compiled with the sanitizers for addresses and
undefined behaviour: an abort, a leak, an exception that is no ``Error``, a hang, or an allocation
beyond what the library gives a manifest's word is a finding. ``EDGEPACK_FUZZ_SECONDS`` says how
long each one runs (20); findings stay in ``.native/fuzz``.

Needs clang with its libFuzzer (Debian: clang-19, libclang-rt-19-dev).
"""

from __future__ import annotations

import io
import json
import os
import shutil
import struct
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from edgepack.base.processes import ProgramResult, run_program
from edgepack.errors import ToolError

from tests.mobile.proofs import Proof, require
from tests.mobile.signatures import BUCKETS, DETECTOR, DYNAMIC_BATCH, FACES, READER
from tests.mobile.vectors import normalizer, tokenizer
from tests.native.cpp_run import make_netpbm
from tests.native.programs import COMPILE_TIMEOUT_S, HERE, KEPT, build_bundle

CODE = HERE / "cpp" / "fuzz"
SECONDS = int(os.environ.get("EDGEPACK_FUZZ_SECONDS", "20"))
COMPILERS = ("clang++-19", "clang++")
MOST_MB = 1100
"""Of one allocation: a little more than ``kMostClaimed`` of tensor.hpp."""
FLAGS = (
    "-std=c++17",
    "-O1",
    "-g",
    "-fsanitize=fuzzer,address,undefined,float-cast-overflow",
    "-fno-sanitize-recover=all",
    "-Wno-deprecated-declarations",
)
Seeds = Iterator[bytes]


def seed_bundles() -> Seeds:
    """Yield manifests whose goldens and lists are the file ``data``, and what that holds."""
    for signature in (DYNAMIC_BATCH, BUCKETS, DETECTOR, FACES, READER):
        bundle = build_bundle(signature)
        manifest = json.loads((bundle / "manifest.json").read_text(encoding="utf-8"))
        found: list[Path] = []
        _name_data(manifest["goldens"], "path", bundle, found)
        _name_data(manifest.get("output_descriptions"), "labels", bundle / "files", found)
        _name_data(manifest.get("output_descriptions"), "priors", bundle / "files", found)
        text = json.dumps(manifest).encode()
        for path in {path.stat().st_size: path for path in found}.values():
            yield text + b"\0" + path.read_bytes()


def _name_data(value: Any, key: str, folder: Path, found: list[Path]) -> None:
    """Name a file ``data`` wherever a key names one, and note which it was."""
    if isinstance(value, list):
        for each in value:
            _name_data(each, key, folder, found)
    if isinstance(value, dict):
        for name, each in value.items():
            if name == key and isinstance(each, str):
                found.append(folder / each)
                value[name] = "data"
            _name_data(each, key, folder, found)


def seed_json() -> Seeds:
    """Yield a manifest, and JSON with all that it has."""
    yield (build_bundle(DYNAMIC_BATCH) / "manifest.json").read_bytes()
    yield rb'{"a": [-1, 2e3, true, false, null, {}], "\u00e9\ud83d\ude00\n": "\"\\"}'


def seed_lists() -> Seeds:
    """Yield labels and priors."""
    yield b"\xef\xbb\xbfant\r\nbee\n\ncat"
    yield b"0.5,0.25,1,1\n-0.125,1e-3,002,3.25\n"


def seed_samples() -> Seeds:
    """Yield pictures of netpbm, and tensors of numpy."""
    picture = np.arange(36, dtype=np.uint8).reshape(3, 4, 3)
    yield make_netpbm(picture, b"# a comment\n") * 2
    yield b"P5 3 2 255\n123456"
    for array in (np.ones((2, 3), np.float32), np.array(1, np.int64), np.ones((1, 2), np.bool_)):
        file = io.BytesIO()
        np.save(file, array)
        yield file.getvalue()


def seed_frames() -> Seeds:
    """Yield bytes that numbers are drawn from: of one plane, and of three."""
    yield bytes(range(64))
    yield bytes(64)


def seed_sounds() -> Seeds:
    """Yield files of sounds behind two bytes that say what is wanted of them."""
    for number, (code, bits) in enumerate(((1, 8), (1, 16), (1, 24), (1, 32), (3, 32), (3, 64))):
        form = struct.pack("<HHIIHH", code, 2, 16000, 16000 * bits // 4, bits // 4, bits)
        values = bytes(range(bits // 8 * 6))
        chunks = b"fmt " + struct.pack("<I", 16) + form + b"LIST\2\0\0\0ab"
        chunks += b"data" + struct.pack("<I", len(values)) + values
        yield (
            bytes((number, number))
            + b"RIFF"
            + struct.pack("<I", len(chunks) + 4)
            + b"WAVE"
            + chunks
        )


def seed_texts() -> Seeds:
    """Yield tokenizers, each with a text."""
    for strips in (None, True, False):
        made = tokenizer(normalizer=normalizer(strip_accents=strips))
        yield json.dumps(made).encode() + "\0a\u0301b [MASK] \u4e2d \u1e9b\u0323".encode()


TARGETS: dict[str, Callable[[], Seeds]] = {
    "bundle": seed_bundles,
    "frame": seed_frames,
    "json": seed_json,
    "lists": seed_lists,
    "sample": seed_samples,
    "sound": seed_sounds,
    "text": seed_texts,
}
"""By the name of a file of ``cpp/fuzz``, what it begins with."""


@cache
def find_clang() -> str:
    """Return a clang whose libFuzzer is here, too.

    Raises:
        ToolError: There is none.
    """
    for name in filter(shutil.which, COMPILERS):
        done = run_program([name, "-print-file-name=libclang_rt.fuzzer-x86_64.a"], timeout_s=60)
        runtime = run_program([name, "-print-runtime-dir"], timeout_s=60).text.strip()
        libraries = [Path(done.text.strip()), *Path(runtime).glob("libclang_rt.fuzzer*.a")]
        if any(path.is_absolute() and path.is_file() for path in libraries):
            return name
    raise ToolError(
        "there is no clang with libFuzzer on PATH",
        hint="install clang-19 and libclang-rt-19-dev",
    )


def compile_target(name: str, folder: Path, code: Path) -> Path:
    """Compile a target with the headers and the sample of a bundle's ``cpp``."""
    program = folder / name
    argv = [find_clang(), *FLAGS, "-I", str(code / "include"), "-I", str(code / "samples")]
    done = run_program(
        [*argv, str(CODE / f"{name}.cc"), "-o", str(program)], timeout_s=COMPILE_TIMEOUT_S
    )
    require(done.exit_code == 0, done.stderr.decode("utf-8", "replace")[:3000])
    return program


def fuzz(program: Path, work: Path, seconds: int) -> ProgramResult:
    """Run a target for so long in a folder of its own, with what it begins with."""
    seeds, found = work / "seeds", KEPT / "fuzz"
    seeds.mkdir(parents=True)
    found.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(TARGETS[program.name]()):
        (seeds / str(number)).write_bytes(seed)
    (work / "corpus").mkdir()
    limits = [f"-max_total_time={seconds}", "-timeout=20", "-rss_limit_mb=4000"]
    limits += [f"-malloc_limit_mb={MOST_MB}", f"-artifact_prefix={found}/{program.name}-"]
    limits += ["-print_final_stats=1", "-max_len=65536"]
    # What once ended the process is in a folder of the target's name.
    folders = [work / "corpus", seeds, *filter(Path.is_dir, [CODE / program.name])]
    argv = [str(program), *limits, *map(str, folders)]
    return run_program(argv, timeout_s=seconds + 300, cwd=work)


def count_runs(done: ProgramResult) -> int:
    """Return how many inputs a fuzzer ran, as its last lines have it."""
    said = done.stderr.decode("utf-8", "replace")
    lines = [line for line in said.splitlines() if line.startswith("stat::number_of_executed")]
    return int(lines[-1].split()[-1]) if lines else 0


def find_nothing(work: Path) -> str:
    """No target finds anything."""
    code = build_bundle(BUCKETS) / "cpp"
    missing = {path.stem for path in CODE.glob("*.cc")} ^ set(TARGETS)
    require(not missing, f"these have no target, or no file: {missing}")
    seen = []
    for name in TARGETS:
        done = fuzz(compile_target(name, work, code), work / f"{name}-run", SECONDS)
        said = done.stderr.decode("utf-8", "replace")
        require(done.exit_code == 0, f"{name}: {said[-4000:]}")
        runs = count_runs(done)
        require(runs > 0, f"{name} ran nothing: {said[-500:]}")
        seen.append(f"{name} {runs}")
    return f"{SECONDS} s each: {', '.join(seen)} runs"


def find_planted(work: Path) -> str:
    """A shape of numpy whose end is not looked for is found: it took memory without end."""
    code = work / "cpp"
    shutil.copytree(build_bundle(BUCKETS) / "cpp", code)
    sample = code / "samples" / "edgepack_run.cc"
    text = sample.read_text(encoding="utf-8")
    check = 'if (at == first) throw make_file_error(path, "has no shape");'
    require(check in text, "the check that is to be taken out is not there")
    sample.write_text(text.replace(check, ""), encoding="utf-8")
    done = fuzz(compile_target("sample", work, code), work / "run", 60)
    require(done.exit_code != 0, f"nothing is found in {count_runs(done)} runs")
    lines = [line for line in done.stderr.decode().splitlines() if line.startswith("SUMMARY")]
    return "; ".join(lines)


PROOFS = (
    Proof("nothing ends the process", find_nothing),
    Proof("what is planted is found", find_planted),
)
