"""Executes a plan: each step comes from the cache or runs in a worker process, in parallel."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from graphlib import TopologicalSorter
from pathlib import Path
from threading import Event, Lock

from edgepack.base.machine import read_available_memory
from edgepack.base.processes import Workers
from edgepack.base.progress import Progress, SilentTask, Task, Work
from edgepack.builder.cache import Artifact, StepCache, make_step_key
from edgepack.builder.cluster import Cluster, Told
from edgepack.builder.doing import Doing, is_long
from edgepack.builder.memory import Subject, estimate_bytes, estimate_step_bytes, format_memory
from edgepack.builder.plan import Plan, PlannedStep
from edgepack.builder.shared import using
from edgepack.errors import EdgepackError, ModelError, SamplesError, StepError
from edgepack.model.reading import list_external_files, read_outline
from edgepack.model.workload import ActivationSizes, find_activation_sizes
from edgepack.samples.sample_set import SampleSet
from edgepack.steps.base import Notes, narrow_step, run_step

_UNKNOWN = ActivationSizes(0, 0)
_LOOK_S = 0.5
"""How often a build on a cluster looks whether all are given up, in seconds."""


@dataclass(frozen=True)
class Execution:
    """The outputs of a plan's steps, and the failures."""

    artifacts: Mapping[str, Artifact]
    """By step id."""
    from_cache: frozenset[str]
    """Ids of the steps whose output was already there before this build."""
    failed: Mapping[str, EdgepackError]
    """Steps that failed or that need a failed one, while some variant does not need them."""


def execute(
    plan: Plan,
    *,
    cache: StepCache,
    jobs: int,
    progress: Progress,
    subject: Subject | None = None,
    cluster: Cluster | None = None,
) -> Execution:
    """Run every step of a plan that is not in the cache.

    As many run at once as ``jobs`` says and the machine's free memory allows; with a ``cluster``
    its workers do what they can take. If a step refuses its
    model, only the variants that need it are lost. Any other error, or one in a step that all
    variants need, ends the build: running steps are killed, and no partial output stays. With a
    ``subject`` it reports how much memory is needed, before the first step that has to run.

    Raises:
        EdgepackError: Whatever a step raised.
    """
    with ExitStack() as stack:
        workers = stack.enter_context(Workers(jobs))
        threads = stack.enter_context(ThreadPoolExecutor(jobs))
        away = stack.enter_context(ThreadPoolExecutor(2 * cluster.slots)) if cluster else threads
        stack.enter_context(using(cache.shared, progress))
        run = _Run(plan, cache, workers, progress, jobs, subject, cluster)
        return run.run(threads, away)


@dataclass(frozen=True)
class _Ready:
    """A step whose inputs are there, or have failed."""

    planned: PlannedStep
    """Narrowed to what its inputs need."""
    key: str = ""
    """In the cache; empty where an input failed."""
    model_bytes: int = 0
    """Of the models that it takes."""
    problem: EdgepackError | None = None
    """Why it could not be narrowed."""


