"""What an app's code needs to know of a bundle: the names and types of its API."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Literal

import edgepack
from edgepack.apps.npm import find_npm_name
from edgepack.errors import ModelError, ProfileError
from edgepack.model.facts import TensorSpec
from edgepack.ondevice.runtime.edgepack_meaning import has_few
from edgepack.project.identifiers import (
    Language,
    make_comment,
    make_comment_lines,
    make_identifiers,
    make_package_segment,
    make_type_name,
)
from edgepack.project.inputs import Documented
from edgepack.project.outputs import GivenAsTensor, MaskOutput, ProbabilityOutput
from edgepack.project.profile import Family, Profile
from edgepack.project.project import Project

AnswerKind = Literal[
    "raw", "classification", "detection", "embedding", "mask", "probability", "text"
]

# Tensor classes of templates/android/kotlin/Tensors.kt. onnxruntime's Java API has no uint16,
# uint32 and uint64 (ai.onnxruntime.OnnxJavaType of 1.29.0). float16 is float32 at the border.
_KOTLIN_TYPES = {
    "float16": "FloatTensor",
    "float32": "FloatTensor",
    "float64": "DoubleTensor",
    "int8": "ByteTensor",
    "uint8": "UByteTensor",
    "int16": "ShortTensor",
    "int32": "IntTensor",
    "int64": "LongTensor",
    "bool": "BooleanTensor",
}
# Elements of a tensor in Swift; float16 is Float at the border.
_SWIFT_TYPES = {
    "float16": "Float",
    "float32": "Float",
    "float64": "Double",
    "int8": "Int8",
    "uint8": "UInt8",
    "int16": "Int16",
    "uint16": "UInt16",
    "int32": "Int32",
    "uint32": "UInt32",
    "int64": "Int64",
    "uint64": "UInt64",
    "bool": "Bool",
}
# Elements of a tensor in JavaScript, as onnxruntime-web has them (onnxruntime-common 1.30.0,
# tensor-impl-type-mapping); float16 is Float32Array at the border, bool has a byte per element.
_JS_TYPES = {
    "float16": "Float32Array",
    "float32": "Float32Array",
    "float64": "Float64Array",
    "int8": "Int8Array",
    "uint8": "Uint8Array",
    "int16": "Int16Array",
    "uint16": "Uint16Array",
    "int32": "Int32Array",
    "uint32": "Uint32Array",
    "int64": "BigInt64Array",
    "uint64": "BigUint64Array",
    "bool": "Uint8Array",
}
_TYPES: Mapping[Family, Mapping[str, str]] = {
    "android": _KOTLIN_TYPES,
    "apple": _SWIFT_TYPES,
    "web": _JS_TYPES,
}

_KOTLIN_ANSWERS = {
    "classification": "List<Classification>",
    "detection": "List<Detection>",
    "embedding": "List<FloatArray>",
    "mask": "Mask",
    "probability": "List<Decision>",
    "text": "Transcription",
}

_NO_ASSETS = re.compile(
    r"(^|/)(\.(?!\.?(/|$))|_[^/]*/|(cvs|thumbs\.db|picasa\.ini)(/|$))|(~|\.scc)(/|$)|\.gz$",
    re.IGNORECASE,
)
"""Paths that the Android plugin leaves out of an app's assets (default of its
``ignoreAssetsPattern``), or unpacks (``.gz``). Source: its asset merger (read, not tried)."""


LIBRARY_NAMES: Mapping[Family, str] = {
    "android": "edgepack.runtime",
    "apple": "EdgepackRuntime",
    "web": "edgepack-runtime",
}
"""Of the runtime library: its package in Kotlin, its module in Swift, its npm package."""
_SEMANTIC = re.compile(
    r"(\d+)(?:\.(\d+))?(?:\.(\d+))?"
    r"((?:-(?:0|[1-9]\d*|\d*[A-Za-z-][\dA-Za-z-]*)(?:\.(?:0|[1-9]\d*|\d*[A-Za-z-][\dA-Za-z-]*))*)?"
    r"(?:\+[\dA-Za-z-]+(?:\.[\dA-Za-z-]+)*)?)"
)
"""Three numbers, and what may follow them. Source: Semantic Versioning 2.0.0 (semver.org)."""


@dataclass(frozen=True)
class AppTensor:
    """One input or output of the model, as a property of a class."""

    name: str
    """The model's name for it, any text."""
    kotlin: str
    """A valid identifier, like the next one; each is unique among the inputs or among the
    outputs."""
    swift: str
    js: str
    dtype: str
    """The numpy dtype name of what the model takes or returns."""
    shape: tuple[int | str, ...]
    """An int where fixed, a name where symbolic, ``?`` where unknown."""
    image: bool
    """Of an input: whether the project describes how an image becomes this input."""
    text: str
    """Of an input made from a text: the name of the input that takes the text's token ids, which
    may be this input. Empty where the project describes none."""
    mask: bool
    """Of an input: whether it is a mask, which a caller may leave out."""
    answer: AnswerKind
    """Of an output: what the project says that it means."""
    description: str = ""
    """What the project says of it, any text."""

    @property
    def kotlin_type(self) -> str:
        """The class of its tensors in Kotlin."""
        return _KOTLIN_TYPES[self.dtype]

    @property
    def kotlin_answer(self) -> str:
        """The class of its answer in Kotlin."""
        return _KOTLIN_ANSWERS[self.answer]

    @property
    def kotlin_example(self) -> str:
        """The value that an example in Kotlin passes for an input."""
        given = "bitmap" if self.image else "text" if self.text else ""
        return f"model.{self.kotlin}Of({given})" if given else self.kotlin

    @property
    def swift_type(self) -> str:
        """The type of its tensors' elements in Swift."""
        return _SWIFT_TYPES[self.dtype]

    @property
    def swift_example(self) -> str:
        """The value that an example in Swift passes for an input."""
        given = "image" if self.image else "text" if self.text else ""
        return f"model.{self.swift}(of: {given})" if given else self.swift

    @property
    def js_type(self) -> str:
        """The class of its tensors' elements in JavaScript."""
        return _JS_TYPES[self.dtype]

    @property
    def signature(self) -> str:
        """Name, dtype and shape, such as ``ids: int64[batch, 8]``; a bundle's code compares it."""
        sizes = ", ".join(map(str, self.shape))
        return f"{self.name}: {self.dtype}[{sizes}]"

    @property
    def about(self) -> str:
        """The signature for a documentation comment."""
        return make_comment(self.signature)

    @property
    def doc(self) -> tuple[str, ...]:
        """The description as the lines of a documentation comment; none without a description."""
        return make_comment_lines(self.description)


