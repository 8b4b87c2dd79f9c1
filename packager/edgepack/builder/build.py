"""The phases of a build: inspect, plan, execute, judge, bundle."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from textwrap import indent

from edgepack.apps.aar.archive import write_aar, write_library_aar
from edgepack.apps.aar.pages import PageAnswer, check_pages
from edgepack.apps.aar.toolchain import Toolchain, find_toolchain
from edgepack.apps.library import NAME
from edgepack.apps.npm import require_own_name
from edgepack.backends.targets import choose_targets, read_project_targets
from edgepack.base.processes import Workers
from edgepack.base.progress import Progress, Silent
from edgepack.builder.assembly import BuiltBundle, assemble
from edgepack.builder.cache import StepCache, open_own_cache, open_temporary_cache
from edgepack.builder.cleaning import read_source_facts
from edgepack.builder.cluster import Cluster, open_cluster
from edgepack.builder.custom_ops import find_libraries, find_machine, require_loading
from edgepack.builder.execution import execute
from edgepack.builder.job import Job, JudgedBundle
from edgepack.builder.judging import (
    Verdict,
    judge,
    list_answers,
    list_warnings,
    require_whole,
)
from edgepack.builder.libraries import require_places, write_library
from edgepack.builder.memory import Subject, count_default_jobs
from edgepack.builder.offering import find_named_targets, offer_int8_dynamic
from edgepack.builder.pins import list_older_runtimes
from edgepack.builder.plan import Plan
from edgepack.builder.planner import SIMULATE_S, explain_unsampled, make_plan
from edgepack.builder.service_files import require_linux
from edgepack.builder.sources import open_project
from edgepack.builder.timing import SlowerVariant, drop_slower, list_slower_variants
from edgepack.bundle.unused import Unused
from edgepack.bundle.writing import require_writable_folder
from edgepack.errors import BugError, EdgepackError, LimitError, ModelError, UsageError
from edgepack.model.facts import require_plain_signature
from edgepack.project.limits import Limits
from edgepack.project.loading import LoadedProject, find_project
from edgepack.project.profile import Profile, find_own_profile
from edgepack.project.project import ChangedTarget


@dataclass(frozen=True)
class BuildResult:
    """The result of a build: its bundles, and what was left out of them."""

    bundles: tuple[BuiltBundle, ...]
    unused: Mapping[str, tuple[Unused, ...]]
    """By target, the variants that are not shipped."""
    errors: tuple[EdgepackError, ...]
    """Of those of them that were asked for, each with target and variant as its place: a
    :class:`~edgepack.errors.LimitError` of one that missed a limit, a step's of one that failed."""
    slower: tuple[SlowerVariant, ...]
    """int8 variants that took longer than fp32 on this host, if only because it was busy."""
    warnings: tuple[str, ...]
    """Problems with preprocessing or the calibration samples, missing samples, limits that could
    not be checked, and targets that require an older onnxruntime than the one of this build."""
    steps: int
    from_cache: int
    """How many steps the cache had already."""
    aars: tuple[Path, ...] = ()
    """Compiled libraries for Android apps, in the Maven repository ``maven`` beside the bundles."""
    libraries: tuple[Path, ...] = ()
    """The folders of runtime libraries, which the bundles of apps share, beside the bundles."""
    saw: tuple[str, ...] = ()
    """fp32's answers to the samples, a line for each described output that has some."""
    uncompiled: tuple[EdgepackError, ...] = ()
    """Why a bundle lacks a library that the user asked for."""
    exported: tuple[Path, ...] = ()
    """Debian's and opkg's packages of Linux bundles, where they were asked for."""
    pages: tuple[PageAnswer, ...] = ()
    """With ``aar``, whether each native library that an app packs because of the bundles loads
    with memory pages of 16 KB, as Google Play wants."""

    def require_all(self, *, tells_written: bool = True) -> None:
        """Check that every requested variant is shipped, or is unused for a good reason.

        Args:
            tells_written: Whether an error's hint names the bundles that were written.

        Raises:
            BugError: A variant failed in a way that edgepack did not foresee.
            EdgepackError: The error of the first variant, or library, that failed.
            LimitError: A variant missed its limit; the error names each and what it lost.
            ModelError: A target has no bundle; the error names each of its variants and why it is
                unused.
        """
        shipped = ", ".join(str(built.bundle.path) for built in self.bundles) or "nothing"
        written = f"; written: {shipped}" if tells_written else ""
        missed = [error for error in self.errors if isinstance(error, LimitError)]
        failed = [error for error in self.errors if error not in missed]
        if failed:
            bugs = [error for error in failed if isinstance(error, BugError)]
            raise type([*bugs, *failed][0])(
                f"{len(failed)} variants could not be made:\n{_indent(failed)}",
                hint=f"fix that, or leave these variants out (--variant){written}",
            )
        if missed:
            raise LimitError(
                f"{len(missed)} variants lose too much and are not shipped:\n"
                + _indent([f"{error.where}: {error.problem}" for error in missed]),
                hint=f"{missed[0].hint}{written}",
            )
        if self.uncompiled:
            raise self.uncompiled[0]
        bundled = {built.bundle.manifest.target for built in self.bundles}
        if without := {t: each for t, each in self.unused.items() if t not in bundled}:
            lines = [f"{t} {each}" for t, unused in without.items() for each in unused]
            raise ModelError(
                f"no bundle was written for {', '.join(without)}, because each variant is unused:\n"
                + _indent(lines),
                hint="fix what one of these lines names, or build for a target with a CPU variant"
                f" (edgepack targets list){written}",
            )


