"""Environments for converters: Python with the packages of a lock, kept by the lock's content.

edgepack's own environment never grows. An environment is made once, by uv where it is installed and
else by venv and pip, in the user's cache; or a converter runs in a Python that the user names.
"""

from __future__ import annotations

import functools
import hashlib
import json
import platform
import shutil
import sys
import sysconfig
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from edgepack.base.files import holding
from edgepack.base.processes import run_program, run_supervised
from edgepack.errors import ToolError

_LOCKS = Path(__file__).parent / "locked"
_INSTALL_S = 3600.0
_ASK_S = 60.0
_READY = "edgepack-ready.json"
Tell = Callable[[str], None]


@dataclass(frozen=True)
class Lock:
    """Packages with their versions, for every processor and system that they have wheels for."""

    name: str
    """Of the file in ``locked``, in pip's format."""
    download_mb: int
    """About how much is fetched on Linux x86-64."""
    disk_mb: int
    pythons: tuple[tuple[int, int], ...]
    """The versions of Python that all of its packages have wheels for."""
    index: str = ""
    """A package index beside the user's own, for packages that are only there."""

    @property
    def path(self) -> Path:
        """The file with the packages."""
        return _LOCKS / f"{self.name}.txt"

    @property
    def digest(self) -> str:
        """Sha256 over its packages."""
        return hashlib.sha256(f"{self.index}\n{self.path.read_text('utf-8')}".encode()).hexdigest()

    @property
    def size(self) -> str:
        """How much it is, for people."""
        return f"about {self.download_mb} MB to download, {self.disk_mb / 1000:.1f} GB on disk"


@dataclass(frozen=True)
class Environment:
    """Where a converter runs: packages of a lock, or a Python of the user's."""

    lock: Lock | None
    python: str = ""
    """The user's own; empty where the lock's packages are installed."""
    packages: tuple[tuple[str, str], ...] = ()
    """Of the user's own Python: the packages that count, with their versions."""

    @property
    def identity(self) -> tuple[str, ...]:
        """What decides a conversion's result besides the model."""
        if self.python:
            return tuple(f"{name} {version}" for name, version in self.packages)
        return (self.lock.name, self.lock.digest) if self.lock else ()


def ask_python(python: str, names: Sequence[str], where: str) -> Environment:
    """Return the environment that a Python of the user's is, with the versions of its packages.

    Raises:
        ToolError: It does not run, or lacks the first of the packages.
    """
    if shutil.which(python) is None:
        raise ToolError(
            f"there is no Python {python!r}",
            hint="name the 'python' of an environment that has the framework",
            where=where,
        )
    ask = (
        "import json\nfrom importlib import metadata\nfound = {}\n"
        f"for name in {[*names, 'numpy']!r}:\n"
        "    try:\n        found[name] = metadata.version(name)\n"
        "    except metadata.PackageNotFoundError:\n        pass\n"
        "print(json.dumps(found))"
    )
    done = run_program([python, "-c", ask], timeout_s=_ASK_S)
    if done.exit_code:
        raise ToolError(
            f"the Python {python!r} does not run{done.last_lines}",
            hint="name the 'python' of an environment that has the framework",
            where=where,
        )
    found: dict[str, str] = json.loads(done.text.splitlines()[-1])
    if names[0] not in found:
        raise ToolError(
            f"the Python {python!r} has no package {names[0]!r}",
            hint=f"install it there ({python} -m pip install {names[0]}), or name another Python",
            where=where,
        )
    return Environment(None, python, tuple(found.items()))


def is_installed(package: str) -> bool:
    """Return whether the Python that edgepack runs in has a package."""
    try:
        metadata.version(package)
    except metadata.PackageNotFoundError:
        return False
    return True


def find_python(environment: Environment, tell: Tell = lambda _: None) -> str:
    """Return the Python of an environment, which is made first if it is not there.

    Args:
        environment: With a lock, or a Python of the user's.
        tell: Gets lines for the user: what is fetched and how much it is.

    Raises:
        ToolError: It cannot be made: offline, no fitting Python, a full disk.
    """
    if environment.python:
        return environment.python
    lock = environment.lock
    if lock is None:
        raise ToolError("there is no Python to run in", hint="name one with --python")
    folder = find_folder(lock)
    python = folder / "bin" / "python"
    if is_ready(lock):
        return str(python)
    with holding(folder):
        if not is_ready(lock):
            _make(lock, folder, tell)
    return str(python)


