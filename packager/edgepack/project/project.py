"""The project file, ``edgepack.yaml``: one model, its inputs, samples, limits and targets."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, WithJsonSchema, model_validator

from edgepack.base.schema import Finite, Id, Positive, StrictModel
from edgepack.converters.registry import CONVERTERS
from edgepack.errors import suggest_nearest
from edgepack.ondevice.runtime.edgepack_images import find_placement
from edgepack.project.inputs import ImageInput, InputDescription, Preprocess, TokensInput
from edgepack.project.limits import Limits
from edgepack.project.names import AppNames, ProjectName, ProjectVersion
from edgepack.project.outputs import OutputDescription, list_read_too
from edgepack.project.profile import VariantChange
from edgepack.project.samples import HookName, Samples

_MACHINES = ("linux-x86-64", "linux-aarch64")


def _require_machine(name: str) -> str:
    if name not in _MACHINES:
        raise ValueError(f"there are no libraries for {name!r} | one of {', '.join(_MACHINES)}")
    return name


Machine = Annotated[
    str,
    AfterValidator(_require_machine),
    WithJsonSchema({"enum": list(_MACHINES), "type": "string"}),
]
"""A kind of machine that bundles carry libraries for."""
Number = bool | int | Finite
ConstantValue = Number | list[Number] | list[list[Number]]


class Span(StrictModel):
    """The sizes that a symbolic dimension may take, for providers that are built for a range."""

    min: Positive
    opt: Positive
    """The size to be fastest at."""
    max: Positive

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        if not self.min <= self.opt <= self.max:
            raise ValueError(
                f"min {self.min}, opt {self.opt}, max {self.max} are not in order"
                " | give min <= opt <= max"
            )
        return self


class ChangedTarget(StrictModel):
    """A target with variants or limits of the project's own."""

    id: Id
    variants: Annotated[list[VariantChange], Field(min_length=1)] = []
    """In order of preference, best first, instead of the profile's."""
    limits: Limits = Limits()
    """Beside those of the project, or in their place."""


class ConverterSettings(StrictModel):
    """Where models of one format are converted."""

    python: str | None = None
    """A Python that has the framework, instead of an environment of edgepack's own."""
    confined: bool = True
    """Whether the process has neither network nor files but its own; false trusts the model."""


class PythonModel(StrictModel):
    """A model that a function of the user's makes, in the user's own Python.

    The function takes nothing. What it returns is the framework's: for ``torch``
    ``(module.eval(), example_inputs)`` or ``(module.eval(), example_inputs, dynamic_shapes)``, as
    ``torch.export.export`` takes them.
    """

    python: HookName
    framework: str
    """What it returns a model of: ``torch``."""


class DeviceNeeds(StrictModel):
    """What the project asks of one device."""

    limits: Limits
    """Beside those of the project and of the device's target, or in their place."""


