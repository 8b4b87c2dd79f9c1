"""Our QDQ writer against onnxruntime's quantizer, and what onnxruntime's does not do.

The same: from the same ranges, in the same dialect, the same conversions under the same names; zero
points equal, scales to 1 ulp, constants to 2 ulp of what their integers stand for, which no int8 or
uint8 is that is one step away; outputs equal to 40 dB. Scales of less than a 100,000th of the
largest may differ: weights that are all but zero, which onnxruntime gives more room for their bias
than it needs (also where the bias is float, and where its input has the scale of another tensor).
"""

from __future__ import annotations

import contextlib
import sys

import numpy as np
import onnx
import onnxruntime
import pytest
from edgepack.errors import StepError
from edgepack.metrics.accuracy import min_sqnr_db
from edgepack.model.facts import find_default_opset, read_signature
from edgepack.model.fusion import measure_fusion_coverage
from edgepack.model.reading import read_model, write_model
from edgepack.model.running import make_session, run_session
from edgepack.quantization.qdq.dialect import require_dialect
from edgepack.quantization.qdq.preparation import prepare_model
from edgepack.quantization.qdq.writer import QdqWriter, find_observed_tensors
from edgepack.quantization.ranges.collecting import collect
from edgepack.steps.graph.opset import AtLeastOpset
from edgepack.steps.graph.simplified import simplify
from onnx import TensorProto, helper, numpy_helper

from tests.support.nets import int8_nets, tiny_models
from tests.support.nets.onnxruntime_writer import (
    extreme_ranges,
    plain_session,
    written_by_onnxruntime,
)

ULP = 1.3e-7
TINY = 1e-5
SAME_DB = 40.0
CONVERSIONS = ("QuantizeLinear", "DequantizeLinear")


def random(*shape, seed=4):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def saved(folder, nodes, constants=(), x=(1, 4, 6, 6), outputs=("y",), **options):
    """A model of float32 whose outputs have no shape."""
    values = [(name, TensorProto.FLOAT, None) for name in outputs]
    path = folder / "net.onnx"
    tiny_models.save(path, nodes, [("x", TensorProto.FLOAT, x)], values, constants, **options)
    return onnx.load(path)


def x_feeds(*shape, count=4):
    return [{"x": random(*shape, seed=seed)} for seed in range(count)]


def written(model, dialect, feeds, *, excluded=(), ranges=None, **settings):
    """The QDQ model, proven to be in the dialect, and the writer."""
    model = prepare_model(model)
    writer = QdqWriter(model, ranges or extreme_ranges(model, feeds), dialect, **settings)
    out = writer.write({*writer.explain_unusable(), *excluded})
    require_dialect(out, dialect, settings.get("per_tensor_ops", ()), settings.get("wide", ()))
    return out, writer


def outputs(model, feed, *, optimized=False):
    return run_whole(plain_session(model, optimized=optimized), feed)


def run_whole(session, feed):
    names = [value.name for value in session.get_outputs()]
    return dict(zip(names, session.run(names, feed), strict=True))


def dequantized_name(tensor, model):
    """What a tensor's dequantized value is called, if the tensor has a pair; see QdqWriter."""
    inputs = {value.name for value in model.graph.input}
    if tensor not in inputs and any(value.name == tensor for value in model.graph.output):
        return tensor
    return f"{tensor}_DequantizeLinear_Output"


def floats_only(found):
    return {name: array for name, array in found.items() if array.dtype.kind == "f"}


class File:
    """A QDQ model as numpy arrays, and its nodes by name and by output."""

    def __init__(self, model):
        self.model = model
        self.constants = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
        self.nodes = {node.name: node for node in model.graph.node}
        self.made_by = {name: n for n in model.graph.node for name in n.output}

    def conversions(self):
        """By name: scale, zero point and, of constants, integers."""
        return {
            node.name: tuple(self.constants.get(name) for name in (*node.input[1:], node.input[0]))
            for node in self.model.graph.node
            if node.op_type in CONVERSIONS
        }

    def before(self, node, place):
        """The DequantizeLinear before an input of a node, or None."""
        made_by = self.made_by.get(self.nodes[node].input[place])
        return made_by if made_by is not None and made_by.op_type == CONVERSIONS[1] else None

    def floats(self, name):
        """What the integers of a constant stand for."""
        node = self.nodes[name]
        integers, scale, zero = (np.float64(self.constants[value]) for value in node.input)
        axis = next((a.i for a in node.attribute if a.name == "axis"), 0)
        shape = [-1 if k == axis else 1 for k in range(integers.ndim)] if scale.size > 1 else ()
        return (integers - zero.reshape(shape)) * scale.reshape(shape)

    def paired(self):
        """The names of the tensors before QuantizeLinear nodes."""
        return {n.input[0] for n in self.model.graph.node if n.op_type == CONVERSIONS[0]}


def require_same(ours, theirs, feeds):
    ours_file, theirs_file = File(ours), File(theirs)
    mine, other = ours_file.conversions(), theirs_file.conversions()
    assert mine.keys() == other.keys()
    for name, (scale, zero, integers) in other.items():
        found, middle, whole = mine[name]
        near = {"rtol": ULP, "atol": TINY * scale.max(initial=0), "err_msg": name}
        np.testing.assert_allclose(found.ravel(), scale.ravel(), **near)
        np.testing.assert_array_equal(middle.ravel(), zero.ravel(), name)
        assert (whole is None) == (integers is None)
        if integers is not None:
            values, expected = (file.floats(name) for file in (ours_file, theirs_file))
            near = {"rtol": 2 * ULP, "atol": TINY * np.abs(expected).max(initial=0)}
            np.testing.assert_allclose(values, expected, err_msg=name, **near)
    for optimized in (False, True):
        sessions = [plain_session(model, optimized=optimized) for model in (theirs, ours)]
        for feed in feeds[:2]:
            expected, found = (floats_only(run_whole(session, feed)) for session in sessions)
            if expected:
                assert min_sqnr_db(expected, found) > SAME_DB


