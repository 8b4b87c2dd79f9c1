"""Models in ORT format: converted with the real onnxruntime, proven, and lied about."""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from edgepack.base.machine import find_architecture
from edgepack.errors import StepError
from edgepack.model.files import ORT_MODEL
from edgepack.model.running import make_session, run_session
from edgepack.steps.base import run_step
from edgepack.steps.graph.ort_file import (
    count_saved_optimizations,
    find_kernels,
    find_operators,
    normalize_file,
    read_config,
    write_config,
)
from edgepack.steps.graph.ort_format import OPERATORS, REPLAY, AsOrt
from onnx import TensorProto, helper
from onnxruntime import quantization

from tests.support.nets.tiny_models import conv_net, images, save

STYLES = [(style, platform) for style in ("fixed", "runtime") for platform in ("arm", "amd64")]
KINDS = ["fp32", "u8u8", "s8s8", "s8s8-symmetric", "s8s8-float-bias", "external"]


class Reader(quantization.CalibrationDataReader):
    def __init__(self):
        self.rest = iter(images(8))

    def get_next(self):
        image = next(self.rest, None)
        return None if image is None else {"image": image[None]}


def quantized(path: Path, kind: str) -> Path:
    types = {"u": quantization.QuantType.QUInt8, "s": quantization.QuantType.QInt8}
    source = conv_net(path.with_name("float.onnx"), batch=1)
    logging.disable(logging.WARNING)
    try:
        quantization.quantize_static(
            str(source),
            str(path),
            Reader(),
            activation_type=types[kind[0]],
            weight_type=types[kind[2]],
            per_channel=kind[0] == "s",
            extra_options={
                "ActivationSymmetric": kind not in ("u8u8", "s8s8"),
                "QuantizeBias": kind != "s8s8-float-bias",
            },
        )
    finally:
        logging.disable(logging.NOTSET)
        source.unlink()
    return path


def model_of(folder: Path, kind: str) -> Path:
    """Write a model of a kind as a step's folder."""
    folder.mkdir(exist_ok=True)
    path = folder / "model.onnx"
    if kind == "fp32":
        conv_net(path, batch=1)
    elif kind == "external":
        model = onnx.load(conv_net(path, batch=1))
        onnx.save(
            model, path, save_as_external_data=True, location="model.onnx.data", size_threshold=0
        )
        assert (folder / "model.onnx.data").stat().st_size > 0
    else:
        quantized(path, kind)
    return folder


def converted(step: AsOrt, model: Path, out: Path):
    out.mkdir()
    return run_step(step, {"model": model}, out)


@pytest.fixture(params=KINDS)
def model(request, tmp_path):
    return model_of(tmp_path / "in", request.param)


@pytest.fixture
def fp32(tmp_path):
    return model_of(tmp_path / "in", "fp32")


@pytest.fixture
def int8(tmp_path):
    return model_of(tmp_path / "in", "u8u8")


@pytest.mark.parametrize(("style", "platform"), STYLES)
def test_as_ort_when_run_computes_the_same_and_lists_all_operators(
    model, style, platform, tmp_path
):
    notes = converted(AsOrt(style, platform), model, tmp_path / "out")
    file = tmp_path / "out" / ORT_MODEL
    session = make_session(file, config=REPLAY if style == "runtime" else {})
    feed = {"image": images(1, seed=3)}
    scores = run_session(session, feed)["scores"]
    expected = run_session(make_session(model / "model.onnx", optimized=False), feed)["scores"]
    step = np.ptp(expected) / 10  # coarse: the step's own verify is the fine proof
    assert np.abs(scores - expected).max() < step
    assert notes.facts["bytes"] == file.stat().st_size
    assert (notes.facts["style"], notes.facts["platform"]) == (style, platform)
    assert notes.facts["repeatable"]
    listed = read_config(tmp_path / "out" / OPERATORS)
    assert set(find_operators([file])) | find_kernels(file.read_bytes()) <= set(listed)
    assert notes.facts["operators"] == len({(domain, name) for domain, _, name in listed})
    written = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert written == [ORT_MODEL, "notes.json", OPERATORS]


def test_as_ort_when_the_config_is_read_tells_the_types(fp32, tmp_path):
    converted(AsOrt("fixed", "arm"), fp32, tmp_path / "out")
    listed = read_config(tmp_path / "out" / OPERATORS)
    (gemm,) = [types for (_, _, name), types in listed.items() if name == "Gemm"]
    assert gemm == {"inputs": {"0": ["float"]}}


def test_as_ort_when_int8_and_runtime_leaves_optimizations_to_the_session(int8, tmp_path):
    converted(AsOrt("runtime", "arm"), int8, tmp_path / "runtime")
    converted(AsOrt("fixed", "arm"), int8, tmp_path / "fixed")
    assert count_saved_optimizations((tmp_path / "runtime" / ORT_MODEL).read_bytes()) > 0
    assert count_saved_optimizations((tmp_path / "fixed" / ORT_MODEL).read_bytes()) == 0


