"""Profiles: what a target is, and the variants worth trying on it, best first.

``targets/<id>.yaml`` is read into :class:`Profile`. This module does no I/O beyond that file.
"""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from edgepack.errors import ProfileError, ToolError, UsageError, nearest
from edgepack.resources import targets_dir
from edgepack.yaml_source import read_yaml

SCHEMA_VERSION = 1

Id = Annotated[str, Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$")]
Recipe = Literal["fp32", "int8-static"]
BackendName = Literal["cpu"]
Family = Literal["linux"]


class StrictModel(BaseModel):
    """Base of everything read from a file: frozen, no unknown keys, no coercion."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class DeviceKind(StrictModel):
    """What kind of machine a target runs on."""

    os: Literal["linux", "macos"]
    arch: Literal["x86-64", "aarch64"]
    python: str
    """The Python versions that the pinned runtime has wheels for, as a PEP 440 specifier."""


class Runtime(StrictModel):
    """The runtime that a target pins, and the newest files it loads."""

    packages: dict[str, str]
    """Package name to PEP 440 specifier, as they go into ``requirements.txt``."""
    max_ir: int
    """The highest ONNX IR version that the pinned runtime loads."""
    max_opset: int
    """The highest ai.onnx opset that the pinned runtime loads."""


class Dialect(StrictModel):
    """How numbers are written in a quantized model."""

    activations: Literal["uint8", "int8"]
    weights: Literal["uint8", "int8"]
    symmetric: bool
    """Whether activations have zero point 0."""
    per_channel: bool
    """Whether weights have one scale per output channel."""


class Provider(StrictModel):
    """One execution provider and its options, both in onnxruntime's own words."""

    name: str
    options: dict[str, str] = {}


class SessionSettings(StrictModel):
    """onnxruntime session options. ``config`` holds session config entries."""

    intra_op_num_threads: int = 0
    """Threads within an operator; 0 lets onnxruntime use one per core."""
    config: dict[str, str] = {}


class Requires(StrictModel):
    """What a device must have for a variant to be tried there."""

    cpu: list[str] = []
    """CPU flags as Linux spells them in ``/proc/cpuinfo``."""


class Variant(StrictModel):
    """One way to run the model on the target."""

    id: Id
    """``<backend>-<recipe>``."""
    backend: BackendName
    recipe: Recipe
    dialect: Dialect | None = None
    """Set if and only if the recipe is a quantized one."""
    model_format: Literal["onnx"] = "onnx"
    providers: list[Provider]
    placement: Literal["all"] | Annotated[float, Field(gt=0, le=1)] = "all"
    """``all`` nodes on the first provider, or at least this share of them."""
    session: SessionSettings = SessionSettings()
    requires: Requires = Requires()

    @model_validator(mode="after")
    def _dialect_fits_recipe(self) -> Self:
        if self.recipe.startswith("int8") and self.dialect is None:
            raise ValueError(f"variant {self.id!r} has no dialect | int8 recipes need one")
        if self.recipe == "fp32" and self.dialect is not None:
            raise ValueError(f"variant {self.id!r} has a dialect | fp32 takes none: remove it")
        return self


class Source(StrictModel):
    """Where a fact in the profile comes from."""

    of: str
    """The key that the fact stands behind, dotted."""
    fact: str
    source: str
    """An address or a document, with version and date; ``measured`` for our own measurement."""


class Profile(StrictModel):
    """The validated content of ``targets/<id>.yaml``."""

    schema_version: Literal[1]
    id: Id
    title: str
    family: Family
    device: DeviceKind
    runtime: Runtime
    variants: Annotated[list[Variant], Field(min_length=1)]
    """In order of preference, best first."""
    sources: list[Source]

    @model_validator(mode="after")
    def _ids_are_unique(self) -> Self:
        ids = [variant.id for variant in self.variants]
        for variant_id in ids:
            if ids.count(variant_id) > 1:
                raise ValueError(f"two variants are called {variant_id!r} | rename one")
        return self

    def variant(self, variant_id: str) -> Variant:
        """Return a variant by its id.

        Raises:
            UsageError: The profile has no such variant.
        """
        for variant in self.variants:
            if variant.id == variant_id:
                return variant
        raise UsageError(
            f"target {self.id!r} has no variant {variant_id!r}",
            hint=nearest(variant_id, [variant.id for variant in self.variants]),
            where="--variant",
        )


def target_files() -> dict[str, Path]:
    """Return every known target id with its file; ``./targets`` comes before the shipped ones."""
    files: dict[str, Path] = {}
    for folder in (Path("targets"), targets_dir()):
        if folder.is_dir():
            for path in sorted(folder.glob("*.yaml")):
                files.setdefault(path.stem, path)
    return dict(sorted(files.items()))


def own_profile_file(target: str) -> Path | None:
    """Return the file of a known target if it is not one that edgepack ships."""
    path = target_files()[target]
    return None if path.resolve().parent == targets_dir().resolve() else path


def load_profile(target: str) -> Profile:
    """Return the profile of a target; ``host`` stands for the machine this runs on.

    Raises:
        UsageError: There is no such target.
        ProfileError: Its file is wrong.
    """
    target = host_target() if target == "host" else target
    files = target_files()
    if target not in files:
        raise UsageError(
            f"there is no target {target!r}",
            hint=nearest(target, [*files, "host"]) + " (edgepack targets list)",
            where="--target",
        )
    return read_profile(files[target])


def read_profile(path: Path) -> Profile:
    """Read one profile; its id must be the file's name.

    Raises:
        ProfileError: The file is wrong.
    """
    source = read_yaml(path)
    profile = source.parse(Profile)
    if profile.id != path.stem:
        raise ProfileError(
            f"the id {profile.id!r} is not the file's name {path.stem!r}",
            hint=f"rename the file to {profile.id}.yaml, or change the id",
            where=source.where(("id",)),
        )
    return profile


_HOSTS = {
    ("Linux", "x86_64"): "linux-x86-64",
    ("Linux", "aarch64"): "linux-aarch64",
    ("Darwin", "arm64"): "macos-arm64",
}


def host_target() -> str:
    """Return the id of the target that this machine is.

    Raises:
        ToolError: edgepack has no profile for this kind of machine.
    """
    machine = (platform.system(), platform.machine())
    if machine not in _HOSTS:
        raise ToolError(
            f"there is no 'host' target for {machine[0]} on {machine[1]}",
            hint=f"name a target; hosts are {', '.join(sorted(_HOSTS.values()))}",
        )
    return _HOSTS[machine]