def require_same_as_onnxruntime(model, name, feeds):
    dialect = int8_nets.DIALECTS[name]
    ours, writer = written(model, dialect, feeds, **int8_nets.rules_of(name))
    theirs = written_by_onnxruntime(
        writer.model,
        writer.ranges,
        dialect,
        every_op=writer.every_op,
        excluded=set(writer.explain_unusable()),
    )
    require_same(ours, theirs, feeds)
    return ours, theirs


# --- the same as onnxruntime ------------------------------------------------------------------


@pytest.mark.parametrize("name", int8_nets.DIALECTS)
@pytest.mark.parametrize("net", ["conv_net", "mixed_net", "residual_net"])
def test_net_when_written_is_what_onnxruntime_writes(tmp_path, net, name):
    path = tmp_path / "net.onnx"
    if net == "conv_net":
        tiny_models.conv_net(path, batch=1, opset=21 if name == "qnn-16" else 17)
    else:
        getattr(int8_nets, net)(path)
    require_same_as_onnxruntime(onnx.load(path), name, int8_nets.image_feeds())


def ints(*values):
    return np.array(values, np.int64)


NORM = [("s", random(4) + 2), ("b", random(4))]
OPERATORS = {
    "Add": ("p m", {}, []),
    "ArgMax": ("p", {"axis": 1}, []),
    "AveragePool": ("p", {"kernel_shape": [2, 2]}, []),
    "BatchNormalization": (
        "p s b mean var",
        {},
        [*NORM, ("mean", random(4)), ("var", random(4) ** 2 + 1)],
    ),
    "Clip": ("p low high", {}, [("low", np.float32(-0.5)), ("high", np.float32(0.5))]),
    "Concat": ("p x q", {"axis": 1}, []),
    "Conv": ("p w b", {}, [("w", random(5, 4, 3, 3)), ("b", random(5))]),
    "ConvTranspose": ("p w b", {}, [("w", random(4, 5, 2, 2)), ("b", random(5))]),
    "CumSum": ("p axis", {}, [("axis", np.array(1, np.int64))]),
    "Flatten": ("p", {}, []),
    "Gather": ("p k", {"axis": 1}, [("k", ints(0, 2))]),
    "GatherElements": ("p k", {"axis": 1}, [("k", np.zeros((1, 2, 6, 6), np.int64))]),
    "GlobalAveragePool": ("p", {}, []),
    "InstanceNormalization": ("p s b", {}, NORM),
    "LayerNormalization": ("p s6 b6", {}, [("s6", random(6) + 2), ("b6", random(6))]),
    "LeakyRelu": ("p", {"alpha": 0.1}, []),
    "MatMul": ("p w", {}, [("w", random(6, 5))]),
    "MaxPool": ("p", {"kernel_shape": [2, 2]}, []),
    "Mul": ("p x", {}, []),
    "Pad": ("p around", {}, [("around", ints(0, 0, 1, 1, 0, 0, 1, 1))]),
    "Relu": ("p", {}, []),
    "Reshape": ("p shape", {}, [("shape", ints(1, -1))]),
    "Resize": ("p  scales", {"mode": "nearest"}, [("scales", np.float32([1, 1, 2, 2]))]),
    "Sigmoid": ("p", {}, []),
    "Slice": ("p from to", {}, [("from", ints(0, 1)), ("to", ints(1, 3))]),
    "Softmax": ("p", {}, []),
    "Split": ("p", {"axis": 1, "num_outputs": 2}, []),
    "Squeeze": ("p zero", {}, [("zero", ints(0))]),
    "TopK": ("p two", {"axis": 1}, [("two", ints(2))]),
    "Transpose": ("p", {"perm": [0, 2, 3, 1]}, []),
    "Unsqueeze": ("p zero", {}, [("zero", ints(0))]),
    "Where": ("mask p q", {}, [("mask", random(4, 1, 1) > 0)]),
    "Tanh": ("p", {}, []),
}
FURTHER = {
    "Conv without bias": ("Conv", "p w ", {}, [("w", random(5, 4, 3, 3))]),
    "Gather of a constant": ("Gather", "table rows", {}, [("table", random(9, 3))]),
    "Pad with a number": (
        "Pad",
        "p around value",
        {},
        [("around", ints(0, 0, 1, 1, 0, 0, 1, 1)), ("value", np.float32(3))],
    ),
    "Pad with what is there": (
        "Pad",
        "p around",
        {"mode": "reflect"},
        [("around", ints(0, 0, 1, 1, 0, 0, 1, 1))],
    ),
    "Resize linear": ("Resize", "p  scales", {"mode": "linear"}, OPERATORS["Resize"][2]),
    "LayerNormalization without bias": ("LayerNormalization", "p s6", {}, [("s6", random(6))]),
    "MatMul of activations": ("MatMul", "p q", {}, []),
    "MatMul from the left": ("MatMul", "w p", {}, [("w", random(5, 6))]),
    "weights that are computed": ("Conv", "p kernel", {}, []),
    "tiny weights": (
        "Conv",
        "p w b",
        {},
        [("w", random(5, 4, 3, 3) * np.float32(1e-13)), ("b", random(5))],
    ),
}
CASES = {**{op: (op, *case) for op, case in OPERATORS.items()}, **FURTHER}


