"""Makes SSH connections: hops, sockets, key exchange; and explains what goes wrong."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace

import paramiko
from cryptography.exceptions import InvalidTag
from paramiko.ssh_exception import IncompatiblePeer

from edgepack.base.processes import start_program
from edgepack.devices.inventory import SshEntry
from edgepack.devices.ssh.auth import authenticate
from edgepack.devices.ssh.certificates import SUFFIX
from edgepack.devices.ssh.config import SshSettings, find_settings, resolve
from edgepack.devices.ssh.host_keys import (
    HostKey,
    find_known_hosts,
    has_authority,
    list_known_kinds,
)
from edgepack.devices.ssh.logins import paced
from edgepack.devices.ssh.sharing import Route, SharedConnections
from edgepack.errors import DeviceError, UnreachableError

HANDSHAKE_S = 20.0
KEEPALIVE_S = 15
MAX_HOPS = 8
_END_S = 0.2
"""How long a connection whose channel has ended may take to end itself."""


# GCM is the quickest where the processor has AES instructions; paramiko would ask for it last.
_CIPHERS = ("aes128-gcm@openssh.com", "aes256-gcm@openssh.com", "aes128-ctr", "aes256-ctr")
_KINDS = (
    "ssh-ed25519",
    "ecdsa-sha2-nistp256",
    "ecdsa-sha2-nistp384",
    "ecdsa-sha2-nistp521",
    "rsa-sha2-512",
    "rsa-sha2-256",
)
# paramiko 4 would still fall back to SHA-1; 5 no longer can.
_SHA1 = {
    "keys": ["ssh-rsa"],
    "pubkeys": ["ssh-rsa"],
    "kex": [
        "diffie-hellman-group1-sha1",
        "diffie-hellman-group14-sha1",
        "diffie-hellman-group-exchange-sha1",
    ],
}

LINK_ERRORS = (OSError, EOFError, ValueError, InvalidTag, paramiko.SSHException)
"""What paramiko raises when a connection breaks or a byte is damaged: it does not wrap the errors
of decoding and decrypting."""

Accept = Callable[[HostKey, SshSettings, str | None], None]
"""Raises unless a host's key is trusted; the last argument is the pinned fingerprint."""

Enter = Callable[[paramiko.Transport | None, ExitStack], paramiko.Transport]
"""Connects to a host through the one before it; the stack closes what it made."""

_ON_THE_WAY = SharedConnections()


def connect(
    entry: SshEntry, device: str, *, accept: Accept, stack: ExitStack, log_in: bool = True
) -> paramiko.Transport:
    """Return a connection to a device, through the hosts on the way to it.

    Each host's key is accepted before we send anything about the user. ``stack`` closes everything.
    Without ``log_in`` the last host is not logged in to. Connections to hosts on the way are shared
    with all in this process who go the same way.

    Raises:
        DeviceError: It cannot be reached, trusted, or refuses the login.
    """
    *way, last = find_route(find_settings(entry, device), device)

    def enter(via: paramiko.Transport | None, own: ExitStack) -> paramiko.Transport:
        with paced(last.hostname, last.port):
            connection = _shake_hands(last, via, entry.host_key, device, accept, own)
            if log_in:
                with explained(device, last):
                    authenticate(connection, last, entry.password_env, device)
        return connection

    return _enter_host(tuple(way), enter, device, accept, stack)


def _enter_host(
    way: Route, enter: Enter, device: str, accept: Accept, stack: ExitStack
) -> paramiko.Transport:
    """Enter the host at the end of a way; try again if the way itself was lost meanwhile.

    Connections on the way also serve other devices. It is not this device's fault if one of them
    ends, perhaps unnoticed.
    """
    with ExitStack() as own:
        via = _connect_through(way, device, accept, own)
        try:
            connection = enter(via, own)
        except UnreachableError:
            if via is None or not _is_lost(via):
                raise
        else:
            stack.push(own.pop_all())
            return connection
    return enter(_connect_through(way, device, accept, stack), stack)


def _is_lost(connection: paramiko.Transport) -> bool:
    """Return whether a connection has ended: its channels show it a moment earlier."""
    connection.join(_END_S)
    return not connection.is_active()


