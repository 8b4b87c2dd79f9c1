"""The ``int8-dynamic`` recipe: 8-bit weights; activations quantized at run time, no samples needed.

What is quantized, by onnxruntime's own quantizer (1.31.1): MatMul and Gemm with constant weights,
Attention (com.microsoft), LSTM, and the tables of Gather and EmbedLayerNormalization. Conv is not:
measured 2026-11-21 on x86-64, one thread, several readings on a busy machine, against float32:
ConvInteger with uint8 weights takes 1.1 (squeezenet1.1), 2.7 to 3.8 (mobilenet v1 0.25) and 1.5 to
1.8 times (resnet20) as long, with int8 weights 4, 8 to 11 and 6 to 8 times; its weights have one
scale in all, which leaves -6 dB of mobilenet.
Convolutional networks want ``int8-static``.

A scale per channel preserves a transformer's accuracy: of all-MiniLM-L6-v2, 64 English sentences,
the worst embedding has a cosine of 0.986 with float32's with int8 weights and 0.987 with uint8, and
with one scale per tensor 0.938 and 0.965. Weights of 7 bits (onnxruntime's ``reduce_range``), which
cannot saturate, bring 0.984 and 0.987, and per tensor 0.77 and 0.91: they are not used (onnxruntime
1.31.1, x86-64 with AVX2 and without VNNI, its default kernels, 2026-11-21).
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from edgepack.errors import BugError, StepError
from edgepack.metrics.accuracy import EQUAL_SQNR_DB
from edgepack.model.editing import move_constants_to_initializers
from edgepack.model.files import MODEL
from edgepack.model.ir import lower_ir
from edgepack.model.reading import read_model, read_structure, write_model
from edgepack.model.running import (
    format_runtime_error,
    list_runtime_errors,
    make_session,
    run_session,
)
from edgepack.project.profile import Dialect
from edgepack.quantization.qdq.preparation import list_body_reads
from edgepack.steps.base import Inputs, Notes
from edgepack.steps.comparing import compare, make_probe_inputs, require_signal
from edgepack.steps.graph.half import name_nodes
from edgepack.steps.quantized import require_unquantized
from edgepack.steps.recipes.fp32 import require_ir
from edgepack.steps.recipes.int8 import find_dialect, make_float_steps
from edgepack.steps.recipes.kind import Asked, RecipeKind

if TYPE_CHECKING:
    import onnx

_OPS = ["MatMul", "Gemm", "Attention", "LSTM", "Gather", "EmbedLayerNormalization"]
# Smaller tables are not worth a DequantizeLinear: axes, anchors, scales.
_SMALLEST_TABLE = 1024
_WITHOUT_INT8 = "build without it, or with int8-static, which needs samples"
# Unable to find data type for weight_name='x'. shape_inference failed to return a type ...
_UNTYPED = re.compile(r"Unable to find data type for weight_name='([^']*)'")
_NEARER = (
    "write per_channel: true if the dialect has it not, or build without it: fp16 keeps more of an"
    " encoder"
)
_PRODUCTS = {"MatMulInteger": 1, "ConvInteger": 1, "QAttention": 1}
"""Operator with 8-bit weights to the index of their input."""
_RECURRENT = "DynamicQuantizeLSTM"


@dataclass(frozen=True)
class Int8Dynamic:
    """Weights in 8 bits, activations quantized while running.

    Inputs: ``model``; ``samples``, optionally, for the proof: without them seeded random inputs.
    """

    name: ClassVar[str] = "int8-dynamic"
    libraries: ClassVar[tuple[str, ...]] = ("onnx", "onnxruntime")
    cacheable = True
    dialect: Dialect
    max_ir: int

    def check(self, inputs: Inputs) -> None:
        """Make sure that the dialect is possible, and that the model is a float one that runs.

        Raises:
            StepError: The dialect has other activations than asymmetric uint8, which is what
                DynamicQuantizeLinear (ONNX opset 11) makes; or the model is quantized already.
            ModelError: The model does not run.
        """
        if self.dialect.activations != "uint8" or self.dialect.symmetric:
            raise StepError(
                "dynamic quantization makes asymmetric uint8 activations, the dialect asks for"
                f" {'symmetric ' if self.dialect.symmetric else ''}{self.dialect.activations}",
                hint="write activations: uint8 and symmetric: false in the profile",
            )
        require_unquantized(read_structure(inputs["model"] / MODEL))
        session = make_session(inputs["model"] / MODEL)
        for feed in make_probe_inputs(inputs["model"] / MODEL, inputs.get("samples"), 1):
            run_session(session, feed)

    def run(self, inputs: Inputs, out: Path) -> Notes:
        """Write ``model.onnx``.

        Raises:
            StepError: onnxruntime's quantizer fails.
        """
        model = read_model(inputs["model"] / MODEL)
        name_nodes(model)
        move_constants_to_initializers(model)
        _unshare_weights(model)
        before = _count_float_bytes(model)
        excluded = self._find_excluded(model)
        quantized = self._quantize(model, sorted(excluded), out)
        _share_weights(quantized)
        lower_ir(quantized, self.max_ir)
        write_model(quantized, out / MODEL)
        found = _count_quantized(quantized)
        near = compare(inputs["model"] / MODEL, out / MODEL, inputs.get("samples"))
        share = 1 - _count_float_bytes(quantized) / before if before else 0.0
        done = "int8-dynamic: " + ", ".join(f"{n} {op}" for op, n in sorted(found.items()))
        done += f", {share:.0%} of the weights; worst cosine {near.worst_cosine:.4f}"
        done += "".join(f"; {name!r} stays float32 ({why})" for name, why in excluded.items())
        facts: dict[str, Any] = {
            "quantized_nodes": sum(found.values()),
            "quantized_share": round(share, 4),
            "float32_nodes": sorted(excluded),
            "sqnr_db": max(near.sqnr_db, -EQUAL_SQNR_DB),
            "worst_cosine": near.worst_cosine,
        }
        return Notes(done, facts)

    def _quantize(self, model: onnx.ModelProto, excluded: list[str], out: Path) -> onnx.ModelProto:
        from onnxruntime import quantization

        types = {"uint8": quantization.QuantType.QUInt8, "int8": quantization.QuantType.QInt8}
        # The quantizer advises through the root logger; the advice is what this recipe does.
        logging.disable(logging.WARNING)
        try:
            quantization.quantize_dynamic(
                model,
                str(out / MODEL),
                op_types_to_quantize=_OPS,
                per_channel=self.dialect.per_channel,
                weight_type=types[self.dialect.weights],
                nodes_to_exclude=excluded,
            )
        except _list_quantizer_errors() as error:
            untyped = _UNTYPED.search(str(error))
            said = (
                f"it does not know the type of the tensor {untyped[1]!r}: shape inference ends"
                " before it, at an operator of another domain"
                if untyped
                else f"{type(error).__name__}: {format_runtime_error(error)[:300]}"
            )
            raise StepError(
                f"onnxruntime's quantizer failed: {said}", hint=_WITHOUT_INT8
            ) from error
        finally:
            logging.disable(logging.NOTSET)
        return read_model(out / MODEL)

    def _find_excluded(self, model: onnx.ModelProto) -> dict[str, str]:
        """Return nodes that the quantizer would spoil, with the reason (onnxruntime 1.31.1)."""
        from onnx import TensorProto

        shapes = {t.name: tuple(t.dims) for t in model.graph.initializer}
        small_tables = {
            t.name
            for t in model.graph.initializer
            if t.data_type == TensorProto.FLOAT and np.prod(t.dims) < _SMALLEST_TABLE
        }
        reasons: dict[str, str] = {}
        for node in model.graph.node:
            weights = shapes.get(node.input[1]) if len(node.input) > 1 else None
            if node.op_type == "MatMul" and weights is not None and len(weights) != 2:
                # microsoft/onnxruntime#25489: with a scale per channel it does not run.
                if self.dialect.per_channel:
                    reasons[node.name] = f"its weights have {len(weights)} dimensions"
            elif node.op_type == "LSTM" and (why := self._explain_lstm(node)):
                reasons[node.name] = why
            elif node.op_type == "Gather" and node.input[0] in small_tables:
                reasons[node.name] = "its table is small"
        return reasons

    def _explain_lstm(self, node: onnx.NodeProto) -> str:
        """Return why an LSTM is left out: the quantizer drops its layout and supports only int8."""
        if any(a.name == "layout" and a.i for a in node.attribute):
            return "its batch comes first"
        return "" if self.dialect.weights == "int8" else "LSTM weights can be int8 only"

    def verify(self, inputs: Inputs, out: Path) -> None:
        """Prove the dialect on the file, and that its outputs are numbers near the model's.

        Raises:
            StepError: Nothing was quantized, or something was written in another dialect, or the
                outputs have NaN or infinity, or one is far from the model's.
        """
        require_ir(out / MODEL, self.max_ir)
        require_dynamic_dialect(read_model(out / MODEL), self.dialect)
        found = compare(inputs["model"] / MODEL, out / MODEL, inputs.get("samples"))
        found.require_finite()
        require_signal(inputs["model"] / MODEL, out / MODEL, inputs.get("samples"), _WITHOUT_INT8)
        found.require_close_embeddings(_NEARER)


def _list_quantizer_errors() -> tuple[type[Exception], ...]:
    """Return the quantizer's exceptions; it fails with plain Python errors."""
    return (*list_runtime_errors(), AssertionError, KeyError, TypeError, IndexError)


