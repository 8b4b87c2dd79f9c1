"""Pushes a bundle: sends only what the device lacks; the device keeps all of it or none."""

from __future__ import annotations

import hashlib
import ipaddress
import json
import re
import shlex
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from itertools import chain, groupby
from pathlib import Path, PurePosixPath
from typing import Self

from pydantic import BaseModel, Field, RootModel

from edgepack.base.machine import find_own_name
from edgepack.base.progress import Progress, Silent, Work
from edgepack.bundle.kept import Kept, read_stamps
from edgepack.bundle.manifest import MANIFEST, MANIFEST_SIGNATURE
from edgepack.bundle.reading import AnyBundle, Bundle, load_any, verify, verify_any
from edgepack.deploy.transfer.chunks import Chunk, cut_file
from edgepack.deploy.transfer.relay import Relay
from edgepack.deploy.transfer.shell_agent import (
    NO_SPACE,
    TRY_AGAIN,
    ShellAgent,
    ShellAnswer,
    check_result,
    make_gone_error,
    make_no_space_error,
    make_switch_hint,
)
from edgepack.devices.answers import MAX_BYTES, make_answer_error, read_answer
from edgepack.devices.inventory import LOCAL, BrowserEntry, Device
from edgepack.devices.programs import open_device_program
from edgepack.devices.transport import CommandResult, Stream, Transport
from edgepack.errors import (
    DeviceError,
    PythonMissingError,
    RemoteCommandError,
    UnreachableError,
    UsageError,
)

STALL_S = 300.0
"""Seconds that the device may neither read nor answer: it hashes and syncs meanwhile."""

NOT_REACHED = 75
"""The agent's exit code where it cannot fetch from the relay."""
_FRESH_S = 5.0
"""How old what a waiting agent has seen may be."""
_WRITE_BYTES = 1 << 17
"""Small chunks are sent together, this many bytes at a time."""


@dataclass(frozen=True)
class PushedRelease:
    """A release on a device."""

    device: str
    release: str
    """The first 16 hex digits of the manifest's SHA-256."""
    path: PurePosixPath
    """The release's folder on the device."""
    bytes_sent: int
    already_there: bool
    switched_from: str | None
    """The release that was current before; None if there was none."""
    variant: str | None = None
    """What the device's loader chose when it tried the release; None if it was not tried."""
    warm_up_s: float | None = None
    """Seconds that the self-test took, including the engines that it built."""


class PushAgent:
    """The agent on a device that takes a bundle.

    It may be started before it is needed: it looks at what is there and changes nothing before it
    gets more, so that the lease of the device is taken meanwhile.
    """

    def __init__(
        self,
        bundle: Path,
        device: Device,
        transport: Transport,
        *,
        switch: bool = True,
        relay: Relay | None = None,
    ) -> None:
        """Read the bundle's manifest.

        With a ``relay``, the device fetches there what it lacks.

        Raises:
            BundleError: It is no bundle's folder, or its manifest is altered.
            DeviceError: The bundle is for another target.
        """
        self.bundle = open_for(device, bundle)
        self.device = device
        self.transport = transport
        self.switch = switch
        self.relay = relay
        self.signed: bytes | None = None
        """The bundle's signature as it was announced, if there is one."""
        self._stack = ExitStack()
        self._stream: Stream | None = None
        self._since = 0.0

    @contextmanager
    def started(self) -> Iterator[Self]:
        """Start it for the context; a device without Python is told where it is talked to."""
        with self._stack:
            with suppress(PythonMissingError):
                self._start()
            yield self

    @contextmanager
    def talking(self) -> Iterator[Stream]:
        """Talk to it; what it has seen must not be old, for others may have pushed since."""
        if self._stream is None or time.monotonic() - self._since > _FRESH_S:
            self._stack.close()
            self._start()
        with self._stack:
            if self._stream is None:
                raise RuntimeError("it was started")
            yield self._stream
            self._stream = None

    def _start(self) -> None:
        signature = self.bundle.path / MANIFEST_SIGNATURE
        self.signed = signature.read_bytes() if signature.exists() else None
        digest_or_none = "-" if self.signed is None else hashlib.sha256(self.signed).hexdigest()
        how = ["switch" if self.switch else "stay", str(self.device.entry.kept_releases)]
        source = "stdin" if self.relay is None else "relay"
        options = [self.bundle.digest, digest_or_none, *how, source, find_own_name()]
        name = self.bundle.manifest.name
        modules = [] if self.relay is None else ["edgepack_fetch"]
        opened = _open_agent(self.transport, self.device, "push", name, options, modules)
        self._stream = self._stack.enter_context(opened)
        self._since = time.monotonic()


