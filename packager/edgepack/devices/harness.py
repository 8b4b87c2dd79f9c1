"""Runs the harness of a bundle on a device and reads what it prints."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Any, Protocol, TypeVar

from edgepack.base.schema import NotMeasured, StrictModel
from edgepack.base.statistics import MIN_SAMPLES_P99
from edgepack.devices.answers import MAX_BYTES, parse_answer
from edgepack.devices.canary import CANARY, CanaryRun
from edgepack.devices.topology import ask_topology
from edgepack.devices.transport import CommandResult, Transport
from edgepack.errors import RemoteCommandError, VariantRefusedError
from edgepack.project.profile import SessionSettings
from edgepack.records.pipeline import StagedRun
from edgepack.records.presets import Preset
from edgepack.records.run import (
    NOT_CHECKED,
    BoundRuns,
    Conditions,
    Memory,
    Name,
    Ns,
    OutputCheck,
    Peak,
    Phases,
    Placement,
    ProcessRun,
    Selection,
    VariantTrial,
)
from edgepack.records.topology import Topology

HARNESS = "harness/edgepack_harness.py"
STAGES = "harness/edgepack_stages.py"
"""The harness of a bundle of several models."""
NO_VARIANT_EXIT = 3
TOO_MANY_EXIT = 4
STREAM_EXIT = 5
MAX_RUN_BYTES = 48 << 20
"""The most bytes of a process run: two million latencies of eight digits, and half an hour of
sensors."""
MAX_EVENTS = 20_000
"""The most events of a profile, each of up to a thousand bytes."""
LOAD_TIMEOUT_S = 300.0
SLOWEST_S = 5.0
"""Seconds that an inference may take on average, before its process counts as hanging."""
WARM_UP_ITERATIONS = 40
"""The inferences that run however long they take: 10, and a window of 30, which the cap does not
cut."""
PHASES_S = 4.0
"""The most seconds for which calls of ``predict`` are timed."""
COOLER_C = 5.0
"""A run begins when the device is at most this much warmer, in °C, than it was at first."""
_CONDITIONS = "harness/edgepack_conditions.py"
QUIET = "harness/edgepack_quiet.py"
PEAK = "harness/edgepack_peak.py"
PHASES = "harness/edgepack_phases.py"
"""Bundles of an older edgepack have none of these three."""
JOINED = "harness/edgepack_joined.py"
"""Bundles of an older edgepack have none, and join no samples."""
_COOLING = "edgepack-cooling "
_BUSY = "edgepack-busy "
_COOL_DOWN_S = 360.0
"""The device itself waits for 300 s at most."""
_TRIAL = re.compile(rb"edgepack-progress ([^\n]*)\n")
"""The line that ``edgepack_watcher.py`` writes to stderr, perhaps after other output."""

_Document = TypeVar("_Document", bound=StrictModel)
Events = list[dict[str, Any]]
"""In Chrome's trace event format."""


class _Created(StrictModel):
    session_create_ns: Ns | NotMeasured


class _Started(StrictModel):
    start_ns: Ns | NotMeasured


class _Bound(StrictModel):
    bound: BoundRuns | NotMeasured


class _Phased(StrictModel):
    phases: Phases | NotMeasured


class Quiet(StrictModel):
    """How it came out to wait for a quiet device."""

    waited_s: float
    quiet: bool | NotMeasured
    """Whether others took little in the last second."""
    taken: float | NotMeasured
    """Which share of the model's cores they took then."""


class Swept(StrictModel):
    """The timed inferences of one point of a sweep, or why there are none."""

    latencies_ns: list[Ns]
    steady: bool = True
    checked: OutputCheck | NotMeasured = NOT_CHECKED
    problem: Name = ""


class _Profile(Placement):
    events: Events


def compute_run_timeout_s(
    preset: Preset, load_timeout_s: float = LOAD_TIMEOUT_S, slowest_s: float = SLOWEST_S
) -> float:
    """Return how many seconds a process run of the slowest allowed model may take."""
    # No preset makes more; offline has more only because its inferences are fast.
    queries = min(preset.iterations, MIN_SAMPLES_P99)
    scenario = preset.scenario
    least = WARM_UP_ITERATIONS * scenario.max_batch + queries * scenario.samples_per_query
    known_s = load_timeout_s + preset.warm_up_s + preset.warm_up_cap_s + preset.longest_s
    return known_s + least * slowest_s