def _count_float_bytes(model: onnx.ModelProto) -> int:
    """Return the size of the main graph's float32 constants."""
    from onnx import TensorProto

    floats = (t for t in model.graph.initializer if t.data_type == TensorProto.FLOAT)
    return sum(4 * int(np.prod(tensor.dims)) for tensor in floats)


def _count_quantized(model: onnx.ModelProto) -> dict[str, int]:
    """Return how many nodes have 8-bit weights, by operator; DequantizeLinear is a table's."""
    ops = {*_PRODUCTS, _RECURRENT, "DequantizeLinear", "QEmbedLayerNormalization"}
    return dict(Counter(node.op_type for node in model.graph.node if node.op_type in ops))


def require_dynamic_dialect(model: onnx.ModelProto, dialect: Dialect) -> None:
    """Prove that a dynamically quantized model speaks a dialect.

    Weights of integer products are constants of the dialect's type, of LSTMs int8; where the
    dialect is per channel, those with more than one column have a zero point for each. What they
    are multiplied with comes from DynamicQuantizeLinear, so it is uint8. Quantized tables are
    uint8, whatever the dialect says of weights.

    Raises:
        StepError: Nothing is quantized, or names the first node that is otherwise.
    """
    from onnx import numpy_helper

    constants = {t.name: t for t in model.graph.initializer}
    if not _count_quantized(model):
        raise StepError("nothing in the model could be quantized dynamically", hint=_WITHOUT_INT8)
    for node, weights, expected in _list_weights(model, dialect):
        tensor = constants.get(weights)
        dtype = "no constant" if tensor is None else numpy_helper.to_array(tensor).dtype.name
        if dtype != expected:
            raise _make_error(node, f"its weights are {dtype}, not {expected}")
    dynamic = {n.output[0] for n in model.graph.node if n.op_type == "DynamicQuantizeLinear"}
    for node in model.graph.node:
        if node.op_type in _PRODUCTS and node.input[0] not in dynamic | _find_tables(model):
            raise _make_error(node, "what it multiplies is not quantized while running")
        if node.op_type == "MatMulInteger" and dialect.per_channel:
            columns = constants[node.input[1]].dims[-1]
            if np.prod(constants[node.input[3]].dims) != columns:
                raise _make_error(node, "its weights have one scale in all")


