"""What ``edgepack try`` is given, as the model takes it: photos, texts, sounds, arrays, numbers.

What an argument is follows from the bundle's description of its inputs: with ``image`` it is a
picture, with ``tokens`` a text. Of other inputs, a row of samples takes a WAV file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from edgepack.base.arrays import Array
from edgepack.bundle.reading import Bundle
from edgepack.errors import SamplesError, UsageError, suggest_nearest
from edgepack.model.facts import TensorSpec as FactsSpec
from edgepack.ondevice.runtime import edgepack_images as images
from edgepack.ondevice.runtime.edgepack_meaning import Feed, Meaning
from edgepack.ondevice.runtime.edgepack_shapes import InputShapes, TensorSpec, find_shapes
from edgepack.project.inputs import ImageInput
from edgepack.samples.constants import Constant
from edgepack.samples.images import SUFFIXES, list_image_files
from edgepack.samples.sources import read_npz_samples
from edgepack.trying.taking import Inputs
from edgepack.trying.values import InputValue, fill_array, find_picture, read_value

_FILES = frozenset({".npy", ".wav", *SUFFIXES})


@dataclass(frozen=True)
class TrialInput:
    """One input to try, ready for the model."""

    name: str
    feed: Feed
    """Without the state where it is the next frame of a stream."""
    picture: Array | None = None
    """uint8 ``(H, W, 3)``: the photo, upright, if the model takes just one."""
    place: images.Placement | None = None
    """Where that photo lies in the model's input."""
    text: str | None = None
    said: tuple[str, ...] = ()
    """What was read, and what was done to make it fit."""


