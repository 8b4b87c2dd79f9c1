"""Models with static shapes, one for each size of a symbolic dimension, proven equal by padding.

A provider that knows static shapes alone gets a model for each size that the project lists. They
share one file of weights where the provider reads such a file. On the device the loader pads the
inputs to the next size and cuts the outputs; the functions that do so there
(:mod:`edgepack.ondevice.runtime.edgepack_shapes`) are the ones that the proof here runs.

Shared is the file, not always the memory. onnxruntime maps it, so that sessions have the same
pages; but the CPU's MatMul, Gemm and Conv keep weights of their own in another order. Measured with
three sizes of a network of 100 MB of MatMul weights (onnxruntime 1.31.1, Linux x86-64, 2026-11-21,
proportional set size): 296 MB, 100 MB for one; with ``session.disable_prepacking: "1"`` in the
variant's session config 101 MB, 103 MB for one.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from edgepack.backends.registry import find_backend
from edgepack.errors import BugError, ModelError, StepError
from edgepack.metrics.accuracy import array_sqnr_db
from edgepack.model.editing import move_constants_to_initializers
from edgepack.model.facts import TensorSpec, read_signature
from edgepack.model.files import MODEL
from edgepack.model.inferring import infer_graph
from edgepack.model.reading import read_model, read_structure, write_model
from edgepack.model.running import Arrays, make_random_inputs, make_session, run_session
from edgepack.ondevice.runtime import edgepack_shapes as shapes
from edgepack.project.profile import Variant
from edgepack.samples.sample_set import SampleSet
from edgepack.samples.spreading import choose_spread
from edgepack.steps.base import Inputs, Notes
from edgepack.steps.comparing import SEED
from edgepack.steps.graph.prepared import fix_dims
from edgepack.steps.proofs.candidates import Candidates
from edgepack.steps.proofs.golden_choice import read_choice

if TYPE_CHECKING:
    import onnx
    import onnxruntime

BUCKETS = "buckets.json"
WEIGHTS = "model.weights"
MOST_BUCKETS = 16
"""Each is a session that the loader creates, and a model that a provider may have to compile."""

_SHARED_BYTES = 1024
_PAGE = 4096
_MOST_SAMPLES = 32
_NOT_INDIFFERENT = (
    "give an input that masks what is padded (inputs: {NAME: {mask: DIM}}), a value that changes"
    " nothing (inputs: {NAME: {pad: VALUE}}), the very sizes that the inputs have, or one size"
    " ('dims' in edgepack.yaml)"
)
_FIXED = "give it a size or a list of sizes under 'dims' in edgepack.yaml, or export it fixed"


def has_static_shapes(variant: Variant, sizes: Mapping[str, Sequence[int]]) -> bool:
    """Return whether a variant gets models with static shapes, given the project's lists of sizes.

    A backend that takes static shapes alone gets them only with such lists: its provider may take
    enough of a model with dynamic shapes, which its placement decides.
    """
    return variant.shapes == "static" or (bool(sizes) and find_backend(variant).static_shapes)


def find_static_problem(
    variant: Variant, inputs: Sequence[TensorSpec], sizes: Mapping[str, Sequence[int]]
) -> str:
    """Return why a model cannot have static shapes for each of the sizes, or nothing."""
    for spec in inputs:
        left = [s for s in spec.shape or ("?",) if isinstance(s, str) and s not in sizes]
        if left:
            problem = f"its shapes are to be static, and the input {spec.name!r} has"
            if left[0] == shapes.UNKNOWN:
                return f"{problem} a dimension without a name: export it with a name or a size"
            return f"{problem} the dimension {left[0]!r}: {_FIXED}"
    used = _list_used(inputs, sizes)
    count = prod(len(sizes[name]) for name in used)
    if count > MOST_BUCKETS:
        return (
            f"the sizes of {', '.join(used)} make {count} models with static shapes, and"
            f" {MOST_BUCKETS} is the most: list fewer sizes under 'dims' in edgepack.yaml"
        )
    if used and variant.model_format != "onnx":
        return (
            "models with static shapes for several sizes are shipped as .onnx: model_format: onnx"
        )
    return ""


def _list_used(inputs: Sequence[TensorSpec], sizes: Mapping[str, Sequence[int]]) -> list[str]:
    return sorted({str(s) for spec in inputs for s in spec.shape or () if s in sizes})


def find_bucket_dims(
    inputs: Sequence[TensorSpec], sizes: Mapping[str, Sequence[int]]
) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Return the symbolic dimensions of the inputs, with their sizes; none where all is fixed."""
    return tuple((name, tuple(sizes[name])) for name in _list_used(inputs, sizes))


