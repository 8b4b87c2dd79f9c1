"""Boxes, classes and heat maps over a photo, with Pillow.

What is like the reference is drawn thin; what is missing, added or of another class is drawn thick,
and labelled. The colours show it too, also to most people with colour blindness.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Literal

import numpy as np

from edgepack.base.arrays import Array
from edgepack.ondevice.runtime.edgepack_answers import Box, Detection, Keypoint
from edgepack.ondevice.runtime.edgepack_images import Placement
from edgepack.trying import maps
from edgepack.trying.comparing import format_class
from edgepack.trying.matching import Row

if TYPE_CHECKING:
    from PIL import Image, ImageDraw, ImageFont

Look = Literal["agrees", "missing", "added", "other"]
LEAST_SIDE, MOST_SIDE = 560, 900
"""The limits of a drawing's longer side, in pixels: photos are scaled so that labels can be
read."""
COLOURS: dict[Look, tuple[int, int, int]] = {
    "agrees": (86, 180, 233),
    "missing": (213, 94, 0),
    "added": (240, 228, 66),
    "other": (204, 121, 167),
}
"""Source: Okabe and Ito, Color Universal Design (2008)."""
WORDS: dict[Look, str] = {"agrees": "", "missing": "missing: ", "added": "added: ", "other": ""}
LEAST_SEEN = 0.5
"""The score from which on a keypoint is drawn."""
_DASH = 10
_JPEG_QUALITY = 85


@dataclass(frozen=True)
class BoxMark:
    """One box to draw."""

    box: Box
    """In pixels of the photo."""
    text: str
    look: Look
    points: Sequence[Keypoint] = ()
    """Its keypoints, in pixels of the photo."""


def make_marks(rows: Sequence[Row], column: int) -> list[BoxMark]:
    """Return the boxes of one variant: its own, and those of the reference that it misses.

    Args:
        rows: As :func:`edgepack.trying.matching.match_detections` returns them.
        column: Of the variant; 0 is the reference, all of whose boxes agree.
    """
    found = [_make_mark(row[0], row[column]) for row in rows]
    # What differs is drawn last, over the rest.
    return sorted((each for each in found if each), key=lambda each: each.look != "agrees")


def _make_mark(wanted: Detection | None, found: Detection | None) -> BoxMark | None:
    if found is None:
        return BoxMark(wanted.box, _format_label(wanted), "missing") if wanted else None
    if wanted is None:
        return BoxMark(found.box, _format_label(found), "added", found.keypoints)
    if wanted.index == found.index:
        return BoxMark(found.box, _format_label(found), "agrees", found.keypoints)
    label = f"{_format_label(found)}, not {_format_name(wanted)}"
    return BoxMark(found.box, label, "other", found.keypoints)


def _format_label(found: Detection) -> str:
    return f"{_format_name(found)} {found.score:.2f}"


def _format_name(found: Detection) -> str:
    """Return a label, or the number of the class where the font lacks one of its characters."""
    label = format_class(found)
    return label if label.isascii() and label.isprintable() else f"#{found.index}"


def scale_photo(pixels: Array) -> Image.Image:
    """Return a photo in the size in which it is drawn on; small ones keep their pixels' edges."""
    from PIL import Image

    image = Image.fromarray(np.ascontiguousarray(pixels))
    longer = max(image.size)
    wanted = min(max(longer, LEAST_SIDE), MOST_SIDE)
    if wanted == longer:
        return image
    size = (
        max(1, round(image.width * wanted / longer)),
        max(1, round(image.height * wanted / longer)),
    )
    filter_ = Image.Resampling.LANCZOS if longer > wanted else Image.Resampling.NEAREST
    return image.resize(size, filter_)


def draw_boxes(pixels: Array, boxes: Sequence[BoxMark]) -> Image.Image:
    """Return a photo with boxes and their labels."""
    from PIL import ImageDraw

    image = scale_photo(pixels)
    ratio = image.width / pixels.shape[1], image.height / pixels.shape[0]
    draw = ImageDraw.Draw(image)
    places = [_scale_box(mark.box, ratio) for mark in boxes]
    for mark, place in zip(boxes, places, strict=True):
        _draw_box(draw, mark, place)
        _draw_points(draw, mark, ratio)
    taken: list[Box] = []
    # The most important labels get the best places.
    for mark, place in reversed(list(zip(boxes, places, strict=True))):
        _draw_label(draw, mark, place, image.size, taken)
    return image


def _scale_box(box: Box, ratio: tuple[float, float]) -> Box:
    return box[0] * ratio[0], box[1] * ratio[1], box[2] * ratio[0], box[3] * ratio[1]


def _draw_box(draw: ImageDraw.ImageDraw, mark: BoxMark, place: Box) -> None:
    width = 2 if mark.look == "agrees" else 5
    colour = COLOURS[mark.look]
    if mark.look == "missing":
        _draw_dashed(draw, place, colour, width)
        return
    # Black around it shows it on whatever the photo has there.
    draw.rectangle(_sort_corners(place, 1), outline="black", width=width + 2)
    draw.rectangle(_sort_corners(place), outline=colour, width=width)


