"""Makes a plan from a project and profiles. It hashes the user's files and runs nothing."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from edgepack.apps.names import (
    require_assets,
    require_other_than_library,
    require_types,
    require_version,
)
from edgepack.apps.npm import require_npm
from edgepack.backends.registry import find_backend
from edgepack.backends.sessions import make_host_config
from edgepack.backends.simulators import find_backend_simulator
from edgepack.base.machine import find_processor
from edgepack.base.schema import NotMeasured
from edgepack.builder.carrying import Carrying
from edgepack.builder.custom_ops import add_library_sources, explain_missing_library
from edgepack.builder.extensions import add_extensions, explain_missing_extensions
from edgepack.builder.float32_only import explain_float32_only
from edgepack.builder.inputs import PlanInputs, plan_inputs
from edgepack.builder.model_plan import (
    ModelSteps,
    PlannedModel,
    choose_changed_inputs,
    needs_calibration,
)
from edgepack.builder.offering import Offers
from edgepack.builder.plan import (
    CONVERTED_SOURCE,
    FRAMEWORK_SOURCE,
    MODEL_SOURCE,
    PROJECT_SOURCE,
    Plan,
    PlanBuilder,
    PlannedBundle,
    PlannedVariant,
)
from edgepack.builder.sample_plan import NO_SAMPLES, PlannedSamples, plan_samples
from edgepack.bundle.unused import Unused
from edgepack.errors import EdgepackError, ProfileError, UsageError
from edgepack.model.facts import ModelFacts
from edgepack.model.running import is_saturating
from edgepack.model.simulating import Simulation, Simulator
from edgepack.project.loading import LoadedProject
from edgepack.project.outputs import DetectionOutput
from edgepack.project.profile import OrtFormat, Profile, Recipe, Variant
from edgepack.project.samples import PythonMetric
from edgepack.steps.graph.attention import INSTALL, NEEDED, can_fuse
from edgepack.steps.graph.compiled import Compiled
from edgepack.steps.graph.fusion import Fusion
from edgepack.steps.graph.ort_format import REPLAY, AsOrt
from edgepack.steps.graph.placed import Placed
from edgepack.steps.in_graph.preprocessing import OPSET as OPSET_OF_PICTURES
from edgepack.steps.proofs.evaluation import Evaluation
from edgepack.steps.proofs.goldens import Goldens
from edgepack.steps.proofs.input_check import InputCheck
from edgepack.steps.proofs.layer_errors import LayerErrors
from edgepack.steps.proofs.outside import OutsideErrors
from edgepack.steps.proofs.read_answers import ReadAnswers
from edgepack.steps.proofs.reference_answers import ReferenceAnswers
from edgepack.steps.proofs.simulated import Simulated
from edgepack.steps.recipes.bucketed import find_static_problem, has_static_shapes
from edgepack.steps.recipes.recipes import RECIPES
from edgepack.steps.samples import ImageSamples

LAYER_SAMPLES = 16
"""Samples over which the error of each node is found."""
SIMULATE_S = 120.0
"""Seconds of each variant's evaluation samples in a simulator, if the user does not say."""


def make_plan(
    loaded: LoadedProject,
    facts: ModelFacts,
    profiles: Sequence[Profile],
    variants: Sequence[str] = (),
    offers: Offers | None = None,
    simulate_s: float = SIMULATE_S,
) -> Plan:
    """Return the plan of a build for the given targets, or for only some of their variants.

    ``offers`` says which of the variants were added to the profiles, and why; a variant that is
    requested by name counts like any other. ``simulate_s`` is how long a variant may compute
    evaluation samples in its provider's simulator; 0 simulates nothing.

    Raises:
        ModelError: The language of a phone's apps has no type for an input or output.
        UsageError: A requested variant does not exist, or cannot be built.
        ProfileError: The project names a variant that cannot be built, an input that the model does
            not have, or an invalid glob; a file of it is missing, or cannot be in an app; a
            phone's package managers do not take its version; or it is called as the runtime
            library.
        SamplesError: A source of samples is missing or empty.
    """
    inputs = plan_inputs(loaded, facts)
    builder = _make_builder(inputs)
    samples = plan_samples(inputs, builder)
    facts = inputs.facts
    for profile in profiles:
        require_types(profile, (*facts.inputs, *facts.outputs))
        require_assets(profile, loaded.project.files)
        require_version(profile, loaded.project.version)
        require_other_than_library(loaded.project, profile)
    require_npm(loaded.project, profiles)
    offered = offers if offers and not variants else {}
    planner = _Planner(inputs, samples, builder, offered, simulate_s)
    return builder.make_plan([planner.plan_bundle(profile, variants) for profile in profiles])


