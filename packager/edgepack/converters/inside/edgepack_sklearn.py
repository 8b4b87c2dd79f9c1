"""Converts scikit-learn's models with skl2onnx, and runs them with scikit-learn itself."""

from __future__ import annotations

import re
import warnings
from typing import Any, Callable, Dict, List, Tuple

import edgepack_tables as tables
from edgepack_inside import Refused, open_source

_PACKAGES = ("scikit-learn", "skl2onnx", "skops", "onnx")
# Types that skops loads only if it is told to: scikit-learn's own are here anyway, as its code is.
_TRUSTED = ("sklearn.",)
# A function that one of these holds is named beside it.
_TRUSTED_NAMES = ("numpy.dtype", "functools.partial")
_TRAIN_AGAIN = "train it without, or export it to ONNX where it was trained"


def convert(source: str, folder: str, options: Dict[str, Any]) -> Dict[str, Any]:
    """Write ``model.onnx``; classes that have names are given as texts."""
    from skl2onnx.common.data_types import FloatTensorType

    model, notes = _open(source, options)
    _require_supported(model)
    _round_thresholds(model)
    asked = _choose_options(model)
    converted = _convert(
        model,
        name="sklearn",
        initial_types=[(tables.INPUT, FloatTensorType([None, model.n_features_in_]))],
        options={id(_find_last(model)): asked} if asked else None,
        target_opset={"": options["opset"], "ai.onnx.ml": tables.ML_OPSET},
    )
    outputs = tables.require_outputs(converted, _list_methods(model))
    ranks = tables.list_ranks(converted, outputs)
    signature: Dict[str, Any] = tables.write(
        converted, folder, options["opset"], outputs, _PACKAGES
    )
    signature["notes"] = notes
    for output in signature["outputs"]:
        output["rank"] = ranks[output["name"]]
    return signature


def load(
    source: str, signature: Dict[str, Any], options: Dict[str, Any]
) -> Callable[[List[Any]], List[Any]]:
    """Return a function that runs the model on ``[rows]``."""
    model, _ = _open(source, options)
    outputs = signature["outputs"]

    def call(arrays: List[Any]) -> List[Any]:
        values = [getattr(model, each["source"])(arrays[0]) for each in outputs]
        fitted: List[Any] = tables.fit_shapes(values, [each["rank"] for each in outputs])
        return fitted

    return call


def _open(source: str, options: Dict[str, Any]) -> Tuple[Any, List[str]]:
    """Return the fitted estimator, with notes about its file.

    Raises:
        Refused: It holds what is not scikit-learn's own, or was not fitted on rows of numbers.
    """
    from sklearn.base import BaseEstimator

    notes: List[str] = []
    model = open_source(source, options, lambda path: _read(path, notes))
    if not isinstance(model, BaseEstimator):
        raise tables.refuse_made(model, "a fitted estimator of scikit-learn")
    if not hasattr(model, "n_features_in_"):
        raise Refused(
            "%s does not say how many features it takes" % type(model).__name__,
            "take a fitted estimator of rows of numbers; texts and pictures are not rows",
        )
    return model, notes


def _read(source: str, notes: List[str]) -> Any:
    """Return the estimator, and note where another version of scikit-learn saved it."""
    import skops.io
    from sklearn import __version__
    from sklearn.exceptions import InconsistentVersionWarning

    asked = skops.io.get_untrusted_types(file=source)
    unknown = [n for n in asked if not n.startswith(_TRUSTED) and n not in _TRUSTED_NAMES]
    if unknown:
        raise Refused(
            "it holds what is not scikit-learn's own, and may be any code: %s" % ", ".join(unknown),
            "train it without, or export it to ONNX where that code is (skl2onnx takes a converter"
            " of yours), and build from the .onnx",
        )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = skops.io.load(source, trusted=asked)
    other = {
        each.message.original_sklearn_version
        for each in caught
        if isinstance(each.message, InconsistentVersionWarning)
    }
    notes += ["saved by scikit-learn %s, read by %s" % (e, __version__) for e in sorted(other)]
    return model


