"""Profiles: what a target is, and the variants worth trying on it, best first.

``targets/<id>.yaml`` is read into :class:`Profile`. This module does no I/O beyond that file.
"""

from __future__ import annotations

import platform
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import AfterValidator, Field, WithJsonSchema, model_validator

from edgepack.base.resources import find_targets_dir
from edgepack.base.schema import Id, StrictModel
from edgepack.base.yaml_source import YamlSource, read_yaml
from edgepack.errors import ProfileError, ToolError, UsageError, suggest_nearest
from edgepack.project.elsewhere import find_elsewhere
from edgepack.project.recipes import RECIPE_RULES

if TYPE_CHECKING:
    from packaging.version import Version

SCHEMA_VERSION = 1

_VERSION = re.compile(r"\d+(?:[.+-]?[0-9A-Za-z]+)*")


def _require_recipe(name: str) -> str:
    if name not in RECIPE_RULES:
        raise ValueError(f"'recipe' cannot be {name!r} | {suggest_nearest(name, RECIPE_RULES)}")
    return name


Recipe = Annotated[
    str,
    AfterValidator(_require_recipe),
    WithJsonSchema({"enum": list(RECIPE_RULES), "type": "string"}),
]
"""A name in :data:`~edgepack.project.recipes.RECIPE_RULES`."""
Family = Literal["linux", "android", "apple", "web"]


class DeviceKind(StrictModel):
    """What kind of machine a target runs on.

    A browser is described by its pinned runtime alone: what that needs of it is in
    ``docs/web.md``.
    """

    os: Literal["linux", "macos", "android", "ios", "browser"]
    arch: Literal["x86-64", "aarch64", "wasm32"]
    python: str | None = None
    """The Python versions that the pinned runtime has wheels for, as a PEP 440 specifier."""
    nvidia_driver: Annotated[str | None, Field(exclude_if=lambda given: given is None)] = None
    """The versions of NVIDIA's driver that the runtime runs with, as a PEP 440 specifier. Written
    only where it is given, as ``graph_optimization_level``."""
    min_version: str | None = None
    """For phones, the lowest Android API level or iOS version."""

    @model_validator(mode="after")
    def _check_versions(self) -> Self:
        needed = {"android": "min_version", "ios": "min_version", "browser": ""}
        wanted = needed.get(self.os, "python")
        given = [name for name in ("python", "min_version") if getattr(self, name) is not None]
        if given != [wanted] * bool(wanted):
            by = f"{wanted!r} | give just that" if wanted else f"neither | leave {given[0]!r} out"
            raise ValueError(f"a device with {self.os} is described by {by}")
        if (self.os == "browser") != (self.arch == "wasm32"):
            raise ValueError(
                f"a device with {self.os} is no {self.arch} | browsers are wasm32, and no others"
            )
        return self


class ProviderSource(StrictModel):
    """Where to get a runtime with an execution provider."""

    about: str
    """One or two sentences: which wheel or build has it, and which does not."""
    commands: list[str]
    """Shell lines that install or build it on the device, or start a container that has it."""


class DebianPackage(StrictModel):
    """A package of Debian, or of a system made from it, that holds onnxruntime."""

    kind: Literal["debian"]
    package: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9+.-]+$")]
    at_least: Annotated[str, Field(pattern=_VERSION)]
    """The lowest version of onnxruntime that is taken."""

    def __str__(self) -> str:
        return f"the package {self.package} of its own system"


class IndexWheels(StrictModel):
    """Wheels of a package index other than the one that pip asks: a vendor's, or a company's."""

    kind: Literal["index"]
    url: Annotated[str, Field(pattern=r"^https?://\S+$")]
    """Its address for pip: a simple index (PEP 503)."""
    packages: dict[str, str]
    """Package name to pin, as in ``runtime.packages``. What they need is not taken from there."""
    sha256: Annotated[dict[str, str], Field(exclude_if=lambda given: not given)] = {}
    """By file name, in hexadecimal digits. Where there are any, no other file is taken."""

    def __str__(self) -> str:
        return f"{', '.join(self.packages)} of {self.url}"


