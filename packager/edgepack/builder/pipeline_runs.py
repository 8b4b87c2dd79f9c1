"""Runs whole pipelines on this machine's CPU: the source models, and combinations of variants.

Everything here loads onnxruntime: call it in worker processes only.
"""

from __future__ import annotations

import itertools
import math
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from edgepack.base.arrays import Array
from edgepack.base.machine import find_processor
from edgepack.base.worker import tell
from edgepack.builder.custom_ops import find_machine
from edgepack.bundle.pipeline import OutputCheck
from edgepack.errors import EdgepackError, ModelError, SamplesError
from edgepack.model.custom_ops import registered
from edgepack.model.facts import TensorSpec
from edgepack.model.running import (
    Arrays,
    format_runtime_error,
    is_saturating,
    list_runtime_errors,
    make_random_inputs,
    make_session,
    run_session,
)
from edgepack.ondevice.runtime import edgepack_images as images
from edgepack.ondevice.runtime import edgepack_loader as loader
from edgepack.ondevice.runtime.edgepack_binding import read_value
from edgepack.ondevice.runtime.edgepack_crops import LEAST_IOU
from edgepack.ondevice.runtime.edgepack_meaning import Meaning
from edgepack.ondevice.runtime.edgepack_pipeline import (
    Chain,
    Infer,
    Part,
    Rows,
    StageError,
    compare_rows,
    make_part,
    name_combination,
)
from edgepack.ondevice.runtime.edgepack_shapes import InputShapes
from edgepack.project.pipeline import CropStage, Pipeline, PipelineSource
from edgepack.samples.constants import Constant, make_constant_arrays
from edgepack.samples.sample_set import Sample
from edgepack.samples.sources import read_npz_samples, run_python_samples
from edgepack.samples.streams import STREAM
from edgepack.steps.proofs.telling import FLOOR_DB

MOST_GOLDENS = 4
MOST_RECORDED = 1000
"""The most inputs of a part that are kept of one set: a decoder runs once for each token."""
DRAWS = 3
"""How often a golden is disturbed to find how far off the whole may be."""
DRAW_MARGIN_DB = 3.0
"""Below the worst of a few draws: others would be a little worse."""


@dataclass(frozen=True)
class PartSource:
    """A part's source model, and what its runs need."""

    model: Path
    inputs: tuple[TensorSpec, ...]
    """Without constants."""
    whole_inputs: tuple[TensorSpec, ...]
    """In the model's order."""
    constants: tuple[Constant, ...]
    state: Mapping[str, str]
    library: Path | None = None
    """Of the model's custom operators, where it has some."""
    outputs: tuple[TensorSpec, ...] = ()
    manifest: Mapping[str, Any] = field(default_factory=dict)
    """What its bundle's manifest will say of inputs and outputs."""
    files: Mapping[str, Path] = field(default_factory=dict)
    """The project's, by name."""


@dataclass(frozen=True)
class ChainSource:
    """A pipeline, with the source models of its parts and what its samples come from."""

    pipeline: Pipeline
    inputs: tuple[TensorSpec, ...]
    parts: Mapping[str, PartSource]
    folder: Path
    """The project's."""
    interpreter: str | None


@dataclass(frozen=True)
class Recorded:
    """What the source models did with the samples."""

    goldens: list[Arrays]
    """Inputs of the pipeline, in order, from the first of a stream on."""
    real: bool
    """Whether those are samples; else they are seeded random ones."""
    counts: Mapping[str, Mapping[str, int]]
    """By role and part, how many of the part's inputs were written."""


def record_parts(source: ChainSource, samples: Mapping[str, PipelineSource], out: Path) -> Recorded:
    """Run samples through the source models, and write what each part takes as ONNX test data.

    The inputs of a run are ``ROLE/PART/NUMBER/input_N.pb``. State has files only where a stream
    begins. Inputs with an empty cache are left out, where there are others: nothing can be learned
    from them; the stream begins with the next then, and the state that it has by that time.

    Args:
        source: The pipeline.
        samples: By role, ``calibration`` and ``evaluation``.
        out: An empty folder.

    Raises:
        SamplesError: There are none, or one is not what the pipeline takes.
        ModelError: A source model fails.
    """
    infers = {name: _open_source(name, part) for name, part in source.parts.items()}
    counts: dict[str, dict[str, int]] = {}
    goldens = _Goldens(source)
    for role, given in samples.items():
        recorder = _Recorder(source, out / role)
        chain = _make_chain(source, infers, recorder.watch)
        streams = 0
        # Evaluation comes last, and its samples were not calibrated with.
        goldens = _Goldens(source)
        with tempfile.TemporaryDirectory() as scratch:
            for begins, title, inputs in _read_samples(source, given, Path(scratch)):
                if begins:
                    chain.reset()
                    streams += 1
                    goldens.begin()
                _run_chain(chain, inputs, title)
                goldens.add(inputs, {number for number, count in chain.crops.items() if count})
        if not streams:
            raise SamplesError(
                f"there are no {role} samples", hint="give some under 'samples', or leave it out"
            )
        _require_crops(source.pipeline, role, recorder.written)
        counts[role] = recorder.finish()
    if counts:
        return Recorded(goldens.choose(), real=True, counts=counts)
    random = [make_random_inputs(source.inputs, seed=seed) for seed in range(2)]
    chain = _make_chain(source, infers, None)
    for number, inputs in enumerate(random):
        _run_chain(chain, inputs, f"random input {number}")
    return Recorded(random, real=False, counts=counts)


