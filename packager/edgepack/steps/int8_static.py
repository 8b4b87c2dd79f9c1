"""The ``int8-static`` recipe: QDQ by onnxruntime's quantizer, ranges from real samples."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from edgepack.data import SampleSet
from edgepack.errors import StepError
from edgepack.model.reading import read_model, read_structure
from edgepack.model.running import blame, make_session, run_session, runtime_errors
from edgepack.profile import Dialect
from edgepack.steps.base import MODEL, Inputs, Notes
from edgepack.steps.fp32 import require_ir

if TYPE_CHECKING:
    import onnx

WITHOUT_INT8 = "build without int8: --variant cpu-fp32"


@dataclass(frozen=True)
class Int8Static:
    """Activations and weights in 8 bits. Inputs: ``model``; ``samples``, for the ranges."""

    name: ClassVar[str] = "int8-static"
    libraries: ClassVar[tuple[str, ...]] = ("onnx", "onnxruntime")
    cacheable = True
    dialect: Dialect
    max_ir: int

    def check(self, inputs: Inputs) -> None:
        """Make sure that the model is a float one and gives finite numbers on the samples.

        Raises:
            StepError: It is quantized already, or an output has NaN or infinity.
        """
        _require_unquantized(read_structure(inputs["model"] / MODEL))
        session = make_session(inputs["model"] / MODEL)
        _require_finite(run_session(session, SampleSet.read(inputs["samples"]).inputs(0)))

    def run(self, inputs: Inputs, out: Path) -> Notes:
        """Write ``model.onnx``.

        Raises:
            StepError: onnxruntime's quantizer fails.
        """
        from onnxruntime import quantization

        types = {"uint8": quantization.QuantType.QUInt8, "int8": quantization.QuantType.QInt8}
        samples = SampleSet.read(inputs["samples"])
        # The quantizer advises through the root logger; the advice is what this recipe does.
        logging.disable(logging.WARNING)
        try:
            quantization.quantize_static(
                read_model(inputs["model"] / MODEL),
                str(out / MODEL),
                _reader(samples),
                quant_format=quantization.QuantFormat.QDQ,
                activation_type=types[self.dialect.activations],
                weight_type=types[self.dialect.weights],
                per_channel=self.dialect.per_channel,
                extra_options={"ActivationSymmetric": self.dialect.symmetric},
            )
        except _quantizer_errors() as error:
            raise StepError(
                f"onnxruntime's quantizer failed: {type(error).__name__}: {blame(error)[:300]}",
                hint=WITHOUT_INT8,
            ) from error
        finally:
            logging.disable(logging.NOTSET)
        pairs = _count(read_structure(out / MODEL), "QuantizeLinear")
        return Notes(
            f"int8 from {len(samples)} samples: {pairs} tensors quantized",
            {"quantized_tensors": pairs, "samples": len(samples)},
        )

    def verify(self, inputs: Inputs, out: Path) -> None:
        """Prove the dialect on the file, and that it loads and gives finite numbers.

        Raises:
            StepError: Nothing was quantized, or something was written in another dialect.
        """
        require_ir(out / MODEL, self.max_ir)
        require_dialect(read_model(out / MODEL), self.dialect)
        session = make_session(out / MODEL)
        _require_finite(run_session(session, SampleSet.read(inputs["samples"]).inputs(0)))


def _quantizer_errors() -> tuple[type[Exception], ...]:
    """Return what the quantizer raises; plain Python errors are how it says it has met its end."""
    return (*runtime_errors(), AssertionError, KeyError, TypeError, IndexError)


def _reader(samples: SampleSet) -> object:
    from onnxruntime.quantization import CalibrationDataReader

    class Reader(CalibrationDataReader):  # type: ignore[misc]  # onnxruntime has no types
        """Hands the quantizer one sample at a time."""

        def __init__(self) -> None:
            self._samples: Iterator[dict[str, Any]] = iter(samples)

        def get_next(self) -> dict[str, Any] | None:
            return next(self._samples, None)

    return Reader()


def require_dialect(model: onnx.ModelProto, dialect: Dialect) -> None:
    """Prove that a QDQ model speaks a dialect.

    Activations: the zero point of every QuantizeLinear has the dialect's type, and is 0 where
    it is symmetric. Weights: a quantized constant that is the second operand of a convolution or
    matrix product has the dialect's type, any other may have the activations' (the constant
    operand of a Mul, say) or be an int32 bias; and where the dialect is per channel at least one
    has a scale per channel.

    Raises:
        StepError: Names the first node that does not.
    """
    from onnx import numpy_helper

    constants = {t.name: t for t in model.graph.initializer}
    quantizers = [node for node in model.graph.node if node.op_type == "QuantizeLinear"]
    if not quantizers:
        raise StepError("nothing in the model could be quantized", hint=WITHOUT_INT8)
    for node in quantizers:
        zero = numpy_helper.to_array(constants[node.input[2]])
        if zero.dtype != dialect.activations or (dialect.symmetric and zero.any()):
            raise _wrong(node, f"its zero point is {zero.dtype} {zero.ravel()[0]}")
    weights = [
        (node, numpy_helper.to_array(constants[node.input[0]]), constants[node.input[1]])
        for node in model.graph.node
        if node.op_type == "DequantizeLinear" and node.input[0] in constants
    ]
    operands = _weight_operands(model)
    for node, values, _ in weights:
        others = () if node.output[0] in operands else (dialect.activations, "int32")
        if values.dtype.name not in (dialect.weights, *others):
            raise _wrong(node, f"its constant is {values.dtype}")
    per_channel = any(np.prod(scale.dims) > 1 for _, _, scale in weights)
    if weights and dialect.per_channel and not per_channel:
        raise _wrong(weights[0][0], "no weight has a scale per channel")


def _weight_operands(model: onnx.ModelProto) -> set[str]:
    """Return the tensors that are the second operand of a convolution or matrix product."""
    products = {"Conv", "ConvTranspose", "Gemm", "MatMul"}
    return {
        node.input[1]
        for node in model.graph.node
        if node.op_type in products and len(node.input) > 1
    }


def _require_unquantized(model: onnx.ModelProto) -> None:
    quantized = [
        node
        for node in model.graph.node
        if node.op_type in ("QuantizeLinear", "DequantizeLinear") or "QLinear" in node.op_type
    ]
    if quantized:
        raise StepError(
            f"the model is quantized already: {len(quantized)} such nodes, {quantized[0].name!r}"
            f" ({quantized[0].op_type}) first",
            hint="give the float model, or carry this one as it is: --variant cpu-fp32",
        )


def _wrong(node: onnx.NodeProto, found: str) -> StepError:
    return StepError(
        f"node {node.name!r} is not in the dialect that was asked for: {found}",
        hint="this is a fault in edgepack or in onnxruntime's quantizer: please report it",
    )


def _require_finite(outputs: dict[str, Any]) -> None:
    for name, array in outputs.items():
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise StepError(
                f"the output {name!r} has NaN or infinity on the first calibration sample",
                hint="check the samples' scale and 'inputs' in edgepack.yaml",
            )


def _count(model: onnx.ModelProto, op_type: str) -> int:
    return sum(node.op_type == op_type for node in model.graph.node)
