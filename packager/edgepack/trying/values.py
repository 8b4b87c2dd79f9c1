"""What one input of a model gets: a picture, a text, a sound, an array, or a number."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from edgepack.base.arrays import Array
from edgepack.errors import SamplesError
from edgepack.ondevice.runtime.edgepack_shapes import TensorSpec
from edgepack.project.inputs import ImageInput
from edgepack.samples.images import SUFFIXES, read_image_pixels
from edgepack.samples.sounds import read_sound_tensor
from edgepack.trying.sound import is_row, read_sound
from edgepack.trying.taking import Inputs

_LONGEST_NAME = 60


@dataclass(frozen=True)
class InputValue:
    """What one input gets."""

    given: Any
    """Pixels, a file's bytes, a text or an array; a float means an input filled with it."""
    name: str
    """What messages call the value."""
    said: tuple[str, ...] = ()
    """What was read, and what was done to make it fit."""
    picture: Array | None = None
    """uint8 ``(H, W, 3)``, upright, where it is a picture."""


def read_value(text: str, name: str, inputs: Inputs) -> InputValue:
    """Return what an argument says for an input.

    Raises:
        SamplesError: There is no such file, it cannot be read, or is not of that input's kind.
    """
    path, kind, spec = Path(text), inputs.find_kind(name), inputs.specs[name]
    if path.suffix == ".npy":
        return InputValue(_read_array_file(path), path.name)
    if path.suffix == ".npz":
        return InputValue(_read_array(path, name), path.name)
    if kind == "image":
        return _read_picture(path, as_file=len(spec.shape) == 1)
    if kind == "text":
        return _read_text(text)
    if path.suffix.lower() == ".wav":
        return _read_sound(path, name, inputs)
    return _read_number(text, name, inputs)


def _read_picture(path: Path, *, as_file: bool) -> InputValue:
    if not path.is_file():
        raise SamplesError(
            f"there is no file {str(path)!r}, and the model takes a picture",
            hint=f"name a photo ({', '.join(sorted(SUFFIXES))}) or a folder of photos",
        )
    pixels = read_image_pixels(path)
    said = f"{pixels.shape[1]} x {pixels.shape[0]} pixels"
    if not as_file:
        return InputValue(pixels, path.name, (said,), pixels)
    decoded = "the model decodes the file itself, and does not turn it as EXIF says"
    return InputValue(path.read_bytes(), path.name, (said, decoded), pixels)


def _read_text(text: str) -> InputValue:
    shown = text if len(text) <= _LONGEST_NAME else f"{text[: _LONGEST_NAME - 3]}..."
    # A long text is no path that a system would look for.
    if len(text) > 255 or not Path(text).is_file():
        return InputValue(text, shown)
    try:
        return InputValue(Path(text).read_bytes().decode("utf-8-sig").rstrip("\r\n"), shown)
    except (OSError, ValueError) as error:
        raise SamplesError(
            f"cannot read {text!r} as a text in UTF-8: {error}", hint="save it as UTF-8"
        ) from error


def _read_sound(path: Path, name: str, inputs: Inputs) -> InputValue:
    spec, described = inputs.specs[name], inputs.descriptions.get(name)
    if described and described.sound:
        rank = len(spec.shape)
        return InputValue(read_sound_tensor(path, described.sound, spec.dtype, rank), path.name)
    if not is_row(spec.dtype, spec.shape):
        words = inputs.format_type(name)
        raise SamplesError(
            f"{path.name} is sound, and {spec.name!r} ({words}) is no row of samples",
            hint="inputs of floats (N,), (1, N) or (1, 1, N) take WAV files",
        )
    sound = read_sound(path)
    row, done = sound.fit_to(spec.shape)
    rate = "the bundle does not say which rate the model wants"
    said = (f"{sound.words}; {rate}", *([done] if done else []))
    return InputValue(row.astype(spec.dtype), path.name, said)


def _read_number(text: str, name: str, inputs: Inputs) -> InputValue:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise SamplesError(
            f"{text!r} cannot become the input {name!r} ({inputs.format_type(name)})",
            hint="give a .npy or .npz file, or a number, which fills the input",
            where=f"--input {name}",
        )
    return InputValue(number, text)


def find_picture(value: InputValue, description: ImageInput | None) -> Array | None:
    """Return the picture of a value for an input with ``image``, to draw on; None without one.

    Of a tensor, what its description did to a picture is undone, but for the resizing.
    """
    given = value.given
    if value.picture is not None or description is None or not isinstance(given, np.ndarray):
        return value.picture
    if given.ndim == 3 and given.dtype == np.uint8:
        return given
    if given.ndim != 4:
        return None
    values = given[0].astype(np.float64)
    values = values.transpose(1, 2, 0) if description.layout == "NCHW" else values
    values = values * (description.std or 1.0) + (description.mean or 0.0)
    pixels = np.clip(np.rint(np.nan_to_num(values / (description.scale or 1.0))), 0, 255)
    ordered = pixels[:, :, ::-1] if description.order == "BGR" else pixels
    return np.broadcast_to(ordered, (*ordered.shape[:2], 3)).astype(np.uint8)


def fill_array(spec: TensorSpec, shape: Sequence[int], number: float) -> Array:
    """Return an array full of a number.

    Raises:
        SamplesError: The input's dtype does not hold it.
    """
    dtype = np.dtype(spec.dtype)
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        fits = number.is_integer() and limits.min <= number <= limits.max
    else:
        fits = dtype.kind == "f" or number in (0, 1)
    if not fits:
        raise SamplesError(
            f"the input {spec.name!r} is {spec.dtype}, which does not hold {number:g}",
            hint="give a number of that kind, or a .npy file",
            where=f"--input {spec.name}",
        )
    return np.full(shape, number, dtype)


def _read_array_file(path: Path) -> Array:
    try:
        loaded = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise SamplesError(
            f"cannot read {str(path)!r} as an array: {error}",
            hint="write it with numpy.save(path, array); objects are not taken",
        ) from error
    return np.asarray(loaded)


def _read_array(path: Path, name: str) -> Array:
    """Return the array of an ``.npz`` that is named as an input, or the only one."""
    try:
        with np.load(path, allow_pickle=False) as file:
            key = name if name in file.files or len(file.files) != 1 else file.files[0]
            return np.asarray(file[key])
    except (OSError, ValueError, EOFError, KeyError, TypeError, AttributeError) as error:
        raise SamplesError(
            f"cannot read an array {name!r} from {str(path)!r}: {error}",
            hint=f"write it with numpy.savez(path, {name}=array)",
        ) from error
