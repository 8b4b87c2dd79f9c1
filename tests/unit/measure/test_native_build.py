"""Where the program for phones comes from, and what is said where something is missing."""

from __future__ import annotations

from pathlib import Path

import pytest
from edgepack.base.resources import find_ondevice_dir
from edgepack.errors import BundleError, DeviceError, ToolError
from edgepack.measure.phones.app_build import build_app
from edgepack.measure.phones.native_build import build_measure, find_compiler, find_package

from tests.support.doubles.phone_doubles import write_ndk, write_package, write_program, write_sdk

RUNTIME = "com.microsoft.onnxruntime:onnxruntime-android"
PINS = {RUNTIME: "1.29.0"}
VARIABLES = ("ANDROID_NDK_HOME", "ANDROID_NDK_ROOT", "ANDROID_HOME", "ANDROID_SDK_ROOT")


@pytest.fixture(autouse=True)
def no_sdk(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*VARIABLES, "GRADLE_USER_HOME", "JAVA_HOME"):
        monkeypatch.delenv(name, raising=False)


def test_package_is_found_where_maven_keeps_it(own_home: Path) -> None:
    folder = own_home / ".m2/repository/com/microsoft/onnxruntime/onnxruntime-android/1.29.0"
    folder.mkdir(parents=True)
    path = write_package(folder / "onnxruntime-android-1.29.0.aar")
    assert find_package(None, RUNTIME, PINS) == path


def test_package_is_found_where_gradle_keeps_it(own_home: Path) -> None:
    kept = own_home / ".gradle/caches/modules-2/files-2.1/com.microsoft.onnxruntime"
    folder = kept / "onnxruntime-android/1.29.0/0a1b2c"
    folder.mkdir(parents=True)
    path = write_package(folder / "onnxruntime-android-1.29.0.aar")
    assert find_package(None, RUNTIME, PINS) == path


def test_missing_package_is_named_with_how_to_fetch_it() -> None:
    with pytest.raises(ToolError, match=r"onnxruntime-android 1\.29\.0 is not on this") as caught:
        find_package(None, RUNTIME, PINS)
    assert f"-Dartifact={RUNTIME}:1.29.0:aar" in caught.value.hint
    with pytest.raises(ToolError, match=r"/nowhere\.aar is not on this machine"):
        find_package("/nowhere.aar", RUNTIME, PINS)


def test_package_that_the_bundle_does_not_pin_is_refused() -> None:
    with pytest.raises(BundleError, match=f"pins no {RUNTIME}"):
        find_package(None, RUNTIME, {"onnxruntime-c": "1.30.0"})


def test_missing_ndk_is_said_with_where_it_was_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ToolError, match="there is no Android NDK") as caught:
        find_compiler("arm64-v8a")
    assert "ANDROID_NDK_HOME" in caught.value.hint
    monkeypatch.setenv("ANDROID_NDK_HOME", str(tmp_path))
    with pytest.raises(ToolError, match=f"aarch64-linux-android24-clang here .{tmp_path}"):
        find_compiler("arm64-v8a")


def test_newest_ndk_of_the_sdk_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for version in ("9.1.1", "27.2.12479018", "25.1.8937393"):
        write_ndk(tmp_path / "ndk" / version)
    monkeypatch.setenv("ANDROID_HOME", str(tmp_path))
    assert "27.2.12479018" in find_compiler("arm64-v8a").parts


def test_program_is_made_once_and_again_when_the_package_is_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANDROID_NDK_HOME", str(write_ndk(tmp_path / "ndk")))
    package = write_package(tmp_path / "a.aar")
    first = build_measure(package, "arm64-v8a")
    made = first.program.stat().st_mtime_ns
    assert build_measure(package, "arm64-v8a") == first
    assert first.program.stat().st_mtime_ns == made
    assert first.library.is_file()
    library = tmp_path / "library"
    library.write_bytes(b"another")
    other = build_measure(write_package(tmp_path / "b.aar", library=library), "arm64-v8a")
    assert other.key != first.key
    assert other.library.read_bytes() == b"another"


def test_compiler_that_fails_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failing = tmp_path / "failing"
    write_program(failing, "#!/bin/sh\necho 'error: no such header' >&2\nexit 1\n")
    monkeypatch.setenv("ANDROID_NDK_HOME", str(write_ndk(tmp_path / "ndk", str(failing))))
    with pytest.raises(ToolError, match="error: no such header"):
        build_measure(write_package(tmp_path / "a.aar"), "arm64-v8a")


def test_what_is_no_package_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANDROID_NDK_HOME", str(write_ndk(tmp_path / "ndk")))
    (tmp_path / "a.aar").write_bytes(b"no archive")
    with pytest.raises(ToolError, match=r"is no \.aar file"):
        build_measure(tmp_path / "a.aar", "arm64-v8a")
    with pytest.raises(ToolError, match="has no jni/x86/libonnxruntime"):
        build_measure(write_package(tmp_path / "b.aar"), "x86")
    with pytest.raises(DeviceError, match="the phone's ABI is 'riscv64'"):
        build_measure(tmp_path / "a.aar", "riscv64")


def test_app_is_made_of_the_newest_tools_and_signed_with_one_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANDROID_NDK_HOME", str(write_ndk(tmp_path / "ndk")))
    sdk = write_sdk(tmp_path / "sdk")
    (sdk / "build-tools" / "9.0.0").mkdir()
    monkeypatch.setenv("ANDROID_HOME", str(sdk))
    monkeypatch.setenv("JAVA_HOME", str(sdk / "jdk"))
    first = build_app(write_package(tmp_path / "a.aar"), "arm64-v8a")
    library = tmp_path / "library"
    library.write_bytes(b"another")
    other = build_app(write_package(tmp_path / "b.aar", library=library), "arm64-v8a")
    assert first != other
    called = [line.split()[0] for line in (sdk / "called").read_text().splitlines()]
    assert called.count("keytool") == 1
    assert called.count("apksigner") == 2


def test_app_loads_onnxruntime_after_telemetry_is_off() -> None:
    source = find_ondevice_dir() / "native" / "android" / "MeasureInstrumentation.java"
    assert 'loadLibrary("onnxruntime")' not in source.read_text()
    program = (find_ondevice_dir() / "native" / "edgepack_measure.c").read_text()
    entry = program[program.index("int edgepack_measure(") :]
    assert entry.index("ORT_DISABLE_TELEMETRY") < entry.index("in_mode(")


def test_missing_sdk_is_said_with_what_does_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANDROID_NDK_HOME", str(write_ndk(tmp_path / "ndk")))
    with pytest.raises(ToolError, match="no Android SDK with build-tools") as caught:
        build_app(write_package(tmp_path / "a.aar"), "arm64-v8a")
    assert "inside: shell" in caught.value.hint
    sdk = write_sdk(tmp_path / "sdk")
    monkeypatch.setenv("ANDROID_HOME", str(sdk))
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    with pytest.raises(ToolError, match="there is no javac here"):
        build_app(write_package(tmp_path / "a.aar"), "arm64-v8a")
