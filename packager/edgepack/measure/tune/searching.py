"""The search on one device: runs candidates there, and keeps what each did."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from time import monotonic
from typing import ClassVar

from edgepack.base import statistics
from edgepack.base.progress import Progress, Task, Work
from edgepack.base.schema import NotMeasured
from edgepack.bundle.manifest import ManifestVariant
from edgepack.bundle.reading import Bundle
from edgepack.bundle.unused import Unused
from edgepack.devices.harness import Measurer
from edgepack.devices.inventory import Device
from edgepack.errors import BudgetError, RemoteCommandError, format_one_line
from edgepack.measure.bench.joining import can_check
from edgepack.measure.bench.session import AnyHarness
from edgepack.measure.tune.confirming import Pairs, make_pairs
from edgepack.measure.tune.halving import (
    CandidateOutError,
    Entrant,
    attempt,
    choose_entrants,
    count_runs_needed,
    find_finalists,
    halve,
)
from edgepack.measure.tune.journal import Journal, JournaledRun
from edgepack.measure.tune.norms import has_norms
from edgepack.measure.tune.space import (
    count_changes,
    find_default_settings,
    find_present_settings,
    format_settings,
    list_settings,
)
from edgepack.project.limits import Limits
from edgepack.records.deciding import FIRST_LOOK, Rule
from edgepack.records.presets import Preset
from edgepack.records.run import Memory, ProcessRun, Selection
from edgepack.records.topology import Topology
from edgepack.records.tuning import RunTimes, Settings

SEARCH_SHARE, MEMORY_SHARE = 0.6, 0.1
"""The search's share of the budget; the rest is for the comparison with the defaults."""
MOST_PAIRS = 20

NOT_IN_LAST_RUNG = NotMeasured(reason="it was not among the last of its variant")
NO_TIME = NotMeasured(reason="the budget was used up before")


@dataclass(frozen=True)
class TuneQuestion:
    """What is to be tuned, and how."""

    bundle: Path
    budget_s: float = 600.0
    """Seconds to measure; the push and the choice of a variant come before."""
    variants: Sequence[str] = ()
    """Only these variants; default: all that work on the device."""
    limits: Limits = field(default_factory=Limits)
    """The project's: a variant that misses one is not tuned."""
    seed: int = 0
    """Decides the order of runs, and which candidates are tried if not all can be."""
    wait_s: float = 0.0
    journal: Path | None = None
    """Where runs are written down, and taken from if an earlier search was cut off."""

    @property
    def search(self) -> Preset:
        """How long a process run of the search is."""
        duration_s = min(0.5, max(0.1, self.budget_s / 1200))
        return Preset(
            "tune",
            runs=1,
            duration_s=duration_s,
            iterations=10,
            warm_up_s=duration_s / 2,
            warm_up_cap_s=0,
            conclusive=False,
        )

    @property
    def confirm(self) -> Preset:
        """How long a process run of the comparison with the defaults is."""
        duration_s = min(2.0, max(0.1, self.budget_s / 300))
        return replace(
            self.search,
            duration_s=duration_s,
            iterations=20,
            warm_up_s=duration_s / 4,
            window_s=duration_s / 8,
            warm_up_cap_s=duration_s,
        )


@dataclass(frozen=True)
class Site:
    """The device, bundle and question of a search."""

    question: TuneQuestion
    device: Device
    bundle: Bundle
    harness: AnyHarness
    selection: Selection
    topology: Topology
    unused: list[Unused]
    progress: Progress


@dataclass
class MeasuredCandidate:
    """A candidate, and all that was measured of it."""

    settings: Settings
    entrant: Entrant
    present: bool
    min_sqnr_db: float
    runs: list[RunTimes] = field(default_factory=list)
    memory: Memory | NotMeasured = NOT_IN_LAST_RUNG


