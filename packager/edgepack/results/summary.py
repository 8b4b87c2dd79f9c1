"""What tables and pages show of a report: milliseconds, computed from its raw nanoseconds."""

from __future__ import annotations

from dataclasses import dataclass

from edgepack import statistics
from edgepack.bench.report import Inconclusive, Invalid, RunReport
from edgepack.bundle.manifest import NotMeasured
from edgepack.statistics import Interval, Outliers

NS_PER_MS = 1e6


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
    median_interval_ms: Interval | NotMeasured
    """Geometric mean of the run medians with Student's t 95 % interval on their logarithms."""
    session_create_ms: float
    """Median over process runs."""
    first_inference_ms: float
    """Median over process runs."""


def summarize(report: RunReport) -> Summary:
    """Return the figures of a report."""
    latencies_ms = sorted(latency / NS_PER_MS for latency in report.latencies_ns)
    medians = tuple(statistics.median(run.latencies_ns) / NS_PER_MS for run in report.runs)
    return Summary(
        samples=len(latencies_ms),
        p50_ms=statistics.median(latencies_ms),
        p90_ms=statistics.percentile(latencies_ms, 90),
        p95_ms=statistics.percentile(latencies_ms, 95),
        p99_ms=_p99(latencies_ms),
        min_ms=min(latencies_ms),
        mean_ms=statistics.mean(latencies_ms),
        outliers=statistics.outliers(latencies_ms),
        run_medians_ms=medians,
        median_interval_ms=_interval(medians),
        session_create_ms=_median_ms([run.session_create_ns for run in report.runs]),
        first_inference_ms=_median_ms([run.first_inference_ns for run in report.runs]),
    )


def _median_ms(values_ns: list[int]) -> float:
    return statistics.median(values_ns) / NS_PER_MS


def _p99(latencies_ms: list[float]) -> float | NotMeasured:
    if len(latencies_ms) < statistics.MIN_SAMPLES_P99:
        return NotMeasured(reason=f"needs {statistics.MIN_SAMPLES_P99} samples")
    return statistics.percentile(latencies_ms, 99)


def _interval(medians_ms: tuple[float, ...]) -> Interval | NotMeasured:
    if len(medians_ms) < 2 or min(medians_ms) <= 0:
        return NotMeasured(reason="needs 2 process runs")
    return statistics.log_t_interval(medians_ms)


def verdict_word(report: RunReport) -> str:
    """Return VALID, INVALID or INCONCLUSIVE."""
    return report.verdict.kind.upper()


def verdict_reasons(report: RunReport) -> list[str]:
    """Return why a report is not valid; nothing if it is."""
    match report.verdict:
        case Invalid(reasons=reasons):
            return reasons
        case Inconclusive(reason=reason):
            return [reason]
        case _:
            return []


def milliseconds(value: float | NotMeasured) -> str:
    """Return a duration with four significant digits and its unit."""
    if isinstance(value, NotMeasured):
        return f"n/a ({value.reason})"
    return f"{value:#.4g} ms" if value < 1000 else f"{value:.0f} ms"


def interval_text(value: Interval | NotMeasured) -> str:
    """Return an interval of durations."""
    if isinstance(value, NotMeasured):
        return f"n/a ({value.reason})"
    return f"{value.low:#.4g} to {value.high:#.4g} ms"


def mebibytes(size_bytes: int) -> str:
    """Return a size in MiB, or in KiB where that is clearer."""
    kib = size_bytes / 1024
    return f"{kib:.1f} KiB" if kib < 1024 else f"{kib / 1024:.1f} MiB"


def placement_text(report: RunReport) -> str:
    """Return how many nodes ran on each provider."""
    counts = report.placement.counts.items()
    return ", ".join(f"{provider_word(name)} {count}" for name, count in counts)


def provider_word(provider: str) -> str:
    """Return a provider's name without the words that all of them share."""
    return provider.removesuffix("ExecutionProvider") or provider


def known(value: object) -> str:
    """Return a fact as text; what was not measured is ``unknown`` with the reason."""
    if isinstance(value, NotMeasured):
        return f"unknown ({value.reason})"
    if isinstance(value, list):
        return ", ".join(str(item) for item in value) or "none"
    return str(value)