def _list_weights(model: onnx.ModelProto, dialect: Dialect) -> Iterator[tuple[Any, str, str]]:
    """Yield each node with quantized weights, their name and the type they should have."""
    for node in model.graph.node:
        if node.op_type in _PRODUCTS:
            yield node, node.input[_PRODUCTS[node.op_type]], dialect.weights
        elif node.op_type == _RECURRENT:
            yield node, node.input[1], "int8"
            yield node, node.input[2], "int8"


def _find_tables(model: onnx.ModelProto) -> set[str]:
    """Return quantized tensors that were gathered from a quantized table."""
    return {node.input[0] for node in model.graph.node if node.op_type == "DequantizeLinear"} | {
        node.output[0] for node in model.graph.node if node.op_type == "Gather"
    }


def _make_error(node: onnx.NodeProto, found: str) -> BugError:
    return BugError(f"node {node.name!r} is not in the dialect that was asked for: {found}")


_LSTM_ZERO_POINTS = (9, 11)
"""Places among the inputs of DynamicQuantizeLSTM (onnxruntime's ContribOperators.md)."""


def _unshare_weights(model: onnx.ModelProto) -> None:
    """Give Gemm and LSTM their own weights where others read them too.

    The quantizer (1.31.1) transposes a Gemm's weights and reshapes an LSTM's where they stand.
    """
    import onnx

    readers = Counter(name for node in model.graph.node for name in node.input if name)
    constants = {t.name: t for t in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type not in ("Gemm", "LSTM"):
            continue
        for k in (1, 2):
            if k < len(node.input) and node.input[k] in constants and readers[node.input[k]] > 1:
                copy = onnx.TensorProto()
                copy.CopyFrom(constants[node.input[k]])
                copy.name = f"{node.input[k]}/{node.name}"
                readers[node.input[k]] -= 1
                node.input[k] = copy.name
                model.graph.initializer.append(copy)


def _share_weights(model: onnx.ModelProto) -> None:
    """Keep one of constants that are equal, where no body of an If, Loop or Scan reads them.

    Layers that share their weights would each have their own, or the file as many as it has layers:
    a real transformer's of 85 MB became 162 MB in 8 bits, and is 21 MB with them shared. Zero
    points stay apart: x86-64 without VNNI has precise kernels only for nodes that share no int8
    constant (onnxruntime 1.31.1).
    """
    graph = model.graph
    fixed = {value.name for value in (*graph.input, *graph.output)}
    fixed.update(name for node in graph.node for name in list_body_reads(node))
    for node in graph.node:
        if node.op_type == _RECURRENT:  # its zero points have two dimensions
            fixed.update(node.input[place] for place in _LSTM_ZERO_POINTS)
    kept: dict[bytes, str] = {}
    others: dict[str, str] = {}
    for tensor in graph.initializer:
        if tensor.name not in fixed and len(tensor.dims) > 1:
            name, tensor.name = tensor.name, ""
            digest = hashlib.sha256(tensor.SerializeToString()).digest()
            others[name] = kept.setdefault(digest, name)
            tensor.name = name
    for node in graph.node:
        node.input[:] = [others.get(name, name) for name in node.input]
    for tensor in [t for t in graph.initializer if others.get(t.name, t.name) != t.name]:
        graph.initializer.remove(tensor)


def _make_step(asked: Asked) -> Int8Dynamic:
    return Int8Dynamic(find_dialect(asked.variant), asked.profile.runtime.max_ir)


KIND = RecipeKind(
    _make_step,
    words="quantizing weights (int8, dynamic)",
    cpu_cap_db=20.0,
    other_cap_db=8.0,
    # A dynamic scale is that of the padded tensor, so all its numbers move by a part of a step.
    padded_db=20.0,
    given={"samples": "probes"},
    before=make_float_steps,
    weight_copies=5,  # in onnxruntime's own quantizer, as measured
    in_integers=True,
)
