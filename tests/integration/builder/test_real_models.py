"""Real networks with real photographs: built for both targets, run on this machine."""

from __future__ import annotations

import shutil

import pytest
from edgepack.builder.build import build
from edgepack.devices.inventory import load_device
from edgepack.measure.bench.run import bench
from edgepack.trying.verify import verify as verify_here

MODELS = {
    "squeezenet1.1": (
        "squeezenet1.1_fp32_opset13_dynbatch.onnx",
        (
            "data_0: {image: {resize: {short_side: 256, crop: 224}, order: BGR,"
            " mean: [103.939, 116.779, 123.68]}}"
        ),
        0.02,
        0.9,
    ),
    "mobilenet-v1-0.25-128": (
        "mobilenet_v1_0.25_128_fp32.onnx",
        (
            "input: {image: {resize: {short_side: 146, crop: 128}, scale: 0.00784314,"
            " mean: [1, 1, 1]}}"
        ),
        0.08,
        0.6,
    ),
}
"""File, description of the input, and what onnxruntime's quantizer is known to keep at least:
the largest drop of top-1 and the smallest agreement with fp32."""


@pytest.fixture(params=MODELS)
def project(request, shared_data, tmp_path):
    """A project with 60 photographs to calibrate with and 100 others to evaluate with."""
    file, inputs, drop, agreement = MODELS[request.param]
    folder = shared_data / "imagenet"
    shutil.copyfile(folder / file, tmp_path / "model.onnx")
    shutil.copyfile(folder / "labels.csv", tmp_path / "labels.csv")
    photos = sorted((folder / "images").iterdir())
    for name, chosen in (("cal", photos[::16][:60]), ("val", photos[5::10])):
        (tmp_path / name).mkdir()
        for path in chosen:
            (tmp_path / name / path.name).symlink_to(path)
    (tmp_path / "edgepack.yaml").write_text(
        f"schema_version: 1\nname: {request.param}\nmodel: model.onnx\ndims: {{N: 1}}\n"
        f"inputs: {{{inputs}}}\nsamples:\n  calibration: {{images: cal}}\n"
        "  evaluation: {images: val, labels: labels.csv}\n"
    )
    return tmp_path / "edgepack.yaml", drop, agreement


@pytest.mark.in_turns
@pytest.mark.slow(reason="takes a minute")
def test_real_model_when_built_for_both_targets_keeps_its_accuracy_and_runs(project, tmp_path):
    file, drop, agreement = project
    targets = ["host", "raspberry-pi"]
    result = build(project=file, targets=targets, out=tmp_path / "dist")
    assert not result.errors
    host, board = (made.bundle for made in result.bundles)
    # int8 comes second where it loses too much, which depends on the processor.
    by_id = {variant.id: variant for variant in host.manifest.variants}
    int8, fp32 = by_id["cpu-int8-static"], by_id["cpu-fp32"]
    assert (int8.accuracy.samples, fp32.accuracy.drop) == (100, 0)
    assert int8.accuracy.drop <= drop
    assert int8.accuracy.agreement >= agreement
    assert {v.model_sha256 for v in board.manifest.variants} == {
        v.model_sha256 for v in host.manifest.variants
    }
    assert all(check.passed for check in verify_here(host.path).goldens)
    report = bench(host.path, load_device("local"), preset="smoke")
    assert report.variant_used == host.manifest.variants[0].id
    assert report.placement.compute_share("CPUExecutionProvider") == 1


@pytest.mark.in_turns
@pytest.mark.slow(reason="takes a minute")
def test_real_model_when_preprocessing_is_in_the_graph_keeps_its_accuracy(project, tmp_path):
    """A level of 255 in some pixels changes the answer for one photograph in fifty at most."""
    file, drop, _ = project
    plain = build(project=file, targets=["host"], variants=["cpu-fp32"], out=tmp_path / "plain")
    file.write_text(file.read_text() + "preprocess: {in_graph: true}\n")
    result = build(project=file, targets=["host"], out=tmp_path / "dist")
    result.require_all()
    found = result.bundles[0].bundle.manifest
    assert found.inputs[0].dtype == "uint8"
    expected = plain.bundles[0].bundle.manifest.variants[0].accuracy
    int8, fp32 = (variant.accuracy for variant in found.variants)
    assert abs(fp32.value - expected.value) <= 0.02
    assert int8.drop <= drop
    assert verify_here(result.bundles[0].bundle.path).goldens[0].passed is not False
