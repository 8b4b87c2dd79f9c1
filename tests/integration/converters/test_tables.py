"""scikit-learn, LightGBM and XGBoost: real exporters, and the frameworks' own outputs."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from edgepack.base.progress import Silent
from edgepack.builder.build import build
from edgepack.builder.cache import StepCache
from edgepack.builder.sources import open_project
from edgepack.bundle.reading import verify
from edgepack.converters.conversion import ConvertedModel
from edgepack.converters.environments import Lock
from edgepack.converters.locks import LIGHTGBM, SKLEARN, XGBOOST
from edgepack.errors import ModelError, StepError
from edgepack.project.loading import make_project
from edgepack.steps.base import read_notes, run_step
from edgepack.steps.proofs.framework import EDGES, FrameworkProof

from tests.support.environments import find_framework_python, make_models

NETS = Path(__file__).parents[2] / "support/nets"
LOCKS: dict[str, Lock] = {"sklearn": SKLEARN, "lightgbm": LIGHTGBM, "xgboost": XGBOOST}
pytestmark = pytest.mark.slow(reason="starts each framework twice for each model")


def find_models(framework: str) -> tuple[Path, str]:
    """Return the folder of a framework's models, and the Python that has it."""
    python = find_framework_python(LOCKS[framework])
    return make_models(NETS / f"make_{framework}_models.py", python), python


def convert(framework: str, name: str, tmp_path: Path) -> tuple[Path, ConvertedModel]:
    folder, python = find_models(framework)
    path = folder / name
    cache = StepCache(tmp_path / "steps")
    converted = open_project(make_project(path), cache, Silent(), python).converted
    assert converted is not None
    return path, converted


def prove(path: Path, converted: ConvertedModel, folder: Path, tmp_path: Path) -> dict:
    out = tmp_path / "proof"
    out.mkdir()
    inputs = {"source": path, "converted": folder}
    run_step(FrameworkProof(converted.conversion), inputs, out)
    return read_notes(out).facts


@pytest.mark.in_turns
@pytest.mark.parametrize(
    ("framework", "name", "outputs"),
    [
        ("sklearn", "scaled_logistic.skops", ["label", "probabilities"]),
        ("sklearn", "columns.skops", ["label", "probabilities"]),
        ("sklearn", "numbered.skops", ["label", "probabilities"]),
        ("sklearn", "forest.skops", ["label", "probabilities"]),
        ("sklearn", "boosting.skops", ["label", "probabilities"]),
        ("sklearn", "histogram.skops", ["label", "probabilities"]),
        ("sklearn", "ada.skops", ["label", "probabilities"]),
        ("sklearn", "calibrated.skops", ["label", "probabilities"]),
        ("sklearn", "forest_regression.skops", ["prediction"]),
        ("sklearn", "histogram_regression.skops", ["prediction"]),
        ("sklearn", "linear.skops", ["prediction"]),
        ("sklearn", "clusters.skops", ["label", "scores"]),
        ("sklearn", "outliers.skops", ["label", "scores"]),
        ("sklearn", "components.skops", ["transformed"]),
        ("lightgbm", "binary.txt", ["label", "probabilities"]),
        ("lightgbm", "steep.txt", ["label", "probabilities"]),
        ("lightgbm", "multiclass.txt", ["label", "probabilities"]),
        ("lightgbm", "regression.txt", ["prediction"]),
        ("lightgbm", "fair.txt", ["prediction"]),
        ("lightgbm", "poisson.txt", ["prediction"]),
        ("lightgbm", "forest.txt", ["prediction"]),
        ("lightgbm", "forest_binary.txt", ["label", "probabilities"]),
        ("lightgbm", "categories.txt", ["label", "probabilities"]),
        ("lightgbm", "missing.txt", ["prediction"]),
        ("xgboost", "binary.json", ["label", "probabilities"]),
        ("xgboost", "binary_low.ubj", ["label", "probabilities"]),
        ("xgboost", "multiclass.ubj", ["label", "probabilities"]),
        ("xgboost", "multiclass_labels.json", ["label", "probabilities"]),
        ("xgboost", "regression.json", ["prediction"]),
        ("xgboost", "poisson.json", ["prediction"]),
        ("xgboost", "parallel.json", ["prediction"]),
        ("xgboost", "missing.json", ["prediction"]),
        ("xgboost", "stopped.json", ["label", "probabilities"]),
    ],
)
def test_model_when_converted_computes_what_its_framework_does(tmp_path, framework, name, outputs):
    path, converted = convert(framework, name, tmp_path)
    facts = prove(path, converted, converted.folder, tmp_path)
    assert [each["name"] for each in facts["outputs"]] == outputs
    assert all(each["farthest"] <= each["tolerance"] for each in facts["outputs"])
    assert facts["confined"].startswith("Landlock")
    model = onnx.load(converted.folder / "model.onnx")
    domains = [entry.domain for entry in model.opset_import]
    assert sorted(domains) == sorted(set(domains))
    # What is declared is what comes, for any number of rows.
    session = onnxruntime.InferenceSession(converted.folder / "model.onnx")
    assert session.get_inputs()[0].shape == ["batch", 6]
    for rows in (1, 3):
        found = session.run(None, {"input": np.ones((rows, 6), np.float32)})
        for value, spec in zip(found, session.get_outputs(), strict=True):
            assert value.shape[0] == rows
            assert spec.shape[0] == "batch"
            assert spec.shape[1:] == list(value.shape[1:])


