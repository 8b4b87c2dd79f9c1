"""From a project and profiles to a plan. Reads digests of the user's files, runs nothing."""

from __future__ import annotations

import hashlib
import os
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from edgepack.apps.names import require_assets, require_types, require_version
from edgepack.backends.registry import BACKENDS
from edgepack.base.machine import processor
from edgepack.builder.carrying import Carrying
from edgepack.builder.constants import holds, project_constants
from edgepack.builder.extensions import extension_operators, with_extensions, without_extensions
from edgepack.builder.in_graph import given_inputs, made_dims
from edgepack.builder.meanings import check_meanings
from edgepack.builder.offering import Offers, named_targets
from edgepack.builder.plan import Plan, PlanBuilder, PlannedBundle, PlannedVariant
from edgepack.builder.shapes import with_shape_profiles
from edgepack.builder.state import project_state
from edgepack.errors import (
    EdgepackError,
    ModelError,
    ProfileError,
    SamplesError,
    UsageError,
    nearest,
)
from edgepack.model.facts import ModelFacts, TensorSpec
from edgepack.ondevice.runtime.edgepack_answers import read_labels
from edgepack.ondevice.runtime.edgepack_images import placement
from edgepack.project.profile import OrtFormat, Profile, Recipe, Variant
from edgepack.project.project import (
    DetectionOutput,
    ImageInput,
    Limits,
    LoadedProject,
    SampleSource,
)
from edgepack.quantization.search.outside import Outside
from edgepack.samples.boxes import label_files
from edgepack.samples.images import image_files
from edgepack.samples.sources import selected_images
from edgepack.steps.comparing import PROBES
from edgepack.steps.graph.fusion import Fusion
from edgepack.steps.graph.opset import AtLeastOpset
from edgepack.steps.graph.ort_format import REPLAY, AsOrt
from edgepack.steps.graph.placed import Placed
from edgepack.steps.graph.prepared import Prepared, fixed_signature, sized
from edgepack.steps.graph.rewritten import Rewritten
from edgepack.steps.graph.simplified import Simplified
from edgepack.steps.graph.unrolled import Unrolled
from edgepack.steps.in_graph.in_graph import InGraph
from edgepack.steps.in_graph.picture_samples import InGraphProbes, TensorSamples
from edgepack.steps.in_graph.pictures import PictureSamples
from edgepack.steps.in_graph.preprocessing import OPSET as OPSET_OF_PICTURES
from edgepack.steps.in_graph.texts import tokenizer_input
from edgepack.steps.proofs.evaluation import Evaluation
from edgepack.steps.proofs.golden_choice import GoldenChoice
from edgepack.steps.proofs.goldens import Goldens
from edgepack.steps.proofs.input_check import InputCheck
from edgepack.steps.proofs.layer_errors import LayerErrors
from edgepack.steps.proofs.outside import OutsideErrors
from edgepack.steps.proofs.read_answers import ReadAnswers
from edgepack.steps.recipes.bucketed import (
    Bucketed,
    bucket_dims,
    static_problem,
    wants_static,
)
from edgepack.steps.recipes.calibration import Calibration
from edgepack.steps.recipes.fp16 import Fp16
from edgepack.steps.recipes.fp32 import Fp32
from edgepack.steps.recipes.int4_weight import Int4Weight
from edgepack.steps.recipes.int8_dynamic import Int8Dynamic
from edgepack.steps.recipes.int8_static import LimitSearch
from edgepack.steps.recipes.recipes import (
    INT8_OPSET,
    OPSET_OF_16_BITS,
    least_opset,
    recipe_step,
    takes_16_bits,
)
from edgepack.steps.samples import ImageSamples, NpzSamples, OnnxTestData, Part, PythonSamples
from edgepack.steps.streams import StatePairs

GOLDEN_COUNT = 4
_PICTURE_RANK = 3
"""Of an input of uint8, at least: with fewer axes it holds bytes."""
LAYER_SAMPLES = 16
"""Samples over which the error of each node is found."""
# How near goldens, which the CPU computes, are met at best: on the CPU of a device, and on other
# providers, which may compute float32 in float16 and round int8 elsewhere.
CPU_CAP_DB = {
    "fp32": 60.0,
    "fp16": 30.0,
    "int8-static": 20.0,
    "int8-dynamic": 20.0,
    "int4-weight": 20.0,
}
OTHER_CAP_DB = {
    "fp32": 30.0,
    "fp16": 30.0,
    "int8-static": 8.0,
    "int8-dynamic": 8.0,
    "int4-weight": 8.0,
}


