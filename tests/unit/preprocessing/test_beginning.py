"""What a model does to its input first."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from edgepack.preprocessing.beginning import find_beginning
from onnx import TensorProto, helper

from tests.support.nets import tiny_models

MEAN = np.array([0.485, 0.456, 0.406], np.float32).reshape(1, 3, 1, 1)
STD = np.array([0.229, 0.224, 0.225], np.float32).reshape(1, 3, 1, 1)
CAFFE = np.array([103.9, 116.8, 123.7], np.float32).reshape(1, 3, 1, 1)
HEADS = {
    "pixels": ([("Div", 255.0)], 255.0),
    "to -1": ([("Mul", 1 / 127.5), ("Sub", 1.0)], 255.0),
    "less a mean": ([("Sub", CAFFE)], 255.0),
    "less a mean, added": ([("Add", -CAFFE)], 255.0),
    "imagenet": ([("Sub", MEAN), ("Div", STD)], 1.0),
    "pixels to imagenet": ([("Mul", 1 / 255), ("Sub", MEAN), ("Div", STD)], 255.0),
    "to pixels": ([("Mul", 255.0), ("Sub", CAFFE)], 1.0),
    "half": ([("Sub", 0.5)], 1.0),
    "nothing told": ([("Add", 3.0)], None),
    "none": ([], None),
}


def headed(path, head):
    """A model that begins with such nodes."""
    nodes, weights, tensor = [], [], "x"
    for number, (op, value) in enumerate(head):
        weights.append((f"c{number}", np.asarray(value, np.float32)))
        nodes.append(helper.make_node(op, [tensor, f"c{number}"], [f"t{number}"], f"n{number}"))
        tensor = f"t{number}"
    nodes.append(helper.make_node("Relu", [tensor], ["y"]))
    shape = (TensorProto.FLOAT, [1, 3, 4, 4])
    tiny_models.save(path, nodes, [("x", *shape)], [("y", *shape)], weights)
    return onnx.load(path)


@pytest.mark.parametrize(("head", "highest"), HEADS.values(), ids=HEADS)
def test_beginning_when_nodes_scale_the_input_tells_what_they_take(tmp_path, head, highest):
    found = find_beginning(headed(tmp_path / "m.onnx", head), "x")
    assert found.highest == highest
    assert found.nodes == tuple(f"n{number}" for number in range(len(head)))


def test_beginning_when_it_is_affine_computes_what_the_nodes_do(tmp_path):
    found = find_beginning(headed(tmp_path / "m.onnx", HEADS["pixels to imagenet"][0]), "x")
    given = np.array([0.0, 100.0, 255.0])
    expected = (given / 255 - MEAN.ravel()) / STD.ravel()
    np.testing.assert_allclose(given * found.scale + found.offset, expected, rtol=1e-5)


def test_beginning_when_a_normalization_is_behind_a_conv_finds_it(tmp_path):
    model = onnx.load(tiny_models.conv_net(tmp_path / "m.onnx"))
    found = find_beginning(model, "image").normalization
    assert (found.node, found.tensor, found.direct) == ("bn", "c", False)
    np.testing.assert_allclose(found.variance, np.full(8, 1.5))


def test_beginning_when_several_nodes_read_the_input_tells_nothing(tmp_path):
    model = headed(tmp_path / "m.onnx", HEADS["pixels"][0])
    model.graph.node.append(helper.make_node("Abs", ["x"], ["z"]))
    assert find_beginning(model, "x").nodes == ()
