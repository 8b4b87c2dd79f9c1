"""Starts a headless Chromium of this machine, and reads what it uses."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from edgepack.base.processes import RunningProgram, running
from edgepack.devices.inventory import BrowserEntry
from edgepack.errors import ToolError

NAMES = (
    "chromium",
    "chromium-browser",
    "google-chrome",
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
    "/Applications/Chromium.app/Contents/MacOS/Chromium",
)
OPTIONS = (
    "--headless",
    "--no-first-run",
    "--no-default-browser-check",
    "--disable-background-networking",
    "--disable-breakpad",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-dev-shm-usage",
    "--disable-extensions",
    "--disable-sync",
    "--metrics-recording-only",
    "--password-store=basic",
    "--use-mock-keychain",
    # It reaches this machine, and no other.
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)
AS_ROOT = "--no-sandbox"
"""Chromium's sandbox does not start for root."""


@dataclass(frozen=True)
class Chromium:
    """A browser that runs."""

    program: RunningProgram

    def explain_end(self) -> str:
        """Return how it ended, with its last lines; nothing while it runs."""
        why = self.program.explain_end()
        return f"the browser {why}" if why else ""

    def count_cpu_ns(self) -> int | None:
        """Return the processor time of all its processes; None where there is no ``/proc``.

        Source: proc_pid_stat(5) of the Linux man-pages: columns 5, 14 and 15.
        """
        ticks = sum(int(columns[11]) + int(columns[12]) for _, columns in self._list_processes())
        return ticks * 1_000_000_000 // os.sysconf("SC_CLK_TCK") if ticks else None

    def read_page_peak(self) -> int | None:
        """Return the most bytes that the process with the page had in memory; None if unknown.

        That is the largest of those that Chromium calls renderers: an empty one may wait beside it.
        """
        peaks = []
        for folder, _ in self._list_processes():
            if "--type=renderer" in _read(folder / "cmdline"):
                found = re.search(r"^VmHWM:\s*(\d+) kB", _read(folder / "status"), re.MULTILINE)
                peaks += [int(found[1]) * 1024] if found else []
        return max(peaks, default=None)

    def _list_processes(self) -> Iterator[tuple[Path, list[str]]]:
        """Yield the ``/proc`` folder of each of its processes, and columns 3 and on of its stat."""
        for path in Path("/proc").glob("[0-9]*/stat"):
            columns = _read(path).rpartition(")")[2].split()
            if columns and int(columns[2]) == self.program.group:
                yield path.parent, columns


def _read(path: Path) -> str:
    """Return a file of ``/proc``; nothing where its process has ended."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def find_browser(entry: BrowserEntry) -> str:
    """Return the browser to start.

    Raises:
        ToolError: There is none.
    """
    names = NAMES if entry.browser is None else (str(Path(entry.browser).expanduser()),)
    for name in names:
        if path := shutil.which(name):
            return path
    what = "no Chromium or Chrome is found" if entry.browser is None else f"no {entry.browser!r}"
    raise ToolError(
        f"{what} on this machine",
        hint="install one (apt-get install chromium), or give its path with 'browser' in"
        " devices.yaml",
    )


@contextmanager
def started(entry: BrowserEntry, url: str) -> Iterator[Chromium]:
    """Have a new browser, with a profile of its own, open an address; nothing of it is kept.

    Raises:
        ToolError: There is no browser.
    """
    path = find_browser(entry)
    as_root = [AS_ROOT] if os.geteuid() == 0 else []
    prefix = "edgepack-browser-"
    with tempfile.TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True) as folder:
        argv = [path, *OPTIONS, *as_root, f"--user-data-dir={folder}", *entry.options, url]
        with running(argv, environment={"TMPDIR": folder}) as program:
            yield Chromium(program)
