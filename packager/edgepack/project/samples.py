"""Where a project's samples come from, and the metric that judges variants by them."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from edgepack.base.schema import Finite, Positive, StrictModel

HookName = Annotated[str, Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")]
"""``module:function``, found with the project's folder on the path."""


MetricName = Literal[
    "agreement",
    "top1",
    "f1",
    "map50",
    "map",
    "oks",
    "miou",
    "psnr",
    "cer",
    "wer",
    "perplexity",
    "eer",
    "spearman",
]
"""The metrics that are built in; all but ``agreement`` take labels."""


class PythonMetric(StrictModel):
    """A metric of the user's own, called once over the set.

    The function takes ``(outputs, labels)``, or ``(outputs, labels, names)`` if it has a parameter
    ``names``. It returns a number, or several by name; docs/metrics.md has an example.
    """

    python: HookName
    higher_is_better: bool
    value: str | None = None
    """Which of several values decides, and is what limits are about; default: the first."""


class SampleSource(StrictModel):
    """Where samples come from: exactly one of the first six keys."""

    path: str | None = None
    """An ``.npz`` with one array per input; the leading axis is the sample."""
    images: str | None = None
    """A folder of images, used with the description of the model's one image input."""
    video: str | None = None
    """A video, or a folder of videos, whose frames are pictures in order."""
    sounds: str | None = None
    """A folder of ``.wav`` files, used with the description of the model's one input of sound."""
    test_data: str | None = None
    """A glob of ONNX test data folders (``input_0.pb`` and so on)."""
    python: HookName | None = None
    """A callable that returns an iterable of ``{input: array}`` or ``({input: array}, label)``."""
    labels: str | None = None
    """npz: the key that holds the labels. images: a CSV file of ``file,label``, the file as a path
    within the folder or a name that is there once, or ``folders`` where each class has a folder;
    classes count from 0 in the order of the folders' names. Boxes: COCO's annotations, a ``.json``
    file, or a folder with a YOLO ``.txt`` for each image. Masks and reference pictures: a folder
    with one for each image. Other sources take none."""
    reference: dict[str, str] = {}
    """npz: outputs of the model, each with the key of what its framework gave for the samples: a
    build compares. ONNX test data has ``output_0.pb`` and so on, which are compared, too."""
    every: Positive | None = None
    """video: one of so many frames, the first included."""
    fps: Annotated[Finite, Field(gt=0)] | None = None
    """video: so many frames a second, instead of ``every``; default: all."""
    limit: Positive | None = None
    """Take this many samples, the first in the file or evenly spread over a folder's names."""

    @model_validator(mode="after")
    def _check_source(self) -> Self:
        keys = ("path", "images", "video", "sounds", "test_data", "python")
        given = [key for key in keys if getattr(self, key) is not None]
        if len(given) != 1:
            raise ValueError(
                f"samples need exactly one source, found {', '.join(given) or 'none'}"
                f" | give one of {', '.join(keys)}"
            )
        return self

    @model_validator(mode="after")
    def _check_labels(self) -> Self:
        if self.labels is not None and not (self.path or self.images or self.sounds):
            raise ValueError(
                "'labels' goes with 'path', 'images' or 'sounds' only"
                " | remove it; a Python source yields (inputs, label)"
            )
        return self

    @model_validator(mode="after")
    def _check_reference(self) -> Self:
        if self.reference and self.path is None:
            raise ValueError(
                "'reference' goes with 'path' only | remove it; the files output_0.pb of test data"
                " are compared without it"
            )
        return self

    @model_validator(mode="after")
    def _check_frames(self) -> Self:
        given = [key for key in ("every", "fps") if getattr(self, key) is not None]
        if given and self.video is None:
            raise ValueError(f"{given[0]!r} goes with 'video' only | remove it")
        if len(given) == 2:
            raise ValueError("'every' and 'fps' are given | give one of the two")
        return self


class EvaluationSource(SampleSource):
    """Samples to judge by, and the metric."""

    metric: MetricName | PythonMetric | None = None
    """Default: with labels ``top1``, or ``map50`` where they are boxes and an output is a
    detection, or ``cer`` where they are texts and an output is one; ``agreement`` with fp32
    without."""
    claimed: Annotated[float, Field(gt=0, le=1)] | None = None
    """The ``top1`` that the model's makers publish: a build warns where fp32 is below it, and tries
    other ways to make the input."""

    @model_validator(mode="after")
    def _check_claim(self) -> Self:
        if self.claimed is not None and self.labels is None and self.python is None:
            raise ValueError("'claimed' is of labelled samples | give 'labels', or remove it")
        if self.claimed is not None and self.metric not in (None, "top1"):
            raise ValueError("'claimed' is of the metric top1 | remove it, or name top1")
        return self


class Samples(StrictModel):
    """The two sets of samples.

    One folder of images or sounds for both is split 80 to 20 by content, one video by time.
    """

    calibration: SampleSource | None = None
    evaluation: EvaluationSource | None = None