class RuntimeBuild(StrictModel):
    """How onnxruntime is built on a device of the target, for providers that no wheel has."""

    source: str
    """What git fetches."""
    ref: str
    """A tag or branch of it."""
    commit: Annotated[str, Field(pattern="^[0-9a-f]{7,40}$")]
    """What the commit of ``ref`` begins with; another is not built."""
    arguments: list[str]
    """Of ``build.sh``, beside ``--parallel``, which is chosen for the device's memory."""
    wheel: str
    """A pattern of the wheel's path in the source."""
    packages: list[str]
    """Debian packages that it needs; root has to install them."""
    pip: list[str]
    """What pip installs for it."""
    paths: list[str] = []
    """Files that it needs beside that, as patterns."""
    about_paths: str = "install it"
    """What to do where one is missing."""
    versions_of: list[str] = []
    """Patterns of Debian packages whose versions are kept with the wheel."""
    free_gb: Annotated[float, Field(gt=0)]
    """How much disk it takes."""
    memory_gb_per_job: Annotated[float, Field(gt=0)]
    """How much memory a compiler takes at most."""


Origin = Annotated[DebianPackage | IndexWheels, Field(discriminator="kind")]


class Runtime(StrictModel):
    """The runtime that a target pins, and the newest files it loads."""

    packages: dict[str, str]
    """Package name to pin: PEP 440 specifiers, which go into ``requirements.txt``, for phones
    the version of a Maven or Swift package, for browsers of an npm package."""
    max_ir: int
    """The highest ONNX IR version that the pinned runtime loads."""
    max_opset: int
    """The highest ai.onnx opset that the pinned runtime loads."""
    providers: dict[str, ProviderSource] = {}
    """For execution providers that are not in ``packages``: where to get them."""
    origins: Annotated[list[Origin], Field(exclude_if=lambda given: not given)] = []
    """Where wheels of a provisioned environment come from beside the package index that pip asks:
    the first Debian package that a device has, and what other indexes have. Written only where it
    is given, as ``graph_optimization_level``."""
    build: Annotated[RuntimeBuild | None, Field(exclude_if=lambda given: given is None)] = None
    """How ``edgepack runtime build`` makes one. Written only where it is given, likewise."""
    checksums: Annotated[dict[str, str], Field(exclude_if=lambda given: not given)] = {}
    """For packages whose archive a bundle's code names: its sha256, in hexadecimal digits."""

    @property
    def onnxruntime(self) -> tuple[str, str] | None:
        """The package that is onnxruntime itself, and the lowest version that its pin names.

        None where no package is, or its pin names no version. Packages that go into onnxruntime,
        with operators or a provider of their own, have longer names and versions of their own.
        """
        names = [name for name in self.packages if "onnxruntime" in name]
        name = min(names, key=lambda each: len(each.rpartition(":")[2]), default="")
        versions = _VERSION.findall(self.packages.get(name, ""))
        return (name, min(versions, key=parse_release)) if versions else None


def parse_release(version: str) -> Version:
    """Return the numbers that a version of any registry begins with: 1.29.0 of 1.29.0-SNAPSHOT."""
    from packaging.version import Version

    return Version(re.split(r"[^\d.]", version)[0].strip("."))


class BundleSize(StrictModel):
    """The most that a bundle of the target holds, where it is part of what people download."""

    variants: Annotated[int, Field(gt=0)]
    """How many variants: the best of each provider as far as there is room; one runs on the CPU
    alone. Variants that are named with ``--variant`` or in the project are all shipped."""
    goldens: Annotated[int, Field(gt=0)]
    """Golden samples."""


class Dialect(StrictModel):
    """How numbers are written in a quantized model."""

    activations: Literal["uint8", "int8", "uint16"]
    weights: Literal["uint8", "int8"]
    symmetric: bool
    """Whether activations have zero point 0."""
    per_channel: bool
    """Whether weights have one scale per output channel."""
    bias: Literal["int32", "float32"] = "int32"
    """``float32`` leaves biases as they are."""


class PluginDevice(StrictModel):
    """Which of a plugin's devices a session uses: the first that is like this."""

    type: Literal["CPU", "GPU", "NPU"] | None = None
    """The kind of hardware; None takes any."""
    vendor: str | None = None
    """The hardware's maker as ``onnxruntime.get_ep_devices()`` has it, in any case of letters; None
    takes any."""


class Plugin(StrictModel):
    """A library that brings an execution provider, beside onnxruntime: 1.23 and newer take some."""

    package: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    """The Python distribution with the library; ``runtime.packages`` has its pin."""
    library: Annotated[str, Field(pattern=r"^\w[\w.+-]*(/\w[\w.+-]*)*$")]
    """The library's path in the distribution, such as ``onnxruntime_acme/libacme.so``."""
    device: PluginDevice = PluginDevice()
    ops: Annotated[list[str], Field(min_length=1)]
    """The operators that it takes, with their domain unless that is ai.onnx: placement is predicted
    from them."""


