"""Providers that are no part of onnxruntime's own library, on phones."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import pytest
from edgepack.base.progress import Lines
from edgepack.bundle.manifest import Manifest
from edgepack.bundle.reading import load_bundle
from edgepack.errors import BundleError, RemoteCommandError, ToolError
from edgepack.measure.phones import plugins
from edgepack.measure.phones.phones import open_phone
from edgepack.measure.phones.plugins import QNN, find_plugin
from edgepack.native.harness import NativeHarness

from tests.support.doubles.phone_doubles import CANNED, make_phone, write_ndk, write_package
from tests.support.reports.tiny_bundle import change_manifest, write_tiny_bundle

PINS = dict.fromkeys(QNN.packages, "2.6.0")
RUNTIME = {"com.microsoft.onnxruntime:onnxruntime-android": "1.29.0", **PINS}


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    def change(manifest: dict[str, Any]) -> None:
        manifest.update(target="android-qnn", family="android", runtime=RUNTIME)
        manifest["variants"][0]["providers"][0]["name"] = QNN.provider

    folder = write_tiny_bundle(tmp_path / "bundle")
    change_manifest(folder, change)
    return folder


@pytest.fixture
def manifest(bundle: Path) -> Manifest:
    return load_bundle(bundle).manifest


def write_packages(home: Path, first: str = QNN.library) -> list[Path]:
    written = []
    for name, libraries in zip(QNN.packages, ([first], ["libQnnHtp.so", "x.txt"]), strict=True):
        group, artifact = name.split(":")
        folder = home / ".m2/repository" / group.replace(".", "/") / artifact / "2.6.0"
        folder.mkdir(parents=True)
        written.append(folder / f"{artifact}-2.6.0.aar")
        with zipfile.ZipFile(written[-1], "w") as archive:
            for library in libraries:
                archive.writestr(f"jni/arm64-v8a/{library}", library)
                archive.writestr(f"jni/x86_64/other-{library}", "of another ABI")
    return written


def test_a_plugin_is_all_libraries_of_its_packages_for_the_abi(
    manifest: Manifest, own_home: Path, tmp_path: Path
) -> None:
    write_packages(own_home)
    found = find_plugin(manifest, "arm64-v8a", tmp_path / "cache")
    assert found is not None
    assert [path.name for path in found.libraries] == ["libQnnHtp.so", QNN.library]
    assert [path.read_text() for path in found.libraries] == ["libQnnHtp.so", QNN.library]
    assert found.make_argument("/t") == f"QNNExecutionProvider=/t/{QNN.library}"
    assert find_plugin(manifest, "arm64-v8a", tmp_path / "cache") == found


def test_a_bundle_without_the_provider_needs_no_plugin(tmp_path: Path) -> None:
    plain = load_bundle(write_tiny_bundle(tmp_path / "plain")).manifest
    assert find_plugin(plain, "arm64-v8a", tmp_path) is None


def test_a_plugin_that_another_command_has_just_taken_is_used(
    manifest: Manifest, own_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_packages(own_home)
    take = plugins._take_libraries

    def take_while_another_does(packages: list[Path], abi: str, folder: Path) -> None:
        monkeypatch.setattr(plugins, "_take_libraries", take)
        assert find_plugin(manifest, abi, tmp_path / "cache") is not None
        take(packages, abi, folder)

    monkeypatch.setattr(plugins, "_take_libraries", take_while_another_does)
    found = find_plugin(manifest, "arm64-v8a", tmp_path / "cache")
    assert found is not None
    assert len(found.libraries) == 2
    assert len(list((tmp_path / "cache").iterdir())) == 1


def test_what_is_missing_for_a_plugin_is_said(
    manifest: Manifest, own_home: Path, tmp_path: Path
) -> None:
    with pytest.raises(ToolError, match=r"onnxruntime-android-qnn 2\.6\.0 is not on this") as told:
        find_plugin(manifest, "arm64-v8a", tmp_path)
    assert told.value.hint == f"fetch it: mvn dependency:get -Dartifact={QNN.packages[0]}:2.6.0:aar"
    packages = write_packages(own_home)
    with pytest.raises(ToolError, match=f"has no jni/armeabi-v7a/{QNN.library}"):
        find_plugin(manifest, "armeabi-v7a", tmp_path)
    packages[1].write_text("no archive")
    with pytest.raises(ToolError, match=r"qnn-runtime-2\.6\.0\.aar is no \.aar file"):
        find_plugin(manifest, "arm64-v8a", tmp_path)
    assert not [path for path in tmp_path.iterdir() if "plugin" in path.name or path.suffix]
    unpinned = manifest.model_copy(update={"runtime": {}})
    with pytest.raises(BundleError, match="pins no com"):
        find_plugin(unpinned, "arm64-v8a", tmp_path)


@pytest.mark.parametrize("has_packages", [True, False])
def test_phone_gets_a_plugins_libraries_or_it_is_said_that_it_does_not(
    has_packages: bool,  # noqa: FBT001
    bundle: Path,
    own_home: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if has_packages:
        write_packages(own_home)
    monkeypatch.setenv("ANDROID_NDK_HOME", str(write_ndk(tmp_path / "ndk", program=CANNED)))
    package = write_package(tmp_path / "ort.aar")
    phone = make_phone(tmp_path / "phone", target="android-qnn", package=package)
    opened = load_bundle(bundle)
    with open_phone(opened, phone.device, "test", wait_s=0.0, progress=Lines()) as harness:
        assert isinstance(harness, NativeHarness)
        command = harness.device.make_command(["about"])
        there = {path.name for path in (tmp_path / "phone" / "root" / "tools").glob("*/*")}
    assert (QNN.library in there) is has_packages
    assert ("--plugin" in command) is has_packages
    if has_packages:
        argument = command[command.index("--plugin") + 1]
        name, _, path = argument.partition("=")
        assert (name, Path(path).name, Path(path).parent) == (
            QNN.provider,
            QNN.library,
            Path(command[command.index("--runtime") + 1]).parent,
        )
    said = [line for line in capsys.readouterr().err.splitlines() if QNN.provider in line]
    assert bool(said) is not has_packages
    assert has_packages or "mvn dependency:get" in said[0]


def test_a_variant_is_passed_over_with_what_the_plugin_says(
    bundle: Path, own_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_packages(own_home)
    said = (
        '{"onnxruntime":"1.29.0","providers":["CPUExecutionProvider"],"cpu_count":8,"plugin":"no"}'
    )
    program = f"#!/bin/sh\nif [ \"$1\" = about ]; then echo '{said}'; else exit 2; fi\n"
    monkeypatch.setenv("ANDROID_NDK_HOME", str(write_ndk(tmp_path / "ndk", program=program)))
    package = write_package(tmp_path / "ort.aar")
    phone = make_phone(tmp_path / "phone", target="android-qnn", package=package)
    first = load_bundle(bundle).manifest.variants[0].id
    opened = load_bundle(bundle)
    with (
        open_phone(opened, phone.device, "test", wait_s=0.0, progress=Lines()) as harness,
        pytest.raises(RemoteCommandError, match=r"QNNExecutionProvider is not.*; its plugin: no"),
    ):
        harness.select(first)
