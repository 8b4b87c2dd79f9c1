"""Inputs whose values decide shapes, and outputs whose size the data decide."""

from __future__ import annotations

import numpy as np
import pytest
from edgepack.model.deciding import find_shape_inputs
from onnx import TensorProto, helper

from tests.support.nets import tiny_models

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64


def reasons(path):
    return [(found.node, found.reason) for found in find_shape_inputs(path)]


@pytest.mark.parametrize(
    ("op", "inputs"),
    [
        ("Reshape", ["x", "s"]),
        ("Expand", ["x", "s"]),
        ("Slice", ["x", "s", "two"]),
        ("Resize", ["x", "", "", "s"]),
        ("Tile", ["x", "s"]),
    ],
)
def test_input_whose_values_decide_a_shape_is_named_with_the_node(tmp_path, op, inputs):
    nodes = [
        helper.make_node("Identity", ["given"], ["s"]),
        helper.make_node(op, inputs, ["y"], "here"),
    ]
    ends = [("x", FLOAT, [1, 4]), ("given", INT64, [2])], [("y", FLOAT, ["a", "b"])]
    path = tiny_models.save(tmp_path / "m.onnx", nodes, *ends, [("two", np.array([1, 2]))])
    expected = f"'here' ({op})", "the values of the input 'given' decide a shape"
    assert reasons(path) == [expected]


def test_shape_that_follows_from_an_inputs_shape_is_not_decided_by_values(tmp_path):
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Reshape", ["x", "s"], ["y"], "here"),
    ]
    ends = [("x", FLOAT, ["n", 4])], [("y", FLOAT, ["n", 4])]
    assert reasons(tiny_models.save(tmp_path / "m.onnx", nodes, *ends)) == []


def places(path, size, source="x"):
    """Write a model of the places where ``source`` is not 0, [2, size]."""
    nodes = [
        helper.make_node("NonZero", [source], ["w"], "where"),
        helper.make_node("Identity", ["w"], ["y"]),
    ]
    ends = [("x", FLOAT, [1, 4])], [("y", INT64, [2, size])]
    return tiny_models.save(path, nodes, *ends, [("ones", np.ones((1, 4), np.float32))])


def test_output_whose_size_the_data_decide_is_named_with_the_node(tmp_path):
    expected = "'where' (NonZero)", "the size of 'y' may depend on the data"
    assert reasons(places(tmp_path / "m.onnx", "n")) == [expected]


@pytest.mark.parametrize(("size", "source"), [(4, "x"), ("n", "ones")])
def test_output_of_a_known_size_or_of_constants_is_not(tmp_path, size, source):
    assert reasons(places(tmp_path / "m.onnx", size, source)) == []
