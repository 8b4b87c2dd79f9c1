"""What ``edgepack device check`` says of a phone, whose adb or Xcode is a double here."""

from __future__ import annotations

from pathlib import Path

import pytest
from edgepack.devices.inventory import Device
from edgepack.errors import DeviceError, ProfileError, UnreachableError
from edgepack.measure.check import check_device

from tests.support.doubles.phone_doubles import make_apple, make_phone, write_ndk, write_package


def test_android_phone_is_ready_when_nothing_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANDROID_NDK_HOME", str(write_ndk(tmp_path / "ndk", program="")))
    phone = make_phone(tmp_path / "phone", package=write_package(tmp_path / "ort.aar"))
    checked = check_device(phone.device)
    assert checked.problems == ()
    assert checked.facts.format_lines() == [
        "Android 15 (API 35): Google Pixel 8",
        "Google Tensor G3, arm64-v8a",
    ]
    assert not any(command.startswith("push") for command in phone.commands)


def test_android_phone_is_not_ready_when_programs_are_missing_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    phone = make_phone(tmp_path / "phone", package=tmp_path / "none.aar")
    phone.set(ro__build__version__sdk="23")
    checked = check_device(phone.device)
    with pytest.raises(DeviceError, match="edgepack device check pixel"):
        checked.require_ready()
    told = ["API level 23", "none.aar is not on this machine", "no Android NDK"]
    assert len(checked.problems) == len(told)
    assert all(part in problem for part, problem in zip(told, checked.problems, strict=True))


def test_iphone_is_ready_when_xcode_reaches_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    phone = make_apple(tmp_path / "mac")
    monkeypatch.setenv("PATH", f"{phone.folder}:/usr/bin:/bin")
    checked = check_device(phone.device)
    assert checked.problems == ()
    assert checked.facts.format_lines() == ["iOS 18.1: iPhone 15 Pro", "iPhone16,1"]
    (phone.folder / "details").write_text("    • tunnelState: unavailable\n")
    with pytest.raises(UnreachableError, match="no phone with this identifier"):
        check_device(phone.device)


def test_phone_is_refused_when_its_target_is_for_another_system(tmp_path: Path) -> None:
    entry = make_phone(tmp_path / "phone").device.entry
    device = Device("pixel", entry.model_copy(update={"target": "ios"}))
    with pytest.raises(ProfileError, match="reaches android, and target 'ios' is for ios"):
        check_device(device)
