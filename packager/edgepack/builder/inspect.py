"""``edgepack inspect``: facts of a model, and per variant the nodes that its provider refuses."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from edgepack.backends.base import PredictedPlacement
from edgepack.backends.registry import find_backend
from edgepack.backends.targets import choose_targets, load_target, read_project_targets
from edgepack.base.processes import Workers
from edgepack.base.progress import Progress, Silent
from edgepack.builder.cache import open_own_cache
from edgepack.builder.cleaning import clean_source, read_source_facts
from edgepack.builder.custom_ops import find_libraries, find_machine, require_loading
from edgepack.builder.inputs import plan_inputs
from edgepack.builder.memory import Subject, count_default_jobs, estimate_bytes
from edgepack.builder.offering import find_named_targets, offer_int8_dynamic
from edgepack.builder.plan import Plan, PlannedStep
from edgepack.builder.planner import Draft, draft_models
from edgepack.builder.sources import convert_source, describe_conversion
from edgepack.bundle.unused import Unused, make_failed
from edgepack.errors import EdgepackError, ModelError, StepError
from edgepack.model.checking import check_carrying, check_session, run_checker
from edgepack.model.custom_ops import registered
from edgepack.model.deciding import find_shape_inputs
from edgepack.model.facts import ModelFacts
from edgepack.model.files import MODEL
from edgepack.model.finding import Finding
from edgepack.model.workload import find_activation_sizes
from edgepack.project.loading import LoadedProject, find_project
from edgepack.project.profile import Profile, Variant
from edgepack.project.project import ConstantValue
from edgepack.steps.base import draft_step, run_step
from edgepack.steps.graph.placed import predict_placement
from edgepack.steps.graph.prepared import Prepared
from edgepack.steps.proofs.layer_errors import LayerErrors
from edgepack.steps.recipes.calibration import Calibration
from edgepack.steps.recipes.fp32 import Fp32
from edgepack.steps.recipes.recipes import RECIPES


@dataclass(frozen=True)
class VariantInspection:
    """What one variant of a target would make of the model."""

    target: str
    variant: str
    provider: str
    nodes: int
    """The number of nodes of the variant's model, quantized and rewritten; 0 where it cannot be
    made."""
    taken: int
    """Those that the provider takes, as predicted."""
    partitions: int
    needed: float
    """The share of nodes, 0 to 1, that the variant's placement requires."""
    unused: Unused | None
    """Why a build would not ship it, as far as that is known without samples."""
    findings: tuple[Finding, ...]


@dataclass(frozen=True)
class Inspection:
    """Facts and findings of one model."""

    facts: ModelFacts
    findings: tuple[Finding, ...]
    """Findings that apply to all variants."""
    variants: tuple[VariantInspection, ...]
    constants: Mapping[str, ConstantValue] = field(default_factory=dict)
    """Inputs that the project makes constants."""
    converted: tuple[str, ...] = ()
    """Of a model that was not ONNX: what became of each input and output, a line each."""
    memory_bytes: int = 0
    """The estimated memory of a build for these targets with the default number of jobs; 0 where no
    build is possible."""
    made: tuple[str, ...] = ()
    """How the inspected model is made of the user's before a build is planned, a line a step."""


def inspect(
    model: Path | None = None,
    targets: Sequence[str] = (),
    *,
    project: Path | None = None,
    python: str | None = None,
    progress: Progress | None = None,
) -> Inspection:
    """Return facts of a model, and what each variant of the targets would make of it.

    The variants are those of the targets given, of the project's, or of ``host``. The checked graph
    is, to the byte, the one that a build of the project without its samples would check, but it is
    not proven. Where there are several sizes, it is the model of the largest. For int8-static,
    which needs samples, it is the graph with which a build would begin its search, with placeholder
    ranges: all operators that can be quantized are. With samples a build may leave nodes in float
    that count here as fp16 or int8. All libraries run in separate processes, so that a model that
    crashes them becomes a finding, too.

    Raises:
        ModelError: The file cannot be read as a model.
        UsageError: There is no such target.
        ProfileError: The project file or a profile is wrong.
    """
    progress = progress or Silent()
    loaded = convert_source(find_project(model, project), open_own_cache(), progress, python)
    profiles = [*choose_targets(loaded, targets)] or [*read_project_targets(loaded)]
    library = find_libraries(loaded).get(find_machine())
    with Workers(1) as workers:
        require_loading(loaded, library, workers)
        loaded, unclean = _clean(loaded)
        findings = [*workers.call(run_checker, loaded.model_path)]
        blocked = workers.call(check_session, loaded.model_path, library) or unclean
        facts = read_source_facts(loaded)
        inputs = plan_inputs(loaded, facts)
        blocked = blocked or check_carrying(facts)
        variants: list[VariantInspection] = []
        memory_bytes = 0
        if not blocked:
            samples, fixed = loaded.project.samples, tuple(loaded.project.constants)
            findings += workers.call(find_shape_inputs, loaded.model_path, fixed)
            if samples.calibration is None and samples.evaluation is None:
                findings += workers.call(
                    find_random_failures, loaded.model_path, inputs.prepared, library
                )
            asked = profiles or [load_target("host")]
            named = find_named_targets(loaded)
            asked, _ = offer_int8_dynamic(loaded.model_path, facts, asked, named, workers)
            sizes, steps = loaded.project.largest_dims, _list_steps(asked, facts)
            subject = Subject(loaded.model_path, sizes, facts.initializer_bytes, steps)
            found = workers.call(find_activation_sizes, subject.path, subject.sizes)
            memory_bytes = estimate_bytes(subject, found, count_default_jobs())
            variants = workers.call(inspect_drafts, *draft_models(inputs, asked))
    constant = loaded.project.constants
    return Inspection(
        facts,
        (*findings, *blocked),
        tuple(variants),
        constant,
        describe_conversion(loaded, facts),
        memory_bytes,
        made=loaded.model_history,
    )


