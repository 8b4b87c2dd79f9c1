"""Every dialect's file, looked at with plain onnx and numpy; and that no lie passes the proof."""

from __future__ import annotations

import logging

import numpy as np
import onnx
import onnxruntime
import pytest
from edgepack.errors import StepError
from edgepack.metrics.accuracy import min_sqnr_db
from edgepack.model.files import MODEL
from edgepack.model.running import make_session, run_session
from edgepack.quantization.qdq.dialect import require_dialect
from edgepack.quantization.ranges.statistics import (
    TensorStatistics,
    read_statistics,
    write_statistics,
)
from edgepack.samples.sample_set import SampleSet
from edgepack.steps.recipes.calibration import STATISTICS
from edgepack.steps.recipes.int8_static import Int8Static
from onnx import TensorProto, helper, numpy_helper

from tests.support.nets import int8_nets, tiny_models
from tests.support.slow_cases import slow_after

MAX_IR = 13
CHANNEL_AXIS = {
    "conv": 0,
    "depthwise": 0,
    "pointwise": 0,
    "pointwise2": 0,
    "up": 1,
    "matmul": 1,
    "linear": 1,
}


class File:
    """A QDQ file as numpy arrays and nodes by name."""

    def __init__(self, path):
        self.path = path
        self.model = onnx.load(path)
        self.constants = {t.name: numpy_helper.to_array(t) for t in self.model.graph.initializer}
        self.nodes = {node.name: node for node in self.model.graph.node}
        self.made_by = {name: n for n in self.model.graph.node for name in n.output}

    def of_type(self, op):
        return [node for node in self.model.graph.node if node.op_type == op]

    def dequantizer(self, node, place):
        made_by = self.made_by.get(node.input[place])
        return made_by if made_by is not None and made_by.op_type == "DequantizeLinear" else None

    def values(self, dequantizer):
        """The integers, scale, zero point and axis of a DequantizeLinear."""
        axis = next((a.i for a in dequantizer.attribute if a.name == "axis"), 1)
        return (*(self.constants.get(name) for name in dequantizer.input), axis)


def optimized_and_plain(path, feed):
    outputs = []
    for level in ("ORT_ENABLE_ALL", "ORT_DISABLE_ALL"):
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
        # Without it int8 saturates on x86-64 that has no VNNI.
        options.add_session_config_entry("session.x64quantprecision", "1")
        session = onnxruntime.InferenceSession(
            str(path), options, providers=["CPUExecutionProvider"]
        )
        names = [output.name for output in session.get_outputs()]
        outputs.append(dict(zip(names, session.run(names, feed), strict=True)))
    return outputs


@pytest.fixture(params=["conv_net", "mixed_net"])
def net(request, tmp_path):
    if request.param == "conv_net":
        model = tiny_models.conv_net(tmp_path / "net.onnx", batch=1)
    else:
        model = int8_nets.mixed_net(tmp_path / "net.onnx")
    return int8_nets.calibrated(tmp_path / "steps", model, int8_nets.image_feeds())


def quantized(inputs, out, dialect, **settings):
    """The file that a step starts from, with plain rounding, which has to pass the step's proof."""
    step = Int8Static(dialect, MAX_IR, **settings)
    out.mkdir(parents=True)
    step.draft({name: inputs[name] for name in ("model", "statistics")}, out)
    step.verify(inputs, out)
    return File(out / MODEL)


@pytest.mark.parametrize("name", int8_nets.DIALECTS)
def test_dialect_when_written_is_what_plain_onnx_finds(net, tmp_path, name):
    dialect = int8_nets.DIALECTS[name]
    file = quantized(net, tmp_path / "out", dialect, **int8_nets.rules_of(name))
    original = onnx.load(net["model"] / MODEL)
    floats = {t.name: numpy_helper.to_array(t) for t in original.graph.initializer}
    sources = {node.name: node for node in original.graph.node}

    for node in file.of_type("QuantizeLinear"):
        zero = file.constants[node.input[2]]
        assert zero.dtype == dialect.activations
        assert file.constants[node.input[1]].shape == ()
        assert not (dialect.symmetric and zero)
    checked = 0
    for node_name, axis in CHANNEL_AXIS.items():
        if node_name not in sources:
            continue
        node = file.nodes[node_name]
        integers, scale, zero, found_axis = file.values(file.dequantizer(node, 1))
        weights = floats[sources[node_name].input[1]]
        assert integers.dtype == zero.dtype == dialect.weights
        assert not (dialect.weights == "int8" and zero.any())
        if dialect.per_channel:
            assert scale.shape == (weights.shape[axis],)
            assert found_axis == axis
            shape = [-1 if k == axis else 1 for k in range(weights.ndim)]
            scale, zero = scale.reshape(shape), zero.reshape(shape)
        else:
            assert scale.shape == ()
        rebuilt = (integers.astype(np.int32) - zero.astype(np.int32)) * scale
        assert (np.abs(rebuilt - weights) <= scale * 0.5001).all()
        check_bias(file, node, dialect)
        checked += 1
    assert checked == sum(name in CHANNEL_AXIS for name in sources) > 1

    feed = int8_nets.image_feeds()[0]
    reference = optimized_and_plain(net["model"] / MODEL, feed)[0]
    for output in optimized_and_plain(file.path, feed):
        assert min_sqnr_db(reference, output) > 12


