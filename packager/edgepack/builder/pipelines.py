"""``edgepack build`` of several models: each part a bundle of its own, proven together as one."""

from __future__ import annotations

import glob
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path

import numpy as np

from edgepack.apps.render import PipelineContext, render_pipeline
from edgepack.backends.targets import choose_targets, load_target
from edgepack.base.files import holding
from edgepack.base.processes import Workers
from edgepack.base.progress import Progress, Silent
from edgepack.builder.assembly import BuiltBundle
from edgepack.builder.build import BuildResult, build_part
from edgepack.builder.cache import StepCache, open_own_cache, open_temporary_cache
from edgepack.builder.cleaning import read_source_facts
from edgepack.builder.cluster import open_cluster
from edgepack.builder.custom_ops import find_machine, require_loading
from edgepack.builder.inputs import PlanInputs, plan_inputs
from edgepack.builder.manifest import find_build_host
from edgepack.builder.pipeline_checks import CheckedPipeline, PartFacts, check_pipeline
from edgepack.builder.pipeline_runs import (
    ChainSource,
    PartSource,
    Proven,
    Recorded,
    prove_combinations,
    record_parts,
)
from edgepack.builder.service_files import add_service, has_service, require_linux
from edgepack.builder.shared import using
from edgepack.builder.sources import open_project
from edgepack.bundle.archive import copy_file, write_archive
from edgepack.bundle.manifest import BundleFile, Golden, GoldenTensor, Tensor
from edgepack.bundle.pipeline import PartEntry, PipelineManifest
from edgepack.bundle.reading import Bundle, PipelineBundle, load_any, load_bundle
from edgepack.bundle.writing import BundleWriter, replacing, require_writable_folder
from edgepack.errors import EdgepackError, ModelError, UsageError
from edgepack.model.facts import TensorSpec, require_plain_signature
from edgepack.model.running import Arrays
from edgepack.project.loading import PROJECT_FILE, LoadedProject
from edgepack.project.pipeline import LoadedPipeline, PipelineSource, read_pipeline
from edgepack.project.profile import Profile, find_target_ids
from edgepack.project.samples import EvaluationSource, Samples, SampleSource
from edgepack.steps.graph.prepared import fix_sizes

PARTS = "parts"
MOST_COMBINATIONS = 64
"""Each is run here with the golden samples, and has golden outputs of its own."""


@dataclass(frozen=True)
class BuiltPipeline:
    """One bundle of several models as written."""

    bundle: PipelineBundle
    archive: Path
    unchecked: tuple[str, ...]
    """The outputs whose golden values may change by what the parts' own goldens allow."""


@dataclass(frozen=True)
class PipelineResult:
    """The result of a build of several models."""

    bundles: tuple[BuiltPipeline, ...]
    parts: Mapping[str, BuildResult]
    """What was built of each part; its bundles lie in the whole one's ``parts``."""


def _describe(inputs: PlanInputs) -> dict[str, object]:
    """Return what the loader reads of inputs and outputs, as a bundle's manifest will have it."""
    project = inputs.project
    return {
        "outputs": [_make_tensor(spec).model_dump() for spec in _find_outputs(inputs)],
        "input_descriptions": {n: d.model_dump() for n, d in project.inputs.items()},
        "output_descriptions": {n: d.model_dump() for n, d in project.outputs.items()},
    }


def _find_outputs(inputs: PlanInputs) -> tuple[TensorSpec, ...]:
    """Return what a part gives, with the sizes that its project fixes."""
    return fix_sizes(inputs.facts.outputs, inputs.dims)


@dataclass(frozen=True)
class _Job:
    """What a build is about."""

    loaded: LoadedPipeline
    profiles: tuple[Profile, ...]
    planned: Mapping[str, PlanInputs]
    checked: CheckedPipeline

    @property
    def source(self) -> ChainSource:
        """What runs with the source models."""
        parts = {
            name: PartSource(
                inputs.loaded.model_path,
                inputs.signature,
                inputs.whole_signature,
                inputs.constants,
                inputs.project.state,
                inputs.libraries.get(find_machine()),
                _find_outputs(inputs),
                _describe(inputs),
                {file: inputs.loaded.find_file(file) for file in inputs.project.files},
            )
            for name, inputs in self.planned.items()
        }
        interpreter = self.loaded.project.interpreter
        pipeline, given = self.checked.pipeline, self.checked.inputs
        return ChainSource(pipeline, given, parts, self.loaded.folder, interpreter)


