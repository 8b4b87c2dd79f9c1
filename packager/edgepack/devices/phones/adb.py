"""An Android phone through adb, on this machine or on one that is reached over SSH.

adb always gets the serial. A command is an argv here too; it is quoted once for the phone's shell,
to which adb passes it as one string. Android 7 and newer give the command's exit code back, and
stdout and stderr apart (adb's shell protocol 2). Sources: shell_service.cpp and commandline.cpp in
packages/modules/adb.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Self

from edgepack.devices.inventory import AdbEntry, Device, SshEntry
from edgepack.devices.phones.stage import make_stage
from edgepack.devices.phones.tool_problems import ADB_CAUSES, LOST, explain, join_output
from edgepack.devices.transport import CommandResult, Transport
from edgepack.errors import (
    DeviceError,
    EdgepackError,
    RemoteCommandError,
    UsageError,
    format_list,
)

READY_S = 60.0
"""adb may have to start its server first."""
PUSH_S = 600.0
"""For one file."""
_STEP_S = 60.0
_LOST_EXIT = 255
"""The exit code of ``adb shell`` after a lost connection; it prints nothing then
(commandline.cpp)."""


@dataclass
class Adb:
    """A connection to one phone; a context, which removes what it has put on the host."""

    device: Device
    host: Transport
    """Connected to the machine that has the phone."""
    _stack: ExitStack = field(default_factory=ExitStack)
    _stage: PurePosixPath | None = None

    def __enter__(self) -> Self:
        """Make sure that the phone answers.

        Raises:
            DeviceError: It does not; the message says why, and what to do.
            ToolError: There is no adb.
        """
        said = self.run(["get-state"], "asking for the phone", timeout_s=READY_S)
        state = said.text.strip().splitlines()[-1:] or [""]
        if state != ["device"]:
            raise self.explain_output(state[0]) or DeviceError(
                f"the phone is in the state {state[0]!r}, not 'device'",
                hint="let it start Android, then try again",
                where=self.device.name,
            )
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(EdgepackError):  # files that stay on the host do no harm
            self._stack.close()

    @property
    def entry(self) -> AdbEntry:
        """The phone in the inventory."""
        if not isinstance(self.device.entry, AdbEntry):
            raise UsageError(
                f"{self.device.name} is not reached through adb", hint="see devices.yaml"
            )
        return self.device.entry

    def run(self, arguments: Sequence[str], doing: str, *, timeout_s: float) -> CommandResult:
        """Run adb itself.

        Raises:
            DeviceError: The phone cannot be reached or used.
            ToolError: There is no adb, or its server does not start.
            RemoteCommandError: Something else failed.
        """
        result = self._run_adb(arguments, timeout_s=timeout_s)
        self._explain(result)
        return result.check(
            doing,
            device=self.device.name,
            hint=f"try it by hand where the phone is: adb -s {self.entry.serial} get-state",
        )

    def shell(
        self, argv: Sequence[str], *, timeout_s: float = _STEP_S, folder: str | None = None
    ) -> CommandResult:
        """Run a command on the phone with empty stdin; the caller checks the exit code.

        Args:
            argv: The command.
            timeout_s: How long it may take.
            folder: Where on the phone.

        Raises:
            DeviceError: The phone cannot be reached or used, or was lost meanwhile.
            TooSlowError: It took longer; the phone hangs up on it.
        """
        line = shlex.join(argv)
        if folder is not None:
            # adbd sends SIGHUP to the one process that it has started when adb here is gone.
            line = f"cd {shlex.quote(folder)} && exec {line}"
        result = self._run_adb(["shell", "-n", "-T", line], timeout_s=timeout_s)
        self._explain(result)
        if result.exit_code == _LOST_EXIT:
            self._require_kept(result)
        return result

    def read(self, argv: Sequence[str]) -> str:
        """Return what a command on the phone prints, empty where it fails or there is none."""
        result = self.shell(argv)
        return result.text if result.exit_code == 0 else ""

    def push(self, files: Sequence[Path], folder: PurePosixPath) -> None:
        """Copy files to a folder of the phone, under their own names.

        Raises:
            DeviceError: The phone cannot be reached, or is full.
            RemoteCommandError: The copy failed.
        """
        sources = [self._put_on_host(path) for path in files]
        doing = f"copying {format_list([path.name for path in files], most=3)} to the phone"
        timeout_s = PUSH_S * len(files)
        self.run(["push", *sources, f"{folder}/"], doing, timeout_s=timeout_s)

    def install(self, app: Path, *, timeout_s: float) -> None:
        """Install an app, in place of an earlier one.

        Raises:
            DeviceError: The phone refuses it; the message says why, and what to do.
        """
        argv = ["install", "-r", "-t", self._put_on_host(app)]
        result = self.run(argv, f"installing {app.name}", timeout_s=timeout_s)
        if "Success" not in result.text:  # older ones exit with 0 all the same
            raise self.explain_output(join_output(result)) or RemoteCommandError(
                f"installing {app.name} failed: {join_output(result).strip()[-300:]!r}",
                hint=f"try it by hand where the phone is: adb install -r -t {app.name}",
                where=self.device.name,
            )

    def uninstall(self, package: str, *, timeout_s: float) -> None:
        """Remove an app with its data, if it is there.

        Raises:
            DeviceError: The phone cannot be reached or used.
        """
        self._explain(self._run_adb(["uninstall", package], timeout_s=timeout_s))

    def read_digests(self, folders: Sequence[PurePosixPath]) -> Mapping[str, str]:
        """Return the SHA-256 of every file below folders of the phone, by its path there.

        Empty for a folder that does not exist, and on phones without ``sha256sum``.
        """
        argv = ["find", *map(str, folders), "-type", "f", "-exec", "sha256sum", "{}", "+"]
        found = re.findall(r"^([0-9a-f]{64})  (.+)$", self.shell(argv).text, re.MULTILINE)
        return {path: digest for digest, path in found}

    def read_properties(self) -> dict[str, str]:
        """Return Android's system properties."""
        result = self.shell(["getprop"])
        doing = "asking for the phone's properties"
        result.check(doing, device=self.device.name, hint="unlock the phone")
        return dict(re.findall(r"^\[([^\]]+)\]: \[([^\]]*)\]", result.text, re.MULTILINE))

    def _run_adb(self, arguments: Sequence[str], *, timeout_s: float) -> CommandResult:
        argv = [self.entry.adb, "-s", self.entry.serial, *arguments]
        return self.host.run(argv, timeout_s=timeout_s)

    def explain_output(self, output: str) -> EdgepackError | None:
        """Return the error for an output of adb, or of a program on the phone."""
        return explain(ADB_CAUSES, output, device=self.device.name, SERIAL=self.entry.serial)

    def _explain(self, result: CommandResult) -> None:
        if result.exit_code != 0 and (error := self.explain_output(join_output(result))):
            raise error

    def _require_kept(self, result: CommandResult) -> None:
        """Check that a command itself ended with the code that stands for a lost connection."""
        self.run(["get-state"], "asking for the phone", timeout_s=READY_S)
        if not join_output(result).strip():
            raise LOST.as_error(self.device.name)

    def _put_on_host(self, local: Path) -> str:
        """Return a path of the file on the machine that has the phone; it is copied there."""
        if not isinstance(self.device.host.entry, SshEntry):
            return str(local.absolute())
        if self._stage is None:
            self._stage = make_stage(self.device, self.host)
            self._stack.callback(self.host.run, ["rm", "-rf", str(self._stage)], timeout_s=_STEP_S)
        staged = self._stage / local.name
        self.host.put(local, staged, timeout_s=PUSH_S)
        return str(staged)
