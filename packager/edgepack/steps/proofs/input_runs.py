"""Runs a model on samples made in different ways, for the input check."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

import numpy as np

from edgepack.base.arrays import Array
from edgepack.errors import ModelError
from edgepack.metrics.accuracy import Variation, find_class_scores
from edgepack.metrics.labelled import has_boxes
from edgepack.metrics.precision import CROWD, OVERLAPS, compute_overlaps, make_plane
from edgepack.model.facts import TensorSpec, read_signature
from edgepack.model.reading import read_structure
from edgepack.model.workload import count_multiply_adds
from edgepack.ondevice.runtime import edgepack_answers, edgepack_layouts
from edgepack.ondevice.runtime.edgepack_images import Placement
from edgepack.preprocessing.alternatives import (
    Alternative,
    describe_image,
    list_image_alternatives,
    list_resize_alternatives,
    list_tensor_alternatives,
)
from edgepack.preprocessing.beginning import Beginning, find_beginning
from edgepack.preprocessing.signs import compute_divergence
from edgepack.preprocessing.verdict import Seen, Setting
from edgepack.project.inputs import ImageInput
from edgepack.project.outputs import DetectionOutput, SizedDetection, list_read_too
from edgepack.quantization.ranges.observing import Observer
from edgepack.samples.images import read_image_tensor
from edgepack.samples.sample_set import SampleSet
from edgepack.steps.streams import StatePairs, select_answers

if TYPE_CHECKING:
    import onnx

Feed = dict[str, Array]

_BUDGET = 5e10
"""Multiply-adds: some seconds of two cores. A large model is run on fewer samples."""


class KnownOfModel(Protocol):
    """What is known of a model besides its file: :class:`~.input_check.InputCheck` has it."""

    @property
    def images(self) -> tuple[tuple[str, ImageInput], ...]:
        """How inputs are made of pictures, by name."""

    @property
    def scores_output(self) -> str | None:
        """The output that may hold class scores."""

    @property
    def detections(self) -> tuple[tuple[str, DetectionOutput], ...]:
        """Outputs that are detections, by name."""

    @property
    def called(self) -> str:
        """What a warning calls the model."""

    @property
    def state(self) -> StatePairs:
        """Outputs that feed inputs, which are not looked at."""

    @property
    def claimed(self) -> float | None:
        """The share of the samples that its makers say it is right for."""


class Wanted(NamedTuple):
    """What is in a picture, by its labels."""

    boxes: Array
    """``(M, 5)``: class, left, top, right, bottom."""
    place: Placement
    """Where the picture lies in the input."""


@dataclass(frozen=True)
class Runner:
    """Runs the model on samples made in different ways, and keeps what distinguishes these."""

    known: KnownOfModel
    observer: Observer
    spec: TensorSpec | None
    """The one float input; None where there are several."""
    start: Beginning | None
    cost: float
    """Multiply-adds of one run."""
    pictures: Path | None
    """The folder of the pictures that the samples are made of, which have their paths in it as
    names; None where they are made of something else."""

    @classmethod
    def open(
        cls, known: KnownOfModel, model: Path, samples: SampleSet, pictures: Path | None = None
    ) -> Runner:
        """Make a session; raise ModelError where onnxruntime refuses the model."""
        structure = read_structure(model)
        specs = [spec for spec in read_signature(structure)[0] if spec.dtype.startswith("float")]
        spec = specs[0] if len(specs) == 1 else None
        start = find_beginning(structure, spec.name) if spec else None
        inner = start.normalization.tensor if start and start.normalization else ""
        made = any(inner in node.output for node in structure.graph.node)
        observer = Observer.open(model, structure, [inner] if made else [])
        cost = count_multiply_adds(model, _find_sizes(structure, samples))
        return cls(known, observer, spec, start, cost, pictures)

    @property
    def image(self) -> ImageInput | None:
        """How the samples were made of pictures; None where nobody knows."""
        described = dict(self.known.images)
        return described.get(self.spec.name) if self.spec else None

    @property
    def can_rank(self) -> bool:
        """Whether outputs can rank ways to make the input."""
        has_norm = self.start is not None and self.start.normalization is not None
        return bool(self.known.scores_output or self.known.detections or has_norm)

    @property
    def input_name(self) -> str:
        """The one float input; nothing where there are several."""
        return self.spec.name if self.spec else ""

    @property
    def sees(self) -> str:
        """What the model sees as it is, in words."""
        return describe_image(self.image) if self.image else "the samples as they are"

    def count_samples(self, least: int, most: int, runs: int = 1) -> int:
        """Return how many samples there is time for."""
        return int(max(least, min(most, _BUDGET / max(1.0, self.cost * runs))))

    def make_setting(self, labels: list[int] | None) -> Setting:
        """Return what is known besides what runs show."""
        least = [meaning.score for _, meaning in self.known.detections]
        looks_like_picture = self.list_picture_layouts() != []
        return Setting(
            labels,
            self.start if looks_like_picture else None,
            min(least, default=0.0),
            self.known.called,
            self.known.claimed,
        )

    def list_picture_layouts(self) -> list[Literal["NCHW", "NHWC"]]:
        """Return the layouts in which the input may hold a picture."""
        shape = self.spec.shape if self.spec else None
        if shape is None or len(shape) != 4:
            return []
        fits: list[Literal["NCHW", "NHWC"]] = []
        if shape[1] in (1, 3) or isinstance(shape[1], str):
            fits.append("NCHW")
        if shape[1] not in (1, 3) and (shape[3] in (1, 3) or isinstance(shape[3], str)):
            fits.append("NHWC")
        return fits

    def list_alternatives(self, samples: SampleSet) -> list[Alternative]:
        """Return other ways to make the one float input; none where there are several."""
        if self.spec is None:
            return []
        if self.image:
            return list_image_alternatives(self.image, self.list_picture_layouts())
        return list_tensor_alternatives(samples.shapes[0][self.spec.name])

    def list_resized(self) -> list[Alternative]:
        """Return other ways to resize the pictures, where these are at hand."""
        if self.image is None or self.pictures is None:
            return []
        # Objects are labelled where the picture lies in the input now.
        return list_resize_alternatives(self.image, fits=not self.known.detections)

    def try_ways(
        self, samples: SampleSet, chosen: Sequence[int], others: Sequence[Alternative]
    ) -> Iterator[tuple[Alternative | None, Seen]]:
        """Yield what the model gives for samples as they are, then for each other way it takes."""
        yield None, self.observe_samples(samples, chosen)
        for other in others:
            try:
                found = self.observe_samples(samples, chosen, other)
            except ModelError:
                # Another layout may not go with sizes further inside; then it is not the right one.
                continue
            yield other, found

    def _make_feed(self, samples: SampleSet, index: int, other: Alternative) -> Feed:
        feed, name, own = samples.read_inputs(index), self.input_name, self.image
        if self.pictures and own and other.image and other.image.resize != own.resize:
            made = read_image_tensor(self.pictures / samples.names[index], other.image)
            return {**feed, name: made.astype(feed[name].dtype)}
        return {**feed, name: other.make_input(feed[name], own)}

    def observe_samples(
        self, samples: SampleSet, chosen: Sequence[int], other: Alternative | None = None
    ) -> Seen:
        """Run the model on some samples, made in another way if one is given."""
        feeds = (
            self._make_feed(samples, index, other) if other else samples.read_inputs(index)
            for index in chosen
        )
        return self._observe(feeds, [self._find_wanted(samples, index) for index in chosen])

    def _find_wanted(self, samples: SampleSet, index: int) -> Wanted | None:
        """Return what is in a sample, if labels are boxes, there are some, and one output's are."""
        labels = samples.labels
        if labels is None or len(self.known.detections) != 1 or not has_boxes(labels):
            return None
        rows = labels[index]
        rows = rows[~np.isnan(rows).any(axis=1)]
        rows = rows[rows[:, CROWD] == 0] if rows.shape[1] > CROWD else rows
        (_, meaning), *_ = self.known.detections
        place = samples.places[index] if samples.places else make_plane(meaning.model_dump())
        return Wanted(rows[:, :CROWD], place) if len(rows) else None

    def _observe(self, feeds: Iterable[Feed], wanted: Sequence[Wanted | None]) -> Seen:
        """Run the model on samples, and return what was seen."""
        found, moments = Seen(), _Moments()
        normalization = self.start.normalization if self.start else None
        looked_at = 0
        for feed, there in zip(feeds, wanted, strict=True):
            looked_at += 1
            outputs = self.observer.run(feed)
            if self.spec:
                found.add_input(feed[self.spec.name])
            if normalization:
                inner = normalization.tensor
                moments.add(outputs.pop(inner) if inner in outputs else feed[inner])
            self._add(found, outputs, there)
        # Scores whose number the data decide are no classes.
        if len({scores.size for scores in found.scores}) != 1 or len(found.scores) != looked_at:
            found.scores.clear()
        if normalization and moments.count:
            expected = normalization.mean, normalization.variance
            found.divergence = compute_divergence(moments.mean, moments.variance, *expected)
        return found

    def _add(self, found: Seen, outputs: Mapping[str, Array], wanted: Wanted | None) -> None:
        """Keep what the outputs of one sample show."""
        for name, output in select_answers(outputs, self.known.state).items():
            found.variations.setdefault(name, Variation()).add(output)
        given = outputs.get(self.known.scores_output or "")
        scores = None if given is None else find_class_scores(given)
        if scores is not None:
            found.scores.append(np.array(scores))
        for name, meaning in self.known.detections:
            read = [name, *list_read_too(meaning)]
            if not outputs.keys() >= {*read}:
                continue
            # A shape that only a run tells may be none of a detection: devices say so then.
            with contextlib.suppress(ValueError):
                joined = edgepack_layouts.join_outputs([outputs[each] for each in read])
                place = wanted.place if wanted else make_plane(meaning.model_dump())
                best = find_best(joined, meaning, place)
                found.best.append(best.score if best else 0.0)
                if wanted:
                    found.right.append(best is not None and is_there(best, wanted.boxes))


