"""Reading a project file, or making up the project of a bare model."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import ValidationError

from edgepack.base.yaml_source import YamlSource, read_yaml
from edgepack.converters.conversion import ConvertedModel
from edgepack.converters.registry import find_converter
from edgepack.errors import ProfileError, UsageError
from edgepack.ondevice.runtime.edgepack_answers import read_labels
from edgepack.ondevice.runtime.edgepack_layouts import read_priors
from edgepack.project.limits import Limits
from edgepack.project.names import is_taken
from edgepack.project.outputs import (
    DetectionOutput,
    OutputDescription,
    SizedDetection,
    SpelledText,
    TextOutput,
)
from edgepack.project.profile import find_target_file
from edgepack.project.project import Project

PROJECT_FILE = "edgepack.yaml"
MODELS = "models"
"""The key that only a project of several models has."""


@dataclass(frozen=True)
class LoadedProject:
    """A project, the folder that its paths are relative to, and where its keys stand."""

    project: Project
    folder: Path
    source: YamlSource | None = None
    """None when the project was made up for a bare model file."""
    model_file: Path | None = None
    """The model that was made of the user's before anything is planned; None if none was."""
    model_history: tuple[str, ...] = ()
    """How it was made, a line for each step."""
    made_files: Mapping[str, Path] = field(default_factory=dict)
    """Those of the project's ``files`` that were made with it, which lie elsewhere."""
    converted: ConvertedModel | None = None
    """What it was converted from; None where it was ONNX."""

    @property
    def model_path(self) -> Path:
        """The model: ONNX, or what is to be made ONNX first."""
        return self.model_file or self.named_model

    @property
    def named_model(self) -> Path:
        """The model as the user named it, whatever it was converted to.

        The project's folder where a function makes it.
        """
        model = self.project.model
        return self.folder / model if isinstance(model, str) else self.folder

    @property
    def model_name(self) -> str:
        """What the model is called: its file, or the function that makes it."""
        model = self.project.model
        return self.named_model.name if isinstance(model, str) else model.python

    def find_scores_output(
        self, outputs: Sequence[str], labels: Collection[str] = ()
    ) -> str | None:
        """Return the output that holds class scores: the one described so, else the first.

        An output that is a state, or that another one is read with, counts only where there are no
        others; and so do ``labels``, the outputs that name the best class itself.

        None if the first output is described as something else.
        """
        described = self.project.outputs
        others = {*self.project.state, *self.project.read_too, *labels}
        outputs = [name for name in outputs if name not in others] or outputs
        for name in outputs:
            if name in described and described[name].kind == "classification":
                return name
        return None if outputs[0] in described else outputs[0]

    def describe_outputs(self) -> dict[str, OutputDescription]:
        """Return what outputs mean; what is read with files knows what these hold.

        Raises:
            ProfileError: A file of labels or priors is not there, or holds no priors.
        """
        return {name: self._complete(meaning) for name, meaning in self.project.outputs.items()}

    def _complete(self, meaning: OutputDescription) -> OutputDescription:
        if isinstance(meaning, TextOutput):
            text = self.find_file(meaning.labels).read_text(encoding="utf-8")
            return SpelledText(**meaning.model_dump(), alphabet=tuple(read_labels(text)))
        if not isinstance(meaning, DetectionOutput):
            return meaning
        labels = meaning.labels and self.find_file(meaning.labels).read_text(encoding="utf-8")
        return SizedDetection(
            **meaning.model_dump(),
            label_count=len(read_labels(labels)) if labels else 0,
            prior_boxes=self.read_priors(meaning.priors) if meaning.priors else (),
            input_size=self.project.input_size or (0, 0),
        )

    def read_priors(self, name: str) -> tuple[tuple[float, ...], ...]:
        """Return the boxes in one of the project's ``files``: centre x and y, width, height.

        Raises:
            ProfileError: It is not there, or a line of it is no box.
        """
        try:
            boxes = read_priors(self.find_file(name).read_text(encoding="utf-8"))
        except ValueError as error:
            raise ProfileError(
                f"the priors {name!r} cannot be read: {error}",
                hint="write the boxes that the model was trained with, in its order, in parts of"
                " the input's width and height: 0.5,0.5,0.1,0.2",
                where=self.locate("files", self.project.files.index(name)),
            ) from error
        return tuple(map(tuple, boxes.tolist()))

    def find_file(self, name: str) -> Path:
        """Return the path of one of the project's ``files``.

        Raises:
            ProfileError: It is not there, or not within the project's folder.
        """
        if name in self.made_files:
            return self.made_files[name]
        path = (self.folder / name).resolve()
        if not path.is_relative_to(self.folder) or not path.is_file():
            raise ProfileError(
                f"the file {name!r} is not in the project's folder, {str(self.folder)!r}",
                hint="'files' lists files beside edgepack.yaml, relative to it",
                where=self.locate("files", self.project.files.index(name)),
            )
        return path

    def find_place(self, name: str) -> str:
        """Return where in a bundle one of the project's ``files`` lies.

        Raises:
            ProfileError: As :meth:`find_file`.
        """
        if name in self.made_files:
            return name
        return self.find_file(name).relative_to(self.folder).as_posix()

    def find_limits(self, target: str, device: str = "") -> Limits:
        """Return the limits for a target, and a device of it where one is named.

        Raises:
            ProfileError: They contradict each other.
        """
        project, found = self.project, self.project.limits
        own: list[tuple[tuple[str | int, ...], Limits]] = [
            (("targets", place, "limits"), entry.limits)
            for place, entry in enumerate(project.targets)
            if not isinstance(entry, str) and find_target_file(entry.id).stem == target
        ]
        if device in project.devices:
            own.append((("devices", device, "limits"), project.devices[device].limits))
        for place, limits in own:
            try:
                found = found.override(limits)
            except ValidationError as error:
                problem, _, hint = error.errors()[0]["msg"].partition(" | ")
                raise ProfileError(
                    f"with the limits of the project: {problem.removeprefix('Value error, ')}",
                    hint=hint,
                    where=self.locate(*place),
                ) from error
        return found

    def locate(self, *path: str | int) -> str:
        """Return ``file:line:column`` of a key, or nothing for a made-up project."""
        return self.source.locate(path) if self.source else ""


