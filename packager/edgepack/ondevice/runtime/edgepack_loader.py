"""Run this bundle's model: the best variant that works on this machine.

::

    from edgepack_loader import load

    model = load()
    outputs = model({"images": array})
    print(model.variant, model.passed_over)

Where the bundle describes what its inputs are made from and what its outputs mean,
:meth:`Model.predict` takes pictures, texts and sounds and gives answers.

The bundle's manifest lists variants, best first. :func:`load` walks the list. It skips a variant
whose execution provider or CPU flags this machine lacks, or which has a setting that onnxruntime
does not know. It creates the session, runs the golden inputs, compares the outputs with the
variant's golden outputs, checks that the nodes run where the variant needs them, and keeps the
first variant that passes all of this.

A variant may have one model for each of several sizes, because its provider wants static shapes.
Then there is a session for each; a call takes the smallest that is large enough for its inputs,
pads them at the end, and cuts the outputs back.

The modules ``edgepack_*.py`` beside this one belong to it. Engines and compiled models that a
provider keeps go to a cache folder outside the bundle, see :func:`load`.

Needs Python 3.8 or newer, numpy and onnxruntime; nothing else. A program that uses several bundles
names each: ``load("path/to/bundle")``; this module is the same in all of them.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import tempfile
import threading
import time
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import (
    Any,
    Callable,
    Collection,
    Dict,
    List,
    Mapping,
    Optional,
    Sequence,
    Tuple,
    Union,
    overload,
)

# Official builds of onnxruntime 1.29 and newer send telemetry unless this is set before they load.
# Source: Privacy.md in the onnxruntime 1.31.1 wheel.
os.environ["ORT_DISABLE_TELEMETRY"] = "1"

import numpy as np

if __package__:
    from . import edgepack_answers as answers
    from . import edgepack_batches as batches
    from . import edgepack_binding as binding
    from . import edgepack_frames as frames
    from . import edgepack_meaning as meanings
    from . import edgepack_providers as providers
    from . import edgepack_shapes as shapes
else:  # a bundle's, whose folder need not be on the path
    sys.path.append(str(Path(__file__).resolve().parent))
    import edgepack_answers as answers  # type: ignore[import-not-found,no-redef]
    import edgepack_batches as batches  # type: ignore[import-not-found,no-redef]
    import edgepack_binding as binding  # type: ignore[import-not-found,no-redef]
    import edgepack_frames as frames  # type: ignore[import-not-found,no-redef]
    import edgepack_meaning as meanings  # type: ignore[import-not-found,no-redef]
    import edgepack_providers as providers  # type: ignore[import-not-found,no-redef]
    import edgepack_shapes as shapes  # type: ignore[import-not-found,no-redef]

SCHEMA_VERSION = 1
EQUAL_DB = 200.0
"""The :func:`sqnr_db` of equal tensors."""
MIN_EQUAL_SHARE = 0.99
"""The share of an integer or bool output's elements, such as class indices, that must be equal."""

ORT_ERRORS = providers.ORT_ERRORS
Refused = providers.Refused
check_requirements = providers.check_requirements
make_session_config = providers.make_session_config
choose_threads = providers.choose_threads
TensorSpec = shapes.TensorSpec
AnswerOptions = answers.AnswerOptions
Frame = frames.Frame
Plane = frames.Plane
make_pixels = frames.make_pixels

Arrays = Dict[str, np.ndarray]


class LoadError(RuntimeError):
    """No variant of the bundle works on this machine, or the folder is no bundle."""


