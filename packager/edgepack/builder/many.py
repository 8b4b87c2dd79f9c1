"""Builds many projects at once: steps that they share are done once, one's error ends no other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from edgepack.base.progress import Progress, Silent, Task, Work
from edgepack.builder.build import BuildResult, build_loaded
from edgepack.builder.cache import StepCache, open_own_cache, open_temporary_cache
from edgepack.builder.cluster import Cluster, open_cluster
from edgepack.builder.memory import count_default_jobs
from edgepack.builder.planner import SIMULATE_S
from edgepack.builder.room import Room
from edgepack.builder.shared import using
from edgepack.errors import EdgepackError, ToolError, UsageError
from edgepack.project.loading import LoadedProject, find_project
from edgepack.project.pipeline import is_pipeline

_MOST_AT_ONCE = 8
"""Projects that are planned, judged and written at the same time on this machine."""


@dataclass(frozen=True)
class BuiltProject:
    """What came of one of several projects: a result, an error, or both where it is no good."""

    path: Path
    """The project file or model, as it was given."""
    result: BuildResult | None
    error: EdgepackError | None


@dataclass(frozen=True)
class _Wanted:
    """What is built of each project; see :func:`build_projects`."""

    targets: Sequence[str]
    variants: Sequence[str]
    out: Path
    jobs: int | None
    simulate_s: float
    service: bool
    cache: StepCache
    cluster: Cluster | None


def build_projects(  # noqa: PLR0913  (each is one option of the command)
    paths: Sequence[Path],
    *,
    targets: Sequence[str] = (),
    variants: Sequence[str] = (),
    out: Path = Path("dist"),
    jobs: int | None = None,
    use_cache: bool = True,
    simulate_s: float = SIMULATE_S,
    on: str | None = None,
    service: bool = False,
    progress: Progress | None = None,
) -> list[BuiltProject]:
    """Build several projects and return what came of each, in their order.

    Without a cluster one is built after the other, each with all cores. A project's error ends
    its own build alone.

    Args:
        paths: Project files, or models for which there is none.
        targets: Target ids; default: those of each project.
        variants: Only these variants of each target.
        out: The folder that all bundles go to.
        jobs: How many steps run at the same time on this machine, of all projects together.
        use_cache: As for :func:`~edgepack.builder.build.build`.
        simulate_s: As for :func:`~edgepack.builder.build.build`.
        on: The address of a Dask scheduler whose workers do steps.
        service: As for :func:`~edgepack.builder.build.build`.
        progress: Where to report progress; default: nowhere.

    Raises:
        UsageError: Two of them would write the same bundles, or a path is given twice.
        ToolError: The cluster cannot be used.
    """
    progress = progress or Silent()
    loaded = [_load(path) for path in paths]
    _require_different(paths, loaded)
    with ExitStack() as stack:
        cache = open_own_cache() if use_cache else open_temporary_cache(stack)
        cluster = stack.enter_context(open_cluster(on, cache)) if on else None
        wanted = _Wanted(targets, variants, out, jobs, simulate_s, service, cache, cluster)
        stack.enter_context(using(cache.shared, progress))
        task = stack.enter_context(progress.start_task(Work("build", total=len(paths))))
        builds = [
            partial(_build, path, each, wanted, _OneOf(progress, task, str(path)))
            for path, each in zip(paths, loaded, strict=True)
        ]
        if cluster is None:
            return [build() for build in builds]
        cluster.room = Room(jobs or count_default_jobs())
        return _build_at_once(builds, cluster)


def _build_at_once(
    builds: Sequence[Callable[[], BuiltProject]], cluster: Cluster
) -> list[BuiltProject]:
    """Build on a cluster; whatever ends this ends all builds, each at its next step."""
    at_once = min(len(builds), _MOST_AT_ONCE, 2 * cluster.slots)
    with ThreadPoolExecutor(at_once) as threads:
        futures = [threads.submit(build) for build in builds]
        try:
            for future in as_completed(futures):
                future.result()
        except BaseException:
            cluster.stop()
            threads.shutdown(wait=False, cancel_futures=True)
            raise
    return [future.result() for future in futures]


def _load(path: Path) -> LoadedProject | EdgepackError:
    try:
        if path.suffix.lower() not in (".yaml", ".yml"):
            return find_project(path, None)
        if is_pipeline(None, path):
            return UsageError(
                f"{str(path)!r} has several models, and is not built beside others",
                hint=f"build it alone: edgepack build --project {path}",
            )
        return find_project(None, path)
    except EdgepackError as error:
        return error
    except OSError as error:
        return _make_file_error(path, error)


def _make_file_error(path: Path, error: OSError) -> ToolError:
    """Return what this machine refused to one project: the others are built all the same."""
    return ToolError(
        f"{error.strerror or error}: {error.filename or path}",
        hint="check that file or folder, its permissions and those of the folders above it (ls"
        " -ld), and the free space of its disk (df)",
        where=str(path),
    )


def _require_different(
    paths: Sequence[Path], loaded: Sequence[LoadedProject | EdgepackError]
) -> None:
    """Check that no project writes over what another one has written.

    Raises:
        UsageError: Two have one name and version.
    """
    seen: dict[str, Path] = {}
    for path, each in zip(paths, loaded, strict=True):
        if isinstance(each, EdgepackError):
            continue
        name = f"{each.project.name} {each.project.version}"
        if name in seen:
            raise UsageError(
                f"{str(seen[name])!r} and {str(path)!r} are both {name}: their bundles would be the"
                " same folders",
                hint="give one of them another 'name' or 'version', or build them apart (--out)",
            )
        seen[name] = path


def _build(
    path: Path, loaded: LoadedProject | EdgepackError, wanted: _Wanted, progress: _OneOf
) -> BuiltProject:
    if isinstance(loaded, EdgepackError):
        progress.end()
        return BuiltProject(path, None, loaded)
    progress.begin()
    result = None
    try:
        result = build_loaded(
            loaded,
            targets=wanted.targets,
            variants=wanted.variants,
            out=wanted.out,
            cache=wanted.cache,
            jobs=wanted.jobs,
            simulate_s=wanted.simulate_s,
            service=wanted.service,
            progress=progress,
            cluster=wanted.cluster,
        )
        result.require_all()
    except EdgepackError as error:
        return BuiltProject(path, result, error)
    except OSError as error:
        return BuiltProject(path, result, _make_file_error(path, error))
    finally:
        progress.end()
    return BuiltProject(path, result, None)


class _OneOf(Progress):
    """Progress of one project of several: a part of the task of all."""

    def __init__(self, whole: Progress, task: Task, name: str) -> None:
        self._whole, self._task, self._name = whole, task, name

    def begin(self) -> None:
        self._task.begin(self._name)

    def end(self) -> None:
        self._task(self._name)

    @contextmanager
    def start_task(self, work: Work) -> Iterator[Task]:
        """Report how many of the project's steps are done."""
        yield _Steps(self._task, self._name, work.total)

    def show_status(self, text: str) -> None:
        """Ignore what a step is at: many are."""

    def note(self, text: str) -> None:
        """Print one line, with the project's name."""
        self._whole.note(f"{self._name}: {text}")


class _Steps:
    """Steps of one project."""

    def __init__(self, task: Task, name: str, total: int) -> None:
        self._task, self._name, self._total, self._done = task, name, total, 0

    def __call__(self, part: str, *, by: int = 1, kind: str = "", found: str = "") -> None:
        del part, kind, found
        self._done += by
        self._task.report(self._name, self._done, self._total)

    def begin(self, part: str, doing: str = "", kind: str = "") -> None:
        """Ignore it: a line for each step of each project would hide the projects."""

    def report(self, part: str, done: int, total: int, doing: str = "") -> None:
        """Ignore it."""
