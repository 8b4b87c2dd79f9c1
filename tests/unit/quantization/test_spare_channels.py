"""Channels that are always zero: copies of others in their place."""

from __future__ import annotations

import numpy as np
import pytest
from edgepack.project.profile import Dialect
from edgepack.quantization.methods.spare_channels import duplicate_channels
from edgepack.quantization.qdq.kept_float import keep_float, write_qdq
from edgepack.quantization.qdq.writer import QdqWriter

from tests.support.nets.equalization_nets import Net, images, run, sqnr_db, statistics_of

U8 = Dialect(activations="uint8", weights="int8", symmetric=False, per_channel=True)
S8 = Dialect(activations="int8", weights="int8", symmetric=True, per_channel=True, bias="float32")
SPARE = [1, 3]


def separable(act="Relu", pads=0):
    """A pointwise, a depthwise and a pointwise convolution; two channels are always 0.

    The others are positive: a large bias keeps them away from 0.
    """
    net = Net().conv("x", "a", (4, 3, 1, 1), bias=0)
    net.constants["b_a"] = np.array([5, -1, 4, -0.1], np.float32)
    net.constants["w_a"] *= 0.3
    net.constants["w_a"][SPARE] = 0
    net.constant("zero", np.float32(0)).constant("six", np.float32(6.5))
    ends = " zero six" if act == "Clip" else ""
    # The widest channel has no room for a copy, so another one is.
    net.constants["b_a"][0] = 3
    net.constants["w_a"][0] *= 0.5
    net.add(act, "a" + ends, "ar").conv("ar", "d", (4, 1, 3, 3), group=4, pads=[pads] * 4)
    net.constants["b_d"] = np.array([5, 0.5, 5, -0.2], np.float32)
    net.add("Relu", "d", "dr").conv("dr", "out", (6, 4, 1, 1))
    return net


def plain(readers=1):
    net = Net().conv("x", "a", (5, 3, 1, 1), bias=0).add("Relu", "a", "ar")
    net.constants["w_a"] *= np.array([0.1, 0, 0.2, 0, 0.3], np.float32).reshape(5, 1, 1, 1)
    net.constants["b_a"] = np.array([2, -1, 2, -1, 5], np.float32)
    for k in range(readers):
        net.conv("ar", f"c{k}", (4, 5, 3, 3))
        # The widest channel, for a copy of which there is no room, hardly matters.
        net.constants[f"w_c{k}"][:, 4] *= 0.01
    return net.add("Concat", " ".join(f"c{k}" for k in range(readers)), "out", axis=1)


def rounded_error(model, statistics, dialect, feeds, expected):
    ranges = {name: (known.low, known.high) for name, known in statistics.items()}
    writer = QdqWriter(model, ranges, dialect)
    written = write_qdq(writer, writer.explain_unusable(), {n.name for n in model.graph.node})
    keep_float(written)
    return sqnr_db(expected - expected.mean(0), run(written, feeds) - expected.mean(0))


@pytest.mark.parametrize("make", [separable, lambda: plain(2), lambda: separable("Clip")])
def test_duplicated_when_channels_are_spare_computes_the_same_with_copies_in_them(make, tmp_path):
    model = make().model("out")
    feeds = images(6)
    found = duplicate_channels(model, statistics_of(model, feeds, tmp_path), U8)
    assert set(found.copies) == {"ar"}
    assert set(found.copies["ar"]) == set(SPARE)
    assert not set(found.copies["ar"].values()) & set(SPARE)
    np.testing.assert_allclose(run(found.model, feeds), run(model, feeds), rtol=1e-4, atol=1e-4)


def test_duplicated_when_run_has_the_channels_that_its_statistics_say(tmp_path):
    model = separable().model("out")
    feeds = images(6)
    found = duplicate_channels(model, statistics_of(model, feeds, tmp_path), U8)
    after = statistics_of(found.model, feeds, tmp_path)
    for name in ("a", "ar", "d", "dr"):
        for end in ("channel_low", "channel_high"):
            known = getattr(found.statistics[name], end)
            np.testing.assert_allclose(known, getattr(after[name], end), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dialect", [U8, S8])
def test_duplicated_when_activations_are_rounded_makes_them_more_exact(dialect, tmp_path):
    model = plain().model("out")
    statistics = statistics_of(model, images(16), tmp_path)
    feeds = images(16, seed=3)
    expected = run(model, feeds)
    found = duplicate_channels(model, statistics, dialect)
    before = rounded_error(model, statistics, dialect, feeds, expected)
    after = rounded_error(found.model, found.statistics, dialect, feeds, expected)
    assert after > before + 1


def test_duplicated_when_padding_meets_a_moved_copy_differs_by_less_than_a_step(tmp_path):
    model = separable(pads=1).model("out")
    feeds = images(6)
    statistics = statistics_of(model, feeds, tmp_path)
    found = duplicate_channels(model, statistics, U8)
    assert found.copies
    step = statistics["ar"].high / 255
    reach = np.abs(found_weights(model, "w_d")).sum() * np.abs(found_weights(model, "w_out")).sum()
    difference = np.abs(run(found.model, feeds) - run(model, feeds)).max()
    assert 0 < difference < step * reach


def found_weights(model, name):
    from onnx import numpy_helper

    return next(numpy_helper.to_array(t) for t in model.graph.initializer if t.name == name)


def in_use(net):
    net.constants["b_a"][SPARE] = 0.1
    return net


def active(net):
    net.constants["w_a"][SPARE] = 0.5
    return net


def summed(net):
    return net.add("Add", "ar ar", "more").add("ReduceMax", "more", "second")


def reaching_zero(net):
    net.constants["b_a"] = np.array([0, -1, 0, -1, 0], np.float32)
    return net


@pytest.mark.parametrize("change", [in_use, active, reaching_zero])
def test_duplicated_when_no_channel_is_spare_or_fit_to_copy_returns_the_model(change, tmp_path):
    model = change(plain()).model("out")
    found = duplicate_channels(model, statistics_of(model, images(4), tmp_path), U8)
    assert found.copies == {}
    assert found.model.SerializeToString() == model.SerializeToString()


def test_duplicated_when_groups_have_two_inputs_returns_the_model(tmp_path):
    net = Net().conv("x", "a", (4, 3, 1, 1), bias=0).add("Relu", "a", "ar")
    net.constants["w_a"] *= np.array([0.1, 0, 0.2, 0], np.float32).reshape(4, 1, 1, 1)
    net.constants["b_a"] = np.array([2, -1, 2, -1], np.float32)
    net.conv("ar", "d", (2, 2, 3, 3), group=2).add("Relu", "d", "dr").conv(
        "dr", "out", (6, 2, 1, 1)
    )
    model = net.model("out")
    found = duplicate_channels(model, statistics_of(model, images(4), tmp_path), U8)
    assert found.copies == {}
    assert found.model.SerializeToString() == model.SerializeToString()


def test_duplicated_when_something_else_reads_the_channels_returns_the_model(tmp_path):
    model = summed(plain()).model("out second")
    assert duplicate_channels(model, statistics_of(model, images(4), tmp_path), U8).copies == {}


def test_duplicated_when_steps_are_of_16_bits_returns_the_model(tmp_path):
    model = plain().model("out")
    wide = U8.model_copy(update={"activations": "uint16"})
    assert duplicate_channels(model, statistics_of(model, images(2), tmp_path), wide).copies == {}
