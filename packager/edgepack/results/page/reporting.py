"""``edgepack report``: the page about what the results store keeps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from edgepack.errors import UsageError, suggest_nearest
from edgepack.records.run import EvaluationReport, RunReport
from edgepack.results.page.html import MAKE_ONE, write_html
from edgepack.results.store.rows import RunRow, find_project
from edgepack.results.store.store import ResultsStore, RunFilter

NEWEST = 100
"""Runs that a page shows, unless more are asked for."""
MOST = 1000
"""Runs of as many devices and variants that it shows then, one of each."""


@dataclass(frozen=True)
class Page:
    """A page that was written."""

    path: Path
    shown: int
    """The number of runs that it shows."""
    found: int
    """The number of runs that it could have shown."""


def report(
    path: Path,
    store: ResultsStore,
    *,
    runs: Sequence[str] = (),
    wanted: RunFilter | None = None,
    last: int | None = None,
    tags: Mapping[str, Sequence[str]] | None = None,
) -> Page:
    """Write one HTML file about stored runs, each compared with the last one before it.

    Args:
        path: The file; it is replaced whole or not at all.
        store: Where they are kept.
        runs: Ids of runs and evaluations. Without them: the newest that are wanted.
        wanted: Which runs, where no ids are given.
        last: How many runs to show at most, where no ids are given. Default: the newest 100, and
            the newest of each device, target and variant.
        tags: Of devices by name, by which the page can be filtered.

    Raises:
        UsageError: There is no run, or an id is not that of a run or an evaluation.
        ToolError: The file cannot be written.
        BundleError: A report is broken.
    """
    benches = store.rows(replace(wanted or RunFilter(), kind="bench"))
    ids = list(runs) or _choose_newest(benches, last)
    if not ids:
        raise _make_none_found_error(store, wanted)
    named = store.load_all(list(dict.fromkeys(ids)))
    reports = [each for each in named if isinstance(each, RunReport)]
    evaluations = [each for each in named if isinstance(each, EvaluationReport)]
    others = [each.id for each in named if not isinstance(each, RunReport | EvaluationReport)]
    if others:
        raise UsageError(
            f"{others[0]} is of several models, or of another tool's log, which the page does not"
            " show",
            hint=f"edgepack runs show {others[0]}",
        )
    if not reports:
        raise UsageError("none of these is a run", hint="edgepack runs list", where=store.name)
    everything = store.rows(RunFilter(kind="bench"))
    history = store.load_all(_find_ids_before(reports, everything))
    kept = {each.id: each for each in [*_load_evaluations(store, reports), *evaluations]}
    shown = {each.id for each in reports}
    projects = {find_project(row) for row in everything if row.id in shown}
    write_html(
        reports,
        path,
        tags=tags or {},
        stored=[row for row in everything if find_project(row) in projects],
        evaluations=list(kept.values()),
        history=[each for each in history if isinstance(each, RunReport)],
    )
    return Page(path, len(reports), len(runs) or len(benches))


def _choose_newest(rows: Sequence[RunRow], last: int | None) -> list[str]:
    """Return the ids of the newest runs, oldest first."""
    if last is not None:
        return [row.id for row in rows[-last:]]
    newest = {(row.project, row.device, row.target, row.variant): row.id for row in rows}
    wanted = {*newest.values(), *(row.id for row in rows[-NEWEST:])}
    return [row.id for row in rows if row.id in wanted][-MOST:]


def _make_none_found_error(store: ResultsStore, wanted: RunFilter | None) -> UsageError:
    """Return the error that no stored run matches, and what the user may have meant."""
    kept = store.rows(RunFilter(kind="bench"))
    for field in ("project", "target", "device"):
        asked = getattr(wanted, field, None)
        known = sorted({name for row in kept if (name := getattr(row, field))})
        if asked and asked not in known and known:
            problem = f"the results store has no run with the {field} {asked!r}"
            return UsageError(problem, hint=suggest_nearest(asked, known), where=store.name)
    return UsageError("the results store has no such run", hint=MAKE_ONE, where=store.name)


def _find_ids_before(reports: Sequence[RunReport], rows: Sequence[RunRow]) -> list[str]:
    """Return the ids of the last runs before these, of the same subject each."""
    last: dict[tuple[str | None, ...], str] = {}
    before: dict[str, str | None] = {}
    for row in rows:
        subject = (row.project or row.bundle, row.target, row.device, row.variant, row.scenario)
        before[row.id] = last.get(subject)
        last[subject] = row.id
    shown = {report.id for report in reports}
    found = (before.get(report.id) for report in reports)
    return list(dict.fromkeys(run for run in found if run and run not in shown))


def _load_evaluations(store: ResultsStore, reports: Sequence[RunReport]) -> list[EvaluationReport]:
    """Return the newest evaluation of each bundle, device and variant that is shown."""
    subjects = {(each.manifest_sha256, each.device, each.variant_used) for each in reports}
    newest = {
        (row.manifest_sha256, row.device, row.variant): row.id
        for row in store.rows(RunFilter(kind="evaluation"))
        if (row.manifest_sha256, row.device, row.variant) in subjects
    }
    found = store.load_all(list(newest.values()))
    return [each for each in found if isinstance(each, EvaluationReport)]
