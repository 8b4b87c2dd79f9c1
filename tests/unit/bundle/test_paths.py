"""A bundle's paths stay inside it and apart, whoever wrote the manifest."""

from __future__ import annotations

import json
import os
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from edgepack.bundle.manifest import MANIFEST, MANIFEST_DIGEST, MANIFEST_SIGNATURE, Manifest
from edgepack.bundle.paths import BundlePath, require_apart
from edgepack.bundle.reading import load_bundle, parse_manifest, verify
from edgepack.bundle.writing import BundleWriter
from edgepack.errors import BundleError, UsageError
from edgepack.project.loading import make_project
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from tests.support.reports.tiny_bundle import change_manifest, write_tiny_bundle

PATH = TypeAdapter(BundlePath)
SEGMENTS = st.sampled_from(["..", ".", "", "a", "A", "é", "e\u0301", "\\", "..\\", "\0", "\n", "~"])


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_bundle(tmp_path_factory.mktemp("tiny") / "bundle")


def manifest_with(bundle: Path, *paths: str, **changes: Any) -> bytes:
    manifest = json.loads((bundle / MANIFEST).read_text())
    extra = {"sha256": "0" * 64, "size_bytes": 1, "mode": "644", "role": "file"}
    manifest["files"] += [{"path": path, **extra} for path in paths]
    return json.dumps({**manifest, **changes}).encode()


def test_tiny_manifest_when_it_has_another_file_is_read(tiny: Path) -> None:
    read = parse_manifest(manifest_with(tiny, "files/labels é.txt"))
    assert read.files[-1].path == "files/labels é.txt"


@pytest.mark.parametrize(
    "path",
    [
        "../outside", "a/../../outside", "/etc/passwd", "//etc/passwd", "", ".", "..", "./a", "a/",
        "a//b", "a/./b", "a\\..\\..\\b", "C:\\b", "a\nb", "a\0b", "a\x7fb", "\x85", "a" * 256,
        "é" * 128, "a/" * 600 + "a",
    ],
)  # fmt: skip
def test_manifest_when_a_path_leaves_the_bundle_is_refused(tiny: Path, path: str) -> None:
    with pytest.raises(BundleError, match=r"manifest\.json is wrong at files\.\d+\.path"):
        parse_manifest(manifest_with(tiny, path))


@pytest.mark.parametrize(
    "paths",
    [
        ("files/A", "files/a"),
        ("files/straße", "files/STRASSE"),
        (unicodedata.normalize("NFC", "files/é"), unicodedata.normalize("NFD", "files/é")),
        (unicodedata.normalize("NFC", "files/É"), unicodedata.normalize("NFD", "files/é")),
        ("files/one", "files/one"),
        ("Files/one", "files/two"),
        ("files/one", "files/ONE/two"),
        (MANIFEST,), ("Manifest.JSON",), (MANIFEST_DIGEST,), ("manifest.json.SIG",),
        (f"{MANIFEST_SIGNATURE}/a",), ("models/CPU-FP32.onnx",),
    ],
)  # fmt: skip
def test_manifest_when_two_paths_are_one_somewhere_is_refused(
    tiny: Path, paths: tuple[str, ...]
) -> None:
    with pytest.raises(BundleError, match=r"are one on some file systems|is listed twice"):
        parse_manifest(manifest_with(tiny, *paths))


@given(parts=st.lists(SEGMENTS | st.text(max_size=4), min_size=1, max_size=5))
def test_path_when_it_is_accepted_stays_inside_on_posix_and_windows(parts: list[str]) -> None:
    import ntpath
    import posixpath

    path = "/".join(parts)
    try:
        PATH.validate_python(path)
    except ValidationError:
        return
    assert posixpath.normpath(posixpath.join("/root/release", path)) == f"/root/release/{path}"
    assert not ntpath.normpath(path).startswith(("..", "\\"))
    assert path.isprintable() or not any(ord(char) < 32 for char in path)


