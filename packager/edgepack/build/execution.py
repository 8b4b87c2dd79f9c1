"""Executing a plan: each step from the cache or in a worker process, as parallel as allowed."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import dataclass, field
from graphlib import TopologicalSorter
from pathlib import Path

from edgepack.build.cache import Artifact, StepCache, step_key
from edgepack.plan import Plan, PlannedStep
from edgepack.processes import Workers
from edgepack.progress import Progress
from edgepack.steps import run_step


@dataclass(frozen=True)
class Execution:
    """What came out of a plan."""

    artifacts: Mapping[str, Artifact]
    """By step id."""
    from_cache: frozenset[str]
    """Ids of the steps whose output was already there."""


def execute(plan: Plan, *, cache: StepCache, jobs: int, progress: Progress) -> Execution:
    """Run every step of a plan that the cache does not hold.

    The first error ends the build: steps that are running are killed, none is half-kept.

    Raises:
        EdgepackError: Whatever a step raised.
    """
    with ExitStack() as stack:
        workers = stack.enter_context(Workers(jobs))
        threads = stack.enter_context(ThreadPoolExecutor(jobs))
        return _Run(plan, cache, workers, progress).execute(threads)


@dataclass
class _Run:
    plan: Plan
    cache: StepCache
    workers: Workers
    progress: Progress
    artifacts: dict[str, Artifact] = field(default_factory=dict)
    from_cache: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.sources = {source.id: source for source in self.plan.sources}
        self.steps = {step.id: step for step in self.plan.steps}

    def execute(self, threads: ThreadPoolExecutor) -> Execution:
        order = TopologicalSorter(
            {
                step.id: [origin for origin in step.inputs.values() if origin in self.steps]
                for step in self.plan.steps
            }
        )
        order.prepare()
        running: dict[Future[Artifact], str] = {}
        try:
            with self.progress.task("build", total=len(self.steps)) as advance:
                while order.is_active():
                    for step_id in order.get_ready():
                        running[threads.submit(self._step, self.steps[step_id])] = step_id
                    done, _ = wait(running, return_when=FIRST_COMPLETED)
                    for future in done:
                        step_id = running.pop(future)
                        self.artifacts[step_id] = future.result()
                        order.done(step_id)
                        advance(step_id)
        except BaseException:
            for future in running:
                future.cancel()
            self.workers.kill()
            raise
        return Execution(self.artifacts, frozenset(self.from_cache))

    def _step(self, planned: PlannedStep) -> Artifact:
        digests = {name: self._digest(origin) for name, origin in planned.inputs.items()}
        key = step_key(planned.step, digests)
        if planned.step.cacheable and (found := self.cache.find(key)):
            self.from_cache.add(planned.id)
            return found
        for origin in planned.inputs.values():
            if origin in self.artifacts:
                self.artifacts[origin].require_whole()
        paths = {name: self._path(origin) for name, origin in planned.inputs.items()}
        return self.cache.keep(
            key,
            lambda out: self.workers.call(run_step, planned.step, paths, out),
            by_content=not planned.step.cacheable,
        )

    def _digest(self, origin: str) -> str:
        if origin in self.sources:
            return self.sources[origin].digest
        return self.artifacts[origin].digest

    def _path(self, origin: str) -> Path:
        if origin in self.sources:
            return self.sources[origin].path
        return self.artifacts[origin].path
