"""Raising and lowering a model's opset, and where onnx cannot."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from edgepack.errors import BugError, StepError
from edgepack.model.facts import find_default_opset
from edgepack.model.files import MODEL
from edgepack.model.reading import read_outline
from edgepack.steps.base import run_step
from edgepack.steps.graph.opset import AtLeastOpset, AtMostOpset
from onnx import TensorProto, helper, numpy_helper

from tests.support.nets import tiny_models


def test_operator_that_onnx_took_away_is_named_without_the_converters_assertion(tmp_path):
    node = helper.make_node("ImageScaler", ["x"], ["y"], bias=[0.0, 0.0, 0.0])
    ends = [[(name, TensorProto.FLOAT, [1, 3, 4, 4])] for name in "xy"]
    tiny_models.save(tmp_path / "before" / MODEL, [node], *ends, opset=7, ir=4)
    (tmp_path / "after").mkdir()
    with pytest.raises(StepError) as caught:
        AtLeastOpset(13).run({"model": tmp_path / "before"}, tmp_path / "after")
    assert caught.value.problem == (
        "onnx cannot convert the model from opset 7 to 13: ONNX has no operator ImageScaler"
    )
    assert "opset 13 or higher" in caught.value.hint


@pytest.fixture(name="folders")
def make_folders(tmp_path):
    (tmp_path / "after").mkdir()
    return tmp_path / "before", tmp_path / "after"


def save_norm(folder, node, opset):
    ends = [[(name, TensorProto.FLOAT, [2, 4])] for name in "xy"]
    scale = [("scale", np.linspace(1, 2, 4, dtype=np.float32))]
    tiny_models.save(folder / MODEL, [node], *ends, scale, opset=opset, ir=10)


def test_opset_that_a_runtime_is_too_old_for_is_lowered(folders):
    before, after = folders
    save_norm(before, helper.make_node("Mul", ["x", "scale"], ["y"], "mul"), 24)
    assert run_step(AtMostOpset(22), {"model": before}, after).done == "opset 24 converted to 22"
    assert find_default_opset(read_outline(after / MODEL)) == 22


def test_operator_that_a_lower_opset_has_not_is_named(folders):
    before, after = folders
    node = helper.make_node("RMSNormalization", ["x", "scale"], ["y"], "norm")
    save_norm(before, node, 23)
    with pytest.raises(StepError) as caught:
        AtMostOpset(22).run({"model": before}, after)
    assert caught.value.problem == (
        "onnx cannot convert the model from opset 23 to 22: it has no way for RMSNormalization"
    )
    assert "export the model with opset 17 to 22" in caught.value.hint


def test_lowered_model_that_computes_something_else_or_is_too_new_is_refused(folders):
    before, after = folders
    save_norm(before, helper.make_node("Mul", ["x", "scale"], ["y"], "mul"), 24)
    step = AtMostOpset(22)
    step.run({"model": before}, after)
    model = onnx.load(after / MODEL)
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.ones(4, np.float32), "scale"))
    onnx.save(model, after / MODEL)
    with pytest.raises(StepError, match=r"the outputs are .* dB away"):
        step.verify({"model": before}, after)
    with pytest.raises(BugError, match="the opset is 24, not 22"):
        step.verify({"model": before}, before)
