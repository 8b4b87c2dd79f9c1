"""The page of 100 runs: how long writing it takes, and a browser to show it."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter

from edgepack.base.statistics import median
from edgepack.results.page.html import render_html

from tests.bench.measuring import Row
from tests.support.reports.example_report import varied_reports
from tests.support.servers.chromium import DESKTOP, PHONE, find_chromium, launched

RUNS = 100
SAMPLES = 1000
"""In each of five process runs: a ten-second run of a model that takes 10 ms."""
TIMES = 5
SHOWN = "#overview-1 svg path.mark"


def measure() -> Iterator[Row]:
    """Yield a row for Python, and one for each kind of screen."""
    reports = varied_reports(RUNS, samples=SAMPLES)
    page = render_html(reports)
    rendering = [_seconds(lambda: render_html(reports)) for _ in range(TIMES)]
    what = f"page of {RUNS} runs of 5 times {SAMPLES} inferences"
    yield _row(f"{what}: written", rendering, f"{len(page.encode()) / 1e6:.1f} MB, at most 6")
    path = find_chromium()
    if path is None:
        return
    with tempfile.TemporaryDirectory() as folder, launched(path) as browser:
        file = Path(folder) / "report.html"
        file.write_text(page, encoding="utf-8")
        for name, settings in (("desktop", DESKTOP), ("phone", PHONE)):
            shown = []
            for _ in range(TIMES):
                context = browser.new_context(**settings)
                tab = context.new_page()
                start = perf_counter()
                tab.goto(file.as_uri())
                tab.wait_for_selector(SHOWN, state="attached")
                shown.append(perf_counter() - start)
                context.close()
            yield _row(f"{what}: shown, {name}", shown, "headless Chromium, until the overview is")


def _seconds(call: Callable[[], object]) -> float:
    start = perf_counter()
    call()
    return perf_counter() - start


def _row(what: str, seconds: list[float], beside: str) -> Row:
    return Row(what, f"median of {TIMES}", f"{median(seconds):.2f} s", "under 2 s", beside)
