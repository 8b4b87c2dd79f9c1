"""What onnxruntime's optimizer makes of int8 models, and that useless int8 is mended or refused."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace

import numpy as np
import onnx
import onnxruntime
import pytest
from edgepack.builder.timing import compare_latency
from edgepack.errors import ModelError, StepError
from edgepack.model.facts import read_signature
from edgepack.model.files import MODEL
from edgepack.model.fusion import count_coverage, measure_fusion_coverage
from edgepack.model.graph import read_graph
from edgepack.model.reading import read_model, read_structure
from edgepack.project.inputs import ImageInput
from edgepack.samples.images import read_image_tensor
from edgepack.steps.graph.fusion import FUSION, Fusion
from edgepack.steps.recipes.int8_static import Int8Static
from onnx import TensorProto, helper

from tests.support.nets import int8_nets, tiny_models

MAX_IR = 13
CPUS = ["x86-64", "aarch64"]


@pytest.fixture(scope="module")
def mixed(tmp_path_factory):
    """The inputs of Int8Static for :func:`int8_nets.mixed_net`."""
    folder = tmp_path_factory.mktemp("mixed")
    model = int8_nets.mixed_net(folder / "net.onnx")
    return int8_nets.calibrated(folder / "steps", model, int8_nets.image_feeds())


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """The inputs of Int8Static for :func:`tiny_models.conv_net`, simplified."""
    folder = tmp_path_factory.mktemp("plain")
    model = tiny_models.conv_net(folder / "net.onnx", batch=1)
    return int8_nets.calibrated(folder / "steps", model, int8_nets.image_feeds())


@pytest.fixture(scope="module")
def residual(tmp_path_factory):
    """The inputs of Int8Static for :func:`int8_nets.residual_net`."""
    folder = tmp_path_factory.mktemp("residual")
    model = int8_nets.residual_net(folder / "net.onnx")
    return int8_nets.calibrated(folder / "steps", model, int8_nets.image_feeds())


def op_counts(path, cpu, folder):
    """Count operators as a session with every optimization leaves them."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.optimized_model_filepath = str(folder / "optimized.onnx")
    options.add_session_config_entry("session.qdqisint8allowed", str(int(cpu == "aarch64")))
    onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return Counter(node.op_type for node in onnx.load(folder / "optimized.onnx").graph.node)


@pytest.mark.parametrize("cpu", CPUS)
def test_u8s8_when_fused_is_all_integers(plain, tmp_path, cpu):
    int8_nets.run(Int8Static(int8_nets.CPU, MAX_IR, cpu), plain, tmp_path / "int8")
    notes = int8_nets.run(Fusion(cpu), {"model": tmp_path / "int8"}, tmp_path / "fusion")
    assert notes.facts == {
        "leftover_quantize": 1,
        "leftover_dequantize": 1,
        "integer_ops": 3,
        "integer_products": 2,
        "float_ops": 0,
        "islands": [],
        "coverage": 1.0,
    }


@pytest.mark.slow(reason="builds several layouts")
@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("name", ["cpu", "xnnpack", "tensorrt", "qnn-8"])
def test_coverage_when_layouts_change_too_counts_the_same(mixed, tmp_path, cpu, name):
    int8_nets.run(Int8Static(int8_nets.DIALECTS[name], MAX_IR), mixed, tmp_path / "int8")
    path = tmp_path / "int8" / MODEL
    found, counts = measure_fusion_coverage(path, cpu), op_counts(path, cpu, tmp_path)
    assert found.leftover_quantize == counts["QuantizeLinear"]
    assert found.leftover_dequantize == counts["DequantizeLinear"]
    assert found.integer_products == sum(
        counts[op] for op in ("QLinearConv", "QLinearMatMul", "QGemm")
    )
    whole = read_graph(onnx.load(tmp_path / "optimized.onnx"))
    assert count_coverage(whole, read_graph(read_model(path))).make_facts() == found.make_facts()


def test_s8s8_when_the_cpu_is_x86_64_is_reported_as_float_islands(residual, tmp_path):
    int8_nets.run(Int8Static(int8_nets.XNNPACK, MAX_IR), residual, tmp_path / "int8")
    path = tmp_path / "int8" / MODEL
    assert measure_fusion_coverage(path, "aarch64").coverage == 1
    found = measure_fusion_coverage(path, "x86-64")
    assert {"first", "second"} <= set(found.islands)
    assert found.integer_products == 0
    assert all(n.is_product == (n.name in ("first", "second")) for n in found.float_nodes)