def find_best(
    output: Array, meaning: DetectionOutput, place: Placement
) -> edgepack_answers.Detection | None:
    """Return an output's best detection, in the picture's pixels; None where it has none."""
    description = {**meaning.model_dump(), "score": 0.0, "most": 1}
    labels = [""] * (meaning.label_count if isinstance(meaning, SizedDetection) else 0)
    best = edgepack_answers.find_detections(output, description, labels, place)
    return best[0] if best else None


def is_there(found: edgepack_answers.Detection, boxes: Array) -> bool:
    """Return whether an object of its class overlaps it by half: boxes ``(M, 5)``."""
    own = boxes[boxes[:, 0] == found.index]
    return bool((compute_overlaps(np.array([found.box]), own[:, 1:]) >= OVERLAPS[0]).any())


class _Moments:
    """Mean and variance per channel, axis 1, over samples."""

    def __init__(self) -> None:
        self.count = 0
        self._sum: Array = np.zeros(1)
        self._squares: Array = np.zeros(1)

    def add(self, tensor: Array) -> None:
        values = np.moveaxis(tensor.astype(np.float64), 1, 0).reshape(tensor.shape[1], -1)
        self._sum = self._sum + values.sum(axis=1)
        self._squares = self._squares + (values**2).sum(axis=1)
        self.count += values.shape[1]

    @property
    def mean(self) -> Array:
        return np.asarray(self._sum / self.count)

    @property
    def variance(self) -> Array:
        return np.asarray(np.maximum(self._squares / self.count - self.mean**2, 0.0))


def _find_sizes(structure: onnx.ModelProto, samples: SampleSet) -> dict[str, int]:
    """Return the sizes that symbolic dimensions have in the first sample."""
    shapes = samples.shapes[0]
    specs = [spec for spec in read_signature(structure)[0] if spec.shape and spec.name in shapes]
    pairs = (
        pair for spec in specs for pair in zip(spec.shape or (), shapes[spec.name], strict=True)
    )
    return {name: size for name, size in pairs if isinstance(name, str)}
