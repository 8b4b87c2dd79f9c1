"""``make fleet-test``: devices that pull, disturbed in every way, and thousands of them at once.

::

    python -m tests.fleet.run [--runs N] [--agents N] [--window S] [--seed S] [--jobs J]

A real registry on 127.0.0.1, real SSH signatures, and the agent as a timer starts it. First, runs
that are disturbed: the release that is current must be whole and one that the operator has signed
for this channel, at every moment, and in the end the right one. Then many devices that follow one
channel: figures of one wave that installs and one that finds nothing new.

Exit codes: 0 all held, 1 something did not, 3 this machine cannot run it.
"""

from __future__ import annotations

import argparse
import collections
import queue
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from tests.fleet.faults import KINDS, Offers, make_base, run_one, why_not
from tests.fleet.many import HEADER, enroll_all, find_wrong, run_wave
from tests.support.reports.proof_report import Check, report
from tests.support.servers.registry import Registry, running_registry
from tests.support.servers.registry_faults import Gate, gate

CANNOT_RUN_EXIT = 3
RUNS_PER_REPOSITORY = 60
"""What refers to one bundle is one list, which each run makes longer."""
SHOWN_EVERY = 100


@dataclass(frozen=True)
class Outcome:
    """What came of a run."""

    number: int
    kind: str
    problem: str


class Lab:
    """What runs need that are made one after the other."""

    def __init__(self, folder: Path, registry: Registry, gate: Gate) -> None:
        self._folder = folder
        self._registry = registry
        self._gate = gate
        self._runs = 0
        self._offers: Offers | None = None

    def run(self, kind: str, seed: str) -> str:
        """Disturb one device; return what is wrong then."""
        if self._offers is None or self._runs % RUNS_PER_REPOSITORY == 0:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder.mkdir()
            name = f"{self._folder.name}/r{self._runs}"
            self._offers = Offers.write(self._folder, self._registry.host, name)
            make_base(self._offers, self._gate, self._folder / "base")
        self._runs += 1
        place = self._folder / f"run-{self._runs}"
        place.mkdir()
        try:
            return run_one(kind, self._offers, self._gate, self._folder / "base", place, seed)
        finally:
            shutil.rmtree(place, ignore_errors=True)


def disturb(runs: int, seed: int, jobs: int, folder: Path, registry: Registry) -> Iterator[Outcome]:
    """Make disturbed runs, some at a time, and yield what came of each."""
    kinds = [kind for kind in KINDS if not why_not(kind)]
    idle: queue.SimpleQueue[Lab] = queue.SimpleQueue()

    def one(number: int) -> Outcome:
        lab = idle.get()
        kind = kinds[number % len(kinds)]
        try:
            return Outcome(number, kind, lab.run(kind, f"{seed}/{number}"))
        finally:
            idle.put(lab)

    with ExitStack() as stack:
        for job in range(jobs):
            idle.put(Lab(folder / f"lab{job}", registry, stack.enter_context(gate(registry.host))))
        pool = stack.enter_context(ThreadPoolExecutor(jobs))
        stack.callback(pool.shutdown, cancel_futures=True)
        for future in as_completed([pool.submit(one, number) for number in range(runs)]):
            yield future.result()


def follow(
    agents: int, window_s: float, seed: int, folder: Path, registry: Registry
) -> Iterator[Check]:
    """Let many devices follow a channel; print figures, and yield what was looked at."""
    offers = Offers.write(folder, registry.host, "many/tiny")
    roots = enroll_all(folder / "boards", agents, registry, offers)
    print(HEADER)
    for what, result in (("install", "installed"), ("nothing new", "unchanged")):
        wave = run_wave(roots, window_s, registry, seed)
        print(wave.format(what), flush=True)
        counts = collections.Counter(run.result for run in wave.runs)
        problem = "" if counts == {result: agents} else str(dict(counts))
        yield Check(f"{what}: {agents} agents end with {result!r}", problem)
        most = max(run.requests for run in wave.runs)
        if result == "unchanged":
            yield Check("nothing new is one request", "" if most == 1 else f"{most} requests")
    wrong = find_wrong(roots, offers)
    yield Check("all have the channel's release", ", ".join(wrong[:5]))


def main() -> int:
    arguments = _parse()
    if shutil.which("docker-registry") is None or shutil.which("ssh-keygen") is None:
        why = "it needs docker-registry and ssh-keygen (apt-get install docker-registry)"
        print(f"fleet: cannot run here: {why}")
        report("fleet", [], 0.0, not_run=why)
        return CANNOT_RUN_EXIT
    for kind in KINDS:
        if reason := why_not(kind):
            print(f"fleet: no {kind}: it needs {reason}")
    began = time.monotonic()
    outcomes: list[Outcome] = []
    with tempfile.TemporaryDirectory(prefix="edgepack-fleet-") as name:
        folder = Path(name)
        with running_registry(folder / "registry") as registry:
            for outcome in disturb(
                arguments.runs, arguments.seed, arguments.jobs, folder, registry
            ):
                outcomes.append(outcome)
                _tell(outcome, arguments.seed, len(outcomes), arguments.runs)
            _print_summary(outcomes, time.monotonic() - began)
            checks = [Check(f"run {each.number} ({each.kind})", each.problem) for each in outcomes]
            if arguments.agents:
                place = folder / "many"
                place.mkdir()
                checks += follow(
                    arguments.agents, arguments.window, arguments.seed, place, registry
                )
    report("fleet", checks, time.monotonic() - began)
    return 1 if any(check.problem for check in checks) else 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Disturb devices that pull; run many at once.")
    parser.add_argument("--runs", type=int, default=1000, help="disturbed runs (default: 1000)")
    parser.add_argument("--agents", type=int, default=2000, help="at once (default: 2000)")
    parser.add_argument("--window", type=float, default=120.0, help="seconds of their timers")
    parser.add_argument("--seed", type=int, default=1, help="of all that is random (default: 1)")
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time (default: 2)")
    return parser.parse_args()


def _tell(outcome: Outcome, seed: int, done: int, total: int) -> None:
    if outcome.problem:
        print(
            f"run {outcome.number} ({outcome.kind}), --seed {seed}: {outcome.problem}", flush=True
        )
    if done % SHOWN_EVERY == 0:
        print(f"{done} of {total} runs", file=sys.stderr, flush=True)


def _print_summary(outcomes: list[Outcome], seconds: float) -> None:
    runs = collections.Counter(each.kind for each in outcomes)
    wrong = collections.Counter(each.kind for each in outcomes if each.problem)
    print(f"{'fault':32} {'runs':>5} {'wrong':>6}")
    for kind in runs:
        print(f"{kind:32} {runs[kind]:5} {wrong[kind]:6}")
    print(f"{len(outcomes)} runs, {sum(wrong.values())} wrong, {seconds:.0f} s", flush=True)


if __name__ == "__main__":
    sys.exit(main())