def test_int8_when_no_product_would_fuse_is_refused_with_the_way_out(residual, tmp_path):
    with pytest.raises(StepError, match="no convolution or matrix product") as refusal:
        int8_nets.run(Int8Static(int8_nets.XNNPACK, MAX_IR, "x86-64"), residual, tmp_path / "no")
    assert "'first': the CPU of x86-64 runs int8 activations as float" in str(refusal.value)
    assert "--variant cpu-fp32" in refusal.value.hint
    int8_nets.run(Int8Static(int8_nets.XNNPACK, MAX_IR, "aarch64"), residual, tmp_path / "yes")


@pytest.mark.parametrize("cpu", CPUS)
def test_16_bits_when_for_a_cpu_are_refused(plain, tmp_path, cpu):
    with pytest.raises(StepError, match="uint16 activations as float"):
        int8_nets.run(Int8Static(int8_nets.QNN_16, MAX_IR, cpu), plain, tmp_path / "out")


@pytest.mark.slow(reason="takes seconds")
@pytest.mark.parametrize("cpu", CPUS)
def test_operator_when_the_cpu_has_no_kernel_is_left_float_with_float_weights(mixed, tmp_path, cpu):
    notes = int8_nets.run(Int8Static(int8_nets.CPU, MAX_IR, cpu), mixed, tmp_path / "int8")
    assert list(notes.facts["left_float"]) == ["up"]
    assert "no integer kernel for ConvTranspose" in notes.facts["left_float"]["up"]
    assert "'up'" in notes.done
    model = onnx.load(tmp_path / "int8" / MODEL)
    types = {t.name: t.data_type for t in model.graph.initializer}
    up = next(node for node in model.graph.node if node.name == "up")
    assert [types[name] for name in up.input[1:]] == [TensorProto.FLOAT] * 2
    before = measure_fusion_coverage(unfitted(mixed, tmp_path), cpu)
    after = measure_fusion_coverage(tmp_path / "int8" / MODEL, cpu)
    assert after.integer_ops == before.integer_ops
    # HardSwish lies between two quantized tensors in either, as two operators.
    assert after.islands == before.islands == ("up", "swish")


def first(step, inputs, folder):
    """What a step starts from, before samples leave anything float."""
    folder.mkdir()
    step.draft({name: inputs[name] for name in ("model", "statistics")}, folder)
    return folder / MODEL


def unfitted(inputs, folder):
    """The model without regard to a CPU."""
    int8_nets.run(Int8Static(int8_nets.CPU, MAX_IR), inputs, folder / "unfitted")
    return folder / "unfitted" / MODEL


def test_nodes_when_left_float_beside_quantized_ones_keep_their_own_constants(mixed, tmp_path):
    """``pointwise`` fuses on x86-64 with int8 activations; ``pointwise2`` shares all it has."""
    step = Int8Static(int8_nets.XNNPACK, MAX_IR, "x86-64")
    notes = int8_nets.run(step, mixed, tmp_path / "int8")
    assert {"conv", "pointwise2", "add"} <= notes.facts["left_float"].keys()
    assert "pointwise" not in notes.facts["left_float"]
    # Before anything is left float for accuracy.
    fit, unfit = (
        measure_fusion_coverage(first(each, mixed, tmp_path / f"first-{each.cpu}"), "x86-64")
        for each in (step, replace(step, cpu=None))
    )
    assert fit.integer_ops == unfit.integer_ops
    assert fit.leftover_dequantize < unfit.leftover_dequantize / 4
    assert fit.leftover_quantize < unfit.leftover_quantize