def operator_net(folder, case):
    """The operator between two that are quantized."""
    op, inputs, attributes, constants = CASES[case]
    results = ["o", "o2"] if op in ("Split", "TopK") else ["o"]
    nodes = [
        helper.make_node("Mul", ["x", "m"], ["p"], "before"),
        helper.make_node("Add", ["p", "m"], ["q"], "beside"),
        helper.make_node("Mul", ["p", "m5"], ["kernel"], "kernels"),
        helper.make_node("ArgMax", ["x"], ["rows"], "rows", axis=1),
        helper.make_node(op, inputs.split(" "), results, "operator", **attributes),
        helper.make_node("Identity", ["o"], ["y"], "behind"),
    ]
    if op != "ArgMax":
        nodes[-1] = helper.make_node("Mul", ["o", "o"], ["y"], "behind")
    used = {name for node in nodes for name in node.input}
    shared = [("m", random(1, 4, 1, 1)), ("m5", random(5, 1, 1, 1))]
    constants = [(name, array) for name, array in [*shared, *constants] if name in used]
    model = saved(folder, nodes, constants, opset=18)
    if op == "ArgMax":
        model.graph.output[0].type.tensor_type.elem_type = TensorProto.INT64
    return model


@pytest.mark.parametrize("case", CASES)
def test_operator_when_written_is_what_onnxruntime_writes(tmp_path, case):
    for name in ("cpu", "tensorrt", "xnnpack", "qnn-8", "qnn-16"):
        if (case, name) == ("tiny weights", "tensorrt"):
            continue  # onnxruntime makes room there for an int32 bias that is float
        model = operator_net(tmp_path / name, case)
        ours, _ = require_same_as_onnxruntime(model, name, x_feeds(1, 4, 6, 6))
        assert len(File(ours).paired()) >= 4
        if CASES[case][0] not in ("ArgMax", "Tanh", "Where"):
            assert {"o", "y_QuantizeLinear_Input"} <= File(ours).paired()


def test_embeddings_when_normalized_in_one_operator_are_what_onnxruntime_writes(tmp_path):
    names = ["words", "places", "kinds", "gamma", "beta"]
    constants = [(name, random(9, 8)) for name in names[:3]]
    constants += [(name, random(8) + 1) for name in names[3:]]
    model = saved(
        tmp_path,
        [
            helper.make_node("Cast", ["x"], ["ids"], "cast", to=TensorProto.INT32),
            helper.make_node(
                "EmbedLayerNormalization",
                ["ids", "ids", *names],
                ["e", "mask"],
                "embed",
                domain="com.microsoft",
            ),
            helper.make_node("MatMul", ["e", "w"], ["y"], "product"),
        ],
        [*constants, ("w", random(8, 5))],
        x=(1, 4),
    )
    model.opset_import.add(domain="com.microsoft", version=1)
    model.graph.value_info.extend(
        [
            helper.make_tensor_value_info("e", TensorProto.FLOAT, (1, 4, 8)),
            helper.make_tensor_value_info("mask", TensorProto.INT32, (1,)),
        ]
    )
    feeds = [{"x": np.abs(random(1, 4))}]
    ours, _ = require_same_as_onnxruntime(model, "cpu", feeds)
    assert {"e_QuantizeLinear", "words_DequantizeLinear"} <= File(ours).nodes.keys()


REAL = {
    "mobilenet": ("imagenet/mobilenet_v1_0.25_128_fp32.onnx", {}),
    "squeezenet": ("imagenet/squeezenet1.1_fp32_opset13_dynbatch.onnx", {}),
    "resnet20": ("small/cifar10_resnet20_fp32_bn.onnx", {}),
    "dscnn": ("small/mlperf_tiny_kws_dscnn_fp32.onnx", {}),
    "nanodet": ("detection/nanodet_m_320.onnx", {}),
    "yunet": ("detection/yunet_n_dynamic.onnx", {"height": 64, "width": 96}),
    "bert": ("text/bert_toy_optimized.onnx", {"max_seq_len_in_batch": 12}),
    "gtcrn": ("audio/gtcrn/gtcrn_simple.onnx", {}),
    "silero": ("audio/silero_vad/silero_vad_16k_op15.onnx", {"sequence": 512}),
}


@pytest.fixture(scope="module")
def real(shared_data, tmp_path_factory):
    """Give a real network of opset 13 or higher, simplified, and two random samples."""
    found = {}

    def load(name):
        if name not in found:
            folder = tmp_path_factory.mktemp(name)
            file, dims = REAL[name]
            model = onnx.load(shared_data / file)
            if find_default_opset(model) < 13:
                onnx.save(model, folder / "model.onnx")
                AtLeastOpset(13).run({"model": folder}, out := tmp_path_factory.mktemp("out"))
                model = onnx.load(out / "model.onnx")
            with contextlib.suppress(StepError):
                onnx.save(model, folder / "source.onnx")
                simplify(folder / "source.onnx", folder / "simplified.onnx")
                model = onnx.load(folder / "simplified.onnx")
            model.ir_version = min(model.ir_version, 10)
            found[name] = model.SerializeToString(), sized(model, dims)
        data, feeds = found[name]
        return onnx.load_from_string(data), feeds

    return load


