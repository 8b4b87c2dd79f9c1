"""The lines that build a reduced onnxruntime."""

from __future__ import annotations

import shlex

import pytest
from edgepack.apps.reduced_runtime import make_build_command

SYSTEMS = ["android", "ios", "linux", "macos"]


def options(system, version="1.31.1", **asked):
    return shlex.split(make_build_command(system, version, **asked)[-1])


@pytest.mark.parametrize("system", SYSTEMS)
def test_build_command_when_given_a_version_builds_that_release_from_its_list(system):
    lines = make_build_command(system, "1.31.1", config="../models/a.config")
    assert "--branch v1.31.1" in lines[0]
    words = shlex.split(lines[-1])
    assert words[0] == "./build.sh"
    assert words[words.index("--include_ops_by_config") + 1] == "../models/a.config"
    assert words[words.index("--config") + 1] == "MinSizeRel"
    assert {"--minimal_build", "--enable_reduced_operator_type_support"} <= set(words)


@pytest.mark.parametrize("system", SYSTEMS)
def test_build_command_when_run_in_a_shell_has_no_option_twice(system):
    names = [word for word in options(system) if word.startswith("--")]
    assert len(names) == len(set(names))


def test_build_command_when_extended_says_so_to_the_minimal_build():
    words = options("ios", extended=True)
    assert words[words.index("--minimal_build") + 1] == "extended"
    plain = options("ios")
    assert plain[plain.index("--minimal_build") + 1].startswith("--")


def test_build_command_when_ml_operators_are_needed_keeps_them():
    assert "--disable_ml_ops" in options("linux")
    assert "--disable_ml_ops" not in options("linux", ml_operators=True)


@pytest.mark.parametrize(
    ("version", "knows"), [("1.23.2", False), ("1.28.1", False), ("1.29.0", True), ("2.0", True)]
)
def test_build_command_when_the_version_knows_the_switch_builds_without_telemetry(version, knows):
    assert ("--no_telemetry" in options("android", version)) == knows


@pytest.mark.parametrize("system", ["linux", "macos"])
def test_build_command_when_python_is_wanted_keeps_exceptions(system):
    words = options(system)
    assert "--build_wheel" in words
    assert not {"--disable_exceptions", "--disable_rtti"} & set(words)


@pytest.mark.parametrize("system", ["android", "ios"])
def test_build_command_when_for_a_phone_drops_exceptions(system):
    assert {"--disable_exceptions", "--disable_rtti"} <= set(options(system))


def test_build_command_when_for_android_leaves_the_folders_to_the_shell():
    line = make_build_command("android", "1.31.1")[-1]
    assert '--android_ndk_path "$ANDROID_NDK_HOME"' in line
    assert '--android_sdk_path "$ANDROID_HOME"' in line
