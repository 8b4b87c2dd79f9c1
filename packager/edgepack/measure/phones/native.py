"""Measures a bundle on a phone with a native program, as the harness does on machines.

The host chooses the variant here, by the loader's rules and with its messages, because a phone has
no Python. What runs there is ``ondevice/native/edgepack_measure.c``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from edgepack.base.schema import NotMeasured, StrictModel
from edgepack.bundle.manifest import ManifestVariant
from edgepack.bundle.reading import Bundle
from edgepack.bundle.unused import Unused
from edgepack.devices.answers import parse_answer, parse_json
from edgepack.devices.canary import CanaryRun
from edgepack.devices.harness import (
    LOAD_TIMEOUT_S,
    MAX_EVENTS,
    MAX_RUN_BYTES,
    TOO_MANY_EXIT,
    Events,
    Swept,
    run_timeout_s,
)
from edgepack.devices.transport import CommandResult, Transport
from edgepack.errors import RemoteCommandError, VariantRefusedError, format_one_line
from edgepack.measure.phones.plans import CPU, PhonePlan, Planner
from edgepack.project.profile import Provider
from edgepack.records.presets import Preset
from edgepack.records.run import (
    Conditions,
    Count,
    DeviceFacts,
    Memory,
    Name,
    Ns,
    Placement,
    ProcessRun,
    Selection,
    Trial,
)

REFUSED_EXIT = 3
ANSWERED = (0, REFUSED_EXIT)
"""With these exit codes the program has written its document."""
COOLER_C = 5.0
"""A run begins when the phone is at most this much warmer, in °C, than it was at first."""
COOL_DOWN_S = 300.0
LOOK_S = 5.0
NOT_SAMPLED = NotMeasured(reason="a phone is read before and after each run, not during it")
NO_ENERGY = NotMeasured(reason="phones have no sensor for the power that they draw")
NO_COLD = NotMeasured(reason="a phone does not let its file cache be dropped")

_Document = TypeVar("_Document", bound=StrictModel)


class About(StrictModel):
    """What the runtime on a phone is."""

    onnxruntime: Name
    providers: list[Name]
    cpu_count: Count


class _Refusal(StrictModel):
    refused: Name
    message: Name


class _Checked(StrictModel):
    session_create_ns: Ns
    first_inference_ns: Ns
    golden_min_sqnr_db: float


class _Timed(_Checked):
    warm_up_iterations: Count
    steady: bool
    timed_from_ns: Ns
    timed_to_ns: Ns
    inferences: Count
    not_finite: list[Name]
    latencies_ns: list[Ns]


class _Created(StrictModel):
    session_create_ns: Ns


class _Profiled(StrictModel):
    profile: Name
    runs: Count


@dataclass(frozen=True)
class ProgramRun:
    """One run of the measuring program."""

    result: CommandResult
    before: Conditions
    after: Conditions


class Phone(Protocol):
    """A phone that has the measuring program and a bundle's models and goldens."""

    @property
    def name(self) -> str:
        """The device's name."""

    @property
    def host(self) -> Transport:
        """To the machine that the phone is attached to."""

    @property
    def cache(self) -> str:
        """The folder on the phone for compiled models of the bundle."""

    @property
    def work(self) -> str:
        """The folder on the phone for inputs that are not in the bundle, as plans name it."""

    @property
    def scratch(self) -> str:
        """The folder on the phone for what the program writes, as its arguments name it."""

    @property
    def cpu_flags(self) -> frozenset[str]:
        """The processor's features as Linux spells them."""

    def facts(self, about: About) -> DeviceFacts:
        """Return what the phone is."""

    def conditions(self) -> Conditions:
        """Return what decides the phone's speed now."""

    def boot_id(self) -> str | NotMeasured:
        """Return the boot id, which changes when the phone restarts."""

    def program(self, arguments: Sequence[str]) -> list[str]:
        """Return the command that runs the measuring program."""

    def measure(
        self, arguments: Sequence[str], plan: PhonePlan | None, *, timeout_s: float
    ) -> CommandResult:
        """Run the measuring program; its document is the result's stdout.

        Raises:
            DeviceError: The phone cannot be reached or used.
            TooSlowError: It took longer than it may.
        """

    def timed(
        self, arguments: Sequence[str], plan: PhonePlan | None, *, timeout_s: float
    ) -> ProgramRun:
        """Do the same, and return the conditions before and after, too."""

    def take(self, path: str) -> bytes:
        """Return a file that the program wrote, and remove it."""

    def make_folder(self, path: str) -> None:
        """Make a folder on the phone, and those above it."""


