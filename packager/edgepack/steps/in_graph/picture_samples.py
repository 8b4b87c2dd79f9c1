"""Steps that make sample sets for models with preprocessing in the graph (in_graph.py)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from edgepack.model.facts import TensorSpec
from edgepack.model.running import Arrays, make_random_inputs
from edgepack.ondevice.runtime import edgepack_images as images
from edgepack.ondevice.runtime.edgepack_wordpiece import Tokenizer
from edgepack.samples.sample_set import Sample, SampleSet, encode_text, write_sample_set
from edgepack.samples.spreading import choose_spread
from edgepack.samples.tokenizers import parse_tokenizer
from edgepack.steps.base import Inputs, Notes
from edgepack.steps.comparing import SEED
from edgepack.steps.graph.prepared import fix_sizes
from edgepack.steps.in_graph.pictures import Described, decode_picture, make_pictures
from edgepack.steps.in_graph.texts import (
    MADE,
    DescribedTexts,
    decode_text,
    make_text_tensors,
    read_tokenizers,
)
from edgepack.steps.samples import SamplesStep

_LONGEST = 512
"""Of a picture among the probes, which go into the bundle as goldens, uncompressed."""
_MADE_SIZES = ((240, 320), (333, 250), (64, 64), (97, 131))
"""Heights and widths of made pictures."""


@dataclass(frozen=True)
class InGraphProbes(SamplesStep):
    """Some pictures and texts that represent all: goldens are made of them, and proofs use them.

    Input: ``samples``, a set of which some are taken, pictures cut to 512 pixels a side where the
    model takes any size; without it, some are made.
    """

    name: ClassVar[str] = "in-graph-probes"
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
            chosen = choose_spread(range(len(given)), self.count)
            write_sample_set(
                out, self.signature, (self._cut_sample(given, index) for index in chosen)
            )
            return Notes(f"{len(chosen)} of {len(given)} samples")
        write_sample_set(out, self.signature, self._make_samples())
        return Notes("made of seeded random numbers")

    def _cut_sample(self, given: SampleSet, index: int) -> Sample:
        feed = given.read_inputs(index)
        for spec in self.signature:
            if spec.name in self.names and len(spec.shape or ()) == 3 and not self._is_sized(spec):
                feed[spec.name] = feed[spec.name][:_LONGEST, :_LONGEST]
        return f"sample {index}", feed

    def _is_sized(self, spec: TensorSpec) -> bool:
        """Return whether an input takes some sizes alone."""
        known = dict(self.sizes)
        return any(isinstance(size, int) or size in known for size in (spec.shape or ())[:2])

    def _make_samples(self) -> Iterator[Sample]:
        for number, picture in enumerate(_MADE_SIZES):
            chosen = {name: sizes[number % len(sizes)] for name, sizes in self.sizes}
            specs = fix_sizes(self.signature, chosen)
            plain = [spec for spec in specs if spec.name not in (*self.names, *self.texts)]
            feed = make_random_inputs(plain, seed=SEED + number)
            feed |= {name: encode_text(MADE[number % len(MADE)]) for name in self.texts}
            for spec in specs:
                if spec.name in self.names:
                    made = make_pictures(spec.shape or (), [picture], SEED + number)
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
            (name, self._make_tensors(feed, tokenizers))
            for name, feed in zip(given.names, given, strict=True)
        )
        write_sample_set(out, self.signature, samples, given.labels, places=given.places)
        return Notes(f"tensors made of {len(given)} samples", {"samples": len(given)})

    def _make_tensors(self, feed: Arrays, tokenizers: Sequence[Tokenizer]) -> Arrays:
        dtypes = {spec.name: spec.dtype for spec in self.signature}
        made = {
            name: images.make_tensor(decode_picture(feed[name]), image.model_dump()).astype(
                dtypes[name]
            )
            for name, image in self.described
        }
        for (name, tokens), tokenizer in zip(self.texts, tokenizers, strict=True):
            text = decode_text(feed[name])
            made |= make_text_tensors(tokenizer, text, name, tokens, self.signature)
        return {**feed, **made}
