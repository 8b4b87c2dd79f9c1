"""The ``int8-static`` recipe: QDQ in the dialect of one execution provider, from shared ranges."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from edgepack.backends.registry import find_backend
from edgepack.base.machine import find_processor
from edgepack.errors import StepError, format_list
from edgepack.model.files import MODEL
from edgepack.model.fusion import Architecture, measure_fusion_coverage
from edgepack.model.ir import limit_ir, lower_ir
from edgepack.model.quantized import keep_present
from edgepack.model.reading import read_model, read_outline, read_structure, write_model
from edgepack.project.profile import Dialect
from edgepack.project.samples import PythonMetric
from edgepack.quantization.qdq.dialect import QUANTIZE, WITHOUT_INT8, require_dialect
from edgepack.quantization.qdq.mixed_width import find_wide_names, require_one_width
from edgepack.quantization.qdq.preparation import prepare_model
from edgepack.quantization.ranges.collecting import collect
from edgepack.quantization.ranges.statistics import TensorStatistics, read_statistics
from edgepack.quantization.search.closeness import (
    Chosen,
    FloatOutputs,
    HeldOut,
    ModelCloseness,
    split_samples,
)
from edgepack.quantization.search.improving import Improving
from edgepack.quantization.search.making import (
    JudgingMaker,
    QdqMaker,
    QdqSettings,
    Written,
    has_integers_on_cpu,
    has_products,
    make_first_scheme,
)
from edgepack.quantization.search.outside import Holding, Outside
from edgepack.quantization.search.scheme import Scheme
from edgepack.quantization.search.search import (
    NEAR_DB,
    SchemeTrial,
    Search,
    describe,
)
from edgepack.samples.sample_set import SampleSet
from edgepack.steps.base import EXACT, Inputs, Notes, Step
from edgepack.steps.comparing import NEARER_EMBEDDINGS, compare
from edgepack.steps.embeddings import find_embedding_outputs, find_normalized_outputs
from edgepack.steps.graph.opset import AtLeastOpset
from edgepack.steps.recipes.calibration import STATISTICS, Calibration
from edgepack.steps.recipes.fp32 import require_ir
from edgepack.steps.recipes.int8 import OPSET_OF_16_BITS, find_dialect, make_float_steps
from edgepack.steps.recipes.kind import Asked, LimitSearch, RecipeKind
from edgepack.steps.recipes.limit_metric import LimitMetric

if TYPE_CHECKING:
    import onnx


_SHOWN = 3


@dataclass(frozen=True)
class Int8Static:
    """Activations and weights in small integers, as one execution provider needs them.

    Inputs: ``model``; ``statistics``; ``samples``, to judge by and for the proof. With a ``search``
    also what :class:`~edgepack.steps.proofs.evaluation.Evaluation` takes: ``reference``;
    ``evaluation``, its samples; ``project`` where the metric is a hook.

    Weights and ranges are made better as far as held-out samples prove it, outputs that are noise
    are repaired or refused, and a limit is searched for, in that order: see
    :mod:`edgepack.quantization.search.search`.

    For a CPU, what onnxruntime's optimizer would leave as float between integers is not quantized
    in the first place, and a model of which no convolution or matrix product would run as integers
    is refused: it would be slower than the float one.
    """

    name: ClassVar[str] = "int8-static"
    libraries: ClassVar[tuple[str, ...]] = ("numpy", "onnx", "onnxruntime")
    dialect: Dialect
    max_ir: int
    cpu: Architecture | None = None
    """The architecture, where the variant runs on onnxruntime's CPU provider."""
    per_tensor_ops: tuple[str, ...] = ()
    """Operators whose weights have one scale even where the dialect is per channel."""
    every_op: bool = False
    """Quantize operators of every type."""
    least_span: float = 0.0
    """The least range of an activation."""
    output_grids: tuple[tuple[str, str, float, int], ...] = ()
    """As in :class:`~edgepack.quantization.qdq.writer.QdqWriter`."""
    mixed: bool = False
    """Whether the provider takes operators of 16 bits beside those of 8: what 8 bits do not hold
    has 16 then, and floats are the last resort."""
    processor: str = ""
    """The kind of processor that the search runs on: its kernels decide what is kept."""
    scores_output: str | None = None
    """The output that may hold class scores."""
    search: LimitSearch | None = None
    """None without a limit."""
    outside: Outside | None = None
    """The inputs that are changed to find what no sample shows; None changes none."""

    @property
    def cacheable(self) -> bool:
        """A user's own metric may change, and nothing here can detect that."""
        return self.search is None or not isinstance(self.search.metric, PythonMetric)

    def narrow(self, inputs: Inputs) -> Int8Static:
        """Leave out rules for operators that the model lacks, and an IR version above its own."""
        model = read_outline(inputs["model"] / MODEL)
        return replace(
            self,
            max_ir=limit_ir(self.max_ir, model),
            per_tensor_ops=keep_present(self.per_tensor_ops, model),
        )

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
            samples = SampleSet.read(inputs["samples"])
            statistics = read_statistics(inputs["statistics"] / STATISTICS)
            first = self._make_first(inputs["model"] / MODEL, statistics, maker)
            search = self._search(inputs, samples, statistics, maker, first)
            best = search.best.scheme
            _move(search.best.path, out)
        if best.exact is not first.scheme.exact:
            write_model(best.exact, out / EXACT)
        pairs = _count_quantized_tensors(out / MODEL)
        fused = measure_fusion_coverage(out / MODEL, self.cpu).make_facts() if self.cpu else {}
        facts = {
            "quantized_tensors": pairs,
            "left_float": dict(best.left),
            "unpaired": sorted(best.unpaired),
            "wide": sorted(best.wide),
            "tried": [each.make_facts() for each in search.tried],
            "input_ranges": _find_input_ranges(best, statistics),
        }
        return Notes(
            f"{self.dialect.activations} activations, {self.dialect.weights} weights:"
            f" {pairs} tensors quantized{_format_left_float(best.left)}"
            f"; {_format_judged_on(len(samples))}: {describe(search.tried)}",
            {**facts, **fused},
        )

    def draft(self, inputs: Inputs, out: Path) -> None:
        """Write the ``model.onnx`` that :meth:`run` starts from; that needs no samples.

        Its ranges are from lowest to highest and its weights are rounded to the nearest. What is
        quantized in it may stay float in the end, if that costs too much accuracy.

        Args:
            inputs: ``model`` and ``statistics``.
            out: An empty folder.

        Raises:
            StepError: Nothing can be quantized, or the CPU would run all of it as float.
        """
        with tempfile.TemporaryDirectory(prefix="edgepack-int8-") as scratch:
            maker = QdqMaker(self._settings, Path(scratch))
            statistics = read_statistics(inputs["statistics"] / STATISTICS)
            _move(self._make_first(inputs["model"] / MODEL, statistics, maker).path, out)

    @property
    def _settings(self) -> QdqSettings:
        return QdqSettings(
            self.dialect,
            self.per_tensor_ops,
            self.every_op,
            self.least_span,
            self.output_grids,
            self.cpu,
            self.mixed,
        )

    def _make_first(
        self, path: Path, statistics: Mapping[str, TensorStatistics], maker: QdqMaker
    ) -> Written:
        model = read_model(path)
        lower_ir(model, self.max_ir)
        model = prepare_model(model)
        scheme = make_first_scheme(model, statistics, self._settings)
        written = maker.write(scheme)
        if not _count_quantized_tensors(written.path) and len(written.scheme.left) == len(
            scheme.left
        ):
            raise StepError("nothing in the model could be quantized", hint=WITHOUT_INT8)
        if self.cpu and not written.has_integers:
            raise _make_float_error(self.cpu, model, written.scheme.left)
        return written

    def _search(
        self,
        inputs: Inputs,
        samples: SampleSet,
        statistics: Mapping[str, TensorStatistics],
        maker: QdqMaker,
        first: Written,
    ) -> Search:
        """Improve the first model as far as held-out samples show a gain and the limit needs it.

        Raises:
            StepError: The outputs are noise.
            SamplesError: The metric does not fit the outputs.
        """
        path = inputs["model"] / MODEL
        search, judging = self._find_nearest(path, samples, statistics, maker, first)
        if self.outside is not None:
            holding = Holding(self.outside, path, samples)

            def search_anew(kinds: Sequence[str]) -> SchemeTrial:
                with tempfile.TemporaryDirectory(prefix="edgepack-outside-") as folder:
                    more = holding.write_with_kinds(kinds, Path(folder))
                    found = collect(path, more, statistics.keys())
                    start = maker.write(
                        make_first_scheme(first.scheme.exact, found, self._settings)
                    )
                    other, _ = self._find_nearest(path, more, found, maker, start)
                return judging.judge_written(
                    Written(other.best.scheme, other.best.path, has_integers=True)
                )

            with search.optional("widening ranges for inputs unlike the samples"):
                search.hold(holding)
            with search.optional("searching anew for inputs unlike the samples"):
                search.hold_anew(holding, search_anew)
        if self.search is not None:
            judging.metric = LimitMetric(self.search, inputs, self.scores_output)
            search.meet(self.search.limits)
        return search

    def _find_nearest(
        self,
        path: Path,
        samples: SampleSet,
        statistics: Mapping[str, TensorStatistics],
        maker: QdqMaker,
        first: Written,
    ) -> tuple[Search, JudgingMaker]:
        """Return the search with its best model near the float one, and what judged it.

        Raises:
            StepError: The outputs are noise.
        """
        split = split_samples(len(samples))
        reference = FloatOutputs(path, Chosen(samples, split.held_out))
        held_out = HeldOut(reference, self.scores_output)
        fitted_to = Chosen(samples, split.fitted)
        improving = Improving(self._settings, statistics, fitted_to, held_out)
        judging = JudgingMaker(maker, held_out, improving.fit_weights)
        search = Search(judging, judging.judge_written(first), mixed=self.mixed)
        chosen = first.scheme
        with search.optional("choosing how activations are quantized"):
            chosen, tried = improving.choose_activations(first.scheme)
            search.tried += tried
        search.improve(improving.list_methods(first.scheme, chosen))
        search.require_signal()
        if self._is_read_by_value(reference, search.best.closeness):
            with search.optional("taking out of 8 bits what costs most"):
                search.approach(NEAR_DB)
        return search, judging

    def _is_read_by_value(self, reference: FloatOutputs, found: ModelCloseness) -> bool:
        """Return whether outputs are read value by value, as a detector's boxes and scores are.

        Of class scores only the order counts, and embeddings have a limit of their own. Where the
        user sets an SQNR, that is what counts.
        """
        if self.search is not None and self.search.limits.min_sqnr_db is not None:
            return False
        return found.agreement is None and not find_embedding_outputs(
            next(iter(reference)), find_normalized_outputs(read_structure(reference.model))
        )

    def verify(self, inputs: Inputs, out: Path) -> None:
        """Prove the dialect on the file, that it gives finite numbers, and that the CPU fuses it.

        Where some activations may have 16 bits, those of each operator have one width.

        Raises:
            StepError: Nothing was quantized, something was written in another dialect, nothing
                fuses, or an embedding is far from the float model's.
        """
        require_ir(out / MODEL, self.max_ir)
        model = read_model(out / MODEL)
        if self.mixed:
            require_dialect(model, self.dialect, self.per_tensor_ops, find_wide_names(model))
            require_one_width(model)
        else:
            require_dialect(model, self.dialect, self.per_tensor_ops)
        found = compare(inputs["model"] / MODEL, out / MODEL, inputs["samples"])
        if found.not_finite:
            raise StepError(
                f"in int8 the output {found.not_finite!r} has NaN or infinity on a calibration"
                " sample, in float it has not: a small number was rounded to 0, and divided by",
                hint=WITHOUT_INT8,
            )
        found.require_close_embeddings(NEARER_EMBEDDINGS)
        if self.cpu:
            source = read_structure(inputs["model"] / MODEL)
            if not has_integers_on_cpu(measure_fusion_coverage(out / MODEL, self.cpu), source):
                raise _make_float_error(self.cpu, source, {})