def make_plan(
    loaded: LoadedProject,
    facts: ModelFacts,
    profiles: Sequence[Profile],
    variants: Sequence[str] = (),
    offers: Offers | None = None,
) -> Plan:
    """Return the plan of a build for the given targets, or for only some of their variants.

    ``offers`` says which of the variants were added to the profiles, and why; one that is asked for
    by name counts as any other.

    Raises:
        ModelError: No target's runtime loads the model's opset, or the language of a phone's apps
            has no type for an input or output.
        UsageError: A variant that was asked for is not there, or cannot be built.
        ProfileError: The project names a variant that cannot be built, an input that the model does
            not have, or a glob that is none; a file of it is not there, or cannot be in an app; or
            a phone's package managers do not take its version.
        SamplesError: A source of samples is missing or empty.
    """
    offered = offers if offers and not variants else {}
    planner = _Planner(loaded, facts, PlanBuilder(), offered)
    facts = planner.facts
    if all(facts.opset > profile.runtime.max_opset for profile in profiles):
        highest = max(profile.runtime.max_opset for profile in profiles)
        raise ModelError(
            _too_new(facts, highest),
            hint=f"export it with opset {min(highest, 17)} to {highest}",
            where=facts.name,
        )
    for profile in profiles:
        require_types(profile, (*facts.inputs, *facts.outputs))
        require_assets(profile, loaded.project.files)
        require_version(profile, loaded.project.version)
    return planner.builder.plan([planner.bundle(profile, variants) for profile in profiles])


def _too_new(facts: ModelFacts, highest: int, least: int = 0) -> str:
    loads = f"the target's runtime loads up to {highest}"
    if facts.opset < least:
        return f"preprocessing in the graph needs opset {least}; {loads}"
    return f"the model has opset {facts.opset}; {loads}"


