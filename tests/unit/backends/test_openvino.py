"""What OpenVINO's provider leaves, one rule each; what it takes otherwise."""

from __future__ import annotations

import numpy as np
import pytest
from edgepack.backends import openvino
from edgepack.backends.base import predict
from edgepack.model.graph import make_partitioned_graph, read_graph
from edgepack.project.profile import DeviceKind, Dialect, Provider, Variant
from onnx import TensorProto, helper, numpy_helper

from tests.support.nets.tiny_models import save

FLOAT = TensorProto.FLOAT
INTEL = DeviceKind(os="linux", arch="x86-64", python=">=3.11")


def variant(device="CPU", recipe="fp32", dialect=None):
    return Variant(
        id=f"openvino-{recipe}",
        backend="openvino",
        recipe=recipe,
        dialect=dialect,
        providers=[
            Provider(name="OpenVINOExecutionProvider", options={"device_type": device}),
            Provider(name="CPUExecutionProvider"),
        ],
    )


def graph(nodes, inputs=None, outputs=("y",), constants=None, opset=17):
    """Nodes are (operator, inputs, outputs[, attributes]), all named by their first output."""
    model = helper.make_model(
        helper.make_graph(
            [
                helper.make_node(op, ins, outs, outs[0], **dict(*attributes))
                for op, ins, outs, *attributes in nodes
            ],
            "g",
            [
                helper.make_tensor_value_info(name, kind, shape)
                for name, (kind, shape) in (inputs or {"x": (FLOAT, [1, 4, 4])}).items()
            ],
            [helper.make_tensor_value_info(name, FLOAT, None) for name in outputs],
            [numpy_helper.from_array(a, name) for name, a in (constants or {}).items()],
        ),
        opset_imports=[helper.make_opsetid("", opset)],
    )
    return read_graph(model)


def left(found, device="CPU"):
    """The refused nodes' names, each with the reason."""
    placement = predict(openvino.BACKEND, found, variant(device))
    return {p.node.name: p.refusal.reason for p in placement.nodes if p.refusal}


def test_graph_when_all_operators_are_known_is_taken_whole():
    found = graph([("Relu", ["x"], ["a"]), ("Sigmoid", ["a"], ["y"])])
    assert left(found) == {}


def test_graph_when_dimensions_are_unknown_is_taken_whole():
    inputs = {"x": (FLOAT, ["batch", "n"])}
    assert left(graph([("Relu", ["x"], ["a"]), ("Abs", ["a"], ["y"])], inputs)) == {}


def test_operator_when_not_in_the_table_is_left_and_named():
    found = graph([("Relu", ["x"], ["a"]), ("Abs", ["a"], ["b"]), ("Det", ["b"], ["y"])])
    assert list(left(found)) == ["y"]
    assert "Det" in left(found)["y"]


@pytest.mark.parametrize(("device", "refused"), [("CPU", []), ("GPU", ["b"]), ("NPU", [])])
def test_operator_when_only_the_cpu_has_it_is_left_by_the_gpu(device, refused):
    found = graph([("Relu", ["x"], ["a"]), ("Sinh", ["a"], ["b"]), ("Abs", ["b"], ["y"])])
    assert [name for name in left(found, device) if name == "b"] == refused


@pytest.mark.parametrize(
    ("dtype", "name"), [(TensorProto.DOUBLE, "float64"), (TensorProto.UINT64, "uint64")]
)
def test_type_when_not_in_the_list_is_left_and_named(dtype, name):
    nodes = [
        ("Relu", ["x"], ["a"]),
        ("Abs", ["a"], ["b"]),
        ("Cast", ["b"], ["c"], {"to": dtype}),
        ("Cast", ["c"], ["d"], {"to": FLOAT}),
        ("Sqrt", ["d"], ["y"]),
    ]
    reasons = left(graph(nodes))
    assert list(reasons) == ["c", "d"]
    assert f"'c' is {name}" in reasons["c"]


