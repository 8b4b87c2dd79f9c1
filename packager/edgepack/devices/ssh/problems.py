"""Turns what sockets and asyncssh raise into one sentence and a remedy."""

from __future__ import annotations

import contextlib
import errno
import socket
from collections.abc import Iterator

import asyncssh

from edgepack.devices.ssh.config import SshSettings
from edgepack.errors import DeviceError, EdgepackError, UnreachableError


class NotSshError(ConnectionError):
    """What answers has not named a version of SSH."""


@contextlib.contextmanager
def explained(device: str, hop: SshSettings) -> Iterator[None]:
    """Raise what goes wrong on a connection to a host as an error of a device.

    Raises:
        UnreachableError: Another try may succeed.
        DeviceError: It may not.
    """
    try:
        yield
    except EdgepackError:
        raise
    except Exception as error:  # asyncssh raises whatever a peer's bytes made it stumble over
        problem, hint = _explain(error, hop)
        kind = UnreachableError if _is_transient(error) else DeviceError
        raise kind(problem, hint=hint, where=device) from error


def _is_transient(error: Exception) -> bool:
    """Return whether another try may succeed: a device may be off, restart, or be busy.

    A name that cannot be resolved counts too, because names under ``.local`` disappear with the
    device.
    """
    if isinstance(error, asyncssh.ChannelOpenError):
        return error.code == asyncssh.OPEN_CONNECT_FAILED  # else forbidden (RFC 4254, 5.1)
    if isinstance(error, OSError):
        return isinstance(error, ConnectionError | TimeoutError | socket.gaierror) or (
            error.errno in (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN)
        )
    return not isinstance(error, asyncssh.KeyExchangeFailed)


# In order: the first kind of error that fits gives the sentence and the remedy.
_SENTENCES: list[tuple[type[Exception], str, str]] = [
    (
        socket.gaierror,
        "the name {name!r} cannot be resolved",
        "check 'host' in devices.yaml, or give the address itself",
    ),
    (
        ConnectionRefusedError,
        "{place} refuses connections",
        "start the SSH server there (sudo systemctl enable --now ssh), and check the port",
    ),
    (
        NotSshError,
        "what answers at {place} is not an SSH server",
        (
            "check host and port; a server with too many logins at a time (MaxStartups) does this"
            " too: try again"
        ),
    ),
    (
        TimeoutError,
        "{place} did not answer in time",
        "check that the device is on, and its address and the network",
    ),
    (
        asyncssh.ChannelOpenError,
        "the host on the way does not connect to {place}: {error}",
        "check that it reaches the device, and that AllowTcpForwarding is on there",
    ),
]


def _explain(error: Exception, hop: SshSettings) -> tuple[str, str]:
    place, said = hop.address, str(error)
    for kind, problem, hint in _SENTENCES:
        if isinstance(error, kind):
            return problem.format(name=hop.hostname, place=place, error=error), hint
    if isinstance(error, OSError) and error.errno in (errno.EHOSTUNREACH, errno.ENETUNREACH):
        return (
            f"there is no route to {place}",
            "check the network; a VPN or ProxyJump may be needed",
        )
    if isinstance(error, asyncssh.KeyExchangeFailed):
        return _explain_no_algorithm(said, place)
    lost = f"the connection to {place} was lost" + (f": {said}" if said else "")
    return lost, "try again; check the network and the device's log (journalctl -u ssh)"


def _explain_no_algorithm(said: str, place: str) -> tuple[str, str]:
    if "host key" in said:
        return (
            f"{place} offers no host key of a kind that is still safe: {said}",
            "make one there (ssh-keygen -A, or dropbearkey -t ed25519), restart its SSH server",
        )
    return (
        f"{place} and edgepack have no algorithm in common: {said}",
        "update the SSH server on the device",
    )
