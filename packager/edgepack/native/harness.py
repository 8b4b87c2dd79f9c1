"""Measures a bundle with a native program, as the harness does where there is Python.

The host chooses the variant here, by the loader's rules and with its messages. What runs on the
device, a phone or a board without Python, is ``ondevice/native/edgepack_measure.c``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from edgepack.base.schema import NotMeasured, StrictModel
from edgepack.bundle.manifest import ManifestVariant
from edgepack.bundle.reading import Bundle
from edgepack.bundle.unused import Unused
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
from edgepack.devices.provisioning.native import About
from edgepack.devices.transport import Transport
from edgepack.errors import (
    RemoteCommandError,
    UsageError,
    VariantRefusedError,
    format_one_line,
)
from edgepack.native.cooling import wait_until_cool
from edgepack.native.documents import (
    Created,
    GoldensAnswer,
    Profiled,
    TimedAnswer,
    find_placement,
    make_refused,
    parse_events,
    read_document,
)
from edgepack.native.plans import (
    CPU,
    Plan,
    Planner,
    add_schedule,
    make_canary_plan,
    make_cpu_variant,
)
from edgepack.native.program import NativeDevice, limit_arguments, list_arguments
from edgepack.ondevice.harness.edgepack_load import make_poisson_schedule
from edgepack.ondevice.harness.edgepack_sampler import compute_energy
from edgepack.project.profile import Provider, SessionSettings
from edgepack.records.presets import Preset
from edgepack.records.run import (
    IN_HOST_MEMORY,
    Conditions,
    Memory,
    OutputCheck,
    Peak,
    Placement,
    ProcessRun,
    Sampling,
    Selection,
    VariantTrial,
)
from edgepack.records.topology import Topology

NOT_SAMPLED = NotMeasured(reason="the phone is read before and after each run, not during it")
NO_ENERGY = NotMeasured(reason="the measuring program reads no sensor of power")
NO_OTHERS = NotMeasured(reason="what other programs take is not read without Python")
NO_START = NotMeasured(reason="the measuring program is no app that starts")
NO_PEAK = NotMeasured(reason="the measuring program has no such model")
NO_PREDICT = NotMeasured(
    reason="the measuring program has tensors: pictures, texts and answers are for an app's code,"
    " which is not in it"
)
NO_OUTPUTS_CHECKED = NotMeasured(
    reason="the measuring program compares with golden outputs only, and there are none for this"
)
NO_COLD = NotMeasured(reason="the measuring program drops no file cache")


class _Settings(StrictModel):
    """What :attr:`NativeHarness.session` holds."""

    session: SessionSettings
    providers: list[Provider]


_Document = TypeVar("_Document", bound=StrictModel)


def check_batch(timed: TimedAnswer, how: str, needed_db: float) -> OutputCheck:
    """Return whether the outputs of batches are near the golden ones, which are joined, too."""
    found_db = timed.golden_min_sqnr_db
    wrong = f"outputs are {found_db:.1f} dB near the golden ones, {needed_db:.1f} dB are needed"
    return OutputCheck(
        how=how,
        nearness_db=found_db,
        needed_db=needed_db,
        problem="" if found_db >= needed_db else wrong,
    )


@dataclass
class NativeHarness:
    """A bundle's measurements on a device. Each call runs a new process there.

    Every call raises:
        RemoteCommandError: The program crashed, hung or printed something else than its document.
        DeviceError: The device cannot be reached or used.
    """

    device: NativeDevice
    bundle: Bundle
    load_timeout_s: float = LOAD_TIMEOUT_S
    slowest_s: float = SLOWEST_S
    session: str = ""
    """Settings as JSON that ``measure`` and ``memory`` use instead of the manifest's."""
    _about: About | None = field(default=None, init=False)

    @property
    def transport(self) -> Transport:
        """To the device, or to the machine that it is attached to."""
        return self.device.host

    def select(
        self, variant: str | None, on_trial: Callable[[VariantTrial], None] = lambda _: None
    ) -> Selection:
        """Choose the first variant that works on the device, and return what the device is.

        Raises:
            RemoteCommandError: None works; the message has the reason for each.
        """
        unused: list[Unused] = []
        for entry in self.bundle.manifest.variants:
            if variant not in (None, entry.id):
                continue
            began = time.monotonic()
            try:
                self._try_variant(entry)
            except VariantRefusedError as refusal:
                unused.append(Unused(variant=entry.id, stage="passed over", reason=refusal.problem))
                continue
            seconds = time.monotonic() - began
            on_trial(VariantTrial(variant=entry.id, building=False, seconds=seconds, kept_bytes=0))
            facts = self.device.read_facts(self.about)
            return Selection(variant=entry.id, unused=unused, device=facts)
        reasons = "".join(f"\n  {each.variant}: {each.reason}" for each in unused)
        raise RemoteCommandError(
            f"no variant of {self.bundle.manifest.id} works there:{reasons}",
            hint="choose one with --variant, or build with others: edgepack build --target"
            f" {self.bundle.manifest.target} --variant ID",
            where=self.device.name,
        )

    @property
    def about(self) -> About:
        """What the runtime on the device is."""
        if self._about is None:
            self._about = self._ask_program(About, ["about"], None)
        return self._about

    def measure(self, variant: str, preset: Preset, seed: int = 0) -> ProcessRun:
        """Make one process run.

        Raises:
            UsageError: The program does not measure the preset's scenario.
        """
        scenario = preset.scenario
        if scenario.name != "single-stream" and self.bundle.manifest.state:
            raise UsageError(
                f"without Python a model with a state is a single stream, not {scenario.name}",
                hint="leave --scenario out",
                where="--scenario",
            )
        timeout_s = compute_run_timeout_s(preset, self.load_timeout_s, self.slowest_s)
        arguments = limit_arguments(["measure", *list_arguments(preset)], timeout_s)
        plan = self.make_planner(self._find_changed(variant)).plan_goldens()
        if scenario.queries_per_s is not None:
            limits = (scenario.queries_per_s, preset.duration_s, preset.iterations)
            schedule_ns = make_poisson_schedule(*limits, seed)
            plan = add_schedule(plan, self.device.work, schedule_ns)
        ran = self.device.measure_timed(arguments, plan, timeout_s=timeout_s)
        timed = read_document(TimedAnswer, ran.result, self.device.name)
        sampling: Sampling | NotMeasured = NOT_SAMPLED
        energy: object = NO_ENERGY
        if ran.sensors is not None:
            sampling = ran.sensors.read(timed.sampled)
            between = (timed.timed_from_ns, timed.timed_to_ns)
            energy = compute_energy(sampling.model_dump(), *between)
        return ProcessRun.model_validate(
            {
                "variant": variant,
                "boot_id": self.device.read_boot_id(),
                "before": ran.before,
                "after": ran.after,
                "sampling": sampling,
                "energy": energy,
                "other_work": NO_OTHERS,
                **timed.model_dump(exclude={"sampled"}),
            }
        )

    def measure_argv(self, variant: str, preset: Preset, seed: int = 0) -> list[str]:
        """Return the command of a process run, as the device's shell gets it."""
        del variant, seed
        return self.device.make_command(["measure", *list_arguments(preset)])

    def create(self, variant: str, *, cold: bool) -> int | NotMeasured:
        """Time how long the variant's sessions take to create, in nanoseconds."""
        if cold:
            return NO_COLD
        plan = self.make_planner(self.bundle.manifest.find_variant(variant)).plan_goldens()
        return self._ask_program(Created, ["create"], plan).session_create_ns

    def start(self, variant: str, *, cold: bool) -> int | NotMeasured:
        """Say that this is not timed: the measuring program loads nothing of an app."""
        del variant, cold
        return NO_START

    def sweep(
        self, variant: str, preset: Preset, shapes: Mapping[str, Sequence[int]], batch: int = 0
    ) -> Swept:
        """Make one process run with inputs of other shapes; outputs of a batch are checked."""
        entry = self.bundle.manifest.find_variant(variant)
        try:
            planner = self.make_planner(entry)
            joined = planner.plan_batch(batch) if batch else None
            timed = self._ask_program(
                TimedAnswer,
                ["measure", *list_arguments(preset)],
                joined or planner.plan_reshaped(shapes),
                timeout_s=compute_run_timeout_s(preset, self.load_timeout_s),
            )
        except ValueError as error:
            return Swept(latencies_ns=[], problem=format_one_line(str(error)))
        checked = (
            check_batch(timed, joined.how, entry.min_sqnr_db) if joined else NO_OUTPUTS_CHECKED
        )
        return Swept(latencies_ns=timed.latencies_ns, steady=timed.steady, checked=checked)

    def memory(self, variant: str) -> Memory:
        """Measure peak memory."""
        plan = self.make_planner(self._find_changed(variant)).plan_goldens()
        return self._ask_program(Memory, ["memory"], plan)

    def bound(self, variant: str) -> NotMeasured:
        """Return why no copies are timed apart: the providers here compute in the host's memory."""
        del variant
        return IN_HOST_MEMORY

    def phases(self, variant: str, preset: Preset) -> NotMeasured:
        """Return why no phases of ``predict`` are timed: there is no app's code to time."""
        del variant, preset
        return NO_PREDICT

    def profile(self, variant: str, *, sizes: bool = False) -> Placement:
        """Return which provider runs each node."""
        del sizes  # the program has no such model
        return self._read_profile(self.bundle.manifest.find_variant(variant))

    def trace(self, variant: str, *, sizes: bool = False) -> tuple[Placement, Events]:
        """Return which provider runs each node, with the first events of the profile."""
        del sizes
        runs, events = self._read_events(self.bundle.manifest.find_variant(variant))
        return find_placement(variant, runs, events), events[:MAX_EVENTS]

    def canary(self) -> CanaryRun:
        """Time the canary once."""
        import hashlib

        from edgepack.base import statistics
        from edgepack.ondevice.harness import edgepack_canary as canary

        arguments = [
            "measure",
            *("--duration-s", f"{canary.DURATION_S:g}"),
            *("--iterations", str(canary.LEAST_ITERATIONS)),
            *("--warm-up-s", f"{canary.WARM_UP_S:g}", "--warm-up-cap-s", "0"),
        ]
        timed = self._ask_program(TimedAnswer, arguments, make_canary_plan(self.device.work))
        return CanaryRun(
            model_sha256=hashlib.sha256(canary.MODEL).hexdigest(),
            median_ns=int(statistics.median(timed.latencies_ns)),
        )

    def peak(self, session: SessionSettings, duration_s: float) -> Peak | NotMeasured:
        """Say why it is not measured."""
        del session, duration_s
        return NO_PEAK

    def topology(self) -> Topology | NotMeasured:
        """Return the processors that the measured process may use, or why they are not known."""
        return self.device.read_topology()

    def wait_for_quiet(
        self, threads: int, share: float, most_s: float, note: Callable[[str], None]
    ) -> Quiet:
        """Say that it does not wait: others' work is not read."""
        del threads, share, most_s, note
        return Quiet(waited_s=0.0, quiet=NO_OTHERS, taken=NO_OTHERS)

    def cool_down(self, first: Conditions, pause_s: float, note: Callable[[str], None]) -> None:
        """Wait until the device is nearly as cool as it was at first, for five minutes at most."""
        wait_until_cool(self.device.read_conditions, first, pause_s, note)

    def _try_variant(self, entry: ManifestVariant) -> None:
        """Check that a variant works on the device; if not, the error has why, as the loader's has.

        Raises:
            VariantRefusedError: It does not.
        """
        for why in self._list_lacking(entry):
            raise make_refused(why, self.device.name)
        found = self._ask_program(GoldensAnswer, ["check"], self.make_planner(entry).plan_check())
        if not found.golden_min_sqnr_db >= entry.min_sqnr_db:
            raise make_refused(
                f"its output is {found.golden_min_sqnr_db:.1f} dB near the golden one,"
                f" {entry.min_sqnr_db:.1f} dB are needed",
                self.device.name,
            )
        if isinstance(entry.placement, float) and entry.providers[0].name != CPU:
            self._check_share(entry, entry.placement)

    def _list_lacking(self, entry: ManifestVariant) -> Iterator[str]:
        """Yield what the device or its runtime lacks for a variant."""
        available = self.about.providers
        sources = self.bundle.manifest.provider_sources
        for provider in entry.providers:
            if provider.name not in available:
                listed = ", ".join(available)
                absence = f"{provider.name} is not in this onnxruntime (it has {listed})"
                if self.about.plugin:
                    absence += f"; its plugin: {format_one_line(self.about.plugin)}"
                source = sources.get(provider.name)
                yield f"{absence}. {source.about}" if source else absence
        missing = sorted(set(entry.requires.cpu) - self.device.cpu_flags)
        if missing:
            yield f"this CPU lacks {', '.join(missing)}"

    def _check_share(self, entry: ManifestVariant, wanted: float) -> None:
        """Check that the first provider runs enough of the nodes that the CPU would run alone.

        A profile counts what a provider compiled as one node. So the check counts the nodes that
        are left to others, and compares them with those of a session on the CPU.
        """
        first = entry.providers[0].name
        others = [node for node in self.profile(entry.id).nodes if node.provider != first]
        alone = self._read_profile(make_cpu_variant(entry)).nodes
        share = max(0.0, 1 - len(others) / len(alone)) if alone else 0.0
        if share < wanted:
            why = f"{first} runs {share:.0%} of the nodes, at least {wanted:.0%} are needed"
            raise make_refused(why, self.device.name)

    def _find_changed(self, variant: str) -> ManifestVariant:
        """Return a variant with the settings of :attr:`session`."""
        entry = self.bundle.manifest.find_variant(variant)
        if not self.session:
            return entry
        return entry.model_copy(update=dict(_Settings.model_validate_json(self.session)))

    def make_planner(self, entry: ManifestVariant) -> Planner:
        """Return what makes the plans of a variant, or of one with changed settings."""
        device = self.device
        runtime = f"onnxruntime-{self.about.onnxruntime}"
        cache = f"{device.cache}/{entry.model_sha256[:16]}/{runtime}"
        made = Planner(
            self.bundle, entry, cpu_flags=device.cpu_flags, cache=cache, work=device.work
        )
        if made.keeps_cache:
            device.make_folder(cache)
        return made

    def _read_profile(self, entry: ManifestVariant) -> Placement:
        return find_placement(entry.id, *self._read_events(entry))

    def _read_events(self, entry: ManifestVariant) -> tuple[int, Events]:
        prefix = f"{self.device.scratch}/profile"
        plan = self.make_planner(entry).plan_profile()
        made = self._ask_program(Profiled, ["profile", "--profile-prefix", prefix], plan)
        return made.runs, parse_events(self.device.take(made.profile), self.device.name)

    def _ask_program(
        self,
        model: type[_Document],
        arguments: Sequence[str],
        plan: Plan | None,
        *,
        timeout_s: float | None = None,
    ) -> _Document:
        """Return what the program prints.

        Raises:
            VariantRefusedError: The model does not work there.
        """
        timeout_s = timeout_s or self.load_timeout_s
        limited = limit_arguments(arguments, timeout_s)
        result = self.device.measure(limited, plan, timeout_s=timeout_s)
        return read_document(model, result, self.device.name)
