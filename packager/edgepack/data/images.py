"""Image files to input tensors, as ``inputs: {NAME: {image: ...}}`` describes it.

An image is turned upright first, as its EXIF orientation says; what is transparent shows white.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from edgepack.data.spreading import spread
from edgepack.errors import SamplesError
from edgepack.project import ImageInput, Letterbox, ShortSideCrop

if TYPE_CHECKING:
    from PIL import Image

SUFFIXES = frozenset({".bmp", ".jpeg", ".jpg", ".png", ".webp"})


def image_tensor(path: Path, description: ImageInput) -> np.ndarray[Any, Any]:
    """Return one image as a float32 tensor ``(1, C, H, W)`` or ``(1, H, W, C)``.

    Raises:
        SamplesError: The file is not a whole image, or has more than 8 bits a channel.
    """
    from PIL import Image, ImageOps

    try:
        with Image.open(path) as image:
            _check_depth(path, image)
            upright = _opaque(ImageOps.exif_transpose(image))
            pixels = _resize(
                upright.convert("L" if description.order == "GRAY" else "RGB"), description
            )
    # Pillow raises SyntaxError for broken chunks and EXIF headers, struct.error for short ones.
    except (OSError, SyntaxError, ValueError, struct.error, Image.DecompressionBombError) as error:
        raise SamplesError(
            f"cannot read {str(path)!r} as an image: {error}",
            hint="remove the file, or save it again as PNG or JPEG",
        ) from error
    return _normalize(np.asarray(pixels, np.float32), description)


def _check_depth(path: Path, image: Image.Image) -> None:
    # Converting these modes to 8 bits clips at 255 instead of scaling.
    if image.mode.startswith(("I", "F")):
        raise SamplesError(
            f"{str(path)!r} has more than 8 bits a channel (Pillow mode {image.mode})",
            hint="save it with 8 bits a channel, scaled as the model expects, or give the samples"
            " as .npz",
        )


def _opaque(image: Image.Image) -> Image.Image:
    """Return the image over white where it has transparency, else as it is."""
    from PIL import Image

    if "A" not in image.getbands() and "transparency" not in image.info:
        return image
    white = Image.new("RGBA", image.size, "white")
    return Image.alpha_composite(white, image.convert("RGBA"))


def _resize(image: Image.Image, description: ImageInput) -> Image.Image:
    from PIL import Image

    bilinear = Image.Resampling.BILINEAR
    resize = description.resize
    width, height = image.size
    if isinstance(resize, Letterbox):
        side = resize.letterbox
        ratio = side / max(width, height)
        size = (max(1, round(width * ratio)), max(1, round(height * ratio)))
        canvas = Image.new(image.mode, (side, side), (resize.pad,) * len(image.getbands()))
        canvas.paste(image.resize(size, bilinear), ((side - size[0]) // 2, (side - size[1]) // 2))
        return canvas
    if isinstance(resize, ShortSideCrop):
        ratio = resize.short_side / min(width, height)
        size = (max(1, round(width * ratio)), max(1, round(height * ratio)))
        left, top = (size[0] - resize.crop) // 2, (size[1] - resize.crop) // 2
        box = (left, top, left + resize.crop, top + resize.crop)
        return image.resize(size, bilinear).crop(box)
    return image.resize((resize.width, resize.height), bilinear)


def _normalize(pixels: np.ndarray[Any, Any], description: ImageInput) -> np.ndarray[Any, Any]:
    """Apply order, scale, mean, std and layout to float32 pixels ``(H, W)`` or ``(H, W, 3)``."""
    if pixels.ndim == 2:
        pixels = pixels[:, :, None]
    if description.order == "BGR":
        pixels = pixels[:, :, ::-1]
    pixels = pixels * np.float32(description.scale)
    if description.mean:
        pixels = pixels - np.asarray(description.mean, np.float32)
    if description.std:
        pixels = pixels / np.asarray(description.std, np.float32)
    if description.layout == "NCHW":
        pixels = pixels.transpose(2, 0, 1)
    return np.ascontiguousarray(pixels[None])


def image_files(folder: Path, limit: int | None = None) -> list[Path]:
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
    return spread(files, limit)
