"""The models that predicted and real placement are compared on: real, quantized and made ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from edgepack.steps.graph.prepared import fix_dims
from onnx import TensorProto, helper, numpy_helper
from onnxruntime import quantization

BODY = "body:"
"""What the names of nodes in the bodies of If, Loop and Scan begin with."""
QUANTIZED = {
    "small/cifar10_resnet20_fp32_bn.onnx",
    "small/mlperf_tiny_kws_dscnn_fp32.onnx",
    "imagenet/mobilenet_v1_0.25_128_fp32.onnx",
    "imagenet/squeezenet1.1_fp32_opset13_dynbatch.onnx",
}
"""Those of the real models that are quantized, each in every dialect."""


@dataclass(frozen=True)
class Dialect:
    """How numbers are written in a quantized model."""

    activations: quantization.QuantType
    weights: quantization.QuantType
    symmetric: bool = False
    per_channel: bool = True


_U8, _S8 = quantization.QuantType.QUInt8, quantization.QuantType.QInt8
_U16 = quantization.QuantType.QUInt16
ON_PROCESSORS = {
    "u8s8": Dialect(_U8, _S8),
    "s8s8-symmetric": Dialect(_S8, _S8, symmetric=True),
    "u8u8": Dialect(_U8, _U8),
}
ON_XNNPACK = {
    "s8s8": Dialect(_S8, _S8),
    "u8u8": Dialect(_U8, _U8, per_channel=False),
    "u8s8": Dialect(_U8, _S8),
}
ON_HTP = {
    "u16u8": Dialect(_U16, _U8, per_channel=False),
    "u8u8": Dialect(_U8, _U8, per_channel=False),
    "u16s8": Dialect(_U16, _S8),
    "u8s8": Dialect(_U8, _S8),
    "s8s8": Dialect(_S8, _S8),
    "u8u8-per-channel": Dialect(_U8, _U8),
}


def collect(
    data: Path | None,
    folder: Path,
    only: str = "",
    dialects: Mapping[str, Dialect] = ON_PROCESSORS,
    *,
    fixed: bool = False,
) -> Iterator[tuple[str, Path]]:
    """Yield a name and a file, in ``folder``, of every model with ``only`` in its name.

    Nodes have unique names. With ``fixed`` real models have 1 for every dimension that is not
    known, as one that is prepared for a provider of static shapes.

    Files under ``data`` that onnx cannot read at all are left out: nothing could name their nodes.
    """
    for name, make in MADE.items():
        if only not in f"made/{name}":
            continue
        yield f"made/{name}", _save(make(), folder / f"made-{name}.onnx")
    for path in sorted(data.rglob("*.onnx")) if data else ():
        name = path.relative_to(data).as_posix() if data else path.name
        if only not in name:
            continue
        try:
            model = onnx.load(path)
        except (OSError, ValueError, onnx.checker.ValidationError):
            continue
        if fixed:
            fix_unknown(model)
        file = _save(model, folder / f"{name.replace('/', '-')}")
        yield name, file
        if name in QUANTIZED:
            for word, dialect in dialects.items():
                target = folder / f"{file.stem}-{word}.onnx"
                quantize(file, target, dialect)
                yield f"{name} {word}", _save(onnx.load(target), target)


def fix_unknown(model: onnx.ModelProto) -> None:
    """Make every unknown dimension of the inputs 1."""
    sizes = [size for value in model.graph.input for size in value.type.tensor_type.shape.dim]
    unknown = [size for size in sizes if not size.HasField("dim_value")]
    for index, size in enumerate(unknown):
        size.dim_param = size.dim_param or f"unknown_{index}"
    fix_dims(model, dict.fromkeys([size.dim_param for size in unknown], 1))


def _save(model: onnx.ModelProto, path: Path) -> Path:
    name_nodes(model.graph, "")
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(model, path)
    return path


def name_nodes(graph: onnx.GraphProto, prefix: str) -> None:
    """Give every node a name that no other has."""
    taken: set[str] = set()
    for index, node in enumerate(graph.node):
        if not node.name or node.name in taken or prefix:
            node.name = f"{prefix}{node.op_type}#{index}"
        taken.add(node.name)
        for attribute in node.attribute:
            bodies = [attribute.g] if attribute.type == attribute.GRAPH else attribute.graphs
            for body in bodies:
                name_nodes(body, f"{BODY}{node.name}/{attribute.name}/")


class _Random(quantization.CalibrationDataReader):
    def __init__(self, model: Path) -> None:
        generator = np.random.default_rng(0)
        inputs = onnx.load(model).graph.input
        self.feeds = iter(
            {
                value.name: generator.standard_normal(
                    [size.dim_value or 1 for size in value.type.tensor_type.shape.dim]
                ).astype(np.float32)
                for value in inputs
            }
            for _ in range(2)
        )

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self.feeds, None)


def quantize(source: Path, target: Path, dialect: Dialect) -> None:
    """Write a QDQ form of a model, ranges from noise: only the shape of the graph matters."""
    quantization.quantize_static(
        str(source),
        str(target),
        _Random(source),
        quant_format=quantization.QuantFormat.QDQ,
        activation_type=dialect.activations,
        weight_type=dialect.weights,
        per_channel=dialect.per_channel,
        extra_options={"ActivationSymmetric": dialect.symmetric},
    )


# Small models, one property each. ``Det`` stands for an operator that OpenVINO's provider lacks.
Value = tuple[str, int, list[int | str] | None]
FLOAT = TensorProto.FLOAT


def _model(
    nodes: list[onnx.NodeProto],
    inputs: list[Value],
    outputs: list[Value],
    constants: dict[str, np.ndarray] | None = None,
    opset: int = 17,
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(*value) for value in inputs],
        [helper.make_tensor_value_info(*value) for value in outputs],
        [numpy_helper.from_array(array, name) for name, array in (constants or {}).items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def _chain(
    *ops: str, dtype: int = FLOAT, shape: tuple[int | str, ...] = (1, 4, 4)
) -> onnx.ModelProto:
    """x -> op -> op -> ..., one input each; Det makes [1] of [1, n, n]."""
    names = ["x", *[f"t{index}" for index in range(1, len(ops))], "y"]
    nodes = [
        helper.make_node(op, [names[index]], [names[index + 1]], f"{op}_{index}")
        for index, op in enumerate(ops)
    ]
    return _model(nodes, [("x", dtype, list(shape))], [("y", dtype, None)])


def lone_node_before_last_piece() -> onnx.ModelProto:
    nodes = [
        helper.make_node("Relu", ["x"], ["a"], "first"),
        helper.make_node("Det", ["a"], ["b"], "det"),
        helper.make_node("Abs", ["b"], ["c"], "abs"),
        helper.make_node("Sigmoid", ["c"], ["y"], "sigmoid"),
    ]
    return _model(nodes, [("x", FLOAT, [1, 4, 4])], [("y", FLOAT, None)])


def lone_node_at_the_end() -> onnx.ModelProto:
    return _chain("Relu", "Sigmoid", "Det", "Abs")


def two_pieces() -> onnx.ModelProto:
    return _chain("Relu", "Sigmoid", "Det", "Abs", "Sqrt", "Relu")


def conv_before_a_refused_node() -> onnx.ModelProto:
    nodes = [
        helper.make_node("Relu", ["x"], ["a"], "relu"),
        helper.make_node("Conv", ["a", "w"], ["b"], "conv"),
        helper.make_node("Det", ["b"], ["c"], "det"),
        helper.make_node("Abs", ["c"], ["d"], "abs"),
        helper.make_node("Sqrt", ["d"], ["y"], "sqrt"),
    ]
    weights = {"w": np.ones((3, 3, 1, 1), np.float32)}
    return _model(nodes, [("x", FLOAT, [1, 3, 4, 4])], [("y", FLOAT, None)], weights)


def conv_that_is_also_an_output() -> onnx.ModelProto:
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["b"], "conv"),
        helper.make_node("Relu", ["b"], ["c"], "relu"),
        helper.make_node("Det", ["c"], ["d"], "det"),
        helper.make_node("Abs", ["d"], ["e"], "abs"),
        helper.make_node("Sqrt", ["e"], ["y"], "sqrt"),
    ]
    weights = {"w": np.ones((3, 3, 1, 1), np.float32)}
    outputs: list[Value] = [("y", FLOAT, None), ("b", FLOAT, None)]
    return _model(nodes, [("x", FLOAT, [1, 3, 4, 4])], outputs, weights)


def _top_k(*, det: bool) -> onnx.ModelProto:
    nodes = [
        helper.make_node("Relu", ["x"], ["a"], "relu"),
        helper.make_node("TopK", ["a", "k"], ["b", "i"], "top"),
        helper.make_node("Abs", ["b"], ["c"], "abs"),
        helper.make_node("Sqrt", ["c"], ["d"], "sqrt"),
        helper.make_node("Det" if det else "Neg", ["d"], ["y"], "last"),
    ]
    outputs: list[Value] = [("y", FLOAT, None), ("i", TensorProto.INT64, None)]
    return _model(nodes, [("x", FLOAT, [1, 4, 4])], outputs, {"k": np.array([4])})


def short_cut_around_a_refused_node() -> onnx.ModelProto:
    """A lone node that reads the model's input, a refused one, and both again."""
    nodes = [
        helper.make_node("Relu", ["x"], ["a"], "relu"),
        helper.make_node("Det", ["a"], ["b"], "det"),
        helper.make_node("Add", ["a", "b"], ["c"], "add"),
        helper.make_node("Sqrt", ["c"], ["d"], "sqrt"),
        helper.make_node("Abs", ["d"], ["y"], "abs"),
    ]
    return _model(nodes, [("x", FLOAT, [1, 4, 4])], [("y", FLOAT, None)])


