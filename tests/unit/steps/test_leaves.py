from __future__ import annotations

import numpy as np
import pytest
from edgepack.steps.proofs.leaves import MOST_ROWS, make_leaf_rows
from onnx import helper

from tests.support.nets.tree_nets import leaf, split, write_trees


def above(value):
    return np.nextafter(np.float32(value), np.float32(np.inf))


def below(value):
    return np.nextafter(np.float32(value), np.float32(-np.inf))


@pytest.mark.parametrize(
    ("mode", "edges"),
    [
        ("BRANCH_LEQ", (0.5, above(0.5))),
        ("BRANCH_LT", (below(0.5), 0.5)),
        ("BRANCH_GT", (above(0.5), 0.5)),
        ("BRANCH_GTE", (0.5, below(0.5))),
    ],
)
def test_rows_lie_on_a_threshold_and_just_beyond_it(tmp_path, mode, edges):
    found = make_leaf_rows(write_trees(tmp_path, [[split(mode, 1, 0.5), leaf(1), leaf(2)]]))
    assert set(found["x"][:, 1]) == {np.float32(edge) for edge in edges}
    assert not found["x"][:, [0, 2]].any()


def test_rows_when_a_feature_is_split_again_lie_at_both_ends_of_what_is_left(tmp_path):
    tree = [
        split("BRANCH_LEQ", 0, 2.0),
        split("BRANCH_LEQ", 0, -1.0, 3, 4),
        leaf(1),
        leaf(2),
        leaf(3),
    ]
    found = make_leaf_rows(write_trees(tmp_path, [tree]))["x"][:, 0]
    assert set(found) == {above(2.0), np.float32(-1.0), above(-1.0), np.float32(2.0)}


def test_rows_when_a_category_is_equal_have_it(tmp_path):
    tree = [split("BRANCH_EQ", 2, 4.0), leaf(1), split("BRANCH_EQ", 2, 7.0, 3, 4), leaf(2), leaf(3)]
    found = make_leaf_rows(write_trees(tmp_path, [tree]))["x"][:, 2]
    assert set(found) == {np.float32(4), np.float32(7), np.float32(0)}


def test_rows_when_a_threshold_is_next_to_zero_keep_clear_of_it(tmp_path):
    for value, edges in ((1e-35, {0.0, 1e-30}), (-1e-35, {-1e-30, 0.0}), (0.0, {0.0, 1e-30})):
        path = write_trees(tmp_path, [[split("BRANCH_LEQ", 0, value), leaf(1), leaf(2)]])
        assert set(make_leaf_rows(path)["x"][:, 0]) == {np.float32(edge) for edge in edges}


def test_rows_when_two_classes_are_equally_good_are_left_out(tmp_path):
    def tree(first, second):
        return [split("BRANCH_LEQ", 0, 1.0), leaf(first), leaf(second)]

    path = write_trees(tmp_path, [tree(0, 2), tree(1, 2)], op="TreeEnsembleClassifier")
    assert set(make_leaf_rows(path)["x"][:, 0]) == {above(1.0)}


def test_rows_of_many_leaves_are_spread_over_all_trees(tmp_path):
    trees = [[split("BRANCH_LEQ", 0, float(n)), leaf(1), leaf(2)] for n in range(1, 3001)]
    found = make_leaf_rows(write_trees(tmp_path, trees))["x"]
    assert MOST_ROWS / 2 <= len(found) <= MOST_ROWS
    assert found[:, 0].max() > 2900


@pytest.mark.parametrize(
    "changed", [{"batch": 1}, {"before": [helper.make_node("Exp", ["x"], ["t"])]}]
)
def test_rows_when_the_model_does_not_begin_with_trees_or_takes_one_are_none(tmp_path, changed):
    tree = [split("BRANCH_LEQ", 0, 1.0), leaf(1), leaf(2)]
    assert make_leaf_rows(write_trees(tmp_path, [tree], **changed)) is None