def sized(model, dims):
    """Two random samples; symbolic dimensions are as given, or 1."""
    feeds = []
    for seed in range(2):
        feed = {}
        for spec in read_signature(model)[0]:
            shape = [size if isinstance(size, int) else dims.get(size, 1) for size in spec.shape]
            whole = np.random.default_rng(seed).integers(0, 2, shape)
            feed[spec.name] = whole.astype(spec.dtype)
            if spec.dtype == "float32":
                feed[spec.name] = random(*shape, seed=seed)
        feeds.append(feed)
    return feeds


SLOW = pytest.mark.slow(reason="takes 2 to 20 s")
PAIRS = [
    ("mobilenet", "cpu"),
    ("mobilenet", "tensorrt"),
    ("mobilenet", "qnn-16"),
    ("squeezenet", "cpu"),
    ("resnet20", "xnnpack"),
    ("dscnn", "qnn-8"),
    ("yunet", "tensorrt"),
    ("silero", "cpu"),
    *(pytest.param(net, "cpu", marks=SLOW) for net in ("nanodet", "gtcrn")),
    pytest.param("bert", "xnnpack", marks=SLOW),
]


@pytest.mark.parametrize(("net", "name"), PAIRS)
def test_real_network_when_written_is_what_onnxruntime_writes(real, tmp_path, net, name):
    model, feeds = real(net)
    ours, theirs = require_same_as_onnxruntime(model, name, feeds)
    if name == "cpu":
        onnx.save(ours, tmp_path / "ours.onnx")
        onnx.save(theirs, tmp_path / "theirs.onnx")
        for cpu in ("x86-64", "aarch64"):
            mine, other = (
                measure_fusion_coverage(tmp_path / file, cpu)
                for file in ("ours.onnx", "theirs.onnx")
            )
            assert mine.make_facts() == other.make_facts()


# --- time and memory --------------------------------------------------------------------------


@pytest.mark.in_turns
@pytest.mark.slow(reason="takes 6 GB")
def test_model_when_its_weights_are_larger_than_2_gib_is_calibrated_and_written(tmp_path):
    rows, columns = 140_000, 4096
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["g"], "gather"),
        helper.make_node("MatMul", ["g", "w"], ["y"], "product"),
    ]
    path = tiny_models.save(
        tmp_path / "net.onnx",
        nodes,
        [("ids", TensorProto.INT64, [2])],
        [("y", TensorProto.FLOAT, [2, 3])],
        [("w", random(columns, 3))],
    )
    model = onnx.load(path)
    table = model.graph.initializer.add(
        name="table", data_type=1, dims=[rows, columns], data_location=1
    )
    for key, value in {"location": "table.bin", "length": 4 * rows * columns}.items():
        table.external_data.add(key=key, value=str(value))
    onnx.save(model, path)
    first = random(columns)
    with (tmp_path / "table.bin").open("wb") as file:
        file.write(first.tobytes())
        # The rest is a hole: it reads as 0 and takes no room on the disk.
        file.truncate(4 * rows * columns)
    feeds = [{"ids": np.array([0, rows - 1])}]
    statistics = collect(
        path, feeds, find_observed_tensors(onnx.load(path, load_external_data=False))
    )
    model = prepare_model(read_model(path))
    writer = QdqWriter(model, {n: (s.low, s.high) for n, s in statistics.items()}, int8_nets.CPU)
    write_model(writer.write(writer.explain_unusable()), tmp_path / "int8.onnx")
    assert (tmp_path / "int8.onnx").stat().st_size < 1.01 * rows * columns
    found = run_session(make_session(tmp_path / "int8.onnx"), feeds[0])["y"]
    assert min_sqnr_db({"y": first @ random(columns, 3)}, {"y": found[0]}) > 25
    assert not found[1].any()


def chain(length):
    """Conv, Relu and Add, ``length`` times."""
    weights = [("w", random(2, 2, 1, 1)), ("b", random(2))]
    nodes, constants, last = [], [], "x"
    for k in range(length):
        nodes += [
            helper.make_node("Conv", [last, f"w{k}", f"b{k}"], [f"c{k}"], f"conv{k}"),
            helper.make_node("Relu", [f"c{k}"], [f"r{k}"], f"relu{k}"),
            helper.make_node("Add", [f"r{k}", last], [f"a{k}"], f"add{k}"),
        ]
        constants += [(f"{name}{k}", array) for name, array in weights]
        last = f"a{k}"
    return nodes, constants, last


def calls(length, tmp_path):
    """How many Python functions and C functions are called to prepare and write a chain."""
    nodes, constants, last = chain(length)
    model = saved(tmp_path / str(length), nodes, constants, x=(1, 2, 3, 3), outputs=(last,))
    ranges = {name: (-1.0, 1.0) for node in nodes for name in node.output}
    count = 0

    def counting(_frame, event, _argument):
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(counting)
    try:
        writer = QdqWriter(prepare_model(model), {**ranges, "x": (-1.0, 1.0)}, int8_nets.CPU)
        out = writer.write(writer.explain_unusable())
        require_dialect(out, int8_nets.CPU)
    finally:
        sys.setprofile(None)
    return count


def test_work_when_a_graph_is_four_times_as_long_is_four_times_as_much(tmp_path):
    calls(5, tmp_path)
    assert 3 < calls(200, tmp_path) / calls(50, tmp_path) < 4.2


