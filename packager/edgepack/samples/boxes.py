"""Which objects are in a picture: by COCO's annotations, or by a text file for each picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path, PurePosixPath

import numpy as np
from pydantic import BaseModel, FiniteFloat, ValidationError

from edgepack.base.arrays import Array
from edgepack.errors import SamplesError, format_list
from edgepack.ondevice.runtime.edgepack_images import Placement
from edgepack.samples.labels import match_by_path

_SHOWN = 5
_ROUNDED = 1e-3
"""The part of a picture's side by which a box that a tool wrote may lie beyond the edge."""


def read_image_boxes(
    files: Sequence[Path],
    folder: Path,
    labels: Path,
    places: Sequence[Placement],
    classes: Sequence[str],
    points: int = 0,
) -> Array:
    """Return the boxes in each image, in pixels of the image as it is upright.

    Args:
        files: The images.
        folder: In which they lie.
        labels: COCO's ``.json``, or a folder with a YOLO ``.txt`` for each image, at the path that
            the image has within its own folder.
        places: Of the images, which say how large each is.
        classes: The names of the model's classes, in their order; empty where it has none. COCO's
            categories are classes by their names, or else in the order of their ids. YOLO's are.
        points: How many keypoints each object of COCO's has; 0 for boxes alone.

    Returns:
        float64 ``(images, boxes, 5)``: class, left, top, right, bottom; rows of NaN fill it up.
        Where there are crowds, a sixth column is 1 for each. With keypoints it is there, then the
        area, and x, y and visibility of each keypoint.

    Raises:
        SamplesError: A file is missing or wrong, an image is not in it or has another size there,
            or a category is none of the model's classes.
    """
    sizes = [(place.picture_width, place.picture_height) for place in places]
    if labels.is_dir() and points:
        raise SamplesError(
            f"{str(labels)!r} is a folder, and keypoints are read from COCO's annotations",
            hint="name a .json as COCO's person_keypoints_val2017.json is",
        )
    if labels.is_dir():
        found = _read_yolo_folder(
            [labels / path.relative_to(folder) for path in files], sizes, labels
        )
    else:
        given = _read_coco(labels)
        table = {PurePosixPath(image.file_name).as_posix(): image for image in given.images}
        found = _collect_coco_boxes(
            labels, given, match_by_path(files, folder, table, labels.name), sizes, classes, points
        )
    padded = np.full((len(found), max(map(len, found), default=0), _count_columns(found)), np.nan)
    for rows, boxes in zip(padded, found, strict=True):
        rows[: len(boxes)] = boxes[:, : rows.shape[1]]
    return padded


def _count_columns(found: Sequence[Array]) -> int:
    """Return how many columns say something: five, if no box is a crowd."""
    columns = max((boxes.shape[1] for boxes in found), default=5)
    return 5 if columns == 6 and not any(boxes[:, 5].any() for boxes in found) else columns


_Size = tuple[int, int]
"""Width and height."""


class _Image(BaseModel):
    id: int | str
    file_name: str
    width: int | None = None
    height: int | None = None


class _Annotation(BaseModel):
    image_id: int | str
    category_id: int
    bbox: tuple[FiniteFloat, FiniteFloat, FiniteFloat, FiniteFloat]
    """Left, top, width, height."""
    iscrowd: int = 0
    area: FiniteFloat | None = None
    keypoints: list[FiniteFloat] = []
    """x, y and visibility of each."""


class _Category(BaseModel):
    id: int
    name: str


class _Coco(BaseModel):
    """What boxes take of the format. Source: https://cocodataset.org/#format-data."""

    images: list[_Image]
    annotations: list[_Annotation]
    categories: list[_Category]


def _read_coco(path: Path) -> _Coco:
    try:
        return _Coco.model_validate_json(path.read_bytes())
    except OSError as error:
        raise SamplesError(
            f"cannot read the labels {str(path)!r}: {error.strerror}",
            hint="'labels' under samples.evaluation names a file beside edgepack.yaml",
        ) from error
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise SamplesError(
            f"{str(path)!r} has no boxes as COCO's annotations do: {place} {first['msg']}",
            hint="it holds images (id, file_name), annotations (image_id, category_id, bbox) and"
            " categories (id, name)",
        ) from error