@pytest.mark.parametrize(
    ("framework", "name", "problem"),
    [
        ("sklearn", "own_class.skops", "not scikit-learn's own, and may be any code: __main__.Own"),
        ("sklearn", "own_function.skops", "FunctionTransformer is not supported"),
        ("sklearn", "density.skops", "no converter for sklearn.cluster._dbscan.DBSCAN"),
        ("sklearn", "categories.skops", "HistGradientBoostingClassifier has categorical features"),
        ("sklearn", "two_labels.skops", "several labels for each row"),
        ("lightgbm", "one_versus_all.txt", "the objective 'multiclassova'"),
        ("lightgbm", "linear_trees.txt", "linear trees"),
        ("lightgbm", "root.txt", "reg_sqrt"),
        ("lightgbm", "zero_missing.txt", "zero_as_missing"),
        ("xgboost", "logistic_regression.json", "the objective 'reg:logistic'"),
        ("xgboost", "dart.json", "its booster is 'dart'"),
        ("xgboost", "linear.json", "its booster is 'gblinear'"),
        ("xgboost", "two_numbers.json", "predicts 2 numbers for each row"),
        ("xgboost", "parallel_classes.json", "2 parallel trees for each of several classes"),
    ],
)
def test_model_when_onnx_lacks_what_it_has_is_refused(tmp_path, framework, name, problem):
    with pytest.raises(ModelError) as caught:
        convert(framework, name, tmp_path)
    assert problem in caught.value.problem
    assert name in caught.value.where
    assert caught.value.hint


@pytest.mark.parametrize(
    ("framework", "name", "size"),
    [
        ("lightgbm", "binary.txt", 900),
        ("xgboost", "binary.json", 900),
        ("sklearn", "ada.skops", 99),
    ],
)
def test_file_when_cut_off_is_refused(tmp_path, framework, name, size):
    folder, python = find_models(framework)
    broken = tmp_path / name
    broken.write_bytes((folder / name).read_bytes()[:size])
    with pytest.raises(ModelError) as caught:
        open_project(make_project(broken), StepCache(tmp_path / "steps"), Silent(), python)
    assert "whole" in caught.value.hint + caught.value.problem


def move_threshold(model: onnx.ModelProto) -> None:
    """Move the last threshold by one part in a million."""
    values = find_trees(model, "nodes_values").floats
    modes = find_trees(model, "nodes_modes").strings
    place = max(number for number, mode in enumerate(modes) if mode != b"LEAF")
    values[place] += max(1e-6, abs(values[place]) * 1e-6)


def swap_classes(model: onnx.ModelProto) -> None:
    """Swap the first two columns."""
    ids = find_trees(model, "class_ids").ints
    ids[:] = [{0: 1, 1: 0}.get(each, each) for each in ids]


