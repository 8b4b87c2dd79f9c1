"""Plans: the steps and outputs of a build as pure data. ``--dry-run`` prints one."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from edgepack.base.schema import NotMeasured
from edgepack.bundle.unused import Unused
from edgepack.project.profile import Profile, Variant
from edgepack.steps.base import Step, find_settings

MODEL_SOURCE = "model"
"""The id of the user's model among the sources."""
PROJECT_SOURCE = "project"
"""The id of the project's folder."""
FRAMEWORK_SOURCE = "framework-model"
"""The id of what the user's model was converted from."""
CONVERTED_SOURCE = "converted-model"
"""The id of the folder of that conversion."""
_LIBRARY_SOURCE = "custom-ops"


@dataclass(frozen=True)
class SourceFile:
    """A file or folder of the user's that steps read."""

    id: str
    path: Path
    digest: str
    """The digest of everything that is read from it; empty where only running a hook shows it."""


def find_library_source(machine: str = "") -> str:
    """Return the id of a library of custom operators among the sources.

    Args:
        machine: The kind of machine that it is for; by default this one, where steps use it.
    """
    return f"{_LIBRARY_SOURCE}-{machine}" if machine else _LIBRARY_SOURCE


@dataclass(frozen=True)
class PlannedStep:
    """One step and where its inputs come from."""

    id: str
    step: Step
    inputs: Mapping[str, str]
    """Input name to the id of a source or of another step."""


@dataclass(frozen=True)
class PlannedVariant:
    """The steps whose outputs make one variant."""

    variant: Variant
    model: str
    """The step whose model is checked: the .onnx that the shipped file is made from."""
    shipped: str
    """The step whose model is shipped."""
    reference: str
    """The step whose fp32 model takes the same inputs."""
    goldens: str
    evaluation: str | None
    """None when the project has no evaluation samples."""
    placed: str | None
    """The step that predicts where nodes run; None for the CPU, which takes all."""
    fusion: str | None
    """The step that counts fused integer kernels; None unless the CPU runs int8."""
    layers: str | None
    """The step that finds the error of each node; the variant does not depend on it. None unless
    the variant is int8-static made from a float model."""
    outside: str | None
    """The step that looks for inputs on which the variant goes wrong; the variant does not depend
    on it. None unless the variant is int8 made from a float model, and there are samples."""
    simulated: str | NotMeasured | None
    """The step that runs it in its provider's simulator, or why there is none; the variant does not
    depend on it. None where no vendor has a simulator."""
    compiled: str | NotMeasured | None
    """The step that compiles its model for kinds of hardware, or why there is none; the variant
    does not depend on it. None where it names no hardware."""
    history: tuple[str, ...]
    """The steps that the model went through, in order."""
    carried: bool = False
    """Whether the model came quantized or float16, so that there is no fp32 model of it."""
    offered: str = ""
    """Why the plan has the variant although the profile does not; if it cannot be made, it is left
    out."""
    named: bool = True
    """Whether the user named it, and not only the target's profile."""
    unfused: str | None = None
    """The step whose model has the attention that this one has fused; None where none is."""
    bucketed: str | None = None
    """The step that made one model per size, whose models are shipped; None for a single model."""

    @property
    def steps(self) -> tuple[str, ...]:
        """Every step that the variant needs directly: if one fails, the variant is lost."""
        others = (self.reference, self.goldens, self.evaluation, self.placed, self.fusion)
        needed = (*self.history, *(step_id for step_id in others if step_id is not None))
        return tuple(dict.fromkeys(needed))

    @property
    def beside(self) -> tuple[str, ...]:
        """Every step that tells about the variant, and without which it ships all the same."""
        found = (self.layers, self.outside, self.simulated, self.compiled, self.unfused)
        return tuple(step_id for step_id in found if isinstance(step_id, str))

    @property
    def may_fail(self) -> bool:
        """Whether it is no error if it cannot be made: it is int8 that nobody asked for."""
        return bool(self.offered) or (not self.named and self.variant.dialect is not None)


@dataclass(frozen=True)
class PlannedBundle:
    """One bundle: the variants of one target, best first."""

    profile: Profile
    variants: tuple[PlannedVariant, ...]
    unused: tuple[Unused, ...]
    """As far as it is known before anything runs."""
    most: int | None = None
    """How many variants are shipped, the best ones; None ships all."""


