"""Reads fp32's answers by the project's descriptions, and checks that these can be right.

Shapes do not distinguish layouts of boxes, or probabilities from logits. Values do: boxes have area
and are in the picture, scores and probabilities are between 0 and 1. Pure: arrays in.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from typing import Any, get_args

import numpy as np

from edgepack.base.arrays import Array
from edgepack.ondevice.runtime.edgepack_answers import find_detections
from edgepack.ondevice.runtime.edgepack_ctc import read_symbols
from edgepack.ondevice.runtime.edgepack_images import Placement
from edgepack.ondevice.runtime.edgepack_layouts import read_rows
from edgepack.project.outputs import (
    STRIDES,
    ClassificationOutput,
    DetectionOutput,
    Layout,
    OutputDescription,
    ProbabilityOutput,
    SizedDetection,
    TextOutput,
)

LEAST_SIDE = 2.0
"""In pixels: a box with a shorter side is not an object that a camera shows."""
LEAST_INSIDE = 0.5
"""The share of a box's area that must be in the picture: a box mostly outside is no object in
it."""
LEAST_GOOD = 0.5
"""The share of good boxes below which the description is refused."""
FITS = 0.9
"""The share of boxes that fit another layout, from which on that layout is proposed."""
FEWEST = 8
"""Boxes, or samples: fewer are too few to refuse anything for."""
_SLACK = 1e-3
_OVER = 1.02
"""A corner may lie at up to this multiple of the picture's size."""
_BEYOND = 0.25
"""The least share of boxes that reach out of the picture where corners are read as centre and
size."""
_LAYOUTS: tuple[Layout, ...] = get_args(Layout)
_FORMS = ("corners", "corners_yx", "centre")
_PLANE = 1 << 20
_PIXELS = "boxes are centre, width and height in pixels of the input, then scores from 0 to 1"
_HELD: dict[Layout, str] = {
    "yolo": _PIXELS,
    "yolov5": _PIXELS,
    "yolox": "boxes are offsets and logarithms in cells of the strides, then scores from 0 to 1",
    "end2end": "boxes are corners in pixels of the input, then a score from 0 to 1 and the class",
    "ssd": "boxes are as 'box', 'normalized' or 'priors' say, and scores from 0 to 1",
}
"""What each layout's rows hold."""


@dataclass(frozen=True)
class Misread:
    """A description that cannot be right."""

    problem: str
    hint: str


class Reading(ABC):
    """Collects what one output says, sample by sample."""

    @abstractmethod
    def add(self, output: Array) -> None:
        """Add one sample's.

        Raises:
            ValueError: It does not have the shape that the description requires.
        """

    @abstractmethod
    def describe(self, samples: int) -> str:
        """Return the reading of so many samples, in words."""

    def find_misread(self) -> Misread | None:
        """Return why the description cannot be right, or None."""
        return None


def choose_reading(description: OutputDescription, size: tuple[int, int] | None) -> Reading | None:
    """Return what reads an output; None of kinds whose values say nothing about themselves.

    Args:
        description: The project's.
        size: Width and height of the model's input in pixels, for a detection.
    """
    match description:
        case DetectionOutput() if size is not None:
            return Boxes(description, size)
        case ClassificationOutput():
            return Classes(description)
        case ProbabilityOutput():
            return Probabilities(description)
        case TextOutput():
            return Texts(description)
        case _:
            return None


