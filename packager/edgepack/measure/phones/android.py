"""An Android phone with the measuring program, onnxruntime's library and a bundle's models on it.

They are below ``root`` of the device, by default ``/data/local/tmp/edgepack``, where the phone's
shell may write and run programs: ``tools/<key>/`` and ``<project>/<release>/``. The newest of each
stays there, so that the next measurement finds it; all else is removed. Numbers from there are of a
process of the shell: an app's threads are scheduled in other groups, and may be slower.
"""

from __future__ import annotations

import hashlib
import re
import shlex
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from edgepack.base.progress import Progress, Work
from edgepack.base.schema import NotMeasured
from edgepack.bundle.reading import Bundle
from edgepack.deploy.transfer.client import format_sent
from edgepack.devices.inventory import Device
from edgepack.devices.phones.adb import Adb
from edgepack.devices.provisioning.native import About
from edgepack.devices.transport import CommandResult, Transport
from edgepack.errors import DeviceError
from edgepack.measure.phones.conditions import (
    ANDROID_COMMANDS,
    NO_TOPOLOGY,
    Outputs,
    parse_android_conditions,
)
from edgepack.measure.phones.plugins import PluginFiles
from edgepack.native.plans import Plan, list_files
from edgepack.native.program import ProgramRun
from edgepack.project.profile import load_profile
from edgepack.records.run import Conditions, DeviceFacts

PROGRAM = "edgepack_measure"
LIBRARY = "libonnxruntime.so"
RUNTIME = "com.microsoft.onnxruntime:onnxruntime-android"
WORK = "work"
PLAN = f"{WORK}/plan.txt"
TOOLS = "tools"
ABI = "ro.product.cpu.abi"
_SECTION = "edgepack-section "
_OURS = re.compile(r"([\w-]+-)?[0-9a-f]{16}")
"""The form of names of releases and tools: 'root' may be a folder that others use too."""


