"""Our NNAPI and CoreML predictions against onnxruntime's own mobile usability checker."""

from __future__ import annotations

import pytest
from edgepack.errors import ModelError
from onnx import TensorProto, helper

from tests.placement.mobile_checker import compare, find_models, report
from tests.support.nets.tiny_models import conv_net, save
from tests.unit.backends.backend_models import FLOAT, quantized, residual_net

FOLDERS = ["audio", "awkward/ort", "dense", "detection", "imagenet", "small", "text"]


def by_provider(model):
    return {comparison.provider: comparison for comparison in compare(model)}


def test_checker_when_the_model_is_plain_agrees_node_by_node(tmp_path):
    for comparison in compare(residual_net(tmp_path)):
        assert not comparison.differences
        assert comparison.our_partitions == comparison.checker_partitions


def test_checker_when_the_batch_is_dynamic_agrees_that_nnapi_takes_nothing(tmp_path):
    found = by_provider(conv_net(tmp_path / "net.onnx"))["NNAPI"]
    assert found.our_nodes == found.checker_nodes == 0


@pytest.mark.parametrize("activations", ["uint8", "int8"])
def test_checker_when_the_model_is_quantized_differs_for_reasons_it_does_not_see(
    tmp_path, activations
):
    model = quantized(residual_net(tmp_path), activations, "int8", symmetric=activations == "int8")
    found = by_provider(model)
    assert found["NNAPI"].checker_nodes == found["NNAPI"].nodes
    assert found["NNAPI"].our_nodes < found["NNAPI"].nodes
    assert (found["NNAPI"].our_nodes == 0) == (activations == "int8")
    assert not any(comparison.unexplained for comparison in found.values())


def test_checker_when_the_list_misspells_an_operator_is_wrong(tmp_path):
    nodes = [helper.make_node("ArgMax", ["x"], ["y"], "n", axis=1)]
    values = [("x", FLOAT, [1, 4])], [("y", TensorProto.INT64, [1, 1])]
    found = by_provider(save(tmp_path / "m.onnx", nodes, *values))
    (difference,) = found["CoreML MLProgram"].differences
    assert difference.ours
    assert "spells" in difference.why
    assert not found["CoreML NeuralNetwork"].differences


def test_report_when_written_says_each_kind_of_difference_once(tmp_path):
    model = quantized(residual_net(tmp_path), "int8", "int8", symmetric=True)
    lines = report(by_provider(model)["NNAPI"])
    assert "checker" in lines[0]
    assert any("2 x -Conv" in line for line in lines)


def test_public_models_when_compared_leave_no_difference_unexplained(shared_data):
    compared = 0
    for model in find_models([shared_data / folder for folder in FOLDERS]):
        try:
            comparisons = compare(model)
        except ModelError:
            continue
        compared += 1
        for comparison in comparisons:
            assert not comparison.unexplained, "\n".join(report(comparison))
            assert comparison.is_consistent, "\n".join(report(comparison))
    assert compared >= 20