@dataclass
class _Run:
    plan: Plan
    cache: StepCache
    workers: Workers
    progress: Progress
    jobs: int
    subject: Subject | None
    """None once its memory was reported."""
    cluster: Cluster | None = None
    activations: ActivationSizes = _UNKNOWN
    artifacts: dict[str, Artifact] = field(default_factory=dict)
    from_cache: set[str] = field(default_factory=set)
    made: set[str] = field(default_factory=set)
    """Cache keys of this run's own outputs; steps that turn out to be equal share them."""
    failed: dict[str, EdgepackError] = field(default_factory=dict)
    task: Task = field(default_factory=SilentTask)
    begun: set[str] = field(default_factory=set)
    """Ids of the steps that were begun here."""
    stopping: Event = field(default_factory=Event)
    """Set when the build is given up."""
    telling: Lock = field(default_factory=Lock)
    beginning: Lock = field(default_factory=Lock)

    def __post_init__(self) -> None:
        self.sources = {source.id: source for source in self.plan.sources}
        self.steps = {step.id: step for step in self.plan.steps}
        self.needed_by_all = self.plan.needed_by_all
        self.doing = Doing(self.plan)
        self.memory_bytes = read_available_memory()
        self.running: dict[Future[Artifact], tuple[_Ready, int]] = {}

    def run(self, threads: ThreadPoolExecutor, away: ThreadPoolExecutor) -> Execution:
        order = TopologicalSorter(
            {
                step.id: [origin for origin in step.inputs.values() if origin in self.steps]
                for step in self.plan.steps
            }
        )
        order.prepare()
        waiting: list[_Ready] = []
        kinds = Counter(s.step.name for s in self.plan.steps if is_long(s.step.name))
        try:
            work = Work("build", total=len(self.steps), kinds=kinds)
            with self.progress.start_task(work) as self.task:
                while order.is_active():
                    self._require_going()
                    waiting += [self._find_ready(self.steps[each]) for each in order.get_ready()]
                    for ready in self._begin_steps(waiting, threads, away):
                        waiting.remove(ready)
                    for step_id in self._wait_for_ended():
                        order.done(step_id)
        except BaseException:
            self.stopping.set()
            for future in self.running:
                future.cancel()
            self.workers.kill()
            if self.cluster:
                self.cluster.cancel(self.stopping)
            raise
        finally:
            if self.cluster:
                self.cluster.release(self.stopping)
        return Execution(self.artifacts, frozenset(self.from_cache), self.failed)

    def _require_going(self) -> None:
        """Check that the builds of this cluster are not given up.

        Raises:
            ToolError: They are.
        """
        if self.cluster:
            self.cluster.require_going()

    def _find_ready(self, planned: PlannedStep) -> _Ready:
        if any(origin in self.failed for origin in planned.inputs.values()):
            return _Ready(planned)
        paths = {name: self._find_path(origin) for name, origin in planned.inputs.items()}
        digests = {name: self._find_digest(origin) for name, origin in planned.inputs.items()}
        if self.plan.library:
            digests[self.plan.library.id] = self.plan.library.digest
        try:
            narrowed = replace(planned, step=narrow_step(planned.step, paths))
        except (StepError, ModelError) as error:
            return _Ready(planned, problem=error)
        models = sum(map(_count_model_bytes, paths.values()))
        return _Ready(narrowed, make_step_key(narrowed.step, digests), models)

    def _goes_away(self, ready: _Ready, needed: int) -> bool:
        """Return whether a worker of the cluster is to do a step, which is all that it can take.

        Files of the user's, and their code, stay on this machine.
        """
        planned = ready.planned
        if not self.cluster or not ready.key or not planned.step.cacheable or self.plan.library:
            return False
        if not all(origin in self.artifacts for origin in planned.inputs.values()):
            return False
        size = sum(self.artifacts[origin].count_bytes() for origin in planned.inputs.values())
        return self.cluster.takes(planned.step, needed, size)

    def _begin_steps(
        self, waiting: Sequence[_Ready], threads: ThreadPoolExecutor, away: ThreadPoolExecutor
    ) -> list[_Ready]:
        """Start the steps that fit into memory beside those that run here; one always does.

        A step that turns out to be equal to one that runs waits for it, and so runs once.
        """
        begun = []
        for ready in waiting:
            name = ready.planned.step.name
            needed = estimate_step_bytes(name, ready.model_bytes, self.activations)
            if ready.key and ready.key in {each.key for each, _ in self.running.values()}:
                continue
            if self._goes_away(ready, needed):
                future = away.submit(self._make_artifact, ready, needed, away=True)
                self.running[future] = (ready, 0)
                begun.append(ready)
                continue
            used = sum(size for _, size in self.running.values())
            if used and used + needed > self.memory_bytes:
                continue
            future = threads.submit(self._make_artifact, ready, needed, away=False)
            self.running[future] = (ready, needed)
            begun.append(ready)
        return begun

    def _wait_for_ended(self) -> list[str]:
        """Wait until steps have ended, and return them."""
        done: set[Future[Artifact]] = set()
        while not done:
            self._require_going()
            timeout = _LOOK_S if self.cluster else None
            done, _ = wait(self.running, timeout, return_when=FIRST_COMPLETED)
        ended = []
        for future in done:
            step_id = self.running.pop(future)[0].planned.id
            try:
                self.artifacts[step_id] = future.result()
            except (StepError, ModelError) as error:
                if isinstance(error, SamplesError) or step_id in self.needed_by_all:
                    raise
                self.failed[step_id] = error
            self._tell_end(self.steps[step_id])
            ended.append(step_id)
        return ended

    def _make_artifact(self, ready: _Ready, needed: int, *, away: bool) -> Artifact:
        """Return a step's output, which takes so much memory; ``away`` a worker makes it."""
        planned, key = ready.planned, ready.key
        for origin in planned.inputs.values():
            if origin in self.failed:
                raise self.failed[origin]
        if found := self._find_made(ready):
            return found
        for origin in planned.inputs.values():
            if origin in self.artifacts:
                self.artifacts[origin].require_whole()
        if ready.problem:
            raise ready.problem
        if not self.cluster:
            return self._make(ready, needed, away=away)
        with self.cluster.once(key):
            return self._find_made(ready) or self._make(ready, needed, away=away)

    def _make(self, ready: _Ready, needed: int, *, away: bool) -> Artifact:
        planned, key = ready.planned, ready.key
        paths = {name: self._find_path(origin) for name, origin in planned.inputs.items()}
        made = self._make_away(ready, needed) if away else None
        artifact = made or self.cache.keep(
            key,
            lambda out: self._call_worker(planned, paths, out, needed),
            by_content=not planned.step.cacheable,
        )
        self.made.add(key)
        if planned.step.cacheable:
            self.cache.share(key, artifact)
        return artifact

    def _find_made(self, ready: _Ready) -> Artifact | None:
        """Return the output of a step that was made before, here or in the team."""
        planned, key = ready.planned, ready.key
        if not planned.step.cacheable or not key:
            return None
        found = self.cache.find(key) or self.cache.fetch(key)
        if found and key not in self.made:
            self.from_cache.add(planned.id)
        return found

    def _make_away(self, ready: _Ready, needed: int) -> Artifact | None:
        """Have the cluster make a step's output; None if that is too large to travel."""
        planned, cluster = ready.planned, self.cluster
        if cluster is None:
            raise TypeError("without a cluster nothing goes away")
        self._tell_memory()
        inputs = {name: self.artifacts[origin] for name, origin in planned.inputs.items()}
        samples = _count_samples(planned, {n: each.path for n, each in inputs.items()})
        told = Told(
            self.stopping,
            lambda worker: self._begin(planned, samples, f" on {worker}"),
            lambda *far: self.task.report(planned.id, *far),
            lambda line: self._note(planned, line),
        )
        with self._placing(planned):
            return cluster.make(planned.step, ready.key, inputs, needed, told)

    def _call_worker(
        self, planned: PlannedStep, paths: Mapping[str, Path], out: Path, needed: int
    ) -> Notes:
        self._tell_memory()
        room = self.cluster.room if self.cluster else None
        with room.take(needed, self.stopping) if room else nullcontext(), self._placing(planned):
            self._begin(planned, _count_samples(planned, paths))
            return self.workers.call(
                run_step,
                planned.step,
                paths,
                out,
                self.plan.library_path,
                on_progress=lambda *far: self.task.report(planned.id, *far),
                on_note=lambda line: self._note(planned, line),
            )

    def _begin(self, planned: PlannedStep, samples: int | None, where: str = "") -> None:
        with self.beginning:
            if planned.id in self.begun:
                return
            self.begun.add(planned.id)
        doing = self.doing.describe(planned, samples) + where
        self.task.begin(planned.id, doing, planned.step.name)

    def _note(self, planned: PlannedStep, line: str) -> None:
        self.progress.note(f"{self.doing.name_variant(planned)}{line}")

    @contextmanager
    def _placing(self, planned: PlannedStep) -> Iterator[None]:
        """Have errors say what was being done."""
        try:
            yield
        except EdgepackError as error:
            doing = self.doing.describe(planned)
            error.where = f"{doing}: {error.where}" if error.where else doing
            raise

    def _tell_memory(self) -> None:
        """Report once how much memory is needed, computed in an existing worker."""
        with self.telling:
            subject, self.subject = self.subject, None
            if subject is None:
                return
            self.activations = self.workers.call(find_activation_sizes, subject.path, subject.sizes)
            needed = estimate_bytes(subject, self.activations, self.jobs)
            self.progress.note(format_memory(needed))

    def _tell_end(self, planned: PlannedStep) -> None:
        if planned.id in self.begun:
            self.task(planned.id)
            return
        text = self.doing.describe(planned)
        if planned.id in self.failed:
            self.task(f"{text}: not done, because what it needs failed")
        else:
            self.task(text, kind=planned.step.name)

    def _find_digest(self, origin: str) -> str:
        if origin in self.sources:
            return self.sources[origin].digest
        return self.artifacts[origin].digest

    def _find_path(self, origin: str) -> Path:
        if origin in self.sources:
            return self.sources[origin].path
        return self.artifacts[origin].path


def _count_samples(planned: PlannedStep, paths: Mapping[str, Path]) -> int | None:
    """Return on how many samples a step runs that is long because of them."""
    counted = planned.step.name in ("calibration", "evaluation")
    return len(SampleSet.read(paths["samples"])) if counted else None


def _count_model_bytes(path: Path) -> int:
    """Return the size of the models in a step's folder, or of a source file with its weights."""
    if path.is_dir():
        return sum(file.stat().st_size for file in path.glob("model.*"))
    if path.suffix != ".onnx":
        return path.stat().st_size
    others = [path.parent / name for name in list_external_files(read_outline(path))]
    return sum(file.stat().st_size for file in (path, *others))