def test_model_when_prepared_and_written_is_not_copied_or_changed(tmp_path):
    nodes, constants, last = chain(3)
    model = saved(tmp_path, nodes, constants, x=(1, 2, 3, 3), outputs=(last,))
    assert prepare_model(model) is model
    before = model.SerializeToString(deterministic=True)
    out, _ = written(model, int8_nets.CPU, x_feeds(1, 2, 3, 3))
    assert model.SerializeToString(deterministic=True) == before
    again, _ = written(model, int8_nets.CPU, x_feeds(1, 2, 3, 3))
    assert again.SerializeToString(deterministic=True) == out.SerializeToString(deterministic=True)


# --- where onnxruntime's quantizer is wrong, or fails -----------------------------------------


def test_clip_when_its_bounds_lie_inside_the_range_stays(tmp_path):
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], "conv"),
        helper.make_node("Clip", ["c", "low", "high"], ["y"], "clip"),
    ]
    bounds = [("low", np.float32(1)), ("high", np.float32(2))]
    model = saved(tmp_path, nodes, [("w", random(4, 4, 1, 1)), *bounds])
    out, _ = written(model, int8_nets.CPU, x_feeds(1, 4, 6, 6))
    (y,) = outputs(out, x_feeds(1, 4, 6, 6)[0]).values()
    assert "clip" in File(out).nodes
    assert (y.min(), y.max()) == (pytest.approx(1, abs=0.01), pytest.approx(2, abs=0.01))


def test_output_when_a_relu_reads_it_is_not_cut_off(tmp_path):
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], "conv"),
        helper.make_node("Relu", ["c"], ["y"], "relu"),
    ]
    for name in ("cpu", "tensorrt"):
        model = saved(tmp_path / name, nodes, [("w", random(4, 4, 1, 1))], outputs=("c", "y"))
        feeds = x_feeds(1, 4, 6, 6)
        expected = outputs(model, feeds[0])
        out, _ = written(model, int8_nets.DIALECTS[name], feeds)
        assert min_sqnr_db(expected, outputs(out, feeds[0])) > 30


def test_names_when_the_model_uses_ours_already_stay_the_models(tmp_path):
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], "conv"),
        helper.make_node("Identity", ["c_scale"], ["c_zero_point"], "same"),
        helper.make_node("Mul", ["c", "c_scale"], ["d"], "scale"),
        helper.make_node("Pow", ["d", "c_zero_point"], ["y"], "power"),
    ]
    constants = [("w", random(4, 4, 1, 1)), ("c_scale", np.full((4, 1, 1), 2, np.float32))]
    model = saved(tmp_path, nodes, constants)
    feeds = x_feeds(1, 4, 6, 6)
    expected = outputs(model, feeds[0])
    out, _ = written(model, int8_nets.CPU, feeds)
    assert min_sqnr_db(expected, outputs(out, feeds[0])) > 30


# --- bodies, shared constants, odd models -----------------------------------------------------


def body(nodes, output):
    value = helper.make_tensor_value_info(output, TensorProto.FLOAT, None)
    return helper.make_graph(nodes, output, [], [value])


def branching(folder):
    """An If whose bodies read the main graph's weights and what a Conv that is followed by a Relu
    makes."""
    then = body([helper.make_node("Conv", ["c", "w", "b"], ["t"], "conv")], "t")
    other = body([helper.make_node("Neg", ["r"], ["e"], "negate")], "e")
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], "conv"),
        helper.make_node("Relu", ["c"], ["r"], "relu"),
        helper.make_node("ReduceMax", ["x"], ["top"], "top", keepdims=0),
        helper.make_node("Greater", ["top", "limit"], ["flag"], "flag"),
        helper.make_node("If", ["flag"], ["i"], "if", then_branch=then, else_branch=other),
        helper.make_node("Conv", ["r", "w", "b"], ["d"], "last"),
        helper.make_node("Add", ["i", "d"], ["y"], "sum"),
    ]
    constants = [("w", random(4, 4, 1, 1)), ("b", random(4)), ("limit", np.float32(2.5))]
    return saved(folder, nodes, constants)


@pytest.mark.parametrize("name", ["cpu", "tensorrt", "qnn-8"])
def test_bodies_when_they_share_constants_stay_float_and_right(tmp_path, name):
    model = branching(tmp_path)
    feeds = [{"x": random(1, 4, 6, 6)}, {"x": np.minimum(random(1, 4, 6, 6), 2)}]
    expected = [outputs(model, feed) for feed in feeds]
    dialect = int8_nets.DIALECTS[name]
    out, writer = written(model, dialect, feeds, **int8_nets.rules_of(name))
    assert {"conv", "last", "sum"} <= writer.list_candidates()
    file = File(out)
    assert "relu" in file.nodes, "a body reads what it reads"
    assert file.constants["w"].dtype == np.float32
    assert file.constants["w_quantized"].dtype == dialect.weights
    inner = next(a.g.node[0] for a in file.nodes["if"].attribute if a.name == "then_branch")
    assert list(inner.input) == ["c", "w", "b"]
    for feed, before in zip(feeds, expected, strict=True):
        for optimized in (False, True):
            assert min_sqnr_db(before, outputs(out, feed, optimized=optimized)) > 25