@dataclass(frozen=True)
class Draft:
    """One variant of a target as a build would make it."""

    profile: Profile
    variant: Variant
    planned: PlannedModel | None
    """None where it cannot be planned, whatever samples there are."""
    unused: Unused | None
    """Why a build does not make it; above all because there are no samples."""


def draft_models(inputs: PlanInputs, profiles: Sequence[Profile]) -> tuple[Plan, tuple[Draft, ...]]:
    """Return the steps that make the models of all variants, and which step makes each's.

    They are those of a build of the project without its samples: none is proven, and none needs
    samples to be done by :func:`~edgepack.steps.base.draft_step`. They include variants that a
    build refuses because there are no samples.
    """
    builder = _make_builder(inputs)
    models = ModelSteps(inputs, NO_SAMPLES, builder, proofs=False)
    drafts = []
    for profile in profiles:
        not_carrying = _find_not_carrying(inputs, profile.variants)
        for variant in profile.variants:
            unused = (
                _find_old_runtime(inputs, profile, variant)
                or not_carrying.get(variant.id)
                or _find_obstacle(inputs, profile, variant)
            )
            planned = None if unused else models.add(profile, variant)
            drafts.append(
                Draft(
                    profile, variant, planned, unused or _find_lack_of_calibration(inputs, variant)
                )
            )
    return builder.make_plan([]), tuple(drafts)


def _make_builder(inputs: PlanInputs) -> PlanBuilder:
    builder = PlanBuilder(before=inputs.loaded.model_history)
    builder.add_source(MODEL_SOURCE, inputs.loaded.model_path, inputs.facts.sha256)
    builder.add_source(PROJECT_SOURCE, inputs.loaded.folder, "")
    add_library_sources(inputs.libraries, builder)
    if converted := inputs.loaded.converted:
        builder.add_source(FRAMEWORK_SOURCE, converted.source, converted.digest)
        builder.add_source(CONVERTED_SOURCE, converted.folder, converted.folder_digest)
    return builder


def _find_old_runtime(inputs: PlanInputs, profile: Profile, variant: Variant) -> Unused | None:
    """Return why a target's runtime loads no variant of the model."""
    highest = profile.runtime.max_opset
    if not inputs.in_graph or highest >= OPSET_OF_PICTURES:
        return None
    problem = (
        f"preprocessing in the graph needs opset {OPSET_OF_PICTURES}; the target's runtime loads up"
        f" to {highest}"
    )
    return _make_refusal(variant, problem, "leave preprocess: {in_graph: true} out")


def _find_not_carrying(inputs: PlanInputs, variants: Sequence[Variant]) -> dict[str, Unused]:
    """Return the variants that do not carry a model that is quantized already, by id."""
    quantization = inputs.facts.quantization
    return Carrying(quantization).find_unused(variants) if quantization else {}


def _find_lack_of_calibration(inputs: PlanInputs, variant: Variant) -> Unused | None:
    """Return that a variant lacks calibration samples; a bare model needs a project for them."""
    if inputs.project.samples.calibration is not None or not needs_calibration(inputs, variant):
        return None
    if explain_float32_only(inputs.facts, variant):  # samples would not help
        return None
    how = f"{format_init_command(inputs.loaded)}, or " if inputs.loaded.source is None else ""
    hint = f"{how}add to edgepack.yaml: samples: {{calibration: {{path: samples.npz}}}}"
    return _make_refusal(variant, "it needs calibration samples", hint)