class Project(StrictModel):
    """The content of ``edgepack.yaml``."""

    schema_version: Literal[1]
    name: ProjectName
    version: ProjectVersion = "0.0.0"
    model: str | PythonModel
    """A file or folder, or a function that makes the model."""
    files: list[str] = []
    """Files carried into the bundle: labels, tokenizers."""
    custom_ops: dict[Machine, str] = {}
    """Shared libraries with operators of the user's own, by the kind of machine they are for."""
    dims: dict[
        str, Positive | Annotated[list[Positive], Field(min_length=1)] | Span | Literal["free"]
    ] = {}
    """Values for symbolic dimensions: one; several, each of which a provider with static shapes
    gets a model for; or a span. ``free`` makes a batch of fixed size symbolic under that name."""
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
    service: bool = False
    """Whether bundles for Linux have what answers over HTTP; of a part of several models it says
    nothing, because the whole has it."""
    limits: Limits = Limits()
    devices: dict[str, DeviceNeeds] = {}
    """By name in the inventory."""
    converters: dict[str, ConverterSettings] = {}
    """By format: docs/sources.md has their names."""
    interpreter: str | None = None
    """The Python that runs the project's hooks, and the function that makes the model; default: the
    one edgepack runs in."""

    @property
    def named_variants(self) -> dict[str, list[VariantChange]]:
        """The variants of the project's own, by the target's name in ``targets``."""
        return {
            entry.id: entry.variants
            for entry in self.targets
            if isinstance(entry, ChangedTarget) and entry.variants
        }

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
    def input_size(self) -> tuple[int, int] | None:
        """Width and height of the input that takes a picture, in pixels; None unless one does."""
        images = [described.image for described in self.inputs.values() if described.image]
        if len(images) != 1:
            return None
        place = find_placement(1, 1, images[0].resize.model_dump())
        return place.input_width, place.input_height

    @property
    def free_dims(self) -> list[str]:
        """The dimensions that are to be symbolic."""
        return [name for name, size in self.dims.items() if size == "free"]

    @property
    def texts(self) -> dict[str, TokensInput]:
        """The inputs that take texts, because their tokenizer is put into the model."""
        if "tokenize" not in self.preprocess.extensions:
            return {}
        return {name: d.tokens for name, d in self.inputs.items() if d.tokens is not None}

    @property
    def read_too(self) -> dict[str, str]:
        """The outputs that another one is read with, each with that one's name."""
        return {
            read: name
            for name, described in self.outputs.items()
            for read in list_read_too(described)
        }

    @property
    def takes_files(self) -> bool:
        """Whether pictures are taken as the bytes of image files."""
        return "decode_image" in self.preprocess.extensions

    @model_validator(mode="after")
    def _check_pictures(self) -> Self:
        if self.preprocess.in_graph and not self.pictures:
            raise ValueError(
                "preprocess: in_graph is given, and no input says what is done to images"
                " | add inputs: {NAME: {image: {resize: {letterbox: 640}, scale: 0.00392157}}}"
            )
        for name, image in self.pictures.items():
            if not image.resize.fits_graph:
                raise ValueError(
                    f"preprocess: in_graph is given, and no operators resize {name!r} as"
                    f" {image.resize.filter} does"
                    + (" without antialiasing" if image.resize.antialias is False else "")
                    + " | remove 'in_graph': loaders and apps resize with every filter"
                )
        return self

    @model_validator(mode="after")
    def _check_converters(self) -> Self:
        for name in self.converters:
            if name not in CONVERTERS:
                hint = suggest_nearest(name, CONVERTERS)
                raise ValueError(f"there is no converter {name!r} | {hint}")
        return self

    @model_validator(mode="after")
    def _check_names(self) -> Self:
        for key, described in (("inputs", self.inputs), ("outputs", self.outputs)):
            names = [each.name for each in described.values() if each.name]
            for name in names:
                if names.count(name) > 1:
                    raise ValueError(
                        f"two of {key!r} have the name {name!r} | give each a name of its own"
                    )
        return self

    @model_validator(mode="after")
    def _check_texts(self) -> Self:
        if "tokenize" in self.preprocess.extensions and not self.texts:
            raise ValueError(
                "preprocess: 'tokenize' is given, and no input has a tokenizer"
                " | add inputs: {NAME: {tokens: {file: tokenizer.json, length: 128}}}"
            )
        return self

    @model_validator(mode="after")
    def _check_state(self) -> Self:
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

    @property
    def lacks_evaluation(self) -> bool:
        """Whether there are limits of accuracy, and no samples to judge by."""
        own = [entry.limits for entry in self.targets if isinstance(entry, ChangedTarget)]
        own += [needs.limits for needs in self.devices.values()]
        needed = any(limits.need_samples for limits in (self.limits, *own))
        return needed and self.samples.evaluation is None

    @model_validator(mode="after")
    def _check_limits(self) -> Self:
        if self.lacks_evaluation:
            raise ValueError(
                "limits of accuracy are given, and no evaluation samples to judge by"
                " | add samples: {evaluation: {path: evaluation.npz}}"
            )
        return self
