"""The canary: a model that never changes, and runs wherever onnxruntime does."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from types import ModuleType

import numpy as np
import onnx
import pytest
from edgepack.base.resources import find_ondevice_dir
from edgepack.base.schema import NotMeasured
from edgepack.bundle.reading import load_bundle
from edgepack.devices.canary import CANARY, CanaryRun, join_runs
from edgepack.devices.harness import Harness
from edgepack.devices.inventory import Device, LocalEntry
from edgepack.devices.local import LocalTransport
from edgepack.measure.bench.assemble import Measurements
from edgepack.measure.bench.measuring import measure_canary
from edgepack.records.run import Canary
from onnx import TensorProto, helper

from tests.support.reports.tiny_bundle import write_tiny_bundle

SHA256 = "2b9529419e565bb72cc87947b119c97779d9864e59a1931e40bb7c77e9f28ae0"
"""Never changes: the results of another model do not compare."""


def canary_module() -> ModuleType:
    import importlib.util

    path = find_ondevice_dir() / "harness/edgepack_canary.py"
    spec = importlib.util.spec_from_file_location("edgepack_canary", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def constant(name, shape, value):
    numbers = helper.make_tensor("", TensorProto.INT64, [len(shape)], shape)
    filler = helper.make_tensor("", TensorProto.FLOAT, [1], [value])
    return [
        helper.make_node("Constant", [], [f"{name}_shape"], value=numbers),
        helper.make_node("ConstantOfShape", [f"{name}_shape"], [name], value=filler),
    ]


def canary_model() -> onnx.ModelProto:
    """Make the canary anew."""
    nodes = [
        *constant("w1", [48, 48, 3, 3], 1 / 512),
        *constant("w2", [48, 48, 3, 3], 1 / 512),
        *constant("w3", [768, 1024], 1 / 1024),
        helper.make_node("Conv", ["x", "w1"], ["c1"], pads=[1] * 4),
        helper.make_node("Relu", ["c1"], ["r1"]),
        helper.make_node("Conv", ["r1", "w2"], ["c2"], pads=[1] * 4),
        helper.make_node("Relu", ["c2"], ["r2"]),
        helper.make_node("MaxPool", ["r2"], ["p"], kernel_shape=[8, 8], strides=[8, 8]),
        helper.make_node("Flatten", ["p"], ["f"]),
        helper.make_node("MatMul", ["f", "w3"], ["y"]),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 48, 32, 32])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 1024])
    return helper.make_model(
        helper.make_graph(nodes, "canary", [x], [y]),
        opset_imports=[helper.make_opsetid("", 13)],
        ir_version=7,
        producer_name="edgepack",
    )


def test_canary_model_when_made_anew_is_the_one_in_every_bundle():
    raw = canary_module().MODEL
    assert hashlib.sha256(raw).hexdigest() == SHA256
    model = onnx.load_from_string(raw)
    onnx.checker.check_model(model, full_check=True)
    assert model == canary_model()


def test_canary_model_when_run_computes_what_its_graph_says():
    import onnxruntime as ort

    module = canary_module()
    session = ort.InferenceSession(module.MODEL, providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {"x": module.INPUT})
    inner = (48 * 9 / 512) ** 2  # pooling takes the greatest, which is never at an edge
    assert np.allclose(found, inner * 768 / 1024)


def test_canary_weights_when_loaded_are_constants_and_not_computed_each_time(tmp_path):
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    ort.InferenceSession(canary_module().MODEL, options, providers=["CPUExecutionProvider"])
    ops = {node.op_type for node in onnx.load(tmp_path / "optimized.onnx").graph.node}
    assert "ConstantOfShape" not in ops


def test_canary_script_when_run_prints_one_document():
    done = subprocess.run(
        [sys.executable, "-B", str(find_ondevice_dir() / "harness/edgepack_canary.py")],
        capture_output=True,
        check=True,
    )
    found = CanaryRun.model_validate(json.loads(done.stdout))
    assert found.model_sha256 == SHA256


@pytest.fixture
def bundle(tmp_path):
    return load_bundle(write_tiny_bundle(tmp_path / "tiny-1.0.0-linux-x86-64"))


def harness_of(bundle) -> Harness:
    device = Device("here", LocalEntry(transport="local", target="linux-x86-64"))
    return Harness(LocalTransport(device), bundle.path, sys.executable)


def test_canary_of_a_bundle_when_measured_is_timed_in_a_process_of_its_own(bundle):
    found = measure_canary(harness_of(bundle))
    assert isinstance(found, CanaryRun)
    assert found.median_ns > 0


def test_canary_when_it_fails_leaves_the_measurement_whole(bundle):
    (bundle.path / CANARY).write_text("raise SystemExit('no such processor')\n")
    found = measure_canary(harness_of(bundle))
    assert isinstance(found, NotMeasured)
    assert found.reason.startswith("the canary failed")


def test_canary_of_a_session_when_measured_on_both_sides_has_both_medians():
    runs = [CanaryRun(model_sha256=SHA256, median_ns=ns) for ns in (1_000, 1_100)]
    assert join_runs(runs) == Canary(model_sha256=SHA256, medians_ns=[1_000, 1_100])
    failed = NotMeasured(reason="the canary failed: exit 1")
    assert join_runs([runs[0], failed]) == failed
    assert isinstance(
        join_runs(Measurements.__dataclass_fields__["canary"].default_factory()), NotMeasured
    )
