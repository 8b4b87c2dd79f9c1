"""Run this bundle's models one after the other: a pipeline.

::

    from edgepack_pipeline import load

    pipeline = load()
    outputs = pipeline({"audio": array})
    print(pipeline.variants)

Each part is a bundle of its own, under ``parts``, and is opened by :mod:`edgepack_loader`: the best
variant that works on this machine, held to its own golden outputs. Then the whole runs its golden
inputs, from the first call of a stream on, and is held to the golden outputs of these variants.

What an output of a part feeds in its next run, its state, is kept here between calls, in the
memory of the device that computes where the provider has its own. :meth:`Pipeline.reset` begins
anew. A stage that decodes runs its part once for each token, and its caches are kept the same way
until the tokens end; each call begins with empty ones. A stage that crops cuts the objects that a
detector found out of a picture, and runs its part on each piece.

The builder runs the source models by the same :class:`Chain`.

Needs what the loader needs: Python 3.8, numpy and onnxruntime.
"""

from __future__ import annotations

import hashlib
import json
import sys
import threading
import time
from pathlib import Path
from typing import (
    Any,
    Callable,
    Collection,
    Dict,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
    Union,
)

import numpy as np

if __package__:
    from . import edgepack_binding as binding
    from . import edgepack_crops as crops
    from . import edgepack_images as images
    from . import edgepack_loader as loader
    from . import edgepack_meaning as meanings
    from . import edgepack_providers as providers
    from . import edgepack_shapes as shapes
else:  # a bundle's, whose folder need not be on the path
    sys.path.append(str(Path(__file__).resolve().parent))
    import edgepack_binding as binding  # type: ignore[import-not-found,no-redef]
    import edgepack_crops as crops  # type: ignore[import-not-found,no-redef]
    import edgepack_images as images  # type: ignore[import-not-found,no-redef]
    import edgepack_loader as loader  # type: ignore[import-not-found,no-redef]
    import edgepack_meaning as meanings  # type: ignore[import-not-found,no-redef]
    import edgepack_providers as providers  # type: ignore[import-not-found,no-redef]
    import edgepack_shapes as shapes  # type: ignore[import-not-found,no-redef]

PIPELINE = "pipeline"
"""The ``kind`` in the manifest of a bundle of several models."""

Arrays = Dict[str, np.ndarray]
LoadError = loader.LoadError
TensorSpec = shapes.TensorSpec
Infer = Callable[[Dict[str, Any], Collection[str]], Dict[str, Any]]
"""Takes the inputs and the names of outputs that only this part will take again; returns the
outputs. What it returns for those names may be a value on the device, and is an input later."""
Watch = Callable[[str, Dict[str, Any], bool], None]
"""Called before each run of a part with its name, its inputs, and whether it begins a stream."""


class Part:
    """What a chain needs of a part.

    Args:
        infer: Runs it once.
        inputs: What it takes.
        state: Its outputs that feed its inputs in the next run.
        outputs: What it gives; needed where it runs on what is cut out.
        meaning: Makes its inputs of pictures; needed where it takes some.
    """

    def __init__(
        self,
        infer: Infer,
        inputs: Sequence[TensorSpec],
        state: Mapping[str, str],
        outputs: Sequence[TensorSpec] = (),
        meaning: Optional["meanings.Meaning"] = None,
    ) -> None:
        self.infer = infer
        self.specs = {spec.name: spec for spec in inputs}
        self.state = state
        self.outputs = {spec.name: spec for spec in outputs}
        self.meaning = meaning


