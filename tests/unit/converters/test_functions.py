"""How a function of the user's is found and called in the environment of a converter."""

from __future__ import annotations

import importlib.util
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from edgepack.converters import running


@pytest.fixture
def inside(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The script that runs in the framework's environment, loaded here."""
    path = Path(running.__file__).parent / "inside" / "edgepack_inside.py"
    spec = importlib.util.spec_from_file_location("edgepack_inside", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(sys, "path", [*sys.path])
    state = random.getstate()
    yield module
    random.setstate(state)
    for name in [name for name in sys.modules if name.startswith("own_model")]:
        del sys.modules[name]


def call(inside: ModuleType, project: Path, function: str) -> Any:
    options = {"function": function, "folder": str(project)}
    return inside.open_source(str(project), options, lambda _: pytest.fail("no file is read"))


def test_a_file_is_read_by_the_frameworks_reader(inside: ModuleType) -> None:
    assert inside.open_source("net.pt2", {}, str.upper) == "NET.PT2"


def test_a_function_of_the_project_is_called_with_the_same_random_numbers(
    inside: ModuleType, tmp_path: Path
) -> None:
    (tmp_path / "own_model.py").write_text(
        "import random\nfrom pathlib import Path\n\n\ndef make():\n"
        "    calling = Path(__file__).with_name('calling.txt').read_text()\n"
        "    return calling, random.random()\n",
        encoding="utf-8",
    )
    first, second = (call(inside, tmp_path, "own_model:make") for _ in range(2))
    assert first == second
    # The parent tells by this file that it was the function that ended the process.
    assert first[0] == "own_model:make"
    assert not (tmp_path / inside.CALLING).exists()
    assert running._CALLING == inside.CALLING


def test_a_function_in_a_package_of_the_project_is_found(
    inside: ModuleType, tmp_path: Path
) -> None:
    package = tmp_path / "own_models"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "net.py").write_text("def make():\n    return 7\n", encoding="utf-8")
    assert call(inside, tmp_path, "own_models.net:make") == 7


def test_what_is_not_there_is_named(inside: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "own_model.py").write_text(
        "from pathlib import Path\n\nSIZE = 3\n\n\ndef make():\n    return Path\n", encoding="utf-8"
    )
    with pytest.raises(inside.Refused, match="no module 'own_modell'") as missing:
        call(inside, tmp_path, "own_modell:make")
    assert missing.value.hint.startswith("write own_modell.py beside edgepack.yaml")
    for name in ("mak", "SIZE"):
        with pytest.raises(inside.Refused, match=f"no function '{name}'") as found:
            call(inside, tmp_path, f"own_model:{name}")
        assert found.value.hint == "it has make"


def test_what_the_module_itself_lacks_is_its_own_error(inside: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "own_model.py").write_text("import own_weights_of_nobody\n", encoding="utf-8")
    with pytest.raises(ModuleNotFoundError, match="own_weights_of_nobody"):
        call(inside, tmp_path, "own_model:make")
    assert (tmp_path / inside.CALLING).is_file()
