"""What an earlier call measured of all variants on a device, so that it is not measured again."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from edgepack.records.run import RunReport, Scenario
from edgepack.results.store.store import ResultsStore, RunFilter


@dataclass(frozen=True)
class MeasuredBefore:
    """A measurement of all variants of a bundle on a device that would be made again."""

    device: str
    manifest_sha256: str
    """The bundle's digest."""
    preset: str
    scenario: Scenario
    within_s: float
    """How long ago it may have been, in seconds."""


def find_measured(store: ResultsStore, asked: MeasuredBefore) -> list[RunReport]:
    """Return the newest reports of all variants whose runs were made in turn, all VALID and whole.

    Nothing, if there are none: of a measurement that ended early, or of which a variant is not
    VALID, none is taken.

    Raises:
        ToolError: The store cannot be read.
        BundleError: A report in it is broken.
    """
    since = datetime.now(UTC) - timedelta(seconds=asked.within_s)
    rows = store.rows(RunFilter(kind="bench", device=asked.device, since=since))
    good = {
        row.id
        for row in rows
        if row.manifest_sha256 == asked.manifest_sha256
        and (row.preset, row.verdict, row.unfinished) == (asked.preset, "VALID", False)
    }
    for row in reversed(rows):
        if row.id not in good:
            continue
        report = store.load(row.id)
        if not isinstance(report, RunReport) or report.speedup is None:
            continue
        ids = {report.id, *report.beside}
        if ids <= good and _is_same(report.scenario, asked.scenario):
            found = [one for one in store.load_all(sorted(ids)) if isinstance(one, RunReport)]
            order = [variant.id for variant in report.variants]
            return sorted(found, key=lambda one: order.index(one.variant_used))
    return []


def _is_same(made: Scenario, asked: Scenario) -> bool:
    """Return whether scenarios are the same; how many threads there are the device decides."""
    return made.model_copy(update={"threads": 1}) == asked.model_copy(update={"threads": 1})
