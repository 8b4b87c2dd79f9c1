from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from edgepack.errors import ModelError
from edgepack.model.facts import read_model_facts, require_plain_signature
from edgepack.model.reading import can_fit_message, read_model, read_outline, write_model
from onnx import TensorProto, helper, numpy_helper

from tests.support.nets import text_nets, tiny_models


def with_external_data(folder, location: str, **entries):
    model = onnx.load(tiny_models.conv_net(folder / "net.onnx"))
    tensor = model.graph.initializer[0]
    raw = tensor.raw_data
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, value in {"location": location, "length": str(len(raw)), **entries}.items():
        entry = tensor.external_data.add()
        entry.key, entry.value = key, value
    path = folder / "external.onnx"
    path.write_bytes(model.SerializeToString())
    return path, raw


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "is empty"),
        (b"\x10\x00\x00\x00ORTM" + b"\0" * 50, "ORT-format"),
        (b"just some text, not a model", "is not a whole ONNX model"),
        (b"\0" * 100, "is not a whole ONNX model"),
        (b"PK\x03\x04 a zip", "is not a whole ONNX model"),
    ],
)
def test_read_when_the_file_is_no_model_says_what_it_is(tmp_path, data, problem):
    path = tmp_path / "m.onnx"
    path.write_bytes(data)
    with pytest.raises(ModelError, match=problem):
        read_model(path)


def test_read_when_missing_or_a_folder_says_so(tmp_path):
    with pytest.raises(ModelError, match="there is no model"):
        read_model(tmp_path / "none.onnx")
    with pytest.raises(ModelError, match="is a folder"):
        read_model(tmp_path)


@pytest.mark.parametrize("share", [0.2, 0.5, 0.9, 0.999])
def test_read_when_truncated_is_an_error(tmp_path, share):
    whole = tiny_models.conv_net(tmp_path / "net.onnx").read_bytes()
    path = tmp_path / "cut.onnx"
    path.write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(ModelError, match="is not a whole ONNX model"):
        read_model(path)


def test_read_when_external_data_lies_beside_reads_it(tmp_path):
    path, raw = with_external_data(tmp_path, "weights.bin")
    (tmp_path / "weights.bin").write_bytes(raw)
    assert read_model(path).graph.initializer[0].raw_data == raw
    assert read_model_facts(path).external_data == ("weights.bin",)


@pytest.mark.parametrize("location", ["../secret.bin", "/etc/passwd", "a/../../secret.bin", ""])
def test_read_when_external_data_leaves_the_folder_refuses(tmp_path, location):
    (tmp_path / "secret.bin").write_bytes(b"\0" * 4096)
    inner = tmp_path / "inner"
    inner.mkdir()
    path, _ = with_external_data(inner, location)
    with pytest.raises(ModelError, match="outside the model's folder"):
        read_model(path)


def test_read_when_a_link_leads_outside_refuses(tmp_path):
    inner = tmp_path / "inner"
    inner.mkdir()
    path, raw = with_external_data(inner, "weights.bin")
    (tmp_path / "secret.bin").write_bytes(raw)
    (inner / "weights.bin").symlink_to(tmp_path / "secret.bin")
    with pytest.raises(ModelError, match="outside the model's folder"):
        read_model(path)


def test_read_when_external_data_is_missing_or_short_says_which_file(tmp_path):
    path, raw = with_external_data(tmp_path, "weights.bin")
    with pytest.raises(ModelError, match=r"'weights.bin', which is not there"):
        read_model(path)
    (tmp_path / "weights.bin").write_bytes(raw[:-1])
    with pytest.raises(ModelError, match="wants bytes 0 to"):
        read_model(path)


def test_digest_when_external_data_changes_is_another(tmp_path):
    path, raw = with_external_data(tmp_path, "weights.bin")
    (tmp_path / "weights.bin").write_bytes(raw)
    before = read_model_facts(path).sha256
    (tmp_path / "weights.bin").write_bytes(raw[::-1])
    assert read_model_facts(path).sha256 != before


def test_facts_when_read_name_signature_operators_and_sizes(tmp_path):
    facts = read_model_facts(tiny_models.conv_net(tmp_path / "net.onnx"))
    assert [str(spec) for spec in facts.inputs] == ["image: float32[batch, 3, 8, 8]"]
    assert [str(spec) for spec in facts.outputs] == ["scores: float32[batch, 4]"]
    assert facts.op_counts["Conv"] == 1
    assert facts.initializer_bytes == 4 * (8 * 3 * 3 * 3 + 8 * 4 + 8 * 4 + 4)