class Model:
    """One variant of the bundle, proven on this machine. Calling it runs it; threads may share it.

    Attributes:
        variant: Id of the variant in use.
        compiled_for: The hardware for which the model in use was compiled during the build; empty
            where the provider takes the model itself.
        passed_over: Variants that come before it, and compiled models of this one, each with the
            reason why it is not used.
        inputs: What the model takes. A caller may leave out masks that the bundle describes.
        outputs: What it gives.
        buckets: The sizes that there is a model for, smallest first; empty if one takes all sizes.
        sessions: The onnxruntime sessions, one for each bucket.
        session: The last of them: the only one, or that of the largest size.
        golden_sqnr_db: How near the golden outputs were, in the worst one and in all sessions.
        session_create_ns: How long the sessions took to create, in all.
        first_inference_ns: How long the first inference took, in the session that it is for.
        counts_outside: Whether calls count inputs outside the ranges that int8 was calibrated with.
            False unless a program sets it, because each input is read once more for that.
        outside: By input of such a range, in how many of the calls that were counted some of its
            values lay beyond.
        counters: What :func:`load` counts into a folder; None where it counts nothing.
    """

    def __init__(self, bundle: Bundle, entry: Dict[str, Any], sessions: List[Any]) -> None:
        self.bundle = bundle
        self.entry = entry
        self.sessions = sessions
        self.session = sessions[-1]
        self.buckets: List[Dict[str, int]] = [b["dims"] for b in entry.get("buckets", [])]
        self.variant: str = entry["id"]
        self.compiled_for: str = entry.get("compiled_for", "")
        self.passed_over: List[Tuple[str, str]] = []
        self.inputs = bundle.inputs
        self.outputs = bundle.outputs
        self.golden_sqnr_db = 0.0
        self.session_create_ns = 0
        self.first_inference_ns = 0
        self.counts_outside = False
        self.outside: Dict[str, int] = dict.fromkeys(entry.get("input_ranges", {}), 0)
        self.counters: Any = None
        self._counting = threading.Lock()

    def __call__(self, inputs: Union[Mapping[str, Any], np.ndarray]) -> Arrays:
        """Return the outputs by name.

        Args:
            inputs: One array per input, by name, but for masks; or the array itself if that is one.

        Raises:
            ValueError: A name, dtype or shape is not what the model takes, or larger than any
                model of this variant.
        """
        return self.run(self.check_inputs(inputs))

    @overload
    def predict(
        self,
        given: Union[List[Any], Tuple[Any, ...]],
        max_batch: int = ...,
        options: Optional["answers.AnswerOptions"] = ...,
    ) -> List[Dict[str, Any]]: ...

    @overload
    def predict(
        self,
        given: meanings.Given,
        max_batch: int = ...,
        options: Optional["answers.AnswerOptions"] = ...,
    ) -> Dict[str, Any]: ...

    def predict(
        self,
        given: Any,
        max_batch: int = batches.MOST,
        options: Optional["answers.AnswerOptions"] = None,
    ) -> Any:
        """Return answers for pictures, texts and sounds, by output; for a list of them, a list.

        Args:
            given: By input, but for masks; or the one itself if that is one. For an input that the
                bundle describes as an image, a picture as uint8 ``(H, W, 3)``, RGB, of any size;
                for one that it describes as tokens, a text; for one that it describes as sound, the
                bytes of a ``.wav`` file; for any other its array. Or a list or tuple of such.
            max_batch: Of a list: how many that follow each other and have the same shapes are
                joined to a batch at most. They run one by one where the model takes no batch, or
                golden samples in one are not near their outputs, which is tried once for each size.
            options: What is wanted otherwise than the bundle says: ``AnswerOptions(score=0.5)``.

        Returns:
            For an output that the bundle describes, the best classes, the objects in the picture's
            pixels, one vector per sample, decisions, or the class of each pixel, see
            ``edgepack_answers.py``; for any other its array. Of a list the same for each, in order.

        Raises:
            ValueError: As when called; or a picture is none, an output not as it is described, or
                an allowed label none of an output's.
            TypeError: A text is none.
            LoadError: A file that descriptions name is missing.
        """
        if isinstance(given, (list, tuple)):
            return list(batches.predict_all(self, given, max_batch, options))
        feed = self.make_feed(given)
        return self.make_answers(self.run(feed.arrays), feed, options)

    def make_feed(self, given: meanings.Given) -> "meanings.Feed":
        """Return what :meth:`predict` feeds the session for what it is given.

        Raises:
            ValueError: As :meth:`predict`.
            TypeError: A text is none.
            LoadError: A file that descriptions name is missing.
        """
        feed = self.bundle.meaning.make_feed(given)
        return feed._replace(arrays=self.check_inputs(feed.arrays))

    def make_answers(
        self,
        outputs: Arrays,
        feed: "meanings.Feed",
        options: Optional["answers.AnswerOptions"] = None,
    ) -> Dict[str, Any]:
        """Return the answers of :meth:`predict` in the outputs of a feed.

        Raises:
            ValueError: An output is not as it is described, or has not a label that is allowed.
            LoadError: A file that descriptions name is missing.
        """
        return dict(self.bundle.meaning.make_answers(outputs, feed, options))

    def run(self, feed: Arrays) -> Arrays:
        """Return the outputs by name, without checking names and dtypes of the inputs.

        Raises:
            ValueError: The inputs are larger than any model of this variant.
        """
        self.check_ranges(feed)
        outputs: Arrays = self.watch(self.infer, feed)
        return outputs

    def watch(self, call: Callable[..., Any], *given: Any) -> Any:
        """Return what a call returns that is one inference, and count it where that is wanted."""
        return call(*given) if self.counters is None else self.counters.watch(call, *given)

    def infer(self, feed: Arrays) -> Arrays:
        """Return the outputs as :meth:`run`, without counting anything.

        Raises:
            ValueError: As :meth:`run`.
        """
        names = [spec.name for spec in self.outputs]
        arrays = self.runner(names, feed)
        return dict(zip(names, arrays))  # noqa: B905 (strict is unknown to Python 3.8)

    def bind(
        self, inputs: Union[Mapping[str, Any], np.ndarray], *, graph: bool = False
    ) -> "binding.Bound":
        """Return this model with inputs and outputs in the memory of the device that computes.

        Args:
            inputs: As when called. Later ones have to have the same shapes.
            graph: Have the provider record a run and start it as one from then on, in a session of
                its own, which is held to the first golden sample if that has these shapes. Source:
                onnxruntime does that with CUDA and TensorRT where all nodes are theirs and all
                shapes are static, and says so where it cannot.

        Raises:
            ValueError: As when called; or the variant has a model for each of several sizes, or its
                provider records no runs.
            Refused: Onnxruntime makes no such session, or it gives other outputs.
        """
        if self.buckets:
            raise ValueError(f"{self.variant} has a model for each of several sizes: call it")
        feed = self.check_inputs(inputs)
        memory = (binding.find_memory(self.entry), binding.find_device_id(self.entry))
        if not graph:
            return binding.Bound(self.session, memory, feed, self.run(feed))
        # Its engines are those of the other session: the cache is named before the option is added.
        entry = binding.add_graph(providers.add_cache(self.entry, self.bundle.cache))
        bound = binding.Bound(open_session(self.bundle, entry), memory, feed, self.run(feed))
        golden = self.bundle.read_golden_inputs(0)
        if shapes.find_shapes(golden) == shapes.find_shapes(feed):
            # Not with another binding: what is recorded keeps the addresses of the first.
            bound.write(golden)
            bound.run()
            check_golden(entry, self.compute_closeness_db(0, bound.read()), " when recorded")
            bound.write(feed)
        return bound

    def check_ranges(self, feed: Mapping[str, Any]) -> None:
        """Count inputs outside the ranges: of each call, or of some, or not at all.

        The feed has at least the inputs in :attr:`outside`.
        """
        if self.counts_outside:
            self.count_outside(feed)
        elif self.counters is not None and self.counters.is_check_due():
            self.counters.count_checked(self.find_outside(feed))

    def count_outside(self, feed: Mapping[str, Any]) -> None:
        """Count a call in :attr:`outside`, by each input that has values beyond its range."""
        found = self.find_outside(feed)
        with self._counting:
            for name in found:
                self.outside[name] += 1
        if self.counters is not None:
            self.counters.count_checked(found)

    def find_outside(self, feed: Mapping[str, Any]) -> List[str]:
        """Return the inputs that have values beyond their ranges."""
        ranges = self.entry.get("input_ranges", {})
        arrays = {name: binding.read_value(feed[name]) for name in ranges}
        return [
            name
            for name, (low, high) in ranges.items()
            if arrays[name].size and not (low <= arrays[name].min() and arrays[name].max() <= high)
        ]

    @property
    def runner(self) -> Callable[[List[str], Arrays], Sequence[np.ndarray]]:
        """What runs an inference: the session's ``run``, or one that also pads and cuts."""
        return self._run_padded if self.buckets else self.session.run

    def check_sizes(self, feed: Arrays) -> None:
        """Raise ValueError where checked inputs are larger than any model of this variant."""
        if self.buckets:
            shapes.choose_bucket(self.buckets, self._find_sizes(feed), exact=self._exact)

    def _run_padded(self, names: List[str], feed: Arrays) -> Sequence[np.ndarray]:
        number = shapes.choose_bucket(self.buckets, self._find_sizes(feed), exact=self._exact)
        return list(self.run_bucket(number, names, feed).values())

    def run_bucket(self, number: int, names: List[str], feed: Arrays) -> Arrays:
        """Return the outputs of the model for a bucket, which holds the inputs."""
        padded = self.bundle.shapes.pad_feed(feed, self.buckets[number])
        arrays = dict(zip(names, self.sessions[number].run(names, padded)))  # noqa: B905
        return shapes.cut_outputs(arrays, self.entry["slices"], self._find_sizes(feed))

    def _find_sizes(self, feed: Arrays) -> Dict[str, int]:
        return self.bundle.shapes.find_sizes(shapes.find_shapes(feed))

    @property
    def _exact(self) -> bool:
        return bool(self.entry.get("exact"))

    @cached_property
    def joining(self) -> "batches.Joining":
        """How samples are joined to batches."""
        return batches.Joining(self)

    def check_inputs(self, inputs: Union[Mapping[str, Any], np.ndarray]) -> Arrays:
        """Return what the session is to be fed, or raise ValueError."""
        needed = [spec.name for spec in self.bundle.shapes.needed]
        if not isinstance(inputs, Mapping):
            if len(needed) != 1:
                raise ValueError(
                    f"the model has several inputs: pass a dict with {', '.join(needed)}"
                )
            inputs = {needed[0]: inputs}
        wanted = {spec.name for spec in self.inputs}
        if not set(needed) <= set(inputs) <= wanted:
            raise ValueError(f"the inputs are {sorted(inputs)}, expected {sorted(wanted)}")
        feed = {s.name: np.asarray(inputs[s.name]) for s in self.inputs if s.name in inputs}
        for spec in self.inputs:
            if spec.name in feed:
                spec.check(feed[spec.name])
        return self.bundle.shapes.add_masks(feed)

    def prove_buckets(self) -> None:
        """Run a golden input, padded, in each session that it is not for, and compare.

        A bucket that is too small for every golden input runs with one that is cut to its size,
        whose outputs are unknown.

        Raises:
            Refused: An output is not near enough.
        """
        names = [spec.name for spec in self.outputs]
        feeds = [self.bundle.read_golden_inputs(index) for index in range(self.bundle.goldens)]
        for number, bucket in enumerate(self.buckets):
            held = [index for index, feed in enumerate(feeds) if self._can_take(bucket, feed)]
            if not held:
                self.run_bucket(number, names, self.bundle.shapes.resize_feed(feeds[0], bucket))
                continue
            outputs = self.run_bucket(number, names, feeds[held[0]])
            found_db = self.compute_closeness_db(held[0], outputs)
            check_golden(self.entry, found_db, f" for {shapes.format_sizes(bucket)}")
            if held[0] == 0:
                self.golden_sqnr_db = min(self.golden_sqnr_db, found_db)

    def prove_others(self) -> None:
        """Run all golden inputs but the first, and compare.

        Raises:
            Refused: An output is not near enough.
        """
        for index in range(1, self.bundle.goldens):
            found_db = self.measure_golden_db(index)
            check_golden(self.entry, found_db, f" for golden sample {index + 1}")
            self.golden_sqnr_db = min(self.golden_sqnr_db, found_db)

    def _can_take(self, bucket: Dict[str, int], feed: Arrays) -> bool:
        return self.can_take_sizes(bucket, self._find_sizes(feed))

    def can_take_sizes(self, bucket: Dict[str, int], sizes: Dict[str, int]) -> bool:
        """Return whether the model of a bucket takes inputs of these sizes."""
        return bucket == sizes if self._exact else shapes.can_hold(bucket, sizes)

    def measure_golden_db(self, index: int) -> float:
        """Run a golden input and return how near the worst output is, as :func:`closeness_db`."""
        return self.compute_closeness_db(index, self.run(self.bundle.read_golden_inputs(index)))

    def compute_closeness_db(
        self, index: int, outputs: Arrays, names: Optional[Collection[str]] = None
    ) -> float:
        """Return how near outputs are to the golden ones of a sample, in the worst output.

        If an output, or a quantity in it, has to exceed the variant's ``min_sqnr_db`` by its
        ``extra_db``, that is subtracted, so that one limit applies to all. With ``names``, only
        these outputs are compared.
        """
        golden = self.bundle.read_golden_outputs(index, self.variant)
        entries = self.bundle.manifest["goldens"][index]["outputs"][self.variant]
        return min(
            golden_closeness_db(e, golden[e["name"]], outputs[e["name"]])
            for e in entries
            if names is None or e["name"] in names
        )

    @staticmethod
    def compare(reference: Arrays, outputs: Arrays) -> float:
        """Return :func:`closeness_db` of the worst of some outputs."""
        return min(closeness_db(array, outputs[name]) for name, array in reference.items())


