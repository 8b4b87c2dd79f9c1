"""Pictures as models with preprocessing in the graph take them: from files, and made ones."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from edgepack.base.arrays import Array
from edgepack.project.inputs import ImageInput
from edgepack.samples.images import decode_pixels
from edgepack.samples.sample_set import Sample
from edgepack.samples.sources import JPEG, read_picture_samples
from edgepack.steps.comparing import SEED
from edgepack.steps.samples import FolderSamples

Described = tuple[tuple[str, ImageInput], ...]
"""Inputs that are made of pictures, each with its description."""


@dataclass(frozen=True)
class PictureSamples(FolderSamples):
    """The pixels of images, or the bytes of their files; see :class:`FolderSamples`."""

    name: ClassVar[str] = "picture-samples"
    as_files: bool

    def read_samples(self, files: Sequence[Path]) -> Iterable[Sample]:
        """Return the pixels or bytes of each file."""
        return read_picture_samples(files, self.input_name, self.image, as_files=self.as_files)


def make_pictures(
    shape: Sequence[int | str], sizes: Sequence[tuple[int, int]], seed: int = SEED
) -> Iterator[Array]:
    """Yield seeded pictures: blocks of colours, with noise on them.

    Args:
        shape: What the input takes: uint8 ``(H, W, 3)``, where some sizes may be fixed, or the
            bytes of a file, ``(N,)``, which are PNG then.
        sizes: Height and width of each.
        seed: Of the colours.
    """
    generator = np.random.default_rng(seed)
    as_files = len(shape) == 1
    for size in sizes:
        height, width = (
            given if isinstance(given, int) else wanted
            for given, wanted in zip(size if as_files else shape[:2], size, strict=True)
        )
        blocks = generator.integers(0, 256, (height // 16 + 1, width // 16 + 1, 3))
        large = blocks.repeat(16, axis=0).repeat(16, axis=1)[:height, :width]
        noise = generator.integers(-32, 33, (height, width, 3))
        pixels = np.clip(large + noise, 0, 255).astype(np.uint8)
        yield _encode_png(pixels) if as_files else pixels


def _encode_png(pixels: Array) -> Array:
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "png")
    return np.frombuffer(file.getvalue(), np.uint8)


def is_jpeg(given: Array) -> bool:
    """Return whether a picture is the bytes of a JPEG file."""
    return given.ndim == 1 and given[:3].tobytes() == JPEG


def decode_picture(given: Array) -> Array:
    """Return the pixels of a picture, uint8 ``(H, W, 3)``, that may be the bytes of a file.

    Raises:
        SamplesError: The file is no image.
    """
    return decode_pixels(given.tobytes(), "a sample") if given.ndim == 1 else given
