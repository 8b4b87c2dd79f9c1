"""Graph rewrites: what each does, what it leaves alone, and that lies are caught."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from edgepack.errors import StepError
from edgepack.model.facts import read_signature
from edgepack.model.files import MODEL
from edgepack.model.running import make_random_inputs, make_session, run_session
from edgepack.steps.base import Notes, run_step
from edgepack.steps.graph import rewritten
from edgepack.steps.graph.rewritten import (
    CACHE_KEY,
    REWRITES,
    Rewritten,
    hash_content,
    set_metadata,
)
from onnx import TensorProto, helper, numpy_helper

from tests.support.nets.tiny_models import conv_net, save

FLOAT = TensorProto.FLOAT
node = helper.make_node
RANDOM = np.random.default_rng(5)


@pytest.fixture(autouse=True)
def _same_numbers_in_any_order():
    RANDOM.bit_generator.state = np.random.default_rng(5).bit_generator.state


def floats(*shape):
    return RANDOM.standard_normal(shape).astype(np.float32)


def model(path, nodes, shape, initializers=(), *, out=None, **options):
    """A model from x to y."""
    values = [("x", FLOAT, shape)], [("y", FLOAT, out)]
    save(path / "in" / MODEL, nodes, *values, initializers, **options)
    return path


def rewrite(folder, *names) -> Notes:
    (folder / "out").mkdir()
    return run_step(Rewritten(names), {"model": folder / "in"}, folder / "out")


def made(folder) -> onnx.ModelProto:
    return onnx.load(folder / "out" / MODEL)


def ops(folder):
    return [n.op_type for n in made(folder).graph.node]


def constant(folder, name):
    return next(numpy_helper.to_array(t) for t in made(folder).graph.initializer if t.name == name)


@pytest.mark.parametrize(
    ("shape", "axis", "expected"),
    [
        ([2, 3, 4], 1, [2, 12]),
        ([2, 3, 4], -1, [6, 4]),
        ([2, 3, 4], 0, [1, 24]),
        ([2, 3, 4], 3, [24, 1]),
        (["n", 3, 4], 1, [-1, 12]),
        ([2, "h", 4], 1, [2, -1]),
        (["n", "c", 4], 1, [0, -1]),
    ],
)
def test_flatten_when_one_shape_says_the_same_becomes_reshape(tmp_path, shape, axis, expected):
    model(tmp_path, [node("Flatten", ["x"], ["y"], "flat", axis=axis)], shape)
    notes = rewrite(tmp_path, "flatten-to-reshape")
    assert ops(tmp_path) == ["Reshape"]
    assert constant(tmp_path, "flat/shape").tolist() == expected
    assert "'flat' to" in notes.done
    source, target = (make_session(tmp_path / part / MODEL) for part in ("in", "out"))
    feed = {"x": floats(*(size if isinstance(size, int) else 5 for size in shape))}
    assert np.array_equal(run_session(source, feed)["y"], run_session(target, feed)["y"])


def test_flatten_when_no_one_shape_says_the_same_stays(tmp_path):
    model(tmp_path, [node("Flatten", ["x"], ["y"], "flat", axis=2)], ["n", 3, "h", 4])
    notes = rewrite(tmp_path, "flatten-to-reshape")
    assert ops(tmp_path) == ["Flatten"]
    assert notes.done == "nothing to rewrite"


def bypassed(path, nodes, initializers=(), **options):
    """The operators that are left of nodes from x to y, whose outputs stay the same."""
    model(path, nodes, [2, 3], initializers, **options)
    rewrite(path, "drop-identities")
    feed = {"x": floats(2, 3)}
    old, new = (run_session(make_session(path / part / MODEL), feed) for part in ("in", "out"))
    assert np.array_equal(old["y"], new["y"])
    return ops(path)


def test_identities_when_between_nodes_or_at_an_output_are_dropped(tmp_path):
    nodes = [
        node("Abs", ["x"], ["a"], "abs"),
        node("Identity", ["a"], ["b"], "one"),
        node("Neg", ["b"], ["c"], "neg"),
        node("Add", ["b", "c"], ["d"], "add"),
        node("Add", ["d", "c"], ["e"], "again"),
        node("Identity", ["e"], ["y"], "last"),
    ]
    assert bypassed(tmp_path, nodes) == ["Abs", "Neg", "Add", "Add"]
    assert made(tmp_path).graph.output[0].name == "y"


def test_identity_when_its_input_has_other_readers_gives_them_the_outputs_name(tmp_path):
    nodes = [
        node("Abs", ["x"], ["a"], "abs"),
        node("Identity", ["a"], ["y"], "out"),
        node("Neg", ["a"], ["z"], "neg"),
    ]
    assert bypassed(tmp_path, nodes) == ["Abs", "Neg"]


@pytest.mark.parametrize(
    ("opset", "inputs", "attributes", "left"),
    [
        (13, ["a"], {}, ["Abs", "Neg"]),
        (13, ["a", "ratio", "off"], {}, ["Abs", "Neg"]),
        (13, ["a", "ratio", "on"], {}, ["Abs", "Dropout", "Neg"]),
        (11, ["a"], {"ratio": 0.5}, ["Abs", "Neg"]),
    ],
)
def test_dropout_when_it_is_not_training_is_dropped(tmp_path, opset, inputs, attributes, left):
    values = [("ratio", np.float32(0)), ("off", np.zeros((), bool)), ("on", np.ones((), bool))]
    nodes = [
        node("Abs", ["x"], ["a"], "abs"),
        node("Dropout", inputs, ["b"], "dropout", **attributes),
        node("Neg", ["b"], ["y"], "neg"),
    ]
    given = [value for value in values if value[0] in inputs]
    assert bypassed(tmp_path, nodes, given, opset=opset) == left


def test_dropout_when_its_mask_is_read_stays(tmp_path):
    nodes = [
        node("Dropout", ["x"], ["a", "mask"], "dropout"),
        node("Cast", ["mask"], ["m"], "cast", to=FLOAT),
        node("Add", ["a", "m"], ["y"], "add"),
    ]
    assert "Dropout" in bypassed(tmp_path, nodes)


def test_identity_when_it_leads_from_input_to_output_stays(tmp_path):
    assert bypassed(tmp_path, [node("Identity", ["x"], ["y"], "all")]) == ["Identity"]


def test_identity_when_a_node_and_its_body_read_it_stays(tmp_path):
    value = helper.make_tensor_value_info("o", FLOAT, [2, 3])
    turned = node("Cast", ["b"], ["o"], "inner", to=FLOAT)
    body = helper.make_graph([turned], "body", [], [value])
    nodes = [
        node("Less", ["x", "zero"], ["all"], "less"),
        node("ReduceMax", ["float"], ["one"], "any"),
        node("Cast", ["all"], ["float"], "float", to=FLOAT),
        node("Cast", ["one"], ["a"], "back", to=TensorProto.BOOL),
        node("Identity", ["a"], ["b"], "identity"),
        node("If", ["b"], ["y"], "if", then_branch=body, else_branch=body),
    ]
    nodes = [nodes[0], nodes[2], nodes[1], *nodes[3:]]
    nodes[2].attribute.append(helper.make_attribute("keepdims", 0))
    value.type.tensor_type.ClearField("shape")
    assert "Identity" in bypassed(tmp_path, nodes, [("zero", np.float32(0))])


def test_identity_when_a_body_reads_it_stays(tmp_path):
    value = helper.make_tensor_value_info("o", FLOAT, [2, 3])
    body = helper.make_graph([node("Neg", ["b"], ["o"], "inner")], "body", [], [value])
    nodes = [
        node("Abs", ["x"], ["a"], "abs"),
        node("Identity", ["a"], ["b"], "identity"),
        node("If", ["yes"], ["y"], "if", then_branch=body, else_branch=body),
    ]
    yes = [("yes", np.ones((), bool))]
    assert bypassed(tmp_path, nodes, yes) == ["Abs", "Identity", "If"]


def batch_norm(channels, name="bn", source="c", target="y", **attributes):
    parameters = [
        (f"{name}.scale", RANDOM.uniform(0.5, 2, channels).astype(np.float32)),
        (f"{name}.bias", floats(channels)),
        (f"{name}.mean", floats(channels)),
        (f"{name}.var", RANDOM.uniform(0.5, 2, channels).astype(np.float32)),
    ]
    inputs = [source, *(key for key, _ in parameters)]
    return node("BatchNormalization", inputs, [target], name, **attributes), parameters


MAKERS = {
    "conv": (node("Conv", ["x", "w"], ["c"], "m"), [1, 4, 6, 6], (6, 4, 3, 3), 6),
    "conv with bias and groups": (
        node("Conv", ["x", "w", "b"], ["c"], "m", group=2), [1, 4, 6, 6], (6, 2, 3, 3), 6,
    ),
    "transposed with groups": (
        node("ConvTranspose", ["x", "w", "b"], ["c"], "m", group=2), [1, 4, 6, 6], (4, 3, 3, 3), 6,
    ),
    "gemm": (node("Gemm", ["x", "w", "b"], ["c"], "m", beta=0.5), [2, 4], (4, 6), 6),
    "gemm transposed": (
        node("Gemm", ["x", "w", "b"], ["c"], "m", transB=1, alpha=2.0), [2, 4], (6, 4), 6,
    ),
}  # fmt: skip


@pytest.mark.parametrize("maker", MAKERS)
def test_batch_norm_when_weights_are_before_it_is_folded_into_them(tmp_path, maker):
    first, shape, weights, channels = MAKERS[maker]
    last, parameters = batch_norm(channels, epsilon=1e-3)
    constants = [("w", floats(*weights)), *parameters]
    if len(first.input) > 2:
        constants.append(("b", floats(channels)))
    model(tmp_path, [first, last], shape, constants)
    notes = rewrite(tmp_path, "fold-batch-norm")
    assert ops(tmp_path) == [first.op_type]
    assert "'bn' into 'm'" in notes.done
    assert {t.name for t in made(tmp_path).graph.initializer} == {"m/weights", "m/bias"}


def test_batch_norms_when_in_a_row_are_folded_one_after_the_other(tmp_path):
    one, first = batch_norm(6, "bn1", "c", "d")
    two, second = batch_norm(6, "bn2", "d", "y")
    nodes = [node("Conv", ["x", "w"], ["c"], "conv"), one, two]
    model(tmp_path, nodes, [1, 4, 6, 6], [("w", floats(6, 4, 3, 3)), *first, *second])
    rewrite(tmp_path, "fold-batch-norm")
    assert ops(tmp_path) == ["Conv"]


def test_batch_norm_when_others_read_what_it_reads_becomes_mul_and_add(tmp_path):
    last, parameters = batch_norm(6, target="n")
    nodes = [node("Conv", ["x", "w"], ["c"], "conv"), last, node("Add", ["n", "c"], ["y"], "add")]
    model(tmp_path, nodes, [1, 4, 6, 6], [("w", floats(6, 4, 3, 3)), *parameters])
    notes = rewrite(tmp_path, "fold-batch-norm")
    assert ops(tmp_path) == ["Conv", "Mul", "Add", "Add"]
    assert "'bn' to Mul and Add" in notes.done


def test_weights_when_another_node_reads_them_are_left_as_they_are(tmp_path):
    last, parameters = batch_norm(6, target="n")
    nodes = [
        node("Conv", ["x", "w"], ["c"], "conv"),
        last,
        node("Conv", ["x", "w"], ["d"], "twin"),
        node("Add", ["n", "d"], ["y"], "add"),
    ]
    weights = floats(6, 4, 3, 3)
    model(tmp_path, nodes, [1, 4, 6, 6], [("w", weights), *parameters])
    rewrite(tmp_path, "fold-batch-norm")
    assert ops(tmp_path) == ["Conv", "Conv", "Add"]
    assert np.array_equal(constant(tmp_path, "w"), weights)


def test_batch_norm_when_its_parameters_are_computed_stays(tmp_path):
    last, parameters = batch_norm(4, source="x")
    last.input[3] = "mean"
    nodes = [node("ReduceMean", ["x"], ["mean"], "m", axes=[0, 2, 3], keepdims=0), last]
    model(tmp_path, nodes, [1, 4, 6, 6], parameters)
    rewrite(tmp_path, "fold-batch-norm")
    assert "BatchNormalization" in ops(tmp_path)


def test_cache_key_when_written_is_short_repeatable_and_follows_every_weight(tmp_path):
    conv_net(tmp_path / "in" / MODEL)
    rewrite(tmp_path, "coreml-cache-key")
    first = made(tmp_path)
    key = {e.key: e.value for e in first.metadata_props}[CACHE_KEY]
    assert key.isalnum()
    assert key.isascii()
    assert len(key) <= 64
    assert hash_content(first) == key
    set_metadata(first, CACHE_KEY, "other")
    assert hash_content(first) == key
    keys = {key}
    for n in range(len(first.graph.initializer)):
        changed = onnx.ModelProto()
        changed.CopyFrom(first)
        tensor = changed.graph.initializer[n]
        values = numpy_helper.to_array(tensor).copy()
        values.flat[-1] = np.nextafter(values.flat[-1], np.float32(9))
        tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
        keys.add(hash_content(changed))
    first.graph.node[0].attribute[0].ints[0] = 2
    keys.add(hash_content(first))
    assert len(keys) == len(first.graph.initializer) + 2


def test_cache_key_when_it_is_there_already_is_kept(tmp_path):
    conv_net(tmp_path / "in" / MODEL)
    rewrite(tmp_path, "coreml-cache-key")
    (tmp_path / "again").mkdir()
    step = Rewritten(("coreml-cache-key",))
    notes = run_step(step, {"model": tmp_path / "out"}, tmp_path / "again")
    assert notes.done == "nothing to rewrite"
    assert (tmp_path / "again" / MODEL).read_bytes() == (tmp_path / "out" / MODEL).read_bytes()


def test_rewrites_when_all_are_asked_for_run_in_order(tmp_path):
    conv_net(tmp_path / "in" / MODEL)
    notes = rewrite(tmp_path, *REWRITES)
    assert ops(tmp_path) == ["Conv", "Relu", "GlobalAveragePool", "Reshape", "Gemm"]
    done = {"flatten-to-reshape": 1, "fold-batch-norm": 1, "coreml-cache-key": 1}
    assert notes.facts["rewrites"] == {name: done.get(name, 0) for name in REWRITES}


def test_rewrite_when_unknown_is_refused_with_the_nearest(tmp_path):
    conv_net(tmp_path / "in" / MODEL)
    with pytest.raises(StepError, match="no rewrite 'fold-batchnorm'") as caught:
        rewrite(tmp_path, "fold-batchnorm")
    assert "'fold-batch-norm'" in caught.value.hint


def _other_weights(proto):
    tensor = proto.graph.initializer[0]
    values = numpy_helper.to_array(tensor) * np.float32(1.01)
    tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
    return ["nothing"]


def _other_shape(proto):
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 1
    return ["nothing"]


def _wrong_key(proto):
    set_metadata(proto, CACHE_KEY, "0")
    return ["nothing"]


@pytest.mark.parametrize(
    ("name", "lie", "message"),
    [
        ("flatten-to-reshape", _other_weights, "dB from the model's"),
        ("flatten-to-reshape", _other_shape, "inputs or outputs changed"),
        ("coreml-cache-key", _wrong_key, "is not the key of this model"),
    ],
)
def test_rewrite_when_it_lies_is_caught(tmp_path, monkeypatch, name, lie, message):
    monkeypatch.setitem(rewritten.REWRITES, name, lie)
    conv_net(tmp_path / "in" / MODEL)
    with pytest.raises(StepError, match=message):
        rewrite(tmp_path, name)


@pytest.mark.parametrize(
    ("file", "gone"),
    [
        ("small/cifar10_resnet20_fp32_bn.onnx", {"BatchNormalization", "Flatten"}),
        ("imagenet/mobilenet_v1_0.25_128_fp32.onnx", {"Flatten"}),
        ("imagenet/squeezenet1.1_fp32_opset13_dynbatch.onnx", {"Flatten", "Dropout"}),
        ("audio/gtcrn/gtcrn_simple.onnx", {"BatchNormalization"}),
    ],
)
def test_public_model_when_rewritten_computes_the_same(file, gone, shared_data, tmp_path):
    (tmp_path / "in").mkdir()
    onnx.save(onnx.load(shared_data / file), tmp_path / "in" / MODEL)
    rewrite(tmp_path, *REWRITES)
    assert not gone & set(ops(tmp_path))
    inputs, _ = read_signature(made(tmp_path))
    feed = make_random_inputs(inputs, seed=9)
    old, new = (run_session(make_session(tmp_path / part / MODEL), feed) for part in ("in", "out"))
    for name, values in old.items():
        assert np.allclose(values, new[name], rtol=1e-3, atol=1e-4)