def fix_model(model: onnx.ModelProto, sizes: Mapping[str, int]) -> onnx.ModelProto:
    """Return a copy of a model with sizes for its symbolic dimensions, and all that follows.

    Raises:
        StepError: onnx cannot infer shapes in it.
    """
    import onnx

    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    try:
        fix_dims(copy, sizes)
        found = infer_graph(copy)
    except onnx.shape_inference.InferenceError as error:
        message = " ".join(str(error).split())[:300]
        raise StepError(
            f"onnx cannot infer the shapes for {shapes.format_sizes(sizes)}: {message}",
            hint="build without the variant, or with one size under 'dims' in edgepack.yaml",
        ) from error
    for ours, inferred in (
        (copy.graph.value_info, found.value_info),
        (copy.graph.output, found.output),
    ):
        del ours[:]
        ours.extend(inferred)
    return copy


@dataclass(frozen=True)
class BucketModel:
    """The model for one size of each symbolic dimension."""

    dims: dict[str, int]
    file: str


@dataclass(frozen=True)
class BucketIndex:
    """What :class:`Bucketed` wrote."""

    buckets: tuple[BucketModel, ...]
    """Smallest first; the last is ``model.onnx``."""
    slices: tuple[dict[str, Any], ...]
    """Axes of outputs that follow a dimension: ``output``, ``axis`` and ``dim``."""
    exact: bool
    """Whether the sizes of the buckets alone are right: padding would change the outputs."""


def read_buckets(folder: Path) -> BucketIndex:
    """Return the index that :class:`Bucketed` wrote."""
    index = json.loads((folder / BUCKETS).read_text(encoding="utf-8"))
    return BucketIndex(
        tuple(BucketModel(**bucket) for bucket in index["buckets"]),
        tuple(index["slices"]),
        index["exact"],
    )