def test_loop_when_its_body_reads_quantized_tensors_computes_the_same(tmp_path):
    value = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in ("s", "s2")]
    counters = [
        helper.make_tensor_value_info("k", TensorProto.INT64, []),
        helper.make_tensor_value_info("go", TensorProto.BOOL, []),
        helper.make_tensor_value_info("on", TensorProto.BOOL, []),
    ]
    step = [
        helper.make_node("Identity", ["go"], ["on"]),
        helper.make_node("MatMul", ["s", "w"], ["m"], "product"),
        helper.make_node("Add", ["m", "c"], ["s2"]),
    ]
    loop = helper.make_graph(step, "step", [*counters[:2], value[0]], [counters[2], value[1]])
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["c"], "first"),
        helper.make_node("Loop", ["three", "", "c"], ["l"], "loop", body=loop),
        helper.make_node("MatMul", ["l", "w"], ["y"], "last"),
    ]
    constants = [("w", random(4, 4) / 2), ("three", np.array(3, np.int64))]
    model = saved(tmp_path, nodes, constants, x=(2, 4))
    feeds = x_feeds(2, 4)
    expected = outputs(model, feeds[0])
    out, _ = written(model, int8_nets.CPU, feeds)
    assert File(out).constants["w"].dtype == np.float32
    assert min_sqnr_db(expected, outputs(out, feeds[0])) > 25


def test_constant_when_several_read_it_is_integer_for_each_in_its_own_way(tmp_path):
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"], "columns"),
        helper.make_node("Gemm", ["a", "w"], ["b"], "rows", transB=1),
        helper.make_node("Add", ["b", "w"], ["c"], "sum"),
        helper.make_node("Sin", ["w"], ["s"], "float"),
        helper.make_node("Mul", ["c", "s"], ["y"], "scale"),
    ]
    weights = random(4, 4) * np.float32([1, 2, 4, 8])
    model = saved(tmp_path, nodes, [("w", weights)], x=(4, 4), outputs=("y", "w"))
    feeds = x_feeds(4, 4)
    expected = outputs(model, feeds[0])
    out, _ = written(model, int8_nets.CPU, feeds)
    file = File(out)
    for node, axis in (("columns", 1), ("rows", 0)):
        scale = file.constants[file.before(node, 1).input[1]]
        largest = np.abs(weights).max(axis=1 - axis)
        np.testing.assert_allclose(scale, largest / 127, rtol=ULP)
    assert file.constants[file.before("sum", 1).input[0]].dtype == np.uint8
    assert file.nodes["float"].input[0] == "w"
    found = outputs(out, feeds[0])
    np.testing.assert_array_equal(found["w"], weights)
    assert min_sqnr_db(expected, found) > 25


@pytest.mark.parametrize("name", ["cpu", "xnnpack", "qnn-8"])
def test_nodes_when_excluded_compute_with_float_constants(tmp_path, name):
    model = onnx.load(int8_nets.mixed_net(tmp_path / "net.onnx"))
    out, _ = written(
        model, int8_nets.DIALECTS[name], int8_nets.image_feeds(), excluded=["pointwise2", "relu"]
    )
    file = File(out)
    assert [file.constants[n].dtype for n in file.nodes["pointwise2"].input[1:]] == ["f4", "f4"]
    assert file.before("pointwise", 1) is not None
    assert "relu" in file.nodes


def untyped_net(folder):
    """``gelu`` is an operator whose output's type onnx cannot infer."""
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], "first"),
        helper.make_node("Gelu", ["c"], ["g"], "gelu", domain="com.microsoft"),
        helper.make_node("Conv", ["g", "w", "b"], ["y"], "second"),
    ]
    model = saved(folder, nodes, [("w", random(4, 4, 1, 1)), ("b", random(4))])
    model.opset_import.add(domain="com.microsoft", version=1)
    return model


def test_tensor_when_its_type_is_unknown_is_float_if_it_has_a_range(tmp_path):
    model, feeds = untyped_net(tmp_path), x_feeds(1, 4, 6, 6)
    assert find_observed_tensors(model) == {"x", "c", "g", "y"}
    out, writer = written(model, int8_nets.CPU, feeds)
    assert not writer.explain_unusable()
    assert {"x", "c", "g", "y_QuantizeLinear_Input"} == File(out).paired()
    ranges = {name: ends for name, ends in writer.ranges.items() if name != "g"}
    out, writer = written(model, int8_nets.CPU, feeds, ranges=ranges)
    assert writer.explain_unusable() == {
        "second": "the tensor 'g' has no known type or no finite range"
    }
    with pytest.raises(StepError, match="'g' is to be quantized and has no range"):
        QdqWriter(with_type(model, "g"), ranges, int8_nets.CPU).write(())


def with_type(model, name):
    model.graph.value_info.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, None))
    return model


def test_opset_when_it_has_no_scales_per_channel_is_refused(tmp_path):
    model = prepare_model(onnx.load(tiny_models.conv_net(tmp_path / "net.onnx", opset=11)))
    with pytest.raises(StepError, match="opset is 11"):
        QdqWriter(model, {}, int8_nets.CPU).write(())


# --- names, and what is observed --------------------------------------------------------------


@pytest.mark.parametrize("name", int8_nets.DIALECTS)
def test_tensors_when_looked_up_by_name_hold_what_the_float_ones_do(tmp_path, name):
    model = onnx.load(int8_nets.mixed_net(tmp_path / "net.onnx"))
    feeds = int8_nets.image_feeds()
    out, _ = written(model, int8_nets.DIALECTS[name], feeds, **int8_nets.rules_of(name))
    there = {value for node in out.graph.node for value in node.output}
    compared = 0
    floats, integers = everything(model, feeds[0]), everything(out, feeds[0])
    for tensor, exact in floats.items():
        found = dequantized_name(tensor, out)
        if found in there and exact.dtype == np.float32:
            compared += 1
            # What a Relu or Clip reads is cut off at the range of what that writes.
            ends = integers[found].min(), integers[found].max()
            array = np.clip(exact, *ends) if tensor in ("c1", "c2") else exact
            assert min_sqnr_db({"t": array}, {"t": integers[found]}) > 10, tensor
    assert compared == len(File(out).paired()) > 8


