"""Tests that need a program: skipped where it is missing, failed in CI."""

from __future__ import annotations

import os
import shutil

import pytest


def require_tool(name: str) -> None:
    """Skip a test where a program is missing; in CI fail it."""
    if shutil.which(name) is None:
        if os.environ.get("CI"):
            pytest.fail(f"{name} is not installed; CI must not skip these tests")
        pytest.skip(f"{name} is not installed")
