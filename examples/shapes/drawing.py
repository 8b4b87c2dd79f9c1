"""Draws pictures of circles, squares and triangles with their boxes: what the detector learns from.

Nobody's photographs are in them, and there is no end of them.
"""

from __future__ import annotations

import math
import shutil
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

LABELS = ("circle", "square", "triangle")


class Drawing(NamedTuple):
    """A picture with its shapes."""

    picture: Image.Image
    boxes: np.ndarray
    """float32 ``(N, 5)``: class, then left, top, right, bottom in pixels."""


def draw(rng: np.random.Generator, width: int, height: int) -> Drawing:
    """Draw one to five shapes, filled or outlined, that do not overlap much, on a busy ground."""
    picture = _draw_ground(rng, width, height)
    boxes: list[list[float]] = []
    for _ in range(rng.integers(1, 6)):
        size = float(np.exp(rng.uniform(math.log(14), math.log(0.7 * min(width, height)))))
        centre = rng.uniform(size / 2, [width - size / 2, height - size / 2])
        kind = int(rng.integers(len(LABELS)))
        outline = _make_outline(rng, kind, centre, size)
        box = [*outline.min(axis=0), *outline.max(axis=0)]
        if min(box) < 0 or box[2] > width or box[3] > height or _overlaps(box, boxes):
            continue
        _draw_shape(rng, picture, outline)
        boxes.append([kind, *box])
    if not boxes:
        return draw(rng, width, height)
    return Drawing(_spoil(rng, picture), np.array(boxes, np.float32))


def _draw_ground(rng: np.random.Generator, width: int, height: int) -> Image.Image:
    """Return patches of colour that run into each other, with lines, as a table or a wall has."""
    patches = int(rng.integers(1, 7))
    colours = rng.integers(0, 256, (patches, patches, 3)).astype(np.uint8)
    paper = rng.random() < 0.4
    if paper:
        colours = rng.integers(170, 256, (1, 1, 3)) + rng.integers(-25, 25, (patches, patches, 1))
        colours = np.clip(colours, 0, 255).astype(np.uint8)
    ground = Image.fromarray(colours).resize((width, height), Image.Resampling.BICUBIC)
    pen = ImageDraw.Draw(ground)
    for _ in range(rng.integers(0, 7)):
        ends = rng.uniform(-20, [width + 20, height + 20], (2, 2))
        colour = tuple(int(value) for value in rng.integers(0, 256, 3))
        pen.line([tuple(end) for end in ends], fill=colour, width=int(rng.integers(1, 4)))
    return ground


def _make_outline(
    rng: np.random.Generator, kind: int, centre: np.ndarray, size: float
) -> np.ndarray:
    """Return a shape's corners ``(N, 2)``, turned by any angle and seen a little from the side."""
    corners = (64, 4, 3)[kind]
    turn = rng.uniform(0, 2 * math.pi)
    angles = turn + np.arange(corners) * 2 * math.pi / corners
    points = np.stack([np.cos(angles), np.sin(angles)], axis=1) * size / 2
    tilt = np.array([1.0, rng.uniform(0.75, 1.0)])[rng.permutation(2)]
    return points * tilt + centre


def _overlaps(box: list[float], boxes: list[list[float]]) -> bool:
    for _, *other in boxes:
        across = min(box[2], other[2]) - max(box[0], other[0])
        down = min(box[3], other[3]) - max(box[1], other[1])
        smaller = min((b[2] - b[0]) * (b[3] - b[1]) for b in (box, other))
        if across > 0 and down > 0 and across * down > 0.1 * smaller:
            return True
    return False


def _draw_shape(rng: np.random.Generator, picture: Image.Image, outline: np.ndarray) -> None:
    """Draw a shape in a colour that stands out from what is below it."""
    below = np.asarray(picture, np.float32)
    x, y = outline.mean(axis=0).astype(int)
    while True:
        colour = rng.integers(0, 256, 3)
        if np.abs(colour - below[y, x]).max() > 60:
            break
    fill = tuple(int(value) for value in colour)
    points = [tuple(point) for point in outline]
    pen = ImageDraw.Draw(picture)
    if rng.random() < 0.6:
        pen.polygon(points, fill=fill)
    else:
        thick = int(rng.integers(2, 3 + int(np.ptp(outline[:, 0])) // 10))
        pen.line([*points, *points[:2]], fill=fill, width=thick, joint="curve")


def _spoil(rng: np.random.Generator, picture: Image.Image) -> Image.Image:
    """Blur, darken and add noise, as a camera does."""
    if rng.random() < 0.5:
        picture = picture.filter(ImageFilter.GaussianBlur(rng.uniform(0.3, 1.5)))
    values = np.asarray(picture, np.float32) * rng.uniform(0.5, 1.2) + rng.uniform(-20, 20)
    values = values + rng.normal(0, rng.uniform(0, 12), values.shape)
    return Image.fromarray(np.clip(values, 0, 255).astype(np.uint8))


def write_pictures(rng: np.random.Generator, folder: Path, count: int) -> None:
    """Write pictures of a camera's shape, and beside each what is in it, as YOLO's label files."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for number, drawing in enumerate(draw(rng, 200, 150) for _ in range(count)):
        width, height = drawing.picture.size
        lines = [
            f"{int(kind)} {(x0 + x1) / 2 / width:.5f} {(y0 + y1) / 2 / height:.5f}"
            f" {(x1 - x0) / width:.5f} {(y1 - y0) / height:.5f}\n"
            for kind, x0, y0, x1, y1 in drawing.boxes.tolist()
        ]
        drawing.picture.save(folder / f"{number:03}.jpg", quality=85)
        (folder / f"{number:03}.txt").write_text("".join(lines))
