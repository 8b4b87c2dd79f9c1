"""From step outputs to a bundle on disk."""

from __future__ import annotations

import hashlib
import itertools
import json
import platform
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.metadata import version
from pathlib import Path, PurePosixPath

import edgepack
from edgepack.apps.maven import KOTLIN_VERSION, licensed
from edgepack.apps.names import App, app_of
from edgepack.apps.reduced_runtime import build_command
from edgepack.apps.render import (
    BundleContext,
    ExampleInput,
    ProviderHelp,
    VariantLine,
    render_family,
)
from edgepack.backends.registry import BACKENDS
from edgepack.base.machine import processor
from edgepack.base.schema import NotMeasured
from edgepack.builder.cache import StepCache
from edgepack.builder.example import prediction_lines
from edgepack.builder.execution import Execution
from edgepack.builder.extensions import packages
from edgepack.builder.judging import Verdict, attempts
from edgepack.builder.plan import Plan, PlannedBundle, PlannedVariant, bundle_digest, profile_digest
from edgepack.bundle.archive import copy_file, write_archive
from edgepack.bundle.manifest import (
    Accuracy,
    Bucket,
    BuildHost,
    BundleFile,
    Fused,
    Golden,
    GoldenTensor,
    LayerError,
    LeftOut,
    Manifest,
    ManifestVariant,
    OutsideError,
    Predicted,
    Provenance,
    SamplesUsed,
    Slice,
    SourceModel,
    Tensor,
)
from edgepack.bundle.reading import Bundle, load_bundle
from edgepack.bundle.writing import BundleWriter, replacing
from edgepack.model.facts import ModelFacts, TensorSpec, signature
from edgepack.model.files import MODEL, ORT_MODEL
from edgepack.model.reading import (
    external_files,
    external_tensors,
    model_digest,
    read_outline,
    read_structure,
)
from edgepack.project.profile import Profile
from edgepack.project.project import Limits, LoadedProject
from edgepack.steps.base import NOTES, read_notes
from edgepack.steps.graph.ort_format import OPERATORS
from edgepack.steps.graph.placed import read_placement
from edgepack.steps.proofs.goldens import read_goldens
from edgepack.steps.proofs.layer_errors import read_layer_errors
from edgepack.steps.proofs.outside import read_outside
from edgepack.steps.recipes.bucketed import BucketIndex, read_buckets
from edgepack.steps.recipes.recipes import RECIPES

# Their versions decide the bytes of a bundle.
_TOOLS = ("numpy", "onnx", "onnxruntime", "onnxsim", "pillow")

_EXAMPLE_SIDE = 480
"""Of a picture in a README's example, in pixels."""

_GOLDEN_BYTES = 1 << 22
"""Of a bundle's golden tensors together, or as much as its models have, if that is more."""


@dataclass(frozen=True)
class Job:
    """What a build is about."""

    loaded: LoadedProject
    facts: ModelFacts
    plan: Plan

    @property
    def limits(self) -> Limits:
        """The project's limits."""
        return self.loaded.project.limits


@dataclass(frozen=True)
class BuiltBundle:
    """One bundle as written."""

    bundle: Bundle
    archive: Path


def assemble(
    job: Job,
    planned: PlannedBundle,
    verdict: Verdict,
    execution: Execution,
    cache: StepCache,
    out: Path,
) -> BuiltBundle:
    """Write the bundle of one target and its archive, each replaced whole or not at all.

    Raises:
        BundleError: Two files have one name.
        ToolError: The place cannot be written.
        UsageError: Something else is there.
    """
    project = job.loaded.project
    final = out / f"{project.name}-{project.version}-{planned.profile.id}"
    archive = out / f"{final.name}.tar.gz"
    with replacing(final) as folder:
        _Assembly(job, planned, verdict, execution, BundleWriter(folder)).write()
        # An archive never lies beside a folder that it does not hold.
        archive.unlink(missing_ok=True)
    bundle = load_bundle(final)
    copy_file(_archive(bundle, cache), archive)
    return BuiltBundle(bundle, archive)


