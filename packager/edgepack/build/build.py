"""The phases of a build: inspect, plan, execute, judge, bundle."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from edgepack.build.assembly import BuiltBundle, Job, assemble
from edgepack.build.cache import own_cache, temporary_cache
from edgepack.build.execution import execute
from edgepack.build.judging import MissedLimit, judge
from edgepack.build.planning import make_plan
from edgepack.errors import LimitError, ProfileError, UsageError
from edgepack.model.facts import model_facts, require_plain_signature
from edgepack.plan import Plan
from edgepack.profile import Profile, load_profile, own_profile_file
from edgepack.progress import Progress, Silent
from edgepack.project import LoadedProject, find_project


@dataclass(frozen=True)
class BuildResult:
    """What a build made."""

    bundles: tuple[BuiltBundle, ...]
    missed: tuple[MissedLimit, ...]
    """Variants that are not shipped because they miss a limit."""
    steps: int
    from_cache: int
    """How many of the steps were there already."""

    def require_limits(self) -> None:
        """Raise if a variant missed its limit.

        Raises:
            LimitError: Names every such variant and what it lost.
        """
        if not self.missed:
            return
        lines = "".join(f"\n  {m.target} {m.variant}: {m.reason}" for m in self.missed)
        shipped = ", ".join(str(built.bundle.path) for built in self.bundles) or "nothing"
        raise LimitError(
            f"{len(self.missed)} variants miss a limit and are not shipped:{lines}",
            hint="give more or better calibration samples, or raise 'limits' in edgepack.yaml;"
            f" written was {shipped}",
        )


def build(  # noqa: PLR0913  (each is one option of the command)
    model: Path | None = None,
    *,
    project: Path | None = None,
    targets: Sequence[str] = (),
    variants: Sequence[str] = (),
    out: Path = Path("dist"),
    jobs: int | None = None,
    use_cache: bool = True,
    progress: Progress | None = None,
) -> BuildResult:
    """Build bundles and return them.

    Args:
        model: A bare model file; or use ``project``, or an ``edgepack.yaml`` lying here.
        project: The project file.
        targets: Target ids; default: those of the project.
        variants: Only these variants of each target.
        out: The folder that bundles go to.
        jobs: How many steps run at the same time; default: one per core, at most 4.
        use_cache: False does every step again, and keeps nothing.
        progress: Where to report; default: nowhere.

    Raises:
        EdgepackError: As the error tree says. A missed limit is not raised but returned: see
            :meth:`BuildResult.require_limits`.
    """
    job = _planned(model, project, targets, variants)
    progress = progress or Silent()
    for planned in job.plan.bundles:
        if own := own_profile_file(planned.profile.id):
            progress.note(f"target {planned.profile.id}: its profile is {own}, not one shipped")
    with ExitStack() as stack:
        cache = own_cache() if use_cache else temporary_cache(stack)
        execution = execute(
            job.plan,
            cache=cache,
            jobs=jobs or min(os.cpu_count() or 1, 4),
            progress=progress,
        )
        judged = [judge(planned, execution, job.limits) for planned in job.plan.bundles]
        bundles = [
            assemble(job, planned, verdict, execution, cache, out)
            for planned, verdict in zip(job.plan.bundles, judged, strict=True)
            if verdict.shipped
        ]
    missed = tuple(lost for verdict in judged for lost in verdict.missed)
    return BuildResult(tuple(bundles), missed, len(job.plan.steps), len(execution.from_cache))


def dry_run(
    model: Path | None = None,
    *,
    project: Path | None = None,
    targets: Sequence[str] = (),
    variants: Sequence[str] = (),
) -> Plan:
    """Return the plan that :func:`build` would execute.

    Raises:
        EdgepackError: As :func:`build`, before anything runs.
    """
    return _planned(model, project, targets, variants).plan


def _planned(
    model: Path | None, project: Path | None, targets: Sequence[str], variants: Sequence[str]
) -> Job:
    loaded = find_project(model, project)
    found = map(load_profile, targets) if targets else _project_profiles(loaded)
    profiles = {profile.id: profile for profile in found}
    if not profiles:
        raise UsageError(
            "no target is given", hint="--target host, or 'targets' in edgepack.yaml", where="build"
        )
    facts = model_facts(loaded.model_path)
    require_plain_signature(facts)
    return Job(loaded, facts, make_plan(loaded, facts, list(profiles.values()), variants))


def _project_profiles(loaded: LoadedProject) -> Iterator[Profile]:
    for index, name in enumerate(loaded.project.targets):
        try:
            yield load_profile(name)
        except UsageError as error:
            raise ProfileError(
                error.problem, hint=error.hint, where=loaded.where("targets", index)
            ) from error
