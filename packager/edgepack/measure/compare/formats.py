"""A comparison as rows for a terminal, as Markdown for a pull request, and as JUnit XML for CI."""

from __future__ import annotations

from collections.abc import Iterator
from xml.etree import ElementTree

from edgepack.base.markdown import escape_markdown, format_markdown_row
from edgepack.base.statistics import median, percentile
from edgepack.base.terminal import make_printable
from edgepack.records.comparison import ComparedMetric, Comparison, DeviceComparison, Side

COMPARISON_HEADS = (
    "device", "metric", "base", "candidate", "change", "it lies in", "allowed", "answer"
)  # fmt: skip
"""Over the columns of :func:`format_comparison_rows`."""


def format_comparison_rows(comparison: Comparison) -> list[tuple[str, ...]]:
    """Return a row for each metric of each device, under :data:`COMPARISON_HEADS`."""
    return [
        (
            device.device,
            metric.name,
            _format_milliseconds(device.base, metric),
            _format_milliseconds(device.candidate, metric),
            f"{metric.ratio - 1:+.1%}",
            _format_interval(metric),
            f"{metric.margin:+.0%}",
            metric.outcome,
        )
        for device in comparison.devices
        for metric in device.metrics
    ]


def format_comparison_markdown(comparison: Comparison) -> str:
    """Return a comment for a pull request."""
    lines = [f"**edgepack compare: {comparison.outcome}**", ""]
    lines += [
        format_markdown_row(COMPARISON_HEADS),
        format_markdown_row(["---"] * len(COMPARISON_HEADS)),
    ]
    lines += [format_markdown_row(row) for row in format_comparison_rows(comparison)]
    for device in comparison.devices:
        lines += ["", f"{escape_markdown(device.device)}: {_format_device(device)}"]
        lines += [f"- {escape_markdown(reason)}" for reason in (*device.reasons, *device.notes)]
    for lost in comparison.not_compared:
        lines += [
            "",
            f"{escape_markdown(lost.device)} was not compared: {escape_markdown(lost.problem)}",
        ]
    lines += ["", f"Chance of a false FAIL at most {comparison.error:.0%}, over everything above."]
    return "\n".join(lines) + "\n"


def format_comparison_junit(comparison: Comparison) -> str:
    """Return a JUnit document: a suite for each device, a case for each metric.

    FAIL is a failure. INCONCLUSIVE, which has neither passed nor failed, is skipped, and its
    message begins with that word. A device that was not compared is an error.
    """
    suites = ElementTree.Element("testsuites", name="edgepack compare")
    for device in comparison.devices:
        name = make_printable(device.device)
        suite = ElementTree.SubElement(suites, "testsuite", name=name)
        counts = {"tests": 0, "failures": 0, "skipped": 0}
        for case_name, outcome, said in _list_cases(device):
            case = ElementTree.SubElement(
                suite, "testcase", classname=f"edgepack.{name}", name=case_name
            )
            counts["tests"] += 1
            if outcome != "PASS":
                kind = "failure" if outcome == "FAIL" else "skipped"
                counts["failures" if outcome == "FAIL" else "skipped"] += 1
                message = said if outcome == "FAIL" else f"{outcome}: {said}"
                element = ElementTree.SubElement(case, kind, message=make_printable(message[:1000]))
                element.text = "\n".join(make_printable(reason) for reason in device.reasons)
        for what, count in counts.items():
            suite.set(what, str(count))
    for lost in comparison.not_compared:
        name = make_printable(lost.device)
        suite = ElementTree.SubElement(suites, "testsuite", name=name, tests="1", errors="1")
        case = ElementTree.SubElement(
            suite, "testcase", classname=f"edgepack.{name}", name="usable"
        )
        ElementTree.SubElement(case, "error", message=make_printable(lost.problem))
    ElementTree.indent(suites)
    return ElementTree.tostring(suites, encoding="unicode", xml_declaration=True) + "\n"


def _list_cases(device: DeviceComparison) -> Iterator[tuple[str, str, str]]:
    """Yield name, outcome and message of every case."""
    early = [f"it ended early: {device.unfinished}"] if device.unfinished else []
    reasons = [*early, *device.base.reasons, *device.candidate.reasons]
    yield "usable", "PASS" if not reasons else device.outcome, "; ".join(reasons)
    for metric in device.metrics:
        outcome = "INCONCLUSIVE" if reasons and metric.outcome == "PASS" else metric.outcome
        said = f"{metric.ratio - 1:+.1%} ({_format_interval(metric)}), allowed {metric.margin:+.0%}"
        yield metric.name, outcome, said


def _format_device(device: DeviceComparison) -> str:
    sides = [f"{side.bundle} {side.variant}" for side in (device.base, device.candidate)]
    both = sides[0] if sides[0] == sides[1] else f"{sides[0]} against {sides[1]}"
    return f"{escape_markdown(both)}, {device.pairs} pairs of process runs"


def _format_milliseconds(side: Side, metric: ComparedMetric) -> str:
    percent = float(metric.name[1:])
    return f"{median([percentile(run.latencies_ns, percent) for run in side.runs]) / 1e6:.3g} ms"


def _format_interval(metric: ComparedMetric) -> str:
    if metric.low is None or metric.high is None:
        return "unknown"
    return f"{metric.low - 1:+.1%} to {metric.high - 1:+.1%}"