class Provider(StrictModel):
    """One execution provider and its options, both in onnxruntime's own words."""

    name: str
    options: dict[str, str] = {}
    plugin: Annotated[Plugin | None, Field(exclude_if=lambda given: given is None)] = None
    """For a provider that edgepack does not know: the library that has it. Its options are given to
    it as they are. Written only where it is given, as ``graph_optimization_level``."""


GraphLevel = Literal["disabled", "basic", "extended", "all"]
ExecutionMode = Literal["sequential", "parallel"]


def _is_sequential(mode: ExecutionMode) -> bool:
    return mode == "sequential"


class SessionSettings(StrictModel):
    """onnxruntime session options. ``config`` has session config entries."""

    intra_op_num_threads: Annotated[int, Field(ge=0)] = 0
    """Threads within an operator; 0 lets onnxruntime use one per core."""
    graph_optimization_level: Annotated[
        GraphLevel, Field(exclude_if=lambda level: level == "all")
    ] = "all"
    """How far onnxruntime optimizes the graph. Written only where it is not the default, so that
    the bytes of other manifests and profiles stay what they were."""
    execution_mode: Annotated[ExecutionMode, Field(exclude_if=_is_sequential)] = "sequential"
    """``parallel`` has nodes of two devices, such as a GPU and the CPU, run at the same time.
    Written only where it is not the default, as are all settings below but ``config``."""
    inter_op_num_threads: Annotated[int, Field(ge=0, exclude_if=lambda threads: not threads)] = 0
    """Threads that the parallel mode spreads nodes over; 0 lets onnxruntime use one per core."""
    enable_cpu_mem_arena: Annotated[bool, Field(exclude_if=bool)] = True
    """Whether memory of the CPU that is no longer needed is kept for later tensors."""
    enable_mem_pattern: Annotated[bool, Field(exclude_if=bool)] = True
    """Whether all tensors of a run lie in one block, planned in the first run of their shapes."""
    log_severity_level: Annotated[
        int | None, Field(ge=0, le=4, exclude_if=lambda level: level is None)
    ] = None
    """The least severe messages that are written to stderr: 0 verbose, 1 info, 2 warning, 3 error,
    4 fatal. None is the loader's own, which is error."""
    config: dict[str, str] = {}


class Requires(StrictModel):
    """What a device must have for a variant to be tried there."""

    cpu: list[str] = []
    """CPU flags as Linux spells them in ``/proc/cpuinfo``."""
    extensions: Annotated[bool, Field(exclude_if=lambda given: not given)] = False
    """The Python package onnxruntime-extensions, whose operators the model has."""


ORT_PLATFORMS = {"arm": "aarch64", "amd64": "x86-64"}
"""The architecture of a device, by the name of it that ``.ort`` files are written with."""


class OrtFormat(StrictModel):
    """A file in onnxruntime's own format, which a minimal build needs."""

    ort: Literal["fixed", "runtime"]
    """Optimizations applied by the converter, or left to the session."""
    platform: Literal["arm", "amd64"]
    """The processors whose kernels the file is written for."""


Hardware = Annotated[str, Field(pattern=r"^[a-z0-9]{1,16}$")]
"""A kind of hardware, in the words of a provider's option."""


