"""Simplifying a model whose weights are stored in int8, with a Cast and a Mul behind."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from edgepack.builder.build import build
from edgepack.model.facts import read_model_facts
from edgepack.model.files import MODEL
from edgepack.model.reading import read_model
from edgepack.steps.base import run_step
from edgepack.steps.graph.simplified import Simplified
from onnx import TensorProto, helper

from tests.support.nets.tiny_models import conv_net, save

node = helper.make_node
WIDTH = 384
PROJECT = """
schema_version: 1
name: narrow
version: 1.0.0
model: in/model.onnx
targets:
  - id: linux-x86-64
    variants: [{backend: cpu, recipe: fp32}, {backend: cpu, recipe: int4-weight}]
"""


@pytest.fixture
def narrow(tmp_path: Path) -> Path:
    """A folder with a product whose 147,456 weights are int8."""
    weights = np.random.default_rng(3).integers(-127, 128, (WIDTH, WIDTH)).astype(np.int8)
    nodes = [
        node("Cast", ["codes"], ["steps"], "cast", to=TensorProto.FLOAT),
        node("Mul", ["steps", "scale"], ["weights"], "scale"),
        node("MatMul", ["x", "weights"], ["y"], "product"),
    ]
    constants = [("codes", weights), ("scale", np.full((1, WIDTH), 1e-3, np.float32))]
    value = ("x", TensorProto.FLOAT, [2, WIDTH])
    save(tmp_path / "in" / MODEL, nodes, [value], [("y", TensorProto.FLOAT, [2, WIDTH])], constants)
    return tmp_path


@pytest.mark.parametrize("grows", [True, False])
def test_weights_become_float32_only_where_the_file_may_grow(narrow: Path, *, grows: bool):
    (narrow / "out").mkdir()
    notes = run_step(Simplified(grows=grows), {"model": narrow / "in"}, narrow / "out")
    before, after = ((narrow / part / MODEL).stat().st_size for part in ("in", "out"))
    operators = {each.op_type for each in read_model(narrow / "out" / MODEL).graph.node}
    assert ("Cast" in operators) != grows
    if grows:
        assert after > 3.5 * before
    else:
        assert after == before
        assert notes.done == (
            "onnxsim skipped: it makes constants of 0.1 MB float32, 0.6 MB in all"
        )


def test_bundle_keeps_such_weights_as_they_are_in_fp32_and_makes_4_bits_of_them(narrow: Path):
    (narrow / "edgepack.yaml").write_text(PROJECT)
    result = build(project=narrow / "edgepack.yaml", out=narrow / "dist")
    result.require_all()
    bundle = result.bundles[0].bundle
    source = (narrow / "in" / MODEL).stat().st_size
    fp32, int4 = ((bundle.path / v.model).stat().st_size for v in bundle.manifest.variants)
    assert fp32 < 1.1 * source
    assert int4 < 0.75 * source


def test_facts_say_whether_large_weights_have_fewer_bits_than_float32(narrow: Path):
    assert read_model_facts(narrow / "in" / MODEL).has_narrow_weights
    assert not read_model_facts(conv_net(narrow / "other.onnx", batch=1)).has_narrow_weights