class Stage:
    """One stage of a chain, with what it keeps for its next run.

    Args:
        name: Of the part.
        part: What it runs.
        past: As the stage has it.
        sees: Whether what is given for inputs that are described as images are pictures.
        cuts: Whether it runs once for each object, and each output has one row then.
    """

    def __init__(
        self,
        name: str,
        part: Part,
        past: Mapping[str, str],
        sees: bool = False,  # noqa: FBT001, FBT002
        cuts: bool = False,  # noqa: FBT001, FBT002
    ) -> None:
        self.name = name
        self.part = part
        self.past = past
        self.cuts = cuts
        self.meaning = part.meaning if sees else None
        self.detections = self.meaning.detections if self.meaning else []
        self.fed = {**part.state, **past}
        self.runs = 0
        self.kept: Dict[str, Any] = {}
        self.fresh = True
        self.reset()

    def reset(self) -> None:
        """Begin anew: state with zeros, symbolic sizes 1; caches empty, as :func:`make_empty`."""
        state, past = self.part.state.values(), self.past.values()
        self.kept = {name: make_zeros(self.part.specs[name]) for name in state}
        self.kept.update({name: make_empty(self.part.specs[name]) for name in past})
        self.fresh = True

    def run(self, feed: Dict[str, Any], wanted: Collection[str], watch: Optional[Watch]) -> Arrays:
        """Run the part once, and return the outputs that are wanted.

        Of a part that takes a picture, a detection's output is its objects: a row for each, as
        :func:`edgepack_crops.make_rows` makes them.

        Raises:
            ValueError: It runs once for each object, and an output has not one row.
        """
        seen = self.meaning.make_feed(feed) if self.meaning else meanings.Feed(feed, None)
        whole = {**seen.arrays, **self.kept}
        if watch:
            watch(self.name, whole, self.fresh)
        outputs = self.part.infer(whole, self.fed.keys())
        self.kept = {name: outputs[output] for output, name in self.fed.items()}
        self.fresh = False
        values = {name: self._read(name, outputs, seen) for name in wanted}
        self.runs += 1
        return values

    def _read(self, name: str, outputs: Mapping[str, Any], seen: "meanings.Feed") -> np.ndarray:
        if self.meaning is None or name not in self.detections:
            value = binding.read_value(outputs[name])
            if self.cuts and value.shape[:1] != (1,):
                raise ValueError(
                    f"the output {name!r} is {list(value.shape)} for one object, and its first axis"
                    " has to be 1: a row for each object"
                )
            return value
        read = {each: binding.read_value(outputs[each]) for each in self.meaning.list_read(name)}
        found: Any = self.meaning.make_answers(read, seen)[name]
        rows: np.ndarray = crops.make_rows(found)
        return rows


class StageError(RuntimeError):
    """A run of a stage failed; the message says which, and what can be done about it."""


class Rows(NamedTuple):
    """What a value is that has a row for each object."""

    objects: str
    """The value with these objects; of the objects themselves, their own."""
    stage: Stage
    """What the rows say is said by this stage's part."""
    output: str
    """In this output."""