def check_bias(file, node, dialect):
    if len(node.input) < 3:
        return
    if dialect.bias == "float32":
        assert file.constants[node.input[2]].dtype == np.float32
        return
    integers, scale, zero, _ = file.values(file.dequantizer(node, 2))
    assert integers.dtype == zero.dtype == np.int32
    assert not zero.any()
    due = [file.values(file.dequantizer(node, place))[1] for place in (0, 1)]
    np.testing.assert_allclose(scale.ravel(), (due[0] * due[1]).ravel(), rtol=1e-6)


def test_dialect_when_some_operators_are_per_tensor_gives_them_one_scale(tmp_path):
    model = int8_nets.mixed_net(tmp_path / "net.onnx")
    inputs = int8_nets.calibrated(tmp_path / "steps", model, int8_nets.image_feeds())
    file = quantized(inputs, tmp_path / "out", int8_nets.XNNPACK, per_tensor_ops=("ConvTranspose",))
    assert file.values(file.dequantizer(file.nodes["up"], 1))[1].shape == ()
    assert file.values(file.dequantizer(file.nodes["conv"], 1))[1].shape == (8,)


def test_u16_when_the_opset_is_below_21_is_in_the_domain_that_has_it(tmp_path):
    for opset, domain in ((17, "com.microsoft"), (21, "")):
        folder = tmp_path / str(opset)
        model = tiny_models.conv_net(folder / "net.onnx", batch=1, opset=opset)
        inputs = int8_nets.calibrated(folder / "steps", model, int8_nets.image_feeds())
        file = quantized(inputs, folder / "out", int8_nets.QNN_16, **int8_nets.QNN_RULES)
        assert {node.domain for node in file.of_type("QuantizeLinear")} == {domain}


def test_every_op_when_asked_for_quantizes_operators_that_are_else_left(tmp_path):
    nodes = [
        helper.make_node("Tanh", ["x"], ["a"], "tanh"),
        helper.make_node("Neg", ["a"], ["y"], "negate"),
    ]
    inputs, _ = product_net(tmp_path, nodes, [], [1, 4], [1, 4])
    with pytest.raises(StepError, match="nothing in the model could be quantized"):
        quantized(inputs, tmp_path / "some", int8_nets.QNN_16)
    file = quantized(inputs, tmp_path / "every", int8_nets.QNN_16, **int8_nets.QNN_RULES)
    assert len(file.of_type("QuantizeLinear")) == 3
    _, scale, zero, _ = file.values(file.dequantizer(file.nodes["negate"], 0))
    assert (scale, zero) == (1 / 32768, 32768), "what QNN asks of a 16-bit Tanh"


def test_file_when_ranges_are_given_is_the_one_onnxruntime_calibrates_itself(tmp_path):
    model = tiny_models.conv_net(tmp_path / "net.onnx", batch=1)
    inputs = int8_nets.calibrated(tmp_path / "steps", model, int8_nets.image_feeds())
    ours = quantized(inputs, tmp_path / "out", int8_nets.CPU)
    theirs = File(calibrated_by_onnxruntime(inputs, tmp_path / "theirs.onnx"))
    assert ours.constants.keys() == theirs.constants.keys()
    for name, array in theirs.constants.items():
        # Scales are computed in another order: the last bits may differ.
        np.testing.assert_array_max_ulp(*map(as_float, (ours.constants[name], array)), maxulp=2)
    assert sorted(ours.nodes) == sorted(theirs.nodes)


def as_float(array):
    return array if array.dtype.kind == "f" else array.astype(np.float64)


def calibrated_by_onnxruntime(inputs, path):
    from onnxruntime import quantization

    class Reader(quantization.CalibrationDataReader):
        feeds = iter(int8_nets.image_feeds())

        def get_next(self):
            return next(self.feeds, None)

    logging.disable(logging.WARNING)
    quantization.quantize_static(
        onnx.load(inputs["model"] / MODEL),
        str(path),
        Reader(),
        activation_type=quantization.QuantType.QUInt8,
        weight_type=quantization.QuantType.QInt8,
        per_channel=True,
    )
    logging.disable(logging.NOTSET)
    return path