def build_pipeline(  # noqa: PLR0913  (each is one option of the command)
    project: Path | None = None,
    *,
    targets: Sequence[str] = (),
    out: Path = Path("dist"),
    jobs: int | None = None,
    use_cache: bool = True,
    simulate_s: float = 0.0,
    on: str | None = None,
    service: bool = False,
    progress: Progress | None = None,
) -> PipelineResult:
    """Build bundles of several models and return them.

    Samples of the pipeline run through the source models; what each part takes then are its
    samples, unless its own project has some. Each part is built as a project of its own. The whole
    runs golden inputs with each combination of the parts' variants.

    Args:
        project: The project file; default: the ``edgepack.yaml`` in this folder.
        targets: Target ids; default: those of the project.
        out: The folder that bundles go to.
        jobs: How many steps run at the same time; default: one per core, at most 4.
        use_cache: False does every step again, and keeps nothing.
        simulate_s: As for :func:`~edgepack.builder.build.build`.
        on: The address of a Dask scheduler whose workers do the parts' steps.
        service: As for :func:`~edgepack.builder.build.build`.
        progress: Where to report progress; default: nowhere.

    Raises:
        ProfileError: A project is wrong, or the stages do not fit the parts.
        UsageError: There is no such target, or it is not of the Linux family.
        ModelError: A part has no bundle for a target, or too many variants to prove together.
        EdgepackError: Building a part failed; the class says how.
    """
    progress = progress or Silent()
    loaded = read_pipeline(project or Path(PROJECT_FILE))
    profiles = _choose_profiles(loaded, targets)
    if service:
        require_linux(profiles)
        loaded = replace(loaded, project=loaded.project.model_copy(update={"service": True}))
    require_writable_folder(out)
    with ExitStack() as stack:
        cache = open_own_cache() if use_cache else open_temporary_cache(stack)
        stack.enter_context(using(cache.shared, progress))
        cluster = stack.enter_context(open_cluster(on, cache)) if on else None
        job = _make_job(loaded, profiles, cache, progress)
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="edgepack-")))
        workers = stack.enter_context(Workers(1))
        for name, inputs in job.planned.items():
            with _naming(name):
                require_loading(inputs.loaded, inputs.libraries.get(find_machine()), workers)
        progress.note("running the source models on the samples")
        recorded = workers.call(
            record_parts, job.source, _list_sources(job), scratch, on_note=progress.note
        )
        parts = {}
        for name, planned in job.planned.items():
            progress.note(f"part {name}")
            with _naming(name):
                parts[name] = build_part(
                    _give_samples(planned.loaded, name, recorded, scratch),
                    [_find_profile(planned.loaded, profile.id) for profile in job.profiles],
                    scratch / PARTS / name,
                    cache,
                    jobs=jobs,
                    simulate_s=simulate_s,
                    progress=progress,
                    cluster=cluster,
                )
                # They are written where the whole is, and only with it.
                parts[name].require_all(tells_written=False)
        bundles = tuple(
            _assemble(job, profile, _Proof(parts, recorded, workers, scratch), out)
            for profile in job.profiles
        )
    return PipelineResult(
        bundles,
        {name: _find_shipped(name, result, bundles) for name, result in parts.items()},
    )


@contextmanager
def _naming(part: str) -> Iterator[None]:
    """Have errors say which part they are about."""
    try:
        yield
    except EdgepackError as error:
        error.where = f"part {part}: {error.where}" if error.where else f"part {part}"
        raise


def _find_shipped(name: str, result: BuildResult, bundles: Sequence[BuiltPipeline]) -> BuildResult:
    """Return what was built of a part, as it lies in the whole bundles."""
    return replace(
        result,
        bundles=tuple(
            BuiltBundle(load_bundle(built.bundle.path / PARTS / name), built.archive)
            for built in bundles
        ),
    )


def _choose_profiles(loaded: LoadedPipeline, targets: Sequence[str]) -> tuple[Profile, ...]:
    names = find_target_ids(targets or loaded.project.targets)
    if not names:
        raise UsageError(
            "no target is given", hint="--target host, or 'targets' in edgepack.yaml", where="build"
        )
    profiles = tuple({p.id: p for p in map(load_target, names)}.values())
    for profile in profiles:
        if profile.family != "linux":
            raise UsageError(
                f"the target {profile.id!r} is of the family {profile.family!r}, and bundles of"
                " several models are for Linux: only its loader runs pipelines",
                hint="build each part for it (edgepack build --project PART.yaml), and call them"
                " one after the other in the app",
                where="--target" if targets else loaded.locate("targets"),
            )
    return profiles