class Bundle:
    """A bundle's manifest, its sha256 and golden tensors, read from its folder.

    Raises:
        LoadError: The folder is no bundle, or ``cache`` is inside it.
    """

    def __init__(self, folder: Path, cache: Union[str, Path, None] = None) -> None:
        self.folder = folder
        self.manifest, self.digest = _read_manifest(folder)
        self.cache = _find_cache(folder, self.manifest["name"], cache)
        self.inputs = _make_specs(self.manifest["inputs"])
        self.outputs = _make_specs(self.manifest["outputs"])
        described = self.manifest.get("input_descriptions")
        self.shapes = shapes.InputShapes(self.inputs, described)
        self.meaning = meanings.Meaning(self.manifest, self.shapes, self._read_file)

    @property
    def goldens(self) -> int:
        """The number of golden samples, at least 1."""
        return len(self.manifest["goldens"])

    def list_variants(self, only: Optional[str]) -> List[Dict[str, Any]]:
        """Return all variants in order, or the requested one.

        With libraries of custom operators, each has their paths by machine (``custom_ops``).
        """
        entries: List[Dict[str, Any]] = self.manifest["variants"]
        chosen = [entry for entry in entries if only in (None, entry["id"])]
        if not chosen:
            ids = ", ".join(entry["id"] for entry in entries)
            raise LoadError(f"the bundle has no variant {only!r}; it has: {ids}")
        listed = self.manifest.get("custom_ops", {}).items()
        libraries = {machine: str(self.folder / path) for machine, path in listed}
        return [{**entry, "custom_ops": libraries} for entry in chosen] if libraries else chosen

    def read_golden_inputs(self, index: int) -> Arrays:
        """Return the inputs of one golden sample."""
        return self._read_tensors(self.manifest["goldens"][index]["inputs"])

    def read_golden_outputs(self, index: int, variant: str) -> Arrays:
        """Return a variant's outputs on the build host's CPU for one golden sample.

        Of a large output only every so many-th value is there, in a vector.
        """
        return self._read_tensors(self.manifest["goldens"][index]["outputs"][variant])

    def _read_file(self, name: str) -> str:
        """Return the text of one of the project's files."""
        path = self.folder / "files" / name
        try:
            # As it is: in text mode Python would make a line's end of each carriage return.
            return path.read_bytes().decode("utf-8")
        except (OSError, ValueError) as error:
            raise LoadError(f"the bundle is damaged: {path}: {error}") from error

    def _read_tensors(self, entries: Sequence[Dict[str, Any]]) -> Arrays:
        return {entry["name"]: self._read_tensor(entry) for entry in entries}

    def _read_tensor(self, entry: Dict[str, Any]) -> np.ndarray:
        path = self.folder / entry["path"]
        dtype = np.dtype(entry["dtype"]).newbyteorder("<")
        try:
            data = path.read_bytes()
            palette = entry.get("palette")
            array = unpack_values(data, dtype, palette) if palette else np.frombuffer(data, dtype)
            if entry.get("stride", 1) == 1:
                array = array.reshape(entry["shape"])
        except (OSError, ValueError) as error:
            raise LoadError(f"the bundle is damaged: {path}: {error}") from error
        return array.astype(entry["dtype"], copy=False)


