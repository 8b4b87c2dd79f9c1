"""Inputs unlike the samples, made from them: silence, black and white, louder, clipped, noise."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from edgepack.base.arrays import Array
from edgepack.model.facts import TensorSpec
from edgepack.project.inputs import ImageInput
from edgepack.samples.sample_set import SampleSet

Feed = Mapping[str, Array]

WORDS = {
    "silence": "silence (zeros)",
    "black": "a black picture",
    "white": "a white picture",
    "times 0.25": "samples times 0.25",
    "times 2": "samples times 2",
    "shifted": "samples shifted by a tenth of their range",
    "noise": "samples with noise of a tenth of their range",
    "clipped": "clipped samples",
    "saturated": "saturated samples",
    "shortest": "the smallest sizes",
    "longest": "the largest sizes",
}
"""What each kind of input is, for people."""
SEED = 20260102
_CONTRAST = 4.0
"""What a clipped input was multiplied by."""
_PART = 0.1
"""The part of the range by which values are shifted; also the added noise's deviation."""
_RECURRING = 1e-3
"""The share of the values at each end from which on the ends are the input's own, as with pictures
from 0 to 1 that nobody described: of others the extremes come once."""
_LEAST_RECURRING = 4
"""The least number of times that each end occurs then."""
_LEVELS = 255.0
"""The largest value of a picture of 8 bits a channel."""


@dataclass(frozen=True)
class ChangedValues:
    """Which values an input takes, as arrays that broadcast to it, in its own unit."""

    dark: Array
    """The value of black for a picture; otherwise the samples' smallest value."""
    light: Array
    """The value of white for a picture; otherwise the samples' largest value."""
    is_picture: bool
    is_bounded: bool
    """Whether the input can hold nothing beyond: a picture has 8 bits a channel."""

    @classmethod
    def of(cls, arrays: Sequence[Array], image: ImageInput | None) -> ChangedValues:
        """Return the values of an input.

        Args:
            arrays: The input in some samples.
            image: How it was made of a picture; None where nobody knows. uint8 is a picture always.
                Others are bounded where both of their extremes recur.
        """
        if image is not None:
            shape = (-1, 1, 1) if image.layout == "NCHW" else (-1,)
            mean, std = (np.asarray(v or [d]) for v, d in ((image.mean, 0.0), (image.std, 1.0)))
            ends = ((level * image.scale - mean) / std for level in (0.0, _LEVELS))
            dark, light = (end.reshape(shape) for end in ends)
            return cls(dark, light, is_picture=True, is_bounded=True)
        if arrays[0].dtype == np.uint8:
            dark, light = np.zeros(()), np.full((), _LEVELS)
            return cls(dark, light, is_picture=True, is_bounded=True)
        values = np.concatenate([array.ravel() for array in arrays])
        low, high = (np.asarray(end, np.float64) for end in (values.min(), values.max()))
        least = max(_LEAST_RECURRING, _RECURRING * values.size)
        is_bounded = low < high and all(np.sum(values == end) >= least for end in (low, high))
        return cls(low, high, is_picture=False, is_bounded=bool(is_bounded))

    @property
    def kinds(self) -> tuple[str, ...]:
        """What can be made of a sample, by name."""
        ends = ("black", "white") if self.is_picture else ("silence",)
        return (*ends, *_SCALED, "shifted", "noise", "clipped", "saturated")

    def change_array(self, kind: str, array: Array, random: np.random.Generator) -> Array:
        """Return an input that is changed, in its own dtype.

        Scaled values keep black where they are, or 0. What is clipped has four times the contrast,
        and saturated values are black or white, or the samples' smallest or largest value.
        """
        values = self._make_values(kind, array.astype(np.float64), random)
        if self.is_bounded or kind == "clipped":
            low, high = np.minimum(self.dark, self.light), np.maximum(self.dark, self.light)
            values = np.clip(values, low, high)
        if array.dtype.kind == "u":
            values = np.rint(values)
        return values.astype(array.dtype)

    def _make_values(self, kind: str, given: Array, random: np.random.Generator) -> Array:
        zero, centre = np.zeros(()), np.zeros(())
        if self.is_picture:
            zero, centre = self.dark, (self.dark + self.light) / 2
        part = _PART * (self.light - self.dark)
        match kind:
            case "silence" | "black":
                made = np.broadcast_to(zero, given.shape)
            case "white":
                made = np.broadcast_to(self.light, given.shape)
            case "shifted":
                made = given + part
            case "noise":
                made = given + part * random.standard_normal(given.shape)
            case "clipped":
                made = centre + _CONTRAST * (given - centre)
            case "saturated":
                is_dark = np.abs(given - self.dark) < np.abs(given - self.light)
                made = np.where(is_dark, self.dark, self.light)
            case _:
                made = zero + _SCALED[kind] * (given - zero)
        return made


_SCALED = {f"times {scale:g}": scale for scale in (0.25, 2.0)}
_CONSTANT = ("silence", "black", "white")


def make_changed_feeds(
    feeds: Sequence[Feed],
    images: Mapping[str, ImageInput | None],
    specs: Sequence[TensorSpec],
    sizes: Mapping[str, tuple[int, int]],
) -> Iterator[tuple[str, Feed]]:
    """Yield inputs unlike the samples, and what kind each is.

    Args:
        feeds: Samples.
        images: The inputs that change, all of them at once, with how they were made of pictures.
        specs: The model's inputs.
        sizes: Of symbolic dimensions the smallest and the largest; others stay as they are.
    """
    found = {
        name: ChangedValues.of([feed[name] for feed in feeds], image)
        for name, image in images.items()
        if any(feed[name].size for feed in feeds)
    }
    alone = all(set(feed) == set(found) for feed in feeds)
    for kind in dict.fromkeys(kind for values in found.values() for kind in values.kinds):
        random = np.random.default_rng(SEED)
        # Where nothing else differs between samples, these are the same of all of them.
        for feed in feeds[:1] if alone and kind in _CONSTANT else feeds:
            made = {
                name: values.change_array(kind, feed[name], random)
                for name, values in found.items()
                if kind in values.kinds
            }
            yield kind, {**feed, **made}
    for place, kind in enumerate(("shortest", "longest")):
        ends = {name: pair[place] for name, pair in sizes.items()}
        for feed in feeds:
            if resized := _resize_feed(feed, specs, ends):
                yield kind, resized


def _resize_feed(feed: Feed, specs: Sequence[TensorSpec], ends: Mapping[str, int]) -> Feed | None:
    """Return a sample of other sizes, cut or repeated; None if it has these."""
    made = {}
    for spec in specs:
        array = feed[spec.name]
        for axis, name in enumerate(spec.shape or ()):
            if isinstance(name, str) and name in ends:
                array = np.take(array, np.arange(ends[name]) % array.shape[axis], axis)
        if array.shape != feed[spec.name].shape:
            made[spec.name] = array
    return {**feed, **made} if made else None


def find_sizes(samples: SampleSet, specs: Sequence[TensorSpec]) -> dict[str, tuple[int, int]]:
    """Return the smallest and the largest size that symbolic dimensions have in samples."""
    found: dict[str, tuple[int, int]] = {}
    for shapes in samples.shapes:
        for spec in specs:
            for name, size in zip(spec.shape or (), shapes[spec.name], strict=bool(spec.shape)):
                if isinstance(name, str) and name != "?":
                    low, high = found.get(name, (size, size))
                    found[name] = min(low, size), max(high, size)
    return found
