"""A bundle that would be written again byte for byte is left alone, and no other is."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from edgepack.base.files import hash_file
from edgepack.base.schema import NotMeasured
from edgepack.builder import assembly, cache, model_plan, unchanged
from edgepack.builder.build import build
from edgepack.bundle.reading import parse_manifest
from onnx import TensorProto, helper

from tests.support.nets import tiny_models

TARGETS = ("raspberry-pi", "android")


def stamps(folder: Path) -> dict[str, tuple[int, int]]:
    """Return which files there are, and when each was written as what."""
    found = (path for path in folder.rglob("*") if path.is_file())
    return {str(p): (p.stat().st_ino, p.stat().st_mtime_ns) for p in found}


def contents(folder: Path) -> dict[str, str]:
    """Return the digest of each file: of what differs, pytest would work out differences of MBs."""
    found = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hash_file(path) for path in found}


@pytest.fixture
def project(tmp_path):
    (tmp_path / "names.txt").write_text("zero\n")
    return tiny_models.write_project(tmp_path, "files: [names.txt]")


@pytest.fixture
def dist(project, tmp_path):
    build(project=project, targets=TARGETS, out=tmp_path / "dist")
    return tmp_path / "dist"


def test_build_when_nothing_changed_leaves_each_file_as_it_stands(project, dist):
    before = stamps(dist)
    result = build(project=project, targets=TARGETS, out=dist)
    assert stamps(dist) == before
    assert {built.bundle.path for built in result.bundles} == {
        p for p in dist.iterdir() if p.is_dir()
    }


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


DAMAGES = {
    "a model with another byte": lambda bundle: flip(next(bundle.glob("models/*"))),
    "a golden sample that is gone": lambda bundle: next(bundle.glob("golden/**/*.bin")).unlink(),
    "a file too many": lambda bundle: (bundle / "more.txt").write_text("x"),
    "a program that nobody may run": lambda bundle: (bundle / "README.md").chmod(0o755),
    "a manifest that says so": lambda bundle: flip(bundle / "manifest.json"),
    "no bundle": shutil.rmtree,
    "an archive with another byte": lambda bundle: flip(Path(f"{bundle}.tar.gz")),
    "no archive": lambda bundle: Path(f"{bundle}.tar.gz").unlink(),
}


@pytest.mark.parametrize("what", DAMAGES)
def test_build_when_what_stands_there_was_changed_writes_it_again(what, project, dist):
    before = contents(dist)
    bundle = next(path for path in sorted(dist.iterdir()) if path.is_dir())
    DAMAGES[what](bundle)
    assert contents(dist) != before or what == "a program that nobody may run"
    build(project=project, targets=TARGETS, out=dist)
    assert contents(dist) == before
    assert not (bundle / "README.md").stat().st_mode & 0o111


def replace_in(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def change_labels(folder: Path) -> None:
    labels = np.zeros(24, int)
    np.savez(folder / "eval.npz", image=tiny_models.images(24, seed=2), labels=labels)


CHANGES = {
    "a file of the project": lambda f: (f / "names.txt").write_text("one\n"),
    "the version": lambda f: replace_in(f / "edgepack.yaml", "1.2.3", "1.2.4"),
    "what an input is": lambda f: replace_in(
        f / "edgepack.yaml",
        "samples:",
        "inputs: {image: {image: {resize: {width: 8, height: 8}, order: BGR}}}\nsamples:",
    ),
    "the labels": change_labels,
    "the limits": lambda f: replace_in(
        f / "edgepack.yaml", "samples:", "limits: {min_sqnr_db: 60}\nsamples:"
    ),
    "the variants": lambda f: replace_in(
        f / "edgepack.yaml",
        "samples:",
        "targets:\n- id: raspberry-pi\n  variants: [{id: cpu-fp32, backend: cpu, recipe: fp32}]\n"
        "samples:",
    ),
}


@pytest.mark.in_turns
@pytest.mark.parametrize("what", CHANGES)
def test_build_when_something_changed_writes_what_an_empty_folder_gets(what, project, dist):
    before = contents(dist)
    CHANGES[what](project.parent)
    names = [] if what == "the variants" else TARGETS
    build(project=project, targets=names, out=dist)
    build(project=project, targets=names, out=dist.parent / "anew")
    assert contents(dist) != before
    anew = contents(dist.parent / "anew")
    assert anew == {name: data for name, data in contents(dist).items() if name in anew}


def test_build_when_only_the_order_of_keys_changed_writes_what_an_empty_folder_gets(tmp_path):
    dist, model = tmp_path / "dist", tmp_path / "net.onnx"
    names = ("p", "q")
    value = (TensorProto.FLOAT, [1, 4])
    nodes = [helper.make_node("Relu", [n], [o]) for n, o in zip((*names, "x"), "bay", strict=True)]
    given, made = ([(name, *value) for name in each] for each in (("x", *names), "yba"))
    tiny_models.save(model, nodes, given, made)
    project = tmp_path / "edgepack.yaml"
    head = "schema_version: 1\nname: net\nmodel: net.onnx\n"
    project.write_text(head + "state: {b: p, a: q}\n")
    build(project=project, targets=["raspberry-pi"], out=dist)
    before = contents(dist)
    project.write_text(head + "state: {a: q, b: p}\n")
    build(project=project, targets=["raspberry-pi"], out=dist)
    build(project=project, targets=["raspberry-pi"], out=tmp_path / "anew")
    assert contents(dist) == contents(tmp_path / "anew") != before


def test_build_when_it_is_another_reason_why_a_variant_was_not_simulated_says_it(
    project, dist, monkeypatch
):
    """The plan has the same steps with both reasons."""
    for reason in ("it is not installed", "it is broken", "it is not installed"):
        monkeypatch.setattr(
            model_plan, "find_backend_simulator", lambda _, why=reason: NotMeasured(reason=why)
        )
        build(project=project, targets=["android-qnn"], out=dist)
        text = (next(dist.glob("*-android-qnn")) / "manifest.json").read_bytes()
        told = {v.simulated.reason for v in parse_manifest(text).variants if v.simulated}
        assert told == {reason}


def test_bundle_when_a_file_changes_while_it_is_written_is_not_taken_for_the_earlier_ones(
    project, tmp_path
):
    names, whole = tmp_path / "names.txt", assembly._write

    def change(*arguments):
        names.write_text("meanwhile\n")
        whole(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(assembly, "_write", change)
        build(project=project, targets=["raspberry-pi"], out=tmp_path / "dist")
    names.write_text("zero\n")
    build(project=project, targets=["raspberry-pi"], out=tmp_path / "dist")
    assert next(tmp_path.glob("dist/*/files/names.txt")).read_text() == "zero\n"


def test_record_when_it_is_damaged_is_as_if_there_was_none(project, dist):
    before = contents(dist)
    records = list(cache.open_own_cache().folder.glob("bundle-*/bundle.json"))
    assert len(records) == len(TARGETS)
    for record in records:
        record.write_bytes(bytes(record.stat().st_size))
    build(project=project, targets=TARGETS, out=dist)
    assert contents(dist) == before


@pytest.mark.parametrize("name", ["_hash_templates", "hash_code"])
def test_build_when_edgepack_itself_changed_writes_anew(name, project, dist, monkeypatch):
    before = stamps(dist)
    monkeypatch.setattr(unchanged, name, lambda: "another")
    build(project=project, targets=TARGETS, out=dist)
    assert all(stamps(dist)[path] != old for path, old in before.items() if "tar.gz" not in path)


def test_template_when_it_changes_changes_their_digest(tmp_path, monkeypatch):
    shutil.copytree(unchanged.find_templates_dir(), tmp_path / "templates")
    monkeypatch.setattr(unchanged, "find_templates_dir", lambda: tmp_path / "templates")
    before = unchanged._hash_templates.__wrapped__()
    with next(tmp_path.rglob("*.j2")).open("a") as file:
        file.write(" ")
    assert unchanged._hash_templates.__wrapped__() != before
