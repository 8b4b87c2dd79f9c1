"""Puts the report together from what a search found. No device here."""

from __future__ import annotations

from collections.abc import Sequence

from edgepack import __version__
from edgepack.base import statistics
from edgepack.base.clock import format_now
from edgepack.base.schema import NotMeasured
from edgepack.bundle.manifest import Accuracy
from edgepack.measure.bench.assemble import make_report_id, make_variant_facts
from edgepack.measure.compare.comparing import make_compared_metric
from edgepack.measure.tune.confirming import Pairs
from edgepack.measure.tune.front import CandidatePoint, find_pareto_front
from edgepack.measure.tune.halving import find_finalists
from edgepack.measure.tune.searching import MeasuredCandidate, TuneSearch, format_candidate
from edgepack.records.run import Memory
from edgepack.records.tuning import (
    SCHEMA_VERSION,
    Candidate,
    Confirmation,
    Latency,
    TuneReport,
    find_energy,
)
from edgepack.records.verdict import EMULATED

NO_RUN = NotMeasured(reason="it made no process run")


def make_report(search: TuneSearch, *, unfinished: str = "") -> TuneReport:
    """Return what was found until now."""
    manifest = search.site.bundle.manifest
    created = format_now()
    answer, why = _choose_answer(search, unfinished)
    return TuneReport(
        schema_version=SCHEMA_VERSION,
        id=make_report_id(created),
        created=created,
        edgepack=__version__,
        device=search.site.device.name,
        facts=search.site.selection.device,
        topology=search.site.topology,
        project=manifest.name,
        bundle=manifest.id,
        manifest_sha256=search.site.bundle.digest,
        target=manifest.target,
        variants=[make_variant_facts(manifest, entry) for entry in manifest.variants],
        unused=search.site.unused,
        seed=search.question.seed,
        budget_s=search.question.budget_s,
        elapsed_s=search.elapsed_s,
        candidates=[make_candidate(tried) for tried in search.tried],
        front=find_front(search),
        confirmation=make_confirmation(search),
        answer=answer.entrant.number,
        why=why,
        unfinished=unfinished,
        notes=[*search.notes, *_list_slowed_notes(search)],
    )


def _list_slowed_notes(search: TuneSearch) -> list[str]:
    if not search.slowed:
        return []
    return [f"the device was slowed down in {search.slowed} process runs: let it cool, tune again"]


def _choose_answer(search: TuneSearch, unfinished: str) -> tuple[MeasuredCandidate, str]:
    base, fastest = search.base or search.tried[0], search.fastest
    if fastest is None:
        return base, f"it ended before the search did: {unfinished}"
    if search.site.selection.device.emulated:
        return base, EMULATED
    if fastest is base:
        return base, "nothing that was tried is faster than the defaults"
    return _compare_fastest(search, base, fastest)


def _compare_fastest(
    search: TuneSearch, base: MeasuredCandidate, fastest: MeasuredCandidate
) -> tuple[MeasuredCandidate, str]:
    """Return the answer that the pairs give."""
    other = format_candidate(base) if fastest.entrant.default else "the defaults"
    name = format_candidate(fastest)
    if search.dropped:
        why = f"{name} was the fastest in the search; a run beside {other} failed:"
        return base, f"{why} {search.dropped}"
    pairs = search.pairs
    outcome = pairs.outcome if pairs else "INCONCLUSIVE"
    if outcome == "PASS" and pairs:
        ratio = pairs.answers[0].ratio.estimate
        return fastest, f"{1 - ratio:.1%} less than {other} in {pairs.whole} pairs"
    if outcome == "FAIL":
        return base, f"{name} was the fastest in the search, but slower than {other} in pairs"
    count = pairs.whole if pairs else 0
    why = f"{name} was the fastest, but {count} pairs do not show that it is no slower than {other}"
    return (fastest if fastest.entrant.default else base), why


def make_confirmation(search: TuneSearch) -> Confirmation | NotMeasured:
    """Return what the pairs of a search showed, or why there are none."""
    pairs, base, candidate = search.pairs, search.base, search.fastest
    if not pairs or not pairs.whole or not base or not candidate:
        reason = "nothing is faster than the defaults"
        if search.site.selection.device.emulated:
            reason = EMULATED
        elif candidate is None or candidate is not base:
            reason = "it ended before"
        return NotMeasured(reason=reason)
    return describe_pairs(pairs, base, candidate)


def describe_pairs(
    pairs: Pairs, base: MeasuredCandidate, candidate: MeasuredCandidate
) -> Confirmation:
    """Return pairs as reports have them."""
    return Confirmation(
        base=base.entrant.number,
        candidate=candidate.entrant.number,
        base_runs=pairs.base[: pairs.whole],
        candidate_runs=pairs.candidate[: pairs.whole],
        metrics=[make_compared_metric(answer) for answer in pairs.answers],
        outcome=pairs.outcome,
    )


def find_front(search: TuneSearch) -> list[int]:
    """Return the candidates that no other dominates, of those that were measured to the end."""
    if search.fastest is None:
        return []
    facts = {entry.id: entry for entry in search.site.bundle.manifest.variants}
    points = []
    for entrant in find_finalists(search.entrants):
        tried = search.tried[entrant.number]
        entry = facts[tried.settings.variant]
        memory, accuracy = tried.memory, entry.accuracy
        loss = None
        if isinstance(accuracy, Accuracy):
            loss = -accuracy.value if accuracy.higher_is_better else accuracy.value
        points.append(
            CandidatePoint(
                number=entrant.number,
                latency_ns=entrant.latency,
                memory_bytes=memory.peak_bytes if isinstance(memory, Memory) else None,
                size_bytes=search.site.bundle.manifest.count_model_bytes(entry),
                loss=loss,
                energy_mj=find_energy(tried.runs),
            )
        )
    return find_pareto_front(points)


def make_candidate(tried: MeasuredCandidate) -> Candidate:
    """Return a candidate as reports have it."""
    return Candidate(
        number=tried.entrant.number,
        settings=tried.settings,
        defaults=tried.entrant.default,
        present=tried.present,
        runs=tried.runs,
        rung=tried.entrant.rung if tried.runs else 0,
        latency=_make_latency([run.p50_ns for run in tried.runs]),
        memory=tried.memory,
        problem=tried.entrant.problem,
    )


def _make_latency(p50s_ns: Sequence[int]) -> Latency | NotMeasured:
    if not p50s_ns:
        return NO_RUN
    if len(p50s_ns) == 1:
        return Latency(p50_ns=p50s_ns[0], low_ns=None, high_ns=None)
    interval = statistics.log_t_interval([max(1, each) for each in p50s_ns])
    return Latency(p50_ns=statistics.median(p50s_ns), low_ns=interval.low, high_ns=interval.high)