def _archive(bundle: Bundle, cache: StepCache) -> Path:
    """Return the bundle's archive in the cache: its bytes follow from the manifest's digest."""
    name = "bundle.tar.gz"
    key = f"archive-{bundle.digest}"
    found = cache.find(key) or cache.keep(
        key, lambda folder: write_archive(bundle.path, folder / name)
    )
    found.require_whole()
    return found.path / name


@dataclass
class _Assembly:
    job: Job
    planned: PlannedBundle
    verdict: Verdict
    execution: Execution
    writer: BundleWriter

    def write(self) -> Manifest:
        models = [self._model_files(planned) for planned, _ in self.verdict.shipped]
        variants = [
            self._variant(planned, accuracy, *files)
            for (planned, accuracy), files in zip(self.verdict.shipped, models, strict=True)
        ]
        if operators := self._operators():
            text = "".join(f"{line}\n" for line in operators)
            self.writer.add(f"models/{OPERATORS}", text.encode(), role="document")
        goldens, real = self._goldens()
        for name in self.job.loaded.project.files:
            self._user_file(name)
        self._runtime_files(variants)
        return self.writer.finish(
            lambda files: self._manifest(variants, goldens, files, real_samples=real)
        )

    def _variant(
        self,
        planned: PlannedVariant,
        accuracy: Accuracy | NotMeasured,
        path: str,
        buckets: list[Bucket],
    ) -> ManifestVariant:
        variant = planned.variant
        index = self._index(planned)
        goldens = read_goldens(self._folder(planned.goldens))
        return ManifestVariant(
            id=variant.id,
            backend=variant.backend,
            recipe=variant.recipe,
            dialect=variant.dialect,
            model=path,
            model_sha256=self._digest(path),
            model_format=variant.model_format,
            buckets=buckets,
            slices=[Slice(**entry) for entry in index.slices] if index else [],
            exact=index.exact if index else False,
            providers=variant.providers,
            placement=variant.placement,
            session=variant.session,
            requires=variant.requires,
            min_sqnr_db=goldens["min_sqnr_db"],
            untold=[
                what
                for what, told_by in goldens["faults"]
                if told_by is None or told_by >= self._golden_count
            ],
            accuracy=accuracy,
            predicted=self._predicted(planned),
            fused=self._fused(planned),
            layers=self._layers(planned),
            outside=self._outside(planned),
            input_ranges=self._input_ranges(planned),
            tried=attempts(planned, self.execution),
        )

    def _folder(self, step_id: str) -> Path:
        return self.execution.artifacts[step_id].path

    def _index(self, planned: PlannedVariant) -> BucketIndex | None:
        return read_buckets(self._folder(planned.bucketed)) if planned.bucketed else None

    def _model_files(self, planned: PlannedVariant) -> tuple[str, list[Bucket]]:
        """Write the models and what belongs to them; return the largest's path, and all if many."""
        folder, variant = self._folder(planned.shipped), planned.variant
        if index := self._index(planned):
            buckets = [
                self._bucket(folder / bucket.file, variant.id, bucket.dims)
                for bucket in index.buckets
            ]
            return buckets[-1].model, buckets
        if variant.model_format == "onnx":
            return add_onnx(self.writer, folder / MODEL, variant.id, f"{variant.id}.onnx"), []
        data = (folder / ORT_MODEL).read_bytes()
        return self.writer.add(f"models/{variant.id}.ort", data, role="model"), []

    def _bucket(self, model: Path, variant_id: str, dims: dict[str, int]) -> Bucket:
        name = f"{variant_id}.{'x'.join(map(str, dims.values()))}.onnx"
        path = add_onnx(self.writer, model, variant_id, name)
        return Bucket(dims=dims, model=path, model_sha256=self._digest(path))

    def _digest(self, path: str) -> str:
        """Return the sha256 of a model with its weights: caches of compiled models go by it."""
        if path.endswith(".ort"):
            return self.writer.files[path].sha256
        return model_digest(self.writer.folder / path)

    def _predicted(self, planned: PlannedVariant) -> Predicted | None:
        if planned.placed is None:
            return None
        placement = read_placement(self._folder(planned.placed))
        return Predicted(
            provider=planned.variant.providers[0].name,
            share=placement["share"],
            nodes=len(placement["nodes"]),
            partitions=placement["partitions"],
        )

    def _fused(self, planned: PlannedVariant) -> Fused | None:
        if planned.fusion is None:
            return None
        facts = read_notes(self._folder(planned.fusion)).facts
        return Fused(**{name: facts[name] for name in Fused.model_fields})

    def _layers(self, planned: PlannedVariant) -> list[LayerError] | NotMeasured:
        if planned.layers is None:
            return []
        if error := self.execution.failed.get(planned.layers):
            return NotMeasured(reason=error.problem)
        self.execution.artifacts[planned.layers].require_whole()
        names = LayerError.model_fields
        found = read_layer_errors(self._folder(planned.layers))
        return [LayerError(**{name: layer[name] for name in names}) for layer in found]

    def _outside(self, planned: PlannedVariant) -> list[OutsideError] | NotMeasured:
        if planned.outside is None:
            return []
        if error := self.execution.failed.get(planned.outside):
            return NotMeasured(reason=error.problem)
        self.execution.artifacts[planned.outside].require_whole()
        return [OutsideError(**each) for each in read_outside(self._folder(planned.outside))]

    def _input_ranges(self, planned: PlannedVariant) -> dict[str, tuple[float, float]]:
        """Return the calibrated ranges; with preprocessing in the model pictures have none."""
        floats = {spec.name for spec in self._signature()[0] if spec.dtype.startswith("float")}
        notes = [read_notes(self._folder(step_id)).facts for step_id in planned.history]
        found: dict[str, tuple[float, float]]
        found = next((facts["input_ranges"] for facts in notes if "input_ranges" in facts), {})
        return {name: (low, high) for name, (low, high) in found.items() if name in floats}

    @cached_property
    def _golden_folders(self) -> dict[str, Path]:
        return {
            planned.variant.id: self._folder(planned.goldens) for planned, _ in self.verdict.shipped
        }

    @cached_property
    def _golden_count(self) -> int:
        """How many samples are shipped: at least one, and no more than the models are large."""
        goldens = [(f, read_goldens(f)["goldens"]) for f in self._golden_folders.values()]
        first, given = goldens[0]
        sizes = [
            _size(first, golden["inputs"]) + sum(_size(f, own[n]["outputs"]) for f, own in goldens)
            for n, golden in enumerate(given)
        ]
        models = sum(file.size_bytes for file in self.writer.files.values() if file.role == "model")
        most = max(_GOLDEN_BYTES, models)
        count = sum(total <= most for total in itertools.accumulate(sizes))
        size = self.planned.profile.bundle
        return max(1, min(count, size.goldens) if size else count)

    def _goldens(self) -> tuple[list[Golden], bool]:
        """Write inputs once and outputs per variant; return the index and whether they are real."""
        folders = self._golden_folders
        indexes = {variant: read_goldens(folder)["goldens"] for variant, folder in folders.items()}
        first = next(iter(folders))
        goldens = []
        for n, golden in enumerate(indexes[first][: self._golden_count]):
            inputs = [
                self._tensor(folders[first], f"golden/{n}/input-{k}.bin", entry)
                for k, entry in enumerate(golden["inputs"])
            ]
            outputs = {
                variant: [
                    self._tensor(folder, f"golden/{n}/{variant}/output-{k}.bin", entry)
                    for k, entry in enumerate(indexes[variant][n]["outputs"])
                ]
                for variant, folder in folders.items()
            }
            goldens.append(Golden(inputs=inputs, outputs=outputs))
        return goldens, bool(read_notes(folders[first]).facts["real"])

    def _tensor(self, folder: Path, path: str, entry: dict[str, object]) -> GoldenTensor:
        data = (folder / str(entry["file"])).read_bytes()
        written = self.writer.add(path, data, role="golden")
        given = {key: value for key, value in entry.items() if key != "file"}
        return GoldenTensor.model_validate({"path": written, **given})

    def _user_file(self, name: str) -> None:
        path = self.job.loaded.carried(name)
        place = path.relative_to(self.job.loaded.folder).as_posix()
        self.writer.add(f"files/{place}", path.read_bytes(), role="file")

    def _runtime_files(self, variants: list[ManifestVariant]) -> None:
        context, app = self._context(variants), self._app()
        for file in render_family(self.planned.profile.family, context, app):
            self.writer.add(file.path, file.data, role=file.role, mode=file.mode)

    def _signature(self) -> tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]:
        """Return inputs and outputs; where the model tells no rank, the golden tensor does."""
        planned = self.verdict.shipped[0][0]
        model = self.execution.artifacts[planned.model].path / MODEL
        golden = read_goldens(self.execution.artifacts[planned.goldens].path)["goldens"][0]
        ranks = {e["name"]: len(e["shape"]) for e in (*golden["inputs"], *golden["outputs"])}
        inputs, outputs = (
            tuple(
                spec if spec.shape is not None else replace(spec, shape=("?",) * ranks[spec.name])
                for spec in specs
            )
            for specs in signature(read_outline(model))
        )
        return inputs, outputs

    def _app(self) -> App | None:
        """Return what the code of a phone's bundle is made from; others carry Python as it is."""
        profile = self.planned.profile
        if profile.device.min_version is None:
            return None
        return app_of(self.job.loaded.project, profile, *self._signature())

    def _context(self, variants: list[ManifestVariant]) -> BundleContext:
        project, profile = self.job.loaded.project, self.planned.profile
        inputs, outputs = self._signature()
        data = [f for f in self.writer.files.values() if f.role in ("model", "golden", "file")]
        examples = tuple(self._examples(inputs))
        return BundleContext(
            bundle_id=f"{project.name}-{project.version}-{profile.id}",
            name=project.name,
            version=project.version,
            target_title=profile.title,
            inputs=tuple(map(str, inputs)),
            outputs=tuple(map(str, outputs)),
            variants=tuple(self._line(variant) for variant in variants),
            left_out=tuple(f"{e.variant}, because {e.reason}" for e in self._left_out()),
            requirements=tuple(_pin(n, v) for n, v in self._packages().items()),
            example_inputs=examples,
            state=tuple(project.state.items()),
            prediction=prediction_lines(project, examples, outputs),
            providers=tuple(_provider_help(profile)),
            reduced_build=self._reduced_build(),
            packages=licensed(profile.runtime.packages) if profile.family == "android" else (),
            kotlin_version=KOTLIN_VERSION,
            native_libraries=_native_libraries(profile),
            data_size=f"{sum(file.size_bytes for file in data) / 1e6:.2f} MB",
            model_suffixes=tuple(sorted({PurePosixPath(v.model).suffix[1:] for v in variants})),
        )

    def _packages(self) -> dict[str, str]:
        shipped = (planned.variant for planned, _ in self.verdict.shipped)
        return packages(self.planned.profile, shipped)

    def _examples(self, inputs: tuple[TensorSpec, ...]) -> Iterator[ExampleInput]:
        """Yield the inputs that a caller gives, of the smallest sizes that the project lists."""
        project = self.job.loaded.project
        smallest = {name: sizes[0] for name, sizes in project.buckets.items()}
        for spec in inputs:
            described = project.inputs.get(spec.name)
            if described is None or described.mask is None:
                side = _EXAMPLE_SIDE if spec.name in project.pictures else 1
                shape = [
                    s if isinstance(s, int) else smallest.get(s, side) for s in spec.shape or ()
                ]
                value = f"np.zeros({shape}, {spec.dtype!r})"
                if spec.name in project.pictures and project.takes_files:
                    value = "np.fromfile('picture.jpg', 'uint8')"
                elif spec.name in project.texts:
                    value = "np.frombuffer('some text'.encode(), 'uint8')"
                yield ExampleInput(spec.name, value)

    def _operators(self) -> list[str]:
        """Return what a runtime for all the .ort files needs, as lines of a build's config.

        Each line is an operator set with operators and types; a build takes the union of lines.
        """
        configs = [
            self._folder(planned.shipped) / OPERATORS
            for planned, _ in self.verdict.shipped
            if planned.variant.model_format != "onnx"
        ]
        lines = [line for path in configs for line in path.read_text("utf-8").splitlines()]
        return sorted(set(lines))

    def _reduced_build(self) -> tuple[str, ...]:
        profile, operators = self.planned.profile, self._operators()
        pinned = profile.runtime.onnxruntime
        if not operators or pinned is None:
            return ()
        formats = [variant.variant.model_format for variant, _ in self.verdict.shipped]
        # Optimizations left to the session need an extended minimal build.
        extended = any(f != "onnx" and f.ort == "runtime" for f in formats)
        return build_command(
            profile.device.os,
            pinned[1],
            config=f'"$BUNDLE/models/{OPERATORS}"',
            extended=extended,
            ml_operators=any(line.startswith("ai.onnx.ml;") for line in operators),
        )

    def _line(self, variant: ManifestVariant) -> VariantLine:
        models = [bucket.model for bucket in variant.buckets] or [variant.model]
        size = sum(self.writer.files[path].size_bytes for path in self._with_weights(models))
        return VariantLine(variant.id, f"{size / 1e6:.2f} MB", _accuracy_text(variant.accuracy))

    def _with_weights(self, models: list[str]) -> set[str]:
        """Return models with the files that hold their weights, as paths in the bundle."""
        onnx = [path for path in models if path.endswith(".onnx")]
        found = [external_files(read_outline(self.writer.folder / path)) for path in onnx]
        return {*models, *(f"models/{name}" for names in found for name in names)}

    def _left_out(self) -> list[LeftOut]:
        return [
            *(LeftOut(variant=r.variant, reason=r.reason) for r in self.verdict.refused),
            *(LeftOut(variant=f.variant, reason=f.reason) for f in self.verdict.failed),
            *(LeftOut(variant=m.variant, reason=m.reason) for m in self.verdict.missed),
        ]

    def _history(self) -> list[str]:
        """Return what was done, a line per step and variant, shared steps once."""
        lines = []
        for planned, _ in self.verdict.shipped:
            for step_id in (*planned.history, planned.goldens):
                notes = read_notes(self.execution.artifacts[step_id].path)
                lines.append(f"{step_id}: {notes.done}")
        return list(dict.fromkeys(lines))

    def _manifest(
        self,
        variants: list[ManifestVariant],
        goldens: list[Golden],
        files: list[BundleFile],
        *,
        real_samples: bool,
    ) -> Manifest:
        project, facts, profile = self.job.loaded.project, self.job.facts, self.planned.profile
        inputs, outputs = self._signature()
        return Manifest(
            schema_version=1,
            name=project.name,
            version=project.version,
            target=profile.id,
            family=profile.family,
            model=SourceModel(
                name=facts.name,
                sha256=facts.sha256,
                opset=facts.opset,
                ir_version=facts.ir_version,
            ),
            inputs=[_tensor(spec) for spec in inputs],
            outputs=[_tensor(spec) for spec in outputs],
            constants=project.constants,
            state=project.state,
            input_descriptions=project.inputs,
            output_descriptions=project.outputs,
            preprocess=project.preprocess,
            variants=variants,
            left_out=self._left_out(),
            goldens=goldens,
            goldens_from="samples" if real_samples else "seeded random",
            runtime=self._packages(),
            provider_sources=profile.runtime.providers,
            built_on=BuildHost(
                os=platform.system(),
                processor=processor(),
                tools={
                    "edgepack": edgepack.__version__,
                    "python": platform.python_version(),
                    **{name: version(name) for name in _TOOLS},
                },
            ),
            steps=self._history(),
            plan_digest=bundle_digest(self.planned),
            provenance=self._provenance(),
            files=files,
        )

    def _provenance(self) -> Provenance:
        steps = {step.id: step for step in self.job.plan.steps}
        shipped = [planned for planned, _ in self.verdict.shipped]
        made = [steps[step_id] for planned in shipped for step_id in planned.history]
        judged = [steps[planned.evaluation] for planned in shipped if planned.evaluation]
        return Provenance(
            profile_sha256=profile_digest(self.planned.profile),
            calibration=self._samples(
                step.inputs.get(RECIPES[step.step.name].calibration)
                for step in made
                if step.step.name in RECIPES
            ),
            evaluation=self._samples(step.inputs["samples"] for step in judged),
        )

    def _samples(self, origins: Iterable[str | None]) -> SamplesUsed | None:
        """Return the one set of samples that steps read, if any of them reads one."""
        used = next((origin for origin in origins if origin), None)
        if used is None:
            return None
        artifact = self.execution.artifacts[used]
        # The notes say where the samples came from, which does not make them others.
        data = {name: sha256 for name, sha256 in artifact.files.items() if name != NOTES}
        return SamplesUsed(
            samples=read_notes(artifact.path).facts["samples"],
            sha256=hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest(),
        )