def scalar_abs() -> onnx.ModelProto:
    return _chain("Relu", "Abs", "Neg", "Sqrt", shape=())


def scalar_add() -> onnx.ModelProto:
    nodes = [
        helper.make_node("Mul", ["x", "x"], ["a"], "mul"),
        helper.make_node("Add", ["a", "x"], ["b"], "add"),
        helper.make_node("Div", ["b", "x"], ["c"], "div"),
        helper.make_node("Sub", ["c", "x"], ["y"], "sub"),
    ]
    return _model(nodes, [("x", FLOAT, [])], [("y", FLOAT, [])])


def empty_dimension() -> onnx.ModelProto:
    nodes = [
        helper.make_node("Concat", ["x", "e"], ["a"], "concat", axis=1),
        helper.make_node("Relu", ["a"], ["b"], "relu"),
        helper.make_node("Abs", ["e"], ["c"], "empty_abs"),
        helper.make_node("Sqrt", ["b"], ["y"], "sqrt"),
    ]
    inputs: list[Value] = [("x", FLOAT, [1, 4]), ("e", FLOAT, [1, 0])]
    return _model(nodes, inputs, [("y", FLOAT, None), ("c", FLOAT, None)])


def reshape_to_scalar() -> onnx.ModelProto:
    nodes = [
        helper.make_node("Relu", ["x"], ["a"], "relu"),
        helper.make_node("Reshape", ["a", "s"], ["b"], "reshape"),
        helper.make_node("Neg", ["b"], ["y"], "neg"),
        helper.make_node("Sqrt", ["a"], ["z"], "sqrt"),
    ]
    outputs: list[Value] = [("y", FLOAT, []), ("z", FLOAT, [1])]
    return _model(nodes, [("x", FLOAT, [1])], outputs, {"s": np.zeros(0, np.int64)})


