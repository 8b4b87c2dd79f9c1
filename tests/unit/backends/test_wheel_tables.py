from __future__ import annotations

import subprocess
import sys

import pytest
from edgepack.backends.wheel_tables import load_op_table, parse_table
from edgepack.errors import ToolError

TABLE = """
|Operator|Note|
|--------|------|
|ai.onnx:Conv|Only 2D.<br/>Weights should be constant.|
|ai.onnx:Argmax||
|ai.onnx.ReduceSum||
|com.microsoft:QLinearAdd|All scales constant.|
"""


def test_table_when_parsed_has_operators_with_domains_and_notes():
    table = parse_table(TABLE)
    assert set(table.notes) == {"Conv", "ArgMax", "ReduceSum", "com.microsoft:QLinearAdd"}
    assert table.notes["Conv"] == "Only 2D. Weights should be constant."
    assert "Conv" in table
    assert "QLinearAdd" not in table


def test_table_when_spelt_oddly_is_mended_and_says_so():
    assert parse_table(TABLE).respelled == {"ArgMax", "ReduceSum"}


def test_lists_of_the_wheel_when_read_have_what_1_31_is_known_for():
    nnapi = load_op_table("nnapi_supported_ops")
    program = load_op_table("coreml_supported_mlprogram_ops")
    network = load_op_table("coreml_supported_neuralnetwork_ops")
    assert {"Conv", "QuantizeLinear", "com.microsoft:QLinearAdd"} <= set(nnapi.notes)
    assert {"ArgMax", "Erf", "com.microsoft:FusedConv"} <= set(program.notes)
    assert "Flatten" in network
    assert not {"Flatten", "BatchNormalization", "QuantizeLinear"} & set(program.notes)
    assert program.respelled == {"ArgMax"}
    assert network.respelled == {"ReduceSum"}


def test_list_when_missing_is_an_error_that_names_version_and_remedy(tmp_path):
    with pytest.raises(ToolError, match=r"onnxruntime \d.*nnapi_supported_ops") as caught:
        load_op_table("nnapi_supported_ops", tmp_path)
    assert "pip install" in caught.value.hint


def test_list_when_without_rows_is_an_error(tmp_path):
    (tmp_path / "nnapi_supported_ops.md").write_text("nothing\n")
    with pytest.raises(ToolError, match="no rows"):
        load_op_table("nnapi_supported_ops", tmp_path)


def test_lists_when_read_do_not_load_onnxruntime():
    code = (
        "import sys; from edgepack.backends.wheel_tables import load_op_table;"
        "load_op_table('nnapi_supported_ops'); assert 'onnxruntime' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
