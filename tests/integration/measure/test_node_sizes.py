"""What a profile tells of nodes, and what a processor reaches at best, from real onnxruntime."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from edgepack.base.resources import find_ondevice_dir
from edgepack.bundle.reading import load_bundle
from edgepack.devices.harness import PEAK, Harness
from edgepack.devices.inventory import Device, LocalEntry
from edgepack.devices.local import LocalTransport
from edgepack.errors import RemoteCommandError
from edgepack.measure.bench.assemble import Measurements, Question
from edgepack.measure.bench.measuring import OLDER_BUNDLE, Subject
from edgepack.model.workload import count_multiply_adds as count_of_model
from edgepack.ondevice.harness import edgepack_peak
from edgepack.ondevice.harness import edgepack_sizes as sizes
from edgepack.records.presets import find_preset
from edgepack.records.run import Peak, PlacedNode
from edgepack.records.topology import Topology
from edgepack.results.explaining.explaining import explain
from edgepack.results.explaining.patterns import find_unfused
from edgepack.results.explaining.work import count_multiply_adds
from onnx import TensorProto, helper

from tests.integration.measure.test_canary_model import constant
from tests.support.nets import tiny_models
from tests.support.reports.example_costs import costly_report, example_peak
from tests.support.reports.tiny_bundle import import_loader, write_tiny_bundle

SIZE = 512


def kernel_model(
    name: str, node: onnx.NodeProto, x: tuple, y: tuple, weights=()
) -> onnx.ModelProto:
    """Make a model of the program that measures the peak anew."""
    graph = helper.make_graph(
        [*weights, node],
        name,
        [helper.make_tensor_value_info("x", *x)],
        [helper.make_tensor_value_info("y", *y)],
    )
    opsets = [helper.make_opsetid("", 13)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=7, producer_name="edgepack")


def test_models_of_the_peak_when_made_anew_are_those_in_every_bundle():
    vector, rows = (TensorProto.FLOAT, ["n"]), ["m", SIZE]
    int8 = constant("w", [SIZE, SIZE], 0)
    int8[1].attribute[0].t.CopyFrom(helper.make_tensor("", TensorProto.INT8, [1], [1]))
    made = {
        "MOVE": kernel_model("move", helper.make_node("Relu", ["x"], ["y"]), vector, vector),
        "FLOAT32": kernel_model(
            "float32",
            helper.make_node("MatMul", ["x", "w"], ["y"]),
            (TensorProto.FLOAT, rows),
            (TensorProto.FLOAT, rows),
            constant("w", [SIZE, SIZE], 0.01),
        ),
        "INT8": kernel_model(
            "int8",
            helper.make_node("MatMulInteger", ["x", "w"], ["y"]),
            (TensorProto.UINT8, rows),
            (TensorProto.INT32, rows),
            int8,
        ),
    }
    for name, model in made.items():
        onnx.checker.check_model(model, full_check=True)
        assert onnx.load_from_string(getattr(edgepack_peak, name)) == model, name


def test_the_peak_is_a_document_of_positive_numbers_for_as_many_threads():
    program = find_ondevice_dir() / "harness/edgepack_peak.py"
    done = subprocess.run(
        [
            sys.executable,
            "-B",
            str(program),
            "1",
            "0.01",
            '{"session.intra_op.allow_spinning": "0"}',
        ],
        env={**os.environ, "PYTHONPATH": str(find_ondevice_dir() / "runtime")},
        capture_output=True,
        check=True,
    )
    peak = Peak.model_validate(json.loads(done.stdout))
    assert peak.threads == 1
    assert [move.moved_bytes for move in peak.moves] == [1 << 18, 1 << 21, 1 << 26]
    assert set(peak.multiply_adds_per_s) == {"float32", "int8"}


def matrix_net(path: Path, size: int) -> Path:
    """Write a model with the tiny bundle's inputs and outputs, and a product that is packed."""
    del size
    random = np.random.default_rng(1)
    weights = [
        ("w1", random.standard_normal((16, 3, 3, 3)).astype(np.float32)),
        ("w2", random.standard_normal((16, 4)).astype(np.float32)),
    ]
    nodes = [
        helper.make_node("Conv", ["image", "w1"], ["c"], "conv", pads=[1] * 4),
        helper.make_node("GlobalAveragePool", ["c"], ["p"], "pool"),
        helper.make_node("Flatten", ["p"], ["f"], "flat"),
        helper.make_node("MatMul", ["f", "w2"], ["scores"], "product"),
    ]
    return tiny_models.save(
        path,
        nodes,
        [("image", TensorProto.FLOAT, [1, 3, 8, 8])],
        [("scores", TensorProto.FLOAT, [1, 4])],
        weights,
    )


