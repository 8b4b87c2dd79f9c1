"""Reports as tables and as a page, as far as that needs no browser."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import re
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from edgepack.base.schema import NotMeasured
from edgepack.base.statistics import log_t_interval
from edgepack.bundle.manifest import (
    Accuracy,
    Attempt,
    LayerError,
    MetricValue,
    OutsideError,
    Simulated,
)
from edgepack.bundle.unused import Unused
from edgepack.errors import ToolError, UsageError
from edgepack.records.run import (
    NOT_ASKED,
    BoundRuns,
    Energy,
    Inconclusive,
    Invalid,
    PlacedNode,
    Placement,
    RunReport,
    Scenario,
    SweepPoint,
    TunedSetting,
    Valid,
    VariantFacts,
)
from edgepack.results.page.evaluations import find_accuracy
from edgepack.results.page.html import render_html, write_html
from edgepack.results.page.table import list_report_rows, make_report_table
from edgepack.results.page.tried import STAGES
from edgepack.results.summary import summarize
from rich.console import Console
from rich.table import Table

from tests.support.reports.example_report import (
    CPU,
    example_accuracy,
    example_evaluation,
    example_phases,
    example_report,
    example_run,
    interrupted_run,
    varied_reports,
)

EVIL = '</script><script>alert(1)</script><img src="https://evil.example/x.png">'
NOT_KNOWN = NotMeasured(reason="this device does not say")


def printed(table: Table) -> str:
    console = Console(file=io.StringIO(), width=120)
    console.print(table)
    return console.file.getvalue()  # type: ignore[attr-defined]


class Tags(HTMLParser):
    """Collects what a page would load, its tags and ids."""

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


def text_of(page: str) -> str:
    """Return what stands on a page, with single spaces."""
    body = re.sub(r"(?s)<(script|style).*?</\1>", " ", page.partition("<body>")[2])
    return " ".join(re.sub(r"<[^>]*>", " ", body).split())


def figures_of(page: str, anchor: str) -> Any:
    """Return the data of a section's figures."""
    section = page.partition(f'id="{anchor}"')[2]
    data = section.partition('<script type="application/json" class="figures">')[2]
    return json.loads(data.partition("</script>")[0])


def test_summary_holds_the_figures_of_the_raw_numbers() -> None:
    runs = [example_run(latencies_ns=[1_000_000, 2_000_000, 3_000_000, 10_000_000])] * 2
    summary = summarize(example_report(runs=runs))
    assert (summary.samples, summary.p50_ms, summary.min_ms) == (8, 2.5, 1.0)
    assert summary.mean_ms == 4.0
    assert summary.run_medians_ms == (2.5, 2.5)
    assert isinstance(summary.p99_ms, NotMeasured)


def test_summary_when_runs_tell_their_time_has_throughput_and_energy() -> None:
    timed = {"timed_from_ns": 0, "timed_to_ns": 500_000_000, "inferences": 100}
    runs = [example_run(**timed, energy=Energy(joules=joules, source="x")) for joules in (2.0, 3.0)]
    summary = summarize(example_report(runs=runs))
    assert summary.throughput == 200 / 1.0
    assert summary.energy_mj == 5.0 / 200 * 1e3


@pytest.mark.parametrize("lacking", ["timed_from_ns", "timed_to_ns", "inferences"])
def test_summary_when_one_run_does_not_tell_its_time_has_no_throughput(lacking: str) -> None:
    runs = [example_run(), example_run(**{lacking: NOT_KNOWN})]
    assert summarize(example_report(runs=runs)).throughput == NOT_KNOWN


def test_table_shows_p99_only_with_enough_samples() -> None:
    assert "latency p99" in printed(make_report_table(example_report()))
    few = example_report(runs=[example_run(seed, samples=132) for seed in range(5)])
    assert "latency p99" not in printed(make_report_table(few))


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
    text = printed(make_report_table(example_report(verdict=verdict)))
    assert word in text
    assert reason in text


def test_table_when_a_run_has_all_shows_scenario_throughput_creation_energy_and_settings() -> None:
    server = Scenario(name="server", queries_per_s=20, latency_bound_ms=50)
    setting = TunedSetting(name="governor", before="a", during="b", restored=False)
    report = example_report(scenario=server, unfinished="the device is gone", tuned=[setting])
    text = printed(make_report_table(report))
    for part in (
        "server, 20 queries/s, 99 % within 50 ms",
        "inferences/s",
        "mJ per inference",
        "210.0 ms",
        "the device is gone",
        "NOT set back",
    ):
        assert part in text