def unsqueeze_axes_by_name() -> onnx.ModelProto:
    nodes = [
        helper.make_node("Relu", ["x"], ["a"], "relu"),
        helper.make_node("Unsqueeze", ["a", "axes"], ["b"], "unsqueeze"),
        helper.make_node("Unsqueeze", ["a", "other"], ["c"], "unsqueeze_other"),
        helper.make_node("Sqrt", ["b"], ["y"], "sqrt"),
        helper.make_node("Abs", ["c"], ["z"], "abs"),
    ]
    axes = {"axes": np.array([0]), "other": np.array([1])}
    return _model(nodes, [("x", FLOAT, [4])], [("y", FLOAT, None), ("z", FLOAT, None)], axes)


def reduce_max_uint8() -> onnx.ModelProto:
    nodes = [
        helper.make_node("ReduceMax", ["x"], ["a"], "reduce_uint8", axes=[1]),
        helper.make_node("Cast", ["a"], ["b"], "cast", to=FLOAT),
        helper.make_node("ReduceMax", ["b"], ["c"], "reduce_float", axes=[2]),
        helper.make_node("Sqrt", ["c"], ["y"], "sqrt"),
    ]
    return _model(nodes, [("x", TensorProto.UINT8, [1, 4, 4])], [("y", FLOAT, None)])


def upsample() -> onnx.ModelProto:
    nodes = [
        helper.make_node("Relu", ["x"], ["a"], "relu"),
        helper.make_node("Upsample", ["a", "s"], ["b"], "upsample"),
        helper.make_node("Sqrt", ["b"], ["y"], "sqrt"),
    ]
    scales = {"s": np.array([1, 1, 2, 2], np.float32)}
    return _model(nodes, [("x", FLOAT, [1, 1, 4, 4])], [("y", FLOAT, None)], scales, opset=9)