def is_of_several(source: YamlSource) -> bool:
    """Return whether a project file is one of several models: edgepack.project.pipeline."""
    return isinstance(source.values, dict) and MODELS in source.values


def read_project(path: Path) -> LoadedProject:
    """Read a project file of one model.

    Raises:
        ProfileError: The file is missing or wrong, or has several models.
    """
    return read_project_as(Project, path)


def read_project_as(kind: type[Project], path: Path) -> LoadedProject:
    """Read a project file of one model as another kind of project, with the same keys.

    Raises:
        ProfileError: As :func:`read_project`.
    """
    source = read_yaml(path)
    if is_of_several(source):
        raise ProfileError(
            "this project has several models, and one is needed here",
            hint="build takes it as a whole; for anything else name the project of one of 'models'",
            where=source.locate((MODELS,)),
        )
    return LoadedProject(source.parse(kind), path.resolve().parent, source)


def make_project(model: Path) -> LoadedProject:
    """Make up a project for a bare model file: its name and nothing else.

    Raises:
        UsageError: It is a folder, or the file's name gives no usable project name.
    """
    if model.is_dir() and find_converter(model) is None:
        raise UsageError(
            f"{str(model)!r} is a folder",
            hint="name the ONNX file in it; a SavedModel's folder has 'saved_model.pb'",
        )
    stem = "".join(c if c.isalnum() and c.isascii() else "-" for c in model.stem).strip("-")
    name = "-".join(part for part in stem.split("-") if part)
    if not name or is_taken(name):
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
