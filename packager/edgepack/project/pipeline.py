"""A project of several models: its parts, and the stages that they run in."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from edgepack.base.schema import Id, Positive, StrictModel
from edgepack.base.yaml_source import YamlSource, read_yaml
from edgepack.converters.registry import find_converter
from edgepack.errors import ProfileError, suggest_nearest
from edgepack.project.loading import (
    MODELS,
    PROJECT_FILE,
    LoadedProject,
    is_of_several,
    make_project,
    read_project_as,
)
from edgepack.project.names import ProjectName, ProjectVersion
from edgepack.project.project import Project
from edgepack.project.samples import HookName

TokenId = Annotated[int, Field(ge=0)]


class RunStage(StrictModel):
    """Runs a part once."""

    KEY: ClassVar[str] = "run"
    run: Id
    """The part."""
    inputs: dict[str, str] = {}
    """Its inputs, each with the value that it takes; default: the value of the input's own name."""
    outputs: dict[str, str] = {}
    """Its outputs, each with the value that it becomes; default: all, under their own names."""

    @property
    def part(self) -> str:
        """The part that it runs."""
        return self.run


class DecodeStage(StrictModel):
    """Runs a part once for each token, and takes the most likely one each time."""

    KEY: ClassVar[str] = "decode"
    decode: Id
    """The part."""
    inputs: dict[str, str] = {}
    """As for a stage that runs, beside the inputs that are named below."""
    token: str
    """Its input of token ids: ``[1, tokens]``, integers."""
    logits: str
    """Its output of scores; the last axis is the vocabulary, and the last row counts."""
    start: TokenId | Annotated[list[TokenId], Field(min_length=1)]
    """The tokens to begin with."""
    end: TokenId | Annotated[list[TokenId], Field(min_length=1)]
    """The tokens that end it, which are not given."""
    most: Positive
    """Give at most so many tokens."""
    past: dict[str, str] = {}
    """Outputs, each with the input that it feeds for the next token, empty at first. A ``*`` on
    both sides stands for the same text."""
    position: str | None = None
    """Its input of the tokens' places, from 0."""
    mask: str | None = None
    """Its input of ones, one for each token so far."""
    output: str = "tokens"
    """The value that the tokens become: int64, one axis, without those of ``start``."""

    @property
    def part(self) -> str:
        """The part that it runs."""
        return self.decode


class CropStage(StrictModel):
    """Cuts each object out of a picture, and runs a part on each piece.

    A value that such a stage takes as its picture is one for every stage: 8 bits, RGB. What an
    input of a part is that is described as an image, is made of it. Outputs of such a run that are
    described as a detection are objects: rows of left, top, right, bottom in the picture's pixels,
    score and class.
    """

    KEY: ClassVar[str] = "crop"
    crop: Id
    """The part, which has one input that is described as an image."""
    picture: str
    """The input of the pipeline that is cut."""
    boxes: str
    """The value that holds the objects: a detector's, which a stage has run on that picture."""
    most: Positive
    """Cut at most so many, the first: of a detector the best ones."""
    margin: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] = 0.0
    """How much more than the box is cut on each side: a part of its width, and of its height."""
    inputs: dict[str, str] = {}
    """As for a stage that runs, beside the picture."""
    outputs: dict[str, str] = {}
    """As for a stage that runs; each value has a row for each object."""
    objects: str = "objects"
    """The value with the objects that were cut out, in the order of these rows."""

    @property
    def part(self) -> str:
        """The part that it runs."""
        return self.crop


Stage = RunStage | DecodeStage | CropStage


class Pipeline(StrictModel):
    """What is run one after the other."""

    inputs: Annotated[list[str], Field(min_length=1)]
    """The values that a caller gives."""
    stages: Annotated[list[Stage], Field(min_length=1)]
    outputs: Annotated[list[str], Field(min_length=1)]
    """The values that a caller gets."""


class PipelineSource(StrictModel):
    """Where samples of a pipeline come from: one of the first two keys. They have no labels."""

    path: str | None = None
    """An ``.npz`` with one array per input; the leading axis is the sample."""
    python: HookName | None = None
    """A callable that returns an iterable of ``{input: array}``."""
    limit: Positive | None = None
    """Take this many samples, the first."""

    @model_validator(mode="after")
    def _check_source(self) -> Self:
        if (self.path is None) == (self.python is None):
            raise ValueError(
                "samples of a pipeline need exactly one source | give one of path, python"
            )
        return self


class PipelineSamples(StrictModel):
    """The two sets of samples of a pipeline."""

    calibration: PipelineSource | None = None
    evaluation: PipelineSource | None = None