def _connect_through(
    way: Route, device: str, accept: Accept, stack: ExitStack
) -> paramiko.Transport | None:
    """Return the connection to the last host on the way, if there is one."""
    if not way:
        return None
    hop = way[-1]

    def enter(via: paramiko.Transport | None, own: ExitStack) -> paramiko.Transport:
        with paced(hop.hostname, hop.port):
            connection = _shake_hands(hop, via, None, device, accept, own)
            with explained(device, hop):
                authenticate(connection, hop, None, device)
        return connection

    def make(own: ExitStack) -> paramiko.Transport:
        return _enter_host(way[:-1], enter, device, accept, own)

    try:
        return stack.enter_context(_ON_THE_WAY.through(way, make))
    except DeviceError as error:  # it may have been made for another device
        raise type(error)(error.problem, hint=error.hint, where=device) from error


def _shake_hands(
    hop: SshSettings,
    via: paramiko.Transport | None,
    pinned: str | None,
    device: str,
    accept: Accept,
    stack: ExitStack,
) -> paramiko.Transport:
    """Return a connection to a host whose key is accepted, not logged in yet."""
    with explained(device, hop):
        connection, received = _exchange_keys(hop, via, pinned, stack)
    accept(received, hop, pinned)
    return connection


def find_route(settings: SshSettings, device: str, *, depth: int = 0) -> list[SshSettings]:
    """Return the hosts to connect to one after the other, the device last.

    Raises:
        DeviceError: The configuration's ProxyJump leads in a circle.
    """
    if not settings.proxy_jump:
        return [settings]
    if depth > MAX_HOPS:
        raise DeviceError(
            f"ProxyJump leads through more than {MAX_HOPS} hosts",
            hint=f"look for a loop: ssh -G {settings.host} | grep proxyjump",
            where=device,
        )
    *earlier, last = settings.proxy_jump.split(",")
    user, _, address = last.rpartition("@")
    host, port = _split_port(address)
    hop = resolve(host, user=user or None, port=port, ssh_config=settings.ssh_config, where=device)
    if earlier:
        hop = replace(hop, proxy_jump=",".join(earlier), proxy_command=())
    return [*find_route(hop, device, depth=depth + 1), settings]


def _split_port(address: str) -> tuple[str, int | None]:
    address = address.removeprefix("ssh://")
    if address.startswith("["):
        host, _, port = address[1:].partition("]")
        port = port.removeprefix(":")
    else:
        host, _, port = address.partition(":")
    return host, int(port) if port else None


def _exchange_keys(
    hop: SshSettings, via: paramiko.Transport | None, pinned: str | None, stack: ExitStack
) -> tuple[paramiko.Transport, HostKey]:
    """Connect and learn the host's key, of a kind that is known already if the host has one."""
    lines = find_known_hosts(hop)
    known = list_known_kinds(lines)
    order = sorted(_KINDS, key=lambda kind: _find_key_kind(kind) not in known)
    if has_authority(lines):
        order = [f"{kind}{SUFFIX}" for kind in order] + order
    connection, first = _negotiate(_dial(hop, via, stack), order, hop, stack)
    if pinned in (None, first.fingerprint):
        return connection, first
    # A fingerprint does not say the kind of its key: the host may have others.
    for kind in _KINDS:
        if _find_key_kind(kind) != first.kind:
            with contextlib.suppress(IncompatiblePeer):
                other, received = _negotiate(_dial(hop, via, stack), [kind], hop, stack)
                if received.fingerprint == pinned:
                    return other, received
    return connection, first


def _find_key_kind(algorithm: str) -> str:
    return "ssh-rsa" if algorithm.startswith("rsa-") else algorithm


def _dial(hop: SshSettings, via: paramiko.Transport | None, stack: ExitStack) -> socket.socket:
    if hop.proxy_command:
        return _dial_through_program(hop.proxy_command, stack)
    address = (hop.hostname, hop.port)
    if via is not None:
        channel = via.open_channel(
            "direct-tcpip", address, ("127.0.0.1", 0), timeout=hop.connect_timeout_s
        )
        stack.callback(channel.close)
        return channel  # type: ignore[return-value]  # paramiko takes it for a socket
    connected = socket.create_connection(address, timeout=hop.connect_timeout_s)
    stack.callback(connected.close)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # a peer that vanished is noticed by the keep-alives
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 4 * KEEPALIVE_S * 1000)
    return connected


