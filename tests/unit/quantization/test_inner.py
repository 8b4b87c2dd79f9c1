"""The errors of tensors inside quantized models, and what they decide."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from edgepack.model.facts import read_signature
from edgepack.quantization.qdq.preparation import prepare_model
from edgepack.quantization.qdq.writer import QdqWriter
from edgepack.quantization.search.closeness import Chosen
from edgepack.quantization.search.inner_closeness import InnerCloseness, measure_inner_closeness
from edgepack.samples.sample_set import SampleSet, write_sample_set
from onnx import TensorProto, helper

from tests.support.nets import int8_nets, tiny_models


def losses(*levels, names=("a", "b")):
    return InnerCloseness(names, np.array(levels, np.float64))


def test_comparison_when_one_is_closer_in_most_samples_says_so():
    before = losses([0.1, 0.01], [0.2, 0.01], [0.1, 0.02])
    after = losses([0.05, 0.005], [0.09, 0.006], [0.06, 0.01])
    assert after.judge(before).verdict == "closer"
    assert before.judge(after).verdict == "farther"
    assert before.judge(before).verdict == "unclear"


def test_comparison_when_samples_disagree_is_unclear():
    before = losses([0.1, 0.01], [0.2, 0.01], [0.1, 0.02])
    after = losses([0.01, 0.001], [0.9, 0.1], [0.02, 0.01])
    assert after.judge(before).verdict == "unclear"


def test_comparison_when_models_have_other_tensors_takes_those_of_both():
    before = losses([0.1, 0.01], [0.1, 0.01], names=("a", "b"))
    after = losses([0.5, 0.001], [0.5, 0.001], names=("c", "b"))
    assert after.judge(before).verdict == "closer"
    assert losses([0.5], names=("c",)).judge(before).verdict == "unclear"


def test_losses_when_a_tensor_is_cut_off_are_those_of_it_and_what_follows(tmp_path):
    path = int8_nets.mixed_net(tmp_path / "net.onnx")
    exact = prepare_model(onnx.load(path))
    names = {name for node in exact.graph.node for name in node.output} | {"image"}
    wide = dict.fromkeys(names, (-40.0, 40.0))
    feeds = int8_nets.image_feeds(3)
    (tmp_path / "samples").mkdir()
    named = [(f"sample {n}", feed) for n, feed in enumerate(feeds)]
    write_sample_set(tmp_path / "samples", read_signature(exact)[0], named)
    samples = Chosen(SampleSet.read(tmp_path / "samples"), (0, 1, 2))
    found = []
    for ranges in (wide, {**wide, "a1": (-0.5, 0.5)}):
        onnx.save(QdqWriter(exact, ranges, int8_nets.CPU).write(()), tmp_path / "int8.onnx")
        found.append(measure_inner_closeness(exact, tmp_path / "int8.onnx", samples))
    good, cut = (dict(zip(f.tensors, f.losses.mean(0), strict=True)) for f in found)
    assert good["c3"] == pytest.approx(cut["c3"])
    assert cut["a1"] > 0.5 > 10 * good["a1"]
    assert cut["a2"] > good["a2"]
    assert found[1].judge(found[0]).verdict == "farther"


def selecting(path):
    """A model that keeps its values above 0.49, and a QDQ model of it whose steps are of 0.1."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"], "matmul"),
        helper.make_node("Squeeze", ["a", "one"], ["flat"], "flatten"),
        helper.make_node("Greater", ["flat", "least"], ["is_large"], "compare"),
        helper.make_node("Compress", ["a", "is_large"], ["large"], "select", axis=0),
        helper.make_node("Mul", ["large", "large"], ["y"], "square"),
    ]
    constants = [("w", np.ones((1, 1), np.float32)), ("one", np.array([1]))]
    constants.append(("least", np.float32(0.49)))
    ends = ([("x", TensorProto.FLOAT, [3, 1])], [("y", TensorProto.FLOAT, None)])
    exact = prepare_model(onnx.load(tiny_models.save(path, nodes, *ends, constants)))
    names = {name for node in exact.graph.node for name in node.output} | {"x"}
    return exact, QdqWriter(exact, dict.fromkeys(names, (0.0, 25.5)), int8_nets.CPU).write(())


def test_losses_when_int8_keeps_other_values_are_all_of_these_tensors(tmp_path):
    exact, written = selecting(tmp_path / "net.onnx")
    onnx.save(written, tmp_path / "int8.onnx")
    # 0.48 becomes 0.5.
    feed = {"x": np.array([[0.1], [0.48], [3]], np.float32)}
    (tmp_path / "samples").mkdir()
    write_sample_set(tmp_path / "samples", read_signature(exact)[0], [("sample", feed)])
    chosen = Chosen(SampleSet.read(tmp_path / "samples"), (0,))
    found = measure_inner_closeness(exact, tmp_path / "int8.onnx", chosen)
    losses = dict(zip(found.tensors, found.losses[0].tolist(), strict=True))
    assert losses["a"] < 1e-3
    assert losses["large"] == losses["y"] == 1


def test_losses_when_nothing_has_a_pair_are_none(tmp_path):
    path = tiny_models.relu(tmp_path / "net.onnx")
    model = onnx.load(path)
    (tmp_path / "samples").mkdir()
    sample = ("sample", {"x": np.ones((1, 4), np.float32)})
    write_sample_set(tmp_path / "samples", read_signature(model)[0], [sample])
    chosen = Chosen(SampleSet.read(tmp_path / "samples"), (0,))
    found = measure_inner_closeness(model, path, chosen)
    assert found.tensors == ()
    assert found.judge(found).verdict == "unclear"
