"""The proof of a dialect where some activations have 16 bits, and on biases of float inputs."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from edgepack.errors import StepError
from edgepack.quantization.qdq.dialect import find_wide_type, require_dialect
from edgepack.quantization.qdq.preparation import prepare_model
from edgepack.quantization.qdq.writer import QdqWriter
from onnx import TensorProto, helper

from tests.support.nets import int8_nets, tiny_models


@pytest.fixture
def model(tmp_path):
    random = np.random.default_rng(2)
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], "conv"),
        helper.make_node("Mul", ["c", "m"], ["s"], "scale"),
        helper.make_node("Flatten", ["s"], ["f"], "flat"),
        helper.make_node("Gemm", ["f", "v", "u"], ["y"], "linear"),
    ]
    shapes = {"w": (4, 4, 1, 1), "b": (4,), "m": (4, 1, 1), "v": (36, 5), "u": (5,)}
    constants = [(n, random.standard_normal(s).astype(np.float32)) for n, s in shapes.items()]
    path = tiny_models.save(
        tmp_path / "net.onnx",
        nodes,
        [("x", TensorProto.FLOAT, [1, 4, 3, 3])],
        [("y", TensorProto.FLOAT, [1, 5])],
        constants,
    )
    return prepare_model(onnx.load(path))


def written(model, dialect, **settings):
    ranges = dict.fromkeys(("x", "c", "s", "f", "y"), (-2.0, 3.0))
    return QdqWriter(model, ranges, dialect, **settings).write(())


@pytest.mark.parametrize("name", ["cpu", "tensorrt", "xnnpack"])
def test_pairs_when_wide_speak_the_dialect_only_if_they_are_named(model, name):
    dialect = int8_nets.DIALECTS[name]
    out = written(model, dialect, wide=frozenset(["s"]))
    require_dialect(out, dialect, wide=["s"])
    with pytest.raises(StepError, match=f"is {find_wide_type(dialect)}"):
        require_dialect(out, dialect)
    with pytest.raises(StepError, match=f"'c_QuantizeLinear'.*is {dialect.activations}"):
        require_dialect(out, dialect, wide=["c"])


def test_pairs_when_named_wide_and_written_with_8_bits_are_refused(model):
    out = written(model, int8_nets.CPU)
    require_dialect(out, int8_nets.CPU)
    with pytest.raises(StepError, match=r"'s_QuantizeLinear'.*zero point is uint8"):
        require_dialect(out, int8_nets.CPU, wide=["s"])


def test_constant_when_it_has_16_bits_and_stands_beside_none_is_refused(model):
    out = written(model, int8_nets.CPU, wide=frozenset(["s"]))
    lone = next(node for node in out.graph.node if node.name == "scale")
    for node in out.graph.node:
        if node.name in ("s_QuantizeLinear", "s_DequantizeLinear", "f_QuantizeLinear"):
            assert node.domain == "com.microsoft"
    lone.output[0] = "aside"
    out.graph.node.append(helper.make_node("Identity", ["c"], ["s"]))
    with pytest.raises(StepError, match=r"'m_DequantizeLinear'.*its constant is uint16"):
        require_dialect(out, int8_nets.CPU, wide=["s"])


def test_bias_when_the_input_is_float_is_float(model):
    out = written(model, int8_nets.CPU, unpaired=frozenset(["s"]))
    require_dialect(out, int8_nets.CPU)
    linear = next(node for node in out.graph.node if node.name == "linear")
    assert list(linear.input) == ["f", "v", "u"]


def test_output_when_wide_is_known_by_its_own_name(model):
    out = written(model, int8_nets.CPU, wide=frozenset(["y"]))
    require_dialect(out, int8_nets.CPU, wide=["y"])
    with pytest.raises(StepError, match="uint16"):
        require_dialect(out, int8_nets.CPU)