class Reader:
    """Makes samples for a bundle, whose files have to stay while it is used.

    Args:
        bundle: A verified bundle.
    """

    def __init__(self, bundle: Bundle) -> None:
        manifest = bundle.manifest.model_dump(mode="json")
        specs = [TensorSpec(s.name, s.dtype, tuple(s.shape)) for s in bundle.manifest.inputs]
        self.shapes = InputShapes(specs, manifest["input_descriptions"])
        self.meaning = Meaning(
            manifest,
            self.shapes,
            lambda name: (bundle.path / "files" / name).read_bytes().decode("utf-8"),
        )
        state = set(bundle.manifest.state.values())
        needed = [name for name in self.meaning.needed if name not in state]
        self.inputs = Inputs(specs, bundle.manifest.input_descriptions, needed)
        self.first = {name: InputValue(0.0, name) for name in sorted(state)}
        """What inputs of a state get where a stream begins and nothing is given for them."""
        # Only types and shapes matter here, not an array's values.
        self.constants = [
            Constant(FactsSpec(name, "float64", None), value)
            for name, value in bundle.manifest.constants.items()
        ]
        self.kinds = {name: d.kind for name, d in bundle.manifest.output_descriptions.items()}

    def read(
        self, given: Sequence[str], inputs: Mapping[str, str], limit: int
    ) -> tuple[list[TrialInput], list[str]]:
        """Return the samples, and what there is to say about all of them.

        Args:
            given: Photos, folders of photos, texts, WAV files, ``.npz``, ``.npy``.
            inputs: By input, what it gets in every sample; a number fills the input.
            limit: The most photos of a folder, and the most samples of an ``.npz``.

        Raises:
            SamplesError: Something cannot be read, or does not fit the model; or an input gets
                nothing.
            UsageError: There is no such input, or nothing is given.
        """
        if not given and not inputs:
            hint = self.inputs.format_command()
            raise UsageError("there is no input to try the bundle with", hint=hint)
        shared = {
            self._find_name(name): read_value(text, name, self.inputs)
            for name, text in inputs.items()
        }
        free = [name for name in self.inputs.needed if name not in shared]
        said: list[str] = []
        samples: list[TrialInput] = []
        for text in given:
            if Path(text).suffix == ".npz":
                samples += self._read_arrays(Path(text), shared, limit, said)
                continue
            for each in self._list_photos(text, free, limit, said) or [text]:
                name = self._find_input(each, free)
                value = read_value(each, name, self.inputs)
                samples.append(self._make_sample({name: value, **shared}))
        return samples or [self._make_sample(shared)], said

    def _find_name(self, name: str) -> str:
        if name not in self.inputs.specs:
            raise UsageError(
                f"the model has no input {name!r}",
                hint=suggest_nearest(name, self.inputs.specs),
                where="--input",
            )
        return name

    def _list_photos(self, text: str, free: list[str], limit: int, said: list[str]) -> list[str]:
        """Return a folder's photos; none if the argument is no folder, or no photo is taken."""
        if not self.inputs.list_of_kind("image", free) or not Path(text).is_dir():
            return []
        found = len(list_image_files(Path(text)))
        if found > limit:
            said.append(f"{limit} of the {found} photos in {text}: --limit {found} takes all")
        return [str(path) for path in list_image_files(Path(text), limit)]

    def _find_input(self, text: str, free: list[str]) -> str:
        """Return the input that an argument is for."""
        suffix = Path(text).suffix.lower()
        if suffix in _FILES and not Path(text).exists():
            hint = f"check the path; for example: {self.inputs.format_command()}"
            raise SamplesError(f"there is no file {text!r}", hint=hint)
        fits = free if suffix == ".npy" else self._list_takers(text, suffix, free)
        if not fits:
            raise self.inputs.make_unwanted_error(text)
        if len(fits) > 1:
            raise UsageError(
                f"{text!r} may be for {' or '.join(fits)}",
                hint=f"say which: --input {fits[0]}={text}",
            )
        return fits[0]

    def _list_takers(self, text: str, suffix: str, free: list[str]) -> list[str]:
        if suffix == ".wav":
            return self.inputs.list_of_kind("sound", free)
        pictures, texts = (self.inputs.list_of_kind(kind, free) for kind in ("image", "text"))
        is_picture = suffix in SUFFIXES or (pictures and (not texts or Path(text).is_file()))
        return pictures if is_picture else texts

    def _make_sample(self, values: Mapping[str, InputValue]) -> TrialInput:
        """Return a sample of what its inputs get."""
        values = {**self.first, **values}
        missing = [name for name in self.inputs.needed if name not in values]
        if missing:
            lacking = ", ".join(f"{name} ({self.inputs.format_type(name)})" for name in missing)
            hint = (
                f"{self.inputs.format_command(missing)}; a number fills the input: 0 for"
                " a first state"
            )
            raise SamplesError(f"the model also takes {lacking}", hint=hint)
        numbers = {n: v.given for n, v in values.items() if isinstance(v.given, float)}
        feed, notes = self._make_feed({n: v.given for n, v in values.items()}, numbers)
        photos = self.inputs.list_of_kind("image", list(values))
        picture = place = None
        if len(photos) == 1:
            description = self.inputs.descriptions[photos[0]].image
            picture = find_picture(values[photos[0]], description)
            place = feed.place or _find_place(values[photos[0]], description, picture)
            feed = feed._replace(place=place)
        texts = [str(values[name].given) for name in self.inputs.list_of_kind("text", list(values))]
        return TrialInput(
            name=", ".join(v.name for n, v in values.items() if n not in numbers) or "numbers",
            feed=feed,
            picture=picture,
            place=place,
            text="\n".join(texts) or None,
            said=(*(line for value in values.values() for line in value.said), *notes),
        )

    def _make_feed(
        self, given: Mapping[str, Any], numbers: Mapping[str, float]
    ) -> tuple[Feed, list[str]]:
        """Return all arrays as the model takes them, masks included, and notes on numbers."""
        tensors = {n: v for n, v in given.items() if isinstance(v, np.ndarray) and v.ndim == 4}
        made = {n: v for n, v in given.items() if n not in {**tensors, **numbers}}
        try:
            feed = self.meaning.make_feed(made)
            arrays = {**feed.arrays, **tensors}
            sizes = self.shapes.find_sizes(find_shapes(arrays))
            full = {name: self._fill_input(name, number, sizes) for name, number in numbers.items()}
            arrays = {**arrays, **full}
            for name, array in arrays.items():
                self.inputs.specs[name].check(array)
            arrays = self.shapes.add_masks(arrays)
        except (ValueError, TypeError, KeyError) as error:
            raise SamplesError(str(error), hint=self.inputs.format_command()) from error
        notes = [
            f"{name}: {number:g}"
            + (f" everywhere, {list(full[name].shape)}" if full[name].ndim else "")
            for name, number in numbers.items()
        ]
        return feed._replace(arrays=arrays), notes

    def _fill_input(self, name: str, number: float, sizes: Mapping[str, int]) -> Array:
        spec = self.inputs.specs[name]
        shape = [sizes.get(side, 1) if isinstance(side, str) else side for side in spec.shape]
        return fill_array(spec, shape, number)

    def _read_arrays(
        self, path: Path, shared: Mapping[str, InputValue], limit: int, said: list[str]
    ) -> Iterator[TrialInput]:
        """Yield samples of an ``.npz``, as ``samples`` in edgepack.yaml takes it."""
        signature = [FactsSpec(s.name, s.dtype, s.shape) for s in self.inputs.specs.values()]
        state = [spec for spec in signature if spec.name in self.first]
        found, _ = read_npz_samples(path, signature, None, None, self.constants, state)
        samples = list(found)
        if len(samples) > limit:
            said.append(f"{limit} of the {len(samples)} samples in {path}: --limit takes more")
        for number, (name, arrays) in enumerate(samples[:limit]):
            values = {
                self._find_name(key): InputValue(array, name) for key, array in arrays.items()
            }
            sample = replace(self._make_sample({**values, **shared}), name=name)
            begins = number == 0 or self.first.keys() & {*values, *shared}
            yield sample if begins or not self.first else self._make_following(sample)

    def _make_following(self, sample: TrialInput) -> TrialInput:
        """Return a sample that takes the state that a variant put out for the one before."""
        arrays = {n: array for n, array in sample.feed.arrays.items() if n not in self.first}
        said = [line for line in sample.said if line.partition(":")[0] not in self.first]
        said.append(f"from the sample before: {', '.join(self.first)}")
        return replace(sample, feed=sample.feed._replace(arrays=arrays), said=tuple(said))


def _find_place(
    value: InputValue, description: ImageInput | None, picture: Array | None
) -> images.Placement | None:
    """Return where a picture lies that the model decodes itself, or that came as a tensor."""
    if picture is None or description is None:
        return None
    height, width, _ = picture.shape
    if isinstance(value.given, np.ndarray):
        return images.Placement(width, height, width, height, 0, 0, width, height)
    return images.find_placement(width, height, description.model_dump()["resize"])