def _make_chain(source: ChainSource, infers: Mapping[str, Infer], watch: Any) -> Chain:  # noqa: ANN401
    parts = {name: _make_part(part, infers[name]) for name, part in source.parts.items()}
    return Chain(source.pipeline.model_dump(), parts, watch)


def _make_part(part: PartSource, infer: Infer) -> Part:
    inputs = _make_specs(part.inputs)

    def read(name: str) -> str:
        return part.files[name].read_bytes().decode("utf-8")

    meaning = Meaning(part.manifest, InputShapes(inputs), read)
    outputs = _make_specs(part.outputs)
    return Part(infer, inputs, part.state, outputs, meaning if meaning.takes_pictures else None)


def _make_specs(specs: Iterable[TensorSpec]) -> list[loader.TensorSpec]:
    return [loader.TensorSpec(spec.name, spec.dtype, spec.shape or ()) for spec in specs]


def _open_source(name: str, part: PartSource) -> Infer:
    with registered(part.library):
        session = make_session(part.model)
    constants = make_constant_arrays(part.constants)

    def infer(feed: dict[str, Any], _kept: Collection[str]) -> dict[str, Any]:
        try:
            return run_session(session, {**constants, **feed})
        except EdgepackError as error:
            error.where = f"part {name!r}"
            raise

    return infer


def _require_crops(pipeline: Pipeline, role: str, written: Mapping[str, int]) -> None:
    for stage in pipeline.stages:
        if isinstance(stage, CropStage) and not written.get(stage.part):
            raise SamplesError(
                f"no object of {stage.boxes!r} was found in the {role} samples, so that"
                f" {stage.part!r} never ran",
                hint="give pictures with such objects, or lower the least 'score' of the output in"
                " the detector's project",
            )


class _Goldens:
    """Chooses golden samples: the first calls of the first stream in which every stage cuts.

    Where no part has a state, one call says nothing of the next: all are of one stream then, and
    of those in which nothing is cut one stays, where there are others.
    """

    def __init__(self, source: ChainSource) -> None:
        self.stages = {
            number: stage
            for number, stage in enumerate(source.pipeline.stages)
            if isinstance(stage, CropStage)
        }
        self.has_state = any(part.state for part in source.parts.values())
        self.calls: list[tuple[Arrays, set[int], set[int]]] = []
        """Each with the stages that cut something in it, and those that did in none before it."""
        self.chosen = False

    @property
    def lacking(self) -> set[int]:
        """The stages that have cut nothing so far."""
        return set(self.stages).difference(*(cut for _, cut, _ in self.calls))

    def begin(self) -> None:
        """Begin a stream."""
        self.chosen = bool(self.calls) and not self.lacking
        if self.has_state and not self.chosen:
            self.calls.clear()

    def add(self, inputs: Arrays, cut: set[int]) -> None:
        """Take a call of the stream, with the stages that cut something in it."""
        if self.chosen:
            return
        new = cut & self.lacking
        if cut and len(self.calls) == MOST_GOLDENS and not self.has_state:
            empty = [number for number, (_, each, _) in enumerate(self.calls) if not each]
            known = [number for number, (_, _, first) in enumerate(self.calls) if not first]
            for spare in (known if new else empty[1:])[-1:]:
                del self.calls[spare]
        if len(self.calls) < MOST_GOLDENS:
            self.calls.append((inputs, cut, new))

    def choose(self) -> list[Arrays]:
        """Return the golden samples, in order.

        Raises:
            SamplesError: A stage cuts nothing in them, so that it would not be checked.
        """
        if self.lacking:
            number = min(self.lacking)
            stage = self.stages[number]
            raise SamplesError(
                f"stage {number + 1} ({stage.part}) would not be checked: no object of"
                f" {stage.boxes!r} is cut out for it in the golden samples, of which there are at"
                f" most {MOST_GOLDENS}",
                hint=f"put a picture with such objects among the first {MOST_GOLDENS} of a stream:"
                " those are the golden samples"
                if self.has_state
                else "give pictures with such objects, and with objects for several stages in one",
            )
        return [inputs for inputs, _, _ in self.calls]