@pytest.mark.parametrize("dtype", [TensorProto.INT32, TensorProto.UINT32, TensorProto.FLOAT16])
def test_type_when_in_the_list_is_taken(dtype):
    nodes = [
        ("Relu", ["x"], ["a"]),
        ("Cast", ["a"], ["b"], {"to": dtype}),
        ("Cast", ["b"], ["c"], {"to": FLOAT}),
        ("Sqrt", ["c"], ["y"]),
    ]
    assert left(graph(nodes)) == {}


def test_scalar_when_the_operator_takes_none_is_left():
    nodes = [("Neg", ["x"], ["a"]), ("Abs", ["a"], ["b"]), ("Sqrt", ["b"], ["y"])]
    reasons = left(graph(nodes, {"x": (FLOAT, [])}))
    assert "no dimensions" in reasons["b"]


def test_scalar_when_it_is_constant_is_taken():
    nodes = [("Less", ["x", "one"], ["a"]), ("Not", ["a"], ["y"])]
    assert left(graph(nodes, constants={"one": np.array(1, np.float32)})) == {}


@pytest.mark.parametrize(("quantized", "refused"), [(True, False), (False, True)])
def test_scalar_of_pad_when_the_data_was_quantized_is_taken(quantized, refused):
    nodes = [
        ("QuantizeLinear", ["x", "s", "z"], ["q"]),
        ("DequantizeLinear", ["q", "s", "z"], ["d"]),
        ("Pad", ["d" if quantized else "x", "p", "v"], ["a"]),
        ("Relu", ["a"], ["y"]),
    ]
    constants = {
        "s": np.array(0.1, np.float32),
        "z": np.array(0, np.uint8),
        "p": np.array([0, 0, 1, 0, 0, 1]),
    }
    inputs = {"x": (FLOAT, [1, 4, 4]), "v": (FLOAT, [])}
    assert ("a" in left(graph(nodes, inputs, constants=constants))) == refused


def test_empty_dimension_when_the_operator_takes_none_is_left():
    inputs = {"x": (FLOAT, [1, 4]), "e": (FLOAT, [1, 0])}
    nodes = [
        ("Concat", ["x", "e"], ["a"], {"axis": 1}),
        ("Relu", ["a"], ["y"]),
        ("Abs", ["e"], ["z"]),
    ]
    reasons = left(graph(nodes, inputs, ["y", "z"]))
    assert list(reasons) == ["z"]
    assert "dimension of 0" in reasons["z"]


def test_reduce_max_when_of_uint8_is_left():
    nodes = [
        ("ReduceMax", ["x"], ["a"]),
        ("Cast", ["a"], ["b"], {"to": FLOAT}),
        ("Relu", ["b"], ["y"]),
    ]
    assert list(left(graph(nodes, {"x": (TensorProto.UINT8, [1, 4])}))) == ["a"]


def test_reshape_when_to_a_scalar_is_left():
    nodes = [("Relu", ["x"], ["a"]), ("Reshape", ["a", "s"], ["b"]), ("Neg", ["b"], ["y"])]
    found = graph(nodes, {"x": (FLOAT, [1])}, constants={"s": np.zeros(0, np.int64)})
    assert "b" in left(found)


@pytest.mark.parametrize(("name", "refused"), [("axes", True), ("which", False)])
def test_unsqueeze_when_its_axes_are_called_axes_is_left(name, refused):
    nodes = [("Relu", ["x"], ["a"]), ("Unsqueeze", ["a", name], ["b"]), ("Neg", ["b"], ["y"])]
    assert ("b" in left(graph(nodes, constants={name: np.array([0])}))) == refused


@pytest.mark.parametrize(
    ("scales", "refused"), [([1.0, 1.0, 2.0, 2.0], False), ([1.0, 2.0, 2.0, 2.0], True)]
)
def test_upsample_when_it_scales_channels_is_left(scales, refused):
    nodes = [("Relu", ["x"], ["a"]), ("Upsample", ["a"], ["y"], {"scales": scales})]
    found = graph(nodes, {"x": (FLOAT, [1, 1, 4, 4])}, opset=7)
    assert ("y" in left(found)) == refused


