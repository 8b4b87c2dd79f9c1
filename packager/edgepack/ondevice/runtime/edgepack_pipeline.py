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
until the tokens end; each call begins with empty ones.

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
from typing import Any, Callable, Collection, Dict, List, Mapping, Optional, Sequence, Union

import numpy as np

if __package__:
    from . import edgepack_binding as binding
    from . import edgepack_loader as loader
    from . import edgepack_providers as providers
    from . import edgepack_shapes as shapes
else:  # a bundle's, whose folder need not be on the path
    sys.path.append(str(Path(__file__).resolve().parent))
    import edgepack_binding as binding  # type: ignore[import-not-found,no-redef]
    import edgepack_loader as loader  # type: ignore[import-not-found,no-redef]
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
    """

    def __init__(
        self, infer: Infer, inputs: Sequence[TensorSpec], state: Mapping[str, str]
    ) -> None:
        self.infer = infer
        self.specs = {spec.name: spec for spec in inputs}
        self.state = state


class Stage:
    """One stage of a chain, with what it keeps for its next run."""

    def __init__(self, name: str, part: Part, past: Mapping[str, str]) -> None:
        self.name = name
        self.part = part
        self.past = past
        self.fed = {**part.state, **past}
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
        """Run the part once, and return the outputs that are wanted."""
        whole = {**feed, **self.kept}
        if watch:
            watch(self.name, whole, self.fresh)
        outputs = self.part.infer(whole, self.fed.keys())
        self.kept = {name: outputs[output] for output, name in self.fed.items()}
        self.fresh = False
        return {name: read_value(outputs[name]) for name in wanted}


class Chain:
    """Stages in order. Calling it runs them; one caller at a time.

    Args:
        document: ``pipeline`` of the manifest: ``inputs``, ``stages`` and ``outputs``.
        parts: By name.
        watch: Called before each run of a part.

    Attributes:
        stage_ns: How long each stage of the last call took, in nanoseconds.
        tokens: How many tokens each decoding stage of the last call gave, by the stage's number.
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
        self.stages = [
            Stage(name, parts[name], entry.get("past", {}))
            for name, entry in (
                (entry.get("run") or entry["decode"], entry) for entry in self.described
            )
        ]
        self.stage_ns: List[int] = []
        self.tokens: Dict[int, int] = {}

    def reset(self) -> None:
        """Begin a stream: the state of each part is zeros."""
        for stage in self.stages:
            stage.reset()

    def __call__(self, inputs: Mapping[str, np.ndarray]) -> Arrays:
        """Return the outputs by name."""
        values: Dict[str, Any] = dict(inputs)
        self.stage_ns = []
        for number, (entry, stage) in enumerate(zip(self.described, self.stages)):  # noqa: B905
            began = time.perf_counter_ns()
            feed = {name: values[value] for name, value in entry["inputs"].items()}
            if "run" in entry:
                outputs = stage.run(feed, entry["outputs"], self.watch)
                values.update({value: outputs[name] for name, value in entry["outputs"].items()})
            else:
                tokens = self._decode(entry, stage, feed)
                values[entry["output"]] = np.asarray(tokens, np.int64)
                self.tokens[number] = len(tokens)
            self.stage_ns.append(time.perf_counter_ns() - began)
        return {name: values[name] for name in self.outputs}

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


def make_zeros(spec: TensorSpec) -> np.ndarray:
    """Return zeros for an input of the state; symbolic sizes are 1."""
    return np.zeros([size if isinstance(size, int) else 1 for size in spec.shape], spec.dtype)


def make_empty(spec: TensorSpec) -> np.ndarray:
    """Return the cache that decoding begins with: its first axis is 1, other symbolic ones 0."""
    sizes = [s if isinstance(s, int) else int(axis == 0) for axis, s in enumerate(spec.shape)]
    return np.zeros(sizes, spec.dtype)


def read_value(value: Any) -> np.ndarray:
    """Return an output as an array of this process; values on a device are copied."""
    if isinstance(value, np.ndarray):
        return value
    array: np.ndarray = value.numpy()
    # Of the host's memory it is a view (onnxruntime 1.31.1, observed).
    return array if array.flags.owndata else array.copy()


def make_infer(model: loader.Model) -> Infer:
    """Return what runs a loaded part; what it takes again stays on the device that computes.

    A variant with a model for each of several sizes pads and cuts, and so keeps arrays.
    """
    memory, device_id = binding.find_memory(model.entry), binding.find_device_id(model.entry)
    names = [spec.name for spec in model.outputs]

    def infer(feed: Dict[str, Any], kept: Collection[str]) -> Dict[str, Any]:
        if model.buckets or not kept:
            arrays: Dict[str, Any] = model.run({n: read_value(v) for n, v in feed.items()})
            return arrays
        bound = model.session.io_binding()
        for name, value in feed.items():
            if isinstance(value, np.ndarray):
                bound.bind_cpu_input(name, np.require(value, requirements="C"))
            else:
                bound.bind_ortvalue_input(name, value)
        for name in names:
            place = (memory, device_id) if name in kept else (binding.HOST, 0)
            bound.bind_output(name, *place)
        model.session.run_with_iobinding(bound)
        return dict(zip(names, bound.get_outputs()))  # noqa: B905 (strict is unknown to Python 3.8)

    return infer


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
            {
                name: Part(make_infer(model), model.inputs, model.bundle.manifest.get("state", {}))
                for name, model in parts.items()
            },
        )
        self._calling = threading.Lock()

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
        """
        feed = self._check_inputs(inputs)
        with self._calling:
            return self.chain(feed)

    def _check_inputs(self, inputs: Union[Mapping[str, Any], np.ndarray]) -> Arrays:
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
            for entry in self.manifest["goldens"][number]["outputs"][self.combination]:
                check, name = checks[entry["name"]], entry["name"]
                needed_db = check["min_db"] or 0.0
                found_db = _compare(check, number, self._read(entry), outputs[name])
                self.golden_db = min(self.golden_db, found_db)
                if found_db < needed_db:
                    raise LoadError(
                        f"with {self.combination} the output {name!r} of the pipeline is"
                        f" {found_db:.1f} dB near the golden one, {needed_db:.1f} dB are needed"
                        f" (golden sample {number + 1}), although each part is near its own"
                    )
        self.reset()

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


def name_combination(variants: Mapping[str, str]) -> str:
    """Return the variants of parts in one line: ``encoder=cpu-fp32 decoder=cpu-int8-static``."""
    return " ".join(f"{part}={variant}" for part, variant in variants.items())


def load(
    bundle: Union[str, Path, None] = None,
    variants: Optional[Mapping[str, str]] = None,
    cache: Union[str, Path, None] = None,
    on_try: Optional[Callable[[str, List[Path]], None]] = None,
) -> Pipeline:
    """Return the pipeline of a bundle, each part with the first variant that works here.

    Args:
        bundle: The folder; by default the one that this file lies in.
        variants: By part, use only this variant.
        cache: Where providers keep engines and compiled models: see :func:`edgepack_loader.load`.
        on_try: Called before the sessions of a part's variant are created, with the part and the
            variant as ``part=variant``, and the folders in which it keeps its engines.

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
        parts[name] = loader.load(place, (variants or {}).get(name), root, watch)
    try:
        pipeline = Pipeline(folder, manifest, parts)
        pipeline.prove()
    except loader.ORT_ERRORS as error:
        raise LoadError(f"the pipeline fails, although each part works: {error}") from error
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