# --- products that onnxruntime's own quantizer stumbles over ----------------------------------


def gemm(bias, **attributes):
    nodes = [helper.make_node("Gemm", ["x", "w", "b"], ["y"], "product", **attributes)]
    return nodes, [("w", (4, 5)), ("b", bias)], [2, 4], [2, 5]


def one(op, weights, x, y, **attributes):
    return [helper.make_node(op, ["x", "w"], ["y"], "product", **attributes)], [weights], x, y


PRODUCTS = {
    "bias of one row": gemm((1, 5)),
    "bias of one number": gemm((1,)),
    "bias without axes": gemm(()),
    "bias of many rows": gemm((2, 5)),
    "alpha and beta": gemm((5,), alpha=0.5, beta=2.0),
    "transposed weights": one("Gemm", ("w", (5, 4)), [2, 4], [2, 5], transB=1),
    "stacked matrices": one("MatMul", ("w", (3, 4, 5)), [3, 2, 4], [3, 2, 5]),
    "weights of one axis": one("MatMul", ("w", (4,)), [2, 4], [2]),
    "one-dimensional": one("Conv", ("w", (5, 4, 3)), [1, 4, 8], [1, 5, 6]),
    "grouped transpose": one(
        "ConvTranspose", ("w", (4, 5, 2, 2)), [1, 4, 3, 3], [1, 10, 4, 4], group=2
    ),
    "weights first": (
        [helper.make_node("MatMul", ["w", "x"], ["y"], "product")],
        [("w", (5, 4))],
        [4, 2],
        [5, 2],
    ),
    "nodes without names that share all": (
        [
            helper.make_node("Conv", ["x", "w", "b"], ["t"]),
            helper.make_node("Conv", ["t", "w", "b"], ["y"]),
        ],
        [("w", (4, 4, 1, 1)), ("b", (4,))],
        [1, 4, 3, 3],
        [1, 4, 3, 3],
    ),
    "weights shared along two axes": (
        [
            helper.make_node("MatMul", ["x", "w"], ["t"], "first"),
            helper.make_node("Gemm", ["t", "w"], ["y"], "second", transB=1),
        ],
        [("w", (4, 4))],
        [2, 4],
        [2, 4],
    ),
}


def product_net(folder, nodes, constants, x, y):
    random = np.random.default_rng(6)
    arrays = [
        (name, np.float32(random.standard_normal(made) if isinstance(made, tuple) else made))
        for name, made in constants
    ]
    model = tiny_models.save(
        folder / "net.onnx",
        nodes,
        [("x", TensorProto.FLOAT, x)],
        [("y", TensorProto.FLOAT, y)],
        arrays,
    )
    feeds = [{"x": random.standard_normal(x).astype(np.float32)} for _ in range(8)]
    return int8_nets.calibrated(folder / "steps", model, feeds, simplify=False), feeds[0]


@pytest.mark.parametrize("name", slow_after(1, ["cpu", "tensorrt", "qnn-16"]))
@pytest.mark.parametrize("product", PRODUCTS)
def test_product_when_quantized_computes_what_the_float_one_does(tmp_path, product, name):
    inputs, feed = product_net(tmp_path, *PRODUCTS[product])
    step = Int8Static(int8_nets.DIALECTS[name], MAX_IR)
    if product == "bias of many rows":
        with pytest.raises(StepError, match="nothing in the model could be quantized"):
            int8_nets.run(step, inputs, tmp_path / "out")
        return
    int8_nets.run(step, inputs, tmp_path / "out")
    reference = optimized_and_plain(inputs["model"] / MODEL, feed)[0]
    for output in optimized_and_plain(tmp_path / "out" / MODEL, feed):
        assert min_sqnr_db(reference, output) > 25


def test_weights_when_they_are_constant_nodes_are_quantized_as_weights(tmp_path):
    random = np.random.default_rng(6)
    weights = random.standard_normal((5, 4, 1, 1)).astype(np.float32)
    constant = helper.make_node("Constant", [], ["w"], value=numpy_helper.from_array(weights))
    nodes = [constant, helper.make_node("Conv", ["x", "w"], ["y"], "conv")]
    inputs, _ = product_net(tmp_path, nodes, [], [1, 4, 3, 3], [1, 5, 3, 3])
    file = quantized(inputs, tmp_path / "out", int8_nets.CPU)
    integers, scale, _, _ = file.values(file.dequantizer(file.nodes["conv"], 1))
    assert (integers.dtype, scale.shape) == (np.int8, (5,))
    assert len(file.of_type("QuantizeLinear")) == 2


