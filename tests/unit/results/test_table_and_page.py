"""Reports as tables and as a page."""

from __future__ import annotations

import io
from html.parser import HTMLParser
from pathlib import Path

import pytest
from edgepack.bench.report import Inconclusive, Invalid, PassedOver, VariantFacts
from edgepack.bundle.manifest import LayerError, NotMeasured
from edgepack.errors import ToolError, UsageError
from edgepack.results.html import render_html, write_html
from edgepack.results.plots import STRETCHES, Stretch, stretches
from edgepack.results.summary import summarize
from edgepack.results.table import report_table, reports_table
from example_report import example_report, example_run
from rich.console import Console
from rich.table import Table

EVIL = '<script>alert(1)</script><img src="https://evil.example/x.png">'


def printed(table: Table) -> str:
    console = Console(file=io.StringIO(), width=120)
    console.print(table)
    return console.file.getvalue()  # type: ignore[attr-defined]


class Tags(HTMLParser):
    """Collects what a page would load, and its tags."""

    def __init__(self) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.tags: list[str] = []
        self.ids: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            if name in {"src", "href", "srcset", "action", "data"} and value:
                self.loads.append(value)
            if name == "id" and value:
                self.ids.append(value)


def parsed(page: str) -> Tags:
    tags = Tags()
    tags.feed(page)
    return tags


def test_summary_holds_the_figures_of_the_raw_numbers() -> None:
    runs = [example_run(latencies_ns=[1_000_000, 2_000_000, 3_000_000, 10_000_000])] * 2
    summary = summarize(example_report(runs=runs))
    assert (summary.samples, summary.p50_ms, summary.min_ms) == (8, 2.5, 1.0)
    assert summary.mean_ms == 4.0
    assert summary.run_medians_ms == (2.5, 2.5)
    assert isinstance(summary.p99_ms, NotMeasured)


def test_table_shows_p99_only_with_enough_samples() -> None:
    assert "latency p99" in printed(report_table(example_report()))
    few = example_report(runs=[example_run(seed, samples=132) for seed in range(5)])
    assert "latency p99" not in printed(report_table(few))


@pytest.mark.parametrize(
    ("verdict", "word", "reason"),
    [
        (Invalid(reasons=["too hot", "too few"]), "INVALID", "too few"),
        (Inconclusive(reason="too short"), "INCONCLUSIVE", "too short"),
    ],
)
def test_table_shows_the_verdict_with_its_reasons(
    verdict: Invalid | Inconclusive, word: str, reason: str
) -> None:
    report = example_report(verdict=verdict)
    text = printed(report_table(report))
    assert word in text
    assert reason in text
    assert word in printed(reports_table([report]))


def test_table_obeys_neither_markup_nor_escape_sequences() -> None:
    report = example_report(
        device="[bold]pi", passed_over=[PassedOver(variant="x", reason="\x1b[31mred[/red]")]
    )
    text = printed(report_table(report)) + printed(reports_table([report]))
    assert "[bold]pi" in text
    assert "\x1b[31m" not in text


def test_page_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    path = write_html([example_report()], tmp_path / "new" / "report.html")
    page = path.read_text(encoding="utf-8")
    tags = parsed(page)
    assert [url for url in tags.loads if not url.startswith("#")] == []
    assert "link" not in tags.tags
    assert "Content-Security-Policy\" content=\"default-src 'none'" in page
    assert path.stat().st_size < 6_000_000


def test_page_has_a_place_for_every_plot_of_every_report() -> None:
    tags = parsed(render_html([example_report(), example_report(id="other")]))
    for number in (1, 2):
        for plot in ("latency", "distribution", "sizes", "accuracy", "layers"):
            assert tags.ids.count(f"{plot}-{number}") == 1


def test_page_escapes_every_text_of_users_and_devices() -> None:
    report = example_report()
    evil_variant = VariantFacts(
        id=EVIL,
        recipe="fp32",
        model_bytes=1,
        min_sqnr_db=1.0,
        accuracy=report.variants[0].accuracy.model_copy(update={"metric": EVIL}),  # type: ignore[union-attr]
        layers=[LayerError(node=EVIL, op=EVIL, sqnr_db=1.0)],
    )
    nodes = [report.placement.nodes[0].model_copy(update={"name": EVIL, "provider": EVIL})]
    evil = report.model_copy(
        update={
            "device": EVIL,
            "bundle": EVIL,
            "preset": EVIL,
            "notes": [EVIL],
            "verdict": Invalid(reasons=[EVIL]),
            "passed_over": [PassedOver(variant=EVIL, reason=EVIL)],
            "variants": [evil_variant, report.variants[0].model_copy(update={"layers": []})],
            "facts": report.facts.model_copy(update={"model": EVIL, "cpu": EVIL}),
            "placement": report.placement.model_copy(update={"nodes": nodes}),
        }
    )
    page = render_html([evil])
    assert "<script>alert" not in page
    assert "<img" not in page.partition("</script>")[2]
    assert parsed(page).tags.count("script") == parsed(render_html([report])).tags.count("script")


def test_page_says_so_when_there_is_no_accuracy() -> None:
    report = example_report()
    nothing = NotMeasured(reason="the project has no evaluation samples")
    bare = [item.model_copy(update={"accuracy": nothing}) for item in report.variants]
    page = render_html([report.model_copy(update={"variants": bare})])
    assert "Not measured: the project has no evaluation samples." in page
    assert "accuracy-1" not in parsed(page).ids


def test_page_has_no_layers_when_no_variant_is_int8() -> None:
    report = example_report()
    bare = [item.model_copy(update={"layers": []}) for item in report.variants]
    assert "layers-1" not in parsed(render_html([report.model_copy(update={"variants": bare})])).ids


def test_page_says_so_when_layers_were_not_measured() -> None:
    report = example_report()
    nothing = NotMeasured(reason="no tensor can be looked at")
    bare = [item.model_copy(update={"layers": nothing}) for item in report.variants]
    page = render_html([report.model_copy(update={"variants": bare})])
    assert "Not measured: no tensor can be looked at." in page
    assert "layers-1" not in parsed(page).ids


def test_page_shows_the_value_alone_when_there_is_no_fp32_model() -> None:
    report = example_report()
    nothing = NotMeasured(reason="there is no fp32 model")
    compared = dict.fromkeys(("drop", "drop_interval", "agreement", "worst"))
    alone = report.variants[0].accuracy.model_copy(update={"fp32": nothing, **compared})  # type: ignore[union-attr]
    variants = [report.variants[0].model_copy(update={"accuracy": alone})]
    page = render_html([report.model_copy(update={"variants": variants})])
    assert "not measured: there is no fp32 model" in page
    assert "accuracy-1" in parsed(page).ids


def test_page_is_refused_when_there_is_no_report() -> None:
    with pytest.raises(UsageError, match="no report"):
        render_html([])


def test_write_html_raises_when_the_folder_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ToolError, match="cannot write the page"):
        write_html([example_report()], tmp_path / "file" / "report.html")


def test_stretches_keep_the_slowest_and_bound_the_points() -> None:
    latencies_ms = [1.0] * 10_000
    latencies_ms[5_003] = 1000.0
    found = stretches(latencies_ms)
    assert len(found) <= STRETCHES
    assert max(part.slowest for part in found) == 1000.0
    assert {part.median for part in found} == {1.0}
    assert stretches([3.0, 4.0]) == [Stretch(0, 3.0, 3.0), Stretch(1, 4.0, 4.0)]