def _find_obstacle(inputs: PlanInputs, profile: Profile, variant: Variant) -> Unused | None:
    """Return what prevents a variant from being made, whatever samples there are."""
    if problem := explain_float32_only(inputs.facts, variant):
        return _make_refusal(variant, problem, "use the fp32 variants")
    sizes = inputs.project.buckets
    static = has_static_shapes(variant, sizes)
    if static and (problem := find_static_problem(variant, inputs.signature, sizes)):
        return _make_refusal(variant, problem, "see 'dims' in edgepack.yaml")
    if variant.fused_attention and (found := _find_fusing_problem(inputs)):
        return _make_refusal(variant, *found)
    extensions = inputs.extensions
    if extensions and (problem := explain_missing_extensions(extensions, profile, variant)):
        hint = "build without the variant, or leave the operators out"
        return _make_refusal(variant, problem, hint)
    libraries = inputs.libraries
    if libraries and (problem := explain_missing_library(libraries, profile, variant)):
        return _make_refusal(variant, problem, "build without it, or export without the operators")
    return None


def _find_fusing_problem(inputs: PlanInputs) -> tuple[str, str] | None:
    """Return why no attention can be fused, and what to do."""
    if inputs.facts.quantization is not None:
        return "the model is quantized already", "leave fused_attention out"
    if not has_attention(inputs.facts):
        return "the model has no attention: no Softmax of products", "leave fused_attention out"
    if not can_fuse():
        return f"onnxruntime's transformer optimizer needs {NEEDED}", INSTALL
    return None


def has_attention(facts: ModelFacts) -> bool:
    """Return whether a model has the operators that attention is made of."""
    return facts.op_counts.get("Softmax", 0) > 0 and facts.op_counts.get("MatMul", 0) > 1


def _make_refusal(variant: Variant, reason: str, hint: str) -> Unused:
    return Unused(variant=variant.id, stage="refused", reason=reason, hint=hint)


