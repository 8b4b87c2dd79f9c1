"""Write the pictures of the report's page, of made-up numbers that say so, and of the web sample.

Run it after changing one of them: ``.venv/bin/python -m tests.docs.write_screenshots``.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

from edgepack.results.page.html import write_html

from tests.support.reports.example_report import varied_reports
from tests.support.servers.chromium import DESKTOP, PHONE, SCROLL, find_chromium, launched
from tests.web import js_sample

DOCS = Path(__file__).resolve().parents[2] / "docs"
HOT = "details.run:has(.badge.invalid)"


def main() -> None:
    """Draw a page of 24 runs, and take the overview, one run, and the overview on a phone."""
    path = find_chromium()
    if path is None:
        sys.exit("there is no Chromium or Chrome here")
    reports = [
        report.model_copy(update={"project": "digits (made-up numbers)"})
        for report in varied_reports(24, samples=1000)
    ]
    with tempfile.TemporaryDirectory(prefix="edgepack-docs-") as folder, launched(path) as browser:
        page = write_html(reports, Path(folder) / "report.html")
        desktop = opened(browser, page, DESKTOP)
        desktop.screenshot(path=DOCS / "report.png", clip=box(0, 1280, 1240), full_page=True)
        desktop.locator(f"{HOT} > summary").first.click()
        desktop.evaluate(SCROLL)
        top = desktop.evaluate(f"document.querySelector('{HOT}').offsetTop")
        clip = box(top - 12, 1280, 1560)
        desktop.screenshot(path=DOCS / "report-run.png", clip=clip, full_page=True)
        phone = opened(browser, page, {**PHONE, "color_scheme": "dark"})
        phone.screenshot(path=DOCS / "report-phone.png")


def write_sample() -> None:
    """Take the web sample with a drawing before its camera."""
    settings = {"viewport": {"width": 480, "height": 790}, "color_scheme": "dark"}
    with (
        tempfile.TemporaryDirectory(prefix="edgepack-docs-") as folder,
        js_sample.filmed(Path(folder), **settings) as page,
    ):
        js_sample.start_camera(page, r"\d\d frames a second$")
        page.screenshot(path=DOCS / "web-sample.jpg", type="jpeg", quality=80)


def opened(browser: Any, page: Path, settings: dict[str, Any]) -> Any:
    """Return the page in a tab of its own, with its overview drawn."""
    tab = browser.new_context(**settings).new_page()
    tab.goto(page.as_uri())
    tab.wait_for_selector("#overview-1 svg")
    return tab


def box(top: float, width: int, height: int) -> dict[str, float]:
    """Return a part of the page."""
    return {"x": 0, "y": top, "width": width, "height": height}


if __name__ == "__main__":
    main()
    write_sample()