def test_table_when_something_was_not_measured_says_why() -> None:
    missing = NotMeasured(reason="the counter did not measure it")
    run = example_run(energy=missing, timed_from_ns=missing, sampling=missing)
    text = printed(make_report_table(example_report(runs=[run], creation=missing)))
    assert text.count("did not measure it") == 3


def test_table_obeys_neither_markup_nor_escape_sequences() -> None:
    report = example_report(
        device="[bold]pi",
        unused=[Unused(stage="passed over", variant="x", reason="\x1b[31mred[/red]")],
    )
    text = printed(make_report_table(report))
    assert "[bold]pi" in text
    assert "\x1b[31m" not in text


def test_page_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    path = write_html(varied_reports(3), tmp_path / "new" / "report.html")
    page = path.read_text(encoding="utf-8")
    tags = parsed(page)
    assert [url for url in tags.loads if not url.startswith("#")] == []
    assert "link" not in tags.tags
    script = re.findall(r"(?s)<script>(.*?)</script>", page)
    digest = base64.b64encode(hashlib.sha256(script[0].encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    assert len(script) == 1
    assert policy in page.replace("&#39;", "'")


def test_page_when_it_has_a_hundred_runs_is_below_six_megabytes() -> None:
    reports = varied_reports(100)
    assert len(render_html(reports).encode()) < 6_000_000


def test_page_when_written_over_another_keeps_it_whole_until_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "report.html"
    path.write_text("before")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(ToolError, match="cannot write the page: No space left"):
        write_html([example_report()], path)
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


def test_page_has_a_section_for_every_run_newest_first() -> None:
    reports = varied_reports(14)
    page = render_html(reports)
    tags = parsed(page)
    assert [each for each in tags.ids if each.startswith("run-")] == [
        f"run-{number}" for number in range(1, 15)
    ]
    ids = re.findall(r"run (202611\S+Z-\w+)", text_of(page))
    assert ids == sorted((report.id for report in reports), reverse=True)


def test_page_has_the_newest_run_of_each_device_and_variant_in_its_overview() -> None:
    page = render_html(varied_reports(24))
    (panel,) = figures_of(page, "overview-1")["overview"]["panels"]
    drawn = [text for series in panel["series"] for text in series["text"]]
    assert len(drawn) == len(set(drawn)) == 12
    targets = [target for series in panel["series"] for target in series["leads_to"]]
    assert set(targets) == {f"run-{number}" for number in range(1, 13)}
    assert [series["name"] for series in panel["series"]] == ["VALID", "INCONCLUSIVE", "INVALID"]


def test_page_names_the_fastest_valid_variant_of_each_device_and_a_more_accurate_one() -> None:
    int8, _, fp32 = reports = [each for each in varied_reports(12) if each.device == "pi5-a"]
    text = text_of(render_html(reports))
    fast, slow = (f"{summarize(each).p50_ms:#.4g} ms" for each in (int8, fp32))
    assert f"pi5-a : cpu-int8-static {fast}, top1 0.9833; cpu-fp32 has 0.9861 at {slow}" in text
    assert f"pi5-a : cpu-int8-static {fast}, top1 0.9833 Left is" in text_of(
        render_html([int8, fp32.model_copy(update={"verdict": Invalid(reasons=["hot"])})])
    )


def test_page_when_no_run_is_valid_names_no_fastest_one() -> None:
    reports = [
        report.model_copy(update={"verdict": Invalid(reasons=["hot"])})
        for report in varied_reports(2)
    ]
    text = text_of(render_html(reports))
    assert "No run here is VALID" in text
    assert "Fastest" not in text


def test_page_when_an_older_run_is_valid_names_its_variant_and_when_that_was() -> None:
    older = example_report()
    newer = example_report(
        id="b", created="2026-11-22T09:30:12Z", verdict=Invalid(reasons=["others took 93%"])
    )
    page = render_html([older, newer])
    text = text_of(page)
    assert "No run here is VALID" not in text
    fastest = f"{summarize(older).p50_ms:#.4g} ms, top1 0.9833"
    assert f"pi5-a : cpu-int8-static {fastest} (of 2026-11-21; newer runs are not VALID)" in text
    assert '<a href="#run-2"><bdi>cpu-int8-static</bdi></a> <span' in page
    assert "newer runs" not in text_of(render_html([older, example_report(device="pi5-b")]))


def test_page_when_one_of_two_projects_has_no_valid_run_says_which() -> None:
    invalid = example_report(id="b", project="cats", verdict=Invalid(reasons=["hot"]))
    text = text_of(render_html([example_report(), invalid]))
    assert "No run here is VALID" not in text
    assert "No run of cats is VALID" in text
    assert "No run of digits is VALID" not in text


@pytest.mark.parametrize(
    ("scale", "verdict", "shown"),
    [
        (1.1, Valid(), r'<span class="more">\+10\.\d %</span>'),
        (0.9, Valid(), r'<span class="less">-10\.\d %</span>'),
        (1.01, Valid(), r">\+1\.0 %<span"),
        (1.1, Invalid(reasons=["hot"]), r'>\+10\.\d %<span class="note">the last one is INVALID'),
    ],
)
def test_overview_colours_a_change_that_is_large_and_of_two_runs_that_may_be_used(
    scale: float, verdict: Valid | Invalid, shown: str
) -> None:
    before, other = example_report(verdict=verdict), example_report(id="c", device="pi5-b")
    runs = [example_run(seed, scale=scale) for seed in range(5)]
    after = example_report(id="b", created="2026-11-22T09:30:12Z", runs=runs)
    assert re.search(shown, render_html([after, other], history=[before]))


def test_page_when_two_projects_are_shown_has_an_overview_of_each() -> None:
    one, two = varied_reports(2)
    page = render_html([one, two.model_copy(update={"project": "cats"})])
    assert {"overview-1", "overview-2"} <= set(parsed(page).ids)


def test_page_when_a_device_was_evaluated_shows_its_metric_beside_the_simulated_one() -> None:
    report, other = varied_reports(2)
    evaluation = example_evaluation(
        device=report.device, variant=report.variant_used, manifest_sha256=report.manifest_sha256
    )
    page = render_html([report, other], evaluations=[evaluation])
    (panel,) = figures_of(page, "overview-1")["overview"]["panels"]
    values = dict(zip(panel["series"][0]["text"], panel["series"][0]["y"], strict=True))
    assert values[f"{report.device} · {report.variant_used}"] == evaluation.measured.value
    assert values[f"{other.device} · {other.variant_used}"] == 0.9833
    interval = "0.9751 to 0.9861, of its drop from fp32"
    assert f"0.9806 {interval} 0.9833 -0.0027" in text_of(page)
    few = evaluation.simulated.model_copy(update={"samples": 128})  # type: ignore[union-attr]
    fewer = evaluation.model_copy(update={"simulated": few})
    text = text_of(render_html([report, other], evaluations=[fewer]))
    assert f"0.9806 {interval} 0.9833, 128 samples n/a" in text


def test_figure_when_a_device_was_evaluated_draws_its_own_interval_and_says_so() -> None:
    report, other = varied_reports(2)
    evaluation = example_evaluation(
        device=report.device,
        variant=report.variant_used,
        manifest_sha256=report.manifest_sha256,
        interval=(0.91, 0.99),
    )
    page = render_html([report, other], evaluations=[evaluation])
    (series,) = figures_of(page, "overview-1")["overview"]["panels"][0]["series"]
    ends = dict(zip(series["text"], zip(series["low"], series["high"], strict=True), strict=True))
    assert ends[f"{report.device} · {report.variant_used}"] == (0.91, 0.99)
    assert ends[f"{other.device} · {other.variant_used}"] == pytest.approx((0.9778, 0.9888))
    assert (
        "lines are 95 % intervals: of latency, and of top1, and of how far top1 of the build"
    ) in text_of(page)


def test_page_when_an_evaluation_must_not_be_used_says_why_and_draws_the_simulated_one() -> None:
    report, other = varied_reports(2)
    evaluation = example_evaluation(
        device=report.device,
        variant=report.variant_used,
        manifest_sha256=report.manifest_sha256,
        interval=(0.97, 0.99),
        reasons=["the CPU ran what was asked of NNAPI"],
    )
    page = render_html([report, other], evaluations=[evaluation])
    (panel,) = figures_of(page, "overview-1")["overview"]["panels"]
    assert set(panel["series"][0]["y"]) == {0.9833}
    assert "must not be used. the CPU ran what was asked of NNAPI" in text_of(page)
    assert "0.9806 0.9700 to 0.9900 0.9833" in text_of(page)


def test_page_when_a_run_has_one_before_says_what_changed() -> None:
    before = example_report()
    slower = [example_run(seed, scale=1.1) for seed in range(5)]
    facts = before.facts.model_copy(update={"onnxruntime": "1.32.0"})
    after = before.model_copy(
        update={"id": "b", "created": "2026-11-22T09:30:12Z", "runs": slower, "facts": facts}
    )
    text = text_of(render_html([after], history=[before]))
    ratio = summarize(after).p50_ms / summarize(before).p50_ms - 1
    assert re.search(rf"latency p50 \S+ ms \S+ ms \+{ratio * 100:.0f}\.\d % \(.*?\) slower", text)
    assert "1.31.1, then 1.32.0" in text
    assert "bundle 1.4 MiB 1.4 MiB +0.0 % same" in text


def test_page_ranks_nodes_by_their_median() -> None:
    costs = (("interrupted", 4000.0, 10.0), ("costly", 500.0, 500.0))
    nodes = [
        PlacedNode(name=name, op="Conv", provider=CPU, mean_us=mean_us, median_us=median_us)
        for name, mean_us, median_us in costs
    ]
    placement = Placement(variant="cpu-int8-static", runs=10, nodes=nodes)
    text = text_of(render_html([example_report(placement=placement)]))
    assert "median, of all costly Conv, CPU 500.0 µs, 98.0 % interrupted Conv, CPU 10.0 µs" in text


def test_page_has_one_interval_of_a_runs_p50_wherever_it_stands() -> None:
    scales = (1.0, 1.01, 1.03, 1.05, 1.08)
    report = example_report(runs=[example_run(n, scale=each) for n, each in enumerate(scales)])
    summary = summarize(report)
    interval = log_t_interval(summary.run_medians_ms)
    p50, reach = f"{summary.p50_ms:#.4g} ms", f"{interval.low:#.4g} to {interval.high:#.4g} ms"
    page = render_html([report, example_report(device="other")])
    (series,) = figures_of(page, "overview-1")["overview"]["panels"][0]["series"]
    at = series["text"].index("pi5-a · cpu-int8-static")
    drawn = [series[end][at] for end in ("x_low", "x", "x_high")]
    assert drawn == pytest.approx([interval.low, summary.p50_ms, interval.high], rel=1e-4)
    section = text_of(page)
    assert f"{p50} {reach}" in section  # the overview's table
    assert f"p50 {p50}, 95 %: {reach}" in section  # the run's heading
    assert f"latency p50 {p50} 95 %: {reach}; 5 process runs" in section  # its tile
    assert f"p50 {p50} 95 %: {reach} p90 of a run" in section  # its phases
    others = set(re.findall(rf"p50 {re.escape(p50)}\S* (?:95 %: )?(\S+ to \S+ ms)", section))
    assert others == {reach}


def test_page_when_a_run_is_the_first_says_nothing_of_a_last_one() -> None:
    assert "Since the last run" not in render_html([example_report()])


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"unfinished": "the device is gone"}, "Only a part was measured: the device is gone"),
        ({"verdict": Invalid(reasons=["too hot"])}, "These numbers must not be used: too hot"),
        ({"verdict": Inconclusive(reason="too few")}, "Nothing can be concluded: too few"),
        ({"memory": NOT_KNOWN}, "peak memory unknown this device does not say"),
        ({"placement": NOT_KNOWN}, "unknown (this device does not say)"),
        ({"creation": NOT_KNOWN}, "session create, cold unknown this device does not say"),
        ({"canary": NOT_KNOWN}, "canary model unknown (this device does not say)"),
        ({"runs": [example_run(sampling=NOT_KNOWN)]}, "all sensors over time: unknown (this"),
        ({"runs": [example_run(energy=NOT_KNOWN)]}, "energy unknown this device does not say"),
    ],
)
def test_page_says_what_is_wrong_with_a_run_and_what_is_not_known(
    changes: dict[str, Any], said: str
) -> None:
    assert said in text_of(render_html([example_report(**changes)]))


