"""Scaled channels: the same function, more of the range used."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from edgepack.project.profile import Dialect
from edgepack.quantization.methods.channels import find_channel_groups
from edgepack.quantization.methods.cross_layer_equalization import equalize_layers
from edgepack.quantization.qdq.kept_float import keep_float, write_qdq
from edgepack.quantization.qdq.writer import QdqWriter
from onnx import numpy_helper

from tests.support.nets.equalization_nets import Net, images, run, sqnr_db, statistics_of

U8 = Dialect(activations="uint8", weights="int8", symmetric=False, per_channel=True)


def chain():
    """Convolutions with all that factors go through."""
    net = Net()
    net.conv("x", "a", (8, 3, 3, 3), spread=2, pads=[1] * 4).add("Relu", "a", "ar")
    net.conv("ar", "d", (8, 1, 3, 3), spread=1, pads=[1] * 4, group=8)
    net.add("LeakyRelu", "d", "dr", alpha=0.1)
    net.add("MaxPool", "dr", "p", kernel_shape=[2, 2], strides=[2, 2])
    net.conv("p", "e", (4, 8, 1, 1), spread=2).conv("p", "f", (4, 4, 1, 1), spread=2, group=2)
    net.add("Relu", "f", "fr").add("Concat", "e fr", "c", axis=1)
    net.conv("c", "t", (8, 3, 2, 2), op="ConvTranspose", strides=[2, 2], group=2)
    for name, values in (("s", 2), ("o", 0.3), ("m", 0.1), ("v", 1.5)):
        net.constant(name, np.full(6, values, np.float32))
    net.add("BatchNormalization", "t s o m v", "n").add("Split", "n", "y z", axis=1)
    net.add("Add", "y z", "r").constant("pads", [0, 0, 1, 1, 0, 2, 0, 0]).add("Pad", "r pads", "q")
    net.add("AveragePool", "q", "h", kernel_shape=[3, 3]).add("Flatten", "h", "l")
    return net


def ended(net, columns=5 * 7 * 7):
    net.constant("g", net.random.normal(size=(5, columns)).astype(np.float32))
    net.constant("gb", np.zeros(5, np.float32))
    return net.add("Gemm", "l g gb", "out", transB=1).model("out")


def with_activations_rounded(model, ranges):
    writer = QdqWriter(model, ranges, U8)
    rounded = write_qdq(writer, writer.explain_unusable(), {n.name for n in model.graph.node})
    keep_float(rounded)
    return rounded


def limits(statistics):
    return {name: (known.low, known.high) for name, known in statistics.items()}


def test_equalized_when_all_operators_pass_factors_on_computes_the_same(tmp_path):
    model = ended(chain())
    feeds = images(8)
    found = equalize_layers(model, statistics_of(model, feeds, tmp_path), 1.0)
    assert {"a", "ar", "d", "dr", "p", "e", "c", "t", "n", "r", "q", "h", "l"} <= set(found.factors)
    assert found.factors["ar"].max() > 10
    np.testing.assert_allclose(run(found.model, feeds), run(model, feeds), rtol=1e-3, atol=1e-5)


def test_equalized_when_run_has_the_ranges_it_says_and_none_is_wider(tmp_path):
    model = ended(chain())
    feeds = images(8)
    before = statistics_of(model, feeds, tmp_path)
    found = equalize_layers(model, before, 1.0)
    after = statistics_of(found.model, feeds, tmp_path)
    assert {"ar", "dr", "c", "n"} <= set(found.ranges)
    for name, (low, high) in found.ranges.items():
        assert (low, high) == pytest.approx((after[name].low, after[name].high), rel=1e-4, abs=1e-6)
        if name not in ("a", "f"):  # Only a Relu reads these.
            assert high <= before[name].high * 1.0001
            assert min(low, 0) >= min(before[name].low, 0) * 1.0001 - 1e-9
    full = after["ar"].channel_high
    assert (full[full > 0] > 0.999 * before["ar"].high).sum() > 4


def test_equalized_when_narrow_channels_matter_makes_uint8_activations_more_exact(tmp_path):
    net = Net().conv("x", "a", (8, 3, 3, 3), spread=1.5).add("Relu", "a", "ar")
    net.conv("ar", "out", (6, 8, 3, 3))
    gain = np.abs(net.constants["w_a"]).max(axis=(1, 2, 3)).reshape(1, 8, 1, 1)
    net.constants["w_out"] /= gain
    model = net.model("out")
    before = statistics_of(model, images(32), tmp_path)
    feeds = images(32, seed=2)
    expected = run(model, feeds)
    found = equalize_layers(model, before, 0.75)
    plain = run(with_activations_rounded(model, limits(before)), feeds)
    ranges = {**limits(before), **found.ranges}
    better = run(with_activations_rounded(found.model, ranges), feeds)
    assert sqnr_db(expected, better) > sqnr_db(expected, plain) + 3


def test_equalized_when_below_a_clip_leaves_what_it_cuts_off_and_keeps_the_rest_inside(
    tmp_path,
):
    net = Net().conv("x", "a", (6, 3, 1, 1), spread=2)
    net.constants["w_a"][0] *= 1000
    net.constant("zero", np.float32(0)).constant("six", np.float32(6))
    net.add("Clip", "a zero six", "ar").conv("ar", "out", (2, 6, 1, 1))
    model = net.model("out")
    feeds = images(8)
    before = statistics_of(model, feeds, tmp_path)
    assert equalize_layers(model, before, 1.0).factors == {}
    found = equalize_layers(model, before, 1.0, below_clips=True)
    cut = before["ar"].channel_high >= 6
    assert cut.any()
    assert not cut.all()
    assert (found.factors["ar"][cut] == 1).all()
    assert (found.factors["ar"][~cut] > 1).all()
    assert (found.factors["ar"] * before["ar"].channel_high <= 6.0001).all()
    np.testing.assert_allclose(run(found.model, feeds), run(model, feeds), rtol=1e-3, atol=1e-4)


def test_equalized_when_a_branch_is_added_shares_its_factors():
    net = Net().conv("x", "a", (4, 3, 1, 1)).conv("x", "b", (4, 3, 1, 1)).add("Add", "a b", "s")
    net.conv("s", "out", (2, 4, 1, 1))
    groups = find_channel_groups(net.model("out"))
    assert (groups.channels["a"] == groups.channels["b"]).all()
    assert (groups.channels["s"] == groups.channels["b"]).all()
    assert len(set(groups.channels["a"].tolist())) == 4
    assert not groups.fixed[groups.channels["a"]].any()


def test_groups_when_an_operator_does_not_commute_are_fixed_and_behind_a_gate_are_not():
    net = Net().conv("x", "a", (4, 3, 1, 1)).add("Relu", "a", "ar")
    net.add("GlobalAveragePool", "x", "m").conv("m", "e", (4, 3, 1, 1)).add("Sigmoid", "e", "gate")
    net.add("Mul", "ar gate", "k").conv("k", "b", (4, 4, 1, 1)).add("Tanh", "b", "t")
    net.conv("t", "out", (2, 4, 1, 1))
    groups = find_channel_groups(net.model("out"))
    for name, fixed in (("ar", False), ("k", False), ("e", True), ("b", True), ("out", True)):
        assert groups.fixed[groups.channels[name]].tolist() == [fixed] * len(groups.channels[name])
    assert "t" not in groups.channels
    assert "gate" not in groups.channels


def test_equalized_when_slopes_are_an_activation_leaves_what_makes_them(tmp_path):
    net = Net().conv("x", "a", (3, 3, 1, 1), spread=2).add("Relu", "a", "slopes")
    model = net.add("PRelu", "x slopes", "p").conv("p", "out", (2, 3, 1, 1)).model("out")
    feeds = images(4)
    found = equalize_layers(model, statistics_of(model, feeds, tmp_path), 1.0)
    assert "slopes" not in found.factors
    np.testing.assert_allclose(run(found.model, feeds), run(model, feeds), rtol=1e-3, atol=1e-5)


def test_equalized_when_weights_are_shared_gives_each_reader_its_own(tmp_path):
    net = Net().conv("x", "a", (3, 3, 1, 1), spread=2).add("Relu", "a", "ar")
    net.add("Conv", "ar w_a b_a", "b").add("Relu", "b", "br").conv("br", "out", (2, 3, 1, 1))
    model = net.model("out")
    feeds = images(4)
    found = equalize_layers(model, statistics_of(model, feeds, tmp_path), 1.0)
    assert found.factors
    np.testing.assert_allclose(run(found.model, feeds), run(model, feeds), rtol=1e-3, atol=1e-5)
    shared = {t.name: t for t in found.model.graph.initializer}["w_a"]
    np.testing.assert_array_equal(numpy_helper.to_array(shared), net.constants["w_a"])


def test_equalized_when_nothing_can_be_scaled_returns_the_model_as_it_is(tmp_path):
    model = Net().conv("x", "a", (3, 3, 1, 1), spread=2).add("Tanh", "a", "out").model("out")
    found = equalize_layers(model, statistics_of(model, images(2), tmp_path), 0.75)
    assert (found.factors, found.ranges) == ({}, {})
    assert found.model.SerializeToString() == model.SerializeToString()


def test_equalized_when_a_channel_is_always_zero_leaves_it(tmp_path):
    net = Net().conv("x", "a", (3, 3, 1, 1), spread=1).add("Relu", "a", "ar")
    net.constants["w_a"][1] = 0
    net.constants["b_a"][1] = -1
    model = net.conv("ar", "out", (2, 3, 1, 1)).model("out")
    found = equalize_layers(model, statistics_of(model, images(2), tmp_path), 0.75)
    assert found.factors["ar"][1] == 1
    onnx.checker.check_model(found.model)
