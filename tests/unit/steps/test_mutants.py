"""Models with weights that were changed on purpose."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from edgepack.model.running import make_session, run_session
from edgepack.steps.proofs.mutants import open_mutable_session
from onnx import numpy_helper

from tests.support.nets import tiny_models

FEED = {"image": tiny_models.images(1)}


def scores(model: Path) -> np.ndarray:
    return run_session(make_session(model, optimized=False), FEED)["scores"]


def with_weight(model: Path, name: str, values: np.ndarray) -> Path:
    """Write the model anew with other values in one of its weights."""
    proto = onnx.load(str(model))
    [tensor] = [tensor for tensor in proto.graph.initializer if tensor.name == name]
    tensor.CopyFrom(numpy_helper.from_array(values, name))
    onnx.save(proto, str(model.with_name("changed.onnx")))
    return model.with_name("changed.onnx")


def test_mutable_session_gives_what_a_model_with_these_weights_gives(tmp_path):
    model = tiny_models.conv_net(tmp_path / "model.onnx")
    session, mutants = open_mutable_session(model, FEED)
    assert np.allclose(run_session(session, FEED)["scores"], scores(model), atol=1e-5)
    assert [mutant.what for mutant in mutants] == [
        "the weights 'w1' shuffled",
        "a channel of the weights 'w1' at 0",
        "the largest of the weights 'w1' mirrored",
        "the weights 'w2' shuffled",
        "a channel of the weights 'w2' at 0",
        "the largest of the weights 'w2' mirrored",
    ]
    for mutant in mutants:
        [(name, values)] = mutant.weights.items()
        found = run_session(session, {**FEED, **mutant.weights})["scores"]
        assert np.allclose(found, scores(with_weight(model, name, values)), atol=1e-5)
        assert not np.allclose(found, scores(model), atol=1e-2)


def test_mutants_keep_the_sizes_of_weights_and_lose_the_largest_channel(tmp_path):
    model = tiny_models.conv_net(tmp_path / "model.onnx")
    _, (shuffled, silenced, mirrored, *_) = open_mutable_session(model, FEED)
    before = {t.name: numpy_helper.to_array(t) for t in onnx.load(str(model)).graph.initializer}
    assert np.array_equal(np.sort(shuffled.weights["w1"], None), np.sort(before["w1"], None))
    largest = np.abs(before["w1"]).sum((1, 2, 3)).argmax()
    assert not silenced.weights["w1"][largest].any()
    assert np.array_equal(
        np.delete(silenced.weights["w1"], largest, 0), np.delete(before["w1"], largest, 0)
    )
    [place] = np.argwhere(mirrored.weights["w1"] != before["w1"])
    assert mirrored.weights["w1"][tuple(place)] == -before["w1"][tuple(place)]
    assert abs(before["w1"][tuple(place)]) == np.abs(before["w1"]).max()
    _, again = open_mutable_session(model, FEED)
    assert np.array_equal(again[0].weights["w1"], shuffled.weights["w1"])


@pytest.mark.parametrize("form", ["constants", "ir 3", "external"])
def test_mutable_session_takes_weights_however_the_file_has_them(tmp_path, form):
    model = tiny_models.conv_net(tmp_path / "model.onnx")
    wanted = scores(model)
    proto = onnx.load(str(model))
    if form == "constants":
        for n, tensor in enumerate(proto.graph.initializer):
            proto.graph.node.insert(
                n, onnx.helper.make_node("Constant", [], [tensor.name], value=tensor)
            )
        del proto.graph.initializer[:]
    elif form == "ir 3":
        proto.ir_version = 3
        for tensor in proto.graph.initializer:
            value = onnx.helper.make_tensor_value_info(tensor.name, 1, tensor.dims)
            proto.graph.input.append(value)
    onnx.save(
        proto, str(model), save_as_external_data=form == "external", location="w", size_threshold=0
    )
    session, mutants = open_mutable_session(model, FEED)
    assert np.allclose(run_session(session, FEED)["scores"], wanted, atol=1e-5)
    assert len(mutants) == 6


def test_mutable_session_is_a_plain_one_when_there_are_no_weights(tmp_path):
    nodes = [onnx.helper.make_node("Relu", ["image"], ["scores"])]
    image = ("image", onnx.TensorProto.FLOAT, [1, 3, 8, 8])
    model = tiny_models.save(tmp_path / "m.onnx", nodes, [image], [("scores", *image[1:])])
    session, mutants = open_mutable_session(model, FEED)
    assert mutants == ()
    assert np.array_equal(run_session(session, FEED)["scores"], np.maximum(FEED["image"], 0))