@pytest.mark.parametrize("verdict", [Invalid(reasons=["hot"]), Inconclusive(reason="few")])
def test_page_when_a_run_must_not_be_used_has_the_command_that_mends_it(verdict: Any) -> None:
    text = text_of(render_html([example_report(verdict=verdict)]))
    assert "edgepack bench BUNDLE --device pi5-a --preset standard" in text
    assert "edgepack bench BUNDLE" not in render_html([example_report()])


def test_page_when_two_devices_have_runs_of_one_id_has_both() -> None:
    other = example_report(device="pi5-b", runs=[example_run(scale=3.0)])
    page = render_html([example_report(), other], history=[other])
    assert page.count('class="run"') == 2
    assert all(
        f"p50 {summarize(each).p50_ms:.3g}"[:6] in page for each in (example_report(), other)
    )


def test_page_when_a_kind_of_sensor_was_not_read_says_why() -> None:
    sampling = example_run().sampling
    assert not isinstance(sampling, NotMeasured)
    blind = sampling.model_copy(update={"unknown": {"temperature": "no thermal zone"}})
    page = render_html([example_report(runs=[example_run(sampling=blind)])])
    assert "temperature: unknown (no thermal zone)" in text_of(page)


def test_page_shows_tiles_phases_sweep_canary_and_settings_of_a_run() -> None:
    text = text_of(render_html([example_report()]))
    for part in (
        "throughput 99.9",
        "energy 50",
        "session create, cold 210.0 ms 205.0 ms to 231.0 ms, n = 3",
        "4 33.00 ms 33.00 ms 121.2 samples/s 30 x 4x1x8x8",
        "canary model 1.010 ms (1.002 ms to 1.015 ms, n = 3)",
        "ondemand, performance while it was measured",
        "CPU 2 100.0 % 100.0 %",
        "8,123.4 µs, 98.8 %",
    ):
        assert part in text, part


