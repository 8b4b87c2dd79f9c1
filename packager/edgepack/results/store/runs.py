"""``edgepack runs``: lists, shows, deletes and imports what the results store keeps."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from edgepack.errors import UsageError
from edgepack.results.store.documents import Report
from edgepack.results.store.importing import Tool, can_be_log, import_log
from edgepack.results.store.rows import RunRow
from edgepack.results.store.store import ResultsStore, RunFilter


def list_runs(store: ResultsStore, wanted: RunFilter | None = None) -> list[RunRow]:
    """Return what is kept, in short and oldest first, without reading the reports.

    Args:
        store: Where it is kept.
        wanted: Which; default: all.

    Raises:
        ToolError: The store cannot be read.
    """
    return store.rows(wanted)


def show_run(store: ResultsStore, run: str) -> Report:
    """Return one stored report by its id.

    Raises:
        UsageError: There is no such report.
        BundleError: It is broken, or a newer edgepack made it.
    """
    return store.load(run)


def prune_runs(
    store: ResultsStore, keep: int, project: str | None = None, *, dry_run: bool = False
) -> list[RunRow]:
    """Delete all but the newest reports of each variant, device, target and project.

    Args:
        store: Where they are kept.
        keep: How many stay of each kind of report.
        project: Only of this one; default: of all.
        dry_run: Delete nothing, and only return what would be deleted.

    Returns:
        What is deleted, oldest first.

    Raises:
        ToolError: The store cannot be written to.
    """
    return store.prune(keep, project, dry_run=dry_run)


def import_runs(
    store: ResultsStore,
    files: Sequence[Path],
    *,
    device: str | None = None,
    model: str | None = None,
    tool: Tool | None = None,
) -> list[Report]:
    """Keep what was measured elsewhere; all of it, or nothing if one file cannot be read.

    Args:
        store: Where it is kept.
        files: Report files, or logs of onnxruntime_perf_test, trtexec, OpenVINO's benchmark_app or
            LiteRT's benchmark_model.
        device: Of logs: where they were measured.
        model: Of logs: the model's name, where they do not say it.
        tool: Of logs: what wrote them; default: as they look.

    Returns:
        What is kept now: first the reports, then the logs.

    Raises:
        UsageError: A file is not there, or a log comes without ``device``.
        BundleError: A file is neither, or is broken.
    """
    for path in files:
        if not path.is_file():
            raise UsageError(
                "there is no such file", hint="name a report or a log", where=str(path)
            )
    logs = [path for path in files if tool or can_be_log(path)]
    found = [import_log(path, device or "", model, tool) for path in logs]
    if logs and device is None:
        raise UsageError(
            "a log does not say on which device it was made",
            hint="add --device NAME",
            where=str(logs[0]),
        )
    added = store.add([path for path in files if path not in logs])
    store.save(*found)
    return [*added, *found]
