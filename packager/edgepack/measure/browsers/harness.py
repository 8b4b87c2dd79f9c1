"""Measures a bundle in a browser, as the harness does on machines.

The bundle's own code opens it there, and chooses the variant in its own words. The page times and
runs what this asks for (``ondevice/browser/worker.js``); warming up, and what follows from numbers,
is decided here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from edgepack.base import statistics
from edgepack.base.machine import read_cpu_model
from edgepack.base.schema import NotMeasured
from edgepack.bundle.reading import Bundle
from edgepack.devices.canary import CanaryRun
from edgepack.devices.harness import (
    LOAD_TIMEOUT_S,
    MAX_EVENTS,
    SLOWEST_S,
    Events,
    Quiet,
    Swept,
    compute_run_timeout_s,
)
from edgepack.devices.inventory import Device
from edgepack.devices.transport import Transport
from edgepack.errors import RemoteCommandError, format_one_line
from edgepack.measure.browsers.documents import (
    Described,
    Opened,
    Profiled,
    Timed,
    read_document,
    read_events,
)
from edgepack.measure.browsers.own_machine import (
    NO_SENSOR,
    UNKNOWN_CONDITIONS,
    OwnWork,
    read_own_boot_id,
    read_own_conditions,
)
from edgepack.measure.browsers.pages import Page, Pages
from edgepack.native.cooling import wait_until_cool
from edgepack.native.documents import find_placement, parse_events
from edgepack.native.plans import read_golden
from edgepack.ondevice.harness import edgepack_load as load
from edgepack.project.profile import SessionSettings
from edgepack.records.presets import Preset
from edgepack.records.run import (
    HIDDEN,
    IN_HOST_MEMORY,
    Conditions,
    DeviceFacts,
    Memory,
    Peak,
    Phases,
    Placement,
    ProcessRun,
    Selection,
    VariantTrial,
)
from edgepack.records.topology import Topology

WEBGPU = "WebGpuExecutionProvider"
CPU = "CPUExecutionProvider"
NOT_SAMPLED = NotMeasured(reason="a browser is looked at before and after each run, not during it")
NO_ENERGY = NotMeasured(reason="a browser has no sensor for power")
NO_OTHERS = NotMeasured(reason="a browser does not tell what others take")
NO_START = NotMeasured(reason="the page that measures is no app that starts")
NO_COLD = NotMeasured(reason="the page has the model in memory when it creates a session")
NO_MEMORY = NotMeasured(reason="a page does not see the memory of its process, nor does edgepack")
NO_PEAK = NotMeasured(reason="the page that measures has no such model")
NO_TOPOLOGY = NotMeasured(reason="a browser does not tell its cores")
NO_PREDICT = NotMeasured(reason="the page that measures has tensors, no pictures and texts")
NOT_COMPARED = NotMeasured(reason="in browsers only golden outputs are compared")
COARSE = 0.1
"""The share of an inference from which on the clock's step is too coarse to time it."""
MOST_LATENCIES = 2_000_000
MEMORY_RUNS = 10
FIRST_ITERATIONS = 10
WINDOW_ITERATIONS = 30
GPU_WARM_UP_S = 3.0
"""WebGPU compiles its programs in the first runs: as the harness warms up what compiles."""


class _Warm(NamedTuple):
    iterations: int
    steady: bool
    median_ns: float


