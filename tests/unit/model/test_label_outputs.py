from __future__ import annotations

import onnx
import pytest
from edgepack.model.facts import read_model_facts
from edgepack.project.loading import make_project
from onnx import TensorProto, helper

LABEL = ("label", TensorProto.INT64, ["batch"])
SHARES = ("shares", TensorProto.FLOAT, ["batch", 3])


def read_facts(folder, *outputs):
    nodes = [
        helper.make_node("Cast", ["x"], [name], to=kind) for name, kind, _ in outputs
    ]  # shapes are declared, and not looked at here
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3])],
        [helper.make_tensor_value_info(*each) for each in outputs],
    )
    path = folder / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]), path)
    return read_model_facts(path)


@pytest.mark.parametrize(
    ("outputs", "scores"),
    [
        ([LABEL, SHARES], "shares"),
        ([("label", TensorProto.INT64, ["batch", 1]), SHARES], "shares"),
        ([SHARES, LABEL], "shares"),
        ([LABEL], "label"),
        # Numbers that are no label: what came first stays first.
        ([("ids", TensorProto.INT64, ["batch", 9]), SHARES], "ids"),
        ([("score", TensorProto.FLOAT, ["batch"]), SHARES], "score"),
    ],
)
def test_scores_when_a_label_comes_first_are_what_follows(tmp_path, outputs, scores):
    facts = read_facts(tmp_path, *outputs)
    project = make_project(tmp_path / "model.onnx")
    names = [spec.name for spec in facts.outputs]
    assert project.find_scores_output(names, facts.label_outputs) == scores
