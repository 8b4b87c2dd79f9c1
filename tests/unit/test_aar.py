"""What an AAR is made with and of, without a compiler."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import pytest
from edgepack.aar import find_toolchain, maven_repository
from edgepack.aar.toolchain import ONNXRUNTIME
from edgepack.aar.writing import zipped
from edgepack.errors import ToolError

PINS = {ONNXRUNTIME: "1.29.0"}


def missing(folder: Path, pins: dict[str, str] = PINS) -> ToolError:
    with pytest.raises(ToolError) as caught:
        find_toolchain(pins, folder)
    return caught.value


@pytest.fixture
def java(tmp_path, monkeypatch) -> Path:
    """A program that is found as Java."""
    program = tmp_path / "jdk" / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk"))
    return program


def wanted(folder: Path) -> list[str]:
    """Return the coordinates of all that is missing where there is nothing."""
    lines = missing(folder).problem.splitlines()
    return [line.split()[0] for line in lines if " (not below " in line]


def write_jars(folder: Path, coordinates: list[str], *, flat: bool) -> None:
    for group, artifact, version in (each.split(":") for each in coordinates):
        place = folder if flat else folder.joinpath(*group.split("."), artifact, version)
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{artifact}-{version}.jar").write_bytes(b"")


@pytest.mark.usefixtures("java")
def test_toolchain_when_nothing_is_there_says_what_is_missing_and_how_to_get_each(tmp_path):
    error = missing(tmp_path)
    names = wanted(tmp_path)
    assert "com.microsoft.onnxruntime:onnxruntime:1.29.0" in names
    assert any(
        name.startswith("org.jetbrains.kotlin:kotlin-compiler-embeddable:") for name in names
    )
    assert error.where == "--aar"
    assert "--jars" in error.hint
    for name in names:
        assert f"mvn dependency:get -Dartifact={name}" in error.hint


def test_toolchain_when_java_is_missing_says_so(tmp_path, monkeypatch):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nothing"))
    write_jars(tmp_path / "jars", wanted(tmp_path), flat=True)
    error = missing(tmp_path / "jars")
    assert "a JDK" in error.problem
    assert "not below" not in error.problem
    assert "17" in error.hint


@pytest.mark.parametrize("flat", [True, False])
def test_toolchain_when_jars_are_in_a_folder_or_a_repository_finds_all(tmp_path, java, flat):
    names = wanted(tmp_path)
    write_jars(tmp_path / "jars", names, flat=flat)
    found = find_toolchain(PINS, tmp_path / "jars")
    assert found.java == str(java)
    used = {path.name for path in (*found.compiler, *found.classpath)}
    assert used == {"{1}-{2}.jar".format(*name.split(":")) for name in names}
    assert not any("compiler" in path.name for path in found.classpath)


@pytest.mark.usefixtures("java")
def test_toolchain_when_the_target_pins_another_version_wants_that_one(tmp_path):
    assert "onnxruntime:1.30.5" in missing(tmp_path, {ONNXRUNTIME: "1.30.5"}).problem


def test_toolchain_when_the_target_pins_no_onnxruntime_is_an_error(tmp_path):
    assert ONNXRUNTIME in missing(tmp_path, {"org.example:thing": "1"}).problem


def test_toolchain_when_no_folder_is_named_looks_into_mavens_own(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert maven_repository() == tmp_path / ".m2" / "repository"
    with pytest.raises(ToolError) as caught:
        find_toolchain(PINS)
    assert str(tmp_path / ".m2" / "repository") in caught.value.problem


def test_zip_when_written_twice_is_equal_and_holds_files_as_they_are():
    files = {"b/x.bin": bytes(range(256)) * 8, "a.txt": b"text"}
    first, second = zipped(files), zipped(dict(reversed(files.items())))
    assert first == second
    with zipfile.ZipFile(io.BytesIO(first)) as archive:
        assert archive.namelist() == ["a.txt", "b/x.bin"]
        assert {name: archive.read(name) for name in archive.namelist()} == files
        assert {entry.compress_type for entry in archive.infolist()} == {zipfile.ZIP_STORED}
        assert {entry.date_time[0] for entry in archive.infolist()} == {1980}
