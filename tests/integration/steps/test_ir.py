"""Models of an IR version that a runtime refuses for the number alone."""

from __future__ import annotations

import onnx
import pytest
from edgepack.builder.build import build
from edgepack.builder.inspect import inspect
from edgepack.errors import ModelError
from edgepack.model.ir import lower_ir

from tests.support.nets import tiny_models


@pytest.mark.slow(reason="builds for a target")
def test_model_when_onnx_wrote_its_newest_ir_is_built_for_runtimes_that_refuse_it(tmp_path):
    project = tiny_models.write_project(tmp_path, "dims: {batch: 1}")
    model = onnx.load(tmp_path / "net.onnx")
    model.ir_version = 14
    onnx.save(model, tmp_path / "net.onnx")
    assert not any(each.unused for each in inspect(project=project, targets=["jetson"]).variants)
    result = build(project=project, targets=["jetson"], out=tmp_path / "dist")
    result.require_all()
    manifest = result.bundles[0].bundle.manifest
    assert manifest.model.ir_version == 14
    assert len(manifest.variants) == 5
    for variant in manifest.variants:
        assert onnx.load(result.bundles[0].bundle.path / variant.model).ir_version <= 11


def test_ir_when_a_weight_has_a_type_of_a_later_one_is_refused():
    tensor = onnx.TensorProto(name="w", data_type=23, dims=[2], raw_data=b"\0")
    model = onnx.helper.make_model(onnx.GraphProto(initializer=[tensor]), ir_version=12)
    with pytest.raises(ModelError, match="'w' has a type of IR version 11"):
        lower_ir(model, 10)
