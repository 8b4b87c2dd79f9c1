"""Converts LightGBM's text files with onnxmltools, and runs them with LightGBM itself."""

from __future__ import annotations

import sys
from typing import Any, Callable, Dict, Iterator, List

import edgepack_tables as tables
from edgepack_inside import Refused, open_source

_PACKAGES = ("lightgbm", "onnxmltools", "onnx")
_METHODS = {
    "label": ("label", "argmax of predict"),
    "probabilities": ("probabilities", "predict"),
    "variable": ("prediction", "predict"),
}
_BINARY, _MULTICLASS = "binary", "multiclass"
# What these predict is the sum of the trees' leaves, as of "regression"; onnxmltools 1.16 knows
# the name of some only.
_SUMS = (
    "regression", "regression_l1", "huber", "fair", "mape", "quantile", "lambdarank",
    "rank_xendcg",
)  # fmt: skip
# And of these its exponential.
_EXPONENTIALS = ("poisson", "gamma", "tweedie")
_OPSET = 15
"""The newest that onnxmltools 1.16 writes."""
_TRAIN_AGAIN = "train with another setting, or compute the rest in the application: "
_DEEPEST = 20000


def convert(source: str, folder: str, options: Dict[str, Any]) -> Dict[str, Any]:
    """Write ``model.onnx``."""
    import onnxmltools
    from onnxmltools.convert.common.data_types import FloatTensorType
    from onnxmltools.convert.lightgbm._parse import WrappedBooster

    sys.setrecursionlimit(_DEEPEST)  # onnxmltools goes down a tree by recursion
    booster = _open(source, options)
    trees = _Trees(_prepare(booster.dump_model()))
    model = onnxmltools.convert_lightgbm(
        WrappedBooster(trees),
        name="lightgbm",
        initial_types=[(tables.INPUT, FloatTensorType([None, booster.num_feature()]))],
        target_opset=_OPSET,
        zipmap=False,
    )
    names = tables.require_outputs(model, _METHODS)
    signature: Dict[str, Any] = tables.write(model, folder, options["opset"], names, _PACKAGES)
    return signature


def load(
    source: str, signature: Dict[str, Any], options: Dict[str, Any]
) -> Callable[[List[Any]], List[Any]]:
    """Return a function that runs the model on ``[rows]``."""
    import numpy as np

    booster = _open(source, options)
    classifies = len(signature["outputs"]) > 1

    def call(arrays: List[Any]) -> List[Any]:
        found = np.asarray(booster.predict(arrays[0], num_threads=1), np.float32)
        if not classifies:
            return [found.reshape(len(found), -1)]
        shares = found if found.ndim == 2 else np.stack([1 - found, found], axis=1)
        return [np.argmax(shares, axis=1).astype(np.int64), shares]

    return call


def _open(source: str, options: Dict[str, Any]) -> Any:
    import lightgbm

    made = open_source(source, options, _read)
    classes = list(getattr(made, "classes_", []))
    if classes != list(range(len(classes))):
        raise Refused(
            "its classes are %s, which LightGBM's trees do not know"
            % ", ".join(map(str, classes[:4])),
            "train it with classes counted from 0; names of classes belong into 'labels' of the"
            " output in edgepack.yaml",
        )
    booster = made.booster_ if isinstance(made, lightgbm.LGBMModel) else made
    if not isinstance(booster, lightgbm.Booster):
        raise tables.refuse_made(made, "a lightgbm.Booster, or a fitted estimator of LightGBM")
    return booster


def _read(source: str) -> Any:
    """Return the booster.

    Raises:
        Refused: LightGBM does not read the file.
    """
    import lightgbm

    try:
        return lightgbm.Booster(params={"verbose": -1}, model_file=source)
    except lightgbm.basic.LightGBMError as error:
        raise Refused(
            "LightGBM does not read the file: %s" % error,
            "check that it is whole, or save it again: booster.save_model('model.txt')",
        ) from error


class _Trees:
    """What onnxmltools asks of a booster, given as a dump."""

    is_mock = True
    """Its word for a booster whose dump is taken as it is."""

    def __init__(self, dump: Dict[str, Any]) -> None:
        self._dump = dump

    def attr(self, name: str) -> Any:
        """Return one of the model's own entries."""
        return self._dump.get(name)

    def feature_name(self) -> List[str]:
        """Return the names of the features."""
        names: List[str] = self._dump["feature_names"]
        return names

    def dump_model(self, **_: Any) -> Dict[str, Any]:
        """Return all of it."""
        return self._dump


def _prepare(dump: Dict[str, Any]) -> Dict[str, Any]:
    """Return a dump that onnxmltools 1.16 converts rightly.

    As it is, it takes the nearest float32 of a threshold, a logistic function without its factor,
    a forest's sum for its mean, and knows some regressions by no name.
    """
    if not dump.get("objective"):
        raise Refused(
            "it was trained with an objective of its own, which says nothing about its answers",
            "train it with one of LightGBM's, such as 'regression' or 'binary'",
        )
    name, *settings = dump["objective"].split()
    given = dict(each.partition(":")[::2] for each in settings)
    _require_supported(name, given, dump)
    factor = float(given.get("sigmoid", 1.0)) if name == _BINARY else 1.0
    if dump["average_output"]:
        factor /= len(dump["tree_info"]) // dump["num_tree_per_iteration"]
    for node in _walk(dump):
        if node.get("decision_type") == "<=":
            node["threshold"] = tables.round_down(node["threshold"])
        elif "leaf_value" in node:
            node["leaf_value"] *= factor
    return {
        **dump,
        "objective": "regression" if name in _SUMS else dump["objective"],
        "average_output": False,
    }


def _require_supported(name: str, given: Dict[str, str], dump: Dict[str, Any]) -> None:
    """Raise, naming the setting, where ONNX's trees do not compute what LightGBM does."""
    if name not in (_BINARY, _MULTICLASS, *_SUMS, *_EXPONENTIALS):
        raise Refused(
            "it has the objective %r, which no converter knows" % name,
            _TRAIN_AGAIN + "multiclass for multiclassova, binary for cross_entropy",
        )
    if "sqrt" in given:
        raise Refused(
            "it was trained with reg_sqrt, whose square no converter writes",
            _TRAIN_AGAIN + "train on the root of the labels yourself, and square the output",
        )
    for node in _walk(dump):
        if "leaf_coeff" in node:
            raise Refused(
                "it has linear trees, which ONNX has not: its leaves are constants",
                _TRAIN_AGAIN + "linear_tree=false",
            )
        if node.get("missing_type") == "Zero":
            raise Refused(
                "it was trained with zero_as_missing, and in ONNX only NaN is missing",
                _TRAIN_AGAIN + "zero_as_missing=false",
            )


def _walk(dump: Dict[str, Any]) -> Iterator[Dict[str, Any]]:
    """Yield every node and leaf."""
    todo = [tree["tree_structure"] for tree in dump["tree_info"]]
    while todo:
        node = todo.pop()
        yield node
        todo += [node[side] for side in ("left_child", "right_child") if side in node]