def test_a_profile_tells_what_nodes_read_and_packed_weights_are_not_forgotten(tmp_path):
    """Of a session that packs its weights, the product has none, and no multiply-adds."""
    path = matrix_net(tmp_path / "model.onnx", 0)
    [packed] = [n for n in profile_nodes(path, tmp_path, {}) if n.op == "MatMul"]
    assert packed.sizes.parameter_bytes == 0
    assert count_multiply_adds(packed) is None
    nodes = profile_nodes(path, tmp_path, dict([sizes.UNPACKED]))
    by_op = {node.op: node for node in nodes}
    assert by_op["MatMul"].sizes.parameter_bytes == 4 * 16 * 4
    assert sum(count_multiply_adds(node) for node in nodes) == 64 * 16 * 27 + 64
    assert by_op["Conv"].sizes.moved_bytes == 4 * (3 * 64 + 16 * 27 + 16 * 64)


def profile_nodes(model: Path, folder: Path, config, feed=None) -> list[PlacedNode]:
    """Run a model under the profiler; return its nodes as a report has them."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.enable_profiling = True
    options.profile_file_prefix = str(folder / "profile")
    for key, value in config.items():
        options.add_session_config_entry(key, value)
    session = onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    feed = feed or {"image": tiny_models.images(1)}
    session.run(None, feed)
    events = json.loads(Path(session.end_profiling()).read_text())
    read = sizes.read_sizes(events)
    nodes = import_loader().find_profile_nodes(events)
    return [
        PlacedNode.model_validate({**node, "sizes": read[node["name"], node["op"]]})
        for node in nodes
    ]


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        ("imagenet/squeezenet1.1_fp32_opset13_dynbatch.onnx", (1, 3, 224, 224)),
        ("imagenet/mobilenet_v1_0.25_128_fp32.onnx", (1, 3, 128, 128)),
        ("small/cifar10_resnet20_fp32_bn.onnx", (1, 3, 32, 32)),
        ("detection/nanodet_m_320.onnx", (1, 3, 320, 320)),
    ],
)
def test_multiply_adds_of_real_models_are_those_of_their_graphs(
    shared_data, tmp_path, model, shape
):
    """The graph as onnx infers it is the other witness; blocks of channels are filled up."""
    path = shared_data / model
    import onnxruntime

    [given] = onnxruntime.InferenceSession(str(path)).get_inputs()
    feed = {given.name: np.zeros(shape, np.float32)}
    nodes = profile_nodes(path, tmp_path, dict([sizes.UNPACKED]), feed)
    counted = [count_multiply_adds(node) for node in nodes]
    assert None not in counted
    names = [dim for dim in given.shape if isinstance(dim, str)]
    expected = count_of_model(path, dict.fromkeys(names, 1))
    assert 0.99 * expected <= sum(counted) <= 1.1 * expected


@pytest.fixture
def harness(tmp_path) -> Harness:
    bundle = load_bundle(write_tiny_bundle(tmp_path / "tiny-1.0.0-linux-x86-64"))
    device = Device("here", LocalEntry(transport="local", target="linux-x86-64"))
    return Harness(LocalTransport(device), bundle.path, sys.executable)


def test_harness_tells_sizes_of_all_nodes_and_the_time_between_them(harness):
    placement = harness.profile("cpu-fp32", sizes=True)
    assert all(node.sizes for node in placement.nodes)
    assert placement.between_us > 0
    assert harness.trace("cpu-fp32", sizes=True)[0].between_us > 0
    assert harness.topology().count > 0


class Processor:
    """A harness that answers about the processor alone, or fails to."""

    def __init__(self, peak=None, topology=None) -> None:
        self.answers = {"peak": peak, "topology": topology}
        self.asked: list[str] = []

    def __getattr__(self, name):
        def answer(*_):
            self.asked.append(name)
            found = self.answers[name]
            if isinstance(found, Exception):
                raise found
            return found

        return answer


@pytest.mark.parametrize("broken", ["peak", "topology"])
def test_a_processor_that_does_not_tell_one_thing_still_tells_the_other(subject, broken):
    told = {"peak": example_peak(), "topology": Topology(count=2, processors=[])}
    told[broken] = RemoteCommandError("it hung", hint="wait")
    subject.harness = Processor(**told)
    subject._measure_processor()
    found = {name: getattr(subject.measured, name) for name in told}
    assert found.pop(broken).reason == "it hung"
    assert found == {name: each for name, each in told.items() if name != broken}


def test_an_emulated_processor_and_an_older_bundle_have_no_peak_but_cores(subject):
    subject.harness = Processor(topology=Topology(count=2, processors=[]))
    facts = subject.measured.selection.device
    subject.measured.selection = subject.measured.selection.model_copy(
        update={"device": facts.model_copy(update={"emulated": True})}
    )
    subject._measure_processor()
    assert "emulated" in subject.measured.peak.reason
    assert subject.measured.topology.count == 2
    subject.measured.selection = subject.measured.selection.model_copy(update={"device": facts})
    manifest = subject.question.manifest
    older = [file for file in manifest.files if file.path != PEAK]
    subject.question = replace(
        subject.question, manifest=manifest.model_copy(update={"files": older})
    )
    subject._measure_processor()
    assert subject.measured.peak == OLDER_BUNDLE
    assert subject.harness.asked == ["topology", "topology"]


@pytest.fixture
def subject(harness, tmp_path) -> Subject:
    bundle = load_bundle(tmp_path / "tiny-1.0.0-linux-x86-64")
    question = Question("here", bundle.manifest, bundle.digest, None, find_preset("smoke"))
    return Subject(harness, question, Measurements(harness.select("cpu-fp32")))


def test_hard_swish_as_onnxruntime_takes_it_apart_is_no_bottleneck(tmp_path):
    """Its CPU has no kernel for it: nothing that the user could export differently."""
    value = (TensorProto.FLOAT, [1, 3, 8, 8])
    nodes = [helper.make_node("HardSwish", ["image"], ["y"], "swish")]
    path = tiny_models.save(tmp_path / "m.onnx", nodes, [("image", *value)], [("y", *value)])
    ran = profile_nodes(path, tmp_path, {})
    assert [node.op for node in ran] == ["HardSigmoid", "Mul"]
    assert find_unfused(explain(costly_report(*ran), 1.0).costs) == []


def event(name: str, ts: int, dur: int, cat: str = "Node") -> dict:
    return {"cat": cat, "name": name, "ts": ts, "dur": dur, "args": {}}


def test_time_between_nodes_leaves_out_bodies_and_the_first_run():
    events = []
    for start, extra in ((0, 500), (1000, 0), (2000, 0)):
        events += [
            event("If_kernel_time", start + 10, 50),
            event("body_kernel_time", start + 20, 30),
            event("Add_kernel_time", start + 70, 20),
            event("model_run", start, 100 + extra, "Session"),
        ]
    assert sizes.find_between_us(events) == 30
    assert "does not tell" in sizes.find_between_us([])["reason"]
