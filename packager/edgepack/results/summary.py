"""What tables and pages show of a report: milliseconds, computed from its raw nanoseconds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgepack.base import statistics
from edgepack.base.schema import NotMeasured
from edgepack.base.statistics import FLAGGED_Z, LISTED_Z, MAD_TO_SIGMA, Interval, Outliers
from edgepack.records.pipeline import PipelineReport
from edgepack.records.run import (
    TIMELESS,
    BestBatch,
    EvaluationReport,
    Inconclusive,
    Invalid,
    Joined,
    ProcessRun,
    RunReport,
    Scenario,
    VariantFacts,
)
from edgepack.records.verdict import explain_heavy_tail

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

NS_PER_MS = 1e6
MIB = 1 << 20
EQUAL_DB = 200.0
"""The SQNR of equal outputs."""


@dataclass(frozen=True)
class Summary:
    """The latencies of a report in milliseconds. Nothing is dropped from any of them."""

    samples: int
    p50_ms: float
    p90_ms: float
    p95_ms: float
    p99_ms: float | NotMeasured
    """Only with enough samples to mean something."""
    min_ms: float
    mean_ms: float
    outliers: Outliers
    run_medians_ms: tuple[float, ...]
    run_p90s_ms: tuple[float, ...]
    median_interval_ms: Interval | NotMeasured
    """Geometric mean of the run medians with Student's t 95 % interval on their logarithms."""
    session_create_ms: float
    """Median over process runs; the model's file was read before."""
    cold_create_ms: float | NotMeasured
    """Median; the model's file was not in memory."""
    first_inference_ms: float
    """Median over process runs."""
    start_ms: float | NotMeasured
    """Median, from the beginning of a process to its first answer; cold where the device can drop
    files from memory."""
    predict_ms: float | NotMeasured
    """Median of whole calls of ``predict``, in one process."""
    throughput: float | NotMeasured
    """Inferences a second over the timed parts of all process runs."""
    energy_mj: float | NotMeasured
    """Millijoules for one inference, idle power included."""
    heavy_tail: str
    """Why all that depends on single inferences is inconclusive, which is every figure of the timed
    inferences but p50 and the run medians; empty if it is not."""

    @property
    def p50_range_ms(self) -> tuple[float, float, float]:
        """The low end of the interval, p50, the high end; p50 itself where there is none."""
        interval = self.median_interval_ms
        if isinstance(interval, NotMeasured):
            return self.p50_ms, self.p50_ms, self.p50_ms
        return interval.low, self.p50_ms, interval.high


def summarize(report: RunReport) -> Summary:
    """Return the figures of a report."""
    import numpy as np

    runs_ms = [np.sort(np.array(run.latencies_ns, np.float64)) / NS_PER_MS for run in report.runs]
    latencies_ms = np.sort(np.concatenate(runs_ms))
    medians = tuple(_find_percentile(run_ms, 50) for run_ms in runs_ms)
    return Summary(
        samples=len(latencies_ms),
        p50_ms=_find_percentile(latencies_ms, 50),
        p90_ms=_find_percentile(latencies_ms, 90),
        p95_ms=_find_percentile(latencies_ms, 95),
        p99_ms=_compute_p99(latencies_ms),
        min_ms=float(latencies_ms[0]),
        mean_ms=float(latencies_ms.mean()),
        outliers=_count_outliers(latencies_ms),
        run_medians_ms=medians,
        run_p90s_ms=tuple(_find_percentile(run_ms, 90) for run_ms in runs_ms),
        median_interval_ms=_compute_interval(medians),
        session_create_ms=_compute_median_ms(list_warm_creations(report)),
        cold_create_ms=_find_cold(report),
        first_inference_ms=_compute_median_ms([run.first_inference_ns for run in report.runs]),
        start_ms=_find_start(report),
        predict_ms=_find_predict(report),
        throughput=_compute_throughput(report.runs),
        energy_mj=_compute_energy(report.runs),
        heavy_tail=explain_heavy_tail(
            report.scenario,
            *(_find_percentile(latencies_ms, each) * NS_PER_MS for each in (50, 99)),
        ),
    )


def list_warm_creations(report: RunReport) -> list[int]:
    """Return how long making a session took each time, with the model's file in memory."""
    apart = [] if isinstance(report.creation, NotMeasured) else report.creation.warm_ns
    return [*apart, *(run.session_create_ns for run in report.runs)]


def list_cold_creations(report: RunReport) -> list[int] | NotMeasured:
    """Return how long making a session took each time, with the model's file not in memory."""
    return report.creation if isinstance(report.creation, NotMeasured) else report.creation.cold_ns


def _find_cold(report: RunReport) -> float | NotMeasured:
    cold = list_cold_creations(report)
    return cold if isinstance(cold, NotMeasured) else _compute_median_ms(cold)


def _find_start(report: RunReport) -> float | NotMeasured:
    start = report.start
    if isinstance(start, NotMeasured):
        return start
    cold = start.cold_ns
    return _compute_median_ms(start.warm_ns if isinstance(cold, NotMeasured) else cold)