class Chain:
    """Stages in order. Calling it runs them; one caller at a time.

    Args:
        document: ``pipeline`` of the manifest: ``inputs``, ``stages`` and ``outputs``.
        parts: By name.
        watch: Called before each run of a part.

    Attributes:
        stage_ns: How long each stage of the last call took, in nanoseconds.
        tokens: How many tokens each decoding stage of the last call gave, by the stage's number.
        crops: How many objects each cropping stage of the last call cut out, likewise.
        pictures: The values that are pictures.
        rows: The values that have a row for each object.
        number: Of the stage that runs, or ran last.
    """

    def __init__(
        self,
        document: Mapping[str, Any],
        parts: Mapping[str, Part],
        watch: Optional[Watch] = None,
    ) -> None:
        self.described: List[Dict[str, Any]] = document["stages"]
        self.outputs: List[str] = document["outputs"]
        self.watch = watch
        self.pictures = {entry["picture"] for entry in self.described if "crop" in entry}
        self.stages = [
            Stage(
                name,
                parts[name],
                entry.get("past", {}),
                sees=bool(self.pictures.intersection(entry["inputs"].values())),
                cuts="crop" in entry,
            )
            for name, entry in ((_find_part(entry), entry) for entry in self.described)
        ]
        self.stage_ns: List[int] = []
        self.tokens: Dict[int, int] = {}
        self.crops: Dict[int, int] = {}
        self.rows: Dict[str, Rows] = {}
        for entry, stage in zip(self.described, self.stages):  # noqa: B905
            self._add_rows(entry, stage)
        self.number = 0

    def _add_rows(self, entry: Mapping[str, Any], stage: Stage) -> None:
        for name, value in entry.get("outputs", {}).items():
            if "crop" in entry:
                self.rows[value] = Rows(entry["objects"], stage, name)
            elif name in stage.detections:
                self.rows[value] = Rows(value, stage, name)
        if "crop" in entry:
            objects = entry["objects"]
            self.rows[objects] = self.rows[entry["boxes"]]._replace(objects=objects)

    def reset(self) -> None:
        """Begin a stream: the state of each part is zeros."""
        for stage in self.stages:
            stage.reset()

    def __call__(self, inputs: Mapping[str, np.ndarray]) -> Arrays:
        """Return the outputs by name.

        Raises:
            StageError: Onnxruntime fails in a stage.
        """
        values: Dict[str, Any] = dict(inputs)
        self.stage_ns = []
        for number, (entry, stage) in enumerate(zip(self.described, self.stages)):  # noqa: B905
            began = time.perf_counter_ns()
            self.number, stage.runs = number, 0
            try:
                values.update(self._run(entry, stage, values))
            except loader.ORT_ERRORS as error:
                place, advice = self.explain_place()
                raise StageError(f"{place}: {error}" + (advice and f" ({advice})")) from error
            self.stage_ns.append(time.perf_counter_ns() - began)
        return {name: values[name] for name in self.outputs}

    def explain_place(self) -> Tuple[str, str]:
        """Return where the chain is, in words, and what to do if the run there fails."""
        entry, stage = self.described[self.number], self.stages[self.number]
        place, count = f"stage {self.number + 1} ({stage.name})", stage.runs
        if "crop" in entry:
            return f"{place}, object {count + 1}", ""
        if "decode" not in entry:
            return place, ""
        place = f"{place}, token {count + 1} of at most {entry['most']}"
        if not count:
            return place, (
                "the first run takes all tokens of 'start', and caches that are empty: compare"
                " 'token', 'past', 'position' and 'mask' with the model's inputs"
            )
        return place, (
            f"{count} went well: where the model takes no longer sequences, most: {count} ends them"
            " before that"
        )

    def _run(self, entry: Dict[str, Any], stage: Stage, values: Mapping[str, Any]) -> Arrays:
        """Return the values that a stage makes."""
        feed = {name: values[value] for name, value in entry["inputs"].items()}
        if "run" in entry:
            outputs = stage.run(feed, entry["outputs"], self.watch)
            return {value: outputs[name] for name, value in entry["outputs"].items()}
        if "crop" in entry:
            made = self._crop(entry, stage, feed, values[entry["boxes"]])
            self.crops[self.number] = len(made[entry["objects"]])
            return made
        tokens = self._decode(entry, stage, feed)
        self.tokens[self.number] = len(tokens)
        return {entry["output"]: np.asarray(tokens, np.int64)}

    def _crop(
        self, entry: Dict[str, Any], stage: Stage, feed: Dict[str, Any], rows: np.ndarray
    ) -> Arrays:
        """Return the objects that were cut out, and the outputs for each of them."""
        [name] = [name for name, value in entry["inputs"].items() if value == entry["picture"]]
        kept: List[int] = []
        found: Dict[str, List[np.ndarray]] = {output: [] for output in entry["outputs"]}
        for number, piece in crops.cut_rows(feed[name], rows, entry["margin"], entry["most"]):
            outputs = stage.run({**feed, name: piece}, entry["outputs"], self.watch)
            kept.append(number)
            for output, arrays in found.items():
                arrays.append(outputs[output])
        made = {entry["objects"]: rows[kept]}
        for output, value in entry["outputs"].items():
            spec = stage.part.outputs[output]
            empty = np.zeros([0, *map(int, spec.shape[1:])], spec.dtype)
            made[value] = np.concatenate([empty, *found[output]])
        return made

    def _decode(self, entry: Dict[str, Any], stage: Stage, feed: Dict[str, Any]) -> List[int]:
        """Return the most likely tokens, one after the other, without those of ``start``."""
        stage.reset()
        specs = stage.part.specs
        tokens: List[int] = list(entry["start"])
        seen, began = 0, len(tokens)
        while len(tokens) < began + entry["most"]:
            new = tokens[seen:]
            given = {entry["token"]: np.asarray([new], specs[entry["token"]].dtype)}
            if entry.get("position"):
                places = np.arange(seen, len(tokens))[None]
                given[entry["position"]] = places.astype(specs[entry["position"]].dtype)
            if entry.get("mask"):
                given[entry["mask"]] = np.ones([1, len(tokens)], specs[entry["mask"]].dtype)
            outputs = stage.run({**feed, **given}, [entry["logits"]], self.watch)
            scores = outputs[entry["logits"]]
            chosen = int(np.argmax(scores.reshape(-1, scores.shape[-1])[-1]))
            if chosen in entry["end"]:
                break
            # Without anything kept the part sees all tokens each time.
            seen = len(tokens) if stage.fed else 0
            tokens.append(chosen)
        return tokens[began:]


