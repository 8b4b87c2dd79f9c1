"""The results store: one JSON file per report in the user's data directory."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from edgepack.bench.report import SCHEMA_VERSION, RunReport
from edgepack.errors import BundleError, EdgepackError, UsageError, nearest
from edgepack.stored import read_model, write_atomically, writing


def reports_dir() -> Path:
    """Return the folder of the reports, which need not exist yet."""
    import platformdirs

    return Path(platformdirs.user_data_dir("edgepack")) / "reports"


@dataclass(frozen=True)
class Listing:
    """All reports that can be read, oldest first, and what is wrong with the others."""

    reports: list[RunReport] = field(default_factory=list)
    broken: list[EdgepackError] = field(default_factory=list)


def save_report(report: RunReport, folder: Path | None = None) -> Path:
    """Write a report atomically and return its file; an existing one is replaced.

    Raises:
        ToolError: The folder cannot be written to.
    """
    folder = folder or reports_dir()
    path = folder / f"{report.id}.json"
    with writing("the report", path):
        write_atomically(path, report.model_dump_json() + "\n")
    return path


def load_report(report_id: str, folder: Path | None = None) -> RunReport:
    """Return one report by its id.

    Raises:
        UsageError: There is no such report.
        BundleError: Its file is broken or of another schema version.
    """
    folder = folder or reports_dir()
    known = [path.stem for path in folder.glob("*.json")]
    if report_id not in known:
        raise UsageError(f"there is no report {report_id!r}", hint=nearest(report_id, known))
    return read_report(folder / f"{report_id}.json")


def list_reports(folder: Path | None = None) -> Listing:
    """Return all reports; a broken file hides no other."""
    listing = Listing()
    for path in sorted((folder or reports_dir()).glob("*.json")):
        try:
            listing.reports.append(read_report(path))
        except BundleError as error:
            listing.broken.append(error)
    listing.reports.sort(key=lambda report: (report.created, report.id))
    return listing


def read_report(path: Path) -> RunReport:
    """Read one report file.

    Raises:
        BundleError: It is broken or of another schema version.
    """
    return read_model(
        path,
        RunReport,
        version=SCHEMA_VERSION,
        what="the report",
        remedy="delete the file, or measure again with edgepack bench",
    )
