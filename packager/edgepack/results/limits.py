"""Whether a measured variant is within the project's limits, and which other one was."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from edgepack.base.schema import NotMeasured
from edgepack.bundle.manifest import Accuracy, find_decisive
from edgepack.errors import InconclusiveError, LimitError
from edgepack.records.run import Conditions, ProcessRun, RunReport
from edgepack.results.store.previous import find_used_variant
from edgepack.results.store.store import ResultsStore, RunFilter
from edgepack.results.summary import Summary, format_fact, summarize

_MB = 1e6
_AT_LEAST = frozenset({"min_sqnr_db", "metric_at_least"})
_UNITS = {"ms": "ms", "mb": "MB", "mj": "mJ", "c": "°C", "db": "dB"}
_TAIL = frozenset({"p99_ms", "energy_mj"})
"""What a heavy tail makes inconclusive: it may be what interrupted the model."""
_NO_DROP = NotMeasured(reason="the model has no fp32 to compare with")
_NO_ZONE = NotMeasured(reason="no thermal zone was read")


@dataclass(frozen=True)
class JudgedLimit:
    """One limit, and what was found."""

    name: str
    limit: float
    found: float | NotMeasured
    doubt: str = ""
    """Why a value beyond the limit does not show that it is missed."""

    @property
    def is_met(self) -> bool | None:
        """Whether it is; None where that is not known. NaN meets no limit."""
        if isinstance(self.found, NotMeasured):
            return None
        met = self.found >= self.limit if self.at_least else self.found <= self.limit
        return None if self.doubt and not met else met

    @property
    def at_least(self) -> bool:
        """Whether the value has to be as large as the limit, and not as small."""
        return self.name in _AT_LEAST

    @property
    def excess(self) -> float:
        """How many times as much was found as is allowed; 1 or less where the limit is met."""
        if isinstance(self.found, NotMeasured) or self.is_met:
            return 1.0
        small, large = sorted((abs(self.found), abs(self.limit)))
        return large / small if small else float("inf")

    @property
    def value(self) -> str:
        """What was found, and what the limit is, in words."""
        unit = _UNITS.get(self.name.rpartition("_")[2], "")
        bound = f"{'at least' if self.at_least else 'at most'} {self.limit:.4g} {unit}".rstrip()
        if isinstance(self.found, NotMeasured):
            return f"{bound}: {format_fact(self.found)}"
        return f"{self.found:.4g} of {bound}"

    def __str__(self) -> str:
        if isinstance(self.found, NotMeasured):
            return self.value
        word = {True: "met", False: "MISSED", None: f"not decided: {self.doubt}"}[self.is_met]
        return f"{self.value}: {word}"


def judge_limits(report: RunReport) -> list[JudgedLimit]:
    """Return each limit that a report holds, with what was found, in the order of the schema."""
    summary = summarize(report)
    return [
        JudgedLimit(
            name,
            limit,
            _FINDERS[name](report, summary),
            summary.heavy_tail if name in _TAIL else "",
        )
        for name, limit in report.limits.given.items()
    ]


def require_limits(report: RunReport, others: Sequence[RunReport] = ()) -> None:
    """Check that a report's variant is within its limits.

    Args:
        report: Whose numbers may be used.
        others: Reports of the same project on the same device, whose variants may be better.

    Raises:
        LimitError: A limit is missed; the hint names which variant meets all, or is nearest.
        InconclusiveError: A limit is not decided, and none is missed.
    """
    judged = judge_limits(report)
    missed = [each for each in judged if each.is_met is False]
    if missed:
        raise LimitError(
            f"{report.variant_used} misses limits: {_list(missed)}",
            hint=_find_remedy(report, others),
            where=report.device,
        )
    if unknown := [each for each in judged if each.is_met is None]:
        few = all(each.doubt or each.name == "p99_ms" for each in unknown)
        limits = ", ".join(f"{each.name}: null" for each in unknown)
        raise InconclusiveError(
            f"limits are not decided for {report.variant_used}: {_list(unknown)}",
            hint="measure longer, and while nothing else runs there: --runs 10"
            if few
            else "measure where that can be read, or take the limit away for this device in"
            f" edgepack.yaml: devices: {{{report.device}: {{limits: {{{limits}}}}}}}",
            where=report.device,
        )


def load_others(store: ResultsStore, report: RunReport) -> list[RunReport]:
    """Return the newest VALID reports of a bundle's other variants on the same device.

    Raises:
        ToolError: The store cannot be read.
        BundleError: A report in it is broken.
    """
    wanted = RunFilter(
        kind="bench", project=report.project, device=report.device, verdict="VALID", limit=200
    )
    newest = {
        row.variant: row.id
        for row in store.rows(wanted)
        if (row.manifest_sha256, row.scenario) == (report.manifest_sha256, report.scenario.name)
    }
    newest.pop(report.variant_used, None)
    found = store.load_all(list(newest.values()))
    return [each for each in found if isinstance(each, RunReport)]


def _find_remedy(report: RunReport, others: Sequence[RunReport]) -> str:
    """Return which measured variant is within the limits; else which is nearest."""
    again = [
        each.model_copy(update={"limits": report.limits}) for each in others if each.id != report.id
    ]
    within = [each for each in again if all(one.is_met for one in judge_limits(each))]
    if within:
        best = min(within, key=lambda each: summarize(each).p50_ms)
        return (
            f"{best.variant_used} met all limits there, with a p50 of"
            f" {summarize(best).p50_ms:.4g} ms ({best.id}): --variant {best.variant_used}"
        )
    nearest = min((report, *again), key=_compute_excess)
    missed = [each for each in judge_limits(nearest) if each.is_met is False]
    measured = {each.variant_used for each in (report, *again)}
    left = [each.id for each in report.variants if each.id not in measured]
    todo = "measure the other variants: --variant all; or " if left else ""
    near = (
        f"of the {len(measured)} variants measured there {nearest.variant_used} is nearest:"
        f" {_list(missed) or 'not all of its limits are decided'}; "
        if len(measured) > 1
        else ""
    )
    return f"{near}{todo}search for settings: edgepack tune"


def _compute_excess(report: RunReport) -> float:
    return max(each.excess for each in judge_limits(report))


def _list(judged: Sequence[JudgedLimit]) -> str:
    return "; ".join(f"{each.name} is {each.value}" for each in judged)


def _find_accuracy(report: RunReport) -> Accuracy | NotMeasured:
    used = find_used_variant(report)
    return find_decisive(used.accuracy, used.simulated)


def _find_drop(report: RunReport, _: Summary) -> float | NotMeasured:
    found = _find_accuracy(report)
    if isinstance(found, NotMeasured):
        return found
    return _NO_DROP if found.drop is None else found.drop


def _find_sqnr(report: RunReport, _: Summary) -> float | NotMeasured:
    found = _find_accuracy(report)
    if isinstance(found, NotMeasured):
        return found
    return _NO_DROP if found.worst is None else found.worst.sqnr_db


def _find_value(report: RunReport, _: Summary) -> float | NotMeasured:
    found = _find_accuracy(report)
    return found if isinstance(found, NotMeasured) else found.value


def _find_peak(report: RunReport, _: Summary) -> float | NotMeasured:
    found = report.memory
    return found if isinstance(found, NotMeasured) else found.peak_bytes / _MB


def _find_load(_: RunReport, summary: Summary) -> float:
    cold = summary.cold_create_ms
    return summary.session_create_ms if isinstance(cold, NotMeasured) else cold


def _find_hottest(report: RunReport, _: Summary) -> float | NotMeasured:
    values = [value for run in report.runs for value in _list_temperatures(run)]
    return max(values) if values else _NO_ZONE


def _list_temperatures(run: ProcessRun) -> list[float]:
    conditions: tuple[Conditions, ...] = (run.before, run.after)
    ends = [c.temperature_c for c in conditions if isinstance(c.temperature_c, float)]
    if isinstance(run.sampling, NotMeasured):
        return ends
    return [*ends, *(t for each in run.sampling.samples for t in each.temperatures_c.values())]


_FINDERS: dict[str, Callable[[RunReport, Summary], float | NotMeasured]] = {
    "metric_drop": _find_drop,
    "min_sqnr_db": _find_sqnr,
    "metric_at_least": _find_value,
    "metric_at_most": _find_value,
    "size_mb": lambda report, _: find_used_variant(report).model_bytes / _MB,
    "p50_ms": lambda _, summary: summary.p50_ms,
    "p99_ms": lambda _, summary: summary.p99_ms,
    "predict_ms": lambda _, summary: summary.predict_ms,
    "first_ms": lambda _, summary: summary.start_ms,
    "load_ms": _find_load,
    "memory_mb": _find_peak,
    "energy_mj": lambda _, summary: summary.energy_mj,
    "temperature_c": _find_hottest,
}


def require_measured(store: ResultsStore, release: str) -> None:
    """Check that a release was measured, and that each device's newest VALID run meets its limits.

    Args:
        store: Where runs are kept.
        release: The SHA-256 of the bundle's ``manifest.json``.

    Raises:
        InconclusiveError: No VALID benchmark of it is kept, or a limit is not decided.
        LimitError: A limit is missed.
        ToolError: The store cannot be read.
        BundleError: A report in it is broken.
    """
    newest = {
        row.device: row.id
        for row in store.rows(RunFilter(verdict="VALID"))
        if row.kind in ("bench", "pipeline")
        and row.manifest_sha256 == release
        and not row.unfinished
    }
    if not newest:
        raise InconclusiveError(
            f"no VALID benchmark of the release {release[:16]} is kept in {store.name}",
            hint="edgepack bench BUNDLE --device NAME",
        )
    for report in store.load_all([*newest.values()]):
        if isinstance(report, RunReport):
            require_limits(report)
