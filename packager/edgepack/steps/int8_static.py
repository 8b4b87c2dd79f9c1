"""The ``int8-static`` recipe: QDQ in the dialect of one execution provider, from shared ranges."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from edgepack.accuracy import SIMILAR_RANGE
from edgepack.calibration.statistics import read_statistics
from edgepack.data import SampleSet
from edgepack.errors import StepError
from edgepack.model.fusion import fusion_coverage
from edgepack.model.ir import lower_ir
from edgepack.model.reading import read_model, read_structure, write_model
from edgepack.model.running import Arrays, make_session, run_session
from edgepack.profile import Dialect
from edgepack.project import Limits, PythonMetric
from edgepack.quantization.closeness import Chosen, FloatOutputs, HeldOut, split_samples
from edgepack.quantization.dialect import QUANTIZE, WITHOUT_INT8, require_dialect
from edgepack.quantization.improving import Improving, as_tried
from edgepack.quantization.making import (
    JudgingMaker,
    QdqMaker,
    QdqSettings,
    Written,
    has_products,
    runs_integers,
)
from edgepack.quantization.mixed_width import wide_names
from edgepack.quantization.search import Measured, Scheme, Search, Tried, describe
from edgepack.quantization.spread import spread_tensors
from edgepack.quantization.writer import quantizable
from edgepack.steps.base import MODEL, Inputs, Notes
from edgepack.steps.calibration import STATISTICS
from edgepack.steps.embeddings import require_close_embeddings
from edgepack.steps.evaluation import Judge, hook_metric
from edgepack.steps.fp32 import require_ir

if TYPE_CHECKING:
    import onnx

EXACT = "exact.onnx"
"""The float model of which the int8 model is an image, where it is not the one that was given: the
same outputs, and channels inside of another scale."""

Array = np.ndarray[Any, Any]

_SHOWN = 3
# With 256 times as many steps, ranges may differ as much more before the smaller one is lost.
_SIMILAR_RANGE = {
    "uint8": SIMILAR_RANGE,
    "int8": SIMILAR_RANGE,
    "uint16": 256 * SIMILAR_RANGE,
}


@dataclass(frozen=True)
class LimitSearch:
    """What a model is searched for: a limit, and the metric that it is about."""

    limits: Limits
    metric: str | PythonMetric | None
    interpreter: str | None
    wide: bool = False
    """Whether the provider takes operators of 16 bits beside those of 8."""


@dataclass(frozen=True)
class Int8Static:
    """Activations and weights in small integers, as one execution provider wants them.

    Inputs: ``model``; ``statistics``; ``samples``, to judge by and for the proof. With a ``search``
    also what :class:`~edgepack.steps.evaluation.Evaluation` takes: ``reference``; ``evaluation``,
    its samples; ``project`` where the metric is a hook.

    Without samples the model is written as the ranges say. With them, weights and ranges are made
    better as far as held-out samples prove it, outputs that are noise are repaired or refused, and
    a limit is searched for, in that order: see :mod:`edgepack.quantization.search`.

    For a CPU, what onnxruntime's optimizer would leave as float between integers is not quantized
    in the first place, and a model of which no convolution or matrix product would run as integers
    is refused: it would be slower than the float one.
    """

    name: ClassVar[str] = "int8-static"
    libraries: ClassVar[tuple[str, ...]] = ("numpy", "onnx", "onnxruntime")
    dialect: Dialect
    max_ir: int
    cpu: Literal["x86-64", "aarch64"] | None = None
    """The architecture, where the variant runs on onnxruntime's CPU provider."""
    per_tensor_ops: tuple[str, ...] = ()
    """Operators whose weights have one scale even where the dialect is per channel."""
    every_op: bool = False
    """Quantize operators of every type, as onnxruntime advises for QNN."""
    processor: str = ""
    """The kind of processor that judges: its kernels decide what is kept."""
    scores_output: str | None = None
    """The output that may hold class scores."""
    search: LimitSearch | None = None
    """None without a limit."""

    @property
    def cacheable(self) -> bool:
        """A user's own metric may change without anything here knowing."""
        return self.search is None or not isinstance(self.search.metric, PythonMetric)

    def check(self, inputs: Inputs) -> None:
        """Accept any model that ranges could be found for."""

    def run(self, inputs: Inputs, out: Path) -> Notes:
        """Write ``model.onnx``, and ``exact.onnx`` where channels were scaled or used anew.

        Raises:
            StepError: Nothing can be quantized, the CPU would run all of it as float, or the
                outputs are noise and stay so.
        """
        with tempfile.TemporaryDirectory(prefix="edgepack-int8-") as scratch:
            maker = QdqMaker(self._settings, Path(scratch))
            first = self._first(inputs, maker)
            search = self._search(inputs, maker, first) if "samples" in inputs else None
            best = search.best if search else first
            for file in best.path.parent.glob(f"{MODEL}*"):
                shutil.move(file, out / file.name)
        if best.scheme.exact is not first.scheme.exact:
            write_model(best.scheme.exact, out / EXACT)
        tried = search.tried if search else ()
        pairs = _quantized_tensors(out / MODEL)
        fused = fusion_coverage(out / MODEL, self.cpu).facts() if self.cpu else {}
        facts = {
            "quantized_tensors": pairs,
            "left_float": dict(best.scheme.left),
            "unpaired": sorted(best.scheme.unpaired),
            "tried": [each.facts() for each in tried],
        }
        return Notes(
            f"{self.dialect.activations} activations, {self.dialect.weights} weights:"
            f" {pairs} tensors quantized{_listed(best.scheme.left)}{_summary(tried, inputs)}",
            {**facts, **fused},
        )

    @property
    def _settings(self) -> QdqSettings:
        return QdqSettings(self.dialect, self.per_tensor_ops, self.every_op, self.cpu)

    def _first(self, inputs: Inputs, maker: QdqMaker) -> Written:
        """Write the model as the ranges say, weights rounded to the nearest.

        Raises:
            StepError: Nothing can be quantized, or the CPU would run all of it as float.
        """
        model = read_model(inputs["model"] / MODEL)
        lower_ir(model, self.max_ir)
        model = quantizable(model)
        statistics = read_statistics(inputs["statistics"] / STATISTICS)
        ranges = {name: (found.low, found.high) for name, found in statistics.items()}
        spread = spread_tensors(model, statistics, _SIMILAR_RANGE[self.dialect.activations])
        scheme = Scheme(model, model, ranges, unpaired=frozenset(spread))
        left = self._settings.writer(scheme).unusable()
        written = maker.write(replace(scheme, left=left))
        if not _quantized_tensors(written.path) and len(written.scheme.left) == len(left):
            raise StepError("nothing in the model could be quantized", hint=WITHOUT_INT8)
        if self.cpu and not runs_integers(written.coverage, model):
            raise _all_float(self.cpu, model, written.scheme.left)
        return written

    def _search(self, inputs: Inputs, maker: QdqMaker, first: Written) -> Search:
        """Make the first model better as far as held-out samples and the limit want it.

        Raises:
            StepError: The outputs are noise.
            SamplesError: The metric does not fit the outputs.
        """
        samples = SampleSet.read(inputs["samples"])
        split = split_samples(len(samples))
        reference = FloatOutputs(inputs["model"] / MODEL, Chosen(samples, split.held_out))
        statistics = read_statistics(inputs["statistics"] / STATISTICS)
        held_out = HeldOut(reference, self.scores_output)
        fitted_to = Chosen(samples, split.fitted)
        improving = Improving(self._settings, statistics, fitted_to, held_out)
        judging = JudgingMaker(maker, held_out, improving.fitted)
        search = Search(judging, judging.judged(first))
        candidates = improving.chosen_activations(first.scheme)
        search.tried += as_tried(candidates)
        search.improve(improving.methods(candidates))
        search.require_signal()
        if self.search is not None:
            judging.metric = self._metric(inputs)
            search.meet(self.search.limits, wide=self.search.wide)
        return search

    def _metric(self, inputs: Inputs) -> Callable[[Path], Measured]:
        """Return what measures a model as the evaluation step will."""
        if self.search is None:
            raise TypeError("only a search has a metric")
        metric, interpreter = self.search.metric, self.search.interpreter
        samples = SampleSet.read(inputs["evaluation"])
        everything = Chosen(samples, tuple(range(len(samples))))
        reference = FloatOutputs(inputs["reference"] / MODEL, everything)
        hooked = isinstance(metric, PythonMetric)

        def call(outputs: list[Arrays], labels: Array | None) -> float:
            if not isinstance(metric, PythonMetric):
                raise TypeError("only a Python metric has a hook")
            return hook_metric(metric.python, outputs, labels, inputs["project"], interpreter)

        def measured(model: Path) -> Measured:
            session = make_session(model)
            judge = Judge(samples.labels, self.scores_output, keep_outputs=hooked)
            for feed, expected in zip(samples, reference, strict=True):
                judge.add(expected, run_session(session, feed))
            found = judge.result(metric, call)
            return Measured(found["metric"], found["drop"], found["worst"]["sqnr_db"])

        return measured

    def verify(self, inputs: Inputs, out: Path) -> None:
        """Prove the dialect on the file, that it gives finite numbers, and that the CPU fuses it.

        Raises:
            StepError: Nothing was quantized, something was written in another dialect, nothing
                fuses, or an embedding is far from the float model's.
        """
        require_ir(out / MODEL, self.max_ir)
        model = read_model(out / MODEL)
        wide = wide_names(model) if self.search is not None and self.search.wide else ()
        require_dialect(model, self.dialect, self.per_tensor_ops, wide)
        session = make_session(out / MODEL)
        _require_finite(run_session(session, SampleSet.read(inputs["samples"]).inputs(0)))
        require_close_embeddings(inputs["model"] / MODEL, out / MODEL, inputs["samples"])
        if self.cpu:
            source = read_structure(inputs["model"] / MODEL)
            if not runs_integers(fusion_coverage(out / MODEL, self.cpu), source):
                raise _all_float(self.cpu, source, {})


