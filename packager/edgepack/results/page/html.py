"""Benchmark reports as one HTML file that needs no network: text, data, style and script inside."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from edgepack.base.files import ELSEWHERE, SHARED, write_atomically, writing
from edgepack.base.resources import find_templates_dir
from edgepack.base.terminal import make_printable
from edgepack.errors import UsageError
from edgepack.records.run import EvaluationReport, RunReport
from edgepack.results.page.evaluations import make_evaluation_row
from edgepack.results.page.farm import HEIGHT, NO_FARM, SHOWN, WIDTH, make_farms
from edgepack.results.page.overview import make_overview
from edgepack.results.page.plots import (
    ALL_STRETCHES,
    LEAST_STRETCHES,
    STRETCHES,
    Figure,
    make_json,
)
from edgepack.results.page.sections import Section, make_section
from edgepack.results.page.tried import NOT_COMPARABLE
from edgepack.results.store.previous import compare_with_previous, find_last_before, find_subject
from edgepack.results.store.rows import RunRow
from edgepack.results.summary import Summary, format_count, summarize

if TYPE_CHECKING:
    import jinja2
    from markupsafe import Markup

MAKE_ONE = "make one: edgepack bench BUNDLE --device NAME"


def write_html(
    reports: Sequence[RunReport],
    path: Path,
    *,
    evaluations: Sequence[EvaluationReport] = (),
    history: Sequence[RunReport] = (),
    stored: Sequence[RunRow] = (),
    tags: Mapping[str, Sequence[str]] = MappingProxyType({}),
) -> Path:
    """Write the page and return its path; an existing one is replaced whole or not at all.

    Args:
        reports: The runs to show.
        path: The file.
        evaluations: Metrics through devices, to be shown beside the build host's.
        history: More runs, of which the last before each shown one is compared with it.
        stored: Benchmarks in short, these and others: histories of devices, which are compared with
            each other.
        tags: Of devices by name.

    Raises:
        UsageError: There is no report to show.
        ToolError: The file cannot be written.
    """
    text = render_html(reports, evaluations=evaluations, history=history, stored=stored, tags=tags)
    with writing("the page", path, ELSEWHERE):
        write_atomically(path, text, mode=SHARED)
    return path


def render_html(
    reports: Sequence[RunReport],
    *,
    evaluations: Sequence[EvaluationReport] = (),
    history: Sequence[RunReport] = (),
    stored: Sequence[RunRow] = (),
    tags: Mapping[str, Sequence[str]] = MappingProxyType({}),
) -> str:
    """Return the page, newest run first. Texts of users and devices are escaped.

    Raises:
        UsageError: There is no report to show.
    """
    if not reports:
        raise UsageError("there is no report to show", hint=MAKE_ONE)
    newest_first = sorted(reports, key=lambda each: (each.created, each.id), reverse=True)
    sections = _make_sections(newest_first, history)
    valid = [section for section in sections if section.report.verdict.kind == "valid"]
    newest_valid = dict(_group_by_project(valid))
    farms = make_farms(stored)
    overviews = [
        make_overview(
            number,
            title,
            group,
            newest_valid.get(title, []),
            evaluations,
            farms.get(title, NO_FARM),
        )
        for number, (title, group) in enumerate(_group_by_project(sections), 1)
    ]
    script = _read_script()
    return (
        _make_environment()
        .get_template("report.html.j2")
        .render(
            title=_format_title(newest_first),
            made_of=_list_materials(sections),
            sections=sections,
            overviews=overviews,
            evaluations=[make_evaluation_row(each) for each in evaluations],
            not_comparable=NOT_COMPARABLE,
            tags=tags,
            small=(WIDTH, HEIGHT, SHOWN),
            script=script,
            script_hash=_compute_csp_hash(script),
        )
    )


@cache
def _make_environment() -> jinja2.Environment:
    import jinja2
    from markupsafe import Markup

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(find_templates_dir() / "report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        finalize=lambda value: (
            make_printable(value)
            if isinstance(value, str) and not isinstance(value, Markup)
            else value
        ),
    )
    environment.filters["figure"] = _format_figures
    return environment


def _format_figures(figures: dict[str, Figure]) -> Markup:
    """Return figures as JSON that no HTML parser takes for markup."""
    from markupsafe import Markup

    data = {name: make_json(each) for name, each in figures.items()}
    text = json.dumps(data, separators=(",", ":"))
    for char in "<>&":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return Markup(text)  # noqa: S704  (nothing in it is markup any more)


def _read_script() -> Markup:
    from markupsafe import Markup

    text = (find_templates_dir() / "report" / "report.js").read_text(encoding="utf-8")
    return Markup(text)  # noqa: S704  (a file of edgepack's own)


def _compute_csp_hash(script: str) -> str:
    digest = hashlib.sha256(script.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"


def _format_title(reports: Sequence[RunReport]) -> str:
    names = dict.fromkeys(report.project or report.bundle for report in reports)
    return ", ".join(list(names)[:3]) + (" and more" if len(names) > 3 else "")


def _list_materials(sections: Sequence[Section]) -> list[str]:
    reports = [section.report for section in sections]
    devices = {report.device for report in reports}
    dates = sorted(report.created[:10] for report in reports)
    words = [format_count(len(reports), "run"), format_count(len(devices), "device")]
    return [*words, dates[0] if dates[0] == dates[-1] else f"{dates[0]} to {dates[-1]}"]


def _make_sections(reports: Sequence[RunReport], history: Sequence[RunReport]) -> list[Section]:
    subjects: dict[tuple[str, ...], dict[str, RunReport]] = {}
    for each in [*history, *reports]:
        subjects.setdefault(find_subject(each), {})[each.id] = each

    @cache
    def summarize_once(subject: tuple[str, ...], run: str) -> Summary:
        return summarize(subjects[subject][run])

    detail = max(LEAST_STRETCHES, min(STRETCHES, ALL_STRETCHES // len(reports)))
    sections = []
    for number, report in enumerate(reports, 1):
        subject = find_subject(report)
        summary, changed = summarize_once(subject, report.id), None
        if before := find_last_before(report, [*subjects[subject].values()]):
            both = summarize_once(subject, before.id), summary
            changed = compare_with_previous(before, report, both)
        sections.append(make_section(f"run-{number}", report, summary, changed, detail))
    return sections


def _group_by_project(sections: Iterable[Section]) -> list[tuple[str, list[Section]]]:
    """Group the newest run of each device and variant by project and metric."""
    newest: dict[tuple[str, ...], Section] = {}
    for section in sections:
        newest.setdefault(find_subject(section.report), section)
    groups: dict[str, list[Section]] = {}
    for section in newest.values():
        groups.setdefault(section.report.project or section.report.bundle, []).append(section)
    return list(groups.items())
