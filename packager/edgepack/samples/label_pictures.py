"""Labels that are pictures: a mask for each image, or what a model should make of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from edgepack.base.arrays import Array
from edgepack.errors import SamplesError
from edgepack.samples.images import SUFFIXES, open_image, read_image_pixels

NO_LABEL = 255
"""The value of a mask's pixels that have no label, as in Pascal VOC and Cityscapes."""
_MODES = ("1", "L", "P")


def read_image_masks(
    files: Sequence[Path], folder: Path, labels: Path, sizes: Sequence[tuple[int, int]]
) -> Array:
    """Return the class of each pixel of each image.

    Args:
        files: The images.
        folder: In which they lie.
        labels: The folder with a ``.png`` for each, at the path that the image has within its own:
            a pixel's value, or its number in the palette, is its class, and 255 is none.
        sizes: Width and height of each image, upright.

    Returns:
        int16 ``(images, height, width)``, the largest of each; -1 fills it up.

    Raises:
        SamplesError: A file is missing, has another size or more than one channel; or there are
            only 0 and 255, of which nobody knows whether 255 is a class.
    """
    found = []
    for path, size in zip(files, sizes, strict=True):
        place = (labels / path.relative_to(folder)).with_suffix(".png")
        mask = _read_mask(place)
        if mask.shape != size[::-1]:
            raise SamplesError(
                f"the mask {str(place)!r} has {mask.shape[1]} x {mask.shape[0]} pixels, and its"
                f" image {path.name!r} has {size[0]} x {size[1]}",
                hint="a mask has a pixel for each of its image, upright",
            )
        found.append(mask)
    known = {int(value) for mask in found for value in np.unique(mask)}
    if known == {0, NO_LABEL}:
        raise SamplesError(
            f"the masks in {str(labels)!r} hold 0 and {NO_LABEL} only, and {NO_LABEL} is no label",
            hint="write 1 where something is; 255 only where nobody knows",
        )
    return _stack(found)


def _read_mask(path: Path) -> Array:
    if not path.is_file():
        raise SamplesError(
            f"there is no mask {str(path)!r}",
            hint="each evaluation image has one, at its own path within the folder of labels",
        )
    with open_image(path) as image:
        if image.mode not in _MODES:
            raise SamplesError(
                f"the mask {str(path)!r} is of Pillow's mode {image.mode}, so its colours are no"
                " classes",
                hint="save it as a PNG in grey or with a palette, a pixel's value its class",
            )
        return np.asarray(image).astype(np.int16)


def read_image_references(files: Sequence[Path], folder: Path, labels: Path) -> Array:
    """Return the picture that should become of each image, upright and opaque.

    Args:
        files: The images.
        folder: In which they lie.
        labels: The folder with a picture for each, at the path that the image has within its own;
            its suffix may be another one.

    Returns:
        int16 ``(images, height, width, 3)``, RGB, the largest of each; -1 fills it up.

    Raises:
        SamplesError: A file is missing, or no image.
    """
    found = []
    for path in files:
        place = labels / path.relative_to(folder)
        own = [place.with_suffix(suffix) for suffix in (path.suffix, *sorted(SUFFIXES))]
        there = next((each for each in own if each.is_file()), None)
        if there is None:
            raise SamplesError(
                f"there is no reference picture {str(place)!r}",
                hint="each evaluation image has one, at its own path within the folder of labels",
            )
        found.append(read_image_pixels(there).astype(np.int16))
    return _stack(found)


def _stack(found: Sequence[Array]) -> Array:
    largest = np.max([each.shape[:2] for each in found], axis=0)
    stacked = np.full((len(found), *largest, *found[0].shape[2:]), -1, np.int16)
    for row, each in zip(stacked, found, strict=True):
        row[: each.shape[0], : each.shape[1]] = each
    return stacked
