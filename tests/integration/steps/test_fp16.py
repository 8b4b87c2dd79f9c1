"""The fp16 step on models made for one defect each, and on public ones."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import onnx
import pytest
from edgepack.errors import ModelError, StepError
from edgepack.model.facts import TensorSpec, read_signature
from edgepack.model.files import MODEL
from edgepack.model.running import make_session, run_session
from edgepack.samples.sample_set import write_sample_set
from edgepack.steps.base import Notes, run_step
from edgepack.steps.comparing import EMBEDDING_PROBES
from edgepack.steps.graph.prepared import fix_dims
from edgepack.steps.recipes.fp16 import Fp16
from onnx import TensorProto, helper, numpy_helper

from tests.support.nets.tiny_models import conv_net, save

FLOAT = TensorProto.FLOAT
node = helper.make_node


def vector(path, nodes, initializers=(), *, outputs=("y",), **options):
    """A model from x to outputs, all float32 [1, 4]."""
    shapes = [(name, FLOAT, [1, 4]) for name in outputs]
    save(path / "in" / MODEL, nodes, [("x", FLOAT, [1, 4])], shapes, initializers, **options)
    return path


def half(folder, *, step=None, max_ir=8, **inputs) -> Notes:
    (folder / "out").mkdir()
    step = step or Fp16(max_ir, ())
    return run_step(step, {"model": folder / "in", **inputs}, folder / "out")


def result(folder, x=(1.0, 2.0, 3.0, 4.0)):
    feed = {"x": np.array([x], np.float32)}
    return run_session(make_session(folder / "out" / MODEL), feed)["y"].ravel()


def made(folder) -> onnx.ModelProto:
    return onnx.load(folder / "out" / MODEL)


def array(*values):
    return np.array([values], np.float32)


def test_model_when_converted_keeps_float32_inputs_and_outputs_and_halves_its_weights(tmp_path):
    conv_net(tmp_path / "in" / MODEL, batch=1)
    notes = half(tmp_path)
    model = made(tmp_path)
    assert read_signature(model) == read_signature(onnx.load(tmp_path / "in" / MODEL))
    assert {t.data_type for t in model.graph.initializer} == {TensorProto.FLOAT16}
    assert notes.facts["float16_nodes"] == 6
    assert notes.facts["float32_nodes"] == []
    assert 40 < notes.facts["sqnr_db"] < 90


def test_tensor_when_two_float32_nodes_read_it_is_cast_once(tmp_path):
    nodes = [
        node("Relu", ["x"], ["r"], "r"),
        node("Neg", ["r"], ["a"], "a"),
        node("Abs", ["r"], ["b"], "b"),
        node("Add", ["a", "b"], ["y"], "add"),
    ]
    vector(tmp_path, nodes)
    notes = half(tmp_path, step=Fp16(8, ("Abs",), ("a",)))
    assert notes.facts["float32_nodes"] == ["a", "b"]
    casts = [n.input[0] for n in made(tmp_path).graph.node if n.op_type == "Cast"]
    assert len(casts) == len(set(casts))
    assert result(tmp_path).tolist() == [0, 0, 0, 0]


def test_tensor_when_between_two_float32_nodes_is_not_rounded_to_float16(tmp_path):
    weights = array(1e5, 1, 1, 1)
    nodes = [
        node("Relu", ["x"], ["r"], "r"),
        node("Mul", ["r", "w"], ["a"], "mul"),
        node("Div", ["a", "w"], ["y"], "div"),
    ]
    vector(tmp_path, nodes, [("w", weights)])
    notes = half(tmp_path)
    assert notes.facts["float32_nodes"] == ["div", "mul"]
    assert "'w' holds 100000, float16 ends at 65504" in notes.done
    assert result(tmp_path).tolist() == [1, 2, 3, 4]


def test_constant_when_both_kinds_of_nodes_read_it_is_exact_for_the_float32_one(tmp_path):
    weights = array(0.1234567, 1, 1, 1)
    nodes = [
        node("Mul", ["x", "w"], ["a"], "exact"),
        node("Mul", ["x", "w"], ["b"], "rounded"),
        node("Sub", ["a", "b"], ["y"], "difference"),
    ]
    vector(tmp_path, nodes, [("w", weights)])
    half(tmp_path, step=Fp16(8, ("Sub",), ("exact",)))
    stored = {t.name: numpy_helper.to_array(t) for t in made(tmp_path).graph.initializer}
    assert np.array_equal(stored["w"], weights)
    assert np.array_equal(stored["w_fp16"], weights.astype(np.float16))


def squared():
    return [
        node("Relu", ["x"], ["r"], "r"),
        node("Mul", ["r", "r"], ["s"], "square"),
        node("Sqrt", ["s"], ["q"], "root"),
        node("Neg", ["q"], ["y"], "neg"),
    ]


def samples_with(folder, index, row, *, count=40):
    """Samples of small numbers, but for one."""
    rows = [(f"s{n}", {"x": array(*(row if n == index else (1, 2, 3, 4)))}) for n in range(count)]
    (folder / "samples").mkdir()
    write_sample_set(folder / "samples", [TensorSpec("x", "float32", (1, 4))], rows)
    return folder / "samples"


def compared_of(count):
    """The samples that a comparison takes at most."""
    return [n * count // EMBEDDING_PROBES for n in range(EMBEDDING_PROBES)]


@pytest.mark.parametrize("index", [0, *compared_of(40)[1::5]])
def test_activation_when_it_overflows_on_one_real_sample_stays_float32(tmp_path, index):
    vector(tmp_path, squared())
    notes = half(tmp_path, samples=samples_with(tmp_path, index, (1, 2, 3, 400)))
    assert notes.facts["float32_nodes"] == ["root", "square"]
    told = "the tensor 's' reaches 160000, float16 ends at 65504"
    assert notes.facts["float32_reasons"]["square"] == told
    assert f"'square' ({told})" in notes.done
    assert result(tmp_path, (1, 2, 3, 400)).tolist() == [-1, -2, -3, -400]


def test_activation_when_it_is_over_half_of_float16s_range_stays_float32(tmp_path):
    vector(tmp_path, squared())
    notes = half(tmp_path, samples=samples_with(tmp_path, 7, (1, 2, 3, 200)))
    assert notes.facts["float32_nodes"] == ["root", "square"]
    assert "'s' reaches 40000, over half of 65504" in notes.facts["float32_reasons"]["square"]


def test_activation_when_it_is_under_half_of_float16s_range_is_float16(tmp_path):
    vector(tmp_path, squared())
    notes = half(tmp_path, samples=samples_with(tmp_path, 7, (1, 2, 3, 180)))
    assert notes.facts["float32_nodes"] == []


def test_output_when_it_overflows_on_a_sample_that_is_compared_is_no_fault(tmp_path):
    nodes = [
        node("Relu", ["x"], ["r"], "r"),
        node("Mul", ["r", "r"], ["s"], "square"),
        node("Transpose", ["s"], ["y"], "turn", perm=[0, 1]),
    ]
    vector(tmp_path, nodes)
    notes = half(tmp_path, samples=samples_with(tmp_path, compared_of(40)[-1], (300, 2, 3, 4)))
    assert notes.facts["float32_nodes"] == ["square", "turn"]
    assert result(tmp_path, (300, 2, 3, 4)).tolist() == [90000, 4, 9, 16]


def test_model_when_every_node_overflows_is_refused_with_tensors_and_values(tmp_path):
    vector(tmp_path, [node("Neg", ["x"], ["n"], "neg"), node("Abs", ["n"], ["y"], "abs")])
    samples = samples_with(tmp_path, 3, (1e5, 2, 3, 4))
    with pytest.raises(StepError, match=r"no.*float16: 'neg' \(the tensor 'n' reaches 100000,"):
        half(tmp_path, samples=samples)


def test_infinity_when_the_float32_model_has_it_is_no_overflow(tmp_path):
    nodes = [
        node("Relu", ["x"], ["r"], "r"),
        node("Where", ["mask", "r", "never"], ["w"], "where"),
        node("Softmax", ["w"], ["y"], "softmax"),
    ]
    constants = [("mask", np.array([[True, False, True, True]])), ("never", np.float32(-np.inf))]
    vector(tmp_path, nodes, constants)
    assert half(tmp_path).facts["float32_nodes"] == []
    assert result(tmp_path)[1] == 0


INSIDE = {
    "ReduceL2": ((300, 2, 3, 4), "within it values reach 90029"),
    "ReduceLogSumExp": ((11, 2, 3, 4), "within it values reach 59"),
}


@pytest.mark.parametrize("op", INSIDE)
def test_node_when_it_overflows_within_itself_stays_float32(tmp_path, op):
    row, told = INSIDE[op]
    nodes = [
        node("Relu", ["x"], ["r"], "r"),
        node(op, ["r"], ["l"], "reduce", keepdims=1),
        node("Div", ["r", "l"], ["y"], "div"),
    ]
    vector(tmp_path, nodes)
    notes = half(tmp_path, samples=samples_with(tmp_path, 5, row))
    assert notes.facts["float32_nodes"] == ["reduce"]
    assert told in notes.facts["float32_reasons"]["reduce"]


@pytest.mark.parametrize("floats", [0, 1])
def test_model_when_an_output_is_a_sequence_or_of_integers_is_converted(tmp_path, floats):
    nodes = [
        node("Relu", ["x"], ["y"], "r"),
        node("SequenceConstruct", ["y"], ["seq"], "construct"),
        node("Cast", ["y"], ["i"], "cast", to=TensorProto.INT64),
    ]
    vector(tmp_path, nodes)
    model = onnx.load(tmp_path / "in" / MODEL)
    model.graph.output.append(helper.make_tensor_value_info("i", TensorProto.INT64, [1, 4]))
    model.graph.output.append(helper.make_tensor_sequence_value_info("seq", FLOAT, [1, 4]))
    del model.graph.output[: 1 - floats]
    onnx.save(model, tmp_path / "in" / MODEL)
    (tmp_path / "out").mkdir()
    assert Fp16(8, ()).run({"model": tmp_path / "in"}, tmp_path / "out").facts["float16_nodes"] == 1


def test_division_when_float16_makes_zero_of_a_divisor_on_one_sample_stays_float32(tmp_path):
    nodes = [
        node("Abs", ["x"], ["a"], "abs"),
        node("Div", ["a", "a"], ["d"], "div"),
        node("Neg", ["d"], ["y"], "neg"),
    ]
    vector(tmp_path, nodes)
    tiny = (2e-8, 2, 3, 4)
    notes = half(tmp_path, samples=samples_with(tmp_path, compared_of(40)[9], tiny))
    assert notes.facts["float32_nodes"] == ["abs", "div"]
    assert "NaN or infinity of 'd'" in notes.facts["float32_reasons"]["div"]
    assert result(tmp_path, tiny).tolist() == [-1, -1, -1, -1]


def test_epsilon_when_float16_has_zero_for_it_stays_float32(tmp_path):
    nodes = [
        node("Sub", ["x", "x"], ["zero"], "zero"),
        node("Add", ["zero", "e"], ["d"], "guard"),
        node("Div", ["zero", "d"], ["y"], "div"),
    ]
    vector(tmp_path, nodes, [("e", np.array(1e-12, np.float32))])
    notes = half(tmp_path)
    assert {"div", "guard"} == set(notes.facts["float32_nodes"])
    assert "'e' (1e-12) would be 0 in float16" in notes.done
    assert "makes NaN or infinity" in notes.facts["float32_reasons"]["div"]
    assert result(tmp_path).tolist() == [0, 0, 0, 0]


def test_variance_when_it_is_a_difference_of_large_numbers_gets_float32_back(tmp_path):
    nodes = [
        node("Mul", ["x", "x"], ["xx"], "square"),
        node("ReduceMean", ["xx"], ["m2"], "mean-of-squares", axes=[1]),
        node("ReduceMean", ["x"], ["m"], "mean", axes=[1]),
        node("Mul", ["m", "m"], ["mm"], "square-of-mean"),
        node("Sub", ["m2", "mm"], ["v"], "variance"),
        node("Expand", ["v", "shape"], ["wide"], "wide"),
        node("Identity", ["wide"], ["y"], "y"),
    ]
    vector(tmp_path, nodes, [("shape", np.array([1, 4], np.int64))])
    samples = tmp_path / "samples"
    samples.mkdir()
    rows = [("one", {"x": array(100, 100.125, 99.9375, 100)})]
    write_sample_set(samples, [TensorSpec("x", "float32", (1, 4))], rows)
    notes = half(tmp_path, samples=samples)
    assert notes.facts["sqnr_db"] > 20
    assert "mostly noise" in notes.facts["float32_reasons"]["variance"]


def test_branches_when_they_name_constants_alike_and_read_outer_tensors_stay_float32(tmp_path):
    def branch(op, value):
        constant = numpy_helper.from_array(np.full((1, 4), value, np.float32), "k")
        return helper.make_graph(
            [node(op, ["r", "k"], ["o"], op)],
            op,
            [],
            [helper.make_tensor_value_info("o", FLOAT, [1, 4])],
            [constant],
        )

    nodes = [
        node("Relu", ["x"], ["r"], "r"),
        node("ReduceMax", ["r"], ["top"], "top", keepdims=0),
        node("Greater", ["top", "limit"], ["c"], "c"),
        node("If", ["c"], ["i"], "if", then_branch=branch("Add", 1), else_branch=branch("Mul", 2)),
        node("Neg", ["i"], ["y"], "neg"),
    ]
    vector(tmp_path, nodes, [("limit", np.array(2, np.float32))])
    half(tmp_path)
    assert result(tmp_path).tolist() == [-2, -3, -4, -5]
    assert result(tmp_path, (1, 0, 0, 0)).tolist() == [-2, 0, 0, 0]


def test_resize_when_its_scales_are_computed_gets_them_in_float32(tmp_path):
    nodes = [
        node("Relu", ["x"], ["r"], "r"),
        node("Shape", ["r"], ["s"], "shape"),
        node("Cast", ["s"], ["f"], "cast", to=FLOAT),
        node("Div", ["f", "f"], ["scales"], "one"),
        node("Resize", ["r", "", "scales"], ["z"], "resize"),
        node("Clip", ["z", "", "top"], ["y"], "clip"),
    ]
    vector(tmp_path, nodes, [("top", np.array(3, np.float32))])
    notes = half(tmp_path)
    kinds = {n.name: n for n in made(tmp_path).graph.node}
    assert kinds["resize"].input[2] == "scales"
    assert kinds["resize"].input[0] == "r_fp16"
    assert list(kinds["clip"].input[:2]) == ["z_fp16", ""]
    assert notes.facts["float16_nodes"] == 3
    assert result(tmp_path).tolist() == [1, 2, 3, 3]


def test_output_when_another_node_or_nothing_reads_it_is_float32(tmp_path):
    nodes = [node("Relu", ["x"], ["y"], "r"), node("Neg", ["y"], ["z"], "n")]
    vector(tmp_path, nodes, [("w", array(1, 2, 3, 4))], outputs=("y", "z", "w"))
    half(tmp_path)
    assert result(tmp_path).tolist() == [1, 2, 3, 4]


def test_weights_when_too_small_for_float16_are_counted(tmp_path):
    vector(tmp_path, [node("Mul", ["x", "w"], ["y"], "m")], [("w", array(1, 1e-9, 0, 2**-24))])
    notes = half(tmp_path)
    assert notes.facts["flushed_weights"] == 1
    assert "1 weights are too small" in notes.done


def test_integer_path_when_it_reads_an_exact_tensor_gets_it_unrounded(tmp_path):
    nodes = [
        node("Cast", ["x"], ["i"], "to-int", to=TensorProto.INT64),
        node("Cast", ["i"], ["f"], "to-float", to=FLOAT),
        node("Relu", ["x"], ["r"], "r"),
        node("Sub", ["f", "r"], ["y"], "sub"),
    ]
    vector(tmp_path, nodes)
    half(tmp_path, step=Fp16(8, ("Sub", "Neg")))
    reads = {n.name: list(n.input) for n in made(tmp_path).graph.node}
    assert (reads["to-int"], reads["r"], reads["sub"]) == (["x"], ["x_fp16"], ["f", "r"])


def test_quantized_model_when_given_is_refused(tmp_path):
    scale, zero = np.array(0.1, np.float32), np.array(0, np.uint8)
    nodes = [
        node("QuantizeLinear", ["x", "s", "z"], ["q"], "q"),
        node("DequantizeLinear", ["q", "s", "z"], ["y"], "d"),
    ]
    vector(tmp_path, nodes, [("s", scale), ("z", zero)])
    with pytest.raises(StepError, match=r"quantized already \(QDQ.*\): 2 such nodes, 'q'"):
        half(tmp_path)


def test_model_when_nothing_can_be_float16_is_refused(tmp_path):
    vector(tmp_path, [node("Relu", ["x"], ["y"], "r")])
    with pytest.raises(StepError, match="nothing in the model can be float16"):
        half(tmp_path, step=Fp16(8, ("Relu",)))


def test_node_when_named_and_not_there_is_refused_with_the_nearest(tmp_path):
    vector(tmp_path, [node("Relu", ["x"], ["y"], "relu")])
    with pytest.raises(StepError, match="no node 'rely'") as caught:
        half(tmp_path, step=Fp16(8, (), ("rely",)))
    assert "'relu'" in caught.value.hint


def test_model_when_it_does_not_run_is_refused(tmp_path):
    nodes = [node("Reshape", ["x", "s"], ["y"], "bad")]
    vector(tmp_path, nodes, [("s", np.array([3, 5], np.int64))], outputs=("y",))
    with pytest.raises(ModelError, match="bad"):
        half(tmp_path)


SCRIPT = """
import sys
from pathlib import Path
from edgepack.steps.recipes.fp16 import Fp16
folder = Path(sys.argv[1])
Fp16(8, ("Relu", "Where")).run({"model": folder / "in"}, folder / "out")
"""


@pytest.mark.slow(reason="starts several processes")
def test_file_when_written_twice_is_the_same_whatever_the_hash_seed(tmp_path):
    nodes = [
        node("Neg", ["x"], ["a"], "a"),
        node("Abs", ["x"], ["b"], "b"),
        node("Greater", ["a", "b"], ["c"], "c"),
        node("Where", ["c", "a", "b"], ["y"], "where"),
    ]
    vector(tmp_path, nodes)
    (tmp_path / "out").mkdir()
    written = set()
    for seed in ("1", "2", "3"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        command = [sys.executable, "-c", SCRIPT, str(tmp_path)]
        subprocess.run(command, env=environment, check=True, timeout=60)
        written.add((tmp_path / "out" / MODEL).read_bytes())
    assert len(written) == 1


class Lying(Fp16):
    """Spoils its own result before it is verified."""

    spoil = staticmethod(lambda model: None)

    def run(self, inputs, out):
        notes = super().run(inputs, out)
        model = onnx.load(out / MODEL)
        self.spoil(model)
        onnx.save(model, out / MODEL)
        return notes


def _replace_weights(model, value):
    for tensor in model.graph.initializer:
        if tensor.data_type == TensorProto.FLOAT16:
            array = np.full(tuple(tensor.dims), value, np.float16)
            tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))


def _rename_output(model):
    model.graph.output[0].name = "other"
    model.graph.node.append(node("Identity", ["scores"], ["other"]))


LIES = {
    "zero weights": (lambda m: _replace_weights(m, 0), "not the model's, rounded"),
    "clamped weights": (lambda m: _replace_weights(m, 65504), "not the model's, rounded"),
    "another output": (_rename_output, "inputs or outputs are not the model's"),
    "newer file": (lambda m: setattr(m, "ir_version", 10), "IR version 10"),
}


@pytest.mark.parametrize("lie", LIES)
def test_step_when_it_lies_is_caught(tmp_path, lie):
    conv_net(tmp_path / "in" / MODEL, batch=1)
    spoil, message = LIES[lie]
    step = type("Liar", (Lying,), {"spoil": staticmethod(spoil)})(8, ())
    with pytest.raises(StepError, match=message):
        half(tmp_path, step=step)


def test_step_when_its_file_is_still_float32_is_caught(tmp_path):
    conv_net(tmp_path / "in" / MODEL, batch=1)
    (tmp_path / "out").mkdir()
    onnx.save(onnx.load(tmp_path / "in" / MODEL), tmp_path / "out" / MODEL)
    with pytest.raises(StepError, match="nothing in it is float16"):
        Fp16(8, ()).verify({"model": tmp_path / "in"}, tmp_path / "out")


def test_step_when_its_outputs_are_not_numbers_is_caught(tmp_path):
    def spoil(model):
        made = next(n for n in model.graph.node if "scores" in n.output)
        made.output[0] = "finite"
        model.graph.initializer.append(numpy_helper.from_array(np.array(0, np.float32), "zero"))
        model.graph.node.append(node("Div", ["finite", "zero"], ["scores"]))

    conv_net(tmp_path / "in" / MODEL, batch=1)
    step = type("Liar", (Lying,), {"spoil": staticmethod(spoil)})(8, ())
    with pytest.raises(StepError, match="NaN or infinity"):
        half(tmp_path, step=step)


PUBLIC = {
    "imagenet/squeezenet1.1_fp32_opset13_dynbatch.onnx": 40,
    "imagenet/mobilenet_v1_0.25_128_fp32.onnx": 25,
    "small/cifar10_resnet20_fp32_bn.onnx": 40,
    "detection/yunet_n_dynamic.onnx": 20,
    "dense/ppocr_v3_det_en.onnx": 20,
    "text/bert_toy_optimized.onnx": 40,
    "audio/gtcrn/gtcrn_simple.onnx": 30,
}
"""File and the SQNR in dB that it keeps on seeded random inputs at least."""
SIZES = {"height": 96, "width": 128, "p2o.DynamicDimension.1": 64, "p2o.DynamicDimension.2": 96}


@pytest.mark.parametrize("file", PUBLIC)
def test_public_model_when_converted_is_near_and_smaller(file, shared_data, tmp_path):
    model = onnx.load(shared_data / file)
    names = {d.dim_param for v in model.graph.input for d in v.type.tensor_type.shape.dim}
    constants = {t.name for t in model.graph.initializer}
    inputs = [value for value in model.graph.input if value.name not in constants]
    del model.graph.input[:]
    model.graph.input.extend(inputs)
    model.ir_version = max(4, model.ir_version)
    fix_dims(model, {name: SIZES.get(name, 1) for name in names if name})
    (tmp_path / "in").mkdir()
    onnx.save(model, tmp_path / "in" / MODEL)
    notes = half(tmp_path)
    assert notes.facts["sqnr_db"] > PUBLIC[file]
    before, after = (tmp_path / name / MODEL for name in ("in", "out"))
    assert after.stat().st_size < 0.85 * before.stat().st_size
