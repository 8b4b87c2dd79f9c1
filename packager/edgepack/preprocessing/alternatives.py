"""What else a picture could become before the model sees it: order, scale, mean and std, layout.

An alternative is made of the tensor that there is: where it was made of a picture as ``image``
says, that is undone first, which gives the scaled picture's pixels back.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from edgepack.base.arrays import Array
from edgepack.ondevice.runtime import edgepack_images as images
from edgepack.ondevice.runtime.edgepack_resizing import gives_floats
from edgepack.project.inputs import Filter, ImageInput, Letterbox, ShortSideCrop, Stretch

RGB_MEAN, RGB_STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
"""The mean and std of ImageNet, for values from 0 to 1. Source: torchvision's documentation of its
classification models."""
CAFFE_MEAN = [123.68, 116.779, 103.939]
"""The mean of ImageNet, for values from 0 to 255, red first. Source: the VGG models' page in
Caffe's model zoo."""
MNIST_MEAN, MNIST_STD = [0.1307], [0.3081]
"""Source: pytorch/examples, mnist/main.py."""
_LEVEL = 1 / 255
_COLOURS: tuple[tuple[float, list[float], list[float]], ...] = (
    (1.0, [], []),
    (_LEVEL, [], []),
    (2 * _LEVEL, [1.0, 1.0, 1.0], []),
    (_LEVEL, RGB_MEAN, RGB_STD),
    (1.0, CAFFE_MEAN, []),
)
"""Each entry has scale, mean and std, red first."""
_GRAYS: tuple[tuple[float, list[float], list[float]], ...] = (
    (1.0, [], []),
    (_LEVEL, [], []),
    (2 * _LEVEL, [1.0], []),
    (_LEVEL, MNIST_MEAN, MNIST_STD),
    (-1.0, [-255.0], []),
    (-_LEVEL, [-1.0], []),
)
"""The last two show white where the picture is black."""
_COMMON: tuple[Filter, ...] = ("pillow-bilinear", "cv2-linear")
"""Tried whatever library is named, beside its own other filters."""
_MARGIN = 8 / 7
"""The shorter side over the crop. Source: 256 and 224 in torchvision's documentation of its
classification models."""


@dataclass(frozen=True)
class Alternative:
    """Another way to make the input from the tensor that there is."""

    sees: str
    """What the model sees then, in words."""
    write: str
    """What to write or do so that the model sees that."""
    image: ImageInput | None = None
    """How pictures become the input; None where the samples are tensors that nobody described."""
    factor: float = 1.0
    """What such tensors are multiplied by."""
    flipped: int | None = None
    """The axis of such tensors along which the order of the channels is reversed."""

    def make_input(self, given: Array, own: ImageInput | None) -> Array:
        """Return the input that this alternative makes; ``own`` describes the one that there is."""
        if self.image is None:
            turned = given if self.flipped is None else np.flip(given, self.flipped)
            return np.ascontiguousarray(turned * np.asarray(self.factor, given.dtype))
        if own is None:
            raise TypeError("tensors that nobody described hold no picture")
        return normalize_pixels(find_pixels(given, own), self.image).astype(given.dtype)


def find_pixels(tensor: Array, image: ImageInput) -> Array:
    """Return the scaled pixels that a tensor was made of: ``(H, W, C)``, RGB or gray.

    ``image`` describes the tensor, ``(1, C, H, W)`` or ``(1, H, W, C)``; its ``scale`` is not 0.
    They are uint8, or float32 where its filter does not round.
    """
    values = tensor[0].astype(np.float64)
    if image.layout == "NCHW":
        values = values.transpose(1, 2, 0)
    if image.std:
        values = values * image.std
    if image.mean:
        values = values + image.mean
    pixels = values / image.scale
    if gives_floats(image.resize.model_dump()):
        pixels = pixels.astype(np.float32)
    else:
        pixels = np.clip(np.rint(pixels), 0, 255).astype(np.uint8)
    return np.asarray(pixels[:, :, ::-1] if image.order == "BGR" else pixels)


def normalize_pixels(pixels: Array, image: ImageInput) -> Array:
    """Return what :func:`find_pixels` undoes: float32, with the batch's axis."""
    made: Array = images.normalize_pixels(pixels, image.model_dump())
    return made


def list_image_alternatives(
    own: ImageInput, layouts: Sequence[Literal["NCHW", "NHWC"]] = ()
) -> list[Alternative]:
    """Return what else pictures could become; ``layouts`` are those that the model's input takes.

    The list is empty where ``own`` turns all pictures into the same input.
    """
    if own.scale == 0:
        return []
    found: list[ImageInput] = []
    for image in _list_candidates(own, layouts):
        if not any(_is_same(image, other) for other in (own, *found)):
            found.append(image)
    return [
        Alternative(
            describe_image(image) + (f" in {image.layout}" if image.layout != own.layout else ""),
            f"image: {format_flow(image)}",
            image,
        )
        for image in found
    ]


def list_resize_alternatives(own: ImageInput, *, fits: bool) -> list[Alternative]:
    """Return other ways to resize pictures, everything else as it is: at most eight.

    The library's other filters, two common ones, and antialiasing where that is a choice; with
    ``fits`` also how a picture becomes a square: stretched, cut or with filled edges.
    """
    given = own.resize.model_dump()
    size = {key: value for key, value in given.items() if key not in ("filter", "antialias")}
    how = {key: value for key, value in given.items() if key not in size}
    library = own.resize.filter.partition("-")[0]
    filters = [
        name
        for name in get_args(Filter)
        if name != own.resize.filter and (name in _COMMON or name.startswith(f"{library}-"))
    ]
    # A library's filters have the choice of antialiasing alike.
    kept = {} if own.resize.antialias is None else {"antialias": own.resize.antialias}
    found = [
        {**size, "filter": name, **(kept if name.startswith(f"{library}-") else {})}
        for name in filters
    ]
    if own.resize.antialias is not None:
        found.append({**given, "antialias": not own.resize.antialias})
    found += [{**how, **other} for other in _list_fits(own.resize)] if fits else []
    return [_make_resized(own, resize) for resize in found]


