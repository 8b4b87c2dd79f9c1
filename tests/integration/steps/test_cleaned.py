"""What exporters leave is cleaned, and the proof of it fails where it must."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import onnx
import onnxruntime
import pytest
from edgepack.errors import BugError, StepError
from edgepack.model.facts import read_signature
from edgepack.model.files import MODEL
from edgepack.model.reading import read_outline
from edgepack.steps.base import run_step
from edgepack.steps.cleaning import operators
from edgepack.steps.cleaning.cleaned import Cleaned, find_label_files, list_cleanings
from edgepack.steps.cleaning.operators import STAND_INS
from edgepack.steps.cleaning.proof import Sides, prove_outputs
from onnx import TensorProto, helper

from tests.support.nets import classical_nets, tiny_models


def clean(source, out, **settings):
    out.mkdir()
    return run_step(Cleaned(**settings), {"source": source}, out)


def list_signature(path):
    return [str(spec) for part in read_signature(read_outline(path)) for spec in part]


def read_labels(folder):
    return {name: path.read_text().split() for name, path in find_label_files(folder).items()}


def test_dictionaries_and_labels_of_a_classifier_become_tensors(tmp_path):
    source = classical_nets.save_classifier(tmp_path / "net.onnx", ["no", "yes", "perhaps"])
    notes = clean(source, tmp_path / "out")
    assert [*notes.facts["cleanings"]] == ["named-dims", "zip-map-to-tensor", "labels-to-numbers"]
    assert list_signature(tmp_path / "out" / MODEL) == [
        "x: float32[batch, 4]",
        "label: int64[batch]",
        "probabilities: float32[batch, 3]",
    ]
    kept = ["no", "yes", "perhaps"]
    assert read_labels(tmp_path / "out") == {"label": kept, "probabilities": kept}


def test_a_number_stands_for_the_text_that_the_model_gave(tmp_path):
    source = classical_nets.save_classifier(tmp_path / "net.onnx", ["no", "yes", "perhaps"])
    clean(source, tmp_path / "out")
    x = np.random.default_rng(3).standard_normal((20, 4)).astype(np.float32)
    before, after = (
        onnxruntime.InferenceSession(str(path)).run(None, {"x": x})
        for path in (source, tmp_path / "out" / MODEL)
    )
    kept = read_labels(tmp_path / "out")["label"]
    assert [kept[number] for number in after[0]] == before[0].tolist()
    assert {*before[0]} == {*kept}
    assert [[row[text] for text in kept] for row in before[1]] == after[1].tolist()


@pytest.mark.parametrize("labels", [[0, 1, 2], [3, 7, 9]])
def test_labels_that_are_numbers_are_kept_where_they_are_not_the_columns_own(tmp_path, labels):
    source = classical_nets.save_classifier(tmp_path / "net.onnx", labels)
    clean(source, tmp_path / "out")
    expected = {} if labels == [0, 1, 2] else {"probabilities": ["3", "7", "9"]}
    assert read_labels(tmp_path / "out") == expected


@pytest.mark.parametrize("maker", classical_nets.LABEL_MAKERS)
def test_texts_are_numbered_wherever_they_are_written_down(tmp_path, maker):
    source = classical_nets.save_labels(tmp_path / "net.onnx", maker)
    notes = clean(source, tmp_path / "out")
    assert [*notes.facts["cleanings"]] == ["labels-to-numbers"]
    assert list_signature(tmp_path / "out" / MODEL)[1].startswith("label: int64")
    assert read_labels(tmp_path / "out")["label"][:3] == ["red", "green", "blue"]


def test_texts_that_something_else_reads_or_makes_stay(tmp_path):
    source = classical_nets.save_classifier(tmp_path / "net.onnx", ["a", "b", "c"])
    model = onnx.load(source)
    model.graph.node.append(helper.make_node("Identity", ["texts"], ["again"]))
    model.graph.output.append(helper.make_tensor_value_info("again", TensorProto.STRING, [None]))
    assert "labels-to-numbers" not in list_cleanings(model)


def test_sequences_of_tensors_become_outputs_in_their_place(tmp_path):
    source = classical_nets.save_sequence(tmp_path / "net.onnx")
    notes = clean(source, tmp_path / "out")
    assert [*notes.facts["cleanings"]] == ["unpacked-sequences"]
    assert list_signature(tmp_path / "out" / MODEL)[2:] == [
        "both_0: float32[n, 4]",
        "both_1: float32[n, 4]",
        "last: float32[n, 4]",
    ]


def test_the_last_import_of_an_operator_set_counts(tmp_path):
    """Softmax of opset 11 is over all axes from the second on, that of 13 over the last."""
    source = tmp_path / "net.onnx"
    shape = (TensorProto.FLOAT, [2, 2, 2])
    node = helper.make_node("Softmax", ["x"], ["y"])
    tiny_models.save(source, [node], [("x", *shape)], [("y", *shape)], opset=13)
    model = onnx.load(source)
    model.opset_import.append(helper.make_opsetid("ai.onnx", 11))
    onnx.save(model, source)
    notes = clean(source, tmp_path / "out")
    assert notes.facts["cleanings"] == {"one-opset-import": ["ai.onnx 11 of 13, 11"]}
    assert [(e.domain, e.version) for e in read_outline(tmp_path / "out" / MODEL).opset_import] == [
        ("ai.onnx", 11)
    ]


def test_counted_dimensions_get_names_and_the_projects_own_stay(tmp_path):
    source = classical_nets.save_counted(tmp_path / "net.onnx")
    clean(source, tmp_path / "named")
    assert list_signature(tmp_path / "named" / MODEL) == [
        "x: float32[batch, x_1, 4]",
        "y: float32[batch, x_1, 4]",
        "z: float32[z_0]",
    ]
    clean(source, tmp_path / "kept", kept_dims=("unk__7",))
    assert list_signature(tmp_path / "kept" / MODEL)[0] == "x: float32[batch, unk__7, 4]"
    assert list_cleanings(read_outline(source), ["unk__6", "unk__7", "unk__8", "unk__9"]) == []


@pytest.mark.parametrize(("producer", "name"), [("pytorch", "batch"), ("", "s31")])
def test_names_that_look_like_pytorchs_are_counted_in_its_models_alone(tmp_path, producer, name):
    source = tiny_models.conv_net(tmp_path / "net.onnx", batch="s31")
    model = onnx.load(source)
    model.producer_name = producer
    onnx.save(model, source)
    if producer:
        clean(source, tmp_path / "out")
        assert list_signature(tmp_path / "out" / MODEL)[0] == f"image: float32[{name}, 3, 8, 8]"
    else:
        assert list_cleanings(read_outline(source)) == []


def test_names_are_proven_node_by_node_where_random_inputs_do_not_fit(tmp_path):
    source = classical_nets.save_counted(tmp_path / "net.onnx", least=3)
    assert clean(source, tmp_path / "out").facts["cleanings"].keys() == {"named-dims"}
    assert clean(source, tmp_path / "sized", sizes=(("x_1", 3),)).facts["cleanings"]


def test_a_model_without_need_is_named_no_cleaning(tmp_path):
    assert list_cleanings(read_outline(tiny_models.conv_net(tmp_path / "net.onnx"))) == []


def test_erfc_that_onnxruntime_has_not_becomes_what_it_has(tmp_path):
    """tf2onnx writes Keras's exact GELU with it."""
    shape = (TensorProto.FLOAT, ["n", 5])
    node = helper.make_node("Erfc", ["x"], ["y"], "tail")
    source = tiny_models.save(tmp_path / "net.onnx", [node], [("x", *shape)], [("y", *shape)])
    notes = clean(source, tmp_path / "out")
    assert notes.facts["cleanings"] == {"standard-operators": ["Erfc 'tail' by Erf, Sub"]}
    x = np.array([[-3, -0.5, 0, 0.5, 3]], np.float32)
    session = onnxruntime.InferenceSession(str(tmp_path / "out" / MODEL))
    expected = [[math.erfc(value) for value in row] for row in x.tolist()]
    np.testing.assert_allclose(session.run(None, {"x": x})[0], expected, atol=1e-6)


