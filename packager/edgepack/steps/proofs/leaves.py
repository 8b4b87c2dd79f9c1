"""Rows that reach every leaf of a model's trees, at the edges of what leads there.

Samples reach few of a forest's leaves, and random numbers fewer. These rows are made from the trees
themselves: one row for each leaf lies on the thresholds of its path, one just beyond them, so that
a threshold that is another in the framework, however little, sends one of the two elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx

from edgepack.base.arrays import Array
from edgepack.model.running import Arrays, make_session, run_session

MOST_ROWS = 4096
_TREES = ("TreeEnsembleClassifier", "TreeEnsembleRegressor")
_TIE = 1e-4
"""Scores nearer than this are equal: which class is first then depends on the order of a sum."""
_TINY = np.float32(1e-30)
_LEAST, _LARGEST = np.float32(-np.inf), np.float32(np.inf)


@dataclass(frozen=True)
class _Range:
    """The values of a feature that lead to a leaf, ends included."""

    least: np.float32 = _LEAST
    largest: np.float32 = _LARGEST

    def find_value(self, *, largest: bool) -> np.float32:
        """Return its end on one side; where it has none there, the other one, or 0."""
        if np.isfinite(self.largest) and (largest or not np.isfinite(self.least)):
            return _leave_tiny(self.largest, _LEAST)
        return _leave_tiny(self.least, _LARGEST) if np.isfinite(self.least) else np.float32(0)


def _leave_tiny(end: np.float32, beyond: np.float32) -> np.float32:
    """Return an end, or what is beyond it where it is too near to 0 to be told from it.

    LightGBM takes what is not larger than 1e-35 for 0 (kZeroThreshold in its meta.h), and puts
    thresholds there.
    """
    if abs(end) >= _TINY or end == 0:
        return end
    return np.copysign(_TINY, end) if (end > 0) == (beyond > 0) else np.float32(0)


def make_leaf_rows(model: Path) -> Arrays | None:
    """Return an input whose rows reach the leaves of a model's trees.

    Returns:
        At most :data:`MOST_ROWS` rows, of leaves that are evenly spread over the trees; None where
        the model does not begin with trees, or takes one row at a time. Rows whose best two classes
        are equal are left out: any of them is right.
    """
    graph = onnx.load(model, load_external_data=False).graph
    trees = [node for node in graph.node if node.op_type in _TREES]
    sizes = [dim.dim_value for dim in graph.input[0].type.tensor_type.shape.dim]
    begins = len(graph.input) == 1 and all(n.input[0] == graph.input[0].name for n in trees)
    if not trees or not begins or len(sizes) != 2 or sizes[0] or not sizes[1]:
        return None
    paths = [path for node in trees for path in _list_paths(node)]
    chosen = paths[:: max(1, -(-2 * len(paths) // MOST_ROWS))]
    rows = np.zeros((2 * len(chosen), sizes[1]), np.float32)
    for number, path in enumerate(chosen):
        for feature, allowed in path.items():
            rows[2 * number, feature] = allowed.find_value(largest=True)
            rows[2 * number + 1, feature] = allowed.find_value(largest=False)
    given = {graph.input[0].name: rows}
    decided = _find_decided(run_session(make_session(model), given), len(rows))
    return {graph.input[0].name: rows[decided]} if decided.any() else None


def _find_decided(outputs: Mapping[str, Array], rows: int) -> Array:
    """Return which rows have one best class in every output of scores."""
    decided = np.ones(rows, bool)
    for scores in outputs.values():
        if scores.dtype.kind == "f" and scores.ndim == 2 and scores.shape[1] > 1:
            best = np.sort(scores, axis=1)[:, -2:]
            decided &= best[:, 1] - best[:, 0] > _TIE
    return decided


def _list_paths(node: onnx.NodeProto) -> Iterator[dict[int, _Range]]:
    """Yield for each leaf of a node's trees which values of features lead there."""
    given = {each.name: onnx.helper.get_attribute_value(each) for each in node.attribute}
    keys = list(zip(given["nodes_treeids"], given["nodes_nodeids"], strict=True))
    places = {key: number for number, key in enumerate(keys)}
    first: dict[int, int] = {}
    for number, (tree, _) in enumerate(keys):
        first.setdefault(tree, number)
    todo: list[tuple[int, dict[int, _Range]]] = [(number, {}) for number in first.values()]
    while todo:
        number, path = todo.pop()
        mode = given["nodes_modes"][number].decode()
        if mode == "LEAF":
            yield path
            continue
        feature = given["nodes_featureids"][number]
        before = path.get(feature, _Range())
        sides = _split(before, mode, np.float32(given["nodes_values"][number]))
        tree = keys[number][0]
        for side, name in zip(sides, ("nodes_truenodeids", "nodes_falsenodeids"), strict=True):
            if side.least <= side.largest:
                todo.append((places[tree, given[name][number]], {**path, feature: side}))


def _split(before: _Range, mode: str, value: np.float32) -> tuple[_Range, _Range]:
    """Return what a comparison leaves of a range where it is true, and where it is not."""
    below, above = np.nextafter(value, _LEAST), np.nextafter(value, _LARGEST)
    if mode in ("BRANCH_LT", "BRANCH_GTE"):
        value, above = below, value
    low = replace(before, largest=min(before.largest, value))
    high = replace(before, least=max(before.least, above))
    if mode in ("BRANCH_LEQ", "BRANCH_LT"):
        return low, high
    if mode in ("BRANCH_GT", "BRANCH_GTE"):
        return high, low
    one = _Range(max(before.least, value), min(before.largest, value))
    return (one, before) if mode == "BRANCH_EQ" else (before, one)