@dataclass(frozen=True)
class App:
    """What the templates of phones and browsers use beside the bundle's own description."""

    type_name: str
    """The name of the model's class or struct: ``Detector``. It is valid in all languages."""
    kotlin_package: str
    package_path: str
    """The package as a path: ``edgepack/detector``."""
    swift_module: str
    npm_package: str
    """The name of the package for browsers, such as ``@acme/detector``."""
    assets: str
    """The folder of the bundle's files among an Android app's assets: ``edgepack/detector``."""
    min_version: str
    """The lowest Android API level or iOS version; empty for browsers."""
    runtime_version: str
    """The version of onnxruntime."""
    runtime_checksum: str
    """The sha256 of onnxruntime's archive for iOS; empty where there is none."""
    group: str
    """The coordinates in a Maven repository, with ``artifact`` and ``version``."""
    artifact: str
    version: str
    semantic_version: str
    """The version with three numbers, as SwiftPM, CocoaPods and npm take it; empty for Android."""
    inputs: tuple[AppTensor, ...]
    outputs: tuple[AppTensor, ...]
    shares_runtime: bool = False
    """Whether the code that all models have in common is in the runtime library."""

    @property
    def edgepack_version(self) -> str:
        """The version of edgepack, which a runtime library for this code must have, too."""
        return edgepack.__version__

    @property
    def needed(self) -> tuple[AppTensor, ...]:
        """The inputs that a caller has to give: all but masks."""
        return tuple(tensor for tensor in self.inputs if not tensor.mask)

    @property
    def given(self) -> tuple[AppTensor, ...]:
        """The inputs that an example passes: those needed, and masks that are made from a text."""
        return tuple(tensor for tensor in self.inputs if tensor.text or not tensor.mask)

    @property
    def masks(self) -> tuple[AppTensor, ...]:
        """The inputs that a caller may leave out."""
        return tuple(tensor for tensor in self.inputs if tensor.mask)

    @property
    def texts(self) -> tuple[AppTensor, ...]:
        """The inputs that are made from a text, its masks included."""
        return tuple(tensor for tensor in self.inputs if tensor.text)

    @property
    def image_input(self) -> AppTensor | None:
        """The input that is made from a picture, if a caller needs to pass nothing else."""
        return self.needed[0] if len(self.needed) == 1 and self.needed[0].image else None

    @property
    def pictures(self) -> tuple[AppTensor, ...]:
        """The inputs that are made from a picture."""
        return tuple(tensor for tensor in self.inputs if tensor.image)

    @property
    def text_input(self) -> AppTensor | None:
        """The input that is made from a text, if a caller needs to pass nothing else."""
        given = [tensor for tensor in self.needed if tensor.text in ("", tensor.name)]
        return given[0] if len(given) == 1 and given[0].text else None

    @property
    def answered(self) -> tuple[AppTensor, ...]:
        """The outputs whose meaning the project describes."""
        return tuple(tensor for tensor in self.outputs if tensor.answer != "raw")

    @property
    def described(self) -> tuple[tuple[str, str], ...]:
        """What the code makes from something, or makes something of: name and kind.

        The kind is ``image`` or ``tokens`` of an input, and the answer's of an output.
        """
        images = tuple((tensor.name, "image") for tensor in self.pictures)
        tokens = tuple((t.name, "tokens") for t in self.inputs if t.text == t.name)
        return images + tokens + tuple((tensor.name, tensor.answer) for tensor in self.answered)


