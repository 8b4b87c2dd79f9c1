"""The error of each node of an int8 model, against errors computed here."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from edgepack.model.facts import read_signature
from edgepack.model.files import MODEL
from edgepack.model.reading import read_model, read_structure
from edgepack.model.running import make_session, run_session
from edgepack.samples.sample_set import write_sample_set
from edgepack.samples.spreading import choose_spread
from edgepack.steps.proofs.layer_errors import LayerErrors, find_compared_tensors, read_layer_errors
from edgepack.steps.recipes.int8_static import Int8Static
from onnx import TensorProto, helper

from tests.support.nets import int8_nets, tiny_models

SAMPLES = 5


@pytest.fixture(scope="module")
def steps(tmp_path_factory):
    """The folders of the float model, of the int8 model, of samples, and of what is under test."""
    folder = tmp_path_factory.mktemp("layers")
    model = tiny_models.conv_net(folder / "net.onnx", batch=1)
    inputs = int8_nets.calibrated(folder / "steps", model, int8_nets.image_feeds())
    int8_nets.run(Int8Static(int8_nets.CPU, 13, cpu="x86-64"), inputs, folder / "int8")
    given = {"reference": inputs["model"], "model": folder / "int8", "samples": inputs["samples"]}
    notes = int8_nets.run(LayerErrors(SAMPLES, "x86-64"), given, folder / "layers")
    return {**given, "layers": folder / "layers", "notes": notes}


def expected_db(steps, float_name, int8_name):
    """The SQNR of one tensor, from sessions that give it as their only output."""
    outputs = []
    for folder, name in ((steps["reference"], float_name), (steps["model"], int8_name)):
        model = read_model(folder / MODEL)
        del model.graph.output[:]
        model.graph.output.append(onnx.ValueInfoProto(name=name))
        onnx.save(model, folder / "one.onnx")
        session = make_session(folder / "one.onnx")
        feeds = choose_spread(int8_nets.image_feeds(), SAMPLES)
        outputs.append(np.stack([run_session(session, feed)[name] for feed in feeds]))
        (folder / "one.onnx").unlink()
    exact, found = (output.astype(np.float64) for output in outputs)
    return 10 * np.log10(np.sum(exact**2) / np.sum((exact - found) ** 2))


def test_errors_when_recomputed_tensor_by_tensor_are_the_same(steps):
    layers = read_layer_errors(steps["layers"])
    pairs = find_compared_tensors(
        read_structure(steps["reference"] / MODEL), read_structure(steps["model"] / MODEL)
    )
    assert [layer["tensor"] for layer in layers] == list(pairs)
    for layer in layers:
        due = expected_db(steps, layer["tensor"], pairs[layer["tensor"]])
        assert layer["sqnr_db"] == pytest.approx(due, abs=0.02)


def test_errors_when_listed_name_the_float_models_nodes_in_graph_order(steps):
    nodes = {n.output[0]: n for n in read_structure(steps["reference"] / MODEL).graph.node}
    layers = read_layer_errors(steps["layers"])
    assert layers
    assert [layer["node"] for layer in layers] == [nodes[x["tensor"]].name for x in layers]
    places = [list(nodes).index(layer["tensor"]) for layer in layers]
    assert places == sorted(places)


def test_errors_when_models_are_the_same_are_none(steps, tmp_path):
    given = {**{k: steps[k] for k in ("reference", "samples")}, "model": steps["reference"]}
    int8_nets.run(LayerErrors(SAMPLES, "x86-64"), given, tmp_path / "out")
    assert {layer["sqnr_db"] for layer in read_layer_errors(tmp_path / "out")} == {200.0}


def test_errors_when_a_tensor_has_equal_infinities_are_those_of_its_numbers(tmp_path):
    mask = ("m", np.array([0, -np.inf], np.float32))
    folders = {}
    for name, level in (("reference", 1.0), ("model", 1.5)):
        nodes = [
            helper.make_node("Mul", ["x", "f"], ["scaled"], "scale"),
            helper.make_node("Add", ["scaled", "m"], ["masked"], "mask"),
            helper.make_node("Softmax", ["masked"], ["y"], "weights"),
        ]
        folders[name] = tmp_path / name
        folders[name].mkdir()
        value = (TensorProto.FLOAT, [1, 2])
        ends = ([("x", *value)], [("y", *value)])
        tiny_models.save(folders[name] / MODEL, nodes, *ends, [mask, ("f", np.float32([level]))])
    feed = {"x": np.array([[1, 2]], np.float32)}
    (tmp_path / "samples").mkdir()
    inputs = read_signature(onnx.load(folders["model"] / MODEL))[0]
    write_sample_set(tmp_path / "samples", inputs, [("one", feed)])
    given = {**folders, "samples": tmp_path / "samples"}
    int8_nets.run(LayerErrors(SAMPLES, "x86-64"), given, tmp_path / "out")
    found = {each["node"]: each["sqnr_db"] for each in read_layer_errors(tmp_path / "out")}
    due = round(10 * np.log10(1 / 0.5**2), 2)
    assert found == {"scale": due, "mask": due, "weights": 200.0}
