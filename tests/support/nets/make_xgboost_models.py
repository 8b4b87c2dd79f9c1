"""Makes models of XGBoost with their data: ``python make_xgboost_models.py FOLDER``.

It runs in an environment of XGBoost's; nothing of edgepack is there.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import xgboost

BINARY, CLASSES, NUMBER, COUNT = "binary", "classes", "number", "count"
SETTINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "binary.json": (BINARY, {"objective": "binary:logistic"}),
    "binary_low.ubj": (BINARY, {"objective": "binary:logistic", "base_score": 0.2}),
    "multiclass.ubj": (CLASSES, {"objective": "multi:softprob", "num_class": 3}),
    "multiclass_labels.json": (CLASSES, {"objective": "multi:softmax", "num_class": 3}),
    "regression.json": (NUMBER, {"objective": "reg:squarederror"}),
    "poisson.json": (COUNT, {"objective": "count:poisson"}),
    "parallel.json": (NUMBER, {"objective": "reg:squarederror", "num_parallel_tree": 3}),
    "missing.json": (NUMBER, {"objective": "reg:squarederror"}),
    "logistic_regression.json": (BINARY, {"objective": "reg:logistic"}),
    "dart.json": (NUMBER, {"booster": "dart", "rate_drop": 0.5}),
    "linear.json": (NUMBER, {"booster": "gblinear"}),
    "two_numbers.json": ("two", {"objective": "reg:squarederror"}),
    "parallel_classes.json": (
        CLASSES,
        {"objective": "multi:softprob", "num_class": 3, "num_parallel_tree": 2},
    ),
}
"""By file: what is predicted, and how."""


def make_data() -> dict[str, Any]:
    """Return rows of six numbers, and what belongs to them."""
    rng = np.random.default_rng(7)
    rows = rng.normal(size=(400, 6)).astype(np.float32)
    number = rows[:, 0] * 3 + np.sin(rows[:, 1] * 2) + rows[:, 2] * rows[:, 3]
    kinds = np.digitize(number, [-1.5, 1.5])
    return {
        "rows": rows, NUMBER: number, CLASSES: kinds, BINARY: kinds > 0, COUNT: np.abs(number),
        "two": np.stack([number, -number], 1),
    }  # fmt: skip


def main(folder: Path) -> None:
    """Write each model, and the data."""
    data = make_data()
    np.savez(folder / "data.npz", **data)
    rows = data["rows"]
    named = list("abcdef")
    for name, (kind, settings) in SETTINGS.items():
        given = rows.copy()
        if name.startswith("missing"):
            given[::5, 0] = np.nan
        matrix = xgboost.DMatrix(given, data[kind], feature_names=named)
        booster = xgboost.train({"max_depth": 4, "nthread": 1, **settings}, matrix, 8)
        booster.save_model(folder / name)
    stopped = xgboost.XGBClassifier(n_estimators=60, max_depth=4, early_stopping_rounds=2, n_jobs=1)
    kinds = data[CLASSES]
    stopped.fit(rows[:200], kinds[:200], eval_set=[(rows[200:], kinds[200:])], verbose=False)
    stopped.save_model(folder / "stopped.json")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
