"""What a framework gave for the samples, beside them: held against the ONNX model."""

from __future__ import annotations

import json

import numpy as np
import onnx
import onnxruntime
import pytest
from edgepack.builder.build import build
from edgepack.bundle.reading import verify
from edgepack.errors import ProfileError, SamplesError, StepError

from tests.support.nets import tiny_models


@pytest.fixture
def given(tmp_path):
    """A project with samples, and what its own model gives for each: as a framework would."""
    project = tiny_models.write_project(tmp_path)
    with np.load(tmp_path / "eval.npz") as file:
        arrays = {name: file[name] for name in file.files}
    session = onnxruntime.InferenceSession(tmp_path / "net.onnx")
    [taken], [output] = session.get_inputs(), [session.get_outputs()[0]]
    scores = [
        session.run([output.name], {taken.name: each.reshape(1, *each.shape[-3:])})[0]
        for each in arrays[taken.name]
    ]
    return project, arrays, output.name, np.concatenate(scores)


def write(project, arrays, **keys):
    np.savez(project.parent / "eval.npz", **arrays)
    text = project.read_text()
    entry = json.dumps(keys["reference"])
    text = text.replace("{path: eval.npz", f"{{path: eval.npz, reference: {entry}")
    assert "reference" in text, text
    project.write_text(text)


def test_reference_when_equal_is_proven_and_told(given, tmp_path):
    project, arrays, output, scores = given
    write(project, {**arrays, "torch": scores}, reference={output: "torch"})
    result = build(project=project, targets=["host"], out=tmp_path / "dist")
    result.require_all()
    manifest = verify(result.bundles[0].bundle.path).manifest
    [found] = manifest.model.reference
    assert (found.name, found.farthest <= found.tolerance) == (output, True)
    assert found.largest == pytest.approx(np.abs(scores).max(), rel=0.5)
    assert any("from the reference" in step for step in manifest.steps)


def test_reference_when_one_value_is_another_stops_the_build(given, tmp_path):
    project, arrays, output, scores = given
    scores = scores.copy()
    scores[0, 1] += 0.05 * np.abs(scores).max()
    write(project, {**arrays, "torch": scores}, reference={output: "torch"})
    with pytest.raises(StepError, match="something else than the reference") as caught:
        build(project=project, targets=["host"], out=tmp_path / "dist")
    assert "sample 0 of eval.npz" in caught.value.problem
    assert not (tmp_path / "dist").exists() or not any((tmp_path / "dist").iterdir())


def test_reference_when_its_samples_are_in_another_order_stops_the_build(given, tmp_path):
    project, arrays, output, scores = given
    write(project, {**arrays, "torch": scores[::-1]}, reference={output: "torch"})
    with pytest.raises(StepError, match="something else than the reference"):
        build(project=project, targets=["host"], out=tmp_path / "dist")


def test_reference_when_the_model_has_no_such_output_says_so(given, tmp_path):
    project, arrays, _, scores = given
    write(project, {**arrays, "torch": scores}, reference={"scoers": "torch"})
    with pytest.raises(SamplesError, match="no output 'scoers'"):
        build(project=project, targets=["host"], out=tmp_path / "dist")


def test_reference_when_the_file_has_no_such_key_says_so(given, tmp_path):
    project, arrays, output, _ = given
    write(project, arrays, reference={output: "keras"})
    with pytest.raises(SamplesError, match="no array 'keras'"):
        build(project=project, targets=["host"], out=tmp_path / "dist")


def test_reference_when_shorter_than_the_samples_is_refused(given, tmp_path):
    project, arrays, output, scores = given
    write(project, {**arrays, "torch": scores[:2]}, reference={output: "torch"})
    with pytest.raises(SamplesError, match="samples up to number 23"):
        build(project=project, targets=["host"], out=tmp_path / "dist")


def test_reference_when_samples_are_no_file_is_refused(given):
    project, *_ = given
    text = project.read_text().replace(
        "{path: eval.npz, labels: labels}", "{test_data: 'data_*', reference: {a: b}}"
    )
    project.write_text(text)
    with pytest.raises(ProfileError, match="'reference' goes with 'path' only"):
        build(project=project, targets=["host"])


@pytest.mark.parametrize("right", [True, False])
def test_outputs_of_onnx_test_data_are_compared(given, tmp_path, right):
    _, arrays, output, scores = given
    [taken] = [name for name in arrays if name != "labels"]
    for n in range(3):
        folder = tmp_path / f"test_data_set_{n}"
        folder.mkdir()
        sample = arrays[taken][n].reshape(1, *arrays[taken].shape[-3:])
        wrong = 0.0 if right or n != 2 else 0.1 * np.abs(scores).max()
        for name, values in (("input_0", sample), ("output_0", scores[n : n + 1] + wrong)):
            tensor = onnx.numpy_helper.from_array(values.astype(np.float32))
            (folder / f"{name}.pb").write_bytes(tensor.SerializeToString())
    (tmp_path / "edgepack.yaml").write_text(
        "schema_version: 1\nname: net\nmodel: net.onnx\n"
        "samples: {evaluation: {test_data: 'test_data_set_*'}}\ntargets: [host]\n"
    )
    if right:
        result = build(project=tmp_path / "edgepack.yaml", out=tmp_path / "dist")
        [found] = verify(result.bundles[0].bundle.path).manifest.model.reference
        assert found.name == output
    else:
        with pytest.raises(StepError, match="test_data_set_2"):
            build(project=tmp_path / "edgepack.yaml", out=tmp_path / "dist")
