"""The transport over SSH."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Self

import paramiko

from edgepack.devices.commands import CommandTransport, format_command
from edgepack.devices.inventory import Device, SshEntry
from edgepack.devices.pipes import Pipes
from edgepack.devices.ssh.config import SshSettings
from edgepack.devices.ssh.connect import HANDSHAKE_S, LINK_ERRORS, connect
from edgepack.devices.ssh.host_keys import HostKey, find_problem
from edgepack.errors import DeviceError, UnreachableError, UsageError

# paramiko logs what it also raises; without a handler Python would print that.
logging.getLogger("paramiko").addHandler(logging.NullHandler())


_PACKET_BYTES = 1 << 15


class SshTransport(CommandTransport):
    """One SSH connection, used for everything until the context is left."""

    def __init__(self, device: Device) -> None:
        self.name = device.name
        self._entry = find_ssh_entry(device)
        self._python = device.plain_python
        self._stack = contextlib.ExitStack()
        self._connection: paramiko.Transport | None = None

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            self._connection = connect(self._entry, self.name, accept=self._accept, stack=stack)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._connection = None
        self._stack.close()

    def _accept(self, received: HostKey, hop: SshSettings, pinned: str | None) -> None:
        problem = find_problem(received, hop, pinned=pinned, device=self.name)
        if problem:
            raise problem.error
        self.host_key = received.fingerprint  # the device's is the last on the way

    def _start(self, argv: Sequence[str], *, timeout_s: float) -> Pipes:
        if self._connection is None:
            raise RuntimeError("the transport is used outside its context")
        try:
            channel = self._connection.open_session(timeout=HANDSHAKE_S)
            channel.settimeout(timeout_s)
            with _closed_after(HANDSHAKE_S, channel):
                channel.exec_command(format_command(argv))
        except LINK_ERRORS as error:
            raise _make_lost_error(self.name, str(error)) from error
        return _ChannelPipes(channel, self.name)


class _ChannelPipes:
    """A program at the other end of an SSH channel."""

    def __init__(self, channel: paramiko.Channel, device: str) -> None:
        self._channel = channel
        self._device = device

    def write(self, data: bytes) -> None:
        # paramiko's sendall copies all remaining bytes for each packet, and never returns if
        # another thread has ended the channel's stdin.
        view = memoryview(data)
        try:
            while view:
                sent = self._channel.send(bytes(view[:_PACKET_BYTES]))
                if not sent:
                    raise BrokenPipeError
                view = view[sent:]
        except TimeoutError:
            raise
        except (OSError, EOFError) as error:
            self._check_connection()
            raise BrokenPipeError from error

    def close_stdin(self) -> None:
        with contextlib.suppress(OSError, EOFError):  # wait() says how the program ended
            self._channel.shutdown_write()

    def read(self, size: int) -> bytes:
        return _receive_some(self._channel.recv, size)

    def read_stderr(self, size: int) -> bytes:
        return _receive_some(self._channel.recv_stderr, size)

    def wait(self, timeout_s: float) -> int:
        if not self._channel.status_event.wait(timeout_s):
            raise TimeoutError
        code = self._channel.recv_exit_status()
        if code == -1:
            self._check_connection()
            raise DeviceError(
                "the program was killed on the device before it ended",
                hint="look at the device's memory and log (dmesg): Linux kills a program when"
                " memory runs out",
                where=self._device,
            )
        return code

    def close(self) -> None:
        with contextlib.suppress(OSError, EOFError):  # the connection may have just ended
            self._channel.close()

    def _check_connection(self) -> None:
        if not self._channel.get_transport().is_active():
            raise _make_lost_error(self._device)


def _receive_some(receive: Callable[[int], bytes], size: int) -> bytes:
    """Return received bytes, none at the end; ``wait`` says whether the link was lost."""
    try:
        return receive(min(size, 1 << 17))
    except TimeoutError:
        raise
    except (OSError, EOFError):
        # paramiko answers that there is room again, and the connection may end just then.
        return b""


@contextlib.contextmanager
def _closed_after(seconds: float, channel: paramiko.Channel) -> Iterator[None]:
    """Close a channel if the block takes longer: paramiko waits forever for an exec's answer."""

    def close() -> None:
        with contextlib.suppress(*LINK_ERRORS):  # the connection may be closing at the same time
            channel.close()

    timer = threading.Timer(seconds, close)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _make_lost_error(device: str, said: str = "") -> UnreachableError:
    return UnreachableError(
        "the connection was lost" + (f": {said}" if said else ""),
        hint="nothing half-done is left on the device; check the network and try again",
        where=device,
    )


def find_ssh_entry(device: Device) -> SshEntry:
    """Return how to reach a device, or the machine that a phone is attached to, over SSH.

    Raises:
        UsageError: It is not reached over SSH.
    """
    entry = device.host.entry
    if not isinstance(entry, SshEntry):
        raise UsageError(
            f"device {device.name!r} is not reached over SSH", hint="it has no host key to trust"
        )
    return entry