def begin_reading(bundle: Path) -> None:
    """Hash and cut a bundle in threads, while a device is connected to; errors come with its use.

    For several devices this is done once.
    """
    _verify.begin(bundle)
    _header.begin(bundle)


def send_release(
    agent: PushAgent,
    *,
    preflight: Callable[[], object] = lambda: None,
    progress: Progress | None = None,
) -> PushedRelease:
    """Put a bundle on a device, and with the agent's ``switch`` make it the ``current`` one.

    Chunks that lie on the device, in other releases or from a push that broke, are not sent.
    Whatever breaks, ``current`` and the other releases stay unchanged, and the next push sends the
    rest. The inventory says how many releases are kept. A device without Python gets whole files,
    and a broken push starts again from the beginning.

    Args:
        agent: Takes the bundle; it may be started already.
        preflight: Called before anything is sent to a device that lacks the release, or Python;
            what it raises ends the push.
        progress: Where to report; default: nowhere.

    Raises:
        BundleError: The bundle is not whole; nothing was sent.
        DeviceError: The device is not the bundle's target, and nothing was sent; or the
            connection broke, or the device's disk is full.
        RemoteCommandError: The device refused the bundle.
    """
    verified, device, transport = agent.bundle, agent.device, agent.transport
    progress = progress or Silent()
    try:
        return _push_chunks(agent, preflight=preflight, progress=progress)
    except PythonMissingError:
        if not device.may_lack_python:
            raise
        preflight()
        progress.note(f"{device.name} has no Python: whole files are sent")
        is_signed = (verified.path / MANIFEST_SIGNATURE).exists()
        unlisted = (MANIFEST_SIGNATURE,) if is_signed else ()
        began = time.monotonic()
        told = ShellAgent(device, transport).push(verified, unlisted, switch=agent.switch)
        if not told.already_there:
            files = len(verified.manifest.files)
            took_s = time.monotonic() - began
            progress.note(format_sent(device.name, told.bytes_sent, files, took_s))
    return PushedRelease(
        device=device.name,
        release=verified.digest[:16],
        path=told.path,
        bytes_sent=told.bytes_sent,
        already_there=told.already_there,
        switched_from=told.before,
    )


def _push_chunks(
    agent: PushAgent, *, preflight: Callable[[], object], progress: Progress
) -> PushedRelease:
    verified, device = agent.bundle, agent.device
    bytes_sent = 0
    with agent.talking() as stream:
        # Meanwhile the agent looks at what is there; it changes nothing before it gets more.
        _verify(verified.path)
        answer = stream.read(len(b"have\n"))
        if answer and answer not in (b"have\n", b"sign\n", b"send\n"):
            stream.close_stdin()  # what is printed may have no end
            raise _make_chatty_error(answer + stream.read(60), device.name)
        if answer == b"send\n":
            preflight()
        try:
            if answer == b"have\n":
                stream.write(b"0\n")
            if answer == b"send\n":
                bytes_sent = _send_missing(agent, stream, progress)
            if answer == b"sign\n" and agent.signed is not None:
                stream.write(b"%d\n" % len(agent.signed) + agent.signed)
                bytes_sent = len(agent.signed)
        except RemoteCommandError:
            pass  # the agent gave up: its exit code says why
        result = stream.wait()
    told = _read_end(result, "putting the bundle in its place", device.name)
    return PushedRelease(
        device=device.name,
        release=verified.digest[:16],
        path=told.path,
        bytes_sent=bytes_sent,
        already_there=answer != b"send\n",
        switched_from=told.before,
    )


