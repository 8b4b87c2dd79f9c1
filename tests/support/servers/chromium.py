"""A Chromium of this system, driven by playwright, for what looks at the report's page."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

NAMES = (
    "chromium",
    "chromium-browser",
    "google-chrome",
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
    "/Applications/Chromium.app/Contents/MacOS/Chromium",
)
DESKTOP: dict[str, Any] = {"viewport": {"width": 1280, "height": 800}}
PHONE: dict[str, Any] = {
    "viewport": {"width": 360, "height": 780},
    "device_scale_factor": 2,
    "has_touch": True,
    "is_mobile": True,
}
SCROLL = """async () => {
  const frame = () => new Promise((done) => requestAnimationFrame(done));
  for (let y = 0; y < document.body.scrollHeight; y += innerHeight) {
    scrollTo(0, y);
    await frame();
    await frame();
  }
  scrollTo(0, 0);
  await frame();
}"""
"""Figures of runs are drawn when they come near to what is seen."""


def find_chromium() -> str | None:
    """Return a Chromium or Chrome; None if this system has none."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


@contextmanager
def launched(path: str, *options: str) -> Iterator[Any]:
    """Run a browser without a window, with options; its sandbox does not work for root."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", *options])
        try:
            yield browser
        finally:
            browser.close()