@dataclass(frozen=True)
class _Planner:
    """Plans bundles: chooses variants, and adds the steps that prove and ship their models."""

    inputs: PlanInputs
    samples: PlannedSamples
    builder: PlanBuilder
    offers: Offers
    simulate_s: float

    def plan_bundle(self, profile: Profile, wanted: Sequence[str]) -> PlannedBundle:
        """Return the planned bundle of one target."""
        chosen = [profile.find_variant(name) for name in wanted] or profile.variants
        not_carrying = _find_not_carrying(self.inputs, chosen)
        named = bool(wanted) or profile.id in self.inputs.named
        planned, unused = [], []
        for variant in chosen:
            too_old = _find_old_runtime(self.inputs, profile, variant)
            lacking = not_carrying.get(variant.id) or _find_lack_of_calibration(
                self.inputs, variant
            )
            if lacking and named and not too_old:
                raise self._make_unbuildable_error(lacking, wanted)
            if found := too_old or lacking or _find_obstacle(self.inputs, profile, variant):
                unused.append(found)
            else:
                # Fused attention that a project asks for is asked for where it is faster.
                asked = named if not variant.fused_attention else bool(wanted)
                planned.append(self._plan_variant(profile, variant, named=asked))
        size = None if named else profile.bundle
        most = size.variants if size else None
        return PlannedBundle(profile, tuple(planned), tuple(unused), most)

    def _make_unbuildable_error(self, unused: Unused, wanted: Sequence[str]) -> EdgepackError:
        """Return the error for a variant that the user named, on the command line or in YAML."""
        problem = f"variant {unused.variant!r} cannot be built: {unused.reason}"
        otherwise = f"or {unused.hint}"
        if wanted:
            return UsageError(problem, hint=f"leave --variant out, {otherwise}", where="--variant")
        hint = f"remove it from 'variants', {otherwise}"
        return ProfileError(problem, hint=hint, where=self.inputs.loaded.locate("targets"))

    def _find_recipe(self, variant: Variant) -> Recipe:
        """Return the recipe of a variant's numbers: with a model that is carried, the model's."""
        found = self.inputs.facts.quantization
        if found is None:
            return variant.recipe
        return "fp16" if found.form == "float16" else "int8-static"

    @property
    def _carried(self) -> bool:
        return self.inputs.facts.quantization is not None

    def _plan_variant(self, profile: Profile, variant: Variant, *, named: bool) -> PlannedVariant:
        models = ModelSteps(self.inputs, self.samples, self.builder, self.simulate_s)
        made = models.add(profile, variant)
        variant, model, cpu = made.variant, made.model, variant.backend == "cpu"
        self._add_input_check(made.tensor_reference)
        layers = self._add_layer_errors(variant, made.recipe)
        outside = self._add_outside_errors(variant, made)
        fusion = None
        if cpu and RECIPES[variant.recipe].in_pairs:
            fusion = self.builder.add_step(Fusion(profile.device.arch), model=made.recipe)
        # The largest size represents all: what a provider takes does not depend on sizes.
        placed = None if cpu else self.builder.add_step(Placed(variant), model=made.judged)
        variant, as_file = self._add_ort_step(variant, model)
        # What this processor would compute with a file that saturates here, no device does.
        proven = None if _is_saturating(variant) else as_file
        kind = RECIPES[self._find_recipe(variant)]
        goldens = self.builder.add_step(
            Goldens(
                kind.cpu_cap_db if cpu else kind.other_cap_db,
                find_processor(),
                make_session_config(variant) if proven else (),
            ),
            model=model,
            shipped=proven,
            choice=models.add_choice(made.reference),
            **models.golden_samples,
        )
        evaluation = self._add_evaluation(
            None if self._carried else made.reference, proven or model, variant
        )
        return PlannedVariant(
            variant=add_extensions(variant) if self.inputs.extensions else variant,
            model=model,
            shipped=as_file or made.judged,
            goldens=goldens,
            reference=made.reference,
            evaluation=evaluation,
            simulated=self._add_simulated(made, goldens, evaluation),
            compiled=self._add_compiled(variant, made, goldens),
            placed=placed,
            fusion=fusion,
            layers=layers,
            outside=outside,
            history=(*made.history, *(each for each in (made.bucketed, as_file) if each)),
            carried=self._carried,
            offered=self.offers.get((profile.id, variant.id), ""),
            named=named,
            unfused=made.unfused,
            bucketed=made.bucketed,
        )

    def _add_ort_step(self, variant: Variant, model: str) -> tuple[Variant, str | None]:
        """Add the step that writes ORT format, where a variant has it; return its settings too."""
        file_format = variant.model_format
        if not isinstance(file_format, OrtFormat):
            return variant, None
        step = AsOrt(file_format.ort, file_format.platform)
        file = self.builder.add_step(step, model=model, samples=self.samples.probes)
        return (_make_replaying(variant) if file_format.ort == "runtime" else variant), file

    def _add_input_check(self, reference: str) -> None:
        """Add the step that checks for wrong preprocessing, where there are samples."""
        project = self.inputs.project
        evaluation = project.samples.evaluation
        source = evaluation or project.samples.calibration
        if source is None:
            return
        made_here = self.inputs.in_graph or source.images is not None
        made_here |= source.video is not None
        images = [(name, d.image) for name, d in project.inputs.items() if d.image is not None]
        detections = [
            (name, d) for name, d in self.inputs.described if isinstance(d, DetectionOutput)
        ]
        step = InputCheck(
            images=tuple(images) if made_here else (),
            scores_output=self.inputs.scores_output,
            detections=tuple(detections),
            processor=find_processor(),
            called="the model" if self._carried else "fp32",
            state=self.inputs.state_pairs,
            claimed=evaluation.claimed if evaluation else None,
        )
        samples = self.samples.tensors
        made = self.builder.steps[samples] if samples else None
        pictures = made.inputs["source"] if made and isinstance(made.step, ImageSamples) else None
        self.builder.add_step(step, model=reference, samples=samples, pictures=pictures)
        if project.outputs:
            look = ReadAnswers(self.inputs.described, project.input_size, find_processor())
            self.builder.add_step(look, model=reference, samples=samples)

    def _add_layer_errors(self, variant: Variant, model: str) -> str | None:
        """Add the step that compares an int8 model's tensors with those of the float model."""
        if self._carried or not RECIPES[variant.recipe].in_pairs:
            return None
        reference = self.builder.steps[model].inputs["model"]
        step = LayerErrors(LAYER_SAMPLES, find_processor())
        samples = self.samples.tensors
        return self.builder.add_step(step, reference=reference, model=model, samples=samples)

    def _add_outside_errors(self, variant: Variant, made: PlannedModel) -> str | None:
        """Add the step that runs an int8 model on inputs that no sample shows."""
        samples = self.samples.tensors
        if self._carried or samples is None or variant.dialect is None:
            return None
        step, reference = (
            OutsideErrors(choose_changed_inputs(self.inputs), find_processor()),
            made.tensor_reference,
        )
        return self.builder.add_step(step, reference=reference, model=made.recipe, samples=samples)

    def _add_evaluation(self, fp32: str | None, model: str, variant: Variant) -> str | None:
        """Add the step that evaluates a variant, beside the fp32 model if there is one."""
        project = self.inputs.project
        source = project.samples.evaluation
        if self.samples.given is None or source is None:
            return None
        metric = source.metric
        answers = None
        if fp32 is not None:
            step = ReferenceAnswers(find_processor(), self.inputs.state_pairs)
            answers = self.builder.add_step(step, model=fp32, samples=self.samples.given)
        return self.builder.add_step(
            Evaluation(
                metric=metric,
                scores_output=self.inputs.scores_output,
                described=self.inputs.described,
                interpreter=project.interpreter,
                processor=find_processor(),
                config=make_session_config(variant) if variant.backend == "cpu" else (),
                state=self.inputs.state_pairs,
            ),
            reference=fp32,
            answers=answers,
            model=model,
            samples=self.samples.given,
            project=PROJECT_SOURCE if isinstance(metric, PythonMetric) else None,
        )

    def _add_simulated(
        self, made: PlannedModel, goldens: str, evaluation: str | None
    ) -> str | NotMeasured | None:
        """Add the step that runs a variant in its provider's simulator, where one is installed."""
        if not isinstance(made.simulation, Simulation):
            return made.simulation
        evaluated = self.builder.steps[evaluation] if evaluation else None
        # A simulator computes some of the samples, and the answers are those to all.
        given = {**evaluated.inputs} if evaluated else {}
        given.pop("answers", None)
        step = evaluated.step if evaluated else None
        return self.builder.add_step(
            Simulated(
                made.simulation,
                step if isinstance(step, Evaluation) else None,
                find_processor(),
            ),
            **{**given, "model": made.judged, "goldens": goldens},
        )

    def _add_compiled(
        self, variant: Variant, made: PlannedModel, goldens: str
    ) -> str | NotMeasured | None:
        """Add the step that compiles a variant's model, where its provider's compiler is here."""
        if not variant.compiled_for:
            return None
        compiler = find_backend_simulator(find_backend(variant))
        if not isinstance(compiler, Simulator):
            return compiler
        if made.bucketed or self.inputs.has_foreign_operators:
            return NotMeasured(
                reason="models of several sizes, or with operators that are not onnxruntime's own,"
                " are not compiled"
            )
        return self.builder.add_step(
            Compiled(variant, compiler), model=made.judged, goldens=goldens
        )