def everything(model, feed):
    whole = onnx.ModelProto()
    whole.CopyFrom(model)
    known = {value.name for value in whole.graph.output}
    for node in model.graph.node:
        values = (onnx.ValueInfoProto(name=name) for name in node.output if name not in known)
        whole.graph.output.extend(values)
    return {**outputs(whole, feed), **feed}


@pytest.mark.parametrize("every_op", [False, True])
def test_pairs_when_written_in_any_dialect_are_of_observed_tensors(tmp_path, every_op):
    path = int8_nets.mixed_net(tmp_path / "net.onnx")
    observed = find_observed_tensors(onnx.load(path), every_op=every_op)
    constants = {tensor.name for tensor in onnx.load(path).graph.initializer}
    assert not observed & constants
    for dialect in int8_nets.DIALECTS.values():
        for excluded in ((), ("relu", "clip", "down")):
            out, _ = written(
                onnx.load(path),
                dialect,
                int8_nets.image_feeds(1),
                every_op=every_op,
                excluded=excluded,
            )
            paired = {name.removesuffix("_QuantizeLinear_Input") for name in File(out).paired()}
            assert paired <= observed
    assert ("h" in observed) is True
    assert observed - {"h"} >= {"image", "c1", "r1", "scores", "probabilities"}


# --- scales that are given --------------------------------------------------------------------


@pytest.mark.parametrize("name", ["cpu", "tensorrt", "qnn-8", "u8u8-per-channel"])
def test_weights_when_their_scales_are_given_are_exact(tmp_path, name):
    dialect = int8_nets.DIALECTS[name]
    steps = np.random.default_rng(5).integers(-90, 91, (4, 4, 1, 1))
    scale = np.float32([0.01, 0.02, 0.005, 0.1]) if dialect.per_channel else np.float32(0.01)
    weights = np.float32(steps * scale.reshape(-1, 1, 1, 1))
    nodes = [helper.make_node("Conv", ["x", "w", "b"], ["y"], "conv")]
    model = saved(tmp_path, nodes, [("w", weights), ("b", random(4))])
    out, _ = written(model, dialect, x_feeds(1, 4, 6, 6), weight_scales={"w": scale})
    file = File(out)
    integers, found, zero = (file.constants[n] for n in file.before("conv", 1).input)
    np.testing.assert_array_equal(found, scale)
    np.testing.assert_array_equal(integers.astype(int) - zero.ravel()[0], steps)
    session = plain_session(file.model, optimized=False)
    assert session.get_outputs()


def test_weights_when_the_given_scales_do_not_fit_are_refused(tmp_path):
    nodes = [helper.make_node("Conv", ["x", "w"], ["y"], "conv")]
    model = saved(tmp_path, nodes, [("w", random(4, 4, 1, 1))])
    for scales in (np.ones(3, np.float32), np.zeros(4, np.float32), np.float32(1)):
        with pytest.raises(StepError, match="the weight 'w' was given"):
            written(model, int8_nets.CPU, x_feeds(1, 4, 6, 6), weight_scales={"w": scales})


def test_bias_when_a_given_scale_leaves_no_room_for_it_is_kept(tmp_path):
    weights = np.float32(np.sign(random(4, 4, 1, 1)) * np.float32(1e-14))
    nodes = [helper.make_node("Conv", ["x", "w", "b"], ["y"], "conv")]
    model = saved(tmp_path, nodes, [("w", weights), ("b", np.float32([1, 2, 3, 4]))])
    scales = {"w": np.full(4, 1e-14, np.float32)}
    feeds = x_feeds(1, 4, 6, 6)
    out, _ = written(model, int8_nets.CPU, feeds, weight_scales=scales)
    assert min_sqnr_db(outputs(model, feeds[0]), outputs(out, feeds[0])) > 40


# --- tensors without a pair, and with 16 bits -------------------------------------------------


def head(folder, opset=17):
    """A Conv, then channels scaled by a constant, moved, and combined."""
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], "conv"),
        helper.make_node("Relu", ["c"], ["r"], "relu"),
        helper.make_node("Mul", ["r", "strides"], ["s"], "scale"),
        helper.make_node("Reshape", ["s", "shape"], ["m"], "move"),
        helper.make_node("Concat", ["m", "m"], ["k"], "concat", axis=1),
        helper.make_node("MatMul", ["k", "v"], ["y"], "last"),
    ]
    strides = np.float32([1, 3, 100, 1000]).reshape(4, 1, 1)
    constants = [("w", random(4, 4, 1, 1)), ("b", random(4)), ("strides", strides)]
    constants += [("shape", ints(1, 4, 36)), ("v", random(36, 3))]
    return saved(folder, nodes, constants, opset=opset)