@dataclass
class NativeHarness:
    """A bundle's measurements on a phone. Each call runs a new process there.

    Every call raises:
        RemoteCommandError: The program crashed, hung or printed something else than its document.
        DeviceError: The phone cannot be reached or used.
    """

    phone: Phone
    bundle: Bundle
    load_timeout_s: float = LOAD_TIMEOUT_S
    _about: About | None = field(default=None, init=False)

    @property
    def transport(self) -> Transport:
        """To the machine that the phone is attached to."""
        return self.phone.host

    def select(
        self, variant: str | None, on_trial: Callable[[Trial], None] = lambda _: None
    ) -> Selection:
        """Choose the first variant that works on the phone, and return what the phone is.

        Raises:
            RemoteCommandError: None works; the message has the reason for each.
        """
        unused: list[Unused] = []
        for entry in self.bundle.manifest.variants:
            if variant not in (None, entry.id):
                continue
            began = time.monotonic()
            try:
                self._try(entry)
            except VariantRefusedError as refusal:
                unused.append(Unused(variant=entry.id, stage="passed over", reason=refusal.problem))
                continue
            seconds = time.monotonic() - began
            on_trial(Trial(variant=entry.id, building=False, seconds=seconds, kept_bytes=0))
            facts = self.phone.facts(self.about)
            return Selection(variant=entry.id, unused=unused, device=facts)
        reasons = "".join(f"\n  {each.variant}: {each.reason}" for each in unused)
        raise RemoteCommandError(
            f"no variant of {self.bundle.manifest.id} works on this phone:{reasons}",
            hint="choose one with --variant, or build with others: edgepack build --target"
            f" {self.bundle.manifest.target} --variant ID",
            where=self.phone.name,
        )

    @property
    def about(self) -> About:
        """What the runtime on the phone is."""
        if self._about is None:
            self._about = self._read_document(About, ["about"], None)
        return self._about

    def measure(self, variant: str, preset: Preset, seed: int = 0) -> ProcessRun:
        """Make one process run."""
        del seed  # of scenarios that phones are not measured in
        timeout_s = run_timeout_s(preset, self.load_timeout_s)
        arguments = _limit_arguments(["measure", *_arguments(preset)], timeout_s)
        plan = self._make_planner(self._find_entry(variant)).goldens()
        ran = self.phone.timed(arguments, plan, timeout_s=timeout_s)
        timed = self._said(_Timed, ran.result)
        return ProcessRun(
            variant=variant,
            boot_id=self.phone.boot_id(),
            before=ran.before,
            after=ran.after,
            sampling=NOT_SAMPLED,
            energy=NO_ENERGY,
            other_work=NOT_SAMPLED,
            **timed.model_dump(),
        )

    def measure_argv(self, variant: str, preset: Preset, seed: int = 0) -> list[str]:
        """Return the command of a process run, as the phone's shell gets it."""
        del variant, seed
        return self.phone.program(["measure", *_arguments(preset)])

    def create(self, variant: str, *, cold: bool) -> int | NotMeasured:
        """Time how long the variant's sessions take to create, in nanoseconds."""
        if cold:
            return NO_COLD
        plan = self._make_planner(self._find_entry(variant)).goldens()
        return self._read_document(_Created, ["create"], plan).session_create_ns

    def sweep(self, variant: str, preset: Preset, shapes: Mapping[str, Sequence[int]]) -> Swept:
        """Make one process run with inputs of other shapes."""
        try:
            plan = self._make_planner(self._find_entry(variant)).reshaped(shapes)
            timed = self._read_document(
                _Timed,
                ["measure", *_arguments(preset)],
                plan,
                timeout_s=run_timeout_s(preset, self.load_timeout_s),
            )
        except ValueError as error:
            return Swept(latencies_ns=[], problem=format_one_line(str(error)))
        return Swept(latencies_ns=timed.latencies_ns, steady=timed.steady)

    def memory(self, variant: str) -> Memory:
        """Measure peak memory."""
        plan = self._make_planner(self._find_entry(variant)).goldens()
        return self._read_document(Memory, ["memory"], plan)

    def profile(self, variant: str) -> Placement:
        """Return which provider runs each node."""
        return self._read_profile(self._find_entry(variant))

    def trace(self, variant: str) -> tuple[Placement, Events]:
        """Return which provider runs each node, with the first events of the profile."""
        runs, events = self._read_events(self._find_entry(variant))
        return _placement(variant, runs, events), events[:MAX_EVENTS]

    def canary(self) -> CanaryRun:
        """Time the canary once."""
        import hashlib

        from edgepack.base import statistics
        from edgepack.ondevice.harness import edgepack_canary as canary

        work = self.phone.work
        plan = PhonePlan(
            f"fetch y\nsession {work}/canary.onnx\nthreads 1\n"
            "config session.intra_op.allow_spinning 0\n"
            f"golden 0\ninput x float32 {work}/canary.bin 1 48 32 32\n",
            {f"{work}/canary.onnx": canary.MODEL, f"{work}/canary.bin": canary.INPUT.tobytes()},
        )
        arguments = [
            "measure",
            *("--duration-s", f"{canary.DURATION_S:g}"),
            *("--iterations", str(canary.LEAST_ITERATIONS)),
            *("--warm-up-s", f"{canary.WARM_UP_S:g}", "--warm-up-cap-s", "0"),
        ]
        timed = self._read_document(_Timed, arguments, plan)
        return CanaryRun(
            model_sha256=hashlib.sha256(canary.MODEL).hexdigest(),
            median_ns=int(statistics.median(timed.latencies_ns)),
        )

    def cool_down(self, first: Conditions, pause_s: float, note: Callable[[str], None]) -> None:
        """Wait until the phone is nearly as cool as it was at first, for five minutes at most."""
        if not isinstance(first.temperature_c, float):
            return
        limit_c = first.temperature_c + COOLER_C
        began = time.monotonic()
        time.sleep(pause_s)
        while time.monotonic() - began < COOL_DOWN_S:
            celsius = self.phone.conditions().temperature_c
            if not isinstance(celsius, float) or celsius <= limit_c:
                return
            note(f"cooling down: {celsius:.1f} °C, to {limit_c:.1f} °C")
            time.sleep(LOOK_S)

    def _try(self, entry: ManifestVariant) -> None:
        """Check that a variant works on the phone; if not, the error says why, as the loader does.

        Raises:
            VariantRefusedError: It does not.
        """
        for why in self._list_lacking(entry):
            raise self._make_refused(why)
        found = self._read_document(_Checked, ["check"], self._make_planner(entry).check())
        if not found.golden_min_sqnr_db >= entry.min_sqnr_db:
            raise self._make_refused(
                f"its output is {found.golden_min_sqnr_db:.1f} dB near the golden one,"
                f" {entry.min_sqnr_db:.1f} dB are needed"
            )
        if isinstance(entry.placement, float) and entry.providers[0].name != CPU:
            self._check_share(entry, entry.placement)

    def _list_lacking(self, entry: ManifestVariant) -> Iterator[str]:
        """Yield what the phone or its runtime lacks for a variant."""
        available = self.about.providers
        sources = self.bundle.manifest.provider_sources
        for provider in entry.providers:
            if provider.name not in available:
                listed = ", ".join(available)
                absence = f"{provider.name} is not in this onnxruntime (it has {listed})"
                source = sources.get(provider.name)
                yield f"{absence}. {source.about}" if source else absence
        missing = sorted(set(entry.requires.cpu) - self.phone.cpu_flags)
        if missing:
            yield f"this CPU lacks {', '.join(missing)}"

    def _check_share(self, entry: ManifestVariant, wanted: float) -> None:
        """Check that the first provider runs enough of the nodes that the CPU would run alone.

        A profile counts what a provider compiled as one node. So the check counts the nodes that
        are left to others, and compares them with those of a session on the CPU.
        """
        first = entry.providers[0].name
        others = [node for node in self.profile(entry.id).nodes if node.provider != first]
        alone = self._read_profile(_make_cpu_variant(entry)).nodes
        share = max(0.0, 1 - len(others) / len(alone)) if alone else 0.0
        if share < wanted:
            raise self._make_refused(
                f"{first} runs {share:.0%} of the nodes, at least {wanted:.0%} are needed"
            )

    def _find_entry(self, variant: str) -> ManifestVariant:
        return next(each for each in self.bundle.manifest.variants if each.id == variant)

    def _make_planner(self, entry: ManifestVariant) -> Planner:
        phone = self.phone
        runtime = f"onnxruntime-{self.about.onnxruntime}"
        cache = f"{phone.cache}/{entry.model_sha256[:16]}/{runtime}"
        made = Planner(self.bundle, entry, cpu_flags=phone.cpu_flags, cache=cache, work=phone.work)
        if made.keeps_cache:
            phone.make_folder(cache)
        return made

    def _read_profile(self, entry: ManifestVariant) -> Placement:
        return _placement(entry.id, *self._read_events(entry))

    def _read_events(self, entry: ManifestVariant) -> tuple[int, Events]:
        prefix = f"{self.phone.scratch}/profile"
        plan = self._make_planner(entry).profile()
        made = self._read_document(_Profiled, ["profile", "--profile-prefix", prefix], plan)
        data = self.phone.take(made.profile)
        try:
            events: Any = parse_json(data, max_bytes=MAX_RUN_BYTES)
        except ValueError as error:
            raise self._make_garbled_error("profile", f"it {error}", data) from error
        return made.runs, events

    def _read_document(
        self,
        model: type[_Document],
        arguments: Sequence[str],
        plan: PhonePlan | None,
        *,
        timeout_s: float | None = None,
    ) -> _Document:
        """Return what the program says.

        Raises:
            VariantRefusedError: The model does not work there.
        """
        timeout_s = timeout_s or self.load_timeout_s
        limited = _limit_arguments(arguments, timeout_s)
        return self._said(model, self.phone.measure(limited, plan, timeout_s=timeout_s))

    def _said(self, model: type[_Document], result: CommandResult) -> _Document:
        if result.exit_code == REFUSED_EXIT:
            raise self._refusal(self._read(_Refusal, result))
        if result.exit_code == TOO_MANY_EXIT:
            hint = "take a shorter preset"
            result.check("the measuring program", device=self.phone.name, hint=hint)
        result.check(
            "the measuring program",
            device=self.phone.name,
            hint="its last lines are above; exit code 137 often means out of memory, 142 that it"
            " took too long",
        )
        return self._read(model, result)

    def _read(self, model: type[_Document], result: CommandResult) -> _Document:
        try:
            return parse_answer(model, result.stdout, max_bytes=MAX_RUN_BYTES)
        except ValueError as error:
            raise self._make_garbled_error(model.__name__, f"it {error}", result.stdout) from error

    def _make_garbled_error(self, what: str, problem: str, said: bytes) -> RemoteCommandError:
        return RemoteCommandError(
            f"the measuring program printed no {what.strip('_')}: {problem}; it began with"
            f" {said[:80].decode('utf-8', 'replace')!r}",
            hint="run it by hand to see its output: the report of a measurement has its command",
            where=self.phone.name,
        )

    def _make_refused(self, why: str) -> VariantRefusedError:
        return VariantRefusedError(
            why, hint="measure another variant: --variant ID", where=self.phone.name
        )

    def _refusal(self, refusal: _Refusal) -> VariantRefusedError:
        message = format_one_line(refusal.message, 400)
        match refusal.refused:
            case "session" if "fallback to CPU EP has been explicitly disabled" in message:
                why = "its provider does not take every node, or not this phone"
                return self._make_refused(f"the session cannot be created: {why}")
            case "session" | "provider":
                return self._make_refused(f"the session cannot be created: {message}")
            case "inference":
                return self._make_refused(f"inference failed: {message}")
            case _:
                return self._make_refused(f"the runtime does not load: {message}")


def _placement(variant: str, runs: int, events: Events) -> Placement:
    from edgepack.ondevice.runtime.edgepack_loader import find_profile_nodes

    fields = {"variant": variant, "runs": runs, "nodes": find_profile_nodes(events)}
    return Placement.model_validate(fields)


def _make_cpu_variant(entry: ManifestVariant) -> ManifestVariant:
    """Return a variant as the CPU alone runs it."""
    session = entry.session.model_copy(update={"config": {}})
    return entry.model_copy(update={"providers": [Provider(name=CPU)], "session": session})


def _limit_arguments(arguments: Sequence[str], timeout_s: float) -> list[str]:
    """Return arguments with a limit, since nothing ends a program whose connection is gone."""
    return [*arguments, "--at-most-s", f"{timeout_s:.0f}"]


def _arguments(preset: Preset) -> list[str]:
    """Return the program's arguments for a preset."""
    return [
        *("--duration-s", f"{preset.duration_s:g}"),
        *("--iterations", str(preset.iterations)),
        *("--warm-up-s", f"{preset.warm_up_s:g}"),
        *("--window-s", f"{preset.window_s:g}"),
        *("--warm-up-cap-s", f"{preset.warm_up_cap_s:g}"),
    ]
