"""Checks which of two models is faster on this machine: a short test, not a benchmark.

These are int8 and fp32, and a model with fused attention and the same without.

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
from edgepack.builder.plan import Plan, PlannedVariant, SourceFile
from edgepack.bundle.unused import Unused
from edgepack.model.files import MODEL
from edgepack.project.profile import DeviceKind
from edgepack.records.other_work import explain_work
from edgepack.records.run import OtherWork

_KEPT = "latency.json"
_BUDGET_S = 1.2
_MOST_RUNS = 100
_CLEARLY = 1.05
"""The ratio of two times from which on this test can tell them apart."""
_LEAST_BYTES = 100_000
"""Smaller models are mostly graph, whose size does not matter."""
_TURNS = (0, 1, 1, 0)
"""The order of the two models: A B B A, so that a machine that gets slower affects both equally."""


@dataclass(frozen=True)
class LatencyComparison:
    """How long two models took on this machine, run alternately."""

    variant_ms: float
    """Median of all runs of the variant's model."""
    other_ms: float
    """The same of the model that it is compared with."""
    runs: int
    """Of each model."""
    inconclusive: str = ""
    """Why the times do not show which is slower; empty if they do."""

    @property
    def ratio(self) -> float:
        """The time of the variant as a multiple of the other's: above 1, the variant is slower."""
        return self.variant_ms / self.other_ms

    @property
    def took_longer(self) -> bool:
        """Whether the variant took at least 5 % longer; this test cannot detect less."""
        return self.ratio >= _CLEARLY

    @property
    def is_faster(self) -> bool:
        """Whether the variant is shown to be at least 5 % faster."""
        return not self.inconclusive and self.ratio <= 1 / _CLEARLY


@dataclass(frozen=True)
class SlowerVariant:
    """A variant that is not worth its place on this machine, which is of the target's kind.

    int8 that took longer than fp32, where ``measured.inconclusive`` says whether it is really
    slower; or fused attention that is not shown to be faster than the model without.
    """

    target: str
    variant: str
    measured: LatencyComparison
    other: str = "fp32"
    """What it was compared with."""


def compare_latency(
    model: Path,
    other: Path,
    samples: Path | None = None,
    config: Mapping[str, str] | None = None,
    library: Path | None = None,
) -> LatencyComparison:
    """Time two models that take the same inputs, in one worker process, in the order A B B A.

    It takes about 1.2 s besides loading, longer only where eight runs do.

    Args:
        model: A model file.
        other: The model file to compare it with.
        samples: A sample set, of which the first sample is used; else seeded random inputs.
        config: Session config entries for both.
        library: Of their custom operators, where they have some.

    Raises:
        ModelError: One of the two does not load or run.
        ToolError: The worker process died.
    """
    with Workers(1) as workers:
        turns_s, taken = workers.call(
            _time_in_turns, (model, other), samples, dict(config or {}), library
        )
    return judge_turns(turns_s, taken)


def judge_turns(
    turns_s: Sequence[Sequence[float]], other_work: Mapping[str, object]
) -> LatencyComparison:
    """Return the comparison of two models from their turns.

    Args:
        turns_s: The seconds of every run, of a turn of one, two of the other and one of the first.
        other_work: How much of the processor others used meanwhile, as a harness reports it: an
            :class:`~edgepack.records.run.OtherWork`, or why it is not known.
    """
    ours_s, other_s = ([*turns_s[a], *turns_s[b]] for a, b in ((0, 3), (1, 2)))
    medians_ms = [1e3 * median(turn) for turn in turns_s]
    why = ""
    if "cores" in other_work:
        work = OtherWork.model_validate(other_work)
        why = explain_work(work, threads=work.cores)
    ours, theirs = (medians_ms[0], medians_ms[3]), medians_ms[1:3]
    if not why and min(ours) <= max(theirs) and min(theirs) <= max(ours):
        said = ", ".join(f"{each:.3f}" for each in medians_ms)
        why = f"turns of one model differ as much as the two do: {said} ms (it, other, other, it)"
    return LatencyComparison(1e3 * median(ours_s), 1e3 * median(other_s), len(ours_s), why)


def list_slower_variants(
    plan: Plan, judged: Sequence[Verdict], execution: Execution, cache: StepCache
) -> Iterator[SlowerVariant]:
    """Yield the shipped variants that are not worth their place on this machine.

    Only variants for a CPU like this machine's are measured, and only those made from a float
    model; models that targets share, once. What an earlier build found on this machine is taken
    from the cache.
    """
    measured: dict[tuple[str, str, str], LatencyComparison] = {}
    for planned, verdict in zip(plan.bundles, judged, strict=True):
        for variant, _ in verdict.shipped:
            other = _find_other(variant, execution)
            if other is None or not _is_for_this_machine(variant, planned.profile.device):
                continue
            ours, theirs = execution.artifacts[variant.model], execution.artifacts[other[0]]
            config = make_host_config(variant.variant)
            both = ours.digest, theirs.digest, json.dumps(config, sort_keys=True)
            if both not in measured:
                samples = _find_samples(plan, variant, execution)
                measured[both] = find_comparison(ours, theirs, samples, config, cache, plan.library)
            found = measured[both]
            if found.took_longer or (variant.unfused and not found.is_faster):
                yield SlowerVariant(verdict.target, variant.variant.id, found, other[1])