@dataclass
class BrowserHarness:
    """A bundle's measurements in a browser. Each call is a process run of its own.

    A browser that edgepack starts is started anew for each; in one that somebody has opened, it is
    a new worker.

    Every call raises:
        RemoteCommandError: The page failed, or answered something else than its document.
        DeviceError: The page was not opened, or is gone.
    """

    pages: Pages
    device: Device
    bundle: Bundle
    host: Transport
    note: Callable[[str], None]
    load_timeout_s: float = LOAD_TIMEOUT_S

    @property
    def transport(self) -> Transport:
        """To this machine."""
        return self.host

    @property
    def is_headless(self) -> bool:
        """Whether edgepack starts the browser, on this machine."""
        return self.pages.is_headless

    def opened(self) -> AbstractContextManager[Page]:
        """Begin a process run."""
        return self.pages.opened()

    def select(
        self, variant: str | None, on_trial: Callable[[VariantTrial], None] = lambda _: None
    ) -> Selection:
        """Let the bundle's code choose a variant, and return what the browser is."""
        del on_trial
        with self.opened() as page:
            described = page.describe()
            opened = page.open(variant)
        for text in opened.notes:
            self.note(text)
        facts = self._make_facts(described, opened)
        return Selection(variant=opened.variant, unused=opened.list_unused(), device=facts)

    def _make_facts(self, described: Described, opened: Opened) -> DeviceFacts:
        providers = self.bundle.manifest.find_variant(opened.variant).providers
        on_gpu = any(each.name == WEBGPU for each in providers)
        gpu = described.gpu
        isolated = "cross-origin isolated" if described.isolated else "not cross-origin isolated"
        threads = f"{opened.threads} thread{'s' * (opened.threads > 1)}"
        runs_in = f"none: a worker, {isolated}, {threads} of WebAssembly"
        return DeviceFacts(
            os=described.browser,
            arch="wasm32",
            model="headless on this machine" if self.is_headless else NO_SENSOR,
            cpu=read_cpu_model() if self.is_headless else NO_SENSOR,
            cpu_count=described.cpu_count,
            emulated=on_gpu and gpu.is_software,
            python=runs_in,
            numpy="none",
            onnxruntime=opened.onnxruntime,
            providers=[CPU, *([] if gpu.absence else [WEBGPU])],
            driver=str(gpu),
            boot_id=self._read_boot_id(),
            conditions=self._read_conditions(),
        )

    def measure(self, variant: str, preset: Preset, seed: int = 0) -> ProcessRun:
        """Make one process run."""
        del seed  # of scenarios that browsers are not measured in
        with self.opened() as page:
            opened = page.open(variant)
            before = self._read_conditions()
            warm = self._warm_up(page, variant, preset)
            self._require_fine_clock(opened.tick_ns, warm.median_ns)
            self._require_few(preset, warm.median_ns)
            page.site.forget_hidden()
            others = OwnWork(page.chromium.count_cpu_ns) if page.chromium else None
            timed = self._time(page, preset)
            other_work = others.measure() if others else NO_OTHERS
            after = self._read_conditions()
            if page.site.was_hidden:
                after = after.model_copy(update={"throttled_now": [HIDDEN]})
        return ProcessRun(
            variant=opened.variant,
            session_create_ns=opened.session_create_ns,
            first_inference_ns=opened.first_inference_ns,
            warm_up_iterations=warm.iterations,
            steady=warm.steady,
            latencies_ns=timed.latencies_ns,
            timed_from_ns=timed.from_ns,
            timed_to_ns=timed.to_ns,
            inferences=len(timed.latencies_ns),
            golden_min_sqnr_db=opened.golden_min_sqnr_db,
            not_finite=timed.not_finite,
            boot_id=self._read_boot_id(),
            before=before,
            after=after,
            sampling=NOT_SAMPLED,
            energy=NO_ENERGY,
            other_work=other_work,
        )

    def measure_argv(self, variant: str, preset: Preset, seed: int = 0) -> list[str]:
        """Return what is asked of the page in a process run."""
        del variant, seed
        return ["measure", *preset.arguments]

    def create(self, variant: str, *, cold: bool) -> int | NotMeasured:
        """Time how long the variant's sessions take to create, in nanoseconds."""
        if cold:
            return NO_COLD
        with self.opened() as page:
            return page.open(variant).session_create_ns

    def start(self, variant: str, *, cold: bool) -> int | NotMeasured:
        """Say that this is not timed."""
        del variant, cold
        return NO_START

    def sweep(
        self, variant: str, preset: Preset, shapes: Mapping[str, Sequence[int]], batch: int = 0
    ) -> Swept:
        """Make one process run with inputs of other shapes; their outputs are not compared."""
        del batch
        try:
            feeds = [load.reshape_feed(feed, shapes) for feed in self._read_goldens()]
            with self.opened() as page:
                opened = page.open(variant)
                page.replace(feeds)
                warm = self._warm_up(page, variant, preset)
                self._require_fine_clock(opened.tick_ns, warm.median_ns)
                timed = self._time(page, preset)
        except ValueError as error:
            return Swept(latencies_ns=[], problem=format_one_line(str(error)))
        return Swept(latencies_ns=timed.latencies_ns, steady=warm.steady, checked=NOT_COMPARED)

    def memory(self, variant: str) -> Memory | NotMeasured:
        """Measure peak memory of the process that has the page, where edgepack started it."""
        with self.opened() as page:
            if page.chromium is None or page.chromium.read_page_peak() is None:
                return NO_MEMORY
            read = page.chromium.read_page_peak
            page.start(variant)
            baseline = read()
            page.open(variant)
            loaded = read()
            page.time(0.0, MEMORY_RUNS, self.load_timeout_s)
            peak = read()
        return Memory(
            baseline_bytes=baseline or 0,
            loaded_bytes=loaded or 0,
            peak_bytes=peak or 0,
            runs=MEMORY_RUNS,
        )

    def bound(self, variant: str) -> NotMeasured:
        """Return why no copies are timed apart."""
        del variant
        return IN_HOST_MEMORY

    def phases(self, variant: str, preset: Preset) -> Phases | NotMeasured:
        """Say that no phases of ``predict`` are timed."""
        del variant, preset
        return NO_PREDICT

    def profile(self, variant: str, *, sizes: bool = False) -> Placement:
        """Return which provider runs each node."""
        return self.trace(variant, sizes=sizes)[0]

    def trace(self, variant: str, *, sizes: bool = False) -> tuple[Placement, Events]:
        """Return which provider runs each node, with the first events of the profile."""
        del sizes  # a profile has them
        with self.opened() as page:
            asked = {"do": "profile", "variant": variant}
            header, _ = page.ask(asked, timeout_s=self.load_timeout_s)
        printed = read_document(Profiled, header, self.device.name).events
        events = parse_events(read_events(printed), self.device.name)
        runs = sum(event.get("name") == "model_run" for event in events)
        return find_placement(variant, runs, events), events[:MAX_EVENTS]

    def peak(self, session: SessionSettings, duration_s: float) -> Peak | NotMeasured:
        """Say why it is not measured."""
        del session, duration_s
        return NO_PEAK

    def topology(self) -> Topology | NotMeasured:
        """Say why it is not known."""
        return NO_TOPOLOGY

    def canary(self) -> CanaryRun:
        """Time the canary once."""
        import hashlib

        from edgepack.ondevice.harness import edgepack_canary as canary

        asked = {
            "do": "canary",
            "warm_up_s": canary.WARM_UP_S,
            "duration_s": canary.DURATION_S,
            "iterations": canary.LEAST_ITERATIONS,
        }
        with self.opened() as page:
            header, _ = page.ask(asked, timeout_s=self.load_timeout_s)
        timed = read_document(Timed, header, self.device.name)
        return CanaryRun(
            model_sha256=hashlib.sha256(canary.MODEL).hexdigest(),
            median_ns=max(1, int(statistics.median(timed.latencies_ns))),
        )

    def cool_down(self, first: Conditions, pause_s: float, note: Callable[[str], None]) -> None:
        """Wait until the machine is nearly as cool as it was at first."""
        wait_until_cool(self._read_conditions, first, pause_s, note)

    def wait_for_quiet(
        self, threads: int, share: float, most_s: float, note: Callable[[str], None]
    ) -> Quiet:
        """Say that it does not wait."""
        del threads, share, most_s, note
        return Quiet(waited_s=0.0, quiet=NO_SENSOR, taken=NO_SENSOR)

    def _warm_up(self, page: Page, variant: str, preset: Preset) -> _Warm:
        """Run until latencies are steady or the cap is reached, as the harness does."""
        first = self.bundle.manifest.find_variant(variant).providers[0].name
        least_s = 0.0 if first == CPU else GPU_WARM_UP_S
        timeout_s = self.load_timeout_s
        deadline = time.monotonic() + preset.warm_up_cap_s
        timed = page.time(max(preset.warm_up_s, least_s), FIRST_ITERATIONS, timeout_s)
        iterations, last_ns = len(timed.latencies_ns), statistics.median(timed.latencies_ns)
        windows: list[tuple[float, float]] = []
        while time.monotonic() < deadline:
            timed = page.time(preset.window_s, WINDOW_ITERATIONS, timeout_s)
            iterations += len(timed.latencies_ns)
            last_ns = statistics.median(timed.latencies_ns)
            windows.append((timed.from_ns / load.NS, last_ns))
            if load.is_steady(windows):
                return _Warm(iterations, steady=True, median_ns=last_ns)
        return _Warm(iterations, steady=False, median_ns=last_ns)

    def _time(self, page: Page, preset: Preset) -> Timed:
        timeout_s = compute_run_timeout_s(preset, self.load_timeout_s, SLOWEST_S)
        return page.time(preset.duration_s, preset.iterations, timeout_s)

    def _require_fine_clock(self, tick_ns: int, median_ns: float) -> None:
        if tick_ns > COARSE * median_ns:
            raise RemoteCommandError(
                f"the page's clock moves in steps of {tick_ns / 1e3:g} µs, which is too coarse for"
                f" an inference of about {median_ns / 1e3:g} µs",
                hint="open the page where it is cross-origin isolated: over 127.0.0.1"
                " (docs/web.md); where it is, the model is too small to be timed in a browser",
                where=self.device.name,
            )

    def _require_few(self, preset: Preset, median_ns: float) -> None:
        count = preset.duration_s * load.NS / max(1.0, median_ns)
        if count > MOST_LATENCIES:
            raise RemoteCommandError(
                f"a process run would have about {count:.0f} inferences, and {MOST_LATENCIES} can"
                " be kept",
                hint="take a shorter preset",
                where=self.device.name,
            )

    def _read_conditions(self) -> Conditions:
        return read_own_conditions() if self.is_headless else UNKNOWN_CONDITIONS

    def _read_boot_id(self) -> str | NotMeasured:
        return read_own_boot_id() if self.is_headless else NO_SENSOR

    def _read_goldens(self) -> Iterator[dict[str, np.ndarray]]:
        """Yield the inputs of the golden samples."""
        for golden in self.bundle.manifest.goldens:
            yield {each.name: read_golden(self.bundle.path, each) for each in golden.inputs}
