"""From a scheme to a QDQ file that fits its target, and to how close that is."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from edgepack.model.fusion import PRODUCTS, Architecture, FusionCoverage
from edgepack.model.reading import write_model
from edgepack.profile import Dialect
from edgepack.quantization.closeness import Chosen, HeldOut
from edgepack.quantization.cpu_fit import CpuFit, fit_to_cpu
from edgepack.quantization.inner import InnerCloseness, inner_closeness
from edgepack.quantization.kept_float import write_qdq
from edgepack.quantization.search import Measured, Scheme, Trial
from edgepack.quantization.sensitivity import Sensitivity, sensitivity
from edgepack.quantization.writer import QdqWriter
from edgepack.steps.base import MODEL

if TYPE_CHECKING:
    import onnx

_SENSITIVITY_SAMPLES = 4
_INNER_SAMPLES = 8


@dataclass(frozen=True)
class QdqSettings:
    """What all models of a variant have in common."""

    dialect: Dialect
    per_tensor_ops: tuple[str, ...] = ()
    every_op: bool = False
    cpu: Architecture | None = None
    """The architecture, where the variant runs on onnxruntime's CPU provider."""

    def writer(self, scheme: Scheme) -> QdqWriter:
        """Return what writes a scheme."""
        return QdqWriter(
            scheme.model,
            scheme.ranges,
            self.dialect,
            self.per_tensor_ops,
            self.every_op,
            weight_scales=scheme.weight_scales,
            unpaired=scheme.unpaired,
            wide=scheme.wide,
        )


@dataclass(frozen=True)
class Written:
    """A model in a folder of its own."""

    scheme: Scheme
    """As written: on a CPU more nodes may stay float than was asked for."""
    path: Path
    coverage: FusionCoverage | None
    """What onnxruntime's optimizer makes of it; None but for a CPU."""


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
        write_model(write_qdq(self.settings.writer(scheme), scheme.left), path)
        if self.settings.cpu is None:
            return Written(scheme, path, None)
        fit = self._fit(scheme, path, self.settings.cpu)
        fitted = scheme.leaving(fit.left)
        if fitted.left != scheme.left:
            write_model(write_qdq(self.settings.writer(fitted), fitted.left), path)
        return Written(fitted, path, fit.coverage)

    def _fit(self, scheme: Scheme, path: Path, cpu: Architecture) -> CpuFit:
        """Return how a model fits a CPU: found once for all schemes of the same form."""
        form = (frozenset(scheme.left), scheme.unpaired, scheme.wide)
        if form not in self._fits:
            fit = fit_to_cpu(self.settings.writer(scheme), cpu, path, scheme.left)
            self._fits[form] = fit
            self._fits[(frozenset(fit.left), scheme.unpaired, scheme.wide)] = fit
        return self._fits[form]


@dataclass
class JudgingMaker:
    """Makes what a search tries, and judges it."""

    maker: QdqMaker
    held_out: HeldOut
    fit: Callable[[Scheme], Scheme]
    """Fits a scheme's weights to the activations that they meet."""
    metric: Callable[[Path], Measured] | None = None
    """None without a limit."""
    _inners: dict[Path, InnerCloseness] = field(default_factory=dict)

    def make(self, scheme: Scheme) -> Trial | None:
        """Return the scheme as a model, or None if none of it would run as integers."""
        written = self.maker.write(scheme)
        if not runs_integers(written.coverage, scheme.exact):
            shutil.rmtree(written.path.parent)
            return None
        return self.judged(written)

    def is_closer(self, trial: Trial, other: Trial) -> bool:
        """Return whether a trial's outputs are closer than another's.

        Where the held-out samples are too few to tell, the tensors inside decide.
        """
        found = trial.closeness.compare(other.closeness)
        if found == "unclear":
            found = self._inner(trial).compare(self._inner(other))
        return found == "closer"

    def _inner(self, trial: Trial) -> InnerCloseness:
        if trial.path not in self._inners:
            self._inners[trial.path] = inner_closeness(
                trial.scheme.exact, trial.path, self._few(_INNER_SAMPLES)
            )
        return self._inners[trial.path]

    def _few(self, count: int) -> Chosen:
        """Return some of the held-out samples."""
        feeds = self.held_out.reference.feeds
        return Chosen(feeds.samples, feeds.indices[:count])

    def judged(self, written: Written) -> Trial:
        """Return how close a model is that is written already."""
        return Trial(written.scheme, written.path, self.held_out.closeness(written.path))

    def fitted(self, scheme: Scheme) -> Scheme:
        """Return the scheme with its weights fitted to what they meet."""
        return self.fit(scheme)

    def sensitivity(self, trial: Trial) -> Sensitivity:
        """Return the errors of each place, over a few of the held-out samples.

        They are those of plain rounding: weights that were fitted make up for errors before them,
        and with exact inputs that would count as an error of their own.
        """
        plain = trial.scheme.plain
        quantized = write_qdq(self.maker.settings.writer(plain), plain.left)
        return sensitivity(plain.exact, quantized, self._few(_SENSITIVITY_SAMPLES))

    def measure(self, trial: Trial) -> Measured:
        """Return what the user's metric says."""
        if self.metric is None:
            raise TypeError("without a limit there is no metric")
        return self.metric(trial.path)


def runs_integers(found: FusionCoverage | None, source: onnx.ModelProto) -> bool:
    """Return whether a CPU would run as integers what is worth it: a product, if there are any."""
    if found is None:
        return True
    return bool(found.integer_products if has_products(source) else found.integer_ops)


def has_products(model: onnx.ModelProto) -> bool:
    """Return whether a model has a convolution or matrix product."""
    return any(node.op_type in PRODUCTS for node in model.graph.node)
