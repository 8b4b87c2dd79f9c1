"""Which models have normalizations that a session joins with the sums before them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from edgepack.measure.tune.norms import has_norms
from onnx import TensorProto, helper

from tests.support.nets.tiny_models import conv_net, save

node = helper.make_node
FLOAT = TensorProto.FLOAT


def norm(path: Path, *, spelt_out: bool) -> Path:
    """A model that normalizes, by one operator or as opsets below 17 have it."""
    nodes = (
        [
            node("ReduceMean", ["x"], ["mean"], "mean", axes=[1], keepdims=1),
            node("Sub", ["x", "mean"], ["off"], "off"),
            node("Pow", ["off", "two"], ["square"], "square"),
            node("ReduceMean", ["square"], ["variance"], "variance", axes=[1], keepdims=1),
            node("Sqrt", ["variance"], ["deviation"], "deviation"),
            node("Div", ["off", "deviation"], ["y"], "y"),
        ]
        if spelt_out
        else [node("LayerNormalization", ["x", "gamma"], ["y"], "norm")]
    )
    constants = [("two", np.float32(2)), ("gamma", np.ones(8, np.float32))]
    return save(path, nodes, [("x", FLOAT, [1, 8])], [("y", FLOAT, [1, 8])], constants)


@pytest.mark.parametrize(
    ("kind", "model_format", "expected"),
    [
        ("norm", "onnx", True),
        ("spelt out", "onnx", True),
        ("convolutions", "onnx", False),
        ("norm", "ort", False),
    ],
)
def test_norms_are_found_in_models_that_a_session_optimizes(
    tmp_path: Path, kind: str, model_format: str, *, expected: bool
):
    path = tmp_path / "models" / "m.onnx"
    if kind == "convolutions":
        conv_net(path, batch=1)
    else:
        norm(path, spelt_out=kind == "spelt out")
    bundle = SimpleNamespace(path=tmp_path)
    variant = SimpleNamespace(model="models/m.onnx", model_format=model_format)
    assert has_norms(bundle, variant) == expected
