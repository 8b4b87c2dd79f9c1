"""What is asked of a device about one variant: timed runs, then all that is measured once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

from edgepack.base.progress import Task
from edgepack.base.schema import NotMeasured
from edgepack.bundle.manifest import Manifest, ManifestVariant
from edgepack.devices.canary import CanaryRun
from edgepack.devices.harness import PEAK, PHASES, QUIET, Measurer, Quiet, Swept
from edgepack.errors import DeviceError, RemoteCommandError, VariantRefusedError, format_one_line
from edgepack.measure.bench.assemble import Measurements, Question
from edgepack.measure.bench.joining import can_check, explain_unjoined
from edgepack.measure.bench.sweeps import Shapes, find_batch
from edgepack.records.other_work import TAKEN_SHARE, count_threads
from edgepack.records.presets import Preset
from edgepack.records.run import (
    IN_HOST_MEMORY,
    SINGLE_STREAM,
    BoundRuns,
    Creation,
    Phases,
    ProcessRun,
    SweepPoint,
)
from edgepack.records.scenarios import set_threads
from edgepack.records.verdict import EMULATED

BINDING = "edgepack_binding.py"
"""The file of a bundle that keeps inputs and outputs on a device; older bundles have none."""
OLDER_BUNDLE = NotMeasured(reason="the bundle is of an edgepack that did not time it")
RUN, POINT = "process run", "point"
"""Kinds of parts of a measurement that take about as long as each other."""
PEAK_S, SMOKE_PEAK_S = 0.25, 0.02
"""How long each kernel runs that shows what the processor reaches at best."""
ONCE = 4
"""Parts that are measured once: creation and start, phases of predict, memory, placement."""


@dataclass
class Subject:
    """One variant that is measured, and what was measured of it so far."""

    harness: Measurer
    question: Question
    measured: Measurements
    preset: Preset = field(init=False)
    """The question's, for as many threads as the device has."""

    def __post_init__(self) -> None:
        cpu_count = self.measured.selection.device.cpu_count
        asked = self.question.preset
        if why := explain_unjoined(self.question.manifest, self.entry, asked.scenario.max_batch):
            raise VariantRefusedError(
                f"{self.used} cannot join {asked.scenario.max_batch} samples: {why}",
                hint="choose another one with --variant, or leave --max-batch out",
                where=self.question.device,
            )
        scenario = set_threads(asked.scenario, cpu_count, self.entry)
        self.preset = asked.with_scenario(scenario)
        self.measured.scenario = scenario
        self.measured.argv = self.harness.measure_argv(self.used, self.preset)

    @property
    def used(self) -> str:
        """The variant's id."""
        return self.measured.selection.variant

    @property
    def entry(self) -> ManifestVariant:
        """The variant, in the bundle's manifest."""
        return self.question.manifest.find_variant(self.used)

    def measure_run(self, task: Task, note: Callable[[str], None] = lambda _: None) -> None:
        """Let the device cool down, and make one more process run."""
        number, preset = len(self.measured.runs) + 1, self.preset
        run = f"process run {number}: {self.used}"
        task.begin(run, f"{self.used}: latency, process run {number} of {preset.runs}", RUN)
        self.harness.cool_down(self.measured.selection.device.conditions, preset.pause_s, note)
        self._wait_for_quiet(note)
        self.measured.runs.append(self.harness.measure(self.used, preset, seed=number - 1))
        self.preset = _keep_sample_count(preset, self.measured.runs[0])
        task(run)

    def _wait_for_quiet(self, note: Callable[[str], None]) -> None:
        """Wait while others take so much that the run could not be used; measure all the same."""
        left_s = self.question.quiet_s - sum(each.waited_s for each in self.measured.quiet)
        if not _has_file(self.question.manifest, QUIET):
            return
        if left_s <= 0 or any(each.quiet is not True for each in self.measured.quiet):
            return
        device = self.measured.selection.device
        if device.emulated:
            return  # its times are no device's
        threads = count_threads(self.entry, self.preset.scenario, device.cpu_count)
        try:
            found = self.harness.wait_for_quiet(threads, TAKEN_SHARE, left_s, note)
            self.measured.quiet.append(found)
        except RemoteCommandError as error:
            reason = NotMeasured(reason=format_one_line(error.problem))
            self.measured.quiet.append(Quiet(waited_s=0.0, quiet=reason, taken=reason))

    def measure_rest(self, task: Task) -> None:
        """Measure all that is measured once, and the sweep."""
        self._measure_once(task)
        points = self.question.sweep
        for number, point in enumerate(points, 1):
            sizes = f"{self.used}: batches and shapes, {number} of {len(points)}"
            task.begin(sizes, f"{self.used}: latency of other sizes, {number}", POINT)
            joined = number <= self.question.batches
            self.measured.sweep.append(_measure_sweep_point(self, point, joined=joined))
            task(sizes)

    def _measure_once(self, task: Task) -> None:
        used, harness, measured = self.used, self.harness, self.measured
        times = self.preset.creations
        task.begin(f"creation: {used}", f"{used}: how long creating a session and a start take")
        measured.creation = time_cold_and_warm(partial(harness.create, used), times)
        measured.start = time_cold_and_warm(partial(harness.start, used), times)
        task(f"creation: {used}")
        task.begin(f"predict: {used}", f"{used}: what a program waits for")
        measured.phases = measure_phases(self)
        task(f"predict: {used}")
        task.begin(f"memory: {used}", f"{used}: memory")
        measured.memory = harness.memory(used)
        measured.bound = measure_bound(harness, self.entry, self.question.manifest)
        task(f"memory: {used}")
        task.begin(f"placement: {used}", f"{used}: which provider runs each node")
        sizes = _has_file(self.question.manifest, PEAK)
        if self.question.events:
            measured.placement, measured.events = harness.trace(used, sizes=sizes)
        else:
            measured.placement = harness.profile(used, sizes=sizes)
        self._measure_processor()
        task(f"placement: {used}")

    def _measure_processor(self) -> None:
        """Measure what the processor reaches at best, and ask for its cores; go on if that fails.

        Raises:
            DeviceError: The connection broke.
        """
        measured, manifest = self.measured, self.question.manifest
        duration_s = PEAK_S if self.preset.conclusive else SMOKE_PEAK_S
        try:
            measured.topology = self.harness.topology()
        except (DeviceError, RemoteCommandError) as error:
            measured.topology = NotMeasured(reason=format_one_line(error.problem))
        if measured.selection.device.emulated:
            measured.peak = NotMeasured(reason=EMULATED)
            return
        if manifest.family == "linux" and not _has_file(manifest, PEAK):
            measured.peak = OLDER_BUNDLE
            return
        try:
            measured.peak = self.harness.peak(self.entry.session, duration_s)
        except RemoteCommandError as error:
            measured.peak = NotMeasured(reason=format_one_line(error.problem))


