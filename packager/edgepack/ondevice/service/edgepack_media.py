"""Files that a client sends, to what the loader's ``predict`` takes.

Pictures are turned upright as their EXIF orientation says, and what is transparent shows white, as
in the builder's samples.

Needs Python 3.8 or newer, numpy and Pillow; nothing else.
"""

from __future__ import annotations

import io
import struct
import warnings

import numpy as np
from PIL import Image, ImageOps

MOST_PIXELS = 64_000_000
"""Of a picture: 192 MB of RGB."""


class MediaError(ValueError):
    """What was sent cannot be read."""


def read_picture(data: bytes) -> np.ndarray:
    """Return a JPEG or PNG file's pixels: uint8 ``(H, W, 3)``, RGB, upright and opaque.

    Raises:
        MediaError: It is neither, is damaged, or has too many pixels.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with Image.open(io.BytesIO(data), formats=["JPEG", "PNG"]) as image:
                _check_image(image)
                return np.asarray(make_upright(image).convert("RGB"))
    except (
        OSError,
        SyntaxError,
        ValueError,
        struct.error,
        Image.DecompressionBombError,
    ) as error:
        raise MediaError(f"the picture cannot be read: {error}") from error


def rewrite_picture(data: bytes) -> bytes:
    """Return a JPEG or PNG file as a plain PNG of its pixels, upright and opaque.

    For models that decode files themselves: their decoder ends the process at some damaged files,
    and never ends at others (onnxruntime-extensions 0.15.2, seen; its issue 1094).

    Raises:
        MediaError: As :func:`read_picture`.
    """
    file = io.BytesIO()
    Image.fromarray(read_picture(data)).save(file, "PNG", compress_level=1)
    return file.getvalue()


def _check_image(image: Image.Image) -> None:
    # Pillow would cut their values off at 255.
    if image.mode.startswith(("I", "F")):
        raise MediaError("it has more than 8 bits a channel: save it with 8")
    width, height = image.size
    if width * height > MOST_PIXELS:
        raise MediaError(f"it has {width} x {height} pixels, at most {MOST_PIXELS} are taken")


def make_upright(image: Image.Image) -> Image.Image:
    """Return an image as people see it: upright, and over white where it has transparency."""
    upright = ImageOps.exif_transpose(image)
    if not upright.has_transparency_data:
        return upright
    white = Image.new("RGBA", upright.size, "white")
    return Image.alpha_composite(white, upright.convert("RGBA"))


def read_text(data: bytes) -> str:
    """Return a text in UTF-8.

    Raises:
        MediaError: It is none.
    """
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise MediaError(f"the text is not UTF-8: {error}") from error