@pytest.mark.parametrize(("more", "refused"), [(1, True), (2, True), (3, False)])
def test_small_graph_when_it_begins_with_a_cast_is_left_alone(more, refused):
    names = [*["a", "b", "c"][:more], "y"]
    nodes = [("Cast", ["x"], ["a"], {"to": TensorProto.INT32})]
    nodes += [("Neg", [names[i]], [names[i + 1]]) for i in range(more)]
    assert bool(left(graph(nodes))) == refused


@pytest.mark.parametrize(("constant", "refused"), [(True, False), (False, True)])
def test_lone_reshape_when_its_shape_is_an_input_is_left(constant, refused):
    inputs = {"x": (FLOAT, [1, 4])} | ({} if constant else {"s": (TensorProto.INT64, [2])})
    constants = {"s": np.array([2, 2])} if constant else {}
    found = graph([("Reshape", ["x", "s"], ["y"])], inputs, constants=constants)
    assert bool(left(found)) == refused


def test_top_k_when_another_node_is_left_is_left_too():
    nodes = [
        ("Relu", ["x"], ["a"]),
        ("TopK", ["a", "k"], ["b", "i"]),
        ("Abs", ["b"], ["c"]),
        ("Sqrt", ["c"], ["d"]),
    ]
    constants = {"k": np.array([4])}
    whole = graph([*nodes, ("Neg", ["d"], ["y"])], constants=constants)
    part = graph([*nodes, ("Det", ["d"], ["y"])], constants=constants)
    assert left(whole) == {}
    assert {"b", "y"} <= set(left(part))


def test_lone_node_when_before_the_last_piece_is_given_back():
    nodes = [
        ("Relu", ["x"], ["a"]),
        ("Det", ["a"], ["b"]),
        ("Abs", ["b"], ["c"]),
        ("Sqrt", ["c"], ["y"]),
    ]
    reasons = left(graph(nodes))
    assert list(reasons) == ["a", "b"]
    assert "stands alone" in reasons["a"]


def test_lone_node_when_it_is_the_last_piece_is_taken():
    nodes = [
        ("Relu", ["x"], ["a"]),
        ("Sqrt", ["a"], ["b"]),
        ("Det", ["b"], ["c"]),
        ("Abs", ["c"], ["y"]),
    ]
    assert list(left(graph(nodes))) == ["c"]


def test_piece_when_its_convolution_is_read_outside_is_given_back_whole():
    nodes = [
        ("Relu", ["x"], ["a"]),
        ("Conv", ["a", "w"], ["b"]),
        ("Det", ["b"], ["c"]),
        ("Abs", ["c"], ["d"]),
        ("Sqrt", ["d"], ["y"]),
    ]
    weights = {"w": np.ones((3, 3, 1, 1), np.float32)}
    reasons = left(graph(nodes, {"x": (FLOAT, [1, 3, 4, 4])}, constants=weights))
    assert list(reasons) == ["a", "b", "c"]
    assert "'b' (Conv)" in reasons["a"]


def test_if_when_a_body_reads_a_type_that_is_refused_is_left():
    def body(name):
        node = helper.make_node("Cast", ["a"], [name], to=FLOAT)
        output = helper.make_tensor_value_info(name, FLOAT, [1, 4, 4])
        return helper.make_graph([node], name, [], [output])

    nodes = [
        ("Cast", ["x"], ["a"], {"to": TensorProto.DOUBLE}),
        ("If", ["c"], ["b"], {"then_branch": body("t"), "else_branch": body("e")}),
        ("Relu", ["b"], ["d"]),
        ("Abs", ["d"], ["y"]),
    ]
    inputs = {"x": (FLOAT, [1, 4, 4]), "c": (TensorProto.BOOL, [])}
    reasons = left(graph(nodes, inputs))
    assert list(reasons) == ["a", "b"]
    assert "'a' is float64" in reasons["b"]


def test_input_when_its_rank_is_unknown_leaves_the_whole_graph():
    found = graph([("Relu", ["x"], ["a"]), ("Abs", ["a"], ["y"])], {"x": (FLOAT, None)})
    reasons = left(found)
    assert len(reasons) == 2
    assert "'x'" in reasons["a"]


