"""``make mobile-test``: what bundles for phones carry is compiled and run, without a phone.

::

    python -m tests.mobile.run [android] [apple] [c] [PROGRAM ...]

Without arguments all is proven; a platform proves its own, and so does the name of one of the
modules beside this file. Each has a tuple ``PROOFS``. A line is printed for each proof, and a last
line with the counts. What a proof needs and this machine lacks is an error that names it, and the
proof has failed.

Exit codes: 0 all held, 1 something did not, 2 an argument is none of these.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from edgepack.errors import EdgepackError

from tests.mobile.proofs import NotHeldError, Proof
from tests.support.reports.proof_report import Check, report

PLATFORMS = {
    "android": (
        "kotlin_models",
        "kotlin_shared",
        "kotlin_flow",
        "kotlin_sources",
        "kotlin_vectors",
        "kotlin_style",
        "aar",
        "android_api",
        "gradle_script",
        "kotlin_sample",
    ),
    "apple": (
        "swift_models",
        "swift_sources",
        "swift_choice",
        "swift_package",
        "swift_vectors",
        "swift_style",
        "swift_sample",
    ),
    "c": ("c_loop",),
}
"""The modules with each platform's proofs, in the order in which they run."""


def main() -> int:
    return run_proofs("mobile", PLATFORMS, "Prove what bundles for phones carry.")


def run_proofs(kind: str, platforms: Mapping[str, tuple[str, ...]], about: str) -> int:
    """Run the proofs that the command line names, or all; return the exit code.

    Args:
        kind: The package of ``tests`` with the modules. The report is called so, too, with the
            names that were asked for.
        platforms: The modules with each platform's proofs.
        about: What the command does.
    """
    known = {*platforms, *(program for theirs in platforms.values() for program in theirs)}
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("what", nargs="*", metavar="NAME", help=", ".join(sorted(known)))
    asked = set(parser.parse_args().what)
    if unknown := asked - known:
        parser.error(f"unknown: {', '.join(sorted(unknown))}; known: {', '.join(sorted(known))}")
    chosen = [
        program
        for platform, theirs in platforms.items()
        for program in theirs
        if not asked or asked & {platform, program}
    ]
    failed = prove(
        " ".join([kind, *sorted(asked)]),
        [
            (p, proof)
            for p in chosen
            for proof in importlib.import_module(f"tests.{kind}.{p}").PROOFS
        ],
    )
    return 1 if failed else 0


def prove(kind: str, proofs: Sequence[tuple[str, Proof]]) -> int:
    """Run proofs, each with the name of its program; return how many failed."""
    checks: list[Check] = []
    started = time.monotonic()
    for program, proof in proofs:
        began = time.monotonic()
        problem, seen = look(proof)
        took = f"{time.monotonic() - began:.0f} s"
        checks.append(Check(f"{program}: {proof.name}", problem))
        result = f"FAILED: {problem}" if problem else f"ok: {seen}"
        say(f"{program}: {proof.name}: {result} ({took})")
    report(kind, checks, time.monotonic() - started)
    failed = sum(bool(check.problem) for check in checks)
    say(f"{len(proofs) - failed} passed, {failed} failed")
    return failed


def look(proof: Proof) -> tuple[str, str]:
    """Return what is wrong, which is nothing where the proof holds, and what was seen."""
    with tempfile.TemporaryDirectory(prefix="edgepack-proof-") as name:
        try:
            return "", proof.look(Path(name))
        except (EdgepackError, NotHeldError) as error:
            return str(error), ""


def say(line: str) -> None:
    """Print a line now."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