def _find_input_ranges(
    best: Scheme, statistics: Mapping[str, TensorStatistics]
) -> dict[str, tuple[float, float]]:
    """Return the range of each of the model's inputs that has a scale, over all samples."""
    names = [spec.name for spec in best.exact.graph.input if spec.name in statistics]
    ends = {name: (statistics[name], best.ranges.get(name, (0.0, 0.0))) for name in names}
    return {n: (min(s.low, low), max(s.high, high)) for n, (s, (low, high)) in ends.items()}


def _move(model: Path, out: Path) -> None:
    """Move a model, with its external data, into another folder."""
    for file in model.parent.glob(f"{MODEL}*"):
        shutil.move(file, out / file.name)


def _count_quantized_tensors(model: Path) -> int:
    return sum(node.op_type == QUANTIZE for node in read_structure(model).graph.node)


def _make_float_error(cpu: str, source: onnx.ModelProto, left: Mapping[str, str]) -> StepError:
    what = "convolution or matrix product" if has_products(source) else "operator"
    return StepError(
        f"no {what} of the model would run as integers on {cpu}, so int8 would be slower than"
        f" fp32{_format_left_float(left)}",
        hint=WITHOUT_INT8,
    )


def _format_left_float(left: Mapping[str, str]) -> str:
    if not left:
        return ""
    shown = format_list([f"{name!r}: {why}" for name, why in left.items()], _SHOWN, "; ")
    return f", {len(left)} nodes left float ({shown})"


