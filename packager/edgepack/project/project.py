"""The project file, ``edgepack.yaml``: one model, its inputs, samples, limits and targets."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from edgepack.base.schema import Id, StrictModel
from edgepack.base.yaml_source import YamlSource, read_yaml
from edgepack.errors import ProfileError, UsageError
from edgepack.ondevice.runtime.edgepack_answers import read_labels
from edgepack.project.identifiers import find_taken_types, is_reserved_in_packages
from edgepack.project.profile import VariantChange

PROJECT_FILE = "edgepack.yaml"

Positive = Annotated[int, Field(gt=0)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Number = bool | int | Finite
ConstantValue = Number | list[Number] | list[list[Number]]


def _is_taken(name: str) -> bool:
    """Say whether a folder of edgepack's own on devices may have a name."""
    return re.fullmatch(r"lease|venv(-.*)?", name, re.IGNORECASE) is not None


def _own_folder(name: str) -> str:
    if _is_taken(name):
        raise ValueError(f"{name!r} is a folder of edgepack's own on devices: choose another name")
    return name


def _package(name: str) -> str:
    if not re.fullmatch(r"[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)+", name):
        raise ValueError(
            f"{name!r} is no package | lower-case words joined by dots, such as com.acme.detector"
        )
    if reserved := [word for word in name.split(".") if is_reserved_in_packages(word)]:
        raise ValueError(
            f"{name!r} holds {reserved[0]!r}, a word of Kotlin's or Java's | choose another word"
        )
    if (first := name.split(".", maxsplit=1)[0]) in ("java", "kotlin"):
        # The JVM's class loaders refuse the one, the Kotlin compiler the other.
        raise ValueError(
            f"{name!r} is a package of {first.capitalize()}'s own | begin with a name of yours"
        )
    if f"{name}.".startswith("ai.onnxruntime."):
        # One app has both; classes of one name would shadow each other, and shrinking keeps them.
        raise ValueError(f"{name!r} is a package of onnxruntime's own | begin with a name of yours")
    return name


def _type(name: str) -> str:
    if not re.fullmatch(r"[A-Z][A-Za-z0-9]*", name):
        raise ValueError(f"{name!r} is no type's name | letters and digits, such as Detector")
    if name in find_taken_types():
        raise ValueError(f"{name!r} is a type that the code uses | call it {name}Model")
    return name