def change_leaf(model: onnx.ModelProto) -> None:
    """Change what one leaf says."""
    weights = find_trees(model, "class_weights").floats
    weights[len(weights) // 2] += 0.1


def change_leaf_by_little(model: onnx.ModelProto) -> None:
    """Change the largest leaf by 0.01 % of itself."""
    weights = find_trees(model, "target_weights").floats
    weights[int(np.argmax(np.abs(weights)))] *= 1.0001


def change_base_by_little(model: onnx.ModelProto) -> None:
    """Change what all trees begin with by 0.01 % of the largest leaf."""
    weights = find_trees(model, "target_weights").floats
    base = find_trees(model, "base_values").floats
    base[0] += 1e-4 * max(map(abs, weights))


def find_trees(model: onnx.ModelProto, name: str) -> onnx.AttributeProto:
    [node] = [node for node in model.graph.node if node.op_type.startswith("TreeEnsemble")]
    return next(each for each in node.attribute if each.name == name)


@pytest.mark.in_turns
@pytest.mark.parametrize("change", [move_threshold, swap_classes, change_leaf])
@pytest.mark.parametrize(
    ("framework", "name"),
    [
        ("sklearn", "forest.skops"),
        ("lightgbm", "multiclass.txt"),
        ("xgboost", "multiclass.ubj"),
    ],
)
def test_conversion_when_it_changes_the_trees_stops_the_build(
    tmp_path, framework, name, change: Callable[[onnx.ModelProto], None]
):
    path, converted = convert(framework, name, tmp_path)
    wrong = tmp_path / "wrong"
    shutil.copytree(converted.folder, wrong)
    model = onnx.load(wrong / "model.onnx")
    change(model)
    onnx.save(model, wrong / "model.onnx")
    # Random rows show the coarse ones, too.
    shown = EDGES if change is move_threshold else ""
    with pytest.raises(StepError, match=f"computes something else than .*{shown}"):
        prove(path, converted, wrong, tmp_path)


@pytest.mark.parametrize(
    ("framework", "name", "change"),
    [
        ("sklearn", "tree.skops", change_leaf_by_little),
        ("lightgbm", "regression.txt", change_leaf_by_little),
        ("xgboost", "regression.json", change_leaf_by_little),
        ("xgboost", "regression.json", change_base_by_little),
    ],
)
def test_conversion_when_it_changes_a_leaf_by_little_stops_the_build(
    tmp_path, framework, name, change
):
    path, converted = convert(framework, name, tmp_path)
    wrong = tmp_path / "wrong"
    shutil.copytree(converted.folder, wrong)
    model = onnx.load(wrong / "model.onnx")
    change(model)
    onnx.save(model, wrong / "model.onnx")
    with pytest.raises(StepError, match="computes something else than"):
        prove(path, converted, wrong, tmp_path)


def test_model_when_a_package_that_counts_has_another_version_is_converted_anew(tmp_path):
    """Neither the file nor a setting says that the Python has another scipy now."""
    folder, python = find_models("sklearn")
    info = tmp_path / "packages/scipy-0.dist-info"
    info.mkdir(parents=True)
    own = tmp_path / "python"
    own.write_text(f'#!/bin/sh\nPYTHONPATH={info.parent} exec {python} "$@"\n')
    own.chmod(0o755)
    cache, given = StepCache(tmp_path / "steps"), make_project(folder / "linear.skops")
    conversions = []
    for version in ("1.0", "1.0", "1.1"):
        text = f"Metadata-Version: 2.1\nName: scipy\nVersion: {version}\n"
        (info / "METADATA").write_text(text)
        converted = open_project(given, cache, Silent(), str(own)).converted
        assert converted is not None
        assert f"scipy {version}" in converted.conversion.environment
        conversions.append(len(list((tmp_path / "steps").rglob("signature.json"))))
    assert conversions == [1, 1, 2]


@pytest.mark.in_turns
@pytest.mark.parametrize(
    ("framework", "name", "labels"),
    [
        ("sklearn", "forest.skops", "kinds"),
        ("lightgbm", "multiclass.txt", "classes"),
        ("xgboost", "multiclass_labels.json", "classes"),
    ],
)
def test_bundle_when_built_from_trees_is_judged_by_its_probabilities(
    tmp_path, framework, name, labels
):
    folder, python = find_models(framework)
    shutil.copy(folder / name, tmp_path)
    with np.load(folder / "data.npz") as data:
        rows, right = data["rows"][:60, None], data[labels][:60].astype(np.int64)
    np.savez(tmp_path / "s.npz", input=rows, labels=right)
    (tmp_path / "edgepack.yaml").write_text(
        f"schema_version: 1\nname: trees\nmodel: {name}\n"
        f"converters: {{{framework}: {{python: {python}}}}}\n"
        "samples:\n  evaluation: {path: s.npz, labels: labels, metric: top1}\n"
        "targets: [host]\n"
    )
    project, out = tmp_path / "edgepack.yaml", tmp_path / "dist"
    result = build(project=project, variants=["cpu-fp32"], out=out)
    result.require_all()
    manifest = verify(result.bundles[0].bundle.path).manifest
    origin = manifest.model.converted_from
    assert origin is not None
    assert [each.name for each in origin.outputs] == ["label", "probabilities"]
    files = [path.read_text() for path in result.bundles[0].bundle.path.rglob("labels.txt")]
    assert files == (["ant\nbee\ncat\n"] if framework == "sklearn" else [])
    [variant] = manifest.variants
    session = onnxruntime.InferenceSession(next(result.bundles[0].bundle.path.rglob("*.onnx")))
    given = [session.run(["label"], {"input": row})[0][0] for row in rows]
    assert variant.accuracy.metric == "top1"
    assert variant.accuracy.value == pytest.approx(np.mean(given == right))


READERS = {
    "sklearn": ("skops.io", "skops.io.load({!r})"),
    "lightgbm": ("lightgbm", "lightgbm.Booster(model_file={!r})"),
    "xgboost": ("xgboost", "xgboost.Booster(model_file={!r})"),
}
"""By framework: what is imported, and what reads a file."""


@pytest.mark.parametrize(
    ("framework", "name"),
    [
        ("sklearn", "scaled_logistic.skops"),
        ("lightgbm", "regression.txt"),
        ("xgboost", "regression.json"),
    ],
)
def test_model_when_a_function_makes_it_is_proven_too(tmp_path, framework, name):
    folder, python = find_models(framework)
    module, read = READERS[framework]
    (tmp_path / "mine.py").write_text(
        f"import {module}\n\ndef make():\n    return {read.format(str(folder / name))}\n"
        "\ndef wrong():\n    return [1]\n"
    )
    project = tmp_path / "edgepack.yaml"
    written = (
        "schema_version: 1\nname: trees\ntargets: [host]\n"
        f"converters: {{{framework}: {{python: {python}}}}}\n"
        f"model: {{python: 'mine:make', framework: {framework}}}\n"
    )
    project.write_text(written)
    result = build(project=project, variants=["cpu-fp32"], out=tmp_path / "dist")
    result.require_all()
    origin = verify(result.bundles[0].bundle.path).manifest.model.converted_from
    assert origin is not None
    assert all(each.farthest <= each.tolerance for each in origin.outputs)
    project.write_text(written.replace("mine:make", "mine:wrong"))
    with pytest.raises(ModelError, match="the function returned list") as caught:
        build(project=project, variants=["cpu-fp32"], out=tmp_path / "dist")
    assert "return a" in caught.value.hint


MAKERS = {
    "xgboost": "xgboost.XGBRegressor(n_estimators=5, missing=0.0).fit(x, x[:, 0])",
    "lightgbm": "lightgbm.LGBMClassifier(n_estimators=5).fit(x, np.where(x[:, 0] > 0, 'b', 'a'))",
    "sklearn": "sklearn.linear_model.LogisticRegression().fit(x, x[:, 0] > 0)",
}


@pytest.mark.parametrize(
    ("framework", "problem"),
    [
        ("xgboost", "takes 0.0 for a missing value"),
        ("lightgbm", "its classes are a, b,"),
        ("sklearn", ""),
    ],
)
def test_estimator_of_a_function_keeps_its_meaning_or_is_refused(tmp_path, framework, problem):
    _, python = find_models(framework)
    module = "sklearn.linear_model" if framework == "sklearn" else framework
    (tmp_path / "mine.py").write_text(
        f"import numpy as np\nimport {module}\n\ndef make():\n"
        "    x = np.random.default_rng(0).normal(size=(200, 4)).astype(np.float32)\n"
        f"    return {MAKERS[framework]}\n"
    )
    project = tmp_path / "edgepack.yaml"
    project.write_text(
        "schema_version: 1\nname: trees\ntargets: [host]\n"
        f"converters: {{{framework}: {{python: {python}}}}}\n"
        f"model: {{python: 'mine:make', framework: {framework}}}\n"
    )
    if problem:
        with pytest.raises(ModelError, match=problem):
            build(project=project, variants=["cpu-fp32"], out=tmp_path / "dist")
    else:
        build(project=project, variants=["cpu-fp32"], out=tmp_path / "dist").require_all()