def _format_judged_on(samples: int) -> str:
    split = split_samples(samples)
    count = len(split.held_out)
    if split.is_apart:
        return f"judged on {count} held-out samples"
    return f"judged on all {count} samples, too few to hold any out"


def _make_step(asked: Asked) -> Int8Static:
    variant, profile = asked.variant, asked.profile
    backend = find_backend(variant)
    return Int8Static(
        find_dialect(variant),
        profile.runtime.max_ir,
        cpu=profile.device.arch if variant.backend == "cpu" else None,
        per_tensor_ops=backend.per_tensor_ops,
        every_op=backend.every_op,
        least_span=backend.least_span,
        output_grids=backend.output_grids,
        mixed=_can_take_16_bits(asked),
        processor=find_processor(),
        scores_output=asked.scores_output,
        search=asked.search,
        outside=asked.outside,
    )


def _make_observer(asked: Asked) -> Calibration:
    return Calibration(every_op=find_backend(asked.variant).every_op)


def _make_steps_after(asked: Asked) -> tuple[Step, ...]:
    """Return the step to the opset of 16-bit activations, where there are or may be some.

    onnxruntime also has them in a domain of its own for older opsets, where no shapes are inferred.
    """
    wide = find_dialect(asked.variant).activations == "uint16"
    if wide or _can_take_16_bits(asked):
        return (AtLeastOpset(OPSET_OF_16_BITS),)
    return ()


