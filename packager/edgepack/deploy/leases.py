"""Leases: who may use a device now. They are on the device, so that every host sees the same.

A benchmark takes an exclusive lease; pushes share one. A small program on the device
(``edgepack_lease.py``) keeps the lease, and this process renews it over a stream. When this process
ends for any reason, the stream ends, and so does the lease. A device without Python has
``edgepack_lease.sh`` for that. When the connection dies silently,
there are no renewals and the lease expires within :data:`LEASE_S`. A process id would be useless
here, because holders run on other hosts.

Leases are per root: people who share a device have to name the same ``root`` in devices.yaml.
"""

from __future__ import annotations

import json
import struct
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from edgepack.base.machine import find_own_name
from edgepack.base.progress import Progress, Silent
from edgepack.base.schema import StrictModel
from edgepack.base.terminal import make_printable
from edgepack.devices.answers import make_answer_error, read_answer
from edgepack.devices.inventory import Device
from edgepack.devices.programs import open_device_program, read_shell_program
from edgepack.devices.ssh.loop import find_loop
from edgepack.devices.transport import CommandResult, Stream, Transport
from edgepack.devices.transports import connect
from edgepack.errors import (
    BusyError,
    DeviceError,
    EdgepackError,
    PythonMissingError,
    format_list,
)

LEASE_S = 180.0
"""Seconds after which a lease expires that nobody renews."""
_RENEWALS = 4
"""Renewals within that time; so three may get lost."""
_ANSWER_S = 30.0
"""The program writes a line every 5 s while it waits."""
_MAX_MESSAGE_BYTES = 1 << 20
_OWNER_CHARACTERS = 200
_PURPOSE_CHARACTERS = 500