def test_page_shows_what_copies_to_a_gpu_took_where_that_was_timed() -> None:
    bound = BoundRuns(
        memory="cuda",
        write_ns=[2_000_000, 3_000_000, 4_000_000],
        run_ns=[5_000_000],
        read_ns=[1_000_000],
        graph_run_ns=[4_500_000],
    )
    memory = example_report().memory
    assert not isinstance(memory, NotMeasured)
    memory = memory.model_copy(update={"gpu_bytes": 512 << 20})
    text = text_of(render_html([example_report(bound=bound, memory=memory)]))
    for part in (
        "copying inputs to the device 3.000 ms 2.000 ms to 4.000 ms, n = 3",
        "computing there 5.000 ms",
        "copying outputs back 1.000 ms",
        "computing there, recorded 4.500 ms",
        "for the model, 512.0 MiB of the GPU",
    ):
        assert part in text, part
    assert "copying" not in text_of(render_html([example_report()]))
    unrecorded = bound.model_copy(update={"graph_run_ns": NOT_KNOWN})
    assert "recorded" not in text_of(render_html([example_report(bound=unrecorded)]))


def test_table_and_page_show_what_a_call_of_predict_takes_beside_the_run() -> None:
    gpu = example_phases().model_copy(update={"copy_in_ns": [2_000_000] * 9})
    report = example_report(phases=gpu)
    rows = dict(list_report_rows(report))
    whole = "23.70 ms, of which session.run 42 %; of a picture of 1280 x 720 (JPEG of 88 kB)"
    assert rows["predict p50"] == whole
    assert rows["predict, phases"] == (
        "decode 6.100 ms, preprocessing 13.20 ms, copy in 2.000 ms, run 10.00 ms, answers 0.5000 ms"
    )
    page = render_html([report])
    text = text_of(page)
    for part in (
        "predict p50 23.70 ms session.run 42 % of it",
        f"What a user feels: predict , {whole}",
        # Of 6.1 + 13.2 + 2 + 10 + 0.5 ms.
        ", n = 99 6.100 ms 19.2 %",
        ", n = 99 13.20 ms 41.5 %",
        "copy in 2.000 ms to 2.000 ms, n = 9 2.000 ms 6.3 %",
        ", n = 99 10.00 ms 31.4 %",
        "copy out it computes in the memory that the program has its tensors in not timed",
        ", n = 99 0.5000 ms 1.6 %",
        "Found: y: 5.",
    ):
        assert part in text, part
    lengths = re.findall(r'<i class="of-\w+" style="width:([\d.]+)%">', page)
    assert [float(each) for each in lengths] == [19.2, 41.5, 6.3, 31.4, 1.6]


