"""A program at the other end of an SSH channel."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import cast

import asyncssh

from edgepack.devices.pipes import Received
from edgepack.devices.ssh.loop import Loop
from edgepack.errors import DeviceError, UnreachableError

_PIECE_BYTES = 1 << 17
_QUEUED_BYTES = 4 * _PIECE_BYTES
"""What may be on its way from a writing thread to the loop."""


class RemoteProgram(asyncssh.SSHClientSession[bytes]):
    """A running program: asyncssh calls it in the loop, and other threads use its pipes.

    Its methods without an underscore that asyncssh does not name are those of
    :class:`~edgepack.devices.pipes.Pipes`.
    """

    def __init__(self, loop: Loop, device: str, timeout_s: float) -> None:
        self.outputs = Received(pause=self._pause, resume=self._resume)
        self._loop = loop
        self._device = device
        self._timeout_s = timeout_s
        self._channel: asyncssh.SSHClientChannel[bytes] | None = None
        self._connection: asyncssh.SSHClientConnection | None = None
        self._moved = threading.Condition()
        self._queued = 0
        self._is_full = False
        self._answered = False
        self._closed = False
        self._code: int | None = None
        self._ended = False
        self._lost: str | None = None

    # What asyncssh calls.

    def connection_made(self, chan: asyncssh.SSHClientChannel[bytes]) -> None:
        """Note the channel and its connection."""
        self._channel = chan
        self._connection = cast("asyncssh.SSHClientConnection", chan.get_connection())

    def data_received(self, data: bytes, datatype: int | None) -> None:
        """Take output."""
        is_stderr = datatype == asyncssh.EXTENDED_DATA_STDERR
        if not is_stderr and not self._answered:  # a shell that finds no program says so on stderr
            self._note(answered=True)
        self.outputs.put("stderr" if is_stderr else "stdout", data)

    def eof_received(self) -> bool:
        """Note that there will be no more output; stdin stays open."""
        self.outputs.end()
        return True

    def exit_status_received(self, status: int) -> None:
        """Note how the program ended."""
        self._note(code=status)

    def pause_writing(self) -> None:
        """Note that the program does not read as fast as it is written to."""
        self._note(is_full=True)

    def resume_writing(self) -> None:
        """Note that there is room again."""
        self._note(is_full=False)

    def connection_lost(self, exc: Exception | None) -> None:
        """Note that the channel has ended, and whether its connection has."""

        # asyncssh ends the channels of a connection before it says that the connection is closed.
        def finish() -> None:
            if exc is not None or (self._connection is not None and self._connection.is_closed()):
                self._lost = str(exc or "")
            self.outputs.end()
            self._note(ended=True)

        self._loop.call(finish)

    def _note(
        self,
        *,
        code: int | None = None,
        is_full: bool | None = None,
        answered: bool = False,
        ended: bool = False,
    ) -> None:
        with self._moved:
            self._answered = self._answered or answered
            self._code = self._code if code is None else code
            self._is_full = self._is_full if is_full is None else is_full
            self._ended = self._ended or ended
            self._moved.notify_all()

    # What other threads call.

    def write(self, data: bytes) -> None:
        """Send all of ``data`` to stdin; see :class:`~edgepack.devices.pipes.Pipes`."""
        for start in range(0, len(data), _PIECE_BYTES):
            piece = data[start : start + _PIECE_BYTES]
            with self._moved:
                if not self._moved.wait_for(self._has_room, self._timeout_s):
                    raise TimeoutError
                if self._ended:
                    self._raise_ended()
                self._queued += len(piece)
            self._loop.call(self._send, piece)

    def close_stdin(self) -> None:
        """End stdin."""
        self._loop.call(self._end_stdin)

    def wait(self, timeout_s: float) -> int:
        """Return the exit code; see :class:`~edgepack.devices.pipes.Pipes`."""
        with self._moved:
            if not self._moved.wait_for(lambda: self._ended or self._code is not None, timeout_s):
                raise TimeoutError
        if self._code is not None:
            return self._code
        if self._lost is not None:
            raise make_lost_error(self._device, self._lost)
        raise DeviceError(
            "the program was killed on the device before it ended",
            hint="look at the device's memory and log (dmesg): Linux kills a program when memory"
            " runs out",
            where=self._device,
        )

    def close(self) -> None:
        """Close the channel, which closes the program's pipes."""
        self._closed = True
        self._loop.call(self.abort)

    def has_ended(self) -> bool:
        """Return whether the server has closed the channel too."""
        return self._ended

    def wait_settled(self, timeout_s: float) -> None:
        """Wait until the program has ended or is at work, and no longer than ``timeout_s``.

        At work: it has printed to stdout, gave no exit code yet, and nobody has closed it.
        """
        with self._moved:
            self._moved.wait_for(lambda: self._ended or self._is_at_work(), timeout_s)

    def _is_at_work(self) -> bool:
        return self._answered and self._code is None and not self._closed

    def _has_room(self) -> bool:
        return self._ended or (self._queued < _QUEUED_BYTES and not self._is_full)

    def _raise_ended(self) -> None:
        if self._lost is not None:
            raise make_lost_error(self._device, self._lost)
        raise BrokenPipeError

    # What the loop calls for these.

    def abort(self) -> None:
        """Close the channel at once, whatever was still to be sent or received."""
        if self._channel is not None:
            self._channel.abort()

    def _send(self, piece: bytes) -> None:
        with suppress(OSError):  # it has ended: whoever writes more sees that
            if self._channel is not None:
                self._channel.write(piece)
        with self._moved:
            self._queued -= len(piece)
            self._moved.notify_all()

    def _end_stdin(self) -> None:
        with suppress(OSError):
            if self._channel is not None:
                self._channel.write_eof()

    def _pause(self) -> None:
        if self._channel is not None:
            self._loop.call(self._channel.pause_reading)

    def _resume(self) -> None:
        if self._channel is not None:
            self._loop.call(self._channel.resume_reading)


def make_lost_error(device: str, said: str = "") -> UnreachableError:
    """Return the error for a connection that has ended before what was asked for."""
    return UnreachableError(
        "the connection was lost" + (f": {said}" if said else ""),
        hint="nothing half-done is left on the device; check the network and try again",
        where=device,
    )
