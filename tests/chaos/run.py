"""``make chaos``: pushes that are disturbed, and whether a device ever has less than a release.

::

    python -m tests.chaos.run [--runs N] [--seed S] [--jobs J] [--only NUMBER]

A real OpenSSH server on 127.0.0.1, a tiny bundle, and a link slow enough that a fault falls into
any phase of a push; boards that have Python, and such that have a shell only. After every run
``current`` is the old or the new release, whole by its manifest's hashes; the next push succeeds;
nothing is left. Linux with OpenSSH's server; what some kinds need more is said where it is missing.
A run that failed is done again with ``--seed`` and ``--only``.

Exit codes: 0 all held, 1 something did not, 3 this machine cannot run it, 130 it was stopped.
"""

from __future__ import annotations

import argparse
import collections
import os
import queue
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from pathlib import Path

from tests.chaos.faults import KINDS, Outcome, one_run, why_not
from tests.chaos.labs import AGENTS, Agent, Bundles, Lab
from tests.support.reports.proof_report import Check, report
from tests.support.servers.openssh_server import find_sshd

CANNOT_RUN_EXIT = 3
STOPPED_EXIT = 130
SHOWN_EVERY = 50


Case = tuple[str, Agent]
"""A kind of fault, and what the board has."""
CASES: tuple[Case, ...] = tuple((kind, agent) for agent in AGENTS for kind in KINDS)


def runnable() -> list[Case]:
    """Return what can be run here."""
    return [case for case in CASES if not why_not(*case)]


def run_all(numbers: Sequence[int], seed: int, jobs: int, folder: Path) -> Iterator[Outcome]:
    """Do runs, some at a time, and yield what each found as it ends."""
    cases = runnable()
    bundles = Bundles.write(folder)
    idle: queue.SimpleQueue[Lab] = queue.SimpleQueue()

    def one(number: int) -> Outcome:
        lab = idle.get()
        try:
            return one_run(lab, seed, number, *cases[number % len(cases)])
        finally:
            idle.put(lab)

    with ExitStack() as stack:
        for job in range(jobs):
            lab = Lab(folder / f"lab-{job}", bundles, f"{os.getpid()}-{job}")
            idle.put(stack.enter_context(lab))
        pool = stack.enter_context(ThreadPoolExecutor(jobs))
        stack.callback(pool.shutdown, cancel_futures=True)
        for future in as_completed([pool.submit(one, number) for number in numbers]):
            yield future.result()


def main() -> int:
    arguments = _parse()
    if find_sshd() is None or not Path("/proc/self/environ").exists():
        print("chaos: cannot run here: it needs Linux and sshd (apt-get install openssh-server)")
        return CANNOT_RUN_EXIT
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    numbers = range(arguments.runs) if arguments.only is None else [arguments.only]
    _tell_missing()
    began = time.monotonic()
    outcomes: list[Outcome] = []
    try:
        with tempfile.TemporaryDirectory(prefix="edgepack-chaos-") as folder:
            for outcome in run_all(numbers, arguments.seed, arguments.jobs, Path(folder)):
                outcomes.append(outcome)
                _tell(outcome, arguments.seed, len(outcomes), len(numbers))
    except KeyboardInterrupt:
        print(f"chaos: stopped after {len(outcomes)} runs")
        return STOPPED_EXIT
    seconds = time.monotonic() - began
    _print_summary(outcomes, arguments.seed, seconds)
    checks = [
        Check(f"run {each.number} ({each.kind}, {each.agent})", "; ".join(each.problems))
        for each in outcomes
    ]
    report("chaos", checks, seconds)
    return 1 if any(outcome.problems for outcome in outcomes) else 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Disturb pushes and look at what is left.")
    parser.add_argument("--runs", type=int, default=1025, help="how many (default: 1025)")
    parser.add_argument("--seed", type=int, default=1, help="of all that is random (default: 1)")
    parser.add_argument("--jobs", type=int, default=3, help="runs at a time (default: 3)")
    parser.add_argument("--only", type=int, help="do this run alone")
    return parser.parse_args()


def _tell_missing() -> None:
    for kind, agent in CASES:
        if reason := why_not(kind, agent):
            print(f"chaos: no {kind} with {agent}: it needs {reason}")


def _tell(outcome: Outcome, seed: int, done: int, total: int) -> None:
    for problem in outcome.problems:
        where = f"run {outcome.number} ({outcome.kind}, {outcome.agent}), --seed {seed}"
        print(f"{where}: {problem}", flush=True)
    if done % SHOWN_EVERY == 0:
        print(f"{done} of {total} runs", file=sys.stderr, flush=True)


def _print_summary(outcomes: Sequence[Outcome], seed: int, seconds: float) -> None:
    agents = " ".join(f"{agent:>8}" for agent in AGENTS)
    print(f"{'fault':18} {agents} {'pushes that failed':>19} {'old':>5} {'new':>5} {'other':>6}")
    for kind in KINDS:
        found = [outcome for outcome in outcomes if outcome.kind == kind]
        if found:
            ended = collections.Counter(outcome.ended for outcome in found)
            failed = sum(not push.ok for outcome in found for push in outcome.pushes)
            by_agent = collections.Counter(outcome.agent for outcome in found)
            runs = " ".join(f"{by_agent[agent]:8}" for agent in AGENTS)
            print(
                f"{kind:18} {runs} {failed:19} {ended['old']:5} {ended['new']:5} {ended['other']:6}"
            )
    corrupted = sum(outcome.ended == "corrupted" for outcome in outcomes)
    failed = sum(bool(outcome.problems) for outcome in outcomes)
    print(
        f"{len(outcomes)} fault runs with seed {seed} in {seconds:.0f} s:"
        f" {corrupted} corrupted, {failed} with a problem"
    )


if __name__ == "__main__":
    sys.exit(main())