def test_layer_norm_when_among_products_is_not_quantized_for_the_cpu(tmp_path):
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"], "first"),
        helper.make_node("LayerNormalization", ["a", "scale", "bias"], ["b"], "norm"),
        helper.make_node("MatMul", ["b", "w"], ["y"], "second"),
    ]
    random = np.random.default_rng(8)
    constants = [
        (name, random.standard_normal(shape).astype(np.float32))
        for name, shape in (("w", (8, 8)), ("scale", 8), ("bias", 8))
    ]
    value = (TensorProto.FLOAT, [4, 8])
    model = tiny_models.save(
        tmp_path / "net.onnx", nodes, [("x", *value)], [("y", *value)], constants
    )
    feeds = [{"x": random.standard_normal((4, 8)).astype(np.float32)} for _ in range(4)]
    inputs = int8_nets.calibrated(tmp_path / "steps", model, feeds)
    notes = int8_nets.run(Int8Static(int8_nets.CPU, MAX_IR, "x86-64"), inputs, tmp_path / "int8")
    assert list(notes.facts["left_float"]) == ["norm"]
    assert (notes.facts["integer_products"], notes.facts["leftover_dequantize"]) == (2, 2)


def test_integer_kernels_when_alone_among_float_ones_are_not_quantized(tmp_path):
    """The Mul would run as integers, between two conversions, far from the MatMul."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"], "matmul"),
        helper.make_node("Exp", ["a"], ["b"], "exp"),
        helper.make_node("Exp", ["b"], ["c"], "exp2"),
        helper.make_node("Mul", ["c", "m"], ["d"], "alone"),
        helper.make_node("Neg", ["d"], ["y"], "negate"),
    ]
    random = np.random.default_rng(8)
    constants = [
        (name, random.standard_normal(shape).astype(np.float32) / 8)
        for name, shape in (("w", (8, 8)), ("m", 8))
    ]
    value = (TensorProto.FLOAT, [4, 8])
    model = tiny_models.save(
        tmp_path / "net.onnx", nodes, [("x", *value)], [("y", *value)], constants
    )
    feeds = [{"x": random.standard_normal((4, 8)).astype(np.float32)} for _ in range(4)]
    inputs = int8_nets.calibrated(tmp_path / "steps", model, feeds)
    unfitted = first(Int8Static(int8_nets.CPU, MAX_IR), inputs, tmp_path / "unfitted")
    assert measure_fusion_coverage(unfitted, "x86-64").lone == ("alone",)
    notes = int8_nets.run(Int8Static(int8_nets.CPU, MAX_IR, "x86-64"), inputs, tmp_path / "int8")
    assert list(notes.facts["left_float"]) == ["alone"]
    assert notes.facts["integer_products"] == notes.facts["leftover_quantize"] == 1


def test_verify_when_the_file_was_swapped_for_one_that_does_not_fuse_says_so(residual, tmp_path):
    int8_nets.run(Int8Static(int8_nets.XNNPACK, MAX_IR), residual, tmp_path / "int8")
    with pytest.raises(StepError, match="no convolution or matrix product"):
        Int8Static(int8_nets.XNNPACK, MAX_IR, "x86-64").verify(residual, tmp_path / "int8")


def test_fusion_when_its_file_lies_says_so(plain, tmp_path):
    int8_nets.run(Int8Static(int8_nets.CPU, MAX_IR, "x86-64"), plain, tmp_path / "int8")
    inputs = {"model": tmp_path / "int8"}
    int8_nets.run(Fusion("x86-64"), inputs, tmp_path / "fusion")
    path = tmp_path / "fusion" / FUSION
    lie = json.loads(path.read_text())
    lie["facts"]["coverage"] = 0.5
    path.write_text(json.dumps(lie))
    with pytest.raises(StepError, match="another way"):
        Fusion("x86-64").verify(inputs, tmp_path / "fusion")


def test_coverage_when_onnxruntime_refuses_the_model_says_why(tmp_path):
    nodes = [helper.make_node("Conv", ["x", "missing"], ["y"], "conv")]
    value = (TensorProto.FLOAT, [1, 1, 2, 2])
    model = tiny_models.save(tmp_path / "net.onnx", nodes, [("x", *value)], [("y", *value)])
    with pytest.raises(ModelError, match="missing"):
        measure_fusion_coverage(model, "x86-64")


def test_names_when_fusions_and_layouts_decorate_them_are_those_of_the_model(tmp_path):
    random = np.random.default_rng(9)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], "conv"),
        helper.make_node("MatMul", ["b", "m"], ["c"], "matmul"),
        helper.make_node("Add", ["c", "v"], ["d"], "add"),
        helper.make_node("Relu", ["d"], ["y"], "relu"),
    ]
    nodes.insert(1, helper.make_node("Flatten", ["a"], ["b"], "flat"))
    constants = [
        (name, random.standard_normal(shape).astype(np.float32))
        for name, shape in (("w", (4, 4, 1, 1)), ("m", (36, 5)), ("v", 5))
    ]
    model = tiny_models.save(
        tmp_path / "net.onnx",
        nodes,
        [("x", TensorProto.FLOAT, [1, 4, 3, 3])],
        [("y", TensorProto.FLOAT, [1, 5])],
        constants,
    )
    op_counts(model, "x86-64", tmp_path)
    whole = read_graph(onnx.load(tmp_path / "optimized.onnx"))
    found = count_coverage(whole, read_graph(read_model(model)))
    assert [node.name for node in found.float_nodes] == ["conv", "matmul"]
    assert all(node.is_product and not node.is_island for node in found.float_nodes)


def test_latency_when_two_models_are_compared_is_measured_for_both(plain, tmp_path):
    int8_nets.run(Int8Static(int8_nets.CPU, MAX_IR), plain, tmp_path / "int8")
    measured = compare_latency(
        tmp_path / "int8" / MODEL,
        plain["model"] / MODEL,
        plain["samples"],
        {"session.intra_op.allow_spinning": "0"},
    )
    assert measured.runs >= 2
    assert min(measured.variant_ms, measured.other_ms) > 0
    assert measured.ratio == measured.variant_ms / measured.other_ms


def test_latency_when_a_model_does_not_load_says_so(plain, tmp_path):
    (tmp_path / "broken.onnx").write_bytes(b"nothing")
    with pytest.raises(ModelError, match=r"broken\.onnx"):
        compare_latency(tmp_path / "broken.onnx", plain["model"] / MODEL)


REAL = {
    "squeezenet": (
        "squeezenet1.1_fp32_opset13_dynbatch.onnx",
        {
            "resize": {"short_side": 256, "crop": 224},
            "order": "BGR",
            "mean": (103.939, 116.779, 123.68),
        },
    ),
    "mobilenet": (
        "mobilenet_v1_0.25_128_fp32.onnx",
        {
            "resize": {"short_side": 146, "crop": 128},
            "scale": 0.00784314,
            "mean": (1.0, 1.0, 1.0),
        },
    ),
}


@pytest.fixture(
    params=[pytest.param("squeezenet", marks=pytest.mark.slow(reason="takes 10 s")), "mobilenet"]
)
def real(request, shared_data, tmp_path):
    """The inputs of Int8Static for a real network, calibrated with eight photographs."""
    file, description = REAL[request.param]
    folder = shared_data / "imagenet"
    image = ImageInput.model_validate(description, strict=False)
    model = folder / file
    (name,) = (spec.name for spec in read_signature(read_structure(model))[0])
    photos = sorted((folder / "images").iterdir())[::100][:8]
    feeds = [{name: read_image_tensor(photo, image)} for photo in photos]
    return int8_nets.calibrated(tmp_path / "steps", model, feeds)


def test_real_network_when_u8s8_has_no_float_kernel_left_on_either_cpu(real, tmp_path):
    for cpu in CPUS:
        step = Int8Static(int8_nets.CPU, MAX_IR, cpu)
        notes = int8_nets.run(step, real, tmp_path / cpu)
        assert (notes.facts["left_float"], notes.facts["float_ops"]) == ({}, 0)
        assert notes.facts["coverage"] == 1
        assert notes.facts["leftover_quantize"] == 1
    assert (tmp_path / CPUS[0] / MODEL).read_bytes() == (tmp_path / CPUS[1] / MODEL).read_bytes()


@pytest.mark.in_turns
@pytest.mark.slow(reason="quantizes a real network")
@pytest.mark.parametrize("name", ["tensorrt", "xnnpack", "qnn-16", "qnn-8"])
def test_real_network_when_quantized_for_another_provider_speaks_its_dialect(real, tmp_path, name):
    step = Int8Static(int8_nets.DIALECTS[name], MAX_IR, **int8_nets.rules_of(name))
    notes = int8_nets.run(step, real, tmp_path / "out")
    assert notes.facts["quantized_tensors"] > 20
