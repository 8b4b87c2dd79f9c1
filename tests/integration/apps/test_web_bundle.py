"""Bundles for browsers: the npm package, its bytes, and names that npm refuses."""

from __future__ import annotations

import gzip
import hashlib
import json
import shutil
import subprocess
import tarfile
from pathlib import Path

import edgepack
import pytest
from edgepack.base.resources import find_targets_dir
from edgepack.builder.build import build, dry_run
from edgepack.bundle.manifest import MANIFEST
from edgepack.bundle.reading import verify
from edgepack.cli.main import run
from edgepack.errors import ModelError, ProfileError
from edgepack.project.loading import find_project
from edgepack.trying.verify import verify as verify_bundle
from onnx import TensorProto, helper

from tests.support.nets import tiny_models


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The build of a scoped package, and its project."""
    folder = tmp_path_factory.mktemp("web")
    (folder / "labels.txt").write_text("cat\ndog\n")
    lines = ["dims: {batch: 1}", "files: [labels.txt]", 'app: {npm: "@acme/net"}']
    project = tiny_models.write_project(folder, "\n".join(lines))
    project.write_text(project.read_text().replace("version: 1.2.3", "version: '2.1'"))
    [made] = build(project=project, targets=["web"], out=folder / "dist").bundles
    return made, project


def test_bundle_when_built_for_browsers_ships_all_variants_and_one_golden(built):
    manifest = built[0].bundle.manifest
    assert [v.id for v in manifest.variants] == ["webgpu-fp16", "cpu-int8-static", "cpu-fp32"]
    assert manifest.variants[0].predicted.share == 1
    assert manifest.variants[1].fused.coverage > 0
    assert (manifest.family, manifest.runtime) == ("web", {"onnxruntime-web": "1.30.0"})
    assert len(manifest.goldens) == 1
    verify(built[0].bundle.path)


def test_package_when_read_has_just_the_bundles_files_below_package(built):
    made, _ = built
    assert made.package == made.bundle.path.parent / "acme-net-2.1.0.tgz"
    assert f"npm install ./{made.package.name} " in (made.bundle.path / "README.md").read_text()
    with tarfile.open(made.package) as tar:
        entries = tar.getmembers()
        found = {entry.name: tar.extractfile(entry).read() for entry in entries}
    folder = made.bundle.path
    wanted = {
        f"package/{path.relative_to(folder).as_posix()}": path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }
    assert found == wanted
    assert {"package/package.json", "package/index.js", "package/index.d.ts"} <= set(found)
    assert f"package/{MANIFEST}" in found
    assert [entry.name for entry in entries] == sorted(found)
    assert {(e.mtime, e.mode, e.uid, e.gid, e.uname) for e in entries} == {(0, 0o644, 0, 0, "")}
    assert gzip.decompress(made.package.read_bytes())
    assert made.package.read_bytes()[4:8] == bytes(4), "gzip's own time"


def test_package_json_when_rendered_pins_the_runtime(built):
    written = json.loads((built[0].bundle.path / "package.json").read_text())
    assert (written["name"], written["version"]) == ("@acme/net", "2.1.0")
    assert written["peerDependencies"]["onnxruntime-web"] == "1.30.0"


def test_package_when_built_again_without_a_cache_has_the_same_bytes(built, tmp_path):
    made, project = built
    [again] = build(
        project=project, targets=["web"], out=tmp_path / "dist", use_cache=False
    ).bundles
    for one, other in ((made.package, again.package), (made.archive, again.archive)):
        assert hash_of(one) == hash_of(other)


def hash_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_package_when_removed_is_written_again_from_the_standing_bundle(built):
    made, project = built
    before = hash_of(made.package)
    made.package.unlink()
    [again] = build(project=project, targets=["web"], out=made.package.parent).bundles
    assert hash_of(again.package) == before


def test_bundle_when_its_goldens_run_here_are_right(built):
    checks = {check.variant: check.passed for check in verify_bundle(built[0].bundle.path).goldens}
    assert checks == {"webgpu-fp16": None, "cpu-int8-static": True, "cpu-fp32": True}


@pytest.mark.skipif(shutil.which("npm") is None, reason="there is no npm")
def test_npm_when_given_the_package_installs_it_without_the_registry(built, tmp_path):
    (tmp_path / "package.json").write_text('{"name": "an-app", "private": true}')
    argv = ["npm", "install", "--offline", "--no-audit", "--no-fund", str(built[0].package)]
    subprocess.run(argv, cwd=tmp_path, check=True, capture_output=True, timeout=120)
    installed = tmp_path / "node_modules" / "@acme" / "net"
    verify(installed)
    assert not installed.is_symlink()


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("version: 1.2.3", "version: v1", "npm takes"),
        ("[web]", "[web, browsers]", "web and browsers would be one npm package, 'edgepack-net'"),
    ],
)
def test_project_when_npm_has_no_package_of_it_says_so_before_anything_is_built(
    tmp_path, monkeypatch, old, new, problem
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "targets").mkdir()
    text = (find_targets_dir() / "web.yaml").read_text().replace("id: web\n", "id: browsers\n")
    (tmp_path / "targets" / "browsers.yaml").write_text(text)
    project = tiny_models.write_project(tmp_path, "targets: [web]")
    project.write_text(project.read_text().replace(old, new))
    with pytest.raises(ProfileError, match=problem):
        dry_run(project=project)


def test_model_when_javascript_has_no_such_tensors_says_so(tmp_path):
    model = tiny_models.save(
        tmp_path / "net.onnx",
        [helper.make_node("Identity", ["x"], ["y"])],
        [("x", TensorProto.STRING, [1])],
        [("y", TensorProto.STRING, [1])],
    )
    with pytest.raises(ModelError, match="string"):
        dry_run(model, targets=["web"])


@pytest.mark.parametrize("command", ["push", "bench"])
def test_browser_when_a_device_is_said_to_be_one_is_refused(
    built, tmp_path, monkeypatch, capsys, command
):
    monkeypatch.chdir(tmp_path)
    text = "schema_version: 1\ndevices: {page: {transport: local, target: web}}\n"
    (tmp_path / "devices.yaml").write_text(text)
    assert run([command, str(built[0].bundle.path), "--device", "page"]) != 0
    said = capsys.readouterr().err
    assert "page: the bundle is for browsers, and page is none" in said
    assert "npm install" in said


def test_project_when_loaded_has_the_npm_name(built):
    assert find_project(None, built[1]).project.app.npm == "@acme/net"


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """The build of a project that shares its runtime, and its project."""
    folder = tmp_path_factory.mktemp("shared")
    project = tiny_models.write_project(folder, "dims: {batch: 1}\napp: {runtime: shared}")
    return build(project=project, targets=["web"], out=folder / "dist"), project


def test_bundle_when_it_shares_its_runtime_has_only_its_own_code(shared):
    made = shared[0].bundles[0].bundle
    listed = [file.path for file in made.manifest.files if file.role == "source"]
    assert listed == ["index.d.ts", "index.js", "package.json"]
    written = json.loads((made.path / "package.json").read_text())
    assert written["peerDependencies"] == {"edgepack-runtime": "*"}
    assert written["peerDependenciesMeta"] == {"edgepack-runtime": {"optional": True}}
    assert "imports" not in written
    assert f"./edgepack-runtime-{edgepack.__version__}.tgz" in (made.path / "README.md").read_text()
    verify(made.path)


def test_index_when_written_names_each_file_of_the_bundle(shared):
    made = shared[0].bundles[0].bundle
    text = (made.path / "index.js").read_text()
    data = [file.path for file in made.manifest.files if file.role in ("model", "golden", "file")]
    for path in (MANIFEST, *data):
        assert f'"{path}": new URL("./{path}", import.meta.url),' in text
    assert text.count("import.meta.url") == len(data) + 1


def test_library_when_built_again_is_left_alone_and_mended_where_it_was_changed(shared):
    result, project = shared
    [folder] = result.libraries
    package = folder.with_name(f"edgepack-runtime-{edgepack.__version__}.tgz")
    with tarfile.open(package) as tar:
        found = {entry.name: tar.extractfile(entry).read() for entry in tar}
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert found == {f"package/{p.relative_to(folder).as_posix()}": p.read_bytes() for p in files}
    before = (package.stat().st_mtime_ns, folder.stat().st_ino)
    build(project=project, targets=["web"], out=folder.parent)
    assert (package.stat().st_mtime_ns, folder.stat().st_ino) == before
    (folder / "runtime" / "opener.js").write_text("changed")
    package.write_bytes(b"changed")
    build(project=project, targets=["web"], out=folder.parent)
    assert (folder / "runtime" / "opener.js").read_bytes() == found["package/runtime/opener.js"]
    assert tarfile.is_tarfile(package)


def test_project_when_another_has_the_npm_name_in_the_folder_says_so(shared, tmp_path):
    result, _ = shared
    project = tiny_models.write_project(tmp_path, "app: {npm: edgepack-net}")
    project.write_text(project.read_text().replace("name: net\n", "name: other\n"))
    with pytest.raises(ProfileError, match=r"is the npm package 'edgepack-net', too, of .* 'net'"):
        build(project=project, targets=["web"], out=result.libraries[0].parent)