def test_piece_when_it_reads_a_tensor_of_unknown_rank_makes_no_session():
    nodes = [
        ("Relu", ["x"], ["a"]),
        ("Reshape", ["a", "s"], ["b"]),
        ("Hardmax", ["b"], ["c"]),
        ("Abs", ["c"], ["d"]),
        ("Sqrt", ["d"], ["y"]),
    ]
    inputs = {"x": (FLOAT, [1, 4]), "s": (TensorProto.INT64, ["n"])}
    reasons = left(graph(nodes, inputs))
    assert len(reasons) == len(nodes)
    assert "no session" in reasons["a"]


def test_lone_node_when_it_joins_a_piece_behind_a_refused_one_makes_no_session():
    nodes = [
        ("Relu", ["x"], ["a"]),
        ("Det", ["a"], ["b"]),
        ("Add", ["a", "b"], ["c"]),
        ("Sqrt", ["c"], ["y"]),
    ]
    reasons = left(graph(nodes))
    assert len(reasons) == len(nodes)
    assert "no session" in reasons["y"]


def test_loop_when_the_provider_would_take_it_makes_no_session():
    value = helper.make_tensor_value_info
    body = helper.make_graph(
        [
            helper.make_node("Add", ["s", "s"], ["n"], "add"),
            helper.make_node("Identity", ["go"], ["on"], "id"),
        ],
        "body",
        [value("i", TensorProto.INT64, []), value("go", TensorProto.BOOL, []), value("s", 1, [4])],
        [value("on", TensorProto.BOOL, []), value("n", 1, [4])],
    )
    nodes = [
        ("Relu", ["x"], ["a"]),
        ("Loop", ["k", "", "a"], ["b"], {"body": body}),
        ("Abs", ["b"], ["c"]),
        ("Sqrt", ["c"], ["y"]),
    ]
    found = graph(nodes, {"x": (FLOAT, [4])}, constants={"k": np.array(3)})
    assert all("no session" in reason for reason in left(found).values())
    assert len(left(found)) == len(nodes)


def test_half_model_when_partitioned_has_no_casts_of_the_cpu(tmp_path):
    half = (TensorProto.FLOAT16, [1, 4])
    nodes = [
        helper.make_node("Relu", ["x"], ["a"], "r"),
        helper.make_node("Abs", ["a"], ["y"], "b"),
    ]
    path = save(tmp_path / "half.onnx", nodes, [("x", *half)], [("y", *half)])
    found = make_partitioned_graph(path)
    assert [node.op for node in found.nodes] == ["Relu", "Abs"]
    assert {found.dtype(name) for name in ("x", "a", "y")} == {"float16"}


def test_device_when_auto_names_none_leaves_all_and_is_a_misfit():
    found = graph([("Relu", ["x"], ["a"]), ("Abs", ["a"], ["y"])])
    assert len(left(found, "AUTO")) == 2
    assert left(found, "AUTO:CPU") == {}
    [misfit] = openvino.BACKEND.misfits(variant("AUTO"), INTEL)
    assert "AUTO:CPU" in misfit.hint
    assert openvino.BACKEND.misfits(variant("AUTO:CPU"), INTEL) == []


@pytest.mark.parametrize(
    ("activations", "weights", "key"),
    [
        ("uint8", "int8", None),
        ("int8", "int8", None),
        ("uint16", "int8", "activations"),
        ("uint8", "uint8", "weights"),
    ],
)
def test_dialect_when_the_cpu_runs_it_as_float_is_a_misfit(activations, weights, key):
    dialect = Dialect(activations=activations, weights=weights, symmetric=False, per_channel=True)
    found = openvino.BACKEND.misfits(variant("CPU", "int8-static", dialect), INTEL)
    assert [misfit.key for misfit in found] == ([("dialect", key)] if key else [])
    assert openvino.BACKEND.misfits(variant("NPU", "int8-static", dialect), INTEL) == []


def test_tables_when_read_say_where_each_comes_from():
    tables = openvino._read_tables()
    said = " ".join(source.of for source in tables.sources)
    for name in ("ops", "scalar_ops", "empty_ops", "only_in_models", "dtypes"):
        assert name in said
    assert all(source.file and "20" in source.version for source in tables.sources)
