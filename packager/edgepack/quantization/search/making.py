"""Makes a QDQ file that fits its target from a scheme, and measures how close it is."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from edgepack.metrics.accuracy import SIMILAR_RANGE
from edgepack.model.files import MODEL
from edgepack.model.fusion import PRODUCTS, Architecture, FusionCoverage
from edgepack.model.reading import write_model
from edgepack.project.profile import Dialect
from edgepack.quantization.methods.spread import find_spread_tensors
from edgepack.quantization.qdq.dialect import DEQUANTIZE, QUANTIZE
from edgepack.quantization.qdq.kept_float import write_qdq
from edgepack.quantization.qdq.writer import QdqWriter
from edgepack.quantization.ranges.statistics import TensorStatistics
from edgepack.quantization.search.closeness import Chosen, ClosenessVerdict, FloatOutputs, HeldOut
from edgepack.quantization.search.costs import Costs, measure_costs
from edgepack.quantization.search.cpu_fit import CpuFit, fit_to_cpu
from edgepack.quantization.search.inner_closeness import InnerCloseness, measure_inner_closeness
from edgepack.quantization.search.scheme import Scheme
from edgepack.quantization.search.search import Measured, SchemeTrial
from edgepack.samples.spreading import choose_spread

if TYPE_CHECKING:
    import onnx

# With 256 times as many steps, ranges may differ as much more before the smaller one is lost.
_SIMILAR_RANGE = {
    "uint8": SIMILAR_RANGE,
    "int8": SIMILAR_RANGE,
    "uint16": 256 * SIMILAR_RANGE,
}
_COST_SAMPLES = 4
_INNER_SAMPLES = 8


@dataclass(frozen=True)
class QdqSettings:
    """What all models of a variant have in common."""

    dialect: Dialect
    per_tensor_ops: tuple[str, ...] = ()
    every_op: bool = False
    least_span: float = 0.0
    output_grids: tuple[tuple[str, str, float, int], ...] = ()
    cpu: Architecture | None = None
    """The architecture, where the variant runs on onnxruntime's CPU provider."""
    mixed: bool = False
    """Whether operators of 16 bits may stand beside those of 8."""

    def make_writer(self, scheme: Scheme) -> QdqWriter:
        """Return what writes a scheme."""
        return QdqWriter(
            scheme.model,
            scheme.ranges,
            self.dialect,
            self.per_tensor_ops,
            self.every_op,
            self.least_span,
            self.output_grids,
            weight_scales=scheme.weight_scales,
            unpaired=scheme.unpaired,
            wide=scheme.wide,
        )


def make_first_scheme(
    model: onnx.ModelProto, statistics: Mapping[str, TensorStatistics], settings: QdqSettings
) -> Scheme:
    """Return the start of a search: ranges from the statistics, weights rounded to the nearest.

    Ranges are from the lowest to the highest value. Tensors whose channels have ranges too unequal
    for 8 bits have 16 if the provider takes these too and they hold them, otherwise no pair. Nodes
    that cannot be quantized stay float.

    Args:
        model: As :func:`~edgepack.quantization.qdq.preparation.prepare_model` returns it.
        statistics: Of its tensors.
        settings: What holds for all models of the variant.
    """
    ranges = {name: (found.low, found.high) for name, found in statistics.items()}
    bits = settings.dialect.activations
    unpaired = spread = frozenset(find_spread_tensors(model, statistics, _SIMILAR_RANGE[bits]))
    if settings.mixed:
        unpaired = frozenset(find_spread_tensors(model, statistics, _SIMILAR_RANGE["uint16"]))
    scheme = Scheme(model, model, ranges, unpaired=unpaired, wide=spread - unpaired)
    return replace(scheme, left=settings.make_writer(scheme).explain_unusable())


@dataclass(frozen=True)
class Written:
    """A model in a folder of its own."""

    scheme: Scheme
    """As written: on a CPU more nodes may stay float than was asked for."""
    path: Path
    has_integers: bool
    """Whether something worthwhile is computed in integers: a product, if there are any."""