def test_as_ort_when_int8_and_runtime_lists_what_the_session_replays(int8, tmp_path):
    converted(AsOrt("runtime", "arm"), int8, tmp_path / "out")
    before = {name for _, _, name in find_operators([tmp_path / "out" / ORT_MODEL])}
    listed = read_config(tmp_path / "out" / OPERATORS)
    assert "QLinearConv" not in before
    assert {"ai.onnx", "com.microsoft"} == {d for d, _, name in listed if name == "QLinearConv"}


def test_as_ort_when_float_biases_break_the_converter_says_that_they_stay_float(tmp_path):
    folder = model_of(tmp_path / "in", "s8s8-float-bias")
    notes = converted(AsOrt("runtime", "arm"), folder, tmp_path / "out")
    assert "biases stayed float" in notes.done
    assert "biases" not in converted(AsOrt("fixed", "arm"), folder, tmp_path / "fixed").done


SCRIPT = """
import sys
from pathlib import Path
from edgepack.steps.base import run_step
from edgepack.steps.graph.ort_format import AsOrt
folder = Path(sys.argv[1])
for style in ("fixed", "runtime"):
    for platform in ("arm", "amd64"):
        out = folder / f"{style}-{platform}"
        out.mkdir()
        run_step(AsOrt(style, platform), {"model": folder / "in"}, out)
"""


@pytest.mark.slow(reason="starts several processes")
@pytest.mark.parametrize("kind", ["fp32", "u8u8", "s8s8-symmetric"])
def test_as_ort_when_place_environment_and_hash_seed_differ_writes_the_same_bytes(kind, tmp_path):
    model_of(tmp_path / "in", kind)
    found = []
    for n, name in enumerate(["a", "another/folder with spaces/" + "x" * 100, "b"]):
        folder = tmp_path / name
        folder.mkdir(parents=True)
        shutil.copytree(tmp_path / "in", folder / "in")
        environment = {**os.environ, "PYTHONHASHSEED": str(n), "FILLER": "x" * 5000 * n}
        subprocess.run(
            [sys.executable, "-c", SCRIPT, str(folder)],
            env=environment,
            cwd=folder,
            check=True,
            timeout=120,
            capture_output=True,
        )
        files = sorted(path for path in folder.rglob("*") if path.name in (ORT_MODEL, OPERATORS))
        found.append(
            {
                str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
                for path in files
            }
        )
    assert len(found[0]) == 2 * len(STYLES)
    assert found[0] == found[1] == found[2]


