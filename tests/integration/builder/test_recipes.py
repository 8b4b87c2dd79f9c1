"""A recipe is one entry in a registry: a made-up one goes all the way."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import onnx
import pytest
from edgepack.backends.registry import BACKENDS
from edgepack.builder.build import build, dry_run
from edgepack.builder.inspect import inspect
from edgepack.bundle.reading import verify
from edgepack.errors import ProfileError
from edgepack.project.recipes import RECIPE_RULES, RecipeRules, Since
from edgepack.steps.graph.opset import AtLeastOpset
from edgepack.steps.proofs.goldens import Goldens
from edgepack.steps.recipes.kind import RecipeKind
from edgepack.steps.recipes.recipes import RECIPES
from onnx import numpy_helper

from tests.support.doubles import worker_tasks
from tests.support.nets import tiny_models

OPSET, DIGITS, CAP_DB = 19, 3, 41.5
KIND = RecipeKind(
    lambda asked: worker_tasks.Rounded(DIGITS),
    words="rounding",
    cpu_cap_db=CAP_DB,
    other_cap_db=30.0,
    padded_db=40.0,
    given={"calibrated": "calibration"},
    before=lambda asked: (AtLeastOpset(OPSET),),
    needs_calibration=True,
)
TARGETS = "targets: [{id: linux-x86-64, variants: [{backend: cpu, recipe: rounded}]}]"


@pytest.fixture
def rounded(monkeypatch) -> None:
    """Register the recipe, and have the CPU take it."""
    cpu = BACKENDS["cpu"]
    monkeypatch.setitem(RECIPES, "rounded", KIND)
    monkeypatch.setitem(RECIPE_RULES, "rounded", RecipeRules())
    taking = replace(cpu, recipes=cpu.recipes | {"rounded"})
    monkeypatch.setitem(BACKENDS, "cpu", taking)
    monkeypatch.setenv("PYTHONPATH", str(Path(worker_tasks.__file__).parents[3]))


@pytest.mark.usefixtures("rounded")
def test_recipe_when_it_is_registered_is_built_as_it_says(tmp_path):
    project = tiny_models.write_project(tmp_path, TARGETS)
    (built,) = build(project=project, out=tmp_path / "dist").bundles
    manifest = verify(built.bundle.path).manifest
    (variant,) = manifest.variants
    assert (variant.id, variant.recipe) == ("cpu-rounded", "rounded")
    model = onnx.load(built.bundle.path / variant.model)
    assert model.opset_import[0].version == OPSET
    weights = [numpy_helper.to_array(t) for t in model.graph.initializer if t.data_type == 1]
    assert weights
    assert all((each == each.round(DIGITS)).all() for each in weights)
    assert manifest.provenance.calibration is not None
    assert any("rounded for 24 samples" in str(step) for step in manifest.steps)


@pytest.mark.usefixtures("rounded")
def test_recipe_when_it_is_registered_has_its_cap_in_the_plan(tmp_path):
    plan = dry_run(project=tiny_models.write_project(tmp_path, TARGETS))
    assert [s.step.cap_db for s in plan.steps if isinstance(s.step, Goldens)] == [CAP_DB]


@pytest.mark.usefixtures("rounded")
def test_recipe_when_samples_are_missing_is_refused_by_build_and_drafted_by_inspect(tmp_path):
    project = tiny_models.write_project(tmp_path, TARGETS, samples=False)
    (found,) = inspect(project=project).variants
    assert (found.variant, found.unused.stage) == ("cpu-rounded", "refused")
    assert found.unused.reason == "it needs calibration samples"
    assert found.nodes == found.taken > 0
    with pytest.raises(ProfileError, match="'cpu-rounded' cannot be built: it needs calibration"):
        dry_run(project=project)


@pytest.mark.usefixtures("rounded")
def test_recipe_when_the_runtime_is_older_than_it_needs_is_refused(tmp_path, monkeypatch):
    rules = RecipeRules(since=Since("99.1", "rounded weights", "fp32"))
    monkeypatch.setitem(RECIPE_RULES, "rounded", rules)
    project = tiny_models.write_project(tmp_path, TARGETS)
    with pytest.raises(ProfileError, match="does not load rounded weights") as caught:
        dry_run(project=project)
    assert "99.1 or newer, or use fp32" in caught.value.hint


def test_recipe_when_nobody_registered_it_is_refused_with_the_nearest(tmp_path):
    project = tiny_models.write_project(tmp_path, TARGETS.replace("rounded", "int8-statik"))
    with pytest.raises(ProfileError, match="'recipe' cannot be 'int8-statik'") as caught:
        dry_run(project=project)
    assert "int8-static" in caught.value.hint


def test_recipes_when_listed_are_those_of_profiles_and_backends():
    assert RECIPES.keys() == RECIPE_RULES.keys()
    known = set().union(*(backend.recipes for backend in BACKENDS.values()))
    assert known == RECIPES.keys()


def test_steps_of_recipes_when_planned_have_their_names(tmp_path):
    plan = dry_run(project=tiny_models.write_project(tmp_path), targets=["all"])
    names = {step.id: step.step.name for step in plan.steps}
    for variant in (each for bundle in plan.bundles for each in bundle.variants):
        assert variant.variant.recipe in {names[step] for step in variant.history}
