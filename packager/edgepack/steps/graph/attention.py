"""Joins the attention of a transformer into onnxruntime's own operator, and proves it the same.

onnxruntime's transformer optimizer finds attention as exporters write it, in some twenty nodes, and
writes Attention (com.microsoft) for it. Where positions turn query and key (rotary positions), as
PyTorch's tracing exporter writes that, it writes RotaryEmbedding instead, which reads tables that
it makes of 131,072 positions: 17 MB for heads of 32. A session's own optimizations join other
patterns of transformers, and not these (onnxruntime 1.31.1, 2026-11-28). What else the optimizer
joins is left out: sessions join GELU and LayerNormalization themselves, and the kernels of
SkipLayerNormalization and EmbedLayerNormalization cost the CPU time (decision 030).

The optimizer does not find attention in what onnxsim has simplified, so it gets the model before.
Models with either load in onnxruntime 1.21.0, 1.23.2 and 1.31.1 (wheels, x86-64, 2026-11-28).
"""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from edgepack.base.arrays import Array
from edgepack.errors import BugError, StepError, ToolError
from edgepack.metrics.accuracy import min_sqnr_db
from edgepack.model.facts import read_signature
from edgepack.model.files import MODEL
from edgepack.model.reading import read_model, write_model
from edgepack.model.running import Arrays, format_runtime_error, make_session, run_session
from edgepack.quantization.qdq.blockwise_writer import DOMAIN
from edgepack.steps.base import Inputs, Notes
from edgepack.steps.comparing import PROBES, make_probe_inputs
from edgepack.steps.graph.half import name_nodes

if TYPE_CHECKING:
    import onnx

OPERATORS = ("Attention", "RotaryEmbedding")
NEEDED = "sympy"
"""What the optimizer imports besides onnxruntime's own dependencies (1.31.1)."""
INSTALL = "python -m pip install 'edgepack[attention]'"
_SAME_DB = 60.0
_WITHOUT = "leave fused_attention out of the variant"
_LEFT_OUT = (
    "enable_gelu",
    "enable_bias_gelu",
    "enable_skip_layer_norm",
    "enable_bias_skip_layer_norm",
    "enable_embed_layer_norm",
)


@dataclass(frozen=True)
class FusedAttention:
    """Attention in one node for each layer. Inputs: ``model``; ``samples``, optionally."""

    name: ClassVar[str] = "fused-attention"
    libraries: ClassVar[tuple[str, ...]] = ("onnx", "onnxruntime", NEEDED)
    cacheable = True

    def check(self, inputs: Inputs) -> None:
        """Make sure that the optimizer can be imported.

        Raises:
            ToolError: sympy is not installed.
        """
        del inputs
        if not can_fuse():
            raise ToolError(
                f"onnxruntime's transformer optimizer needs {NEEDED}", hint=f"{INSTALL}; {_WITHOUT}"
            )

    def run(self, inputs: Inputs, out: Path) -> Notes:
        """Write ``model.onnx``.

        Raises:
            StepError: There is no attention in the model, or the optimizer fails.
        """
        model = read_model(inputs["model"] / MODEL)
        before = len(model.graph.node)
        there = count_fused(model)
        fused = _fuse(model)
        found = _subtract(count_fused(fused), there)
        if not found:
            raise StepError("onnxruntime's optimizer found no attention in it", hint=_WITHOUT)
        name_nodes(fused)
        write_model(fused, out / MODEL)
        after = len(fused.graph.node)
        said = ", ".join(f"{count} {operator}" for operator, count in found.items())
        return Notes(
            f"fused attention: {said}, {before} nodes to {after}",
            {"fused_attention": sum(found.values())},
        )

    def verify(self, inputs: Inputs, out: Path) -> None:
        """Prove that there is fused attention, with the signature and outputs of the model.

        Each sample runs twice more, with each half of its masks hidden.

        Raises:
            StepError: One of these is not so.
        """
        before, after = inputs["model"] / MODEL, out / MODEL
        old, new = read_model(before), read_model(after)
        if not _subtract(count_fused(new), count_fused(old)):
            raise BugError(f"the model has no more {' or '.join(OPERATORS)} than before")
        if read_signature(old) != read_signature(new):
            raise BugError("fusing attention changed the inputs or outputs")
        sqnr = _measure_worst(before, after, inputs.get("samples"))
        if sqnr < _SAME_DB:
            raise StepError(
                f"with fused attention the outputs are {sqnr:.0f} dB from the model's,"
                f" {_SAME_DB:.0f} dB are needed",
                hint=_WITHOUT,
            )


