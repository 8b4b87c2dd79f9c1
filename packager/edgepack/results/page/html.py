"""Benchmark reports as one HTML file that needs no network: text, data, style and script inside."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from edgepack.base.files import ELSEWHERE, SHARED, write_atomically, writing
from edgepack.base.resources import templates_dir
from edgepack.base.schema import NotMeasured
from edgepack.base.statistics import Interval
from edgepack.base.terminal import printable
from edgepack.bundle.manifest import Accuracy
from edgepack.errors import UsageError
from edgepack.records.run import EvaluationReport, RunReport
from edgepack.results.page.plots import (
    ALL_STRETCHES,
    LEAST_STRETCHES,
    STRETCHES,
    Figure,
    PlotMark,
    as_json,
    overview_figure,
)
from edgepack.results.page.sections import Section, section_of
from edgepack.results.page.tried import NOT_COMPARABLE
from edgepack.results.store.previous import SincePrevious, last_before, percent, same_subject, since
from edgepack.results.summary import (
    MIB,
    Summary,
    interval_text,
    known,
    mebibytes,
    milliseconds,
    peak_memory,
    placement_text,
    summarize,
)

if TYPE_CHECKING:
    import jinja2
    from markupsafe import Markup

BEST_OF = 12
"""Devices whose fastest variant is named above the figure."""
MARGIN = 0.03
"""A change of p50 is coloured where all of its interval is beyond this."""
MAKE_ONE = "make one: edgepack bench BUNDLE --device NAME"


@dataclass(frozen=True)
class OverviewCell:
    """One value of the overview's table."""

    text: str
    order: float | str
    """What the column is sorted by."""
    note: str = ""
    look: str = ""
    """``more`` or ``less`` for a change that matters."""


@dataclass(frozen=True)
class OverviewRow:
    """The newest run of one device and variant."""

    section: Section
    target: str
    p50: OverviewCell
    p90: OverviewCell
    throughput: OverviewCell
    accuracy: OverviewCell
    size: OverviewCell
    memory: OverviewCell
    energy: OverviewCell
    change: OverviewCell


@dataclass(frozen=True)
class EvaluationRow:
    """The metric through a device beside the one that the build host found."""

    device: str
    bundle: str
    variant: str
    metric: str
    measured: str
    interval: str
    simulated: str
    difference: str
    samples: int
    placement: str
    created: str
    reasons: list[str]
    """Why the metric must not be used; empty if it may."""


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
    """What the accuracy column holds."""


def write_html(
    reports: Sequence[RunReport],
    path: Path,
    *,
    evaluations: Sequence[EvaluationReport] = (),
    history: Sequence[RunReport] = (),
) -> Path:
    """Write the page and return its path; an existing one is replaced whole or not at all.

    Args:
        reports: The runs to show.
        path: The file.
        evaluations: Metrics through devices, to be shown beside the build host's.
        history: More runs, of which the last before each shown one is compared with it.

    Raises:
        UsageError: There is no report to show.
        ToolError: The file cannot be written.
    """
    text = render_html(reports, evaluations=evaluations, history=history)
    with writing("the page", path, ELSEWHERE):
        write_atomically(path, text, mode=SHARED)
    return path


def render_html(
    reports: Sequence[RunReport],
    *,
    evaluations: Sequence[EvaluationReport] = (),
    history: Sequence[RunReport] = (),
) -> str:
    """Return the page, newest run first. Texts of users and devices are escaped.

    Raises:
        UsageError: There is no report to show.
    """
    if not reports:
        raise UsageError("there is no report to show", hint=MAKE_ONE)
    newest_first = sorted(reports, key=lambda each: (each.created, each.id), reverse=True)
    sections = _sections(newest_first, history)
    valid = [section for section in sections if section.report.verdict.kind == "valid"]
    newest_valid = dict(_by_project(valid))
    overviews = [
        _overview(number, title, group, newest_valid.get(title, []), evaluations)
        for number, (title, group) in enumerate(_by_project(sections), 1)
    ]
    script = _script()
    return (
        _environment()
        .get_template("report.html.j2")
        .render(
            title=_title(newest_first),
            made_of=_made_of(sections),
            sections=sections,
            overviews=overviews,
            evaluations=[_evaluation_row(each) for each in evaluations],
            not_comparable=NOT_COMPARABLE,
            script=script,
            script_hash=_csp_hash(script),
        )
    )