def test_facts_when_inputs_choose_rows_tell_how_many_the_smallest_table_has(tmp_path):
    path = text_nets.text_net(tmp_path / "text.onnx")
    assert read_model_facts(path).table_rows == {"input_ids": 300}
    model = onnx.load(path)
    nodes = [
        helper.make_node("Cast", ["input_ids"], ["narrow"], to=TensorProto.INT32),
        helper.make_node("Unsqueeze", ["narrow", "last"], ["ids"]),
        helper.make_node("DequantizeLinear", ["small", "scale"], ["dequantized"]),
        helper.make_node("Gather", ["dequantized", "ids"], ["rows"]),
        helper.make_node("Gather", ["dequantized", "ids"], ["columns"], axis=1),
        helper.make_node("Add", ["input_ids", "last"], ["moved"]),
        helper.make_node("Gather", ["last", "moved"], ["elsewhere"]),
    ]
    model.graph.node.extend(nodes)
    constants = {"small": np.zeros((7, 4), np.int8), "scale": np.float32(1)}
    for name, value in constants.items():
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(value), name))
    onnx.save(model, path)
    assert read_model_facts(path).table_rows == {"input_ids": 7}


def test_write_when_read_again_is_the_same_model(tmp_path):
    model = read_model(tiny_models.conv_net(tmp_path / "net.onnx"))
    write_model(model, tmp_path / "copy.onnx")
    assert read_model(tmp_path / "copy.onnx") == model
    assert np.array_equal(sorted(p.name for p in tmp_path.iterdir()), ["copy.onnx", "net.onnx"])


@pytest.mark.slow(reason="takes 4 GB")
def test_fits_a_message_when_the_model_has_more_than_protobuf_can_measure_says_no(tmp_path):
    model = onnx.load(tiny_models.conv_net(tmp_path / "net.onnx"))
    assert can_fit_message(model)
    assert not can_fit_message(model, limit_bytes=10)
    for _ in range(2):
        model.graph.initializer.add().raw_data = bytes(1 << 30)
    assert not can_fit_message(model)


def test_read_when_data_lies_at_an_address_in_memory_refuses(tmp_path):
    path, _ = with_external_data(tmp_path, "*/_ORT_MEM_ADDR_/*", offset="4096")
    with pytest.raises(ModelError, match="an address in this process's memory") as caught:
        read_model(path)
    assert caught.value.hint.startswith("do not trust this file")


@pytest.mark.parametrize(
    ("producer", "line"),
    [
        ("skl2onnx", "to_onnx(model, X, options={'zipmap': False})"),
        ("OnnxMLTools", "convert_lightgbm(model, initial_types=types, zipmap=False)"),
        ("", "to_onnx(model, X, options={'zipmap': False})"),
    ],
)
def test_plain_signature_when_a_classifier_gives_dictionaries_names_the_option(
    tmp_path, producer, line
):
    path = with_zip_map(tmp_path / "classifier.onnx", producer)
    with pytest.raises(ModelError, match="'probabilities' is a sequence") as caught:
        require_plain_signature(read_model_facts(path))
    first, _, _ = caught.value.hint.partition(" (or")
    assert first.endswith(line)


def with_zip_map(path, producer):
    """Write a classifier as converters of scikit-learn do: [1, 2] floats to a list of maps."""
    classes = {"classlabels_int64s": [0, 1]}
    node = helper.make_node("ZipMap", ["x"], ["probabilities"], domain="ai.onnx.ml", **classes)
    row = helper.make_map_type_proto(
        TensorProto.INT64, helper.make_tensor_type_proto(TensorProto.FLOAT, [])
    )
    output = helper.make_value_info("probabilities", helper.make_sequence_type_proto(row))
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 2])
    graph = helper.make_graph([node], "g", [given], [output])
    domains = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 1)]
    model = helper.make_model(graph, opset_imports=domains, ir_version=8, producer_name=producer)
    onnx.save(model, path)
    return path


