"""Models that apps cannot have tensors of: said before anything is built."""

from __future__ import annotations

import pytest
from edgepack.build import dry_run
from edgepack.errors import ModelError
from onnx import TensorProto, helper
from tiny_models import save


def test_plan_when_apps_have_no_such_tensors_refuses_the_phone_alone(tmp_path):
    value = (TensorProto.UINT32, [1, 4])
    nodes = [helper.make_node("Identity", ["codes"], ["same"], "same")]
    model = save(tmp_path / "net.onnx", nodes, [("codes", *value)], [("same", *value)])
    assert dry_run(model, targets=["linux-x86-64"]).bundles
    with pytest.raises(ModelError, match="'codes' is uint32") as error:
        dry_run(model, targets=["linux-x86-64", "android"])
    assert "int64" in error.value.hint