ProjectName = Annotated[
    str, Field(pattern=r"^[A-Za-z0-9]+([._-][A-Za-z0-9]+)*$"), AfterValidator(_own_folder)
]
"""The name of the project's folder on devices."""
ProjectVersion = Annotated[str, Field(pattern=r"^[A-Za-z0-9]+([._+-][A-Za-z0-9]+)*$")]
HookName = Annotated[str, Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")]
"""``module:function``, found with the project's folder on the path."""


class Letterbox(StrictModel):
    """Scale the whole image into a square, keep its shape, fill the rest."""

    letterbox: Positive
    """Side of the square in pixels."""
    pad: Annotated[int, Field(ge=0, le=255)] = 114
    """The value that fills the rest, before ``scale``."""


class ShortSideCrop(StrictModel):
    """Scale so that the shorter side has a size, then cut a square from the centre."""

    short_side: Positive
    crop: Positive

    @model_validator(mode="after")
    def _crop_fits(self) -> Self:
        if self.crop > self.short_side:
            raise ValueError(
                f"crop {self.crop} is larger than short_side {self.short_side}"
                " | a crop must fit into the scaled image"
            )
        return self


class Stretch(StrictModel):
    """Scale to a size, whatever the shape of the image."""

    width: Positive
    height: Positive


class ImageInput(StrictModel):
    """How an image file becomes an input tensor.

    Resizing is bilinear with antialiasing, as Pillow does it; the crop starts at
    ``floor((w - s) / 2)``; then order, scale, mean, std and layout apply, in this sequence.
    Before all that the image is turned upright as its EXIF orientation says, and transparency is
    laid over white. Images with more than 8 bits a channel are refused.
    """

    resize: Letterbox | ShortSideCrop | Stretch
    order: Literal["RGB", "BGR", "GRAY"] = "RGB"
    scale: Finite = 1.0
    mean: list[Finite] = []
    """One value per channel, in ``order``, subtracted after ``scale``. Empty: zeros."""
    std: list[Finite] = []
    """One value per channel, in ``order``, divided by last. Empty: ones."""
    layout: Literal["NCHW", "NHWC"] = "NCHW"

    @model_validator(mode="after")
    def _per_channel(self) -> Self:
        channels = 1 if self.order == "GRAY" else 3
        for key, values in (("mean", self.mean), ("std", self.std)):
            if values and len(values) != channels:
                raise ValueError(
                    f"{key!r} has {len(values)} values"
                    f" | {self.order} has {channels} channels: give one value for each"
                )
        if any(value == 0 for value in self.std):
            raise ValueError("'std' holds a 0 | it is divided by: give the standard deviation")
        return self


class TokensInput(StrictModel):
    """How a text becomes token ids: by the ``tokenizer.json`` of a BERT model, which is WordPiece.

    The ids go into the input that this describes, the other two into the inputs that are named or,
    where none are, into those of these names that the model has. All get one text, int32 or int64
    ``(1, tokens)``.
    """

    file: str
    """One of the project's ``files``."""
    length: Annotated[int, Field(gt=1)]
    """The most tokens, special ones included; longer texts are cut. Where the input's last axis is
    fixed, the tokens are filled up to it; where it is symbolic, they are as many as there are."""
    attention_mask: str = "attention_mask"
    token_type_ids: str = "token_type_ids"  # noqa: S105  (an input, not a secret)


class InputDescription(StrictModel):
    """What one input of the model is made from, and what fills it up to a size in ``dims``."""

    image: ImageInput | None = None
    tokens: TokensInput | None = None
    pad: int | Finite | None = None
    """What the loader puts behind the input's values, along symbolic dimensions with a list of
    sizes, up to the next of them. Default: 0, which in a mask hides what it stands for."""
    mask: str | None = None
    """A symbolic dimension: the input is a mask over it. Where a caller leaves it out, the loader
    makes it: ones up to the actual size, zeros behind. Samples hold it as any other input."""

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if self == InputDescription.model_construct():
            raise ValueError(
                "it says nothing | give 'image', 'tokens', 'pad' or 'mask', or remove the input"
            )
        given = [key for key in ("image", "tokens", "pad") if getattr(self, key) is not None]
        if self.mask is not None and given:
            raise ValueError(
                f"'mask' and {given[0]!r} are given"
                " | a mask is ones and zeros, padded with zeros: give one of the two"
            )
        if self.image is not None and self.tokens is not None:
            raise ValueError("'image' and 'tokens' are given | give one of the two")
        return self


Share = Annotated[float, Field(ge=0, le=1)]


class RawOutput(StrictModel):
    """An output that is given as it is."""

    kind: Literal["raw"] = "raw"
    labels: str | None = None
    """A file of the project's ``files``."""


class ClassificationOutput(StrictModel):
    """One score per class: the answer is the best classes."""

    kind: Literal["classification"]
    labels: str | None = None
    """A file of the project's ``files`` with one label a line."""
    activation: Literal["none", "softmax", "sigmoid"] = "none"
    """The function that turns the model's values into scores; the order is the same with each."""
    top: Positive = 5
    """How many classes an answer holds, at most."""


class DetectionOutput(StrictModel):
    """Boxes with scores: the answer is objects in the pixels of the caller's picture."""

    kind: Literal["detection"]
    layout: Literal["yolo", "yolov5"]
    """``yolo``: centre x and y, width, height, then a score per class: ``(1, 4 + C, N)`` or
    ``(1, N, 4 + C)``. ``yolov5``: between them the score that there is an object at all,
    ``(1, N, 5 + C)``. Boxes are in pixels of the input."""
    labels: str | None = None
    """A file of the project's ``files`` with one label a line."""
    score: Share = 0.25
    """The least score that counts."""
    iou: Share = 0.45
    """Of two boxes of one class whose intersection is more than this part of their union, the one
    with the better score stays."""
    most: Positive = 100
    """How many objects an answer holds, at most."""


class LabelledDetection(DetectionOutput):
    """A detection whose labels were counted: they say how many values a box has."""

    classes: int


class EmbeddingOutput(StrictModel):
    """Values that stand for the whole sample: the answer is one vector per sample."""

    kind: Literal["embedding"]
    pooling: Literal["none", "cls", "mean", "max"]
    """How ``(B, S, D)`` becomes ``(B, D)``: the first position, or mean or maximum over all."""
    mask: str | None = None
    """An input ``(B, S)``: positions where it is 0 do not count."""
    normalize: bool = False
    """Whether vectors get length 1."""

    @model_validator(mode="after")
    def _mask_goes_with_pooling(self) -> Self:
        if self.mask is not None and self.pooling in ("none", "cls"):
            raise ValueError(
                f"'mask' does not go with pooling {self.pooling!r}"
                " | give pooling: mean or max, or remove 'mask'"
            )
        return self


class RegressionOutput(StrictModel):
    """Numbers that are read as they are, as a score or a size: the answer is the output itself."""

    kind: Literal["regression"]
    threshold: Finite | None = None
    """For a single number, the value at which it decides something."""


class ProbabilityOutput(StrictModel):
    """Probabilities that decide something each: the answer is the output itself."""

    kind: Literal["probability"]
    threshold: Share = 0.5
    """The probability from which on the decision is yes."""
    activation: Literal["none", "sigmoid"] = "none"
    """The function that turns the model's values into probabilities, before ``threshold``."""


class MaskOutput(StrictModel):
    """A class for each place, or whether it is in a region: the answer is the output itself."""

    kind: Literal["mask"]
    axis: Literal[1, -1] = 1
    """Where scores of classes lie; with one value there, ``threshold`` decides."""
    threshold: Finite = 0.5


class TokensOutput(StrictModel):
    """A sequence of ids, or floats whose last axis scores ids: the answer is the output itself."""

    kind: Literal["tokens"]


class SignalOutput(StrictModel):
    """Sound or another signal along the last axis: the answer is the output itself."""

    kind: Literal["signal"]
    window: Positive = 256
    """Values that are judged together: what is silent does not count."""


GivenAsTensor = (
    RawOutput | RegressionOutput | ProbabilityOutput | MaskOutput | TokensOutput | SignalOutput
)
"""Outputs whose answer is the tensor itself."""
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


class Preprocess(StrictModel):
    """Where what ``image`` says is done: by the caller, or in the model itself."""

    in_graph: bool = False
    """Whether it is put into the model, which then takes a picture's pixels: uint8 ``(H, W, 3)``,
    RGB, of any size unless ``dims`` fixes ``<input>_height`` and ``<input>_width``."""
    extensions: list[Literal["decode_image", "tokenize"]] = []
    """What operators of onnxruntime-extensions do in the model, on Linux alone. ``decode_image``:
    it takes the bytes of a JPEG or PNG file, uint8 ``(N,)``. ``tokenize``: where an input has
    ``tokens``, it takes a text's UTF-8 bytes, uint8 ``(N,)``, and makes the ids itself."""

    @model_validator(mode="after")
    def _extensions_come_before_something(self) -> Self:
        if "decode_image" in self.extensions and not self.in_graph:
            raise ValueError(
                "'decode_image' is given without 'in_graph'"
                " | write preprocess: {in_graph: true, extensions: [decode_image]}"
            )
        return self


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
    """Where samples come from: exactly one of the first four keys."""

    path: str | None = None
    """An ``.npz`` with one array per input; the leading axis is the sample."""
    images: str | None = None
    """A folder of images, used with the description of the model's one image input."""
    test_data: str | None = None
    """A glob of ONNX test data folders (``input_0.pb`` and so on)."""
    python: HookName | None = None
    """A callable that returns an iterable of ``{input: array}`` or ``({input: array}, label)``."""
    labels: str | None = None
    """npz: the key that holds the labels. images: a CSV file of ``file,label``, the file as a path
    within the folder or a name that is there once, or ``folders`` where each class has a folder;
    classes count from 0 in the order of the folders' names. Boxes: COCO's annotations, a ``.json``
    file, or a folder with a YOLO ``.txt`` for each image. Other sources take none."""
    limit: Positive | None = None
    """Take this many samples, the first in the file or evenly spread over a folder's names."""

    @model_validator(mode="after")
    def _exactly_one_source(self) -> Self:
        keys = ("path", "images", "test_data", "python")
        given = [key for key in keys if getattr(self, key) is not None]
        if len(given) != 1:
            raise ValueError(
                f"samples need exactly one source, found {', '.join(given) or 'none'}"
                f" | give one of {', '.join(keys)}"
            )
        return self

    @model_validator(mode="after")
    def _labels_go_with_the_source(self) -> Self:
        if self.labels is not None and self.path is None and self.images is None:
            raise ValueError(
                "'labels' goes with 'path' or 'images' only"
                " | remove it; a Python source yields (inputs, label)"
            )
        return self


class EvaluationSource(SampleSource):
    """Samples to judge by, and the metric."""

    metric: Literal["top1", "map50", "map", "perplexity", "agreement"] | PythonMetric | None = None
    """Default: with labels ``top1``, or ``map50`` where they are boxes and an output is a
    detection; ``agreement`` with fp32 without."""


class Samples(StrictModel):
    """The two sets of samples. One folder of images for both is split 80 to 20 by content."""

    calibration: SampleSource | None = None
    evaluation: EvaluationSource | None = None


class Limits(StrictModel):
    """What a variant may lose. There are no defaults: without a limit, nothing is refused."""

    metric_drop: Annotated[float, Field(ge=0)] | None = None
    """Absolute, in the metric's own unit."""
    min_sqnr_db: float | None = None
    """Signal to noise against fp32 in dB, for the worst group of channels of the worst output."""

    def excess(self, drop: float, sqnr_db: float) -> tuple[float, float]:
        """Return by how much a drop is too large and an SQNR too small: (0, 0) if both are met.

        NaN meets no limit: the result is (inf, inf) if one of them is NaN.
        """
        if math.isnan(drop) or math.isnan(sqnr_db):
            return math.inf, math.inf
        most = math.inf if self.metric_drop is None else self.metric_drop
        least = -math.inf if self.min_sqnr_db is None else self.min_sqnr_db
        return max(0.0, drop - most), max(0.0, least - sqnr_db)


class Span(StrictModel):
    """The sizes that a symbolic dimension may take, for providers that are built for a range."""

    min: Positive
    opt: Positive
    """The size to be fastest at."""
    max: Positive

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if not self.min <= self.opt <= self.max:
            raise ValueError(
                f"min {self.min}, opt {self.opt}, max {self.max} are not in order"
                " | give min <= opt <= max"
            )
        return self


class AppNames(StrictModel):
    """What the code of bundles for phones is called."""

    package: Annotated[str, AfterValidator(_package)] | None = None
    """The Kotlin package, such as ``com.acme.detector``. Default: ``edgepack.`` and the name."""
    type: Annotated[str, AfterValidator(_type)] | None = None
    """The class that stands for the model, such as ``Detector``. Default: the project's name."""


class ChangedTarget(StrictModel):
    """A target with variants of the project's own."""

    id: Id
    variants: Annotated[list[VariantChange], Field(min_length=1)]
    """In order of preference, best first, instead of the profile's."""


class Project(StrictModel):
    """The content of ``edgepack.yaml``."""

    schema_version: Literal[1]
    name: ProjectName
    version: ProjectVersion = "0.0.0"
    model: str
    files: list[str] = []
    """Files carried into the bundle: labels, tokenizers."""
    dims: dict[str, Positive | Annotated[list[Positive], Field(min_length=1)] | Span] = {}
    """Values for symbolic dimensions: one; several, each of which a provider with static shapes
    gets a model for; or a span."""
    constants: dict[str, ConstantValue] = {}
    """Inputs of the model that have one value for good: it is put into the model, which then does
    not take them. A single number fills the input."""
    state: dict[str, str] = {}
    """Outputs of the model, each with the input that it feeds in the next run: samples are frames
    of streams then, in order."""
    inputs: dict[str, InputDescription] = {}
    preprocess: Preprocess = Preprocess()
    outputs: dict[str, OutputDescription] = {}
    samples: Samples = Samples()
    targets: list[Id | ChangedTarget] = []
    app: AppNames = AppNames()
    limits: Limits = Limits()
    interpreter: str | None = None
    """The Python that runs the project's hooks; default: the one edgepack runs in."""

    @property
    def fixed_dims(self) -> dict[str, int]:
        """The symbolic dimensions that have one value everywhere."""
        return {name: size for name, size in self.dims.items() if isinstance(size, int)}

    @property
    def buckets(self) -> dict[str, list[int]]:
        """The symbolic dimensions that have several values, in ascending order."""
        return {n: sorted(set(sizes)) for n, sizes in self.dims.items() if isinstance(sizes, list)}

    @property
    def largest_dims(self) -> dict[str, int]:
        """The symbolic dimensions that have values, each with its largest."""
        return {**self.fixed_dims, **{name: sizes[-1] for name, sizes in self.buckets.items()}}

    @property
    def spans(self) -> dict[str, Span]:
        """The symbolic dimensions that have a span."""
        return {name: size for name, size in self.dims.items() if isinstance(size, Span)}

    @property
    def pictures(self) -> dict[str, ImageInput]:
        """The inputs that take pictures, because what becomes of them is put into the model."""
        if not self.preprocess.in_graph:
            return {}
        return {name: d.image for name, d in self.inputs.items() if d.image is not None}

    @property
    def texts(self) -> dict[str, TokensInput]:
        """The inputs that take texts, because their tokenizer is put into the model."""
        if "tokenize" not in self.preprocess.extensions:
            return {}
        return {name: d.tokens for name, d in self.inputs.items() if d.tokens is not None}

    @property
    def takes_files(self) -> bool:
        """Whether pictures are taken as the bytes of image files."""
        return "decode_image" in self.preprocess.extensions

    @model_validator(mode="after")
    def _pictures_are_described(self) -> Self:
        if self.preprocess.in_graph and not self.pictures:
            raise ValueError(
                "preprocess: in_graph is given, and no input says what is done to images"
                " | add inputs: {NAME: {image: {resize: {letterbox: 640}, scale: 0.00392157}}}"
            )
        return self

    @model_validator(mode="after")
    def _texts_are_described(self) -> Self:
        if "tokenize" in self.preprocess.extensions and not self.texts:
            raise ValueError(
                "preprocess: 'tokenize' is given, and no input has a tokenizer"
                " | add inputs: {NAME: {tokens: {file: tokenizer.json, length: 128}}}"
            )
        return self

    @model_validator(mode="after")
    def _state_is_fed_by_one(self) -> Self:
        fed = list(self.state.values())
        for name in fed:
            if fed.count(name) > 1:
                raise ValueError(
                    f"several outputs of 'state' feed the input {name!r} | name the one that does"
                )
            if name in self.constants:
                raise ValueError(
                    f"the input {name!r} is fed by an output and a constant"
                    " | remove it from 'state' or 'constants'"
                )
        return self

    @model_validator(mode="after")
    def _limits_can_be_judged(self) -> Self:
        if self.limits != Limits() and self.samples.evaluation is None:
            raise ValueError(
                "limits are given, and no evaluation samples to judge by"
                " | add samples: {evaluation: {path: evaluation.npz}}"
            )
        return self


@dataclass(frozen=True)
class LoadedProject:
    """A project, the folder that its paths are relative to, and where its keys stand."""

    project: Project
    folder: Path
    source: YamlSource | None = None
    """None when the project was made up for a bare model file."""

    @property
    def model_path(self) -> Path:
        """The model file."""
        return self.folder / self.project.model

    def scores_output(self, outputs: Sequence[str]) -> str | None:
        """Return the output that holds class scores: the one described so, else the first.

        An output that is a state counts only where there are no others.

        None if the first output is described as something else.
        """
        described = self.project.outputs
        outputs = [name for name in outputs if name not in self.project.state] or outputs
        for name in outputs:
            if name in described and described[name].kind == "classification":
                return name
        return None if outputs[0] in described else outputs[0]

    def described(self) -> dict[str, OutputDescription]:
        """Return what outputs mean; detections with labels know how many classes there are.

        Raises:
            ProfileError: A file of labels is not there.
        """
        return {name: self._count_labels(meaning) for name, meaning in self.project.outputs.items()}

    def _count_labels(self, meaning: OutputDescription) -> OutputDescription:
        if not isinstance(meaning, DetectionOutput) or meaning.labels is None:
            return meaning
        count = len(read_labels(self.carried(meaning.labels).read_text(encoding="utf-8")))
        return LabelledDetection(**meaning.model_dump(), classes=count)

    def carried(self, name: str) -> Path:
        """Return the path of one of the project's ``files``.

        Raises:
            ProfileError: It is not there, or not within the project's folder.
        """
        path = (self.folder / name).resolve()
        if not path.is_relative_to(self.folder) or not path.is_file():
            raise ProfileError(
                f"the file {name!r} is not in the project's folder, {str(self.folder)!r}",
                hint="'files' lists files beside edgepack.yaml, relative to it",
                where=self.where("files", self.project.files.index(name)),
            )
        return path

    def where(self, *path: str | int) -> str:
        """Return ``file:line:column`` of a key, or nothing for a made-up project."""
        return self.source.where(path) if self.source else ""


def read_project(path: Path) -> LoadedProject:
    """Read a project file.

    Raises:
        ProfileError: The file is missing or wrong.
    """
    source = read_yaml(path)
    return LoadedProject(source.parse(Project), path.resolve().parent, source)


def make_project(model: Path) -> LoadedProject:
    """Make up a project for a bare model file: its name and nothing else.

    Raises:
        UsageError: It is a folder, or the file's name gives no usable project name.
    """
    if model.is_dir():
        raise UsageError(f"{str(model)!r} is a folder", hint="name the ONNX file in it")
    stem = "".join(c if c.isalnum() and c.isascii() else "-" for c in model.stem).strip("-")
    name = "-".join(part for part in stem.split("-") if part)
    if not name or _is_taken(name):
        raise UsageError(
            f"cannot name a project after {model.name!r}",
            hint="rename the file, or write an edgepack.yaml (edgepack init MODEL)",
        )
    return LoadedProject(
        Project(schema_version=1, name=name, model=model.name), model.resolve().parent
    )


def find_project(model: Path | None, project_file: Path | None) -> LoadedProject:
    """Return the project to build: a file that was named, a bare model, or the one lying here.

    Raises:
        UsageError: There is none.
        ProfileError: The project file is wrong.
    """
    if model is not None and project_file is not None:
        raise UsageError(
            "both a model and a project file are given", hint="give one of MODEL and --project"
        )
    if project_file is not None:
        return read_project(project_file)
    if model is not None:
        return make_project(model)
    if Path(PROJECT_FILE).is_file():
        return read_project(Path(PROJECT_FILE))
    raise UsageError(
        f"no model is given and there is no {PROJECT_FILE} here",
        hint="name a model (edgepack build MODEL --target ID), or write a project file with"
        " 'edgepack init MODEL'",
    )
