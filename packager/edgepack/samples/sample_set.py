"""A set of samples on disk, read one at a time: never all of it in memory.

Layout of the folder: ``index.json``; per input one file of raw C-ordered little-endian arrays
behind each other (``input-<n>.bin``); ``labels.npy`` where there are labels.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path

import numpy as np

from edgepack.base.arrays import Array
from edgepack.errors import SamplesError
from edgepack.model.facts import TensorSpec
from edgepack.ondevice.runtime.edgepack_images import Placement

Sample = tuple[str, Mapping[str, Array]]
"""What to call the sample in messages, and its inputs by name."""


@dataclass(frozen=True)
class SampleSet:
    """A set of samples in a folder; ``read_inputs(i)`` maps only the bytes of sample ``i``."""

    folder: Path
    dtypes: dict[str, str]
    shapes: tuple[dict[str, tuple[int, ...]], ...]
    """Per sample, the shape of each input."""
    offsets: tuple[dict[str, int], ...]
    """Per sample, where each input's bytes begin in its file."""
    names: tuple[str, ...]
    """What each sample is called: an image by its path within the folder."""
    labels: Array | None
    """One label per sample: booleans, integers, floats or a text; the leading axis counts samples.
    Boxes are ``(samples, boxes, 5)``: class, left, top, right, bottom; where there are crowds, a
    sixth column marks them; rows of NaN fill it up. Masks are int16 ``(samples, height, width)``,
    pictures ``(samples, height, width, 3)``; -1 fills them up. Large ones are read from the file
    when they are used."""
    streams: tuple[int, ...] = ()
    """The samples that begin a stream, where they are frames of streams."""
    places: tuple[Placement, ...] = ()
    """Where each picture lies in the input, where labels are boxes or masks in its pixels."""

    @classmethod
    def read(cls, folder: Path) -> SampleSet:
        """Open the set in a folder that :func:`write_sample_set` wrote."""
        index = json.loads((folder / "index.json").read_text(encoding="utf-8"))
        labels = folder / "labels.npy"
        return cls(
            folder,
            index["dtypes"],
            tuple({k: tuple(v) for k, v in shapes.items()} for shapes in index["shapes"]),
            tuple(index["offsets"]),
            tuple(index["names"]),
            _load_labels(labels) if labels.exists() else None,
            tuple(index["streams"]),
            tuple(Placement(*place) for place in index["places"]),
        )

    def __len__(self) -> int:
        return len(self.shapes)

    def take(self, numbers: Sequence[int]) -> SampleSet:
        """Return the set of only some samples; of streams they have to be the first frames."""
        return replace(
            self,
            shapes=tuple(self.shapes[number] for number in numbers),
            offsets=tuple(self.offsets[number] for number in numbers),
            names=tuple(self.names[number] for number in numbers),
            labels=None if self.labels is None else self.labels[list(numbers)],
            streams=tuple(begin for begin in self.streams if begin < len(numbers)),
            places=tuple(self.places[number] for number in numbers if self.places),
        )

    def read_inputs(self, index: int) -> dict[str, Array]:
        """Return the inputs of one sample, each with the shape that the model takes."""
        return {
            name: np.fromfile(
                self.folder / f"input-{number}.bin",
                dtype=dtype,
                count=prod(self.shapes[index][name]),
                offset=self.offsets[index][name],
            ).reshape(self.shapes[index][name])
            for number, (name, dtype) in enumerate(self.dtypes.items())
        }

    def __iter__(self) -> Iterator[dict[str, Array]]:
        return (self.read_inputs(index) for index in range(len(self)))


