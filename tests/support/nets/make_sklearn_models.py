"""Makes models of scikit-learn with their data: ``python make_sklearn_models.py FOLDER``.

It runs in an environment of scikit-learn's; nothing of edgepack is there.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import skops.io
from sklearn.calibration import CalibratedClassifierCV
from sklearn.cluster import DBSCAN, KMeans
from sklearn.compose import ColumnTransformer
from sklearn.decomposition import PCA
from sklearn.ensemble import (
    AdaBoostClassifier,
    GradientBoostingClassifier,
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    IsolationForest,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.multioutput import MultiOutputClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, MinMaxScaler, StandardScaler
from sklearn.svm import SVC, LinearSVC
from sklearn.tree import DecisionTreeRegressor


class OwnScaler(StandardScaler):
    """A class that only its author has."""


def make_data() -> tuple[Any, Any, Any]:
    """Return rows of six numbers, their class of three, and a number."""
    rng = np.random.default_rng(7)
    rows = rng.normal(size=(400, 6)).astype(np.float32)
    number = rows[:, 0] * 3 + np.sin(rows[:, 1] * 2) + rows[:, 2] * rows[:, 3]
    return rows, np.digitize(number, [-1.5, 1.5]), number


def make_models() -> dict[str, Any]:
    """Return fitted models by name."""
    rows, kinds, number = make_data()
    names = np.array(["ant", "bee", "cat"])[kinds]
    counted = rows.copy()
    counted[:, 5] = np.floor(np.abs(rows[:, 5]) * 3)
    columns = ColumnTransformer([("a", StandardScaler(), [0, 1]), ("b", MinMaxScaler(), [2, 3])])
    classified: dict[str, Any] = {
        "scaled_logistic": make_pipeline(StandardScaler(), LogisticRegression()),
        "columns": make_pipeline(columns, LogisticRegression()),
        "forest": RandomForestClassifier(12, max_depth=6, random_state=0),
        "boosting": GradientBoostingClassifier(n_estimators=5, random_state=0),
        "histogram": HistGradientBoostingClassifier(max_iter=6, random_state=0),
        "ada": AdaBoostClassifier(n_estimators=4, random_state=0),
        "calibrated": CalibratedClassifierCV(LinearSVC(), cv=2),
        "margins": SVC(),
        "own_class": make_pipeline(OwnScaler(), LogisticRegression()),
        "own_function": make_pipeline(FunctionTransformer(np.arctan), LogisticRegression()),
    }
    models = {name: model.fit(rows, names) for name, model in classified.items()}
    models["numbered"] = LogisticRegression().fit(rows, kinds)
    models["forest_regression"] = RandomForestRegressor(8, random_state=0).fit(rows, number)
    models["histogram_regression"] = HistGradientBoostingRegressor(max_iter=6).fit(rows, number)
    models["tree"] = DecisionTreeRegressor(max_depth=5, random_state=0).fit(rows, number)
    models["linear"] = LinearRegression().fit(rows, number)
    models["clusters"] = KMeans(3, random_state=0, n_init=1).fit(rows)
    models["outliers"] = IsolationForest(n_estimators=8, random_state=0).fit(rows)
    models["components"] = PCA(2).fit(rows)
    models["density"] = DBSCAN().fit(rows)
    models["categories"] = HistGradientBoostingClassifier(max_iter=3, categorical_features=[5]).fit(
        counted, kinds
    )
    models["two_labels"] = MultiOutputClassifier(LogisticRegression()).fit(
        rows, np.stack([kinds, kinds > 0], 1)
    )
    return models


def main(folder: Path) -> None:
    """Write each model, and the data."""
    for name, model in make_models().items():
        skops.io.dump(model, folder / f"{name}.skops")
    rows, kinds, number = make_data()
    np.savez(folder / "data.npz", rows=rows, kinds=kinds, number=number)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
