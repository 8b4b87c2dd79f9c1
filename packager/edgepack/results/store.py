"""The results store: one JSON file per report in the user's data directory."""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import ValidationError

from edgepack.bench.report import SCHEMA_VERSION, RunReport
from edgepack.errors import BundleError, EdgepackError, ToolError, UsageError, nearest


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
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _write_atomically(path, report.model_dump_json().encode() + b"\n")
    except OSError as error:
        raise ToolError(
            f"cannot write the report: {error.strerror}",
            hint="free some space, or set XDG_DATA_HOME to a folder that can be written to",
            where=str(path),
        ) from error
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
    try:
        raw = path.read_bytes()
        _check_version(raw, path)
        return RunReport.model_validate_json(raw)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise _broken(path, f"{place}: {first['msg']}") from error
    except (OSError, ValueError, RecursionError) as error:
        raise _broken(path, str(error)) from error


def _check_version(raw: bytes, path: Path) -> None:
    document = json.loads(raw)
    version = document.get("schema_version") if isinstance(document, dict) else None
    if version != SCHEMA_VERSION:
        raise BundleError(
            f"the report has schema version {version!r}, this edgepack reads {SCHEMA_VERSION}",
            hint="read it with the edgepack that wrote it: pip install --upgrade edgepack",
            where=str(path),
        )


def _broken(path: Path, problem: str) -> BundleError:
    return BundleError(
        f"the report cannot be read: {problem}",
        hint="delete the file, or measure again with edgepack bench",
        where=str(path),
    )


def _write_atomically(path: Path, data: bytes) -> None:
    handle, partial = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem}-", suffix=".partial")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        Path(partial).replace(path)
    finally:
        Path(partial).unlink(missing_ok=True)