def load(
    bundle: Union[str, Path, None] = None,
    variant: Optional[str] = None,
    cache: Union[str, Path, None] = None,
    on_try: Optional[Callable[[str, List[Path]], None]] = None,
    settings: Optional[Mapping[str, Any]] = None,
    stats: Union[str, Path, None] = None,
) -> Model:
    """Return the first variant of the bundle that works on this machine.

    Args:
        bundle: The bundle's folder; by default the one that this file lies in.
        variant: Use only this variant.
        cache: Where providers keep engines and compiled models, in a folder for each model, runtime
            and device. By default ``cache`` beside ``releases`` if the bundle was pushed, else
            under the environment variable EDGEPACK_CACHE or in the user's cache folder.
        on_try: Called before the sessions of a variant are created, which may take minutes, with
            its id and the folders in which it keeps its engines.
        settings: ``session`` and ``providers`` to use instead of the manifest's, in its format, to
            try other settings; the bundle stays unchanged.
        stats: A folder in which inferences, times and errors are counted, see
            ``edgepack_counters.py``. By default that of the environment variable EDGEPACK_STATS;
            without it, and with an empty text, nothing is counted.

    Raises:
        LoadError: None works, with the reason for each; or the folder is no bundle.
    """
    opened = Bundle(Path(bundle) if bundle else Path(__file__).resolve().parent, cache)
    passed_over: List[Tuple[str, str]] = []
    for entry in opened.list_variants(variant):
        try:
            changed = providers.apply_settings(entry, settings or {})
            check_requirements(changed, opened.manifest.get("provider_sources"))
        except Refused as refusal:
            passed_over.append((entry["id"], str(refusal)))
            continue
        # A compiled model keeps the settings that it was compiled with.
        compiled = [] if settings else providers.list_compiled(changed)
        for each in [*compiled, changed]:
            try:
                model = _try_variant(opened, each, on_try)
            except Refused as refusal:
                hardware = each.get("compiled_for")
                name = f"{entry['id']} compiled for {hardware}" if hardware else entry["id"]
                passed_over.append((name, str(refusal)))
                continue
            model.passed_over = passed_over
            start_counting(model, stats)
            return model
    reasons = "".join(f"\n  {name}: {reason}" for name, reason in passed_over)
    raise LoadError(f"no variant of {opened.folder} works on this machine:{reasons}")