@dataclass
class QdqMaker:
    """Writes models into folders of their own."""

    settings: QdqSettings
    folder: Path
    _fits: dict[object, CpuFit] = field(default_factory=dict)

    def write(self, scheme: Scheme) -> Written:
        """Write a model; for a CPU, without what its optimizer would leave float.

        Raises:
            StepError: The scheme cannot be written.
            ModelError: onnxruntime refuses the model.
        """
        path = Path(tempfile.mkdtemp(dir=self.folder)) / MODEL
        model = write_qdq(self.settings.make_writer(scheme), scheme.left)
        write_model(model, path)
        if self.settings.cpu is None:
            return Written(scheme, path, _has_integers(model))
        fit = self._fit_to_cpu(scheme, path, self.settings.cpu)
        fitted = scheme.leave_float(fit.left)
        if fitted.left != scheme.left:
            write_model(write_qdq(self.settings.make_writer(fitted), fitted.left), path)
        return Written(fitted, path, has_integers_on_cpu(fit.coverage, scheme.exact))

    def _fit_to_cpu(self, scheme: Scheme, path: Path, cpu: Architecture) -> CpuFit:
        """Return how a model fits a CPU: found once for all schemes of the same form."""
        form = (frozenset(scheme.left), scheme.unpaired, scheme.wide)
        if form not in self._fits:
            fit = fit_to_cpu(self.settings.make_writer(scheme), cpu, path, scheme.left)
            self._fits[form] = fit
            self._fits[(frozenset(fit.left), scheme.unpaired, scheme.wide)] = fit
        return self._fits[form]


@dataclass
class JudgingMaker:
    """Makes what a search tries, and judges it."""

    maker: QdqMaker
    held_out: HeldOut
    fit: Callable[[Scheme], Scheme]
    """Returns a scheme with its weights fitted to the activations that they meet."""
    metric: Callable[[Path], Measured] | None = None
    """None without a limit."""
    _inners: dict[Path, InnerCloseness] = field(default_factory=dict)

    def make(self, scheme: Scheme, *, fitted: bool = False) -> SchemeTrial | None:
        """Return the scheme as a model, or None if nothing worthwhile in it is integer.

        Only the written model shows what a CPU leaves float, so weights are fitted after that.
        """
        written = self.maker.write(scheme)
        if not written.has_integers:
            shutil.rmtree(written.path.parent)
            return None
        if fitted:
            shutil.rmtree(written.path.parent)
            written = self.maker.write(self.fit(written.scheme))
        return self.judge_written(written)

    def compare(self, trial: SchemeTrial, other: SchemeTrial) -> ClosenessVerdict:
        """Return whether a trial's outputs are closer than another's.

        Where the held-out samples are too few to decide, the tensors inside decide.
        """
        found = trial.closeness.judge(other.closeness)
        if found.verdict == "unclear":
            inside = self._measure_inner(trial).judge(self._measure_inner(other))
            return ClosenessVerdict(inside.verdict, f"{found.why}; {inside.why}")
        return found

    def _measure_inner(self, trial: SchemeTrial) -> InnerCloseness:
        if trial.path not in self._inners:
            self._inners[trial.path] = measure_inner_closeness(
                trial.scheme.exact, trial.path, self._choose_few(_INNER_SAMPLES)
            )
        return self._inners[trial.path]

    def _choose_few(self, count: int) -> Chosen:
        """Return some of the held-out samples, evenly spread over them."""
        feeds = self.held_out.reference.feeds
        return Chosen(feeds.samples, tuple(choose_spread(feeds.indices, count)))

    def judge_written(self, written: Written) -> SchemeTrial:
        """Return how close an already written model is."""
        return SchemeTrial(
            written.scheme, written.path, self.held_out.measure_closeness(written.path)
        )

    def measure_costs(self, trial: SchemeTrial) -> Costs:
        """Return what places cost, over a few of the held-out samples."""
        reference = FloatOutputs(self.held_out.reference.model, self._choose_few(_COST_SAMPLES))
        few = HeldOut(reference, self.held_out.scores_output)
        plain = trial.scheme.plain
        found = measure_costs(self.maker.settings.make_writer(plain), plain.left, few)
        if not trial.scheme.weight_scales:
            return found
        return found.shrink_to_fitted_weights(few.measure_closeness(trial.path).error_share)

    def measure(self, trial: SchemeTrial) -> Measured:
        """Return what the user's metric says."""
        if self.metric is None:
            raise TypeError("without a limit there is no metric")
        return self.metric(trial.path)


def has_integers_on_cpu(found: FusionCoverage, source: onnx.ModelProto) -> bool:
    """Return whether a CPU runs something worthwhile as integers: a product, if there are any."""
    return bool(found.integer_products if has_products(source) else found.integer_ops)


def _has_integers(model: onnx.ModelProto) -> bool:
    """Return whether a QDQ model has a product of integers, or a pair if it has no products."""
    nodes = model.graph.node
    products = [node for node in nodes if node.op_type in PRODUCTS]
    if not products:
        return any(node.op_type == QUANTIZE for node in nodes)
    rounded = {node.output[0] for node in nodes if node.op_type == DEQUANTIZE}
    return any(rounded.issuperset(node.input[:2]) for node in products)


def has_products(model: onnx.ModelProto) -> bool:
    """Return whether a model has a convolution or matrix product."""
    return any(node.op_type in PRODUCTS for node in model.graph.node)