@dataclass
class _Planner:
    loaded: LoadedProject
    facts: ModelFacts
    builder: PlanBuilder
    offers: Offers

    def __post_init__(self) -> None:
        project = self.loaded.project
        given = self.facts.inputs
        self.constants = project_constants(self.loaded, given)
        free = tuple(spec for spec in given if spec.name not in project.constants)
        self.facts = replace(self.facts, inputs=free)
        self.state = project_state(self.loaded, free, self.facts.outputs)
        self._check_names("input", project.inputs, free)
        self._check_names("output", project.outputs, self.facts.outputs)
        self.scores_output = self.loaded.scores_output([s.name for s in self.facts.outputs])
        self.named = named_targets(self.loaded)
        self.extensions = extension_operators(project, self.facts)
        self.in_graph = bool(project.pictures or project.texts)
        for name in project.files:
            self.loaded.carried(name)
        self._check_fillings()
        where = self.loaded.where("dims") or "dims"
        taken = given_inputs(self.facts.inputs, project)
        # A size for each name, so that each is checked; only those with one size are fixed.
        fixed_signature((*given, *taken), dict.fromkeys(project.dims, 1), where)
        self.dims = {**project.fixed_dims, **made_dims(self.loaded, self.facts.inputs)}
        self.signature = sized(taken, self.dims)
        self.whole_signature = sized(given_inputs(given, project), self.dims)
        check_meanings(
            self.loaded,
            sized(self.facts.inputs, project.fixed_dims),
            sized(self.facts.outputs, project.fixed_dims),
            self.facts.table_rows,
        )
        self.described = tuple(self.loaded.described().items())
        self.model = self.builder.source("model", self.loaded.model_path, self.facts.sha256)
        self.folder = self.builder.source("project", self.loaded.folder, "")
        self._take_samples()

    def _check_names(
        self, what: str, described: Iterable[str], specs: Sequence[TensorSpec]
    ) -> None:
        """Make sure that the model has the inputs or outputs that the project describes."""
        known = [spec.name for spec in specs]
        for name in described:
            if name not in known:
                raise ProfileError(
                    f"the model has no {what} {name!r}",
                    hint=nearest(name, known),
                    where=self.loaded.where(f"{what}s", name),
                )

    def _take_samples(self) -> None:
        """Add the steps that make samples: as they are given, as tensors, along streams."""
        both = self.loaded.project.samples
        folders = [self._image_folder(source) for source in (both.calibration, both.evaluation)]
        self.shared_folder = folders[0] is not None and folders[0] == folders[1]
        calibration = self._samples("calibration", both.calibration)
        self.given = self._samples("evaluation", both.evaluation)
        self.calibration, self.evaluation = map(self._tensors, (calibration, self.given))
        self.frames = self.evaluation or self.calibration
        if self.state:
            calibration, self.given = map(self._unrolled, (calibration, self.given))
            self.calibration, self.evaluation = calibration, self.given
        self.real = self.given or calibration
        self.probes = self._in_graph_probes() if self.in_graph else self.real
        self.unlike_samples = self._unlike_samples()

    def _check_fillings(self) -> None:
        """Make sure that what the project says about padding and masks is of the model's inputs."""
        masks = {n: d.mask for n, d in self.loaded.project.inputs.items() if d.mask is not None}
        others = [spec for spec in self.facts.inputs if spec.name not in masks]
        known = {size for spec in others for size in spec.shape or () if isinstance(size, str)}
        for spec in self.facts.inputs:
            symbolic = {size for size in spec.shape or ("?",) if isinstance(size, str)}
            if spec.name in masks and masks[spec.name] not in symbolic:
                raise ProfileError(
                    f"the mask {spec.name!r} has no symbolic dimension {masks[spec.name]!r}",
                    hint=nearest(str(masks[spec.name]), symbolic),
                    where=self.loaded.where("inputs", spec.name, "mask"),
                )
            if spec.name in masks and not symbolic <= known - {"?"}:
                raise ProfileError(
                    f"the loader cannot make the mask {spec.name!r}: no other input tells the size"
                    f" of {', '.join(sorted(symbolic - known) or ['its unknown dimension'])}",
                    hint="remove 'mask', and give the input as any other",
                    where=self.loaded.where("inputs", spec.name, "mask"),
                )
            self._check_pad(spec)

    def _check_pad(self, spec: TensorSpec) -> None:
        description = self.loaded.project.inputs.get(spec.name)
        pad = description.pad if description else None
        if pad is not None and not holds(pad, spec.dtype):
            raise ProfileError(
                f"the input {spec.name!r} is {spec.dtype}, which does not hold {pad!r}",
                hint="give a 'pad' that the input can hold",
                where=self.loaded.where("inputs", spec.name, "pad"),
            )

    def bundle(self, profile: Profile, wanted: Sequence[str]) -> PlannedBundle:
        """Return the planned bundle of one target."""
        chosen = [profile.variant(name) for name in wanted] or profile.variants
        planned, left_out = [], []
        opset = OPSET_OF_PICTURES if self.in_graph else self.facts.opset
        if max(opset, self.facts.opset) > profile.runtime.max_opset:
            reason = _too_new(self.facts, profile.runtime.max_opset, opset)
            return PlannedBundle(profile, (), tuple((v.id, reason) for v in chosen))
        quantization = self.facts.quantization
        unfit = Carrying(quantization).left_out(chosen) if quantization else {}
        named = bool(wanted) or profile.id in self.named
        for variant in chosen:
            if variant.id in unfit:
                reason = unfit[variant.id]
                if named:
                    raise self._unbuildable(variant, reason, "or give the float model", wanted)
                left_out.append((variant.id, reason))
                continue
            if self._wants_samples(variant) and self.calibration is None:
                if named:
                    reason = "it needs calibration samples"
                    raise self._unbuildable(variant, reason, f"or {self._samples_hint()}", wanted)
                reason = f"int8-static needs calibration samples; {self._samples_hint()}"
                left_out.append((variant.id, reason))
                continue
            if reason := self._no_static_shapes(variant) or self._no_extensions(profile, variant):
                left_out.append((variant.id, reason))
                continue
            planned.append(replace(self._variant(profile, variant), named=named))
        size = None if wanted or profile.id in self.named else profile.bundle
        most = size.variants if size else None
        return PlannedBundle(profile, tuple(planned), tuple(left_out), most)

    def _unbuildable(
        self, variant: Variant, reason: str, otherwise: str, wanted: Sequence[str]
    ) -> EdgepackError:
        """Return the error for a variant that the user named, on the command line or in YAML."""
        problem = f"variant {variant.id!r} cannot be built: {reason}"
        if wanted:
            return UsageError(problem, hint=f"leave --variant out, {otherwise}", where="--variant")
        hint = f"remove it from 'variants', {otherwise}"
        return ProfileError(problem, hint=hint, where=self.loaded.where("targets"))

    def _samples_hint(self) -> str:
        """Return the lines that give calibration samples; a bare model needs a project for them."""
        how = f"{init_command(self.loaded)}, or " if self.loaded.source is None else ""
        return f"{how}add to edgepack.yaml: samples: {{calibration: {{path: samples.npz}}}}"

    def _numbers(self, variant: Variant) -> Recipe:
        """Return the recipe of a variant's numbers: with a model that is carried, the model's."""
        found = self.facts.quantization
        if found is None:
            return variant.recipe
        return "fp16" if found.form == "float16" else "int8-static"

    def _wants_samples(self, variant: Variant) -> bool:
        """Return whether a variant is calibrated: what is quantized already is only carried."""
        return variant.recipe == "int8-static" and self.facts.quantization is None

    def _no_static_shapes(self, variant: Variant) -> str:
        sizes = self.loaded.project.buckets
        if not wants_static(variant, sizes):
            return ""
        return static_problem(variant, self.signature, sizes)

    def _no_extensions(self, profile: Profile, variant: Variant) -> str:
        return self.extensions and without_extensions(self.extensions, profile, variant)

    def _variant(self, profile: Profile, variant: Variant) -> PlannedVariant:
        static = wants_static(variant, self.loaded.project.buckets)
        if not static:
            variant = with_shape_profiles(variant, self.signature, self.loaded.project)
        probes = self.evaluation or self.calibration
        reference, history = self._float_model(variant, probes)
        self._input_check(reference)
        model = self._recipe(profile, variant, history, probes)
        history.append(model)
        layers = self._layers(variant, model, probes)
        outside = self._outside(variant, reference, model, probes)
        cpu, fusion = variant.backend == "cpu", None
        if cpu and variant.recipe == "int8-static":
            fusion = self.builder.step(Fusion(profile.device.arch), model=model)
        if self.in_graph:
            reference, model = self._put_before(reference), self._put_before(model)
            history.append(model)
        if last := BACKENDS[variant.backend].last_rewrites:
            model = self.builder.step(Rewritten(last), model=model, samples=self.probes)
            history.append(model)
        cap_db = (CPU_CAP_DB if cpu else OTHER_CAP_DB)[self._numbers(variant)]
        probes_by_kind = {"samples" if self.real else "made": self.probes}
        choice = self.builder.step(
            GoldenChoice(GOLDEN_COUNT, processor()), model=reference, **probes_by_kind
        )
        bucketed = self._bucketed(variant, model, choice) if static else None
        # The largest size stands for all: what a provider takes does not depend on sizes.
        placed = None if cpu else self.builder.step(Placed(variant), model=bucketed or model)
        variant, as_file = self._as_ort(variant, model)
        history += [each for each in (bucketed, as_file) if each]
        goldens = self.builder.step(
            Goldens(cap_db, processor(), session_config(variant) if as_file else ()),
            model=model,
            shipped=as_file,
            choice=choice,
            **probes_by_kind,
        )
        return PlannedVariant(
            variant=with_extensions(variant) if self.extensions else variant,
            model=model,
            shipped=as_file or bucketed or model,
            goldens=goldens,
            reference=reference,
            evaluation=self._evaluation(
                None if self.facts.quantization else reference,
                as_file or model,
                variant,
            ),
            placed=placed,
            fusion=fusion,
            layers=layers,
            outside=outside,
            history=tuple(history),
            carried=self.facts.quantization is not None,
            offered=self.offers.get((profile.id, variant.id), ""),
            bucketed=bucketed,
        )

    def _as_ort(self, variant: Variant, model: str) -> tuple[Variant, str | None]:
        """Add the step that writes ORT format, where a variant has it; return its settings too."""
        file_format = variant.model_format
        if not isinstance(file_format, OrtFormat):
            return variant, None
        step = AsOrt(file_format.ort, file_format.platform)
        file = self.builder.step(step, model=model, samples=self.probes)
        return (_replaying(variant) if file_format.ort == "runtime" else variant), file

    def _input_check(self, reference: str) -> None:
        """Add the step that looks for wrong preprocessing, where there are samples."""
        project = self.loaded.project
        source = project.samples.evaluation or project.samples.calibration
        if source is None:
            return
        made_here = self.in_graph or source.images is not None
        images = [(name, d.image) for name, d in project.inputs.items() if d.image is not None]
        detections = [(name, d) for name, d in self.described if isinstance(d, DetectionOutput)]
        step = InputCheck(
            images=tuple(images) if made_here else (),
            scores_output=self.scores_output,
            detections=tuple(detections),
            processor=processor(),
            called="the model" if self.facts.quantization else "fp32",
            state=self._state_pairs,
        )
        samples = self.evaluation or self.calibration
        self.builder.step(step, model=reference, samples=samples)
        if project.outputs:
            sizes = [placement(1, 1, d.resize.model_dump())[-2:] for _, d in images]
            look = ReadAnswers(self.described, sizes[0] if len(sizes) == 1 else None, processor())
            self.builder.step(look, model=reference, samples=samples)

    def _layers(self, variant: Variant, model: str, probes: str | None) -> str | None:
        """Add the step that holds an int8 model's tensors beside those it was made from."""
        if not self._wants_samples(variant):
            return None
        reference = self.builder.steps[model].inputs["model"]
        step = LayerErrors(LAYER_SAMPLES, processor())
        return self.builder.step(step, reference=reference, model=model, samples=probes)

    def _outside(
        self, variant: Variant, reference: str, model: str, probes: str | None
    ) -> str | None:
        """Add the step that runs an int8 model on inputs that no sample shows."""
        if self.facts.quantization or probes is None or not variant.recipe.startswith("int8"):
            return None
        step = OutsideErrors(self.unlike_samples, processor())
        return self.builder.step(step, reference=reference, model=model, samples=probes)

    def _unlike_samples(self) -> Outside:
        """Return which inputs are changed: floats and pictures that are no masks and no state."""
        project, facts = self.loaded.project, self.facts
        changed: list[tuple[str, ImageInput | None]] = []
        fed = {name for _, name in self._state_pairs}
        for spec in facts.inputs:
            description = project.inputs.get(spec.name)
            is_mask = description is not None and description.mask is not None
            if _holds_values(spec) and not is_mask and spec.name not in fed:
                changed.append((spec.name, description.image if description else None))
        sizes = {name: (each[0], each[-1]) for name, each in project.buckets.items()}
        sizes |= {name: (span.min, span.max) for name, span in project.spans.items()}
        signature = sized(facts.inputs, self.dims)
        return Outside(tuple(changed), signature, tuple(sorted(sizes.items())))

    def _put_before(self, model: str) -> str:
        """Add the step that lets a model take pictures and texts."""
        project = self.loaded.project
        described = tuple(project.pictures.items()), tuple(project.texts.items())
        step = InGraph(self.signature, *described)
        return self.builder.step(step, model=model, samples=self.probes, **self._tokenizers())

    def _tokenizers(self) -> dict[str, str]:
        """Return the files of the tokenizers that are put into the model, by a step's inputs."""
        sources = {}
        for number, tokens in enumerate(self.loaded.project.texts.values()):
            path, name = self.loaded.folder / tokens.file, tokenizer_input(number)
            sources[name] = self.builder.source(name, path, file_digest(path))
        return sources

    def _bucketed(self, variant: Variant, model: str, choice: str) -> str | None:
        """Add the step that makes a model for each size; None where all sizes are fixed."""
        dims = bucket_dims(self.signature, self.loaded.project.buckets)
        if not dims:
            return None
        described = self.loaded.project.inputs.items()
        step = Bucketed(
            recipe=variant.recipe,
            dims=dims,
            fills=tuple((name, d.pad) for name, d in described if d.pad),
            masks=tuple((name, d.mask) for name, d in described if d.mask is not None),
            shared=not BACKENDS[variant.backend].inline_weights,
        )
        return self.builder.step(step, model=model, choice=choice, samples=self.probes)

    def _float_model(self, variant: Variant, probes: str | None) -> tuple[str, list[str]]:
        """Add the steps before numbers change; return the fp32 reference, and all in order.

        All targets share them, as far as their backends do not want the graph rewritten.
        """
        prepared = self._prepared()
        history = [prepared]
        if self.in_graph:
            raised = AtLeastOpset(OPSET_OF_PICTURES)
            history.append(self.builder.step(raised, model=prepared, samples=probes))
        reference = history[-1]
        history.append(self.builder.step(Simplified(), model=reference, samples=probes))
        if rewrites := BACKENDS[variant.backend].rewrites:
            step = Rewritten(rewrites)
            history.append(self.builder.step(step, model=history[-1], samples=probes))
        return reference, history

    def _recipe(
        self, profile: Profile, variant: Variant, history: list[str], probes: str | None
    ) -> str:
        """Add the steps that change numbers, and return the last; others go into ``history``."""
        step = recipe_step(profile, variant)
        if self.facts.quantization:
            step = Fp32(profile.runtime.max_ir)
        if isinstance(step, Fp32):
            return self.builder.step(step, model=history[-1])
        if isinstance(step, Fp16):
            return self.builder.step(step, model=history[-1], samples=probes)
        if isinstance(step, Int4Weight):
            return self.builder.step(
                step, model=history[-1], calibration=self.calibration, samples=probes
            )
        opset = AtLeastOpset(INT8_OPSET)
        model = self.builder.step(opset, model=history[-1], samples=probes)
        history.append(model)
        if "LayerNormalization" in self.facts.op_counts:
            smooth = Rewritten(("smooth-norms",))
            model = self.builder.step(smooth, model=model, samples=probes)
            history.append(model)
        if isinstance(step, Int8Dynamic):
            return self.builder.step(step, model=model, samples=probes)
        collecting = Calibration(every_op=step.every_op)
        statistics = self.builder.step(collecting, model=model, samples=self.calibration)
        history.append(statistics)
        search = self._limit_search(wide=takes_16_bits(profile, variant))
        least = OPSET_OF_16_BITS if search and search.wide else least_opset(variant)
        if least > INT8_OPSET:
            opset = AtLeastOpset(least)
            model = self.builder.step(opset, model=model, samples=probes)
            history.append(model)
        step = replace(
            step, scores_output=self.scores_output, search=search, outside=self.unlike_samples
        )
        searched = self._searched(history[0]) if step.search else {}
        return self.builder.step(
            step, model=model, statistics=statistics, samples=self.calibration, **searched
        )

    def _limit_search(self, *, wide: bool) -> LimitSearch | None:
        """Return what int8 is searched for: the project's limits, if it has any."""
        project = self.loaded.project
        source = project.samples.evaluation
        if project.limits == Limits() or source is None:
            return None
        return LimitSearch(
            limits=project.limits,
            metric=source.metric,
            interpreter=project.interpreter,
            described=self.described,
            wide=wide,
            state=self._state_pairs,
        )

    def _searched(self, prepared: str) -> dict[str, str | None]:
        """Return the inputs that a search takes besides: what an evaluation takes."""
        source = self.loaded.project.samples.evaluation
        hooked = source is not None and not isinstance(source.metric, str | None)
        return {
            "reference": prepared,
            "evaluation": self.evaluation,
            "project": self.folder if hooked else None,
        }

    def _evaluation(self, fp32: str | None, model: str, variant: Variant) -> str | None:
        """Add the step that evaluates a variant, beside the fp32 model if there is one."""
        project = self.loaded.project
        source = project.samples.evaluation
        if self.given is None or source is None:
            return None
        metric = source.metric
        hooked = not isinstance(metric, str | None)
        return self.builder.step(
            Evaluation(
                metric=metric,
                scores_output=self.scores_output,
                described=self.described,
                interpreter=project.interpreter,
                processor=processor(),
                config=session_config(variant) if variant.backend == "cpu" else (),
                state=self._state_pairs,
            ),
            reference=fp32,
            model=model,
            samples=self.given,
            project=self.folder if hooked else None,
        )

    def _samples(self, role: Part, source: SampleSource | None) -> str | None:
        """Add the step that makes one sample set, and return its id."""
        if source is None:
            return None
        if source.path is not None:
            return self._npz(role, source)
        if source.images is not None:
            return self._images(role, source)
        if source.test_data is not None:
            return self._test_data(role, source)
        if source.python is None:
            raise TypeError("a sample source has exactly one origin")
        interpreter = self.loaded.project.interpreter
        step = PythonSamples(
            self.signature, source.python, interpreter, source.limit, self.constants, self.state
        )
        return self.builder.step(step, project=self.folder)

    def _prepared(self) -> str:
        """Add the step that all variants begin with; a state is zeros in the samples it has."""
        own = {size for spec in self.facts.inputs for size in spec.shape or ()}
        dims = tuple(sorted((name, size) for name, size in self.dims.items() if name in own))
        step = Prepared(dims, self.constants)
        return self.builder.step(step, source=self.model, samples=self.frames)

    def _unrolled(self, samples: str | None) -> str | None:
        """Add the step that fills in the state of frames, so that each stands for itself."""
        if samples is None:
            return None
        step = Unrolled(self._state_pairs, processor())
        return self.builder.step(step, model=self._prepared(), samples=samples)

    @property
    def _state_pairs(self) -> StatePairs:
        return tuple(sorted(self.loaded.project.state.items()))

    def _tensors(self, samples: str | None) -> str | None:
        """Add the step that makes tensors, for the model itself, of pictures and texts."""
        if samples is None or not self.in_graph:
            return samples
        project = self.loaded.project
        described = tuple(project.pictures.items()), tuple(project.texts.items())
        step = TensorSamples(sized(self.facts.inputs, self.dims), *described)
        return self.builder.step(step, samples=samples, **self._tokenizers())

    def _in_graph_probes(self) -> str:
        sizes = bucket_dims(self.signature, self.loaded.project.buckets)
        project = self.loaded.project
        pictures, texts = tuple(project.pictures), tuple(project.texts)
        step = InGraphProbes(self.signature, pictures, sizes, PROBES, texts)
        return self.builder.step(step, samples=self.real)

    def _npz(self, role: str, source: SampleSource) -> str:
        path = self.loaded.folder / str(source.path)
        origin = self.builder.source(role, path, file_digest(path))
        chosen = (self.signature, source.labels, source.limit, self.constants, self.state)
        return self.builder.step(NpzSamples(*chosen), source=origin)

    def _image_folder(self, source: SampleSource | None) -> Path | None:
        if source is None or source.images is None:
            return None
        return (self.loaded.folder / source.images).resolve()

    def _images(self, role: Part, source: SampleSource) -> str:
        folder = self.loaded.folder / str(source.images)
        part: Part = role if self.shared_folder else "all"
        files = selected_images(folder, source.limit, part)
        digest = hashlib.sha256()
        for path in files:
            digest.update(os.fsencode(path.relative_to(folder)))
            digest.update(f"\0{file_digest(path)}\n".encode())
        if source.labels:
            # Which labels the images get depends on the names of those not selected, too.
            for path in image_files(folder):
                digest.update(os.fsencode(path.relative_to(folder)) + b"\0")
        if source.labels and source.labels != "folders":
            labels = self.loaded.folder / source.labels
            for path in label_files(labels):
                digest.update(os.fsencode(path.relative_to(labels)))
                digest.update(f"\0{file_digest(path)}\n".encode())
        input_name, image = self._image_input()
        classes = self._class_names() if source.labels else ()
        chosen = (self.signature, input_name, image, source.labels, source.limit, part)
        project = self.loaded.project
        step = (
            PictureSamples(*chosen, classes=classes, as_files=project.takes_files)
            if project.pictures
            else ImageSamples(*chosen, classes=classes)
        )
        origin = self.builder.source(role, folder, digest.hexdigest())
        return self.builder.step(step, source=origin, project=self.folder)

    def _class_names(self) -> tuple[str, ...]:
        """Return what the classes of the first detection are called; nothing without names."""
        outputs = self.loaded.project.outputs.values()
        files = [each.labels for each in outputs if isinstance(each, DetectionOutput)]
        if not files or files[0] is None:
            return ()
        return tuple(read_labels(self.loaded.carried(files[0]).read_text(encoding="utf-8")))

    def _image_input(self) -> tuple[str, ImageInput]:
        inputs = self.loaded.project.inputs.items()
        described = [(name, d.image) for name, d in inputs if d.image is not None]
        if len(described) != 1 or len(self.signature) != 1:
            raise ProfileError(
                f"samples from images need a model with one input and its description; the model"
                f" has {len(self.signature)}, described are {len(described)}",
                hint="add to edgepack.yaml: inputs: {NAME: {image: {resize: {short_side: 256,"
                " crop: 224}, scale: 0.00392157}}}, or give samples as .npz",
                where=self.loaded.where("samples"),
            )
        return described[0]

    def _test_data(self, role: str, source: SampleSource) -> str:
        pattern = str(source.test_data)
        where = self.loaded.where("samples", role, "test_data")
        try:
            folders = sorted(path for path in self.loaded.folder.glob(pattern) if path.is_dir())
        except (ValueError, NotImplementedError) as error:
            raise ProfileError(
                f"'test_data' cannot be {pattern!r}: {error}",
                hint=f"give a glob relative to {str(self.loaded.folder)!r}, such as"
                " model/test_data_set_*",
                where=where,
            ) from error
        folders = folders[: source.limit]
        if not folders:
            raise SamplesError(
                f"no folder matches {pattern!r}",
                hint=f"the glob is relative to {str(self.loaded.folder)!r}",
                where=where,
            )
        inputs: dict[str, str | None] = {}
        for n, folder in enumerate(folders):
            digest = hashlib.sha256()
            for path in sorted(folder.glob("input_*.pb")):
                digest.update(f"{path.name}\0{file_digest(path)}\n".encode())
            inputs[str(n)] = self.builder.source(f"{role}-{n}", folder, digest.hexdigest())
        step = OnnxTestData(self.whole_signature, self.constants, self.state)
        return self.builder.step(step, **inputs)


