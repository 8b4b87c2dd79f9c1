"""What ``inspect`` says beforehand of what a build will find."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from edgepack.base.progress import Silent
from edgepack.builder import memory
from edgepack.builder.build import build, dry_run
from edgepack.builder.inspect import inspect
from edgepack.cli.main import run
from edgepack.errors import ModelError, ProfileError, SamplesError
from onnx import TensorProto, helper

from tests.support.nets import tiny_models

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64


def reshaped(folder: Path) -> Path:
    """Write a model that gives its input [1, 8] the shape that another input holds."""
    nodes = [helper.make_node("Reshape", ["x", "shape"], ["y"], "here")]
    inputs = [("x", FLOAT, [1, 8]), ("shape", INT64, [2])]
    return tiny_models.save(folder / "net.onnx", nodes, inputs, [("y", FLOAT, ["a", "b"])])


def test_model_that_no_random_input_fits_is_said_to_stop_a_build_and_does(tmp_path):
    model = reshaped(tmp_path)
    note, blocking = inspect(model, ["linux-x86-64"]).findings
    assert (note.severity, note.node) == ("note", "'here' (Reshape)")
    assert blocking.severity == "blocks"
    with pytest.raises(ModelError) as caught:
        build(model, targets=["linux-x86-64"], out=tmp_path / "dist")
    assert blocking.reason == f"a build without samples stops: {caught.value.problem}"
    assert blocking.remedy == caught.value.hint
    assert "with 'samples' that the model takes" in blocking.remedy


def test_model_with_samples_is_not_tried_on_random_inputs_and_is_built(tmp_path):
    reshaped(tmp_path)
    x = np.arange(16, dtype=np.float32).reshape(2, 1, 8)
    np.savez(tmp_path / "ev.npz", x=x, shape=np.array([[2, 4], [4, 2]]))
    project = tmp_path / "edgepack.yaml"
    project.write_text(
        "schema_version: 1\nname: net\nversion: 1.0.0\nmodel: net.onnx\n"
        "samples: {evaluation: {path: ev.npz}}\ntargets: [linux-x86-64]\n"
    )
    assert [found.severity for found in inspect(project=project).findings] == ["note"]
    result = build(project=project, out=tmp_path / "dist")
    assert [v.id for v in result.bundles[0].bundle.manifest.variants] == ["cpu-fp32"]


def test_int8_static_without_samples_is_said_to_be_left_out(tmp_path):
    model = tiny_models.conv_net(tmp_path / "net.onnx")
    by_id = {found.variant: found for found in inspect(model, ["linux-x86-64"]).variants}
    static = by_id["cpu-int8-static"]
    assert (static.unused.stage, static.unused.reason) == (
        "refused",
        "it needs calibration samples",
    )
    assert static.nodes > 0
    assert (by_id["cpu-fp32"].unused, by_id["cpu-fp32"].findings) == (None, ())
    project = tiny_models.write_project(tmp_path)
    variants = inspect(project=project, targets=["linux-x86-64"]).variants
    assert not any(v.findings or v.unused for v in variants)


def test_model_of_constants_is_not_said_to_be_impossible(tmp_path, capsys):
    nodes = [helper.make_node("Identity", ["c"], ["y"])]
    constants = [("c", np.ones(3, np.float32))]
    model = tiny_models.save(tmp_path / "net.onnx", nodes, [], [("y", FLOAT, [3])], constants)
    assert run(["inspect", str(model), "--target", "linux-x86-64"]) == 0
    assert inspect(model, ["linux-x86-64"]).variants[-1].unused is None
    told = capsys.readouterr().out
    assert "linux-x86-64 cpu-fp32: no nodes are left" in told


def test_memory_that_a_build_says_first_is_what_inspect_says(tmp_path, monkeypatch):
    # To the byte, and with one core: else the calibration's processes outweigh all other steps.
    monkeypatch.setattr(memory, "format_gigabytes", str)
    monkeypatch.setattr(memory, "count_cores", lambda: 1)
    project, said = tiny_models.write_project(tmp_path), []

    class Noted(Silent):
        def note(self, text):
            said.append(text)

    expected = inspect(project=project, targets=["linux-x86-64"]).memory_bytes
    build(project=project, targets=["linux-x86-64"], out=tmp_path / "dist", progress=Noted())
    assert said[0].startswith(f"a build needs about {expected} of memory")
    assert sum("of memory" in text for text in said) == 1


def test_inspect_when_samples_are_not_there_yet_reads_none(tmp_path):
    project = tiny_models.write_project(tmp_path)
    (tmp_path / "cal.npz").unlink()
    assert not any(each.unused for each in inspect(project=project, targets=["host"]).variants)
    with pytest.raises(SamplesError, match=r"cal\.npz"):
        dry_run(project=project, targets=["host"])


def test_inspect_when_the_project_names_no_output_of_the_model_says_what_build_does(tmp_path):
    project = tiny_models.write_project(tmp_path, "outputs: {skores: {kind: raw}}")
    said = []
    for act in (inspect, dry_run):
        with pytest.raises(ProfileError, match="no output 'skores'") as caught:
            act(project=project, targets=["host"])
        said.append((caught.value.problem, caught.value.hint, caught.value.where))
    assert said[0] == said[1]


def test_inspect_when_models_take_pictures_judges_what_makes_their_tensors_too(tmp_path):
    image = "inputs: {image: {image: {resize: {letterbox: 8}, scale: 0.0039}}}"
    nodes = []
    for line in ("", "preprocess: {in_graph: true}"):
        project = tiny_models.write_project(tmp_path, f"{image}\n{line}", samples=False)
        (found,) = [
            v for v in inspect(project=project, targets=["jetson"]).variants if "fp32" in v.variant
        ]
        nodes.append(found.nodes)
    assert nodes[0] < nodes[1]
