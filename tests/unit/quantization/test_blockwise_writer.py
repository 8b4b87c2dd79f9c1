"""Which constants are written in 4 bits, and that the nodes which read them compute the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from edgepack.quantization.qdq.blockwise import fit_scales
from edgepack.quantization.qdq.blockwise_writer import PRODUCT, TABLE, BlockwiseWriter
from edgepack.quantization.qdq.preparation import prepare_model
from onnx import TensorProto, helper, numpy_helper

from tests.support.nets.tiny_models import save

node = helper.make_node
FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64


def floats(*shape, seed=2):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def writer_of(path: Path, nodes, constants, inputs) -> BlockwiseWriter:
    save(path / "m.onnx", nodes, inputs, [(nodes[-1].output[0], FLOAT, None)], constants)
    return BlockwiseWriter.of(prepare_model(onnx.load(path / "m.onnx")))


def run(model, feed):
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    return session.run(None, feed)[0]


def with_rounded(model, names):
    """Return the float model with constants that hold what 4 bits leave of them."""
    rounded = onnx.ModelProto()
    rounded.CopyFrom(model)
    for tensor in rounded.graph.initializer:
        if tensor.name in names:
            values, turned = numpy_helper.to_array(tensor), names[tensor.name]
            rows = np.ascontiguousarray(values.T if turned else values)
            back = fit_scales(rows).dequantize(rows.shape[1])
            back = np.ascontiguousarray(back.T if turned else back)
            tensor.CopyFrom(numpy_helper.from_array(back, tensor.name))
    return rounded


def db(reference, output):
    return 10 * np.log10(np.sum(reference**2) / np.sum((reference - output) ** 2))


X = [("x", FLOAT, ["rows", 64])]
PRODUCTS = [
    ([node("MatMul", ["x", "w"], ["y"], "m")], [("w", floats(64, 48))], {"w": True}),
    ([node("Gemm", ["x", "w"], ["y"], "g", transB=1)], [("w", floats(48, 64))], {"w": False}),
    (
        [node("Gemm", ["x", "w", "b"], ["y"], "g")],
        [("w", floats(64, 48)), ("b", floats(48))],
        {"w": True},
    ),
    (
        [node("Gemm", ["x", "w", "x2"], ["y"], "g")],
        [("w", floats(64, 48)), ("x2", floats(1, 48))],
        {"w": True},
    ),
    (
        [node("MatMul", ["x", "w"], ["h"], "m"), node("MatMul", ["h", "w"], ["y"], "n")],
        [("w", floats(64, 64))],
        {"w": True},
    ),
]


@pytest.mark.parametrize(("nodes", "constants", "names"), PRODUCTS)
def test_product_when_written_computes_with_what_4_bits_leave(tmp_path, nodes, constants, names):
    writer = writer_of(tmp_path, nodes, constants, X)
    written = writer.write({})
    feed = {"x": floats(5, 64, seed=3)}
    expected = run(with_rounded(writer.model, names), feed)
    # Activations may be rounded to int8, block by block.
    assert db(expected, run(written, feed)) > 38
    assert {n.op_type for n in written.graph.node} <= {PRODUCT, "Add"}
    assert "w" not in {t.name for t in written.graph.initializer}
    assert writer.share > 0.9


def test_weights_when_two_nodes_share_them_are_written_once(tmp_path):
    writer = writer_of(tmp_path, *PRODUCTS[-1][:2], X)
    sizes = [tuple(t.dims) for t in writer.write({}).graph.initializer]
    assert sizes == [(64, 2, 16), (64, 2), (64, 1)]
    assert list(writer.activations.values()) == [("x", "h")]


@pytest.mark.parametrize("kind", [np.int64, np.int32])
def test_table_when_written_gives_what_4_bits_leave(tmp_path, kind):
    nodes = [node("Gather", ["words", "ids"], ["y"], "g")]
    table = floats(70, 64)
    ids = np.array([[0, 69, 3], [-1, 5, 5]], kind)
    inputs = [("ids", TensorProto.INT64 if kind == np.int64 else TensorProto.INT32, [2, 3])]
    writer = writer_of(tmp_path, nodes, [("words", table)], inputs)
    written = writer.write({})
    assert [n.op_type for n in written.graph.node] == [TABLE]
    expected = fit_scales(table).dequantize(64)[ids]
    assert run(written, {"ids": ids}) == pytest.approx(expected, abs=1e-6)


def test_table_when_the_head_reads_it_too_is_in_4_bits_for_both(tmp_path):
    nodes = [
        node("Gather", ["words", "ids"], ["e"], "g"),
        node("Gemm", ["e", "words"], ["y"], "head", transB=1),
    ]
    writer = writer_of(tmp_path, nodes, [("words", floats(70, 64))], [("ids", INT64, [3])])
    written = writer.write({})
    feed = {"ids": np.array([1, 69, 7])}
    expected = run(with_rounded(writer.model, {"words": False}), feed)
    assert [n.op_type for n in written.graph.node] == [TABLE, PRODUCT]
    assert db(expected, run(written, feed)) > 38


@pytest.mark.parametrize(("nodes", "constants", "names"), PRODUCTS)
def test_sizes_when_a_model_is_written_are_those_of_its_constants(
    tmp_path, nodes, constants, names
):
    table = node("Gather", ["words", "ids"], ["e"], "t")
    inputs = [*X, ("ids", INT64, [3])]
    writer = writer_of(
        tmp_path, [table, *nodes], [*constants, ("words", floats(70, 96, seed=4))], inputs
    )
    parts = [
        tensor
        for tensor in writer.write({}).graph.initializer
        if tensor.name.startswith((*names, "words"))
    ]
    assert writer.bytes_after == sum(numpy_helper.to_array(t).nbytes for t in parts)
    assert writer.bytes_before == floats(70, 96).nbytes + constants[0][1].nbytes


def test_table_when_its_rows_are_no_blocks_stays_and_is_named(tmp_path):
    nodes = [
        node("Gather", ["words", "ids"], ["e"], "wide"),
        node("Gather", ["few", "ids"], ["f"], "small"),
        node("Concat", ["e", "f"], ["y"], "both", axis=1),
    ]
    constants = [("words", floats(70, 40)), ("few", floats(4, 40))]
    writer = writer_of(tmp_path, nodes, constants, [("ids", INT64, [3])])
    assert not writer.places
    assert dict(writer.left) == {"wide": "its rows are no multiple of 32"}


@pytest.mark.parametrize(
    ("weights", "why"),
    [
        (floats(64, 8), "only 512 weights"),
        (floats(2, 64, 48), "3 dimensions"),
        (np.where(np.eye(64, 48) > 0, np.nan, 1).astype(np.float32), "NaN or infinity"),
        (floats(64, 48).astype(np.float16), "not float32"),
    ],
)
def test_weights_when_4_bits_are_not_for_them_stay_with_a_reason(tmp_path, weights, why):
    kind = helper.np_dtype_to_tensor_dtype(weights.dtype)
    writer = writer_of(
        tmp_path, [node("MatMul", ["x", "w"], ["y"], "m")], [("w", weights)], [("x", kind, [5, 64])]
    )
    assert not writer.places
    assert why in writer.left["m"]


def test_nodes_when_their_weights_are_no_constants_stay_without_a_word(tmp_path):
    nodes = [node("MatMul", ["x", "z"], ["y"], "m")]
    writer = writer_of(tmp_path, nodes, [], [*X, ("z", FLOAT, [64, 48])])
    assert (dict(writer.places), dict(writer.left)) == ({}, {})


def test_model_when_a_body_reads_the_weights_too_keeps_them(tmp_path):
    body = helper.make_graph(
        [node("MatMul", ["x", "w"], ["out"], "inner")],
        "body",
        [],
        [helper.make_tensor_value_info("out", FLOAT, None)],
    )
    nodes = [
        node("MatMul", ["x", "w"], ["h"], "outer"),
        node("If", ["c"], ["i"], "if", then_branch=body, else_branch=body),
        node("Add", ["h", "i"], ["y"], "add"),
    ]
    constants = [("w", floats(64, 64)), ("c", np.array(1, np.bool_))]
    written = writer_of(tmp_path, nodes, constants, X).write({})
    assert "w" in {t.name for t in written.graph.initializer}
    assert run(written, {"x": floats(2, 64)}).shape == (2, 64)
