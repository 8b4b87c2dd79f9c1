"""Inputs that have one value for good: what a build makes of them, and what it refuses."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from edgepack.builder.build import build
from edgepack.builder.inspect import inspect
from edgepack.cli.main import run
from edgepack.errors import ProfileError, SamplesError, StepError
from edgepack.model.facts import TensorSpec
from edgepack.samples.constants import Constant
from edgepack.steps.base import run_step
from edgepack.steps.graph.prepared import Prepared
from edgepack.trying.verify import verify as verify_here
from onnx import TensorProto, helper, numpy_helper

from tests.support.nets.branch_nets import WIDTH, rated
from tests.support.nets.tiny_models import save
from tests.support.slow_cases import slow_after

RATE = TensorSpec("rate", "int64", ())
COUNT = 12
NPZ = "samples: {calibration: {path: s.npz}, evaluation: {path: s.npz}}"


def write(folder: Path, *lines: str, constants: str = "{rate: 16000}") -> Path:
    rated(folder / "net.onnx")
    path = folder / "edgepack.yaml"
    head = ["schema_version: 1", "name: net", "model: net.onnx", "targets: [host]"]
    path.write_text("\n".join([*head, f"constants: {constants}", *lines]) + "\n")
    return path


def frames(**beside) -> dict[str, np.ndarray]:
    random = np.random.default_rng(7)
    x = random.standard_normal((COUNT, 2, WIDTH)).astype(np.float32)
    state = random.standard_normal((COUNT, 1, WIDTH)).astype(np.float32)
    return {"x": x, "state": state, **beside}


def save_frames(path: Path, **beside) -> None:
    np.savez(path, **frames(**beside))


def ran(model: Path, feed):
    session = ort.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    return dict(zip([o.name for o in session.get_outputs()], session.run(None, feed), strict=True))


@pytest.mark.parametrize("rate", slow_after(1, [16000, 8000]))
def test_build_with_a_constant_makes_models_that_do_not_take_it(tmp_path, rate):
    project = write(tmp_path, NPZ, constants=f"{{rate: {rate}}}")
    save_frames(tmp_path / "s.npz")
    result = build(project=project, out=tmp_path / "dist")
    result.require_all()
    bundle = result.bundles[0].bundle
    manifest = bundle.manifest
    assert [tensor.name for tensor in manifest.inputs] == ["x", "state"]
    assert manifest.constants == {"rate": rate}
    assert any(f"rate = {rate}; 1 If decided by constants" in line for line in manifest.steps)
    assert "rate" not in (bundle.path / "README.md").read_text()
    verify_here(bundle.path)
    for golden in manifest.goldens:
        feed = {
            tensor.name: np.fromfile(bundle.path / tensor.path, tensor.dtype).reshape(tensor.shape)
            for tensor in golden.inputs
        }
        expected = ran(tmp_path / "net.onnx", {**feed, "rate": np.array(rate)})
        for tensor in golden.outputs["cpu-fp32"]:
            own = np.fromfile(bundle.path / tensor.path, tensor.dtype).reshape(tensor.shape)
            np.testing.assert_allclose(own, expected[tensor.name], rtol=1e-4, atol=1e-5)


def write_hook(folder: Path, rate: int) -> str:
    lines = [
        "import numpy as np",
        "def frames():",
        "    for n in range(12):",
        f"        beside = {{'state': np.zeros((1, 4)), 'rate': {rate}}}",
        "        yield {'x': np.full((2, 4), n * 0.1), **beside}",
    ]
    (folder / "hooks.py").write_text("\n".join(lines) + "\n")
    return "samples: {evaluation: {python: 'hooks:frames'}}"


def write_test_data(folder: Path, rate: int | None) -> str:
    values = {"x": np.ones((2, 4), np.float32), "rate": rate, "state": np.ones((1, 4), np.float32)}
    (folder / "set_0").mkdir()
    for number, (name, value) in enumerate(values.items()):
        if value is not None:
            tensor = numpy_helper.from_array(np.asarray(value), name)
            (folder / "set_0" / f"input_{number}.pb").write_bytes(tensor.SerializeToString())
    return "samples: {evaluation: {test_data: 'set_*'}}"


def write_npz(folder: Path, rate: object) -> str:
    save_frames(folder / "s.npz", rate=np.array(rate))
    return NPZ


HELD = [
    (write_npz, [16000] * COUNT),
    (write_npz, 16000),
    (write_hook, 16000),
    (write_test_data, 16000),
    (write_test_data, None),
]
OTHER = [
    (write_npz, [16000] * (COUNT - 1) + [8000]),
    (write_npz, 8000),
    (write_hook, 8000),
    (write_test_data, 8000),
]


@pytest.mark.parametrize(("source", "rate"), slow_after(2, HELD))
def test_samples_may_hold_the_constant(tmp_path, source, rate):
    project = write(tmp_path, source(tmp_path, rate))
    result = build(project=project, out=tmp_path / "dist", variants=["cpu-fp32"])
    manifest = result.bundles[0].bundle.manifest
    assert [tensor.name for tensor in manifest.goldens[0].inputs] == ["x", "state"]


@pytest.mark.parametrize(("source", "rate"), slow_after(2, OTHER))
def test_samples_with_another_value_are_refused(tmp_path, source, rate):
    project = write(tmp_path, source(tmp_path, rate))
    with pytest.raises(
        SamplesError, match=r"has 8000 for 'rate', which is 16000 in edgepack\.yaml"
    ):
        build(project=project, out=tmp_path / "dist", variants=["cpu-fp32"])


REFUSED = [
    ("{ratee: 16000}", "the model has no input 'ratee'", "'rate'"),
    ("{rate: 1.5}", "'rate' is int64, which does not hold 1.5", "int64"),
    ("{rate: true}", "'rate' is int64, which does not hold True", "int64"),
    ("{rate: 1.0e+30}", "'rate' is int64, which does not hold 1e+30", "int64"),
    ("{rate: [16000]}", "'rate' has the shape [1], the model takes rate: int64[]", "lists"),
    ("{x: 0}", "how many the model takes is not known: x: float32[batch, 4]", "dims: {batch: 1}"),
    ("{state: [[0, 1], [2]]}", "rows of the constant 'state' have different lengths", "as many"),
    ("{state: [0, 1]}", "'state' has the shape [2]", "two deep"),
    ("{x: [[1, 2, 3, 4]]}", "'x' has the shape [1, 4]", "under 'dims'"),
    ("{rate: 1, state: 0, x: [[0, 0, 0, 0]]}", "all inputs of the model are constants", "changes"),
]


@pytest.mark.parametrize(("constants", "problem", "hint"), REFUSED)
def test_constants_that_do_not_fit_the_model_are_refused(tmp_path, constants, problem, hint):
    dims = ["dims: {batch: 1}"] if "rate: 1," in constants else []
    project = write(tmp_path, *dims, constants=constants)
    for act in (lambda: build(project=project), lambda: inspect(project=project)):
        with pytest.raises(ProfileError) as caught:
            act()
        assert problem in caught.value.problem
        assert hint in caught.value.hint
        assert "edgepack.yaml:5:" in caught.value.where


def test_constant_that_is_described_too_is_refused(tmp_path):
    project = write(tmp_path, "inputs: {rate: {pad: 1}}")
    with pytest.raises(ProfileError, match="described under 'inputs' and is a constant too"):
        build(project=project, out=tmp_path / "dist")


def test_single_number_fills_an_input_and_a_list_is_taken_as_it_is(tmp_path):
    model = rated(tmp_path / "net.onnx")
    values = [[0.5, -1.0, 2.0, 0.0]]
    for value, full in ((0.25, np.full((1, 4), 0.25)), (values, np.array(values))):
        out = tmp_path / str(len(list(tmp_path.iterdir())))
        out.mkdir()
        constants = (
            Constant(TensorSpec("state", "float32", (1, WIDTH)), value),
            Constant(RATE, 8000),
        )
        run_step(Prepared((), constants), {"source": model}, out)
        x = np.ones((3, WIDTH), np.float32)
        beside = {"rate": np.array(8000), "state": full.astype(np.float32)}
        expected = ran(model, {"x": x, **beside})
        np.testing.assert_allclose(ran(out / "model.onnx", {"x": x})["y"], expected["y"], rtol=1e-5)


def test_prepared_when_the_value_in_the_model_is_another_is_caught(tmp_path):
    model, out = rated(tmp_path / "net.onnx"), tmp_path / "out"
    out.mkdir()
    Prepared((), (Constant(RATE, 16000),)).run({"source": model}, out)
    with pytest.raises(StepError, match="dB from the source's"):
        Prepared((), (Constant(RATE, 8000),)).verify({"source": model}, out)


def test_shape_that_was_an_input_is_static_once_it_is_constant(tmp_path):
    nodes = [helper.make_node("Reshape", ["x", "shape"], ["y"], "here")]
    inputs = [("x", TensorProto.FLOAT, [1, 8]), ("shape", TensorProto.INT64, [2])]
    model = save(tmp_path / "net.onnx", nodes, inputs, [("y", TensorProto.FLOAT, ["a", "b"])])
    project = tmp_path / "edgepack.yaml"
    head = "schema_version: 1\nname: net\nmodel: net.onnx\ntargets: [host]\n"
    project.write_text(f"{head}constants: {{shape: [2, 4]}}\n")
    found = inspect(project=project)
    assert not [each for each in found.findings if "'shape'" in each.reason]
    assert not [each for each in found.findings if each.severity == "blocks"]
    build(project=project, out=tmp_path / "dist").require_all()
    assert model.exists()


@pytest.mark.slow(reason="takes seconds")
def test_inspect_and_try_follow_the_constant(tmp_path, capsys):
    project = write(tmp_path, NPZ)
    save_frames(tmp_path / "s.npz", rate=np.array(16000))
    assert run(["inspect", "--project", str(project), "--target", "linux-x86-64"]) == 0
    told = capsys.readouterr().out
    assert "input  rate: int64[] = 16000" in told
    result = build(project=project, out=tmp_path / "dist")
    bundle = str(result.bundles[0].bundle.path)
    assert run(["try", bundle, str(tmp_path / "s.npz"), "--limit", "1"]) == 0
    save_frames(tmp_path / "other.npz", rate=np.array(8000))
    capsys.readouterr()
    assert run(["try", bundle, str(tmp_path / "other.npz"), "--limit", "1"]) != 0
    assert "which is 16000 in edgepack.yaml" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["silero_vad.onnx", "silero_vad_16k_op15.onnx"])
def test_voice_detector_with_one_sample_rate_has_no_branch_on_it(tmp_path, shared_data, name):
    source = shared_data / "audio" / "silero_vad" / name
    dims = {"batch": 1, "sequence": 576} if "op15" in name else {}
    constant = Constant(TensorSpec("sr", "int64", ()), 16000)
    model = tmp_path / "source.onnx"
    shutil.copyfile(source, model)
    prepared = tmp_path / "prepared"
    prepared.mkdir()
    step = Prepared(tuple(dims.items()), (constant,))
    notes = step.run({"source": model}, prepared)
    assert "If decided by constants and shapes" in notes.done
    left = onnx.load(str(prepared / "model.onnx"))
    assert [value.name for value in left.graph.input] == ["input", "state"]
    random = np.random.default_rng(0)
    x = (random.standard_normal((1, 576)) * 0.1).astype(np.float32)
    feed = {"input": x, "state": np.zeros((2, 1, 128), np.float32)}
    found = ran(prepared / "model.onnx", feed)
    expected = ran(model, {**feed, "sr": np.array(16000)})
    np.testing.assert_allclose(found["output"], expected["output"], atol=1e-6)