@pytest.mark.parametrize("others", [0, 1])
def test_erfc_of_a_negative_becomes_the_form_of_a_gelu(tmp_path, others):
    """The sign goes where nothing else reads what is between."""
    shape = (TensorProto.FLOAT, ["n", 5])
    nodes = [
        helper.make_node("Neg", ["x"], ["minus"], "neg"),
        helper.make_node("Mul", ["minus", "root"], ["scaled"], "scale"),
        helper.make_node("Erfc", ["scaled"], ["tail"], "tail"),
        helper.make_node("Mul", ["x", "tail"], ["y"], "gelu"),
        *[helper.make_node("Abs", ["scaled"], ["z"], "other")] * others,
    ]
    root = [("root", np.array(math.sqrt(0.5), np.float32))]
    outputs = [(name, *shape) for name in "yz"[: 1 + others]]
    source = tiny_models.save(tmp_path / "net.onnx", nodes, [("x", *shape)], outputs, root)
    clean(source, tmp_path / "out")
    ops = [node.op_type for node in read_outline(tmp_path / "out" / MODEL).graph.node]
    ends = ["Neg", "Mul", "Erf", "Sub", "Mul", "Abs"] if others else ["Mul", "Erf", "Add", "Mul"]
    assert ops == ends
    x = np.linspace(-3, 3, 10, dtype=np.float32).reshape(2, 5)
    session = onnxruntime.InferenceSession(str(tmp_path / "out" / MODEL))
    expected = [[v * math.erfc(-v * math.sqrt(0.5)) for v in row] for row in x.tolist()]
    np.testing.assert_allclose(session.run(None, {"x": x})[0], expected, atol=1e-6)


REMOVED = {
    "Affine": {"alpha": 1.5, "beta": -0.5},
    "ImageScaler": {"scale": 0.5, "bias": [0.1, 0.2]},
    "ScaledTanh": {"alpha": 1.7, "beta": 0.6},
    "Crop": {"border": [1, 0, 2, 1]},
}