def write_sample_set(
    folder: Path,
    signature: Sequence[TensorSpec],
    samples: Iterable[Sample],
    labels: Array | None = None,
    streams: Sequence[int] = (),
    places: Sequence[Placement] = (),
) -> None:
    """Write samples to an existing, empty folder, checking each against the model's inputs.

    ``streams`` are the numbers of those that begin one, known once all samples were taken;
    ``places`` say where pictures lie in the input.

    Raises:
        SamplesError: There are none, or one has a wrong name, dtype or shape, or holds NaN or
            infinity, or the labels are neither numbers nor texts, or not as many as the samples.
    """
    if labels is not None:
        _check_labels(labels)
    shapes: list[dict[str, tuple[int, ...]]] = []
    offsets: list[dict[str, int]] = []
    names: list[str] = []
    with ExitStack() as stack:
        files = [
            stack.enter_context((folder / f"input-{n}.bin").open("wb"))
            for n in range(len(signature))
        ]
        for title, inputs in samples:
            _check_names(title, inputs, signature)
            names.append(title)
            shapes.append({})
            offsets.append({})
            for spec, file in zip(signature, files, strict=True):
                array = _check_array(title, spec, np.asarray(inputs[spec.name]))
                shapes[-1][spec.name] = array.shape
                offsets[-1][spec.name] = file.tell()
                file.write(np.ascontiguousarray(array).tobytes())
    if not shapes:
        raise SamplesError("there are no samples", hint="check the path or glob under 'samples'")
    if labels is not None and len(labels) != len(shapes):
        raise SamplesError(
            f"there are {len(labels)} labels for {len(shapes)} samples",
            hint="give each sample one label",
        )
    index = {
        "dtypes": {spec.name: spec.dtype for spec in signature},
        "shapes": shapes,
        "offsets": offsets,
        "names": names,
        "streams": list(streams),
        "places": list(places),
    }
    (folder / "index.json").write_text(json.dumps(index), encoding="utf-8")
    if labels is not None:
        np.save(folder / "labels.npy", labels, allow_pickle=False)


def _load_labels(path: Path) -> Array:
    is_large = path.stat().st_size > _LARGE
    found: Array = np.load(path, allow_pickle=False, mmap_mode="r" if is_large else None)
    return found


_LARGE = 1 << 24
"""The bytes from which labels, such as masks, stay on disk."""


def encode_text(text: str) -> Array:
    """Return a text as a model takes it: its UTF-8 bytes, uint8 ``(N,)``."""
    return np.frombuffer(text.encode(), np.uint8)


def _check_labels(labels: Array) -> None:
    if labels.dtype.kind == "U" and labels.ndim == 1:
        return
    if labels.ndim == 0 or labels.dtype.kind not in "biuf":
        example = ", ".join(map(repr, labels.ravel()[:3].tolist()))
        raise SamplesError(
            f"the labels are {labels.dtype} of shape {list(labels.shape)}: {example}",
            hint="give each sample one number, or one text; a class is its index in the model's"
            " scores",
        )


def _check_names(title: str, inputs: Mapping[str, Array], signature: Sequence[TensorSpec]) -> None:
    expected = [spec.name for spec in signature]
    if sorted(inputs) != sorted(expected):
        raise SamplesError(
            f"{title} has the inputs {sorted(inputs)}, the model takes {sorted(expected)}",
            hint="name the arrays as the model names its inputs (edgepack inspect MODEL)",
        )


def _check_array(title: str, spec: TensorSpec, array: Array) -> Array:
    """Return the array as the model takes it.

    Python numbers arrive as float64 or int64, so those are narrowed where nothing is lost. A text
    counts as its bytes.
    """
    if array.dtype.kind == "U" and array.size == 1 and _can_take_bytes(spec):
        array = encode_text(str(array.item()))
    if array.dtype != spec.dtype:
        narrow = array.dtype in ("float64", "int64") and array.astype(spec.dtype)
        same_kind = array.dtype.kind == np.dtype(spec.dtype).kind
        if narrow is False or not same_kind or not np.allclose(narrow, array, rtol=1e-6):
            raise SamplesError(
                f"{title} has {array.dtype} for {spec.name!r}, the model takes {spec.dtype}",
                hint="give each sample as a text, or as the bytes of a text or file"
                if _can_take_bytes(spec)
                else f"convert the array with .astype({spec.dtype!r})",
            )
        array = narrow
    _check_shape(title, spec, array.shape)
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise SamplesError(
            f"{title} has NaN or infinity in {spec.name!r}",
            hint="remove the sample, or fix the step that made it",
        )
    return array


def _can_take_bytes(spec: TensorSpec) -> bool:
    return spec.dtype == "uint8" and spec.shape is not None and len(spec.shape) == 1


def _check_shape(title: str, spec: TensorSpec, shape: tuple[int, ...]) -> None:
    if spec.shape is None:
        return
    fits = len(shape) == len(spec.shape) and all(
        want == have or isinstance(want, str) for want, have in zip(spec.shape, shape, strict=True)
    )
    if not fits:
        raise SamplesError(
            f"{title} has the shape {list(shape)} for {spec.name!r}, the model takes"
            f" [{', '.join(map(str, spec.shape))}]",
            hint="a sample has the model's full shape; in an .npz the leading axis counts samples",
        )
