"""Cleans a project's model before anything is planned: plans are made from what a model says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from edgepack.base.progress import Progress
from edgepack.builder.cache import StepCache
from edgepack.builder.execution import execute
from edgepack.builder.plan import MODEL_SOURCE, PlanBuilder
from edgepack.model.facts import ModelFacts, read_model_facts
from edgepack.model.files import MODEL
from edgepack.model.reading import hash_model, read_outline
from edgepack.project.loading import LoadedProject
from edgepack.project.outputs import ClassificationOutput, OutputDescription, RawOutput
from edgepack.steps.base import read_notes
from edgepack.steps.cleaning.cleaned import Cleaned, find_label_files, list_cleanings


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
    project, path = loaded.project, loaded.model_path
    if not list_cleanings(read_outline(path), project.dims):
        return loaded
    builder = PlanBuilder()
    digest = hash_model(path)
    builder.add_source(MODEL_SOURCE, path, digest)
    step = Cleaned(tuple(sorted(project.dims)), tuple(sorted(project.largest_dims.items())))
    made = builder.add_step(step, source=MODEL_SOURCE)
    artifact = execute(builder.make_plan([]), cache=cache, jobs=1, progress=progress).artifacts[
        made
    ]
    artifact.require_whole()
    done = read_notes(artifact.path).done
    told = f"{made} of {loaded.named_model.name} (sha256 {digest}): {done}"
    progress.note(told)
    history = (*loaded.model_history, told)
    cleaned = replace(loaded, model_file=artifact.path / MODEL, model_history=history)
    return _add_labels(cleaned, find_label_files(artifact.path))


def read_source_facts(loaded: LoadedProject) -> ModelFacts:
    """Return the facts of a project's model under the name that the user gave its file.

    Raises:
        ModelError: As :func:`~edgepack.model.facts.read_model_facts`.
    """
    return replace(read_model_facts(loaded.model_path), name=loaded.named_model.name)


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
