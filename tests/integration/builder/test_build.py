from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import NoReturn

import numpy as np
import onnx
import pytest
from edgepack.base.progress import Silent, Work
from edgepack.builder.build import build, dry_run
from edgepack.bundle.reading import verify
from edgepack.errors import (
    BundleError,
    EdgepackError,
    LimitError,
    ModelError,
    ProfileError,
    SamplesError,
    StepError,
    ToolError,
    UsageError,
)
from edgepack.trying.verify import verify as verify_here

from tests.support.nets import tiny_models
from tests.support.slow_cases import slow_after


def tree(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_project_when_built_for_a_raspberry_pi_ships_int8_and_fp32(tmp_path):
    project = tiny_models.write_project(tmp_path)
    result = build(project=project, targets=["raspberry-pi"], out=tmp_path / "dist")
    manifest = verify(result.bundles[0].bundle.path).manifest
    assert [variant.id for variant in manifest.variants] == ["cpu-int8-static", "cpu-fp32"]
    assert manifest.id == "net-1.2.3-raspberry-pi"
    assert manifest.goldens_from == "samples"
    assert all(variant.accuracy.metric == "top1" for variant in manifest.variants)


def test_int8_when_built_speaks_the_dialect(tmp_path):
    project = tiny_models.write_project(tmp_path)
    result = build(project=project, targets=["raspberry-pi"], out=tmp_path / "dist")
    model = onnx.load(result.bundles[0].bundle.path / "models/cpu-int8-static.onnx")
    constants = {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}
    zeros = [constants[n.input[2]].dtype for n in model.graph.node if n.op_type == "QuantizeLinear"]
    weights = [
        (constants[n.input[0]].dtype, constants[n.input[1]].size)
        for n in model.graph.node
        if n.op_type == "DequantizeLinear" and n.input[0] in constants
    ]
    assert set(zeros) == {np.dtype(np.uint8)}
    assert (np.dtype(np.int8), 8) in weights


@pytest.mark.slow(reason="takes seconds")
def test_bundle_when_built_twice_elsewhere_and_later_has_the_same_bytes(tmp_path):
    results = []
    for name in ("one", "two"):
        folder = tmp_path / name
        folder.mkdir()
        project = tiny_models.write_project(folder)
        for path in folder.iterdir():
            os.utime(path, (1_000_000_000 + len(results) * 86400,) * 2)
        targets = ["raspberry-pi", "host"][: 1 + len(results)]
        results.append(build(project=project, targets=targets, out=folder / "d", use_cache=False))
    one, two = (result.bundles[0] for result in results)
    assert tree(one.bundle.path) == tree(two.bundle.path)
    assert one.archive.read_bytes() == two.archive.read_bytes()


def test_manifest_when_read_has_no_path_of_this_machine(tmp_path):
    project = tiny_models.write_project(tmp_path)
    result = build(project=project, targets=["host"], out=tmp_path / "dist")
    for name, data in tree(result.bundles[0].bundle.path).items():
        assert str(tmp_path).encode() not in data, name


@pytest.mark.slow(reason="takes seconds")
def test_rebuild_when_nothing_changed_runs_no_step(tmp_path):
    project = tiny_models.write_project(tmp_path)
    first = build(project=project, targets=["host"], out=tmp_path / "a")
    again = build(project=project, targets=["host"], out=tmp_path / "b")
    assert first.from_cache == 0
    assert again.from_cache == again.steps


@pytest.mark.slow(reason="takes seconds")
def test_rebuild_when_samples_change_quantizes_again(tmp_path):
    project = tiny_models.write_project(tmp_path)
    build(project=project, targets=["host"], out=tmp_path / "a")
    np.savez(tmp_path / "cal.npz", image=tiny_models.images(8, seed=9) * 3)
    again = build(project=project, targets=["host"], out=tmp_path / "b")
    assert 0 < again.from_cache < again.steps
    models = [tmp_path / side / "net-1.2.3-linux-x86-64/models" for side in ("a", "b")]
    if all(folder.exists() for folder in models):
        one, two = ((folder / "cpu-int8-static.onnx").read_bytes() for folder in models)
        assert one != two


def test_model_alone_when_built_leaves_int8_out_and_says_which_line_to_add(tmp_path):
    model = tiny_models.conv_net(tmp_path / "my net.v2.onnx")
    result = build(model, targets=["host"], out=tmp_path / "dist")
    manifest = result.bundles[0].bundle.manifest
    assert manifest.name == "my-net-v2"
    assert [variant.id for variant in manifest.variants] == ["cpu-fp32"]
    assert "samples: {calibration: {path: samples.npz}}" in manifest.unused[0].hint
    assert manifest.goldens_from == "seeded random"


def test_int8_when_asked_for_without_samples_is_refused(tmp_path):
    model = tiny_models.conv_net(tmp_path / "net.onnx")
    with pytest.raises(UsageError, match="it needs calibration samples"):
        build(model, targets=["host"], variants=["cpu-int8-static"], out=tmp_path / "dist")


@pytest.mark.slow(reason="takes seconds")
def test_limit_when_missed_ships_the_rest_and_says_by_how_much(tmp_path):
    project = tiny_models.write_project(tmp_path, "limits: {min_sqnr_db: 150}")
    result = build(project=project, targets=["host"], out=tmp_path / "dist")
    assert [v.id for v in result.bundles[0].bundle.manifest.variants] == ["cpu-fp32"]
    with pytest.raises(LimitError, match="the limit is 150 dB") as caught:
        result.require_all()
    assert caught.value.exit_code == 10


@pytest.mark.slow(reason="takes seconds")
def test_metric_when_python_is_called_once_over_the_set(tmp_path):
    (tmp_path / "mymetric.py").write_text(
        "def first(outputs, labels):\n"
        "    assert len(outputs) == 24 and labels.shape == (24,)\n"
        "    return outputs[0]['scores'].sum()\n"
    )
    project = tiny_models.write_project(tmp_path)
    text = project.read_text().replace(
        "labels: labels}",
        "labels: labels, metric: {python: 'mymetric:first', higher_is_better: true}}",
    )
    project.write_text(text)
    result = build(project=project, targets=["host"], out=tmp_path / "dist")
    int8, fp32 = result.bundles[0].bundle.manifest.variants
    assert fp32.accuracy.metric == "mymetric:first"
    assert fp32.accuracy.drop == pytest.approx(0, abs=1e-5)
    assert int8.accuracy.drop == pytest.approx(int8.accuracy.fp32 - int8.accuracy.value)


@pytest.mark.slow(reason="takes seconds")
def test_samples_from_python_and_test_data_when_built_are_used(tmp_path):
    tiny_models.conv_net(tmp_path / "net.onnx")
    (tmp_path / "mydata.py").write_text(
        "import numpy as np\n"
        "def samples():\n"
        "    for n in range(6):\n"
        "        yield {'image': np.random.default_rng(n).standard_normal((1, 3, 8, 8))}\n"
    )
    for n, array in enumerate(tiny_models.images(3)):
        folder = tmp_path / f"test_data_set_{n}"
        folder.mkdir()
        tensor = onnx.numpy_helper.from_array(array[None])
        (folder / "input_0.pb").write_bytes(tensor.SerializeToString())
    project = tmp_path / "edgepack.yaml"
    project.write_text(
        "schema_version: 1\nname: net\nmodel: net.onnx\nsamples:\n"
        "  calibration: {python: 'mydata:samples'}\n"
        "  evaluation: {test_data: 'test_data_set_*'}\n"
    )
    result = build(project=project, targets=["host"], out=tmp_path / "dist")
    int8 = result.bundles[0].bundle.manifest.variants[0]
    # fp32 gives one class for all three, so that the scores behind it have to tell.
    assert (int8.accuracy.metric, int8.accuracy.samples) == ("r2", 3)


@pytest.mark.slow(reason="takes seconds")
def test_old_opset_when_int8_is_built_is_converted_and_proven(tmp_path):
    project = tiny_models.write_project(tmp_path)
    tiny_models.conv_net(tmp_path / "net.onnx", opset=11)
    result = build(project=project, targets=["host"], out=tmp_path / "dist")
    manifest = result.bundles[0].bundle.manifest
    assert any("opset 11 converted to 13" in line for line in manifest.steps)
    assert len(manifest.variants) == 2


def test_new_ir_when_built_is_written_as_one_the_target_loads(tmp_path):
    model = tiny_models.relu(tmp_path / "net.onnx", ir=13)
    data = onnx.load(model)
    data.ir_version = 10
    onnx.save(data, model)
    result = build(model, targets=["host"], out=tmp_path / "dist")
    built = onnx.load(result.bundles[0].bundle.path / "models/cpu-fp32.onnx")
    assert built.ir_version <= 13


def test_dims_when_given_fix_the_shape_in_the_bundle(tmp_path):
    project = tiny_models.write_project(tmp_path, "dims: {batch: 2}", samples=False)
    result = build(project=project, targets=["host"], out=tmp_path / "dist")
    manifest = result.bundles[0].bundle.manifest
    assert manifest.inputs[0].shape == [2, 3, 8, 8]
    assert manifest.outputs[0].shape == [2, 4]


def test_dry_run_when_planned_writes_nothing(tmp_path, own_home):
    project = tiny_models.write_project(tmp_path)
    plan = dry_run(project=project, targets=["host", "raspberry-pi"])
    lines = "\n".join(plan.describe())
    assert lines.count("step    simplified-") == 1
    assert "bundle  raspberry-pi" in lines
    assert not (tmp_path / "dist").exists()
    assert list(own_home.rglob("*")) == []


def write_samples(folder, **arrays):
    np.savez(folder / "cal.npz", **arrays)


BAD_SAMPLES = {
    "wrong name": ({"imgae": tiny_models.images(2)}, "has the inputs"),
    "wrong shape": ({"image": tiny_models.images(2)[:, :, :4]}, "has the shape"),
    "wrong dtype": ({"image": tiny_models.images(2) > 0}, "has bool"),
    "NaN": ({"image": tiny_models.images(2) * np.nan}, "has NaN or infinity"),
    "empty": ({"image": tiny_models.images(0)}, "there are no samples"),
}


@pytest.mark.parametrize("case", slow_after(1, BAD_SAMPLES))
def test_calibration_samples_when_wrong_end_the_build_with_nothing_written(tmp_path, case):
    arrays, problem = BAD_SAMPLES[case]
    project = tiny_models.write_project(tmp_path)
    write_samples(tmp_path, **arrays)
    with pytest.raises(SamplesError, match=problem):
        build(project=project, targets=["host"], out=tmp_path / "dist")
    assert not (tmp_path / "dist").exists()


BAD_PROJECTS = {
    "inputs: {imgae: {image: {resize: {letterbox: 8}}}}": (ProfileError, "no input 'imgae'"),
    "dims: {bacth: 1}": (ProfileError, "symbolic dimension 'bacth'"),
    "files: [none.txt]": (ProfileError, "'none.txt' is not in the project's folder"),
    "files: [../secret]": (ProfileError, "is not in the project's folder"),
    "limits: {metric_dorp: 1}": (ProfileError, "did you mean 'metric_drop'"),
}


@pytest.mark.parametrize("line", BAD_PROJECTS)
def test_project_when_wrong_says_what(tmp_path, line):
    kind, problem = BAD_PROJECTS[line]
    (tmp_path.parent / "secret").write_text("x")
    project = tiny_models.write_project(tmp_path, line, samples=False)
    with pytest.raises(kind, match=problem):
        dry_run(project=project, targets=["host"])


def test_unknown_operator_when_built_names_the_node(tmp_path):
    value = (1, [1, 4])
    nodes = [onnx.helper.make_node("NoSuchOp", ["x"], ["y"], "odd", domain="my.ops")]
    model = tiny_models.save(tmp_path / "m.onnx", nodes, [("x", *value)], [("y", *value)])
    with pytest.raises(ModelError, match=r"NoSuchOp"):
        build(model, targets=["host"], out=tmp_path / "dist")


def test_random_model_when_built_is_refused_because_nothing_can_be_proven(tmp_path):
    value = (1, [1, 64])
    nodes = [
        onnx.helper.make_node("RandomNormalLike", ["x"], ["r"], "noise"),
        onnx.helper.make_node("Add", ["x", "r"], ["y"], "add"),
    ]
    model = tiny_models.save(tmp_path / "m.onnx", nodes, [("x", *value)], [("y", *value)])
    with pytest.raises(ModelError, match="other outputs each time"):
        build(model, targets=["host"], out=tmp_path / "dist")


def test_int8_when_nothing_can_be_quantized_says_how_to_build_without(tmp_path):
    tiny_models.write_project(tmp_path)
    value = (1, ["batch", 3, 8, 8])
    nodes = [onnx.helper.make_node("Sin", ["image"], ["y"], "sin")]
    tiny_models.save(tmp_path / "net.onnx", nodes, [("image", *value)], [("y", *value)])
    both = ["cpu-int8-static", "cpu-fp32"]
    project = tmp_path / "edgepack.yaml"
    result = build(project=project, targets=["host"], variants=both, out=tmp_path / "dist")
    with pytest.raises(StepError, match="nothing in the model could be quantized") as caught:
        result.require_all()
    assert "--variant cpu-fp32" in caught.value.problem


class NoStep(Silent):
    """Fails the test when a build begins to run steps."""

    def start_task(self, work: Work) -> NoReturn:
        pytest.fail(f"{work.title}, {work.total} steps")


def test_out_when_it_is_a_file_or_a_foreign_folder_is_an_error(tmp_path):
    model = tiny_models.relu(tmp_path / "net.onnx")
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file", tmp_path / "file" / "dist"):
        with pytest.raises(UsageError, match="cannot write"):
            build(model, targets=["linux-x86-64"], out=place, progress=NoStep())
    foreign = tmp_path / "dist" / "net-0.0.0-linux-x86-64"
    foreign.mkdir(parents=True)
    (foreign / "thesis.txt").write_text("mine")
    with pytest.raises(UsageError, match="none of edgepack's"):
        build(model, targets=["linux-x86-64"], out=tmp_path / "dist")
    assert (foreign / "thesis.txt").read_text() == "mine"


def test_disk_when_full_while_bundling_leaves_the_old_bundle(tmp_path, monkeypatch):
    model = tiny_models.relu(tmp_path / "net.onnx")
    [built] = build(model, targets=["host"], out=tmp_path / "dist").bundles
    before = tree(tmp_path / "dist")
    real_write = Path.write_bytes

    def full(self, data):
        if self.name == "manifest.json":
            raise OSError(28, "No space left on device")
        return real_write(self, data)

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(ToolError, match="No space left on device"):
        build(model, targets=["host"], out=tmp_path / "dist", use_cache=False)
    monkeypatch.undo()
    assert tree(tmp_path / "dist") == before
    verify(built.bundle.path)


def test_cache_when_the_disk_is_full_is_one_clear_error(tmp_path, monkeypatch):
    from edgepack.builder import cache

    def full(folder):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(cache, "_write_index", full)
    with pytest.raises(EdgepackError, match="No space left on device"):
        build(tiny_models.relu(tmp_path / "n.onnx"), targets=["host"], out=tmp_path / "dist")
    assert not (tmp_path / "dist").exists()


@pytest.fixture(scope="module")
def pristine(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pristine")
    project = tiny_models.write_project(folder)
    return build(project=project, targets=["host"], out=folder / "d", use_cache=False).bundles[0]


@pytest.mark.slow(reason="takes seconds")
def test_verify_when_one_byte_is_flipped_in_any_file_finds_it(pristine, tmp_path):
    for path in sorted(p for p in pristine.bundle.path.rglob("*") if p.is_file()):
        copy = tmp_path / "copy"
        shutil.copytree(pristine.bundle.path, copy)
        target = copy / path.relative_to(pristine.bundle.path)
        data = bytearray(target.read_bytes())
        data[len(data) // 2] ^= 1
        target.write_bytes(data)
        with pytest.raises(BundleError):
            verify(copy)
        shutil.rmtree(copy)


def test_verify_when_a_file_is_added_missing_or_linked_finds_it(pristine, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(pristine.bundle.path, copy)
    (copy / "extra.py").write_text("")
    with pytest.raises(BundleError, match="not in its manifest"):
        verify(copy)
    (copy / "extra.py").unlink()
    model = copy / "models/cpu-fp32.onnx"
    model.rename(tmp_path / "elsewhere.onnx")
    with pytest.raises(BundleError, match="is missing"):
        verify(copy)
    model.symlink_to(tmp_path / "elsewhere.onnx")
    with pytest.raises(BundleError, match="is missing"):
        verify(copy)


def test_verify_when_run_here_proves_the_goldens_of_folder_and_archive(pristine):
    for path in (pristine.bundle.path, pristine.archive):
        checks = verify_here(path).goldens
        assert [check.variant for check in checks] == ["cpu-int8-static", "cpu-fp32"]
        assert all(check.passed for check in checks)


def test_manifest_when_of_another_version_says_so(pristine, tmp_path):
    import hashlib

    copy = tmp_path / "copy"
    shutil.copytree(pristine.bundle.path, copy)
    manifest = json.loads((copy / "manifest.json").read_text())
    text = json.dumps({**manifest, "schema_version": 9}).encode()
    (copy / "manifest.json").write_bytes(text)
    line = f"{hashlib.sha256(text).hexdigest()}  manifest.json\n"
    (copy / "manifest.json.sha256").write_text(line)
    with pytest.raises(BundleError, match="schema version 9"):
        verify(copy)


def test_model_when_only_the_checker_refuses_it_is_built_with_a_note(tmp_path):
    value = (1, [1, 4])
    nodes = [
        onnx.helper.make_node("Relu", ["h"], ["y"], "second"),
        onnx.helper.make_node("Neg", ["x"], ["h"], "first"),
    ]
    model = tiny_models.save(tmp_path / "m.onnx", nodes, [("x", *value)], [("y", *value)])
    result = build(model, targets=["host"], out=tmp_path / "dist")
    steps = result.bundles[0].bundle.manifest.steps
    assert any("onnx.checker refuses the model" in line for line in steps)


def test_cache_when_a_kept_model_changes_is_noticed_and_not_shipped(tmp_path, own_home):
    model = tiny_models.relu(tmp_path / "net.onnx")
    build(model, targets=["host"], out=tmp_path / "a")
    for kept in (own_home / ".cache").rglob("model.onnx"):
        data = bytearray(kept.read_bytes())
        data[-1] ^= 1
        kept.write_bytes(data)
    with pytest.raises(EdgepackError, match="the cache is damaged"):
        build(model, targets=["host"], out=tmp_path / "b")
    assert not list((tmp_path / "b").glob("*"))
    assert build(model, targets=["host"], out=tmp_path / "b", use_cache=False).bundles


def test_cache_when_a_kept_model_cannot_be_read_says_that_the_cache_is_damaged(tmp_path, own_home):
    model = tiny_models.conv_net(tmp_path / "net.onnx", batch=1)
    build(model, targets=["nvidia"], variants=["cpu-fp32"], out=tmp_path / "a")
    for kept in (own_home / ".cache").rglob("model.onnx"):
        kept.write_bytes(b"\xff" * kept.stat().st_size)
    with pytest.raises(EdgepackError, match="the cache is damaged"):
        build(model, targets=["nvidia"], variants=["cuda-fp16"], out=tmp_path / "b")


def test_cache_when_an_entry_is_cut_off_is_made_again(tmp_path, own_home):
    model = tiny_models.relu(tmp_path / "net.onnx")
    first = build(model, targets=["host"], out=tmp_path / "a").bundles[0]
    for kept in (own_home / ".cache").rglob("model.onnx"):
        kept.write_bytes(kept.read_bytes()[:-1])
    again = build(model, targets=["host"], out=tmp_path / "b")
    assert again.from_cache < again.steps
    assert again.bundles[0].bundle.digest == first.bundle.digest


@pytest.mark.slow(reason="builds twice at a time")
def test_builds_when_run_at_the_same_time_agree(tmp_path):
    import subprocess
    import sys

    project = tiny_models.write_project(tmp_path)
    argv = [sys.executable, "-m", "edgepack", "build", "--project", str(project)]
    argv += ["--target", "host", "--out"]
    running = [
        subprocess.Popen([*argv, str(tmp_path / f"d{n}")], stderr=subprocess.PIPE, stdout=-3)
        for n in range(2)
    ]
    said = [child.communicate()[1] for child in running]
    assert [child.returncode for child in running] == [0, 0], said
    archives = [next((tmp_path / f"d{n}").glob("*.tar.gz")).read_bytes() for n in range(2)]
    assert archives[0] == archives[1]
