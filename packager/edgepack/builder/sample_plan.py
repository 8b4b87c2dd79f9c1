"""Plans the steps that make samples, and hashes the user's files for them."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TypedDict

from edgepack.base.machine import find_processor
from edgepack.builder.inputs import PlanInputs
from edgepack.builder.plan import MODEL_SOURCE, PROJECT_SOURCE, PlanBuilder
from edgepack.errors import ProfileError, SamplesError
from edgepack.ondevice.runtime.edgepack_answers import read_labels
from edgepack.project.inputs import ImageInput
from edgepack.project.outputs import DetectionOutput
from edgepack.project.samples import SampleSource
from edgepack.samples.images import list_image_files
from edgepack.samples.label_kinds import LabelKind, find_label_kind, list_label_files
from edgepack.samples.sources import select_images
from edgepack.steps.comparing import PROBES
from edgepack.steps.graph.prepared import fix_sizes
from edgepack.steps.graph.unrolled import Unrolled
from edgepack.steps.in_graph.picture_samples import InGraphProbes, TensorSamples
from edgepack.steps.in_graph.pictures import PictureSamples
from edgepack.steps.in_graph.texts import name_tokenizer_input
from edgepack.steps.recipes.bucketed import find_bucket_dims
from edgepack.steps.samples import ImageSamples, NpzSamples, OnnxTestData, Part, PythonSamples


@dataclass(frozen=True)
class PlannedSamples:
    """The steps that make samples, by id; None where there are none."""

    calibration: str | None = None
    """Tensors that recipes take, like ``evaluation``."""
    evaluation: str | None = None
    frames: str | None = None
    """Tensors as given, whose state, if they have any, is not filled in."""
    given: str | None = None
    """Evaluation samples as a bundle's models take them."""
    real: str | None = None
    """The evaluation samples as given, or else the calibration samples."""
    probes: str | None = None
    """The samples that prove a finished model: ``real``, or generated pictures and texts."""

    @property
    def tensors(self) -> str | None:
        """The samples that prove the float model."""
        return self.evaluation or self.calibration


NO_SAMPLES = PlannedSamples()
"""The samples of a plan that proves nothing: none."""


def plan_samples(inputs: PlanInputs, builder: PlanBuilder) -> PlannedSamples:
    """Add the steps that make samples: as they are given, as tensors, along streams.

    Raises:
        ProfileError: A glob is invalid, or no input takes the images.
        SamplesError: A source of samples is missing or empty.
    """
    both = inputs.project.samples
    steps = _Steps(inputs, builder)
    calibration = steps.add_given("calibration", both.calibration)
    given = steps.add_given("evaluation", both.evaluation)
    tensors, evaluation = map(steps.add_tensors, (calibration, given))
    frames = evaluation or tensors
    if inputs.state:
        calibration, given = (steps.add_unrolled(each, frames) for each in (calibration, given))
        tensors, evaluation = calibration, given
    real = given or calibration
    return PlannedSamples(
        calibration=tensors,
        evaluation=evaluation,
        frames=frames,
        given=given,
        real=real,
        probes=steps.add_in_graph_probes(real) if inputs.in_graph else real,
    )


def plan_tokenizers(inputs: PlanInputs, builder: PlanBuilder) -> dict[str, str]:
    """Return the files of the tokenizers that become part of the model, by a step's inputs.

    Raises:
        SamplesError: One cannot be read.
    """
    sources = {}
    for number, tokens in enumerate(inputs.project.texts.values()):
        path, name = inputs.loaded.folder / tokens.file, name_tokenizer_input(number)
        sources[name] = builder.add_source(name, path, hash_file(path))
    return sources


class _Labelled(TypedDict):
    classes: tuple[str, ...]
    kind: LabelKind
    label_count: int


