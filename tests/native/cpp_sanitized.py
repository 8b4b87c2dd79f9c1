"""The C++ library under the sanitizers for addresses, undefined behaviour and threads.

onnxruntime is not compiled with them: what it leaks and how its threads wait is not looked at.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from edgepack.ondevice.runtime import edgepack_loader as loader

from tests.mobile.proofs import Proof, require
from tests.mobile.signatures import BUCKETS, DETECTOR, DYNAMIC_BATCH
from tests.native.c_calls import call_compiled
from tests.native.cpp_faults import list_broken
from tests.native.cpp_fuzz import find_clang
from tests.native.cpp_models import list_feeds
from tests.native.programs import (
    build_bundle,
    compile_program,
    run_described,
    write_tensors,
)

ADDRESS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")
# GCC 12's sanitizer does not know how a condition is waited for by the steady clock
# (pthread_cond_clockwait), clang's does.
THREAD = ("-fsanitize=thread",)
# Suppressions go by functions' names, which another release's symbolizer may not find.
_SYMBOLIZER = shutil.which("llvm-symbolizer-19")
# A copy of the wheel's library has another file name; all of them begin so.
_LEAKS = "leak:libonnxruntime\n"
_OF_RUNTIME = ("race:libonnxruntime", "called_from_lib:libonnxruntime")
# onnxruntime waits within libstdc++, with locks that were not seen; ours wait for a time, which is
# another function.
_WAITS = ("mutex:std::condition_variable::wait(", "mutex:__run_exit_handlers")
_RACES = "\n".join((*_OF_RUNTIME, *_WAITS, ""))


def check_addresses(work: Path) -> str:
    """No wrong address, leak or undefined behaviour, with bundles that are right or wrong."""
    suppressions = work / "leaks"
    suppressions.write_text(_LEAKS)
    os.environ["LSAN_OPTIONS"] = f"suppressions={suppressions}:print_suppressions=0"
    program = compile_program("describe.cc", *ADDRESS)
    runs = 0
    for signature in (DYNAMIC_BATCH, BUCKETS, DETECTOR):
        bundle = build_bundle(signature)
        words = write_feeds(bundle, work / signature.name)
        for way in ([], ["--bound"])[: 1 if signature is BUCKETS else 2]:
            counted = {"EDGEPACK_STATS": str(work / "stats")}
            done = run_described(bundle, *way, *words, program=program, **counted)
            require(done.exit_code == 0, f"{bundle.name}: {done.text}{done.last_lines}")
            runs += 1
    broken = 0
    for name, bundle in list_broken(work / "broken"):
        done = run_described(bundle, program=program)
        require(done.exit_code in (0, 3), f"{name}: {done.text}{done.last_lines}")
        broken += 1
    calls = call_compiled(compile_program("calls.c", *ADDRESS))
    return f"{runs} runs, {broken} broken bundles, {calls}"


def check_threads(work: Path) -> str:
    """Four threads run one model without a race; one that is planted is found."""
    suppressions = work / "races"
    suppressions.write_text(_RACES)
    environment = {
        "TSAN_OPTIONS": f"suppressions={suppressions}:halt_on_error=1:exitcode=66"
        + (f":external_symbolizer_path={_SYMBOLIZER}" if _SYMBOLIZER else ""),
        "EDGEPACK_STATS": str(work / "stats"),
    }
    program = compile_program("describe.cc", *THREAD, compiler=find_clang())
    for signature in (DYNAMIC_BATCH, BUCKETS):
        bundle = build_bundle(signature)
        words = write_feeds(bundle, work / signature.name)
        done = run_described(bundle, "--threads", "4", *words, program=program, **environment)
        require(done.exit_code == 0, f"{bundle.name}: {done.exit_code} {done.last_lines}")
        done = run_described(
            bundle, "--threads", "4", "--race", *words, program=program, **environment
        )
        require(done.exit_code == 66, f"the planted race is not found: {done.exit_code}")
    return "2 bundles"


def write_feeds(bundle: Path, work: Path) -> list[Path]:
    """Write inputs of a few sizes, and make folders for the outputs."""
    model = loader.load(bundle)
    words = []
    for number, feed in enumerate(list(list_feeds(model))[:3]):
        words += [write_tensors(work / f"in-{number}", [s.name for s in model.inputs], feed)]
        words += [work / f"out-{number}"]
        words[-1].mkdir()
    return words


PROOFS = (
    Proof("addresses and undefined behaviour", check_addresses),
    Proof("threads", check_threads),
)