def _indent(lines: Sequence[object]) -> str:
    return indent("\n".join(map(str, lines)), "  ")


def build(  # noqa: PLR0913  (each is one option of the command)
    model: Path | None = None,
    *,
    project: Path | None = None,
    targets: Sequence[str] = (),
    variants: Sequence[str] = (),
    out: Path = Path("dist"),
    jobs: int | None = None,
    use_cache: bool = True,
    aar: bool = False,
    jars: Path | None = None,
    simulate_s: float = SIMULATE_S,
    python: str | None = None,
    on: str | None = None,
    service: bool = False,
    progress: Progress | None = None,
) -> BuildResult:
    """Build bundles and return them.

    Args:
        model: A bare model file; or use ``project``, or an ``edgepack.yaml`` in this folder.
        project: The project file.
        targets: Target ids; default: those of the project.
        variants: Only these variants of each target.
        out: The folder that bundles go to.
        jobs: How many steps run at the same time; default: one per core, at most 4.
        use_cache: False does every step again, and keeps nothing.
        aar: Also compile the bundles for Android, into the Maven repository ``out/maven``.
        jars: For that, a Maven repository or folder with the Kotlin compiler and what it compiles
            against; default: Maven's own on this machine.
        simulate_s: About how many seconds of evaluation samples each variant computes in its
            provider's simulator, where one is installed; 0 simulates nothing.
        python: The Python that has the framework of a model that is not ONNX; default: the
            project's, or an environment of edgepack's own.
        on: The address of a Dask scheduler whose workers do steps, such as ``tcp://host:8786``.
        service: Bundles have what answers over HTTP, as if the project had ``service: true``;
            every target has to be one with Linux then.
        progress: Where to report progress; default: nowhere.

    Raises:
        EdgepackError: The build failed; the class says how. Failures of single variants are
            returned instead, and the others are shipped: see :meth:`BuildResult.require_all`.
    """
    progress = progress or Silent()
    with ExitStack() as stack:
        cache = open_own_cache() if use_cache else open_temporary_cache(stack)
        cluster = stack.enter_context(open_cluster(on, cache)) if on else None
        loaded = open_project(find_project(model, project), cache, progress, python)
        job = _make_job(loaded, targets, variants, simulate_s)
        if service:
            job = _add_service(job)
        return _build(
            job, out, cache, jobs=jobs, aar=aar, jars=jars, progress=progress, cluster=cluster
        )


def build_loaded(  # noqa: PLR0913  (as build has them)
    loaded: LoadedProject,
    *,
    targets: Sequence[str],
    variants: Sequence[str],
    out: Path,
    cache: StepCache,
    jobs: int | None,
    simulate_s: float,
    service: bool,
    progress: Progress,
    cluster: Cluster | None,
) -> BuildResult:
    """Build the bundles of a project that was read, with a cache and workers of others.

    Raises:
        EdgepackError: As :func:`build`.
    """
    opened = open_project(loaded, cache, progress)
    job = _make_job(opened, targets, variants, simulate_s)
    if service:
        job = _add_service(job)
    return _build(job, out, cache, jobs=jobs, progress=progress, cluster=cluster)


def build_candidates(
    loaded: LoadedProject,
    profile: Profile,
    limits: Limits,
    out: Path,
    *,
    progress: Progress | None = None,
) -> BuildResult:
    """Build all variants of a profile that turn out well, whatever the project names.

    None of them is asked for: one that cannot be made, or misses a limit, is left out without an
    error, with its reason among the unused.

    Args:
        loaded: The project.
        profile: Of the target, with the variants to try.
        limits: What they have to be within, in the place of the project's own.
        out: The folder that the bundle goes to.
        progress: Where to report progress; default: nowhere.

    Raises:
        EdgepackError: As :func:`build`.
    """
    target = ChangedTarget(id=profile.id)
    project = loaded.project.model_copy(update={"targets": [target], "limits": limits})
    cache, progress = open_own_cache(), progress or Silent()
    plain = open_project(replace(loaded, project=project), cache, progress)
    facts = read_source_facts(plain)
    require_plain_signature(facts)
    job = Job(plain, facts, make_plan(plain, facts, [profile]))
    return _build(job, out, cache, progress=progress)


