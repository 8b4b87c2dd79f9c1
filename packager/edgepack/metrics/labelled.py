"""Metrics of labels whose value belongs to all samples together and is no mean over them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from edgepack.base.arrays import Array
from edgepack.errors import SamplesError
from edgepack.metrics.base import Arrays
from edgepack.metrics.labelled_classes import ClassF1
from edgepack.metrics.labelled_numbers import Spearman
from edgepack.metrics.labelled_pictures import MeanRegions, PeakNoise
from edgepack.metrics.of_labels import (
    OWN,
    Described,
    LabelledMetric,
    find_output,
    make_labels_error,
)
from edgepack.metrics.precision import (
    Matched,
    compute_average_precision,
    compute_f1,
    find_all_objects,
    make_plane,
    match_objects,
)
from edgepack.metrics.sequences import are_shares, compute_log_shares
from edgepack.metrics.similarity import FIRST_POINT, match_keypoints
from edgepack.metrics.transcripts import ERROR_RATES, ErrorRate
from edgepack.metrics.verification import EqualErrorRate
from edgepack.ondevice.runtime.edgepack_layouts import join_outputs, read_rows
from edgepack.project.outputs import DetectionOutput, list_read_too
from edgepack.project.samples import PythonMetric
from edgepack.samples.sample_set import SampleSet

PRECISIONS = ("map50", "map")
"""Names of mean average precision, at an overlap of 0.5 and over 0.5 to 0.95."""
OKS = "oks"
"""The name of mean average precision by keypoints."""
_ERROR_SHARES = (*ERROR_RATES, "eer")


def compute_whole(metric: str, value: float) -> float:
    """Return what a loss is a share of: a metric's value, or what is right where errors count.

    Of an error rate of 0.02 a hundredth more is not half of the value lost, but about a hundredth.
    """
    return max(0.0, 1 - value) if metric in _ERROR_SHARES else abs(value)


def choose_labelled_metric(
    metric: str | PythonMetric | None, samples: SampleSet, described: Described
) -> LabelledMetric | None:
    """Return the requested metric of labels, if it is one of these.

    Where none is named, labels that are boxes are for ``map50`` of a detection, and texts for
    ``cer`` of a text.

    Raises:
        SamplesError: Labels or outputs are not what it takes.
    """
    name = _choose_default(samples.labels, described) if metric is None else metric
    _check_texts(name, samples.labels)
    if not isinstance(name, str) or name not in _METRICS:
        return None
    return _METRICS[name](name, samples, described)


def _choose_default(labels: Array | None, described: Described) -> str | None:
    kinds = {meaning.kind for meaning in described.values()}
    if labels is None:
        return None
    if has_boxes(labels) and "detection" in kinds:
        return "map50"
    return "cer" if labels.dtype.kind == "U" and "text" in kinds else None


def _check_texts(metric: str | PythonMetric | None, labels: Array | None) -> None:
    """Check that labels that are texts are for a metric that takes them."""
    built_in = metric is None or isinstance(metric, str)
    texts = labels is not None and labels.dtype.kind == "U"
    if texts and built_in and metric not in (*ERROR_RATES, "agreement"):
        raise SamplesError(
            f"the labels are texts, such as {str(labels[0])[:40]!r}, and"  # type: ignore[index]
            f" {'no output is described as a text' if metric is None else f'{metric} takes none'}",
            hint="a class is its index in the model's scores, a number from 0; for texts describe"
            " the output: outputs: {NAME: {kind: text, labels: symbols.txt}}",
        )


def has_boxes(labels: Array) -> bool:
    """Return whether labels are boxes, with or without a column that marks crowds."""
    return labels.ndim == 3 and labels.shape[2] in (5, 6)


def _make_precision(name: str, samples: SampleSet, described: Described) -> MeanPrecision:
    output = find_output(name, described, "detection")
    meaning, labels = described[output], samples.labels
    points = meaning.keypoints if isinstance(meaning, DetectionOutput) else None
    if name == OKS and not points:
        raise SamplesError(
            f"the metric {name} is of keypoints, and the output {output!r} is described without",
            hint=f"give 'keypoints' in its description, or name map50; {OWN}",
        )
    width = FIRST_POINT + 3 * points if name == OKS and points else 0
    if (
        labels is None
        or labels.ndim != 3
        or not (labels.shape[2] == width if width else has_boxes(labels))
    ):
        wanted = "(samples, boxes, 5), each class, left, top, right, bottom"
        if width:
            wanted = (
                f"(samples, objects, {width}), each class, left, top, right, bottom, crowd, area"
                " and x, y, visibility of each keypoint"
            )
        raise make_labels_error(name, labels, wanted)
    read = [output, *list_read_too(meaning)]
    return MeanPrecision(name, read, meaning.model_dump(), samples)


def _make_perplexity(name: str, samples: SampleSet, described: Described) -> Perplexity:
    output, labels = find_output(name, described, "tokens"), samples.labels
    if labels is None or labels.ndim < 2 or labels.dtype.kind not in "iu":
        raise make_labels_error(name, labels, "integers (samples, positions), each an id")
    return Perplexity(output, labels)


_METRICS: Mapping[str, Callable[[str, SampleSet, Described], LabelledMetric]] = {
    **dict.fromkeys((*PRECISIONS, OKS), _make_precision),
    **dict.fromkeys(ERROR_RATES, lambda name, given, meant: ErrorRate(name, meant, given.labels)),
    "perplexity": _make_perplexity,
    "f1": lambda _, given, meant: ClassF1(meant, given.labels),
    "eer": lambda _, given, meant: EqualErrorRate(meant, given.labels),
    "spearman": lambda _, given, meant: Spearman(meant, given.labels),
    "miou": lambda _, given, meant: MeanRegions(meant, given),
    "psnr": lambda _, given, meant: PeakNoise(meant, given.labels),
}


class MeanPrecision(LabelledMetric):
    """Mean average precision with boxes as labels, at an overlap of 0.5 and over 0.5 to 0.95.

    Boxes and labels are in the pixels of the picture, or of the input where samples are tensors.
    With ``oks`` objects are right by how near their keypoints are, as COCO defines it.
    """

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

    def add(self, reference: Arrays, output: Arrays, feed: Arrays) -> None:
        """Add the next picture."""
        del feed
        ours, theirs = (join_outputs([each[n] for n in self.read]) for each in (reference, output))
        number = len(self.pictures[0])
        if not number:
            self._check_classes(ours)
        for pictures, boxes in zip(self.pictures, (ours, theirs), strict=True):
            found = []
            if boxes.shape == ours.shape:
                found = find_all_objects(boxes, self.description, self.labels, self.places[number])
            match = match_keypoints if self.name == OKS else match_objects
            pictures.append(match(found, self.truth[number]))

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
        whole, half = (OKS, "oks50") if self.name == OKS else ("map", "map50")
        found = {
            half: (float(ours[0]), float(theirs[0])),
            whole: (float(ours.mean()), float(theirs.mean())),
            "f1": (one, other),
        }
        return {self.name: found[self.name], **found}


class Perplexity(LabelledMetric):
    """The exponential of the mean negative logarithm of what scores give to the right ids."""

    higher_is_better: ClassVar[bool] = False

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

    def add(self, reference: Arrays, output: Arrays, feed: Arrays) -> None:
        """Add the next sample: scores ``(..., positions, ids)``."""
        del feed
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