class Variant(StrictModel):
    """One way to run the model on the target."""

    id: Id
    """``<backend>-<recipe>``; between them, or behind, a word where a target has several."""
    backend: str
    """A name in :data:`edgepack.backends.registry.BACKENDS`; another is refused when targets are
    resolved."""
    recipe: Recipe
    dialect: Dialect | None = None
    """Set if and only if the recipe is one of int8; int4-weight has one form alone."""
    model_format: Literal["onnx"] | OrtFormat = "onnx"
    providers: list[Provider]
    fused_attention: Annotated[bool, Field(exclude_if=lambda given: not given)] = False
    """Whether the attention of a transformer is one operator of onnxruntime's, where the build host
    measures that it is faster. Written only where it is given, as ``graph_optimization_level``."""
    placement: Literal["all"] | Annotated[float, Field(gt=0, le=1)] = "all"
    """``all`` nodes on the first provider, or at least this share of them."""
    shapes: Literal["any", "static"] = "any"
    """``static``: all sizes are fixed, with one model for each size that the project lists for a
    symbolic dimension. Backends that know static shapes alone get that without asking."""
    session: SessionSettings = SessionSettings()
    requires: Requires = Requires()
    compiled_for: Annotated[list[Hardware], Field(exclude_if=lambda given: not given)] = []
    """Hardware for which the bundle also has the model compiled, where this machine has the
    provider's compiler; for QNN versions of the HTP, as its option ``htp_arch`` has them. The
    loader tries them in this order before the model itself."""

    @model_validator(mode="after")
    def _check_dialect(self) -> Self:
        quantized = RECIPE_RULES[self.recipe].dialect
        if quantized and self.dialect is None:
            raise ValueError(
                f"variant {self.id!r} has no dialect | {self.recipe} needs one, such as dialect:"
                " {activations: uint8, weights: int8, symmetric: false, per_channel: true}"
            )
        if not quantized and self.dialect is not None:
            raise ValueError(
                f"variant {self.id!r} has a dialect | {self.recipe} takes none: remove it"
            )
        return self


class VariantChange(StrictModel):
    """A variant as a project gives it: what it does not say is taken from the profile."""

    backend: str
    recipe: Recipe
    id: Id | None = None
    dialect: Dialect | None = None
    model_format: Literal["onnx"] | OrtFormat | None = None
    optimized: bool | None = None
    """Whether the bundle has the graph as onnxruntime optimizes it for the device's kind of CPU, so
    that sessions start faster: a ``model_format`` with ``ort: fixed``, and for false ``onnx``."""
    fused_attention: bool | None = None
    providers: list[Provider] | None = None
    placement: Literal["all"] | Annotated[float, Field(gt=0, le=1)] | None = None
    shapes: Literal["any", "static"] | None = None
    session: SessionSettings | None = None
    requires: Requires | None = None
    compiled_for: list[Hardware] | None = None


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
    bundle: Annotated[BundleSize | None, Field(exclude_if=lambda size: size is None)] = None
    """None ships all. Written only where it is given, as ``graph_optimization_level``."""
    variants: Annotated[list[Variant], Field(min_length=1)]
    """In order of preference, best first."""
    sources: list[Source]

    @model_validator(mode="after")
    def _check_ids(self) -> Self:
        ids = [variant.id for variant in self.variants]
        for variant_id in ids:
            if ids.count(variant_id) > 1:
                raise ValueError(f"two variants are called {variant_id!r} | rename one")
        return self

    @model_validator(mode="after")
    def _check_checksums(self) -> Self:
        if self.family == "apple":
            for name in set(self.runtime.packages) - set(self.runtime.checksums):
                raise ValueError(
                    f"runtime.checksums has nothing for {name}, which a Swift package names with it"
                    " | add what 'swift package compute-checksum' says of the archive"
                )
        return self

    def find_variant(self, variant_id: str) -> Variant:
        """Return a variant by its id.

        Raises:
            UsageError: The profile has no such variant.
        """
        for variant in self.variants:
            if variant.id == variant_id:
                return variant
        known = [variant.id for variant in self.variants]
        raise UsageError(
            f"target {self.id!r} has no variant {variant_id!r}",
            hint=_suggest_other_target(self, variant_id.partition("-")[0])
            or suggest_nearest(variant_id, known),
            where="--variant",
        )


def change_profile(profile: Profile, changes: Sequence[VariantChange]) -> Profile:
    """Return a profile with other variants, in the order given.

    What a change leaves out comes from the profile's variant of the same backend and recipe, else
    from its first one of the same backend (its dialect and file format only if both quantize).

    Raises:
        ValueError: The profile has no variant of that backend and the change does not say enough,
            or the result is not a valid variant; ``problem | hint``.
    """
    return Profile.model_validate(
        {
            **profile.model_dump(),
            "variants": [_parse_variant(profile, change).model_dump() for change in changes],
        }
    )


