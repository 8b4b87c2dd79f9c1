"""Custom operators: a library of the user's own, in a build, in its bundles and on a device."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from edgepack.builder.build import build, dry_run
from edgepack.builder.custom_ops import find_machine
from edgepack.builder.inspect import inspect
from edgepack.builder.pipelines import build_pipeline
from edgepack.bundle.reading import verify as verify_files
from edgepack.devices.inventory import load_device
from edgepack.errors import ModelError, ProfileError
from edgepack.measure.bench.run import bench
from edgepack.measure.evaluate.evaluate import evaluate
from edgepack.project.profile import find_host_target
from edgepack.trying.trying import try_bundle
from edgepack.trying.verify import verify
from onnx import TensorProto, helper

from tests.support.nets import custom_ops
from tests.support.nets.custom_ops import compile_library, write_other_machine, write_project
from tests.support.nets.tiny_models import save
from tests.support.reports.tiny_bundle import change_manifest

HERE = find_machine()
if not HERE.startswith("linux-"):
    pytest.skip("libraries of custom operators are for Linux", allow_module_level=True)
ELSEWHERE = "linux-aarch64" if HERE == "linux-x86-64" else "linux-x86-64"
CROSS = {"linux-aarch64": "aarch64-linux-gnu-gcc", "linux-x86-64": "x86_64-linux-gnu-gcc"}[
    ELSEWHERE
]
"""Debian's compiler for the other machine; without it, a library says it is for that one."""
MACHINE = {"linux-aarch64": 183, "linux-x86-64": 62}[ELSEWHERE]
BOTH = f"custom_ops: {{{HERE}: libbend.so, {ELSEWHERE}: other/libbend.so}}"
ONE = f"custom_ops: {{{HERE}: libbend.so}}"
SHIPPED = ("cpu-int8-static", "cpu-fp32")


def write_libraries(folder: Path, *arguments: str) -> Path:
    library = compile_library(folder / "libbend.so", *arguments)
    (folder / "other").mkdir(exist_ok=True)
    if shutil.which(CROSS):
        compile_library(folder / "other/libbend.so", *arguments, compiler=CROSS)
    else:
        write_other_machine(library, folder / "other/libbend.so", MACHINE)
    return library


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    folder = tmp_path_factory.mktemp("library")
    write_libraries(folder)
    return folder


@pytest.fixture(scope="module")
def built(compiled, tmp_path_factory):
    """A project with the operators, and the bundle for this machine, which one build made."""
    folder = tmp_path_factory.mktemp("built")
    shutil.copytree(compiled, folder, dirs_exist_ok=True)
    project = write_project(folder, BOTH)
    [made] = build(project=project, targets=["host"], out=folder / "dist", use_cache=False).bundles
    return project, made.bundle


def bend(x, by):
    return np.where(x > 0, x, np.float32(by) * x)


def compute(model, x):
    """What the net computes, by numpy: convolutions as sums of shifted products."""
    weights = {t.name: onnx.numpy_helper.to_array(t) for t in onnx.load(model).graph.initializer}

    def convolve(x, w):
        padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
        height, width = x.shape[2:]
        shifted = [
            np.einsum("nchw,oc->nohw", padded[:, :, i : i + height, j : j + width], w[:, :, i, j])
            for i in range(3)
            for j in range(3)
        ]
        return np.sum(shifted, axis=0)

    first = bend(convolve(x, weights["w1"]) + weights["b1"][:, None, None], 0.1)
    second = bend(convolve(first, weights["w2"]), 0.25)
    return second.mean(axis=(2, 3)) @ weights["w3"]


def test_build_ships_the_libraries_of_all_machines_with_their_hashes(built, compiled):
    _, bundle = built
    listed = bundle.manifest.custom_ops
    assert listed == {each: f"custom_ops/{each}/libbend.so" for each in (HERE, ELSEWHERE)}
    files = {file.path: file for file in bundle.manifest.files}
    assert {files[path].role for path in listed.values()} == {"library"}
    assert (bundle.path / listed[HERE]).read_bytes() == (compiled / "libbend.so").read_bytes()
    assert tuple(each.id for each in bundle.manifest.variants) == SHIPPED
    verify_files(bundle.path)
    sbom = json.loads((bundle.path / "sbom.cdx.json").read_text())
    parts = {part["name"]: part for part in sbom["components"]}
    assert parts[listed[HERE]]["type"] == "library"
    assert parts[listed[HERE]]["hashes"][0]["content"] == files[listed[HERE]].sha256


