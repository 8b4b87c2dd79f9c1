"""Sizes that a project gives become TensorRT's shape profiles."""

from __future__ import annotations

import pytest
from edgepack.builder.shapes import add_shape_profiles
from edgepack.model.facts import TensorSpec
from edgepack.project.profile import load_profile
from edgepack.project.project import Project

IDS = TensorSpec("ids", "int64", ("batch", "sequence"))
FIXED = TensorSpec("scale", "float32", (1,))


def project(**dims) -> Project:
    return Project.model_validate({"schema_version": 1, "name": "n", "model": "m", "dims": dims})


def options(variant_id: str, inputs, **dims) -> dict[str, str]:
    variant = load_profile("jetson").find_variant(variant_id)
    return add_shape_profiles(variant, inputs, project(**dims)).providers[0].options


def test_shape_profiles_when_every_dimension_has_sizes_name_every_dynamic_input():
    span = {"min": 1, "opt": 8, "max": 32}
    found = options("tensorrt-fp16", [IDS, FIXED], batch=span, sequence=[64, 16])
    assert found["trt_profile_min_shapes"] == "ids:1x16"
    assert found["trt_profile_opt_shapes"] == "ids:8x64"
    assert found["trt_profile_max_shapes"] == "ids:32x64"
    assert found["trt_fp16_enable"] == "True"


@pytest.mark.parametrize(
    ("variant", "inputs"),
    [("tensorrt-fp16", [FIXED]), ("cuda-fp16", [IDS]), ("tensorrt-fp16", [IDS])],
)
def test_shape_profiles_when_nothing_is_to_say_are_absent(variant, inputs):
    dims = {"batch": [1, 2], "sequence": [4]} if variant == "cuda-fp16" else {"batch": [1, 2]}
    assert not any(key.startswith("trt_profile") for key in options(variant, inputs, **dims))


def test_span_when_out_of_order_is_refused():
    with pytest.raises(ValueError, match="not in order"):
        project(batch={"min": 4, "opt": 2, "max": 8})