def test_table_and_page_when_calls_of_predict_were_not_timed_say_why() -> None:
    report = example_report(phases=NotMeasured(reason="there is no app"))
    rows = dict(list_report_rows(report))
    assert rows["predict p50"] == "n/a (there is no app)"
    assert "predict, phases" not in rows
    page = render_html([report])
    text = text_of(page)
    assert "predict p50 unknown there is no app" in text
    assert "What a user feels: predict , n/a (there is no app)" in text
    assert 'class="of-' not in page
    # No column of the overview is empty.
    assert "is a whole call" not in text
    assert "is a whole call" in text_of(render_html([report, example_report(device="other")]))


def test_report_of_an_older_edgepack_says_that_it_did_not_time_predict() -> None:
    document = json.loads(example_report().model_dump_json())
    del document["phases"]
    read = RunReport.model_validate_json(json.dumps(document))
    assert read.phases == NOT_ASKED
    assert summarize(read).predict_ms == NOT_ASKED


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
    nodes = [report.placement.nodes[0].model_copy(update={"name": EVIL, "provider": EVIL})]  # type: ignore[union-attr]
    evil = report.model_copy(
        update={
            "device": EVIL,
            "bundle": EVIL,
            "project": EVIL,
            "preset": EVIL,
            "notes": [EVIL],
            "verdict": Invalid(reasons=[EVIL]),
            "unused": [Unused(stage="passed over", variant=EVIL, reason=EVIL)],
            "variants": [evil_variant, report.variants[0].model_copy(update={"layers": []})],
            "facts": report.facts.model_copy(update={"model": EVIL, "cpu": EVIL}),
            "placement": report.placement.model_copy(update={"nodes": nodes}),  # type: ignore[union-attr]
        }
    )
    other = evil.model_copy(update={"id": "other", "device": "pi"})
    page = render_html([evil, other])
    assert "<script>alert" not in page
    assert "<img" not in page
    plain = render_html([report, report.model_copy(update={"id": "other", "device": "pi"})])
    assert parsed(page).tags.count("script") == parsed(plain).tags.count("script")