def _run_chain(chain: Chain, inputs: Arrays, title: str) -> Arrays:
    try:
        return chain(inputs)
    except EdgepackError as error:
        place, advice = chain.explain_place()
        error.problem = f"{title}: {place}: {error.problem}"
        error.hint = advice or error.hint
        raise
    except StageError as error:
        # What onnxruntime raises is one of edgepack's errors already: this is about the project.
        place, advice = chain.explain_place()
        raise ModelError(
            f"{title}: {place}: {error.__cause__}",
            hint=advice
            or "compare what the part's project says of its inputs and outputs with the model",
        ) from error


def _read_samples(
    source: ChainSource, given: PipelineSource, scratch: Path
) -> Iterator[tuple[bool, str, Arrays]]:
    """Yield samples, each with whether it begins a stream and what to call it."""
    before = np.zeros(0)
    for number, (title, sample) in enumerate(_open_samples(source, given, scratch)):
        inputs = {name: np.asarray(array) for name, array in sample.items()}
        stream = inputs.pop(STREAM, None) if STREAM not in source.pipeline.inputs else None
        _check_sample(source, title, inputs)
        begins = number == 0 or (stream is not None and not np.array_equal(stream, before))
        before = before if stream is None else stream
        yield begins, title, inputs


def _open_samples(source: ChainSource, given: PipelineSource, scratch: Path) -> Iterable[Sample]:
    if given.path is not None:
        path = source.folder / given.path
        return read_npz_samples(path, source.inputs, None, given.limit)[0]
    if given.python is None:
        raise TypeError("a pipeline's samples are .npz files or functions")
    return run_python_samples(
        given.python, source.folder, source.interpreter, given.limit, scratch
    )[0]


def _check_sample(source: ChainSource, title: str, inputs: Arrays) -> None:
    wanted = sorted(spec.name for spec in source.inputs)
    if sorted(inputs) != wanted:
        raise SamplesError(
            f"{title} has {', '.join(sorted(inputs)) or 'nothing'}, and the pipeline takes"
            f" {', '.join(wanted)}",
            hint="name arrays like the 'inputs' of the pipeline",
        )
    pictures = {s.picture for s in source.pipeline.stages if isinstance(s, CropStage)}
    for spec in _make_specs(source.inputs):
        is_picture = spec.name in pictures
        try:
            if is_picture:
                images.check(inputs[spec.name])
            else:
                spec.check(inputs[spec.name])
        except ValueError as error:
            raise SamplesError(
                f"{title}: {f'input {spec.name!r}: ' if is_picture else ''}{error}",
                hint="save pictures as they are, before anything is made of them: uint8 [samples,"
                " height, width, 3], RGB"
                if is_picture
                else "save it as the first part takes it",
            ) from error


@dataclass
class _Recorder:
    """Writes what parts take."""

    source: ChainSource
    folder: Path
    written: dict[str, int] = field(default_factory=dict)
    empty: dict[str, int] = field(default_factory=dict)
    left: dict[str, int] = field(default_factory=dict)
    cut: set[str] = field(default_factory=set)
    """Parts whose stream began with an input that was left out."""

    def watch(self, name: str, feed: dict[str, Any], fresh: bool) -> None:  # noqa: FBT001
        part = self.source.parts[name]
        if not all(np.size(array) for array in feed.values()):
            self.empty[name] = self.empty.get(name, 0) + 1
            self.cut.add(name)
            return
        number = self.written.get(name, 0)
        if number >= MOST_RECORDED:
            self.left[name] = self.left.get(name, 0) + 1
            return
        # What begins a stream among the samples says what its state is.
        skipped = set() if fresh or name in self.cut else set(part.state.values())
        self.cut.discard(name)
        kept = {n: array for n, array in feed.items() if n not in skipped}
        _write_test_data(self.folder / name / f"{number:05}", part.whole_inputs, kept)
        self.written[name] = number + 1

    def finish(self) -> dict[str, int]:
        """Return how many of each part's inputs were written, and say what was left out.

        Raises:
            ModelError: A part has none but empty ones.
        """
        for name, count in self.left.items():
            tell(f"part {name}: the first {MOST_RECORDED} inputs are its samples, {count} are not")
        for name in self.empty:
            if name not in self.written:
                raise ModelError(
                    f"the part {name!r} only ever ran with an empty cache, so it has no samples",
                    hint="its decoding ended with the first token each time: give samples that it"
                    " says more about, or other 'start' and 'end' tokens",
                )
        return dict(self.written)