def _parse_variant(profile: Profile, change: VariantChange) -> Variant:
    given = {key: value for key, value in change.model_dump().items() if value is not None}
    if "optimized" in given:
        given = {**given, "model_format": _find_format(profile, change)}
        del given["optimized"]
    kin = [v for v in profile.variants if v.backend == change.backend]
    same = [v for v in kin if v.recipe == change.recipe]
    base = next(iter([*same, *kin]), None)
    if base is None and change.providers is None:
        have = ", ".join(sorted({v.backend for v in profile.variants}))
        hint = _suggest_other_target(profile, change.backend) or (
            f"give 'providers' (and what else it needs), or take one of {have}"
        )
        raise ValueError(
            f"target {profile.id!r} has no variant with backend {change.backend!r} | {hint}"
        )
    values = base.model_dump() if base else {}
    if not RECIPE_RULES[change.recipe].dialect:
        values.pop("dialect", None)
    if not same:
        values.pop("model_format", None)
    elif change.id is None and not change.fused_attention:
        given.setdefault("id", same[0].id)
    values["id"] = f"{change.backend}-{change.recipe}" + "-fused" * bool(change.fused_attention)
    return Variant.model_validate({**values, **given})


def _suggest_other_target(profile: Profile, backend: str) -> str:
    """Return a hint to the target of the same devices whose name ends in a backend; else nothing.

    What was ``android`` is such a one: ``android-nnapi``.
    """
    name = f"{profile.id}-{backend}"
    return f"{backend} is the target {name!r}: take that" if name in find_target_files() else ""


def _find_format(profile: Profile, change: VariantChange) -> str | dict[str, str]:
    """Return the file format that ``optimized`` stands for."""
    if change.model_format is not None:
        raise ValueError(
            "'optimized' and 'model_format' are both given, and the former is one of the latter"
            " | leave one of them out"
        )
    if not change.optimized:
        return "onnx"
    platforms = [word for word, arch in ORT_PLATFORMS.items() if arch == profile.device.arch]
    if not platforms:
        raise ValueError(
            f"'optimized' is given, and no .ort files are written for {profile.device.arch}"
            " | leave it out"
        )
    return {"ort": "fixed", "platform": platforms[0]}


def find_target_files() -> dict[str, Path]:
    """Return every known target id with its file; ``./targets`` comes before the shipped ones."""
    files: dict[str, Path] = {}
    for folder in (Path("targets"), find_targets_dir()):
        if folder.is_dir():
            for path in sorted(folder.glob("*.yaml")):
                files.setdefault(path.stem, path)
    return dict(sorted(files.items()))


def find_target_ids(targets: Sequence[str]) -> list[str]:
    """Return target ids, each once; ``all`` means every known one."""
    known = list(find_target_files()) if "all" in targets else []
    return list(dict.fromkeys(t for name in targets for t in (known if name == "all" else [name])))


def find_own_profile(target: str) -> Path | None:
    """Return the file of a known target if it is not one that edgepack ships."""
    path = find_target_files()[target]
    return None if path.resolve().parent == find_targets_dir().resolve() else path


def load_profile(target: str) -> Profile:
    """Return the profile of a target; ``host`` means this machine.

    Raises:
        UsageError: There is no such target.
        ProfileError: Its file is wrong.
    """
    return read_profile(find_target_file(target))


def find_target_file(target: str) -> Path:
    """Return the file of a target; ``host`` means this machine.

    Raises:
        UsageError: There is no such target.
    """
    target = find_host_target() if target == "host" else target
    files = find_target_files()
    if target not in files:
        if known := find_elsewhere(target):
            problem = f"there is no target {target!r}: {known.exists}"
            raise UsageError(problem, hint=known.use, where="--target")
        raise UsageError(
            f"there is no target {target!r}",
            hint=suggest_nearest(target, [*files, "host"]) + " (edgepack targets list)",
            where="--target",
        )
    return files[target]


def read_profile(path: Path) -> Profile:
    """Read one profile; its id must be the file's name.

    Raises:
        ProfileError: The file is wrong.
    """
    return read_profile_source(path)[0]


def read_profile_source(path: Path) -> tuple[Profile, YamlSource]:
    """Read one profile, and where its keys stand.

    Raises:
        ProfileError: The file is wrong.
    """
    source = read_yaml(path)
    profile = source.parse(Profile)
    if profile.id != path.stem:
        raise ProfileError(
            f"the id {profile.id!r} is not the file's name {path.stem!r}",
            hint=f"rename the file to {profile.id}.yaml, or change the id",
            where=source.locate(("id",)),
        )
    return profile, source


_HOSTS = {
    ("Linux", "x86_64"): "linux-x86-64",
    ("Linux", "aarch64"): "linux-aarch64",
    ("Darwin", "arm64"): "macos-arm64",
}


def find_host_target() -> str:
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