@dataclass
class AndroidPhone:
    """One phone and one bundle on it; see :class:`~.program.NativeDevice`."""

    adb: Adb
    release: PurePosixPath
    """The folder of the bundle's models and goldens."""
    tools: PurePosixPath
    """The folder of the program and the library."""
    properties: Mapping[str, str]
    programs: Sequence[Path]
    """The files on this machine that the phone needs."""
    plugin: PluginFiles | None = None
    work: str = WORK
    _sent: dict[str, str] = field(default_factory=dict)
    """Digest by path, of what plans brought."""
    _flags: frozenset[str] | None = None

    @property
    def name(self) -> str:
        """The device's name."""
        return self.adb.device.name

    @property
    def host(self) -> Transport:
        """To the machine that the phone is attached to."""
        return self.adb.host

    @property
    def cache(self) -> str:
        """The folder for compiled models of the project."""
        return str(self.release.parent / "cache")

    @property
    def cpu_flags(self) -> frozenset[str]:
        """The processor's features as Linux spells them."""
        if self._flags is None:
            lines = self.adb.read(["cat", "/proc/cpuinfo"]).splitlines()
            named = [line.partition(":") for line in lines]
            listed = [v for key, _, v in named if key.strip() in ("Features", "flags")]
            self._flags = frozenset(word for words in listed for word in words.split())
        return self._flags

    @property
    def runs_as(self) -> str:
        """The report's entry in place of Python, which the program does not use."""
        return "none (a program of the shell)"

    @property
    def scratch(self) -> str:
        """The folder for what the program writes."""
        return WORK

    def install(self, bundle: Bundle, progress: Progress) -> None:
        """Put program, library and models on the phone."""
        libraries = self.plugin.libraries if self.plugin else ()
        self._send(bundle, [*self.programs, *libraries], progress)
        program = str(self.tools / PROGRAM)
        self._run(["chmod", "755", program], "marking the program as one")

    def _send(self, bundle: Bundle, programs: Sequence[Path], progress: Progress) -> None:
        """Send missing files, and remove the project's other releases and older tools."""
        self._remove_others()
        wanted = {self.release / path: (bundle.path / path, digest)
                  for path, digest in list_files(bundle).items()}  # fmt: skip
        wanted |= {self.tools / path.name: (path, _compute_sha256(path)) for path in programs}
        there = self.adb.read_digests([self.release, self.tools])
        missing: dict[PurePosixPath, list[Path]] = {}
        for remote, (local, digest) in wanted.items():
            if there.get(str(remote)) != digest:
                missing.setdefault(remote.parent, []).append(local)
        folders = sorted({str(remote.parent) for remote in wanted} | {str(self.release / WORK)})
        self._run(["mkdir", "-p", *folders], "making folders on the phone")
        sizes = {folder: sum(f.stat().st_size for f in files) for folder, files in missing.items()}
        total = sum(sizes.values())
        name, began = self.adb.device.name, time.monotonic()
        with progress.start_task(Work(f"{name}: sending", total=total, unit="bytes")) as advance:
            for folder, files in missing.items():
                self.adb.push(files, folder)
                advance(folder.name, by=sizes[folder])
        if missing:
            count = sum(map(len, missing.values()))
            progress.note(format_sent(name, total, count, time.monotonic() - began))

    def clean(self) -> None:
        """Remove what plans brought; program and models stay for the next measurement."""
        self._run(["rm", "-rf", str(self.release / WORK)], "cleaning up on the phone")

    def read_facts(self, about: About) -> DeviceFacts:
        """Return what the phone is."""
        known = self.properties
        vendor = known.get("ro.vendor.build.fingerprint", "")
        return DeviceFacts(
            os=read_system(known),
            arch=known.get(ABI, ""),
            model=read_model(known) or NotMeasured(reason="the phone does not report its model"),
            cpu=read_chip(known)
            or NotMeasured(reason="the phone does not report its chip: Android 12 or newer does"),
            cpu_count=max(1, about.cpu_count),
            emulated=is_emulator(known),
            python=self.runs_as,
            numpy=self.runs_as,
            onnxruntime=about.onnxruntime,
            providers=about.providers,
            driver=vendor or NotMeasured(reason="the phone does not report its vendor image"),
            boot_id=self.read_boot_id(),
            conditions=self.read_conditions(),
        )

    def read_boot_id(self) -> str | NotMeasured:
        """Return the boot id, which changes when the phone restarts."""
        found = self.adb.read(["cat", "/proc/sys/kernel/random/boot_id"]).strip()
        return found or NotMeasured(reason="the phone's shell may not read it")

    def read_conditions(self) -> Conditions:
        """Return what decides the phone's speed now."""
        return parse_android_conditions(self._read_outputs())

    def _read_outputs(self) -> Outputs:
        """Return what all commands print, by their names, in one call."""
        script = "; ".join(
            f"echo {shlex.quote(_SECTION + name)}; {shlex.join(argv)} 2>/dev/null"
            for name, argv in ANDROID_COMMANDS.items()
        )
        parts = self.adb.shell(["sh", "-c", script]).text.split(_SECTION)[1:]
        pairs = (part.partition("\n") for part in parts)
        return {name.strip(): text for name, _, text in pairs}

    def read_topology(self) -> NotMeasured:
        """Say why it is not known."""
        return NO_TOPOLOGY

    def make_command(self, arguments: Sequence[str]) -> list[str]:
        """Return the command that runs the measuring program, in the release's folder."""
        return [
            *self.adb.entry.run_prefix,
            "env",
            "ORT_DISABLE_TELEMETRY=1",
            f"LD_LIBRARY_PATH={self.tools}",
            str(self.tools / PROGRAM),
            *arguments,
            *("--runtime", str(self.tools / LIBRARY)),
            *self._list_plugin(str(self.tools)),
            *("--plan", PLAN),
        ]

    def _list_plugin(self, folder: str) -> list[str]:
        """Return the program's arguments for a plugin whose libraries lie in a folder."""
        return ["--plugin", self.plugin.make_argument(folder)] if self.plugin else []

    def measure(
        self, arguments: Sequence[str], plan: Plan | None, *, timeout_s: float
    ) -> CommandResult:
        """Run the measuring program; its document is the result's stdout."""
        self._send_plan(plan)
        argv = self.make_command(arguments)
        return self.adb.shell(argv, timeout_s=timeout_s, folder=str(self.release))

    def measure_timed(
        self, arguments: Sequence[str], plan: Plan | None, *, timeout_s: float
    ) -> ProgramRun:
        """Do the same, and return the conditions before and after, too."""
        before = self.read_conditions()
        result = self.measure(arguments, plan, timeout_s=timeout_s)
        return ProgramRun(result, before, self.read_conditions())

    def take(self, path: str) -> bytes:
        """Return a file that the program wrote, and remove it."""
        remote = str(self.release / path)
        data = self._run(["cat", remote], f"reading {path} on the phone").stdout
        self._run(["rm", "-f", remote], f"removing {path} on the phone")
        return data

    def make_folder(self, path: str) -> None:
        """Make a folder on the phone, and those above it."""
        self._run(["mkdir", "-p", path], "making a folder on the phone")

    def _send_plan(self, plan: Plan | None) -> bool:
        """Send a plan's missing files, and return whether there were any."""
        if plan is None:
            return False
        data = {**plan.files, PLAN: plan.text.encode()}
        digests = {path: hashlib.sha256(each).hexdigest() for path, each in data.items()}
        changed = [path for path, digest in digests.items() if self._sent.get(path) != digest]
        if not changed:
            return False
        with tempfile.TemporaryDirectory(prefix="edgepack-") as folder:
            files = [Path(folder) / PurePosixPath(path).name for path in changed]
            for file, path in zip(files, changed, strict=True):
                file.write_bytes(data[path])
            self.adb.push(files, self.release / WORK)
        self._sent |= digests
        return True

    def _remove_others(self) -> None:
        others = [
            str(ours.parent / name)
            for ours in (self.release, self.tools)
            for name in self.adb.read(["ls", "-1", str(ours.parent)]).splitlines()
            if _OURS.fullmatch(name) and name != ours.name
        ]
        if others:
            self._run(["rm", "-rf", *others], "removing older releases on the phone")

    def _run(self, argv: Sequence[str], doing: str) -> CommandResult:
        return self.adb.shell(argv).check(
            doing,
            device=self.name,
            hint=f"the phone's shell has to be able to write to {self.adb.entry.root}: set 'root'"
            " of the device in devices.yaml",
        )


