"""Stores what optimizing found in the user's data directory: one JSON file each."""

from __future__ import annotations

from pathlib import Path

from edgepack.base.files import write_atomically, writing
from edgepack.records.optimizing import OptimizeReport


def find_optimizings_dir() -> Path:
    """Return the folder, which need not exist yet."""
    import platformdirs

    return Path(platformdirs.user_data_dir("edgepack")) / "optimizings"


def find_runs_dir() -> Path:
    """Return the folder of runs of searches that have not come to their end."""
    import platformdirs

    return Path(platformdirs.user_cache_dir("edgepack")) / "optimizing"


def keep_optimizing(report: OptimizeReport, folder: Path | None = None) -> Path:
    """Write a report atomically and return its file.

    Raises:
        ToolError: The folder cannot be written to.
    """
    path = (folder or find_optimizings_dir()) / f"{report.id}.json"
    with writing("what optimizing found", path):
        write_atomically(path, report.model_dump_json() + "\n")
    return path
