"""Models and versions that apps cannot have: said before anything is built."""

from __future__ import annotations

import pytest
from edgepack.builder.build import dry_run
from edgepack.errors import ModelError, ProfileError
from onnx import TensorProto, helper

from tests.support.nets.tiny_models import save


def test_plan_when_apps_have_no_such_tensors_refuses_the_phone_alone(tmp_path):
    value = (TensorProto.UINT32, [1, 4])
    nodes = [helper.make_node("Identity", ["codes"], ["same"], "same")]
    model = save(tmp_path / "net.onnx", nodes, [("codes", *value)], [("same", *value)])
    assert dry_run(model, targets=["linux-x86-64"]).bundles
    with pytest.raises(ModelError, match="'codes' is uint32") as error:
        dry_run(model, targets=["linux-x86-64", "android"])
    assert "int64" in error.value.hint


def test_plan_when_package_managers_do_not_take_the_version_refuses_ios_alone(tmp_path):
    value = (TensorProto.FLOAT, [1, 4])
    nodes = [helper.make_node("Identity", ["x"], ["y"], "same")]
    save(tmp_path / "net.onnx", nodes, [("x", *value)], [("y", *value)])
    project = tmp_path / "edgepack.yaml"
    lines = ["schema_version: 1", "name: net", "version: 1.0_rc", "model: net.onnx", "samples: {}"]
    project.write_text("\n".join(lines), encoding="utf-8")
    assert dry_run(project=project, targets=["android"]).bundles
    with pytest.raises(ProfileError, match=r"'1\.0_rc' is no version"):
        dry_run(project=project, targets=["android", "ios"])
