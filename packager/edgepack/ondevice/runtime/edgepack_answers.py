"""Output tensors to answers, as the manifest's ``output_descriptions`` say.

A classification gives classes, best first; a detection gives boxes in the pixels of the caller's
picture, best first; an embedding gives one vector per sample; ``raw`` gives the tensor itself. The
Kotlin and Swift runtimes give the same answers: all is computed in double precision, and every
order is fixed, ties included.

Needs Python 3.8 or newer and numpy; nothing else.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, List, Mapping, Optional, Sequence, Tuple, Union

import numpy as np

if __package__:
    from . import edgepack_images as images
else:  # a bundle's
    import edgepack_images as images  # type: ignore[import-not-found,no-redef]

Box = Tuple[float, float, float, float]
MOST_LISTED = 10
"""The most labels that an error lists."""
_OF_CLASSES = ("classification", "detection")


@dataclass(frozen=True)
class Class:
    """One class of a classification."""

    index: int
    label: Optional[str]
    """None where there are no labels, or fewer than classes."""
    score: float


@dataclass(frozen=True)
class Detection:
    """One object in a picture."""

    index: int
    """Of its class."""
    label: Optional[str]
    score: float
    box: Box
    """Left, top, right, bottom in pixels of the picture as it came, clipped to it."""


@dataclass(frozen=True)
class AnswerOptions:
    """What one call wants otherwise than the manifest says; None is what that says.

    An output whose kind knows nothing of an option is answered without it.

    Raises:
        ValueError: ``score`` or ``iou`` is not from 0 to 1, or ``most`` or ``top`` is below 1.
        TypeError: ``allow`` is a text instead of several.
    """

    score: Optional[float] = None
    """The least score that counts, of objects and of classes, after the activation."""
    iou: Optional[float] = None
    """Of two boxes of one class that overlap by more than this, the better one stays."""
    most: Optional[int] = None
    """How many objects, at most."""
    top: Optional[int] = None
    """How many classes of a classification, at most."""
    allow: Optional[Sequence[str]] = None
    """The labels of the classes that an answer may hold; None allows all, without labels too."""

    def __post_init__(self) -> None:
        for name in ("score", "iou"):
            share = getattr(self, name)
            if share is not None and not 0 <= share <= 1:
                raise ValueError(f"the option {name!r} is {share}, expected 0 to 1")
        for name in ("most", "top"):
            number = getattr(self, name)
            if number is not None and number < 1:
                raise ValueError(f"the option {name!r} is {number}, expected 1 or more")
        if isinstance(self.allow, str):
            raise TypeError(f"the option 'allow' is {self.allow!r}, expected a list of labels")

    def change(self, description: Mapping[str, Any], labels: Sequence[str]) -> Mapping[str, Any]:
        """Return an output's description with these options, ``allowed`` being class indices.

        Raises:
            ValueError: A label is allowed that there is none of.
        """
        names = ("score", "iou", "most", "top")
        given = {n: getattr(self, n) for n in names if getattr(self, n) is not None}
        if self.allow is not None and description["kind"] in _OF_CLASSES:
            given["allowed"] = _find_allowed(self.allow, labels)
        return {**description, **given}


Answer = Union[List[Class], List[Detection], np.ndarray]


def make_answer(
    output: np.ndarray,
    description: Mapping[str, Any],
    labels: Sequence[str] = (),
    place: Optional[images.Placement] = None,
    mask: Optional[np.ndarray] = None,
    options: Optional[AnswerOptions] = None,
) -> Answer:
    """Return the answer in one output.

    Args:
        output: As the model gave it.
        description: Of the output, as the manifest has it.
        labels: By index; empty where there are none.
        place: The picture's place in the input; for a detection.
        mask: The input that ``mask`` names: for an embedding that has one.
        options: What is wanted otherwise than the description says.

    Returns:
        Classes, detections, float32 vectors ``(B, D)``, or the output itself.

    Raises:
        ValueError: The output's shape is not one of the described kind, ``place`` or ``mask`` is
            missing, or a label is allowed that there is none of.
    """
    if options is not None:
        description = options.change(description, labels)
    kind = description["kind"]
    if kind == "classification":
        return find_classes(output, description, labels)
    if kind == "detection":
        if place is None:
            raise ValueError(
                "a detection's boxes are in the pixels of a picture: give its placement"
            )
        return find_detections(output, description, labels, place)
    if kind == "embedding":
        if description["mask"] is not None and mask is None:
            raise ValueError(
                f"the vectors are pooled with the mask {description['mask']!r}: give it"
            )
        return make_vectors(output, description, mask)
    return output


def read_labels(text: str) -> List[str]:
    """Return the labels in a file's text, one a line; a byte order mark and CRs are left out."""
    lines = text.replace("\ufeff", "").replace("\r", "").split("\n")
    return lines[:-1] if lines[-1] == "" else lines


