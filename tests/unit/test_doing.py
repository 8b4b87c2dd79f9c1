from __future__ import annotations

import pytest
import tiny_models
from edgepack.build import dry_run
from edgepack.build.doing import LONG, WORDS, Doing, described


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
    assert described(variants, 4) == found


def test_steps_of_a_plan_are_said_in_words(tmp_path):
    project = tiny_models.write_project(tmp_path)
    plan = dry_run(project=project, targets=["linux-x86-64", "linux-aarch64"])
    doing = Doing(plan)
    said = [doing.text(step, 24 if step.step.name == "evaluation" else None) for step in plan.steps]
    assert "cpu-int8-static: reading samples for calibration, for 2 targets" in said
    assert "preparing the model (sizes fixed, shapes inferred), for all variants" in said
    assert "linux-aarch64 cpu-int8-static: quantizing (int8)" in said
    assert "cpu-fp32: measuring accuracy on 24 samples, for 2 targets" in said


def test_words_are_there_for_every_step_that_is_said_to_be_long():
    assert set(WORDS) >= LONG
