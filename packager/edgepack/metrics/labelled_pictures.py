"""Answers that are pictures, beside labelled ones: masks by regions, images by their noise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from edgepack.base.arrays import Array
from edgepack.errors import SamplesError
from edgepack.metrics.base import Arrays
from edgepack.metrics.of_labels import Described, LabelledMetric, find_output, make_labels_error
from edgepack.ondevice.runtime.edgepack_images import Placement
from edgepack.ondevice.runtime.edgepack_masks import UNSEEN, make_mask
from edgepack.samples.sample_set import SampleSet

_CLASSES = 256


class MeanRegions(LabelledMetric):
    """Intersection over union of regions with the labelled ones, the mean over classes (mIoU).

    Pixels of all samples count together. Of a picture they are the picture's own, as applications
    get them; those that the model did not see, and those without a label, do not count. A class
    that is in neither labels nor answers is left out.
    """

    name = "miou"

    def __init__(self, described: Described, samples: SampleSet) -> None:
        """Take the labels: a class for each pixel, negative where there is none.

        Raises:
            SamplesError: No output is a mask, or labels do not fit.
        """
        self.output = find_output(self.name, described, "mask")
        self.description: dict[str, Any] = described[self.output].model_dump()
        labels = samples.labels
        if labels is None or labels.ndim != 3 or labels.dtype.kind not in "iu":
            raise make_labels_error(
                self.name, labels, "integers (samples, height, width), each a class"
            )
        if labels.size and int(labels.max()) >= _CLASSES:
            raise SamplesError(
                f"metric {self.name!r}: a label is {int(labels.max())}, and classes go up to"
                f" {_CLASSES - 1}",
                hint="number classes from 0; negative is what counts for nothing",
            )
        self.labels, self.places, self.names = labels, samples.places, samples.names
        self.counts: tuple[list[Array], list[Array]] = ([], [])
        """By sample, ``(3, 256)``: right, said, there; fp32's and the variant's."""

    def add(self, reference: Arrays, output: Arrays, feed: Arrays) -> None:
        """Add the next sample's mask.

        Raises:
            SamplesError: A pixel is labelled with a class that the model does not have.
            ValueError: The output is no map of classes.
        """
        del feed
        number = len(self.counts[0])
        label = np.asarray(self.labels[number])
        if self.places:
            place = self.places[number]
            label = label[: place.picture_height, : place.picture_width]
        else:
            height, width = label.shape
            place = Placement(width, height, width, height, 0, 0, width, height)
        ours, theirs = reference[self.output], output[self.output]
        self._check_label(label, self.names[number], ours)
        same = theirs.shape == ours.shape
        for counts, given in zip(self.counts, (ours, theirs), strict=True):
            mask = make_mask(given, self.description, place)
            if mask is None:
                raise ValueError(
                    f"it is {list(given.shape)}, and a mask with labels is one of classes for each"
                    " place of a picture"
                )
            counts.append(_count_pixels(mask.classes, label, right=same))

    def _check_label(self, label: Array, name: str, output: Array) -> None:
        """Raise SamplesError where the model has fewer classes; integers do not say how many."""
        if output.dtype.kind != "f" or output.ndim not in (3, 4):
            return
        axis = self.description["axis"] if output.ndim == 4 else 0
        count = max(2, output.shape[axis])
        beyond = np.argwhere((label >= count) & (label != UNSEEN))
        if not len(beyond):
            return
        row, column = beyond[0]
        raise SamplesError(
            f"metric {self.name!r}: the label of {name!r} has the class {label[row, column]} at"
            f" x {column}, y {row}, and the output {self.output!r} of the model has {count}"
            f" classes, 0 to {count - 1}",
            hint=f"write {UNSEEN}, in an array also a negative number, where a pixel is to count"
            f" for nothing, and number the others as the model does, from 0 to {count - 1}",
        )

    def compute_values(self, chosen: Sequence[int]) -> dict[str, tuple[float, float]]:
        """Return the mean, and the share of the pixels that are right (``pixel_accuracy``)."""
        ours, theirs = (
            np.sum([counts[number] for number in chosen], axis=0) for counts in self.counts
        )
        return {
            self.name: (_compute_mean(ours), _compute_mean(theirs)),
            "pixel_accuracy": (_compute_right(ours), _compute_right(theirs)),
        }


def _count_pixels(classes: Array, label: Array, *, right: bool) -> Array:
    known = (label >= 0) & (label != UNSEEN) & (classes != UNSEEN)
    said, there = classes[known].astype(np.int64), label[known].astype(np.int64)
    same = said[said == there] if right else said[:0]
    return np.array([np.bincount(each, minlength=_CLASSES) for each in (same, said, there)])


def _compute_mean(counts: Array) -> float:
    right, said, there = counts
    union = said + there - right
    return float((right[union > 0] / union[union > 0]).mean()) if union.any() else 0.0


def _compute_right(counts: Array) -> float:
    return float(counts[0].sum() / max(1, counts[2].sum()))


class PeakNoise(LabelledMetric):
    """Peak signal to noise against reference pictures in dB, the mean over samples (PSNR).

    The peak is from black to white. Answers are clipped to that, as a screen shows them. A picture
    without any error counts as 100 dB.
    """

    name = "psnr"
    best: ClassVar[float] = 100.0

    def __init__(self, described: Described, labels: Array | None) -> None:
        """Take the labels: pictures of 0 to 255, RGB, or floats of the output's own shape.

        Raises:
            SamplesError: No output is a picture, or labels do not fit.
        """
        self.output = find_output(self.name, described, "picture")
        self.description: dict[str, Any] = described[self.output].model_dump()
        if labels is None or labels.ndim < 3:
            raise make_labels_error(
                self.name, labels, "(samples, ...), the picture that each output should be"
            )
        self.labels = labels
        self.values: tuple[list[float], list[float]] = ([], [])
        """By sample, in dB: fp32's and the variant's."""

    def add(self, reference: Arrays, output: Arrays, feed: Arrays) -> None:
        """Add the next sample's picture."""
        del feed
        low, high = self.description["black"], self.description["white"]
        number = len(self.values[0])
        ours, theirs = reference[self.output], output[self.output]
        wanted = self._find_wanted(np.asarray(self.labels[number]), ours)
        for values, given in zip(self.values, (ours, theirs), strict=True):
            same = given.shape == ours.shape
            values.append(compute_psnr(wanted, given, (low, high)) if same else 0.0)

    def _find_wanted(self, label: Array, output: Array) -> Array:
        """Return what the output should be, in its shape and numbers."""
        if label.dtype.kind == "f" and label.size == output.size:
            return label.reshape(output.shape)
        picture = output.squeeze(0) if output.ndim == 4 and len(output) == 1 else output
        axis = next((a for a in (0, 2) if picture.ndim == 3 and picture.shape[a] in (1, 3)), None)
        if axis is None or label.ndim != 3 or label.shape[-1] != 3 or label.dtype.kind == "f":
            raise self._make_error(label.shape, output.shape)
        rows, columns = (label[..., 0] >= 0).any(axis=1), (label[..., 0] >= 0).any(axis=0)
        pixels = label[: int(rows.sum()), : int(columns.sum())].astype(np.float64)
        if picture.shape[axis] == 1:
            pixels = (pixels @ _LUMA)[..., None]
        elif self.description["order"] == "BGR":
            pixels = pixels[..., ::-1]
        wanted = np.moveaxis(pixels, 2, axis)
        if wanted.shape != picture.shape:
            raise self._make_error(pixels.shape, output.shape)
        low, high = self.description["black"], self.description["white"]
        return np.asarray(wanted.reshape(output.shape) / 255 * (high - low) + low)

    def _make_error(self, given: Sequence[int], shape: Sequence[int]) -> SamplesError:
        return SamplesError(
            f"the reference picture of sample {len(self.values[0])} is {list(given)}, and the"
            f" output {self.output!r} is {list(shape)}",
            hint="a reference has the output's width and height; an output has 1 or 3 channels",
        )

    def compute_values(self, chosen: Sequence[int]) -> dict[str, tuple[float, float]]:
        """Return the mean over samples, in dB."""
        ours, theirs = (
            float(np.mean([values[number] for number in chosen])) for values in self.values
        )
        return {self.name: (ours, theirs)}


_LUMA = np.array([0.299, 0.587, 0.114])
"""Source: ITU-R BT.601, which Pillow's mode L takes, too."""


def compute_psnr(wanted: Array, given: Array, ends: tuple[float, float]) -> float:
    """Return the peak signal to noise ratio of a picture in dB, 100 at most.

    A picture with a NaN has 0 dB.
    """
    shown = np.clip(given.astype(np.float64), min(ends), max(ends))
    error = float(np.mean((shown - wanted.astype(np.float64)) ** 2))
    if math.isnan(error):
        return 0.0
    peak = (ends[1] - ends[0]) ** 2
    return min(PeakNoise.best, 10 * math.log10(peak / error)) if error else PeakNoise.best
