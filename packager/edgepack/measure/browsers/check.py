"""Checks whether a browser can be measured: the browser, and what its page is served from."""

from __future__ import annotations

from edgepack.base.progress import Progress
from edgepack.devices.checking import BrowserFacts, Checked
from edgepack.devices.inventory import Device
from edgepack.errors import ToolError
from edgepack.measure.browsers.browsers import (
    find_runtime,
    list_page_files,
    require_browser,
    require_pinned,
)
from edgepack.measure.browsers.pages import Pages
from edgepack.measure.browsers.site import serving
from edgepack.project.profile import load_profile


def check_browser(device: Device, progress: Progress) -> Checked:
    """Open a page in a browser, and return what it is and what prevents its measurement.

    Raises:
        ProfileError: Its target is not for browsers.
        DeviceError: The page cannot be served, was not opened, or was closed.
        ToolError: There is no browser to start, or no onnxruntime-web.
    """
    entry = require_browser(device)
    runtime, version = find_runtime(device)
    served = list_page_files(runtime)
    with (
        serving(device.name, entry.listen, served) as site,
        Pages(site, entry, progress.note).opened() as page,
    ):
        found = page.describe()
    problems = []
    try:
        require_pinned(device, version, load_profile(device.target).runtime.packages)
    except ToolError as error:
        problems.append(f"{error.problem}: {error.hint}")
    facts = BrowserFacts(
        browser=found.browser,
        user_agent=found.user_agent,
        cpu_count=found.cpu_count,
        isolated=found.isolated,
        clock_step_us=found.tick_ns / 1e3,
        gpu=str(found.gpu),
        runtime=version,
    )
    return Checked(device.name, device.target, facts, tuple(problems), ())
