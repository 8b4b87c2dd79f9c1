"""Choosing how activations are quantized: tried with exact weights, kept if outputs are closer."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from edgepack.model.reading import write_model
from edgepack.profile import Dialect
from edgepack.quantization.activations import (
    Activations,
    ExactWeightsJudge,
    choose_activations,
    with_exact_constants,
)
from edgepack.quantization.closeness import Chosen, FloatOutputs, HeldOut
from edgepack.quantization.writer import QdqWriter
from equalization_nets import Net, images, run, sqnr_db, statistics_of

U8 = Dialect(activations="uint8", weights="int8", symmetric=False, per_channel=True)


@dataclass
class Samples:
    """As much of a sample set as a judge reads."""

    feeds: list

    def inputs(self, index):
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
    tried = choose_activations(start, judge)
    assert tried[0].activations is start
    kept = [candidate for candidate in tried if candidate.is_kept]
    assert any("equalized" in candidate.what for candidate in kept)
    assert len(tried) == 1 + 2 + 3
    best = [candidate.closeness.sqnr_db for candidate in kept]
    assert best == sorted(best)
    assert best[-1] > best[0] + 1
    feeds = images(8, seed=6)
    np.testing.assert_allclose(
        run(kept[-1].activations.model, feeds), run(start.model, feeds), rtol=1e-3, atol=1e-3
    )


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
    kept = [c for c in choose_activations(start, judge) if c.is_kept]
    assert "ranges for" in kept[-1].what
    assert kept[-1].activations.ranges["x"][1] < 10


def test_judge_when_activations_alone_are_rounded_leaves_out_what_weights_cost(tmp_path):
    start, judge = judged(net(0).model("out"), tmp_path)
    feeds = images(8, seed=5)
    writer = QdqWriter(start.model, start.ranges, U8)
    whole = sqnr_db(run(start.model, feeds), run(writer.write(()), feeds))
    assert judge.closeness(start).sqnr_db > 0
    exact = with_exact_constants(writer.write(()), start.model)
    conversions = [n for n in exact.graph.node if n.op_type == "DequantizeLinear"]
    assert len(conversions) == sum(n.op_type == "QuantizeLinear" for n in exact.graph.node)
    alone = sqnr_db(run(start.model, feeds), run(exact, feeds))
    assert whole == pytest.approx(alone, abs=15)
    names = {tensor.name for tensor in exact.graph.initializer}
    assert {"w_a", "b_a", "w_d", "w_out"} <= names