class TuneSearch:
    """The state of a search on one device."""

    comparisons: ClassVar[int] = 1
    """How many times the answer is compared in pairs."""

    def __init__(self, site: Site, variants: Sequence[ManifestVariant]) -> None:
        self.site = site
        self.question = site.question
        self.random = Random(site.question.seed)  # noqa: S311  (an order, no secret)
        self.tried = _make_candidates(variants, site)
        self.base: MeasuredCandidate | None = None
        """What the fastest is compared with: the fastest defaults, as far as that is known; if they
        are the fastest, what the bundle has."""
        self.fastest: MeasuredCandidate | None = None
        """Of all, once the search came to its end."""
        self.pairs: Pairs | None = None
        self.dropped: str | None = None
        """Why the fastest went out while it was compared with the defaults."""
        self.notes: list[str] = []
        self.pruned: dict[str, str] = {}
        """Variants whose settings are not searched, and why."""
        self.journal = Journal(site.question.journal)
        self.slowed = 0
        """In how many process runs the device throttled."""
        self.started = monotonic()
        self.run_s = 0.0
        """How long a process run takes, about."""

    def run(self) -> None:
        """Search, then compare the fastest with the defaults, or those with what the bundle has."""
        self.make_first_runs()
        self.require_budget()
        self.run_rungs()
        last = [self.tried[entrant.number] for entrant in find_finalists(self.entrants)]
        self.base = self.find_defaults()
        self.fastest = last[0]
        self.measure_memory(last)
        if self.site.selection.device.emulated:
            return
        if self.fastest is self.base:
            self.base = self.find_present()
        if self.fastest is not self.base:
            self.confirm(self.base, self.fastest)

    @property
    def entrants(self) -> list[Entrant]:
        """Every candidate, as the halving sees it."""
        return [tried.entrant for tried in self.tried]

    def _compute_left_s(self, share: float = 1.0) -> float:
        """Return how much is left of the first part of the budget."""
        return self.started + share * self.question.budget_s - monotonic()

    def make_first_runs(self) -> None:
        """Run the defaults and the present settings of each variant once."""
        first = [tried for tried in self.tried if tried.entrant.first]
        title, total = "defaults and present settings", len(first)
        with self._open_task(title, total) as task:
            for tried in first:
                attempt(tried.entrant, lambda entrant: self._time_entrant(entrant, task))
                if tried.entrant.problem:
                    task(format_candidate(tried), found=tried.entrant.problem)
        self.run_s = (monotonic() - self.started) / len(first)
        for variant in {tried.settings.variant for tried in first}:
            mine = [tried for tried in first if tried.settings.variant == variant]
            if all(tried.entrant.problem for tried in mine):
                self._drop(variant, mine[0].entrant.problem)
        self.base = self.find_defaults()

    def find_defaults(self) -> MeasuredCandidate:
        """Return the fastest of the variants' defaults.

        Raises:
            RemoteCommandError: None works.
        """
        every = [tried for tried in self.tried if tried.entrant.default]
        working = [tried for tried in every if not tried.entrant.problem]
        if not working:
            raise RemoteCommandError(
                "onnxruntime's defaults work for no variant:"
                f" {format_candidate(every[0])}: {every[0].entrant.problem}",
                hint=f"check if the bundle does: edgepack bench {self.question.bundle}"
                f" --device {self.site.device.name}",
                where=self.site.device.name,
            )
        return min(working, key=lambda tried: tried.entrant.latency)

    def find_present(self) -> MeasuredCandidate:
        """Return what the device runs if nothing is changed."""
        sound = (tried for tried in self.tried if tried.present and not tried.entrant.problem)
        return next(sound, self.find_defaults())

    def _drop(self, variant: str, problem: str) -> None:
        for tried in self.tried:
            if tried.settings.variant == variant and not tried.entrant.problem:
                tried.entrant.problem = f"not tried: with its own settings: {problem}"

    def require_budget(self) -> None:
        """Check that two candidates of each variant and six pairs fit into the budget.

        Raises:
            BudgetError: They do not.
        """
        needed_s = self._compute_needed_s(self.question)
        if needed_s > self.question.budget_s:
            error = BudgetError(
                f"a budget of {self.question.budget_s:g} s is too small: one process run takes"
                f" {self.run_s:.1f} s there",
                hint=f"give --budget {needed_s}s or more",
                where="--budget",
            )
            error.needed_s = needed_s
            self.journal.drop()
            raise error

    def _compute_needed_s(self, question: TuneQuestion) -> int:
        """Return the least budget in seconds; a run's time grows with the budget itself."""
        sound = {tried.settings.variant for tried in self.tried if not tried.entrant.problem}
        groups = sound - self.pruned.keys()
        search_s = self.run_s * len(groups) * count_runs_needed(2) / SEARCH_SHARE
        pairs_s = self.comparisons * 2 * FIRST_LOOK * self._estimate_run_s(question)
        needed_s = math.ceil(max(search_s, pairs_s / (1 - SEARCH_SHARE - MEMORY_SHARE)))
        if needed_s <= question.budget_s:
            return needed_s
        return max(needed_s, self._compute_needed_s(replace(question, budget_s=needed_s)))

    @property
    def elapsed_s(self) -> float:
        """Seconds since the search began."""
        return monotonic() - self.started

    def _estimate_run_s(self, question: TuneQuestion) -> float:
        """About how long a process run of the comparison takes."""
        search, confirm = question.search, question.confirm
        longer = confirm.duration_s + 2 * confirm.warm_up_s
        return self.run_s + longer - search.duration_s - search.warm_up_s

    def run_rungs(self) -> None:
        """Halve the candidates of all variants that are not pruned."""
        sound = [e for e in self.entrants if not e.problem and e.group not in self.pruned]
        affordable = self._compute_left_s(SEARCH_SHARE) / self.run_s + sum(e.first for e in sound)
        some = choose_entrants(sound, affordable, self.random)
        if len(some) < len(sound):
            self.notes.append(
                f"{len(sound) - len(some)} of {len(sound)} candidates were not tried: the budget is"
                " too small for all"
            )
        groups = [sum(e.group == name for e in some) for name in {e.group for e in some}]
        total = sum(map(count_runs_needed, groups)) - sum(len(e.latencies) for e in some)
        with self._open_task("search", total) as task:
            ended = halve(
                some,
                lambda entrant: self._time_entrant(entrant, task),
                random=self.random,
                time_is_up=lambda: self._compute_left_s(SEARCH_SHARE) < self.run_s,
            )
        if not ended:
            self.notes.append("the search's share of the budget was used up before its last rung")

    def _open_task(
        self, title: str, total: int, *, at_most: bool = False
    ) -> AbstractContextManager[Task]:
        """Return a task of parts that take about as long as each other."""
        return self.site.progress.start_task(
            Work(title, total=total, kinds={"": total}, at_most=at_most, finds=True)
        )

    def _time_entrant(self, entrant: Entrant, task: Task) -> float:
        tried = self.tried[entrant.number]
        task.begin(format_candidate(tried))
        found = self._measure(tried, self.question.search)
        tried.runs.append(found)
        task(format_candidate(tried), found=f"p50 {found.p50_ns / 1e6:.3f} ms")
        return found.p50_ns

    def _measure(self, tried: MeasuredCandidate, preset: Preset) -> RunTimes:
        """Make one process run with a candidate's settings, or take it from an earlier search.

        Raises:
            CandidateOutError: It crashed, or its outputs are wrong.
        """
        key = f"{preset.duration_s:g} {preset.iterations} {tried.settings.key}"
        if before := self.journal.take(key):
            self.started -= before.took_s
            if before.found is None:
                raise CandidateOutError(before.problem)
            return before.found
        began = monotonic()
        try:
            found = self.make_run(tried, preset)
        except CandidateOutError as out:
            took_s = monotonic() - began
            self.journal.add(JournaledRun(key=key, problem=str(out), took_s=took_s))
            raise
        self.journal.add(JournaledRun(key=key, found=found, took_s=monotonic() - began))
        return found

    def make_run(self, tried: MeasuredCandidate, preset: Preset) -> RunTimes:
        """Make one process run with a candidate's settings.

        Raises:
            CandidateOutError: It crashed, or its outputs are wrong.
        """
        try:
            run = self._make_harness(tried).measure(tried.settings.variant, preset)
        except RemoteCommandError as error:
            raise CandidateOutError(format_one_line(error.problem)) from error
        self.slowed += _is_throttled(run)
        if run.golden_min_sqnr_db < tried.min_sqnr_db:
            raise CandidateOutError(
                f"its outputs are {run.golden_min_sqnr_db:.1f} dB near the golden ones,"
                f" {tried.min_sqnr_db:.1f} dB are needed"
            )
        if run.not_finite:
            named = ", ".join(run.not_finite)
            raise CandidateOutError(f"fed its own state, {named} became NaN or infinite")
        return RunTimes(
            p50_ns=round(statistics.median(run.latencies_ns)),
            p90_ns=round(statistics.percentile(run.latencies_ns, 90)),
            energy_mj=_find_energy(run),
        )

    def _make_harness(self, tried: MeasuredCandidate) -> Measurer:
        longest_s = min(self.site.harness.load_timeout_s, max(30.0, self._compute_left_s()))
        return replace(
            self.site.harness,
            session=tried.settings.override,
            load_timeout_s=longest_s,
            slowest_s=0.0,  # a candidate this slow is out
        )

    def measure_memory(self, last: Sequence[MeasuredCandidate]) -> None:
        """Measure the memory of candidates, as far as the time is enough."""
        with self._open_task("memory of the fastest", len(last)) as task:
            for tried in last:
                if self._compute_left_s(SEARCH_SHARE + MEMORY_SHARE) < self.run_s:
                    tried.memory = NO_TIME
                    continue
                task.begin(format_candidate(tried))
                try:
                    tried.memory = self._make_harness(tried).memory(tried.settings.variant)
                except RemoteCommandError as error:
                    tried.memory = NotMeasured(reason=format_one_line(error.problem))
                task(format_candidate(tried), found=_format_memory(tried))

    def confirm(
        self, base: MeasuredCandidate, candidate: MeasuredCandidate, share: float = 1.0
    ) -> Pairs:
        """Compare a candidate with another in pairs, in a share of the time that is left."""
        kept_s = (1 - share) * self._compute_left_s()
        left_s = self._compute_left_s() - kept_s
        affordable = int(left_s / (2 * self._estimate_run_s(self.question))) // 2 * 2
        rule = Rule(max_pairs=max(FIRST_LOOK, min(MOST_PAIRS, affordable)))
        pairs = self.pairs = Pairs(self.site.device.name, rule)
        self.dropped = None
        title = f"{format_candidate(candidate)} against {format_candidate(base)}"
        with self._open_task(title, 2 * rule.max_pairs, at_most=True) as task:

            def run(tried: MeasuredCandidate) -> RunTimes:
                task.begin(format_candidate(tried))
                found = self._measure(tried, self.question.confirm)
                task(format_candidate(tried), found=f"p50 {found.p50_ns / 1e6:.3f} ms")
                return found

            try:
                make_pairs(
                    pairs,
                    lambda: run(base),
                    lambda: run(candidate),
                    time_is_up=lambda: (
                        self._compute_left_s() - kept_s < self._estimate_run_s(self.question)
                    ),
                )
            except CandidateOutError as out:
                self.dropped = str(out)
        return pairs