def add_and_two_more() -> onnx.ModelProto:
    nodes = [
        helper.make_node("Add", ["x", "x"], ["a"], "add"),
        helper.make_node("Relu", ["a"], ["b"], "relu"),
        helper.make_node("Sqrt", ["b"], ["y"], "sqrt"),
    ]
    return _model(nodes, [("x", FLOAT, [1, 4])], [("y", FLOAT, None)])


def _same_op_twice(op: str, dtype: int) -> onnx.ModelProto:
    nodes = [
        helper.make_node(op, ["x", "x"], ["a"], "one"),
        helper.make_node(op, ["a", "x"], ["y"], "two"),
    ]
    return _model(nodes, [("x", dtype, [1, 4])], [("y", dtype, None)])


def pad_quantized() -> onnx.ModelProto:
    """Pad's value is a scalar: it may be one that an input gives, if the data was quantized."""
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"], "quantize"),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"], "dequantize"),
        helper.make_node("Pad", ["d", "p", "v"], ["a"], "pad_quantized"),
        helper.make_node("Pad", ["x", "p", "v"], ["b"], "pad"),
        helper.make_node("Relu", ["a"], ["y"], "relu"),
        helper.make_node("Abs", ["b"], ["w"], "abs"),
    ]
    constants = {
        "s": np.array(0.1, np.float32),
        "z": np.array(0, np.uint8),
        "p": np.array([0, 1, 0, 1]),
    }
    inputs: list[Value] = [("x", FLOAT, [1, 4]), ("v", FLOAT, [])]
    return _model(nodes, inputs, [("y", FLOAT, None), ("w", FLOAT, None)], constants)


def if_with_outer_values() -> onnx.ModelProto:
    def body(name: str, op: str) -> onnx.GraphProto:
        nodes = [helper.make_node(op, ["a"], [f"{name}_y"], name)]
        return helper.make_graph(
            nodes, name, [], [helper.make_tensor_value_info(f"{name}_y", FLOAT, [1, 4])]
        )

    nodes = [
        helper.make_node("Relu", ["x"], ["a"], "relu"),
        helper.make_node(
            "If", ["c"], ["b"], "if", then_branch=body("t", "Abs"), else_branch=body("e", "Sqrt")
        ),
        helper.make_node("Neg", ["b"], ["d"], "neg"),
        helper.make_node("Sigmoid", ["d"], ["y"], "sigmoid"),
    ]
    inputs: list[Value] = [("x", FLOAT, [1, 4]), ("c", TensorProto.BOOL, [])]
    return _model(nodes, inputs, [("y", FLOAT, [1, 4])])


def loop() -> onnx.ModelProto:
    """No session: the provider takes the body first, and then the Loop with what is left of it."""
    body = helper.make_graph(
        [
            helper.make_node("Add", ["s", "s"], ["n"], "add"),
            helper.make_node("Identity", ["c"], ["go"], "id"),
        ],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("c", TensorProto.BOOL, []),
            helper.make_tensor_value_info("s", FLOAT, [1, 4]),
        ],
        [
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("n", FLOAT, [1, 4]),
        ],
    )
    nodes = [
        helper.make_node("Relu", ["x"], ["a"], "relu"),
        helper.make_node("Loop", ["k", "", "a"], ["b"], "loop", body=body),
        helper.make_node("Abs", ["b"], ["c"], "abs"),
        helper.make_node("Sqrt", ["c"], ["y"], "sqrt"),
    ]
    return _model(nodes, [("x", FLOAT, [1, 4])], [("y", FLOAT, [1, 4])], {"k": np.array(3)})


def unknown_rank_within() -> onnx.ModelProto:
    """No session: OpenVINO's CPU needs the number of dimensions of every piece's inputs."""
    nodes = [
        helper.make_node("Relu", ["x"], ["a"], "relu"),
        helper.make_node("Reshape", ["a", "s"], ["b"], "reshape"),
        helper.make_node("Hardmax", ["b"], ["c"], "hardmax"),
        helper.make_node("Abs", ["c"], ["d"], "abs"),
        helper.make_node("Sqrt", ["d"], ["y"], "sqrt"),
    ]
    inputs: list[Value] = [("x", FLOAT, [1, 4]), ("s", TensorProto.INT64, ["n"])]
    return _model(nodes, inputs, [("y", FLOAT, None)])


def unknown_rank_of_the_input() -> onnx.ModelProto:
    nodes = [
        helper.make_node("Relu", ["x"], ["a"], "relu"),
        helper.make_node("Sqrt", ["a"], ["y"], "sqrt"),
    ]
    return _model(nodes, [("x", FLOAT, None)], [("y", FLOAT, None)])


