"""What is told of boards without Python that cannot be measured, and of those that can."""

from __future__ import annotations

from dataclasses import replace
from pathlib import PurePosixPath

import pytest
from edgepack.devices.probing import Missing, ProbedFacts
from edgepack.devices.provisioning import native_program
from edgepack.devices.provisioning.native import list_native_problems
from edgepack.project.profile import load_profile

BOARD = ProbedFacts(
    os="linux",
    arch="aarch64",
    model="",
    libc="glibc 2.31",
    cpu_flags=(),
    free_bytes=0,
    root=PurePosixPath("/data"),
    python_path="",
    python=Missing("there is no Python"),
)


@pytest.fixture(autouse=True)
def with_compilers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native_program.shutil, "which", lambda name: f"/usr/bin/{name}")


def problems(target: str = "linux-aarch64", **changes: object) -> list[str]:
    return list(list_native_problems(replace(BOARD, **changes), load_profile(target)))


def test_board_with_glibc_and_busybox_has_no_problem() -> None:
    assert problems() == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"libc": "musl"}, "no wheels for the device's C library (musl)"),
        ({"libc": ""}, "no wheels for the device's C library (not glibc)"),
        ({"lacks": ("setsid", "tar")}, "no setsid, tar for what needs no Python: install busybox"),
        ({"lacks_library": "libstdc++.so.6"}, "Yocto: libstdc++"),
        ({"arch": "armv7l"}, "no onnxruntime for boards without Python on armv7l"),
        ({"target": "intel"}, "target 'intel' takes another onnxruntime"),
    ],
)
def test_what_prevents_it_is_named_with_a_remedy(changes: dict[str, object], words: str) -> None:
    [problem] = problems(**changes)  # type: ignore[arg-type]
    assert words in problem


def test_compiler_that_is_missing_is_named_with_its_package(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(native_program.shutil, "which", lambda _: None)
    monkeypatch.setattr(native_program.platform, "machine", lambda: "x86_64")
    [problem] = problems()
    assert "no aarch64-linux-gnu-gcc here" in problem
    assert "sudo apt install gcc-aarch64-linux-gnu" in problem
