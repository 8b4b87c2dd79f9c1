"""Plans the steps that make a variant's model from the user's."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from edgepack.backends.registry import find_backend
from edgepack.backends.simulators import find_backend_simulator
from edgepack.base.machine import find_processor
from edgepack.base.schema import NotMeasured
from edgepack.builder.inputs import PlanInputs
from edgepack.builder.plan import (
    CONVERTED_SOURCE,
    FRAMEWORK_SOURCE,
    MODEL_SOURCE,
    PROJECT_SOURCE,
    PlanBuilder,
)
from edgepack.builder.sample_plan import PlannedSamples, plan_tokenizers
from edgepack.builder.shapes import add_shape_profiles
from edgepack.model.facts import TensorSpec
from edgepack.model.simulating import Simulation, Simulator
from edgepack.project.inputs import ImageInput
from edgepack.project.limits import AccuracyLimits
from edgepack.project.profile import Profile, Variant
from edgepack.project.samples import PythonMetric
from edgepack.quantization.search.outside import Outside
from edgepack.steps.base import Step
from edgepack.steps.graph.attention import FusedAttention
from edgepack.steps.graph.opset import AtLeastOpset, AtMostOpset
from edgepack.steps.graph.prepared import fix_sizes
from edgepack.steps.graph.rewritten import Rewritten, choose_rewrites
from edgepack.steps.graph.simplified import Simplified
from edgepack.steps.in_graph.in_graph import InGraph
from edgepack.steps.in_graph.preprocessing import OPSET as OPSET_OF_PICTURES
from edgepack.steps.proofs.framework import FrameworkProof
from edgepack.steps.proofs.golden_choice import GoldenChoice
from edgepack.steps.proofs.reference import ReferenceProof
from edgepack.steps.recipes.bucketed import Bucketed, find_bucket_dims, has_static_shapes
from edgepack.steps.recipes.kind import Asked, Given, LimitSearch
from edgepack.steps.recipes.recipes import RECIPES

GOLDEN_COUNT = 4
_PICTURE_RANK = 3
"""The fewest axes of a uint8 input with pictures: with fewer axes the input has bytes."""


@dataclass(frozen=True)
class PlannedModel:
    """The steps that a variant's model goes through."""

    variant: Variant
    """The variant, with shape profiles where the provider takes them."""
    reference: str
    """The step whose fp32 model takes the same inputs."""
    tensor_reference: str
    """The same step before preprocessing is put into the graph."""
    recipe: str
    """The step that changes the number format; its model takes tensors."""
    model: str
    """The finished model, with symbolic dimensions if it has some."""
    bucketed: str | None
    """The step that makes one model per size; None for a single model."""
    history: tuple[str, ...]
    """The steps up to ``model``, in order."""
    simulation: Simulation | NotMeasured | None
    """How it is simulated, or why not; None where no vendor has a simulator."""
    unfused: str | None = None
    """The finished model without fused attention; None where it has none."""

    @property
    def judged(self) -> str:
        """The step whose ``model.onnx`` decides where nodes run: the largest of several sizes."""
        return self.bucketed or self.model