class Measurer(Protocol):
    """Measures a bundle on a device; :class:`Harness` documents each call."""

    @property
    def transport(self) -> Transport:
        """To the device, or to the machine that it is attached to."""

    def select(
        self, variant: str | None, on_trial: Callable[[VariantTrial], None] = lambda _: None
    ) -> Selection:
        """Choose a variant, and return what the device is."""

    def measure(self, variant: str, preset: Preset, seed: int = 0) -> ProcessRun:
        """Make one process run."""

    def measure_argv(self, variant: str, preset: Preset, seed: int = 0) -> list[str]:
        """Return the command of a process run."""

    def create(self, variant: str, *, cold: bool) -> int | NotMeasured:
        """Time how long the variant's sessions take to create, in nanoseconds."""

    def start(self, variant: str, *, cold: bool) -> int | NotMeasured:
        """Time a start of a process, up to its first answer, in nanoseconds."""

    def sweep(
        self, variant: str, preset: Preset, shapes: Mapping[str, Sequence[int]], batch: int = 0
    ) -> Swept:
        """Make one process run with inputs of other shapes; with ``batch``, of joined samples."""

    def memory(self, variant: str) -> Memory | NotMeasured:
        """Measure peak memory."""

    def bound(self, variant: str) -> BoundRuns | NotMeasured:
        """Time inferences whose inputs and outputs stay on the device, and the copies."""

    def phases(self, variant: str, preset: Preset) -> Phases | NotMeasured:
        """Time what a program waits for when it calls ``predict``."""

    def profile(self, variant: str, *, sizes: bool = False) -> Placement:
        """Return which provider runs each node."""

    def trace(self, variant: str, *, sizes: bool = False) -> tuple[Placement, Events]:
        """Return which provider runs each node, with the first events of the profile."""

    def peak(self, session: SessionSettings, duration_s: float) -> Peak | NotMeasured:
        """Measure how fast the processor moves and multiplies at best."""

    def topology(self) -> Topology | NotMeasured:
        """Return the processors that the measured process may use."""

    def canary(self) -> CanaryRun:
        """Time the canary once."""

    def cool_down(self, first: Conditions, pause_s: float, note: Callable[[str], None]) -> None:
        """Wait until the device is nearly as cool as it was at first."""

    def wait_for_quiet(
        self, threads: int, share: float, most_s: float, note: Callable[[str], None]
    ) -> Quiet:
        """Wait until others take less than a share of the cores that threads run on."""


