"""Steps that turn sources of samples into sets on disk, checked against the model's inputs."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np

from edgepack.base.arrays import Array
from edgepack.errors import StepError
from edgepack.model.facts import TensorSpec
from edgepack.ondevice.runtime import edgepack_images as images
from edgepack.project.inputs import ImageInput
from edgepack.samples.constants import Constant, drop_constants, make_constant_arrays
from edgepack.samples.images import read_image_size
from edgepack.samples.label_kinds import IN_PICTURES, LabelKind
from edgepack.samples.read_labels import Labelled, read_labels
from edgepack.samples.sample_set import Sample, SampleSet, write_sample_set
from edgepack.samples.sources import (
    read_image_samples,
    read_npz_references,
    read_npz_samples,
    read_onnx_references,
    read_onnx_test_data,
    run_python_samples,
    select_images,
)
from edgepack.samples.spreading import choose_spread
from edgepack.samples.streams import add_first_state
from edgepack.steps.base import Inputs, Notes

REFERENCES = "references.npz"
MOST_REFERENCES = 32
"""How many samples are compared with what a framework gave."""
Part = Literal["all", "calibration", "evaluation"]


class SamplesStep:
    """What the steps below share: nothing to check first, and a set that reads back."""

    libraries: ClassVar[tuple[str, ...]] = ("numpy",)
    cacheable = True

    def check(self, inputs: Inputs) -> None:
        """Accept any inputs: reading them is the check."""

    def verify(self, inputs: Inputs, out: Path) -> None:
        """Read every sample back.

        Raises:
            StepError: The set is shorter than its index says.
        """
        del inputs
        samples = SampleSet.read(out)
        if not all(sample for sample in samples):
            raise StepError("the sample set does not read back", hint="build with --no-cache")


def make_set_notes(out: Path, origin: str) -> Notes:
    """Return a step's notes about the set that it wrote."""
    samples = SampleSet.read(out)
    labelled = "with labels" if samples.labels is not None else "without labels"
    return Notes(f"{len(samples)} samples {labelled} from {origin}", {"samples": len(samples)})


def write_references(out: Path, found: Mapping[int, Mapping[str, Array]]) -> None:
    """Write what a framework gave, by a sample's number and by output, beside a set."""
    arrays = {f"{k}/{name}": value for k, values in found.items() for name, value in values.items()}
    np.savez(out / REFERENCES, **arrays)  # type: ignore[arg-type]


def read_references(folder: Path) -> dict[int, dict[str, Array]]:
    """Return what :func:`write_references` wrote."""
    found: dict[int, dict[str, Array]] = {}
    with np.load(folder / REFERENCES, allow_pickle=False) as file:
        for key in file.files:
            number, _, name = key.partition("/")
            found.setdefault(int(number), {})[name] = file[key]
    return found


@dataclass(frozen=True)
class NpzSamples(SamplesStep):
    """Samples from an ``.npz``. Input: ``source``, the file."""

    name: ClassVar[str] = "npz-samples"
    signature: tuple[TensorSpec, ...]
    labels_key: str | None
    limit: int | None
    constants: tuple[Constant, ...] = ()
    """Further inputs that the samples may have."""
    state: tuple[TensorSpec, ...] = ()
    """Inputs that only the first sample of a stream may have."""
    reference: tuple[tuple[str, str], ...] = ()
    """Outputs of the model, each with the key of what its framework gave."""
    outputs: tuple[TensorSpec, ...] = ()
    """Of the model, where there are references."""

    def run(self, inputs: Inputs, out: Path) -> Notes:
        """Write the set."""
        chosen = (self.signature, self.labels_key, self.limit, self.constants, self.state)
        keys = dict(self.reference)
        samples, labels = read_npz_samples(inputs["source"], *chosen, others=keys.values())
        begins: list[int] = []
        frames = add_first_state(samples, self.state, begins)
        write_sample_set(out, self.signature, frames, labels, begins)
        if keys:
            numbers = choose_spread(range(len(SampleSet.read(out))), MOST_REFERENCES)
            found = read_npz_references(inputs["source"], keys, self.outputs, numbers)
            write_references(out, found)
        return make_set_notes(out, inputs["source"].name)


