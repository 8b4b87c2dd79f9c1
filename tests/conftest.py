"""Guards that hold for every test, and where the public models are found."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

os.environ["ORT_DISABLE_TELEMETRY"] = "1"
# As in edgepack's workers, where the steps run that tests call here.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("VECLIB_MAXIMUM_THREADS", "1")


@pytest.fixture(autouse=True)
def own_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Point the user's folders into a temporary one: no test reads or writes the real home."""
    home = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("HOME", str(home))
    for name, folder in (
        ("XDG_CACHE_HOME", ".cache"),
        ("XDG_CONFIG_HOME", ".config"),
        ("XDG_DATA_HOME", ".local/share"),
    ):
        monkeypatch.setenv(name, str(home / folder))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    return home


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of public models and images named by EDGEPACK_TEST_DATA."""
    folder = os.environ.get("EDGEPACK_TEST_DATA", "")
    if folder and Path(folder).is_dir():
        return Path(folder)
    if os.environ.get("CI"):
        pytest.fail("EDGEPACK_TEST_DATA does not name a folder; CI must not skip these tests")
    pytest.skip("EDGEPACK_TEST_DATA does not name a folder of public models")
