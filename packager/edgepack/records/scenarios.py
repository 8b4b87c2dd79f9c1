"""How queries arrive, in the words of MLPerf LoadGen: the options, and whether bounds are kept.

Source: loadgen/test_settings.h and mlperf.conf, https://github.com/mlcommons/inference: 8 samples a
query of multi-stream, Poisson arrivals and the 99th percentile of server. ``max_batch`` and the
queue delay are those of Triton's dynamic batching (model_configuration.md of
https://github.com/triton-inference-server/server): by default no query waits for another.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import get_args

from edgepack.base import statistics
from edgepack.bundle.manifest import ManifestVariant
from edgepack.errors import UsageError, suggest_nearest
from edgepack.records.run import ProcessRun, Scenario, list_latencies_ns

SAMPLES_PER_QUERY = 8
NAMES: tuple[str, ...] = get_args(Scenario.model_fields["name"].annotation)
NS_PER_MS = 1e6


def make_scenario(
    name: str = "single-stream",
    *,
    queries_per_s: float | None = None,
    latency_bound_ms: float | None = None,
    samples_per_query: int | None = None,
    max_batch: int | None = None,
    queue_delay_ms: float | None = None,
) -> Scenario:
    """Return the scenario that options describe.

    Raises:
        UsageError: There is no such scenario, an option belongs to another one, or one is missing.
    """
    if name not in NAMES:
        raise UsageError(
            f"there is no scenario {name!r}", hint=suggest_nearest(name, NAMES), where="--scenario"
        )
    owned: list[tuple[str, float | None, tuple[str, ...]]] = [
        ("--qps", queries_per_s, ("server",)),
        ("--latency-bound-ms", latency_bound_ms, ("server",)),
        ("--samples-per-query", samples_per_query, ("multi-stream",)),
        ("--max-batch", max_batch, ("server", "offline")),
        ("--queue-delay-ms", queue_delay_ms, ("server",)),
    ]
    for option, value, owners in owned:
        if value is not None:
            _require_fitting(option, value, owners, name)
    if queue_delay_ms is not None and (max_batch or 1) == 1:
        raise UsageError(
            "--queue-delay-ms is how long queries wait to be joined, and none are",
            hint="add --max-batch 8, or leave it out",
        )
    missing = [option for option, value, owners in owned[:2] if name in owners and value is None]
    if missing:
        raise UsageError(
            f"the scenario server needs {' and '.join(missing)}",
            hint="such as --scenario server --qps 50 --latency-bound-ms 20",
        )
    if name == "multi-stream":
        samples_per_query = samples_per_query or SAMPLES_PER_QUERY
    asked = {
        "name": name,
        "samples_per_query": samples_per_query or 1,
        "queries_per_s": queries_per_s,
        "latency_bound_ms": latency_bound_ms,
        "max_batch": max_batch or 1,
        "queue_delay_ms": queue_delay_ms or 0.0,
    }
    return Scenario.model_validate(asked)


def _require_fitting(option: str, value: float, owners: tuple[str, ...], name: str) -> None:
    if name not in owners:
        # It also bounds the batches of a sweep, if there are some.
        batches = ", or batches (--batch 1 --batch 4)" if option == "--latency-bound-ms" else ""
        raise UsageError(
            f"{option} belongs to the scenario {' or '.join(owners)}, and this one is {name}",
            hint=f"add --scenario {owners[0]}{batches}, or leave {option} out",
        )
    if not 0 < value < math.inf:
        raise UsageError(f"{option} is {value:g}", hint="give a number above 0")


def set_threads(scenario: Scenario, cpu_count: int, variant: ManifestVariant) -> Scenario:
    """Return the scenario with as many inferences at once as fill the processor's cores.

    Each takes the threads of the variant's session; one that takes a thread per core is run alone.
    """
    each = variant.session.intra_op_num_threads or cpu_count
    threads = 1 if scenario.name == "single-stream" else max(1, cpu_count // each)
    return scenario.model_copy(update={"threads": threads})


def make_harness_arguments(scenario: Scenario) -> list[str]:
    """Return the harness's arguments: none for a single stream."""
    if scenario.name == "single-stream":
        return []
    arguments = [f"--scenario={scenario.name}", f"--threads={scenario.threads}"]
    if scenario.name == "multi-stream":
        arguments.append(f"--samples-per-query={scenario.samples_per_query}")
    if scenario.queries_per_s is not None:
        arguments.append(f"--qps={scenario.queries_per_s!r}")
    if scenario.max_batch > 1:
        arguments.append(f"--max-batch={scenario.max_batch}")
    if scenario.queue_delay_ms:
        arguments.append(f"--queue-delay-ms={scenario.queue_delay_ms!r}")
    return arguments


def format_command_options(scenario: Scenario) -> list[str]:
    """Return the options of ``edgepack bench`` that ask for the scenario."""
    if scenario.name == "single-stream":
        return []
    options = ["--scenario", scenario.name]
    if scenario.name == "multi-stream":
        options += ["--samples-per-query", str(scenario.samples_per_query)]
    if scenario.name == "server":
        options += ["--qps", f"{scenario.queries_per_s:g}"]
        options += ["--latency-bound-ms", f"{scenario.latency_bound_ms:g}"]
    if scenario.max_batch > 1:
        options += ["--max-batch", str(scenario.max_batch)]
    if scenario.queue_delay_ms:
        options += ["--queue-delay-ms", f"{scenario.queue_delay_ms:g}"]
    return options


def list_scenario_reasons(scenario: Scenario, runs: Sequence[ProcessRun]) -> Iterator[str]:
    """Yield why the runs do not show that the scenario's bound is kept, a sentence each."""
    if scenario.latency_bound_ms is None:
        return
    latencies_ns = list_latencies_ns(runs)
    if len(latencies_ns) < statistics.MIN_SAMPLES_P99:
        yield (
            f"{len(latencies_ns)} queries were made, and their p99 needs"
            f" {statistics.MIN_SAMPLES_P99}"
        )
        return
    p99_ms = statistics.percentile(latencies_ns, 99) / NS_PER_MS
    if p99_ms > scenario.latency_bound_ms:
        yield (
            f"p99 is {p99_ms:.4g} ms at {scenario.queries_per_s:g} queries/s, and the bound is"
            f" {scenario.latency_bound_ms:g} ms"
        )