@given(paths=st.lists(st.text("aAéÉe\u0301ßs", min_size=1, max_size=3), max_size=6))
def test_paths_when_they_are_apart_differ_in_every_case_and_normal_form(paths: list[str]) -> None:
    try:
        require_apart(paths)
    except ValueError:
        return
    for form in ("NFC", "NFD", "NFKC"):
        for case in (str.lower, str.upper, str.casefold):
            folded = {case(unicodedata.normalize(form, path)) for path in paths}
            assert len({unicodedata.normalize(form, path) for path in folded}) == len(paths)


@pytest.mark.parametrize(
    "change",
    [
        {"name": "../../.ssh"}, {"name": "/etc"}, {"name": "a/b"}, {"name": ".hidden"},
        {"name": "lease"}, {"name": "venv"}, {"name": "VENV-1"}, {"name": "serve"},
        {"name": "stats"}, {"name": "a\n"},
        {"version": "../1"}, {"version": "1 2"}, {"target": "../x"},
    ],
)  # fmt: skip
def test_manifest_when_its_name_would_be_another_folder_is_refused(
    tiny: Path, change: dict[str, str]
) -> None:
    with pytest.raises(BundleError, match=f"is wrong at {next(iter(change))}"):
        parse_manifest(manifest_with(tiny, **change))


def test_model_when_named_like_a_folder_of_edgepacks_own_names_no_project(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"project after .venv-3\.onnx"):
        make_project(tmp_path / "venv-3.onnx")


def test_manifest_when_nested_too_deeply_is_refused() -> None:
    with pytest.raises(BundleError, match="is not JSON"):
        parse_manifest(b"[" * 100_000)


def test_verify_when_a_file_is_a_link_refuses_the_bundle(tmp_path: Path) -> None:
    bundle = write_tiny_bundle(tmp_path / "bundle")
    model = bundle / "models/cpu-fp32.onnx"
    model.rename(tmp_path / "elsewhere.onnx")
    model.symlink_to(tmp_path / "elsewhere.onnx")
    with pytest.raises(BundleError, match="a link is in its place"):
        verify(bundle)


def test_verify_when_a_folder_is_a_link_refuses_the_bundle(tmp_path: Path) -> None:
    bundle = write_tiny_bundle(tmp_path / "bundle")
    (bundle / "models").rename(tmp_path / "models")
    (bundle / "models").symlink_to(tmp_path / "models")
    with pytest.raises(BundleError, match="a link is in its place"):
        verify(bundle)


@pytest.mark.parametrize("name", [MANIFEST, MANIFEST_DIGEST])
def test_verify_when_the_manifest_is_a_link_refuses_the_bundle(tmp_path: Path, name: str) -> None:
    bundle = write_tiny_bundle(tmp_path / "bundle")
    (bundle / name).rename(tmp_path / name)
    (bundle / name).symlink_to(tmp_path / name)
    with pytest.raises(BundleError, match="not in its manifest"):
        verify(bundle)


def test_verify_when_a_pipe_is_in_a_files_place_refuses_the_bundle(tmp_path: Path) -> None:
    bundle = write_tiny_bundle(tmp_path / "bundle")
    (bundle / "models/cpu-fp32.onnx").unlink()
    os.mkfifo(bundle / "models/cpu-fp32.onnx")
    with pytest.raises(BundleError, match="is missing"):
        verify(bundle)


def test_verify_when_the_manifest_lies_about_a_size_refuses_the_bundle(tmp_path: Path) -> None:
    bundle = write_tiny_bundle(tmp_path / "bundle")
    change_manifest(bundle, lambda manifest: manifest["files"][0].update(size_bytes=1))
    with pytest.raises(BundleError, match="hash and size"):
        verify(bundle)


def test_writer_when_two_files_are_one_somewhere_says_what_to_rename(
    tmp_path: Path, tiny: Path
) -> None:
    writer = BundleWriter(tmp_path)
    writer.add("files/Labels.txt", b"1", role="file")
    writer.add("files/labels.txt", b"2", role="file")
    manifest: Manifest = load_bundle(tiny).manifest
    with pytest.raises(BundleError, match=r"Labels\.txt.*labels\.txt") as caught:
        writer.finish(lambda _: manifest)
    assert "'files' in edgepack.yaml" in caught.value.hint
