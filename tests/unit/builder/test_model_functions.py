"""Projects whose model a function makes, as far as no framework is needed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from edgepack.base.progress import Silent
from edgepack.builder import sources
from edgepack.builder.cache import StepCache
from edgepack.builder.sources import open_project
from edgepack.converters import base
from edgepack.errors import EdgepackError, ProfileError, ToolError
from edgepack.project.loading import LoadedProject, read_project


def read(folder: Path, model: str, more: str = "") -> LoadedProject:
    path = folder / "edgepack.yaml"
    text = f"schema_version: 1\nname: net\nmodel: {model}\ntargets: [linux-x86-64]\n{more}"
    path.write_text(text, encoding="utf-8")
    return read_project(path)


def test_a_function_is_the_models_name(tmp_path: Path) -> None:
    loaded = read(tmp_path, '{python: "nets.small:make", framework: torch}')
    assert loaded.model_name == "nets.small:make"
    assert loaded.named_model == tmp_path.resolve()
    assert read(tmp_path, "models/net.pt2").model_name == "net.pt2"


@pytest.mark.parametrize(
    ("model", "problem", "hint"),
    [
        ('{python: "nets.make", framework: torch}', "'python' cannot be", "pattern"),
        ('{python: "nets:make"}', "the key 'framework' is missing", "add it"),
        ('{pyton: "nets:make", framework: torch}', "unknown key 'pyton'|'python' is missing", ""),
    ],
)
def test_a_description_that_is_wrong_is_one_error(
    tmp_path: Path, model: str, problem: str, hint: str
) -> None:
    with pytest.raises(ProfileError, match=problem) as found:
        read(tmp_path, model)
    assert hint in str(found.value)
    assert "edgepack.yaml:3:" in found.value.where


def opening(loaded: LoadedProject, folder: Path, python: str | None = None) -> EdgepackError:
    with pytest.raises(EdgepackError) as found:
        open_project(loaded, StepCache(folder / "cache"), Silent(), python)
    return found.value


def test_a_framework_whose_models_no_function_makes_is_refused(tmp_path: Path) -> None:
    for framework in ("tflite", "trch"):
        loaded = read(tmp_path, f'{{python: "nets:make", framework: {framework}}}')
        error = opening(loaded, tmp_path)
        assert isinstance(error, ProfileError)
        assert f"no function makes a model of {framework!r}" in error.problem
        assert "torch" in error.hint
        assert error.where.endswith("edgepack.yaml:3:30")


def test_the_python_is_that_of_the_command_then_the_converters_then_the_hooks(
    tmp_path: Path,
) -> None:
    model = '{python: "nets:make", framework: torch}'
    converters = "converters: {torch: {python: own/python}}\n"
    named = [
        (None, converters + "interpreter: hooks/python\n", tmp_path.resolve() / "own/python"),
        (None, "interpreter: hooks/python\n", tmp_path.resolve() / "hooks/python"),
        ("typed/python", converters, Path.cwd() / "typed/python"),
        ("no-such-python", converters, Path("no-such-python")),
    ]
    for python, more, wanted in named:
        error = opening(read(tmp_path, model, more), tmp_path, python)
        assert isinstance(error, ToolError)
        assert f"there is no Python '{wanted}'" in error.problem


def test_a_python_without_the_framework_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # This Python need not lack torch: one that does is made of it.
    python = tmp_path / "python"
    python.write_text(
        f'#!/bin/sh\nexec "{sys.base_prefix}/bin/python3" -IS "$@"\n', encoding="utf-8"
    )
    python.chmod(0o755)
    monkeypatch.setattr(sources.sys, "executable", str(python))
    error = opening(read(tmp_path, '{python: "nets:make", framework: torch}'), tmp_path)
    assert isinstance(error, ToolError)
    assert f"the Python {str(python)!r} has no package 'torch'" in error.problem
    assert f"{python} -m pip install torch" in error.hint


def test_a_pytorch_beside_edgepack_comes_before_one_that_is_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "net.pt2").touch()
    asked: list[str] = []
    monkeypatch.setattr(base, "is_installed", lambda package: not asked.append(package))
    monkeypatch.setattr(sources.sys, "executable", str(tmp_path / "python"))
    error = opening(read(tmp_path, "net.pt2"), tmp_path)
    assert isinstance(error, ToolError)
    assert f"there is no Python '{tmp_path / 'python'}'" in error.problem
    assert asked == ["torch", "onnx", "onnxscript"]