@dataclass(frozen=True)
class ModelSteps:
    """Adds the steps that make models to a plan; variants share equal steps."""

    inputs: PlanInputs
    samples: PlannedSamples
    builder: PlanBuilder
    simulate_s: float = 0.0
    """How long a simulator may compute the samples of one model; 0 asks none."""
    proofs: bool = True
    """Whether to prove the models; if not, steps that only proofs need are left out."""

    def add(self, profile: Profile, variant: Variant) -> PlannedModel:
        """Add the steps of one variant's model."""
        static = has_static_shapes(variant, self.inputs.project.buckets)
        if not static:
            variant = add_shape_profiles(variant, self.inputs.signature, self.inputs.project)
        tensor_reference, before = self._add_float_steps(profile, variant)
        simulation = self._find_simulation(variant, static=static)
        steps = [*before, *self._add_recipe_steps(profile, variant, before, simulation)]
        reference, recipe = tensor_reference, steps[-1]
        if self.inputs.in_graph:
            reference = self._add_in_graph(reference)
            steps.append(self._add_in_graph(recipe))
        if last := choose_rewrites(find_backend(variant).last_rewrites, self._ops):
            steps.append(self._add_change(Rewritten(last), steps[-1], self.samples.probes))
        return PlannedModel(
            variant=variant,
            reference=reference,
            tensor_reference=tensor_reference,
            recipe=recipe,
            model=steps[-1],
            bucketed=self._add_bucketed(variant, steps[-1], reference) if static else None,
            history=(*self._add_framework_proof(), *self._add_reference_proofs(), *steps),
            simulation=simulation,
            unfused=self._add_unfused(profile, variant),
        )

    def _add_unfused(self, profile: Profile, variant: Variant) -> str | None:
        """Add the steps of the model that one with fused attention is timed against."""
        if not (variant.fused_attention and self.proofs):
            return None
        return self.add(profile, variant.model_copy(update={"fused_attention": False})).model

    def add_choice(self, reference: str) -> str:
        """Add the step that chooses the samples for goldens."""
        step = GoldenChoice(GOLDEN_COUNT, find_processor())
        return self.builder.add_step(step, model=reference, **self.golden_samples)

    @property
    def _ops(self) -> Collection[str]:
        """The operators of the model as it came, by which rewrites are chosen."""
        return self.inputs.facts.op_counts

    @property
    def golden_samples(self) -> dict[str, str | None]:
        """The samples for goldens, by whether they are the user's."""
        return {"samples" if self.samples.real else "made": self.samples.probes}

    def _add_framework_proof(self) -> Iterator[str]:
        """Add the step that proves a conversion, and yield it: without it there is no variant."""
        converted = self.inputs.loaded.converted
        if converted is not None and self.proofs:
            yield self.builder.add_step(
                FrameworkProof(converted.conversion, self.inputs.constants),
                source=FRAMEWORK_SOURCE,
                converted=CONVERTED_SOURCE,
                samples=self.samples.tensors,
            )

    def _add_reference_proofs(self) -> Iterator[str]:
        """Add the steps that compare the model with what its framework gave, and yield them."""
        for samples in self.samples.references if self.proofs else ():
            step = ReferenceProof(self.inputs.constants)
            yield self.builder.add_step(step, source=MODEL_SOURCE, samples=samples)

    def _add_change(self, step: Step, model: str, samples: str | None) -> str:
        return self.builder.add_step(step, model=model, samples=samples)

    def _add_float_steps(self, profile: Profile, variant: Variant) -> tuple[str, list[str]]:
        """Add the steps before quantization; return the fp32 reference, and all steps in order.

        All targets share them, except where a runtime is older than the model's opset, or a backend
        needs rewrites of the graph.
        """
        samples = self.samples.tensors
        first = self.inputs.prepared
        steps = [self.builder.add_step(first, source=MODEL_SOURCE, samples=self.samples.frames)]
        if self.inputs.in_graph:
            steps.append(self._add_change(AtLeastOpset(OPSET_OF_PICTURES), steps[-1], samples))
        reference, highest = steps[-1], profile.runtime.max_opset
        if self.inputs.facts.opset > highest:
            steps.append(self._add_change(AtMostOpset(highest), reference, samples))
        backend = find_backend(variant)
        early = choose_rewrites(backend.early_rewrites, self._ops)
        for change in (
            Rewritten(early) if early else None,
            self._choose_simplification(variant),
            Rewritten(backend.rewrites) if backend.rewrites else None,
        ):
            if change is not None:
                steps.append(self._add_change(change, steps[-1], samples))
        return reference, steps

    def _choose_simplification(self, variant: Variant) -> FusedAttention | Simplified:
        """Return the step that simplifies the graph, with attention fused where it is asked for."""
        if variant.fused_attention:
            return FusedAttention()
        # Other recipes make constants small again that come out large.
        facts = self.inputs.facts
        kept = facts.has_narrow_weights and (facts.quantization or variant.recipe == "fp32")
        return Simplified(grows=not kept)

    def _add_recipe_steps(
        self,
        profile: Profile,
        variant: Variant,
        before: list[str],
        simulation: Simulation | NotMeasured | None,
    ) -> Iterator[str]:
        """Add the steps that change the number format, and yield them in order.

        A model that is quantized already is carried as it is.
        """
        model = before[-1]
        kind = RECIPES["fp32" if self.inputs.facts.quantization else variant.recipe]
        asked = Asked(
            profile,
            variant,
            self.inputs.facts.op_counts,
            self.inputs.scores_output,
            self._make_limit_search(profile, simulation),
            choose_changed_inputs(self.inputs),
        )
        given: dict[Given, str | None] = {
            "probes": self.samples.tensors,
            "calibration": self.samples.calibration,
        }
        for step in kind.before(asked):
            yield (model := self._add_change(step, model, self.samples.tensors))
        if kind.observer:
            observer = kind.observer(asked)
            statistics = self._add_change(observer, model, self.samples.calibration)
            given["statistics"] = statistics
            yield statistics
        for step in kind.after(asked):
            yield (model := self._add_change(step, model, self.samples.tensors))
        if asked.search:
            given["prepared"] = before[0]
            given["evaluation"] = self.samples.evaluation
            hooked = isinstance(asked.search.metric, PythonMetric)
            given["metric"] = PROJECT_SOURCE if hooked else None
        taken = {name: given.get(what) for name, what in kind.given.items()}
        yield self.builder.add_step(kind.step(asked), model=model, **taken)

    def _make_limit_search(
        self, profile: Profile, simulation: Simulation | NotMeasured | None
    ) -> LimitSearch | None:
        """Return what the search for a model has to reach: the limits of what is lost, if any."""
        project = self.inputs.project
        source = project.samples.evaluation
        limits = self.inputs.loaded.find_limits(profile.id).accuracy
        if limits == AccuracyLimits() or source is None:
            return None
        return LimitSearch(
            limits=limits,
            metric=source.metric,
            interpreter=project.interpreter,
            described=self.inputs.described,
            state=self.inputs.state_pairs,
            simulation=simulation if isinstance(simulation, Simulation) else None,
        )

    def _find_simulation(
        self, variant: Variant, *, static: bool
    ) -> Simulation | NotMeasured | None:
        """Return how a variant is simulated, or why not; None where no vendor has a simulator."""
        simulator = find_backend_simulator(find_backend(variant))
        if not isinstance(simulator, Simulator):
            return simulator
        if not self.simulate_s:
            return NotMeasured(reason="the build was to simulate nothing")
        dims = find_bucket_dims(self.inputs.signature, self.inputs.project.buckets)
        if (static and dims) or self.inputs.has_foreign_operators:
            return NotMeasured(
                reason="models of several sizes, or with operators that are not onnxruntime's own,"
                " are not simulated"
            )
        first, config = variant.providers[0], variant.session.config
        options = tuple(sorted(first.options.items()))
        settings = tuple(sorted(config.items()))
        return Simulation(simulator, first.name, options, settings, self.simulate_s)

    def _add_in_graph(self, model: str) -> str:
        """Add the step that lets a model take pictures and texts."""
        project = self.inputs.project
        described = tuple(project.pictures.items()), tuple(project.texts.items())
        step = InGraph(self.inputs.signature, *described)
        tokenizers = plan_tokenizers(self.inputs, self.builder)
        return self.builder.add_step(step, model=model, samples=self.samples.probes, **tokenizers)

    def _add_bucketed(self, variant: Variant, model: str, reference: str) -> str | None:
        """Add the step that makes a model for each size; None where all sizes are fixed."""
        dims = find_bucket_dims(self.inputs.signature, self.inputs.project.buckets)
        if not dims:
            return None
        described = self.inputs.project.inputs.items()
        step = Bucketed(
            dims=dims,
            same_db=RECIPES[variant.recipe].padded_db,
            fills=tuple((name, d.pad) for name, d in described if d.pad),
            masks=tuple((name, d.mask) for name, d in described if d.mask is not None),
            shared=not find_backend(variant).inline_weights,
        )
        choice = self.add_choice(reference) if self.proofs else None
        return self.builder.add_step(step, model=model, choice=choice, samples=self.samples.probes)


