"""What a project file says about the model's outputs: one description for each kind of answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from edgepack.base.schema import Finite, Positive
from edgepack.project.inputs import Documented

Share = Annotated[float, Field(ge=0, le=1)]
Layout = Literal["yolo", "yolov5", "yolox", "end2end", "ssd"]
STRIDES = (8, 16, 32)
"""Source: YOLOX, yolox/models/yolo_head.py."""
VARIANCES = (0.1, 0.2)
"""Source: biubug6/Pytorch_Retinaface, data/config.py."""
_IF_GIVEN = Field(exclude_if=lambda given: given is None)
"""So that the bytes of other manifests stay what they were."""


class RawOutput(Documented):
    """An output that is given as it is."""

    kind: Literal["raw"] = "raw"
    labels: str | None = None
    """A file of the project's ``files``."""


class ClassificationOutput(Documented):
    """One score per class: the answer is the best classes."""

    kind: Literal["classification"]
    labels: str | None = None
    """A file of the project's ``files`` with one label a line."""
    activation: Literal["none", "softmax", "sigmoid"] = "none"
    """The function that turns the model's values into scores; the order is the same with each."""
    top: Positive = 5
    """How many classes an answer holds, at most."""


class DetectionOutput(Documented):
    """Boxes with scores: the answer is objects in the pixels of the caller's picture."""

    kind: Literal["detection"]
    layout: Layout
    """``yolo``: centre x and y, width, height, then a score per class: ``(1, 4 + C, N)`` or
    ``(1, N, 4 + C)``. ``yolov5``: between them the score that there is an object at all,
    ``(1, N, 5 + C)``. ``yolox``: the same without decoding: offsets and logarithms in cells of
    grids. ``end2end``: left, top, right, bottom, score, class: ``(1, N, 6)``, where overlaps are
    suppressed already. ``ssd``: boxes ``(1, N, 4)``, whose scores are another output. Boxes are in
    pixels of the input, but for ``yolox`` and ``ssd``."""
    strides: Annotated[list[Positive], Field(min_length=1)] | None = None
    """Of ``yolox``: the sizes of its grids' cells in pixels, in the order of the rows; 8, 16 and 32
    where none are given. Null for other layouts; keys of ``ssd`` are left out there."""
    labels: str | None = None
    """A file of the project's ``files`` with one label a line."""
    score: Share = 0.25
    """The least score that counts."""
    iou: Share = 0.45
    """Of two boxes of one class whose intersection is more than this part of their union, the one
    with the better score stays."""
    most: Positive = 100
    """How many objects an answer holds, at most."""
    keypoints: Annotated[Positive | None, _IF_GIVEN] = None
    """Of ``yolo`` and ``end2end``: how many points each box has, behind all else in its row."""
    keypoint_values: Annotated[Literal[2, 3] | None, _IF_GIVEN] = None
    """Of ``keypoints``: 3 for x and y in pixels of the input and a score each, 2 for no score; 3
    where none is given."""
    scores: Annotated[str | None, _IF_GIVEN] = None
    """Of ``ssd``: the output with the scores of the boxes' classes, ``(1, N, C)``; with ``classes``
    those of the boxes, ``(1, N)``."""
    classes: Annotated[str | None, _IF_GIVEN] = None
    """Of ``ssd``: the output with the number of each box's class, ``(1, N)``, if there is one."""
    box: Annotated[Literal["corners", "corners_yx", "centre"] | None, _IF_GIVEN] = None
    """Of ``ssd`` without ``priors``: left, top, right, bottom (the default); top, left, bottom,
    right; or centre x and y, width, height."""
    normalized: Annotated[bool | None, _IF_GIVEN] = None
    """Of ``ssd``: whether boxes are in parts of the input's width and height (the default), or in
    its pixels."""
    background: Annotated[bool | None, _IF_GIVEN] = None
    """Of ``ssd``: whether class 0 is no object; the others are counted from 0 then."""
    activation: Annotated[Literal["none", "softmax", "sigmoid"] | None, _IF_GIVEN] = None
    """Of ``ssd``: the function that turns scores of classes, the background's too, into those that
    ``score`` is about; ``none`` where none is given."""
    priors: Annotated[str | None, _IF_GIVEN] = None
    """Of ``ssd``: a file of the project's ``files`` with a line for each box, ``cx,cy,w,h`` in
    parts of the input's width and height, which the output's values are relative to."""
    variances: Annotated[
        Annotated[list[Finite], Field(min_length=2, max_length=2)] | None, _IF_GIVEN
    ] = None
    """Of ``ssd`` with ``priors``: the factors of offsets of the centre, and of the logarithms of
    width and height; 0.1 and 0.2 where none are given."""

    @model_validator(mode="before")
    @classmethod
    def _fill_own(cls, given: object) -> object:
        return {**_choose_own(given), **given} if isinstance(given, dict) else given

    @model_validator(mode="after")
    def _check_own(self) -> Self:
        for layout, keys in _KEYS.items():
            for key in keys if layout != self.layout else ():
                if getattr(self, key) is not None:
                    raise ValueError(
                        f"{key!r} belongs to the layout {layout}, and to no other | remove {key!r}"
                    )
        needed = ("scores",) if self.layout == "ssd" else ()
        for key in (*needed, *_choose_own({"layout": self.layout, "priors": self.priors})):
            if getattr(self, key) is None:
                raise ValueError(f"the layout {self.layout} needs {key!r} | give {key!r}")
        return self

    @model_validator(mode="after")
    def _check_keypoints(self) -> Self:
        if self.keypoints is not None and self.layout not in _WITH_KEYPOINTS:
            raise ValueError(
                f"'keypoints' belong to the layouts {' and '.join(_WITH_KEYPOINTS)}"
                " | remove 'keypoints'"
            )
        if (self.keypoints is None) != (self.keypoint_values is None):
            raise ValueError(
                "'keypoints' and 'keypoint_values' go together | give both, or neither"
            )
        return self

    @model_validator(mode="after")
    def _check_boxes(self) -> Self:
        if self.priors is None and self.variances is not None:
            raise ValueError("'variances' are of 'priors' | remove 'variances', or give 'priors'")
        if self.priors is not None and (self.box is not None or not self.normalized):
            raise ValueError(
                "boxes with 'priors' are offsets to normalized boxes"
                " | remove 'box' and 'normalized'"
            )
        if self.classes is not None and self.activation == "softmax":
            raise ValueError(
                "with 'classes' a box has one score, and softmax is over several"
                " | give activation: none or sigmoid"
            )
        return self