@dataclass(frozen=True)
class Switched:
    """A release that was on the device already and is current now."""

    device: str
    project: str
    release: str
    path: PurePosixPath
    switched_from: str | None


def switch_release(
    pushed: PushedRelease, project: str, device: Device, transport: Transport
) -> Switched:
    """Make a release current that was pushed without a switch.

    Raises:
        RemoteCommandError: The device no longer has all of it; nothing was changed.
        DeviceError: The connection broke.
    """
    return _point_at(pushed.release, "switch", project, device, transport)


def require_there(pushed: PushedRelease, transport: Transport) -> None:
    """Check that a release that was pushed without a switch is still on its device.

    Raises:
        BusyError: Other pushes, which keep a few releases only, have removed it.
        DeviceError: The connection broke.
    """
    found = transport.send(["test", "-e", str(pushed.path / MANIFEST)], [], timeout_s=STALL_S)
    if found.exit_code:
        raise make_gone_error(f": {pushed.path} is not here any more", pushed.device)


def require_release(project: str, release: str | None) -> None:
    """Check that a project and a release can have these names.

    Raises:
        UsageError: One of them cannot.
    """
    if not re.fullmatch(r"[A-Za-z0-9]+([._-][A-Za-z0-9]+)*", project):
        raise UsageError(
            f"{project!r} is no project's name", hint="give the 'name' of edgepack.yaml"
        )
    if release is not None and not re.fullmatch(r"[0-9a-f]{16}", release):
        raise UsageError(
            f"{release!r} is no release",
            hint="give its 16 hex digits, as 'edgepack push' printed them",
        )


def switch_back(
    project: str, device: Device, transport: Transport, *, release: str | None = None
) -> Switched:
    """Make a release on the device current: by default the one before the current one.

    Args:
        project: The ``name`` of the bundle.
        device: Where.
        transport: To it.
        release: Its 16 hex digits.

    Raises:
        UsageError: The name or the release cannot be one.
        RemoteCommandError: The device has no such release, or not all of it; nothing was changed.
        DeviceError: The connection broke. Without ``release`` it is unknown then whether it was
            done, and another try could undo it.
    """
    require_release(project, release)
    if release is not None:
        return _point_at(release, "rollback", project, device, transport)
    try:
        return _point_at("-", "rollback", project, device, transport)
    except UnreachableError as error:
        raise DeviceError(
            f"{error.problem}, and it is not known whether the device went back",
            hint=f"see which release is current: edgepack device verify {device.name}; with"
            " '--to RELEASE' it can be done again without harm",
            where=device.name,
        ) from error


def _point_at(
    release: str, action: str, project: str, device: Device, transport: Transport
) -> Switched:
    options = [release, action, str(device.entry.kept_releases), find_own_name()]
    told: _End | ShellAnswer
    try:
        with _open_agent(transport, device, "switch", project, options) as stream:
            result = stream.wait()
        doing = "going back" if action == "rollback" else "switching"
        told = _read_end(result, doing, device.name, make_switch_hint(project, device.name))
    except PythonMissingError:
        if not device.may_lack_python:
            raise
        told = ShellAgent(device, transport).switch(project, release, action)
    return Switched(device.name, project, told.path.name, told.path, told.before)


def read_for(device: Device, path: Path) -> Bundle:
    """Return a bundle of one model after checking that it is whole and for a device's target.

    Raises:
        BundleError: It is no bundle's folder, not whole, or has several models.
        DeviceError: The bundle is for another target.
    """
    open_for(device, path)
    return verify(path)


def open_for(device: Device, path: Path) -> AnyBundle:
    """Return a bundle after checking its manifest, and that it is for the target of a device.

    Raises:
        BundleError: It is no bundle's folder, or its manifest is altered.
        DeviceError: The bundle is for another target, or for browsers.
    """
    bundle = load_any(path)
    if bundle.manifest.family == "web" and not isinstance(device.entry, BrowserEntry):
        raise DeviceError(
            f"the bundle is for browsers, and {device.name} is none",
            hint="give the .tgz beside it to npm install, or measure it with 'transport: browser'"
            " in devices.yaml (docs/web.md); for the device: edgepack build --target TARGET"
            " (edgepack targets list)",
            where=device.name,
        )
    if bundle.manifest.target != device.target:
        raise DeviceError(
            f"the bundle is for {bundle.manifest.target}, the device {device.name} for"
            f" {device.target}",
            hint=f"edgepack build --target {shlex.quote(device.target)}"
            + ("" if device.name == LOCAL else f", or change {device.name!r} in devices.yaml"),
            where=device.name,
        )
    return bundle