def _find_allowed(allow: Sequence[str], labels: Sequence[str]) -> List[int]:
    if not labels:
        raise ValueError("the option 'allow' names labels, and the output has none: leave it out")
    for label in allow:
        if label not in labels:
            more = f" and {len(labels) - MOST_LISTED} more" if len(labels) > MOST_LISTED else ""
            listed = ", ".join(map(repr, labels[:MOST_LISTED]))
            raise ValueError(
                f"the option 'allow' names {label!r}, and the labels are {listed}{more}"
            )
    return [index for index, label in enumerate(labels) if label in allow]


def find_classes(
    output: np.ndarray, description: Mapping[str, Any], labels: Sequence[str] = ()
) -> List[Class]:
    """Return the ``top`` classes by score; of equal ones, those with the lower index first.

    Args:
        output: One sample's scores or logits: one axis has any size, all others have size 1.
        description: ``activation`` (default: none) and ``top`` (default: 5); with
            :class:`AnswerOptions` also ``score`` and ``allowed``.
        labels: By index.

    Raises:
        ValueError: Another shape.
    """
    if output.size == 0 or output.size != max(output.shape, default=1):
        raise ValueError(
            f"the output is {list(output.shape)}: a classification is one row of scores, so that"
            " the classes of several samples are asked for one sample at a time"
        )
    values = output.astype(np.float64).reshape(-1)
    # Bundles that edgepack made before it knew these keys lack them.
    scores = _apply_activation(values, description.get("activation", "none"))
    # By the values: activations keep their order, and may round two of them to the same score.
    order = np.argsort(-values, kind="stable")
    if "score" in description:
        order = order[scores[order] >= description["score"]]
    order = _select_allowed(order, order, description)[: description.get("top", 5)]
    return [Class(int(i), _find_label(labels, int(i)), float(scores[i])) for i in order]


def _select_allowed(
    order: np.ndarray, index: np.ndarray, description: Mapping[str, Any]
) -> np.ndarray:
    """Return those of some rows, whose classes are ``index``, that options allow."""
    if "allowed" not in description:
        return order
    return order[np.isin(index, description["allowed"])]


def _apply_activation(values: np.ndarray, activation: str) -> np.ndarray:
    if activation == "softmax":
        # Infinite values have no score.
        with np.errstate(invalid="ignore"):
            powers = np.exp(values - values.max())
        return np.asarray(powers / powers.sum())
    if activation == "sigmoid":
        with np.errstate(over="ignore"):
            return np.asarray(1.0 / (1.0 + np.exp(-values)))
    return values


def find_detections(
    output: np.ndarray,
    description: Mapping[str, Any],
    labels: Sequence[str],
    place: images.Placement,
) -> List[Detection]:
    """Return the objects in a picture, best first; of equal ones, the output's first row first.

    A row is one object of the class with its best score. Rows below ``score`` are left out, and
    those that hold a value that is no number. Of two objects of one class that overlap by more than
    ``iou`` (intersection over union), the better one is kept; in the end ``most`` of all. Classes
    that are not allowed are left out before: their objects hide none.

    Args:
        output: ``(1, 4 + C, N)`` or ``(1, N, 4 + C)`` for ``yolo``, ``(1, N, 5 + C)`` for
            ``yolov5``: centre x and y, width and height in pixels of the input, for ``yolov5`` the
            score that there is an object at all, then a score per class.
        description: ``layout``, ``score``, ``iou`` and ``most``; with :class:`AnswerOptions` also
            ``allowed``.
        labels: By index; where there are any, they say what C is.
        place: Where the picture lay in the input.

    Raises:
        ValueError: Another shape.
    """
    centred, scores = read_rows(output, description["layout"], len(labels))
    index = scores.argmax(axis=1)
    best = scores[np.arange(len(scores)), index]
    boxes = _convert_to_corners(centred)
    # A NaN is below every limit.
    good = (best >= description["score"]) & np.isfinite(best) & np.isfinite(boxes).all(axis=1)
    order = np.argsort(-best, kind="stable")
    order = order[good[order]]
    order = _select_allowed(order, index[order], description)
    kept = _suppress_overlaps(boxes, index, order, description["iou"], description["most"])
    return [
        Detection(int(index[row]), _find_label(labels, int(index[row])), float(best[row]), box)
        for row, box in ((row, _map_to_picture(boxes[row], place)) for row in kept)
    ]


def read_rows(output: np.ndarray, layout: str, labels: int) -> Tuple[np.ndarray, np.ndarray]:
    """Return boxes ``(N, 4)`` and class scores ``(N, C)``; a NaN scores minus infinity."""
    before = 5 if layout == "yolov5" else 4
    rows = output[0].astype(np.float64) if output.ndim == 3 and len(output) == 1 else None
    if rows is not None and layout == "yolo":
        # An axis that is empty holds no boxes: there is no object.
        size = 4 + labels if labels else min(rows.shape) or max(rows.shape)
        # Where both axes have that size, the first one is taken, as in ultralytics' exports.
        rows = rows.T if rows.shape[0] == size else rows
    if rows is None or rows.shape[1] <= before or (labels and rows.shape[1] != before + labels):
        wanted = f"{before + labels}" if labels else f"{before} and a score per class"
        raise ValueError(
            f"the output is {list(output.shape)}: the layout {layout!r} of a detection has one"
            f" picture, with {wanted} values for each box"
        )
    scores = rows[:, before:]
    if layout == "yolov5":
        scores = scores * rows[:, 4:5]
    return rows[:, :4], np.where(np.isnan(scores), -np.inf, scores)