def _make_job(
    loaded: LoadedPipeline, profiles: tuple[Profile, ...], cache: StepCache, progress: Progress
) -> _Job:
    planned = {}
    for name, part in loaded.parts.items():
        with _naming(name):
            planned[name] = _plan_part(open_project(part, cache, progress))
    facts = {
        name: PartFacts(
            inputs.signature,
            _find_outputs(inputs),
            inputs.project.state,
            frozenset(n for n, each in inputs.project.inputs.items() if each.image),
            frozenset(n for n, each in inputs.project.outputs.items() if each.kind == "detection"),
            frozenset(n for n, each in inputs.project.inputs.items() if each.tokens),
            frozenset(
                n
                for n, each in inputs.project.outputs.items()
                if each.kind == "embedding" and each.mask
            ),
        )
        for name, inputs in planned.items()
    }
    return _Job(loaded, profiles, planned, check_pipeline(loaded, facts))


def _plan_part(part: LoadedProject) -> PlanInputs:
    facts = read_source_facts(part)
    require_plain_signature(facts)
    return plan_inputs(part, facts)


def _find_profile(part: LoadedProject, target: str) -> Profile:
    """Return a target's profile, with the variants that a part's own project names for it."""
    return next(iter(choose_targets(part, [target])))


def _list_sources(job: _Job) -> dict[str, PipelineSource]:
    samples = job.loaded.project.samples
    both = {"calibration": samples.calibration, "evaluation": samples.evaluation}
    return {role: source for role, source in both.items() if source is not None}


def _give_samples(
    part: LoadedProject, name: str, recorded: Recorded, scratch: Path
) -> LoadedProject:
    """Return a part's project with what it took in the pipeline, where it has no samples."""
    own = part.project.samples
    given: dict[str, str] = {}
    for role, counts in recorded.counts.items():
        if counts.get(name):
            folder = os.path.relpath((scratch / role / name).resolve(), part.folder)
            given[role] = f"{glob.escape(folder)}/*"
    calibration, evaluation = given.get("calibration"), given.get("evaluation")
    samples = Samples(
        calibration=own.calibration
        or (SampleSource(test_data=calibration) if calibration else None),
        evaluation=own.evaluation
        or (EvaluationSource(test_data=evaluation) if evaluation else None),
    )
    # The whole is what is served.
    changed = {"samples": samples, "service": False}
    return replace(part, project=part.project.model_copy(update=changed))


@dataclass(frozen=True)
class _Proof:
    """What the parts became, and what proves them together."""

    parts: Mapping[str, BuildResult]
    recorded: Recorded
    workers: Workers
    scratch: Path

    def find_bundles(self, target: str) -> dict[str, Bundle]:
        """Return the parts' bundles for a target."""
        return {
            name: next(b.bundle for b in result.bundles if b.bundle.manifest.target == target)
            for name, result in self.parts.items()
        }


def _assemble(job: _Job, profile: Profile, proof: _Proof, out: Path) -> BuiltPipeline:
    """Write the bundle of one target and its archive; each is replaced whole or not at all."""
    bundles = proof.find_bundles(profile.id)
    count = prod(len(bundle.manifest.variants) for bundle in bundles.values())
    if count > MOST_COMBINATIONS:
        raise ModelError(
            f"the variants of the parts can be combined in {count} ways for {profile.id}, and at"
            f" most {MOST_COMBINATIONS} are proven",
            hint="name the variants to use in the parts' own projects: targets:"
            f" [{{id: {profile.id}, variants: [{{backend: cpu, recipe: fp32}}]}}]",
        )
    folders = {name: bundle.path for name, bundle in bundles.items()}
    proven = proof.workers.call(
        prove_combinations, job.checked.pipeline, folders, proof.recorded.goldens
    )
    project = job.loaded.project
    final = out / f"{project.name}-{project.version}-{profile.id}"
    archive = out / f"{final.name}.tar.gz"
    with holding(final):
        with replacing(final) as folder:
            _write(job, profile, proof, proven, BundleWriter(folder))
            archive.unlink(missing_ok=True)
        packed = proof.scratch / archive.name
        write_archive(final, packed, root=final.name)
        copy_file(packed, archive)
        bundle = load_any(final)
    if not isinstance(bundle, PipelineBundle):
        raise TypeError("a bundle of several models was written")
    unchecked = {n for each in proven for n, check in each.checks.items() if check.is_empty}
    return BuiltPipeline(bundle, archive, tuple(sorted(unchecked)))