def _convert(model: Any, **settings: Any) -> Any:
    from skl2onnx import to_onnx
    from skl2onnx.common.exceptions import MissingConverter, MissingShapeCalculator

    try:
        return to_onnx(model, **settings)
    except (MissingConverter, MissingShapeCalculator) as error:
        named = re.search(r"class '([\w.]+)'", str(error))
        name = named[1] if named else type(model).__name__
        raise Refused("skl2onnx has no converter for %s" % name, _TRAIN_AGAIN) from error
    except (NotImplementedError, RuntimeError, ValueError) as error:
        raise Refused(
            "skl2onnx does not convert it: %s" % str(error).split(" You may raise")[0].strip(),
            _TRAIN_AGAIN,
        ) from error


def _find_last(model: Any) -> Any:
    """Return what computes a model's outputs: of a pipeline its last step."""
    while hasattr(model, "steps"):
        model = model.steps[-1][1]
    return model


def _list_parts(model: Any) -> List[Any]:
    """Return a model and all of scikit-learn's objects in it."""
    found: Dict[int, Any] = {}
    todo = [model]
    while todo:
        part = todo.pop()
        if isinstance(part, (list, tuple)):
            todo += part
        elif type(part).__module__.startswith("sklearn.") and id(part) not in found:
            found[id(part)] = part
            todo += getattr(part, "__dict__", {}).values()
    return list(found.values())


def _choose_options(model: Any) -> Dict[str, bool]:
    """Return the options of skl2onnx that give tensors instead of dictionaries."""
    from skl2onnx._supported_operators import sklearn_operator_name_map
    from skl2onnx.common._registration import get_converter

    last = type(_find_last(model))
    if last not in sklearn_operator_name_map:
        return {}
    known = get_converter(sklearn_operator_name_map[last]).get_allowed_options() or {}
    return {"zipmap": False} if "zipmap" in known else {}


def _list_methods(model: Any) -> Dict[str, tables.Named]:
    """Return which of a model's methods computes what skl2onnx calls so."""
    shares = "predict_proba" if hasattr(model, "predict_proba") else "decision_function"
    scores = "decision_function" if hasattr(model, "decision_function") else "transform"
    numbers = "predict" if hasattr(model, "predict") else "transform"
    return {
        "label": ("label", "predict"),
        "probabilities": ("probabilities", shares),
        "scores": ("scores", scores),
        "variable": ("prediction" if numbers == "predict" else "transformed", numbers),
        "GPmean": ("prediction", "predict"),
    }


def _require_supported(model: Any) -> None:
    """Raise, naming the part, where it is known that skl2onnx 1.20 writes a wrong model."""
    import numpy as np

    if isinstance(getattr(model, "classes_", None), list):
        raise Refused("it gives several labels for each row", "save a model for each of the labels")
    for part in _list_parts(model):
        columns = [each[2] for each in getattr(part, "transformers_", []) if len(each) > 2]
        if any(isinstance(name, str) for each in columns for name in np.atleast_1d(each)):
            raise Refused(
                "%s chooses columns by name, and rows of numbers have no names"
                % type(part).__name__,
                "name columns by number, and fit on an array",
            )
        if np.any(getattr(part, "is_categorical_", None)):
            raise Refused(
                "%s has categorical features, whose splits skl2onnx takes for thresholds"
                % type(part).__name__,
                "give categories as columns of 0 and 1 (OneHotEncoder), and train again",
            )


def _round_thresholds(model: Any) -> None:
    """Round thresholds of histogram gradient boosting down to float32.

    skl2onnx 1.20 takes the nearest one; of other trees it rounds them down itself.
    """
    for part in _list_parts(model):
        for predictor in [p for each in getattr(part, "_predictors", []) for p in each]:
            nodes = predictor.nodes
            nodes["num_threshold"] = [tables.round_down(t) for t in nodes["num_threshold"]]
