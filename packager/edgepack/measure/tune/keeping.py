"""Stores tuning reports in the user's data directory: one JSON file each."""

from __future__ import annotations

from pathlib import Path

from edgepack.base.files import read_model, write_atomically, writing
from edgepack.records.tuning import SCHEMA_VERSION, TuneReport


def find_tunings_dir() -> Path:
    """Return the folder, which need not exist yet."""
    import platformdirs

    return Path(platformdirs.user_data_dir("edgepack")) / "tunings"


def keep_tuning(report: TuneReport, folder: Path | None = None) -> Path:
    """Write a report atomically and return its file.

    Raises:
        ToolError: The folder cannot be written to.
    """
    path = (folder or find_tunings_dir()) / f"{report.id}.json"
    with writing("what tuning found", path):
        write_atomically(path, report.model_dump_json() + "\n")
    return path


def load_tuning(path: Path) -> TuneReport:
    """Read what tuning found.

    Raises:
        BundleError: The file is broken or of another schema version.
    """
    return read_model(
        path,
        TuneReport,
        version=SCHEMA_VERSION,
        what="what tuning found",
        remedy="delete the file, or tune again with edgepack tune",
    )