def test_constant_when_it_holds_infinity_leaves_its_reader_float(tmp_path):
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], "conv"),
        helper.make_node("Min", ["a", "endless"], ["y"], "bounded"),
    ]
    constants = [("w", (4, 4, 1, 1)), ("endless", np.array([np.inf], np.float32))]
    inputs, _ = product_net(tmp_path, nodes, constants, [1, 4, 3, 3], [1, 4, 3, 3])
    step = Int8Static(int8_nets.QNN_8, MAX_IR, **int8_nets.QNN_RULES)
    notes = int8_nets.run(step, inputs, tmp_path / "out")
    assert list(notes.facts["left_float"]) == ["bounded"]


def test_constants_when_shared_load_where_int8_weights_become_uint8(tmp_path):
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["a"], "first"),
        helper.make_node("Mul", ["a", "m"], ["c"], "scale"),
        helper.make_node("Conv", ["c", "w", "b"], ["d"], "second"),
        helper.make_node("Mul", ["d", "m"], ["y"], "scale2"),
    ]
    constants = [("w", (4, 4, 1, 1)), ("b", (4,)), ("m", (4, 1, 1))]
    inputs, feed = product_net(tmp_path, nodes, constants, [1, 4, 3, 3], [1, 4, 3, 3])
    for name in ("cpu", "tensorrt", "xnnpack"):
        file = quantized(inputs, tmp_path / name, int8_nets.DIALECTS[name])
        # This sets session.x64quantprecision.
        optimized, plain = optimized_and_plain(file.path, feed)
        assert min_sqnr_db(plain, optimized) > 15


def test_int8_when_it_would_divide_by_zero_keeps_the_divisor_float(tmp_path):
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], "conv"),
        helper.make_node("Sigmoid", ["a"], ["b"], "sigmoid"),
        helper.make_node("Reciprocal", ["b"], ["y"], "inverse"),
    ]
    inputs, _ = product_net(tmp_path, nodes, [("w", (1, 1, 1, 1))], [1, 1, 2, 2], [1, 1, 2, 2])
    statistics = read_statistics(inputs["statistics"] / STATISTICS)
    counts = np.array([1, 1])
    statistics["b"] = TensorStatistics(0.0, 1000.0, counts, first=0, width=512.0)
    write_statistics(statistics, inputs["statistics"] / STATISTICS)
    notes = int8_nets.run(Int8Static(int8_nets.CPU, MAX_IR), inputs, tmp_path / "out")
    assert "b" in notes.facts["unpaired"] or "sigmoid" in notes.facts["left_float"]
    session = make_session(tmp_path / "out" / MODEL)
    for feed in SampleSet.read(inputs["samples"]):
        assert np.isfinite(run_session(session, feed)["y"]).all()


# --- no lie passes ----------------------------------------------------------------------------


def lie_activation_type(file):
    node = file.nodes["image_QuantizeLinear"]
    set_constant(file, node.input[2], np.array(3, np.int8))


def lie_weight_type(file):
    integers, zero = file.nodes["linear"].input[1], None
    node = file.made_by[integers]
    values, _, zero, _ = file.values(node)
    set_constant(file, node.input[0], values.astype(np.uint8))
    set_constant(file, node.input[2], zero.astype(np.uint8))


def lie_weight_zero_point(file):
    node = file.dequantizer(file.nodes["conv"], 1)
    set_constant(file, node.input[2], np.full(8, 1, np.int8))


def lie_weight_axis(file):
    node = file.dequantizer(file.nodes["square"], 1)
    next(a for a in node.attribute if a.name == "axis").i = 1


def lie_per_tensor(file):
    node = file.dequantizer(file.nodes["conv"], 1)
    _, scale, zero, _ = file.values(node)
    set_constant(file, node.input[1], scale[0])
    set_constant(file, node.input[2], zero[0])


def lie_bias_scale(file):
    node = file.dequantizer(file.nodes["conv"], 2)
    set_constant(file, node.input[1], file.values(node)[1] * np.float32(1.01))


def lie_bias_zero_point(file):
    node = file.dequantizer(file.nodes["conv"], 2)
    set_constant(file, node.input[2], np.full(8, 1, np.int32))


def lie_float_bias(file):
    node = file.dequantizer(file.nodes["conv"], 2)
    file.nodes["conv"].input[2] = "float_bias"
    bias = numpy_helper.from_array(np.zeros(8, np.float32), "float_bias")
    file.model.graph.initializer.append(bias)
    file.model.graph.node.remove(node)