def can_fuse() -> bool:
    """Return whether what the optimizer imports is installed."""
    return importlib.util.find_spec(NEEDED) is not None


def count_fused(model: onnx.ModelProto) -> dict[str, int]:
    """Return how many nodes of a model's main graph are fused attention, by operator."""
    ours = [node.op_type for node in model.graph.node if node.domain == DOMAIN]
    return {operator: ours.count(operator) for operator in OPERATORS if operator in ours}


def _subtract(after: Mapping[str, int], before: Mapping[str, int]) -> dict[str, int]:
    more = {operator: count - before.get(operator, 0) for operator, count in after.items()}
    return {operator: count for operator, count in more.items() if count > 0}


def _fuse(model: onnx.ModelProto) -> onnx.ModelProto:
    import onnx
    from onnxruntime.transformers.fusion_options import FusionOptions
    from onnxruntime.transformers.optimizer import optimize_by_fusion

    options = FusionOptions("bert")
    # Else it gives the operator the number of words, as if all that is hidden stood at the end.
    options.use_raw_attention_mask(use_raw_mask=True)
    for name in _LEFT_OUT:
        setattr(options, name, False)
    # It writes each fusion to the log, and warns of models that are not BERT's.
    logging.disable(logging.WARNING)
    try:
        # With 0 heads and a size of 0 it reads both from the graph.
        fused: onnx.ModelProto = optimize_by_fusion(
            model, "bert", num_heads=0, hidden_size=0, optimization_options=options
        ).model
    except (AssertionError, AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise StepError(
            "onnxruntime's transformer optimizer failed:"
            f" {type(error).__name__}: {format_runtime_error(error)[:300]}",
            hint=_WITHOUT,
        ) from error
    finally:
        logging.disable(logging.NOTSET)
    # The optimizer (1.31.1) names the domain only where it wrote certain operators.
    if DOMAIN not in {entry.domain for entry in fused.opset_import}:
        fused.opset_import.append(onnx.helper.make_opsetid(DOMAIN, 1))
    return fused


def _measure_worst(before: Path, after: Path, samples: Path | None) -> float:
    """Return the worst SQNR over outputs and inputs, one session in memory at a time."""

    def run(model: Path) -> list[Arrays]:
        session = make_session(model)
        return [run_session(session, feed) for feed in _make_feeds(before, samples)]

    return min(map(min_sqnr_db, run(before), run(after)))


def _make_feeds(model: Path, samples: Path | None) -> Iterator[Arrays]:
    """Yield inputs, each followed by itself with masks that hide each half.

    A mask is of integers that are all 1. Samples of one length hide nothing, and with them a model
    that has lost its mask would pass, or one that takes the hidden for the end.
    """
    for feed in make_probe_inputs(model, samples, PROBES):
        yield feed
        masks = {name: array for name, array in feed.items() if _is_mask(array)}
        if masks:
            yield {**feed, **{name: _hide_half(a, 0) for name, a in masks.items()}}
            yield {**feed, **{name: _hide_half(a, 1) for name, a in masks.items()}}


def _is_mask(array: Array) -> bool:
    shown = array.dtype.kind == "i" and array.ndim > 0 and array.shape[-1] > 1
    return shown and bool((array == 1).all())


def _hide_half(mask: Array, half: int) -> Array:
    hidden = mask.copy()
    middle = mask.shape[-1] // 2
    hidden[..., (slice(None, middle), slice(middle, None))[half]] = 0
    return hidden
