"""``edgepack bench``: push a bundle beside the current release, and measure it there."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

from edgepack.base.files import ELSEWHERE, SHARED, require_writable, write_atomically, writing
from edgepack.base.progress import Progress, Silent, Task, Work
from edgepack.base.schema import NotMeasured
from edgepack.bundle.manifest import Manifest, ManifestVariant
from edgepack.devices.canary import CanaryRun
from edgepack.devices.harness import Measurer, Swept
from edgepack.devices.inventory import Device, PhoneEntry
from edgepack.errors import (
    EdgepackError,
    RemoteCommandError,
    ToolError,
    format_one_line,
)
from edgepack.measure.bench.assemble import Measurements, Question, make_report
from edgepack.measure.bench.conditions import tuned
from edgepack.measure.bench.perfetto import make_trace
from edgepack.measure.bench.session import INTERRUPTS, explain_end, open_harness, read_bundle
from edgepack.measure.bench.sweeps import Shapes, find_batch, make_sweep_points
from edgepack.measure.phones.phones import open_phone, require_asked_of_phones
from edgepack.records.presets import Preset, find_preset
from edgepack.records.run import (
    IN_HOST_MEMORY,
    SINGLE_STREAM,
    BoundRuns,
    Creation,
    ProcessRun,
    RunReport,
    Scenario,
    SweepPoint,
)
from edgepack.records.scenarios import set_threads

Opening = Callable[..., AbstractContextManager[Measurer]]

BINDING = "edgepack_binding.py"
"""The file of a bundle that keeps inputs and outputs on a device; older bundles have none."""
RUN, POINT = "process run", "point"
"""Kinds of parts of a measurement that take about as long as each other."""


def bench(  # noqa: PLR0913  (the command's options)
    bundle: Path,
    device: Device,
    *,
    preset: str = "standard",
    variant: str | None = None,
    scenario: Scenario = SINGLE_STREAM,
    batches: Sequence[int] = (),
    shapes: Sequence[str] = (),
    perfetto: Path | None = None,
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
        variant: Measure this one, rather than the first that works there.
        scenario: How queries arrive: :func:`make_scenario`.
        batches: Also measure these batch sizes.
        shapes: Also measure inputs of these shapes, such as ``images=1x3x320x320``; see
            :func:`~edgepack.measure.bench.sweeps.make_sweep_points`.
        perfetto: Write the timed inferences, the sensors and onnxruntime's profile here, as a trace
            that Perfetto opens.
        tune: Keep the device's clocks at their highest during this; they are restored however it
            ends.
        wait_s: How long to wait while others hold the device.
        progress: Where to report; default: nowhere.
        on_unfinished: Called with the report of what was measured, if it ends early after at least
            one process run, or if the trace cannot be written; then the error or interrupt is
            raised.

    Raises:
        UsageError: There is no such preset, variant or shape, or the trace cannot be written; or
            phones cannot do what was requested.
        BundleError: The bundle is incomplete or altered.
        DeviceError: The device cannot be reached or used, or is not the bundle's target; others
            hold it, or may have used it meanwhile.
        RemoteCommandError: The harness crashed, hung or printed nonsense, or no variant works.
        ToolError: The trace cannot be written.
    """
    chosen = find_preset(preset).with_scenario(scenario)
    opening = _choose_opening(device, scenario, tune=tune)
    opened = read_bundle(bundle, device, variant)
    progress = progress or Silent()
    question = Question(
        device.name,
        opened.manifest,
        opened.digest,
        variant,
        chosen,
        sweep=make_sweep_points(opened.manifest, batches, shapes),
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
                    total=chosen.runs + 4 + len(question.sweep),
                    kinds={RUN: chosen.runs, POINT: len(question.sweep)},
                )
            ) as task,
        ):
            task.begin("select", "choosing a variant that works there")
            measured = Measurements(harness.select(variant), held=held)
            task("select")
            measured.canary.append(measure_canary(harness))
            measure_all(harness, question, measured, task, note=progress.note)
            measured.canary.append(measure_canary(harness))
    except (EdgepackError, *INTERRUPTS) as end:
        if measured and measured.runs:
            on_unfinished(make_report(question, measured, unfinished=explain_end(end)))
        raise
    report = make_report(question, measured)
    if perfetto:
        try:
            with writing("the trace", perfetto, ELSEWHERE):
                write_atomically(
                    perfetto, json.dumps(make_trace(report, measured.events)), mode=SHARED
                )
        except ToolError:
            on_unfinished(report)
            raise
    return report


def _choose_opening(device: Device, scenario: Scenario, *, tune: bool) -> Opening:
    """Return the function that brings a bundle to a device and yields its measurements there."""
    if not isinstance(device.entry, PhoneEntry):
        return open_harness
    require_asked_of_phones(device, scenario, tune=tune)
    return open_phone


