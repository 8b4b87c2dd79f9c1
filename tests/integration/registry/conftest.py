"""A bundle with few files, so that a registry is asked for few."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.support.reports.tiny_bundle import change_manifest, write_tiny_bundle


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle without a harness, which nothing here needs; tests do not change it."""
    bundle = write_tiny_bundle(tmp_path_factory.mktemp("tiny") / "bundle")
    shutil.rmtree(bundle / "harness")

    def drop(manifest: dict[str, Any]) -> None:
        files = manifest["files"]
        manifest["files"] = [one for one in files if not one["path"].startswith("harness/")]

    change_manifest(bundle, drop)
    return bundle
