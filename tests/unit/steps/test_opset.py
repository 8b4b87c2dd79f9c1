"""Raising a model's opset, where onnx cannot."""

from __future__ import annotations

import pytest
from edgepack.errors import StepError
from edgepack.model.files import MODEL
from edgepack.steps.graph.opset import AtLeastOpset
from onnx import TensorProto, helper

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