class PipelineProject(StrictModel):
    """The content of an ``edgepack.yaml`` of several models."""

    schema_version: Literal[1]
    name: ProjectName
    version: ProjectVersion = "0.0.0"
    models: Annotated[dict[Id, str], Field(min_length=1)]
    """The parts: each a model's file, such as ``mel.onnx``, or a project of one model."""
    pipeline: Pipeline
    samples: PipelineSamples = PipelineSamples()
    """Of the pipeline's inputs: the parts get theirs from running it with the source models."""
    targets: list[Id] = []
    service: bool = False
    """Whether the bundles have what answers over HTTP."""
    interpreter: str | None = None
    """The Python that runs the hook of the samples; default: the one edgepack runs in."""


class PartProject(Project):
    """The project of a part, whose samples may be those of the pipeline."""

    @model_validator(mode="after")
    def _check_limits(self) -> Self:
        return self


@dataclass(frozen=True)
class LoadedPipeline:
    """A project of several models, the folder that its paths are relative to, and its parts."""

    project: PipelineProject
    folder: Path
    source: YamlSource
    parts: dict[str, LoadedProject]

    def locate(self, *path: str | int) -> str:
        """Return ``file:line:column`` of a key."""
        return self.source.locate(path)


def is_pipeline(model: Path | None, project_file: Path | None) -> bool:
    """Return whether the project to build is one of several models.

    Raises:
        ProfileError: The project file is missing, or no YAML.
    """
    path = project_file or Path(PROJECT_FILE)
    if model is not None or (project_file is None and not path.is_file()):
        return False
    return is_of_several(read_yaml(path))


def read_pipeline(path: Path) -> LoadedPipeline:
    """Read a project of several models, with the projects of its parts.

    Raises:
        ProfileError: A file is missing or wrong.
        UsageError: A model's name gives no usable project name.
    """
    source = read_yaml(path)
    project = source.parse(PipelineProject)
    loaded = LoadedPipeline(project, path.resolve().parent, source, {})
    _require_known_parts(loaded)
    return replace(loaded, parts=dict(_read_parts(loaded)))


def _require_known_parts(loaded: LoadedPipeline) -> None:
    project, used = loaded.project, {stage.part for stage in loaded.project.pipeline.stages}
    for number, stage in enumerate(project.pipeline.stages):
        if stage.part not in project.models:
            raise ProfileError(
                f"there is no part {stage.part!r}",
                hint=f"{suggest_nearest(stage.part, project.models)}; 'models' names the parts",
                where=loaded.locate("pipeline", "stages", number, stage.KEY),
            )
    for name in project.models:
        if name not in used:
            raise ProfileError(
                f"no stage runs the part {name!r}",
                hint=f"add {{run: {name}}} to the stages of the pipeline, or leave the part out",
                where=loaded.locate(MODELS, name),
            )


def _read_parts(loaded: LoadedPipeline) -> Iterator[tuple[str, LoadedProject]]:
    for name, given in loaded.project.models.items():
        path = loaded.folder / given
        where = loaded.locate(MODELS, name)
        if path.suffix == ".onnx" or find_converter(path):
            if not path.exists():
                raise ProfileError(
                    f"there is no model {given!r}",
                    hint=f"the path is relative to {str(loaded.folder)!r}",
                    where=where,
                )
            yield name, make_project(path)
            continue
        if path.suffix not in (".yaml", ".yml"):
            raise ProfileError(
                f"the part {name!r} cannot be {given!r}",
                hint="name a model's file, such as mel.onnx, or the edgepack.yaml of one model",
                where=where,
            )
        part = read_project_as(PartProject, path)
        _require_plain(loaded, part, name)
        if part.project.lacks_evaluation and loaded.project.samples.evaluation is None:
            raise ProfileError(
                f"the part {name!r} has limits of accuracy, and there are no evaluation samples to"
                " judge by",
                hint="add samples: {evaluation: {path: evaluation.npz}} to the pipeline's project,"
                " with arrays by the pipeline's inputs",
                where=part.locate("limits"),
            )
        yield name, part


def _require_plain(loaded: LoadedPipeline, part: LoadedProject, name: str) -> None:
    """Refuse what a part cannot be: in a pipeline parts pass on tensors."""
    cuts = any(isinstance(stage, CropStage) for stage in loaded.project.pipeline.stages)
    if cuts and part.project.pictures:
        raise ProfileError(
            f"the part {name!r} makes its input of a picture in the model, and where objects are"
            " cut out the pipeline does that",
            hint="leave 'preprocess' out: the pipeline makes the input, as 'image' of it says",
            where=part.locate("preprocess"),
        )
    if part.project.pictures or part.project.texts:
        raise ProfileError(
            f"the part {name!r} takes pictures or texts, and parts of a pipeline take tensors",
            hint="leave 'preprocess' out, and give tensors to the pipeline",
            where=part.locate("preprocess"),
        )
