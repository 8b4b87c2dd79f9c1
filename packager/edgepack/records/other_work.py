"""Whether others took so much of a processor that a time is not the model's alone. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from edgepack.backends.base import count_one_core
from edgepack.backends.registry import BACKENDS
from edgepack.base.schema import NotMeasured
from edgepack.bundle.manifest import ManifestVariant
from edgepack.records.run import OtherWork, ProcessRun, Scenario

TAKEN_SHARE = 0.05
"""The share of the model's cores from which on other work makes the times unusable. An inference
waits for the slowest of its threads, so that 5 % taken from two cores disturbs up to every tenth
inference, which is what p90 is about. A clock may be low for as much of the time."""
NOTED_SHARE = 0.01
"""The share of the same cores that is noted."""
NOTED_CORES = 0.1
"""What others may use of any cores without being noted: memory, caches and power are shared."""


def count_threads(variant: ManifestVariant, scenario: Scenario, cpu_count: int) -> int:
    """Return on how many cores a variant's inferences run at once.

    Of a backend that is not known here, one thread is taken to drive something else.
    """
    backend = BACKENDS.get(variant.backend)
    cores = backend.cores if backend else count_one_core
    options, session_threads = variant.providers[0].options, variant.session.intra_op_num_threads
    return cores(options, session_threads, cpu_count) * scenario.threads


def compute_taken_share(work: OtherWork, threads: int) -> float:
    """Return which part others took of the cores that this number of threads runs on.

    Work of others on cores that the threads leave free competes with nobody. A host takes cores
    from those who use them.
    """
    wanted = min(threads, work.cores)
    competing = max(0.0, work.other_cores - (work.cores - wanted))
    return min(1.0, (competing + work.stolen_cores) / wanted)


def explain_work(work: OtherWork, threads: int) -> str:
    """Return why a time is not the model's alone; empty if others took too little for that."""
    share = compute_taken_share(work, threads)
    if share < TAKEN_SHARE:
        return ""
    wanted = min(threads, work.cores)
    on = "the core" if wanted == 1 else f"the {wanted} cores"
    waited = ""
    if not isinstance(work.waiting, NotMeasured):
        waited = f"; something waited for a core {work.waiting:.0%} of the time"
    return (
        f"others took {share:.0%} of {on} that the model runs on: other processes used"
        f" {work.other_cores:.2f} of {work.cores}, the host of a virtual machine took"
        f" {work.stolen_cores:.2f}{waited}"
    )


def list_work_notes(runs: Sequence[ProcessRun], threads: int, *, judged: bool) -> list[str]:
    """Return a sentence on how much others used at most, if they used any.

    Where it is ``judged``, work that counts against the runs is not reported again.
    """
    known = [run.other_work for run in runs if isinstance(run.other_work, OtherWork)]
    most = max(
        known, key=lambda work: (compute_taken_share(work, threads), work.other_cores), default=None
    )
    if most is None:
        return []
    share = compute_taken_share(most, threads)
    used = max(work.other_cores for work in known)
    is_reason = judged and share >= TAKEN_SHARE
    if is_reason or (share < NOTED_SHARE and used < NOTED_CORES):
        return []
    text = (
        f"other processes used up to {used:.2f} of {most.cores} cores during a run, and others"
        f" took up to {share:.0%} of those that the model runs on"
    )
    return [text]
