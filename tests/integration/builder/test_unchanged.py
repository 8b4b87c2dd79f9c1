"""A bundle that would be written again byte for byte is left alone, and no other is."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from edgepack.builder import unchanged
from edgepack.builder.build import build

from tests.support.nets import tiny_models

TARGETS = ("raspberry-pi", "android")


def stamps(folder: Path) -> dict[str, tuple[int, int]]:
    """Return which files there are, and when each was written as what."""
    found = (path for path in folder.rglob("*") if path.is_file())
    return {str(p): (p.stat().st_ino, p.stat().st_mtime_ns) for p in found}


def contents(folder: Path) -> dict[str, bytes]:
    found = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


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


@pytest.mark.parametrize("what", CHANGES)
def test_build_when_something_changed_writes_what_an_empty_folder_gets(what, project, dist):
    before = contents(dist)
    CHANGES[what](project.parent)
    names = [] if what == "the variants" else TARGETS
    build(project=project, targets=names, out=dist)
    build(project=project, targets=names, out=dist.parent / "anew", use_cache=False)
    assert contents(dist) != before
    anew = contents(dist.parent / "anew")
    assert anew == {name: data for name, data in contents(dist).items() if name in anew}


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
