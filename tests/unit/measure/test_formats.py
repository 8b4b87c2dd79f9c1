"""Comparisons as Markdown and JUnit."""

from __future__ import annotations

from collections.abc import Sequence
from xml.etree import ElementTree

from edgepack.measure.compare.formats import format_comparison_junit, format_comparison_markdown
from edgepack.records.comparison import (
    ComparedMetric,
    Comparison,
    DeviceComparison,
    NotCompared,
    Side,
)
from edgepack.records.deciding import Outcome
from edgepack.records.run import PlacedNode, Placement

from tests.support.reports.example_report import CPU, example_facts, example_run


def side(**changes: object) -> Side:
    node = PlacedNode(name="conv", op="Conv", provider=CPU, mean_us=10, median_us=10)
    return Side(
        bundle="tiny-1.0.0-raspberry-pi",
        manifest_sha256="0" * 64,
        bundle_bytes=1000,
        variant="cpu-int8-static",
        unused=[],
        placement=Placement(variant="cpu-int8-static", runs=10, nodes=[node]),
        runs=[example_run(seed) for seed in range(6)],
        min_sqnr_db=20,
        reasons=[],
    ).model_copy(update=changes)


def metric(outcome: Outcome, ratio: float) -> ComparedMetric:
    return ComparedMetric(
        name="p50",
        margin=0.03,
        outcome=outcome,
        ratio=ratio,
        low=ratio - 0.01,
        high=ratio + 0.01,
        fail_p=0.5,
        pass_p=0.5,
    )


def on(device: str, outcome: Outcome, ratio: float, **changes: object) -> DeviceComparison:
    return DeviceComparison(
        device=device,
        facts=example_facts(),
        base=side(),
        candidate=side(),
        outcome=outcome,
        reasons=[] if outcome == "PASS" else [f"p50 is {ratio - 1:+.1%}"],
        metrics=[metric(outcome, ratio)],
        notes=[],
    ).model_copy(update=changes)


def comparison(*devices: DeviceComparison, not_compared: Sequence[NotCompared] = ()) -> Comparison:
    return Comparison(
        schema_version=1,
        created="2026-11-22T00:00:00Z",
        preset="gate",
        error=0.01,
        max_pairs=20,
        devices=list(devices),
        not_compared=list(not_compared),
    )


def test_junit_when_devices_differ_has_a_failure_a_skip_and_a_pass() -> None:
    found = comparison(
        on("pi5", "PASS", 0.99), on("orin", "FAIL", 1.2), on("nuc", "INCONCLUSIVE", 1.03)
    )
    assert found.outcome == "FAIL"
    suites = {
        suite.get("name"): suite for suite in ElementTree.fromstring(format_comparison_junit(found))
    }
    counts = {
        name: (suite.get("tests"), suite.get("failures"), suite.get("skipped"))
        for name, suite in suites.items()
    }
    assert counts == {"pi5": ("2", "0", "0"), "orin": ("2", "1", "0"), "nuc": ("2", "0", "1")}
    failure = suites["orin"].find("testcase[@name='p50']/failure")
    assert failure is not None
    assert failure.get("message") == "+20.0% (+19.0% to +21.0%), allowed +3%"
    case = suites["nuc"].find("testcase[@name='p50']")
    assert case is not None
    assert [(child.tag, child.get("message")) for child in case] == [
        ("skipped", "INCONCLUSIVE: +3.0% (+2.0% to +4.0%), allowed +3%")
    ]


def test_junit_when_the_candidate_is_wrong_fails_although_it_is_fast() -> None:
    wrong = side(reasons=["run 1: outputs are 3.0 dB near the golden ones, 20.0 dB are needed"])
    found = comparison(on("pi5", "FAIL", 0.5, candidate=wrong, metrics=[metric("PASS", 0.5)]))
    (suite,) = ElementTree.fromstring(format_comparison_junit(found))
    cases = {case.get("name"): [child.tag for child in case] for case in suite}
    assert cases == {"usable": ["failure"], "p50": ["skipped"]}


def test_side_computes_something_wrong_when_its_state_did_not_last() -> None:
    assert not side().outputs_wrong
    assert side(runs=[example_run(), example_run(not_finite=["y"])]).outputs_wrong


def test_formats_when_a_device_says_markup_show_it_as_text() -> None:
    evil = "<b>|`x`\x1b[2J</b>"
    found = comparison(on(evil, "FAIL", 1.2, reasons=[evil]))
    assert (
        ElementTree.fromstring(format_comparison_junit(found))[0]
        .get("name", "")
        .startswith("<b>|`x`")
    )
    text = format_comparison_markdown(found)
    assert "<b>" not in text.replace("\\<b\\>", "")
    assert "\x1b" not in text
    assert r"\<b\>\|\`x\`" in text
    assert all(line.count(" | ") == 7 for line in text.splitlines() if line.startswith("| "))


def test_markdown_when_written_says_what_ran_and_how_sure_it_is() -> None:
    text = format_comparison_markdown(comparison(on("pi5", "PASS", 0.99)))
    assert text.startswith("**edgepack compare: PASS**")
    assert "tiny-1.0.0-raspberry-pi cpu-int8-static, 6 pairs of process runs" in text
    assert "| pi5 | p50 | 10 ms | 10 ms | -1.0% | -2.0% to +0.0% | +3% | PASS |" in text


def test_formats_when_a_device_was_missed_say_so_and_nothing_passes() -> None:
    lost = NotCompared(device="orin", problem="the connection to orin broke", hint="try again")
    found = comparison(on("pi5", "PASS", 0.99), not_compared=[lost])
    assert found.outcome == "INCONCLUSIVE"
    suites = {
        suite.get("name"): suite for suite in ElementTree.fromstring(format_comparison_junit(found))
    }
    error = suites["orin"].find("testcase/error")
    assert error is not None
    assert error.get("message") == "the connection to orin broke"
    assert suites["orin"].get("errors") == "1"
    assert "orin was not compared: the connection to orin broke" in format_comparison_markdown(
        found
    )
