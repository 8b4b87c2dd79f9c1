"""What tests of programs need: skipped where one is missing, failed in CI; archives unpacked."""

from __future__ import annotations

import os
import shutil
import tarfile
from pathlib import Path

import pytest


def require_tool(name: str) -> None:
    """Skip a test where a program is missing; in CI fail it."""
    if shutil.which(name) is None:
        if os.environ.get("CI"):
            pytest.fail(f"{name} is not installed; CI must not skip these tests")
        pytest.skip(f"{name} is not installed")


def unpack(archive: tarfile.TarFile, folder: Path) -> None:
    """Unpack an archive of the test's own; Python before 3.11.4 has no filters."""
    if hasattr(tarfile, "data_filter"):
        archive.extractall(folder, filter="data")
    else:
        archive.extractall(folder)