def format_init_command(loaded: LoadedProject) -> str:
    """Return the line that writes a project for a bare model."""
    return f"edgepack init {shlex.quote(str(loaded.named_model))} --images photos/"


def explain_unsampled(loaded: LoadedProject) -> Iterator[str]:
    """Yield what the figures mean where there are no samples."""
    if loaded.project.samples.calibration or loaded.project.samples.evaluation:
        return
    images = f"{format_init_command(loaded)} for pictures, or " if loaded.source is None else ""
    yield (
        "there are no samples: everything was proven on random inputs, which shows that a device"
        " computes what this host does, and not that the answers are right or what int8 costs;"
        f" give real ones: {images}samples: {{evaluation: {{path: samples.npz}}}} in edgepack.yaml"
    )


def make_session_config(variant: Variant) -> tuple[tuple[str, str], ...]:
    """Return the session config entries of a variant on this machine, sorted."""
    return tuple(sorted(make_host_config(variant).items()))


def _is_saturating(variant: Variant) -> bool:
    form = variant.model_format
    platform = form.platform if isinstance(form, OrtFormat) else None
    return is_saturating(variant.recipe, platform, find_processor())


def _make_replaying(variant: Variant) -> Variant:
    """Return a variant whose session does the optimizations that its file leaves to it."""
    config = {**REPLAY, **variant.session.config}
    session = variant.session.model_copy(update={"config": config})
    return variant.model_copy(update={"session": session})