def scan() -> onnx.ModelProto:
    body = helper.make_graph(
        [
            helper.make_node("Add", ["s", "i"], ["n"], "add"),
            helper.make_node("Identity", ["n"], ["o"], "id"),
        ],
        "body",
        [
            helper.make_tensor_value_info("s", FLOAT, [4]),
            helper.make_tensor_value_info("i", FLOAT, [4]),
        ],
        [
            helper.make_tensor_value_info("n", FLOAT, [4]),
            helper.make_tensor_value_info("o", FLOAT, [4]),
        ],
    )
    nodes = [
        helper.make_node("Relu", ["x"], ["a"], "relu"),
        helper.make_node("Sqrt", ["a"], ["b"], "sqrt"),
        helper.make_node("Scan", ["s0", "b"], ["s1", "y"], "scan", body=body, num_scan_inputs=1),
        helper.make_node("Abs", ["y"], ["w"], "abs"),
        helper.make_node("Neg", ["w"], ["v"], "neg"),
    ]
    inputs: list[Value] = [("x", FLOAT, [3, 4]), ("s0", FLOAT, [4])]
    return _model(nodes, inputs, [("s1", FLOAT, [4]), ("v", FLOAT, [3, 4])])


def _cast_round_trip(dtype: int) -> onnx.ModelProto:
    """Two nodes of another type within float ones."""
    nodes = [
        helper.make_node("Relu", ["x"], ["a"], "relu"),
        helper.make_node("Sqrt", ["a"], ["b"], "sqrt"),
        helper.make_node("Cast", ["b"], ["c"], "cast", to=dtype),
        helper.make_node("Add", ["c", "c"], ["d"], "add"),
        helper.make_node("Cast", ["d"], ["e"], "back", to=FLOAT),
        helper.make_node("Abs", ["e"], ["f"], "abs"),
        helper.make_node("Neg", ["f"], ["y"], "neg"),
    ]
    return _model(nodes, [("x", FLOAT, [1, 4])], [("y", FLOAT, None)])


def _dynamic(dims: list[int | str]) -> onnx.ModelProto:
    return _chain("Relu", "Sigmoid", "Abs", "Neg", shape=tuple(dims))


MADE: dict[str, Callable[[], onnx.ModelProto]] = {
    "one_relu": lambda: _chain("Relu"),
    "one_identity": lambda: _chain("Identity"),
    "one_exp": lambda: _chain("Exp"),
    "hardmax": lambda: _chain("Relu", "Sigmoid", "Hardmax", "Abs", "Neg"),
    "is_nan": lambda: _model(
        [
            helper.make_node("Relu", ["x"], ["a"], "relu"),
            helper.make_node("IsNaN", ["a"], ["b"], "isnan"),
            helper.make_node("Not", ["b"], ["y"], "not"),
        ],
        [("x", FLOAT, [1, 4])],
        [("y", TensorProto.BOOL, None)],
    ),
    "dynamic_batch": lambda: _dynamic(["batch", 4]),
    "dynamic_all": lambda: _dynamic(["a", "b"]),
    "double": lambda: _cast_round_trip(TensorProto.DOUBLE),
    "uint32": lambda: _cast_round_trip(TensorProto.UINT32),
    "uint64": lambda: _cast_round_trip(TensorProto.UINT64),
    "int32": lambda: _cast_round_trip(TensorProto.INT32),
    "float16": lambda: _cast_round_trip(TensorProto.FLOAT16),
    "float16_all": lambda: _chain("Relu", "Sigmoid", "Abs", "Neg", dtype=TensorProto.FLOAT16),
    "add_twice": lambda: _same_op_twice("Add", FLOAT),
    "mul_twice": lambda: _same_op_twice("Mul", FLOAT),
    "top_k_in_whole": lambda: _top_k(det=False),
    "top_k_in_part": lambda: _top_k(det=True),
    **{
        make.__name__: make
        for make in (
            lone_node_before_last_piece,
            lone_node_at_the_end,
            two_pieces,
            conv_before_a_refused_node,
            conv_that_is_also_an_output,
            short_cut_around_a_refused_node,
            scalar_abs,
            scalar_add,
            empty_dimension,
            reshape_to_scalar,
            unsqueeze_axes_by_name,
            reduce_max_uint8,
            upsample,
            add_and_two_more,
            pad_quantized,
            if_with_outer_values,
            scan,
            loop,
            unknown_rank_within,
            unknown_rank_of_the_input,
        )
    },
}