def find_folder(lock: Lock) -> Path:
    """Return where an environment lies in the user's cache, whether it is there or not."""
    import platformdirs

    version = ".".join(map(str, _choose_version(lock)))
    machine = f"{sysconfig.get_platform()}-{platform.libc_ver()[0]}"
    key = hashlib.sha256(f"{lock.digest}\n{version}\n{machine}".encode()).hexdigest()
    return platformdirs.user_cache_path("edgepack") / "environments" / f"{lock.name}-{key[:16]}"


def is_ready(lock: Lock) -> bool:
    """Return whether the environment of a lock is there, with the Python that it was made of."""
    folder = find_folder(lock)
    return (folder / _READY).is_file() and (folder / "bin" / "python").exists()


def _choose_version(lock: Lock) -> tuple[int, int]:
    own = sys.version_info[:2]
    return own if own in lock.pythons else lock.pythons[-1]


@functools.cache
def _find_uv() -> str | None:
    return shutil.which("uv")


def _make(lock: Lock, folder: Path, tell: Tell) -> None:
    """Make an environment; what is half made is removed."""
    count = sum(1 for line in lock.path.read_text("utf-8").splitlines() if "==" in line)
    tell(f"{lock.name}: fetching {count} packages, {lock.size}, once, to {folder}")
    shutil.rmtree(folder, ignore_errors=True)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        for argv in _list_commands(lock, folder):
            done = run_supervised(argv, timeout_s=_INSTALL_S)
            if done.exit_code:
                raise ToolError(
                    f"the environment {lock.name!r} cannot be made with {argv[0]!r}"
                    f"{done.last_lines}",
                    hint=f"it takes {lock.size}: check the network and the space in {folder.parent}"
                    " (XDG_CACHE_HOME moves it); offline, name a folder of wheels with"
                    " PIP_FIND_LINKS and PIP_NO_INDEX=1 (uv: UV_FIND_LINKS and UV_OFFLINE=1), or"
                    " a Python that has the framework with --python",
                )
        (folder / _READY).write_text(json.dumps({"lock": lock.digest}), encoding="utf-8")
    except OSError as error:
        raise ToolError(
            f"the environment {lock.name!r} cannot be made: {error.strerror}",
            hint=f"free {lock.size} in {folder.parent}, or set XDG_CACHE_HOME",
        ) from error
    finally:
        if not (folder / _READY).is_file():
            shutil.rmtree(folder, ignore_errors=True)


def _list_commands(lock: Lock, folder: Path) -> list[list[str]]:
    """Return the commands that make an environment, in order."""
    version = ".".join(map(str, _choose_version(lock)))
    own = version == ".".join(map(str, sys.version_info[:2]))
    python, path = str(folder / "bin" / "python"), str(lock.path)
    if uv := _find_uv():
        wanted = sys.executable if own else version
        # Each package from the index that has the version: uv stops at the first with the name.
        index = ["--index", lock.index, "--index-strategy", "unsafe-best-match"]
        index = index if lock.index else []
        return [
            [uv, "venv", "--quiet", "--python", wanted, str(folder)],
            [uv, "pip", "install", "--quiet", "--compile-bytecode", "--no-deps", "--python", python,
             *index, "--requirement", path],
        ]  # fmt: skip
    base = sys.executable if own else shutil.which(f"python{version}")
    if base is None:
        needed = ", ".join(".".join(map(str, each)) for each in lock.pythons)
        raise ToolError(
            f"the packages of {lock.name!r} are there for Python {needed}, edgepack runs in"
            f" {platform.python_version()}, and there is no 'python{version}'",
            hint="install uv, which fetches a fitting Python, or name a Python that has the"
            " framework with --python",
        )
    index = ["--extra-index-url", lock.index] if lock.index else []
    return [
        [base, "-m", "venv", str(folder)],
        [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps",
         *index, "--requirement", path],
    ]  # fmt: skip