@pytest.mark.parametrize(
    ("data", "what", "remedy"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "Git LFS", "git lfs pull"),
        (b"\x89PNG\r\n\x1a\n" + bytes(16), "a PNG picture", "give the .onnx file"),
        (b"\x1c\0\0\0TFL3" + bytes(16), "TensorFlow Lite", "tf2onnx"),
        (b"PK\x03\x04" + bytes(16), "a ZIP archive", "torch.onnx.export"),
        (b"<!DOCTYPE html><html>", "HTML", "download the model again"),
    ],
)
def test_read_when_it_is_another_kind_of_file_names_it_and_what_to_do(tmp_path, data, what, remedy):
    (tmp_path / "m.onnx").write_bytes(data)
    with pytest.raises(ModelError, match=f"is not a whole ONNX model, but .*{what}") as caught:
        read_model(tmp_path / "m.onnx")
    assert remedy in caught.value.hint


def test_read_when_a_project_file_is_given_names_the_option(tmp_path):
    (tmp_path / "edgepack.yaml").write_text("schema_version: 1\n")
    with pytest.raises(ModelError) as caught:
        read_model(tmp_path / "edgepack.yaml")
    assert "--project edgepack.yaml" in caught.value.hint


def test_read_when_the_folder_may_not_be_entered_is_no_bug(tmp_path, monkeypatch):
    def exists(self: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "exists", exists)
    with pytest.raises(ModelError, match=r"cannot read .*: Permission denied") as caught:
        read_model(tmp_path / "m.onnx")
    assert "folders above it" in caught.value.hint


def large_model(path, kind=np.float32):
    """A file large enough to be read without its weights: 8 MiB in one, 4 bytes in another."""
    large, small = np.ones((2, 1 << 20), kind), np.ones(1, np.float32)
    node = helper.make_node("Identity", ["large"], ["out"], name="n", doc_string="kept")
    value = helper.make_tensor_value_info("out", helper.np_dtype_to_tensor_dtype(large.dtype), [2])
    weights = [numpy_helper.from_array(large, "large"), numpy_helper.from_array(small, "small")]
    graph = helper.make_graph([node], "g", [], [value], weights)
    onnx.save(helper.make_model(graph, producer_name="a test"), path)
    return path


def test_outline_is_the_model_but_for_the_values_of_large_floats(tmp_path):
    path = large_model(tmp_path / "large.onnx")
    outline, expected = read_outline(path), onnx.load(path)
    assert list(outline.graph.initializer[0].dims) == [2, 1 << 20]
    assert not outline.graph.initializer[0].raw_data
    expected.graph.initializer[0].ClearField("raw_data")
    assert outline == expected


def test_outline_keeps_integers_that_may_be_zero_points(tmp_path):
    path = large_model(tmp_path / "large.onnx", np.int32)
    assert read_outline(path) == onnx.load(path)


@pytest.mark.parametrize("kept", [0.5, 0.999])
def test_outline_of_a_file_that_is_cut_off_is_an_error(tmp_path, kept):
    path = large_model(tmp_path / "large.onnx")
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * kept)])
    with pytest.raises(ModelError, match="is not a whole ONNX model"):
        read_outline(path)


def test_facts_of_a_large_file_are_those_of_all_of_it(tmp_path):
    facts = read_model_facts(large_model(tmp_path / "large.onnx"))
    assert facts.initializer_bytes == (8 << 20) + 4


def with_weight_last(path):
    """A file whose last field is its large weight: protobuf joins the two graphs in it."""
    model = onnx.load(large_model(path))
    last = onnx.ModelProto()
    last.graph.initializer.append(model.graph.initializer.pop(0))
    path.write_bytes(model.SerializeToString() + last.SerializeToString())
    return path


def test_outline_when_a_large_weight_comes_last_is_the_same_model(tmp_path):
    outline = read_outline(with_weight_last(tmp_path / "large.onnx"))
    assert [w.name for w in outline.graph.initializer] == ["small", "large"]
    assert list(outline.graph.initializer[1].dims) == [2, 1 << 20]
    assert not outline.graph.initializer[1].raw_data
    assert outline.graph.node


def test_outline_when_a_large_weight_that_comes_last_is_cut_off_is_an_error(tmp_path):
    path = with_weight_last(tmp_path / "large.onnx")
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ModelError, match="is not a whole ONNX model"):
        read_outline(path)
