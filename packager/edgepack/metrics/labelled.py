"""Metrics of labels whose value belongs to all samples together and is no mean over them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from edgepack.base.arrays import Array
from edgepack.errors import SamplesError
from edgepack.metrics.base import Arrays
from edgepack.metrics.precision import (
    Matched,
    compute_average_precision,
    compute_f1,
    find_all_objects,
    make_plane,
    match_objects,
)
from edgepack.metrics.sequences import are_shares, compute_log_shares
from edgepack.ondevice.runtime.edgepack_layouts import join_outputs, read_rows
from edgepack.project.outputs import OutputDescription, list_read_too
from edgepack.project.samples import PythonMetric
from edgepack.samples.sample_set import SampleSet

PRECISIONS = ("map50", "map")
"""Names of mean average precision, at an overlap of 0.5 and over 0.5 to 0.95."""
_OWN = "for anything else name a metric of your own: docs/metrics.md"


class LabelledMetric(ABC):
    """Collects, sample by sample, how labels rate fp32's answers and a variant's."""

    higher_is_better: ClassVar[bool]
    best = 1.0
    """No value is better."""

    @abstractmethod
    def add(self, reference: Arrays, output: Arrays) -> None:
        """Add the next sample's outputs, fp32's and the variant's.

        Raises:
            SamplesError: Its labels do not fit them.
            ValueError: An output does not have the shape that its description requires.
        """

    @abstractmethod
    def compute_values(self, chosen: Sequence[int]) -> dict[str, tuple[float, float]]:
        """Return values of some of the samples, fp32's and the variant's; the first decides."""


def choose_labelled_metric(
    metric: str | PythonMetric | None,
    samples: SampleSet,
    described: Mapping[str, OutputDescription],
) -> LabelledMetric | None:
    """Return the requested metric of labels, if it is one of these.

    Where none is named, labels that are boxes are for ``map50`` of a detection.

    Raises:
        SamplesError: Labels or outputs are not what it takes.
    """
    of_kind = {meaning.kind: name for name, meaning in reversed(list(described.items()))}
    labels = samples.labels
    boxes = labels is not None and labels.ndim == 3 and labels.shape[2] == 5
    if metric is None and boxes and "detection" in of_kind:
        metric = "map50"
    if metric in PRECISIONS:
        output = _require_labels(metric, of_kind.get("detection"), "detection")
        if labels is None or not boxes:
            raise _make_labels_error(
                metric, labels, "(samples, boxes, 5), each class, left, top, right, bottom"
            )
        read = [output, *list_read_too(described[output])]
        return MeanPrecision(metric, read, described[output].model_dump(), samples)
    if metric == "perplexity":
        output = _require_labels(metric, of_kind.get("tokens"), "tokens")
        if labels is None or labels.ndim < 2 or labels.dtype.kind not in "iu":
            raise _make_labels_error(metric, labels, "integers (samples, positions), each an id")
        return Perplexity(output, labels)
    return None


def _require_labels(metric: str, output: str | None, kind: str) -> str:
    if output is None:
        raise SamplesError(
            f"the metric {metric} is of a {kind}, and no output is described as one",
            hint=f"describe it in edgepack.yaml: outputs: {{NAME: {{kind: {kind}, ...}}}}; {_OWN}",
        )
    return output


def _make_labels_error(metric: str, labels: Array | None, wanted: str) -> SamplesError:
    given = "there are none" if labels is None else f"they are {labels.dtype} {list(labels.shape)}"
    return SamplesError(
        f"the metric {metric} takes labels {wanted}, and {given}",
        hint="give 'labels' under samples.evaluation as docs/metrics.md says",
    )


class MeanPrecision(LabelledMetric):
    """Mean average precision with boxes as labels, at an overlap of 0.5 and over 0.5 to 0.95.

    Boxes and labels are in the pixels of the picture, or of the input where samples are tensors.
    """

    higher_is_better = True

    def __init__(
        self, name: str, read: Sequence[str], description: Mapping[str, Any], samples: SampleSet
    ) -> None:
        self.name = name
        self.read = read
        """The described output, and those that it is read with."""
        self.description = description
        self.labels = [""] * description.get("label_count", 0)
        self.places = samples.places or [make_plane(description)] * len(samples)
        given = np.asarray(samples.labels, np.float64)
        self.truth = [boxes[~np.isnan(boxes).any(axis=1)] for boxes in given]
        self.pictures: tuple[list[Matched], list[Matched]] = ([], [])
        """fp32's and the variant's."""
        classes = np.concatenate([boxes[:, 0] for boxes in self.truth])
        if not classes.size:
            raise SamplesError(
                "the labels have no box in any of the evaluation samples",
                hint="check 'labels' under samples.evaluation",
            )
        self.most = classes.max()
        if classes.min() < 0 or not np.array_equal(classes, classes.astype(np.int64)):
            raise SamplesError(
                f"the labels have boxes of the classes {np.unique(classes)[:5].tolist()}",
                hint="each box is class, left, top, right, bottom, and a class is a number from 0",
            )

    def add(self, reference: Arrays, output: Arrays) -> None:
        """Add the next picture."""
        ours, theirs = (join_outputs([each[n] for n in self.read]) for each in (reference, output))
        number = len(self.pictures[0])
        if not number:
            self._check_classes(ours)
        for pictures, boxes in zip(self.pictures, (ours, theirs), strict=True):
            found = []
            if boxes.shape == ours.shape:
                found = find_all_objects(boxes, self.description, self.labels, self.places[number])
            pictures.append(match_objects(found, self.truth[number]))

    def _check_classes(self, output: Array) -> None:
        plane = make_plane(self.description)
        size = (plane.input_width, plane.input_height)
        classes = read_rows(output, self.description, len(self.labels), size).classes
        if classes is not None and self.most >= classes:
            raise SamplesError(
                f"the labels have boxes of class {self.most:g}, and the model has"
                f" {classes} classes, 0 to {classes - 1}",
                hint="subtract 1 from each where yours begin at 1; COCO's categories are found by"
                " name where the output has 'labels'",
            )

    def compute_values(self, chosen: Sequence[int]) -> dict[str, tuple[float, float]]:
        """Return both means, and F1 of what applications get; the requested one comes first."""
        given = [[pictures[number] for number in chosen] for pictures in self.pictures]
        ours, theirs = map(compute_average_precision, given)
        one, other = (compute_f1(pictures, self.description["score"]) for pictures in given)
        found = {
            "map50": (float(ours[0]), float(theirs[0])),
            "map": (float(ours.mean()), float(theirs.mean())),
            "f1": (one, other),
        }
        return {self.name: found[self.name], **found}


class Perplexity(LabelledMetric):
    """The exponential of the mean negative logarithm of what scores give to the right ids."""

    higher_is_better = False

    def __init__(self, output: str, labels: Array) -> None:
        self.output = output
        self.labels = labels.reshape(len(labels), -1).astype(np.int64)
        self.logs: tuple[list[Array], list[Array]] = ([], [])
        """By sample, of each position that has a label: fp32's and the variant's."""
        if (self.labels < 0).all():
            raise SamplesError(
                "the labels have no id in any of the evaluation samples",
                hint="a negative label is left out: check 'labels' under samples.evaluation",
            )

    def add(self, reference: Arrays, output: Arrays) -> None:
        """Add the next sample: scores ``(..., positions, ids)``."""
        ours, theirs = reference[self.output], output[self.output]
        ids = self.labels[len(self.logs[0])]
        if ours.dtype.kind != "f" or ours.ndim < 2 or ours[..., 0].size != ids.size:
            raise SamplesError(
                f"the output {self.output!r} is {ours.dtype} {list(ours.shape)}, and its sample has"
                f" {ids.size} labels",
                hint="perplexity takes scores (..., positions, ids), and an id for each position:"
                " what its scores are to say; a negative one is left out",
            )
        if ids.max() >= ours.shape[-1]:
            raise SamplesError(
                f"the labels have the id {ids.max()}, and the scores are of {ours.shape[-1]} ids",
                hint="check that labels are made by the model's own tokenizer",
            )
        shares = are_shares(ours)
        for logs, scores in zip(self.logs, (ours, theirs), strict=True):
            whole = scores if scores.shape == ours.shape else np.full(ours.shape, np.nan)
            logs.append(compute_log_shares(whole, ids, shares=shares))

    def compute_values(self, chosen: Sequence[int]) -> dict[str, tuple[float, float]]:
        """Return the perplexity; 1 where no position has a label."""
        ours, theirs = (
            float(np.exp(-np.concatenate([logs[n] for n in chosen] or [np.zeros(1)]).mean()))
            for logs in self.logs
        )
        return {"perplexity": (ours, theirs)}