def _find_other(planned: PlannedVariant, execution: Execution) -> tuple[str, str] | None:
    """Return the step of the model that a variant has to be faster than, and what that is."""
    if planned.unfused and planned.unfused in execution.artifacts:
        return planned.unfused, "the model without fused attention"
    return (planned.reference, "fp32") if is_quantized(planned) else None


def find_comparison(
    model: Artifact,
    other: Artifact,
    samples: Artifact | None,
    config: Mapping[str, str],
    cache: StepCache,
    library: SourceFile | None = None,
) -> LatencyComparison:
    """Return how long two models take here, from the cache if an earlier build could tell.

    Raises:
        EdgepackError: As :func:`compare_latency`.
    """
    machine = (platform.node(), os.cpu_count(), sorted(read_cpu_flags()))
    mine = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    threads = (os.environ.get("EDGEPACK_THREADS", ""), mine)
    given = [model.digest, other.digest, samples and samples.digest, sorted(config.items())]
    if library:
        given.append(library.digest)
    what = json.dumps(["latency", hash_code(), version("onnxruntime"), machine, threads, given])
    key = hashlib.sha256(what.encode()).hexdigest()
    if kept := cache.find(key):
        kept.require_whole()
        return LatencyComparison(**json.loads((kept.path / _KEPT).read_text(encoding="utf-8")))
    feed = samples.path if samples else None
    models = model.path / MODEL, other.path / MODEL
    found = compare_latency(*models, feed, config, library.path if library else None)
    if not found.inconclusive:
        text = json.dumps(asdict(found))
        cache.keep(key, lambda out: (out / _KEPT).write_text(text, encoding="utf-8"))
    return found


def drop_slower(verdict: Verdict, slower: Sequence[SlowerVariant], execution: Execution) -> Verdict:
    """Return a verdict without variants that nobody asked for and others are better than.

    These are int8 that is slower than fp32 and no smaller, and fused attention that is not shown to
    be faster. What the bundle has no other float model for stays.
    """
    unused = [*verdict.unused]
    times = {each.variant: each for each in slower if each.target == verdict.target}
    floats = [v.variant.id for v, _ in verdict.shipped if not is_quantized(v) and not v.unfused]
    shipped = []
    for entry in verdict.shipped:
        variant = entry[0]
        found = times.get(variant.variant.id)
        if found is None or variant.named or not floats:
            shipped.append(entry)
        elif reason := _explain_worse(variant, found, execution):
            text = f"{reason}; --variant names it all the same"
            unused.append(Unused(variant=variant.variant.id, stage="left out", reason=text))
        else:
            shipped.append(entry)
    return replace(verdict, shipped=tuple(shipped), unused=tuple(unused))


def _explain_worse(
    variant: PlannedVariant, found: SlowerVariant, execution: Execution
) -> str | None:
    """Return why a float model is better than a variant; None where that is not shown."""
    times = found.measured
    against = f"({times.variant_ms:.3f} against {times.other_ms:.3f} ms)"
    if variant.unfused:
        why = f": {times.inconclusive}" if times.inconclusive else ""
        return f"on this computer it is not clearly faster than {found.other} {against}{why}"
    size, fp32 = _count_model_bytes(variant, execution)
    if times.inconclusive or size < max(fp32, _LEAST_BYTES):
        return None
    return (
        f"it is not smaller than fp32 ({size / 1e6:.2f} against {fp32 / 1e6:.2f} MB), and slower on"
        f" this computer {against}"
    )


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
        and device.arch == find_architecture()
        and set(variant.requires.cpu) <= read_cpu_flags()
    )


def _find_samples(plan: Plan, planned: PlannedVariant, execution: Execution) -> Artifact | None:
    """Return the samples from which the goldens are made."""
    goldens = next(step for step in plan.steps if step.id == planned.goldens)
    samples = goldens.inputs.get("samples")
    return execution.artifacts[samples] if samples else None


def _time_in_turns(
    models: tuple[Path, Path],
    samples: Path | None,
    config: dict[str, str],
    library: Path | None,
) -> tuple[list[list[float]], dict[str, object]]:
    """Return the seconds of every run of each turn, and how much of the processor others used.

    Called in a worker.
    """
    from edgepack.model.custom_ops import registered
    from edgepack.model.running import make_session, run_session
    from edgepack.ondevice.harness.edgepack_other_work import OtherWork
    from edgepack.steps.comparing import make_probe_inputs

    feed = next(make_probe_inputs(models[1], samples, 1))
    with registered(library):
        sessions = [make_session(each, config=config, as_on_device=True) for each in models]

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
