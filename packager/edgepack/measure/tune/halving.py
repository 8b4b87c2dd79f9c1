"""Successive halving over process runs. No I/O: callers pass the runs and the time.

In each rung every entrant that is left makes the same number of process runs, in rounds of one run
each and in a new random order, so that a device that warms up slows all alike. Then the slower half
of each group goes, and the next rung makes twice as many runs. A group is a variant: so the best
settings of a slow but more accurate variant are found, too.

Source: Jamieson and Talwalkar, "Non-stochastic Best Arm Identification and Hyperparameter
Optimization" (AISTATS 2016).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

from edgepack.base.statistics import median

FINALISTS = 3
"""Of each group, beside its defaults."""
LEAST_RUNGS = 2
Run = Callable[["Entrant"], float]
"""Makes one process run and returns its latency, or raises :class:`CandidateOutError`."""


class CandidateOutError(Exception):
    """Why a candidate cannot be used: it crashes, or computes something else."""


@dataclass
class Entrant:
    """One candidate, and its results so far."""

    number: int
    group: str
    default: bool
    """Whether it is the runtime's own defaults: of each group they stay to the end."""
    first: bool
    """Whether it is measured before all others, as the defaults and the present settings are."""
    changes: int = 0
    """In how many settings it differs from the defaults."""
    latencies: list[float] = field(default_factory=list)
    """One of each process run, in any unit."""
    problem: str = ""
    """Why it is out, if it is."""
    rung: int = 0
    """The last one that it was in, from 1; 0 if it was not reached."""

    @property
    def latency(self) -> float:
        """The median over its process runs."""
        return median(self.latencies)


def count_runs_needed(entrants: int) -> int:
    """Return how many process runs a group of this many entrants makes in all its rungs."""
    total, rung = 0, 1
    while True:
        total += entrants << (rung - 1)
        if entrants <= FINALISTS + 1 and rung >= LEAST_RUNGS:
            return total
        entrants, rung = min(entrants, _count_kept(entrants) + 1), rung + 1


def choose_entrants(
    entrants: Sequence[Entrant], runs: float, random: Random, least: int = 2
) -> list[Entrant]:
    """Return the entrants that the process runs are enough for, the same number in each group.

    Those that go first are always among them; of the others, those that change least, and of
    these a random choice.

    Args:
        entrants: All that are not out.
        runs: What can be afforded in all.
        random: Decides the choice.
        least: How many of each group are there however few runs can be afforded.
    """
    groups = _group_entrants(entrants)
    largest = max(map(len, groups), default=0)
    size = largest
    while size > least and sum(count_runs_needed(min(size, len(group))) for group in groups) > runs:
        size -= 1
    found = []
    for group in groups:
        ahead = [entrant for entrant in group if entrant.first]
        others = [entrant for entrant in group if not entrant.first]
        random.shuffle(others)
        others.sort(key=lambda entrant: entrant.changes)
        found += [*ahead, *others[: max(0, size - len(ahead))]]
    return found


def attempt(entrant: Entrant, run: Run) -> None:
    """Make one run of an entrant; a problem puts it out."""
    try:
        entrant.latencies.append(run(entrant))
    except CandidateOutError as out:
        entrant.problem = str(out)


def halve(
    entrants: Sequence[Entrant], run: Run, *, random: Random, time_is_up: Callable[[], bool]
) -> bool:
    """Run rungs until each group has its finalists, or the time is up.

    Entrants keep what was measured of them. Those that have made a run count it.

    Args:
        entrants: Who takes part.
        run: Makes one process run.
        random: Decides the order within rounds.
        time_is_up: Asked before each run.

    Returns:
        Whether it was completed before the time was up.
    """
    alive = [entrant for entrant in entrants if not entrant.problem]
    rung, runs = 1, 1
    while True:
        for entrant in alive:
            entrant.rung = rung
        for number in range(runs - 2 ** (rung - 1) + 1, runs + 1):
            if not _run_round(alive, run, number, random, time_is_up):
                return False
        alive = [entrant for entrant in alive if not entrant.problem]
        groups = _group_entrants(alive)
        if rung >= LEAST_RUNGS and all(len(group) <= FINALISTS + 1 for group in groups):
            return True
        alive = [entrant for group in groups for entrant in _choose_survivors(group)]
        rung += 1
        runs += 2 ** (rung - 1)


def _run_round(
    alive: Sequence[Entrant],
    run: Run,
    number: int,
    random: Random,
    time_is_up: Callable[[], bool],
) -> bool:
    """Make every entrant's run of that number; return whether there was time for it."""
    for entrant in random.sample(alive, len(alive)):
        if entrant.problem or len(entrant.latencies) >= number:
            continue
        if time_is_up():
            return False
        attempt(entrant, run)
    return True


def find_finalists(entrants: Sequence[Entrant]) -> list[Entrant]:
    """Return those that reached their group's last rung, and its defaults, fastest first."""
    found = []
    for group in _group_entrants([e for e in entrants if e.latencies and not e.problem]):
        last = max(entrant.rung for entrant in group)
        found += [entrant for entrant in group if entrant.rung == last or entrant.default]
    return sorted(found, key=lambda entrant: entrant.latency)


def _choose_survivors(group: Sequence[Entrant]) -> list[Entrant]:
    ranked = sorted(group, key=lambda entrant: entrant.latency)
    kept = ranked[: _count_kept(len(group))]
    return kept + [entrant for entrant in ranked if entrant.default and entrant not in kept]


def _count_kept(entrants: int) -> int:
    return max(FINALISTS, entrants // 2)


def _group_entrants(entrants: Sequence[Entrant]) -> list[list[Entrant]]:
    groups: dict[str, list[Entrant]] = {}
    for entrant in entrants:
        groups.setdefault(entrant.group, []).append(entrant)
    return list(groups.values())