def measure_all(subject: Subject, task: Task, note: Callable[[str], None]) -> None:
    """Measure everything that a report of one variant needs."""
    subject.measured.canary.append(measure_canary(subject.harness))
    for _ in range(subject.preset.runs):
        subject.measure_run(task, note)
    subject.measure_rest(task)
    subject.measured.canary.append(measure_canary(subject.harness))


def _keep_sample_count(preset: Preset, first: ProcessRun) -> Preset:
    """Return the preset with which an offline run has as many samples as the first one."""
    if preset.scenario.name != "offline" or isinstance(first.inferences, NotMeasured):
        return preset
    return replace(preset, duration_s=0.0, iterations=first.inferences)


def time_cold_and_warm(
    once: Callable[..., int | NotMeasured], times: int
) -> Creation | NotMeasured:
    """Do something cold and warm in turn; only warm once the device cannot do cold.

    If it fails, the measurement goes on.

    Raises:
        DeviceError: The connection broke.
    """
    cold: list[int] | NotMeasured = []
    warm: list[int] = []
    try:
        for _ in range(times):
            if not isinstance(cold, NotMeasured):
                taken = once(cold=True)
                cold = taken if isinstance(taken, NotMeasured) else [*cold, taken]
            taken = once(cold=False)
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
    if not _has_file(manifest, BINDING):
        return OLDER_BUNDLE
    try:
        return harness.bound(entry.id)
    except RemoteCommandError as error:
        return NotMeasured(reason=format_one_line(error.problem))


def measure_phases(subject: Subject) -> Phases | NotMeasured:
    """Time what a program waits for when it calls ``predict``; if it fails, the rest goes on.

    Raises:
        DeviceError: The connection broke.
    """
    manifest = subject.question.manifest
    if manifest.family == "linux" and not _has_file(manifest, PHASES):
        return OLDER_BUNDLE
    try:
        return subject.harness.phases(subject.used, subject.question.preset)
    except RemoteCommandError as error:
        return NotMeasured(reason=format_one_line(error.problem))


def _has_file(manifest: Manifest, path: str) -> bool:
    return any(file.path == path for file in manifest.files)


def _measure_sweep_point(subject: Subject, point: Shapes, *, joined: bool) -> SweepPoint:
    """Measure one point; if its process fails, for example without memory, the point has why."""
    question = subject.question
    preset = question.preset.with_scenario(SINGLE_STREAM)
    batch = find_batch(question.manifest, point)
    asked = batch if joined and can_check(question.manifest) else 0
    try:
        swept = subject.harness.sweep(subject.used, preset, point, asked)
    except RemoteCommandError as error:
        swept = Swept(latencies_ns=[], problem=format_one_line(error.problem))
    wrong = "" if isinstance(swept.checked, NotMeasured) else swept.checked.problem
    return SweepPoint(
        shapes=point,
        batch=batch,
        latencies_ns=[] if wrong else swept.latencies_ns,
        steady=swept.steady,
        checked=swept.checked,
        problem=swept.problem or wrong,
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
