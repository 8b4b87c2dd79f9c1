from __future__ import annotations

import errno
import inspect
import socket

import asyncssh
import pytest
from edgepack.devices.ssh.config import SshSettings
from edgepack.devices.ssh.problems import NotSshError, explained
from edgepack.errors import BusyError, DeviceError, UnreachableError

FAILED = asyncssh.ChannelOpenError(asyncssh.OPEN_CONNECT_FAILED, "Connect failed")
FORBIDDEN = asyncssh.ChannelOpenError(asyncssh.OPEN_ADMINISTRATIVELY_PROHIBITED, "Prohibited")
HOP = SshSettings(host="board", hostname="192.0.2.17", port=22, user="pi")
CLASSES = [
    kind for _, kind in inspect.getmembers(asyncssh, inspect.isclass) if issubclass(kind, Exception)
]


@pytest.mark.parametrize("kind", [*CLASSES, ValueError, AssertionError, OverflowError])
def test_every_exception_of_asyncssh_is_caught(kind: type[Exception]) -> None:
    # Their arguments differ; only the class decides.
    methods = {"__init__": lambda _: None, "__str__": lambda _: "why", "code": 0}
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
        (NotSshError(), "is not an SSH server"),
        (asyncssh.ConnectionLost("Login timeout expired"), "was lost: Login timeout expired"),
        (FAILED, "the host on the way does not connect"),
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
        (NotSshError(), UnreachableError),
        (asyncssh.ConnectionLost("gone"), UnreachableError),
        (asyncssh.KeyExchangeFailed("no host key"), DeviceError),
        (FAILED, UnreachableError),
        (FORBIDDEN, DeviceError),
    ],
)
def test_what_another_try_may_mend_is_told_apart(error: Exception, kind: type[DeviceError]) -> None:
    with pytest.raises(DeviceError) as caught, explained("board", HOP):
        raise error
    assert type(caught.value) is kind


def test_error_of_our_own_stays_what_it_is() -> None:
    with pytest.raises(BusyError) as caught, explained("board", HOP):
        raise BusyError("held", hint="wait")
    assert caught.value.problem == "held"