def init_command(loaded: LoadedProject) -> str:
    """Return the line that writes a project for a bare model."""
    return f"edgepack init {shlex.quote(str(loaded.model_path))} --images photos/"


def unsampled(loaded: LoadedProject) -> Iterator[str]:
    """Yield what numbers mean where no samples are given."""
    if loaded.project.samples.calibration or loaded.project.samples.evaluation:
        return
    images = f"{init_command(loaded)} for pictures, or " if loaded.source is None else ""
    yield (
        "there are no samples: everything was proven on random inputs, which shows that a device"
        " computes what this host does, and not that the answers are right or what int8 costs;"
        f" give real ones: {images}samples: {{evaluation: {{path: samples.npz}}}} in edgepack.yaml"
    )


def session_config(variant: Variant) -> tuple[tuple[str, str], ...]:
    """Return a variant's session config entries, sorted."""
    return tuple(sorted(variant.session.config.items()))


def _holds_values(spec: TensorSpec) -> bool:
    """Return whether an input holds floats, or a picture of uint8; ids and bytes are neither."""
    is_picture = spec.dtype == "uint8" and len(spec.shape or ()) >= _PICTURE_RANK
    return spec.dtype.startswith("float") or is_picture


def _replaying(variant: Variant) -> Variant:
    """Return a variant whose session does the optimizations that its file leaves to it."""
    config = {**REPLAY, **variant.session.config}
    session = variant.session.model_copy(update={"config": config})
    return variant.model_copy(update={"session": session})


def file_digest(path: Path) -> str:
    """Return the sha256 of a file.

    Raises:
        SamplesError: It cannot be read.
    """
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise SamplesError(
            f"cannot read {str(path)!r}: {error.strerror}", hint="check the path in edgepack.yaml"
        ) from error
