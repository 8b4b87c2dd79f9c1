"""Image files to input tensors, as ``inputs: {NAME: {image: ...}}`` describes it.

An image is turned upright first, as its EXIF orientation says; what is transparent shows white. The
rest is what devices do, too (:mod:`edgepack.ondevice.runtime.edgepack_images`), except for
Pillow's own filters, which Pillow does faster.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from edgepack.errors import SamplesError
from edgepack.ondevice.runtime import edgepack_images as images
from edgepack.ondevice.runtime import edgepack_resizing as resizing
from edgepack.project.inputs import ImageInput
from edgepack.samples.spreading import choose_spread

if TYPE_CHECKING:
    from PIL import Image

_LARGEST = 16
"""How many times as large as the input an image is that Pillow scales, at most: of a long and thin
one it makes all before it is cut, which may be gigabytes."""

SUFFIXES = frozenset({".bmp", ".jpeg", ".jpg", ".png", ".webp"})


def read_image_tensor(path: Path, description: ImageInput) -> np.ndarray[Any, Any]:
    """Return one image as a float32 tensor ``(1, C, H, W)`` or ``(1, H, W, C)``.

    Raises:
        SamplesError: The file is no whole image, is too large, or has more than 8 bits a channel.
    """
    return _make_tensor(_read_image(path, _choose_mode(description)), description)


def make_image_tensor(
    pixels: np.ndarray[Any, Any], description: ImageInput
) -> np.ndarray[Any, Any]:
    """Return pixels, uint8 ``(H, W, 3)`` RGB, as :func:`read_image_tensor` does a file's."""
    from PIL import Image

    return _make_tensor(Image.fromarray(pixels).convert(_choose_mode(description)), description)


def _choose_mode(description: ImageInput) -> Literal["L", "RGB"]:
    return "L" if description.order == "GRAY" else "RGB"


def _make_tensor(image: Image.Image, description: ImageInput) -> np.ndarray[Any, Any]:
    described = description.model_dump()
    place = images.find_placement(*image.size, described["resize"])
    shown = _resize_image(image, place, described["resize"])
    return images.normalize_pixels(
        images.place_pixels(shown, place, described["resize"]), described
    )


def _resize_image(
    image: Image.Image, place: images.Placement, resize: Mapping[str, Any]
) -> np.ndarray[Any, Any]:
    """Return ``(h, w, C)`` of the scaled image: what the input shows of it."""
    from PIL import Image

    rows, columns = place.rows, place.columns
    library, _, name = resize.get("filter", resizing.DEFAULT).partition("-")
    is_large = place.width * place.height > _LARGEST * place.input_width * place.input_height
    if library != "pillow" or is_large:
        pixels = np.atleast_3d(np.asarray(image))
        size = (place.width, place.height)
        return resizing.resize_pixels(pixels, *size, columns, rows, resize)
    scaled = np.asarray(image.resize((place.width, place.height), Image.Resampling[name.upper()]))
    return np.atleast_3d(scaled)[rows.start : rows.stop, columns.start : columns.stop]


def read_image_pixels(path: Path) -> np.ndarray[Any, Any]:
    """Return one image as it is: uint8 ``(H, W, 3)``, RGB, upright and opaque.

    Raises:
        SamplesError: As :func:`read_image_tensor`.
    """
    return np.asarray(_read_image(path, "RGB"))


def decode_pixels(data: bytes, name: str) -> np.ndarray[Any, Any]:
    """Return an image file's content as :func:`read_image_pixels` does; ``name`` is for messages.

    Raises:
        SamplesError: As :func:`read_image_tensor`.
    """
    return np.asarray(_read_image(Path(name), "RGB", io.BytesIO(data)))


def read_image_size(path: Path) -> tuple[int, int]:
    """Return width and height of an image as it is upright; its pixels are not decoded.

    Raises:
        SamplesError: As :func:`read_image_tensor`.
    """
    with open_image(path) as image:
        is_turned = image.getexif().get(_ORIENTATION) in _TURNED
        return image.size[::-1] if is_turned else image.size


# Source: Exif 2.32, 4.6.4: the values whose rows are the picture's columns.
_ORIENTATION, _TURNED = 0x0112, (5, 6, 7, 8)


def _read_image(
    path: Path, mode: Literal["L", "RGB"], file: io.BytesIO | None = None
) -> Image.Image:
    from edgepack.ondevice.service.edgepack_media import make_upright

    with open_image(path, file) as image:
        return make_upright(image).convert(mode)


@contextmanager
def open_image(path: Path, file: io.BytesIO | None = None) -> Iterator[Image.Image]:
    """Open an image; ``path`` is for messages where its content is given as a file.

    Raises:
        SamplesError: It is no whole image, is too large, or has more than 8 bits a channel.
    """
    from PIL import Image

    try:
        with Image.open(file or path) as image:
            _check_depth(path, image)
            yield image
    except Image.DecompressionBombError as error:
        raise SamplesError(
            f"{str(path)!r} is too large: {error}",
            hint="scale it down: the model gets a far smaller picture",
        ) from error
    # Pillow raises SyntaxError for broken chunks and EXIF headers, struct.error for short ones.
    except (OSError, SyntaxError, ValueError, struct.error) as error:
        raise SamplesError(
            f"cannot read {str(path)!r} as an image: {error}",
            hint="remove the file, or save it again as PNG or JPEG",
        ) from error


def _check_depth(path: Path, image: Image.Image) -> None:
    # Converting these modes to 8 bits clips at 255 instead of scaling.
    if image.mode.startswith(("I", "F")):
        raise SamplesError(
            f"{str(path)!r} has more than 8 bits a channel (Pillow mode {image.mode})",
            hint="save it with 8 bits a channel, scaled as the model expects, or give the samples"
            " as .npz",
        )


def find_unreadable(files: Iterable[Path]) -> dict[Path, SamplesError]:
    """Return the files that are no whole image, and why."""
    found = {}
    for path in files:
        try:
            read_image_pixels(path)
        except SamplesError as error:
            found[path] = error
    return found


def list_image_files(folder: Path, limit: int | None = None) -> list[Path]:
    """Return the images under a folder, sorted by path; with a limit, evenly spread over them.

    Raises:
        SamplesError: There is no such folder, or no image in it.
    """
    if not folder.is_dir():
        raise SamplesError(
            f"there is no folder {str(folder)!r}", hint="check 'images' in edgepack.yaml"
        )
    files = sorted(
        path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES and path.is_file()
    )
    if not files:
        raise SamplesError(
            f"there are no images in {str(folder)!r}",
            hint=f"images end in {', '.join(sorted(SUFFIXES))}",
        )
    return choose_spread(files, limit)
