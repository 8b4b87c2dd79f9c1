"""Every target's own truth, seen in what a build makes for it."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from edgepack.base.machine import find_processor
from edgepack.base.progress import Silent
from edgepack.builder import planner
from edgepack.builder.build import build, dry_run
from edgepack.builder.cache import StepCache
from edgepack.builder.execution import execute
from edgepack.builder.inspect import inspect
from edgepack.bundle.manifest import MANIFEST, MANIFEST_DIGEST
from edgepack.bundle.reading import verify
from edgepack.cli.main import run
from edgepack.errors import BundleError, ModelError, StepError
from edgepack.model.facts import find_default_opset
from edgepack.model.reading import read_outline
from edgepack.project.profile import Dialect, OrtFormat, find_target_files, load_profile
from edgepack.steps.base import narrow_step
from edgepack.steps.recipes.fp16 import Fp16
from edgepack.steps.recipes.int8_static import Int8Static
from edgepack.trying.verify import verify as verify_here
from onnx import helper

from tests.support.nets import int8_nets, tiny_models
from tests.support.slow_cases import slow_after

FIXED = "dims: {batch: 1}"


EVERYDAY = ["android-nnapi", "jetson", "linux-x86-64"]


@pytest.fixture(scope="module")
def bundles(tmp_path_factory):
    """A bundle for each target, with all its variants: phones get two by default.

    Each is made when it is first looked up.
    """
    folder: Path = tmp_path_factory.mktemp("targets")
    phones = [load_profile(target) for target in find_target_files()]
    named = [
        {"id": p.id, "variants": [v.model_dump(exclude_none=True) for v in p.variants]}
        for p in phones
        if p.bundle is not None
    ]
    project = tiny_models.write_project(folder, f"{FIXED}\ntargets: {json.dumps(named)}")

    class Bundles(dict):
        def __missing__(self, target):
            result = build(project=project, targets=[target], out=folder / "dist")
            result.require_all()
            self[target] = result.bundles[0].bundle
            return self[target]

    return Bundles()


def model_of(bundle, variant_id: str) -> onnx.ModelProto:
    [variant] = [v for v in bundle.manifest.variants if v.id == variant_id]
    return onnx.load(bundle.path / variant.model)


def ops(model: onnx.ModelProto) -> set[str]:
    return {node.op_type for node in model.graph.node}


def zero_points(model: onnx.ModelProto) -> list[np.ndarray]:
    constants = {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}
    return [constants[n.input[2]] for n in model.graph.node if n.op_type == "QuantizeLinear"]


@pytest.mark.parametrize(
    "target",
    slow_after(len(EVERYDAY), [*EVERYDAY, *sorted(find_target_files().keys() - set(EVERYDAY))]),
)
def test_target_when_built_is_a_bundle_that_verifies_here(bundles, target):
    bundle = bundles[target]
    manifest = verify(bundle.path).manifest
    ids = [variant.id for variant in manifest.variants]
    known = [variant.id for variant in load_profile(target).variants]
    assert ids == [name for name in known if name in ids]
    assert "cpu-int8-static" in ids
    assert {*ids, *(left.variant for left in manifest.unused)} == set(known)
    checks = {check.variant: check for check in verify_here(bundle.path).goldens}
    assert checks["cpu-int8-static"].passed
    assert checks["cpu-fp32"].passed


def test_bundle_when_built_says_which_files_are_in_ort_format_and_for_which_processors(bundles):
    form = {v.id: v.model_format for v in bundles["android-nnapi"].manifest.variants}
    assert form["cpu-int8-static"] == OrtFormat(ort="fixed", platform="arm")
    assert form["cpu-fp32"] == "onnx"


def spoiled(bundle, folder: Path, variant_id: str) -> Path:
    """Copy a bundle, and let a variant need more than equal outputs have."""
    shutil.copytree(bundle.path, folder)
    path = folder / MANIFEST
    manifest = json.loads(path.read_text())
    for variant in manifest["variants"]:
        if variant["id"] == variant_id:
            variant["min_sqnr_db"] = 201.0
    path.write_text(json.dumps(manifest))
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    (folder / MANIFEST_DIGEST).write_text(f"{digest}  {MANIFEST}\n")
    return folder


def test_verify_when_int8_for_arm_misses_its_goldens_blames_it_only_where_it_could_be_exact(
    bundles, tmp_path
):
    folder = spoiled(bundles["android-nnapi"], tmp_path / "copy", "cpu-int8-static")
    if find_processor() == "x86-64":
        checks = {check.variant: check for check in verify_here(folder).goldens}
        assert checks["cpu-int8-static"].passed is None
        assert "saturate on x86-64 without VNNI" in checks["cpu-int8-static"].outcome
    else:
        with pytest.raises(BundleError, match="201"):
            verify_here(folder)


@pytest.mark.slow(reason="builds for a target")
def test_verify_when_a_variant_misses_its_goldens_names_the_runtime_that_the_bundle_is_for(
    bundles, tmp_path
):
    folder = spoiled(bundles["android-nnapi"], tmp_path / "copy", "cpu-fp32")
    with pytest.raises(BundleError, match="201") as caught:
        verify_here(folder)
    assert "onnxruntime-android 1.29.0" in caught.value.hint


@pytest.mark.parametrize(("processor", "is_run"), [("x86-64", False), ("x86-64-vnni", True)])
def test_plan_when_int8_for_arm_saturates_here_proves_the_onnx_that_the_file_is_made_of(
    tmp_path, monkeypatch, processor, is_run
):
    monkeypatch.setattr(planner, "find_processor", lambda: processor)
    as_file = "model_format: {ort: fixed, platform: arm}"
    variants = ", ".join(
        f"{{backend: cpu, recipe: {recipe}, {as_file}}}" for recipe in ("int8-static", "fp32")
    )
    keys = f"{FIXED}\ntargets: [{{id: android-nnapi, variants: [{variants}]}}]"
    plan = dry_run(project=tiny_models.write_project(tmp_path, keys))
    (bundle,) = plan.bundles
    steps = {step.id: step for step in plan.steps}
    for variant, expected in zip(bundle.variants, (is_run, True), strict=True):
        goldens, evaluation = steps[variant.goldens], steps[variant.evaluation]
        assert (goldens.inputs.get("shipped") == variant.shipped) == expected
        assert (evaluation.inputs["model"] == variant.shipped) == expected
        assert goldens.inputs["model"] == variant.model != variant.shipped


def test_readme_when_two_providers_come_from_one_build_has_its_commands_once(bundles):
    readme = (bundles["jetson"].path / "README.md").read_text()
    assert readme.count("edgepack runtime build jetson") == 1
    assert "**CUDAExecutionProvider.**" in readme


def test_readme_when_followed_leaves_the_bundle_as_it_was(bundles, tmp_path):
    folder = tmp_path / "copy"
    shutil.copytree(bundles["linux-x86-64"].path, folder)
    readme = (folder / "README.md").read_text()
    example = readme.split("```python\n")[1].split("```")[0]
    assert "`python3 -B`" in readme
    subprocess.run([sys.executable, "-B", "-c", example], cwd=folder, check=True)
    verify(folder)


def test_jetson_when_built_has_files_that_its_runtime_loads_and_says_where_it_comes_from(bundles):
    bundle = bundles["jetson"]
    for variant in bundle.manifest.variants:
        model = onnx.load(bundle.path / variant.model)
        assert model.ir_version <= 11
        assert max(entry.version for entry in model.opset_import) <= 22
    zeros = zero_points(model_of(bundle, "tensorrt-int8-static"))
    assert {zero.dtype.name for zero in zeros} == {"int8"}
    assert not any(zero.any() for zero in zeros)
    by_id = {variant.id: variant for variant in bundle.manifest.variants}
    assert by_id["tensorrt-fp16"].model == by_id["cuda-fp16"].model
    readme = (bundle.path / "README.md").read_text()
    assert "edgepack runtime build jetson" in readme
    assert "onnxruntime==1.23.2" in (bundle.path / "requirements.txt").read_text()
    sources = bundle.manifest.provider_sources
    assert "No wheel on PyPI" in sources["TensorrtExecutionProvider"].about


def test_ios_when_built_has_models_that_coreml_takes_whole(bundles):
    bundle = bundles["ios"]
    keys = set()
    for name in ("coreml-fp16", "coreml-fp32"):
        model = model_of(bundle, name)
        assert not ops(model) & {"Flatten", "BatchNormalization", "QuantizeLinear"}
        [key] = [entry.value for entry in model.metadata_props if entry.key == "COREML_CACHE_KEY"]
        assert key.isalnum()
        assert len(key) <= 64
        keys.add(key)
    assert len(keys) == 2


def test_android_when_a_dimension_is_not_fixed_says_so_and_leaves_nnapi_out(tmp_path):
    project = tiny_models.write_project(tmp_path)
    [made] = build(project=project, targets=["android-nnapi"], out=tmp_path / "dist").bundles
    left = {left.variant: left.reason for left in made.bundle.manifest.unused}
    assert "NnapiExecutionProvider would take 0%" in left["nnapi-int8-static"]
    assert "batch" in left["nnapi-int8-static"]
    assert "dims" in left["nnapi-int8-static"]


def test_android_when_built_has_ort_files_and_what_a_reduced_runtime_needs(bundles):
    bundle = bundles["android-nnapi"]
    by_id = {variant.id: variant for variant in bundle.manifest.variants}
    assert by_id["cpu-int8-static"].model == "models/cpu-int8-static.ort"
    config = (bundle.path / "models/required_operators.config").read_text()
    assert "QLinearConv" in config
    assert "--minimal_build" in (bundle.path / "README.md").read_text()


def test_android_when_built_has_an_int8_model_in_the_dialect_of_nnapi(bundles):
    bundle = bundles["android-nnapi"]
    zeros = zero_points(model_of(bundle, "nnapi-int8-static"))
    assert {zero.dtype.name for zero in zeros} == {"uint8"}
    [variant] = [v for v in bundle.manifest.variants if v.id == "nnapi-int8-static"]
    assert 0.5 <= variant.predicted.share < 1


def test_qnn_when_built_has_sixteen_bit_activations_in_one_variant(bundles):
    bundle = bundles["android-qnn"]
    zeros = zero_points(model_of(bundle, "qnn-int8-static-u16"))
    assert "uint16" in {zero.dtype.name for zero in zeros}


def test_qnn_when_built_names_the_library_that_it_loads_of_the_system(bundles):
    manifests = {
        target: (bundles[target].path / "src" / "main" / "AndroidManifest.xml").read_text()
        for target in ("android-nnapi", "android-qnn", "android")
    }
    assert {t: "libcdsprpc.so" in text for t, text in manifests.items()} == {
        "android": True,
        "android-nnapi": False,
        "android-qnn": True,
    }


def test_target_when_no_provider_takes_the_model_has_no_bundle_and_names_the_nodes(
    tmp_path, capsys
):
    tiny_models.write_project(
        tmp_path, "targets: [{id: android-nnapi, variants: [{backend: nnapi, recipe: fp32}]}]"
    )
    project, out = tmp_path / "edgepack.yaml", tmp_path / "dist"
    result = build(project=project, out=out)
    assert result.bundles == ()
    with pytest.raises(ModelError, match="'conv' ") as caught:
        result.require_all()
    assert "batch" in caught.value.problem
    assert not out.exists()
    assert run(["build", "--project", str(project), "--out", str(out)]) == 4
    assert "'conv'" in capsys.readouterr().err


def test_variant_when_it_cannot_be_made_leaves_the_others_and_the_exit_code_tells(tmp_path, capsys):
    tiny_models.write_project(tmp_path)
    value = (1, ["batch", 3, 8, 8])
    nodes = [helper.make_node("Sin", ["image"], ["y"], "sin")]
    tiny_models.save(tmp_path / "net.onnx", nodes, [("image", *value)], [("y", *value)])
    arguments = ["build", "--project", str(tmp_path / "edgepack.yaml"), "--target", "host"]
    arguments += ["--out", str(tmp_path / "dist")]
    assert run(arguments) == 0
    assert "failed cpu-int8-static: " in capsys.readouterr().out
    assert run([*arguments, "--variant", "cpu-int8-static", "--variant", "cpu-fp32"]) == 6
    said = capsys.readouterr()
    assert "cpu-fp32" in said.out
    assert "cpu-int8-static: " in said.err
    assert "written: " in said.err


def test_opset_when_a_targets_runtime_is_older_is_lowered_for_that_target_only(tmp_path):
    model = tiny_models.relu(tmp_path / "net.onnx", opset=24, ir=10)
    result = build(model, targets=["jetson", "linux-aarch64"], out=tmp_path / "dist")
    result.require_all()
    opsets = {}
    for built in result.bundles:
        manifest = built.bundle.manifest
        variant = manifest.find_variant("cpu-fp32")
        opsets[manifest.target] = find_default_opset(
            read_outline(built.bundle.path / variant.model)
        )
        lowered = [step for step in manifest.steps if "opset 24 converted to 22" in step]
        assert len(lowered) == (manifest.target == "jetson")
    assert opsets == {"jetson": 22, "linux-aarch64": 24}


def test_opset_when_it_cannot_be_lowered_keeps_that_target_out_only(tmp_path):
    """RMSNormalization is an operator from opset 23 on."""
    value = (1, [2, 4])
    node = helper.make_node("RMSNormalization", ["x", "scale"], ["y"], "norm")
    scale = [("scale", np.ones(4, np.float32))]
    model = tiny_models.save(
        tmp_path / "net.onnx", [node], [("x", *value)], [("y", *value)], scale, opset=23, ir=10
    )
    result = build(model, targets=["jetson", "linux-aarch64"], out=tmp_path / "dist")
    assert [b.bundle.manifest.target for b in result.bundles] == ["linux-aarch64"]
    with pytest.raises(StepError, match="from opset 23 to 22: it has no way for RMSNorm") as caught:
        result.require_all()
    assert "jetson" in caught.value.problem


def test_inspect_when_targets_are_given_names_nodes_reasons_and_remedies(tmp_path, capsys):
    project = tiny_models.write_project(tmp_path, "targets: [android-nnapi, ios, jetson]")
    found = {(v.target, v.variant): v for v in inspect(project=project).variants}
    nnapi = found["android-nnapi", "nnapi-int8-static"]
    assert (nnapi.taken, nnapi.unused.stage) == (0, "refused")
    assert {finding.severity for finding in nnapi.findings} == {"blocks"}
    assert all(finding.reason and finding.remedy for finding in nnapi.findings)
    assert any("'conv'" in finding.node for finding in nnapi.findings)
    assert found["ios", "coreml-fp16"].unused is None
    tensorrt = found["jetson", "tensorrt-int8-static"]
    assert tensorrt.taken == tensorrt.nodes > 0
    assert run(["inspect", "--project", str(project)]) == 0
    said = capsys.readouterr().out
    assert "android-nnapi nnapi-int8-static: 0 of" in said
    assert "refused: NnapiExecutionProvider takes 0% of the nodes, " in said


@pytest.mark.slow(reason="takes seconds")
def test_inspect_when_targets_share_their_making_finds_what_it_finds_for_each_alone(tmp_path):
    project = tiny_models.write_project(tmp_path, FIXED)
    names = ["jetson", "jetson-jp7", "intel", "raspberry-pi-xnnpack", "android-xnnpack"]
    together = inspect(project=project, targets=names).variants
    alone = [v for name in names for v in inspect(project=project, targets=[name]).variants]
    assert list(together) == alone


@pytest.mark.slow(reason="takes seconds")
def test_inspect_when_dimensions_are_fixed_agrees_with_the_build(tmp_path):
    project = tiny_models.write_project(tmp_path, FIXED)
    names = ["android", "ios", "intel", "raspberry-pi-acl"]
    found = {(v.target, v.variant): v for v in inspect(project=project, targets=names).variants}
    result = build(project=project, targets=names, out=tmp_path / "dist")
    compared = 0
    for bundle in result.bundles:
        manifest = bundle.bundle.manifest
        for variant in manifest.variants:
            if variant.predicted:
                seen = found[manifest.target, variant.id]
                assert (seen.nodes, seen.partitions) == (
                    variant.predicted.nodes,
                    variant.predicted.partitions,
                )
                assert seen.taken / seen.nodes == pytest.approx(variant.predicted.share)
                compared += 1
    assert compared >= 5


def test_all_when_built_together_shares_preparation_and_calibration(tmp_path):
    from collections import Counter

    from edgepack.builder.build import dry_run

    project = tiny_models.write_project(tmp_path, FIXED)
    plan = dry_run(project=project, targets=["all"])
    counts = Counter(step.step.name for step in plan.steps)
    assert len(plan.bundles) == len(find_target_files())
    assert (counts["prepared"], counts["simplified"]) == (1, 1)
    # Operators of every type are quantized for QNN alone.
    observed = [s.step.every_op for s in plan.steps if s.step.name == "calibration"]  # type: ignore[attr-defined]
    assert sorted(observed) == [False, True]


@pytest.mark.slow(reason="builds twice")
def test_rebuild_when_one_profile_changes_redoes_only_what_it_touches(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    project = tiny_models.write_project(tmp_path, FIXED)
    names = ["raspberry-pi", "intel", "linux-x86-64"]
    first = build(project=project, targets=names, out=tmp_path / "a")
    (tmp_path / "targets").mkdir()
    text = find_target_files()["intel"].read_text()
    changed = text.replace("per_channel: true", "per_channel: false", 1)
    (tmp_path / "targets/intel.yaml").write_text(changed)
    again = build(project=project, targets=names, out=tmp_path / "b")
    redone = again.steps - again.from_cache
    # The one int8 model of OpenVINO: quantized, judged, its layers' errors, those on
    # inputs that no sample shows, placed, its goldens.
    assert 0 < redone <= 6
    assert first.steps == again.steps
    assert (tmp_path / "a/net-1.2.3-raspberry-pi.tar.gz").read_bytes() == (
        tmp_path / "b/net-1.2.3-raspberry-pi.tar.gz"
    ).read_bytes()


@pytest.mark.slow(reason="quantizes for two targets")
@pytest.mark.parametrize(("ir", "same"), [(8, True), (11, False)])
def test_targets_that_ask_the_same_of_a_model_have_it_quantized_once(tmp_path, ir, same):
    project = tiny_models.write_project(tmp_path, FIXED)
    model = onnx.load(tmp_path / "net.onnx")
    model.ir_version = ir
    onnx.save(model, tmp_path / "net.onnx")
    # Their runtimes load up to IR 13 and 10.
    plan = dry_run(project=project, targets=["linux-aarch64", "raspberry-pi-xnnpack"])
    ids = [step.id for step in plan.steps if step.step.name == "int8-static" and step.step.cpu]  # type: ignore[attr-defined]
    assert len(ids) == 2
    wanted = plan.only(ids)
    done = execute(wanted, cache=StepCache(tmp_path / "steps"), jobs=2, progress=Silent())
    one, two = (done.artifacts[each].path for each in ids)
    assert (one == two) is same
    assert [onnx.load(each / "model.onnx").ir_version for each in (one, two)] == [ir, min(ir, 10)]


@pytest.mark.parametrize(("ops", "kept"), [(("Conv", "STFT"), ("Conv",)), (("STFT",), ())])
def test_rules_for_operators_that_a_model_lacks_decide_nothing(tmp_path, ops, kept):
    model = onnx.load(tiny_models.conv_net(tmp_path / "model.onnx"))
    model.ir_version = 9
    onnx.save(model, tmp_path / "model.onnx")
    dialect = Dialect(activations="uint8", weights="int8", symmetric=False, per_channel=True)
    quantized = narrow_step(Int8Static(dialect, 13, per_tensor_ops=ops), {"model": tmp_path})
    assert quantized == Int8Static(dialect, 9, per_tensor_ops=kept)
    assert narrow_step(Fp16(8, ops), {"model": tmp_path}) == Fp16(8, kept)


@pytest.mark.parametrize("recipe", ["fp16", "int8-static"])
def test_model_of_ir_3_whose_weights_are_constants_is_written_as_ir_4(tmp_path, recipe):
    net = tiny_models.conv_net(tmp_path / "net.onnx", batch=1)
    model = onnx.load(net)
    nodes = [
        helper.make_node("Constant", [], [tensor.name], value=tensor)
        for tensor in model.graph.initializer
    ]
    model.graph.node.MergeFrom(nodes)
    model.graph.node.sort(key=lambda node: node.op_type != "Constant")
    del model.graph.initializer[:]
    model.ir_version = 3
    onnx.save(model, net)
    feeds = [{"image": tiny_models.images(1, seed)} for seed in range(4)]
    inputs = int8_nets.calibrated(tmp_path, net, feeds, simplify=False)
    dialect = Dialect(activations="uint8", weights="int8", symmetric=False, per_channel=True)
    step = {"fp16": Fp16(10, ()), "int8-static": Int8Static(dialect, 10)}[recipe]
    int8_nets.run(narrow_step(step, inputs), inputs, tmp_path / "out")
    assert onnx.load(tmp_path / "out" / "model.onnx").ir_version == 4
