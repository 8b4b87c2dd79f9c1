"""Models that Qualcomm's compiler makes during a build, and the loader that chooses among them.

The simulator stands for the NPU: it runs compiled models of every version.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from edgepack.backends import qnn, simulators
from edgepack.backends.targets import find_misfits
from edgepack.base.processes import WorkerPool, use_pool
from edgepack.base.schema import NotMeasured
from edgepack.builder.build import build
from edgepack.bundle.reading import load_bundle
from edgepack.cli.building import print_build
from edgepack.errors import StepError
from edgepack.model import simulating
from edgepack.model.files import MODEL
from edgepack.project.profile import load_profile
from edgepack.steps.graph.compiled import CONTEXT, Compiled
from onnx import helper, numpy_helper

from tests.support.nets import tiny_models

INT8 = "qnn-int8-static"
FLOAT = onnx.TensorProto.FLOAT
OPTIONS = {"backend_type": "htp", "htp_arch": "73"}
LOAD = """
import json, sys
import edgepack_loader
import edgepack_providers as providers

def choose(provider):  # a simulator's device is no NPU
    [device] = providers._list_plugin_devices(provider["name"])
    return device

providers._find_plugin_device = choose
if len(sys.argv) > 1:
    import onnxruntime_qnn.build_and_package_info as about
    about.qnn_version = sys.argv[1]
model = edgepack_loader.load(variant="qnn-int8-static")
sys.stdout.write("\\n" + json.dumps({
    "compiled_for": model.compiled_for,
    "passed_over": dict(model.passed_over),
    "golden": model.golden_sqnr_db,
}) + "\\n")
"""


def lacks_atomic():
    """Whether this machine is without the one library that the compiler needs from it."""
    try:
        ctypes.CDLL("libatomic.so.1")
    except OSError:
        return True
    return False


pytestmark = [
    pytest.mark.skipif(
        (platform.system(), platform.machine()) != qnn.BACKEND.simulated_on,
        reason="Qualcomm's compiler is for Linux on x86-64",
    ),
    pytest.mark.skipif(lacks_atomic(), reason="Qualcomm's compiler needs libatomic.so.1"),
]


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The result of a build for boards with an HTP."""
    folder = tmp_path_factory.mktemp("built")
    project = tiny_models.write_project(folder, "dims: {batch: 1}")
    return build(project=project, targets=["qualcomm-linux"], variants=[INT8], out=folder / "dist")


@pytest.fixture
def bundle(built, tmp_path):
    """A copy of the bundle, which a test may break."""
    return Path(shutil.copytree(built.bundles[0].bundle.path, tmp_path / "bundle"))


