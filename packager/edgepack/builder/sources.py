"""Makes ONNX of a project's model where it has another format, before anything is planned.

Plans are made from what a model is, so the conversion comes first, as a plan of its own that has
one step. Its output is kept like any other: a model that has not changed is not converted again,
and needs no environment.
"""

from __future__ import annotations

import shutil
import sys
from dataclasses import replace
from pathlib import Path

from edgepack.base.files import hash_file
from edgepack.base.progress import Progress
from edgepack.builder.cache import StepCache, hash_tree
from edgepack.builder.cleaning import clean_source
from edgepack.builder.execution import execute
from edgepack.builder.plan import FRAMEWORK_SOURCE, PlanBuilder
from edgepack.converters.base import Converter
from edgepack.converters.conversion import FUNCTION, Conversion, ConvertedModel
from edgepack.converters.environments import Environment, ask_python
from edgepack.converters.registry import CONVERTERS, find_converter
from edgepack.errors import ModelError, ProfileError, UsageError, suggest_nearest
from edgepack.model.facts import ModelFacts, TensorSpec
from edgepack.model.files import MODEL
from edgepack.project.loading import LoadedProject
from edgepack.project.project import PythonModel
from edgepack.steps.base import read_notes
from edgepack.steps.converted import Converted, read_conversion

_PICTURE_RANK, _CHANNELS = 4, (1, 3, 4)


def open_project(
    loaded: LoadedProject, cache: StepCache, progress: Progress, python: str | None = None
) -> LoadedProject:
    """Return a project with the model that plans are made from: ONNX, and clean.

    One that was opened before is returned as it is. For the rest see :func:`convert_source` and
    :func:`~edgepack.builder.cleaning.clean_source`.

    Raises:
        EdgepackError: As these two.
    """
    if loaded.model_file is not None:
        return loaded
    return clean_source(convert_source(loaded, cache, progress, python), cache, progress)


def convert_source(
    loaded: LoadedProject, cache: StepCache, progress: Progress, python: str | None = None
) -> LoadedProject:
    """Return a project with its model as ONNX, converted if need be.

    Args:
        loaded: The project as read.
        cache: Where a conversion is kept.
        progress: Where to report.
        python: The Python that has the model's framework; default: that of ``converters`` in the
            project, or else an environment of edgepack's own.

    Raises:
        ModelError: The model cannot be converted; the error names what it has that ONNX has not.
        ToolError: There is no environment to convert it in, or the converter crashed.
        UsageError: A Python is given, and the model is ONNX.
    """
    model = loaded.project.model
    if isinstance(model, PythonModel):
        return _open_function(loaded, model, cache, progress, python)
    source = loaded.named_model
    converter = find_converter(source)
    if converter is None:
        if python is not None:
            raise UsageError(
                f"{source.name!r} is not converted, so that no Python converts it",
                hint="leave --python out",
                where="--python",
            )
        return loaded
    conversion = _choose_conversion(loaded, converter, python)
    digest = _hash_source(source)
    return _convert(loaded, (source, digest), conversion, cache, progress)


def _open_function(
    loaded: LoadedProject,
    model: PythonModel,
    cache: StepCache,
    progress: Progress,
    python: str | None,
) -> LoadedProject:
    """Return a project with the model that a function of the user's makes.

    It runs in the user's own Python, with all rights: it is their code, as their hooks are.
    """
    taking = {name: each for name, each in CONVERTERS.items() if each.makes}
    converter = taking.get(model.framework)
    if converter is None:
        raise ProfileError(
            f"no function makes a model of {model.framework!r}",
            hint=suggest_nearest(model.framework, taking),
            where=loaded.locate("model", "framework"),
        )
    settings = loaded.project.converters.get(converter.name)
    named = python or (settings.python if settings else None) or loaded.project.interpreter
    own = _locate_python(loaded, named, python) if named else sys.executable
    asked = ask_python(own, converter.packages, loaded.locate("model"))
    conversion = Conversion(
        converter.name,
        asked.identity,
        asked.python,
        confined=False,
        options=((FUNCTION, model.python),),
    )
    opened = _convert(loaded, (loaded.folder, ""), conversion, cache, progress)
    if opened.converted is None:
        raise TypeError("what was converted says so")
    digest = str(read_conversion(opened.converted.folder)["function_sha256"])
    return replace(opened, converted=replace(opened.converted, digest=digest))