def _find_part(entry: Mapping[str, Any]) -> str:
    return str(next(entry[key] for key in ("run", "decode", "crop") if key in entry))


def make_zeros(spec: TensorSpec) -> np.ndarray:
    """Return zeros for an input of the state; symbolic sizes are 1."""
    return np.zeros([size if isinstance(size, int) else 1 for size in spec.shape], spec.dtype)


def make_empty(spec: TensorSpec) -> np.ndarray:
    """Return the cache that decoding begins with: its first axis is 1, other symbolic ones 0."""
    sizes = [s if isinstance(s, int) else int(axis == 0) for axis, s in enumerate(spec.shape)]
    return np.zeros(sizes, spec.dtype)


def make_infer(model: loader.Model) -> Infer:
    """Return what runs a loaded part; what it takes again stays on the device that computes.

    A variant with a model for each of several sizes pads and cuts, and so keeps arrays.
    """
    memory, device_id = binding.find_memory(model.entry), binding.find_device_id(model.entry)
    names = [spec.name for spec in model.outputs]

    def infer(feed: Dict[str, Any], kept: Collection[str]) -> Dict[str, Any]:
        if model.buckets or not kept:
            arrays: Dict[str, Any] = model.run({n: binding.read_value(v) for n, v in feed.items()})
            return arrays
        model.check_ranges(feed)
        bound = model.session.io_binding()
        for name, value in feed.items():
            if isinstance(value, np.ndarray):
                bound.bind_cpu_input(name, np.require(value, requirements="C"))
            else:
                bound.bind_ortvalue_input(name, value)
        for name in names:
            place = (memory, device_id) if name in kept else (binding.HOST, 0)
            bound.bind_output(name, *place)
        model.watch(model.session.run_with_iobinding, bound)
        return dict(zip(names, bound.get_outputs()))  # noqa: B905 (strict is unknown to Python 3.8)

    return infer


def make_part(model: loader.Model, infer: Infer) -> Part:
    """Return a loaded part that a chain runs in some way."""
    meaning = model.bundle.meaning
    return Part(
        infer,
        model.inputs,
        model.bundle.manifest.get("state", {}),
        model.outputs,
        meaning if meaning.takes_pictures else None,
    )