def _find_predict(report: RunReport) -> float | NotMeasured:
    phases = report.phases
    return phases if isinstance(phases, NotMeasured) else _compute_median_ms(phases.predict_ns)


def list_phases(report: RunReport) -> dict[str, float]:
    """Return the medians of the phases of ``predict`` that were timed, in ms, in their order."""
    if isinstance(report.phases, NotMeasured):
        return {}
    parts = report.phases.parts.items()
    return {n: _compute_median_ms(ns) for n, ns in parts if not isinstance(ns, NotMeasured)}


def compute_run_share(report: RunReport) -> float:
    """Return which share of a call of ``predict`` is the session's run; 0 where it was not timed.

    It is at most 1: both are medians of calls of their own.
    """
    if isinstance(report.phases, NotMeasured):
        return 0.0
    run_ms, whole_ms = map(_compute_median_ms, (report.phases.run_ns, report.phases.predict_ns))
    return min(1.0, run_ms / max(whole_ms, 1e-9))


def format_predict(report: RunReport) -> str:
    """Return what a call of ``predict`` takes, how much of it is the session's run, and of what."""
    phases = report.phases
    if isinstance(phases, NotMeasured):
        return format_milliseconds(phases)
    whole = format_milliseconds(_compute_median_ms(phases.predict_ns))
    share = f"{100 * compute_run_share(report):.0f} %"
    return f"{whole}, of which session.run {share}; of {phases.given}"


def _compute_median_ms(values_ns: list[int]) -> float:
    return statistics.median(values_ns) / NS_PER_MS


def _find_percentile(ordered: NDArray[np.float64], percent: float) -> float:
    return float(statistics.sorted_percentile(ordered, percent))  # type: ignore[arg-type]


def _count_outliers(ordered: NDArray[np.float64]) -> Outliers:
    import numpy as np

    distances = np.sort(np.abs(ordered - _find_percentile(ordered, 50)))
    scale = _find_percentile(distances, 50) * MAD_TO_SIGMA
    listed, flagged = (int((distances > z * scale).sum()) for z in (LISTED_Z, FLAGGED_Z))
    return Outliers(listed, flagged)


def _compute_p99(latencies_ms: NDArray[np.float64]) -> float | NotMeasured:
    if len(latencies_ms) < statistics.MIN_SAMPLES_P99:
        return NotMeasured(reason=f"needs {statistics.MIN_SAMPLES_P99} samples")
    return _find_percentile(latencies_ms, 99)


def _compute_interval(medians_ms: tuple[float, ...]) -> Interval | NotMeasured:
    if len(medians_ms) < 2 or min(medians_ms) <= 0:
        return NotMeasured(reason="needs 2 process runs")
    return statistics.log_t_interval(medians_ms)


def _compute_throughput(runs: list[ProcessRun]) -> float | NotMeasured:
    inferences = _compute_total(run.inferences for run in runs)
    took_ns = _compute_total(run.timed_ns for run in runs)
    if isinstance(inferences, NotMeasured):
        return inferences
    if isinstance(took_ns, NotMeasured):
        return took_ns
    return inferences / took_ns * 1e9 if took_ns > 0 else TIMELESS


def _compute_energy(runs: list[ProcessRun]) -> float | NotMeasured:
    inferences = _compute_total(run.inferences for run in runs)
    joules = _compute_total(
        run.energy if isinstance(run.energy, NotMeasured) else run.energy.joules for run in runs
    )
    if isinstance(inferences, NotMeasured):
        return inferences
    return joules if isinstance(joules, NotMeasured) else joules / inferences * 1e3


def _compute_total(values: Iterable[float | NotMeasured]) -> float | NotMeasured:
    """Return the sum; where a value is not known, why."""
    total = 0.0
    for value in values:
        if isinstance(value, NotMeasured):
            return value
        total += value
    return total


def format_verdict(report: RunReport | PipelineReport) -> str:
    """Return VALID, INVALID or INCONCLUSIVE."""
    return report.verdict.kind.upper()


def list_verdict_reasons(report: RunReport | PipelineReport) -> list[str]:
    """Return why a report is not valid; nothing if it is."""
    match report.verdict:
        case Invalid(reasons=reasons):
            return reasons
        case Inconclusive(reason=reason):
            return [reason]
        case _:
            return []


def format_scenario(scenario: Scenario) -> str:
    """Return how queries arrive, in words."""
    parts: list[str] = [scenario.name]
    if scenario.samples_per_query > 1:
        parts.append(f"{scenario.samples_per_query} samples a query")
    if scenario.threads > 1:
        parts.append(f"{scenario.threads} at once")
    if scenario.max_batch > 1:
        parts.append(f"joined to batches of up to {scenario.max_batch}")
    if scenario.queue_delay_ms:
        parts.append(f"waiting up to {scenario.queue_delay_ms:g} ms for others")
    if scenario.queries_per_s is not None:
        parts.append(f"{scenario.queries_per_s:g} queries/s")
    if scenario.latency_bound_ms is not None:
        parts.append(f"99 % within {scenario.latency_bound_ms:g} ms")
    return ", ".join(parts)


