"""What an AAR is made with and of, without a compiler."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import pytest
from edgepack.apps.aar.archive import make_zip
from edgepack.apps.aar.toolchain import ONNXRUNTIME, find_maven_repository, find_toolchain
from edgepack.errors import ToolError

PINS = {ONNXRUNTIME: "1.29.0"}


def missing(folder: Path, pins: dict[str, str] = PINS) -> ToolError:
    with pytest.raises(ToolError) as caught:
        find_toolchain(pins, folder)
    return caught.value


def let_say(java: Path, version: str) -> None:
    """Let a program say what Java says of itself."""
    told = f'    java.home = {java.parent.parent}\nopenjdk version "{version}" 2026-04-21'
    java.write_text(f"#!/bin/sh\necho '{told}' >&2\n")


@pytest.fixture
def java(tmp_path, monkeypatch) -> Path:
    """A program that is found as Java."""
    program = tmp_path / "jdk" / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.touch(0o755)
    (tmp_path / "jdk" / "lib").mkdir()
    (tmp_path / "jdk" / "lib" / "ct.sym").touch()
    let_say(program, "17.0.21")
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
        assert f"mvn dependency:copy -DoutputDirectory={tmp_path} -Dartifact={name}" in error.hint


def test_toolchain_when_java_is_missing_says_so(tmp_path, monkeypatch):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nothing"))
    write_jars(tmp_path / "jars", wanted(tmp_path), flat=True)
    error = missing(tmp_path / "jars")
    assert f"a JDK (JAVA_HOME is {tmp_path / 'nothing'}, without bin/java)" in error.problem
    assert "not below" not in error.problem
    assert "17" in error.hint
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "there is no 'java' on PATH" in missing(tmp_path / "jars").problem


@pytest.mark.parametrize(
    ("version", "problem"), [("1.8.0_392", "is Java 8"), ("11.0.2", "is Java 11")]
)
def test_toolchain_when_java_is_too_old_says_so(tmp_path, java, version, problem):
    write_jars(tmp_path / "jars", wanted(tmp_path), flat=True)
    let_say(java, version)
    error = missing(tmp_path / "jars")
    assert f"a JDK ({java} {problem})" in error.problem
    assert "version 17 or newer" in error.hint


def test_toolchain_when_java_is_a_stub_or_a_runtime_says_so(tmp_path, java):
    write_jars(tmp_path / "jars", wanted(tmp_path), flat=True)
    (tmp_path / "jdk" / "lib" / "ct.sym").unlink()
    assert "is a runtime" in missing(tmp_path / "jars").problem
    java.write_text("#!/bin/sh\necho 'Unable to locate a Java Runtime.' >&2\nexit 1\n")
    assert "| Unable to locate" in missing(tmp_path / "jars").problem


@pytest.mark.parametrize("version", ["17", "17.0.21", "25.0.3", "26-ea"])
def test_toolchain_when_java_is_new_enough_takes_it(tmp_path, java, version):
    write_jars(tmp_path / "jars", wanted(tmp_path), flat=True)
    let_say(java, version)
    assert find_toolchain(PINS, tmp_path / "jars").java == str(java)


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
    assert find_maven_repository() == tmp_path / ".m2" / "repository"
    with pytest.raises(ToolError) as caught:
        find_toolchain(PINS)
    assert str(tmp_path / ".m2" / "repository") in caught.value.problem
    assert "mvn dependency:get -Dartifact=" in caught.value.hint


def test_zip_when_written_twice_is_equal_and_holds_files_as_they_are():
    files = {"b/x.bin": bytes(range(256)) * 8, "a.txt": b"text"}
    first, second = make_zip(files), make_zip(dict(reversed(files.items())))
    assert first == second
    with zipfile.ZipFile(io.BytesIO(first)) as archive:
        assert archive.namelist() == ["a.txt", "b/x.bin"]
        assert {name: archive.read(name) for name in archive.namelist()} == files
        assert {entry.compress_type for entry in archive.infolist()} == {zipfile.ZIP_STORED}
        assert {entry.date_time[0] for entry in archive.infolist()} == {1980}
