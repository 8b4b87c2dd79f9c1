"""Checks the stages of a pipeline against its parts, and fills in what they leave out."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from edgepack.errors import ProfileError, suggest_nearest
from edgepack.model.facts import TensorSpec
from edgepack.ondevice.runtime.edgepack_crops import COLUMNS
from edgepack.project.pipeline import (
    CropStage,
    DecodeStage,
    LoadedPipeline,
    Pipeline,
    RunStage,
    Stage,
)

_PICTURE = ("height", "width", 3)
_OBJECTS = ("objects", COLUMNS)


@dataclass(frozen=True)
class PartFacts:
    """What a part takes and gives, with the sizes that its project fixes."""

    inputs: tuple[TensorSpec, ...]
    """Without constants."""
    outputs: tuple[TensorSpec, ...]
    state: Mapping[str, str]
    images: frozenset[str] = frozenset()
    """Inputs that are described as images."""
    detections: frozenset[str] = frozenset()
    """Outputs that are described as detections."""
    texts: frozenset[str] = frozenset()
    """Inputs that are described as tokens."""
    masked: frozenset[str] = frozenset()
    """Outputs that are read with a mask, which is an input."""

    def seeing(self) -> PartFacts:
        """Return the same of a run that is given pictures for images."""
        return replace(
            self,
            inputs=tuple(
                TensorSpec(spec.name, "uint8", _PICTURE) if spec.name in self.images else spec
                for spec in self.inputs
            ),
            outputs=tuple(
                TensorSpec(spec.name, "float32", _OBJECTS) if spec.name in self.detections else spec
                for spec in self.outputs
            ),
        )


@dataclass(frozen=True)
class CheckedPipeline:
    """A pipeline whose stages fit together."""

    pipeline: Pipeline
    """Every input and every output that is used is named, ``start`` and ``end`` are lists."""
    inputs: tuple[TensorSpec, ...]
    """What a caller gives."""


def check_pipeline(loaded: LoadedPipeline, facts: Mapping[str, PartFacts]) -> CheckedPipeline:
    """Return the pipeline with everything filled in, after checking it against its parts.

    Raises:
        ProfileError: An input of a part has no value, a value is unknown, made twice or made too
            late, two stages differ in dtype or shape, or a name is none of a part's; objects are
            cut out that no detector finds in that picture, or by which nothing can be proven; or
            a picture or an object goes to a part that has no input or answer for it.
    """
    return _Checking(loaded, facts).check()


@dataclass
class _Checking:
    loaded: LoadedPipeline
    facts: Mapping[str, PartFacts]
    values: dict[str, TensorSpec] = field(default_factory=dict)
    """What was made so far, and what a caller gives where a stage has taken it."""
    used: set[str] = field(default_factory=set)
    rows: dict[str, str] = field(default_factory=dict)
    """Values with a row for each object, each with the value of these objects."""
    seen: dict[str, str] = field(default_factory=dict)
    """Objects that a detector found, each with the picture."""

    @property
    def pipeline(self) -> Pipeline:
        return self.loaded.project.pipeline

    @property
    def pictures(self) -> set[str]:
        """The values that are pictures."""
        return {stage.picture for stage in self.pipeline.stages if isinstance(stage, CropStage)}

    def check(self) -> CheckedPipeline:
        self._require_once(self.pipeline.inputs, "inputs")
        self._require_once(self.pipeline.outputs, "outputs")
        self._require_own_states()
        self._require_pictures()
        stages = [
            self._check_stage(number, stage) for number, stage in enumerate(self.pipeline.stages)
        ]
        for name in self.pipeline.inputs:
            if name not in self.used:
                hint = "leave it out, or give it to a stage under 'inputs'"
                raise self._make_error(f"no stage takes the input {name!r}", hint, "inputs")
        for name in self.pipeline.outputs:
            if name not in self.values:
                hint = suggest_nearest(name, self.values)
                raise self._make_error(f"no stage makes the output {name!r}", hint, "outputs")
            if self.rows.get(name, name) not in self.pipeline.outputs:
                raise self._make_error(
                    f"the output {name!r} has a row for each of {self.rows[name]!r}, which are no"
                    " output",
                    f"add {self.rows[name]!r} to the outputs: they say which object a row is about",
                    "outputs",
                )
        self.used |= set(self.pipeline.outputs)
        kept = [self._drop_unused(stage) for stage in stages]
        return CheckedPipeline(
            self.pipeline.model_copy(update={"stages": kept}),
            tuple(self.values[name] for name in self.pipeline.inputs),
        )

    def _require_own_states(self) -> None:
        """Check that no two stages share a part's state: samples of the two would be one stream."""
        run = [stage.part for stage in self.pipeline.stages]
        for number, name in enumerate(run):
            if name in run[:number] and self.facts[name].state:
                raise self._make_error(
                    f"two stages run {name!r}, which has a state of its own",
                    f"name the model twice under 'models', once for each stage of {name!r}",
                    *("stages", number),
                )

    def _require_pictures(self) -> None:
        """Check what is cut: pictures that a caller gives, and samples of them."""
        samples = self.loaded.project.samples
        for number, stage in enumerate(self.pipeline.stages):
            if not isinstance(stage, CropStage):
                continue
            if stage.picture not in self.pipeline.inputs:
                raise self._make_error(
                    f"the picture {stage.picture!r} is no input of the pipeline",
                    f"{suggest_nearest(stage.picture, self.pipeline.inputs)}; what is cut is a"
                    " picture that a caller gives",
                    *("stages", number, "picture"),
                )
            if samples.calibration is None and samples.evaluation is None:
                raise self._make_error(
                    "objects are cut out of pictures, and the project has no samples",
                    f"add samples: {{calibration: {{path: pictures.npz}}}}, with the array"
                    f" {stage.picture} of pictures, uint8 [samples, height, width, 3]: in random"
                    " pictures there are no objects",
                    *("stages", number),
                )

    def _find_facts(self, number: int, stage: Stage) -> PartFacts:
        """Return what a stage's part takes and gives there: pictures, or tensors."""
        facts = self.facts[stage.part]
        taken = {stage.inputs.get(name, name) for name in facts.images}
        sees = isinstance(stage, CropStage) or taken & self.pictures
        if sees and facts.texts:
            raise self._make_error(
                f"the part {stage.part!r} takes a picture here, and {min(facts.texts)!r} is"
                " described as tokens: where pictures are given, texts would be, too",
                f"leave 'tokens' of {min(facts.texts)!r} out in the part's project: it gets a"
                " tensor of ids then",
                *("stages", number, stage.KEY),
            )
        # Boxes are in the pixels of one picture.
        return facts.seeing() if sees and len(facts.images) == 1 else facts

    def _check_stage(self, number: int, stage: Stage) -> Stage:
        facts = self._find_facts(number, stage)
        inputs = {spec.name: spec for spec in facts.inputs}
        self._require_names(number, "inputs", stage.inputs, inputs)
        own: set[str | None] = set()
        if isinstance(stage, DecodeStage):
            stage = self._check_decode(number, stage)
            own = {stage.token, stage.position, stage.mask, *stage.past.values()}
        elif isinstance(stage, CropStage):
            stage = self._check_crop(number, stage)
        free = [spec for spec in facts.inputs if spec.name not in {*own, *facts.state.values()}]
        for name in stage.inputs:
            if name in inputs and inputs[name] not in free:
                raise self._make_error(
                    f"the input {name!r} of {stage.part!r} is filled by the stage itself",
                    "leave it out here: it is a state, or named as token, past, position or mask",
                    *("stages", number, "inputs", name),
                )
        taken = {spec.name: stage.inputs.get(spec.name, spec.name) for spec in free}
        for spec in free:
            self._take(number, stage, spec, taken[spec.name])
        if isinstance(stage, DecodeStage):
            self._make(number, TensorSpec(stage.output, "int64", ("tokens",)), "output")
            return stage.model_copy(update={"inputs": taken})
        return self._check_outputs(number, stage.model_copy(update={"inputs": taken}), facts)

    def _check_outputs(
        self, number: int, stage: RunStage | CropStage, facts: PartFacts
    ) -> RunStage | CropStage:
        outputs = {spec.name: spec for spec in facts.outputs}
        self._require_names(number, "outputs", stage.outputs, outputs)
        # What only goes round is no value, unless it is given a name.
        given = {
            n: stage.outputs.get(n, n)
            for n in outputs
            if n in stage.outputs or n not in facts.state
        }
        if isinstance(stage, CropStage):
            self._make(number, TensorSpec(stage.objects, "float32", _OBJECTS), "objects")
            self.rows[stage.objects] = stage.objects
        for name, value in given.items():
            spec = outputs[name]
            if isinstance(stage, CropStage):
                spec = self._find_rows(number, stage, spec)
                self.rows[value] = stage.objects
            elif spec.shape == _OBJECTS and name in facts.detections:
                self.rows[value] = value
                [self.seen[value]] = self.pictures.intersection(stage.inputs.values())
            self._make(number, TensorSpec(value, spec.dtype, spec.shape), "outputs", name)
        return stage.model_copy(update={"outputs": given})

    def _check_crop(self, number: int, stage: CropStage) -> CropStage:
        """Return the stage with its picture among its inputs."""
        facts = self.facts[stage.part]
        if len(facts.images) != 1:
            raise self._make_error(
                f"the part {stage.part!r} cannot run on what is cut out: {len(facts.images)} of its"
                " inputs are described as images, and it needs one",
                "add inputs: {NAME: {image: {resize: {width: W, height: H}}}} to the part's"
                " project, with the NAME of its input",
                *("stages", number, "crop"),
            )
        if facts.state:
            raise self._make_error(
                f"the part {stage.part!r} has a state, and objects come in no order",
                "name a model without a state",
                *("stages", number, "crop"),
            )
        [image] = facts.images
        if image in stage.inputs:
            raise self._make_error(
                f"the input {image!r} of {stage.part!r} is filled by the stage itself",
                "leave it out here: it gets what is cut out of 'picture'",
                *("stages", number, "inputs", image),
            )
        self._require_objects(number, stage)
        self.used.add(stage.boxes)
        return stage.model_copy(update={"inputs": {**stage.inputs, image: stage.picture}})

    def _require_objects(self, number: int, stage: CropStage) -> None:
        """Check that a detector has found the boxes, and in the picture that is cut."""
        boxes, picture = stage.boxes, self.seen.get(stage.boxes)
        if picture is None:
            known = [name for name, seen in self.seen.items() if seen == stage.picture]
            later = "" if boxes in self.values else self._find_later(number, boxes)
            raise self._make_error(
                f"{boxes!r} is made only after it, by {later}"
                if later
                else f"{boxes!r} is no value of objects that a detector found",
                (f"name one of {', '.join(known)}" if known else "run a detector before it")
                + f": a part that takes the picture {stage.picture!r}, whose project describes the"
                " output: outputs: {NAME: {kind: detection, layout: ...}}",
                *("stages", number, "boxes"),
            )
        if picture != stage.picture:
            raise self._make_error(
                f"the objects {boxes!r} were found in {picture!r}, and {stage.picture!r} is cut",
                "cut the picture in which they were found: boxes are in its pixels",
                *("stages", number, "picture"),
            )

    def _find_rows(self, number: int, stage: CropStage, spec: TensorSpec) -> TensorSpec:
        """Return what an output becomes that is put together of all objects."""
        shape = spec.shape or ()
        stacks = bool(shape) and shape[0] in (1, *_symbolic(shape[:1])) and shape != _OBJECTS
        if spec.name in self.facts[stage.part].masked:
            raise self._make_error(
                f"the output {spec.name!r} of {stage.part!r} is pooled with a mask, which is not"
                " kept for each object",
                "leave the output's description out in the part's project, or let the model pool",
                *("stages", number, "crop"),
            )
        if not stacks or _symbolic(shape[1:]):
            raise self._make_error(
                f"the output {spec} of {stage.part!r} cannot be one row for each object: its first"
                " axis has to be 1 or symbolic, and all others fixed",
                "fix them with 'dims' in the part's project; a detector finds nothing in pieces",
                *("stages", number, "crop"),
            )
        return TensorSpec(spec.name, spec.dtype, ("objects", *shape[1:]))

    def _check_decode(self, number: int, stage: DecodeStage) -> DecodeStage:
        facts = self.facts[stage.part]
        inputs = {spec.name: spec for spec in facts.inputs}
        outputs = {spec.name: spec for spec in facts.outputs}
        for key in ("token", "position", "mask"):
            name = getattr(stage, key)
            if name is not None:
                self._require_names(number, key, [name], inputs)
                self._require_rows(number, key, inputs[name])
        self._require_names(number, "logits", [stage.logits], outputs)
        if not outputs[stage.logits].dtype.startswith("float"):
            raise self._make_error(
                f"the output {outputs[stage.logits]} has no scores: those are floats",
                "name the output with a score for each token of the vocabulary",
                *("stages", number, "logits"),
            )
        past = dict(self._expand_past(number, stage, inputs, outputs))
        for output, name in past.items():
            self._require_rank(inputs[name], stage.part, "stages", number, "past")
            self._require_fit(
                inputs[name], outputs[output], f"output {output!r}", number, stage.part, "past"
            )
        lists = {
            k: [v] if isinstance(v, int) else v
            for k, v in (("start", stage.start), ("end", stage.end))
        }
        return stage.model_copy(update={"past": past, **lists})

    def _require_rows(self, number: int, key: str, spec: TensorSpec) -> None:
        """Check that an input takes one row of integers: one sequence of tokens."""
        shape = spec.shape
        fits = shape is None or (len(shape) == 2 and shape[0] in (1, *_symbolic(shape[:1])))
        if not fits or not spec.dtype.startswith(("int", "uint")):
            raise self._make_error(
                f"the input {spec} cannot be {key!r}: one row of integers is needed",
                "name an input such as input_ids: int64[1, tokens]",
                *("stages", number, key),
            )

    def _expand_past(
        self,
        number: int,
        stage: DecodeStage,
        inputs: Mapping[str, TensorSpec],
        outputs: Mapping[str, TensorSpec],
    ) -> Iterator[tuple[str, str]]:
        for output, name in stage.past.items():
            if ("*" in output) != ("*" in name) or output.count("*") > 1 or name.count("*") > 1:
                raise self._make_error(
                    f"{output!r} and {name!r} do not match: each has one '*', or none has",
                    "such as past: {present.*: past_key_values.*}",
                    *("stages", number, "past", output),
                )
            pattern = re.compile("(.*)".join(map(re.escape, output.split("*"))))
            found = [match for match in map(pattern.fullmatch, outputs) if match]
            if not found:
                raise self._make_error(
                    f"the part {stage.part!r} has no output {output!r}",
                    suggest_nearest(output, outputs),
                    *("stages", number, "past", output),
                )
            for match in found:
                fed = name.replace("*", match[1]) if "*" in name else name
                if fed not in inputs:
                    raise self._make_error(
                        f"the part {stage.part!r} has no input {fed!r}, which {match[0]!r} feeds",
                        suggest_nearest(fed, inputs),
                        *("stages", number, "past", output),
                    )
                yield match[0], fed

    def _take(self, number: int, stage: Stage, spec: TensorSpec, value: str) -> None:
        """Let a part's input take a value."""
        self.used.add(value)
        named = spec.name in stage.inputs
        where: tuple[str | int, ...] = ("stages", number)
        if named:
            where = ("stages", number, "inputs", spec.name)
        if value in self.pictures and self.facts[stage.part].images != {spec.name}:
            raise self._make_error(
                f"the input {spec.name!r} of {stage.part!r} takes the picture {value!r}, and is not"
                " the one input of it that is described as an image",
                "give it another value; or describe it in the part's project, and no other:"
                f" inputs: {{{spec.name}: {{image: ...}}}}",
                *where,
            )
        if value in self.values:
            what = f"value {value!r}"
            if value in self.rows:
                raise self._make_error(
                    f"{stage.part!r} takes {value!r}, which has a row for each object",
                    "give it to the caller under 'outputs': other stages take no such values",
                    *where,
                )
            self._require_fit(spec, self.values[value], what, number, stage.part, *where[2:])
        elif value in self.pipeline.inputs:
            self._require_rank(spec, stage.part, *where)
            self.values[value] = TensorSpec(value, spec.dtype, spec.shape)
        elif later := self._find_later(number, value):
            raise self._make_error(
                f"{stage.part!r} takes {value!r}, which {later} makes only after it",
                "put the stages in order; what goes round from one call to the next is a 'state' of"
                " one part's project",
                *where,
            )
        elif named:
            known = [*self.values, *self.pipeline.inputs]
            hint = suggest_nearest(value, known)
            raise self._make_error(f"there is no value {value!r}", hint, *where)
        else:
            raise self._make_error(
                f"the input {spec} of {stage.part!r} gets no value",
                self._hint_lacking(stage, spec),
                *where,
            )

    def _require_rank(self, spec: TensorSpec, part: str, *where: str | int) -> None:
        if spec.shape is None:
            raise self._make_error(
                f"the input {spec.name!r} of {part!r} has no shape",
                "export the model with the shapes of its inputs",
                *where,
            )

    def _hint_lacking(self, stage: Stage, spec: TensorSpec) -> str:
        known = ", ".join(dict.fromkeys([*self.values, *self.pipeline.inputs]))
        if isinstance(stage, DecodeStage):
            return (
                f"add it to 'inputs' of the stage ({known}), or if an output feeds it for the next"
                f" token: past: {{OUTPUT: {spec.name}}}"
            )
        return (
            f"add inputs: {{{spec.name}: VALUE}} to the stage, with one of {known}; if an output of"
            f" the part feeds it, add state: {{OUTPUT: {spec.name}}} to the part's project"
        )

    def _find_later(self, number: int, value: str) -> str:
        """Return the stage that makes a value, from one on, in words; nothing if none does."""
        for later in range(number, len(self.pipeline.stages)):
            stage = self.pipeline.stages[later]
            if isinstance(stage, DecodeStage):
                made = {stage.output}
            else:
                names = [spec.name for spec in self.facts[stage.part].outputs]
                made = {stage.outputs.get(name, name) for name in names}
                made |= {stage.objects} if isinstance(stage, CropStage) else set()
            if value in made:
                return f"the stage of {stage.part!r}" if later > number else "the same stage"
        return ""

    def _make(self, number: int, spec: TensorSpec, *place: str) -> None:
        name = spec.name
        if name in self.values or name in self.pipeline.inputs:
            part = self.pipeline.stages[number].part
            hint = (
                f"give {place[0]!r} another name"
                if len(place) == 1
                else f"give it another name in the stage: outputs: {{{place[-1]}: NAME}}"
            )
            raise self._make_error(
                f"{part!r} makes {name!r}, and there is a value of that name before it",
                hint,
                "stages",
                number,
                *place,
            )
        self.values[name] = spec

    def _require_fit(
        self,
        taken: TensorSpec,
        made: TensorSpec,
        what: str,
        number: int,
        part: str,
        *place: str | int,
    ) -> None:
        fits = taken.dtype == made.dtype
        if fits and taken.shape is not None and made.shape is not None:
            pairs = list(zip(taken.shape, made.shape, strict=False))
            fits = len(taken.shape) == len(made.shape) and all(
                a == b for a, b in pairs if isinstance(a, int) and isinstance(b, int)
            )
        if not fits:
            raise self._make_error(
                f"the {what} is {_format_type(made)}, and the input {taken.name!r} of {part!r}"
                f" takes {_format_type(taken)}",
                "name the value that fits, or export one of the two models otherwise",
                *("stages", number, *place),
            )

    def _require_names(
        self, number: int, key: str, names: Iterable[str], known: Iterable[str]
    ) -> None:
        part, there = self.pipeline.stages[number].part, list(known)
        what = "output" if key in ("outputs", "logits") else "input"
        for name in names:
            if name not in there:
                place = (
                    ("stages", number, key, name)
                    if key.endswith("puts")
                    else ("stages", number, key)
                )
                raise self._make_error(
                    f"the part {part!r} has no {what} {name!r}",
                    suggest_nearest(name, there),
                    *place,
                )

    def _require_once(self, names: Sequence[str], key: str) -> None:
        for place, name in enumerate(names):
            if name in names[:place]:
                raise self._make_error(f"{name!r} is named twice", "name it once", key, place)

    def _drop_unused(self, stage: Stage) -> Stage:
        if isinstance(stage, DecodeStage):
            return stage
        kept = {name: value for name, value in stage.outputs.items() if value in self.used}
        return stage.model_copy(update={"outputs": kept})

    def _make_error(self, problem: str, hint: str, *place: str | int) -> ProfileError:
        return ProfileError(problem, hint=hint, where=self.loaded.locate("pipeline", *place))


def _symbolic(sizes: Iterable[int | str]) -> list[str]:
    return [size for size in sizes if isinstance(size, str)]


def _format_type(spec: TensorSpec) -> str:
    return str(spec).partition(": ")[2]
