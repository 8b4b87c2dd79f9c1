"""What a build tried for an int8 variant, as rows for people: in the report and with --verbose."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from edgepack.bundle.manifest import Attempt
from edgepack.results.page.table import format_nearness

STAGES = {
    "activations": "Activations in integers, weights exact, on held-out calibration samples",
    "model": "The whole model in integers, on held-out calibration samples",
    "limit": "The whole model in integers, on the evaluation samples, for the limit",
}
NOT_COMPARABLE = (
    "dB: how near the worst output is to fp32's; agreement: samples with fp32's best class. Figures"
    " of different stages cannot be compared: weights, samples or both differ."
)


@dataclass(frozen=True)
class TriedRow:
    """One attempt."""

    what: str
    kept: str
    found: str
    why: str


@dataclass(frozen=True)
class TriedStage:
    """Attempts whose figures can be compared with each other."""

    title: str
    rows: list[TriedRow]


def group_stages(attempts: Sequence[Attempt]) -> list[TriedStage]:
    """Return the attempts of each stage, in the order of the search."""
    return [
        TriedStage(title, [_make_row(each) for each in attempts if each.stage == stage])
        for stage, title in STAGES.items()
        if any(each.stage == stage for each in attempts)
    ]


def _make_row(attempt: Attempt) -> TriedRow:
    drop, near, agreement = attempt.metric_drop, attempt.sqnr_db, attempt.agreement
    found = [
        "" if drop is None else f"metric drop {drop:+.4f}",
        "" if near is None else format_nearness(near),
        "" if agreement is None else f"agreement {agreement:.0%}",
    ]
    kept = "kept" if attempt.kept else "no"
    return TriedRow(attempt.what, kept, ", ".join(filter(None, found)), attempt.why)