def _write(
    job: _Job,
    profile: Profile,
    proof: _Proof,
    proven: Sequence[Proven],
    writer: BundleWriter,
) -> None:
    bundles = proof.find_bundles(profile.id)
    for name, bundle in bundles.items():
        writer.add_bundle(f"{PARTS}/{name}", bundle)
    first = next(iter(bundles.values()))
    # The code is the same in all parts, which stay bundles of their own.
    for file in first.manifest.files:
        if file.role in ("loader", "harness"):
            data = (first.path / file.path).read_bytes()
            writer.add(file.path, data, role=file.role, mode=file.mode)
    runtime = dict(sorted((k, v) for b in bundles.values() for k, v in b.manifest.runtime.items()))
    for rendered in render_pipeline(_make_context(job, profile, bundles, runtime)):
        writer.add(rendered.path, rendered.data, role=rendered.role, mode=rendered.mode)
    if has_service(job.loaded.project, profile):
        add_service(writer, job.loaded.project, profile)
    goldens = [
        _write_golden(writer, number, inputs, proven)
        for number, inputs in enumerate(proof.recorded.goldens)
    ]
    project = job.loaded.project

    def make_manifest(files: list[BundleFile]) -> PipelineManifest:
        return PipelineManifest(
            schema_version=1,
            kind="pipeline",
            name=project.name,
            version=project.version,
            target=profile.id,
            family=profile.family,
            parts={name: _make_entry(name, bundle) for name, bundle in bundles.items()},
            pipeline=job.checked.pipeline,
            inputs=[_make_tensor(spec) for spec in job.checked.inputs],
            goldens=goldens,
            goldens_from="samples" if proof.recorded.real else "seeded random",
            checks={each.combination: each.checks for each in proven},
            runtime=runtime,
            provider_sources={
                name: source
                for bundle in bundles.values()
                for name, source in bundle.manifest.provider_sources.items()
            },
            built_on=find_build_host(),
            files=files,
        )

    writer.finish_pipeline(make_manifest)


def _make_entry(name: str, bundle: Bundle) -> PartEntry:
    variants = bundle.manifest.variants
    models = {v.model_sha256 for v in variants}
    models |= {bucket.model_sha256 for v in variants for bucket in v.buckets}
    models |= {
        each.model_sha256 for v in variants if isinstance(v.compiled, list) for each in v.compiled
    }
    return PartEntry(
        path=f"{PARTS}/{name}",
        digest=bundle.digest,
        variants=[variant.id for variant in variants],
        models=sorted(models),
    )


def _make_tensor(spec: TensorSpec) -> Tensor:
    return Tensor(name=spec.name, dtype=spec.dtype, shape=list(spec.shape or ()))


def _write_golden(
    writer: BundleWriter, number: int, inputs: Arrays, proven: Sequence[Proven]
) -> Golden:
    return Golden(
        inputs=list(_write_tensors(writer, f"golden/{number}/input", inputs)),
        outputs={
            each.combination: list(
                _write_tensors(writer, f"golden/{number}/{place}/output", each.outputs[number])
            )
            for place, each in enumerate(proven)
        },
    )


def _write_tensors(writer: BundleWriter, stem: str, arrays: Arrays) -> Iterator[GoldenTensor]:
    for number, (name, array) in enumerate(arrays.items()):
        little = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
        path = writer.add(f"{stem}-{number}.bin", little.tobytes(), role="golden")
        yield GoldenTensor(name=name, path=path, dtype=array.dtype.name, shape=list(array.shape))


def _make_context(
    job: _Job, profile: Profile, bundles: Mapping[str, Bundle], runtime: Mapping[str, str]
) -> PipelineContext:
    project = job.loaded.project
    stages = job.checked.pipeline.stages
    return PipelineContext(
        bundle_id=f"{project.name}-{project.version}-{profile.id}",
        name=project.name,
        version=project.version,
        target_title=profile.title,
        inputs=tuple((spec.name, _format_zeros(spec)) for spec in job.checked.inputs),
        outputs=tuple(job.checked.pipeline.outputs),
        stages=tuple(stage.part for stage in stages),
        parts=tuple(
            (name, ", ".join(v.id for v in bundle.manifest.variants))
            for name, bundle in bundles.items()
        ),
        has_state=any(inputs.project.state for inputs in job.planned.values()),
        requirements=tuple(f"{name}{pin}" for name, pin in runtime.items()),
        serves=has_service(project, profile),
    )


def _format_zeros(spec: TensorSpec) -> str:
    shape = [size if isinstance(size, int) else 1 for size in spec.shape or ()]
    return f"np.zeros({shape}, {spec.dtype!r})"