@pytest.mark.parametrize("name", ["cpu", "tensorrt", "xnnpack", "qnn-8"])
def test_tensors_when_unpaired_are_float_and_so_is_what_is_combined_with_them(tmp_path, name):
    model, feeds = head(tmp_path), x_feeds(1, 4, 6, 6)
    expected = everything(model, feeds[0])
    dialect = int8_nets.DIALECTS[name]
    out, _ = written(model, dialect, feeds, unpaired=frozenset(("s", "k")))
    file = File(out)
    assert not {"s", "m", "k"} & (paired := file.paired())
    assert {"x", "r", "y_QuantizeLinear_Input"} <= paired
    assert file.nodes["scale"].input[1] == "strides"
    assert file.nodes["last"].input[1] == "v"
    assert file.before("conv", 1) is not None
    found = everything(out, feeds[0])
    channels = {"s": expected["s"][:, :1]}, {"s": found["s"][:, :1]}
    assert min_sqnr_db(*channels) > 30


@pytest.mark.parametrize("name", ["cpu", "tensorrt"])
def test_relu_when_its_output_is_unpaired_reads_float(tmp_path, name):
    model, feeds = head(tmp_path), x_feeds(1, 4, 6, 6)
    out, _ = written(model, int8_nets.DIALECTS[name], feeds, unpaired=frozenset(["r"]))
    file = File(out)
    assert not {"c", "r"} & file.paired()
    assert list(file.nodes["relu"].input) == ["c"]
    assert file.before("conv", 1) is not None


def test_relu_when_only_its_input_is_unpaired_goes_into_its_output(tmp_path):
    model, feeds = head(tmp_path), x_feeds(1, 4, 6, 6)
    out, _ = written(model, int8_nets.CPU, feeds, unpaired=frozenset(["c"]))
    plain, _ = written(head(tmp_path), int8_nets.CPU, feeds)
    assert File(out).paired() == File(plain).paired()


@pytest.mark.parametrize("opset", [17, 21])
@pytest.mark.parametrize("name", ["cpu", "tensorrt", "xnnpack", "qnn-8"])
def test_tensors_when_wide_have_16_bits_and_so_has_what_is_combined_with_them(
    tmp_path, name, opset
):
    model, feeds = head(tmp_path, opset), x_feeds(1, 4, 6, 6)
    expected = everything(model, feeds[0])
    dialect, wide = int8_nets.DIALECTS[name], frozenset(("s", "k"))
    out, _ = written(model, dialect, feeds, wide=wide)
    file = File(out)
    due = "int16" if dialect.symmetric else "uint16"
    types = {n: zero.dtype.name for n, (_, zero, _) in file.conversions().items()}
    sixteen = {name for name, kind in types.items() if kind == due}
    assert {
        n.removesuffix("_QuantizeLinear") for n in sixteen if n.endswith("_QuantizeLinear")
    } == {
        "s",
        "m",
        "k",
    }
    assert types["strides_DequantizeLinear"] == due
    assert types["v_DequantizeLinear"] == dialect.weights
    domains = {file.nodes[name].domain for name in sixteen}
    assert domains == {"" if opset == 21 else "com.microsoft"}
    assert {file.nodes[name].domain for name in types.keys() - sixteen} == {""}
    found = everything(out, feeds[0])
    behind = dequantized_name("k", out)
    plain, _ = written(head(tmp_path / "plain", opset), dialect, feeds)
    narrow = everything(plain, feeds[0])[dequantized_name("k", plain)]
    first = expected["k"][:, :1]
    assert min_sqnr_db({"k": first}, {"k": found[behind][:, :1]}) > 20
    assert min_sqnr_db({"k": first}, {"k": narrow[:, :1]}) < 10


def test_16_bits_when_for_qnn_have_the_scale_that_it_asks_of_a_sigmoid(tmp_path):
    nodes = [
        helper.make_node("Sigmoid", ["x"], ["s"], "sigmoid"),
        helper.make_node("Tanh", ["s"], ["y"], "tanh"),
    ]
    out, _ = written(
        saved(tmp_path, nodes, x=(1, 4)),
        int8_nets.QNN_8,
        x_feeds(1, 4),
        wide=frozenset(["s"]),
        **int8_nets.QNN_RULES,
    )
    scale, zero, _ = File(out).conversions()["s_QuantizeLinear"]
    assert (scale, zero) == (1 / 65536, 0)
    assert File(out).conversions()["y_QuantizeLinear"][1].dtype == np.uint8


def test_range_when_for_qnn_is_as_wide_as_it_asks_at_least(tmp_path):
    nodes = [helper.make_node("Mul", ["x", "small"], ["y"], "mul")]
    model = saved(tmp_path, nodes, [("small", np.float32(1e-7))], x=(1, 4))
    spans = []
    for rules in ({}, int8_nets.QNN_RULES):
        out, _ = written(model, int8_nets.QNN_8, x_feeds(1, 4), **rules)
        spans.append(255 * File(out).conversions()["y_QuantizeLinear"][0])
    assert spans[0] < 1e-6
    np.testing.assert_allclose(spans[1], 1e-4, rtol=1e-6)


def test_session_when_pairs_are_wide_keeps_the_integer_kernels_elsewhere(tmp_path):
    model = onnx.load(int8_nets.mixed_net(tmp_path / "net.onnx"))
    feeds = int8_nets.image_feeds()
    counts = []
    for wide in ((), ("k",)):
        out, _ = written(model, int8_nets.CPU, feeds, wide=frozenset(wide))
        onnx.save(out, tmp_path / "wide.onnx")
        counts.append(measure_fusion_coverage(tmp_path / "wide.onnx", "x86-64"))
    assert counts[1].integer_products == counts[0].integer_products == 5
    assert onnxruntime.InferenceSession(
        str(tmp_path / "wide.onnx"), providers=["CPUExecutionProvider"]
    ).get_inputs()
