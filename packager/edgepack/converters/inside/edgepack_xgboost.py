"""Converts XGBoost's models with onnxmltools, and runs them with XGBoost itself."""

from __future__ import annotations

import json
import math
from typing import Any, Callable, Dict, List

import edgepack_tables as tables
from edgepack_inside import Refused, open_source

_PACKAGES = ("xgboost-cpu", "xgboost", "onnxmltools", "onnx")
_METHODS = {
    "label": ("label", "predict"),
    "probabilities": ("probabilities", "predict_proba"),
    "variable": ("prediction", "predict"),
}
_CLASSIFIES = ("binary:logistic", "multi:softprob", "multi:softmax")
# What onnxmltools 1.16 writes for these is what XGBoost 3.2 predicts; others were seen to be wrong
# (reg:logistic, binary:hinge, binary:logitraw, survival:cox: the trees' sum, or a share of it).
_PREDICTS = (
    "reg:squarederror", "reg:absoluteerror", "reg:pseudohubererror", "reg:squaredlogerror",
    "reg:quantileerror", "reg:gamma", "reg:tweedie", "count:poisson", "rank:ndcg", "rank:pairwise",
    "rank:map",
)  # fmt: skip
_OPSET = 15
"""The newest that onnxmltools 1.16 writes."""
_TRAIN_AGAIN = "train it with another setting: "


def convert(source: str, folder: str, options: Dict[str, Any]) -> Dict[str, Any]:
    """Write ``model.onnx``."""
    import onnxmltools
    from onnxmltools.convert.common.data_types import FloatTensorType

    estimator = _open(source, options)
    booster = estimator.get_booster()
    model = onnxmltools.convert_xgboost(
        estimator,
        name="xgboost",
        initial_types=[(tables.INPUT, FloatTensorType([None, booster.num_features()]))],
        target_opset=_OPSET,
    )
    names = tables.require_outputs(model, _METHODS)
    signature: Dict[str, Any] = tables.write(model, folder, options["opset"], names, _PACKAGES)
    return signature


def load(
    source: str, signature: Dict[str, Any], options: Dict[str, Any]
) -> Callable[[List[Any]], List[Any]]:
    """Return a function that runs the model on ``[rows]``."""
    import numpy as np

    estimator = _open(source, options)
    estimator.set_params(n_jobs=1)
    classifies = len(signature["outputs"]) > 1

    def call(arrays: List[Any]) -> List[Any]:
        if classifies:
            labels = estimator.predict(arrays[0])
            return [np.asarray(labels, np.int64), estimator.predict_proba(arrays[0])]
        found = np.asarray(estimator.predict(arrays[0]))
        return [found.reshape(len(found), -1)]

    return call


def _read(source: str) -> Any:
    import xgboost

    try:
        return xgboost.Booster(model_file=source)
    except xgboost.core.XGBoostError as error:
        raise Refused(
            "XGBoost does not read the file: %s" % str(error).strip().splitlines()[0],
            "check that it is whole, or save it again: booster.save_model('model.json')",
        ) from error


def _open(source: str, options: Dict[str, Any]) -> Any:
    """Return the model as an estimator: of classes or of numbers, as its objective says.

    Raises:
        Refused: XGBoost does not read the file, or no converter writes what it computes.
    """
    import xgboost

    made = open_source(source, options, _read)
    missing = getattr(made, "missing", None)
    if missing is not None and not math.isnan(missing):
        raise Refused(
            "it takes %s for a missing value, and ONNX only NaN" % missing,
            "train it with missing=float('nan'), and give NaN where a value is missing",
        )
    booster = made.get_booster() if isinstance(made, xgboost.XGBModel) else made
    if not isinstance(booster, xgboost.Booster):
        raise tables.refuse_made(made, "an xgboost.Booster, or a fitted estimator of XGBoost")
    learner = json.loads(booster.save_config())["learner"]
    objective = learner["objective"]["name"]
    _require_supported(learner, objective, booster)
    kind = xgboost.XGBClassifier if objective in _CLASSIFIES else xgboost.XGBRegressor
    estimator = kind()
    estimator.load_model(booster.save_raw("json"))
    # Names of features stand in the trees' dump, where onnxmltools looks for numbers.
    estimator.get_booster().feature_names = None
    if objective == "multi:softmax":  # the same trees; asked so, both give probabilities
        estimator.get_booster().set_param({"objective": "multi:softprob"})
        estimator.set_params(objective="multi:softprob")
    return estimator


def _require_supported(learner: Dict[str, Any], objective: str, booster: Any) -> None:
    """Raise, naming the setting, where onnxmltools 1.16 writes a wrong model or none."""
    grown = learner["gradient_booster"]
    targets = int(learner["learner_model_param"].get("num_target", 1))
    parallel = int(grown.get("gbtree_model_param", {}).get("num_parallel_tree", 1))
    if grown["name"] != "gbtree":
        raise Refused(
            "its booster is %r, and converters know 'gbtree'" % grown["name"],
            _TRAIN_AGAIN + "booster='gbtree'",
        )
    if objective not in _CLASSIFIES + _PREDICTS:
        raise Refused(
            "it has the objective %r, whose output no converter writes rightly" % objective,
            _TRAIN_AGAIN + "binary:logistic, multi:softprob or reg:squarederror, for example",
        )
    if targets > 1:
        raise Refused(
            "it predicts %d numbers for each row, and converters put all trees into one" % targets,
            "train a model for each of them",
        )
    if parallel > 1 and objective.startswith("multi:"):
        raise Refused(
            "it has %d parallel trees for each of several classes, which converters mix" % parallel,
            _TRAIN_AGAIN + "num_parallel_tree=1",
        )
    if "c" in (booster.feature_types or []):
        raise Refused(
            "it has categorical features, and rows of numbers do not say which category they mean",
            "give categories as columns of 0 and 1 (one-hot), and train again",
        )
