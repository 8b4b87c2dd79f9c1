"""From a project and profiles to a plan. Reads digests of the user's files, runs nothing."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from edgepack.data.images import image_files
from edgepack.data.sources import selected_images
from edgepack.errors import ProfileError, SamplesError, UsageError, nearest
from edgepack.machine import processor
from edgepack.model.facts import ModelFacts
from edgepack.plan import Plan, PlanBuilder, PlannedBundle, PlannedVariant
from edgepack.profile import Profile, Variant
from edgepack.project import ImageInput, LoadedProject, SampleSource
from edgepack.steps.evaluation import Evaluation
from edgepack.steps.fp32 import Fp32
from edgepack.steps.goldens import Goldens
from edgepack.steps.int8_static import Int8Static
from edgepack.steps.opset import AtLeastOpset
from edgepack.steps.prepared import Prepared, fixed_signature
from edgepack.steps.samples import ImageSamples, NpzSamples, OnnxTestData, Part, PythonSamples
from edgepack.steps.simplified import Simplified

GOLDEN_COUNT = 4
# Starting caps for goldens met on the same execution provider.
GOLDEN_CAP_DB = {"fp32": 60.0, "int8-static": 20.0}
INT8_OPSET = 13

NO_CALIBRATION = (
    "int8-static needs calibration samples; add to edgepack.yaml:"
    " samples: {calibration: {path: samples.npz}}"
)


def make_plan(
    loaded: LoadedProject,
    facts: ModelFacts,
    profiles: Sequence[Profile],
    variants: Sequence[str] = (),
) -> Plan:
    """Return the plan of a build for the given targets, or for only some of their variants.

    Raises:
        UsageError: A variant that was asked for is not there, or cannot be built.
        ProfileError: The project names an input that the model does not have, or a glob that is
            none.
        SamplesError: A source of samples is missing or empty.
    """
    planner = _Planner(loaded, facts, PlanBuilder())
    return planner.builder.plan([planner.bundle(profile, variants) for profile in profiles])


@dataclass
class _Planner:
    loaded: LoadedProject
    facts: ModelFacts
    builder: PlanBuilder

    def __post_init__(self) -> None:
        project = self.loaded.project
        for name in project.inputs:
            if name not in [spec.name for spec in self.facts.inputs]:
                raise ProfileError(
                    f"the model has no input {name!r}",
                    hint=nearest(name, [spec.name for spec in self.facts.inputs]),
                    where=self.loaded.where("inputs", name),
                )
        outputs = [spec.name for spec in self.facts.outputs]
        for name in project.outputs:
            if name not in outputs:
                raise ProfileError(
                    f"the model has no output {name!r}",
                    hint=nearest(name, outputs),
                    where=self.loaded.where("outputs", name),
                )
        self.scores_output = self.loaded.scores_output(outputs)
        self.signature = fixed_signature(
            self.facts.inputs, project.dims, self.loaded.where("dims") or "dims"
        )
        self.model = self.builder.source("model", self.loaded.model_path, self.facts.sha256)
        self.folder = self.builder.source("project", self.loaded.folder, "")
        both = project.samples
        folders = [self._image_folder(source) for source in (both.calibration, both.evaluation)]
        self.shared_folder = folders[0] is not None and folders[0] == folders[1]
        self.calibration = self._samples("calibration", both.calibration)
        self.evaluation = self._samples("evaluation", both.evaluation)

    def bundle(self, profile: Profile, wanted: Sequence[str]) -> PlannedBundle:
        """Return the planned bundle of one target."""
        chosen = [profile.variant(name) for name in wanted] or profile.variants
        planned, left_out = [], []
        for variant in chosen:
            if variant.recipe == "int8-static" and self.calibration is None:
                if wanted:
                    raise UsageError(
                        f"variant {variant.id!r} cannot be built without calibration samples",
                        hint="add to edgepack.yaml: samples: {calibration: {path: samples.npz}}",
                        where="--variant",
                    )
                left_out.append((variant.id, NO_CALIBRATION))
                continue
            planned.append(self._variant(profile, variant))
        return PlannedBundle(profile, tuple(planned), tuple(left_out))

    def _variant(self, profile: Profile, variant: Variant) -> PlannedVariant:
        probes = self.evaluation or self.calibration
        runtime = profile.runtime
        dims = tuple(sorted(self.loaded.project.dims.items()))
        prepared = self.builder.step(
            Prepared(dims, runtime.max_ir, runtime.max_opset), source=self.model, samples=probes
        )
        simplified = self.builder.step(Simplified(), model=prepared, samples=probes)
        history = [prepared, simplified]
        if variant.recipe == "int8-static" and variant.dialect is not None:
            opset = self.builder.step(AtLeastOpset(INT8_OPSET), model=simplified, samples=probes)
            model = self.builder.step(
                Int8Static(variant.dialect, runtime.max_ir), model=opset, samples=self.calibration
            )
            history.append(opset)
        else:
            model = self.builder.step(Fp32(runtime.max_ir), model=simplified)
        goldens = self.builder.step(
            Goldens(GOLDEN_COUNT, GOLDEN_CAP_DB[variant.recipe], processor()),
            model=model,
            samples=probes,
        )
        return PlannedVariant(
            variant, model, goldens, self._evaluation(prepared, model), (*history, model)
        )

    def _evaluation(self, prepared: str, model: str) -> str | None:
        source = self.loaded.project.samples.evaluation
        if self.evaluation is None or source is None:
            return None
        metric = source.metric
        hooked = not isinstance(metric, str | None)
        return self.builder.step(
            Evaluation(metric, self.scores_output, self.loaded.project.interpreter, processor()),
            reference=prepared,
            model=model,
            samples=self.evaluation,
            project=self.folder if hooked else None,
        )

    def _samples(self, role: Part, source: SampleSource | None) -> str | None:
        """Add the step that makes one sample set, and return its id."""
        if source is None:
            return None
        if source.path is not None:
            return self._npz(role, source)
        if source.images is not None:
            return self._images(role, source)
        if source.test_data is not None:
            return self._test_data(role, source)
        if source.python is None:
            raise TypeError("a sample source has exactly one origin")
        interpreter = self.loaded.project.interpreter
        step = PythonSamples(self.signature, source.python, interpreter, source.limit)
        return self.builder.step(step, project=self.folder)

    def _npz(self, role: str, source: SampleSource) -> str:
        path = self.loaded.folder / str(source.path)
        origin = self.builder.source(role, path, file_digest(path))
        step = NpzSamples(self.signature, source.labels, source.limit)
        return self.builder.step(step, source=origin)

    def _image_folder(self, source: SampleSource | None) -> Path | None:
        if source is None or source.images is None:
            return None
        return (self.loaded.folder / source.images).resolve()

    def _images(self, role: Part, source: SampleSource) -> str:
        folder = self.loaded.folder / str(source.images)
        part: Part = role if self.shared_folder else "all"
        files = selected_images(folder, source.limit, part)
        digest = hashlib.sha256()
        for path in files:
            digest.update(os.fsencode(path.relative_to(folder)))
            digest.update(f"\0{file_digest(path)}\n".encode())
        if source.labels:
            # Which labels the images get depends on the names of those not selected, too.
            for path in image_files(folder):
                digest.update(os.fsencode(path.relative_to(folder)) + b"\0")
        if source.labels and source.labels != "folders":
            digest.update(file_digest(self.loaded.folder / source.labels).encode())
        input_name, image = self._image_input()
        step = ImageSamples(self.signature, input_name, image, source.labels, source.limit, part)
        origin = self.builder.source(role, folder, digest.hexdigest())
        return self.builder.step(step, source=origin, project=self.folder)

    def _image_input(self) -> tuple[str, ImageInput]:
        described = list(self.loaded.project.inputs.items())
        if len(described) != 1 or len(self.signature) != 1:
            raise ProfileError(
                f"samples from images need a model with one input and its description; the model"
                f" has {len(self.signature)}, described are {len(described)}",
                hint="add to edgepack.yaml: inputs: {NAME: {image: {resize: {short_side: 256,"
                " crop: 224}, scale: 0.00392157}}}, or give samples as .npz",
                where=self.loaded.where("samples"),
            )
        name, description = described[0]
        return name, description.image

    def _test_data(self, role: str, source: SampleSource) -> str:
        pattern = str(source.test_data)
        where = self.loaded.where("samples", role, "test_data")
        try:
            folders = sorted(path for path in self.loaded.folder.glob(pattern) if path.is_dir())
        except (ValueError, NotImplementedError) as error:
            raise ProfileError(
                f"'test_data' cannot be {pattern!r}: {error}",
                hint=f"give a glob relative to {str(self.loaded.folder)!r}, such as"
                " model/test_data_set_*",
                where=where,
            ) from error
        folders = folders[: source.limit]
        if not folders:
            raise SamplesError(
                f"no folder matches {pattern!r}",
                hint=f"the glob is relative to {str(self.loaded.folder)!r}",
                where=where,
            )
        inputs: dict[str, str | None] = {}
        for n, folder in enumerate(folders):
            digest = hashlib.sha256()
            for path in sorted(folder.glob("input_*.pb")):
                digest.update(f"{path.name}\0{file_digest(path)}\n".encode())
            inputs[str(n)] = self.builder.source(f"{role}-{n}", folder, digest.hexdigest())
        return self.builder.step(OnnxTestData(self.signature), **inputs)


def file_digest(path: Path) -> str:
    """Return the sha256 of a file.

    Raises:
        SamplesError: It cannot be read.
    """
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise SamplesError(
            f"cannot read {str(path)!r}: {error.strerror}", hint="check the path in edgepack.yaml"
        ) from error
