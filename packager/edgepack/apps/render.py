"""Renders a template family. Templates have no logic beyond loops over prepared lists."""

from __future__ import annotations

import functools
import json
import re
import shlex
import urllib.parse
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from edgepack.base.resources import find_ondevice_dir, find_templates_dir
from edgepack.base.schema import StrictModel
from edgepack.base.yaml_source import read_yaml
from edgepack.errors import ToolError

if TYPE_CHECKING:
    from jinja2 import Environment, Template

    from edgepack.apps.library import RuntimeLibrary
    from edgepack.apps.maven import Licensed
    from edgepack.apps.names import App
    from edgepack.bundle.unused import Unused

Role = Literal["loader", "harness", "service", "document", "pins", "source"]


class TemplateFile(StrictModel):
    """One file of a family: rendered from a template, or copied."""

    template: str | None = None
    """A file of the family: rendered if it ends in ``.j2``, else copied byte for byte."""
    copy_of: str | None = None
    """A file of ``ondevice``, copied byte for byte."""
    output: str
    """The path in the bundle; a template too."""
    mode: Literal["644", "755"] = "644"
    role: Role


class FamilyFile(StrictModel):
    """The content of ``templates/<family>/family.yaml``."""

    files: list[TemplateFile]
    runtime: list[TemplateFile] = []
    """What all bundles of the family have in common: in each bundle, or where a project shares its
    runtime, in the runtime library."""
    library: list[TemplateFile] = []
    """What makes a package of the runtime library."""


@dataclass(frozen=True)
class RenderedFile:
    """One file of a bundle's runtime code."""

    path: str
    data: bytes
    mode: Literal["644", "755"]
    role: Role


@dataclass(frozen=True)
class VariantLine:
    """One variant as a bundle's README shows it."""

    id: str
    size: str
    accuracy: str


@dataclass(frozen=True)
class ExampleInput:
    """One input as a bundle's README shows it."""

    name: str
    value: str
    """A Python expression: zeros, symbolic dimensions as 1, or the bytes of an image file."""


@dataclass(frozen=True)
class ProviderHelp:
    """Where a user gets a runtime with an execution provider."""

    name: str
    about: str
    commands: tuple[str, ...]
    """Shell lines; empty where an earlier provider has the same ones."""


@dataclass(frozen=True)
class BundleContext:
    """Everything that templates may use."""

    bundle_id: str
    name: str
    version: str
    number: str
    """The version's leading numbers, such as ``1.0`` of ``1.0-rc1``; 0 where it has none."""
    macro: str
    """What C++ calls the bundle's folder, an identifier."""
    target_title: str
    inputs: tuple[str, ...]
    """A line of Markdown for each, like the outputs'."""
    outputs: tuple[str, ...]
    variants: tuple[VariantLine, ...]
    unused: tuple[Unused, ...]
    requirements: tuple[str, ...]
    example_inputs: tuple[ExampleInput, ...]
    state: tuple[tuple[str, str], ...]
    """Outputs, each with the input that it feeds in the next run."""
    prediction: tuple[str, ...]
    """Lines of Python that take pictures and texts and print answers; empty without
    descriptions."""
    libraries: tuple[str, ...]
    """The kinds of machines that libraries of custom operators are for."""
    providers: tuple[ProviderHelp, ...]
    """How to get execution providers that are not in the packages."""
    reduced_build: tuple[str, ...]
    """Shell lines that build a runtime with only the operators of the .ort files; empty without
    .ort files."""
    packages: tuple[Licensed, ...]
    """What an Android app ships because of the bundle, Kotlin aside; empty for others."""
    kotlin_version: str
    """The version of the standard library that an AAR is made with."""
    coroutines: str
    """The library that suspending functions in Kotlin are compiled against."""
    native_libraries: tuple[str, ...]
    """Libraries of the Android system that an app's manifest has to name."""
    data_size: str
    """The size of models, golden samples and the project's files, such as ``3.42 MB (models 3.27,
    golden samples 0.15)``."""
    data_paths: tuple[str, ...]
    """The paths of these files."""
    model_suffixes: tuple[str, ...]
    """The formats of the variants' models, such as ``onnx``."""
    serves: bool
    """Whether it has what answers over HTTP."""


def render_family(family: str, context: BundleContext, app: App | None) -> list[RenderedFile]:
    """Return the files of a family's bundle, rendered.

    Args:
        family: The family's folder in ``templates``.
        context: ``bundle`` in templates.
        app: ``app`` in templates and in the paths of their outputs; None where no app uses the
            bundle.

    Raises:
        ToolError: A template uses a name that the context does not have.
    """
    found = _read_family(family)
    shares = app is not None and app.shares_runtime
    files = found.files if shares else [*found.files, *found.runtime]
    return [_render(family, entry, app, bundle=context) for entry in files]


@dataclass(frozen=True)
class PipelineContext:
    """Everything that the templates of a bundle of several models may use."""

    bundle_id: str
    name: str
    version: str
    target_title: str
    inputs: tuple[tuple[str, str], ...]
    """Each with a Python expression: zeros, symbolic dimensions as 1."""
    outputs: tuple[str, ...]
    stages: tuple[str, ...]
    """The parts in the order in which they run."""
    parts: tuple[tuple[str, str], ...]
    """Each with its variants."""
    has_state: bool
    requirements: tuple[str, ...]
    serves: bool
    """Whether it has what answers over HTTP."""