def test_page_says_so_when_there_is_no_accuracy() -> None:
    nothing = NotMeasured(reason="the project has no evaluation samples")
    reports = [
        report.model_copy(
            update={
                "variants": [v.model_copy(update={"accuracy": nothing}) for v in report.variants]
            }
        )
        for report in varied_reports(2)
    ]
    page = render_html(reports)
    assert "not measured: the project has no evaluation samples" in page
    (panel,) = figures_of(page, "overview-1")["overview"]["panels"]
    assert panel["title"] == "model file (MiB)"


def test_page_has_no_layers_when_no_variant_is_int8() -> None:
    report = example_report()
    bare = [item.model_copy(update={"layers": []}) for item in report.variants]
    page = render_html([report.model_copy(update={"variants": bare})])
    assert "The bundle lists none." in page


def test_page_says_so_when_layers_were_not_measured() -> None:
    report = example_report()
    nothing = NotMeasured(reason="no tensor can be looked at")
    bare = [item.model_copy(update={"layers": nothing}) for item in report.variants]
    page = render_html([report.model_copy(update={"variants": bare})])
    assert "Not measured: no tensor can be looked at." in page


def test_page_shows_what_a_build_tried_by_stages_with_the_reasons() -> None:
    report = example_report()
    start = attempt("ranges <b>", "activations", kept=True, sqnr_db=45.0, why="the start")
    rounded = attempt("rounded", "model", kept=False, sqnr_db=43.6, why="0.3 dB farther")
    met = attempt("as it is", "limit", kept=True, metric_drop=0.01, why="it meets the limit")
    tried = report.variants[0].model_copy(update={"tried": [start, rounded, met]})
    text = text_of(render_html([report.model_copy(update={"variants": [tried]})]))
    assert f"What the build tried to keep the accuracy of {tried.id}" in text
    rows = [f"{STAGES[each.stage]} tried kept found why" for each in (start, rounded, met)]
    assert f"{rows[0]} ranges &lt;b&gt; kept 45.0 dB the start" in text
    assert f"{rows[1]} rounded no 43.6 dB 0.3 dB farther" in text
    assert f"{rows[2]} as it is kept metric drop +0.0100 it meets the limit" in text


def unshown_report() -> RunReport:
    """A report whose int8 variant is broken by silence, and that goldens do not tell whole."""
    report = example_report()
    changes = {
        "outside": [
            OutsideError(input="silence", output="<b>", error=5.126, plain=0.0213),
            OutsideError(input="times 2", output="places", error=1e9, plain=0.3),
            OutsideError(input="upside down", output="places", error=0.4, plain=0.1),
        ],
        "input_ranges": {"x": (-1.25, 2.0)},
        "untold": ["the weights 'w' shuffled"],
    }
    int8 = report.variants[0].model_copy(update=changes)
    return report.model_copy(update={"variants": [int8, report.variants[1]]})


