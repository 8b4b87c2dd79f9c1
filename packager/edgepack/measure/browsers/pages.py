"""Pages in a browser: one for each process run, and what it is asked to do."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from edgepack.devices.frames import encode
from edgepack.devices.harness import LOAD_TIMEOUT_S
from edgepack.devices.inventory import BrowserEntry
from edgepack.errors import TooSlowError, VariantRefusedError
from edgepack.measure.browsers.chromium import Chromium, started
from edgepack.measure.browsers.documents import Described, Opened, Ran, Timed, read_document
from edgepack.measure.browsers.site import Json, Site


@dataclass
class Page:
    """One process run: a page with a new instance of onnxruntime."""

    site: Site
    chromium: Chromium | None
    """None where somebody else has opened the page."""

    def ask(self, command: Json, body: bytes = b"", *, timeout_s: float) -> tuple[bytes, bytes]:
        """Have the page do something; see :meth:`Site.ask`."""
        return self.site.ask(command, body, timeout_s=timeout_s, watch=self.explain_end)

    def explain_end(self) -> str:
        """Return why the browser has ended; nothing while it runs."""
        return self.chromium.explain_end() if self.chromium else ""

    def describe(self) -> Described:
        """Return what the browser is."""
        header, _ = self.ask({"do": "describe"}, timeout_s=LOAD_TIMEOUT_S)
        return read_document(Described, header, self.site.name)

    def open(self, variant: str | None) -> Opened:
        """Open a variant, or the first one that works, and check its golden outputs.

        Raises:
            VariantRefusedError: None works.
        """
        asked = {"do": "open", "variant": variant}
        try:
            header, _ = self.ask(asked, timeout_s=LOAD_TIMEOUT_S)
        except VariantRefusedError as error:
            why = error.problem.rpartition(f"\n  {variant}: ")[2]
            raise VariantRefusedError(why, hint=error.hint, where=self.site.name) from error
        return read_document(Opened, header, self.site.name)

    def start(self, variant: str) -> None:
        """Start onnxruntime as a variant needs it, without a model."""
        self.ask({"do": "start", "variant": variant}, timeout_s=LOAD_TIMEOUT_S)

    def time(self, duration_s: float, iterations: int, timeout_s: float) -> Timed:
        """Time a single stream of the variant that is open."""
        asked = {"do": "time", "duration_s": duration_s, "iterations": iterations}
        header, _ = self.ask(asked, timeout_s=timeout_s)
        return read_document(Timed, header, self.site.name)

    def replace(self, samples: Sequence[Mapping[str, np.ndarray]]) -> None:
        """Give samples that are timed instead of the golden ones."""
        self.ask({"do": "replace"}, b"".join(map(encode, samples)), timeout_s=LOAD_TIMEOUT_S)

    def run(self, samples: bytes, timeout_s: float) -> bytes:
        """Run samples one by one, and return their answers.

        Raises:
            TooSlowError: They took longer than ``timeout_s``.
        """
        try:
            header, answers = self.ask({"do": "run"}, samples, timeout_s=timeout_s)
        except TooSlowError as error:
            hint = "evaluate another variant (--variant ID), or a smaller model"
            raise TooSlowError(error.problem, hint=hint, where=self.site.name) from error
        read_document(Ran, header, self.site.name)
        return answers


@dataclass
class Pages:
    """Begins process runs in a device's browser.

    A browser that edgepack starts is started anew for each; in one that somebody has opened, it is
    a new worker.
    """

    site: Site
    entry: BrowserEntry
    note: Callable[[str], None]
    """Told what somebody has to do."""
    _is_open: bool = False

    @property
    def is_headless(self) -> bool:
        """Whether edgepack starts the browser, on this machine."""
        return self.entry.open == "headless"

    @contextmanager
    def opened(self) -> Iterator[Page]:
        """Begin a process run, which ends with the context.

        Raises:
            DeviceError: The page was not opened, or is gone.
            ToolError: There is no browser to start.
        """
        if self.is_headless:
            self.site.forget_page()
            with started(self.entry, self.site.url) as chromium:
                page = Page(self.site, chromium)
                self.site.open(self.entry.opening_s, page.explain_end)
                yield page
            return
        page = Page(self.site, None)
        if self._is_open:
            self.site.renew(page.explain_end, LOAD_TIMEOUT_S)
        else:
            self.note(f"open this address in the browser: {self.site.url}")
            self.site.open(self.entry.opening_s, page.explain_end)
            self._is_open = True
        yield page
