"""Pushes to a device without Python: whole files, with its shell, tar and sha256sum."""

from __future__ import annotations

import hashlib
import tarfile
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath

from edgepack.base.machine import find_own_name
from edgepack.bundle.manifest import MANIFEST, MANIFEST_DIGEST
from edgepack.bundle.reading import AnyBundle
from edgepack.devices.inventory import Device
from edgepack.devices.programs import read_shell_program
from edgepack.devices.transport import CommandResult, Transport, read_chunks
from edgepack.errors import BusyError, DeviceError, RemoteCommandError

STALL_S = 3600.0
"""Seconds that a whole push may take: without Python there is no progress report."""

_FILES = "files"
_MODES = "modes"
_NEW = "new/"
NO_SPACE = 28
"""The exit code of both agents where the disk is full."""
REFUSED = 2
"""The exit code of both agents where another try would fail the same way."""
GONE = 76
"""The exit code of both agents where somebody else has removed a release that is needed."""
_TRIES = 3
TRY_AGAIN = "nothing was changed on the device; look at the message above and try again"


def make_switch_hint(project: str, device: str) -> str:
    """Return the hint for a device that does not switch to a release."""
    return (
        f"nothing was changed. 'edgepack device verify {device}' lists what is there: edgepack"
        f" rollback {project} --device {device} --to RELEASE; or push what should be current:"
        f" edgepack push BUNDLE --device {device}. 'keep_releases' in devices.yaml sets how many a"
        " device keeps"
    )


@dataclass(frozen=True)
class ShellAnswer:
    """The answer of the device's shell to a push or a rollback."""

    path: PurePosixPath
    before: str | None
    bytes_sent: int = 0
    already_there: bool = False


@dataclass(frozen=True)
class ShellAgent:
    """The agent for devices without Python: ``ondevice/agent/edgepack_agent.sh``."""

    device: Device
    transport: Transport

    def push(self, bundle: AnyBundle, unlisted: tuple[str, ...], *, switch: bool) -> ShellAnswer:
        """Put a bundle on the device, and with ``switch`` make it current.

        Args:
            bundle: What to push.
            unlisted: Names of its files that the manifest does not list, besides the manifest's.
            switch: Whether to make it current.

        Raises:
            DeviceError: The connection broke, or there is no space.
            RemoteCommandError: The device refused the bundle, or lacks tar or sha256sum.
        """
        hashes = {entry.path: entry.sha256 for entry in bundle.manifest.files}
        for name in (MANIFEST, MANIFEST_DIGEST, *unlisted):
            hashes[name] = hashlib.sha256((bundle.path / name).read_bytes()).hexdigest()
        lines = "".join(f"{sha256}  {path}\n" for path, sha256 in hashes.items()).encode()
        asked = [bundle.manifest.name, bundle.digest]
        options = ["switch" if switch else "stay", str(self.device.entry.kept_releases)]
        name = find_own_name()
        doing = "putting the bundle in its place"
        tries = 0
        while True:
            tries += 1
            missing = self._ask(asked, hashes.keys(), lines)
            tar = _Tar(bundle, lines, missing or [])
            kib = "0" if missing is None else str(_count_needed_kib(bundle, missing))
            stdin = iter(()) if missing is None else iter(tar)
            result = self._send("push", [*asked, *options, kib, name], stdin)
            if result.exit_code != GONE or tries == _TRIES:
                break
        check_result(result, doing, self.device.name, refused=TRY_AGAIN)
        path, before = self._read_answer(result)
        sent = 0 if missing is None else tar.bytes_made
        return ShellAnswer(path, before, sent, already_there=missing is None)

    def _ask(self, asked: list[str], paths: Collection[str], lines: bytes) -> list[str] | None:
        """Return which files no release there has; None if the bundle is there."""
        told = _split_lines(self._run("ask", asked, iter([lines]), "asking what is missing"))
        if told[:1] == ["have"]:
            return None
        if told[-1:] == ["."] and set(told[:-1]) <= set(paths):
            return told[:-1]
        raise self._make_chatty_error(told)

    def switch(self, project: str, release: str, action: str) -> ShellAnswer:
        """Make a release on the device current, as :func:`.client.switch_back` does."""
        keep = str(self.device.entry.kept_releases)
        options = [project, release, action, keep, find_own_name()]
        doing = "going back" if action == "rollback" else "switching"
        refused = make_switch_hint(project, self.device.name)
        result = self._run("switch", options, iter(()), doing, refused=refused)
        return ShellAnswer(*self._read_answer(result))

    def _run(
        self,
        operation: str,
        options: list[str],
        stdin: Iterator[bytes],
        doing: str,
        refused: str = TRY_AGAIN,
    ) -> CommandResult:
        result = self._send(operation, options, stdin)
        return check_result(result, doing, self.device.name, refused)

    def _send(self, operation: str, options: list[str], stdin: Iterator[bytes]) -> CommandResult:
        words = [operation, self.device.entry.root, *options]
        argv = ["sh", "-c", read_shell_program("edgepack_agent"), "sh", *words]
        result = self.transport.send(argv, stdin, timeout_s=STALL_S)
        if result.exit_code == NO_SPACE or b"No space left" in result.stderr:
            raise make_no_space_error(result, self.device.name)
        return result

    def _read_answer(self, result: CommandResult) -> tuple[PurePosixPath, str | None]:
        told = dict(line.partition(" ")[::2] for line in _split_lines(result))
        if "path" not in told:
            raise self._make_chatty_error(_split_lines(result))
        return PurePosixPath(told["path"]), told.get("from") or None

    def _make_chatty_error(self, told: list[str]) -> DeviceError:
        return DeviceError(
            f"the device printed {' '.join(told)[:60]!r}, which is not from the agent",
            hint="its login must print nothing without a terminal: look into ~/.profile there",
            where=self.device.name,
        )