def _convert_to_corners(centred: np.ndarray) -> np.ndarray:
    """Return ``(N, 4)`` of centre, width and height as left, top, right, bottom."""
    half = centred[:, 2:] / 2
    return np.hstack([centred[:, :2] - half, centred[:, :2] + half])


def _suppress_overlaps(
    boxes: np.ndarray, index: np.ndarray, order: np.ndarray, iou: float, most: int
) -> List[int]:
    """Return the rows that no better row of their class overlaps, in order."""
    kept: List[int] = []
    while len(order) and len(kept) < most:
        first, order = order[0], order[1:]
        kept.append(int(first))
        same = index[order] == index[first]
        order = order[~(same & _find_overlapping(boxes[first], boxes[order], iou))]
    return kept


def _find_overlapping(box: np.ndarray, others: np.ndarray, iou: float) -> np.ndarray:
    """Return which boxes overlap one by more than a share of their union."""
    sides = np.minimum(box[2:], others[:, 2:]) - np.maximum(box[:2], others[:, :2])
    intersection = np.maximum(sides, 0).prod(axis=1)
    union = _area(box) + _area(others) - intersection
    # Multiplied, not divided: two boxes without area have no union.
    return np.asarray(intersection > iou * union)


def _area(boxes: np.ndarray) -> np.ndarray:
    return np.asarray(np.maximum(boxes[..., 2:] - boxes[..., :2], 0).prod(axis=-1))


def _map_to_picture(box: np.ndarray, place: images.Placement) -> Box:
    """Return a box in pixels of the input as one in pixels of the picture, clipped to it."""
    x0, y0, x1, y1 = (float(value) for value in box)
    horizontal = (place.left, place.width, place.picture_width)
    vertical = (place.top, place.height, place.picture_height)
    return (
        _map_back(x0, *horizontal),
        _map_back(y0, *vertical),
        _map_back(x1, *horizontal),
        _map_back(y1, *vertical),
    )


def _map_back(value: float, offset: int, scaled: int, size: int) -> float:
    return min(max((value - offset) * size / scaled, 0.0), float(size))


def make_vectors(
    output: np.ndarray, description: Mapping[str, Any], mask: Optional[np.ndarray] = None
) -> np.ndarray:
    """Return one vector per sample: float32 ``(B, D)``.

    Args:
        output: ``(B, S, D)``, of which ``pooling`` makes one vector of S; with pooling ``none``
            anything, whose values of a sample are the vector.
        description: ``pooling`` and ``normalize``. A vector of zeros stays one.
        mask: ``(B, S)``: positions with 0 do not count. Where none counts, the vector is zeros.

    Raises:
        ValueError: Another shape.
    """
    values = output.astype(np.float64)
    pooling = description["pooling"]
    if pooling == "none":
        samples, *rest = values.shape or (1,)
        pooled = values.reshape(samples, math.prod(rest))
    else:
        pooled = _pool_vectors(values, pooling, _find_counted(values, mask))
    if description["normalize"]:
        length = np.sqrt((pooled**2).sum(axis=1, keepdims=True))
        pooled = pooled / np.where(length > 0, length, 1.0)
    return pooled.astype(np.float32)


def _find_counted(values: np.ndarray, mask: Optional[np.ndarray]) -> np.ndarray:
    """Return which positions count: bool ``(B, S, 1)``."""
    shape = values.shape[:2]
    counted = np.ones(shape, bool) if mask is None else mask.astype(bool)
    if values.ndim != 3 or counted.shape != shape:
        of_mask = "" if mask is None else f" and its mask {list(mask.shape)}"
        raise ValueError(
            f"the output is {list(values.shape)}{of_mask}: pooling takes [batch, positions, values]"
            " and a mask [batch, positions]"
        )
    return counted[:, :, None]


def _pool_vectors(values: np.ndarray, pooling: str, counted: np.ndarray) -> np.ndarray:
    if pooling == "cls":
        if not values.shape[1]:
            raise ValueError(
                f"the output is {list(values.shape)}: the pooling 'cls' takes the first position,"
                " and there is none"
            )
        return values[:, 0]
    number = counted.sum(axis=1)
    if pooling == "mean":
        return np.asarray(np.where(counted, values, 0.0).sum(axis=1) / np.maximum(number, 1))
    highest = np.where(counted, values, -np.inf).max(axis=1, initial=-np.inf)
    return np.where(number > 0, highest, 0.0)


def _find_label(labels: Sequence[str], index: int) -> Optional[str]:
    return labels[index] if index < len(labels) else None


def make_json(given: Answer) -> List[Any]:
    """Return an answer as lists and dicts that :mod:`json` writes."""
    if isinstance(given, np.ndarray):
        return list(given.tolist())
    return [asdict(each) for each in given]
