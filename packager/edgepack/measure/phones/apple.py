"""An iPhone or iPad with the measuring app and a bundle's models in its documents.

The app is built on the Mac from ``harness/native/apple``, in the configuration Release, and signed
by the team of the inventory. A test of it runs the measuring program once, with the arguments and
the plan that were copied into the app's documents; its output is copied back. No debugger is
attached. Not tried with a Mac.
"""

from __future__ import annotations

import json
import re
import secrets
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from pydantic import ConfigDict

from edgepack.base.progress import Progress, Work
from edgepack.base.resources import find_ondevice_dir
from edgepack.base.schema import NotMeasured, StrictModel
from edgepack.bundle.reading import Bundle
from edgepack.deploy.operations import audited
from edgepack.devices.answers import read_answer
from edgepack.devices.inventory import Device
from edgepack.devices.phones.stage import make_stage
from edgepack.devices.phones.tool_problems import join_output
from edgepack.devices.phones.xcode import BUILD_S, Xcode
from edgepack.devices.provisioning.native import About
from edgepack.devices.transport import CommandResult, Transport
from edgepack.errors import (
    BundleError,
    DeviceError,
    EdgepackError,
    RemoteCommandError,
    format_one_line,
)
from edgepack.measure.phones.conditions import IOS_MARK, NO_TOPOLOGY, parse_ios_conditions
from edgepack.native.documents import ANSWERED
from edgepack.native.plans import Plan, list_files
from edgepack.native.program import ProgramRun
from edgepack.project.profile import load_profile
from edgepack.records.run import Conditions, DeviceFacts, Name

RUNTIME = "onnxruntime-c"
IDENTIFIER = "edgepack.harness"
PLACE = "Documents/edgepack"
"""In the app's container."""
PLAN = "plan.txt"
OVERHEAD_S = 180.0
"""To install and start the test, besides what the program takes."""
NO_PYTHON = "none (a test of an app)"
MOST_LINES = 10
"""The most lines of a failed test that are reported."""
_TELLING = re.compile(r"error:|[Cc]rash|signal |[Uu]nexpected exit|exited|Testing failed")
"""Lines of xcodebuild that say why. Sources: those that xcbeautify reads; bitrise-steplib/
steps-xcode-test, issue 107. Not seen with a phone."""


class _Facts(StrictModel):
    system: Name
    version: Name
    model: Name
    boot: Name
    cpu_flags: list[Name]
    simulator: bool
    debugged: bool


class _Moment(StrictModel):
    model_config = ConfigDict(extra="ignore")

    thermal_state: int
    low_power_mode: bool
    battery_percent: float | None = None


class _Answer(StrictModel):
    exit: int
    before: _Moment
    after: _Moment
    facts: _Facts


@contextmanager
def prepare_apple(
    bundle: Bundle, device: Device, mac: Transport, progress: Progress
) -> Iterator[ApplePhone]:
    """Build the measuring app, and put it and a bundle's models on a phone.

    Raises:
        DeviceError: The phone cannot be reached or used, or the app cannot be signed.
        ToolError: The Mac has no Xcode.
        RemoteCommandError: The build or a copy failed.
    """
    xcode = Xcode(device, mac)
    xcode.require_ready()
    xcode.unlock_keychain()
    phone = ApplePhone(xcode, make_stage(device, mac))
    try:
        with audited("push", device, bundle.path) as operation:
            operation.describe(host_key=mac.host_key)
            with progress.start_task(Work("push", total=3)) as advance:
                phone.build(bundle)
                advance("the measuring app is built")
                phone.install()
                advance("it is on the phone")
                phone.send_bundle(bundle)
                advance("the models are there")
        yield phone
    finally:
        phone.clean(progress)


