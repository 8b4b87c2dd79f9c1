"""Many variants on many devices: one table for a terminal, Markdown, and JUnit XML for CI."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from xml.etree import ElementTree

from edgepack.base.markdown import escape_markdown, format_markdown_row
from edgepack.base.schema import NotMeasured
from edgepack.base.terminal import make_printable
from edgepack.bundle.manifest import Accuracy
from edgepack.bundle.unused import Unused
from edgepack.records.run import RunReport, Speedup
from edgepack.results.limits import judge_limits
from edgepack.results.store.previous import find_used_variant
from edgepack.results.summary import (
    Summary,
    format_milliseconds,
    format_rate,
    format_verdict,
    list_verdict_reasons,
    summarize,
)

_MB, _MJ = 1e6, 1e3
_NONE = "n/a"
VARIANT_HEADS = (
    "device", "variant", "p50, ms", "predict, ms", "verdict", "speedup", "FPS", "FPS/MB", "FPS/W",
    "metric", "limits",
)  # fmt: skip
"""Over the columns of :func:`list_variant_rows`. In brackets are 95 % intervals; the speedup is the
one over fp32, in pairs of process runs. ``predict`` is the median of whole calls, from pictures,
texts and tensors to answers."""


def list_variant_rows(reports: Sequence[RunReport]) -> list[tuple[str, ...]]:
    """Return a row for each report, under :data:`VARIANT_HEADS`, by device, the fastest first."""
    summaries = {report.id: summarize(report) for report in reports}
    ordered = sorted(
        reports, key=lambda each: (each.device, _compute_slowness(each, summaries[each.id]))
    )
    return [_make_row(report, summaries[report.id]) for report in ordered]


def _compute_slowness(report: RunReport, summary: Summary) -> float:
    """Return what is less for a faster variant; a query of ``offline`` is as long as it is told."""
    if report.scenario.name == "offline" and not isinstance(summary.throughput, NotMeasured):
        return -summary.throughput
    return summary.p50_ms


def _make_row(report: RunReport, summary: Summary) -> tuple[str, ...]:
    whole = summary.predict_ms
    return (
        report.device,
        report.variant_used,
        _format_p50(summary),
        _NONE if isinstance(whole, NotMeasured) else f"{whole:#.4g}",
        format_verdict(report),
        format_speedup(report.speedup),
        *_list_rates(report, summary),
        _format_metric(report),
        _format_limits(report),
    )


def _format_p50(summary: Summary) -> str:
    interval, p50 = summary.median_interval_ms, f"{summary.p50_ms:#.4g}"
    if isinstance(interval, NotMeasured):
        return p50
    return f"{p50} ({interval.low:#.3g} to {interval.high:#.3g})"


def format_best_variant(reports: Sequence[RunReport]) -> str:
    """Return the fastest of one device's variants that is VALID and within all limits, and its p50.

    Of all its variants, if none is.
    """
    good = [
        report
        for report in reports
        if report.verdict.kind == "valid" and all(each.is_met for each in judge_limits(report))
    ]
    if not reports:
        return "nothing was measured"
    best = min(good or reports, key=lambda each: _compute_slowness(each, summarize(each)))
    p50 = format_milliseconds(summarize(best).p50_ms)
    faster = format_speedup(best.speedup)
    speed = "" if faster == _NONE else f", {faster} times fp32's speed"
    kind = "the best" if good else "none may be used, the fastest"
    return f"{kind}: {best.variant_used}, p50 {p50}{speed}"


def format_speedup(speedup: Speedup | NotMeasured | None) -> str:
    """Return how many times as fast as fp32 a variant is."""
    if not isinstance(speedup, Speedup):
        return _NONE
    if speedup.low is None or speedup.high is None or speedup.ratio == speedup.low:
        return f"{speedup.ratio:.2f}"
    return f"{speedup.ratio:.2f} ({speedup.low:.2f} to {speedup.high:.2f})"


def _list_rates(report: RunReport, summary: Summary) -> tuple[str, str, str]:
    """Return inferences a second, and those by megabyte of the model and by watt."""
    rate, energy = summary.throughput, summary.energy_mj
    if isinstance(rate, NotMeasured):
        return _NONE, _NONE, _NONE
    size = find_used_variant(report).model_bytes
    return (
        format_rate(rate),
        format_rate(rate * _MB / size) if size else _NONE,
        # One inference a second at one watt takes a joule.
        _NONE if isinstance(energy, NotMeasured) or not energy else format_rate(_MJ / energy),
    )


def _format_metric(report: RunReport) -> str:
    found = find_used_variant(report).accuracy
    return f"{found.metric} {found.value:.4g}" if isinstance(found, Accuracy) else _NONE


def _format_limits(report: RunReport) -> str:
    judged = judge_limits(report)
    missed = [each.name for each in judged if each.is_met is False]
    unknown = [each.name for each in judged if each.is_met is None]
    if missed:
        return f"misses {', '.join(missed)}"
    return f"not decided: {', '.join(unknown)}" if unknown else "met" if judged else _NONE


def format_variants_markdown(
    reports: Sequence[RunReport],
    out: Mapping[str, Sequence[Unused]],
    problems: Mapping[str, str],
) -> str:
    """Return the table as a comment for a pull request.

    Args:
        reports: Of all devices.
        out: By device, the variants that were not measured there, or not to the end.
        problems: By device, why nothing was measured there.
    """
    lines = ["**edgepack bench**", "", format_markdown_row(VARIANT_HEADS)]
    lines.append(format_markdown_row(["---"] * len(VARIANT_HEADS)))
    lines += [format_markdown_row(row) for row in list_variant_rows(reports)]
    for device, each in _list_out(out):
        said = f"{device}, {each.variant} {each.stage}: {each.first_line}"
        lines += ["", escape_markdown(said)]
    for device, problem in problems.items():
        lines += ["", escape_markdown(f"{device} was not measured: {problem}")]
    return "\n".join(lines) + "\n"


def format_variants_junit(
    reports: Sequence[RunReport],
    out: Mapping[str, Sequence[Unused]],
    problems: Mapping[str, str],
) -> str:
    """Return a JUnit document: a suite for each device, a case for each variant.

    A limit that is missed is a failure; what is not VALID, and a variant that does not work there,
    is skipped; a variant that failed, and a device where nothing was measured, is an error.

    Args:
        reports: Of all devices.
        out: By device, the variants that were not measured there, or not to the end.
        problems: By device, why nothing was measured there.
    """
    root = ElementTree.Element("testsuites", name="edgepack bench")
    names = sorted({report.device for report in reports} | out.keys() | problems.keys())
    for device in names:
        cases = [_make_case(each) for each in reports if each.device == device]
        for each in out.get(device, ()):
            kind = "error" if each.stage == "failed" else "skipped"
            cases.append((each.variant, kind, f"{each.stage}: {each.first_line}", ""))
        if device in problems:
            cases.append(("measured", "error", problems[device], ""))
        _add_suite(root, device, cases)
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


_Case = tuple[str, str, str, str]
"""Name, kind of its element or nothing, message, time in seconds."""


def _make_case(report: RunReport) -> _Case:
    name, took = report.variant_used, f"{summarize(report).p50_ms / 1e3:.6f}"
    if report.verdict.kind != "valid":
        reasons = "; ".join(list_verdict_reasons(report))
        return name, "skipped", f"{format_verdict(report)}: {reasons}", took
    limits = _format_limits(report)
    if limits.startswith("misses"):
        told = "; ".join(f"{each.name}: {each}" for each in judge_limits(report))
        return name, "failure", told, took
    if limits.startswith("not decided"):
        return name, "skipped", limits, took
    return name, "", "", took


def _add_suite(root: ElementTree.Element, device: str, cases: Sequence[_Case]) -> None:
    printable = make_printable(device)
    suite = ElementTree.SubElement(root, "testsuite", name=printable, tests=str(len(cases)))
    for kind, key in (("failure", "failures"), ("error", "errors"), ("skipped", "skipped")):
        suite.set(key, str(sum(case[1] == kind for case in cases)))
    for name, kind, message, took in cases:
        attributes = {"classname": f"edgepack.{printable}", "name": make_printable(name)}
        if took:
            attributes["time"] = took
        case = ElementTree.SubElement(suite, "testcase", attributes)
        if kind:
            ElementTree.SubElement(case, kind, message=make_printable(message[:1000]))


def _list_out(out: Mapping[str, Sequence[Unused]]) -> Iterator[tuple[str, Unused]]:
    return ((device, each) for device, several in out.items() for each in several)