def measure_all(
    harness: Measurer,
    question: Question,
    measured: Measurements,
    task: Task,
    note: Callable[[str], None] = lambda _: None,
) -> None:
    """Ask the harness for everything that a report needs, and add each answer as it comes."""
    used, preset = measured.selection.variant, question.preset
    entry = question.manifest.find_variant(used)
    cpu_count = measured.selection.device.cpu_count
    preset = preset.with_scenario(set_threads(preset.scenario, cpu_count, entry))
    measured.scenario = preset.scenario
    measured.argv = harness.measure_argv(used, preset)
    for number in range(1, preset.runs + 1):
        run = f"process run {number}"
        task.begin(run, f"{used}: latency, process run {number} of {preset.runs}", RUN)
        harness.cool_down(measured.selection.device.conditions, preset.pause_s, note)
        measured.runs.append(harness.measure(used, preset, seed=number - 1))
        preset = _keep_sample_count(preset, measured.runs[0])
        task(run)
    task.begin("creation", f"{used}: how long creating a session takes")
    measured.creation = create_sessions(harness, used, preset.creations)
    task("creation")
    task.begin("memory", f"{used}: memory")
    measured.memory = harness.memory(used)
    measured.bound = measure_bound(harness, entry, question.manifest)
    task("memory")
    task.begin("placement", f"{used}: which provider runs each node")
    if question.events:
        measured.placement, measured.events = harness.trace(used)
    else:
        measured.placement = harness.profile(used)
    task("placement")
    for number, point in enumerate(question.sweep, 1):
        sizes = f"batches and shapes, {number} of {len(question.sweep)}"
        task.begin(sizes, f"{used}: latency of other {sizes}", POINT)
        measured.sweep.append(_measure_sweep_point(harness, question, used, point))
        task(sizes)


def _keep_sample_count(preset: Preset, first: ProcessRun) -> Preset:
    """Return the preset with which an offline run has as many samples as the first one."""
    if preset.scenario.name != "offline" or isinstance(first.inferences, NotMeasured):
        return preset
    return replace(preset, duration_s=0.0, iterations=first.inferences)


def create_sessions(harness: Measurer, variant: str, times: int) -> Creation | NotMeasured:
    """Create sessions cold and warm in turn; only warm once the device cannot do cold.

    If it fails, the measurement goes on.

    Raises:
        DeviceError: The connection broke.
    """
    cold: list[int] | NotMeasured = []
    warm: list[int] = []
    try:
        for _ in range(times):
            if not isinstance(cold, NotMeasured):
                taken = harness.create(variant, cold=True)
                cold = taken if isinstance(taken, NotMeasured) else [*cold, taken]
            taken = harness.create(variant, cold=False)
            if isinstance(taken, NotMeasured):
                return taken
            warm.append(taken)
    except RemoteCommandError as error:
        return NotMeasured(reason=format_one_line(error.problem))
    return Creation(cold_ns=cold, warm_ns=warm)


def measure_bound(
    harness: Measurer, entry: ManifestVariant, manifest: Manifest
) -> BoundRuns | NotMeasured:
    """Time copies and computing apart where the provider has a memory of its own.

    If it fails, the measurement goes on.

    Raises:
        DeviceError: The connection broke.
    """
    from edgepack.ondevice.runtime.edgepack_binding import MEMORIES

    if entry.providers[0].name not in MEMORIES:
        return IN_HOST_MEMORY
    if not any(file.path == BINDING for file in manifest.files):
        return NotMeasured(reason="the bundle is of an edgepack that did not time it")
    try:
        return harness.bound(entry.id)
    except RemoteCommandError as error:
        return NotMeasured(reason=format_one_line(error.problem))


def _measure_sweep_point(
    harness: Measurer, question: Question, variant: str, point: Shapes
) -> SweepPoint:
    """Measure one point; if its process fails, for example without memory, the point has why."""
    try:
        swept = harness.sweep(variant, question.preset.with_scenario(SINGLE_STREAM), point)
    except RemoteCommandError as error:
        swept = Swept(latencies_ns=[], problem=format_one_line(error.problem))
    return SweepPoint(
        shapes=point,
        batch=find_batch(question.manifest, point),
        latencies_ns=swept.latencies_ns,
        steady=swept.steady,
        problem=swept.problem,
    )


def measure_canary(harness: Measurer) -> CanaryRun | NotMeasured:
    """Time the canary once; if it fails, the measurement goes on.

    Raises:
        DeviceError: The connection broke.
    """
    try:
        return harness.canary()
    except RemoteCommandError as error:
        return NotMeasured(reason=f"the canary failed: {format_one_line(error.first_line)}")
