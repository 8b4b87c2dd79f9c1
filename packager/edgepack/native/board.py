"""A board without Python, over SSH, that has the measuring program and a bundle's release."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path, PurePosixPath

from edgepack.base.progress import Progress
from edgepack.base.schema import NotMeasured
from edgepack.bundle.reading import AnyBundle, Bundle
from edgepack.devices.inventory import Device
from edgepack.devices.probing import ProbedFacts
from edgepack.devices.provisioning.native import (
    LIBRARY,
    About,
    find_folder,
    install_native,
    require_native,
)
from edgepack.devices.provisioning.native_program import PROGRAM
from edgepack.devices.provisioning.needs import find_needs
from edgepack.devices.provisioning.wheels import WheelSource, fetch_wheels
from edgepack.devices.transport import CommandResult, Transport
from edgepack.errors import EdgepackError, UsageError
from edgepack.native.board_files import BoardFiles, read_board_files
from edgepack.native.harness import NativeHarness
from edgepack.native.plans import Plan
from edgepack.native.program import ProgramRun
from edgepack.native.sensors import BoardSensors, find_sensors
from edgepack.project.profile import load_profile
from edgepack.records.run import Conditions, DeviceFacts
from edgepack.records.topology import Topology

NO_PYTHON = "none (a program of the shell)"
_SEND_S = 600.0
_SHORT_S = 60.0

# Arguments: the folder to run in, the command.
_RUN_IN = 'cd "$1" && shift && exec "$@"'
HINT = "the board's user must be able to write there: set 'root' of the device in devices.yaml"


@dataclass
class Board:
    """One board and one bundle on it; see :class:`~.program.NativeDevice`."""

    device: Device
    transport: Transport
    facts: ProbedFacts
    release: PurePosixPath
    """The bundle's folder on the board."""
    sent: dict[str, str]
    """Digest by path, of what plans brought: one for all that share the board's work folder."""

    @property
    def name(self) -> str:
        """The device's name."""
        return self.device.name

    @property
    def host(self) -> Transport:
        """To the board."""
        return self.transport

    @property
    def cache(self) -> str:
        """The folder for compiled models."""
        return str(find_folder(self.facts) / "cache")

    @property
    def work(self) -> str:
        """The folder for inputs that are not in the bundle."""
        return str(find_work(self.facts))

    @property
    def scratch(self) -> str:
        """The folder for what the program writes."""
        return self.work

    @property
    def cpu_flags(self) -> frozenset[str]:
        """The processor's features as Linux spells them."""
        return frozenset(self.facts.cpu_flags)

    def read_facts(self, about: About) -> DeviceFacts:
        """Return what the board is."""
        found = self._read_files()
        model = self.facts.model or NotMeasured(reason="this system does not name its model")
        return DeviceFacts(
            os=found.system,
            arch=found.machine,
            model=model,
            cpu=found.read_processor(),
            cpu_count=max(1, about.cpu_count),
            emulated=found.is_emulated(),
            python=NO_PYTHON,
            numpy=NO_PYTHON,
            onnxruntime=about.onnxruntime,
            providers=about.providers,
            driver=found.read_driver(),
            boot_id=found.read_boot_id(),
            conditions=found.read_conditions(),
        )

    def read_conditions(self) -> Conditions:
        """Return what decides the board's speed now."""
        return self._read_files().read_conditions()

    def read_boot_id(self) -> str | NotMeasured:
        """Return the boot id, which changes when the board restarts."""
        return self._read_files().read_boot_id()

    def read_topology(self) -> Topology | NotMeasured:
        """Return the processors that the program may use."""
        return self._read_files().read_topology()

    @cached_property
    def _sensors(self) -> BoardSensors:
        return find_sensors(self.transport, self.device.entry.run_prefix)

    def _read_files(self) -> BoardFiles:
        return read_board_files(self.transport, self.device.entry.run_prefix)

    def make_command(self, arguments: Sequence[str]) -> list[str]:
        """Return the command that runs the measuring program, in the release's folder."""
        folder = find_folder(self.facts)
        return [
            *self.device.entry.run_prefix,
            str(folder / PROGRAM),
            *arguments,
            *("--runtime", str(folder / LIBRARY)),
            *("--plan", self.plan_path),
        ]

    @property
    def plan_path(self) -> str:
        """Where plans lie on the board."""
        return f"{self.work}/plan.txt"

    def measure(
        self, arguments: Sequence[str], plan: Plan | None, *, timeout_s: float
    ) -> CommandResult:
        """Run the measuring program; its document is the result's stdout."""
        self.send_plan(plan)
        argv = self.run_in_release(self.make_command(arguments))
        return self.transport.run(argv, timeout_s=timeout_s, supervisor="shell")

    def run_in_release(self, argv: Sequence[str]) -> list[str]:
        """Return a command that runs in the release's folder, which paths of plans count from."""
        return ["sh", "-c", _RUN_IN, "sh", str(self.release), *argv]

    def measure_timed(
        self, arguments: Sequence[str], plan: Plan | None, *, timeout_s: float
    ) -> ProgramRun:
        """Do the same, and return the conditions before and after, and the sensors meanwhile."""
        if plan is not None:
            plan = replace(plan, text=plan.text + self._sensors.format_lines())
        self.send_plan(plan)
        before = self.read_conditions()
        result = self.measure(arguments, plan, timeout_s=timeout_s)
        return ProgramRun(result, before, self.read_conditions(), self._sensors)

    def take(self, path: str) -> bytes:
        """Return a file that the program wrote, and remove it."""
        script = 'cat "$1" && rm -f "$1"'
        return self._run(["sh", "-c", script, "sh", path], f"reading {path}").stdout

    def make_folder(self, path: str) -> None:
        """Make a folder on the board, and those above it."""
        self._run(["mkdir", "-p", path], f"making {path}")

    def send_plan(self, plan: Plan | None) -> None:
        """Send a plan and those of its files that are not there yet."""
        if plan is None:
            return
        data = {**plan.files, self.plan_path: plan.text.encode()}
        with tempfile.TemporaryDirectory(prefix="edgepack-") as folder:
            local = Path(folder) / "sent"
            for path, content in data.items():
                digest = hashlib.sha256(content).hexdigest()
                if self.sent.get(path) != digest:
                    local.write_bytes(content)
                    self.transport.put(local, PurePosixPath(path), timeout_s=_SEND_S)
                    self.sent[path] = digest

    def _run(self, argv: Sequence[str], doing: str) -> CommandResult:
        result = self.transport.send(argv, [], timeout_s=_SHORT_S)
        return result.check(doing, device=self.name, hint=HINT)


