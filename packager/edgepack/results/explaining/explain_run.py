"""``edgepack explain``: explains a stored run."""

from __future__ import annotations

from edgepack.errors import UsageError
from edgepack.records.run import RunReport
from edgepack.results.explaining.explaining import Explanation, explain
from edgepack.results.store.store import ResultsStore, RunFilter
from edgepack.results.summary import summarize


def explain_run(store: ResultsStore, run: str | None = None) -> Explanation:
    """Explain where the time of a stored run goes, and what may help.

    Args:
        store: Where it is kept.
        run: Its id; default: the newest run of ``bench``.

    Raises:
        UsageError: There is no such run, or it is no run of ``bench``.
        BundleError: It is broken, or a newer edgepack made it.
    """
    report = store.load(run or _find_newest(store))
    if not isinstance(report, RunReport):
        raise UsageError(
            f"{report.id} is no run of edgepack bench: only these have nodes to explain",
            hint="edgepack runs list",
            where=store.name,
        )
    return explain(report, summarize(report).p50_ms)


def _find_newest(store: ResultsStore) -> str:
    rows = store.rows(RunFilter(kind="bench", limit=1))
    if not rows:
        raise UsageError(
            "the results store has no run",
            hint="make one: edgepack bench BUNDLE --device NAME",
            where=store.name,
        )
    return rows[-1].id
