"""Checks whether int8 is faster than fp32 on this machine: a short test, not a benchmark.

The result depends on the machine and its load, so it does not go into a bundle; the machine's cache
keeps it where the times show which of the two is slower.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path

from edgepack.backends.sessions import make_host_config
from edgepack.base.machine import find_architecture, read_cpu_flags
from edgepack.base.processes import Workers
from edgepack.base.statistics import median
from edgepack.builder.cache import Artifact, StepCache, hash_code
from edgepack.builder.execution import Execution
from edgepack.builder.judging import Verdict, is_quantized
from edgepack.builder.plan import Plan, PlannedVariant
from edgepack.bundle.unused import Unused
from edgepack.model.files import MODEL
from edgepack.project.profile import DeviceKind
from edgepack.records.other_work import explain_work
from edgepack.records.run import OtherWork

_KEPT = "latency.json"
_BUDGET_S = 1.2
_MOST_RUNS = 100
_SLOWER = 1.05
_LEAST_BYTES = 100_000
"""Smaller models are mostly graph, whose size does not matter."""
_TURNS = (0, 1, 1, 0)
"""The order of int8 and fp32: A B B A, so that a machine that gets slower affects both equally."""


@dataclass(frozen=True)
class LatencyComparison:
    """How long two models took on this machine, run alternately."""

    int8_ms: float
    """Median of all runs."""
    fp32_ms: float
    runs: int
    """Of each model."""
    inconclusive: str = ""
    """Why the times do not show which is slower; empty if they do."""

    @property
    def ratio(self) -> float:
        """The time of int8 as a multiple of that of fp32: above 1, int8 is slower."""
        return self.int8_ms / self.fp32_ms

    @property
    def int8_took_longer(self) -> bool:
        """Whether int8 took at least 5 % longer; this test cannot detect less."""
        return self.ratio >= _SLOWER


@dataclass(frozen=True)
class SlowerVariant:
    """An int8 variant that took longer than fp32 on this machine, which is of the target's kind.

    ``measured.inconclusive`` says whether it is really slower.
    """

    target: str
    variant: str
    measured: LatencyComparison


def compare_latency(
    int8: Path,
    fp32: Path,
    samples: Path | None = None,
    config: Mapping[str, str] | None = None,
) -> LatencyComparison:
    """Time two models that take the same inputs, in one worker process, in the order A B B A.

    It takes about 1.2 s besides loading, longer only where eight runs do.

    Args:
        int8: A model file.
        fp32: The model file to compare it with.
        samples: A sample set, of which the first sample is used; else seeded random inputs.
        config: Session config entries for both.

    Raises:
        ModelError: One of the two does not load or run.
        ToolError: The worker process died.
    """
    with Workers(1) as workers:
        turns_s, taken = workers.call(_time_in_turns, int8, fp32, samples, dict(config or {}))
    return judge_turns(turns_s, taken)


def judge_turns(
    turns_s: Sequence[Sequence[float]], other_work: Mapping[str, object]
) -> LatencyComparison:
    """Return the comparison of two models from their turns.

    Args:
        turns_s: The seconds of every run, of a turn of int8, two of fp32 and another of int8.
        other_work: How much of the processor others used meanwhile, as a harness reports it: an
            :class:`~edgepack.records.run.OtherWork`, or why it is not known.
    """
    int8_s, fp32_s = ([*turns_s[a], *turns_s[b]] for a, b in ((0, 3), (1, 2)))
    medians_ms = [1e3 * median(turn) for turn in turns_s]
    why = ""
    if "cores" in other_work:
        work = OtherWork.model_validate(other_work)
        why = explain_work(work, threads=work.cores)
    ours, theirs = (medians_ms[0], medians_ms[3]), medians_ms[1:3]
    if not why and min(ours) <= max(theirs) and min(theirs) <= max(ours):
        said = ", ".join(f"{each:.3f}" for each in medians_ms)
        why = f"turns of one model differ as much as the two do: {said} ms (int8, fp32, fp32, int8)"
    return LatencyComparison(1e3 * median(int8_s), 1e3 * median(fp32_s), len(int8_s), why)


def list_slower_variants(
    plan: Plan, judged: Sequence[Verdict], execution: Execution, cache: StepCache
) -> Iterator[SlowerVariant]:
    """Yield the shipped int8 and int4 variants that took longer than fp32 on this machine.

    Only variants for a CPU like this machine's are measured, and only those made from a float
    model; models that targets share, once. What an earlier build found on this machine is taken
    from the cache.
    """
    measured: dict[tuple[str, str, str], LatencyComparison] = {}
    for planned, verdict in zip(plan.bundles, judged, strict=True):
        for variant, _ in verdict.shipped:
            if not _is_for_this_machine(variant, planned.profile.device):
                continue
            int8, fp32 = (execution.artifacts[step] for step in (variant.model, variant.reference))
            config = make_host_config(variant.variant)
            both = int8.digest, fp32.digest, json.dumps(config, sort_keys=True)
            if both not in measured:
                samples = _find_samples(plan, variant, execution)
                measured[both] = find_comparison(int8, fp32, samples, config, cache)
            if measured[both].int8_took_longer:
                yield SlowerVariant(verdict.target, variant.variant.id, measured[both])


def find_comparison(
    int8: Artifact,
    fp32: Artifact,
    samples: Artifact | None,
    config: Mapping[str, str],
    cache: StepCache,
) -> LatencyComparison:
    """Return how long two models take here, from the cache if an earlier build could tell.

    Raises:
        EdgepackError: As :func:`compare_latency`.
    """
    machine = (platform.node(), os.cpu_count(), sorted(read_cpu_flags()))
    mine = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    threads = (os.environ.get("EDGEPACK_THREADS", ""), mine)
    given = (int8.digest, fp32.digest, samples and samples.digest, sorted(config.items()))
    what = json.dumps(["latency", hash_code(), version("onnxruntime"), machine, threads, given])
    key = hashlib.sha256(what.encode()).hexdigest()
    if kept := cache.find(key):
        kept.require_whole()
        return LatencyComparison(**json.loads((kept.path / _KEPT).read_text(encoding="utf-8")))
    feed = samples.path if samples else None
    found = compare_latency(int8.path / MODEL, fp32.path / MODEL, feed, config)
    if not found.inconclusive:
        text = json.dumps(asdict(found))
        cache.keep(key, lambda out: (out / _KEPT).write_text(text, encoding="utf-8"))
    return found


def drop_slower(verdict: Verdict, slower: Sequence[SlowerVariant], execution: Execution) -> Verdict:
    """Return a verdict without int8 that nobody asked for, is slower than fp32, and no smaller."""
    unused = [*verdict.unused]
    times = {each.variant: each.measured for each in slower if each.target == verdict.target}
    in_float = any(not is_quantized(variant) for variant, _ in verdict.shipped)
    shipped = []
    for entry in verdict.shipped:
        variant = entry[0]
        found, size, fp32 = times.get(variant.variant.id), *_count_model_bytes(variant, execution)
        keeps = variant.named or not in_float or size < max(fp32, _LEAST_BYTES)
        if found is None or found.inconclusive or keeps:
            shipped.append(entry)
            continue
        reason = (
            f"it is not smaller than fp32 ({size / 1e6:.2f} against {fp32 / 1e6:.2f} MB), and"
            f" slower on this computer ({found.int8_ms:.3f} against {found.fp32_ms:.3f} ms);"
            " --variant names it all the same"
        )
        unused.append(Unused(variant=variant.variant.id, stage="left out", reason=reason))
    return replace(verdict, shipped=tuple(shipped), unused=tuple(unused))


def _count_model_bytes(variant: PlannedVariant, execution: Execution) -> tuple[int, int]:
    """Return the bytes of a variant's model, with its weights, and of fp32's."""
    folders = (execution.artifacts[step].path for step in (variant.model, variant.reference))
    size, fp32 = (sum(f.stat().st_size for f in folder.glob("model.*")) for folder in folders)
    return size, fp32


def _is_for_this_machine(planned: PlannedVariant, device: DeviceKind) -> bool:
    variant = planned.variant
    return (
        variant.backend == "cpu"
        and not planned.carried
        and is_quantized(planned)
        and device.arch == find_architecture()
        and set(variant.requires.cpu) <= read_cpu_flags()
    )


def _find_samples(plan: Plan, planned: PlannedVariant, execution: Execution) -> Artifact | None:
    """Return the samples from which the goldens are made."""
    goldens = next(step for step in plan.steps if step.id == planned.goldens)
    samples = goldens.inputs.get("samples")
    return execution.artifacts[samples] if samples else None


def _time_in_turns(
    int8: Path, fp32: Path, samples: Path | None, config: dict[str, str]
) -> tuple[list[list[float]], dict[str, object]]:
    """Return the seconds of every run of each turn, and how much of the processor others used.

    Called in a worker.
    """
    from edgepack.model.running import make_session, run_session
    from edgepack.ondevice.harness.edgepack_other_work import OtherWork
    from edgepack.steps.comparing import make_probe_inputs

    feed = next(make_probe_inputs(fp32, samples, 1))
    sessions = [make_session(model, config=config, as_on_device=True) for model in (int8, fp32)]

    def run(which: int, count: int) -> list[float]:
        # The first run of a turn meets cold caches, and the other session's threads still spinning.
        return [_time_call(lambda: run_session(sessions[which], feed)) for _ in range(count + 1)][
            1:
        ]

    once = sum(run(0, 1) + run(1, 1))
    count = max(1, min(_MOST_RUNS, int(_BUDGET_S / (2 * once)) - 1))
    others = OtherWork()
    turns_s = [run(which, count) for which in _TURNS]
    return turns_s, others.measure()


def _time_call(call: Callable[[], object]) -> float:
    before = time.perf_counter()
    call()
    return time.perf_counter() - before
