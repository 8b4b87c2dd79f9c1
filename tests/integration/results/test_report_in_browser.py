"""The report's page in a real browser: headless Chromium at desktop and phone width."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from edgepack.bundle.manifest import OutsideError
from edgepack.bundle.unused import Unused
from edgepack.records.run import Invalid, RunReport
from edgepack.results.page.html import write_html
from edgepack.results.page.reporting import report as report_page
from edgepack.results.store.rows import make_row
from edgepack.results.store.store import ResultsStore

from tests.support.reports.example_history import farm, farm_logs
from tests.support.reports.example_report import (
    example_evaluation,
    example_report,
    example_run,
    many_nodes,
    varied_reports,
)
from tests.support.servers.chromium import DESKTOP, PHONE, SCROLL, find_chromium, launched
from tests.support.servers.loopback import wait_until

LEAST_CONTRAST = 4.5
"""WCAG 2.2, 1.4.3, level AA."""
TEXTS = "h1, h3, p, th, td, .small, .badge, .why li, .tile b, .readout, .legend span, .note, a"

CONTRAST = """(selector) => {
  const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
  const known = {};
  const rgba = (css) => known[css] ||= read(css);
  const read = (css) => {
    canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = css; canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const light = (rgb) => rgb.slice(0, 3).map((v) => v / 255)
    .map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const backOf = (node) => {
    for (; node; node = node.parentElement) {
      const back = rgba(getComputedStyle(node).backgroundColor);
      if (back[3] === 255) return back;
    }
    return [255, 255, 255];
  };
  const found = {};
  document.querySelectorAll(selector).forEach((node) => {
    if (!node.checkVisibility() || !node.textContent.trim()) return;
    const pair = [light(rgba(getComputedStyle(node).color)), light(backOf(node))];
    const key = node.tagName + "." + node.className + " in ." + node.parentElement.className;
    const contrast = (Math.max(...pair) + 0.05) / (Math.min(...pair) + 0.05);
    found[key] = Math.min(found[key] || 99, contrast);
  });
  return found;
}"""
DRAWN = """() => [...document.querySelectorAll("figure[data-figure]")]
  .filter((each) => each.querySelector("svg path[d^=M]"))
  .map((each) => each.closest("[id]").id + " " + each.dataset.figure)"""
OVERFLOW = "() => document.documentElement.scrollWidth - innerWidth"


@dataclass
class Seen:
    """What a page did that it must not do."""

    messages: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)


class Tabs:
    """A tab for each kind of screen, which tests share: a new one costs more than most tests do."""

    def __init__(self, browser: Any) -> None:
        self.browser = browser
        self.tabs: dict[str, tuple[Any, Seen]] = {}
        self.opened = 0

    @contextmanager
    def open(
        self, path: Path, hash_: str = "", *, screen: Mapping[str, Any] = DESKTOP, **settings: Any
    ) -> Iterator[Any]:
        """Open a page anew, and hold it to silence at the end."""
        tab, seen = self._tab({**screen, **settings})
        seen.messages.clear()
        seen.requests.clear()
        tab.set_viewport_size(screen["viewport"])
        tab.emulate_media(color_scheme="light", media="screen")
        self.opened += 1
        tab.goto(f"{path.as_uri()}?{self.opened}{hash_}")
        yield tab
        assert seen.messages == []
        assert {url.partition("?")[0] for url in seen.requests} == {path.as_uri()}

    def _tab(self, settings: dict[str, Any]) -> tuple[Any, Seen]:
        key = str(settings)
        if key not in self.tabs:
            tab, seen = self.browser.new_context(**settings).new_page(), Seen()
            tab.on("console", lambda message: seen.messages.append(message.text))
            tab.on("pageerror", lambda error: seen.messages.append(str(error)))
            tab.on("dialog", lambda dialog: seen.messages.append(f"dialog: {dialog.message}"))
            tab.on("request", lambda request: seen.requests.append(request.url))
            self.tabs[key] = tab, seen
        return self.tabs[key]


@pytest.fixture(scope="module")
def tabs() -> Iterator[Tabs]:
    """One browser for all tests; without one they are skipped, which fails in CI."""
    path = find_chromium()
    if not path and os.environ.get("CI"):
        pytest.fail("there is no Chromium; CI must not skip these tests")
    if not path:
        pytest.skip("there is no Chromium or Chrome")
    with launched(path) as browser:
        yield Tabs(browser)


def drawn(page: Any) -> set[str]:
    return set(page.evaluate(DRAWN))


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page about 14 runs of four devices and three variants, and one evaluation."""
    reports = varied_reports(14, samples=60)
    last = reports[-1]
    evaluation = example_evaluation(
        device=last.device, variant=last.variant_used, manifest_sha256=last.manifest_sha256
    )
    folder = tmp_path_factory.mktemp("page")
    return write_html(reports, folder / "many.html", evaluations=[evaluation])


@pytest.mark.slow(reason="takes seconds")
@pytest.mark.parametrize("screen", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_page_when_looked_at_draws_what_is_open_legibly_within_its_width(
    tabs, many, tmp_path, screen
):
    with tabs.open(many, screen=screen) as page:
        page.evaluate(SCROLL)
        assert drawn(page) == {"overview-1 overview"}
        assert page.evaluate(OVERFLOW) <= 0
        page.locator("#run-1 > summary").click()
        page.evaluate(SCROLL)
        assert drawn(page) == {
            "overview-1 overview",
            *(f"run-1 {name}" for name in ("timeline", "distribution", "roofline")),
        }
        assert page.evaluate(OVERFLOW) <= 0
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            page.screenshot(path=tmp_path / f"{scheme}.png")
            contrasts = page.evaluate(CONTRAST, TEXTS)
            assert {each: c for each, c in contrasts.items() if c < LEAST_CONTRAST} == {}
        assert (tmp_path / "light.png").read_bytes() != (tmp_path / "dark.png").read_bytes()


def test_run_when_its_variant_is_broken_by_silence_shows_so_within_a_phones_width(tabs, tmp_path):
    report = example_report()
    outside = [OutsideError(input="silence", output="head/" + "x" * 90, error=5.1, plain=0.02)]
    int8 = report.variants[0].model_copy(update={"outside": outside, "untold": ["w" * 120]})
    variants = [int8, *report.variants[1:]]
    path = write_html([report.model_copy(update={"variants": variants})], tmp_path / "one.html")
    with tabs.open(path, screen=PHONE) as page:
        card = page.locator(".card", has_text="What the samples do not show")
        assert card.is_visible()
        cells = card.locator("tbody tr").first.locator("th, td").all_inner_texts()
        assert cells == ["silence (zeros)", outside[0].output, "5.1", "0.02"]
        assert page.evaluate(OVERFLOW) <= 0


@pytest.mark.slow(reason="starts a browser")
def test_overview_when_used_sorts_names_links_and_opens_runs(tabs, many):
    orders = """() => [...document.querySelectorAll("#overview-1 tbody tr")]
      .map((row) => Number(row.cells[2].dataset.order))"""
    with tabs.open(many) as page:
        heading = page.locator("#overview-1 th", has_text="p50").first
        heading.locator("button").focus()
        page.keyboard.press("Enter")
        found = page.evaluate(orders)
        assert found == sorted(found)
        assert len(set(found)) > 3
        assert heading.get_attribute("aria-sort") == "ascending"
        page.keyboard.press("Enter")
        assert page.evaluate(orders) == found[::-1]
        assert heading.get_attribute("aria-sort") == "descending"
        page.locator("#overview-1 svg").focus()
        page.keyboard.press("ArrowRight")
        said = page.locator("#overview-1 output").text_content()
        assert "VALID" in said
        assert "ms" in said
        page.keyboard.press("Enter")
        page.wait_for_selector("details.run[open] figure svg")


def test_page_when_a_run_is_linked_to_opens_it(tabs, many):
    with tabs.open(many, "#run-5") as page:
        page.wait_for_selector("#run-5 figure svg")
        assert page.evaluate("document.querySelectorAll('details.run[open]').length") == 1
        link = page.locator("#overview-1 td.name a").first
        linked = link.get_attribute("href")
        place = "(link) => link.getBoundingClientRect().top + scrollY"
        before = link.evaluate(place)
        page.evaluate(SCROLL)
        assert link.evaluate(place) == before, "a figure above moved it"
        link.click()
        page.wait_for_selector(f"{linked}[open]")
        page.locator(f"{linked} figure").first.scroll_into_view_if_needed()
        page.wait_for_selector(f"{linked} svg")


def test_page_when_its_controls_are_used_changes_colours_and_shows_the_wanted_runs(tabs, many):
    back = "getComputedStyle(document.body).backgroundColor"
    with tabs.open(many) as page:
        before, button = page.evaluate(back), page.locator("#theme")
        assert button.text_content() == "Dark"
        button.click()
        assert button.text_content() == "Light"
        assert page.evaluate(back) != before
        button.click()
        assert page.evaluate(back) == before
        page.emulate_media(color_scheme="dark")
        assert page.evaluate(back) == before, "what was chosen outlives the system's change"
        page.locator("#filter").fill("orin int8")
        shown = page.locator("details.run:not([hidden]) h3").all_text_contents()
        assert len(shown) == 2
        assert all("orin" in text and "int8" in text for text in shown)


def test_timeline_when_dragged_over_is_enlarged_and_shown_whole_again(tabs, many):
    with tabs.open(many, "#run-1") as page:
        timeline = page.locator("#run-1 figure[data-figure=timeline]")
        svg = timeline.locator("svg")
        svg.scroll_into_view_if_needed()
        line = "#run-1 figure[data-figure=timeline] path.line"
        whole = page.locator(line).first.get_attribute("d")
        box = svg.bounding_box()
        page.mouse.move(box["x"] + 300, box["y"] + 100)
        page.mouse.down()
        page.mouse.move(box["x"] + 500, box["y"] + 100)
        assert "°C" in timeline.locator("output").text_content()
        page.mouse.up()
        assert page.locator(line).first.get_attribute("d") != whole
        timeline.locator("button").click()
        assert page.locator(line).first.get_attribute("d") == whole


def test_roofline_when_pointed_at_names_the_node_and_leads_nowhere(tabs, many):
    with tabs.open(many, "#run-1") as page:
        roofline = page.locator("#run-1 figure[data-figure=roofline]")
        roofline.scroll_into_view_if_needed()
        marks = roofline.locator("svg .mark")
        marks.first.wait_for()
        assert marks.count() > 3
        place = page.url
        roofline.locator("svg").focus()
        page.keyboard.press("ArrowRight")
        page.keyboard.press("Enter")
        assert "/model/stage" in roofline.locator("output").text_content()
        assert "multiply-adds a second" in roofline.locator("output").text_content()
        assert page.url == place


def test_numbers_of_a_figure_when_opened_are_those_that_it_draws(tabs, many):
    with tabs.open(many, screen=PHONE) as page:
        page.locator("#overview-1 .data summary").click()
        rows = page.locator("#overview-1 .data tbody tr")
        rows.first.wait_for()  # a <details> tells that it opened after the click was done
        assert rows.count() == page.locator("#overview-1 svg .mark").count() == 12
        assert page.evaluate(OVERFLOW) <= 0


@pytest.mark.slow(reason="takes seconds")
def test_page_when_printed_has_the_figures_of_open_runs_without_scrolling(tabs, many):
    with tabs.open(many, "#run-2") as page:
        page.emulate_media(color_scheme="dark")
        page.evaluate("dispatchEvent(new Event('beforeprint'))")
        assert {"run-2 timeline", "run-2 distribution"} < drawn(page)
        page.emulate_media(media="print", color_scheme="dark")
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == (
            "rgb(255, 255, 255)"
        )
        assert not page.locator("#theme").is_visible()


def test_page_when_javascript_is_off_has_every_text(tabs, many):
    with tabs.open(many, screen=PHONE, java_script_enabled=False) as page:
        page.locator("#run-1 > summary").click()
        assert page.locator("#run-1 .tile").first.is_visible()
        assert page.locator("main > noscript p").is_visible()
        assert page.locator("details.run .tiles").count() == 14


def test_page_when_the_window_is_narrowed_draws_its_figures_again(tabs, many):
    with tabs.open(many) as page:
        page.wait_for_selector("#overview-1 svg")
        page.set_viewport_size({"width": 500, "height": 800})
        # Not wait_for_function: it evaluates text in the page, whose security policy forbids that.
        width = "Number(document.querySelector('#overview-1 .plot').dataset.width)"
        assert wait_until(lambda: page.evaluate(width) < 500)
        assert page.evaluate("document.querySelector('#overview-1 svg').clientWidth") < 500
        assert page.evaluate(OVERFLOW) <= 0


@pytest.fixture(scope="module")
def farms(tmp_path_factory: pytest.TempPathFactory) -> Mapping[int, Path]:
    """Pages about 2, 5 and 30 devices with two variants each, the last but one of them slow."""
    folder = tmp_path_factory.mktemp("farms")
    pages = {}
    for devices in (2, 5, 30):
        store = ResultsStore(f"sqlite:///{folder / f'{devices}.sqlite'}")
        for seed, variant in enumerate(("cpu-int8-static", "cpu-fp32")):
            logs = farm_logs(seed, devices, 10)
            logs[-2, -4:] += np.log(1.5)
            for report in farm(logs, variant_used=variant, project="detector"):
                store.save(report.model_copy(update={"id": f"{report.id}-{variant}"}))
        path = folder / f"{devices}.html"
        report_page(path, store, last=2 * devices, tags={"pi5-03": ["rack-a"]})
        pages[devices] = path
    return pages


SHOWN_ROWS = """() => [...document.querySelectorAll("#overview-1 table.grouped tr[data-device]")]
  .filter((row) => row.checkVisibility())
  .map((row) => row.dataset.device + " " + row.dataset.variant)"""
GROUPS = """() => [...document.querySelectorAll("#overview-1 .group")]
  .filter((row) => row.checkVisibility()).map((row) => row.textContent)"""
PLOTS = """() => [...document.querySelectorAll("#overview-1 .plots li")]
  .filter((each) => each.checkVisibility()).map((each) => each.dataset.device)"""


def test_farm_when_it_is_large_is_grouped_by_device_the_slow_one_first(tabs, farms):
    with tabs.open(farms[30]) as page:
        groups = page.evaluate(GROUPS)
        assert len(groups) == 30
        assert groups[0].startswith("pi5-28 2 runs, p50 median ")
        assert "ms (cpu-" in groups[0]
        assert "2 slow: +" in groups[0]
        assert not any("slow" in each for each in groups[1:])
        assert page.evaluate(SHOWN_ROWS) == []
        first = page.locator("#overview-1 .group button").first
        assert first.get_attribute("aria-expanded") == "false"
        first.focus()
        page.keyboard.press("Enter")
        assert first.get_attribute("aria-expanded") == "true"
        assert {each.split()[0] for each in page.evaluate(SHOWN_ROWS)} == {"pi5-28"}
        page.locator(".choose .fold").click()
        assert len(page.evaluate(SHOWN_ROWS)) == 60
        page.locator(".choose .fold").click()
        assert page.evaluate(SHOWN_ROWS) == []


def test_farm_when_it_is_grouped_otherwise_has_other_groups_and_keeps_the_worst_first(tabs, farms):
    with tabs.open(farms[30]) as page:
        page.locator(".choose .by").select_option("variant")
        groups = page.evaluate(GROUPS)
        assert sorted(each.split()[0] for each in groups) == ["cpu-fp32", "cpu-int8-static"]
        assert all("30 runs, p50 median" in each and "(pi5-28)" in each for each in groups)
        page.locator(".choose .by").select_option("")
        assert page.evaluate(GROUPS) == []
        rows = page.evaluate(SHOWN_ROWS)
        assert len(rows) == 60
        assert {each.split()[0] for each in rows[:2]} == {"pi5-28"}


def test_farm_when_it_is_filtered_shows_what_fits_in_table_plots_and_groups(tabs, farms):
    with tabs.open(farms[30]) as page:
        page.locator(".choose .fold").click()
        page.locator(".choose input").fill("rack-a")
        assert {each.split()[0] for each in page.evaluate(SHOWN_ROWS)} == {"pi5-03"}
        assert page.evaluate(PLOTS) == ["pi5-03"]
        assert page.locator(".choose .left").text_content() == "2 of 60 runs"
        page.locator(".choose input").fill("")
        page.locator(".choose select[data-field=variant]").select_option("cpu-fp32")
        rows = page.evaluate(SHOWN_ROWS)
        assert len(rows) == 30
        assert all(each.endswith("cpu-fp32") for each in rows)
        assert all("1 run, " in each for each in page.evaluate(GROUPS))
        page.locator(".choose select[data-field=verdict]").select_option("INVALID")
        assert page.evaluate(SHOWN_ROWS) == page.evaluate(GROUPS) == []


@pytest.mark.in_turns
def test_farm_when_its_groups_are_sorted_orders_rows_and_groups(tabs, farms):
    with tabs.open(farms[30]) as page:
        page.locator(".choose .by").select_option("variant")
        page.locator(".choose .fold").click()
        page.locator("#overview-1 th", has_text="p50").first.locator("button").click()
        groups = page.evaluate(GROUPS)
        assert [each.split()[0] for each in groups] != []
        orders = page.evaluate(
            """() => [...document.querySelectorAll("#overview-1 tbody")].map((body) =>
              [...body.querySelectorAll("tr[data-device]")]
                .map((row) => Number(row.cells[2].dataset.order)))"""
        )
        assert [len(each) for each in orders] == [30, 30]
        assert all(each == sorted(each) for each in orders)
        assert orders[0][0] <= orders[1][0]


@pytest.mark.parametrize("screen", [DESKTOP, PHONE], ids=["desktop", "phone"])
@pytest.mark.parametrize("devices", [5, 30])
def test_farm_when_looked_at_has_a_plot_of_each_device_and_is_legible(tabs, farms, devices, screen):
    with tabs.open(farms[devices], screen=screen) as page:
        if devices == 30:
            page.locator(".multiples summary").click()
        plots = page.evaluate(PLOTS)
        assert len(plots) == devices
        assert plots[0] == f"pi5-{devices - 2:02}"
        heights = page.evaluate(
            """() => [...document.querySelectorAll(".plots svg")].map((each) => {
              const box = each.getBoundingClientRect();
              return [box.width, box.height];
            })"""
        )
        assert all(width > 100 and 40 < height < 60 for width, height in heights)
        assert page.evaluate(OVERFLOW) <= 0
        if devices == 30:
            head, table = (
                page.locator(each).first.bounding_box() for each in (".group", ".grouped")
            )
            assert head["width"] == pytest.approx(table["width"], abs=2)
            cell = page.locator(".group th").first.bounding_box()
            assert cell["width"] == pytest.approx(table["width"], abs=2)
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            contrasts = page.evaluate(CONTRAST, f"{TEXTS}, .group span, .group button, label")
            assert {each: c for each, c in contrasts.items() if c < LEAST_CONTRAST} == {}


def test_small_plots_when_a_device_became_slow_show_it_on_the_scale_of_all(tabs, farms):
    ends = """() => [...document.querySelectorAll(".plots li")].map((each) => [
      each.dataset.device,
      [...each.querySelectorAll("polyline")].map((line) =>
        line.getAttribute("points").split(" ").map((place) => Number(place.split(",")[1]))),
      Number(each.querySelector(".grid").getAttribute("d").match(/M0 ([0-9.]+)/)[1])])"""
    with tabs.open(farms[5]) as page:
        (slow, *others) = page.evaluate(ends)
        for line in slow[1]:
            assert max(line[-4:]) < slow[2] / 2 < min(line[:5])
        assert all(abs(place - slow[2]) < 8 for _, lines, _ in others for y in lines for place in y)
        label = page.locator(".plots svg").first.get_attribute("aria-label")
        assert "pi5-03: cpu-fp32 on raspberry-pi: +" in label


def test_farm_when_javascript_is_off_has_rows_plots_and_slow_devices(tabs, farms):
    with tabs.open(farms[30], java_script_enabled=False) as page:
        assert page.locator("#overview-1 tbody tr").count() == 60
        assert page.locator("#overview-1 tbody tr").first.is_visible()
        assert "pi5-28" in page.locator("#overview-1 tbody tr").first.inner_text()
        assert page.locator(".plots svg").first.is_visible()
        assert not page.locator(".choose").is_visible()
        assert "pi5-28 is " in page.locator("#overview-1").inner_text()


def test_farm_of_two_devices_has_no_peers_and_says_nothing_of_them(tabs, farms):
    with tabs.open(farms[2]) as page:
        assert len(page.evaluate(PLOTS)) == 2
        assert "against peers" not in page.locator("#overview-1").inner_text()


AXES = """() => [...document.querySelectorAll("#overview-1 svg text[text-anchor=middle]")]
  .map((each) => each.textContent)"""


def test_axis_when_latencies_lie_close_together_has_no_text_twice(tabs, tmp_path):
    one = example_report()
    near = [example_run(seed, scale=1.0005) for seed in range(5)]
    other = one.model_copy(update={"id": "b", "device": "pi5-b", "runs": near})
    with tabs.open(write_html([one, other], tmp_path / "close.html")) as page:
        page.wait_for_selector("#overview-1 svg")
        texts = page.evaluate(AXES)
        assert len(texts) > 2
        assert len(set(texts)) == len(texts)


def test_sustained_run_when_shown_has_its_minutes(tabs, tmp_path):
    slow = [200_000_000] * 1000
    report = example_report(runs=[example_run(latencies_ns=slow, sampling=example_run().sampling)])
    with tabs.open(write_html([report], tmp_path / "sustained.html")) as page:
        page.evaluate(SCROLL)
        assert drawn(page) == {
            f"run-1 {name}" for name in ("timeline", "sustained", "distribution")
        }


EVIL = (
    "</script><script>alert(1)</script><img src=x onerror=alert(2)>"
    "\u2028\u2029\u202e{{ 7*7 }}${1}'\"&amp;" + "w" * 400
)


def hostile() -> RunReport:
    report = example_report()
    placed = many_nodes(3, provider=EVIL)
    nodes = [node.model_copy(update={"name": EVIL, "op": EVIL}) for node in placed.nodes]
    used = report.variants[0].model_copy(update={"id": EVIL})
    sampling = example_run().sampling
    samples = [
        sample.model_copy(update={"temperatures_c": {EVIL: 50.0}, "throttled": [EVIL]})
        for sample in sampling.samples
    ]
    told = sampling.model_copy(update={"samples": samples, "unknown": {EVIL: EVIL}})
    return report.model_copy(
        update={
            "device": EVIL,
            "project": EVIL,
            "bundle": EVIL,
            "target": EVIL,
            "preset": EVIL,
            "notes": [EVIL],
            "unfinished": EVIL,
            "argv": [EVIL],
            "verdict": Invalid(reasons=[EVIL]),
            "unused": [Unused(stage="passed over", variant=EVIL, reason=EVIL)],
            "variants": [used],
            "variant_used": EVIL,
            "variant_requested": EVIL,
            "facts": report.facts.model_copy(update={"model": EVIL, "os": EVIL}),
            "placement": placed.model_copy(update={"nodes": nodes}),
            "runs": [run.model_copy(update={"sampling": told}) for run in report.runs],
        }
    )


@pytest.mark.slow(reason="takes seconds")
@pytest.mark.parametrize(("screen", "runs"), [(DESKTOP, 2), (PHONE, 8)], ids=["desktop", "phone"])
def test_page_when_texts_are_hostile_shows_them_and_neither_runs_nor_breaks(
    tabs, tmp_path, screen, runs
):
    evil = hostile()
    other = evil.model_copy(update={"id": "other", "device": "pi5"})
    reports = [
        evil.model_copy(update={"id": f"run-{day}", "created": f"2026-11-{day}T09:30:12Z"})
        for day in range(10, 10 + runs)
    ]
    evaluation = example_evaluation(device=EVIL, bundle=EVIL, variant=EVIL, reasons=[EVIL])
    path = write_html(
        [*reports, other],
        tmp_path / "evil.html",
        evaluations=[evaluation],
        stored=[
            replace(make_row(each), verdict="VALID", unfinished=False) for each in [*reports, other]
        ],
        tags={EVIL: [EVIL]},
    )
    with tabs.open(path, "#run-1", screen=screen) as page:
        page.evaluate(SCROLL)
        assert {"overview-1 overview", "run-1 timeline"} < drawn(page)
        assert page.locator("#overview-1 .plots svg").count() == 2
        assert page.locator("#run-1 .rails").count() == 1
        page.locator("#run-1 figure[data-figure=timeline] svg").focus()
        page.keyboard.press("ArrowRight")
        page.locator("#run-1 figure[data-figure=timeline] .data summary").click()
        assert "</script><script>alert(1)" in page.locator("#run-1 h3").text_content()
        assert page.locator("img").count() == 0
        assert page.evaluate(OVERFLOW) <= 0