def _draw_points(draw: ImageDraw.ImageDraw, mark: BoxMark, ratio: tuple[float, float]) -> None:
    for point in mark.points:
        if point.score is None or point.score >= LEAST_SEEN:
            x, y = point.x * ratio[0], point.y * ratio[1]
            draw.ellipse((x - 4, y - 4, x + 4, y + 4), fill=COLOURS[mark.look], outline="black")


def _sort_corners(place: Box, margin: float = 0) -> Box:
    left, top = place[0] - margin, place[1] - margin
    return left, top, max(left, place[2] + margin), max(top, place[3] + margin)


def _draw_dashed(
    draw: ImageDraw.ImageDraw, place: Box, colour: tuple[int, int, int], width: int
) -> None:
    left, top, right, bottom = place
    for start, end in (
        ((left, top), (right, top)),
        ((left, bottom), (right, bottom)),
        ((left, top), (left, bottom)),
        ((right, top), (right, bottom)),
    ):
        length = abs(end[0] - start[0]) + abs(end[1] - start[1])
        draw.line([start, end], fill="black", width=width + 2)
        for begin in np.arange(0, length, 2 * _DASH):
            ends = (begin / length, min(1.0, (begin + _DASH) / length))
            line = [
                (start[0] + (end[0] - start[0]) * at, start[1] + (end[1] - start[1]) * at)
                for at in ends
            ]
            draw.line(line, fill=colour, width=width)


@cache
def _load_font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    from PIL import ImageFont

    return ImageFont.load_default(size)


def _draw_label(
    draw: ImageDraw.ImageDraw, mark: BoxMark, place: Box, size: tuple[int, int], taken: list[Box]
) -> None:
    """Write a label where it covers no other: above the box, in it, below it, or further down."""
    font = _load_font(18 if mark.look == "agrees" else 22)
    text = WORDS[mark.look] + mark.text
    left, top, right, bottom = draw.textbbox((0, 0), text, font=font)
    width, height = right - left + 8, bottom - top + 8
    x = max(0.0, min(place[0], size[0] - width))
    rows = [place[1] - height, place[1], place[3], *(place[1] + k * height for k in range(1, 8))]
    spots = [(x, min(max(0.0, y), size[1] - height)) for y in rows]
    free = [
        spot for spot in spots if not any(_is_overlapping((*spot, width, height), t) for t in taken)
    ]
    x, y = (free or spots)[0]
    taken.append((x, y, width, height))
    draw.rectangle((x, y, x + width, y + height), fill=COLOURS[mark.look], outline="black")
    draw.text((x + 4 - left, y + 4 - top), text, fill="black", font=font)


def _is_overlapping(one: Box, other: Box) -> bool:
    """Return whether two areas, each x, y, width, height, have a point in common."""
    return (
        one[0] < other[0] + other[2]
        and other[0] < one[0] + one[2]
        and one[1] < other[1] + other[3]
        and other[1] < one[1] + one[3]
    )


def draw_overlay(pixels: Array, layer: Array, place: Placement) -> Image.Image:
    """Return a photo under a layer that covers the model's input.

    Args:
        pixels: The photo.
        layer: RGBA, uint8 ``(H, W, 4)``: as the model's input lies, in any size.
        place: Where the photo lies in the input; what the input does not show stays bare.
    """
    from PIL import Image

    image = scale_photo(pixels).convert("RGBA")
    over = Image.fromarray(layer)
    across = layer.shape[1] / place.input_width, layer.shape[0] / place.input_height
    # For each pixel of the photo, the place in the layer.
    matrix = (
        place.width / image.width * across[0],
        0.0,
        place.left * across[0],
        0.0,
        place.height / image.height * across[1],
        place.top * across[1],
    )
    laid = over.transform(image.size, Image.Transform.AFFINE, matrix, Image.Resampling.NEAREST)
    return Image.alpha_composite(image, laid).convert("RGB")


def draw_map(
    output: Array, kind: maps.MapKind, reference: Array, photo: tuple[Array, Placement] | None
) -> Image.Image:
    """Return what an output shows: itself as a picture, or laid over the photo."""
    from PIL import Image

    if kind.kind == "picture":
        return scale_photo(maps.draw_picture(output, kind))
    layer = maps.make_overlay(output, kind, reference)
    if photo is not None:
        return draw_overlay(photo[0], layer, photo[1])
    opaque = np.dstack([layer[..., :3], np.full(layer.shape[:2], 255, np.uint8)])
    return scale_photo(np.asarray(Image.fromarray(opaque).convert("RGB")))


def encode_data_url(image: Image.Image) -> str:
    """Return a picture as a ``data:`` URL, JPEG."""
    file = io.BytesIO()
    image.save(file, "JPEG", quality=_JPEG_QUALITY)
    return "data:image/jpeg;base64," + base64.b64encode(file.getvalue()).decode("ascii")


def encode_png(image: Image.Image) -> bytes:
    """Return a picture as the bytes of a PNG file."""
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()
