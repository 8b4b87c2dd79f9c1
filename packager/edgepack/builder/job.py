"""What a build is about, and what one of its bundles is made from."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from edgepack.builder.execution import Execution
from edgepack.builder.extensions import find_packages
from edgepack.builder.judging import Verdict
from edgepack.builder.plan import Plan, PlannedBundle, PlannedVariant
from edgepack.model.facts import ModelFacts, TensorSpec, read_signature
from edgepack.model.files import MODEL
from edgepack.model.reading import read_outline
from edgepack.project.loading import LoadedProject
from edgepack.project.profile import Profile
from edgepack.project.project import Project
from edgepack.steps.proofs.goldens import read_goldens


@dataclass(frozen=True)
class Job:
    """What a build is about."""

    loaded: LoadedProject
    facts: ModelFacts
    plan: Plan


@dataclass(frozen=True)
class JudgedBundle:
    """One bundle of a build, whose variants are made and judged."""

    job: Job
    planned: PlannedBundle
    verdict: Verdict
    execution: Execution

    @property
    def project(self) -> Project:
        """The project that is built."""
        return self.job.loaded.project

    @property
    def profile(self) -> Profile:
        """The profile of the bundle's target."""
        return self.planned.profile

    @property
    def shipped(self) -> list[PlannedVariant]:
        """The variants that the bundle has, best first."""
        return [planned for planned, _ in self.verdict.shipped]

    @property
    def packages(self) -> dict[str, str]:
        """The packages that it needs, with their pins, sorted by name."""
        return find_packages(self.profile, (planned.variant for planned in self.shipped))

    @cached_property
    def signature(self) -> tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]:
        """Inputs and outputs; where the model tells no rank, the golden tensor does."""
        planned = self.shipped[0]
        golden = read_goldens(self.find_folder(planned.goldens))["goldens"][0]
        ranks = {e["name"]: len(e["shape"]) for e in (*golden["inputs"], *golden["outputs"])}
        inputs, outputs = (
            tuple(
                spec if spec.shape is not None else replace(spec, shape=("?",) * ranks[spec.name])
                for spec in specs
            )
            for specs in read_signature(read_outline(self.find_folder(planned.model) / MODEL))
        )
        return inputs, outputs

    def find_folder(self, step_id: str) -> Path:
        """Return the folder of a step's output."""
        return self.execution.artifacts[step_id].path