def _quantized_tensors(model: Path) -> int:
    return sum(node.op_type == QUANTIZE for node in read_structure(model).graph.node)


def _require_finite(outputs: Mapping[str, Any]) -> None:
    for name, array in outputs.items():
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise StepError(
                f"in int8 the output {name!r} has NaN or infinity on the first calibration sample,"
                " in float it has not: a small number was rounded to 0, and divided by",
                hint=WITHOUT_INT8,
            )


def _all_float(cpu: str, source: onnx.ModelProto, left: Mapping[str, str]) -> StepError:
    what = "convolution or matrix product" if has_products(source) else "operator"
    return StepError(
        f"no {what} of the model would run as integers on {cpu}, so int8 would be slower than"
        f" fp32{_listed(left)}",
        hint=WITHOUT_INT8,
    )


def _listed(left: Mapping[str, str]) -> str:
    if not left:
        return ""
    shown = "; ".join(f"{name!r}: {why}" for name, why in list(left.items())[:_SHOWN])
    more = f"; and {len(left) - _SHOWN} more" if len(left) > _SHOWN else ""
    return f", {len(left)} nodes left float ({shown}{more})"


def _summary(tried: Sequence[Tried], inputs: Inputs) -> str:
    if not tried:
        return ""
    split = split_samples(len(SampleSet.read(inputs["samples"])))
    count = len(split.held_out)
    judged = (
        f"{count} held-out samples"
        if split.is_apart
        else f"all {count} samples, too few to hold any out"
    )
    return f"; judged on {judged}: {describe(tried)}"
