"""Steps that make sample sets of pictures and texts, for models that take them (in_graph.py)."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from edgepack.data import SampleSet, spread, write_sample_set
from edgepack.data.images import file_pixels
from edgepack.data.sample_set import Sample, text_bytes
from edgepack.data.sources import JPEG, picture_samples
from edgepack.data.tokenizers import parse_tokenizer
from edgepack.harness import edgepack_images as images
from edgepack.harness.edgepack_wordpiece import Tokenizer
from edgepack.model.facts import TensorSpec
from edgepack.model.running import Arrays, random_inputs
from edgepack.project import ImageInput
from edgepack.steps.base import Inputs, Notes
from edgepack.steps.comparing import SEED
from edgepack.steps.prepared import sized
from edgepack.steps.samples import FolderSamples, SamplesStep
from edgepack.steps.texts import MADE, DescribedTexts, read_tokenizers, text_of, text_tensors

Array = np.ndarray[Any, Any]
Described = tuple[tuple[str, ImageInput], ...]
"""Inputs that are made of pictures, each with its description."""

_LONGEST = 512
"""Of a picture among the probes, which go into the bundle as goldens, uncompressed."""
_MADE_SIZES = ((240, 320), (333, 250), (64, 64), (97, 131))
"""Heights and widths of made pictures."""


@dataclass(frozen=True)
class PictureSamples(FolderSamples):
    """The pixels of images, or the bytes of their files; see :class:`FolderSamples`."""

    name: ClassVar[str] = "picture-samples"
    as_files: bool

    def samples(self, files: Sequence[Path]) -> Iterable[Sample]:
        """Return the pixels or bytes of each file."""
        return picture_samples(files, self.input_name, self.image, as_files=self.as_files)


def made_pictures(
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
        yield _png(pixels) if as_files else pixels


def _png(pixels: Array) -> Array:
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "png")
    return np.frombuffer(file.getvalue(), np.uint8)


def is_jpeg(given: Array) -> bool:
    """Return whether a picture is the bytes of a JPEG file."""
    return given.ndim == 1 and given[:3].tobytes() == JPEG


def pixels_of(given: Array) -> Array:
    """Return the pixels of a picture, uint8 ``(H, W, 3)``, that may be the bytes of a file.

    Raises:
        SamplesError: The file is no image.
    """
    return file_pixels(given.tobytes(), "a sample") if given.ndim == 1 else given


@dataclass(frozen=True)
class PictureProbes(SamplesStep):
    """Some pictures and texts that stand for all: goldens are made of them, and proofs use them.

    Input: ``samples``, a set of which some are taken, pictures cut to 512 pixels a side where the
    model takes any size; without it, some are made.
    """

    name: ClassVar[str] = "picture-probes"
    libraries: ClassVar[tuple[str, ...]] = ("numpy", "pillow")
    signature: tuple[TensorSpec, ...]
    names: tuple[str, ...]
    """The inputs that take pictures."""
    sizes: tuple[tuple[str, tuple[int, ...]], ...]
    """Symbolic dimensions that have several sizes and no others."""
    count: int
    texts: tuple[str, ...] = ()
    """The inputs that take texts."""

    def run(self, inputs: Inputs, out: Path) -> Notes:
        """Write the set."""
        if "samples" in inputs:
            given = SampleSet.read(inputs["samples"])
            chosen = spread(range(len(given)), self.count)
            write_sample_set(out, self.signature, (self._cut(given, index) for index in chosen))
            return Notes(f"{len(chosen)} of {len(given)} samples")
        write_sample_set(out, self.signature, self._made())
        return Notes("made of seeded random numbers")

    def _cut(self, given: SampleSet, index: int) -> Sample:
        feed = given.inputs(index)
        for spec in self.signature:
            if spec.name in self.names and len(spec.shape or ()) == 3 and not self._is_sized(spec):
                feed[spec.name] = feed[spec.name][:_LONGEST, :_LONGEST]
        return f"sample {index}", feed

    def _is_sized(self, spec: TensorSpec) -> bool:
        """Return whether an input takes some sizes alone."""
        known = dict(self.sizes)
        return any(isinstance(size, int) or size in known for size in (spec.shape or ())[:2])

    def _made(self) -> Iterator[Sample]:
        for number, picture in enumerate(_MADE_SIZES):
            chosen = {name: sizes[number % len(sizes)] for name, sizes in self.sizes}
            specs = sized(self.signature, chosen)
            plain = [spec for spec in specs if spec.name not in (*self.names, *self.texts)]
            feed = random_inputs(plain, seed=SEED + number)
            feed |= {name: text_bytes(MADE[number % len(MADE)]) for name in self.texts}
            for spec in specs:
                if spec.name in self.names:
                    made = made_pictures(spec.shape or (), [picture], SEED + number)
                    feed[spec.name] = next(made)
            yield f"made picture {number}", feed


@dataclass(frozen=True)
class TensorSamples(SamplesStep):
    """The tensors that the model without preprocessing takes.

    Inputs: ``samples``, of pictures and texts; the file of each text's tokenizer.
    """

    name: ClassVar[str] = "tensor-samples"
    libraries: ClassVar[tuple[str, ...]] = ("numpy", "pillow")
    signature: tuple[TensorSpec, ...]
    """The inputs of the model without preprocessing."""
    described: Described
    texts: DescribedTexts = ()

    def run(self, inputs: Inputs, out: Path) -> Notes:
        """Write the set, with the labels that there are."""
        given = SampleSet.read(inputs["samples"])
        tokenizers = [parse_tokenizer(each) for each in read_tokenizers(inputs, self.texts)]
        samples = (
            (f"sample {number}", self._tensors(feed, tokenizers))
            for number, feed in enumerate(given)
        )
        write_sample_set(out, self.signature, samples, given.labels)
        return Notes(f"tensors made of {len(given)} samples", {"samples": len(given)})

    def _tensors(self, feed: Arrays, tokenizers: Sequence[Tokenizer]) -> Arrays:
        dtypes = {spec.name: spec.dtype for spec in self.signature}
        made = {
            name: images.tensor(pixels_of(feed[name]), image.model_dump()).astype(dtypes[name])
            for name, image in self.described
        }
        for (name, tokens), tokenizer in zip(self.texts, tokenizers, strict=True):
            text = text_of(feed[name])
            made |= text_tensors(tokenizer, text, name, tokens, self.signature)
        return {**feed, **made}
