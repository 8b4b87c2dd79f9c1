"""Plans the steps that make samples, and hashes the user's files for them."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Literal, TypedDict

from edgepack.base.machine import find_processor
from edgepack.builder.inputs import PlanInputs
from edgepack.builder.plan import MODEL_SOURCE, PROJECT_SOURCE, PlanBuilder
from edgepack.errors import ProfileError, SamplesError
from edgepack.ondevice.runtime.edgepack_answers import read_labels
from edgepack.project.inputs import ImageInput
from edgepack.project.outputs import DetectionOutput
from edgepack.project.samples import SampleSource
from edgepack.samples.images import list_image_files
from edgepack.samples.label_kinds import IN_PICTURES, LabelKind, find_label_kind, list_label_files
from edgepack.samples.sounds import list_sound_files
from edgepack.samples.sources import select_files, select_images
from edgepack.samples.videos import FrameChoice, import_decoder, list_videos
from edgepack.steps.comparing import PROBES
from edgepack.steps.graph.prepared import fix_sizes
from edgepack.steps.graph.unrolled import Unrolled
from edgepack.steps.in_graph.picture_samples import InGraphProbes, TensorSamples
from edgepack.steps.in_graph.pictures import PictureSamples
from edgepack.steps.in_graph.texts import name_tokenizer_input
from edgepack.steps.media_samples import SoundSamples, VideoSamples
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
    references: tuple[str, ...] = ()
    """Those of the steps above that also have what a framework gave for the samples."""

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
        references=tuple(dict.fromkeys(steps.references)),
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
    references: list[str] = field(default_factory=list)

    def add_given(self, role: Part, source: SampleSource | None) -> str | None:
        """Add the step that makes one sample set, and return its id."""
        if source is None:
            return None
        kinds: dict[str, Callable[[Part, SampleSource], str]] = {
            "path": self._add_npz,
            "images": self._add_images,
            "video": self._add_video,
            "sounds": self._add_sounds,
            "test_data": self._add_test_data,
            "python": self._add_python,
        }
        (kind,) = (key for key in kinds if getattr(source, key) is not None)
        return kinds[kind](role, source)

    def _add_python(self, _: Part, source: SampleSource) -> str:
        interpreter = self.inputs.project.interpreter
        step = PythonSamples(
            self.inputs.signature,
            str(source.python),
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
        if not source.reference:
            return self.builder.add_step(NpzSamples(*chosen), source=origin)
        self._require_plain(role)
        keys, outputs = tuple(sorted(source.reference.items())), self.inputs.facts.outputs
        step = self.builder.add_step(NpzSamples(*chosen, keys, outputs), source=origin)
        self.references.append(step)
        return step

    def _require_plain(self, role: str) -> None:
        """Check that what a framework gave can be compared sample by sample.

        Raises:
            ProfileError: The model takes pictures or texts, or has a state.
        """
        if self.inputs.in_graph or self.inputs.state:
            raise ProfileError(
                "'reference' holds outputs for tensors that are independent of each other, and the"
                f" model {'has a state' if self.inputs.state else 'takes pictures or texts'}",
                hint="compare in a project of its own, without 'state' and 'preprocess'",
                where=self.inputs.loaded.locate("samples", role, "reference"),
            )

    def _add_images(self, role: Part, source: SampleSource) -> str:
        folder = self.inputs.loaded.folder / str(source.images)
        part: Part = role if self._is_shared("images") else "all"
        kind = self._find_label_kind(source)
        content = _describe_files(select_images(folder, source.limit, part), folder)
        content += self._describe_labels(source, kind, list_image_files(folder), folder)
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
        origin = self.builder.add_source(role, folder, hashlib.sha256(content).hexdigest())
        return self.builder.add_step(step, source=origin, project=PROJECT_SOURCE)

    def _describe_labels(
        self, source: SampleSource, kind: LabelKind, files: Sequence[Path], folder: Path
    ) -> bytes:
        """Return what decides the labels of files: also the names of those not selected."""
        if not source.labels:
            return b""
        found = b"".join(os.fsencode(path.relative_to(folder)) + b"\0" for path in files)
        if source.labels != "folders":
            labels = self.inputs.loaded.folder / source.labels
            found += _describe_files(list_label_files(labels, kind), labels)
        return found

    def _add_video(self, role: Part, source: SampleSource) -> str:
        import_decoder()
        path = self.inputs.loaded.folder / str(source.video)
        content = _describe_files(list_videos(path), path)
        project = self.inputs.project
        if project.takes_files:
            raise ProfileError(
                "samples from a video are pixels, and the model takes the bytes of image files",
                hint="leave 'decode_image' out, or give the frames as a folder of images",
                where=self.inputs.loaded.locate("samples", role, "video"),
            )
        input_name, image = self._find_image_input("video")
        step = VideoSamples(
            self.inputs.signature,
            input_name,
            image,
            FrameChoice(source.every, source.fps),
            source.limit,
            role if self._is_shared("video") else "all",
            self.inputs.state,
            as_pixels=bool(project.pictures),
        )
        origin = self.builder.add_source(role, path, hashlib.sha256(content).hexdigest())
        return self.builder.add_step(step, source=origin)

    def _add_sounds(self, role: Part, source: SampleSource) -> str:
        folder = self.inputs.loaded.folder / str(source.sounds)
        part: Part = role if self._is_shared("sounds") else "all"
        kind = self._find_label_kind(source)
        self._check_sound_labels(role, source, kind)
        chosen = select_files(folder, source.limit, part, list_sound_files)
        content = _describe_files(chosen, folder)
        content += self._describe_labels(source, kind, list_sound_files(folder), folder)
        inputs = self.inputs.project.inputs.items()
        described = [(name, d.sound) for name, d in inputs if d.sound is not None]
        if len(described) != 1 or self._count_free() != 1:
            raise ProfileError(
                "samples from sounds need a model with one input and its description; the model"
                f" has {self._count_free()}, described are {len(described)}",
                hint="add to edgepack.yaml: inputs: {NAME: {sound: {rate: 16000, length: 16000}}},"
                " or give samples as .npz",
                where=self.inputs.loaded.locate("samples"),
            )
        input_name, sound = described[0]
        about = (self.inputs.signature, input_name, sound, source.labels, source.limit, part)
        step = SoundSamples(
            *about, self.inputs.state, kind=kind, label_count=self._count_labels(kind)
        )
        origin = self.builder.add_source(role, folder, hashlib.sha256(content).hexdigest())
        return self.builder.add_step(step, source=origin, project=PROJECT_SOURCE)

    def _check_sound_labels(self, role: Part, source: SampleSource, kind: LabelKind) -> None:
        wrong = kind in (*IN_PICTURES, "pictures")
        if source.labels and (wrong or self.inputs.state):
            why, hint = f"a sound has no {kind} as labels", "name a CSV of file,label, or 'folders'"
            if not wrong:
                why = "with 'state' a sound is a stream of windows, which have a label each"
                hint = "give windows and their labels as .npz, or with a function"
            raise ProfileError(
                why,
                hint=hint,
                where=self.inputs.loaded.locate("samples", role, "labels"),
            )

    def _count_free(self) -> int:
        """Return how many inputs samples have beside the state."""
        return len(self.inputs.signature) - len(self.inputs.state)

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

    def _is_shared(self, key: Literal["images", "video", "sounds"]) -> bool:
        """Return whether calibration and evaluation have one source."""
        samples = self.inputs.project.samples
        one, other = (
            (path := getattr(source, key, None)) and (self.inputs.loaded.folder / path).resolve()
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

    def _find_image_input(self, source: str = "images") -> tuple[str, ImageInput]:
        inputs = self.inputs.project.inputs.items()
        described = [(name, d.image) for name, d in inputs if d.image is not None]
        if len(described) != 1 or self._count_free() != 1:
            raise ProfileError(
                f"samples from {source} need a model with one input and its description; the model"
                f" has {self._count_free()}, described are {len(described)}",
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
            for path in sorted((*folder.glob("input_*.pb"), *folder.glob("output_*.pb"))):
                digest.update(f"{path.name}\0{hash_file(path)}\n".encode())
            inputs[str(n)] = self.builder.add_source(f"{role}-{n}", folder, digest.hexdigest())
        plain = not (self.inputs.in_graph or self.inputs.state)
        has_outputs = plain and any(any(folder.glob("output_*.pb")) for folder in folders)
        outputs = tuple(spec.name for spec in self.inputs.facts.outputs) if has_outputs else ()
        taken = (self.inputs.whole_signature, self.inputs.constants, self.inputs.state)
        step = self.builder.add_step(OnnxTestData(*taken, outputs), **inputs)
        if has_outputs:
            self.references.append(step)
        return step


def _describe_files(files: Iterable[Path], folder: Path) -> bytes:
    """Return what a hash of files is made of: the path and content of each."""
    return b"".join(
        os.fsencode(path.relative_to(folder)) + f"\0{hash_file(path)}\n".encode() for path in files
    )


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
