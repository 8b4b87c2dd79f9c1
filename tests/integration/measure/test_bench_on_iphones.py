"""The whole measurement on an iPhone, whose Xcode is a double on this machine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from edgepack.base.progress import Lines, Silent
from edgepack.bundle.reading import load_bundle
from edgepack.devices.inventory import AppleEntry, Device
from edgepack.errors import (
    DeviceError,
    EdgepackError,
    RemoteCommandError,
    ToolError,
    UnreachableError,
    UsageError,
)
from edgepack.measure.phones.apple import write_project
from edgepack.measure.phones.phones import open_phone
from edgepack.records.presets import find_preset
from edgepack.records.run import DeviceFacts
from edgepack.results.page.table import list_device_rows

from tests.support.doubles.phone_doubles import UDID, PhoneDouble, make_apple
from tests.support.reports.example_report import example_report
from tests.support.reports.tiny_bundle import change_manifest, write_tiny_bundle
from tests.support.slow_cases import slow_after


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    folder = write_tiny_bundle(tmp_path / "bundle")
    pin = {"onnxruntime-c": "1.30.0"}
    change_manifest(folder, lambda m: m.update(target="ios", family="apple", runtime=pin))
    return folder


@pytest.fixture
def phone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PhoneDouble:
    double = make_apple(tmp_path / "mac")
    monkeypatch.setenv("PATH", f"{double.folder}:/usr/bin:/bin")
    return double


def asked(bundle: Path, device: Device) -> DeviceFacts:
    with open_phone(load_bundle(bundle), device, "test", wait_s=0.0, progress=Silent()) as harness:
        return harness.device.read_facts(harness.about)


@pytest.mark.slow(reason="takes seconds")
def test_iphone_is_measured_by_a_test_of_the_measuring_app(
    bundle: Path, phone: PhoneDouble
) -> None:
    opened = load_bundle(bundle)
    with open_phone(opened, phone.device, "test", wait_s=0.0, progress=Silent()) as harness:
        (phone.folder / "moment").write_text('{"thermal_state": 1, "low_power_mode": true}')
        selection = harness.select(None)
        (phone.folder / "moment").write_text("{}")
        run = harness.measure(selection.variant, find_preset("smoke"))
    assert selection.variant == "cpu-int8-static"
    assert (selection.device.os, selection.device.model) == ("iOS 18.1", "iPhone16,1")
    assert not selection.device.emulated
    assert harness.device.cpu_flags == {"asimddp"}
    assert len(run.latencies_ns) == 20
    assert (run.before.throttled_now, run.before.power_mode) == ([], "normal")
    assert run.after.battery_percent == 84
    shown = dict(list_device_rows(example_report(facts=selection.device)))
    assert (shown["system"], shown["model"]) == ("iOS 18.1", "iPhone16,1")
    assert (shown["slowed down now"], shown["power mode"]) == ("thermal state fair", "low power")
    assert shown["battery (%)"] == "84.0"
    tests = [line for line in phone.commands if "test-without-building" in line]
    assert len(tests) == 3  # about, check, measure
    assert all(line.endswith(f"-destination platform=iOS,id={UDID}") for line in tests)
    built = next(line for line in phone.commands if "build-for-testing" in line)
    assert "-configuration Release -destination generic/platform=iOS" in built
    assert "DEVELOPMENT_TEAM=ABCDE12345" in built


@pytest.mark.slow(reason="takes seconds")
def test_simulator_and_debugger_are_never_taken_for_a_phone(
    bundle: Path, phone: PhoneDouble
) -> None:
    opened = load_bundle(bundle)
    with open_phone(opened, phone.device, "test", wait_s=0.0, progress=Silent()) as harness:
        (phone.folder / "facts").write_text(json.dumps({"simulator": True}))
        assert harness.device.read_facts(harness.about).emulated
        (phone.folder / "facts").write_text(json.dumps({"debugged": True}))
        with pytest.raises(DeviceError, match="a debugger was attached"):
            harness.create("cpu-fp32", cold=False)


@pytest.mark.parametrize(
    ("command", "stderr", "error", "problem"),
    slow_after(
        2,
        [
            (
                "xcodebuild -version",
                (
                    "xcode-select: error: tool 'xcodebuild' requires Xcode, but"
                    " active developer directory"
                    " '/Library/Developer/CommandLineTools' is a command line tools instance"
                ),
                ToolError,
                "no Xcode",
            ),
            (
                "device info",
                (
                    "ERROR: The specified device was not found. "
                    "(com.apple.dt.CoreDeviceError error 1000)"
                ),
                UnreachableError,
                "no phone with this identifier",
            ),
            (
                "build-for-testing",
                "Harness.app: errSecInternalComponent\nCommand CodeSign failed",
                DeviceError,
                "keychain is locked",
            ),
            (
                "build-for-testing",
                "/x/Measure.c:9:10: fatal error: 'x.h' file not found\n1 error generated.",
                RemoteCommandError,
                "does not build on the Mac\n  \\| /x/Measure.c:9:10: fatal error",
            ),
            (
                "test-without-building",
                "Error: The operation failed because Developer Mode is disabled.",
                DeviceError,
                "Developer Mode is off",
            ),
        ],
    ),
)
def test_failure_of_xcode_is_said_with_what_to_do(
    bundle: Path,
    phone: PhoneDouble,
    command: str,
    stderr: str,
    error: type[EdgepackError],
    problem: str,
) -> None:
    phone.say(command, stderr=stderr, code=65)
    with pytest.raises(error, match=problem):
        asked(bundle, phone.device)
    removed = any("device uninstall app" in line for line in phone.commands)
    assert removed is (command == "test-without-building")  # the one that fails when it is there


def test_app_that_cannot_be_removed_is_named(
    bundle: Path, phone: PhoneDouble, capsys: pytest.CaptureFixture[str]
) -> None:
    phone.say("uninstall app", stderr="ERROR: The operation couldn't be completed.", code=1)
    opened = load_bundle(bundle)
    with open_phone(opened, phone.device, "test", wait_s=0.0, progress=Lines()):
        pass
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith("edgepack.harness.abcde12345 stays on iphone, with the models: ")


def test_keychain_is_opened_with_the_password_of_the_variable(
    bundle: Path, phone: PhoneDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert isinstance(phone.device.entry, AppleEntry)
    entry = phone.device.entry.model_copy(update={"keychain_password_env": "MAC_KEYCHAIN"})
    device = Device("iphone", entry)
    with pytest.raises(UsageError, match="MAC_KEYCHAIN is not set"):
        asked(bundle, device)
    monkeypatch.setenv("MAC_KEYCHAIN", "not right")
    wrong = "security: SecKeychainUnlock: The user name or passphrase you entered is not correct."
    phone.say("security unlock-keychain -p not right", stderr=wrong, code=51)
    with pytest.raises(DeviceError, match="does not open the Mac's keychain") as caught:
        asked(bundle, device)
    assert "not right" not in str(caught.value)


def test_keychain_is_opened_when_its_password_has_spaces(
    bundle: Path, phone: PhoneDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = phone.device.entry.model_copy(update={"keychain_password_env": "MAC_KEYCHAIN"})
    monkeypatch.setenv("MAC_KEYCHAIN", " two  words ")
    wrong = "security: SecKeychainUnlock: The user name or passphrase you entered is not correct."
    phone.say("security unlock-keychain -p  two  words  /", stderr=wrong, code=51)
    with pytest.raises(DeviceError, match="does not open the Mac's keychain"):
        asked(bundle, Device("iphone", entry))


def test_measuring_app_knows_a_debugger_by_the_kernel(tmp_path: Path, bundle: Path) -> None:
    write_project(tmp_path, load_bundle(bundle))
    source = (tmp_path / "Tests" / "EdgepackMeasureTests.mm").read_text()
    assert "P_TRACED" in source
    assert "environment[" not in source  # xcodebuild sets OS_ACTIVITY_DT_MODE for every test


def test_project_of_the_measuring_app_pins_the_runtime(bundle: Path, tmp_path: Path) -> None:
    files = write_project(tmp_path / "project", load_bundle(bundle))
    package = (tmp_path / "project" / "Measure" / "Package.swift").read_text()
    assert "pod-archive-onnxruntime-c-1.30.0.zip" in package
    assert "{" + "version}" not in package
    project = (tmp_path / "project" / "Harness.xcodeproj" / "project.pbxproj").read_text()
    for path in ("Host/main.m", "Tests/EdgepackMeasureTests.mm"):
        assert path in files
        assert f"path = {path};" in project
    assert project.count("{") == project.count("}")
    assert "Measure/Sources/EdgepackMeasure/edgepack_measure.c" in files
