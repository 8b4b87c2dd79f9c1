"""A batch of fixed size becomes free, and rows that differ from the sample alone are noticed."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from edgepack.builder.build import build
from edgepack.errors import ProfileError, StepError
from edgepack.model.files import MODEL
from edgepack.steps.base import run_step
from edgepack.steps.cleaning.free_batch import FreeBatch
from onnx import TensorProto, helper, numpy_helper

from tests.support.nets import batch_nets, classical_nets, tiny_models


def free(source, out):
    out.mkdir()
    return run_step(FreeBatch("n"), {"source": source}, out)


def run_model(path, x):
    return onnxruntime.InferenceSession(str(path)).run(None, {"x": x})[0]


@pytest.mark.parametrize("net", batch_nets.FREED)
def test_rows_of_a_freed_batch_are_those_of_the_model(tmp_path, net):
    source = batch_nets.save_batch(tmp_path / "net.onnx", net)
    free(source, tmp_path / "out")
    x = np.random.default_rng(2).standard_normal((5, 2, 3, 4)).astype(np.float32)
    alone = [run_model(source, x[row : row + 1]) for row in range(5)]
    np.testing.assert_allclose(
        run_model(tmp_path / "out" / MODEL, x), np.concatenate(alone), rtol=1e-5
    )
    [output] = onnx.load(tmp_path / "out" / MODEL).graph.output
    assert output.type.tensor_type.shape.dim[0].dim_param == "n"


@pytest.mark.parametrize(
    ("net", "reason"),
    [
        ("one for all", r"'y' follows from it; node 'over_all' \(ReduceMax\) fixes it"),
        ("samples that depend on each other", "sample 1 of 2 has an output 'y'"),
        ("parts", r"node 'split' \(Split\)"),
    ],
)
def test_a_batch_that_something_fixes_is_refused(tmp_path, net, reason):
    source = batch_nets.save_batch(tmp_path / "net.onnx", net)
    with pytest.raises(StepError, match=reason) as caught:
        free(source, tmp_path / "out")
    assert "dynamic_axes" in caught.value.hint


def test_a_batch_that_is_free_already_has_nothing_to_free(tmp_path):
    source = tiny_models.conv_net(tmp_path / "net.onnx")
    with pytest.raises(StepError, match="no fixed size in front"):
        free(source, tmp_path / "out")


def test_a_batch_of_four_is_proven_row_by_row(tmp_path):
    shape = (TensorProto.FLOAT, [4, 6])
    nodes = [
        helper.make_node("Reshape", ["x", "shape"], ["r"], "r"),
        helper.make_node("Softmax", ["r"], ["y"], "soft", axis=-1),
    ]
    ints = [("shape", np.array([4, 2, 3], np.int64))]
    output = [("y", TensorProto.FLOAT, [4, 2, 3])]
    source = tiny_models.save(tmp_path / "net.onnx", nodes, [("x", *shape)], output, ints)
    free(source, tmp_path / "out")
    x = np.random.default_rng(2).standard_normal((4, 6)).astype(np.float32)
    for rows in (1, 3, 4):
        given = run_model(tmp_path / "out" / MODEL, x[:rows])
        np.testing.assert_allclose(given, run_model(source, x)[:rows], rtol=1e-6)


def test_proof_when_a_weight_changes_fails(tmp_path):
    source = batch_nets.save_batch(tmp_path / "net.onnx", "a class token")
    free(source, tmp_path / "out")
    model = onnx.load(tmp_path / "out" / MODEL)
    token = next(t for t in model.graph.initializer if t.name == "token")
    token.CopyFrom(numpy_helper.from_array(np.full((1, 2, 1, 4), 0.6, np.float32), "token"))
    onnx.save(model, tmp_path / "out" / MODEL)
    with pytest.raises(StepError, match="from the one it has alone"):
        FreeBatch("n").verify({"source": source}, tmp_path / "out")


def write_project(folder, dims):
    path = folder / "edgepack.yaml"
    path.write_text(
        f"schema_version: 1\nname: net\nmodel: net.onnx\ntargets: [host]\ndims: {{{dims}}}\n"
    )
    return path


def test_a_project_frees_the_batch_of_a_model_that_is_cleaned_too(tmp_path):
    source = classical_nets.save_classifier(tmp_path / "net.onnx", ["a", "b"])
    model = onnx.load(source)
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 1
    onnx.save(model, source)
    [built] = build(project=write_project(tmp_path, "rows: free"), out=tmp_path / "dist").bundles
    manifest = built.bundle.manifest
    assert [tensor.shape for tensor in (*manifest.inputs, *manifest.outputs)] == [
        ["rows", 4],
        ["rows"],
        ["rows", 2],
    ]
    assert [line.split("-")[0] for line in manifest.steps[1:3]] == ["cleaned", "free"]


def test_a_project_that_frees_what_is_free_changes_nothing(tmp_path):
    tiny_models.conv_net(tmp_path / "net.onnx")
    [built] = build(project=write_project(tmp_path, "batch: free"), out=tmp_path / "dist").bundles
    assert built.bundle.manifest.inputs[0].shape[0] == "batch"
    assert not built.bundle.manifest.steps[0].startswith(("source", "cleaned", "free"))


@pytest.mark.parametrize(
    ("dims", "reason"),
    [("rows: free, n: free", "'rows' and 'n' are to be free"), ("rows: free", "dimension 'rows'")],
)
def test_a_project_that_frees_another_dimension_is_refused(tmp_path, dims, reason):
    tiny_models.conv_net(tmp_path / "net.onnx")
    with pytest.raises(ProfileError, match=reason):
        build(project=write_project(tmp_path, dims), out=tmp_path / "dist")