def make_app(
    project: Project,
    profile: Profile,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
) -> App:
    """Return what templates need to know of the app's side of a bundle.

    Args:
        project: The project.
        profile: The target, a phone or a browser.
        inputs: The model's inputs, with ranks.
        outputs: The model's outputs, with ranks.

    Raises:
        ModelError: The language has no type for a tensor.
        ProfileError: The target pins no onnxruntime, an Android app cannot hold a file, package
            managers do not take the version, or a name is the runtime library's.
    """
    require_types(profile, (*inputs, *outputs))
    require_assets(profile, project.files)
    require_other_than_library(project, profile)
    named = project.app.type or make_type_name(project.name)
    package = _find_package(project)
    return App(
        type_name=named,
        kotlin_package=package,
        package_path=package.replace(".", "/"),
        # A module of the type's own name would hide what it holds: Detector.Tensor would be looked
        # for in the type.
        swift_module=f"Edgepack{named}",
        npm_package=find_npm_name(project) if profile.family == "web" else "",
        assets=f"edgepack/{project.name}",
        min_version=profile.device.min_version or "",
        runtime_version=find_runtime_version(profile),
        runtime_checksum=profile.runtime.checksums.get("onnxruntime-c", ""),
        group=package.rpartition(".")[0],
        artifact=f"{project.name}-{profile.id}",
        version=project.version,
        semantic_version=require_version(profile, project.version),
        inputs=_make_tensors(inputs, "input", project),
        outputs=_make_tensors(outputs, "output", project),
        shares_runtime=project.app.runtime == "shared",
    )


def _find_package(project: Project) -> str:
    return project.app.package or f"edgepack.{make_package_segment(project.name)}"


def require_other_than_library(project: Project, profile: Profile) -> None:
    """Check that no app uses the target, or that the project has other names than the library.

    An app may have a model that shares its runtime beside one that does not.

    Raises:
        ProfileError: Its package or npm package is the runtime library's. Its module cannot be: no
            type is called ``Runtime`` (:func:`~edgepack.project.identifiers.find_taken_types`).
    """
    found = {"android": _find_package(project), "web": find_npm_name(project)}
    taken = found.get(profile.family)
    if taken and taken == LIBRARY_NAMES[profile.family]:
        raise ProfileError(
            f"{taken} is the runtime library, which models of an app share",
            hint="give the project names of its own: app: {package: com.acme.detector, npm: acme}",
            where="app",
        )


def require_types(profile: Profile, specs: Sequence[TensorSpec]) -> None:
    """Check that no app uses the target, or that apps can name all inputs, outputs and types.

    Raises:
        ModelError: They cannot name one of them.
    """
    types = _TYPES.get(profile.family, {})
    for spec in specs if types else ():
        if spec.dtype not in types:
            raise ModelError(
                f"{spec.name!r} is {spec.dtype}, which apps for {profile.id} have no tensors of",
                hint=f"cast it in the model; there are {', '.join(types)}",
            )
        # Names pass through JNI, which encodes these characters differently (onnxruntime 1.29.0,
        # tried).
        if profile.family == "android" and not all("\0" < c < "\U00010000" for c in spec.name):
            raise ModelError(
                f"onnxruntime's Java API cannot name {spec.name!r}: it mangles characters beyond"
                " U+FFFF",
                hint="rename it in the model",
            )


