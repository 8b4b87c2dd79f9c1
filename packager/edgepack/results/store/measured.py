"""What an earlier call measured of all variants on a device, so that it is not measured again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from edgepack.bundle.unused import Unused
from edgepack.records.run import RunReport, Scenario
from edgepack.results.store.store import ResultsStore, RunFilter


@dataclass(frozen=True)
class MeasuredBefore:
    """A measurement of all variants of a bundle on a device, as it would be made again."""

    device: str
    manifest_sha256: str
    """The bundle's digest."""
    preset: str
    runs: int
    """Process runs of each variant."""
    scenario: Scenario
    within_s: float
    """How long ago it may have been, in seconds."""
    sweep: Sequence[dict[str, list[int]]] = ()
    """The shapes of all inputs at each point."""
    tune: bool = False
    """Whether the device's clocks are held."""

    def is_met(self, report: RunReport) -> bool:
        """Return whether a report is of such a measurement, VALID and whole."""
        return (
            report.speedup is not None
            and not report.unfinished
            and report.verdict.kind == "valid"
            and report.manifest_sha256 == self.manifest_sha256
            and (report.preset, len(report.runs)) == (self.preset, self.runs)
            and _is_same(report.scenario, self.scenario)
            and [point.shapes for point in report.sweep] == list(self.sweep)
            and bool(report.tuned) == self.tune
            and not any(each.stage == "failed" for each in list_out(report))
        )


def list_out(report: RunReport) -> list[Unused]:
    """Return which of the bundle's variants have no report beside this one, and why."""
    shipped = {variant.id for variant in report.variants}
    return [each for each in report.unused if each.variant in shipped]


def find_measured(store: ResultsStore, asked: MeasuredBefore) -> list[RunReport]:
    """Return the newest reports of all variants whose runs were made in turn, all as asked.

    Nothing, if there are none: of a measurement that ended early, or of which a variant failed or
    is not VALID, none is taken.

    Raises:
        ToolError: The store cannot be read.
        BundleError: A report in it is broken.
    """
    since = datetime.now(UTC) - timedelta(seconds=asked.within_s)
    rows = store.rows(RunFilter(kind="bench", device=asked.device, since=since, verdict="VALID"))
    known = {row.id for row in rows}
    for row in reversed(rows):
        if row.manifest_sha256 != asked.manifest_sha256:
            continue
        report = store.load(row.id)
        if not isinstance(report, RunReport) or not known >= {*report.beside}:
            continue
        found = [report, *_load(store, report.beside)]
        if all(map(asked.is_met, found)):
            order = [variant.id for variant in report.variants]
            return sorted(found, key=lambda one: order.index(one.variant_used))
    return []


def _load(store: ResultsStore, ids: Sequence[str]) -> list[RunReport]:
    return [report for report in store.load_all(ids) if isinstance(report, RunReport)]


def _is_same(made: Scenario, asked: Scenario) -> bool:
    """Return whether scenarios are the same; how many threads there are the device decides."""
    return made.model_copy(update={"threads": 1}) == asked.model_copy(update={"threads": 1})