def load(bundle: Path, *arguments: str):
    """What the bundle's loader chooses where the simulator is taken for an NPU."""
    done = subprocess.run(
        [sys.executable, "-c", LOAD, *arguments],
        cwd=bundle,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    # The plugin prints, too, and at any time.
    [line] = [line for line in done.stdout.splitlines() if line.startswith("{")]
    return json.loads(line)


def test_model_with_a_dropout_is_compiled_in_one_piece(tmp_path):
    project = tiny_models.write_project(tmp_path, "dims: {batch: 1}")
    model = onnx.load(tmp_path / "net.onnx")
    nodes, place = list(model.graph.node), len(model.graph.node) // 2
    [result] = nodes[place - 1].output
    nodes[place - 1].output[0] = "before"
    nodes.insert(place, helper.make_node("Dropout", ["before", "ratio"], [result]))
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    # The simplifier leaves a Dropout with a ratio.
    model.graph.initializer.append(numpy_helper.from_array(np.float32(0.5), "ratio"))
    onnx.save(model, tmp_path / "net.onnx")
    made = build(
        project=project,
        targets=["qualcomm-linux"],
        variants=[INT8],
        out=tmp_path / "dist",
        simulate_s=0,
    )
    bundle = made.bundles[0].bundle
    for each in bundle.manifest.variants[0].compiled:
        found = [node.op_type for node in onnx.load(bundle.path / each.model).graph.node]
        assert found.count(CONTEXT) == 1
        assert "Dropout" not in found


def test_build_says_what_was_compiled(built, capsys):
    print_build(built)
    said = " ".join(capsys.readouterr().out.split())
    assert f"{INT8} is compiled for htp_arch 73, 68 by the SDK 2." in said


def test_bundle_when_hardware_is_named_has_a_model_compiled_for_each(built):
    bundle = built.bundles[0].bundle
    [variant] = bundle.manifest.variants
    assert [each.hardware for each in variant.compiled] == ["73", "68"]
    for each in variant.compiled:
        assert each.option == "htp_arch"
        assert each.source_sha256 == variant.model_sha256
        assert each.compiler.startswith("onnxruntime-qnn 2.")
        assert each.sdk.count(".") == 2
        [node] = [
            node
            for node in onnx.load(bundle.path / each.model).graph.node
            if node.op_type == CONTEXT
        ]
        [place] = [a.s.decode() for a in node.attribute if a.name == "ep_cache_context"]
        assert (bundle.path / each.model).parent / place == bundle.path / each.beside
    sizes = {(bundle.path / each.beside).read_bytes() for each in variant.compiled}
    assert len(sizes) == 2
    assert load_bundle(bundle.path).manifest == bundle.manifest


def test_loader_takes_the_first_compiled_model_that_works(bundle):
    found = load(bundle)
    assert found["compiled_for"] == "73"
    assert found["passed_over"] == {}
    assert found["golden"] >= 8


def test_loader_when_a_compiled_model_is_broken_takes_the_next_and_says_why(bundle):
    (bundle / f"models/{INT8}.73.bin").write_bytes(b"no context")
    found = load(bundle)
    assert found["compiled_for"] == "68"
    [(name, reason)] = found["passed_over"].items()
    assert name == f"{INT8} compiled for 73"
    assert "session cannot be created" in reason


def test_loader_when_a_compiled_model_is_of_another_model_takes_the_next(bundle, tmp_path):
    project = tiny_models.write_project(tmp_path, "dims: {batch: 1}")
    model = onnx.load(tmp_path / "net.onnx")
    for tensor in model.graph.initializer:
        values = onnx.numpy_helper.to_array(tensor)
        if values.ndim > 1:
            tensor.CopyFrom(onnx.numpy_helper.from_array(-values, tensor.name))
    onnx.save(model, tmp_path / "net.onnx")
    made = build(
        project=project,
        targets=["qualcomm-linux"],
        variants=[INT8],
        out=tmp_path / "dist",
        simulate_s=0,
    )
    other = made.bundles[0].bundle.path
    for name in (f"{INT8}.73.bin", f"{INT8}.73.onnx"):
        shutil.copyfile(other / "models" / name, bundle / "models" / name)
    found = load(bundle)
    assert found["compiled_for"] == "68"
    assert "dB near the golden one" in found["passed_over"][f"{INT8} compiled for 73"]


def test_loader_when_the_sdk_is_another_takes_the_model_itself_and_names_both(bundle):
    found = load(bundle, "9.8.7")
    assert found["compiled_for"] == ""
    assert found["passed_over"].keys() == {f"{INT8} compiled for 73", f"{INT8} compiled for 68"}
    assert all("and 9.8.7 is here" in reason for reason in found["passed_over"].values())


def test_bundle_when_there_is_no_compiler_has_the_model_alone_and_says_so(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(simulators, "find_simulator", lambda *_: None)
    project = tiny_models.write_project(tmp_path, "dims: {batch: 1}")
    result = build(
        project=project, targets=["qualcomm-linux"], variants=[INT8], out=tmp_path / "dist"
    )
    [variant] = result.bundles[0].bundle.manifest.variants
    assert isinstance(variant.compiled, NotMeasured)
    print_build(result)
    assert f"{INT8} was not compiled: its simulator" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("target", "hardware", "said"),
    [
        ("qualcomm-linux", "74", "knows no htp_arch '74'"),
        ("android-qnn", "73", "apps do not take compiled models"),
        ("linux-x86-64", "73", "no model is compiled for CPUExecutionProvider"),
    ],
)
def test_variant_when_its_hardware_is_unknown_is_refused(target, hardware, said):
    profile = load_profile(target)
    variant = profile.variants[0].model_copy(update={"compiled_for": [hardware]})
    [misfit] = find_misfits(variant, profile)
    assert said in misfit.problem


def test_compiled_model_when_it_gives_other_outputs_is_refused(monkeypatch, tmp_path):
    outputs = iter([[{"y": [1.0]}], [{"y": [1.5]}]])
    monkeypatch.setattr(Compiled, "_run_goldens", lambda *_: next(outputs))
    variant = load_profile("qualcomm-linux").find_variant(INT8)
    (tmp_path / MODEL).touch()
    step = Compiled(variant, simulators.Simulator("qnn", "1", "qnn"))
    with pytest.raises(StepError, match="compiled for 73 does not give") as caught:
        step.verify({"model": tmp_path, "goldens": tmp_path}, tmp_path)
    assert "leave '73' out" in caught.value.hint


def test_compiled_model_when_nothing_was_compiled_is_refused(tmp_path):
    value = [helper.make_tensor_value_info(name, FLOAT, [1, 4]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Asin", ["x"], ["y"])], "g", value[:1], value[1:])
    opset = [helper.make_opsetid("", 17)]
    model, out = tmp_path / "asin.onnx", tmp_path / "out.onnx"
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), model)
    simulator = simulators.find_backend_simulator(qnn.BACKEND)
    with pytest.raises(StepError, match="took no node"):
        simulating.compile_model(simulator, model, OPTIONS, {}, out, limit_s=60)


def test_compiler_when_a_library_is_missing_names_it(built, tmp_path, monkeypatch):
    there = Path(importlib.import_module("onnxruntime_qnn").get_library_path())
    here = tmp_path / "absent_qnn"
    shutil.copytree(there.parent, here, copy_function=os.link, symlinks=True)
    torn = here / "libQnnSystem.so"
    text = torn.read_bytes()
    assert b"libatomic.so.1" in text
    torn.unlink()
    torn.write_bytes(text.replace(b"libatomic.so.1", b"libabsent.so.1"))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    simulator = simulating.Simulator("absent-qnn", "1.0", "absent_qnn")
    bundle = built.bundles[0].bundle
    model = bundle.path / bundle.manifest.variants[0].model
    with (
        use_pool(WorkerPool()),  # processes that see that plugin
        pytest.raises(StepError, match=r"libQnnSystem.so needs libabsent.so.1, which") as e,
    ):
        simulating.compile_model(simulator, model, OPTIONS, {}, tmp_path / "m.onnx", limit_s=60)
    assert "docs/install.md" in e.value.hint
