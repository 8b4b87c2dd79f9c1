"""How the measuring program is run: the device that runs it, and its arguments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from edgepack.base.schema import NotMeasured
from edgepack.devices.provisioning.native import About
from edgepack.devices.transport import CommandResult, Transport
from edgepack.errors import UsageError
from edgepack.native.plans import Plan
from edgepack.native.sensors import BoardSensors
from edgepack.records.presets import Preset
from edgepack.records.run import Conditions, DeviceFacts
from edgepack.records.topology import Topology


@dataclass(frozen=True)
class ProgramRun:
    """One run of the measuring program."""

    result: CommandResult
    before: Conditions
    after: Conditions
    sensors: BoardSensors | None = None
    """Those that the program read meanwhile; none where it did not."""


class NativeDevice(Protocol):
    """A device that has the measuring program and a bundle's models and goldens."""

    @property
    def name(self) -> str:
        """The device's name."""

    @property
    def host(self) -> Transport:
        """To the device, or to the machine that it is attached to."""

    @property
    def cache(self) -> str:
        """The folder on the device for compiled models of the bundle."""

    @property
    def work(self) -> str:
        """The folder on the device for inputs that are not in the bundle, as plans name it."""

    @property
    def scratch(self) -> str:
        """The folder on the device for what the program writes, as its arguments name it."""

    @property
    def cpu_flags(self) -> frozenset[str]:
        """The processor's features as Linux spells them."""

    def read_facts(self, about: About) -> DeviceFacts:
        """Return what the device is."""

    def read_conditions(self) -> Conditions:
        """Return what decides the device's speed now."""

    def read_boot_id(self) -> str | NotMeasured:
        """Return the boot id, which changes when the device restarts."""

    def read_topology(self) -> Topology | NotMeasured:
        """Return the processors that the program may use, or why they are not known."""

    def make_command(self, arguments: Sequence[str]) -> list[str]:
        """Return the command that runs the measuring program."""

    def measure(
        self, arguments: Sequence[str], plan: Plan | None, *, timeout_s: float
    ) -> CommandResult:
        """Run the measuring program; its document is the result's stdout.

        Raises:
            DeviceError: The device cannot be reached or used.
            TooSlowError: It took longer than it may.
        """

    def measure_timed(
        self, arguments: Sequence[str], plan: Plan | None, *, timeout_s: float
    ) -> ProgramRun:
        """Do the same, and return the conditions before and after, too."""

    def take(self, path: str) -> bytes:
        """Return a file that the program wrote, and remove it."""

    def make_folder(self, path: str) -> None:
        """Make a folder on the device, and those above it."""


def limit_arguments(arguments: Sequence[str], timeout_s: float) -> list[str]:
    """Return arguments with a limit, since nothing ends a program whose connection is gone."""
    return [*arguments, "--at-most-s", f"{timeout_s:.0f}"]


def list_arguments(preset: Preset) -> list[str]:
    """Return the program's arguments for a preset.

    Raises:
        UsageError: The program joins no samples.
    """
    scenario = preset.scenario
    if scenario.max_batch > 1:
        raise UsageError(
            "without Python a device joins no samples to batches",
            hint="leave --max-batch out",
            where="--max-batch",
        )
    asked: list[str] = []
    if scenario.name != "single-stream":
        asked = ["--scenario", scenario.name, "--threads", str(scenario.threads)]
    if scenario.name == "multi-stream":
        asked += ["--samples-per-query", str(scenario.samples_per_query)]
    return [
        *asked,
        *("--duration-s", f"{preset.duration_s:g}"),
        *("--iterations", str(preset.iterations)),
        *("--warm-up-s", f"{preset.warm_up_s:g}"),
        *("--window-s", f"{preset.window_s:g}"),
        *("--warm-up-cap-s", f"{preset.warm_up_cap_s:g}"),
    ]