def build_part(  # noqa: PLR0913  (as build has them)
    loaded: LoadedProject,
    profiles: Sequence[Profile],
    out: Path,
    cache: StepCache,
    *,
    jobs: int | None = None,
    simulate_s: float = SIMULATE_S,
    progress: Progress,
    cluster: Cluster | None = None,
) -> BuildResult:
    """Build the bundles of one model of several; see :func:`build` for the rest.

    Args:
        loaded: The part's project, which was opened.
        profiles: Of the targets, whatever the part's project names.
        out: The folder that the bundles go to.
        cache: Where steps are kept.
        jobs: How many steps run at the same time.
        simulate_s: For how long each variant is simulated.
        progress: Where to report progress.
        cluster: Whose workers do steps.
    """
    job = _plan_job(loaded, profiles, (), simulate_s)
    return _build(job, out, cache, jobs=jobs, progress=progress, cluster=cluster)


def _build(  # noqa: PLR0913  (as build has them)
    job: Job,
    out: Path,
    cache: StepCache,
    *,
    jobs: int | None = None,
    aar: bool = False,
    jars: Path | None = None,
    progress: Progress,
    cluster: Cluster | None = None,
) -> BuildResult:
    toolchains = _find_toolchains(job.plan, jars, aar=aar)
    repository = out / "maven"
    for place in (out, repository) if toolchains else (out,):
        require_writable_folder(place)
    profiles = [planned.profile for planned in job.plan.bundles]
    require_own_name(job.loaded.project, profiles, out)
    if job.loaded.project.app.runtime == "shared":
        require_places(profiles, out)
    for planned in job.plan.bundles:
        if own := find_own_profile(planned.profile.id):
            progress.note(
                f"target {planned.profile.id}: its profile is {own}, not one that edgepack ships"
            )
    if job.facts.quantization:
        progress.note(f"{job.facts.name} is {job.facts.quantization.state}")
    for variant in (v for planned in job.plan.bundles for v in planned.variants if v.offered):
        progress.note(f"{variant.variant.id}: {variant.offered}")
    execution = execute(
        job.plan,
        cache=cache,
        jobs=jobs or count_default_jobs(),
        progress=progress,
        subject=_make_subject(job),
        cluster=cluster,
    )
    require_whole(job.plan.bundles, execution)
    judged = [
        judge(planned, execution, job.loaded.find_limits(planned.profile.id))
        for planned in job.plan.bundles
    ]
    # Models that are timed at the same time would only slow each other.
    with cluster.timing if cluster else nullcontext():
        slower = tuple(list_slower_variants(job.plan, judged, execution, cache))
    judged = [drop_slower(verdict, slower, execution) for verdict in judged]
    bundles = [
        assemble(JudgedBundle(job, planned, verdict, execution), cache, out)
        for planned, verdict in zip(job.plan.bundles, judged, strict=True)
        if verdict.shipped
    ]
    libraries = _write_runtime_libraries(job, judged, out)
    compiled = list(_write_aars(bundles, libraries, toolchains, repository, progress))
    aars = tuple(made for made in compiled if isinstance(made, Path))
    left = {(v.target, planned.variant.id) for v in judged for planned, _ in v.shipped}
    found = list_warnings(job.plan, judged, execution)
    pins = list_older_runtimes(profiles, version("onnxruntime"))
    told = (*explain_unsampled(job.loaded), *found, *pins)
    saw = tuple(line for lines in list_answers(job.plan, execution) for line in lines)
    return BuildResult(
        bundles=tuple(bundles),
        unused={verdict.target: verdict.unused for verdict in judged},
        errors=tuple(error for verdict in judged for error in verdict.errors),
        slower=tuple(each for each in slower if (each.target, each.variant) in left),
        warnings=told,
        steps=len(job.plan.steps),
        from_cache=len(execution.from_cache),
        aars=aars,
        libraries=libraries,
        saw=saw,
        uncompiled=tuple(error for error in compiled if isinstance(error, EdgepackError)),
        pages=tuple(check_pages(_list_packages(job.plan, toolchains), jars)),
    )


def _write_runtime_libraries(job: Job, judged: Sequence[Verdict], out: Path) -> tuple[Path, ...]:
    """Write what shipped bundles share, once for each family of targets."""
    if job.loaded.project.app.runtime != "shared":
        return ()
    shipped = {verdict.target for verdict in judged if verdict.shipped}
    profiles = [planned.profile for planned in job.plan.bundles]
    families = {p.family: p for p in profiles if p.id in shipped and p.family != "linux"}
    return tuple(write_library(profile, out) for profile in families.values())