def start_counting(model: Model, stats: Union[str, Path, None]) -> None:
    """Count from now on what a model does, as ``stats`` of :func:`load` says."""
    folder = os.environ.get("EDGEPACK_STATS", "") if stats is None else str(stats)
    if not folder:
        return
    if __package__:
        from . import edgepack_counters as counters
    else:
        import edgepack_counters as counters  # type: ignore[import-not-found,no-redef]
    bundle = model.bundle
    about = counters.About(
        bundle.manifest["name"],
        str(bundle.manifest["version"]),
        bundle.digest[:16],
        model.variant,
        model.passed_over,
        bool(model.outside),
    )
    textfiles = os.environ.get("EDGEPACK_STATS_TEXTFILES", "")
    model.counters = counters.Counters(folder, about, model, ORT_ERRORS, textfiles)


def _try_variant(
    bundle: Bundle, entry: Dict[str, Any], on_try: Optional[Callable[[str, List[Path]], None]]
) -> Model:
    providers.check_compiled(entry)
    singles = split_models(entry)
    if on_try:
        folders = [providers.find_cache_folder(single, bundle.cache) for single in singles]
        on_try(entry["id"], [folder for folder in folders if folder])
    started = time.perf_counter_ns()
    sessions = [open_session(bundle, single) for single in singles]
    created = time.perf_counter_ns()
    model = Model(bundle, entry, sessions)
    model.session_create_ns = created - started
    feed = bundle.read_golden_inputs(0)
    try:
        started = time.perf_counter_ns()
        outputs = model.run(feed)
        model.first_inference_ns = time.perf_counter_ns() - started
        model.golden_sqnr_db = model.compute_closeness_db(0, outputs)
        check_golden(entry, model.golden_sqnr_db)
        model.prove_buckets()
        model.prove_others()
        _check_share(bundle, model)
    except ORT_ERRORS as error:
        raise Refused(f"inference failed: {error}") from error
    return model