def _clean(loaded: LoadedProject) -> tuple[LoadedProject, list[Finding]]:
    """Return the project with a cleaned model, or as it is with why it cannot be cleaned."""
    try:
        return clean_source(loaded, open_own_cache(), Silent()), []
    except (ModelError, StepError) as error:
        return loaded, [Finding("edgepack", "blocks", "", error.problem, error.hint)]


def _list_steps(profiles: Sequence[Profile], facts: ModelFacts) -> frozenset[str]:
    """Return the recipes that a build with samples would have, and the large steps beside them."""
    if facts.quantization is not None:
        return frozenset({Fp32.name})
    recipes = {variant.recipe for profile in profiles for variant in profile.variants}
    observed = any(RECIPES[recipe].observer for recipe in recipes)
    beside = {Calibration.name, LayerErrors.name} if observed else set()
    return frozenset(recipes | beside)


def find_random_failures(
    model: Path, prepared: Prepared, library: Path | None = None
) -> list[Finding]:
    """Return a blocking finding if a build without samples would stop at random inputs."""
    with tempfile.TemporaryDirectory(prefix="edgepack-inspect-") as folder:
        try:
            run_step(prepared, {"source": model}, Path(folder), library)
        except EdgepackError as error:
            problem = f"a build without samples stops: {error.problem}"
            return [Finding("edgepack", "blocks", "", problem, error.hint)]
    return []


def inspect_drafts(plan: Plan, drafts: Sequence[Draft]) -> list[VariantInspection]:
    """Return what every variant of the targets would make of a model; called in a worker.

    Args:
        plan: The steps that make the models.
        drafts: The variants.
    """
    steps = {step.id: step for step in plan.steps}
    folders = tempfile.TemporaryDirectory(prefix="edgepack-inspect-")
    with folders as folder, registered(plan.library_path):
        made: dict[str, Path | EdgepackError] = {each.id: each.path for each in plan.sources}
        making = _Making(steps, Path(folder), made)
        return [_inspect_variant(making, draft) for draft in drafts]


@dataclass
class _Making:
    """Runs each step once in its own folder, without its proofs."""

    steps: Mapping[str, PlannedStep]
    folder: Path
    made: dict[str, Path | EdgepackError]
    """The path of each source and of each step's output, or why the step failed."""
    placed: dict[str, PredictedPlacement] = field(default_factory=dict)

    def predict(self, step_id: str, variant: Variant) -> PredictedPlacement:
        """Return where the nodes of a step's model are predicted to run in a variant."""
        key = f"{step_id} {variant!r}"
        if key not in self.placed:
            self.placed[key] = predict_placement(self.make_output(step_id) / MODEL, variant)
        return self.placed[key]

    def make_output(self, origin: str) -> Path:
        """Return the output of a source or step.

        Raises:
            EdgepackError: The step failed, or one that it needs.
        """
        if origin not in self.made:
            self.made[origin] = self._run_step(self.steps[origin])
        made = self.made[origin]
        if isinstance(made, EdgepackError):
            raise made
        return made

    def _run_step(self, planned: PlannedStep) -> Path | EdgepackError:
        out = Path(tempfile.mkdtemp(dir=self.folder))
        try:
            inputs = {name: self.make_output(origin) for name, origin in planned.inputs.items()}
            draft_step(planned.step, inputs, out)
        except EdgepackError as error:
            return error
        return out


def _inspect_variant(making: _Making, draft: Draft) -> VariantInspection:
    variant, placement, unused = draft.variant, PredictedPlacement((), 0), draft.unused
    if draft.planned is not None:
        try:
            placement = making.predict(draft.planned.judged, draft.planned.variant)
        except EdgepackError as error:
            unused = make_failed(variant.id, error)
    provider, taken = find_backend(variant).provider, placement.share
    # A build checks only the other backends: the CPU takes every node, even of an empty graph.
    enough = variant.backend == "cpu" or taken >= _find_least_placement(variant)
    if not unused and not enough:
        reason = (
            f"{provider} takes {taken:.0%} of the nodes,"
            f" {_find_least_placement(variant):.0%} are needed"
        )
        unused = Unused(variant=variant.id, stage="refused", reason=reason)
    findings = tuple(
        Finding(
            variant.backend,
            "falls-back" if enough else "blocks",
            str(placed.node),
            placed.refusal.reason,
            placed.refusal.remedy,
        )
        for placed in placement.nodes
        if placed.refusal is not None
    )
    return VariantInspection(
        target=draft.profile.id,
        variant=variant.id,
        provider=provider,
        nodes=len(placement.nodes),
        taken=len(placement.nodes) - len(findings),
        partitions=placement.partitions,
        needed=_find_least_placement(variant),
        unused=unused,
        findings=findings,
    )


def _find_least_placement(variant: Variant) -> float:
    return 1.0 if variant.placement == "all" else variant.placement