def test_page_shows_what_inputs_unlike_the_samples_break_and_what_goldens_do_not_tell() -> None:
    text = text_of(render_html([unshown_report()]))
    said = text.partition("What the samples do not show")[2].partition("Device and conditions")[0]
    for part in (
        (
            "cpu-int8-static Inputs unlike the samples break it: input output off by on the samples"
            " silence (zeros) &lt;b&gt; 5.1 0.021 samples times 2 places no number 0.3"
            " upside down places 0.4 0.1"
        ),
        "Calibrated with &#39;x&#39; from -1.25 to 2.",
        "do not distinguish it from a model with: the weights &#39;w&#39; shuffled",
    ):
        assert part in said, part
    assert "cpu-fp32" not in said
    assert "What the samples do not show" not in text_of(render_html([example_report()]))


def test_page_when_a_variant_was_not_run_on_other_inputs_says_why() -> None:
    report = example_report()
    lost = NotMeasured(reason="no input can be changed")
    int8 = report.variants[0].model_copy(update={"outside": lost})
    lost_report = report.model_copy(update={"variants": [int8]})
    said = "not run on inputs unlike the samples: no input can be changed."
    assert said in text_of(render_html([lost_report]))
    assert "not measured: no input can be changed" in printed(make_report_table(lost_report))


@pytest.mark.parametrize(
    ("simulated", "said"),
    [
        (
            Simulated(
                simulator="onnxruntime-qnn 2.7.0",
                nodes={"QNNExecutionProvider": 64, "CPUExecutionProvider": 2},
                golden_sqnr_db=30.25,
                accuracy=example_accuracy(0.975, 26.0),
            ),
            (
                "onnxruntime-qnn 2.7.0: 2 nodes on CPUExecutionProvider, 64 nodes on"
                " QNNExecutionProvider; golden outputs 30.25 dB; top1 0.9750 on 360 samples"
            ),
        ),
        (NotMeasured(reason=EVIL), f"not run: {EVIL}"),
        (None, ""),
    ],
    ids=["simulated", "not simulated", "no simulator"],
)
def test_page_and_table_say_what_the_vendors_simulator_showed(
    simulated: Simulated | NotMeasured | None, said: str
) -> None:
    report = example_report()
    variants = [report.variants[0].model_copy(update={"simulated": simulated})]
    report = report.model_copy(update={"variants": variants})
    text = unescape(text_of(render_html([report])))
    assert ("In the vendor's simulator" in text) is bool(said)
    assert said in text
    assert [row for what, row in list_report_rows(report) if what == "in the simulator"] == (
        [said] if said else []
    )


@pytest.mark.parametrize(
    ("samples", "shown"), [(100, 0.975), (99, 0.9833)], ids=["enough samples", "too few"]
)
def test_page_when_the_simulator_had_enough_samples_shows_its_metric(
    samples: int, shown: float
) -> None:
    accuracy = example_accuracy(0.975, 26.0).model_copy(update={"samples": samples})
    simulated = Simulated(simulator="s", nodes={}, golden_sqnr_db=30.0, accuracy=accuracy)
    report = example_report()
    int8 = report.variants[0].model_copy(update={"simulated": simulated})
    report = report.model_copy(update={"variants": [int8]})
    found, evaluation = find_accuracy(report, [])
    assert isinstance(found, Accuracy)
    assert (found.value, evaluation) == (shown, None)


def test_table_says_what_breaks_the_variant_that_ran_and_what_its_goldens_do_not_tell() -> None:
    report = unshown_report()
    text = " ".join(re.sub(r"[│┃]", " ", printed(make_report_table(report))).split())
    assert (
        "unlike the samples with silence (zeros) the output '<b>' is off by 5.1 times what it"
        " varies by over the samples, where it is off by 0.021"
    ) in text
    assert "with samples times 2 the output 'places' is no number" in text
    assert "goldens do not tell the weights 'w' shuffled" in text
    other = report.model_copy(update={"variant_used": "cpu-fp32"})
    assert "unlike the samples" not in printed(make_report_table(other))


def attempt(what: str, stage: Any, *, kept: bool, why: str, **found: float) -> Attempt:
    numbers = {"sqnr_db": None, "agreement": None, "metric_drop": None, **found}
    return Attempt(what=what, stage=stage, kept=kept, why=why, **numbers)