def find_work(facts: ProbedFacts) -> PurePosixPath:
    """Return the folder on a board for what a measurement brings and writes."""
    return find_folder(facts) / "work"


@contextmanager
def prepared_board(
    device: Device, transport: Transport, facts: ProbedFacts, progress: Progress
) -> Iterator[Callable[[AnyBundle, PurePosixPath], NativeHarness]]:
    """Put on a leased board what measures there; yield what makes the harness of a release there.

    What is there already is not sent again.

    Raises:
        DeviceError: The board lacks what it needs; or onnxruntime does not load there.
        ToolError: There is no compiler for it here; or the runtime's wheel cannot be fetched.
        RemoteCommandError: It does not take a file.
    """
    profile = load_profile(device.target)
    require_native(device, facts, profile)

    def fetch(folder: Path) -> Path:
        source = WheelSource()
        needs = find_needs(device, profile, facts, transport, source=source)
        fetch_wheels(folder, needs, source, device.name, progress.note)
        [wheel] = folder.glob("*.whl")
        return wheel

    about = install_native(device, transport, facts, profile, fetch)
    progress.note(f"{device.name} has no Python: a program measures, on {about.onnxruntime}")

    sent: dict[str, str] = {}

    def make_harness(bundle: AnyBundle, path: PurePosixPath) -> NativeHarness:
        if not isinstance(bundle, Bundle):
            raise UsageError(
                f"{bundle.manifest.id} is a pipeline, which is measured with Python",
                hint="measure its parts by themselves, or install python3 on the device",
                where=device.name,
            )
        return NativeHarness(Board(device, transport, facts, path, sent), bundle)

    def clear(*more: str) -> CommandResult:
        script = 'rm -rf "$1" && { [ -z "$2" ] || mkdir -p "$1"; }'
        argv = ["sh", "-c", script, "sh", str(find_work(facts)), "".join(more)]
        return transport.send(argv, [], timeout_s=_SHORT_S)

    clear("again").check("clearing the work folder", device=device.name, hint=HINT)
    try:
        yield make_harness
    finally:
        with suppress(EdgepackError):  # files that stay do no harm
            clear()