_Wish = dict[str, str | bool | float]
_Time = Annotated[str, Field(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$")]


class Lease(StrictModel):
    """Somebody's right to a device."""

    id: Annotated[str, Field(pattern="^[0-9a-f]{32}$")]
    owner: Annotated[str, Field(max_length=_OWNER_CHARACTERS)]
    """``user@host``, as the holder states it."""
    purpose: Annotated[str, Field(max_length=_PURPOSE_CHARACTERS)]
    exclusive: bool
    reserved: bool
    """Whether a person has reserved it, until it ends or is released; else a command has it."""
    taken_at: _Time
    """By the device's wall clock."""
    until_at: _Time
    """The end by the device's present wall clock, unless the lease is renewed."""
    left_s: Annotated[float, Field(ge=0)]
    """The end by the device's monotonic clock, which alone decides."""

    def __str__(self) -> str:
        kind = "reserved" if self.reserved else "exclusive" if self.exclusive else "shared"
        end = "until" if self.reserved else "and, unless renewed, until"
        return make_printable(
            f"{self.owner} for {self.purpose!r} ({kind}) since {self.taken_at} {end}"
            f" {self.until_at} by its own clock, {self.left_s:.0f} s from now"
        )


_Answer = Literal["taken", "renewed", "waiting", "refused", "lost", "released", "left"]


class _Message(StrictModel):
    answer: _Answer
    leases: Annotated[list[Lease], Field(max_length=1000)]
    reason: str = ""

    @model_validator(mode="after")
    def _check_leases(self) -> Self:
        if self.answer in ("taken", "renewed", "waiting", "refused") and not self.leases:
            raise ValueError(f"{self.answer!r} without a lease")
        return self


@contextmanager
def leased(
    transport: Transport,
    device: Device,
    purpose: str,
    *,
    exclusive: bool = True,
    wait_s: float = 0.0,
    progress: Progress | None = None,
) -> Iterator[Lease]:
    """Hold a lease of a device while the context lasts.

    An own reservation does not stand in the way.

    Args:
        transport: Connected to the device.
        device: The device to lease.
        purpose: The purpose, as others see it.
        exclusive: If set, nobody else may have a lease; if not, nobody else may have an exclusive
            one.
        wait_s: How long to wait for others.
        progress: Gets who has the device, while waiting.

    Raises:
        PythonMissingError: There is no Python, and the inventory names one.
        DeviceError: Others use the device; or, at the end of the context, an exclusive lease was
            lost in between, so that others may have used the device. The work under a shared lease
            stays right without it.
        RemoteCommandError: The device cannot keep leases, for example on a read-only disk.
    """
    wish = _make_wish(purpose, exclusive=exclusive, wait_s=wait_s)
    with _open_program(device, transport, wish) as stream:
        lease = _read_taken_lease(stream, device, progress)
        renewal = _Renewal(stream, device)
        try:
            yield lease
        finally:
            renewal.stop()
        if exclusive:
            renewal.require_held(purpose)


def _make_wish(purpose: str, *, exclusive: bool, wait_s: float = 0.0) -> _Wish:
    return {
        "do": "hold",
        "owner": find_own_name(),
        "purpose": purpose[:_PURPOSE_CHARACTERS],
        "exclusive": exclusive,
        "reserved": False,
        "ttl_s": LEASE_S,
        "wait_s": wait_s,
    }


def lease_device(device: Device, *, for_s: float, purpose: str = "work by hand") -> Lease:
    """Reserve a device for a while; only the user's own commands run there.

    It replaces an earlier reservation by the same user.

    Args:
        device: The device; a phone is leased on the machine that it is connected to.
        for_s: How long, in seconds.
        purpose: The purpose, as others see it.

    Raises:
        DeviceError: It cannot be reached, or others hold it.
    """
    host = device.host
    wish = {**_make_wish(purpose, exclusive=True), "do": "reserve", "reserved": True}
    with (
        connect(host) as transport,
        _open_program(host, transport, {**wish, "ttl_s": for_s}) as stream,
    ):
        return _read_taken_lease(stream, host)


def release_device(device: Device, *, force: bool = False) -> tuple[Lease, ...]:
    """Release the user's own reservations of a device, and return them.

    Args:
        device: Which.
        force: All leases, also those of others and of commands that run.

    Raises:
        DeviceError: It cannot be reached; or there are leases, and none is the user's own.
    """
    host = device.host
    wish: _Wish = {"do": "release", "owner": find_own_name(), "force": force}
    with connect(host) as transport, _open_program(host, transport, wish) as stream:
        released = _read_message(stream, host, "released")
        left = _read_message(stream, host, "left")
    if left.leases and not released.leases:
        raise DeviceError(
            f"you have no reservation there ({find_own_name()}); it is"
            f" leased{_format_holders(left.leases)}",
            hint="a command's lease ends with the command: stop that. If its owner is gone for"
            f" good: edgepack device release {device.name} --force",
            where=device.name,
        )
    return tuple(released.leases)


def list_leases(device: Device) -> tuple[Lease, ...]:
    """Return who holds a device, the longest first.

    Raises:
        DeviceError: It cannot be reached.
    """
    host = device.host
    with connect(host) as transport, _open_program(host, transport, {"do": "list"}) as stream:
        return tuple(_read_message(stream, host, "left").leases)


def _make_held_error(device: Device, holders: Sequence[Lease]) -> DeviceError:
    """Return the error for a device that others hold."""
    return BusyError(
        f"it is leased{_format_holders(holders)}",
        hint=f"wait with --wait SECONDS; 'edgepack device who {device.name}' shows who holds it;"
        " if its owner is gone for good: edgepack device release"
        f" {device.name} --force",
        where=device.name,
    )


def _format_holders(holders: Sequence[Lease]) -> str:
    if len(holders) == 1:
        return f" by {holders[0]}"
    return " by:\n    " + format_list([str(lease) for lease in holders], most=8, separator="\n    ")


@dataclass(frozen=True)
class _Begun:
    """A stream of which a few bytes were read already."""

    stream: Stream
    head: bytearray

    def read(self, size: int) -> bytes:
        """Return exactly ``size`` bytes of stdout, fewer only at its end."""
        first = bytes(self.head[:size])
        del self.head[:size]
        return first + self.stream.read(size - len(first)) if len(first) < size else first

    def write(self, data: bytes) -> None:
        """Send bytes to the program's stdin."""
        self.stream.write(data)

    def wait(self) -> CommandResult:
        """Return how the program ended."""
        return self.stream.wait()


@contextmanager
def _open_program(device: Device, transport: Transport, wish: _Wish) -> Iterator[_Begun]:
    """Run the program that keeps leases: in the device's Python or, without one, in its shell."""
    words = ("edgepack_lease", device.entry.root, json.dumps(wish))
    with ExitStack() as stack:
        try:
            # It ends with its stdin by itself, and a supervisor would take as long to start again.
            program = open_device_program(
                transport, device, *words, timeout_s=_ANSWER_S, supervised=False
            )
            stream = stack.enter_context(program)
            head = stream.read(1)
            if not head:
                raise _make_ended_error(stream.wait(), device)
        except PythonMissingError:
            if not device.may_lack_python:
                raise
            argv, head = _make_shell_argv(device.entry.root, wish), b""
            shell = transport.stream(argv, timeout_s=_ANSWER_S, supervised=False)
            stream = stack.enter_context(shell)
        yield _Begun(stream, bytearray(head))


def _make_shell_argv(root: str, wish: _Wish) -> list[str]:
    """Return the command of the same program for a shell, without a JSON reader."""
    text = {name: json.dumps(wish.get(name, "")) for name in ("owner", "purpose")}
    kinds = {name: json.dumps(wish.get(name, False)) for name in ("exclusive", "reserved")}
    times = [str(round(100 * float(wish.get(name, 0)))) for name in ("ttl_s", "wait_s")]
    action = "force" if wish.get("force") else str(wish["do"])
    words = [action, root, *text.values(), *kinds.values(), *times]
    return ["sh", "-c", read_shell_program("edgepack_lease"), "sh", *words]


def _read_taken_lease(stream: _Begun, device: Device, progress: Progress | None = None) -> Lease:
    while True:
        message = _read_message(stream, device, "taken", "refused", "waiting")
        if message.answer == "taken":
            return message.leases[0]
        if message.answer == "refused":
            raise _make_held_error(device, message.leases)
        (progress or Silent()).note(f"{device.name} is leased by {message.leases[0]}: waiting")


def _read_message(stream: _Begun, device: Device, *expected: _Answer) -> _Message:
    head = stream.read(4)
    if len(head) < 4:
        raise _make_ended_error(stream.wait(), device)
    (length,) = struct.unpack(">I", head)
    if length > _MAX_MESSAGE_BYTES:
        raise make_answer_error("this is not an answer about leases", head, device=device.name)
    data = stream.read(length)
    what = "the answer about leases"
    message = read_answer(_Message, data, device=device.name, what=what)
    if message.answer not in expected:
        raise make_answer_error(f"{what} is {message.answer!r}", data, device=device.name)
    return message


def _make_ended_error(ended: CommandResult, device: Device) -> EdgepackError:
    ended.check(
        "taking a lease",
        device=device.name,
        hint=f"leases are in {device.entry.root}/lease on the device, and its user must be able"
        " to write there: give that right, or set another 'root' in devices.yaml",
    )
    return DeviceError(
        "the program on the device that keeps the lease has ended",
        hint=f"see who holds the device: edgepack device who {device.name}",
        where=device.name,
    )


class _Renewal:
    """Renews a lease until it is stopped, or the lease is lost.

    A thread is there only while it does so: of five hundred leases most end before that.
    """

    def __init__(self, stream: _Begun, device: Device) -> None:
        self._stream = stream
        self._device = device
        self._problem: EdgepackError | None = None
        self._changing = threading.Lock()
        self._is_stopped = False
        self._thread: threading.Thread | None = None
        self._cancel = find_loop().call_later(LEASE_S / _RENEWALS, self._begin)

    def stop(self) -> None:
        """Renew no more."""
        with self._changing:
            self._is_stopped = True
            self._cancel()
        if self._thread is not None:
            self._thread.join()

    def require_held(self, purpose: str) -> None:
        """Check with one more renewal that the lease was never lost.

        Raises:
            DeviceError: It was lost.
        """
        if self._problem is None:
            self._renew()
        if self._problem is not None:
            raise DeviceError(
                f"the lease was lost during {purpose!r}, others may have used the device:"
                f" {self._problem.problem}",
                hint="do it again: results from this time do not count",
                where=self._device.name,
            ) from self._problem

    def _begin(self) -> None:
        """Renew in a thread: the loop must not wait for a device."""
        with self._changing:
            if not self._is_stopped:
                self._thread = threading.Thread(target=self._run, daemon=True)
                self._thread.start()

    def _run(self) -> None:
        self._renew()
        with self._changing:
            if not self._is_stopped and self._problem is None:
                self._cancel = find_loop().call_later(LEASE_S / _RENEWALS, self._begin)

    def _renew(self) -> None:
        try:
            self._stream.write(b"\n")
            message = _read_message(self._stream, self._device, "renewed", "lost")
        except EdgepackError as error:
            self._problem = error
            return
        if message.answer == "lost":
            self._problem = DeviceError(
                message.reason or "it is gone",
                hint=f"edgepack device who {self._device.name}",
                where=self._device.name,
            )