@pytest.mark.parametrize("op", [*REMOVED, "Crop to a size"])
def test_operators_that_onnx_took_away_are_written_with_others(tmp_path, op):
    """The step runs both: onnxruntime still has them."""
    name = op.split()[0]
    attributes = REMOVED[name] | ({"scale": [2, 3]} if " " in op else {})
    shape = (TensorProto.FLOAT, [1, 2, 4, 6])
    after = (TensorProto.FLOAT, ["n", 2, "h", "w"])
    node = helper.make_node(name, ["x"], ["y"], "removed", **attributes)
    source = tiny_models.save(
        tmp_path / "net.onnx", [node], [("x", *shape)], [("y", *after)], opset=9
    )
    notes = clean(source, tmp_path / "out")
    assert notes.facts["cleanings"].keys() == {"standard-operators"}
    ops = {node.op_type for node in read_outline(tmp_path / "out" / MODEL).graph.node}
    assert not ops & REMOVED.keys()


@pytest.mark.parametrize("joined", [True, False])
def test_two_inputs_share_the_batch_if_they_must_have_as_many_rows(tmp_path, joined):
    source = classical_nets.save_two(tmp_path / "net.onnx", joined=joined)
    clean(source, tmp_path / "out")
    names = ["batch", "batch"] if joined else ["a_0", "b_0"]
    assert list_signature(tmp_path / "out" / MODEL)[:2] == [
        f"a: float32[{names[0]}, 3]",
        f"b: float32[{names[1]}, 3]",
    ]


# --- the proof ---------------------------------------------------------------------------------


@pytest.fixture(name="sides")
def make_sides(tmp_path):
    source = classical_nets.save_classifier(tmp_path / "net.onnx", ["no", "yes", "perhaps"])
    clean(source, tmp_path / "out")
    return Sides(source, tmp_path / "out" / MODEL, read_labels(tmp_path / "out"), {})


def test_proof_when_labels_are_in_another_order_fails(sides):
    wrong = replace(sides, labels={**sides.labels, "label": ["yes", "no", "perhaps"]})
    with pytest.raises(BugError, match="'label' has other values"):
        prove_outputs(wrong)


def test_proof_when_a_dictionarys_values_change_fails(sides):
    model = onnx.load(sides.after)
    node = next(n for n in model.graph.node if n.output[0] == "probabilities")
    node.CopyFrom(helper.make_node("Neg", node.input, node.output))
    onnx.save(model, sides.after)
    with pytest.raises(BugError, match="'probabilities' has other values"):
        prove_outputs(sides)


def test_proof_when_a_name_stands_for_two_sizes_fails(sides):
    model = onnx.load(sides.after)
    model.graph.output[1].type.tensor_type.shape.dim[1].dim_param = "batch"
    onnx.save(model, sides.after)
    with pytest.raises(BugError, match="is declared, and has the shape"):
        prove_outputs(sides)


def test_proof_when_random_inputs_do_not_fit_and_nodes_changed_fails(tmp_path):
    source = classical_nets.save_counted(tmp_path / "net.onnx", least=3)
    clean(source, tmp_path / "out")
    model = onnx.load(tmp_path / "out" / MODEL)
    model.graph.node[0].name = "another"
    onnx.save(model, tmp_path / "out" / MODEL)
    with pytest.raises(StepError, match="cannot be proven") as caught:
        prove_outputs(Sides(source, tmp_path / "out" / MODEL, {}, {}))
    assert "'dims'" in caught.value.hint


def test_proof_when_a_sign_is_dropped_that_counts_fails(tmp_path, monkeypatch):
    shape = (TensorProto.FLOAT, ["n", 5])
    nodes = [
        helper.make_node("Neg", ["x"], ["minus"], "neg"),
        helper.make_node("Erfc", ["minus"], ["y"], "tail"),
    ]
    source = tiny_models.save(tmp_path / "net.onnx", nodes, [("x", *shape)], [("y", *shape)])
    monkeypatch.setattr(operators, "_find_negative", lambda _: None)
    build = STAND_INS["Erfc"].build

    def drop_sign(building):
        if not building.plain:
            building.node.input[0] = "x"
        build(building)

    monkeypatch.setitem(STAND_INS, "Erfc", replace(STAND_INS["Erfc"], build=drop_sign))
    with pytest.raises(BugError, match="'y' has other values"):
        clean(source, tmp_path / "out")


def test_proof_when_a_stand_in_computes_something_else_fails(tmp_path, monkeypatch):
    shape = (TensorProto.FLOAT, ["n", 5])
    node = helper.make_node("Erfc", ["x"], ["y"], "tail")
    source = tiny_models.save(tmp_path / "net.onnx", [node], [("x", *shape)], [("y", *shape)])
    wrong = replace(STAND_INS["Erfc"], build=lambda b: b.add("Erf", b.node.input[0], last=True))
    monkeypatch.setitem(STAND_INS, "Erfc", wrong)
    with pytest.raises(BugError, match="what stands in for Erfc is 3 from it"):
        clean(source, tmp_path / "out")
