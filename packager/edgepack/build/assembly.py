"""From step outputs to a bundle on disk."""

from __future__ import annotations

import platform
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path

import edgepack
from edgepack.build.cache import StepCache
from edgepack.build.execution import Execution
from edgepack.build.judging import Verdict
from edgepack.bundle.archive import copy_file, write_archive
from edgepack.bundle.manifest import (
    Accuracy,
    BuildHost,
    BundleFile,
    Golden,
    GoldenTensor,
    LeftOut,
    Manifest,
    ManifestVariant,
    SourceModel,
    Tensor,
)
from edgepack.bundle.reading import Bundle, load_bundle
from edgepack.bundle.writing import BundleWriter, replacing
from edgepack.errors import BundleError
from edgepack.machine import processor
from edgepack.model.facts import ModelFacts, TensorSpec, signature
from edgepack.model.reading import read_structure
from edgepack.plan import Plan, PlannedBundle, PlannedVariant, bundle_digest
from edgepack.project import Limits, LoadedProject
from edgepack.render import BundleContext, ExampleInput, VariantLine, render_family
from edgepack.steps.base import MODEL, read_notes
from edgepack.steps.goldens import read_goldens

# Their versions decide the bytes of a bundle.
_TOOLS = ("numpy", "onnx", "onnxruntime", "onnxsim", "pillow")


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
        BundleError: The place cannot be written, or one of the project's files is missing.
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
        variants = [self._variant(planned, accuracy) for planned, accuracy in self.verdict.shipped]
        goldens, real = self._goldens()
        for name in self.job.loaded.project.files:
            self._user_file(name)
        self._runtime_files(variants)
        return self.writer.finish(
            lambda files: self._manifest(variants, goldens, files, real_samples=real)
        )

    def _variant(self, planned: PlannedVariant, accuracy: Accuracy | None) -> ManifestVariant:
        variant = planned.variant
        folder = self.execution.artifacts[planned.model].path
        data = (folder / MODEL).read_bytes()
        path = self.writer.add(f"models/{variant.id}.onnx", data, role="model")
        for extra in sorted(folder.glob(f"{MODEL}.*")):
            self.writer.add(f"models/{extra.name}", extra.read_bytes(), role="model")
        goldens = read_goldens(self.execution.artifacts[planned.goldens].path)
        return ManifestVariant(
            id=variant.id,
            backend=variant.backend,
            recipe=variant.recipe,
            model=path,
            model_sha256=self.writer.files[path].sha256,
            providers=variant.providers,
            placement=variant.placement,
            session=variant.session,
            requires=variant.requires,
            min_sqnr_db=goldens["min_sqnr_db"],
            accuracy=accuracy,
        )

    def _goldens(self) -> tuple[list[Golden], bool]:
        """Write inputs once and outputs per variant; return the index and whether they are real."""
        folders = {
            planned.variant.id: self.execution.artifacts[planned.goldens].path
            for planned, _ in self.verdict.shipped
        }
        indexes = {variant: read_goldens(folder)["goldens"] for variant, folder in folders.items()}
        first = next(iter(folders))
        goldens = []
        for n, golden in enumerate(indexes[first]):
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
        return GoldenTensor.model_validate(
            {"path": written, **{key: entry[key] for key in ("name", "dtype", "shape")}}
        )

    def _user_file(self, name: str) -> None:
        folder = self.job.loaded.folder
        path = (folder / name).resolve()
        if not path.is_relative_to(folder) or not path.is_file():
            raise BundleError(
                f"the file {name!r} is not in the project's folder",
                hint="'files' lists files beside edgepack.yaml, relative to it",
                where=self.job.loaded.where("files"),
            )
        place = path.relative_to(folder).as_posix()
        self.writer.add(f"files/{place}", path.read_bytes(), role="file")

    def _runtime_files(self, variants: list[ManifestVariant]) -> None:
        for file in render_family(self.planned.profile.family, self._context(variants)):
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
            for specs in signature(read_structure(model))
        )
        return inputs, outputs

    def _context(self, variants: list[ManifestVariant]) -> BundleContext:
        project, profile = self.job.loaded.project, self.planned.profile
        inputs, outputs = self._signature()
        return BundleContext(
            bundle_id=f"{project.name}-{project.version}-{profile.id}",
            name=project.name,
            version=project.version,
            target_title=profile.title,
            inputs=tuple(map(str, inputs)),
            outputs=tuple(map(str, outputs)),
            variants=tuple(self._line(variant) for variant in variants),
            left_out=tuple(f"{e.variant}, because {e.reason}" for e in self._left_out()),
            requirements=tuple(f"{n}{v}" for n, v in sorted(profile.runtime.packages.items())),
            example_inputs=tuple(map(_example_input, inputs)),
        )

    def _line(self, variant: ManifestVariant) -> VariantLine:
        size = self.writer.files[variant.model].size_bytes
        found = variant.accuracy
        accuracy = (
            f"{found.metric} {found.value:.4f}, fp32 {found.fp32:.4f} ({found.samples} samples)"
            if found
            else "not measured: the project has no evaluation samples"
        )
        return VariantLine(variant.id, f"{size / 1e6:.2f} MB", accuracy)

    def _left_out(self) -> list[LeftOut]:
        return [
            *(LeftOut(variant=v, reason=reason) for v, reason in self.planned.left_out),
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
            input_descriptions=project.inputs,
            output_descriptions=project.outputs,
            variants=variants,
            left_out=self._left_out(),
            goldens=goldens,
            goldens_from="samples" if real_samples else "seeded random",
            runtime=dict(sorted(profile.runtime.packages.items())),
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
            files=files,
        )


def _example_input(spec: TensorSpec) -> ExampleInput:
    shape = [size if isinstance(size, int) else 1 for size in spec.shape or ()]
    return ExampleInput(spec.name, str(shape), spec.dtype)


def _tensor(spec: TensorSpec) -> Tensor:
    return Tensor(name=spec.name, dtype=spec.dtype, shape=list(spec.shape or ()))
