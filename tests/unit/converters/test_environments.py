from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
from edgepack.base.processes import run_program
from edgepack.converters import environments
from edgepack.converters.environments import (
    Environment,
    Lock,
    ask_python,
    find_folder,
    find_python,
    is_ready,
)
from edgepack.converters.locks import TENSORFLOW
from edgepack.converters.registry import CONVERTERS
from edgepack.errors import ToolError

OWN = sys.version_info[:2]


@pytest.fixture
def locks(tmp_path, monkeypatch):
    monkeypatch.setattr(environments, "_LOCKS", tmp_path)
    monkeypatch.setattr(environments, "_find_uv", lambda: None)
    return tmp_path


def make_wheel(folder: Path) -> None:
    """Write the wheel of a package with one module, as an index would give it."""
    import zipfile

    folder.mkdir()
    info = "tiny_framework-1.5.dist-info"
    with zipfile.ZipFile(folder / "tiny_framework-1.5-py3-none-any.whl", "w") as wheel:
        wheel.writestr("tiny_framework.py", "")
        wheel.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-framework\nVersion: 1.5\n"
        )
        wheel.writestr(
            f"{info}/WHEEL",
            "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        )
        wheel.writestr(f"{info}/RECORD", "")


def make_lock(folder: Path, text: str = "tiny-framework==1.5\n") -> Lock:
    (folder / "tiny.txt").write_text(text)
    return Lock("tiny", 1, 20, (OWN,))


def test_environment_when_offline_is_made_of_a_folder_of_wheels_once(locks, monkeypatch):
    make_wheel(locks / "wheels")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(locks / "wheels"))
    lock, told = make_lock(locks), []
    assert not is_ready(lock)
    python = find_python(Environment(lock), told.append)
    assert [line for line in told if "1 packages, about 1 MB to download" in line]
    assert run_program([python, "-c", "import tiny_framework"], timeout_s=60).exit_code == 0
    assert run_program([sys.executable, "-c", "import tiny_framework"], timeout_s=60).exit_code
    told.clear()
    shutil.rmtree(locks / "wheels")
    assert find_python(Environment(lock), told.append) == python
    assert not told


def test_environment_when_it_cannot_be_made_leaves_nothing_and_says_what_it_takes(
    locks, monkeypatch
):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(locks))
    lock = make_lock(locks, "no-such-framework==1.0\n")
    with pytest.raises(ToolError, match="no-such-framework") as caught:
        find_python(Environment(lock))
    assert "PIP_NO_INDEX" in caught.value.hint
    assert not find_folder(lock).exists()


def test_environment_when_its_lock_changes_is_another(locks):
    before = make_lock(locks)
    folder = find_folder(before)
    assert find_folder(make_lock(locks, "tiny-framework==1.6\n")) != folder


def test_environment_when_no_python_fits_says_which_would(locks):
    lock = Lock("tiny", 1, 20, ((3, 2),))
    (locks / "tiny.txt").write_text("tiny-framework==1.5\n")
    with pytest.raises(ToolError, match=r"Python 3\.2") as caught:
        find_python(Environment(lock))
    assert "--python" in caught.value.hint


def test_python_of_the_user_when_asked_tells_its_versions():
    found = ask_python(sys.executable, ("numpy", "onnx", "no-such-package"), "--python")
    assert [name for name, _ in found.packages] == ["numpy", "onnx"]
    assert found.identity[0].startswith("numpy ")


def write_versions(folder: Path, **versions: str) -> str:
    """Write a Python that has these packages before its own, as far as metadata says."""
    packages = folder / "packages"
    for name, version in versions.items():
        info = packages / f"{name.replace('-', '_')}-1.dist-info"
        info.mkdir(parents=True, exist_ok=True)
        text = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        (info / "METADATA").write_text(text)
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={packages} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    return str(python)


@pytest.mark.parametrize(
    ("converter", "package"),
    [
        ("keras", "tensorflow"),
        ("saved-model", "keras"),
        ("tflite", "ai-edge-litert"),
        ("torch", "onnx-ir"),
        ("sklearn", "scipy"),
        ("sklearn", "onnxconverter-common"),
        ("lightgbm", "scipy"),
        ("lightgbm", "onnxconverter-common"),
        ("xgboost", "scikit-learn"),
        ("xgboost", "numpy"),
    ],
)
def test_python_of_the_user_when_a_package_that_counts_changes_is_another(
    tmp_path, converter, package
):
    names = CONVERTERS[converter].packages
    versions = {**dict.fromkeys(names, "1.0"), package: "1.0"}
    python = write_versions(tmp_path, **versions)
    before = ask_python(python, names, "--python")
    write_versions(tmp_path, **{package: "1.1"})
    after = ask_python(python, names, "--python")
    assert set(after.identity) - set(before.identity) == {f"{package} 1.1"}
    write_versions(tmp_path, **{"no-such-package": "2.0"})
    assert ask_python(python, names, "--python").identity == after.identity


def test_python_of_the_user_when_it_lacks_the_framework_says_so():
    with pytest.raises(ToolError, match="no package 'no-such-framework'"):
        ask_python(sys.executable, ("no-such-framework",), "--python")


def test_python_of_the_user_when_it_does_not_run_says_so(tmp_path):
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho no interpreter >&2\nexit 3\n")
    broken.chmod(0o755)
    with pytest.raises(ToolError, match="no interpreter"):
        ask_python(str(broken), ("numpy",), "--python")
    with pytest.raises(ToolError, match="there is no Python"):
        ask_python(str(tmp_path / "nowhere"), ("numpy",), "--python")


def test_locks_when_read_pin_every_package():
    lines = TENSORFLOW.path.read_text(encoding="utf-8").splitlines()
    assert all("==" in line or line.startswith("#") for line in lines if line)