def _open_agent(
    transport: Transport,
    device: Device,
    operation: str,
    project: str,
    options: list[str],
    modules: Iterable[str] = (),
) -> AbstractContextManager[Stream]:
    return open_device_program(
        transport,
        device,
        "edgepack_agent",
        *(operation, device.entry.root, project, *options),
        modules=("edgepack_releases", *modules),
        timeout_s=STALL_S,
        supervised=False,
    )


def _send_missing(agent: PushAgent, stream: Stream, progress: Progress) -> int:
    """Send the header, and the chunks that the device then asks for; return the bytes."""
    bundle, device = agent.bundle, agent.device.name
    header, chunks = _header(bundle.path)
    stream.write(b"%d\n" % len(header) + header)
    missing = [chunks[number] for number in _read_missing(stream, len(chunks), device)]
    if agent.relay is not None and missing:
        return len(header) + _relay_missing(missing, agent.relay, device, stream, progress)
    by_file = [
        (str(path.relative_to(bundle.path)), list(group))
        for path, group in groupby(missing, key=lambda chunk: chunk.path)
    ]
    bytes_sent = len(header)
    began = time.monotonic()
    size = sum(chunk.size for chunk in missing)
    with progress.start_task(Work(f"{device}: sending", total=size, unit="bytes")) as advance:
        for name, group in by_file:
            for data in _cut_blocks(chunk.read() for chunk in group):
                stream.write(data)
                advance(name, by=len(data))
    progress.note(format_sent(device, bytes_sent + size, len(by_file), time.monotonic() - began))
    return bytes_sent + size


def _relay_missing(
    missing: list[Chunk], relay: Relay, device: str, stream: Stream, progress: Progress
) -> int:
    """Let a device fetch chunks from a relay; return the bytes that it fetches."""
    size = sum(chunk.size for chunk in missing)
    began = time.monotonic()
    sent = Work(f"{device}: sending to the host on the way", total=size, unit="bytes")
    with progress.start_task(sent) as advance:
        newly = relay.put(missing, device, lambda count: advance("", by=count))
    address = _read_text(stream, "the relay's address", device)
    offer = json.dumps(relay.offer(_parse_address(address, device), device)).encode()
    stream.write(b"%d\n" % len(offer) + offer)
    fetched = Work(f"{device}: fetching", total=size >> 20 << 20, unit="bytes")
    with progress.start_task(fetched) as advance:
        for _ in range(size >> 20):
            if stream.read(1) != b".":
                break  # it has ended: its exit code says why
            advance("", by=1 << 20)
    took_s = time.monotonic() - began
    progress.note(
        f"{device}: fetched {size / 1e6:.2f} MB from the host on the way in {took_s:.1f} s;"
        f" {newly / 1e6:.2f} MB were sent there for it"
    )
    return size


def _parse_address(said: bytes, device: str) -> str:
    """Return a relay's address; it goes into a line of its own."""
    address = said.decode("ascii", "replace")
    try:
        ipaddress.ip_address(address)
    except ValueError as error:
        raise make_answer_error("the relay's address is none", said, device=device) from error
    return address


def format_sent(device: str, size: int, files: int, took_s: float) -> str:
    """Return what was sent to a device, as a line for people."""
    amount = f"{size / 1e6:.2f} MB" if size >= 10_000 else f"{size} bytes"
    parts = f"{files} file{'' if files == 1 else 's'}"
    took = f"{took_s:.1f} s" if took_s >= 0.1 else "less than 0.1 s"
    return f"{device}: sent {amount} of {parts} in {took}"


