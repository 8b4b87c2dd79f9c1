"""Compares a project with its model, and returns what a plan is made from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from edgepack.builder.constants import make_project_constants
from edgepack.builder.custom_ops import find_libraries
from edgepack.builder.extensions import find_extension_operators
from edgepack.builder.in_graph import find_given_inputs, find_made_dims
from edgepack.builder.meanings import check_meanings
from edgepack.builder.offering import find_named_targets
from edgepack.builder.project_checks import check_fillings, check_names
from edgepack.builder.state import find_project_state
from edgepack.model.facts import ModelFacts, TensorSpec
from edgepack.project.loading import LoadedProject
from edgepack.project.outputs import OutputDescription
from edgepack.project.project import Project
from edgepack.samples.constants import Constant
from edgepack.steps.graph.prepared import Prepared, fix_signature, fix_sizes
from edgepack.steps.streams import StatePairs


@dataclass(frozen=True)
class PlanInputs:
    """A project and its model, in agreement."""

    loaded: LoadedProject
    facts: ModelFacts
    """The model's inputs without those that are constants."""
    constants: tuple[Constant, ...]
    state: tuple[TensorSpec, ...]
    """Inputs that hold the state."""
    scores_output: str | None
    """The output that may hold class scores."""
    described: tuple[tuple[str, OutputDescription], ...]
    """The project's descriptions of outputs."""
    named: frozenset[str]
    """Targets whose variants the project names."""
    extensions: str
    """What needs onnxruntime-extensions, in words; empty where nothing does."""
    libraries: Mapping[str, Path]
    """The libraries of custom operators, by machine."""
    dims: Mapping[str, int]
    """The sizes of symbolic dimensions with one size."""
    signature: tuple[TensorSpec, ...]
    """The inputs of a bundle's models: pictures and texts instead of what is made from them."""
    whole_signature: tuple[TensorSpec, ...]
    """The same with the constants."""

    @property
    def project(self) -> Project:
        """The project as written."""
        return self.loaded.project

    @property
    def in_graph(self) -> bool:
        """Whether models take pictures or texts."""
        return bool(self.project.pictures or self.project.texts)

    @property
    def has_foreign_operators(self) -> bool:
        """Whether models have operators that onnxruntime has from another library."""
        return bool(self.extensions or self.libraries)

    @property
    def prepared(self) -> Prepared:
        """The step that all variants begin with; its samples have zeros as state."""
        own = {size for spec in self.facts.inputs for size in spec.shape or ()}
        dims = tuple(sorted((name, size) for name, size in self.dims.items() if name in own))
        return Prepared(dims, self.constants)

    @property
    def state_pairs(self) -> StatePairs:
        """Outputs, each with the input that it feeds."""
        return tuple(sorted(self.project.state.items()))


def plan_inputs(loaded: LoadedProject, facts: ModelFacts) -> PlanInputs:
    """Check that a project and its model agree; this reads no sample.

    Args:
        loaded: The project.
        facts: Of its model.

    Raises:
        ProfileError: They do not agree, or a file of the project is missing; the error names the
            place.
    """
    project, given = loaded.project, facts.inputs
    constants = make_project_constants(loaded, given)
    free = tuple(spec for spec in given if spec.name not in project.constants)
    state = find_project_state(loaded, free, facts.outputs)
    check_names(loaded, "input", project.inputs, free)
    check_names(loaded, "output", project.outputs, facts.outputs)
    for name in project.files:
        loaded.find_file(name)
    check_fillings(loaded, free)
    taken = find_given_inputs(free, project)
    # A size for each name, so that each is checked; only those with one size are fixed.
    fix_signature((*given, *taken), dict.fromkeys(project.dims, 1), loaded.locate("dims") or "dims")
    dims = {**project.fixed_dims, **find_made_dims(loaded, free)}
    check_meanings(
        loaded,
        fix_sizes(free, project.fixed_dims),
        fix_sizes(facts.outputs, project.fixed_dims),
        facts.table_rows,
    )
    return PlanInputs(
        loaded=loaded,
        facts=replace(facts, inputs=free),
        constants=constants,
        state=state,
        scores_output=loaded.find_scores_output(
            [spec.name for spec in facts.outputs], facts.label_outputs
        ),
        described=tuple((n, d.without_words()) for n, d in loaded.describe_outputs().items()),
        named=frozenset(find_named_targets(loaded)),
        extensions=find_extension_operators(project, facts),
        libraries=find_libraries(loaded),
        dims=dims,
        signature=fix_sizes(taken, dims),
        whole_signature=fix_sizes(find_given_inputs(given, project), dims),
    )
