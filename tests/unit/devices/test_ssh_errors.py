from __future__ import annotations

import errno
import inspect
import socket
from types import SimpleNamespace

import paramiko
import pytest
from edgepack.devices.ssh.config import SshSettings
from edgepack.devices.ssh.connect import explained
from edgepack.devices.ssh.transport import _ChannelPipes
from edgepack.errors import DeviceError, UnreachableError
from paramiko.ssh_exception import IncompatiblePeer

HOP = SshSettings(host="board", hostname="192.0.2.17", port=22, user="pi")
CLASSES = inspect.getmembers(paramiko.ssh_exception, inspect.isclass)


@pytest.mark.parametrize("kind", [kind for _, kind in CLASSES if issubclass(kind, Exception)])
def test_every_exception_of_paramiko_is_caught(kind: type[Exception]) -> None:
    # Their arguments differ; only the class decides.
    methods = {"__init__": lambda _: None, "__str__": lambda _: "why"}
    error = type("Raised", (kind,), methods)
    with pytest.raises(DeviceError) as caught, explained("board", HOP):
        raise error
    assert "pi@192.0.2.17:22" in caught.value.problem
    assert caught.value.where == "board"


@pytest.mark.parametrize(
    ("error", "problem"),
    [
        (OSError(errno.EHOSTUNREACH, "no"), "there is no route to"),
        (OSError(errno.ENETUNREACH, "no"), "there is no route to"),
        (TimeoutError(), "did not answer in time"),
        (EOFError(), "was lost"),
        (ConnectionResetError(errno.ECONNRESET, "reset by peer"), "was lost"),
        (paramiko.SSHException("Error reading SSH protocol banner"), "is not an SSH server"),
        (paramiko.ChannelException(2, "Connect failed"), "the host on the way does not connect"),
    ],
)
def test_what_went_wrong_is_told_apart(error: Exception, problem: str) -> None:
    with pytest.raises(DeviceError, match=problem), explained("board", HOP):
        raise error


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ConnectionRefusedError(errno.ECONNREFUSED, "refused"), UnreachableError),
        (ConnectionResetError(errno.ECONNRESET, "reset by peer"), UnreachableError),
        (TimeoutError(), UnreachableError),
        (EOFError(), UnreachableError),
        (socket.gaierror(socket.EAI_NONAME, "unknown"), UnreachableError),
        (OSError(errno.EHOSTUNREACH, "no"), UnreachableError),
        (OSError(errno.EMFILE, "too many open files"), DeviceError),
        (PermissionError(errno.EACCES, "no"), DeviceError),
        (paramiko.SSHException("Error reading SSH protocol banner"), UnreachableError),
        (IncompatiblePeer("no acceptable host key"), DeviceError),
        (paramiko.ChannelException(2, "Connect failed"), UnreachableError),
        (paramiko.ChannelException(1, "Administratively prohibited"), DeviceError),
    ],
)
def test_what_another_try_may_mend_is_told_apart(error: Exception, kind: type[DeviceError]) -> None:
    with pytest.raises(DeviceError) as caught, explained("board", HOP):
        raise error
    assert type(caught.value) is kind


@pytest.mark.parametrize("error", [EOFError, OSError])
def test_close_when_the_connection_ends_meanwhile_is_quiet(error: type[Exception]) -> None:
    class Ending:
        def close(self) -> None:
            raise error

    _ChannelPipes(Ending(), "board").close()  # type: ignore[arg-type]


@pytest.mark.parametrize("error", [EOFError(), OSError("Socket is closed")])
def test_output_when_the_connection_ends_while_it_is_read_has_ended(error):
    # What paramiko 5.1 raises where it tells a device that there is room again, and nobody listens.
    def ended(size: int) -> bytes:
        raise error

    channel = SimpleNamespace(recv=ended, recv_stderr=ended)
    pipes = _ChannelPipes(channel, "board")
    assert (pipes.read(10), pipes.read_stderr(10)) == (b"", b"")


def test_output_when_none_came_in_time_has_not_ended():
    def late(size: int) -> bytes:
        raise TimeoutError

    with pytest.raises(TimeoutError):
        _ChannelPipes(SimpleNamespace(recv=late), "board").read(10)
