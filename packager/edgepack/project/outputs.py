"""What a project file says about the model's outputs: one description for each kind of answer."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from edgepack.base.schema import Finite, Positive
from edgepack.project.inputs import Documented

Share = Annotated[float, Field(ge=0, le=1)]
Layout = Literal["yolo", "yolov5", "yolox", "end2end"]
STRIDES = (8, 16, 32)
"""Source: YOLOX, yolox/models/yolo_head.py."""


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
    suppressed already. Boxes are in pixels of the input, but for ``yolox``."""
    strides: Annotated[list[Positive], Field(min_length=1)] | None = None
    """Of ``yolox``: the sizes of its grids' cells in pixels, in the order of the rows; 8, 16 and 32
    where none are given. Null for other layouts."""
    labels: str | None = None
    """A file of the project's ``files`` with one label a line."""
    score: Share = 0.25
    """The least score that counts."""
    iou: Share = 0.45
    """Of two boxes of one class whose intersection is more than this part of their union, the one
    with the better score stays."""
    most: Positive = 100
    """How many objects an answer holds, at most."""

    @model_validator(mode="before")
    @classmethod
    def _fill_strides(cls, given: object) -> object:
        if isinstance(given, dict) and given.get("layout") == "yolox":
            return {"strides": [*STRIDES], **given}
        return given

    @model_validator(mode="after")
    def _check_strides(self) -> Self:
        if (self.strides is None) == (self.layout == "yolox"):
            raise ValueError(
                "'strides' belong to the layout yolox, and to no other | remove 'strides'"
            )
        return self


class SizedDetection(DetectionOutput):
    """A detection of which is known how many classes it has, and how large the input is."""

    classes: int = 0
    """By its labels; 0 where there are none."""
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


class SignalOutput(Documented):
    """Sound or another signal along the last axis: the answer is the output itself."""

    kind: Literal["signal"]
    window: Positive = 256
    """Values that are judged together: what is silent does not count."""


GivenAsTensor = (
    RawOutput | RegressionOutput | ProbabilityOutput | MaskOutput | TokensOutput | SignalOutput
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
    | SignalOutput,
    Field(discriminator="kind"),
]
"""What one output of the model means, and so what a variant of it is judged by. Carried into the
bundle."""