def lie_dynamic_scale(file):
    scale = file.nodes["image_QuantizeLinear"].input[1]
    tensor = next(t for t in file.model.graph.initializer if t.name == scale)
    tensor.name = "renamed"
    node = helper.make_node("Identity", ["renamed"], [scale], "dynamic")
    file.model.graph.node.insert(0, node)


def lie_negative_scale(file):
    scale = file.nodes["image_QuantizeLinear"].input[1]
    set_constant(file, scale, -file.constants[scale])


def lie_no_zero_point(file):
    del file.nodes["image_QuantizeLinear"].input[2]


def lie_constant_quantized_at_run_time(file):
    node = file.nodes["image_QuantizeLinear"]
    value = numpy_helper.from_array(np.zeros((1, 3, 8, 8), np.float32), "stored")
    file.model.graph.initializer.append(value)
    node.input[0] = "stored"


def lie_nothing_quantized(file):
    for node in file.of_type("QuantizeLinear"):
        file.model.graph.node.remove(node)


def set_constant(file, name, array):
    tensor = next(t for t in file.model.graph.initializer if t.name == name)
    tensor.CopyFrom(numpy_helper.from_array(np.asarray(array), name))


LIES = {
    lie_activation_type: "image_QuantizeLinear.*zero point is int8 3",
    lie_weight_type: "weights are uint8",
    lie_weight_zero_point: "zero point of its weights is 1",
    lie_weight_axis: "along axis 1, not 0",
    lie_per_tensor: "1 scales, not 8",
    lie_bias_scale: "scale of its bias",
    lie_bias_zero_point: "bias with the zero point int32 1",
    lie_float_bias: "'conv'.*its bias is float",
    lie_dynamic_scale: "no constant",
    lie_negative_scale: "its scale is",
    lie_no_zero_point: "no constant",
    lie_constant_quantized_at_run_time: "it quantizes a constant",
    lie_nothing_quantized: "nothing in the model",
}


@pytest.fixture(scope="module")
def honest(tmp_path_factory):
    """A conv whose weights are square, so that scales fit either axis, and a Gemm."""
    folder = tmp_path_factory.mktemp("honest")
    random = np.random.default_rng(7)
    shapes = [
        ("w1", (8, 3, 1, 1)),
        ("b1", (8,)),
        ("w2", (8, 8, 1, 1)),
        ("w3", (8, 4)),
        ("b3", (4,)),
    ]
    nodes = [
        helper.make_node("Conv", ["image", "w1", "b1"], ["a"], "conv"),
        helper.make_node("Conv", ["a", "w2"], ["b"], "square"),
        helper.make_node("GlobalAveragePool", ["b"], ["c"], "pool"),
        helper.make_node("Flatten", ["c"], ["d"], "flat"),
        helper.make_node("Gemm", ["d", "w3", "b3"], ["y"], "linear"),
    ]
    model = tiny_models.save(
        folder / "net.onnx",
        nodes,
        [("image", TensorProto.FLOAT, [1, 3, 8, 8])],
        [("y", TensorProto.FLOAT, [1, 4])],
        [(name, random.standard_normal(shape).astype(np.float32)) for name, shape in shapes],
    )
    inputs = int8_nets.calibrated(folder / "steps", model, int8_nets.image_feeds(), simplify=False)
    int8_nets.run(Int8Static(int8_nets.CPU, MAX_IR), inputs, folder / "out")
    return folder / "out" / MODEL


@pytest.mark.parametrize("lie", LIES, ids=lambda lie: lie.__name__)
def test_require_dialect_when_the_file_lies_says_so(honest, lie):
    file = File(honest)
    require_dialect(file.model, int8_nets.CPU)
    lie(file)
    with pytest.raises(StepError, match=LIES[lie]):
        require_dialect(file.model, int8_nets.CPU)


@pytest.mark.parametrize(
    ("other", "found"),
    [
        (int8_nets.dialect("uint8", "int8", symmetric=True), "zero point is uint8"),
        (int8_nets.dialect("int8", "int8"), "zero point is uint8"),
        (int8_nets.dialect("uint8", "uint8"), "weights are int8"),
        (int8_nets.dialect("uint8", "int8", per_channel=False), "scales, not 1"),
        (int8_nets.dialect("uint8", "int8", bias="float32"), "bias"),
    ],
)
def test_require_dialect_when_another_was_asked_for_says_what_it_found(honest, other, found):
    with pytest.raises(StepError, match=found):
        require_dialect(File(honest).model, other)
