"""What the page shows of a project over its devices and variants: figure, fastest ones, table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from edgepack.base.schema import NotMeasured
from edgepack.bundle.manifest import Accuracy
from edgepack.records.run import EvaluationReport
from edgepack.results.page.evaluations import find_accuracy, find_accuracy_range
from edgepack.results.page.farm import Farm, SmallPlot
from edgepack.results.page.overview_table import (
    UNKNOWN,
    OverviewCell,
    OverviewRow,
    make_overview_row,
)
from edgepack.results.page.plots import Figure, PlotMark, draw_overview
from edgepack.results.page.sections import Section
from edgepack.results.store.previous import find_used_variant
from edgepack.results.store.units import UnitHistory
from edgepack.results.summary import MIB, format_milliseconds

BEST_OF = 12
"""Devices whose fastest variant is named above the figure."""
WHISKERS = 60
"""Marks of a figure whose intervals are drawn; of more, the lines hide the marks."""


@dataclass(frozen=True)
class Best:
    """The fastest VALID variant of a device, and what it costs to use it."""

    device: str
    variant: str
    anchor: str
    text: str


@dataclass(frozen=True)
class Overview:
    """One project over its devices and variants."""

    number: int
    title: str
    rows: list[OverviewRow]
    best: list[Best]
    """By device."""
    more_devices: int
    """That have a VALID run and are not among the best ones."""
    figure: Figure
    caption: str
    value: str
    """What the accuracy column has."""
    plots: list[SmallPlot]
    """Of the devices in the table, in its order."""
    farm: Farm

    @property
    def anchors(self) -> dict[str, str]:
        """The worst run of each device."""
        return {row.section.report.device: row.section.anchor for row in self.rows[::-1]}

    @property
    def slowness(self) -> dict[str, OverviewCell]:
        """How much slower than its peers each device is, with the variant that is slowest."""
        return {row.section.report.device: row.peers for row in self.rows[::-1]}

    @property
    def has_predicts(self) -> bool:
        """Whether calls of ``predict`` were timed for any of them."""
        return any(row.predict is not UNKNOWN for row in self.rows)

    @property
    def has_speedups(self) -> bool:
        """Whether some variants were measured in turn with fp32."""
        return any(row.speedup is not UNKNOWN for row in self.rows)

    @property
    def has_peers(self) -> bool:
        """Whether any of its devices is compared with its peers."""
        return any(row.peers.text != "unknown" for row in self.rows)

    def list_values(self, name: str) -> list[str]:
        """Return what the reports of the table have in a field, each once and sorted."""
        return sorted({str(getattr(row.section.report, name)) for row in self.rows})


def make_overview(
    number: int,
    title: str,
    sections: list[Section],
    valid: list[Section],
    evaluations: Sequence[EvaluationReport],
    farm: Farm,
) -> Overview:
    """Return what is shown of a project.

    Args:
        number: Of the project, on the page.
        title: The project.
        sections: The newest run of each device and variant.
        valid: The newest VALID one of each; it may be older.
        evaluations: Of all projects.
        farm: What stored runs say of its devices.
    """
    by_device = sorted(sections, key=_make_sort_key)
    rated = [(section, *find_accuracy(section.report, evaluations)) for section in by_device]
    metrics = [accuracy.metric for _, accuracy, _ in rated if isinstance(accuracy, Accuracy)]
    metric = max(metrics, key=metrics.count) if metrics else ""
    shown = [
        (section, accuracy, evaluation)
        for section, accuracy, evaluation in rated
        if isinstance(accuracy, Accuracy) and accuracy.metric == metric
    ]
    if shown:
        marks = [
            _make_mark(section, find_accuracy_range(accuracy, evaluation))
            for section, accuracy, evaluation in shown
        ]
        value = metric
    else:
        marks = [_make_mark(section, _find_size_range(section)) for section in sections]
        value = "model file (MiB)"
    best = _find_best(
        [
            (section, find_accuracy(section.report, evaluations)[0])
            for section in sorted(valid, key=_make_sort_key)
        ],
        metric,
        {section.anchor for section in sections},
    )
    left_out = len(sections) - len(marks)
    rows = _sort_rows([make_overview_row(*each, _find_unit(each[0], farm)) for each in rated])
    devices = dict.fromkeys(row.section.report.device for row in rows)
    return Overview(
        number=number,
        title=title,
        rows=rows,
        best=best[:BEST_OF],
        more_devices=len(best[BEST_OF:]),
        figure=draw_overview(marks, value),
        caption=_format_caption(
            metric,
            left_out,
            {evaluation is not None for *_, evaluation in shown},
            has_lines=len(marks) <= WHISKERS,
        ),
        value=metric or "accuracy",
        plots=[farm.plots[device] for device in devices if device in farm.plots],
        farm=farm,
    )


def _find_unit(section: Section, farm: Farm) -> UnitHistory | None:
    report = section.report
    return farm.units.get((report.target, report.device, report.variant_used))


def _sort_rows(rows: list[OverviewRow]) -> list[OverviewRow]:
    """Return the rows device by device: the device with the worst row first, its worst row first.

    What is as bad as another stays in the order that it has.
    """
    worst: dict[str, tuple[bool, int, float]] = {}
    for row in rows:
        device = row.section.report.device
        worst[device] = max(worst.get(device, row.badness), row.badness)
    places = {device: place for place, device in enumerate(worst)}
    return sorted(
        sorted(rows, key=lambda row: row.badness, reverse=True),
        key=lambda row: (
            *(-value for value in worst[row.section.report.device]),
            places[row.section.report.device],
        ),
    )


def _make_sort_key(section: Section) -> tuple[str, float]:
    return section.report.device, section.summary.p50_ms


def _find_best(
    rated: Sequence[tuple[Section, Accuracy | NotMeasured]], metric: str, newest: set[str]
) -> list[Best]:
    """Return the fastest variant of each device.

    Args:
        rated: VALID runs, the fastest of a device first.
        metric: Of the accuracies.
        newest: The anchors of the newest runs, VALID or not.
    """
    devices: dict[str, list[tuple[Section, Accuracy | NotMeasured]]] = {}
    for section, accuracy in rated:
        devices.setdefault(section.report.device, []).append((section, accuracy))
    found = []
    for device, variants in devices.items():
        (fastest, its), *_ = variants
        text = format_milliseconds(fastest.summary.p50_ms) + _compare_metric(its, variants, metric)
        if fastest.anchor not in newest:
            text += f" (of {fastest.report.created[:10]}; newer runs are not VALID)"
        found.append(Best(device, fastest.report.variant_used, fastest.anchor, text))
    return found


def _compare_metric(
    its: Accuracy | NotMeasured,
    variants: Sequence[tuple[Section, Accuracy | NotMeasured]],
    metric: str,
) -> str:
    """Return the metric of a variant, and which of the others has a better one."""
    if isinstance(its, NotMeasured) or its.metric != metric:
        return f", {metric} unknown" if metric else ""
    sign = 1 if its.higher_is_better else -1
    rivals = [
        (sign * accuracy.value, accuracy.value, section)
        for section, accuracy in variants
        if isinstance(accuracy, Accuracy) and accuracy.metric == metric
    ]
    rank, value, rival = max(rivals, key=lambda each: each[0])
    text = f", {metric} {its.value:#.4g}"
    if rank <= sign * its.value:
        return f"{text}, the best there" if len(rivals) > 1 else text
    slower = format_milliseconds(rival.summary.p50_ms)
    return f"{text}; {rival.report.variant_used} has {value:#.4g} at {slower}"


def _format_caption(metric: str, left_out: int, on_device: set[bool], *, has_lines: bool) -> str:
    """Return what a figure shows; ``on_device`` says where its metrics were measured."""
    both = len(on_device) == 2
    where = "on the device" if True in on_device else "on the build host"
    where += ", or on the build host where that was not done" if both else ""
    lines = f"of latency, and of {metric}" if True in on_device else "of latency"
    if False in on_device:
        of_host = " of the build host" if both else ""
        lines += f", and of how far {metric}{of_host} is from fp32's"
    parts = [
        f"Left is faster, and {metric} is measured {where}."
        if metric
        else "Left is faster, low is smaller; no accuracy was measured.",
        "The area of a mark is the size of the model file"
        + (", its lines are 95 % intervals" if has_lines else "; point at it for its intervals")
        + (f": {lines}." if metric else "."),
    ]
    if metric and left_out:
        parts.append(f"{left_out} without {metric} are in the table only.")
    return " ".join(parts)


def _make_mark(section: Section, value: tuple[float, float, float]) -> PlotMark:
    report = section.report
    return PlotMark(
        text=f"{report.device} · {report.variant_used}",
        leads_to=section.anchor,
        verdict=report.verdict.kind,
        latency_ms=section.summary.p50_range_ms,
        value=value,
        model_bytes=find_used_variant(report).model_bytes,
    )


def _find_size_range(section: Section) -> tuple[float, float, float]:
    size = find_used_variant(section.report).model_bytes / MIB
    return size, size, size
