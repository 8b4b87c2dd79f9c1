"""Models of one operator each, in every dtype that ONNX allows: what a provider takes of each.

They show the element types of a table of operators (``edgepack/backends/data``), of which no
vendor's documentation speaks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

OPSET = 17
INTEGERS = [f"{sign}int{bits}" for bits, sign in product((8, 16, 32, 64), ("", "u"))]
DTYPES = ["float32", "float16", "float64", "bool", *INTEGERS]
Constant = tuple[str, Any]
"""A constant input: a dtype, or ``T`` for that of the model, and its values."""


@dataclass(frozen=True)
class Form:
    """How one operator is written: the shapes of its inputs of type T, its constants, the rest."""

    op: str
    inputs: tuple[tuple[int, ...], ...] = ((1, 4, 8, 8),)
    constants: tuple[Constant, ...] = ()
    attributes: dict[str, Any] = field(default_factory=dict)
    outputs: int = 1


def _of(words: str, *inputs: tuple[int, ...]) -> list[Form]:
    return [Form(op, inputs or ((1, 4, 8, 8),)) for op in words.split()]


_ONES = np.ones((4, 4, 3, 3))
_I = "int64"
FORMS = [
    *_of(
        "Abs Asin Atan Ceil Cos Elu Erf Exp Flatten Floor GlobalAveragePool GlobalMaxPool"
        " HardSigmoid HardSwish Identity IsInf IsNaN LeakyRelu Log LogSoftmax Neg NonZero Not"
        " Reciprocal Relu Round Selu Shape Sigmoid Sign Sin Softmax Softplus Sqrt Tan Tanh"
        " ThresholdedRelu Transpose ReduceL2 ReduceMax ReduceMean ReduceMin ReduceProd ArgMax"
        " ArgMin"
    ),
    *_of(
        "Add And Div Equal Greater GreaterOrEqual Less LessOrEqual Max Mean Min Mul Or"
        " PRelu Pow Sub Sum Xor Mod",
        (1, 4, 8, 8),
        (1, 4, 8, 8),
    ),
    *_of("MatMul", (2, 4), (4, 3)),
    *_of("Gemm", (2, 4), (4, 3), (3,)),
    Form("AveragePool", attributes={"kernel_shape": [2, 2]}),
    Form("MaxPool", attributes={"kernel_shape": [2, 2]}),
    Form("LpPool", attributes={"kernel_shape": [2, 2]}),
    Form("LRN", attributes={"size": 3}),
    Form("LpNormalization", attributes={"p": 2}),
    Form("DepthToSpace", attributes={"blocksize": 2}),
    Form("SpaceToDepth", attributes={"blocksize": 2}),
    Form("BatchNormalization", constants=(("T", np.ones(4)),) * 4),
    Form("InstanceNormalization", constants=(("T", np.ones(4)),) * 2),
    Form("LayerNormalization", constants=(("T", np.ones(8)),) * 2),
    Form("Cast", attributes={"to": TensorProto.FLOAT}),
    Form("Clip", constants=(("T", 0), ("T", 1))),
    Form("Conv", constants=(("T", _ONES),)),
    Form("ConvTranspose", constants=(("T", _ONES),)),
    Form("CumSum", constants=((_I, 1),)),
    Form("Expand", constants=((_I, [2, 4, 8, 8]),)),
    Form("Gather", constants=((_I, [0]),)),
    Form("GatherElements", ((2, 2),), ((_I, [[0, 0], [1, 0]]),)),
    Form("GatherND", ((2, 2),), ((_I, [[0, 0], [1, 1]]),)),
    Form("Pad", constants=((_I, [0, 0, 1, 1, 0, 0, 1, 1]), ("T", 0))),
    Form("ReduceSum", constants=((_I, [1]),)),
    Form("Reshape", constants=((_I, [4, 64]),)),
    Form("Resize", constants=(("float32", []), ("float32", [1.0, 1.0, 2.0, 2.0]))),
    Form("Concat", ((1, 4), (1, 4)), attributes={"axis": 1}),
    Form("ScatterElements", ((2, 2),), ((_I, [[0, 1]]), ("T", [[1, 0]]))),
    Form("ScatterND", ((2, 2),), ((_I, [[0]]), ("T", [[1, 1]]))),
    Form("Slice", constants=((_I, [0]), (_I, [2]), (_I, [2]))),
    Form("Split", attributes={"axis": 1}, outputs=2),
    Form("Squeeze", constants=((_I, [0]),)),
    Form("Tile", constants=((_I, [1, 1, 2, 1]),)),
    Form("TopK", constants=((_I, [2]),), outputs=2),
    Form("Unsqueeze", ((4, 8),), ((_I, [0]),)),
]


def collect_operators(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield a name and a file, in ``folder``, of each operator in each dtype that is valid."""
    for form, dtype in product(FORMS, DTYPES):
        model = make_model(form, dtype)
        try:
            onnx.checker.check_model(model, full_check=True)
        except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError):
            continue
        file = folder / f"{form.op}-{dtype}.onnx"
        onnx.save(model, file)
        yield f"{form.op} {dtype}", file


def make_model(form: Form, dtype: str) -> onnx.ModelProto:
    """Return the model of one operator, whose node is called ``n``; it may not be valid."""
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    inputs = [
        helper.make_tensor_value_info(f"x{place}", kind, shape)
        for place, shape in enumerate(form.inputs)
    ]
    constants = [
        numpy_helper.from_array(np.array(values, dtype if said == "T" else said), f"c{place}")
        for place, (said, values) in enumerate(form.constants)
    ]
    names = [*(value.name for value in inputs), *(tensor.name for tensor in constants)]
    outputs = [f"y{place}" for place in range(form.outputs)]
    node = helper.make_node(form.op, names, outputs, "n", **form.attributes)
    made = [onnx.ValueInfoProto(name=name) for name in outputs]
    graph = helper.make_graph([node], "one", inputs, made, constants)
    opsets = [helper.make_opsetid("", OPSET)]
    return onnx.shape_inference.infer_shapes(
        helper.make_model(graph, opset_imports=opsets, ir_version=8)
    )