_KEYS: Mapping[Layout, tuple[str, ...]] = {
    "yolox": ("strides",),
    "ssd": (
        "scores", "classes", "box", "normalized", "background", "activation", "priors", "variances"
    ),
}  # fmt: skip
"""The keys that a layout has for itself."""
_WITH_KEYPOINTS: tuple[Layout, ...] = ("yolo", "end2end")


def _choose_own(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the defaults of the keys that a layout has for itself."""
    if given.get("layout") == "yolox":
        return {"strides": [*STRIDES]}
    if given.get("layout") != "ssd":
        return {"keypoint_values": 3} if given.get("keypoints") else {}
    boxes = {"variances": [*VARIANCES]} if given.get("priors") else {"box": "corners"}
    return {"normalized": True, "background": False, "activation": "none", **boxes}


class SizedDetection(DetectionOutput):
    """A detection of which is known what stands in its files, and how large the input is."""

    label_count: int = 0
    """How many labels there are; 0 where there are none."""
    prior_boxes: tuple[tuple[float, ...], ...] = ()
    """What ``priors`` has."""
    input_size: tuple[int, int] = (0, 0)
    """Width and height in pixels; zeros where not exactly one input is described as an image."""


class EmbeddingOutput(Documented):
    """Values that stand for the whole sample: the answer is one vector per sample."""

    kind: Literal["embedding"]
    pooling: Literal["none", "cls", "mean", "max"]
    """How ``(B, S, D)`` becomes ``(B, D)``: the first position, or mean or maximum over all."""
    mask: str | None = None
    """An input ``(B, S)``: positions where it is 0 do not count."""
    normalize: bool = False
    """Whether vectors get length 1."""

    @model_validator(mode="after")
    def _check_mask(self) -> Self:
        if self.mask is not None and self.pooling in ("none", "cls"):
            raise ValueError(
                f"'mask' does not go with pooling {self.pooling!r}"
                " | give pooling: mean or max, or remove 'mask'"
            )
        return self


class RegressionOutput(Documented):
    """Numbers that are read as they are, as a score or a size: the answer is the output itself."""

    kind: Literal["regression"]
    threshold: Finite | None = None
    """For a single number, the value at which it decides something."""


class ProbabilityOutput(Documented):
    """Probabilities that decide something each: the answer is decisions, of at most 1000 values."""

    kind: Literal["probability"]
    threshold: Share = 0.5
    """The probability from which on the decision is yes."""
    activation: Literal["none", "sigmoid"] = "none"
    """The function that turns the model's values into probabilities, before ``threshold``."""


class MaskOutput(Documented):
    """A class for each place, or whether it is in a region: the answer is the class of each pixel.

    It is the output itself where no picture is given, or the output has other axes besides.
    """

    kind: Literal["mask"]
    labels: str | None = None
    """A file of the project's ``files`` with one label a line."""
    axis: Literal[1, -1] = 1
    """Where scores of classes lie; with one value there, ``threshold`` decides."""
    threshold: Finite = 0.5


class TokensOutput(Documented):
    """A sequence of ids, or floats whose last axis scores ids: the answer is the output itself."""

    kind: Literal["tokens"]


class TextOutput(Documented):
    """Scores of symbols in steps, of a model that was trained with CTC: the answer is the text.

    It has the best symbol of each step, without the blank and without repetitions.
    """

    kind: Literal["text"]
    labels: str
    """A file of the project's ``files`` with one symbol a line, without the blank."""
    blank: Annotated[int, Field(ge=-1)] = 0
    """The class that stands for no symbol; -1 for the last."""
    axis: Literal[1, -1] = -1
    """Where scores of classes lie: -1 in ``(1, T, C)`` or ``(T, 1, C)``, 1 in ``(1, C, T)``."""
    activation: Literal["none", "softmax"] = "none"
    """The function that turns the model's values, also logarithms of scores, into scores."""


class SpelledText(TextOutput):
    """A text of which is known what stands in its file."""

    alphabet: tuple[str, ...]
    """The symbols, in the order of the classes, without the blank."""


class PictureOutput(Documented):
    """A picture, as of super-resolution or denoising: the answer is the output itself.

    It is ``(1, C, H, W)`` or ``(1, H, W, C)`` with 1 or 3 channels.
    """

    kind: Literal["picture"]
    black: Finite = 0.0
    """The value of black."""
    white: Finite = 1.0
    """The value of white."""
    order: Literal["RGB", "BGR"] = "RGB"
    """Of three channels."""

    @model_validator(mode="after")
    def _check_ends(self) -> Self:
        if self.black == self.white:
            raise ValueError("'black' and 'white' are equal | give the values of both")
        return self


class SignalOutput(Documented):
    """Sound or another signal along the last axis: the answer is the output itself."""

    kind: Literal["signal"]
    window: Positive = 256
    """Values that are judged together: what is silent does not count."""


GivenAsTensor = (
    RawOutput
    | RegressionOutput
    | ProbabilityOutput
    | MaskOutput
    | TokensOutput
    | SignalOutput
    | PictureOutput
)
"""Outputs whose answer is the tensor itself; of probabilities and masks, where it is no answer
of their kind."""
OutputDescription = Annotated[
    RawOutput
    | ClassificationOutput
    | DetectionOutput
    | EmbeddingOutput
    | RegressionOutput
    | ProbabilityOutput
    | MaskOutput
    | TokensOutput
    | TextOutput
    | SignalOutput
    | PictureOutput,
    Field(discriminator="kind"),
]
"""What one output of the model means, and so what a variant of it is judged by. Carried into the
bundle."""


def list_read_too(meaning: OutputDescription | None) -> list[str]:
    """Return the outputs that an answer is read from beside the described one."""
    given = (meaning.scores, meaning.classes) if isinstance(meaning, DetectionOutput) else ()
    return [name for name in given if name is not None]