@dataclass(frozen=True)
class Harness:
    """A bundle's harness on a device. Each call runs a new process there.

    Every call raises:
        RemoteCommandError: The process crashed, hung or printed something else than its document.
        DeviceError: The connection broke.
    """

    transport: Transport
    release: PurePosixPath
    """The bundle's folder on the device."""
    python: str
    run_prefix: tuple[str, ...] = ()
    """An argv put before the measured process, such as ``taskset -c 2-3``."""
    load_timeout_s: float = LOAD_TIMEOUT_S
    """For a process that loads the model and runs it a few times."""
    slowest_s: float = SLOWEST_S
    session: str = ""
    """Settings as JSON that ``measure`` and ``memory`` use instead of the manifest's."""
    program: str = HARNESS

    def select(
        self, variant: str | None, on_trial: Callable[[VariantTrial], None] = lambda _: None
    ) -> Selection:
        """Let the loader choose a variant, and return what the device is.

        Args:
            variant: This one or none.
            on_trial: Called every two seconds with the progress, by the calling thread.

        Raises:
            TooSlowError: It took longer than ``load_timeout_s``, and was stopped there.
        """

        def on_stderr(line: str) -> None:
            if found := _TRIAL.search(line.encode() + b"\n"):
                with suppress(ValueError):  # a broken line is only a line less
                    on_trial(parse_answer(VariantTrial, found[1]))

        argv = self.make_argv("select", variant)
        return self._read_document(
            Selection, argv, timeout_s=self.load_timeout_s, on_stderr=on_stderr
        )

    def measure(self, variant: str, preset: Preset, seed: int = 0) -> ProcessRun:
        """Make one process run; ``seed`` decides when the queries of ``server`` arrive."""
        argv = self.measure_argv(variant, preset, seed)
        timeout_s = compute_run_timeout_s(preset, self.load_timeout_s, self.slowest_s)
        return self._read_document(ProcessRun, argv, timeout_s=timeout_s, max_bytes=MAX_RUN_BYTES)

    def measure_stages(self, preset: Preset) -> StagedRun:
        """Make one process run of several models; ``program`` has to be :data:`STAGES`."""
        argv = [*self.run_prefix, *self.make_argv("measure", None), *preset.arguments]
        timeout_s = compute_run_timeout_s(preset, self.load_timeout_s, self.slowest_s)
        return self._read_document(StagedRun, argv, timeout_s=timeout_s, max_bytes=MAX_RUN_BYTES)

    def measure_argv(self, variant: str, preset: Preset, seed: int = 0) -> list[str]:
        """Return the command of a process run."""
        argv = [*self.run_prefix, *self.make_argv("measure", variant), *preset.arguments]
        return [*argv, f"--seed={seed}"] if preset.scenario.name == "server" else argv

    def create(self, variant: str, *, cold: bool) -> int | NotMeasured:
        """Time how long the variant's sessions take to create, in nanoseconds.

        Args:
            variant: The variant.
            cold: Drop its files and cached engines from memory first. Not measured where the device
                cannot drop them.
        """
        argv = [*self.run_prefix, *self.make_argv("create", variant), *(["--cold"] if cold else [])]
        return self._read_document(_Created, argv, timeout_s=self.load_timeout_s).session_create_ns

    def start(self, variant: str, *, cold: bool) -> int | NotMeasured:
        """Time a start of a process, up to its first answer, in nanoseconds.

        Args:
            variant: The variant.
            cold: Drop its files and cached engines from memory first; what Python loads stays. Not
                measured where the device cannot drop them.
        """
        argv = [*self.run_prefix, *self.make_argv("start", variant), *(["--cold"] if cold else [])]
        return self._read_document(_Started, argv, timeout_s=self.load_timeout_s).start_ns

    def sweep(
        self, variant: str, preset: Preset, shapes: Mapping[str, Sequence[int]], batch: int = 0
    ) -> Swept:
        """Make one process run with inputs of other shapes; with ``batch``, of joined samples."""
        argv = [*self.run_prefix, *self.make_argv("sweep", variant), *preset.arguments]
        argv.append(f"--shapes={json.dumps(shapes)}")
        argv += [f"--batch={batch}"] if batch else []
        timeout_s = compute_run_timeout_s(preset, self.load_timeout_s, self.slowest_s)
        return self._read_document(Swept, argv, timeout_s=timeout_s, max_bytes=MAX_RUN_BYTES)

    def memory(self, variant: str) -> Memory:
        """Measure peak memory."""
        argv = self.make_argv("memory", variant)
        return self._read_document(Memory, argv, timeout_s=self.load_timeout_s)

    def bound(self, variant: str) -> BoundRuns | NotMeasured:
        """Time inferences whose inputs and outputs stay on the device, and the copies."""
        argv = [*self.run_prefix, *self.make_argv("bound", variant)]
        return self._read_document(_Bound, argv, timeout_s=self.load_timeout_s).bound

    def phases(self, variant: str, preset: Preset) -> Phases | NotMeasured:
        """Time what a program waits for when it calls ``predict``: the call, and its phases."""
        argv = [*self.run_prefix, *self.make_argv("phases", variant)]
        argv += [f"--duration-s={min(PHASES_S, preset.duration_s):g}"]
        argv += [f"--warm-up-s={preset.warm_up_s:g}"]
        return self._read_document(_Phased, argv, timeout_s=self.load_timeout_s).phases

    def profile(self, variant: str, *, sizes: bool = False) -> Placement:
        """Return which provider runs each node.

        With ``sizes``, which a bundle of an older edgepack does not take, also of packed weights.
        """
        argv = [*self.make_argv("profile", variant), *(["--sizes"] if sizes else [])]
        return self._read_document(Placement, argv, timeout_s=self.load_timeout_s)

    def trace(self, variant: str, *, sizes: bool = False) -> tuple[Placement, Events]:
        """Return which provider runs each node, with the first events of onnxruntime's profile."""
        argv = [*self.make_argv("profile", variant), f"--events={MAX_EVENTS}"]
        argv += ["--sizes"] if sizes else []
        found = self._read_document(
            _Profile, argv, timeout_s=self.load_timeout_s, max_bytes=MAX_RUN_BYTES
        )
        fields = {name: getattr(found, name) for name in Placement.model_fields}
        return Placement.model_construct(**fields), found.events

    def cool_down(self, first: Conditions, pause_s: float, note: Callable[[str], None]) -> None:
        """Wait until the device is nearly as cool as it was at first, for five minutes at most.

        If no temperature can be read, it does not wait.

        Args:
            first: The device's conditions before anything was timed.
            pause_s: Wait at least so long.
            note: Called every few seconds with the temperature.
        """
        if not isinstance(first.temperature_c, float):
            return
        limit_c = first.temperature_c + COOLER_C

        def on_stderr(line: str) -> None:
            if line.startswith(_COOLING):
                celsius = line[len(_COOLING) :].strip()
                note(f"cooling down: {celsius} °C, to {limit_c:.1f} °C")

        program = str(self.release / _CONDITIONS)
        argv = [self.python, "-BIS", program, "cool-down", f"{limit_c:.1f}", f"{pause_s:g}"]
        self.transport.run(argv, timeout_s=_COOL_DOWN_S, on_stderr=on_stderr)

    def wait_for_quiet(
        self, threads: int, share: float, most_s: float, note: Callable[[str], None]
    ) -> Quiet:
        """Wait until others take less than a share of the cores that the model's threads run on.

        Args:
            threads: How many threads run at once.
            share: What others must not take of their cores; 0.05 is 5 %.
            most_s: Wait no longer than this, in seconds.
            note: Called every few seconds with what they take.
        """

        def on_stderr(line: str) -> None:
            if line.startswith(_BUSY):
                taken = float(line[len(_BUSY) :])
                note(f"others take {taken:.0%} of its cores: waiting until it is below {share:.0%}")

        argv = [*self.run_prefix, self.python, "-BIS", str(self.release / QUIET)]
        argv += [str(threads), f"{share:g}", f"{most_s:g}"]
        return self._read_document(
            Quiet, argv, timeout_s=most_s + self.load_timeout_s, on_stderr=on_stderr
        )

    def canary(self) -> CanaryRun:
        """Time the canary once. The bundle must have one."""
        argv = [*self.run_prefix, self.python, "-B", str(self.release / CANARY)]
        return self._read_document(CanaryRun, argv, timeout_s=self.load_timeout_s)

    def peak(self, session: SessionSettings, duration_s: float) -> Peak | NotMeasured:
        """Measure how fast the processor moves and multiplies at best. The bundle must have it.

        Args:
            session: Whose threads and config entries to measure with.
            duration_s: For how long each of a few kernels runs, in seconds.
        """
        argv = [*self.run_prefix, self.python, "-B", str(self.release / PEAK)]
        argv += [str(session.intra_op_num_threads), f"{duration_s:g}", json.dumps(session.config)]
        return self._read_document(Peak, argv, timeout_s=self.load_timeout_s)

    def topology(self) -> Topology | NotMeasured:
        """Return the processors that the measured process may use."""
        return ask_topology(self.transport, self.python, self.run_prefix)

    def make_argv(self, mode: str, variant: str | None) -> list[str]:
        """Return the command for a mode. ``-B``: a release is never written to."""
        argv = [self.python, "-B", str(self.release / self.program), mode]
        argv += ["--bundle", str(self.release)]
        if self.session:
            argv += ["--session", self.session]
        return [*argv, "--variant", variant] if variant else argv

    def _read_document(
        self,
        model: type[_Document],
        argv: list[str],
        *,
        timeout_s: float,
        on_stderr: Callable[[str], None] | None = None,
        max_bytes: int = MAX_BYTES,
    ) -> _Document:
        result = self.transport.run(argv, timeout_s=timeout_s, on_stderr=on_stderr)
        result = replace(result, stderr=_TRIAL.sub(b"", result.stderr))
        self.check(result)
        try:
            return parse_answer(model, result.stdout, max_bytes=max_bytes)
        except ValueError as error:
            raise RemoteCommandError(
                f"the harness printed no {model.__name__}: it {error};"
                f" it began with {result.text[:80]!r}",
                hint="see whether something on the device prints to stdout when Python starts",
                where=self.transport.name,
            ) from error

    def check(self, result: CommandResult) -> None:
        """Raise RemoteCommandError, with the harness's last words, unless it succeeded."""
        device, doing = self.transport.name, "the harness"
        hint = "its last lines are above; exit code 137 often means out of memory"
        if result.exit_code == NO_VARIANT_EXIT:
            doing = "loading the bundle"
            hint = (
                f"install what the variants need (edgepack device provision {device}), or choose"
                " one with --variant"
            )
        elif result.exit_code == TOO_MANY_EXIT:
            hint = (
                "use a shorter preset, or time several inferences as one:"
                " --scenario multi-stream --samples-per-query 32"
            )
        elif result.exit_code == STREAM_EXIT and b"frames of a stream" in result.stderr:
            doing = "a stream of frames, each fed the state of the one before,"
            hint = (
                "the model fails on a longer stream: start new streams earlier on the device, or"
                " leave 'state' out of edgepack.yaml and give it in samples, to time single frames"
            )
        try:
            result.check(doing, device=device, hint=hint)
        except RemoteCommandError as error:
            if result.exit_code != NO_VARIANT_EXIT:
                raise
            raise VariantRefusedError(error.problem, hint=hint, where=device) from error