def _dial_through_program(argv: Sequence[str], stack: ExitStack) -> socket.socket:
    ours, theirs = socket.socketpair()
    stack.callback(ours.close)
    with theirs, open(os.devnull, "wb") as nowhere:  # noqa: PTH123
        child = start_program(
            argv, stdin=theirs.fileno(), stdout=theirs.fileno(), stderr=nowhere.fileno()
        )

    def end() -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()

    stack.callback(end)
    return ours


def _negotiate(
    connected: socket.socket, kinds: Sequence[str], hop: SshSettings, stack: ExitStack
) -> tuple[paramiko.Transport, HostKey]:
    connection = _Connection(connected, disabled_algorithms=_SHA1)
    connection.kinds = tuple(kinds)
    stack.callback(_close, connection)
    connection.banner_timeout = connection.handshake_timeout = HANDSHAKE_S
    connection.auth_timeout = HANDSHAKE_S
    options = connection.get_security_options()
    options.ciphers = [name for name in _CIPHERS if name in options.ciphers]
    connection.start_client(timeout=HANDSHAKE_S + hop.connect_timeout_s)
    if not connection.initial_kex_done:
        raise TimeoutError
    connection.set_keepalive(KEEPALIVE_S)
    key = connection.get_remote_server_key()
    certificate = key.public_blob.key_blob if key.public_blob else None
    return connection, HostKey(key.get_name(), key.asbytes(), certificate)


class _Connection(paramiko.Transport):
    """A connection that requests certain kinds of host key, in this order."""

    kinds: tuple[str, ...] = ()

    @property
    def preferred_keys(self) -> tuple[str, ...]:
        """The kinds; paramiko itself would always ask for plain keys before certificates."""
        return self.kinds


def _close(connection: paramiko.Transport) -> None:
    connection.close()
    connection.join(HANDSHAKE_S)


@contextlib.contextmanager
def explained(device: str, hop: SshSettings) -> Iterator[None]:
    """Turn what sockets and paramiko raise into one sentence and a remedy."""
    try:
        yield
    except LINK_ERRORS as error:
        problem, hint = _explain(error, hop)
        kind = UnreachableError if _is_transient(error) else DeviceError
        raise kind(problem, hint=hint, where=device) from error


def _is_transient(error: Exception) -> bool:
    """Return whether another try may succeed: a device may be off, restart, or be busy.

    A name that cannot be resolved counts too, because names under ``.local`` disappear with the
    device.
    """
    if isinstance(error, paramiko.ChannelException):
        return getattr(error, "code", None) == _CONNECT_FAILED
    if isinstance(error, OSError):
        return isinstance(error, ConnectionError | TimeoutError | socket.gaierror) or (
            error.errno in (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN)
        )
    return not isinstance(error, IncompatiblePeer)


_CONNECT_FAILED = 2
"""SSH_OPEN_CONNECT_FAILED; the host on the way may also forbid it (RFC 4254, 5.1)."""

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
        TimeoutError,
        "{place} did not answer in time",
        "check that the device is on, and its address and the network",
    ),
    (
        paramiko.ChannelException,
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
    if isinstance(error, IncompatiblePeer):
        return _explain_incompatible(said, place)
    if "banner" in said.lower():
        hint = (
            "check host and port; a server with too many logins at a time (MaxStartups) does this"
            " too: try again"
        )
        return f"what answers at {place} is not an SSH server", hint
    lost = f"the connection to {place} was lost" + (f": {said}" if said else "")
    return lost, "try again; check the network and the device's log (journalctl -u ssh)"


def _explain_incompatible(said: str, place: str) -> tuple[str, str]:
    if "host key" in said:
        return (
            f"{place} offers no host key of a kind that is still safe (only ssh-rsa with SHA-1?)",
            "make one there (ssh-keygen -A, or dropbearkey -t ed25519), restart its SSH server",
        )
    return (
        f"{place} and edgepack have no algorithm in common: {said}",
        "update the SSH server on the device",
    )
