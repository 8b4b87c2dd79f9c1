"""Models, samples, caches and bundles at the edges of what a build takes."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from edgepack.builder import assembly
from edgepack.builder.build import build
from edgepack.bundle.reading import verify
from edgepack.errors import (
    BundleError,
    ModelError,
    ProfileError,
    SamplesError,
    ToolError,
)
from edgepack.metrics.accuracy import OutputCloseness, array_sqnr_db
from edgepack.trying.verify import verify as verify_here
from onnx import helper

from tests.support.nets import tiny_models
from tests.support.slow_cases import slow_after

VALUE = (1, ["batch", 8])


def write_mlp(folder: Path, nodes, initializers, samples: np.ndarray, extra: str = "") -> Path:
    """A project whose model takes x [batch, 8] and gives y [batch, 8]."""
    tiny_models.save(folder / "m.onnx", nodes, [("x", *VALUE)], [("y", *VALUE)], initializers)
    np.savez(folder / "c.npz", x=samples)
    path = folder / "edgepack.yaml"
    path.write_text(
        "schema_version: 1\nname: m\nmodel: m.onnx\nsamples:\n  calibration: {path: c.npz}\n"
        f"  evaluation: {{path: c.npz}}\n{extra}\n"
    )
    return path


def weights(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def test_build_when_the_rank_of_an_output_cannot_be_inferred_keeps_the_declared_shape(tmp_path):
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], "product"),
        helper.make_node("Unique", ["sizes"], ["to"], "unique"),
        helper.make_node("Reshape", ["h", "to"], ["y"], "reshape"),
    ]
    constants = [
        ("w", weights(8, 8)),
        ("sizes", np.array([1, 8], np.int64)),
    ]
    project = write_mlp(tmp_path, nodes, constants, weights(20, 8), "dims: {batch: 1}")
    result = build(project=project, targets=["host"], variants=["cpu-fp32"], out=tmp_path / "d")
    manifest = result.bundles[0].bundle.manifest
    assert [tensor.shape for tensor in manifest.outputs] == [[1, 8]]
    assert not any("onnxsim skipped" in line for line in manifest.steps)


@pytest.mark.slow(reason="builds without a cache")
def test_build_when_nothing_is_cached_counts_no_step_as_cached(tmp_path):
    project = tiny_models.write_project(tmp_path, "dims: {batch: 1}")
    fresh, again = (
        build(project=project, targets=["jetson", "intel", "android"], out=tmp_path / "d")
        for _ in range(2)
    )
    assert fresh.from_cache == 0
    assert again.from_cache == again.steps == fresh.steps


def test_int8_when_a_constant_is_multiplied_in_is_built(tmp_path):
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], "product"),
        helper.make_node("Mul", ["h", "c"], ["y"], "scale"),
    ]
    constants = [("w", weights(8, 8)), ("c", weights(8))]
    project = write_mlp(tmp_path, nodes, constants, weights(20, 8))
    result = build(
        project=project, targets=["host"], variants=["cpu-int8-static"], out=tmp_path / "d"
    )
    [variant] = result.bundles[0].bundle.manifest.variants
    assert variant.id == "cpu-int8-static"


@pytest.mark.slow(reason="takes seconds")
def test_model_when_quantized_already_is_carried_and_not_quantized_again(tmp_path):
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s"], ["q"], "quant"),
        helper.make_node("DequantizeLinear", ["q", "s"], ["y"], "dequant"),
    ]
    project = write_mlp(tmp_path, nodes, [("s", np.float32(0.1))], weights(20, 8))
    result = build(project=project, targets=["host"], out=tmp_path / "d")
    result.require_all()
    manifest = result.bundles[0].bundle.manifest
    assert any("quantized already (QDQ" in line for line in manifest.steps)
    assert not any("calibration" in line for line in manifest.steps)
    assert build(
        project=project, targets=["host"], variants=["cpu-fp32"], out=tmp_path / "d"
    ).bundles


def test_goldens_when_outputs_have_a_mask_of_infinities_still_ask_for_much(tmp_path):
    mask = np.array([True, False] * 4)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], "product"),
        helper.make_node("Where", ["mask", "h", "low"], ["y"], "mask"),
    ]
    constants = [("w", weights(8, 8)), ("mask", mask), ("low", np.float32(-np.inf))]
    project = write_mlp(tmp_path, nodes, constants, weights(20, 8))
    result = build(project=project, targets=["host"], variants=["cpu-fp32"], out=tmp_path / "d")
    [variant] = result.bundles[0].bundle.manifest.variants
    assert variant.min_sqnr_db == 60
    assert variant.accuracy.worst.sqnr_db > 100


def test_sqnr_when_infinities_are_at_the_same_places_looks_at_the_rest():
    reference = np.array([1.0, -np.inf, np.nan, 2.0])
    assert array_sqnr_db(reference, reference.copy()) == 200
    assert array_sqnr_db(reference, np.array([1.1, -np.inf, np.nan, 2.2])) == pytest.approx(20)
    assert array_sqnr_db(reference, np.array([1.0, np.inf, np.nan, 2.0])) == -np.inf


def test_closeness_when_sequence_lengths_differ_forgets_no_sample():
    random = np.random.default_rng(0)
    short, long = random.standard_normal((1, 3, 8)), random.standard_normal((1, 50, 60))
    closeness = OutputCloseness()
    closeness.add(short, short * 3)
    closeness.add(long, long)
    assert closeness.sqnr_db < 0
    assert -1 <= closeness.cosine <= 1


@pytest.mark.parametrize(
    ("labels", "problem"),
    slow_after(
        1,
        [(np.arange(100, 120), "the label 100 is not one of"), (np.full(20, 0.5), "the label 0.5")],
        reason="starts workers anew",
    ),
)
def test_labels_when_no_class_indices_are_refused(tmp_path, labels, problem):
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"], "product")]
    project = write_mlp(tmp_path, nodes, [("w", weights(8, 8))], weights(20, 8))
    np.savez(tmp_path / "e.npz", x=weights(20, 8), labels=labels)
    project.write_text(project.read_text().replace("evaluation: {path: c", "evaluation: {path: e"))
    with pytest.raises(SamplesError, match=problem):
        build(project=project, targets=["host"], out=tmp_path / "d")


def test_limits_when_nothing_judges_them_are_refused(tmp_path):
    project = tiny_models.write_project(tmp_path, "limits: {metric_drop: 0.0}", samples=False)
    with pytest.raises(ProfileError, match="no evaluation samples to judge by"):
        build(project=project, targets=["host"], out=tmp_path / "d")


def test_files_when_written_with_dots_lie_where_the_manifest_says(tmp_path):
    (tmp_path / "labels.txt").write_text("a\n")
    project = tiny_models.write_project(tmp_path, "files: [./labels.txt]", samples=False)
    [built] = build(project=project, targets=["host"], out=tmp_path / "d").bundles
    assert (built.bundle.path / "files" / "labels.txt").exists()
    verify(built.bundle.path)


def test_readme_when_the_model_has_several_inputs_has_an_example_that_runs(tmp_path):
    nodes = [helper.make_node("Where", ["b", "x", "x"], ["y"], "pick")]
    inputs = [("b", 9, ["batch", 8]), ("x", *VALUE)]
    model = tiny_models.save(tmp_path / "m.onnx", nodes, inputs, [("y", *VALUE)])
    [built] = build(model, targets=["host"], out=tmp_path / "d").bundles
    text = (built.bundle.path / "README.md").read_text()
    example = text.split("```python\n")[1].split("```")[0]
    done = subprocess.run(
        [sys.executable, "-B", "-c", example],
        cwd=built.bundle.path,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()


@pytest.mark.slow(reason="takes seconds")
def test_archive_when_its_copy_is_interrupted_never_lies_beside_another_folder(
    tmp_path, monkeypatch
):
    model = tiny_models.relu(tmp_path / "net.onnx")
    build(model, targets=["host"], out=tmp_path / "d")
    tiny_models.relu(tmp_path / "net.onnx", opset=18)

    def interrupted(source, target):
        raise KeyboardInterrupt

    monkeypatch.setattr(assembly, "copy_file", interrupted)
    with pytest.raises(KeyboardInterrupt):
        build(model, targets=["host"], out=tmp_path / "d")
    [folder] = (tmp_path / "d").iterdir()
    assert verify(folder).manifest.model.opset == 18


@pytest.mark.slow(reason="builds for a target")
@pytest.mark.parametrize("name", ["bundle.tar.gz", "evaluation.json"])
def test_cache_when_an_archive_or_a_figure_changes_is_noticed(tmp_path, own_home, name):
    project = tiny_models.write_project(tmp_path)
    build(project=project, targets=["host"], out=tmp_path / "a")
    for kept in (own_home / ".cache").rglob(name):
        data = bytearray(kept.read_bytes())
        data[len(data) // 2] ^= 1
        kept.write_bytes(data)
    with pytest.raises(ToolError, match="the cache is damaged"):
        build(project=project, targets=["host"], out=tmp_path / "b")


@pytest.mark.slow(reason="builds for a target")
def test_worker_when_the_disk_is_full_is_one_clear_error(tmp_path):
    import resource

    model = tiny_models.conv_net(tmp_path / "net.onnx")

    def small_files():
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))

    argv = [sys.executable, "-m", "edgepack", "build", str(model), "--target", "host"]
    done = subprocess.run(
        [*argv, "--out", str(tmp_path / "d")],
        capture_output=True,
        check=False,
        preexec_fn=small_files,
        # Python would write its own bytecode, cut off, into the checkout that other tests run from.
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
    )
    assert b"BUG" not in done.stderr, done.stderr
    assert done.returncode in (5, 7)
    assert not (tmp_path / "d").exists()


def test_model_when_it_is_a_pipe_is_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "pipe.onnx")
    with pytest.raises(ModelError, match="is not a regular file"):
        build(tmp_path / "pipe.onnx", targets=["host"], out=tmp_path / "d")


@pytest.fixture(scope="module")
def pristine(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pristine")
    model = tiny_models.relu(folder / "net.onnx")
    return build(model, targets=["host"], out=folder / "d", use_cache=False).bundles[0].bundle


def with_manifest(bundle: Path, copy: Path, change) -> Path:
    """A copy whose manifest is changed and hashed again, as somebody hostile would."""
    shutil.copytree(bundle, copy)
    manifest = json.loads((copy / "manifest.json").read_text())
    change(manifest)
    text = json.dumps(manifest).encode()
    (copy / "manifest.json").write_bytes(text)
    line = f"{hashlib.sha256(text).hexdigest()}  manifest.json\n"
    (copy / "manifest.json.sha256").write_text(line)
    return copy


HOSTILE = {
    "model outside": lambda m: m["variants"][0].update(model="../outside.onnx"),
    "golden elsewhere": lambda m: m["goldens"][0]["inputs"][0].update(path="/etc/passwd"),
    "no goldens": lambda m: m.update(goldens=[]),
    "no variants": lambda m: m.update(variants=[]),
    "no providers": lambda m: m["variants"][0].update(providers=[]),
    "golden lacks a variant": lambda m: m["goldens"][0].update(outputs={}),
    "odd dtype": lambda m: m["goldens"][0]["inputs"][0].update(dtype="junk"),
    "wrong shape": lambda m: m["goldens"][0]["inputs"][0].update(shape=[1, 400]),
    "file outside": lambda m: m["files"][0].update(path="../../x"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_manifest_when_hostile_and_hashed_again_is_refused(pristine, tmp_path, case):
    copy = with_manifest(pristine.path, tmp_path / "copy", HOSTILE[case])
    with pytest.raises(BundleError):
        verify_here(copy)


def test_verify_when_code_or_links_are_slipped_in_refuses(pristine, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(pristine.path, copy)
    (copy / "__pycache__").mkdir()
    (copy / "__pycache__" / "edgepack_loader.cpython-311.pyc").write_bytes(b"evil")
    with pytest.raises(BundleError, match="__pycache__"):
        verify(copy)
    shutil.rmtree(copy / "__pycache__")
    (copy / "extra").symlink_to("/etc")
    with pytest.raises(BundleError, match="'extra'"):
        verify(copy)
    (copy / "extra").unlink()
    (copy / "models").rename(tmp_path / "models")
    (copy / "models").symlink_to(tmp_path / "models")
    with pytest.raises(BundleError, match="models"):
        verify(copy)


@pytest.mark.slow(reason="builds without a cache")
def test_outputs_when_described_decide_what_top1_is_taken_from(tmp_path):
    project = tiny_models.write_project(tmp_path, "outputs: {scores: {kind: raw}}")
    result = build(project=project, targets=["host"], out=tmp_path / "d")
    accuracy = result.bundles[0].bundle.manifest.variants[0].accuracy
    assert (accuracy.metric, accuracy.output) == ("r2", "scores")
    assert accuracy.agreement is None
    project.write_text(project.read_text().replace("{scores: ", "{scroes: "))
    with pytest.raises(ProfileError, match="no output 'scroes'"):
        build(project=project, targets=["host"], out=tmp_path / "d")
