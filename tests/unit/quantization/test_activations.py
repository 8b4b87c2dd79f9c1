"""Choosing how activations are quantized: tried with exact weights, kept if outputs are closer."""

from __future__ import annotations

import gc
import weakref
from dataclasses import dataclass, replace

import numpy as np
import onnx
import pytest
from edgepack.model.reading import write_model
from edgepack.project.profile import Dialect
from edgepack.quantization.qdq.kept_float import write_qdq
from edgepack.quantization.qdq.writer import QdqWriter
from edgepack.quantization.ranges.methods import find_range
from edgepack.quantization.search.activations import (
    Activations,
    ExactWeightsJudge,
    choose_activations,
)
from edgepack.quantization.search.closeness import Chosen, FloatOutputs, HeldOut
from onnx import TensorProto, helper

from tests.support.nets.equalization_nets import Net, images, run, sqnr_db, statistics_of

U8 = Dialect(activations="uint8", weights="int8", symmetric=False, per_channel=True)


@dataclass
class Samples:
    """As much of a sample set as a judge reads."""

    feeds: list

    def read_inputs(self, index):
        return self.feeds[index]


def net(spread):
    made = Net().conv("x", "a", (8, 3, 3, 3), spread=spread, pads=[1] * 4).add("Relu", "a", "ar")
    made.conv("ar", "d", (8, 1, 3, 3), group=8).add("Relu", "d", "dr")
    # What is narrow is read with large weights, as trained networks do.
    made.conv("dr", "out", (6, 8, 1, 1))
    gain = np.abs(made.constants["w_a"]).max(axis=(1, 2, 3)).reshape(1, 8, 1, 1)
    made.constants["w_out"] /= gain
    return made


def judged(model, tmp_path):
    statistics = statistics_of(model, images(24), tmp_path)
    start = Activations.of(model, statistics)
    write_model(model, tmp_path / "float.onnx")
    held_out = HeldOut(
        FloatOutputs(tmp_path / "float.onnx", Chosen(Samples(images(8, seed=5)), tuple(range(8))))
    )
    return start, ExactWeightsJudge(QdqWriter(model, start.ranges, U8), held_out)


def test_choice_when_channels_differ_keeps_equalized_ones_and_says_all_it_tried(tmp_path):
    start, judge = judged(net(1.5).model("out"), tmp_path)
    best, tried = choose_activations(start, judge)
    kept = [each for each in tried if each.accepted]
    assert kept[0] is tried[0]
    assert any("equalized" in each.what for each in kept)
    assert len(tried) == 1 + 2 + 3
    reached = [each.sqnr_db for each in kept]
    assert reached == sorted(reached)
    assert reached[-1] > reached[0] + 1
    assert reached == pytest.approx([*reached[:-1], judge.measure_closeness(best).sqnr_db])
    feeds = images(8, seed=6)
    np.testing.assert_allclose(
        run(best.model, feeds), run(start.model, feeds), rtol=1e-3, atol=1e-3
    )


def test_choice_when_many_are_tried_keeps_no_model_but_the_best(tmp_path):
    start, judge = judged(net(1.5).model("out"), tmp_path)
    seen = []

    class Watching(ExactWeightsJudge):
        def measure_closeness(self, activations):
            seen.append(weakref.ref(activations))
            return super().measure_closeness(activations)

    best, tried = choose_activations(start, Watching(judge.writer, judge.held_out))
    gc.collect()
    assert len(seen) == len(tried)
    assert {id(found) for each in seen if (found := each()) is not None} == {id(start), id(best)}


def test_choice_when_nothing_is_closer_is_what_was_there(tmp_path):
    model = Net().add("Relu", "x", "out").model("out")
    start, judge = judged(model, tmp_path)
    best, tried = choose_activations(start, judge)
    assert best is start
    assert [each.accepted for each in tried] == [True, False, False, False]