def _write_test_data(folder: Path, inputs: Sequence[TensorSpec], feed: Mapping[str, Array]) -> None:
    from onnx import numpy_helper

    folder.mkdir(parents=True)
    for number, spec in enumerate(inputs):
        if spec.name in feed:
            tensor = numpy_helper.from_array(np.ascontiguousarray(feed[spec.name]), spec.name)
            (folder / f"input_{number}.pb").write_bytes(tensor.SerializeToString())


@dataclass(frozen=True)
class Proven:
    """The outputs of one combination of variants for the golden inputs."""

    combination: str
    outputs: list[Arrays]
    """By golden sample."""
    checks: dict[str, OutputCheck]
    """By output: what stays while each part is as far off as its own goldens allow."""


def prove_combinations(
    pipeline: Pipeline, folders: Mapping[str, Path], goldens: Sequence[Arrays]
) -> list[Proven]:
    """Run golden inputs with every combination of the parts' variants.

    Args:
        pipeline: The stages.
        folders: The parts' bundles.
        goldens: The inputs, in order.

    Raises:
        ModelError: A combination fails.
    """
    bundles = {name: loader.Bundle(folder) for name, folder in folders.items()}
    models = {
        name: [_open_variant(bundle, entry) for entry in bundle.list_variants(None)]
        for name, bundle in bundles.items()
    }
    return [
        _prove(pipeline, dict(zip(models, chosen, strict=True)), goldens)
        for chosen in itertools.product(*models.values())
    ]


def _open_variant(bundle: loader.Bundle, entry: dict[str, Any]) -> loader.Model:
    """Return a variant on this machine's CPU, whatever its providers are."""
    library = entry.get("custom_ops", {}).get(find_machine())
    singles = loader.split_models(entry)
    with registered(Path(library) if library else None):
        sessions = [make_session(bundle.folder / single["model"]) for single in singles]
    return loader.Model(bundle, entry, sessions)


def _prove(
    pipeline: Pipeline, models: Mapping[str, loader.Model], goldens: Sequence[Arrays]
) -> Proven:
    combination = name_combination({name: model.variant for name, model in models.items()})
    try:
        outputs, rows = _run_goldens(pipeline, models, goldens, lambda _model, outputs: outputs)
    except list_runtime_errors() as error:
        raise ModelError(
            f"the pipeline fails with {combination}: {format_runtime_error(error)}",
            hint="leave the variants out that cause it, in the parts' own 'targets'",
        ) from error
    unknown = {name: OutputCheck(min_db=None) for name in pipeline.outputs}
    if any(_saturates_here(model.entry) for model in models.values()):
        return Proven(combination, outputs, unknown)
    try:
        disturbed = [
            _run_goldens(pipeline, models, goldens, _Disturbing(seed))[0] for seed in range(DRAWS)
        ]
    except list_runtime_errors():
        # A later stage takes no value that is nearly right, such as an index beside the last one:
        # how far an output may be off is not known.
        return Proven(combination, outputs, unknown)
    checks = {
        name: _make_rows_check(outputs, disturbed, name, rows[name].objects)
        if name in rows
        else _make_check(outputs, disturbed, name)
        for name in pipeline.outputs
    }
    return Proven(combination, outputs, checks)


def _saturates_here(entry: Mapping[str, Any]) -> bool:
    """Return whether this processor computes something else with a file than its device does."""
    form = entry.get("model_format", "onnx")
    platform = None if form == "onnx" else form["platform"]
    return is_saturating(entry["recipe"], platform, find_processor())


def _run_goldens(
    pipeline: Pipeline,
    models: Mapping[str, loader.Model],
    goldens: Sequence[Arrays],
    change: Callable[[loader.Model, Arrays], Arrays],
) -> tuple[list[Arrays], Mapping[str, Rows]]:
    """Return the outputs by golden sample, and the values that have a row for each object."""

    def make_infer(model: loader.Model) -> Infer:
        def infer(feed: dict[str, Any], _kept: Collection[str]) -> dict[str, Any]:
            return change(model, model.run({n: read_value(v) for n, v in feed.items()}))

        return infer

    parts = {name: make_part(model, make_infer(model)) for name, model in models.items()}
    chain = Chain(pipeline.model_dump(), parts)
    return [chain(inputs) for inputs in goldens], chain.rows