@dataclass(frozen=True)
class Plan:
    """Everything a build will do, for one or more targets; shared steps occur once."""

    sources: tuple[SourceFile, ...]
    steps: tuple[PlannedStep, ...]
    """The steps, each after those that it needs."""
    bundles: tuple[PlannedBundle, ...]
    before: tuple[str, ...] = ()
    """How the model was made of the user's before this was planned, a line for each step."""

    @property
    def library(self) -> SourceFile | None:
        """The library of custom operators that models need on this machine, where they do."""
        return next((s for s in self.sources if s.id == find_library_source()), None)

    @property
    def library_path(self) -> Path | None:
        """Where it is."""
        return self.library.path if self.library else None

    @property
    def digest(self) -> str:
        """Sha256 over sources, settings and outputs; paths do not count."""
        return _compute_digest(
            {
                "sources": {source.id: source.digest for source in self.sources},
                "steps": [
                    {"id": s.id, "inputs": dict(s.inputs), **find_settings(s.step)}
                    for s in self.steps
                ],
                "bundles": [hash_bundle(bundle) for bundle in self.bundles],
            }
        )

    def only(self, wanted: Collection[str]) -> Plan:
        """Return the plan of only these steps and all that they need; it makes no bundle."""
        needed = self.find_needed(wanted)
        return Plan(self.sources, tuple(s for s in self.steps if s.id in needed), (), self.before)

    def find_needed(self, wanted: Collection[str]) -> set[str]:
        """Return the ids of these steps and of all that they need."""
        by_id = {step.id: step for step in self.steps}
        needed: set[str] = set()
        waiting = list(wanted)
        while waiting:
            step_id = waiting.pop()
            if step_id in by_id and step_id not in needed:
                needed.add(step_id)
                waiting += by_id[step_id].inputs.values()
        return needed

    @property
    def needed_by_all(self) -> set[str]:
        """The steps without which no bundle would have any variant."""
        needs = [self.find_needed(v.steps) for bundle in self.bundles for v in bundle.variants]
        return set.intersection(*needs) if needs else {step.id for step in self.steps}

    def describe(self) -> Iterator[str]:
        """Yield the plan as lines of text."""
        for source in self.sources:
            yield f"source  {source.id:24} {source.path}"
        for line in self.before:
            yield f"before  {line}"
        for step in self.steps:
            needs = ", ".join(f"{name}={origin}" for name, origin in step.inputs.items())
            yield f"step    {step.id:24} from {needs}"
        for bundle in self.bundles:
            for variant in bundle.variants:
                why = f" ({variant.offered})" if variant.offered else ""
                made = f"{variant.variant.id} from {variant.shipped}{why}"
                yield f"bundle  {bundle.profile.id:24} {made}"
            for unused in bundle.unused:
                yield f"bundle  {bundle.profile.id:24} {unused.stage} {unused}"
            if bundle.most is not None and len(bundle.variants) > bundle.most:
                yield f"bundle  {bundle.profile.id:24} ships {bundle.most} of them, the best"


def hash_profile(profile: Profile) -> str:
    """Return the sha256 of a profile as JSON with sorted keys."""
    return _compute_digest(profile.model_dump(mode="json"))


def hash_bundle(bundle: PlannedBundle) -> str:
    """Return a digest of what decides one bundle besides its files."""
    return _compute_digest(
        {
            "profile": bundle.profile.model_dump(mode="json"),
            "variants": [(v.variant.id, v.shipped, *v.steps, *v.beside) for v in bundle.variants],
        }
    )


def _compute_digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


@dataclass
class PlanBuilder:
    """Collects sources and steps; adding the same step twice gives the same id."""

    sources: dict[str, SourceFile] = field(default_factory=dict)
    steps: dict[str, PlannedStep] = field(default_factory=dict)
    before: tuple[str, ...] = ()

    def add_source(self, source_id: str, path: Path, digest: str) -> str:
        """Add a source and return its id."""
        self.sources[source_id] = SourceFile(source_id, path, digest)
        return source_id

    def add_step(self, step: Step, **inputs: str | None) -> str:
        """Add a step and return its id: its name and eight digits of all that decides it.

        Inputs that are None are left out.
        """
        given = {name: origin for name, origin in inputs.items() if origin is not None}
        digests = {
            name: self.sources[origin].digest if origin in self.sources else origin
            for name, origin in given.items()
        }
        step_id = f"{step.name}-{_compute_digest({**find_settings(step), 'inputs': digests})[:8]}"
        self.steps.setdefault(step_id, PlannedStep(step_id, step, given))
        return step_id

    def make_plan(self, bundles: list[PlannedBundle]) -> Plan:
        """Return the finished plan."""
        return Plan(
            tuple(self.sources.values()), tuple(self.steps.values()), tuple(bundles), self.before
        )