def test_int8_model_leaves_custom_nodes_as_they_are(built):
    project, bundle = built
    nodes = onnx.load(bundle.path / "models/cpu-int8-static.onnx").graph.node
    own = [node for node in nodes if node.domain == custom_ops.DOMAIN]
    source = [n for n in onnx.load(project.with_name("net.onnx")).graph.node if n.domain]
    assert [(n.op_type, n.attribute) for n in own] == [(n.op_type, n.attribute) for n in source]
    makers = {name: node for node in nodes for name in node.output}
    assert {makers[node.input[0]].op_type for node in own} == {"DequantizeLinear"}
    assert any(node.op_type == "QuantizeLinear" for node in nodes)


def run_in_bundle(folder: Path, *lines: str) -> subprocess.CompletedProcess[str]:
    """Run Python as a program that uses a bundle does, without edgepack."""
    code = "\n".join(("from edgepack_loader import load", "import numpy as np", *lines))
    argv = [sys.executable, "-B", "-c", code]
    return subprocess.run(argv, cwd=folder, capture_output=True, text=True, check=False)


def test_loader_computes_what_numpy_computes(built, tmp_path):
    project, bundle = built
    x = np.random.default_rng(7).standard_normal((1, 3, 8, 8)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    done = run_in_bundle(
        bundle.path,
        f"y = load(variant='cpu-fp32')({{'x': np.load({str(tmp_path / 'x.npy')!r})}})['y']",
        f"np.save({str(tmp_path / 'y.npy')!r}, y)",
    )
    assert done.returncode == 0, done.stderr
    wanted = compute(project.with_name("net.onnx"), x)
    np.testing.assert_allclose(np.load(tmp_path / "y.npy"), wanted, rtol=1e-4, atol=1e-5)


def test_verify_and_try_run_a_bundle_with_custom_operators(built, tmp_path):
    _, bundle = built
    assert [check.passed for check in verify(bundle.path).goldens] == [True, True]
    np.savez(tmp_path / "one.npz", x=np.ones((1, 3, 8, 8), np.float32))
    tried = try_bundle(bundle.path, [str(tmp_path / "one.npz")])
    assert {column.variant: column.words for column in tried.columns} == dict.fromkeys(SHIPPED, "")


def without_own_library(bundle, folder: Path) -> Path:
    shutil.copytree(bundle.path, folder)
    change_manifest(folder, lambda manifest: manifest["custom_ops"].pop(HERE))
    return folder


def test_verify_where_the_bundle_has_no_library_for_the_machine_proves_nothing(built, tmp_path):
    checks = verify(without_own_library(built[1], tmp_path / "copy")).goldens
    assert [check.passed for check in checks] == [None, None]
    assert f"not run here: the bundle has its custom operators for {ELSEWHERE}" in checks[0].outcome


def test_loader_refuses_where_the_bundle_has_no_library_for_the_machine(built, tmp_path):
    done = run_in_bundle(without_own_library(built[1], tmp_path / "copy"), "load()")
    assert f"custom operators for {ELSEWHERE}, not for {HERE}" in done.stderr
    assert done.returncode == 1


def test_loader_says_why_the_library_does_not_load_on_a_device(built, tmp_path):
    folder = tmp_path / "copy"
    shutil.copytree(built[1].path, folder)
    broken = write_needing(tmp_path, "GLIBC_9.99")
    shutil.copy(broken, folder / built[1].manifest.custom_ops[HERE])
    done = run_in_bundle(folder, "load()")
    assert "the library of its custom operators does not load" in done.stderr
    assert "version `GLIBC_9.99' not found" in done.stderr


def write_needing(folder: Path, version: str) -> Path:
    """Write a library that needs a version of another one's symbols that is not there."""
    needed = write_needed(folder, version)
    found = write_stub(folder, str(needed), f"-Wl,-rpath,{folder}")
    write_needed(folder, "GLIBC_2.0")
    return found


def write_needed(folder: Path, version: str) -> Path:
    (folder / "versions").write_text(f"{version} {{ global: missing; }};\n")
    (folder / "missing.c").write_text("int missing(void) { return 0; }\n")
    script = f"-Wl,--version-script={folder / 'versions'}"
    return compile_library(folder / "libneeded.so", script, source=folder / "missing.c")


def write_stub(folder: Path, *arguments: str) -> Path:
    source = folder / "stub.c"
    source.write_text("int missing(void);\nint RegisterCustomOps(void) { return missing(); }\n")
    return compile_library(folder / "libstub.so", *arguments, source=source)


def refuse(project: Path, **options) -> ProfileError:
    with pytest.raises(ProfileError) as caught:
        dry_run(project=project, targets=["host"], **options)
    return caught.value


def test_library_that_needs_a_newer_libc_is_refused_once(tmp_path):
    write_needing(tmp_path, "GLIBC_9.99").rename(tmp_path / "libbend.so")
    error = refuse(write_project(tmp_path, ONE))
    assert "does not load here" in error.problem
    assert error.hint.endswith("GLIBC_9.99 is not here")
    assert error.where.endswith(":6:14")


def test_library_that_needs_what_is_missing_is_refused_with_its_name(tmp_path):
    (tmp_path / "missing.c").write_text("int missing(void) { return 0; }\n")
    needed = compile_library(tmp_path / "libneeded.so", source=tmp_path / "missing.c")
    write_stub(tmp_path, "-L", str(tmp_path), "-l:libneeded.so").rename(tmp_path / "libbend.so")
    needed.unlink()
    assert (
        "libneeded.so: cannot open shared object file"
        in refuse(write_project(tmp_path, ONE)).problem
    )


def test_library_with_an_undefined_symbol_is_refused_with_its_name(tmp_path):
    write_stub(tmp_path, "-Wl,-z,now").rename(tmp_path / "libbend.so")
    error = refuse(write_project(tmp_path, ONE))
    assert error.problem.endswith("undefined symbol: missing")
    assert "link" in error.hint


def test_library_that_ends_its_process_is_refused_with_what_it_said(tmp_path):
    """One for a newer onnxruntime gets no API, and uses it all the same."""
    compile_library(tmp_path / "libbend.so", "-DAPI=1000")
    error = refuse(write_project(tmp_path, ONE))
    assert "ends the process that loads it" in error.problem
    assert "API version [1000] is not available" in error.problem


def write_nothing(path: Path) -> None:
    path.with_suffix(".c").write_text("int nothing;\n")
    compile_library(path, source=path.with_suffix(".c"))


@pytest.mark.parametrize(
    ("write", "why"),
    [
        (lambda path: path.write_text("no library"), "it is no ELF file"),
        (write_nothing, "it does not export the function RegisterCustomOps"),
        (lambda path: None, "cannot be read: No such file"),
        (lambda path: path.mkdir(), "cannot be read: Is a directory"),
    ],
)
def test_file_that_is_no_such_library_is_refused(tmp_path, write, why):
    write(tmp_path / "libbend.so")
    error = refuse(write_project(tmp_path, ONE))
    assert why in error.problem
    assert error.where.endswith(":6:14")


def test_library_of_another_architecture_is_refused(tmp_path, compiled):
    shutil.copy(compiled / "other/libbend.so", tmp_path / "libbend.so")
    assert "it is built for" in refuse(write_project(tmp_path, ONE)).problem


def test_library_for_a_machine_that_there_is_none_for_is_refused(tmp_path):
    error = refuse(write_project(tmp_path, "custom_ops: {linux-x86_64: libbend.so}"))
    assert error.problem == "there are no libraries for 'linux-x86_64'"
    assert error.hint == "one of linux-x86-64, linux-aarch64"


def test_project_without_a_library_for_the_build_host_is_refused(tmp_path, compiled):
    shutil.copy(compiled / "other/libbend.so", tmp_path)
    error = refuse(write_project(tmp_path, f"custom_ops: {{{ELSEWHERE}: libbend.so}}"))
    assert f"this machine, {HERE}, and custom_ops has no library for it" in error.problem
    assert HERE in error.hint


def test_model_without_its_library_is_told_where_to_name_it(tmp_path):
    write_project(tmp_path)
    with pytest.raises(ModelError, match=r"custom operators, of 'test\.bend'") as caught:
        build(tmp_path / "net.onnx", targets=["host"], variants=["cpu-fp32"], out=tmp_path / "d")
    assert "custom_ops" in caught.value.hint


def test_operator_that_the_library_lacks_is_named(tmp_path, compiled):
    shutil.copytree(compiled, tmp_path, dirs_exist_ok=True)
    project = write_project(tmp_path, ONE, op="Twist")
    [blocked] = [f for f in inspect(project=project).findings if f.severity == "blocks"]
    assert "libbend.so does not register test.bend:Twist (nodes 'bend1', 'bend2')" in blocked.reason


@pytest.mark.parametrize(
    ("target", "why"),
    [
        ("android", "an app brings its native libraries with itself"),
        ("ios", "no library that it was not signed with"),
        ("web", "WebAssembly, which loads no library"),
        ("macos-arm64", "macOS loads .dylib files"),
        (
            "linux-aarch64" if HERE == "linux-x86-64" else "linux-x86-64",
            "custom_ops has no library",
        ),
    ],
)
def test_plan_for_another_kind_of_target_leaves_all_variants_out_and_says_why(
    tmp_path, compiled, target, why
):
    shutil.copytree(compiled, tmp_path, dirs_exist_ok=True)
    plan = dry_run(project=write_project(tmp_path, ONE), targets=[target])
    [bundle] = plan.bundles
    assert not bundle.variants
    assert all(why in unused.reason for unused in bundle.unused)


def test_plan_of_an_ort_file_is_refused_with_the_reason(tmp_path, compiled):
    shutil.copytree(compiled, tmp_path, dirs_exist_ok=True)
    variants = "[{backend: cpu, recipe: fp32, optimized: true}]"
    targets = f"targets: [{{id: {find_host_target()}, variants: {variants}}}]"
    [bundle] = dry_run(project=write_project(tmp_path, ONE, targets)).bundles
    assert "not put into .ort files" in bundle.unused[0].reason


def test_build_after_the_library_changed_proves_all_anew(tmp_path, compiled):
    """Neither the model nor a setting says that the operator computes something else."""
    shutil.copytree(compiled, tmp_path, dirs_exist_ok=True)
    project = write_project(tmp_path, ONE)
    asked = {"project": project, "targets": ["host"], "variants": ["cpu-fp32"]}
    [before] = build(**asked, out=tmp_path / "dist").bundles
    first = read_golden(before.bundle)
    write_libraries(tmp_path, "-DSCALE=3.0f")
    changed = build(**asked, out=tmp_path / "dist")
    assert changed.from_cache == 0
    assert np.abs(read_golden(changed.bundles[0].bundle) - first).max() > 0.1


def read_golden(bundle) -> np.ndarray:
    [tensor] = bundle.manifest.goldens[0].outputs["cpu-fp32"]
    return np.frombuffer((bundle.path / tensor.path).read_bytes(), np.float32)


def test_shapes_that_the_library_says_let_a_provider_take_the_nodes_after(tmp_path):
    taken = []
    for arguments in ((), ("-DSHAPES",)):
        write_libraries(tmp_path, *arguments)
        project = write_project(tmp_path, BOTH)
        found = inspect(project=project, targets=["raspberry-pi-xnnpack"]).variants
        [variant] = [each for each in found if each.variant == "xnnpack-fp32"]
        refused = {finding.node: finding.reason for finding in variant.findings}
        assert "no kernel for test.bend:Bend" in refused["'bend1' (test.bend:Bend)"]
        taken.append("'conv2' (Conv)" not in refused)
    assert taken == [False, True]


@pytest.mark.slow(reason="measures on a device")
def test_evaluate_and_bench_on_a_device_run_custom_operators(built):
    project, bundle = built
    found = evaluate(bundle.path, load_device("local"), project=project, variant="cpu-fp32")
    assert found.variant == "cpu-fp32"
    assert found.measured.worst.sqnr_db > 60
    report = bench(bundle.path, load_device("local"), preset="smoke")
    assert report.variant_used == SHIPPED[0]
    assert report.placement.compute_share("CPUExecutionProvider") == 1.0


@pytest.mark.slow(reason="builds several models")
def test_pipeline_of_a_part_with_custom_operators_is_built_and_runs(tmp_path, compiled):
    shutil.copytree(compiled, tmp_path / "net")
    part = write_project(tmp_path / "net", BOTH)
    part.write_text(part.read_text().replace("samples:", "# samples:"))
    save(
        tmp_path / "last.onnx",
        [helper.make_node("Relu", ["y"], ["z"], "relu")],
        [("y", TensorProto.FLOAT, [1, 4])],
        [("z", TensorProto.FLOAT, [1, 4])],
    )
    project = tmp_path / "edgepack.yaml"
    project.write_text(
        "schema_version: 1\nname: both\nmodels: {net: net/edgepack.yaml, last: last.onnx}\n"
        "pipeline: {inputs: [x], stages: [{run: net}, {run: last}], outputs: [z]}\n"
    )
    result = build_pipeline(project, targets=["host"], out=tmp_path / "dist")
    [built] = result.bundles
    x = np.random.default_rng(8).standard_normal((1, 3, 8, 8)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    done = run_in_bundle(
        built.bundle.path,
        "from edgepack_pipeline import load",
        f"z = load()({{'x': np.load({str(tmp_path / 'x.npy')!r})}})['z']",
        f"np.save({str(tmp_path / 'z.npy')!r}, z)",
    )
    assert done.returncode == 0, done.stderr
    wanted = np.maximum(compute(tmp_path / "net/net.onnx", x), 0)
    np.testing.assert_allclose(np.load(tmp_path / "z.npy"), wanted, rtol=1e-3, atol=1e-3)