def format_joined(runs: Sequence[ProcessRun]) -> str:
    """Return how many samples batches had, and how near their outputs were; empty if none were.

    Of a report of joined samples all runs have them.
    """
    found = [run.joined for run in runs if isinstance(run.joined, Joined)]
    samples = _compute_total(run.inferences for run in runs)
    if not found or isinstance(samples, NotMeasured):
        return ""
    mean = samples / sum(each.batches for each in found)
    worst_db = min(each.min_sqnr_db for each in found)
    near = "equal to" if worst_db >= EQUAL_DB else f"{worst_db:.1f} dB near"
    return f"{mean:.3g} samples a batch on average; outputs {near} the golden ones of each sample"


def format_best_batch(found: BestBatch | NotMeasured) -> str:
    """Return which batch is best, and by what."""
    if isinstance(found, NotMeasured):
        return f"none could be measured: {found.reason}"
    told = (
        f"{format_rate(found.samples_per_s)} samples/s, p{found.percentile}"
        f" {format_milliseconds(found.latency_ms)} of {found.bound_ms:g}"
    )
    if found.is_within:
        return f"{found.batch} ({told})"
    return f"none is within {found.bound_ms:g} ms; nearest: {found.batch} ({told})"


def mark_not_p50(
    summary: Summary,
    value: float | NotMeasured,
    text: Callable[[float | NotMeasured], str],
) -> str:
    """Return a figure that is not p50, marked where the tail makes it inconclusive."""
    doubtful = summary.heavy_tail and not isinstance(value, NotMeasured)
    return f"{text(value)} (inconclusive)" if doubtful else text(value)


def format_throughput(value: float | NotMeasured) -> str:
    """Return a throughput with its unit."""
    if isinstance(value, NotMeasured):
        return format_fact(value)
    return f"{format_rate(value)} inferences/s"


def format_rate(value: float) -> str:
    """Return how often something happens a second, without the unit."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def format_energy(value: float | NotMeasured) -> str:
    """Return what one inference takes, with its unit."""
    return format_fact(value) if isinstance(value, NotMeasured) else f"{value:.3g} mJ per inference"


def format_milliseconds(value: float | NotMeasured) -> str:
    """Return a duration with four significant digits and its unit."""
    if isinstance(value, NotMeasured):
        return f"n/a ({value.reason})"
    return f"{value:#.4g} ms" if value < 999.95 else f"{value:,.0f} ms"


def format_interval(value: Interval | NotMeasured) -> str:
    """Return an interval of durations."""
    if isinstance(value, NotMeasured):
        return f"n/a ({value.reason})"
    return f"{value.low:#.4g} to {value.high:#.4g} ms"


def format_peak_memory(report: RunReport) -> str:
    """Return the peak of resident memory."""
    if isinstance(report.memory, NotMeasured):
        return f"n/a ({report.memory.reason})"
    return format_mebibytes(report.memory.peak_bytes)


def format_memory(report: RunReport) -> str:
    """Return how much of the peak memory is the model's."""
    if isinstance(report.memory, NotMeasured):
        return "not measured"
    gpu = report.memory.gpu_bytes
    there = "" if isinstance(gpu, NotMeasured) else f", {format_mebibytes(gpu)} of the GPU"
    return f"{format_mebibytes(report.memory.model_bytes)} for the model{there}"


def format_count(number: int, word: str) -> str:
    """Return a number with its noun: ``1 run``, ``2 runs``."""
    return f"{number} {word}{'' if number == 1 else 's'}"


def format_mebibytes(size_bytes: int) -> str:
    """Return a size in MiB, or in KiB where that is clearer."""
    kib = size_bytes / 1024
    return f"{kib:.1f} KiB" if kib < 1024 else f"{kib / 1024:.1f} MiB"


def format_placement(report: RunReport | EvaluationReport) -> str:
    """Return how many nodes ran on each provider."""
    if isinstance(report.placement, NotMeasured):
        return format_fact(report.placement)
    counts = report.placement.counts.items()
    return ", ".join(f"{shorten_provider(name)} {count}" for name, count in counts)


def shorten_provider(provider: str) -> str:
    """Return a provider's name without the words that all of them share."""
    return provider.removesuffix("ExecutionProvider") or provider


def format_simulated(variant: VariantFacts) -> str:
    """Return what a variant did in its provider's simulator; empty where no vendor has one."""
    if isinstance(variant.simulated, NotMeasured):
        return f"not run: {variant.simulated.reason}"
    return str(variant.simulated or "")


def format_fact(value: object) -> str:
    """Return a fact as text; what was not measured is ``unknown`` with the reason."""
    if isinstance(value, NotMeasured):
        return f"unknown ({value.reason})"
    if isinstance(value, list):
        return ", ".join(str(item) for item in value) or "none"
    return str(value)