class Pipeline:
    """The parts of a bundle, proven on this machine alone and together. Calling it runs all.

    Threads may share it, and take turns; so do their streams, if a part has a state.

    Attributes:
        parts: The loaded parts, by name.
        variants: The variant in use of each part.
        inputs: What it takes.
        outputs: The names of what it gives.
        golden_db: How near the golden outputs were, in the worst one.
    """

    def __init__(
        self, folder: Path, manifest: Mapping[str, Any], parts: Mapping[str, loader.Model]
    ) -> None:
        self.folder = folder
        self.manifest = manifest
        self.parts = dict(parts)
        self.variants = {name: model.variant for name, model in parts.items()}
        self.inputs = [
            TensorSpec(e["name"], e["dtype"], tuple(e["shape"])) for e in manifest["inputs"]
        ]
        self.outputs: List[str] = manifest["pipeline"]["outputs"]
        self.golden_db = 0.0
        self.chain = Chain(
            manifest["pipeline"],
            {name: make_part(model, make_infer(model)) for name, model in parts.items()},
        )
        self._calling = threading.Lock()

    @property
    def output_specs(self) -> List[TensorSpec]:
        """What it gives; sizes that are known only when it has run are symbolic."""
        found: Dict[str, TensorSpec] = {}
        for entry, stage in zip(self.chain.described, self.chain.stages):  # noqa: B905
            rows = ("objects", crops.COLUMNS)
            if "decode" in entry:
                found[entry["output"]] = TensorSpec(entry["output"], "int64", ("tokens",))
            for name, value in entry.get("outputs", {}).items():
                spec = stage.part.outputs[name]
                shape = ("objects", *spec.shape[1:]) if "crop" in entry else tuple(spec.shape)
                found[value] = TensorSpec(value, spec.dtype, shape)
                if name in stage.detections:
                    found[value] = TensorSpec(value, "float32", rows)
            if "crop" in entry:
                found[entry["objects"]] = TensorSpec(entry["objects"], "float32", rows)
        return [found[name] for name in self.outputs]

    @property
    def combination(self) -> str:
        """The variants in use in one line, as goldens are named after them."""
        return name_combination(self.variants)

    def reset(self) -> None:
        """Begin a stream: the state of each part is zeros."""
        with self._calling:
            self.chain.reset()

    def __call__(self, inputs: Union[Mapping[str, Any], np.ndarray]) -> Arrays:
        """Return the outputs by name.

        After an error, :meth:`reset` before the next call: some parts may have run.

        Args:
            inputs: One array per input, by name; or the array itself if there is one input.

        Raises:
            ValueError: A name, dtype or shape is not what it takes.
            StageError: Onnxruntime fails in a stage.
        """
        feed = self.check_inputs(inputs)
        with self._calling:
            return self.chain(feed)

    def predict(self, inputs: Union[Mapping[str, Any], np.ndarray]) -> Dict[str, Any]:
        """Return answers by output, where outputs have a row for each object that was found.

        Args:
            inputs: As when called: a picture is uint8 ``(H, W, 3)``, RGB, of any size.

        Returns:
            Of objects a list of ``Detection``, with labels and without keypoints, which rows do not
            hold; of what a part says of each, a list of its answers in the same order, as
            :meth:`edgepack_loader.Model.predict` gives them; of other outputs their arrays, as when
            called.

        Raises:
            ValueError: As when called.
            StageError: Likewise.
        """
        return self.make_answers(self(inputs))

    def make_answers(self, outputs: Mapping[str, np.ndarray]) -> Dict[str, Any]:
        """Return the answers of :meth:`predict` in its outputs."""
        return {name: self._answer(name, array) for name, array in outputs.items()}

    def _answer(self, name: str, array: np.ndarray) -> Any:
        rows = self.chain.rows.get(name)
        meaning = rows.stage.meaning if rows else None
        if rows is None or meaning is None:
            return array
        if name == rows.objects:
            return crops.read_rows(array, meaning.find_labels(rows.output))
        if meaning.find_kind(rows.output) == "mask":
            # The class of each pixel of what was cut out, in the model's own size.
            return list(array)
        nowhere = meanings.Feed({}, None)
        return [meaning.make_answers({rows.output: r[None]}, nowhere)[rows.output] for r in array]

    def check_inputs(self, inputs: Union[Mapping[str, Any], np.ndarray]) -> Arrays:
        """Return what the stages are to be fed, or raise ValueError."""
        wanted = [spec.name for spec in self.inputs]
        if not isinstance(inputs, Mapping):
            if len(wanted) != 1:
                raise ValueError(f"there are several inputs: pass a dict with {', '.join(wanted)}")
            inputs = {wanted[0]: inputs}
        if set(inputs) != set(wanted):
            raise ValueError(f"the inputs are {sorted(inputs)}, expected {sorted(wanted)}")
        feed = {name: np.asarray(inputs[name]) for name in wanted}
        for spec in self.inputs:
            spec.check(feed[spec.name])
            if spec.name in self.chain.pictures:
                images.check(feed[spec.name])
        return feed

    def prove(self) -> None:
        """Run the golden inputs in order, as one stream, and compare with the golden outputs.

        Raises:
            LoadError: An output is not near enough, or this combination was never proven.
        """
        checks = self.manifest["checks"].get(self.combination)
        if checks is None:
            raise LoadError(f"the build has not proven these variants together: {self.combination}")
        self.golden_db = loader.EQUAL_DB
        self.reset()
        for number, feed in enumerate(self.read_golden_inputs()):
            outputs = self(feed)
            entries = self.manifest["goldens"][number]["outputs"][self.combination]
            golden = {entry["name"]: self._read(entry) for entry in entries}
            for name in golden:
                problem = self._compare(checks[name], number, name, golden, outputs)
                if problem:
                    raise LoadError(
                        f"with {self.combination} {problem} (golden sample {number + 1}), although"
                        " each part is near its own"
                    )
        self.reset()

    def _compare(
        self, check: Mapping[str, Any], number: int, name: str, golden: Arrays, outputs: Arrays
    ) -> str:
        """Return in what an output is another than the golden one; nothing where it is near."""
        problem, found_db = "", _compare(check, number, golden[name], outputs[name])
        # Of what changes too much, only dtype and rank are compared.
        if name in self.chain.rows and check["min_db"] is not None:
            objects = self.chain.rows[name].objects
            found_db, pairs = compare_rows(name, objects, golden, outputs)
            problem = _explain_others(check, name, pairs) if name == objects else ""
        self.golden_db = min(self.golden_db, found_db)
        needed_db = check["min_db"] or 0.0
        if found_db < needed_db and not problem:
            problem = (
                f"the output {name!r} of the pipeline is {found_db:.1f} dB near the golden one,"
                f" {needed_db:.1f} dB are needed"
            )
        return problem

    def read_golden_inputs(self) -> List[Arrays]:
        """Return the inputs of the golden samples: calls in order, from the first of a stream."""
        goldens = self.manifest["goldens"]
        return [{e["name"]: self._read(e) for e in golden["inputs"]} for golden in goldens]

    def _read(self, entry: Mapping[str, Any]) -> np.ndarray:
        path = self.folder / entry["path"]
        try:
            array = np.frombuffer(path.read_bytes(), np.dtype(entry["dtype"]).newbyteorder("<"))
            return array.reshape(entry["shape"]).astype(entry["dtype"], copy=False)
        except (OSError, ValueError) as error:
            raise LoadError(f"the bundle is damaged: {path}: {error}") from error