def render_pipeline(context: PipelineContext) -> list[RenderedFile]:
    """Return what a bundle of several models has beside its parts and their code, rendered.

    Raises:
        ToolError: A template uses a name that the context does not have.
    """
    family = "pipeline"
    return [_render(family, entry, None, bundle=context) for entry in _read_family(family).files]


@dataclass(frozen=True)
class ServiceContext:
    """Everything that the templates of what answers over HTTP may use."""

    bundle_id: str
    name: str
    version: str
    is_accelerated: bool
    """Whether a variant runs elsewhere than on the processor."""
    device_files: tuple[str, ...]
    """What such hardware has in ``/dev``, as patterns, where that is known."""
    is_plain: bool
    """Whether all variants are onnxruntime's own on the processor, which writes no code."""

    @property
    def key(self) -> str:
        """The name in lower case, as registries want it."""
        return self.name.lower()


def render_service(context: ServiceContext) -> list[RenderedFile]:
    """Return what a bundle has that answers over HTTP, rendered.

    Raises:
        ToolError: A template uses a name that the context does not have.
    """
    family = "service"
    return [_render(family, entry, None, bundle=context) for entry in _read_family(family).files]


def render_library(family: str, library: RuntimeLibrary) -> list[RenderedFile]:
    """Return the files of a family's runtime library, rendered.

    Args:
        family: The family's folder in ``templates``.
        library: ``app`` in templates and in the paths of their outputs.

    Raises:
        ToolError: A template uses a name that the context does not have.
    """
    found = _read_family(family)
    return [_render(family, entry, library) for entry in [*found.runtime, *found.library]]


def _read_family(family: str) -> FamilyFile:
    return read_yaml(find_templates_dir() / family / "family.yaml").parse(FamilyFile)


def _render(
    family: str,
    entry: TemplateFile,
    app: App | RuntimeLibrary | None,
    **more: BundleContext | PipelineContext | ServiceContext,
) -> RenderedFile:
    from jinja2 import TemplateError

    folder = find_templates_dir() / family
    environment = _make_environment(folder)
    try:
        path = _make_path_template(environment, entry.output).render(app=app, **more)
        data = (
            environment.get_template(entry.template).render(app=app, **more).encode()
            if entry.template and entry.template.endswith(".j2")
            else _find_source(folder, entry).read_bytes()
        )
    except TemplateError as error:
        raise ToolError(
            f"the template {entry.template!r} of {family!r} fails: {error}",
            hint="this is a fault in the template: please report it",
        ) from error
    if app and path.endswith(".kt"):
        data = f"package {app.kotlin_package}\n\n".encode() + data
    return RenderedFile(path, data, entry.mode, entry.role)


@functools.cache
def _make_environment(folder: Path) -> Environment:
    """Return what compiles a family's templates, once for all bundles of a build."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(folder),
        undefined=StrictUndefined,
        keep_trailing_newline=True,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=False,  # noqa: S701  (the families are Markdown, Python and shell, not HTML)
    )
    environment.filters["sh"] = shlex.quote
    environment.filters["py"] = repr
    environment.filters["kotlin"] = format_kotlin_string
    environment.filters["swift"] = format_swift_string
    environment.filters["js"] = format_js_string
    environment.filters["url"] = format_url_path
    return environment


@functools.cache
def _make_path_template(environment: Environment, output: str) -> Template:
    return environment.from_string(output)


def _find_source(folder: Path, entry: TemplateFile) -> Path:
    return folder / entry.template if entry.template else find_ondevice_dir() / str(entry.copy_of)


def format_kotlin_string(text: str) -> str:
    """Return a Kotlin string literal: ASCII, with nothing that Kotlin would expand."""
    units = text.encode("utf-16-be")
    codes = (int.from_bytes(units[k : k + 2], "big") for k in range(0, len(units), 2))
    return '"' + "".join(_escape_character(code, "u%04x") for code in codes) + '"'


def format_swift_string(text: str) -> str:
    """Return a Swift string literal: ASCII, with nothing that Swift would expand."""
    return '"' + "".join(_escape_character(ord(c), "u{%x}") for c in text) + '"'


def format_js_string(text: str) -> str:
    """Return a string literal of JavaScript, TypeScript and JSON: ASCII, in double quotes."""
    return json.dumps(text)


def format_url_path(path: str) -> str:
    """Return a relative address of a path, to stand between double quotes in JavaScript.

    Only what JavaScript or the address would read otherwise is escaped: Vite 8 looks for a file of
    just the name that is written there, and ``new URL`` escapes the rest.
    """
    return _NOT_IN_ADDRESS.sub(lambda found: urllib.parse.quote(found[0]), path)


_NOT_IN_ADDRESS = re.compile(r'[%?#"\\\x00-\x1f\x7f]| $')


def _escape_character(code: int, escape: str) -> str:
    """Return a character unchanged if all languages read it as it is, else escaped."""
    character = chr(code)
    plain = character.isascii() and character.isprintable() and character not in '"\\$'
    return character if plain else "\\" + escape % code
