"""Targets that require an older onnxruntime than the one that builds."""

from __future__ import annotations

import pytest
from edgepack.builder.pins import list_older_runtimes
from edgepack.project.profile import Profile, load_profile, parse_release


def profile(target: str, pin: str | None = None) -> Profile:
    found = load_profile(target)
    if pin is None:
        return found
    runtime = found.runtime.model_copy(update={"packages": {"onnxruntime": pin}})
    return found.model_copy(update={"runtime": runtime})


def newest() -> str:
    """The newest version that a shipped target pins."""
    return max((load_profile(t).runtime.onnxruntime[1] for t in HOSTS), key=parse_release)


HOSTS = ("linux-x86-64", "linux-aarch64", "macos-arm64")


def test_target_when_an_onnxruntime_newer_than_any_tried_builds_is_named_with_what_to_do():
    (line,) = list_older_runtimes([profile("linux-x86-64"), profile("jetson")], "99.1.0")
    assert line.startswith("onnxruntime 99.1.0 computed the golden outputs")
    assert f"linux-x86-64 requires {newest()}, jetson requires 1.23.2" in line
    assert f"install onnxruntime=={newest()}" in line
    assert "'==99.1.0'}} in targets/linux-x86-64.yaml" in line


@pytest.mark.parametrize("installed", [newest(), "1.23.0"])
def test_target_when_no_newer_onnxruntime_builds_than_was_tried_is_not_named(installed):
    assert not list(list_older_runtimes([profile("linux-x86-64"), profile("jetson")], installed))


@pytest.mark.parametrize("pin", ["==99.1.0", "==100.0"])
def test_target_when_its_own_profile_pins_what_is_installed_is_not_named(pin):
    assert not list(list_older_runtimes([profile("linux-x86-64", pin)], "99.1.0"))


@pytest.mark.parametrize("target", ["intel", "android-xnnpack", "ios"])
def test_target_when_it_pins_another_package_is_not_named(target):
    assert not list(list_older_runtimes([profile(target)], "99.1.0"))
