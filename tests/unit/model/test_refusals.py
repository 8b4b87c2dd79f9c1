"""What a model that onnxruntime refuses is said to lack."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import onnx
import pytest
from edgepack.errors import ModelError
from edgepack.model.running import make_session
from onnx import TensorProto, helper

from tests.support.nets import tiny_models


def one_node(path: Path, op: str, domain: str = "", *, opset: int = 17, **attributes) -> Path:
    """Write a model x [1, 4] to y [1, 4] of one node."""
    node = helper.make_node(op, ["x"], ["y"], "only", domain=domain, **attributes)
    ends = [[(name, TensorProto.FLOAT, [1, 4])] for name in "xy"]
    tiny_models.save(path, [node], *ends, opset=opset)
    if domain:
        model = onnx.load(path)
        model.opset_import.append(helper.make_opsetid(domain, 1))
        onnx.save(model, path)
    return path


def refused(path: Path) -> ModelError:
    with pytest.raises(ModelError) as caught:
        make_session(path)
    assert caught.value.where == path.name
    return caught.value


def test_model_compiled_for_one_runtime_is_refused_with_what_to_give_instead(tmp_path):
    source = {"source": "QNN", "embed_mode": 1, "ep_cache_context": b"blob"}
    error = refused(one_node(tmp_path / "m.onnx", "EPContext", "com.microsoft", **source))
    assert "compiled for QNN already: com.microsoft:EPContext (node 'only')" in error.problem
    assert "give the ONNX file it was made from" in error.hint


def run_the_hint(error: ModelError, folder: Path, **replaced: str) -> None:
    """Type the command at the end of a hint."""
    command = error.hint[error.hint.index("python -c") :]
    for word, value in replaced.items():
        command = command.replace(word, value)
    _, *arguments = shlex.split(command)
    subprocess.run([sys.executable, *arguments], cwd=folder, check=True)


def test_model_without_an_operator_set_is_mended_by_the_hint(tmp_path):
    path = one_node(tmp_path / "with 'quotes'.onnx", "Relu")
    model = onnx.load(path)
    del model.opset_import[:]
    onnx.save(model, path)
    error = refused(path)
    assert "does not say which operator set" in error.problem
    assert "opset_version=" in error.hint
    run_the_hint(error, tmp_path, VERSION="13")
    make_session(path)


def test_nodes_of_one_name_are_both_named_and_mended_by_the_hint(tmp_path):
    nodes = [
        helper.make_node("Relu", ["x"], ["h"], "twice"),
        helper.make_node("Neg", ["h"], ["y"], "twice"),
    ]
    ends = [[(name, TensorProto.FLOAT, [1, 4])] for name in "xy"]
    path = tiny_models.save(tmp_path / "m.onnx", nodes, *ends)
    error = refused(path)
    assert "2 nodes have the name 'twice': Relu that makes 'h', Neg that makes 'y'" in error.problem
    run_the_hint(error, tmp_path)
    make_session(path)


@pytest.mark.parametrize("imported", [True, False])
def test_custom_operator_needs_a_library(tmp_path, imported):
    path = one_node(tmp_path / "m.onnx", "Magic", "my.ops")
    if not imported:
        model = onnx.load(path)
        del model.opset_import[1:]
        onnx.save(model, path)
    error = refused(path)
    assert "custom operators, of 'my.ops', need a library" in error.problem
    assert "my.ops:Magic (node 'only')" in error.problem
    assert "custom_ops: {linux-x86-64: libmine.so}" in error.hint


def test_custom_operator_within_a_body_is_found(tmp_path):
    body = [helper.make_node("Magic", ["x"], ["z"], domain="my.ops")]
    value = helper.make_tensor_value_info("z", TensorProto.FLOAT, [1, 4])
    branch = helper.make_graph(body, "branch", [], [value])
    node = helper.make_node("If", ["c"], ["y"], then_branch=branch, else_branch=branch)
    inputs = [("x", TensorProto.FLOAT, [1, 4]), ("c", TensorProto.BOOL, [])]
    path = tiny_models.save(tmp_path / "m.onnx", [node], inputs, [("y", TensorProto.FLOAT, [1, 4])])
    assert "my.ops:Magic (nodes for 'z', for 'z')" in refused(path).problem


@pytest.mark.parametrize(
    ("op", "domain", "problem", "hint"),
    [
        ("Rellu", "", "no such operator in onnxruntime: Rellu (node 'only')", "mean 'Relu'?"),
        ("Gellu", "com.microsoft", "onnxruntime: com.microsoft:Gellu (node", "mean 'Gelu'?"),
        ("Gelu", "", "is an operator from opset 20 on, and the model says opset 17", "opset 20"),
        ("Upsample", "", "is an operator until opset 9 only, and the model says opset 17", "9"),
        ("Gradient", "ai.onnx.preview.training", "no such operator in onnxruntime", "inference"),
    ],
)
def test_operator_of_a_known_domain_that_is_not_there_is_told_from_a_custom_one(
    tmp_path, op, domain, problem, hint
):
    error = refused(one_node(tmp_path / "m.onnx", op, domain))
    assert problem in error.problem
    assert hint in error.hint
    assert "custom operators" not in error.problem


def test_opset_that_is_not_released_is_said_with_the_highest_that_is(tmp_path):
    error = refused(one_node(tmp_path / "m.onnx", "Relu", opset=999))
    highest = onnx.defs.onnx_opset_version()
    assert "the model has opset 999; onnxruntime here loads up to" in error.problem
    assert int(error.problem.split()[-1]) <= highest
    assert "convert_version(m, " in error.hint