def _find_golden_limits(model: loader.Model) -> dict[str, dict[str, Any]]:
    """Return how near each output of a part has to be to its golden ones.

    As the entries of goldens say it: of each quantity in it, what has to be added to the variant's
    limit in dB at least.
    """
    limits: dict[str, dict[str, Any]] = {}
    for golden in model.bundle.manifest["goldens"]:
        for entry in golden["outputs"][model.variant]:
            several = loader.find_quantities(entry)
            known = limits.setdefault(entry["name"], several)
            pairs = zip(known["extra_db"], several["extra_db"], strict=True)
            limits[entry["name"]] = {**several, "extra_db": [min(pair) for pair in pairs]}
    return limits


class _Disturbing:
    """Adds as much noise to a part's outputs as its own golden samples allow."""

    def __init__(self, seed: int) -> None:
        self.generator = np.random.default_rng(seed)

    def __call__(self, model: loader.Model, outputs: Arrays) -> Arrays:
        limits, least_db = _find_golden_limits(model), model.entry["min_sqnr_db"]
        return {
            name: self._disturb(array, limits[name], least_db) for name, array in outputs.items()
        }

    def _disturb(self, array: Array, several: Mapping[str, Any], least_db: float) -> Array:
        if array.dtype.kind != "f" or not array.size or not np.isfinite(array).all():
            return array
        noise = self.generator.standard_normal(array.size)
        squares = np.square(array, dtype=np.float64).reshape(-1)
        which = loader.number_quantities(several, array.size)
        for number, extra_db in enumerate(several["extra_db"]):
            own = which == number
            level = squares[own].mean() if own.any() else 0.0
            noise[own] *= np.sqrt(level) * 10 ** (-(least_db + extra_db) / 20)
        return (array + noise.reshape(array.shape)).astype(array.dtype)


def _make_check(
    outputs: Sequence[Arrays], disturbed: Sequence[Sequence[Arrays]], name: str
) -> OutputCheck:
    right = [golden[name] for golden in outputs]
    draws = [[golden[name] for golden in draw] for draw in disturbed]
    found_db = min(
        loader.closeness_db(one, other)
        for draw in draws
        for one, other in zip(right, draw, strict=True)
    )
    if right[0].dtype.kind != "f":
        if found_db == loader.EQUAL_DB:
            return OutputCheck(min_db=found_db)
        same = zip(right, zip(*draws, strict=True), strict=True)
        leading = [min(_count_leading(one, other) for other in others) for one, others in same]
        return OutputCheck(min_db=None, leading=leading)
    limit_db = max(0.0, found_db - DRAW_MARGIN_DB)
    return OutputCheck(min_db=math.floor(10 * limit_db) / 10 if limit_db >= FLOOR_DB else None)


def _make_rows_check(
    outputs: Sequence[Arrays], disturbed: Sequence[Sequence[Arrays]], name: str, objects: str
) -> OutputCheck:
    """Return what stays of objects, or of a value with a row for each."""
    found = [
        compare_rows(name, objects, one, other)
        for draw in disturbed
        for one, other in zip(outputs, draw, strict=True)
    ]
    if not any(pairs.first for _, pairs in found):
        return OutputCheck(min_db=None)
    limit_db = min(loader.EQUAL_DB, *(found_db for found_db, _ in found))
    if limit_db < loader.EQUAL_DB:
        # It is infinite where integers change, or what is said of an object is no number.
        limit_db = math.floor(10 * max(0.0, limit_db - DRAW_MARGIN_DB)) / 10
    if name != objects:
        return OutputCheck(min_db=limit_db if limit_db >= FLOOR_DB else None)
    # Scores of a few objects may be equal, or far off: it is the boxes that tell.
    least = min(pairs.least_iou for _, pairs in found)
    more = (1 - least) * 10 ** (DRAW_MARGIN_DB / 20)
    return OutputCheck(
        min_db=limit_db if limit_db >= FLOOR_DB else 0.0,
        min_iou=max(LEAST_IOU, math.floor(1000 * (1 - more)) / 1000),
        unmatched=max(pairs.unmatched for _, pairs in found),
    )


def _count_leading(one: Array, other: Array) -> int:
    """Return how many values of two arrays are the same before the first that differs."""
    length = min(one.size, other.size)
    differs = np.flatnonzero(one.reshape(-1)[:length] != other.reshape(-1)[:length])
    return int(differs[0]) if differs.size else length