def read_system(properties: Mapping[str, str]) -> str:
    """Return Android's version."""
    version = properties.get("ro.build.version.release", "of an unknown version")
    return f"Android {version} (API {properties.get('ro.build.version.sdk', '?')})"


def read_model(properties: Mapping[str, str]) -> str:
    """Return the phone's maker and model, as far as it reports them."""
    maker, model = (properties.get(f"ro.product.{each}", "") for each in ("manufacturer", "model"))
    return f"{maker} {model}".strip()


def read_chip(properties: Mapping[str, str]) -> str:
    """Return the phone's chip, as far as it reports it."""
    maker, model = (properties.get(f"ro.soc.{each}", "") for each in ("manufacturer", "model"))
    return f"{maker} {model}".strip() or properties.get("ro.board.platform", "")


def is_emulator(properties: Mapping[str, str]) -> bool:
    """Return whether Android runs in an emulator, whose speed is not a phone's.

    Source: ``ro.boot.qemu`` and the hardware names of Android's emulator (goldfish, ranchu) and of
    Cuttlefish; not tried.
    """
    hardware = {properties.get("ro.hardware", ""), properties.get("ro.boot.hardware", "")}
    flagged = {properties.get("ro.kernel.qemu", ""), properties.get("ro.boot.qemu", "")}
    return "1" in flagged or bool(hardware & {"goldfish", "ranchu", "cutf_cvm"})


def require_version(device: Device, properties: Mapping[str, str]) -> None:
    """Check that the phone's Android is new enough for its target.

    Raises:
        DeviceError: It is not.
    """
    least = load_profile(device.target).device.min_version
    level = properties.get("ro.build.version.sdk", "")
    if least and level.isdigit() and int(level) < int(least):
        raise DeviceError(
            f"the phone has Android's API level {level}, and target {device.target} needs {least}",
            hint="take a newer phone, or a target with a lower 'min_version'",
            where=device.name,
        )


def _compute_sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