@dataclass(frozen=True)
class _Steps:
    inputs: PlanInputs
    builder: PlanBuilder

    def add_given(self, role: Part, source: SampleSource | None) -> str | None:
        """Add the step that makes one sample set, and return its id."""
        if source is None:
            return None
        if source.path is not None:
            return self._add_npz(role, source)
        if source.images is not None:
            return self._add_images(role, source)
        if source.test_data is not None:
            return self._add_test_data(role, source)
        if source.python is None:
            raise TypeError("a sample source has exactly one origin")
        interpreter = self.inputs.project.interpreter
        step = PythonSamples(
            self.inputs.signature,
            source.python,
            interpreter,
            source.limit,
            self.inputs.constants,
            self.inputs.state,
        )
        return self.builder.add_step(step, project=PROJECT_SOURCE)

    def add_tensors(self, samples: str | None) -> str | None:
        """Add the step that turns pictures and texts into tensors for the model itself."""
        if samples is None or not self.inputs.in_graph:
            return samples
        project = self.inputs.project
        described = tuple(project.pictures.items()), tuple(project.texts.items())
        step = TensorSamples(fix_sizes(self.inputs.facts.inputs, self.inputs.dims), *described)
        return self.builder.add_step(
            step, samples=samples, **plan_tokenizers(self.inputs, self.builder)
        )

    def add_unrolled(self, samples: str | None, frames: str | None) -> str | None:
        """Add the step that fills in the state of frames, so that each is independent."""
        if samples is None:
            return None
        model = self.builder.add_step(self.inputs.prepared, source=MODEL_SOURCE, samples=frames)
        step = Unrolled(self.inputs.state_pairs, find_processor())
        return self.builder.add_step(step, model=model, samples=samples)

    def add_in_graph_probes(self, real: str | None) -> str:
        sizes = find_bucket_dims(self.inputs.signature, self.inputs.project.buckets)
        project = self.inputs.project
        pictures, texts = tuple(project.pictures), tuple(project.texts)
        step = InGraphProbes(self.inputs.signature, pictures, sizes, PROBES, texts)
        return self.builder.add_step(step, samples=real)

    def _add_npz(self, role: str, source: SampleSource) -> str:
        path = self.inputs.loaded.folder / str(source.path)
        origin = self.builder.add_source(role, path, hash_file(path))
        chosen = (
            self.inputs.signature,
            source.labels,
            source.limit,
            self.inputs.constants,
            self.inputs.state,
        )
        return self.builder.add_step(NpzSamples(*chosen), source=origin)

    def _add_images(self, role: Part, source: SampleSource) -> str:
        folder = self.inputs.loaded.folder / str(source.images)
        part: Part = role if self._has_one_folder() else "all"
        files = select_images(folder, source.limit, part)
        digest = hashlib.sha256()
        for path in files:
            digest.update(os.fsencode(path.relative_to(folder)))
            digest.update(f"\0{hash_file(path)}\n".encode())
        kind = self._find_label_kind(source)
        if source.labels:
            # Which labels the images get depends on the names of those not selected, too.
            for path in list_image_files(folder):
                digest.update(os.fsencode(path.relative_to(folder)) + b"\0")
        if source.labels and source.labels != "folders":
            labels = self.inputs.loaded.folder / source.labels
            for path in list_label_files(labels, kind):
                digest.update(os.fsencode(path.relative_to(labels)))
                digest.update(f"\0{hash_file(path)}\n".encode())
        input_name, image = self._find_image_input()
        classes = self._find_class_names() if source.labels else ()
        chosen = (self.inputs.signature, input_name, image, source.labels, source.limit, part)
        project, count = self.inputs.project, self._count_labels(kind)
        labelled: _Labelled = {"classes": classes, "kind": kind, "label_count": count}
        step = (
            PictureSamples(*chosen, **labelled, as_files=project.takes_files)
            if project.pictures
            else ImageSamples(*chosen, **labelled)
        )
        origin = self.builder.add_source(role, folder, digest.hexdigest())
        return self.builder.add_step(step, source=origin, project=PROJECT_SOURCE)

    def _find_label_kind(self, source: SampleSource) -> LabelKind:
        kinds = {each.kind for each in self.inputs.project.outputs.values()}
        return find_label_kind(source, self.inputs.loaded.folder, kinds)

    def _count_labels(self, kind: LabelKind) -> int:
        """Return how many keypoints an object has, or how many decisions a sample; else 0."""
        outputs = self.inputs.project.outputs
        if kind == "keypoints":
            detections = [each for each in outputs.values() if isinstance(each, DetectionOutput)]
            return next((each.keypoints for each in detections if each.keypoints), 0)
        decided = [name for name, each in outputs.items() if each.kind == "probability"]
        shapes = {spec.name: spec.shape for spec in self.inputs.facts.outputs}
        shape = shapes.get(decided[0]) if decided and kind == "class sets" else None
        sizes = [size for size in (shape or ())[1:] if isinstance(size, int)]
        return prod(sizes) if sizes else 0

    def _has_one_folder(self) -> bool:
        """Return whether calibration and evaluation take images from one folder."""
        samples = self.inputs.project.samples
        one, other = (
            source and source.images and (self.inputs.loaded.folder / source.images).resolve()
            for source in (samples.calibration, samples.evaluation)
        )
        return bool(one) and one == other

    def _find_class_names(self) -> tuple[str, ...]:
        """Return the class names of the first detection; empty without names."""
        outputs = self.inputs.project.outputs.values()
        files = [each.labels for each in outputs if isinstance(each, DetectionOutput)]
        if not files or files[0] is None:
            return ()
        return tuple(
            read_labels(self.inputs.loaded.find_file(files[0]).read_text(encoding="utf-8"))
        )

    def _find_image_input(self) -> tuple[str, ImageInput]:
        inputs = self.inputs.project.inputs.items()
        described = [(name, d.image) for name, d in inputs if d.image is not None]
        if len(described) != 1 or len(self.inputs.signature) != 1:
            raise ProfileError(
                f"samples from images need a model with one input and its description; the model"
                f" has {len(self.inputs.signature)}, described are {len(described)}",
                hint="add to edgepack.yaml: inputs: {NAME: {image: {resize: {short_side: 256,"
                " crop: 224}, scale: 0.00392157}}}, or give samples as .npz",
                where=self.inputs.loaded.locate("samples"),
            )
        return described[0]

    def _add_test_data(self, role: str, source: SampleSource) -> str:
        pattern = str(source.test_data)
        where = self.inputs.loaded.locate("samples", role, "test_data")
        try:
            folders = sorted(
                path for path in self.inputs.loaded.folder.glob(pattern) if path.is_dir()
            )
        except (ValueError, NotImplementedError) as error:
            raise ProfileError(
                f"'test_data' cannot be {pattern!r}: {error}",
                hint=f"give a glob relative to {str(self.inputs.loaded.folder)!r}, such as"
                " model/test_data_set_*",
                where=where,
            ) from error
        folders = folders[: source.limit]
        if not folders:
            raise SamplesError(
                f"no folder matches {pattern!r}",
                hint=f"the glob is relative to {str(self.inputs.loaded.folder)!r}",
                where=where,
            )
        inputs: dict[str, str | None] = {}
        for n, folder in enumerate(folders):
            digest = hashlib.sha256()
            for path in sorted(folder.glob("input_*.pb")):
                digest.update(f"{path.name}\0{hash_file(path)}\n".encode())
            inputs[str(n)] = self.builder.add_source(f"{role}-{n}", folder, digest.hexdigest())
        step = OnnxTestData(self.inputs.whole_signature, self.inputs.constants, self.inputs.state)
        return self.builder.add_step(step, **inputs)


def hash_file(path: Path) -> str:
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
