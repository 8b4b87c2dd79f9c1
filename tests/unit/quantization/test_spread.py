"""Tensors whose parts must not share a Q/DQ pair: found from ranges and structure."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from edgepack.quantization.methods.spread import find_spread_tensors
from edgepack.quantization.ranges.statistics import TensorStatistics
from onnx import TensorProto, helper


def node(op, inputs, outputs, **attributes):
    return helper.make_node(op, inputs.split(), outputs.split(), **attributes)


def graph(nodes, outputs, shapes=()):
    """A model of those nodes; ``shapes`` are of inner tensors and outputs, others are unknown."""
    known = dict(shapes)
    model = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, None)],
        [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, known.get(name))
            for name in outputs.split()
        ],
        value_info=[
            helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
            for name, shape in known.items()
            if name not in outputs.split()
        ],
    )
    return helper.make_model(model)


def reaching(*peaks):
    """Statistics of a tensor with a channel for each of the largest magnitudes."""
    highs = np.array(peaks, np.float32)
    return TensorStatistics(
        low=0.0,
        high=float(highs.max()),
        counts=np.ones(1, np.int64),
        first=0,
        width=float(2 ** np.ceil(np.log2(max(highs.max(), 1)) + 1)),
        channel_low=np.zeros_like(highs),
        channel_high=highs,
        channel_axis=1,
    )


def drawn(values):
    """Statistics of a tensor without channels, as the histogram of its values has them."""
    first = int(np.floor(values.min() / 0.25))
    bins = (np.floor(values.ravel() / 0.25) - first).astype(int)
    counts = np.bincount(bins)
    return TensorStatistics(float(values.min()), float(values.max()), counts, first, 0.25)


def test_concat_when_boxes_are_joined_with_scores_is_found_with_what_is_made_of_it():
    nodes = [
        node("Conv", "x w1", "boxes"),
        node("Conv", "x w2", "logits"),
        node("Sigmoid", "logits", "scores"),
        node("Concat", "boxes scores", "both", axis=1),
        node("Reshape", "both shape", "flat"),
        node("Transpose", "flat", "y"),
    ]
    statistics = {
        "boxes": reaching(640),
        "logits": reaching(9),
        "scores": reaching(0.9),
        **{name: reaching(640, 0.9) for name in ("both", "flat", "y")},
    }
    found = find_spread_tensors(graph(nodes, "y"), statistics)
    assert found.keys() == {"scores", "both", "flat", "y"}
    assert found["both"] == "'boxes' reaches 640, 'scores' only 0.9"
    assert "'both', which stays float" in found["scores"]


@pytest.mark.parametrize(("peak", "is_found"), [(16.0, False), (16.1, True)])
def test_concat_when_its_inputs_differ_is_found_above_sixteenfold_even_before_a_product(
    peak, is_found
):
    nodes = [
        node("Relu", "x", "a"),
        node("Relu", "x", "b"),
        node("Concat", "a b", "c", axis=1),
        node("Conv", "c w", "y"),
    ]
    statistics = {
        "a": reaching(1.0),
        "b": reaching(peak),
        "c": reaching(1.0, peak),
        "y": reaching(1.0),
    }
    # What a product reads is a feature map: the inputs keep their pairs.
    assert find_spread_tensors(graph(nodes, "y"), statistics).keys() == (
        {"c"} if is_found else set()
    )


def test_concat_when_one_input_has_no_statistics_is_found_from_its_own():
    nodes = [
        node("Exp", "x", "sizes"),
        node("Sigmoid", "x", "scores"),
        node("Concat", "sizes scores", "y", axis=1),
    ]
    statistics = {"scores": reaching(0.5), "y": reaching(300, 0.5)}
    assert find_spread_tensors(graph(nodes, "y"), statistics).keys() == {"scores", "y"}


def test_concat_when_a_part_is_always_zero_is_not_found():
    nodes = [
        node("Relu", "x", "a"),
        node("Relu", "x", "b"),
        node("Concat", "a b", "c", axis=1),
        node("Conv", "c w", "y"),
    ]
    statistics = {"a": reaching(0), "b": reaching(50), "c": reaching(0, 50), "y": reaching(1)}
    assert not find_spread_tensors(graph(nodes, "y"), statistics)


def test_channels_when_a_backbone_has_small_ones_are_left_alone():
    nodes = [
        node("Conv", "x w1", "a"),
        node("Relu", "a", "b"),
        node("MaxPool", "b", "c"),
        node("Conv", "c w2", "d"),
        node("GlobalAveragePool", "d", "e"),
        node("Gemm", "e w3", "y"),
    ]
    statistics = {name: reaching(0.01, 3, 80) for name in "abcde"}
    assert not find_spread_tensors(graph(nodes, "y"), statistics)


def test_channels_when_a_skip_from_a_product_reaches_the_output_too_are_left_alone():
    # As in networks for images: the output is a sum of features that a convolution reads as well.
    nodes = [
        node("Conv", "x w1", "a"),
        node("Relu", "a", "b"),
        node("Conv", "b w2", "c"),
        node("Add", "b c", "y"),
    ]
    statistics = {
        "a": reaching(0.01, 80),
        "b": reaching(0.01, 80),
        "c": reaching(1, 1),
        "y": reaching(70, 80),
    }
    assert not find_spread_tensors(graph(nodes, "y"), statistics)


def test_channels_when_one_convolution_makes_boxes_and_scores_are_found_up_to_the_output():
    nodes = [
        node("Conv", "x w1", "head"),
        node("Reshape", "head shape", "flat"),
        node("Transpose", "flat", "y"),
    ]
    statistics = {
        "x": reaching(0.1, 9),
        **{name: reaching(90, 80, 0.9, 0) for name in ("head", "flat", "y")},
    }
    found = find_spread_tensors(graph(nodes, "y"), statistics)
    assert found.keys() == {"head", "flat", "y"}
    assert found["head"] == "channel 0 reaches 90, channel 2 only 0.9"


def test_channels_when_they_are_split_again_leave_each_part_its_pair():
    nodes = [
        node("Conv", "x w1", "head"),
        node("Split", "head sizes", "boxes scores"),
        node("Conv", "boxes w2", "mean"),
        node("Sigmoid", "scores", "likely"),
        node("Concat", "mean likely", "y", axis=1),
    ]
    statistics = {
        "head": reaching(90, 0.5),
        "boxes": reaching(90),
        "scores": reaching(0.5),
        "mean": reaching(60),
        "likely": reaching(0.7),
        "y": reaching(60, 0.7),
    }
    found = find_spread_tensors(graph(nodes, "y"), statistics)
    assert found.keys() == {"head", "scores", "likely", "y"}


def test_channels_when_boxes_go_to_suppression_in_the_graph_are_those_of_a_head():
    nodes = [
        node("Conv", "x w1", "head"),
        node("Slice", "head a b", "boxes"),
        node("Slice", "head b c", "scores"),
        node("NonMaxSuppression", "boxes scores", "y"),
    ]
    statistics = {
        "head": reaching(90, 0.5),
        "boxes": reaching(90, 80),
        "scores": reaching(0.5),
    }
    assert find_spread_tensors(graph(nodes, "y"), statistics).keys() == {"head"}


def test_channels_when_the_output_is_one_vector_of_class_scores_are_left_alone():
    nodes = [node("GlobalAveragePool", "x", "a"), node("Softmax", "a", "y")]
    statistics = {"a": reaching(30, 1), "y": reaching(0.99, 1e-6)}
    shapes = {"a": ["n", 2, 1, 1], "y": ["n", 2, 1, 1]}
    assert not find_spread_tensors(graph(nodes, "y", shapes), statistics)
    found = find_spread_tensors(graph(nodes, "y", {"y": ["n", 2, 8, 8]}), statistics)
    assert found.keys() == {"a", "y"}


def test_spread_when_more_bits_are_at_hand_allows_wider_ranges():
    nodes = [node("Relu", "x", "a"), node("Sigmoid", "x", "b"), node("Concat", "a b", "y", axis=1)]
    statistics = {"a": reaching(640), "b": reaching(1), "y": reaching(640, 1)}
    assert find_spread_tensors(graph(nodes, "y"), statistics)
    assert not find_spread_tensors(graph(nodes, "y"), statistics, similar_range=16.0 * 256)


def stream_net(reader):
    return graph(
        [
            node("Add", "x bias", "sum"),
            node("LayerNormalization", "sum gamma beta", "normed"),
            node(reader, "normed other", "a"),
            node("MatMul", "a w", "y"),
        ],
        "y",
    )


@pytest.fixture
def stream():
    """Values as a residual stream has them: 3 of 384 channels are far larger than the others."""
    values = np.random.default_rng(0).standard_normal((64, 384))
    values[:, [17, 133, 301]] *= 15
    return drawn(values)


def test_stream_when_few_channels_are_large_is_found_on_both_sides_of_its_norm(stream):
    statistics = {"sum": stream, "normed": stream, "a": stream, "y": stream}
    found = find_spread_tensors(stream_net("Mul"), statistics)
    # "a" is what the product reads; its output is the model's.
    assert found.keys() == {"sum", "normed"}
    assert "half of its values" in found["sum"]


def test_stream_when_found_leaves_only_what_products_read_to_be_quantized(stream):
    nodes = [
        node("MatMul", "x w1", "up"),
        node("Gelu", "up", "active"),
        node("MatMul", "active w2", "down"),
        node("Add", "x down", "sum"),
        node("LayerNormalization", "sum gamma beta", "normed"),
        node("Reshape", "normed shape", "heads"),
        node("MatMul", "heads w3", "y"),
    ]
    plain = drawn(np.random.default_rng(0).standard_normal((64, 384)))
    names = ["up", "active", "down", "normed", "heads", "y"]
    statistics = {"sum": stream, **dict.fromkeys(names, plain)}
    found = find_spread_tensors(graph(nodes, "y"), statistics)
    assert found.keys() == {"up", "down", "sum"}
    assert "no product reads it" in found["up"]
    assert not find_spread_tensors(graph(nodes, "y"), {**statistics, "sum": plain})


def test_stream_when_a_product_reads_it_keeps_the_pair_that_the_product_needs(stream):
    statistics = {"sum": stream, "normed": stream, "a": stream, "y": stream}
    assert find_spread_tensors(stream_net("MatMul"), statistics).keys() == {"sum"}


def test_stream_when_no_channel_is_large_is_left_alone():
    plain = drawn(np.random.default_rng(0).standard_normal((64, 384)))
    statistics = {"sum": plain, "normed": plain}
    assert not find_spread_tensors(stream_net("Mul"), statistics)


def test_spread_when_a_graph_is_long_takes_time_in_proportion():
    nodes = [node("Relu", "x", "t0")]
    nodes += [node("Relu", f"t{n}", f"t{n + 1}") for n in range(4000)]
    statistics = {f"t{n}": reaching(640, 1) for n in range(4001)}
    assert len(find_spread_tensors(graph(nodes, "t4000"), statistics)) == 4001


def test_model_when_searched_is_not_changed():
    nodes = [node("Relu", "x", "a"), node("Sigmoid", "x", "b"), node("Concat", "a b", "y", axis=1)]
    model = graph(nodes, "y")
    before = onnx.ModelProto.FromString(model.SerializeToString())
    find_spread_tensors(model, {"a": reaching(640), "b": reaching(1), "y": reaching(640, 1)})
    assert model == before
