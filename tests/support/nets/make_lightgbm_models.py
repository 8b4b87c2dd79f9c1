"""Makes models of LightGBM with their data: ``python make_lightgbm_models.py FOLDER``.

It runs in an environment of LightGBM's; nothing of edgepack is there.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import lightgbm
import numpy as np

BINARY, CLASSES, NUMBER, COUNT = "binary", "classes", "number", "count"
SETTINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "binary": (BINARY, {"objective": "binary"}),
    "steep": (BINARY, {"objective": "binary", "sigmoid": 2.0}),
    "multiclass": (CLASSES, {"objective": "multiclass", "num_class": 3}),
    "regression": (NUMBER, {"objective": "regression"}),
    "fair": (NUMBER, {"objective": "fair"}),
    "poisson": (COUNT, {"objective": "poisson"}),
    "forest": (
        NUMBER,
        {"objective": "regression", "boosting": "rf", "bagging_freq": 1, "bagging_fraction": 0.5},
    ),
    "forest_binary": (
        BINARY,
        {"objective": "binary", "boosting": "rf", "bagging_freq": 1, "bagging_fraction": 0.5},
    ),
    "categories": (BINARY, {"objective": "binary", "categorical_feature": [5]}),
    "missing": (NUMBER, {"objective": "regression"}),
    "one_versus_all": (CLASSES, {"objective": "multiclassova", "num_class": 3}),
    "linear_trees": (NUMBER, {"objective": "regression", "linear_tree": True}),
    "root": (COUNT, {"objective": "regression", "reg_sqrt": True}),
    "zero_missing": (NUMBER, {"objective": "regression", "zero_as_missing": True}),
}
"""By name: what is predicted, and how."""


def make_data() -> dict[str, Any]:
    """Return rows of six numbers, the last of which is a category, and what belongs to them."""
    rng = np.random.default_rng(7)
    rows = rng.normal(size=(400, 6)).astype(np.float32)
    rows[:, 5] = rng.integers(0, 9, 400)
    number = rows[:, 0] * 3 + np.sin(rows[:, 1] * 2) + np.isin(rows[:, 5], [1, 4, 7])
    kinds = np.digitize(number, [-1.5, 1.5])
    return {
        "rows": rows, NUMBER: number, CLASSES: kinds, BINARY: kinds > 0, COUNT: np.abs(number),
    }  # fmt: skip


def main(folder: Path) -> None:
    """Write each model, and the data."""
    data = make_data()
    np.savez(folder / "data.npz", **data)
    for name, (kind, settings) in SETTINGS.items():
        rows = data["rows"].copy()
        if name == "missing":
            rows[::5, 0] = np.nan
        if name == "zero_missing":
            rows[::5, 0] = 0
        common = {"verbose": -1, "num_leaves": 12, "min_data_in_leaf": 5, "num_threads": 1}
        booster = lightgbm.train(
            {**common, **settings}, lightgbm.Dataset(rows, data[kind]), num_boost_round=8
        )
        booster.save_model(str(folder / f"{name}.txt"))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
