from __future__ import annotations

from importlib import import_module
from pkgutil import walk_packages

import edgepack.steps
import pytest
from edgepack.builder.build import dry_run
from edgepack.builder.doing import LONG, Doing, describe_step, describe_variants

from tests.support.nets import tiny_models


@pytest.mark.parametrize(
    ("variants", "found"),
    [
        ([("pi", "cpu-fp32")], ("pi cpu-fp32", "")),
        ([("pi", "cpu-fp32"), ("pi", "cpu-int8")], ("pi", ", for 2 variants")),
        ([("pi", "cpu-fp32"), ("x86", "cpu-fp32")], ("cpu-fp32", ", for 2 targets")),
        ([("pi", "a"), ("x86", "b"), ("x86", "a")], ("", ", for 3 variants of 2 targets")),
        ([("pi", "a"), ("pi", "b"), ("x86", "a"), ("x86", "b")], ("", ", for all variants")),
        ([], ("", "")),
    ],
)
def test_step_says_for_whom_it_is(variants, found):
    assert describe_variants(variants, 4) == found


def test_steps_of_a_plan_are_said_in_words(tmp_path):
    project = tiny_models.write_project(tmp_path)
    plan = dry_run(project=project, targets=["linux-x86-64", "linux-aarch64"])
    doing = Doing(plan)
    counts = {"evaluation": 24}
    said = [doing.describe(step, counts.get(step.step.name)) for step in plan.steps]
    assert "cpu-int8-static: reading samples for calibration, for 2 targets" in said
    assert "preparing the model (sizes fixed, shapes inferred), for all variants" in said
    assert "linux-aarch64 cpu-int8-static: quantizing (int8)" in said
    assert "cpu-fp32: measuring accuracy on 24 samples, for 2 targets" in said


def test_words_are_there_for_every_step():
    modules = [
        import_module(found.name)
        for found in walk_packages(edgepack.steps.__path__, "edgepack.steps.")
    ]
    classes = [one for module in modules for one in vars(module).values() if isinstance(one, type)]
    names = {one.name for one in classes if hasattr(one, "libraries") and hasattr(one, "name")}
    assert len(names) > 20
    assert all(map(describe_step, names))
    assert names >= LONG