@dataclass(frozen=True)
class FolderSamples(SamplesStep):
    """Samples from a folder of images. Inputs: ``source``, the folder; ``project``, its folder."""

    libraries: ClassVar[tuple[str, ...]] = ("numpy", "pillow")
    signature: tuple[TensorSpec, ...]
    input_name: str
    image: ImageInput
    labels: str | None
    limit: int | None
    part: Part
    classes: tuple[str, ...] = field(default=(), kw_only=True)
    """The names of the model's classes, where labels are boxes and there are names."""
    kind: LabelKind = field(default="classes", kw_only=True)
    """What labels are."""
    label_count: int = field(default=0, kw_only=True)
    """How many keypoints an object has, or of how many classes several may be right; 0 where
    nobody knows."""

    def run(self, inputs: Inputs, out: Path) -> Notes:
        """Write the set."""
        folder = inputs["source"]
        files = select_images(folder, self.limit, self.part)
        places = self._find_places(files)
        labels = None
        if self.labels:
            about = (places, self.classes, self.label_count)
            given = Labelled(files, folder, inputs["project"], self.labels, *about)
            labels = read_labels(self.kind, given)
        names = (path.relative_to(folder).as_posix() for path in files)
        samples = zip(names, (inputs for _, inputs in self.read_samples(files)), strict=True)
        write_sample_set(out, self.signature, samples, labels, places=places)
        return make_set_notes(out, f"{folder.name}/")

    def _find_places(self, files: Sequence[Path]) -> list[images.Placement]:
        """Return where each picture lies in the input, if labels are in its pixels."""
        if not self.labels or self.kind not in IN_PICTURES:
            return []
        resize = self.image.model_dump()["resize"]
        return [images.find_placement(*read_image_size(path), resize) for path in files]

    def read_samples(self, files: Sequence[Path]) -> Iterable[Sample]:
        """Return what the model takes for each file."""
        raise NotImplementedError


@dataclass(frozen=True)
class ImageSamples(FolderSamples):
    """The tensors that images become; see :class:`FolderSamples`."""

    name: ClassVar[str] = "image-samples"

    def read_samples(self, files: Sequence[Path]) -> Iterable[Sample]:
        """Return the tensor of each file."""
        return read_image_samples(files, self.input_name, self.image)


@dataclass(frozen=True)
class OnnxTestData(SamplesStep):
    """Samples from ONNX test data. Inputs: ``0``, ``1``, ...: the folders, in order."""

    name: ClassVar[str] = "test-data-samples"
    libraries: ClassVar[tuple[str, ...]] = ("numpy", "onnx")
    signature: tuple[TensorSpec, ...]
    """With the inputs that are constant, in the model's order."""
    constants: tuple[Constant, ...] = ()
    state: tuple[TensorSpec, ...] = ()
    """Inputs that only the first sample of a stream may have files for."""
    outputs: tuple[str, ...] = ()
    """Of the model, in its order, where the folders have outputs to compare with."""

    def run(self, inputs: Inputs, out: Path) -> Notes:
        """Write the set."""
        folders = [inputs[str(n)] for n in range(len(inputs))]
        fixed = make_constant_arrays(self.constants)
        free = [spec for spec in self.signature if spec.name not in fixed]
        optional = {*fixed, *(spec.name for spec in self.state)}
        samples = read_onnx_test_data(folders, self.signature, optional)
        begins: list[int] = []
        frames = add_first_state(drop_constants(samples, self.constants), self.state, begins)
        write_sample_set(out, free, frames, streams=begins)
        if self.outputs:
            numbers = choose_spread(range(len(folders)), MOST_REFERENCES)
            write_references(out, read_onnx_references(folders, self.outputs, numbers))
        return make_set_notes(out, "ONNX test data")


@dataclass(frozen=True)
class PythonSamples(SamplesStep):
    """Samples from the user's own function, run at every build. Input: ``project``."""

    name: ClassVar[str] = "python-samples"
    cacheable = False
    signature: tuple[TensorSpec, ...]
    hook: str
    interpreter: str | None
    limit: int | None
    constants: tuple[Constant, ...] = ()
    """Further inputs that the samples may have."""
    state: tuple[TensorSpec, ...] = ()
    """Inputs that only the first sample of a stream may have."""

    def run(self, inputs: Inputs, out: Path) -> Notes:
        """Run the hook, then write the set."""
        with tempfile.TemporaryDirectory() as scratch:
            samples, labels = run_python_samples(
                self.hook, inputs["project"], self.interpreter, self.limit, Path(scratch)
            )
            begins: list[int] = []
            free = drop_constants(samples, self.constants)
            frames = add_first_state(free, self.state, begins)
            write_sample_set(out, self.signature, frames, labels, begins)
        return make_set_notes(out, self.hook)