def test_page_shows_other_values_of_the_metric_beside_it() -> None:
    report = example_report()
    values = {"map50": MetricValue(value=0.5, fp32=0.6), "recall": MetricValue(value=0.7, fp32=0.8)}
    several = {"metric": "map50", "values": values}
    accuracy = report.variants[0].accuracy.model_copy(update=several)
    variants = [report.variants[0].model_copy(update={"accuracy": accuracy})]
    page = render_html([report.model_copy(update={"variants": variants})])
    assert "map50; recall 0.7000 (fp32 0.8000)" in page


def test_page_shows_the_value_alone_when_there_is_no_fp32_model() -> None:
    report = example_report()
    nothing = NotMeasured(reason="there is no fp32 model")
    compared = dict.fromkeys(("drop", "drop_interval", "agreement", "worst"))
    alone = report.variants[0].accuracy.model_copy(update={"fp32": nothing, **compared})  # type: ignore[union-attr]
    variants = [report.variants[0].model_copy(update={"accuracy": alone})]
    page = render_html([report.model_copy(update={"variants": variants})])
    assert "not measured: there is no fp32 model" in page


def test_page_is_refused_when_there_is_no_report() -> None:
    with pytest.raises(UsageError, match="no report") as caught:
        render_html([])
    assert "edgepack bench" in caught.value.hint


def test_write_html_raises_when_the_folder_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ToolError, match="cannot write the page"):
        write_html([example_report()], tmp_path / "file" / "report.html")


def test_table_when_some_inferences_were_interrupted_marks_all_but_p50() -> None:
    report = example_report(runs=[interrupted_run(seed) for seed in range(5)])
    lines = printed(make_report_table(report)).splitlines()
    marked = [line.split("│")[1].strip() for line in lines if "(inconclusive)" in line]
    assert marked == [
        "latency mean", "latency p90", "latency p95", "latency p99", "throughput", "energy"
    ]  # fmt: skip
    assert any("p99 is 50 ms, more than 10 times the p50 of 1 ms" in line for line in lines)
    assert "inconclusive" not in printed(make_report_table(example_report()))
    unknown = [run.model_copy(update={"energy": NOT_KNOWN}) for run in report.runs]
    text = printed(make_report_table(report.model_copy(update={"runs": unknown})))
    assert "unknown (this device does not say) " in text
    assert "say) (inconclusive)" not in text


def test_page_when_some_inferences_were_interrupted_marks_all_but_p50() -> None:
    before = example_report()
    runs = [interrupted_run(seed) for seed in range(5)]
    after = example_report(id="b", created="2026-11-22T09:30:12Z", runs=runs)
    text = text_of(render_html([after, example_report(device="other")], history=[before]))
    assert "Use only p50; the other numbers are INCONCLUSIVE. p99 is 50 ms, more than" in text
    assert text.count("1.000 ms inconclusive 3") == 0
    for part in (
        "latency p90 1.000 ms inconclusive; p95",
        "/s inconclusive; inferences, single-stream",
        "mJ inconclusive; per inference",
        "p90 of a run (inconclusive)",
        "1.000 ms 1.000 ms (inconclusive) 200",
        "1.000 ms inconclusive ",
    ):
        assert part in text, part
    assert re.search(r"latency p50 \S+ ms 1\.000 ms \S+ % \(.*?\) faster", text)
    assert re.search(r"latency p90 \S+ ms 1\.000 ms \S+ % \(.*?\) inconclusive", text)
    quiet = text_of(render_html([before, example_report(device="other")]))
    assert "nconclusive" not in quiet


def test_page_when_inferences_of_another_size_were_interrupted_marks_their_p90() -> None:
    times = (("1", interrupted_run().latencies_ns), ("2", [2_000_000] * 30))
    sweep = [
        SweepPoint(shapes={"x": [int(batch), 3]}, batch=int(batch), latencies_ns=latencies_ns)
        for batch, latencies_ns in times
    ]
    text = text_of(render_html([example_report(sweep=sweep)]))
    assert "1 1.000 ms 1.000 ms (inconclusive) 1,000 samples/s" in text
    assert "2 2.000 ms 2.000 ms 1,000 samples/s" in text


def test_page_when_one_of_two_runs_is_invalid_does_not_say_which_is_slower() -> None:
    before = example_report(verdict=Invalid(reasons=["others took 93% of the 2 cores"]))
    runs = [example_run(seed, scale=1.3) for seed in range(5)]
    after = example_report(id="b", created="2026-11-22T09:30:12Z", runs=runs)
    text = text_of(render_html([after], history=[before]))
    assert re.search(r"latency p50 \S+ ms \S+ ms \+3\S+ % \(.*?\) inconclusive", text)
    assert "slower" not in text
