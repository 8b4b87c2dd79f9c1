"""An iPhone or iPad through Xcode's tools, on this Mac or on one that is reached over SSH.

Sources: ``xcrun devicectl help device copy`` and ``help device info`` of Xcode 15, as the appium
project documents them (appium/node-devicectl), and public outputs of ``device info details`` (``•
developerModeStatus: enabled``); ``man xcodebuild``; ``man security``. Not tried.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from edgepack.devices.inventory import AppleEntry, Device
from edgepack.devices.phones.tool_problems import XCODE_CAUSES, explain, join_output
from edgepack.devices.transport import CommandResult, Transport
from edgepack.errors import DeviceError, UsageError

STEP_S = 300.0
BUILD_S = 1800.0
_UNPACK = 'rm -rf "$1" && mkdir -p "$1" && tar -xf - -C "$1"'
_UNLOCK = 'IFS= read -r word && exec security unlock-keychain -p "$word" "$HOME/$1"'
_KEYCHAIN = "Library/Keychains/login.keychain-db"


@dataclass(frozen=True)
class Xcode:
    """Xcode's tools on the Mac that has one phone."""

    device: Device
    mac: Transport
    """Connected to the Mac."""

    @property
    def entry(self) -> AppleEntry:
        """The phone in the inventory."""
        if not isinstance(self.device.entry, AppleEntry):
            raise UsageError(
                f"{self.device.name} is not reached through a Mac", hint="see devices.yaml"
            )
        return self.device.entry

    def run(self, argv: Sequence[str], doing: str, *, timeout_s: float = STEP_S) -> CommandResult:
        """Run a program on the Mac.

        Raises:
            DeviceError: The phone cannot be reached or used, or nothing can be signed.
            ToolError: There is no Xcode.
            RemoteCommandError: Something else failed.
        """
        return self.attempt(argv, timeout_s=timeout_s).check(
            doing,
            device=self.device.name,
            hint=f"try it by hand on the Mac: {shlex.join(argv)}",
        )

    def attempt(self, argv: Sequence[str], *, timeout_s: float = STEP_S) -> CommandResult:
        """Run a program on the Mac that may also fail for other reasons.

        Raises:
            DeviceError: The phone cannot be reached or used, or nothing can be signed.
            ToolError: There is no Xcode.
        """
        result = self.mac.run(argv, timeout_s=timeout_s)
        if result.exit_code != 0:
            error = explain(XCODE_CAUSES, join_output(result), device=self.device.name)
            if error is not None:
                raise error
        return result

    def run_devicectl(
        self, words: Sequence[str], options: Sequence[str], doing: str
    ) -> CommandResult:
        """Run ``xcrun devicectl device`` for the phone."""
        argv = ["xcrun", "devicectl", "device", *words, "--device", self.entry.udid, *options]
        return self.run(argv, doing)

    def require_ready(self) -> dict[str, str]:
        """Return what devicectl reports about the phone, if it is attached and can be used.

        Raises:
            DeviceError: It cannot; the message says why, and what to do.
            ToolError: There is no Xcode.
        """
        self.run(["xcodebuild", "-version"], "asking for Xcode")
        told = self.run_devicectl(["info", "details"], [], "asking for the phone").text
        error = explain(XCODE_CAUSES, told, device=self.device.name)
        if error is not None:  # of a phone that is known, but cannot be used now
            raise error
        return dict(re.findall(r"^ *• (\w+): (.+)$", told, re.MULTILINE))

    def unlock_keychain(self) -> None:
        """Open the Mac's login keychain, if the inventory names its password's variable.

        The password goes through a pipe to the Mac's shell, and is an argument of ``security``
        there, which has no other way to take it.

        Raises:
            DeviceError: The password is not right.
            UsageError: The variable is not set.
        """
        name = self.entry.keychain_password_env
        if name is None:
            return
        password = os.environ.get(name)
        if not password:
            raise UsageError(
                f"the environment variable {name} is not set",
                hint="it has the password of the Mac's login keychain: 'keychain_password_env' of"
                f" {self.device.name} in devices.yaml",
            )
        argv = ["sh", "-c", _UNLOCK, "sh", _KEYCHAIN]
        result = self.mac.send(argv, [f"{password}\n".encode()], timeout_s=STEP_S)
        if result.exit_code == 0:
            return
        raise explain(XCODE_CAUSES, join_output(result), device=self.device.name) or DeviceError(
            "the Mac's login keychain cannot be opened",
            hint="check that it is ~/Library/Keychains/login.keychain-db there",
            where=self.device.name,
        )

    def unpack(self, chunks: Iterable[bytes], folder: PurePosixPath) -> None:
        """Unpack a tar archive into a folder of the Mac, replacing everything in it."""
        argv = ["sh", "-c", _UNPACK, "sh", str(folder)]
        self.mac.send(argv, chunks, timeout_s=BUILD_S).check(
            f"copying to {folder} on the Mac",
            device=self.device.name,
            hint="look at the message above: free space is the usual reason",
        )

    def send(self, folder: PurePosixPath, identifier: str, place: str) -> None:
        """Copy a folder of the Mac into an app's container, beside what is there."""
        options = [
            *_make_container_options(identifier),
            "--source",
            str(folder),
            "--destination",
            place,
        ]
        self.run_devicectl(["copy", "to"], options, "copying to the phone")

    def fetch(self, identifier: str, place: str, target: PurePosixPath) -> bytes:
        """Return a file of an app's container; it goes through a file of the Mac."""
        options = [
            *_make_container_options(identifier),
            "--source",
            place,
            "--destination",
            str(target),
        ]
        self.run_devicectl(["copy", "from"], options, "copying from the phone")
        return self.run(["cat", str(target)], "reading what the phone wrote").stdout


def _make_container_options(identifier: str) -> list[str]:
    return ["--domain-type", "appDataContainer", "--domain-identifier", identifier]