def _make_resized(own: ImageInput, resize: dict[str, object]) -> Alternative:
    image = ImageInput.model_validate({**own.model_dump(), "resize": resize})
    sees = f"{describe_image(image)} with resize: {_format_value(_tidy_resize(image))}"
    return Alternative(sees, f"image: {format_flow(image)}", image)


def _list_fits(own: Letterbox | ShortSideCrop | Stretch) -> list[dict[str, int]]:
    """Return the other ways to make a square of a picture; none where the input is no square."""
    if isinstance(own, Stretch):
        side = own.width if own.width == own.height else 0
    else:
        side = own.crop if isinstance(own, ShortSideCrop) else own.letterbox
    short = [side, round(side * _MARGIN)]
    every: list[dict[str, int]] = [
        {"width": side, "height": side},
        {"letterbox": side},
        *[{"short_side": shorter, "crop": side} for shorter in short],
    ]
    given = own.model_dump(exclude={"filter", "antialias", "pad"})
    return [fit for fit in every if fit != given] if side else []


def list_tensor_alternatives(shape: Sequence[int | str] | None) -> list[Alternative]:
    """Return what else can be made of tensors that nobody described, of a shape."""
    axis = _find_channel_axis(shape)
    found = []
    for factor, words in ((1.0, ""), (_LEVEL, "divided by 255"), (255.0, "multiplied by 255")):
        for flipped in (None, axis) if axis is not None else (None,):
            order = "the channels in reverse order" if flipped is not None else ""
            told = " and ".join(filter(None, (words, order)))
            if told:
                sees = f"the samples' values {words}".strip() + (f", {order}" if order else "")
                write = f"give samples that are {told}" if words else f"give samples with {told}"
                found.append(Alternative(sees, write, None, factor, flipped))
    return found


def _find_channel_axis(shape: Sequence[int | str] | None) -> int | None:
    if shape is None or len(shape) != 4:
        return None
    return next((axis for axis in (1, 3) if shape[axis] == 3), None)


def _list_candidates(
    own: ImageInput, layouts: Sequence[Literal["NCHW", "NHWC"]]
) -> Iterator[ImageInput]:
    yield from (own.model_copy(update={"layout": layout}) for layout in layouts)
    gray = own.order == "GRAY"
    orders = (own.order,) if gray else (own.order, "BGR" if own.order == "RGB" else "RGB")
    for order in orders:
        turned = order != own.order
        mean, std = (values[::-1] if turned else values for values in (own.mean, own.std))
        yield own.model_copy(update={"order": order, "mean": mean, "std": std})
        for scale, mean, std in _GRAYS if gray else _COLOURS:
            values = (mean[::-1], std[::-1]) if order == "BGR" else (mean, std)
            changed = {"order": order, "scale": scale, "mean": values[0], "std": values[1]}
            yield own.model_copy(update=changed)
    if own.mean or own.std:
        yield own.model_copy(update={"scale": _LEVEL})


def _is_same(first: ImageInput, second: ImageInput) -> bool:
    """Return whether both make the same of pictures, up to rounding."""
    if (first.order, first.layout) != (second.order, second.layout):
        return False
    return all(
        np.allclose(one, other, rtol=1e-3, atol=1e-6)
        for one, other in zip(_compute_ends(first), _compute_ends(second), strict=True)
    )


def _compute_ends(image: ImageInput) -> tuple[Array, Array]:
    """Return what black and white become, per channel."""
    channels = 1 if image.order == "GRAY" else 3
    mean = np.array(image.mean or [0.0] * channels)
    std = np.array(image.std or [1.0] * channels)
    return (0.0 - mean) / std, (255 * image.scale - mean) / std


def describe_image(image: ImageInput) -> str:
    """Return in words what the model sees of pictures: order and range, of all channels."""
    low, high = _compute_ends(image)
    lowest, highest = min(low.min(), high.min()), max(low.max(), high.max())
    turned = ", white for black" if high[0] < low[0] else ""
    return f"{image.order} from {_format_number(lowest)} to {_format_number(highest)}{turned}"


def format_flow(image: ImageInput) -> str:
    """Return a description as YAML on one line; see :func:`format_yaml_lines`."""
    return "{" + ", ".join(format_yaml_lines(image)) + "}"


def format_yaml_lines(image: ImageInput) -> list[str]:
    """Return a description as lines of YAML, a key each, without an empty mean or std."""
    given = {**image.model_dump(), "resize": _tidy_resize(image)}
    empty = [key for key in ("mean", "std") if not given[key]]
    return [f"{key}: {_format_value(value)}" for key, value in given.items() if key not in empty]


def _tidy_resize(image: ImageInput) -> dict[str, object]:
    resize: dict[str, object] = image.resize.model_dump()
    if resize.get("pad") == Letterbox.model_fields["pad"].default:
        del resize["pad"]
    # Where the picture goes is read first, then how.
    for key in ("filter", "antialias"):
        if key in resize:
            resize[key] = resize.pop(key)
    return resize


def _format_value(value: object) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_format_value(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_format_value, value)) + "]"
    if isinstance(value, bool):
        return str(value).lower()
    return _format_number(value) if isinstance(value, float) else str(value)


def _format_number(value: float) -> str:
    """Return a number with six digits, as YAML reads it: without a bare exponent."""
    text = f"{value:.6g}"
    return f"{value:.12f}".rstrip("0") if "e-" in text else text