def _convert(
    loaded: LoadedProject,
    given: tuple[Path, str],
    conversion: Conversion,
    cache: StepCache,
    progress: Progress,
) -> LoadedProject:
    """Return a project with a model converted from a file, folder or function, and its digest."""
    source, digest = given
    builder = PlanBuilder()
    builder.add_source(FRAMEWORK_SOURCE, source, digest)
    step = builder.add_step(Converted(conversion), source=FRAMEWORK_SOURCE)
    made = execute(builder.make_plan([]), cache=cache, jobs=1, progress=progress).artifacts[step]
    converted = ConvertedModel(source, digest, conversion, made.path, made.digest)
    what = f"sha256 {digest}" if digest else "a function"
    told = f"{step} of {loaded.model_name} ({what}): {read_notes(made.path).done}"
    return replace(loaded, model_file=made.path / MODEL, model_history=(told,), converted=converted)


def describe_conversion(loaded: LoadedProject, facts: ModelFacts) -> tuple[str, ...]:
    """Return what became of a converted model's inputs and outputs, a line each.

    None where the model came as ONNX. Proofs are a build's.
    """
    if loaded.converted is None:
        return ()
    signature = read_conversion(loaded.converted.folder)
    specs = {spec.name: spec for spec in (*facts.inputs, *facts.outputs)}
    lines = []
    for role in ("inputs", "outputs"):
        for each in signature[role]:
            became = specs.get(each["name"])
            layout = _guess_layout(became) if became else ""
            now = f"{became}{layout}" if became else f"{each['name']!r}, which is not there now"
            lines.append(f"{role[:-1]} {each['source']!r} {each['tensor']} became {now}")
    return tuple(lines)


def _guess_layout(spec: TensorSpec) -> str:
    """Return where a picture's channels are, if it looks like one."""
    shape = spec.shape or ()
    if len(shape) != _PICTURE_RANK:
        return ""
    if shape[-1] in _CHANNELS and shape[1] not in _CHANNELS:
        return ", NHWC"
    return ", NCHW" if shape[1] in _CHANNELS and shape[-1] not in _CHANNELS else ""


def _choose_conversion(
    loaded: LoadedProject, converter: Converter, python: str | None
) -> Conversion:
    """Return where and how a project's model is converted."""
    settings = loaded.project.converters.get(converter.name)
    own = python or (settings.python if settings else None)
    confined = settings.confined if settings else True
    if own is None and converter.runs_beside:
        own = sys.executable
    if own:
        where = "--python" if python else loaded.locate("converters", converter.name)
        asked = ask_python(_locate_python(loaded, own, python), converter.packages, where)
        return Conversion(converter.name, asked.identity, asked.python, confined)
    if converter.lock is None:
        raise UsageError(
            f"{converter.words} is converted in your own environment, and none is named",
            hint=f"add --python PATH, or converters: {{{converter.name}: {{python: PATH}}}} to"
            " edgepack.yaml",
        )
    return Conversion(converter.name, Environment(converter.lock).identity, "", confined)


def _locate_python(loaded: LoadedProject, named: str, python: str | None) -> str:
    """Return a Python that is found from any folder, but not what its links lead to.

    One of the command line is relative to where that was typed, one of the project to its folder.
    """
    if "/" not in named:
        # Looked for once: the confined process has a PATH of its own.
        return shutil.which(named) or named
    return str(((Path() if python else loaded.folder) / named).absolute())


def _hash_source(source: Path) -> str:
    """Return the digest of a model's file, or of all files of its folder."""
    try:
        return hash_tree(source, "*") if source.is_dir() else hash_file(source)
    except OSError as error:
        raise ModelError(
            f"cannot read {str(source)!r}: {error.strerror}", hint="check the path and its rights"
        ) from error
