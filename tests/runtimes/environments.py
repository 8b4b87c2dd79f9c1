"""Finds interpreters, and makes a virtual environment for each pin, once."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgepack.base.processes import run_program
from edgepack.errors import ToolError
from packaging.specifiers import SpecifierSet

from tests.runtimes.pins import Pin

MINORS = range(8, 20)
"""Of Python 3, looked for."""
PIP_TIMEOUT_S = 900.0
_STAMP = "made-of"
_ASK = "import ensurepip, platform, ssl, venv; print(platform.python_version())"


@dataclass(frozen=True)
class Interpreter:
    """A Python that can make virtual environments."""

    path: Path
    version: str
    """With its micro version."""

    @property
    def minor(self) -> str:
        """``3.11``."""
        return ".".join(self.version.split(".")[:2])


@dataclass(frozen=True)
class Environment:
    """A virtual environment with what a pin requires."""

    pin: Pin
    interpreter: Interpreter
    folder: Path

    def run(self, *arguments: str | Path, timeout_s: float = 300) -> Any:
        """Run a Python program in it and return the JSON document that it prints last.

        Raises:
            ToolError: It failed, or took longer than ``timeout_s``.
        """
        printed = self.output(*arguments, timeout_s=timeout_s).splitlines()
        return json.loads(printed[-1])

    def output(
        self, *arguments: str | Path, input_bytes: bytes = b"", timeout_s: float = 300
    ) -> bytes:
        """Run a Python program in it and return the bytes that it prints.

        Raises:
            ToolError: It failed, or took longer than ``timeout_s``.
        """
        # -I: neither this process's PYTHONPATH nor the user's own packages get in.
        argv = [str(self.folder / "bin" / "python"), "-I", *map(str, arguments)]
        return _checked(argv, timeout_s, input_bytes)


def interpreters() -> dict[str, Interpreter]:
    """Return the interpreters found on PATH and in pyenv's folder, by ``3.11`` and so on."""
    found = {}
    for minor in (f"3.{number}" for number in MINORS):
        answering = (each for path in _candidates(minor) if (each := _ask(path)))
        first = next((each for each in answering if each.minor == minor), None)
        if first is not None:
            found[minor] = first
    return found


def allowed(pin: Pin, found: dict[str, Interpreter]) -> list[Interpreter]:
    """Return the interpreters that a pin allows, oldest first."""
    specifier = SpecifierSet(pin.python)
    return [found[minor] for minor in found if specifier.contains(minor)]


def environment(pin: Pin, interpreter: Interpreter, root: Path) -> Environment:
    """Return a virtual environment under ``root``; it is made unless it is there and complete.

    Raises:
        ToolError: pip cannot install what the pin requires.
    """
    packages = "-".join([pin.package, pin.version, *pin.plugins])
    folder = root / f"{packages}-python{interpreter.minor}"
    stamp = folder / _STAMP
    made_of = "\n".join([interpreter.version, *pin.requirements, ""])
    python = folder / "bin" / "python"
    if not (python.exists() and stamp.is_file() and stamp.read_text() == made_of):
        shutil.rmtree(folder, ignore_errors=True)
        _checked([str(interpreter.path), "-I", "-m", "venv", str(folder)], PIP_TIMEOUT_S)
        # As a bundle's README says it, and without building anything from source.
        install = [str(python), "-I", "-m", "pip", "install", "--quiet", "--only-binary=:all:"]
        _checked([*install, "--disable-pip-version-check", *pin.requirements], PIP_TIMEOUT_S)
        stamp.write_text(made_of)
    return Environment(pin, interpreter, folder)


@contextmanager
def locked(root: Path) -> Iterator[None]:
    """Hold the folder of the environments; a second run waits."""
    root.mkdir(parents=True, exist_ok=True)
    with (root / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _candidates(minor: str) -> Iterator[Path]:
    name = f"python{minor}"
    for folder in os.get_exec_path():
        if path := shutil.which(name, path=folder):
            yield Path(path)
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    yield from sorted(pyenv.glob(f"versions/*/bin/{name}"))


def _ask(path: Path) -> Interpreter | None:
    """Return an interpreter if it works: a stub, or one without ensurepip, does not."""
    done = run_program([str(path), "-I", "-c", _ASK], timeout_s=60)
    return None if done.exit_code else Interpreter(path, done.text.strip())


def _checked(argv: list[str], timeout_s: float, input_bytes: bytes = b"") -> bytes:
    done = run_program(argv, timeout_s=timeout_s, input_bytes=input_bytes)
    if done.exit_code:
        raise ToolError(
            f"{Path(argv[0]).name} ended with exit code {done.exit_code}{done.last_lines}",
            hint="what it was asked: " + " ".join(argv[1:]),
        )
    return done.stdout
