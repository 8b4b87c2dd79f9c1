"""Models that are quantized or float16 already: carried as they are, or refused with the reason."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import pytest
from edgepack.base.progress import Silent
from edgepack.base.schema import NotMeasured
from edgepack.builder.build import build, dry_run
from edgepack.builder.carrying import Carrying
from edgepack.builder.inspect import inspect
from edgepack.builder.judging import UNJUDGED
from edgepack.bundle.manifest import Accuracy
from edgepack.cli.building import print_build
from edgepack.devices.inventory import load_device
from edgepack.errors import UsageError
from edgepack.measure.bench.run import bench
from edgepack.measure.evaluate.evaluate import evaluate
from edgepack.model.quantized import Quantization
from edgepack.model.running import make_session, run_session
from edgepack.project.profile import load_profile
from edgepack.results.page.html import render_html
from edgepack.trying.verify import verify as verify_here
from onnx import TensorProto, helper

from tests.support.nets.tiny_models import save

node = helper.make_node
FLOAT = TensorProto.FLOAT


def qdq(path: Path, activations="uint8", weights="int8", zero=128) -> Path:
    """A quantized convolution with a Q/DQ pair behind it."""
    random = np.random.default_rng(1)
    nodes = [
        node("QuantizeLinear", ["x", "s", "z"], ["xq"], "q"),
        node("DequantizeLinear", ["xq", "s", "z"], ["xd"], "d"),
        node("DequantizeLinear", ["w", "ws", "wz"], ["wd"], "wd", axis=0),
        node("Conv", ["xd", "wd"], ["c"], "conv"),
        node("QuantizeLinear", ["c", "cs", "z"], ["cq"], "cq"),
        node("DequantizeLinear", ["cq", "cs", "z"], ["y"], "cd"),
    ]
    constants = [
        ("s", np.float32(0.03)),
        ("cs", np.float32(0.06)),
        ("z", np.array(zero, activations)),
        ("w", random.integers(-100, 100, (4, 3, 3, 3)).astype(weights)),
        ("ws", np.full(4, 0.003, np.float32)),
        ("wz", np.zeros(4, weights)),
    ]
    inputs, outputs = [("x", FLOAT, [1, 3, 8, 8])], [("y", FLOAT, [1, 4, 6, 6])]
    return save(path, nodes, inputs, outputs, constants)


class Heard(Silent):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


def operators(path: Path) -> Counter[str]:
    return Counter(n.op_type for n in onnx.load(path).graph.node)


def test_qdq_model_when_it_speaks_the_targets_dialect_is_its_int8_variant(tmp_path):
    heard = Heard()
    model = qdq(tmp_path / "net.onnx")
    result = build(model, targets=["linux-x86-64"], out=tmp_path / "dist", progress=heard)
    result.require_all()
    bundle = result.bundles[0].bundle
    (variant,) = bundle.manifest.variants
    assert variant.id == "cpu-int8-static"
    assert variant.fused is not None
    assert operators(bundle.path / variant.model) == operators(model)
    assert any("net.onnx is quantized already (QDQ: uint8" in note for note in heard.notes)
    (left,) = bundle.manifest.unused
    assert (left.variant, left.stage) == ("cpu-fp32", "left out")
    assert any("numbers kept: it is quantized already" in line for line in bundle.manifest.steps)
    assert all(check.passed for check in verify_here(bundle.path).goldens)


def test_qdq_model_when_its_dialect_is_another_is_carried_by_fp32_and_says_so(tmp_path):
    model = qdq(tmp_path / "net.onnx", "int8", zero=0)
    result = build(model, targets=["linux-x86-64"], out=tmp_path / "dist")
    result.require_all()
    bundle = result.bundles[0].bundle
    (variant,), (left,) = bundle.manifest.variants, bundle.manifest.unused
    assert (variant.id, left.variant) == ("cpu-fp32", "cpu-int8-static")
    assert (left.stage, left.hint) == ("refused", "give the float model")
    assert "symmetric int8 activations" in left.reason
    assert left.reason.endswith("cpu wants uint8 activations; carried as it is by cpu-fp32")
    assert operators(bundle.path / variant.model) == operators(model)
    # Goldens are those of int8: another processor's kernels round elsewhere.
    assert variant.min_sqnr_db <= 20


def classifier(path: Path) -> Path:
    """A quantized matrix product that gives four class scores."""
    random = np.random.default_rng(5)
    nodes = [
        node("QuantizeLinear", ["x", "s", "z"], ["xq"], "q"),
        node("DequantizeLinear", ["xq", "s", "z"], ["xd"], "d"),
        node("DequantizeLinear", ["w", "ws", "wz"], ["wd"], "wd", axis=1),
        node("MatMul", ["xd", "wd"], ["y"], "product"),
    ]
    constants = [
        ("s", np.float32(0.03)),
        ("z", np.array(128, np.uint8)),
        ("w", random.integers(-100, 100, (8, 4)).astype(np.int8)),
        ("ws", np.full(4, 0.003, np.float32)),
        ("wz", np.zeros(4, np.int8)),
    ]
    return save(path, nodes, [("x", FLOAT, [1, 8])], [("y", FLOAT, [1, 4])], constants)


def write_evaluated(folder: Path, evaluation: str, extra: str = "") -> Path:
    """A project with :func:`classifier`, and samples with labels of which some are met."""
    classifier(folder / "net.onnx")
    random = np.random.default_rng(6)
    samples = random.standard_normal((20, 8)).astype(np.float32)
    np.savez(folder / "ev.npz", x=samples, labels=random.integers(0, 4, 20))
    path = folder / "edgepack.yaml"
    path.write_text(
        "schema_version: 1\nname: net\nversion: 1.0.0\nmodel: net.onnx\n"
        f"samples: {{evaluation: {{path: ev.npz, labels: labels{evaluation}}}}}\n{extra}\n"
    )
    return path


def top1(folder: Path) -> float:
    with np.load(folder / "ev.npz") as data:
        samples, labels = data["x"], data["labels"]
    session = make_session(folder / "net.onnx")
    found = [int(run_session(session, {"x": x[None]})["y"].argmax()) for x in samples]
    return float(np.mean(found == labels))


def test_carried_model_when_there_are_labels_has_their_metric_and_no_comparison(tmp_path, capsys):
    project = write_evaluated(tmp_path, ", metric: top1", "limits: {metric_drop: 0.01}")
    result = build(project=project, targets=["linux-x86-64"], out=tmp_path / "dist")
    result.require_all()
    (variant,) = result.bundles[0].bundle.manifest.variants
    found = variant.accuracy
    assert isinstance(found, Accuracy)
    assert (found.metric, found.value) == ("top1", pytest.approx(top1(tmp_path)))
    assert isinstance(found.fp32, NotMeasured)
    assert "no fp32 model" in found.fp32.reason
    assert (found.drop, found.drop_interval, found.agreement, found.worst) == (None,) * 4
    # Its labels are drawn, so that it is at chance level.
    *_, last = result.warnings
    reason = found.fp32.reason
    assert last == f"linux-x86-64 cpu-int8-static: limits are not judged, {reason}: {UNJUDGED}"
    print_build(result)
    told = capsys.readouterr().out
    assert f"accuracy was not compared with fp32: {found.fp32.reason}" in told
    readme = (result.bundles[0].bundle.path / "README.md").read_text()
    assert f"top1 {found.value:.4f} (20 samples)" in readme


@pytest.mark.slow(reason="evaluates on a device")
def test_carried_model_when_the_metric_is_agreement_is_not_measured(tmp_path):
    project = write_evaluated(tmp_path, ", metric: agreement")
    result = build(project=project, targets=["linux-x86-64"], out=tmp_path / "dist")
    (variant,) = result.bundles[0].bundle.manifest.variants
    assert isinstance(variant.accuracy, NotMeasured)
    assert "no fp32 model" in variant.accuracy.reason
    with pytest.raises(UsageError, match=r"nothing to measure: .*no fp32 model"):
        evaluate(result.bundles[0].bundle.path, load_device("local"), project=project)


@pytest.mark.slow(reason="evaluates on a device")
def test_carried_model_when_evaluated_on_a_device_has_the_metric_alone(tmp_path):
    project = write_evaluated(tmp_path, ", metric: top1")
    result = build(project=project, targets=["linux-x86-64"], out=tmp_path / "dist")
    found = evaluate(result.bundles[0].bundle.path, load_device("local"), project=project)
    assert found.measured == found.simulated
    assert found.measured.value == pytest.approx(top1(tmp_path))
    report = bench(result.bundles[0].bundle.path, load_device("local"), preset="smoke")
    page = render_html([report])
    assert "not measured: the model came quantized or float16" in page


def test_carried_model_when_built_is_not_timed_against_itself(tmp_path, monkeypatch):
    timed = []
    monkeypatch.setattr("edgepack.builder.timing.compare_latency", lambda *a: timed.append(a))
    model = classifier(tmp_path / "net.onnx")
    result = build(model, targets=["linux-x86-64"], out=tmp_path / "dist")
    assert [v.id for v in result.bundles[0].bundle.manifest.variants] == ["cpu-int8-static"]
    assert timed == []


@pytest.mark.parametrize(("shifted", "carrier"), [(False, "cpu-int8-static"), (True, "cpu-fp32")])
def test_qdq_model_when_signed_weights_have_a_zero_point_speaks_no_dialect(shifted, carrier):
    found = Quantization("QDQ", 4, ("uint8",), ("int8",), shifted_weights=shifted)
    variants = load_profile("linux-x86-64").variants
    left = Carrying(found).find_unused(variants)
    assert [variant.id for variant in variants if variant.id not in left] == [carrier]
    reason = "cpu wants weights with zero point 0; carried as it is by cpu-fp32"
    assert not shifted or left["cpu-int8-static"].reason.endswith(reason)


def planned(model: Path, target: str) -> tuple[list[str], dict[str, str]]:
    (bundle,) = dry_run(model, targets=[target]).bundles
    return [variant.variant.id for variant in bundle.variants], {
        unused.variant: unused.reason for unused in bundle.unused
    }


def test_symmetric_model_when_the_target_has_tensorrt_is_carried_there_too(tmp_path):
    model = qdq(tmp_path / "net.onnx", "int8", zero=0)
    taken, left = planned(model, "jetson")
    assert taken == ["tensorrt-int8-static", "cpu-fp32"]
    assert "which fp16 would change" in left["tensorrt-fp16"]
    assert "cpu wants uint8 activations" in left["cpu-int8-static"]


@pytest.mark.parametrize(
    ("file", "found"),
    [
        ("attention_past_state.u8s8", "dynamic"),
        ("matmul_integer_to_float_int8", "dynamic"),
        ("conv_qdq_s8s8_perchannel", "QDQ"),
        ("conv.int4_weights.qdq", "QDQ"),
        ("qdq_with_multi_consumer_dq_nodes", "QDQ"),
        ("nhwc_resize_sizes_opset18.quant", "QDQ"),
    ],
)
def test_public_model_when_quantized_is_built_as_it_is(shared_data, tmp_path, file, found):
    model = shared_data / "awkward" / "ort" / f"{file}.onnx"
    taken, left = planned(model, "linux-x86-64")
    assert len(taken) == 1
    assert all(found in reason or "same model" in reason for reason in left.values())


def test_variant_when_asked_for_by_name_with_a_quantized_model_is_refused(tmp_path):
    model = qdq(tmp_path / "net.onnx", "int8", zero=0)
    with pytest.raises(UsageError, match=r"'cpu-int8-static' cannot be built: .*quantized already"):
        dry_run(model, targets=["linux-x86-64"], variants=["cpu-int8-static"])


def test_model_when_inspected_says_that_it_is_quantized_and_where_it_goes(tmp_path):
    model = qdq(tmp_path / "net.onnx", "int8", zero=0)
    found = inspect(model, ["linux-x86-64"])
    assert found.facts.quantization is not None
    by_id = {variant.variant: variant for variant in found.variants}
    assert by_id["cpu-fp32"].unused is None
    assert "cpu wants uint8 activations" in by_id["cpu-int8-static"].unused.reason


def half(path: Path) -> Path:
    weights = np.random.default_rng(3).standard_normal((64, 64)).astype(np.float16)
    value = (TensorProto.FLOAT16, [1, 64])
    nodes = [node("MatMul", ["x", "w"], ["y"], "m")]
    return save(path, nodes, [("x", *value)], [("y", *value)], [("w", weights)])


def test_float16_model_when_built_is_carried_by_fp16_where_there_is_one(tmp_path):
    taken, left = planned(half(tmp_path / "net.onnx"), "jetson")
    assert taken == ["tensorrt-fp16", "cuda-fp16", "cpu-fp32"]
    assert "float16 already, and int8-static is made from float32" in left["cpu-int8-static"]
    result = build(tmp_path / "net.onnx", targets=["linux-x86-64"], out=tmp_path / "dist")
    result.require_all()
    assert [v.id for v in result.bundles[0].bundle.manifest.variants] == ["cpu-fp32"]


def test_target_when_nothing_of_it_carries_the_model_says_to_give_the_float_one():
    only = [v for v in load_profile("jetson").variants if v.recipe == "int8-static"]
    left = Carrying(Quantization("QOperator", 3)).find_unused(only)
    assert set(left) == {variant.id for variant in only}
    for unused in left.values():
        assert unused.reason.endswith("wants int8 as QDQ")
        assert unused.hint == "give the float model"