def require_version(profile: Profile, version: str) -> str:
    """Return a project's version as SwiftPM, CocoaPods and npm take it; empty for other targets.

    ``2.1`` is ``2.1.0``, ``2026.03`` is ``2026.3.0``.

    Raises:
        ProfileError: They do not take this version.
    """
    if profile.family not in ("apple", "web"):
        return ""
    found = _SEMANTIC.fullmatch(version)
    if found is None:
        takes = "npm takes" if profile.family == "web" else "SwiftPM and CocoaPods take"
        raise ProfileError(
            f"{version!r} is no version that {takes}",
            hint="write numbers, and what comes before a release behind '-': 1.0.0 or 1.0.0-rc.1",
            where="version",
        )
    *numbers, rest = found.groups(default="0")
    return ".".join(str(int(number)) for number in numbers) + rest


def require_assets(profile: Profile, files: Iterable[str]) -> None:
    """Check that the target is not Android, or that its apps can hold the project's files.

    Raises:
        ProfileError: They cannot hold one of them.
    """
    for name in files if profile.family == "android" else ():
        if _NO_ASSETS.search(PurePosixPath(name).as_posix()):
            raise ProfileError(
                f"an Android app's build leaves {name!r} out, or unpacks it",
                hint="rename it: no dot or, of a folder, '_' in front; no '~', .scc or .gz behind",
                where="files",
            )


def _make_tensors(
    specs: Sequence[TensorSpec], role: str, project: Project
) -> tuple[AppTensor, ...]:
    described: Mapping[str, Documented] = project.inputs if role == "input" else project.outputs
    names = [(spec.name in described and described[spec.name].name) or spec.name for spec in specs]
    languages: tuple[Language, ...] = ("kotlin", "swift", "js")
    made = zip(*(make_identifiers(names, language, role) for language in languages), strict=True)
    return tuple(
        _make_tensor(spec, identifiers, project, role)
        for spec, identifiers in zip(specs, made, strict=True)
    )


def _make_tensor(
    spec: TensorSpec, identifiers: tuple[str, ...], project: Project, role: str
) -> AppTensor:
    kotlin, swift, js = identifiers
    taken = project.inputs.get(spec.name) if role == "input" else None
    given = project.outputs.get(spec.name) if role == "output" else None
    said = taken or given
    return AppTensor(
        name=spec.name,
        kotlin=kotlin,
        swift=swift,
        js=js,
        dtype=spec.dtype,
        shape=spec.shape or (),
        image=taken is not None and taken.image is not None,
        text=_find_text_input(project, spec.name) if role == "input" else "",
        mask=taken is not None and taken.mask is not None,
        answer=_find_answer(spec, project) if role == "output" else "raw",
        description=(said.description or "") if said else "",
    )


def _find_answer(spec: TensorSpec, project: Project) -> AnswerKind:
    """Return what an output is given as; ``raw`` is the tensor.

    A mask is a class for each place, ``(1, h, w)``, ``(1, C, h, w)`` or ``(1, h, w, C)``, in the
    picture of the one input that is described as an image.
    """
    shape = spec.shape or ()
    given = project.outputs.get(spec.name)
    if isinstance(given, MaskOutput):
        pictures = [name for name, taken in project.inputs.items() if taken.image is not None]
        is_map = len(shape) in (3, 4) and (shape[0] == 1 or isinstance(shape[0], str))
        # Several values of a place are scores, which integers are not.
        is_map &= len(shape) == 3 or spec.dtype.startswith("float") or shape[given.axis] == 1
        is_placed = len(pictures) == 1 and not project.takes_files
        return "mask" if is_map and is_placed else "raw"
    if isinstance(given, ProbabilityOutput):
        return "probability" if has_few(shape) else "raw"
    return "raw" if given is None or isinstance(given, GivenAsTensor) else given.kind


def _find_text_input(project: Project, name: str) -> str:
    """Return the input with the token ids of the text that an input is made from, if it is."""
    for ids, described in project.inputs.items():
        tokens = described.tokens
        if tokens and name in (ids, tokens.attention_mask, tokens.token_type_ids):
            return ids
    return ""


def find_runtime_version(profile: Profile) -> str:
    """Return the version of onnxruntime that a target of apps pins.

    Raises:
        ProfileError: It pins none.
    """
    if pinned := profile.runtime.onnxruntime:
        return pinned[1]
    raise ProfileError(
        f"{profile.id} pins no package of onnxruntime, which the app's code calls",
        hint='pin one: "com.microsoft.onnxruntime:onnxruntime-android", onnxruntime-c or'
        " onnxruntime-web",
        where="runtime.packages",
    )
