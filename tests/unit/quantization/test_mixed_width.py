"""Models with activations of 8 and 16 bits, looked at with plain onnx and run without optimizer."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from edgepack.errors import StepError
from edgepack.metrics.accuracy import min_sqnr_db
from edgepack.quantization.qdq.dialect import require_dialect
from edgepack.quantization.qdq.mixed_width import find_wide_names, require_one_width, unify_widths
from edgepack.quantization.qdq.preparation import prepare_model
from edgepack.quantization.qdq.writer import QdqWriter
from onnx import TensorProto, helper, numpy_helper

from tests.support.nets import int8_nets

QDQ = ("QuantizeLinear", "DequantizeLinear")
WIDE = frozenset({"c3", "a1"})


def run(model, feed):
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, feed), strict=True))


@pytest.fixture
def writer(tmp_path):
    model = prepare_model(onnx.load(int8_nets.mixed_net(tmp_path / "net.onnx")))
    watched = onnx.ModelProto()
    watched.CopyFrom(model)
    made = [name for node in model.graph.node for name in node.output]
    watched.graph.output.extend(
        helper.make_tensor_value_info(name, TensorProto.FLOAT, None)
        for name in made
        if name != "probabilities"
    )
    feeds = int8_nets.image_feeds()
    runs = [{**feed, **run(watched, feed)} for feed in feeds]
    ranges = {
        name: (float(min(r[name].min() for r in runs)), float(max(r[name].max() for r in runs)))
        for name in runs[0]
    }
    return QdqWriter(model, ranges, int8_nets.QNN_8, **int8_nets.QNN_RULES, wide=WIDE)


def widths(model):
    """For each operator, the types of the activations that it reads and writes."""
    constants = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    sources = {n.output[0]: n for n in model.graph.node if n.op_type == QDQ[1]}
    sinks = {n.input[0]: n for n in model.graph.node if n.op_type == QDQ[0]}
    found = {}
    for node in model.graph.node:
        pairs = [sources[name] for name in node.input if name in sources]
        pairs = [pair for pair in pairs if pair.input[0] not in constants]
        pairs += [sinks[name] for name in node.output if name in sinks]
        if node.op_type not in QDQ:
            found[node.name] = {constants[pair.input[2]].dtype.name for pair in pairs}
    return found


def test_operator_when_it_touches_16_bits_has_no_activation_of_8(writer):
    model = writer.write(())
    assert any(len(kinds) == 2 for kinds in widths(model).values())
    unify_widths(model)
    onnx.checker.check_model(model)
    found = widths(model)
    assert all(len(kinds) <= 1 for kinds in found.values())
    wide = {name for name, kinds in found.items() if kinds == {"uint16"}}
    assert wide == {"pointwise", "add", "pointwise2", "add2"}
    require_dialect(model, int8_nets.QNN_8, wide=find_wide_names(model))


def test_operator_when_widened_computes_what_it_did(writer):
    plain, unified = writer.write(()), writer.write(())
    unify_widths(unified)
    feed = int8_nets.image_feeds()[0]
    # What is rounded to 16 bits and then to 8 may end one step beside what is rounded once.
    assert min_sqnr_db(run(plain, feed), run(unified, feed)) > 35


def test_bias_when_its_product_is_widened_stays_exact(writer):
    model = writer.write(())
    unify_widths(model)
    constants = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    sources = {n.output[0]: n for n in model.graph.node if n.op_type == QDQ[1]}
    node = next(node for node in model.graph.node if node.name == "pointwise")
    data, weights, bias = (sources[name] for name in node.input)
    values, scale, zero = (constants[name] for name in bias.input)
    assert values.dtype == zero.dtype == np.int32
    due = constants[data.input[1]] * constants[weights.input[1]]
    np.testing.assert_allclose(scale, due, rtol=1e-6)
    original = next(n for n in writer.write(()).graph.node if n.name == "pointwise")
    before = writer.write(())
    old = {t.name: numpy_helper.to_array(t) for t in before.graph.initializer}
    source = next(n for n in before.graph.node if original.input[2] in n.output)
    np.testing.assert_array_equal(values, old[source.input[0]] * 257)


def test_model_when_it_has_one_width_is_not_changed(writer):
    narrow = QdqWriter(writer.model, writer.ranges, int8_nets.QNN_8, **int8_nets.QNN_RULES).write(
        ()
    )
    before = narrow.SerializeToString()
    unify_widths(narrow)
    assert narrow.SerializeToString() == before
    assert not find_wide_names(narrow)


def test_require_one_width_when_an_operator_has_two_names_it(writer):
    model = writer.write(())
    mixed = {name for name, types in widths(model).items() if len(types) == 2}
    with pytest.raises(StepError, match="has activations of 8 and of 16 bits") as found:
        require_one_width(model)
    assert found.value.problem.split("'")[1] in mixed
    unify_widths(model)
    require_one_width(model)