def split_models(entry: Dict[str, Any]) -> List[Dict[str, Any]]:
    """Return a variant once for each of its models, with the model's path and digest."""
    return [{**entry, **bucket} for bucket in entry.get("buckets", [])] or [entry]


def check_golden(entry: Dict[str, Any], found_db: float, which: str = "") -> None:
    """Return if an output is near enough to the golden one.

    Raises:
        Refused: It is not.
    """
    limit_db = entry["min_sqnr_db"]
    if found_db < limit_db:
        raise Refused(
            f"its output{which} is {found_db:.1f} dB near the golden one, {limit_db:.1f} dB are"
            " needed"
        )


def open_session(bundle: Bundle, entry: Dict[str, Any], profile_prefix: str = "") -> Any:
    """Create the session of a variant, of its largest size where it has several models.

    See :func:`edgepack_providers.open_session`.
    """
    model = bundle.folder / entry["model"]
    return providers.open_session(model, entry, bundle.cache, profile_prefix)


def _check_share(bundle: Bundle, model: Model) -> None:
    entry = model.entry
    # A compiled model has a node for all that was compiled: there is nothing to count.
    if model.compiled_for or not providers.is_cpu_limited(entry):
        return
    first = entry["providers"][0]["name"]
    by_session = [_find_assigned_providers(session) for session in model.sessions]
    if not all(by_session):
        by_session = [[node["provider"] for node in profile_nodes(bundle, entry, runs=1)]]
    for found in by_session:
        share = found.count(first) / len(found) if found else 0.0
        if share < entry["placement"]:
            raise Refused(
                f"{first} runs {share:.0%} of the nodes, at least {entry['placement']:.0%} are"
                " needed"
            )