def _compare(
    check: Mapping[str, Any], number: int, expected: np.ndarray, found: np.ndarray
) -> float:
    """Return how near an output is; 200 where what can be compared of it is the same."""
    if check["min_db"] is not None:
        return float(loader.closeness_db(expected, found))
    leading = check.get("leading", [0] * (number + 1))[number]
    fits = (expected.dtype, expected.ndim) == (found.dtype, found.ndim)
    same = np.array_equal(expected.reshape(-1)[:leading], found.reshape(-1)[:leading])
    return loader.EQUAL_DB if fits and same else float("-inf")


def compare_rows(
    name: str, objects: str, expected: Mapping[str, np.ndarray], found: Mapping[str, np.ndarray]
) -> Tuple[float, crops.Matched]:
    """Return how near a value is that has a row for each object, and which are the same objects.

    In any order; what has no partner is not compared. Of the objects themselves their scores are.

    Args:
        name: Of the value.
        objects: Of the value with these objects.
        expected: Both, by name.
        found: Likewise.
    """
    pairs = crops.match_rows(expected[objects], found[objects])
    one, other = expected[name], found[name]
    if len(one) != len(expected[objects]) or len(other) != len(found[objects]):
        return float("-inf"), pairs
    one, other = one[pairs.first], other[pairs.second]
    if name == objects:
        one, other = one[:, crops.SCORE], other[:, crops.SCORE]
    return float(loader.closeness_db(one, other)), pairs