def _make_announcement(folder: Path) -> tuple[bytes, list[Chunk]]:
    """Return the document that announces a bundle, and its chunks by number, each only once."""
    bundle = load_any(folder)
    files, chunks = _cut_files(folder, [entry.path for entry in bundle.manifest.files])
    signature = folder / MANIFEST_SIGNATURE
    document = {
        "manifest": (folder / MANIFEST).read_text(encoding="utf-8"),
        "signature": signature.read_text(encoding="ascii") if signature.exists() else None,
        "chunks": [(chunk.sha256, chunk.size) for chunk in chunks],
        "files": files,
    }
    return json.dumps(document).encode(), chunks


def _cut_files(folder: Path, names: Iterable[str]) -> tuple[dict[str, list[int]], list[Chunk]]:
    """Return the numbers of each file's chunks, and the chunks."""
    numbers: dict[tuple[str, int], int] = {}
    chunks: list[Chunk] = []
    files: dict[str, list[int]] = {}
    for name in names:
        files[name] = []
        for chunk in cut_file(folder / name):
            number = numbers.setdefault((chunk.sha256, chunk.size), len(chunks))
            if number == len(chunks):
                chunks.append(chunk)
            files[name].append(number)
    return files, chunks


# The device compares what arrives with the manifest; these checks only fail before anything is
# sent.
_verify = Kept(verify_any, read_stamps)
_header = Kept(_make_announcement, read_stamps)


class _Ranges(RootModel):  # type: ignore[type-arg]  # with its argument it takes 15 ms to make
    """Ranges of chunks' numbers, ends included."""

    root: list[tuple[int, int]]


class _End(BaseModel):
    """The agent's result, its last line."""

    path: PurePosixPath
    before: str | None = Field(alias="from")


def _read_missing(stream: Stream, count: int, device: str) -> Iterable[int]:
    """Return the numbers of the chunks that the device lacks.

    Raises:
        RemoteCommandError: The agent ended without them.
        DeviceError: The agent printed something else.
    """
    said = _read_text(stream, "the list of missing chunks", device)
    ranges = read_answer(_Ranges, said, device=device, what="the list of missing chunks").root
    if any(not 0 <= first <= last < count for first, last in ranges):
        raise make_answer_error("the device asks for chunks that do not exist", said, device=device)
    return chain.from_iterable(range(first, last + 1) for first, last in ranges)


def _read_text(stream: Stream, what: str, device: str) -> bytes:
    """Return a text of the agent: 16 digits with its length come before it.

    Raises:
        RemoteCommandError: The agent ended without it.
        DeviceError: It is too long.
    """
    length = stream.read(16)
    if not length.isdigit():
        raise RemoteCommandError("the agent ended", hint="its exit code says why")
    if int(length) > MAX_BYTES:
        raise make_answer_error(f"{what} is too long", length, device=device)
    return stream.read(int(length))


def _cut_blocks(parts: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the same bytes in blocks of a good size to write."""
    waiting = bytearray()
    for part in parts:
        waiting += part
        while len(waiting) >= _WRITE_BYTES:
            yield bytes(waiting[:_WRITE_BYTES])
            del waiting[:_WRITE_BYTES]
    if waiting:
        yield bytes(waiting)


def _read_end(result: CommandResult, doing: str, device: str, refused: str = TRY_AGAIN) -> _End:
    """Return the agent's result.

    Raises:
        DeviceError: The disk is full, the relay was not reached, or something else was printed.
        RemoteCommandError: The agent failed.
    """
    if result.exit_code == NOT_REACHED:
        raise UnreachableError(
            f"the device does not reach the relay on the way{result.last_lines}",
            hint="let it through to that host (a firewall there, or a forced command), or leave"
            " 'relay' out of devices.yaml; what came lies on the device, for the next push",
            where=device,
        )
    if result.exit_code == NO_SPACE:
        raise make_no_space_error(result, device)
    check_result(result, doing, device, refused)
    return read_answer(_End, result.stdout, device=device, what="the agent's answer")


def _make_chatty_error(said: bytes, device: str) -> DeviceError:
    return DeviceError(
        f"the device printed {said[:60]!r} before the agent's answer",
        hint="its login must print nothing without a terminal: look into ~/.bashrc there",
        where=device,
    )