def _can_take_16_bits(asked: Asked) -> bool:
    """Return whether operators of an 8-bit variant can have 16 bits: its backend's rules say so.

    A CPU runs those as float; there leaving them float is as good.
    """
    variant, profile = asked.variant, asked.profile
    dialect = find_dialect(variant)
    if dialect.activations != "uint8" or variant.backend == "cpu":
        return False
    wide = dialect.model_copy(update={"activations": "uint16"})
    changed = variant.model_copy(update={"dialect": wide})
    refused = find_backend(variant).misfits(changed, profile.device)
    return not refused and profile.runtime.max_opset >= OPSET_OF_16_BITS


KIND = RecipeKind(
    _make_step,
    words="quantizing (int8)",
    cpu_cap_db=20.0,
    other_cap_db=8.0,
    padded_db=30.0,
    given={
        "statistics": "statistics",
        "samples": "calibration",
        "reference": "prepared",
        "evaluation": "evaluation",
        "project": "metric",
    },
    before=make_float_steps,
    observer=_make_observer,
    after=_make_steps_after,
    needs_calibration=True,
    # As measured while it searches: it holds models that it began with, keeps and tries, sessions
    # over some of them, and what rounding makes of a weight.
    weight_copies=16,
    holds_activations=True,
    in_integers=True,
    in_pairs=True,
)