@dataclass
class ApplePhone:
    """One phone and one bundle on it; see :class:`~.program.NativeDevice`."""

    xcode: Xcode
    stage: PurePosixPath
    """A folder on the Mac."""
    work: str = "work"
    cache: str = "cache"
    scratch: str = "."
    _answer: _Answer | None = field(default=None, init=False)
    _installed: bool = field(default=False, init=False)

    @property
    def name(self) -> str:
        """The device's name."""
        return self.xcode.device.name

    @property
    def host(self) -> Transport:
        """To the Mac."""
        return self.xcode.mac

    @property
    def cpu_flags(self) -> frozenset[str]:
        """The processor's features as Linux spells them."""
        return frozenset(self._read_last().facts.cpu_flags)

    @property
    def identifier(self) -> str:
        """The app's identifier; each team has its own."""
        return f"{IDENTIFIER}.{self.xcode.entry.team.lower()}"

    def build(self, bundle: Bundle) -> None:
        """Build the app and its test on the Mac, for phones alone."""
        with tempfile.TemporaryDirectory(prefix="edgepack-") as name:
            files = write_project(Path(name), bundle)
            self._copy(Path(name), files, self.stage / "project")
        built = self.xcode.attempt(
            [
                *("xcodebuild", "build-for-testing"),
                *("-project", str(self.stage / "project" / "Harness.xcodeproj")),
                *("-scheme", "Harness", "-configuration", "Release"),
                *("-destination", "generic/platform=iOS"),
                *("-derivedDataPath", str(self.stage / "built")),
                "-allowProvisioningUpdates",
                f"DEVELOPMENT_TEAM={self.xcode.entry.team}",
                f"EDGEPACK_IDENTIFIER={self.identifier}",
            ],
            timeout_s=BUILD_S,
        )
        if built.exit_code != 0:
            raise RemoteCommandError(
                _join_lines(
                    "the measuring app does not build on the Mac", *_find_telling_lines(built)
                ),
                hint="take a newer Xcode there, and open it once; the phone's iOS may need it",
                where=self.name,
            )

    def install(self) -> None:
        """Install the app, so that it has documents."""
        app = self.stage / "built/Build/Products/Release-iphoneos/Harness.app"
        self._installed = True
        self.xcode.run_devicectl(["install", "app"], [str(app)], "installing the measuring app")

    def clean(self, progress: Progress) -> None:
        """Remove the app, with the models in its container, and what the Mac has of it."""
        try:
            if self._installed:
                options = [self.identifier]
                self.xcode.run_devicectl(
                    ["uninstall", "app"], options, "removing the measuring app"
                )
        except EdgepackError as error:
            why = format_one_line(error.problem)
            progress.note(f"{self.identifier} stays on {self.name}, with the models: {why}")
        with suppress(EdgepackError):  # files that stay do no harm
            self.xcode.run(["rm", "-rf", str(self.stage)], "cleaning up on the Mac")

    def send_bundle(self, bundle: Bundle) -> None:
        """Copy models and goldens into the app's documents."""
        self._copy(bundle.path, list(list_files(bundle)), self.stage / "bundle")
        self.xcode.send(self.stage / "bundle", self.identifier, PLACE)

    def read_facts(self, about: About) -> DeviceFacts:
        """Return what the phone is."""
        answer = self._read_last()
        return DeviceFacts(
            os=f"{answer.facts.system} {answer.facts.version}",
            arch="arm64",
            model=answer.facts.model,
            cpu=NotMeasured(reason="iOS does not name its chip"),
            cpu_count=max(1, about.cpu_count),
            emulated=answer.facts.simulator,
            python=NO_PYTHON,
            numpy=NO_PYTHON,
            onnxruntime=about.onnxruntime,
            providers=about.providers,
            driver=f"{answer.facts.system} {answer.facts.version}",
            boot_id=self.read_boot_id(),
            conditions=self.read_conditions(),
        )

    def read_boot_id(self) -> str | NotMeasured:
        """Return the boot id, which changes when the phone restarts."""
        return self._read_last().facts.boot or NotMeasured(
            reason="iOS does not report when it started"
        )

    def read_conditions(self) -> Conditions:
        """Return what decided the phone's speed when the program last ended."""
        return _parse_conditions(self._read_last().after)

    def read_topology(self) -> NotMeasured:
        """Say why it is not known."""
        return NO_TOPOLOGY

    def make_command(self, arguments: Sequence[str]) -> list[str]:
        """Return the arguments of the measuring program."""
        return ["edgepack_measure", *arguments, "--plan", PLAN]

    def measure(
        self, arguments: Sequence[str], plan: Plan | None, *, timeout_s: float
    ) -> CommandResult:
        """Run the measuring program; its document is the result's stdout."""
        return self.measure_timed(arguments, plan, timeout_s=timeout_s).result

    def measure_timed(
        self, arguments: Sequence[str], plan: Plan | None, *, timeout_s: float
    ) -> ProgramRun:
        """Run the measuring program, and return the conditions before and after, too."""
        # So that an earlier test's output is not mistaken for this one's.
        mark = secrets.token_hex(4)
        answer, document = f"answer-{mark}.json", f"document-{mark}.json"
        argv = [*self.make_command(arguments), "--out", document]
        self._send_request(argv, answer, plan)
        tested = self._run_test(timeout_s)
        self._answer = found = self._read_answered(tested, answer, document)
        said = self._fetch(document) if found.exit in ANSWERED else b""
        printed = b"" if found.exit in ANSWERED else self._read_printed(document)
        result = CommandResult(tuple(argv), found.exit, said, printed)
        return ProgramRun(result, _parse_conditions(found.before), _parse_conditions(found.after))

    def take(self, path: str) -> bytes:
        """Return a file that the program wrote."""
        return self._fetch(path)

    def make_folder(self, path: str) -> None:
        """Make a folder in the app's documents, by a file in it: devicectl copies folders."""
        with tempfile.TemporaryDirectory(prefix="edgepack-") as name:
            kept = Path(name) / path / "kept"
            kept.parent.mkdir(parents=True)
            kept.touch()
            self._copy(Path(name), [f"{path}/kept"], self.stage / "folders")
        self.xcode.send(self.stage / "folders", self.identifier, PLACE)

    def _send_request(self, argv: Sequence[str], answer: str, plan: Plan | None) -> None:
        files = {} if plan is None else {**plan.files, PLAN: plan.text.encode()}
        files["request.json"] = json.dumps({"arguments": argv[1:], "answer": answer}).encode()
        with tempfile.TemporaryDirectory(prefix="edgepack-") as name:
            for path, data in files.items():
                (Path(name) / path).parent.mkdir(parents=True, exist_ok=True)
                (Path(name) / path).write_bytes(data)
            self._copy(Path(name), list(files), self.stage / "request")
        self.xcode.send(self.stage / "request", self.identifier, PLACE)

    def _run_test(self, timeout_s: float) -> CommandResult:
        products = str(self.stage / "built/Build/Products")
        found = self.xcode.run(
            ["find", products, "-name", "*.xctestrun"], "looking for the built test"
        )
        lines = found.text.split("\n")
        if not lines[0]:
            raise DeviceError(
                "xcodebuild made no .xctestrun file",
                hint="build the project in Xcode once, to see why",
                where=self.name,
            )
        return self.xcode.attempt(
            [
                *("xcodebuild", "test-without-building", "-xctestrun", lines[0]),
                *("-destination", f"platform=iOS,id={self.xcode.entry.udid}"),
            ],
            timeout_s=timeout_s + OVERHEAD_S,
        )

    def _read_answered(self, tested: CommandResult, answer: str, document: str) -> _Answer:
        """Return what the test has written; xcodebuild may call one that crashed a success."""
        if tested.exit_code != 0:
            raise self._make_not_run_error(tested, document)
        try:
            data = self._fetch(answer)
        except RemoteCommandError as error:
            raise self._make_not_run_error(tested, document) from error
        return self._read_answer(data)

    def _read_printed(self, document: str) -> bytes:
        """Return what the program printed besides its document, nothing where that is unknown."""
        try:
            return self._fetch(f"{document}.log")
        except RemoteCommandError:
            return b""

    def _make_not_run_error(self, tested: CommandResult, document: str) -> RemoteCommandError:
        printed = self._read_printed(document).decode("utf-8", "replace").splitlines()
        told = [*printed[-MOST_LINES:], *_find_telling_lines(tested)]
        return RemoteCommandError(
            _join_lines("the measuring app did not end as it should on the phone", *told),
            hint="a phone ends apps that take too much memory; measure another variant: --variant"
            " ID",
            where=self.name,
        )

    def _read_answer(self, data: bytes) -> _Answer:
        what = "the measuring test's answer"
        answer = read_answer(_Answer, data, device=self.name, what=what)
        if answer.facts.debugged:
            raise DeviceError(
                "a debugger was attached to the measuring app, which slows CoreML down",
                hint="close Xcode on the Mac, then try again",
                where=self.name,
            )
        return answer

    def _fetch(self, path: str) -> bytes:
        target = self.stage / "fetched" / PurePosixPath(path).name
        self.xcode.run(["mkdir", "-p", str(target.parent)], "making a folder on the Mac")
        return self.xcode.fetch(self.identifier, f"{PLACE}/{path}", target)

    def _copy(self, folder: Path, files: Sequence[str], target: PurePosixPath) -> None:
        """Copy files to a folder of the Mac; nothing else is in it afterwards."""
        with tempfile.TemporaryFile() as packed:
            with tarfile.open(fileobj=packed, mode="w") as archive:
                for path in files:
                    archive.add(folder / path, path)
            packed.seek(0)
            self.xcode.unpack(iter(lambda: packed.read(1 << 17), b""), target)

    def _read_last(self) -> _Answer:
        if self._answer is None:
            raise RuntimeError("the phone is asked for after the program ran")
        return self._answer