@pytest.mark.parametrize(("wide", "levels"), [((), 256), (("x",), 65536)])
def test_ranges_when_a_tensor_has_16_bits_are_for_its_steps(tmp_path, wide, levels):
    start, judge = judged(net(0).model("out"), tmp_path)
    seen = []

    class Watching(ExactWeightsJudge):
        def measure_closeness(self, activations):
            seen.append(activations.ranges["x"])
            return super().measure_closeness(activations)

    choose_activations(start, Watching(replace(judge.writer, wide=frozenset(wide)), judge.held_out))
    due = [
        find_range(start.statistics["x"], "mse", levels=each, symmetric=False)
        for each in (levels, 256 + 65536 - levels)
    ]
    assert seen[-1] == due[0] != due[1]


def test_choice_when_a_range_is_blown_up_by_one_value_cuts_it_off(tmp_path):
    model = net(0).model("out")
    _, judge = judged(model, tmp_path)
    feeds = images(24)
    feeds[0]["x"][0, 0, 0, 0] = 500
    statistics = statistics_of(model, feeds, tmp_path)
    # One of half a million.
    counts = statistics["x"].counts * 100
    counts[-1] = 1
    statistics["x"] = replace(statistics["x"], counts=counts)
    start = Activations.of(model, statistics)
    best, tried = choose_activations(start, judge)
    assert "ranges for" in [each for each in tried if each.accepted][-1].what
    assert best.ranges["x"][1] < 10


def test_judge_when_activations_alone_are_rounded_leaves_out_what_weights_cost(tmp_path):
    start, judge = judged(net(0).model("out"), tmp_path)
    feeds = images(8, seed=5)
    writer = QdqWriter(start.model, start.ranges, U8)
    whole = sqnr_db(run(start.model, feeds), run(writer.write(()), feeds))
    assert judge.measure_closeness(start).sqnr_db > 0
    exact = write_qdq(writer, (), {n.name for n in start.model.graph.node})
    conversions = [n for n in exact.graph.node if n.op_type == "DequantizeLinear"]
    assert len(conversions) == sum(n.op_type == "QuantizeLinear" for n in exact.graph.node)
    alone = sqnr_db(run(start.model, feeds), run(exact, feeds))
    assert whole == pytest.approx(alone, abs=15)
    names = {tensor.name for tensor in exact.graph.initializer}
    assert {"w_a", "b_a", "w_d", "w_out"} <= names


def branch(output, *nodes):
    """The body of an If."""
    value = helper.make_tensor_value_info(output, TensorProto.FLOAT, [1, 4, 8, 8])
    return helper.make_graph(list(nodes), f"{output}_branch", [], [value])


def test_exact_constants_when_only_a_body_or_an_output_reads_some_leave_them_there(tmp_path):
    made = Net().conv("x", "a", (4, 3, 1, 1))
    for name, value in (("offset", 7.0), ("factor", 3.0), ("told", 5.0)):
        made.constant(name, np.float32([value]))
    made.constant("condition", np.array([True]))
    inner = helper.make_node("Mul", ["a", "factor"], ["product"])
    made.add(
        "If",
        "condition",
        "y",
        then_branch=branch("sum", inner, helper.make_node("Add", ["product", "offset"], ["sum"])),
        else_branch=branch("copy", helper.make_node("Identity", ["a"], ["copy"])),
    )
    model = made.model("y")
    model.graph.output.append(helper.make_tensor_value_info("told", TensorProto.FLOAT, [1]))
    feeds = images(4)
    ranges = {name: (s.low, s.high) for name, s in statistics_of(model, feeds, tmp_path).items()}
    exact = write_qdq(QdqWriter(model, ranges, U8), (), {n.name for n in model.graph.node})
    assert any(node.op_type == "QuantizeLinear" for node in exact.graph.node)
    names = {tensor.name for tensor in exact.graph.initializer}
    assert {"w_a", "offset", "factor", "told"} <= names
    assert not {name for name in names if name.startswith("w_a_")}, "nothing reads the integers"
    onnx.checker.check_model(exact)
    assert sqnr_db(run(model, feeds), run(exact, feeds)) > 30