def check_result(result: CommandResult, doing: str, device: str, refused: str) -> CommandResult:
    """Return an agent's result after checking that it succeeded.

    Args:
        result: How the agent ended.
        doing: What it did, in words.
        device: Its name.
        refused: The hint where it refused to, and changed nothing.

    Raises:
        BusyError: Others have removed a release that it needed.
        RemoteCommandError: It refused, or failed.
    """
    if result.exit_code == GONE:
        raise make_gone_error(result.last_lines, device)
    if result.exit_code == REFUSED:
        problem = f"{doing} was refused{result.last_lines}"
        raise RemoteCommandError(problem, hint=refused, where=device)
    return result.check(doing, device=device, hint=TRY_AGAIN)


def make_gone_error(said: str, device: str) -> BusyError:
    """Return the error for a release that others have removed."""
    return BusyError(
        f"others push or go back there at the same time{said}", hint="do it again", where=device
    )


def make_no_space_error(result: CommandResult, device: str) -> DeviceError:
    """Return the error for a full disk, with what the agent printed about it."""
    said = result.stderr.decode("utf-8", "replace").strip()
    return DeviceError(
        f"there is no space left on the device: {said}",
        hint="free some (old releases lie under <root>/<project>/releases), or set 'root' in"
        " devices.yaml to a larger disk",
        where=device,
    )


def _count_needed_kib(bundle: AnyBundle, missing: list[str]) -> int:
    """Return the KiB that files take in blocks of 4 KiB, with 1 MiB for lists and folders."""
    sizes = [(bundle.path / name).stat().st_size for name in missing]
    return 1024 + sum(4 * -(-size // 4096) for size in sizes)


def _split_lines(result: CommandResult) -> list[str]:
    """Return the lines of stdout, split at newlines only: a path may have Unicode line ends."""
    return result.text.removesuffix("\n").split("\n")


class _Tar:
    """A tar stream of what a device lacks; ``bytes_made`` counts the bytes read from it."""

    def __init__(self, bundle: AnyBundle, lines: bytes, missing: list[str]) -> None:
        self.bytes_made = 0
        self._bundle = bundle
        self._missing = missing
        self._programs = {entry.path for entry in bundle.manifest.files if entry.mode == "755"}
        modes = "".join(f"{path}\n" for path in sorted(self._programs)).encode()
        self._lists = {_FILES: lines, _MODES: modes}

    def __iter__(self) -> Iterator[bytes]:
        for part in self._make_parts():
            self.bytes_made += len(part)
            yield part

    def _make_parts(self) -> Iterator[bytes]:
        for name, content in self._lists.items():
            yield _make_head(name, len(content)) + content + _make_padding(len(content))
        for name in self._missing:
            path = self._bundle.path / name
            size = path.stat().st_size
            mode = 0o755 if name in self._programs else 0o644
            yield _make_head(_NEW + name, size, mode)
            yield from read_chunks(path)
            yield _make_padding(size)
        yield bytes(2 * tarfile.BLOCKSIZE)


def _make_head(name: str, size: int, mode: int = 0o644) -> bytes:
    info = tarfile.TarInfo(name)
    info.size, info.mode = size, mode
    return info.tobuf(tarfile.GNU_FORMAT)


def _make_padding(size: int) -> bytes:
    return bytes(-size % tarfile.BLOCKSIZE)