def needs_calibration(inputs: PlanInputs, variant: Variant) -> bool:
    """Return whether a variant needs calibration; a model that is quantized already does not."""
    return inputs.facts.quantization is None and RECIPES[variant.recipe].needs_calibration


def choose_changed_inputs(inputs: PlanInputs) -> Outside:
    """Return the inputs to change: floats and pictures that are neither masks nor state."""
    project = inputs.project
    changed: list[tuple[str, ImageInput | None]] = []
    fed = {name for _, name in inputs.state_pairs}
    for spec in inputs.facts.inputs:
        description = project.inputs.get(spec.name)
        is_mask = description is not None and description.mask is not None
        if _has_values(spec) and not is_mask and spec.name not in fed:
            changed.append((spec.name, description.image if description else None))
    sizes = {name: (each[0], each[-1]) for name, each in project.buckets.items()}
    sizes |= {name: (span.min, span.max) for name, span in project.spans.items()}
    signature = fix_sizes(inputs.facts.inputs, inputs.dims)
    return Outside(tuple(changed), signature, tuple(sorted(sizes.items())))


def _has_values(spec: TensorSpec) -> bool:
    """Return whether an input holds floats, or a picture of uint8; ids and bytes are neither."""
    is_picture = spec.dtype == "uint8" and len(spec.shape or ()) >= _PICTURE_RANK
    return spec.dtype.startswith("float") or is_picture