def _collect_coco_boxes(
    path: Path,
    given: _Coco,
    images: Sequence[_Image],
    sizes: Sequence[_Size],
    classes: Sequence[str],
    points: int,
) -> list[Array]:
    index = _map_categories(path, given, classes)
    boxes: dict[int | str, list[list[float]]] = {image.id: [] for image in given.images}
    for each in given.annotations:
        # A crowd of what is no class decides nothing.
        if each.image_id in boxes and each.category_id in index:
            boxes[each.image_id].append([index[each.category_id], *_make_row(path, each, points)])
    found = []
    for image, size in zip(images, sizes, strict=True):
        _check_size(path, image, size)
        columns = 7 + 3 * points if points else 6
        found.append(np.array(boxes[image.id], np.float64).reshape(-1, columns))
    return found


def _make_row(path: Path, given: _Annotation, points: int) -> list[float]:
    """Return an object without its class."""
    left, top, width, height = given.bbox
    row = [left, top, left + width, top + height, float(given.iscrowd)]
    if not points:
        return row
    if len(given.keypoints) != 3 * points:
        raise SamplesError(
            f"{str(path)!r} has an object with {len(given.keypoints)} values of keypoints, and"
            f" {points} keypoints have {3 * points}",
            hint="each has x, y and visibility; 'keypoints' of the output says how many there are",
        )
    area = width * height if given.area is None else given.area
    return [*row, area, *given.keypoints]


def _map_categories(path: Path, given: _Coco, classes: Sequence[str]) -> dict[int, int]:
    """Return the class of each category that there are boxes of, by the category's id."""
    names = {category.id: category.name for category in given.categories}
    used = {each.category_id for each in given.annotations if not each.iscrowd}
    order = list(classes) or [names[id_] for id_ in sorted(names)]
    wrong = [names.get(id_, f"id {id_}") for id_ in sorted(used) if names.get(id_) not in order]
    if wrong:
        raise SamplesError(
            f"{str(path)!r} has boxes of"
            f" {format_list([repr(name) for name in wrong], _SHOWN)}, which"
            f" {'is' if len(wrong) == 1 else 'are'} none of the {len(order)} classes",
            hint="name categories as the model's labels are named (labels of the output, in"
            " edgepack.yaml), or take their annotations out",
        )
    if not classes:
        return {id_: number for number, id_ in enumerate(sorted(names))}
    return {id_: order.index(name) for id_, name in names.items() if name in order}


def _check_size(path: Path, image: _Image, size: _Size) -> None:
    written = image.width, image.height
    if None not in written and written != size:
        raise SamplesError(
            f"{str(path)!r} says that {image.file_name!r} has {written[0]} x {written[1]} pixels,"
            f" and upright, as its EXIF orientation says, it has {size[0]} x {size[1]}",
            hint="annotate the image as it is, or turn and scale it as it was annotated",
        )


def _read_yolo_folder(images: Sequence[Path], sizes: Sequence[_Size], folder: Path) -> list[Array]:
    paths = [path.with_suffix(".txt") for path in images]
    if not any(path.is_file() for path in paths):
        raise SamplesError(
            f"{str(folder)!r} has boxes for none of the {len(images)} images",
            hint=f"an image's boxes lie at its own path: {str(paths[0])!r}; one without any may"
            " lack its file",
        )
    return [
        _read_yolo_boxes(path, size) if path.is_file() else np.zeros((0, 5))
        for path, size in zip(paths, sizes, strict=True)
    ]


def _read_yolo_boxes(path: Path, size: _Size) -> Array:
    """Return the boxes of a file with rows of class, centre x and y, width and height."""
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise SamplesError(
            f"cannot read the labels {str(path)!r}: {error}", hint="each is a text file"
        ) from error
    boxes = [
        _parse_yolo_box(f"{path}:{n}", line) for n, line in enumerate(lines, 1) if line.strip()
    ]
    rows = np.array(boxes, np.float64).reshape(-1, 5)
    centre, half = rows[:, 1:3], rows[:, 3:] / 2
    corners = np.hstack([centre - half, centre + half]) * np.tile(size, 2)
    return np.hstack([rows[:, :1], corners])


def _parse_yolo_box(where: str, line: str) -> list[float]:
    try:
        index, *box = (float(value) for value in line.split())
    except ValueError:
        index, box = -1.0, []
    is_class = index >= 0 and index.is_integer()
    if not is_class or len(box) != 4 or not all(0 <= value <= 1 + _ROUNDED for value in box):
        raise SamplesError(
            f"{line.strip()[:80]!r} is no box",
            hint="a line is class, centre x, centre y, width and height, as parts of the image's"
            " sides: 0 0.5 0.5 0.2 0.1",
            where=where,
        )
    return [index, *box]
