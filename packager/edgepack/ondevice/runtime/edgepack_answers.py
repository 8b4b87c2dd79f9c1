"""Output tensors to answers, as the manifest's ``output_descriptions`` say.

A classification gives classes, best first; a detection gives boxes in the pixels of the caller's
picture, best first; an embedding gives one vector per sample; a mask gives the class of each pixel
of the picture; probabilities give decisions; a text gives its symbols; other kinds give the tensor
itself. The Kotlin, Swift and JavaScript runtimes give the same answers: all is computed in double
precision, and every order is fixed, ties included.

Needs Python 3.8 or newer and numpy; nothing else.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, List, Mapping, Optional, Sequence, Tuple, Union

import numpy as np

if __package__:
    from . import edgepack_ctc as ctc
    from . import edgepack_images as images
    from . import edgepack_layouts as layouts
    from . import edgepack_masks as masks
else:  # a bundle's
    import edgepack_ctc as ctc  # type: ignore[import-not-found,no-redef]
    import edgepack_images as images  # type: ignore[import-not-found,no-redef]
    import edgepack_layouts as layouts  # type: ignore[import-not-found,no-redef]
    import edgepack_masks as masks  # type: ignore[import-not-found,no-redef]

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
class Keypoint:
    """One point of an object, such as a joint."""

    x: float
    """In pixels of the picture as it came, within it, as is ``y``."""
    y: float
    score: Optional[float]
    """None where the model gives none."""


@dataclass(frozen=True)
class Detection:
    """One object in a picture."""

    index: int
    """Of its class."""
    label: Optional[str]
    score: float
    box: Box
    """Left, top, right, bottom in pixels of the picture as it came, clipped to it."""
    keypoints: Tuple[Keypoint, ...] = ()
    """In the model's order; of a model that gives some."""


@dataclass(frozen=True)
class Decision:
    """What one probability decides."""

    score: float
    """After the activation."""
    positive: bool
    """Whether the score reaches the threshold; never, where it is no number."""


@dataclass(frozen=True)
class AnswerOptions:
    """What one call wants otherwise than the manifest says; None is what that says.

    An output whose kind knows nothing of an option is answered without it.

    Raises:
        ValueError: ``score`` or ``iou`` is not from 0 to 1, or ``most`` or ``top`` is below 1.
        TypeError: ``most`` or ``top`` is a float, or ``allow`` is a text instead of several.
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
            if isinstance(number, float):
                raise TypeError(f"the option {name!r} is {number}, expected a whole number")
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


Answer = Union[
    List[Class], List[Detection], List[Decision], masks.Mask, ctc.Transcription, np.ndarray
]


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
        place: The picture's place in the input; for a detection, and for a mask.
        mask: The input that ``mask`` names: for an embedding that has one.
        options: What is wanted otherwise than the description says.

    Returns:
        Classes, detections, float32 vectors ``(B, D)``, decisions, a text, the class of each pixel
        where the output has one of :func:`edgepack_masks.make_mask`'s shapes, or the output itself.

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
    if kind == "text":
        return ctc.transcribe(output, description, labels)
    return _read_values(output, description, labels, place)


def _read_values(
    output: np.ndarray,
    description: Mapping[str, Any],
    labels: Sequence[str],
    place: Optional[images.Placement],
) -> Answer:
    """Return decisions, the class of each pixel, or else the output itself."""
    if description["kind"] == "probability":
        return make_decisions(output, description)
    is_mask = description["kind"] == "mask"
    found = masks.make_mask(output, description, place, labels) if is_mask else None
    return output if found is None else found


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
    scores = layouts.activate(values, description.get("activation", "none"))
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


def find_detections(
    output: np.ndarray,
    description: Mapping[str, Any],
    labels: Sequence[str],
    place: images.Placement,
) -> List[Detection]:
    """Return the objects in a picture, best first; of equal ones, the output's first row first.

    Rows below ``score`` are left out, and
    those that hold a value that is no number. Of two objects of one class that overlap by more than
    ``iou`` (intersection over union), the better one is kept; in the end ``most`` of all. Classes
    that are not allowed are left out before: their objects hide none.

    Args:
        output: As :func:`edgepack_layouts.read_rows` takes it.
        description: ``layout``, ``score``, ``iou`` and ``most``; with :class:`AnswerOptions` also
            ``allowed``.
        labels: By index; where there are any, they say how many classes there are.
        place: Where the picture lay in the input.

    Raises:
        ValueError: Another shape.
    """
    size = (place.input_width, place.input_height)
    rows = layouts.read_rows(output, description, len(labels), size)
    # A NaN is below every limit.
    good = (rows.score >= description["score"]) & np.isfinite(rows.score)
    good &= np.isfinite(rows.boxes).all(axis=1) & np.isfinite(rows.points).all(axis=(1, 2))
    order = np.argsort(-rows.score, kind="stable")
    order = order[good[order]]
    order = _select_allowed(order, rows.index[order], description)
    if description["layout"] in layouts.WITHOUT_OVERLAPS:
        kept = order[: description["most"]].tolist()
    else:
        kept = _suppress_overlaps(rows, order, description["iou"], description["most"])
    return [
        Detection(
            int(rows.index[row]),
            _find_label(labels, int(rows.index[row])),
            float(rows.score[row]),
            _map_to_picture(rows.boxes[row], place),
            tuple(_map_point(point, place) for point in rows.points[row].tolist()),
        )
        for row in kept
    ]


def _suppress_overlaps(rows: layouts.Rows, order: np.ndarray, iou: float, most: int) -> List[int]:
    """Return the rows that no better row of their class overlaps, in order."""
    kept: List[int] = []
    while len(order) and len(kept) < most:
        first, order = order[0], order[1:]
        kept.append(int(first))
        same = rows.index[order] == rows.index[first]
        order = order[~(same & _find_overlapping(rows.boxes[first], rows.boxes[order], iou))]
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


def _map_point(point: Sequence[float], place: images.Placement) -> Keypoint:
    return Keypoint(
        _map_back(point[0], place.left, place.width, place.picture_width),
        _map_back(point[1], place.top, place.height, place.picture_height),
        point[2] if len(point) > 2 else None,
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


def make_decisions(output: np.ndarray, description: Mapping[str, Any]) -> List[Decision]:
    """Return what each value decides, in the output's order.

    Args:
        output: Of any shape.
        description: ``activation`` and ``threshold``.
    """
    values = output.astype(np.float64).reshape(-1)
    scores = layouts.activate(values, description["activation"]).tolist()
    return [Decision(score, score >= description["threshold"]) for score in scores]


def _find_label(labels: Sequence[str], index: int) -> Optional[str]:
    return labels[index] if index < len(labels) else None


def make_json(given: Answer) -> Any:
    """Return an answer as lists and dicts that :mod:`json` writes; a mask's classes as runs."""
    if isinstance(given, masks.Mask):
        return {"width": given.width, "height": given.height, "runs": masks.make_runs(given)}
    if isinstance(given, np.ndarray):
        return list(given.tolist())
    if isinstance(given, ctc.Transcription):
        return asdict(given)
    # What a model does not give has no key.
    return [
        {k: v for k, v in asdict(each).items() if (k, v) != ("keypoints", ())} for each in given
    ]
