"""Chooses how activations are quantized, and judges that apart from the weights.

A method gains a part of a decibel to a few decibels for activations, and the errors of nearest
rounding of weights hide this gain. So each method is tried with the exact weights, which costs a
run over the held-out samples and no rounding. Weights are rounded once, for the chosen methods.
"""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from edgepack.base.worker import report
from edgepack.model.reading import write_model
from edgepack.quantization.methods.cross_layer_equalization import Equalized, equalize_layers
from edgepack.quantization.methods.spare_channels import duplicate_channels
from edgepack.quantization.qdq.kept_float import write_qdq
from edgepack.quantization.qdq.writer import QdqWriter
from edgepack.quantization.ranges.methods import RangeMethod, find_range
from edgepack.quantization.ranges.statistics import TensorStatistics
from edgepack.quantization.search.closeness import NOTICEABLE_DB, HeldOut, ModelCloseness
from edgepack.quantization.search.search import SearchLine

if TYPE_CHECKING:
    import onnx

_STRENGTHS = (0.5, 0.75)
# On four networks in two dialects, entropy was never the best and cost up to 20 dB; without
# 0.01 % of the values, the three that see images lost 1 to 7 dB (onnxruntime 1.31.1, 2026-11-21).
_METHODS: tuple[tuple[str, RangeMethod, float], ...] = (
    ("99.9999 % of the values", "percentile", 99.9999),
    ("99.999 % of the values", "percentile", 99.999),
    ("the least squared error", "mse", 100.0),
)


@dataclass(frozen=True, eq=False)
class Activations:
    """A float model and the ranges that its activations are quantized with."""

    model: onnx.ModelProto
    """Of the graph, and with the tensor names, of the model that was there at first."""
    statistics: Mapping[str, TensorStatistics]
    """Of its tensors; of those that were scaled, those of before."""
    ranges: Mapping[str, tuple[float, float]]
    rescaled: frozenset[str] = frozenset()
    """Tensors whose values differ from those in ``statistics``."""

    @classmethod
    def of(cls, model: onnx.ModelProto, statistics: Mapping[str, TensorStatistics]) -> Activations:
        """Return a model as it is, with ranges from the lowest to the highest value."""
        return cls(model, statistics, {name: (s.low, s.high) for name, s in statistics.items()})


@dataclass(frozen=True, eq=False)
class ExactWeightsJudge:
    """Measures how close a model is whose activations are quantized and whose weights are not."""

    writer: QdqWriter
    """Only its dialect, exclusions and what is wide count; model and ranges come from the judged
    model."""
    held_out: HeldOut
    left: Collection[str] = ()
    """Names of the nodes that stay float."""

    def measure_closeness(self, activations: Activations) -> ModelCloseness:
        """Return how close the outputs are on the held-out samples.

        Raises:
            StepError: The writer cannot write the model.
            ModelError: onnxruntime refuses it.
        """
        writer = replace(
            self.writer,
            model=activations.model,
            ranges=activations.ranges,
            weight_scales={},
        )
        every_node = {node.name for node in activations.model.graph.node}
        model = write_qdq(writer, self.left, exact=every_node)
        with tempfile.TemporaryDirectory(prefix="edgepack-activations-") as folder:
            path = Path(folder) / "model.onnx"
            write_model(model, path)
            return self.held_out.measure_closeness(path)


def choose_activations(
    start: Activations, judge: ExactWeightsJudge
) -> tuple[Activations, list[SearchLine]]:
    """Try the methods that may lower the error of activations, each on top of those that were kept.

    In this order: spare channels used, channels equalized, those before a Clip equalized, ranges by
    other methods. None costs time when the model runs. The first two leave the float model and the
    widest steps as they are: they are kept if held-out samples come closer, even by chance. The
    others cut off values that samples may not show, so they have to be closer by more.

    Returns:
        The best, ``start`` itself where nothing is better; and all that was tried, ``start`` first.

    Raises:
        StepError: The writer cannot write a model.
        ModelError: onnxruntime refuses a model.
    """
    best, closeness = start, judge.measure_closeness(start)
    first = "what the others are compared with"
    tried = [_make_line("ranges from lowest to highest", closeness, is_kept=True, why=first)]
    for method in (_copy_channels, _equalize_activations, _equalize_below_clips, _change_ranges):
        chosen, nearest = best, closeness
        for what, activations in method(best, judge.writer):
            report(0, 0, what)
            found = judge.measure_closeness(activations)
            is_exact, judged = method in _EXACT, found.judge(closeness)
            gains = found.compute_gain_db(nearest) >= NOTICEABLE_DB
            enough = ("closer", "unclear") if is_exact else ("closer",)
            is_kept = gains and judged.verdict in enough
            why = judged.why if gains or nearest is closeness else "another one is as close"
            if is_exact and is_kept and judged.verdict == "unclear":
                why += "; in float it changes nothing, so that is enough"
            tried.append(_make_line(what, found, is_kept=is_kept, why=why))
            if is_kept:
                chosen, nearest = activations, found
        best, closeness = chosen, nearest
    return best, tried


def _make_line(what: str, found: ModelCloseness, *, is_kept: bool, why: str) -> SearchLine:
    return SearchLine(
        f"exact weights, {what}",
        "calibration",
        is_kept,
        found.sqnr_db,
        found.agreement,
        stage="activations",
        why=why,
    )


def _copy_channels(now: Activations, writer: QdqWriter) -> Iterator[tuple[str, Activations]]:
    found = duplicate_channels(now.model, now.statistics, writer.dialect)
    if found.copies:
        count = sum(map(len, found.copies.values()))
        what = f"{count} channels that are always 0 made copies of others"
        yield what, replace(now, model=found.model, statistics=found.statistics)


def _equalize_activations(now: Activations, _: QdqWriter) -> Iterator[tuple[str, Activations]]:
    for strength in _STRENGTHS:
        found = equalize_layers(now.model, now.statistics, strength)
        if found.factors:
            yield f"channels equalized with the strength {strength}", _replace_found(now, found)


def _equalize_below_clips(now: Activations, _: QdqWriter) -> Iterator[tuple[str, Activations]]:
    if now.rescaled:
        # The statistics no longer describe these.
        return
    strength = min(_STRENGTHS)
    found = equalize_layers(now.model, now.statistics, strength, below_clips=True)
    if len(found.factors) > len(equalize_layers(now.model, now.statistics, strength).factors):
        what = f"channels equalized below clips with the strength {strength}"
        yield what, _replace_found(now, found)


def _replace_found(now: Activations, found: Equalized) -> Activations:
    return replace(
        now,
        model=found.model,
        ranges={**now.ranges, **found.ranges},
        rescaled=frozenset(found.factors),
    )


def _change_ranges(now: Activations, writer: QdqWriter) -> Iterator[tuple[str, Activations]]:
    """Yield ranges by other methods, for the tensors whose values are known."""
    is_wide = writer.dialect.activations == "uint16"
    for name, method, percentile in _METHODS:
        found = {
            tensor: find_range(
                statistics,
                method,
                levels=65536 if is_wide or tensor in writer.wide else 256,
                symmetric=writer.dialect.symmetric,
                percentile=percentile,
            )
            for tensor, statistics in now.statistics.items()
            if tensor not in now.rescaled
        }
        yield f"ranges for {name}", replace(now, ranges={**now.ranges, **found})


_EXACT = (_copy_channels, _equalize_activations)
"""Methods that keep the float model and make no step wider: they have to prove less."""
