"""The manifest of a bundle of several models, whose parts are bundles of their own.

The device-side :mod:`edgepack_pipeline` reads the same file with only ``json``. What receives,
hashes and signs releases reads ``files``, which such a manifest has like any other.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from edgepack.base.schema import Id, StrictModel
from edgepack.bundle.manifest import UNLISTED, BuildHost, BundleFile, Golden, Tensor
from edgepack.bundle.paths import BundlePath, require_apart
from edgepack.project.names import ProjectName, ProjectVersion
from edgepack.project.pipeline import Pipeline
from edgepack.project.profile import Family, ProviderSource

_Digest = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class PartEntry(StrictModel):
    """One part: a bundle of one model, in a folder."""

    path: BundlePath
    digest: _Digest
    """The SHA-256 of its manifest."""
    variants: Annotated[list[Id], Field(min_length=1)]
    """In order of preference, best first."""
    models: list[_Digest]
    """The ``model_sha256`` of each model: what its engines on devices are kept under."""


class OutputCheck(StrictModel):
    """What an output of the whole has in common with the golden one, on any device.

    The build disturbs each part's outputs by as much as the part's own goldens allow; what stays
    the same then is checked, and dtype and rank always. Of objects, and of values with a row for
    each, the rows are compared that are of the same object, in any order.
    """

    min_db: float | None
    """How near it must be, as the loader counts closeness. None where it changes too much."""
    leading: Annotated[list[int], Field(exclude_if=lambda leading: not leading)] = []
    """Of integers that change, such as tokens: by golden sample, how many of the first stay."""

    min_iou: Annotated[float | None, Field(ge=0, le=1, exclude_if=lambda given: given is None)] = (
        None
    )
    """Of objects: how much of their union the boxes of one object have in common at least."""
    unmatched: Annotated[int | None, Field(ge=0, exclude_if=lambda given: given is None)] = None
    """Of objects: how many are in one of the two at most, and have no partner in the other."""

    @property
    def is_empty(self) -> bool:
        """Whether nothing but dtype and rank is checked."""
        return self.min_db is None and not any(self.leading)


class PipelineManifest(StrictModel):
    """The content of ``manifest.json`` in a bundle of several models."""

    schema_version: Literal[1]
    kind: Literal["pipeline"]
    name: ProjectName
    version: ProjectVersion
    target: Id
    family: Family
    parts: Annotated[dict[Id, PartEntry], Field(min_length=1)]
    pipeline: Pipeline
    """The stages, with every input and every output that is used."""
    inputs: list[Tensor]
    """What a caller gives."""
    goldens: Annotated[list[Golden], Field(min_length=1)]
    """Calls in order, from the first one of a stream on; outputs are by combination of variants,
    such as ``encoder=cpu-fp32 decoder=cpu-int8-static``."""
    goldens_from: Literal["samples", "seeded random"]
    checks: dict[str, dict[str, OutputCheck]]
    """By combination and output."""
    runtime: dict[str, str]
    """Package name to pin: what the parts need together."""
    provider_sources: dict[str, ProviderSource] = {}
    built_on: BuildHost
    files: list[BundleFile]

    @property
    def id(self) -> str:
        """The bundle's directory name."""
        return f"{self.name}-{self.version}-{self.target}"

    @model_validator(mode="after")
    def _check_files(self) -> Self:
        require_apart([*UNLISTED, *(file.path for file in self.files)])
        known = {file.path for file in self.files}
        tensors = [
            tensor
            for golden in self.goldens
            for each in (golden.inputs, *golden.outputs.values())
            for tensor in each
        ]
        for path in (
            *(t.path for t in tensors),
            *(f"{p.path}/manifest.json" for p in self.parts.values()),
        ):
            if path not in known:
                raise ValueError(f"{path!r} is used and is not one of the bundle's files")
        return self

    @model_validator(mode="after")
    def _check_goldens(self) -> Self:
        for golden in self.goldens:
            if set(golden.outputs) != set(self.checks):
                raise ValueError("a golden sample has not exactly one output for each combination")
        return self