@dataclass(frozen=True)
class Bucketed:
    """A model for each combination of sizes, smallest first.

    Inputs: ``model``, the finished model with symbolic dimensions; ``choice``, which samples the
    goldens are made of; ``samples``, optionally, for the proof: without them seeded random inputs,
    masks of ones.
    """

    name: ClassVar[str] = "bucketed"
    libraries: ClassVar[tuple[str, ...]] = ("numpy", "onnx", "onnxruntime")
    cacheable = True
    dims: tuple[tuple[str, tuple[int, ...]], ...]
    """Symbolic dimension and its sizes."""
    same_db: float
    """How close a padded run has to come: a recipe's ``padded_db``."""
    fills: tuple[tuple[str, float], ...] = ()
    """Input and the value that it is padded with, where that is not 0."""
    masks: tuple[tuple[str, str], ...] = ()
    """Input and the dimension that it is a mask over."""
    shared: bool = True
    """Whether weights go to one file, which all models read."""

    @property
    def buckets(self) -> list[dict[str, int]]:
        """Every combination of sizes, the smallest number of elements first."""
        names = [name for name, _ in self.dims]
        found = [
            dict(zip(names, sizes, strict=True))
            for sizes in itertools.product(*(sizes for _, sizes in self.dims))
        ]
        return sorted(found, key=lambda bucket: (prod(bucket.values()), *bucket.values()))

    def check(self, inputs: Inputs) -> None:
        """Check that the largest size is large enough for every sample.

        Raises:
            StepError: It does not, or a sample's inputs do not agree about a size.
        """
        if "samples" not in inputs:
            return
        largest, known = self.buckets[-1], self._read_input_shapes(inputs)
        for number, found in enumerate(SampleSet.read(inputs["samples"]).shapes):
            sizes = _find_sizes(known, found)
            if not shapes.can_hold(largest, sizes):
                raise StepError(
                    f"sample {number} has {shapes.format_sizes(sizes)}, and the largest size is"
                    f" {shapes.format_sizes(largest)}",
                    hint="list a size under 'dims' in edgepack.yaml that holds it, or leave the"
                    " sample out: the device could not run it",
                )

    def run(self, inputs: Inputs, out: Path) -> Notes:
        """Write ``model.onnx`` for the largest size, ``model.<sizes>.onnx`` for the others.

        And ``model.weights``, the weights of all, if they are shared; and ``buckets.json``.

        Raises:
            StepError: Padding changes an output, or an output cannot be cut, and there are samples
                of other sizes than those listed, or none at all.
            ModelError: The same of a model that does not run with one of the sizes.
        """
        model = read_model(inputs["model"] / MODEL)
        shared = self._take_weights(model, out)
        models = tuple(BucketModel(bucket, self._name_file(bucket)) for bucket in self.buckets)
        for bucket in models:
            write_model(fix_model(model, bucket.dims), out / bucket.file)
        index, how = self._prove_padding(inputs, out, models)
        (out / BUCKETS).write_text(json.dumps(asdict(index)), encoding="utf-8")
        sizes = "; ".join(map(shapes.format_sizes, self.buckets))
        return Notes(
            f"{len(models)} models with static shapes ({sizes}), {shared} bytes of weights shared;"
            f" {how}",
            {"models": len(models), "shared_bytes": shared, "exact": index.exact},
        )

    def draft(self, inputs: Inputs, out: Path) -> None:
        """Write the ``model.onnx`` of :meth:`run`, and the weights that it shares, if any.

        Args:
            inputs: ``model``.
            out: An empty folder.

        Raises:
            StepError: onnx cannot infer shapes in it.
        """
        model = read_model(inputs["model"] / MODEL)
        self._take_weights(model, out)
        write_model(fix_model(model, self.buckets[-1]), out / MODEL)

    def _take_weights(self, model: onnx.ModelProto, out: Path) -> int:
        """Take the weights out of a model, if they are shared; return their bytes."""
        move_constants_to_initializers(model)
        return _share_weights(model, out / WEIGHTS) if self.shared else 0

    def _name_file(self, bucket: Mapping[str, int]) -> str:
        if bucket == self.buckets[-1]:
            return MODEL
        return f"model.{'x'.join(map(str, bucket.values()))}.onnx"

    def _prove_padding(
        self, inputs: Inputs, out: Path, models: tuple[BucketModel, ...]
    ) -> tuple[BucketIndex, str]:
        """Prove that padding changes nothing; else take the listed sizes alone, if samples do."""
        try:
            index = BucketIndex(models, tuple(self._find_slices(inputs)), exact=False)
            proof = self._make_proof(inputs, out, index)
            for feed in self._resize_inputs(inputs):
                proof.require_same(feed, everywhere=False)
        except (StepError, ModelError) as error:
            if not self._has_exact_samples(inputs):
                raise
            why = f"for these sizes alone, which all samples have ({error.problem})"
            return BucketIndex(models, (), exact=True), why
        return index, (
            "padded, run and cut they give what the dynamic model gives, within"
            f" {self.same_db:g} dB"
        )

    def verify(self, inputs: Inputs, out: Path) -> None:
        """Prove that each model is static, loads, and gives the dynamic model's outputs.

        Each runs the samples that it is chosen for, and all goldens that fit it.

        Raises:
            StepError: An output differs; the error names it, the sizes and the distance.
            ModelError: A model does not load or run.
        """
        index = read_buckets(out)
        for bucket in index.buckets:
            _require_static(out / bucket.file)
        proof = self._make_proof(inputs, out, index)
        for feed in self._read_goldens(inputs):
            proof.require_same(feed, everywhere=not index.exact)
        for feed in self._choose_samples(inputs):
            proof.require_same(feed, everywhere=False)

    def _make_proof(self, inputs: Inputs, out: Path, index: BucketIndex) -> _Proof:
        return _Proof(
            index,
            self._read_input_shapes(inputs),
            make_session(inputs["model"] / MODEL),
            [make_session(out / bucket.file) for bucket in index.buckets],
            self.same_db,
            real="samples" in inputs,
        )

    def _read_input_shapes(self, inputs: Inputs) -> shapes.InputShapes:
        specs, _ = read_signature(read_structure(inputs["model"] / MODEL))
        described: dict[str, dict[str, Any]] = {name: {"mask": dim} for name, dim in self.masks}
        described |= {name: {"pad": value} for name, value in self.fills}
        plain = [shapes.TensorSpec(spec.name, spec.dtype, spec.shape or ()) for spec in specs]
        return shapes.InputShapes(plain, described)

    def _read_goldens(self, inputs: Inputs) -> Iterator[Arrays]:
        """Yield the inputs that goldens are made of."""
        return map(Candidates.of(inputs).make_feed, read_choice(inputs["choice"]))

    def _choose_samples(self, inputs: Inputs) -> Iterator[Arrays]:
        """Yield a sample of each size, or of some of the sizes where there are many."""
        if "samples" not in inputs:
            return
        samples, known = SampleSet.read(inputs["samples"]), self._read_input_shapes(inputs)
        first: dict[tuple[int, ...], int] = {}
        for number, found in enumerate(samples.shapes):
            first.setdefault(tuple(_find_sizes(known, found).values()), number)
        for number in choose_spread(list(first.values()), _MOST_SAMPLES):
            yield samples.read_inputs(number)

    def _has_exact_samples(self, inputs: Inputs) -> bool:
        """Return whether there are samples, and each has the sizes of a bucket."""
        if "samples" not in inputs:
            return False
        known, buckets = self._read_input_shapes(inputs), self.buckets
        samples = SampleSet.read(inputs["samples"])
        return all(_find_sizes(known, found) in buckets for found in samples.shapes)

    def _resize_inputs(self, inputs: Inputs) -> Iterator[Arrays]:
        """Yield inputs as large as each bucket, and half as large, or just above the one before."""
        known = self._read_input_shapes(inputs)
        base = self._make_base(inputs, known)
        for bucket in self.buckets:
            yield known.resize_feed(base, bucket)
            yield known.resize_feed(base, self._find_padded_sizes(bucket))

    def _find_padded_sizes(self, bucket: Mapping[str, int]) -> dict[str, int]:
        """Return sizes that the bucket is the smallest for, with as much padding as a half."""
        found = {}
        for name, sizes in self.dims:
            below = max((size for size in sizes if size < bucket[name]), default=0)
            found[name] = max(below + 1, (bucket[name] + 1) // 2)
        return found

    def _make_base(self, inputs: Inputs, known: shapes.InputShapes) -> Arrays:
        """Return a sample, or random inputs of the largest size with masks that hide nothing."""
        if "samples" in inputs:
            return next(self._read_goldens(inputs))
        largest = self.buckets[-1]
        specs = [
            TensorSpec(s.name, s.dtype, tuple(largest.get(str(size), size) for size in s.shape))
            for s in known.inputs
        ]
        feed = make_random_inputs(specs, seed=SEED)
        return known.add_masks({n: array for n, array in feed.items() if n not in known.masks})

    def _find_slices(self, inputs: Inputs) -> list[dict[str, Any]]:
        """Return the axes of outputs that follow a dimension: the dynamic model shows them."""
        known = self._read_input_shapes(inputs)
        session = make_session(inputs["model"] / MODEL)
        base = self._make_base(inputs, known)
        sizes = {name: max(2, size) for name, size in self.buckets[-1].items()}
        full = _find_output_shapes(session, known.resize_feed(base, sizes), sizes)
        slices = []
        for name, size in sizes.items():
            less = {**sizes, name: (size + 1) // 2}
            found = _find_output_shapes(session, known.resize_feed(base, less), less)
            slices += _find_followers(name, (size, full), (less[name], found))
        return slices


def _find_output_shapes(
    session: onnxruntime.InferenceSession, feed: Arrays, sizes: Mapping[str, int]
) -> dict[str, tuple[int, ...]]:
    return shapes.find_shapes(_run(session, feed, sizes))


def _run(session: onnxruntime.InferenceSession, feed: Arrays, sizes: Mapping[str, int]) -> Arrays:
    try:
        return run_session(session, feed)
    except ModelError as error:
        raise ModelError(
            f"with {shapes.format_sizes(sizes)}: {error.problem}",
            hint="list sizes under 'dims' in edgepack.yaml that the model takes",
        ) from error


def _find_followers(
    dim: str,
    full: tuple[int, Mapping[str, tuple[int, ...]]],
    less: tuple[int, Mapping[str, tuple[int, ...]]],
) -> list[dict[str, Any]]:
    """Return the axes whose size is the dimension's, of two runs with different sizes of it.

    Raises:
        StepError: An axis changes otherwise.
    """
    found = []
    for output, shape in full[1].items():
        other = less[1][output]
        for axis, (size, smaller) in enumerate(zip(shape, other, strict=True)):
            if (size, smaller) == (full[0], less[0]):
                found.append({"output": output, "axis": axis, "dim": dim})
            elif size != smaller:
                raise StepError(
                    f"the output {output!r} has {size} along axis {axis} for {dim} {full[0]}, and"
                    f" {smaller} for {dim} {less[0]}: what is derived from a padded size by"
                    " arithmetic, or from data, cannot be cut back",
                    hint=f"give {dim!r} one size under 'dims' in edgepack.yaml, or do that part"
                    " outside the model",
                )
    return found


@dataclass(frozen=True)
class _Proof:
    index: BucketIndex
    known: shapes.InputShapes
    dynamic: onnxruntime.InferenceSession
    static: Sequence[onnxruntime.InferenceSession]
    same_db: float
    real: bool
    """Whether there are samples."""

    def require_same(self, feed: Arrays, *, everywhere: bool) -> None:
        """Run inputs through the bucket that is chosen for them, or through all that they fit."""
        sizes = _find_sizes(self.known, shapes.find_shapes(feed))
        buckets = [bucket.dims for bucket in self.index.buckets]
        expected = _run(self.dynamic, feed, sizes)
        chosen = shapes.choose_bucket(buckets, sizes, exact=self.index.exact)
        for number in range(chosen, len(buckets) if everywhere else chosen + 1):
            if shapes.can_hold(buckets[number], sizes):
                padded = self.known.pad_feed(feed, buckets[number])
                outputs = run_session(self.static[number], padded)
                found = shapes.cut_outputs(outputs, self.index.slices, sizes)
                self._compare(expected, found, sizes, buckets[number])

    def _compare(
        self,
        expected: Arrays,
        found: Arrays,
        sizes: Mapping[str, int],
        bucket: Mapping[str, int],
    ) -> None:
        for name, array in expected.items():
            sqnr = array_sqnr_db(array, found[name])
            if sqnr < self.same_db:
                random = "" if self.real else "; random inputs were tried, samples may do better"
                raise StepError(
                    f"with {shapes.format_sizes(sizes)} padded to"
                    f" {shapes.format_sizes(bucket)} the output"
                    f" {name!r} is {sqnr:.1f} dB from that of the dynamic model, {self.same_db:g}"
                    f" are needed: the model is not indifferent to padding{random}",
                    hint=_NOT_INDIFFERENT,
                )


def _find_sizes(known: shapes.InputShapes, found: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
    try:
        return known.find_sizes(found)
    except ValueError as error:
        raise StepError(
            str(error), hint="give samples whose inputs agree, or export with other names"
        ) from error


def _require_static(model: Path) -> None:
    inputs, _ = read_signature(read_structure(model))
    for spec in inputs:
        if not all(isinstance(size, int) for size in spec.shape or ("?",)):
            raise BugError(f"the input {spec} of {model.name} is not static")


def _share_weights(model: onnx.ModelProto, path: Path) -> int:
    """Move the weights to a file that each copy of the model reads; return how many bytes.

    Offsets are multiples of a page where weights are large, so that they can be mapped into memory
    (onnx.proto, TensorProto.external_data). Small ones stay: shapes are inferred from them.
    """
    import onnx
    from onnx import numpy_helper
    from onnx.external_data_helper import set_external_data

    written = 0
    with path.open("wb") as file:
        for tensor in model.graph.initializer:
            if tensor.data_type == onnx.TensorProto.STRING:
                continue
            if not tensor.HasField("raw_data"):
                tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor), tensor.name))
            data = tensor.raw_data
            if len(data) < _SHARED_BYTES:
                continue
            alignment = _PAGE if len(data) >= _PAGE else 64
            file.write(b"\0" * (-file.tell() % alignment))
            set_external_data(tensor, WEIGHTS, offset=file.tell(), length=len(data))
            file.write(data)
            written += len(data)
            tensor.ClearField("raw_data")
    if not written:
        path.unlink()
    return written