def _find_assigned_providers(session: Any) -> List[str]:
    """Return the provider of each node before fusion; empty where onnxruntime cannot report it.

    A profile counts what a provider compiled as one node, so this comes first. Source: there is
    no such call in older onnxruntime, and it is empty for .ort models (1.31.1, observed).
    """
    if not hasattr(session, "get_provider_graph_assignment_info"):
        return []
    subgraphs = session.get_provider_graph_assignment_info()
    return [subgraph.ep_name for subgraph in subgraphs for _ in subgraph.get_nodes()]


def profile_nodes(bundle: Bundle, entry: Dict[str, Any], runs: int) -> List[Dict[str, Any]]:
    """Run a golden input under onnxruntime's profiler; see :func:`find_profile_nodes`."""
    return find_profile_nodes(record_profile(bundle, entry, runs))


def record_profile(bundle: Bundle, entry: Dict[str, Any], runs: int) -> List[Dict[str, Any]]:
    """Run a golden input under onnxruntime's profiler, in a session of its own.

    Returns:
        The events of the profile, in Chrome's trace event format.
    """
    feed = bundle.read_golden_inputs(0)
    if entry.get("buckets"):
        buckets = [bucket["dims"] for bucket in entry["buckets"]]
        sizes = bundle.shapes.find_sizes(shapes.find_shapes(feed))
        number = shapes.choose_bucket(buckets, sizes, exact=bool(entry.get("exact")))
        entry, feed = split_models(entry)[number], bundle.shapes.pad_feed(feed, buckets[number])
    with tempfile.TemporaryDirectory(prefix="edgepack-profile-") as folder:
        session = open_session(bundle, entry, os.path.join(folder, "profile"))
        for _ in range(runs):
            session.run(None, feed)
        events: List[Dict[str, Any]] = json.loads(
            Path(session.end_profiling()).read_text(encoding="utf-8")
        )
    return events


def find_profile_nodes(events: Sequence[Dict[str, Any]]) -> List[Dict[str, Any]]:
    """Return the nodes in the events of a profile that onnxruntime wrote.

    Returns:
        For each node that ran: name, op, provider, and over all runs but the first (which also
        allocates) median_us and mean_us, in microseconds. One run that was interrupted moves the
        mean of a few, not their median. A node that a provider compiled is one node.

    Source: node events have cat "Node", a name that ends in "_kernel_time", and args.provider
    (onnxruntime 1.31.1, observed).
    """
    suffix = "_kernel_time"
    nodes: Dict[Tuple[str, str], Dict[str, Any]] = {}
    durations_us: Dict[Tuple[str, str], List[float]] = {}
    for event in events:
        name = str(event.get("name", ""))
        if event.get("cat") != "Node" or not name.endswith(suffix):
            continue
        facts = event["args"]
        key = (str(facts.get("node_index", "")), name)
        nodes.setdefault(
            key,
            {
                "name": name[: -len(suffix)],
                "op": facts["op_name"],
                "provider": facts["provider"],
            },
        )
        durations_us.setdefault(key, []).append(float(event["dur"]))
    for key, node in nodes.items():
        counted = durations_us[key][1:] or durations_us[key]
        node["median_us"] = median(counted)
        node["mean_us"] = sum(counted) / len(counted)
    return list(nodes.values())


def sqnr_db(reference: np.ndarray, output: np.ndarray) -> float:
    """Return the ratio of signal to quantization noise in dB, at most 200.

    ``10 log10(sum(reference^2) / sum((reference - output)^2))``, in float64. Equal tensors have
    200. Another shape, or a NaN or infinity that the other tensor has not, gives minus infinity.
    """
    if reference.shape != output.shape:
        return float("-inf")
    ref = reference.astype(np.float64)
    out = output.astype(np.float64)
    finite = np.isfinite(ref)
    if not np.array_equal(ref[~finite], out[~finite], equal_nan=True):
        return float("-inf")
    ref, out = ref[finite], out[finite]
    noise = float(np.sum((ref - out) ** 2))
    signal = float(np.sum(ref**2))
    if noise == 0.0:
        return EQUAL_DB
    if not np.isfinite(noise) or signal == 0.0:
        return float("-inf")
    return float(min(EQUAL_DB, 10 * np.log10(signal / noise)))


def closeness_db(reference: np.ndarray, output: np.ndarray) -> float:
    """Return :func:`sqnr_db` of float tensors; others pass (200) if 99 % of them are equal."""
    if reference.dtype != output.dtype or reference.shape != output.shape:
        return float("-inf")
    if reference.dtype.kind == "f":
        return sqnr_db(reference, output)
    share = float(np.mean(reference == output)) if reference.size else 1.0
    return EQUAL_DB if share >= MIN_EQUAL_SHARE else float("-inf")