def _list_packages(plan: Plan, targets: Container[str]) -> list[tuple[str, str]]:
    """Return the packages that some targets pin, with their versions."""
    profiles = [planned.profile for planned in plan.bundles if planned.profile.id in targets]
    return [each for profile in profiles for each in profile.runtime.packages.items()]


def _make_subject(job: Job) -> Subject:
    return Subject(
        job.loaded.model_path,
        job.loaded.project.largest_dims,
        job.facts.initializer_bytes,
        frozenset(planned.step.name for planned in job.plan.steps),
    )


def _find_toolchains(plan: Plan, jars: Path | None, *, aar: bool) -> dict[str, Toolchain]:
    """Return what compiles each target's module, so that missing tools are reported at once."""
    if not aar:
        if jars is not None:
            raise UsageError(
                "--jars is given, but nothing is compiled",
                hint="add --aar, or leave --jars out",
                where="--jars",
            )
        return {}
    profiles = [planned.profile for planned in plan.bundles]
    android = [profile for profile in profiles if profile.family == "android"]
    if not android:
        raise UsageError(
            "an AAR is for Android, and no target is",
            hint="add --target android-xnnpack (edgepack targets list), or leave --aar out",
            where="--aar",
        )
    return {p.id: find_toolchain(p.runtime.packages, jars) for p in android}


def _write_aars(
    bundles: Iterable[BuiltBundle],
    libraries: Iterable[Path],
    toolchains: Mapping[str, Toolchain],
    repository: Path,
    progress: Progress,
) -> Iterator[Path | EdgepackError]:
    """Write a compiled library of each bundle that has a toolchain, after the one that they share.

    Yields its path, or why it failed: by then the bundles are written, but the rest of the result
    is not reported yet.
    """
    shared = [path for path in libraries if path.name == f"{NAME}-android"]
    found = [(built.bundle, toolchains.get(built.bundle.manifest.target)) for built in bundles]
    compiled = [(bundle.path, toolchain) for bundle, toolchain in found if toolchain]
    # For what is shared one toolchain is as good as another: the bundles bring all that differs.
    before = [(path, toolchain) for path in shared for _, toolchain in compiled[:1]]
    for module, toolchain in [*before, *compiled]:
        write = write_library_aar if module in shared else write_aar
        progress.note(f"compiling {module.name} for {repository}")
        try:
            yield write(module, repository, toolchain)
        except EdgepackError as error:
            progress.note(f"{module.name}: not compiled: {error.problem}")
            yield error


def dry_run(  # noqa: PLR0913  (as build has them)
    model: Path | None = None,
    *,
    project: Path | None = None,
    targets: Sequence[str] = (),
    variants: Sequence[str] = (),
    aar: bool = False,
    jars: Path | None = None,
    simulate_s: float = SIMULATE_S,
    python: str | None = None,
    service: bool = False,
    progress: Progress | None = None,
) -> Plan:
    """Return the plan that :func:`build` would execute with these arguments.

    A model that is not ONNX is converted first: what is planned depends on what it becomes.

    Raises:
        EdgepackError: As :func:`build`, before anything runs.
    """
    progress = progress or Silent()
    loaded = open_project(find_project(model, project), open_own_cache(), progress, python)
    job = _make_job(loaded, targets, variants, simulate_s)
    if service:
        job = _add_service(job)
    _find_toolchains(job.plan, jars, aar=aar)
    return job.plan


def _add_service(job: Job) -> Job:
    """Return a job whose bundles have what answers over HTTP."""
    require_linux(planned.profile for planned in job.plan.bundles)
    project = job.loaded.project.model_copy(update={"service": True})
    return replace(job, loaded=replace(job.loaded, project=project))


def _make_job(
    loaded: LoadedProject, targets: Sequence[str], variants: Sequence[str], simulate_s: float
) -> Job:
    found = choose_targets(loaded, targets) if targets else read_project_targets(loaded)
    profiles = {profile.id: profile for profile in found}
    if not profiles:
        raise UsageError(
            "no target is given", hint="--target host, or 'targets' in edgepack.yaml", where="build"
        )
    return _plan_job(loaded, list(profiles.values()), variants, simulate_s)


def _plan_job(
    loaded: LoadedProject, profiles: Sequence[Profile], variants: Sequence[str], simulate_s: float
) -> Job:
    facts = read_source_facts(loaded)
    require_plain_signature(facts)
    library = find_libraries(loaded).get(find_machine())
    with Workers(1) as workers:
        require_loading(loaded, library, workers)
        chosen, offers = offer_int8_dynamic(
            loaded.model_path, facts, profiles, find_named_targets(loaded), workers
        )
    plan = make_plan(loaded, facts, chosen, variants, offers, simulate_s)
    return Job(loaded, facts, plan)