def _format_memory(tried: MeasuredCandidate) -> str:
    memory = tried.memory
    return memory.reason if isinstance(memory, NotMeasured) else f"{memory.peak_bytes / 1e6:.1f} MB"


def _find_energy(run: ProcessRun) -> float | None:
    """Return what an inference took, in millijoules; None where no sensor tells."""
    if isinstance(run.energy, NotMeasured) or isinstance(run.inferences, NotMeasured):
        return None
    return run.energy.joules * 1e3 / run.inferences


def _is_throttled(run: ProcessRun) -> bool:
    """Return whether the device throttled in a process run, as far as it reports it."""
    now = run.after.throttled_now
    counts = run.before.throttle_events, run.after.throttle_events
    rose = all(isinstance(count, int) for count in counts) and counts[0] != counts[1]
    return rose or bool(isinstance(now, list) and now)


def _make_candidates(variants: Sequence[ManifestVariant], site: Site) -> list[MeasuredCandidate]:
    arch, lean = site.selection.device.arch, site.question.limits.memory_mb is not None
    found: list[MeasuredCandidate] = []
    for variant in variants:
        own, base = find_present_settings(variant).key, find_default_settings(variant).key
        for settings in list_settings(
            variant,
            site.topology,
            arch=arch,
            lean=lean,
            older=not can_check(site.bundle.manifest),
            norms=has_norms(site.bundle, variant),
        ):
            entrant = Entrant(
                number=len(found),
                group=variant.id,
                default=settings.key == base,
                first=settings.key in (own, base),
                changes=count_changes(settings, find_default_settings(variant)),
            )
            found.append(
                MeasuredCandidate(settings, entrant, settings.key == own, variant.min_sqnr_db)
            )
    return found


def format_candidate(tried: MeasuredCandidate) -> str:
    """Return a candidate's variant and settings in words."""
    return f"{tried.settings.variant} ({format_settings(tried.settings)})"
