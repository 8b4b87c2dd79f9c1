"""``edgepack bench``: push a bundle beside the current release, and measure it there."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from edgepack.base.files import ELSEWHERE, SHARED, require_writable, write_atomically, writing
from edgepack.base.progress import Progress, Silent, Work
from edgepack.devices.harness import Events, Measurer
from edgepack.devices.inventory import BrowserEntry, Device, PhoneEntry
from edgepack.errors import (
    EdgepackError,
    ToolError,
)
from edgepack.measure.bench.assemble import Measurements, Question, make_report
from edgepack.measure.bench.conditions import tuned
from edgepack.measure.bench.joining import require_joinable
from edgepack.measure.bench.measuring import (
    ONCE,
    POINT,
    RUN,
    Subject,
    measure_all,
)
from edgepack.measure.bench.perfetto import make_trace
from edgepack.measure.bench.session import INTERRUPTS, explain_end, open_harness, read_bundle
from edgepack.measure.bench.sweeps import make_sweep_points, require_bound
from edgepack.measure.browsers.browsers import open_browser, require_asked_of_browsers
from edgepack.measure.limits import split_by_limits
from edgepack.measure.phones.phones import open_phone, require_asked_of_phones
from edgepack.project.limits import Limits
from edgepack.records.presets import find_preset
from edgepack.records.run import (
    SINGLE_STREAM,
    RunReport,
    Scenario,
)

Opening = Callable[..., AbstractContextManager[Measurer]]


def bench(  # noqa: PLR0913  (the command's options)
    bundle: Path,
    device: Device,
    *,
    preset: str = "standard",
    runs: int | None = None,
    variant: str | None = None,
    scenario: Scenario = SINGLE_STREAM,
    batches: Sequence[int] = (),
    shapes: Sequence[str] = (),
    batch_bound_ms: float | None = None,
    perfetto: Path | None = None,
    limits: Limits | None = None,
    quiet_s: float = 0.0,
    tune: bool = False,
    wait_s: float = 0.0,
    progress: Progress | None = None,
    on_unfinished: Callable[[RunReport], None] = lambda _: None,
) -> RunReport:
    """Measure a bundle on a device and return the report, with its verdict; nothing is stored.

    The device is leased for this, and its current release is not touched. Every number comes from
    a separate process on the device: one that chooses the variant, several timed ones, some that
    create a session, one for memory, one for placement, one for each point of a sweep.

    Args:
        bundle: The bundle's folder.
        device: Where to measure.
        preset: ``quick``, ``standard``, ``gate``, ``sustained`` or ``smoke``.
        runs: How many process runs to make, rather than as many as the preset has.
        variant: Measure this one, rather than the first that works there.
        scenario: How queries arrive: :func:`make_scenario`.
        batches: Also measure these batch sizes.
        shapes: Also measure inputs of these shapes, such as ``images=1x3x320x320``; see
            :func:`~edgepack.measure.bench.sweeps.make_sweep_points`.
        batch_bound_ms: Find the batch of these with the most samples a second whose latencies are
            within so many milliseconds.
        perfetto: Write the timed inferences, the sensors and onnxruntime's profile here, as a trace
            that Perfetto opens.
        limits: The project's for this device; the report holds them, for :func:`judge_limits`.
        quiet_s: How long to wait, over all process runs of a variant, while others use so much of
            the device that a run could not be used; it is measured then all the same.
        tune: Keep the device's clocks at their highest during this; they are restored however it
            ends.
        wait_s: How long to wait while others hold the device.
        progress: Where to report; default: nowhere.
        on_unfinished: Called with the report of what was measured, if it ends early after at least
            one process run, or if the trace cannot be written; then the error or interrupt is
            raised.

    Raises:
        UsageError: There is no such preset, variant or shape, or the trace cannot be written; or
            phones or browsers cannot do what was requested, or samples cannot be joined.
        BundleError: The bundle is incomplete or altered.
        LimitError: No variant that may be measured can meet the limits, whatever the device does.
        DeviceError: The device cannot be reached or used, or is not the bundle's target; others
            hold it, or may have used it meanwhile.
        RemoteCommandError: The harness crashed, hung or printed nonsense, or no variant works.
        ToolError: The trace cannot be written.
    """
    chosen = find_preset(preset).with_runs(runs).with_scenario(scenario)
    opening = choose_opening(device, scenario, tune=tune)
    opened = read_bundle(bundle, device, variant)
    limits = limits or Limits()
    require_joinable(opened.manifest, variant, scenario.max_batch)
    split_by_limits(opened.manifest, () if variant is None else (variant,), limits)
    progress = progress or Silent()
    question = Question(
        device.name,
        opened.manifest,
        opened.digest,
        variant,
        chosen,
        sweep=make_sweep_points(opened.manifest, batches, shapes),
        batches=len(batches),
        batch_bound_ms=require_bound(batch_bound_ms, batches),
        limits=limits,
        quiet_s=quiet_s,
        events=perfetto is not None,
    )
    if perfetto:
        require_writable(perfetto, "--perfetto")
    measured: Measurements | None = None
    try:
        with (
            opening(opened, device, "bench", wait_s=wait_s, progress=progress) as harness,
            tuned(harness.transport, device, tune=tune) as held,
            progress.start_task(
                Work(
                    f"bench on {device.name}",
                    total=1 + chosen.runs + ONCE + len(question.sweep),
                    kinds={RUN: chosen.runs, POINT: len(question.sweep)},
                )
            ) as task,
        ):
            task.begin("select", "choosing a variant that works there")
            measured = Measurements(harness.select(variant), held=held)
            task("select")
            measure_all(Subject(harness, question, measured), task, progress.note)
    except (EdgepackError, *INTERRUPTS) as end:
        if measured and measured.runs:
            on_unfinished(make_report(question, measured, unfinished=explain_end(end)))
        raise
    report = make_report(question, measured)
    if perfetto:
        try:
            _write_trace(perfetto, report, measured.events)
        except ToolError:
            on_unfinished(report)
            raise
    return report


def _write_trace(path: Path, report: RunReport, events: Events) -> None:
    with writing("the trace", path, ELSEWHERE):
        write_atomically(path, json.dumps(make_trace(report, events)), mode=SHARED)


def choose_opening(device: Device, scenario: Scenario, *, tune: bool) -> Opening:
    """Return the function that brings a bundle to a device and yields its measurements there."""
    if isinstance(device.entry, BrowserEntry):
        require_asked_of_browsers(device, scenario, tune=tune)
        return open_browser
    if not isinstance(device.entry, PhoneEntry):
        return open_harness
    require_asked_of_phones(device, scenario, tune=tune)
    return open_phone
