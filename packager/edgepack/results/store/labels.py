"""Finds which runs of a list do not compare, because their conditions differ."""

from __future__ import annotations

from collections.abc import Sequence

from edgepack.errors import BundleError, UsageError
from edgepack.records.run import ImportedReport
from edgepack.results.store.fingerprint import list_differences
from edgepack.results.store.rows import RunRow, find_project
from edgepack.results.store.store import ResultsStore

MOST = 10
"""Labels, the newest."""


def explain_incomparable(store: ResultsStore, rows: Sequence[RunRow]) -> list[str]:
    """Return where, among runs of one variant on one device, the conditions changed.

    Args:
        store: Where the runs are.
        rows: Some of them, oldest first.

    Returns:
        One line for each run whose conditions differ from those of the run before it:
        ``RUN and RUN do not compare: onnxruntime: 1.31.1, then 1.32.0``.
    """
    newest: dict[tuple[str | None, ...], RunRow] = {}
    changes = []
    for row in rows:
        subject = row.kind, find_project(row), row.target, row.device, row.variant
        before = newest.get(subject)
        if before and before.fingerprint != row.fingerprint:
            changes.append((before.id, row.id))
        newest[subject] = row
    return [_explain_change(store, *change) for change in changes[-MOST:]]


def list_reasons(store: ResultsStore, before: str, after: str) -> list[str]:
    """Return why two stored runs with different fingerprints do not compare.

    Raises:
        ToolError: The store cannot be reached.
    """
    try:
        first, second = store.load_all([before, after])
    except (BundleError, UsageError) as error:  # also one that was pruned just now
        return [error.problem]
    if isinstance(first, ImportedReport) or isinstance(second, ImportedReport):
        return ["they are logs of other tools"]
    return list_differences(first, second) or [
        "different versions of edgepack stored them, and distinguish conditions differently"
    ]


def _explain_change(store: ResultsStore, before: str, after: str) -> str:
    return f"{before} and {after} do not compare: {'; '.join(list_reasons(store, before, after))}"