def write_project(folder: Path, bundle: Bundle) -> list[str]:
    """Write the Xcode project of the measuring app, and return its files.

    The measuring program is a Swift package of its own, with the pinned onnxruntime.

    Raises:
        BundleError: The bundle's target pins no onnxruntime for iOS.
    """
    native = find_ondevice_dir() / "native"
    version = bundle.manifest.runtime.get(RUNTIME)
    checksum = load_profile(bundle.manifest.target).runtime.checksums.get(RUNTIME)
    if version is None or checksum is None:
        raise BundleError(
            f"the bundle's target {bundle.manifest.target} pins no {RUNTIME} with a checksum",
            hint="build the bundle again: edgepack build",
        )
    files = {
        path.relative_to(native / "apple").as_posix(): path.read_bytes()
        for path in sorted((native / "apple").rglob("*"))
        if path.is_file()
    }
    sources = "Measure/Sources/EdgepackMeasure"
    package = "Measure/Package.swift"
    for name, value in {b"{version}": version, b"{checksum}": checksum}.items():
        files[package] = files[package].replace(name, value.encode())
    files[f"{sources}/edgepack_measure.c"] = (native / "edgepack_measure.c").read_bytes()
    header = (native / "edgepack_measure.h").read_bytes()
    files[f"{sources}/include/edgepack_measure.h"] = header
    for path, data in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)
    return list(files)


def _find_telling_lines(result: CommandResult) -> list[str]:
    """Return the last lines of xcodebuild that say why it failed, or else its last lines."""
    lines = [line.strip() for line in join_output(result).splitlines() if line.strip()]
    return ([line for line in lines if _TELLING.search(line)] or lines)[-MOST_LINES:]


def _join_lines(problem: str, *told: str) -> str:
    return "\n  | ".join([problem, *told])


def _parse_conditions(moment: _Moment) -> Conditions:
    return parse_ios_conditions(IOS_MARK + moment.model_dump_json(exclude_none=True))
