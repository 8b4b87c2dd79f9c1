"""Cleans a project's model before anything is planned: plans are made from what a model says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from edgepack.base.progress import Progress
from edgepack.builder.cache import StepCache
from edgepack.builder.custom_ops import add_library_sources, find_libraries
from edgepack.builder.execution import execute
from edgepack.builder.plan import MODEL_SOURCE, PlanBuilder
from edgepack.errors import ProfileError
from edgepack.model.facts import ModelFacts, read_model_facts, read_signature
from edgepack.model.files import MODEL
from edgepack.model.reading import hash_model, read_outline
from edgepack.project.loading import LoadedProject
from edgepack.project.outputs import ClassificationOutput, OutputDescription, RawOutput
from edgepack.steps.base import read_notes
from edgepack.steps.cleaning.cleaned import Cleaned, find_label_files, list_cleanings
from edgepack.steps.cleaning.free_batch import FreeBatch, has_fixed_batch

if TYPE_CHECKING:
    import onnx


def clean_source(loaded: LoadedProject, cache: StepCache, progress: Progress) -> LoadedProject:
    """Return the project with a model that is cleaned and proven equal; as it is without need.

    Labels that the cleaning took out of the model become files of the project, and describe the
    outputs they are about, as far as the project does not.

    Args:
        loaded: The project, whose model is ONNX by now.
        cache: Where the cleaned model lies.
        progress: Where to report what was cleaned.

    Raises:
        ModelError: The file cannot be read as a model, or onnxruntime does not run it.
        StepError: The cleaned model cannot be proven equal.
    """
    path = loaded.model_path
    steps = list_source_steps(loaded, read_outline(path))
    if not steps:
        return loaded
    builder = PlanBuilder()
    digest = hash_model(path)
    made = [builder.add_source(MODEL_SOURCE, path, digest)]
    add_library_sources(find_libraries(loaded), builder)
    for step in steps:
        made.append(builder.add_step(step, source=made[-1]))
    done = execute(builder.make_plan([]), cache=cache, jobs=1, progress=progress).artifacts
    artifacts = [done[step_id] for step_id in made[1:]]
    artifacts[-1].require_whole()
    history = tuple(
        f"{step_id}: {read_notes(artifact.path).done}"
        for step_id, artifact in zip(made[1:], artifacts, strict=True)
    )
    for line in history:
        progress.note(line)
    before = loaded.model_history or (f"source {path.name}: sha256 {digest}",)
    cleaned = replace(
        loaded, model_file=artifacts[-1].path / MODEL, model_history=(*before, *history)
    )
    return _add_labels(cleaned, find_label_files(artifacts[0].path))


def list_source_steps(loaded: LoadedProject, model: onnx.ModelProto) -> list[Cleaned | FreeBatch]:
    """Return the steps that a project's model goes through before a plan is made, in order.

    Args:
        loaded: The project.
        model: Its model, as :func:`~edgepack.model.reading.read_outline` reads it.

    Raises:
        ProfileError: Several names are to be the batch's.
    """
    project = loaded.project
    sizes = tuple(sorted(project.largest_dims.items()))
    steps: list[Cleaned | FreeBatch] = []
    if list_cleanings(model, project.dims):
        steps.append(Cleaned(tuple(sorted(project.dims)), sizes))
    known = {size for spec in read_signature(model)[0] for size in spec.shape or ()}
    free = [name for name in project.free_dims if name not in known]
    if len(free) > 1:
        raise ProfileError(
            f"{' and '.join(map(repr, free))} are to be free, and only the batch can be made so",
            hint="leave one of them in 'dims'",
            where=loaded.locate("dims"),
        )
    if free and has_fixed_batch(model):
        steps.append(FreeBatch(free[0], sizes))
    return steps


def read_source_facts(loaded: LoadedProject) -> ModelFacts:
    """Return the facts of a project's model under the name that the user gave its file.

    Raises:
        ModelError: As :func:`~edgepack.model.facts.read_model_facts`.
    """
    return replace(read_model_facts(loaded.model_path), name=loaded.model_name)


def _add_labels(loaded: LoadedProject, labels: Mapping[str, Path]) -> LoadedProject:
    """Add files with labels to a project, and what they say about its outputs."""
    if not labels:
        return loaded
    project = loaded.project
    names = {path: _name_file(path.name, project.files) for path in labels.values()}
    numbers = {
        spec.name for spec in read_model_facts(loaded.model_path).outputs if spec.dtype == "int64"
    }
    described: dict[str, OutputDescription] = {}
    for output, path in labels.items():
        described[output] = (
            RawOutput(labels=names[path])
            if output in numbers
            else ClassificationOutput(kind="classification", labels=names[path])
        )
    files = [*project.files, *dict.fromkeys(names.values())]
    outputs = {**described, **project.outputs}
    return replace(
        loaded,
        project=project.model_copy(update={"files": files, "outputs": outputs}),
        made_files={name: path for path, name in names.items()},
    )


def _name_file(name: str, taken: list[str]) -> str:
    return f"model-{name}" if name in taken else name
