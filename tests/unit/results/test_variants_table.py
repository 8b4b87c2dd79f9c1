"""All variants of devices in one table, as Markdown, as JUnit, and on the page."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from edgepack.base.schema import NotMeasured
from edgepack.bundle.unused import Unused
from edgepack.project.limits import Limits
from edgepack.records.run import Energy, Invalid, RunReport, Scenario, Speedup
from edgepack.results.page.html import write_html
from edgepack.results.page.variants import (
    VARIANT_HEADS,
    format_best_variant,
    format_variants_junit,
    format_variants_markdown,
    list_variant_rows,
)

from tests.support.reports.example_report import example_report, example_run

FASTER = Speedup(over="cpu-fp32", report="base", ratio=1.9, low=1.8, high=2.0, pairs=5)
SAME = Speedup(over="cpu-fp32", report="base", ratio=1.0, low=1.0, high=1.0, pairs=5)


def steady(ms: float, joules: float | None = None, **changes: Any) -> RunReport:
    """A report of 5 runs of 200 inferences that take as long each; all took those joules."""
    energy = (
        NotMeasured(reason="no counter")
        if joules is None
        else Energy(joules=joules / 5, source="RAPL package-0")
    )
    runs = [
        example_run(seed).model_copy(
            update={
                "latencies_ns": [round(ms * 1e6)] * 200,
                "inferences": 200,
                "timed_from_ns": 0,
                "timed_to_ns": round(ms * 1e6) * 200,
                "energy": energy,
            }
        )
        for seed in range(5)
    ]
    return example_report(runs=runs, **changes)


def column(rows: list[tuple[str, ...]], head: str) -> list[str]:
    return [row[VARIANT_HEADS.index(head)] for row in rows]


def test_rows_are_by_device_the_fastest_first_with_speeds_by_size_and_power() -> None:
    reports = [
        steady(20, id="b", variant_used="cpu-fp32", speedup=SAME),
        steady(10, joules=4.0, id="a", speedup=FASTER),
        steady(5, id="c", device="a-board", phases=NotMeasured(reason="a phone")),
    ]
    rows = list_variant_rows(reports)
    assert [row[:2] for row in rows] == [
        ("a-board", "cpu-int8-static"),
        ("pi5-a", "cpu-int8-static"),
        ("pi5-a", "cpu-fp32"),
    ]
    assert column(rows, "speedup") == ["n/a", "1.90 (1.80 to 2.00)", "1.00"]
    assert column(rows, "FPS") == ["200", "100", "50"]
    # 0.31 MB and 1.19 MB; 4 J for 1000 inferences are 250 a second at a watt.
    assert column(rows, "FPS/MB") == ["645.2", "322.6", "42.02"]
    assert column(rows, "FPS/W") == ["n/a", "250", "n/a"]
    assert column(rows, "predict, ms") == ["n/a", "23.70", "23.70"]
    assert column(rows, "p50, ms")[1] == "10.00 (10.0 to 10.0)"


def test_offline_variants_are_ranked_by_throughput_not_by_how_long_they_were_told_to_run() -> None:
    offline = {"scenario": Scenario(name="offline")}
    few = steady(20, id="few", **offline)  # 50 a second
    many = steady(20, id="many", variant_used="cpu-fp32", **offline)
    runs = [run.model_copy(update={"inferences": 400}) for run in many.runs]
    many = many.model_copy(update={"runs": runs})
    assert column(list_variant_rows([few, many]), "variant") == ["cpu-fp32", "cpu-int8-static"]
    assert format_best_variant([few, many]).startswith("the best: cpu-fp32")


def test_best_variant_is_the_fastest_that_may_be_used() -> None:
    slow = steady(20, variant_used="cpu-fp32", limits=Limits(size_mb=5))
    fast = steady(10, limits=Limits(size_mb=5), speedup=FASTER)
    assert format_best_variant([slow, fast]) == (
        "the best: cpu-int8-static, p50 10.00 ms, 1.90 (1.80 to 2.00) times fp32's speed"
    )
    beyond = fast.model_copy(update={"limits": Limits(size_mb=0.1)})
    assert format_best_variant([slow, beyond]).startswith("the best: cpu-fp32, p50 20.00 ms")
    invalid = fast.model_copy(update={"verdict": Invalid(reasons=["it was busy"])})
    assert format_best_variant([slow, invalid]).startswith("the best: cpu-fp32")
    assert format_best_variant([invalid]).startswith("none may be used, the fastest: cpu-int8")
    assert format_best_variant([]) == "nothing was measured"


def test_junit_has_a_case_for_each_variant_and_tells_apart_how_it_went() -> None:
    reports = [
        steady(10, limits=Limits(p50_ms=20)),
        steady(30, variant_used="cpu-fp32", limits=Limits(p50_ms=20)),
        steady(5, variant_used="busy", verdict=Invalid(reasons=["it was <busy>"])),
        steady(6, variant_used="unread", limits=Limits(energy_mj=20)),
    ]
    variants = [v.model_copy(update={"id": n}) for n in ("busy", "unread")
                for v in reports[0].variants[:1]]  # fmt: skip
    reports = [
        each.model_copy(update={"variants": [*each.variants, *variants]}) for each in reports
    ]
    out = {
        "pi5-a": [
            Unused(variant="xnnpack-fp32", stage="passed over", reason="no XNNPACK there"),
            Unused(variant="acl-fp32", stage="failed", reason="it crashed"),
        ]
    }
    text = format_variants_junit(reports, out, {"pi4": "it does not answer"})
    root = ElementTree.fromstring(text)
    assert [suite.attrib for suite in root] == [
        {"name": "pi4", "tests": "1", "failures": "0", "errors": "1", "skipped": "0"},
        {"name": "pi5-a", "tests": "6", "failures": "1", "errors": "1", "skipped": "3"},
    ]
    told = {
        case.attrib["name"]: [(each.tag, each.attrib["message"]) for each in case]
        for suite in root
        for case in suite
    }
    assert told == {
        "measured": [("error", "it does not answer")],
        "cpu-int8-static": [],
        "cpu-fp32": [("failure", "p50_ms: 30 of at most 20 ms: MISSED")],
        "busy": [("skipped", "INVALID: it was <busy>")],
        "unread": [("skipped", "not decided: energy_mj")],
        "xnnpack-fp32": [("skipped", "passed over: no XNNPACK there")],
        "acl-fp32": [("error", "failed: it crashed")],
    }


def test_markdown_shows_a_devices_words_as_they_are() -> None:
    out = {"pi5-a": [Unused(variant="x", stage="failed", reason="**no** [link](x)")]}
    text = format_variants_markdown([steady(10, device="a|b")], out, {"pi4": "gone\x1b[31m"})
    assert "| a\\|b | cpu-int8-static | 10.00" in text
    assert "pi5-a, x failed: \\*\\*no\\*\\* \\[link\\](x)" in text
    assert "\x1b" not in text
    assert text.splitlines()[3] == "|" + " --- |" * len(VARIANT_HEADS)


def test_page_has_speedups_where_some_were_measured(tmp_path: Path) -> None:
    base = steady(20, id="b", variant_used="cpu-fp32", speedup=SAME)
    fast = steady(10, id="a", speedup=FASTER)
    text = write_html([base, fast], tmp_path / "r.html").read_text()
    assert "speedup over fp32" in text
    assert "1.80 to 2.00" in text
    alone = [each.model_copy(update={"speedup": None}) for each in (base, fast)]
    assert "speedup" not in write_html(alone, tmp_path / "r.html").read_text()