@dataclass
class Boxes(Reading):
    """The objects of a detection."""

    description: DetectionOutput
    size: tuple[int, int]
    """Width and height of the input."""
    objects: int = 0
    with_objects: int = 0
    classes: Counter[int] = field(default_factory=Counter)
    good: dict[str, list[bool]] = field(default_factory=dict)
    """By way to read the output: of each row that counts, whether it can be an object."""
    faults: Counter[str] = field(default_factory=Counter)
    """How many rows, read as described, have each fault."""
    unit: list[bool] = field(default_factory=list)
    """For each row, read as described: whether the box lies between 0 and 1."""

    def add(self, output: Array) -> None:
        """Add one picture's rows."""
        plane = Placement(_PLANE, _PLANE, _PLANE, _PLANE, 0, 0, *self.size)
        found = find_detections(output, self._ways[self._own], [""] * self._labels, plane)
        self.objects += len(found)
        self.with_objects += bool(found)
        self.classes.update(each.index for each in found)
        for way in self._ways:
            if way == self._own:
                self._check_way(way, output)
            else:
                self._try_way(way, output)

    @cached_property
    def _ways(self) -> dict[str, dict[str, Any]]:
        """Descriptions that the output may have instead, its own among them, by what they say."""
        given = self.description
        whole = given.model_dump()
        if given.layout != "ssd":
            strides = given.strides or STRIDES
            layouts = [name for name in _LAYOUTS if name != "ssd"]
            if given.keypoints is not None:
                layouts = ["yolo", "end2end"]
            return {f"layout: {n}": {**whole, "layout": n, "strides": strides} for n in layouts}
        boxes = product(_FORMS, (True, False)) if given.box else [(None, True)]
        return {
            _describe_boxes(form, normalized=normalized): {
                **whole,
                "box": form,
                "normalized": normalized,
            }
            for form, normalized in boxes
        }

    @property
    def _own(self) -> str:
        given = self.description
        if given.layout != "ssd":
            return f"layout: {given.layout}"
        return _describe_boxes(given.box, normalized=given.normalized)

    @property
    def _labels(self) -> int:
        given = self.description
        return given.label_count if isinstance(given, SizedDetection) else 0

    def _try_way(self, way: str, output: Array) -> None:
        try:
            self._check_way(way, output)
        except ValueError:
            self.good.setdefault(way, []).append(False)

    def _check_way(self, way: str, output: Array) -> None:
        rows = read_rows(output, self._ways[way], self._labels, self.size)
        counts = (rows.score >= self.description.score) & np.isfinite(rows.boxes).all(axis=1)
        first, second, best = rows.boxes[counts, :2], rows.boxes[counts, 2:], rows.score[counts]
        boxes = np.hstack([(first + second) / 2, second - first])
        faults = {
            "scores above 1": best > 1 + _SLACK,
            "boxes without area": boxes[:, 2:].min(axis=1, initial=np.inf) < LEAST_SIDE,
            "boxes outside the picture": _compute_share_inside(boxes, self.size) < LEAST_INSIDE,
            "boxes that fit the picture as corners only": np.full(
                len(boxes), _has_corners(boxes, self.size)
            ),
        }
        bad = np.any(list(faults.values()), axis=0)
        self.good.setdefault(way, []).extend((~bad).tolist())
        if way == self._own:
            self.faults.update({what: int(which.sum()) for what, which in faults.items()})
            self.unit += (np.abs(boxes) <= 1.5).all(axis=1).tolist()

    def describe(self, samples: int) -> str:
        """Return how many objects there were."""
        if not self.objects:
            return f"no object with a score of {self.description.score:g} in {samples} samples"
        return (
            f"{self.objects} objects of {len(self.classes)} classes"
            f" in {self.with_objects} of {samples} samples"
        )

    def find_misread(self) -> Misread | None:
        """Return why boxes cannot be read so and the layout that fits, or None."""
        own = self.good[self._own]
        if len(own) < FEWEST or np.mean(own) >= LEAST_GOOD:
            return None
        what = [f"{number} of {len(own)} {name}" for name, number in self.faults.items() if number]
        return Misread(
            f"read as {self.description.layout!r} the output has {', '.join(what)}",
            self._find_remedy(),
        )

    def _find_remedy(self) -> str:
        for way, found in self.good.items():
            if way != self._own and found and np.mean(found) >= FITS:
                return f"{way} fits"
        if np.mean(self.unit) >= FITS:
            return (
                "the boxes are from 0 to 1, not in pixels of the input: export the model with boxes"
                " in pixels, or describe the output as raw"
            )
        return (
            f"{_HELD[self.description.layout]} (docs/answers.md): export the model so, or describe"
            " the output as raw"
        )


def _describe_boxes(form: str | None, *, normalized: bool | None) -> str:
    return f"box: {form}, normalized: {str(normalized).lower()}"


def _compute_share_inside(boxes: Array, size: tuple[int, int]) -> Array:
    """Return the share of each box's area that lies in the picture."""
    half = np.maximum(boxes[:, 2:], 0) / 2
    low, high = boxes[:, :2] - half, boxes[:, :2] + half
    shown = np.clip(np.minimum(high, size) - np.maximum(low, 0), 0, None).prod(axis=1)
    area = (2 * half).prod(axis=1)
    return np.asarray(np.divide(shown, area, out=np.ones_like(area), where=area > 0))