def _explain_others(check: Mapping[str, Any], name: str, pairs: crops.Matched) -> str:
    """Return in what objects are others than the golden ones; nothing where they are not."""
    if pairs.unmatched > check["unmatched"]:
        return (
            f"{pairs.unmatched} of the objects {name!r} of the pipeline are missing or are not"
            f" among the golden ones, {check['unmatched']} may be"
        )
    if pairs.least_iou < check["min_iou"]:
        return (
            f"a box of the objects {name!r} of the pipeline shares {pairs.least_iou:.2f} of the"
            f" union with the golden one, {check['min_iou']:.2f} are needed"
        )
    return ""


def name_combination(variants: Mapping[str, str]) -> str:
    """Return the variants of parts in one line: ``encoder=cpu-fp32 decoder=cpu-int8-static``."""
    return " ".join(f"{part}={variant}" for part, variant in variants.items())


def load(
    bundle: Union[str, Path, None] = None,
    variants: Optional[Mapping[str, str]] = None,
    cache: Union[str, Path, None] = None,
    on_try: Optional[Callable[[str, List[Path]], None]] = None,
    stats: Union[str, Path, None] = None,
) -> Pipeline:
    """Return the pipeline of a bundle, each part with the first variant that works here.

    Args:
        bundle: The folder; by default the one that this file lies in.
        variants: By part, use only this variant.
        cache: Where providers keep engines and compiled models: see :func:`edgepack_loader.load`.
        on_try: Called before the sessions of a part's variant are created, with the part and the
            variant as ``part=variant``, and the folders in which it keeps its engines.
        stats: Where what each part does is counted: see :func:`edgepack_loader.load`.

    Raises:
        LoadError: A part has no variant that works here, or the whole is not near its golden
            outputs; or the folder is no such bundle, or has a part of another one.
    """
    folder = Path(bundle) if bundle else Path(__file__).resolve().parent
    manifest = read_manifest(folder)
    root = providers.find_cache_root(folder, manifest["name"]) if cache is None else cache
    parts = {}
    for name, entry in manifest["parts"].items():
        place = folder / entry["path"]
        _require_part(place, name, entry["digest"])
        watch = _name_part(name, on_try) if on_try else None
        parts[name] = loader.load(place, (variants or {}).get(name), root, watch, stats="")
    try:
        pipeline = Pipeline(folder, manifest, parts)
        pipeline.prove()
    except LoadError:
        raise
    except loader.ORT_ERRORS as error:
        raise LoadError(f"the pipeline fails, although each part works: {error}") from error
    for model in parts.values():
        loader.start_counting(model, stats)
    return pipeline


def _name_part(
    name: str, on_try: Callable[[str, List[Path]], None]
) -> Callable[[str, List[Path]], None]:
    return lambda variant, folders: on_try(f"{name}={variant}", folders)


def _require_part(folder: Path, name: str, digest: str) -> None:
    try:
        found = hashlib.sha256((folder / "manifest.json").read_bytes()).hexdigest()
    except OSError as error:
        raise LoadError(f"the bundle is damaged: part {name!r}: {error}") from error
    if found != digest:
        raise LoadError(f"the bundle is damaged: part {name!r} is not the one that it was built of")


def read_manifest(folder: Path) -> Dict[str, Any]:
    """Return the manifest of a bundle of several models.

    Raises:
        LoadError: It is not there, has another version, or the bundle has one model.
    """
    path = folder / "manifest.json"
    try:
        manifest: Dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise LoadError(f"{folder} is no complete bundle: {path.name}: {error}") from error
    if manifest.get("kind") != PIPELINE or manifest.get("schema_version") != loader.SCHEMA_VERSION:
        raise LoadError(
            f"{path} is not that of several models in version {loader.SCHEMA_VERSION}: a bundle of"
            " one model is opened by edgepack_loader.load"
        )
    return manifest