@cache
def _environment() -> jinja2.Environment:
    import jinja2
    from markupsafe import Markup

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(templates_dir() / "report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        finalize=lambda value: (
            printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value
        ),
    )
    environment.filters["figure"] = _figure_json
    return environment


def _figure_json(figures: dict[str, Figure]) -> Markup:
    """Return figures as JSON that no HTML parser reads as anything else."""
    from markupsafe import Markup

    data = {name: as_json(each) for name, each in figures.items()}
    text = json.dumps(data, separators=(",", ":"))
    for char in "<>&":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return Markup(text)  # noqa: S704  (nothing in it is markup any more)


def _script() -> Markup:
    from markupsafe import Markup

    text = (templates_dir() / "report" / "report.js").read_text(encoding="utf-8")
    return Markup(text)  # noqa: S704  (a file of edgepack's own)


def _csp_hash(script: str) -> str:
    digest = hashlib.sha256(script.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"


def _title(reports: Sequence[RunReport]) -> str:
    names = dict.fromkeys(report.project or report.bundle for report in reports)
    return ", ".join(list(names)[:3]) + (" and more" if len(names) > 3 else "")


def _made_of(sections: Sequence[Section]) -> list[str]:
    reports = [section.report for section in sections]
    devices = {report.device for report in reports}
    dates = sorted(report.created[:10] for report in reports)
    words = [_count(len(reports), "run"), _count(len(devices), "device")]
    return [*words, dates[0] if dates[0] == dates[-1] else f"{dates[0]} to {dates[-1]}"]


def _count(number: int, word: str) -> str:
    return f"{number} {word}" + ("" if number == 1 else "s")


def _sections(reports: Sequence[RunReport], history: Sequence[RunReport]) -> list[Section]:
    subjects: dict[tuple[str, ...], dict[str, RunReport]] = {}
    for each in [*history, *reports]:
        subjects.setdefault(same_subject(each), {})[each.id] = each

    @cache
    def summary_of(subject: tuple[str, ...], run: str) -> Summary:
        return summarize(subjects[subject][run])

    detail = max(LEAST_STRETCHES, min(STRETCHES, ALL_STRETCHES // len(reports)))
    sections = []
    for number, report in enumerate(reports, 1):
        subject = same_subject(report)
        summary = summary_of(subject, report.id)
        before = last_before(report, [*subjects[subject].values()])
        changed = (
            since(before, report, (summary_of(subject, before.id), summary)) if before else None
        )
        sections.append(section_of(f"run-{number}", report, summary, changed, detail))
    return sections


def _by_project(sections: Iterable[Section]) -> list[tuple[str, list[Section]]]:
    """Group the newest run of each device and variant by project and metric."""
    newest: dict[tuple[str, ...], Section] = {}
    for section in sections:
        newest.setdefault(same_subject(section.report), section)
    groups: dict[str, list[Section]] = {}
    for section in newest.values():
        groups.setdefault(section.report.project or section.report.bundle, []).append(section)
    return list(groups.items())


def _overview(
    number: int,
    title: str,
    sections: list[Section],
    valid: list[Section],
    evaluations: Sequence[EvaluationReport],
) -> Overview:
    """Return what is shown of a project.

    Args:
        number: Of the project, on the page.
        title: The project.
        sections: The newest run of each device and variant.
        valid: The newest VALID one of each; it may be older.
        evaluations: Of all projects.
    """
    by_device = sorted(sections, key=_device_and_p50)
    rated = [(section, *_accuracy(section.report, evaluations)) for section in by_device]
    metrics = [accuracy.metric for _, accuracy, _ in rated if isinstance(accuracy, Accuracy)]
    metric = max(metrics, key=metrics.count) if metrics else ""
    shown = [
        (section, accuracy, evaluation)
        for section, accuracy, evaluation in rated
        if isinstance(accuracy, Accuracy) and accuracy.metric == metric
    ]
    if shown:
        marks = [
            _mark(section, _accuracy_range(accuracy, evaluation))
            for section, accuracy, evaluation in shown
        ]
        value = metric
    else:
        marks = [_mark(section, _size_range(section)) for section in sections]
        value = "model file (MiB)"
    best = _best(
        [
            (section, _accuracy(section.report, evaluations)[0])
            for section in sorted(valid, key=_device_and_p50)
        ],
        metric,
        {section.anchor for section in sections},
    )
    left_out = len(sections) - len(marks)
    return Overview(
        number=number,
        title=title,
        rows=[_row(*each) for each in rated],
        best=best[:BEST_OF],
        more_devices=len(best[BEST_OF:]),
        figure=overview_figure(marks, value),
        caption=_caption(metric, left_out, {evaluation is not None for *_, evaluation in shown}),
        value=metric or "accuracy",
    )


def _device_and_p50(section: Section) -> tuple[str, float]:
    return section.report.device, section.summary.p50_ms


def _best(
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
        text = milliseconds(fastest.summary.p50_ms) + _compared(its, variants, metric)
        if fastest.anchor not in newest:
            text += f" (of {fastest.report.created[:10]}; newer runs are not VALID)"
        found.append(Best(device, fastest.report.variant_used, fastest.anchor, text))
    return found


def _compared(
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
    slower = milliseconds(rival.summary.p50_ms)
    return f"{text}; {rival.report.variant_used} has {value:#.4g} at {slower}"


def _caption(metric: str, left_out: int, on_device: set[bool]) -> str:
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
        "The area of a mark is the size of the model file, its lines are 95 % intervals"
        + (f": {lines}." if metric else "."),
    ]
    if metric and left_out:
        parts.append(f"{left_out} without {metric} are in the table only.")
    return " ".join(parts)


def _accuracy(
    report: RunReport, evaluations: Sequence[EvaluationReport]
) -> tuple[Accuracy | NotMeasured, EvaluationReport | None]:
    """Return the accuracy of what ran; with the evaluation, where the device itself computed it."""
    own = [
        each
        for each in evaluations
        if not each.reasons
        and (each.device, each.manifest_sha256, each.variant)
        == (report.device, report.manifest_sha256, report.variant_used)
    ]
    if own:
        newest = max(own, key=lambda each: each.created)
        return newest.measured, newest
    return next(v.accuracy for v in report.variants if v.id == report.variant_used), None


def _mark(section: Section, value: tuple[float, float, float]) -> PlotMark:
    report, interval = section.report, section.summary.median_interval_ms
    p50 = section.summary.p50_ms
    low, high = (p50, p50) if isinstance(interval, NotMeasured) else (interval.low, interval.high)
    return PlotMark(
        text=f"{report.device} · {report.variant_used}",
        leads_to=section.anchor,
        verdict=report.verdict.kind,
        latency_ms=(low, p50, high),
        value=value,
        model_bytes=_used_bytes(report),
    )


def _used_bytes(report: RunReport) -> int:
    return next(v.model_bytes for v in report.variants if v.id == report.variant_used)


def _size_range(section: Section) -> tuple[float, float, float]:
    size = _used_bytes(section.report) / MIB
    return size, size, size


def _accuracy_range(
    accuracy: Accuracy, evaluation: EvaluationReport | None
) -> tuple[float, float, float]:
    """Return the metric with its interval on the device, else with that of its drop from fp32."""
    value, interval = accuracy.value, accuracy.drop_interval
    if evaluation is not None and not isinstance(evaluation.interval, NotMeasured):
        return evaluation.interval[0], value, evaluation.interval[1]
    if interval is None or isinstance(accuracy.fp32, NotMeasured):
        return value, value, value
    sign = -1 if accuracy.higher_is_better else 1
    ends = sorted(accuracy.fp32 + sign * drop for drop in interval)
    return ends[0], value, ends[1]


def _row(
    section: Section, accuracy: Accuracy | NotMeasured, evaluation: EvaluationReport | None
) -> OverviewRow:
    report, summary = section.report, section.summary
    interval = summary.median_interval_ms
    reach = "" if isinstance(interval, NotMeasured) else interval_text(interval)
    memory = report.memory
    doubt = "inconclusive" if summary.heavy_tail else ""
    return OverviewRow(
        section=section,
        target=report.target,
        p50=OverviewCell(milliseconds(summary.p50_ms), summary.p50_ms, reach),
        p90=OverviewCell(milliseconds(summary.p90_ms), summary.p90_ms, doubt),
        throughput=_number(summary.throughput, "/s", doubt),
        accuracy=_accuracy_cell(accuracy, on_device=evaluation is not None),
        size=OverviewCell(mebibytes(_used_bytes(report)), _used_bytes(report)),
        memory=OverviewCell("unknown", -1)
        if isinstance(memory, NotMeasured)
        else OverviewCell(peak_memory(report), memory.peak_bytes),
        energy=_number(summary.energy_mj, " mJ", doubt),
        change=_change(section.since, report.verdict.kind),
    )


def _number(value: float | NotMeasured, unit: str, note: str) -> OverviewCell:
    if isinstance(value, NotMeasured):
        return OverviewCell("unknown", -1)
    return OverviewCell(
        f"{value:,.0f}{unit}" if value >= 1000 else f"{value:.3g}{unit}", value, note
    )


def _accuracy_cell(accuracy: Accuracy | NotMeasured, *, on_device: bool) -> OverviewCell:
    if isinstance(accuracy, NotMeasured):
        return OverviewCell("unknown", -1)
    where = "on the device" if on_device else "build host"
    return OverviewCell(f"{accuracy.value:#.4g}", accuracy.value, where)


def _change(found: SincePrevious | None, verdict: str) -> OverviewCell:
    if found is None:
        return OverviewCell("first run", 1)
    latency = found.changes[0]
    ratio = latency.ratio
    if isinstance(ratio, Interval):
        reach = f"{percent(ratio.low).removesuffix(' %')} to {percent(ratio.high)}"
        if found.run.verdict.kind == "invalid":
            return OverviewCell(percent(ratio.estimate), ratio.estimate, "the last one is INVALID")
        far = ratio.low > 1 + MARGIN or ratio.high < 1 - MARGIN
        look = latency.direction if far and verdict != "invalid" else ""
        return OverviewCell(percent(ratio.estimate), ratio.estimate, reach, look)
    return OverviewCell("unknown", -1) if ratio is None else OverviewCell(percent(ratio), ratio)


def _evaluation_row(report: EvaluationReport) -> EvaluationRow:
    measured, simulated = report.measured, report.simulated
    low, _, high = _accuracy_range(measured, report)
    of_drop = ", of its drop from fp32" if isinstance(report.interval, NotMeasured) else ""
    same = isinstance(simulated, Accuracy) and simulated.metric == measured.metric
    return EvaluationRow(
        device=report.device,
        bundle=report.bundle,
        variant=report.variant,
        metric=measured.metric,
        measured=f"{measured.value:#.4g}",
        interval="n/a" if low == high else f"{low:#.4g} to {high:#.4g}{of_drop}",
        simulated=known(simulated)
        if isinstance(simulated, NotMeasured)
        else f"{simulated.value:#.4g}",
        difference=f"{measured.value - simulated.value:+.4f}"
        if same and isinstance(simulated, Accuracy)
        else "n/a",
        samples=measured.samples,
        placement=known(report.placement)
        if isinstance(report.placement, NotMeasured)
        else placement_text(report),
        created=report.created,
        reasons=report.reasons,
    )