def add_onnx(writer: BundleWriter, model: Path, variant: str, name: str) -> str:
    """Write a model into ``models``, with its external data under the variant's name.

    The model is written anew to say where its data lies, so that two variants with data of their
    own do not want the same name; those with the same data share the file.

    Returns:
        The model's path in the bundle.
    """
    files = external_files(read_outline(model))
    if not files:
        return writer.add(f"models/{name}", model.read_bytes(), role="model")
    structure = read_structure(model)
    places = {}
    for file in files:
        path = f"models/{variant}.{file.removeprefix(f'{MODEL}.').removeprefix('model.')}"
        data = (model.parent / file).read_bytes()
        places[file] = PurePosixPath(writer.add(path, data, role="model")).name
    for tensor in external_tensors(structure):
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = places[entry.value]
    return writer.add(f"models/{name}", structure.SerializeToString(), role="model")


def _accuracy_text(found: Accuracy | NotMeasured) -> str:
    if isinstance(found, NotMeasured):
        return f"not measured: {found.reason}"
    fp32 = "" if isinstance(found.fp32, NotMeasured) else f", fp32 {found.fp32:.4f}"
    return f"{found.metric} {found.value:.4f}{fp32} ({found.samples} samples)"


def _size(folder: Path, entries: Iterable[dict[str, str]]) -> int:
    return sum((folder / entry["file"]).stat().st_size for entry in entries)


def _native_libraries(profile: Profile) -> tuple[str, ...]:
    """Return the libraries of the Android system that a target's providers load."""
    backends = (BACKENDS[variant.backend] for variant in profile.variants)
    return tuple(sorted({name for backend in backends for name in backend.native_libraries}))


def _provider_help(profile: Profile) -> Iterator[ProviderHelp]:
    """Yield where each provider comes from; commands that give several are there once."""
    seen: set[tuple[str, ...]] = set()
    for name, source in profile.runtime.providers.items():
        commands = tuple(source.commands)
        yield ProviderHelp(name, source.about, () if commands in seen else commands)
        seen.add(commands)


def _pin(name: str, version: str) -> str:
    """Return a package as ``requirements.txt`` or, for a bare version, Gradle spells it."""
    return f"{name}{version}" if version[:1] in "=<>~!" else f"{name}:{version}"


def _tensor(spec: TensorSpec) -> Tensor:
    return Tensor(name=spec.name, dtype=spec.dtype, shape=list(spec.shape or ()))
