"""``edgepack inspect``: facts of a model, and per variant the nodes that stand in its way."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from edgepack.backends.base import Placement
from edgepack.backends.registry import BACKENDS
from edgepack.backends.targets import chosen_targets, load_target, project_targets
from edgepack.base.processes import Workers
from edgepack.builder.carrying import Carrying
from edgepack.builder.constants import project_constants
from edgepack.builder.memory import Subject, build_bytes, default_jobs
from edgepack.builder.offering import named_targets, offer_int8_dynamic
from edgepack.builder.state import project_state
from edgepack.errors import EdgepackError, ModelError
from edgepack.model.checking import carrying_findings, checker_findings, session_findings
from edgepack.model.deciding import shape_findings
from edgepack.model.facts import ModelFacts, model_facts, signature
from edgepack.model.files import MODEL
from edgepack.model.finding import Finding
from edgepack.model.quantized import quantization_of
from edgepack.model.reading import read_model, read_outline, write_model
from edgepack.model.workload import activations
from edgepack.project.profile import Profile, Variant
from edgepack.project.project import ConstantValue, SampleSource, find_project
from edgepack.quantization.qdq.writer import observed_tensors
from edgepack.quantization.ranges.following import clamps
from edgepack.quantization.ranges.histogram import Histogram
from edgepack.quantization.ranges.statistics import write_statistics
from edgepack.steps.base import Step, run_step
from edgepack.steps.graph.opset import AtLeastOpset
from edgepack.steps.graph.placed import predict_placement
from edgepack.steps.graph.prepared import Prepared
from edgepack.steps.graph.rewritten import Rewritten
from edgepack.steps.graph.simplified import Simplified
from edgepack.steps.proofs.layer_errors import LayerErrors
from edgepack.steps.recipes.bucketed import bucket_dims, fixed, static_problem, wants_static
from edgepack.steps.recipes.calibration import STATISTICS, Calibration
from edgepack.steps.recipes.fp32 import Fp32
from edgepack.steps.recipes.int8_static import Int8Static
from edgepack.steps.recipes.recipes import least_opset, recipe_step


@dataclass(frozen=True)
class VariantInspection:
    """What one variant of a target would make of the model."""

    target: str
    variant: str
    provider: str
    nodes: int
    """Nodes of the model as the variant would have it, quantized and rewritten; 0 where it cannot
    be made."""
    taken: int
    """Those that the provider takes, as predicted."""
    partitions: int
    needed: float
    """The share of nodes that its placement asks for, 0 to 1."""
    enough: bool
    """Whether the variant would be shipped: the provider takes what is needed."""
    findings: tuple[Finding, ...]


@dataclass(frozen=True)
class Inspection:
    """Facts and findings of one model."""

    facts: ModelFacts
    findings: tuple[Finding, ...]
    """What holds everywhere."""
    variants: tuple[VariantInspection, ...]
    constants: Mapping[str, ConstantValue] = field(default_factory=dict)
    """Inputs that the project gives one value for good."""
    memory_bytes: int = 0
    """About what a build for these targets takes with its default of jobs; 0 where none is
    possible."""


def inspect(
    model: Path | None = None,
    targets: Sequence[str] = (),
    *,
    project: Path | None = None,
) -> Inspection:
    """Return facts of a model, and what each variant of the targets would make of it.

    The variants are those of the targets given, of the project's, or of ``host``. A variant's
    model is made as a build makes it, but unproven: symbolic dimensions get the project's values,
    and int8 gets scales that mean nothing, because only the graph's form matters here. All
    libraries run in processes of their own, so that a model that crashes them is a finding too.

    Raises:
        ModelError: The file cannot be read as a model.
        UsageError: There is no such target.
        ProfileError: The project file or a profile is wrong.
    """
    loaded = find_project(model, project)
    facts = model_facts(loaded.model_path)
    constants = project_constants(loaded, facts.inputs)
    fixed = tuple(loaded.project.constants)
    free = [spec for spec in facts.inputs if spec.name not in fixed]
    project_state(loaded, free, facts.outputs)
    profiles = [*chosen_targets(loaded, targets)] or [*project_targets(loaded)]
    with Workers(1) as workers:
        findings = [*workers.call(checker_findings, loaded.model_path)]
        blocked = workers.call(session_findings, loaded.model_path) or carrying_findings(facts)
        variants: list[VariantInspection] = []
        memory_bytes = 0
        if not blocked:
            prepared = Prepared(tuple(sorted(loaded.project.fixed_dims.items())), constants)
            samples = loaded.project.samples
            findings += workers.call(shape_findings, loaded.model_path, fixed)
            if samples.calibration is None and samples.evaluation is None:
                findings += workers.call(random_findings, loaded.model_path, prepared)
            asked = profiles or [load_target("host")]
            named = named_targets(loaded)
            asked, _ = offer_int8_dynamic(loaded.model_path, facts, asked, named, workers)
            sizes, steps = loaded.project.largest_dims, _steps(asked, facts)
            subject = Subject(loaded.model_path, sizes, facts.initializer_bytes, steps)
            found = workers.call(activations, subject.path, subject.sizes)
            memory_bytes = build_bytes(subject, found, default_jobs())
            variants = workers.call(
                inspect_targets,
                loaded.model_path,
                prepared,
                loaded.project.buckets,
                asked,
                samples.calibration,
            )
    constant = loaded.project.constants
    return Inspection(facts, (*findings, *blocked), tuple(variants), constant, memory_bytes)


def _steps(profiles: Sequence[Profile], facts: ModelFacts) -> frozenset[str]:
    """Return the recipes that a build with samples would have, and the large steps beside them."""
    if facts.quantization is not None:
        return frozenset({Fp32.name})
    recipes = {variant.recipe for profile in profiles for variant in profile.variants}
    beside = {Calibration.name, LayerErrors.name} if Int8Static.name in recipes else set()
    return frozenset(recipes | beside)


def random_findings(model: Path, prepared: Prepared) -> list[Finding]:
    """Return a blocking finding if a build without samples would stop at random inputs."""
    with tempfile.TemporaryDirectory(prefix="edgepack-inspect-") as folder:
        try:
            run_step(prepared, {"source": model}, Path(folder))
        except EdgepackError as error:
            problem = f"a build without samples stops: {error.problem}"
            return [Finding("edgepack", "blocks", "", problem, error.hint)]
    return []


def inspect_targets(
    model: Path,
    prepared: Prepared,
    sizes: Mapping[str, Sequence[int]],
    profiles: Sequence[Profile],
    calibration: SampleSource | None,
) -> list[VariantInspection]:
    """Return what every variant of the targets would make of a model; called in a worker.

    Where models are to have static shapes, the one for the largest of the ``sizes`` is judged.
    What several variants have in common is made once. Those that want calibration samples have a
    note where these are not there.
    """
    with tempfile.TemporaryDirectory(prefix="edgepack-inspect-") as folder:
        making = _Making(Path(folder), sizes, calibration)
        return [
            found
            for profile in profiles
            for found in _inspect_target(making, model, prepared, profile)
        ]


def _inspect_target(
    making: _Making, model: Path, preparing: Prepared, profile: Profile
) -> list[VariantInspection]:
    try:
        _require_opset(model, profile)
        prepared = making.run(preparing, source=model)
        simplified = making.run(Simplified(), model=prepared)
    except EdgepackError as error:
        return [_impossible(profile, variant, error) for variant in profile.variants]
    quantization = quantization_of(read_outline(simplified / MODEL))
    unfit = Carrying(quantization).left_out(profile.variants) if quantization else {}
    return [
        _impossible(profile, variant, ModelError(unfit[variant.id], hint=_AS_IT_IS))
        if variant.id in unfit
        else _inspect_variant(making, simplified, profile, variant)
        for variant in profile.variants
    ]


_AS_IT_IS = "nothing, if what carries it is what you want; else give the float model"


def _require_opset(model: Path, profile: Profile) -> None:
    found, highest = model_facts(model).opset, profile.runtime.max_opset
    if found > highest:
        raise ModelError(
            f"the model has opset {found}, the target's runtime loads up to {highest}",
            hint=f"export it with opset {min(highest, 17)} to {highest}",
        )


@dataclass
class _Making:
    """Runs steps in folders of their own, without their proofs, each once for the same inputs."""

    folder: Path
    sizes: Mapping[str, Sequence[int]]
    """Symbolic dimensions with several sizes, in ascending order."""
    calibration: SampleSource | None
    made: dict[str, Path] = field(default_factory=dict)
    placed: dict[str, Placement] = field(default_factory=dict)

    def run(self, step: Step, **inputs: Path) -> Path:
        return self._once(f"{step!r} {sorted(inputs.items())}", lambda out: step.run(inputs, out))

    def placement(self, model: Path, variant: Variant) -> Placement:
        key = f"{model} {variant!r}"
        if key not in self.placed:
            self.placed[key] = predict_placement(model / MODEL, variant)
        return self.placed[key]

    def variant(self, simplified: Path, profile: Profile, variant: Variant) -> Path:
        """Return the folder of a variant's model, with static shapes if it wants them.

        Raises:
            ModelError: Its shapes cannot be static.
        """
        if not wants_static(variant, self.sizes):
            return self._recipe(simplified, profile, variant)
        inputs, _ = signature(read_outline(simplified / MODEL))
        if problem := static_problem(variant, inputs, self.sizes):
            raise ModelError(problem, hint="see 'dims' in edgepack.yaml")
        model = self._recipe(simplified, profile, variant)
        largest = {name: sizes[-1] for name, sizes in bucket_dims(inputs, self.sizes)}
        if not largest:
            return model
        return self._once(
            f"{model} {largest}",
            lambda out: write_model(fixed(read_model(model / MODEL), largest), out / MODEL),
        )

    def _once(self, key: str, make: Callable[[Path], object]) -> Path:
        if key not in self.made:
            out = Path(tempfile.mkdtemp(dir=self.folder))
            make(out)
            self.made[key] = out
        return self.made[key]

    def _recipe(self, simplified: Path, profile: Profile, variant: Variant) -> Path:
        model = simplified
        if rewrites := BACKENDS[variant.backend].rewrites:
            model = self.run(Rewritten(rewrites), model=model)
        if quantization_of(read_outline(simplified / MODEL)):
            return self.run(Fp32(profile.runtime.max_ir), model=model)
        step = recipe_step(profile, variant)
        if variant.dialect is not None:
            model = self.run(AtLeastOpset(least_opset(variant)), model=model)
        if isinstance(step, Int8Static):
            inputs = {"model": model, "statistics": self._any_statistics(model)}
            return self._once(f"{step!r} {model}", lambda out: step.write_first(inputs, out))
        return self.run(step, model=model)

    def _any_statistics(self, model: Path) -> Path:
        return self._once(f"statistics {model}", lambda out: _write_any(model / MODEL, out))


def _write_any(model: Path, out: Path) -> None:
    """Write statistics that say of every tensor that it was -1 once, and 1 once.

    What a Relu or Clip writes is cut off at its bounds: whether its node goes into the integers
    before it depends on that.
    """
    structure = read_outline(model)
    names = observed_tensors(structure, every_op=True)
    bounds = clamps(structure, names)
    found = {}
    for name in names:
        low, high = -1.0, 1.0
        if name in bounds:
            low, high = (float(np.clip(v, bounds[name].low, bounds[name].high)) for v in (-1, 1))
        histogram = Histogram()
        histogram.add(np.array([low, high], np.float32))
        found[name] = histogram.statistics()
    write_statistics(found, out / STATISTICS)


def _inspect_variant(
    making: _Making, simplified: Path, profile: Profile, variant: Variant
) -> VariantInspection:
    try:
        placement = making.placement(making.variant(simplified, profile, variant), variant)
    except EdgepackError as error:
        return _impossible(profile, variant, error)
    # A build asks the other backends only: the CPU takes what there is, and be it nothing.
    enough = variant.backend == "cpu" or placement.share >= _needed(variant)
    left = [placed for placed in placement.nodes if placed.refusal is not None]
    findings = [
        Finding(
            variant.backend,
            "falls-back" if enough else "blocks",
            str(placed.node),
            placed.refusal.reason,
            placed.refusal.remedy,
        )
        for placed in left
        if placed.refusal is not None
    ]
    uncalibrated = variant.recipe == "int8-static" and making.calibration is None
    if uncalibrated and quantization_of(read_outline(simplified / MODEL)) is None:
        findings.append(_NO_CALIBRATION)
    return VariantInspection(
        target=profile.id,
        variant=variant.id,
        provider=BACKENDS[variant.backend].provider,
        nodes=len(placement.nodes),
        taken=len(placement.nodes) - len(left),
        partitions=placement.partitions,
        needed=_needed(variant),
        enough=enough,
        findings=tuple(findings),
    )


_NO_CALIBRATION = Finding(
    "edgepack",
    "note",
    "",
    "a build leaves it out as long as there are no calibration samples",
    "edgepack init MODEL --images photos/, or add to edgepack.yaml: samples: {calibration: {path:"
    " samples.npz}}",
)


def _impossible(profile: Profile, variant: Variant, error: EdgepackError) -> VariantInspection:
    return VariantInspection(
        target=profile.id,
        variant=variant.id,
        provider=BACKENDS[variant.backend].provider,
        nodes=0,
        taken=0,
        partitions=0,
        needed=_needed(variant),
        enough=False,
        findings=(Finding(variant.backend, "blocks", "", error.problem, error.hint),),
    )


def _needed(variant: Variant) -> float:
    return 1.0 if variant.placement == "all" else variant.placement