def raw(model: Path, out: Path, entries=()) -> Path:
    """Write an ORT-format file as onnxruntime does it."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.optimized_model_filepath = str(out)
    options.add_session_config_entry("session.save_model_format", "ORT")
    for key, value in entries:
        options.add_session_config_entry(key, value)
    onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    return out


PORTABLE = ("optimization.disable_specified_optimizers", "NchwcTransformer")


def test_normalized_when_applied_twice_changes_nothing_more(fp32, tmp_path):
    once = normalize_file(raw(fp32 / "model.onnx", tmp_path / "a.ort", [PORTABLE]).read_bytes())
    assert normalize_file(once) == once


def test_normalized_when_loaded_computes_exactly_what_it_did(fp32, tmp_path):
    file = raw(fp32 / "model.onnx", tmp_path / "a.ort", [PORTABLE])
    (tmp_path / "b.ort").write_bytes(normalize_file(file.read_bytes()))
    feed = {"image": images(1)}
    first, second = (
        run_session(make_session(tmp_path / name), feed) for name in ("a.ort", "b.ort")
    )
    np.testing.assert_array_equal(first["scores"], second["scores"])


def test_config_when_written_reads_back(tmp_path):
    types = '{"inputs": {"0": ["float", "int64_t"]}, "outputs": {"0": ["float"]}}'
    entries = {
        ("ai.onnx", 13, "Cast"): types,
        ("ai.onnx", 13, "Add"): "",
        ("ai.onnx", 13, "Relu"): '{"inputs": {"0": ["float"]}}',
        ("com.microsoft", 1, "FusedConv"): "",
    }
    write_config(entries, tmp_path / OPERATORS)
    read = read_config(tmp_path / OPERATORS)
    assert set(read) == set(entries)
    assert read["ai.onnx", 13, "Cast"]["inputs"] == {"0": ["float", "int64_t"]}
    assert read["ai.onnx", 13, "Add"] == {}


def lie_about_weights(folder: Path, tmp_path: Path) -> None:
    model = onnx.load(conv_net(tmp_path / "other.onnx", batch=1))
    for tensor in model.graph.initializer:
        if tensor.name == "w2":
            array = 1.01 * onnx.numpy_helper.to_array(tensor)
            tensor.CopyFrom(onnx.numpy_helper.from_array(array.astype(np.float32), "w2"))
    onnx.save(model, tmp_path / "other.onnx")
    file = raw(tmp_path / "other.onnx", tmp_path / "other.ort", [PORTABLE])
    (folder / ORT_MODEL).write_bytes(normalize_file(file.read_bytes()))


def lie_about_layout(folder: Path, tmp_path: Path) -> None:
    shutil.copyfile(
        raw(tmp_path / "in/model.onnx", tmp_path / "r.ort", [PORTABLE]), folder / ORT_MODEL
    )


def lie_about_a_whole_file(folder: Path, tmp_path: Path) -> None:
    (folder / ORT_MODEL).write_bytes((folder / ORT_MODEL).read_bytes()[:-4000])


def edit_config(folder: Path, tmp_path: Path, *, old: str, new: str) -> None:
    text = (folder / OPERATORS).read_text()
    assert old in text
    (folder / OPERATORS).write_text(text.replace(old, new))


LIES = [
    (lie_about_weights, "dB from the model's"),
    (lie_about_layout, "differ the next time"),
    (lie_about_a_whole_file, "does not load"),
    (partial(edit_config, old="Flatten,", new=""), "lacks ai.onnx:Flatten"),
    (partial(edit_config, old='["float"]', new='["double"]'), "lacks ai.onnx:"),
    (partial(edit_config, old="ai.onnx;", new="ai.onnx "), "not a list of operators"),
    (partial(edit_config, old='["float"]', new='["float"'), "not a list of operators"),
]


@pytest.mark.parametrize(("lie", "message"), LIES)
def test_verify_when_the_output_lies_refuses_it(lie, message, fp32, tmp_path):
    step = AsOrt("fixed", "arm")
    converted(step, fp32, tmp_path / "out")
    step.verify({"model": fp32}, tmp_path / "out")
    lie(tmp_path / "out", tmp_path)
    with pytest.raises(StepError, match=message):
        step.verify({"model": fp32}, tmp_path / "out")


def test_verify_when_a_path_of_this_machine_is_inside_refuses_it(fp32, tmp_path):
    step = AsOrt("fixed", "arm")
    converted(step, fp32, tmp_path / "out")
    text = (tmp_path / "out" / OPERATORS).read_text()
    (tmp_path / "out" / OPERATORS).write_text(f"{text}# {tmp_path / 'out' / ORT_MODEL}\n")
    with pytest.raises(StepError, match="names a path of this machine"):
        step.verify({"model": fp32}, tmp_path / "out")


def test_verify_when_a_fixed_file_leaves_work_to_the_session_refuses_it(int8, tmp_path):
    converted(AsOrt("runtime", "arm"), int8, tmp_path / "out")
    fixed = AsOrt("fixed", "arm")
    with pytest.raises(StepError, match="leaves optimizations to the session"):
        fixed.verify({"model": int8}, tmp_path / "out")


@pytest.mark.skipif(find_architecture() != "x86-64", reason="onnxruntime does it on x86-64 alone")
def test_verify_when_the_file_fits_one_vector_width_refuses_it(fp32, tmp_path):
    step = AsOrt("fixed", "amd64")
    converted(step, fp32, tmp_path / "out")
    file = raw(fp32 / "model.onnx", tmp_path / "wide.ort")
    (tmp_path / "out" / ORT_MODEL).write_bytes(normalize_file(file.read_bytes()))
    with pytest.raises(StepError, match="one processor's vector width"):
        step.verify({"model": fp32}, tmp_path / "out")


def test_as_ort_when_the_model_has_two_gigabytes_refuses_before_converting(fp32, tmp_path):
    with (fp32 / "model.onnx.data").open("wb") as file:
        file.truncate(1 << 31)  # a hole: takes no space
    with pytest.raises(StepError, match="ends at 2 GiB") as caught:
        converted(AsOrt("fixed", "arm"), fp32, tmp_path / "out")
    assert "onnx" in caught.value.hint


def test_as_ort_when_the_format_has_no_such_type_says_so(tmp_path):
    weights = np.arange(-4, 4).astype(ml_dtypes.int4)
    save(
        tmp_path / "in" / "model.onnx",
        [
            helper.make_node("DequantizeLinear", ["w", "scale"], ["d"], "dequantize"),
            helper.make_node("Mul", ["x", "d"], ["y"], "mul"),
        ],
        [("x", TensorProto.FLOAT, [8])],
        [("y", TensorProto.FLOAT, [8])],
        [("w", weights), ("scale", np.array(0.5, np.float32))],
        opset=21,
        ir=10,
    )
    with pytest.raises(StepError, match="cannot list the file's operators") as caught:
        converted(AsOrt("runtime", "arm"), tmp_path / "in", tmp_path / "out")
    assert ".onnx" in caught.value.hint


@pytest.mark.parametrize(("style", "platform"), STYLES)
def test_as_ort_when_the_network_is_real_computes_the_same(shared_data, style, platform, tmp_path):
    (tmp_path / "in").mkdir()
    shutil.copyfile(
        shared_data / "imagenet" / "squeezenet1.1_fp32_opset13_dynbatch.onnx",
        tmp_path / "in" / "model.onnx",
    )
    notes = converted(AsOrt(style, platform), tmp_path / "in", tmp_path / "out")
    assert notes.facts["repeatable"]
    assert notes.facts["bytes"] > 4_900_000
