"""Rendering a template family. Templates hold no logic beyond loops over prepared lists."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from edgepack.errors import ToolError
from edgepack.profile import StrictModel
from edgepack.resources import harness_dir, templates_dir
from edgepack.yaml_source import read_yaml

Role = Literal["loader", "harness", "document", "pins"]


class TemplateFile(StrictModel):
    """One file of a family: rendered from a template, or copied from the harness."""

    template: str | None = None
    copy_of: str | None = None
    """A file of the harness, carried over byte for byte."""
    output: str
    mode: Literal["644", "755"] = "644"
    role: Role


class FamilyFile(StrictModel):
    """The content of ``templates/<family>/family.yaml``."""

    files: list[TemplateFile]


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
    """One input as a bundle's README shows it, symbolic dimensions as 1."""

    name: str
    shape: str
    dtype: str


@dataclass(frozen=True)
class ProviderHelp:
    """Where a runtime with an execution provider comes from."""

    name: str
    about: str
    commands: tuple[str, ...]
    """Shell lines; none where those of a provider before it are the same."""


@dataclass(frozen=True)
class BundleContext:
    """Everything that templates may use."""

    bundle_id: str
    name: str
    version: str
    target_title: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    variants: tuple[VariantLine, ...]
    left_out: tuple[str, ...]
    requirements: tuple[str, ...]
    example_inputs: tuple[ExampleInput, ...]
    providers: tuple[ProviderHelp, ...]
    """For execution providers that the packages do not hold."""
    reduced_build: tuple[str, ...]
    """Shell lines that build a runtime with just the operators of the .ort files; none without."""


def render_family(family: str, context: BundleContext) -> list[RenderedFile]:
    """Return the files of a family, rendered.

    Raises:
        ToolError: A template uses a name that the context does not have.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined, TemplateError

    folder = templates_dir() / family
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
    rendered = []
    for entry in read_yaml(folder / "family.yaml").parse(FamilyFile).files:
        try:
            data = (
                environment.get_template(entry.template).render(bundle=context).encode()
                if entry.template
                else _harness_file(str(entry.copy_of))
            )
        except TemplateError as error:
            raise ToolError(
                f"the template {entry.template!r} of {family!r} fails: {error}",
                hint="this is a fault in the template: please report it",
            ) from error
        rendered.append(RenderedFile(entry.output, data, entry.mode, entry.role))
    return rendered


def _harness_file(name: str) -> bytes:
    return Path(harness_dir() / name).read_bytes()