def _has_corners(boxes: Array, size: tuple[int, int]) -> bool:
    """Return whether boxes lie in the picture as two corners each, and many do not as they are."""
    first, second = boxes[:, :2], boxes[:, 2:]
    fit = (second > first).all(axis=1) & (second <= np.array(size) * _OVER).all(axis=1)
    beyond = (first - second / 2 < 0).any(axis=1) | (first + second / 2 > size).any(axis=1)
    return len(boxes) > 0 and bool(fit.mean() >= FITS and beyond.mean() >= _BEYOND)


@dataclass
class Classes(Reading):
    """The best classes of a classification."""

    description: ClassificationOutput
    best: Counter[int] = field(default_factory=Counter)
    shares: list[bool] = field(default_factory=list)
    """Whether scores are shares of 1 before any activation."""

    def add(self, output: Array) -> None:
        """Add one sample's scores."""
        scores = output.astype(np.float64).reshape(-1)
        self.best[int(scores.argmax())] += 1
        self.shares.append(_are_shares(scores))

    def describe(self, samples: int) -> str:
        """Return how many classes there were."""
        index, often = self.best.most_common(1)[0]
        return f"{len(self.best)} classes in {samples} samples, class {index} in {often} of them"

    def find_misread(self) -> Misread | None:
        """Return that the model makes shares of the scores itself, where it does."""
        return _find_second_softmax(self.description.activation, self.shares)


def _are_shares(scores: Array) -> bool:
    """Return whether there are rows ``(..., C)``, and all are shares of 1."""
    return scores.size > 0 and bool(
        (scores >= 0).all() and (np.abs(scores.sum(axis=-1) - 1) <= _SLACK).all()
    )


def _find_second_softmax(activation: str, shares: Sequence[bool]) -> Misread | None:
    if len(shares) < FEWEST or activation == "none" or not all(shares):
        return None
    return Misread(
        f"the output is shares of 1 in all {len(shares)} samples: the model has applied softmax"
        " itself",
        "activation: none",
    )


@dataclass
class Texts(Reading):
    """The texts of a model that was trained with CTC."""

    description: TextOutput
    symbols: list[int] = field(default_factory=list)
    """By sample."""
    shares: list[bool] = field(default_factory=list)
    """Whether the values of each step are shares of 1 before any activation."""

    def add(self, output: Array) -> None:
        """Add one sample's steps."""
        self.symbols.append(len(read_symbols(output, self.description.model_dump())))
        steps = np.moveaxis(output, self.description.axis, -1).astype(np.float64)
        self.shares.append(_are_shares(steps))

    def describe(self, samples: int) -> str:
        """Return how many samples had a text."""
        there = sum(number > 0 for number in self.symbols)
        return f"{sum(self.symbols)} symbols, in {there} of {samples} samples"

    def find_misread(self) -> Misread | None:
        """Return that the model makes shares of the scores itself, where it does."""
        return _find_second_softmax(self.description.activation, self.shares)


@dataclass
class Probabilities(Reading):
    """The decisions of a probability."""

    description: ProbabilityOutput
    values: list[Array] = field(default_factory=list)

    def add(self, output: Array) -> None:
        """Add one sample's."""
        self.values.append(output.astype(np.float64).reshape(-1))

    def describe(self, samples: int) -> str:
        """Return how many decisions were yes."""
        values = np.concatenate(self.values)
        if self.description.activation == "sigmoid":
            values = 1 / (1 + np.exp(-np.clip(values, -700, 700)))
        yes = int((values >= self.description.threshold).sum())
        return f"{yes} of {values.size} decisions are yes in {samples} samples"

    def find_misread(self) -> Misread | None:
        """Return that values lie outside 0 to 1, where they do."""
        values = np.concatenate(self.values)
        if self.description.activation != "none" or len(self.values) < FEWEST:
            return None
        low, high = float(values.min()), float(values.max())
        if low >= -_SLACK and high <= 1 + _SLACK:
            return None
        return Misread(
            f"the output has values from {low:.4g} to {high:.4g}, and a probability is 0 to 1",
            "activation: sigmoid, where these are logits",
        )