def unpack_values(data: bytes, dtype: np.dtype, palette: Mapping[str, Any]) -> np.ndarray:
    """Return the values of a file that has those of each channel once, and a byte for each place.

    Args:
        data: Of the file.
        dtype: Of the values, little-endian.
        palette: ``palette`` of the manifest's entry.

    Raises:
        ValueError: The palette is none, or not all there, or a byte stands for no value of it.
    """
    step, sizes = palette["step"], np.asarray(palette["sizes"])
    if step < 1 or not sizes.size or not 0 < sizes.min() <= sizes.max() <= 256:
        raise ValueError(f"a palette cannot have the step {step} and the sizes {sizes.tolist()}")
    count = int(sizes.sum())
    if len(data) < count * dtype.itemsize:
        raise ValueError(f"it has {len(data)} bytes, its palette alone {count * dtype.itemsize}")
    table = np.frombuffer(data, dtype, count)
    which = np.frombuffer(data, np.uint8, offset=table.nbytes)
    channel = np.arange(which.size) // step % sizes.size
    if np.any(which >= sizes[channel]):
        raise ValueError("a byte is beyond its channel's palette")
    return np.asarray(table[(np.cumsum(sizes) - sizes)[channel] + which])


def golden_closeness_db(entry: Dict[str, Any], golden: np.ndarray, output: np.ndarray) -> float:
    """Return :func:`closeness_db` of the values that are golden, less the entry's ``extra_db``.

    Of an output that holds several quantities, that of the worst one.
    """
    if list(output.shape) != entry["shape"]:
        return float("-inf")
    stride = entry.get("stride", 1)
    golden, output = golden.reshape(-1), output.reshape(-1)[::stride]
    if golden.shape != output.shape:
        return float("-inf")
    several = find_quantities(entry)
    quantity = number_quantities(several, golden.size, stride)
    worst = EQUAL_DB
    for number, extra_db in enumerate(several["extra_db"]):
        found = closeness_db(golden[quantity == number], output[quantity == number])
        worst = min(worst, found if found == EQUAL_DB else found - extra_db)
    return worst


def find_quantities(entry: Mapping[str, Any]) -> Dict[str, Any]:
    """Return ``quantities`` of a golden output's entry; of one quantity, in the same form."""
    alone = {"size": 1, "runs": [[1, 0]], "extra_db": [entry.get("extra_db", 0.0)]}
    return dict(entry.get("quantities") or alone)


def number_quantities(several: Mapping[str, Any], count: int, stride: int = 1) -> np.ndarray:
    """Return the number of the quantity of each value.

    Args:
        several: As :func:`find_quantities`.
        count: Of values.
        stride: They are every so many-th of the output's.
    """
    counts, numbers = zip(*several["runs"])  # noqa: B905 (strict is unknown to Python 3.8)
    by_channel = np.repeat(numbers, counts)
    places = np.arange(count) * stride // several["size"] % len(by_channel)
    return np.asarray(by_channel[places])


def _make_specs(entries: Sequence[Dict[str, Any]]) -> List[TensorSpec]:
    return [TensorSpec(entry["name"], entry["dtype"], tuple(entry["shape"])) for entry in entries]


def _read_manifest(folder: Path) -> Tuple[Dict[str, Any], str]:
    path = folder / "manifest.json"
    try:
        text = path.read_bytes()
        manifest: Dict[str, Any] = json.loads(text.decode("utf-8"))
    except (OSError, ValueError) as error:
        raise LoadError(f"{folder} is no complete bundle: {path.name}: {error}") from error
    if manifest.get("schema_version") != SCHEMA_VERSION:
        raise LoadError(
            f"{path} has schema version {manifest.get('schema_version')!r},"
            f" this loader reads {SCHEMA_VERSION}: use the loader that came with the bundle"
        )
    if "parts" in manifest:
        parts = ", ".join(manifest["parts"])
        raise LoadError(
            f"{folder} has several models ({parts}): open it with edgepack_pipeline.load, or one of"
            " them in its folder 'parts'"
        )
    return manifest, hashlib.sha256(text).hexdigest()


def _find_cache(folder: Path, project: str, wanted: Union[str, Path, None]) -> Path:
    if wanted is None:
        return providers.find_cache_root(folder, project)
    cache, bundle = Path(wanted).expanduser().resolve(), folder.resolve()
    if bundle == cache or bundle in cache.parents:
        raise LoadError(f"the cache {cache} is inside the bundle, which nothing may change")
    return cache
