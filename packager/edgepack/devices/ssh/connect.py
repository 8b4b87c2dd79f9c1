"""Connects to devices over SSH: through the hosts on the way, by keys that are trusted.

:func:`connect` and :func:`fetch_host_key` are called in a device's thread, and read files and run
programs there. The rest runs in the loop of :mod:`.loop`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from typing import Any

import asyncssh

from edgepack.devices.inventory import SshEntry
from edgepack.devices.ssh.auth import (
    KeyFiles,
    Login,
    list_offers,
    make_refused_error,
    read_key_files,
    require_password,
)
from edgepack.devices.ssh.certificates import SUFFIX
from edgepack.devices.ssh.config import SshSettings, find_settings
from edgepack.devices.ssh.dialing import Addresses, Dialer, find_addresses
from edgepack.devices.ssh.host_keys import (
    HostKey,
    find_known_hosts,
    has_authority,
    list_known_kinds,
)
from edgepack.devices.ssh.key_check import KeyCheck
from edgepack.devices.ssh.logins import paced
from edgepack.devices.ssh.loop import find_loop
from edgepack.devices.ssh.offers import read_offered_kinds
from edgepack.devices.ssh.problems import NotSshError, explained
from edgepack.devices.ssh.route import Route, find_route
from edgepack.devices.ssh.sharing import SharedConnections
from edgepack.errors import DeviceError, UnreachableError

HANDSHAKE_S = 20.0
"""From the first byte to the end of the login."""
_KEEPALIVE_S = 15
_LOST_AFTER = 3
"""Keep-alives without an answer."""
_CLOSE_S = 5.0

# GCM is the quickest where the processor has AES instructions; asyncssh would ask for it later.
_CIPHERS = ("aes128-gcm@openssh.com", "aes256-gcm@openssh.com", "aes128-ctr", "aes256-ctr")
_KINDS = (
    "ssh-ed25519",
    "ecdsa-sha2-nistp256",
    "ecdsa-sha2-nistp384",
    "ecdsa-sha2-nistp521",
    "rsa-sha2-512",
    "rsa-sha2-256",
)
"""Without SHA-1."""

_NOTHING_ELSE: dict[str, Any] = {
    "config": None,
    "known_hosts": None,
    "client_keys": None,
    "agent_path": None,
    "x509_trusted_certs": None,
    "x509_trusted_cert_paths": [],
    "gss_host": None,
    "host_based_auth": False,
    "compression_algs": ["none"],
    "connect_timeout": None,
}
"""What keeps asyncssh from files and ways of logging in of its own choice."""

_ON_THE_WAY = SharedConnections()


@dataclass(frozen=True)
class Entered:
    """A host that is logged in to."""

    connection: asyncssh.SSHClientConnection
    host_key: HostKey
    settings: SshSettings


@dataclass(frozen=True)
class _Host:
    """A host, and what was read about it before the loop connects to it."""

    settings: SshSettings
    device: str
    """The device that it is, or is on the way to; for messages."""
    addresses: Addresses
    kinds: tuple[str, ...]
    """Of host keys, the known ones first."""
    key_files: KeyFiles
    pinned: str | None = None
    password_env: str | None = None


def connect(entry: SshEntry, device: str, stack: AsyncExitStack) -> Entered:
    """Log in to a device, through the hosts on the way to it.

    Each host's key is accepted before we send anything about the user. ``stack`` closes everything,
    in the loop. Connections to hosts on the way are shared with all in this process who go the same
    way.

    Raises:
        DeviceError: It cannot be reached, trusted, or refuses the login.
    """
    require_password(entry.password_env, device)
    route = find_route(find_settings(entry, device), device)
    host = _read_host(route, device, entry.host_key, entry.password_env)
    check = KeyCheck(host.settings, host.pinned, device)
    return find_loop().run(_enter(route[:-1], host, check, stack))


def find_way(entry: SshEntry, device: str) -> Route:
    """Return the hosts on the way to a device, the nearest first."""
    return find_route(find_settings(entry, device), device)[:-1]


def connect_way(way: Route, device: str, stack: AsyncExitStack) -> asyncssh.SSHClientConnection:
    """Log in to the last host on the way to a device, or share the connection that is there.

    Raises:
        DeviceError: As :func:`connect` does.
        ValueError: There is no such host.
    """
    connection = find_loop().run(_find_way(way, device, stack))
    if connection is None:
        raise ValueError("there is no host on the way")
    return connection


def fetch_host_key(route: Route, device: str, pinned: str | None = None) -> HostKey:
    """Return the key that the last host of a route shows; this does not log in there.

    Args:
        route: The hosts before the last one are logged in to.
        device: For messages.
        pinned: A fingerprint: of several keys, the one with this is returned, if there is one.

    Raises:
        DeviceError: It cannot be reached, or a host before is not trusted or refuses the login.
    """
    host = _read_host(route, device, pinned)
    check = KeyCheck(host.settings, pinned, device, only_look=True)

    async def fetch() -> None:
        async with AsyncExitStack() as stack:
            await _enter(route[:-1], host, check, stack)

    try:
        find_loop().run(fetch())
    except DeviceError:
        if not check.shown:
            raise
    return check.find_pinned() or check.shown[0]


def _read_host(
    route: Route, device: str, pinned: str | None = None, password_env: str | None = None
) -> _Host:
    """Read files about the last host of a route, and look its address up."""
    settings = route[-1]
    lines = find_known_hosts(settings)
    known = list_known_kinds(lines)
    kinds = sorted(_KINDS, key=lambda kind: _find_key_kind(kind) not in known)
    if has_authority(lines):
        kinds = [f"{kind}{SUFFIX}" for kind in kinds] + kinds
    with explained(device, settings):
        addresses = [] if len(route) > 1 else find_addresses(settings)
    return _Host(
        settings,
        device,
        addresses,
        tuple(kinds),
        read_key_files(settings),
        pinned,
        password_env,
    )


def _find_key_kind(algorithm: str) -> str:
    return "ssh-rsa" if algorithm.startswith("rsa-") else algorithm


async def _enter(way: Route, host: _Host, check: KeyCheck, stack: AsyncExitStack) -> Entered:
    """Enter the host at the end of a way; try again if the way itself was lost meanwhile.

    Connections on the way also serve other devices. It is not this device's fault if one of them
    ends, perhaps unnoticed.
    """
    async with AsyncExitStack() as own:
        via = await _find_way(way, host.device, own)
        try:
            entered = await _open_pinned(host, via, check, own)
        except UnreachableError:
            if via is None or not via.is_closed():
                raise
        else:
            await stack.enter_async_context(own.pop_all())
            return entered
    via = await _find_way(way, host.device, stack)
    return await _open_pinned(host, via, check, stack)


async def _find_way(
    way: Route, device: str, stack: AsyncExitStack
) -> asyncssh.SSHClientConnection | None:
    """Return the connection to the last host on the way, if there is one."""
    if not way:
        return None

    async def make(own: AsyncExitStack) -> asyncssh.SSHClientConnection:
        host = await asyncio.to_thread(_read_host, way, device)
        check = KeyCheck(host.settings, None, device)
        return (await _enter(way[:-1], host, check, own)).connection

    try:
        return await stack.enter_async_context(_ON_THE_WAY.through(way, make))
    except DeviceError as error:  # it may have been made for another device
        raise type(error)(error.problem, hint=error.hint, where=device) from error


async def _open_pinned(
    host: _Host, via: asyncssh.SSHClientConnection | None, check: KeyCheck, stack: AsyncExitStack
) -> Entered:
    """Open a connection; ask for other kinds of key until the pinned one is shown.

    A fingerprint does not say the kind of its key.
    """
    refusal: DeviceError | None = None
    for kinds in (host.kinds, *((kind,) for kind in _KINDS if host.pinned)):
        try:
            return await _open_judged(host, kinds, via, check, stack)
        except DeviceError as error:
            refusal = refusal or error
            if not check.shown or check.find_pinned():
                break
    raise refusal or RuntimeError("there are kinds of key")


async def _open_judged(
    host: _Host,
    kinds: Sequence[str],
    via: asyncssh.SSHClientConnection | None,
    check: KeyCheck,
    stack: AsyncExitStack,
) -> Entered:
    """Open a connection, anew if the host's key could only be judged after it was shown."""
    try:
        return await _open(host, kinds, via, check, stack)
    except DeviceError:
        if not await check.judge_waiting():
            raise
    return await _open(host, kinds, via, check, stack)


async def _open(
    host: _Host,
    kinds: Sequence[str],
    via: asyncssh.SSHClientConnection | None,
    check: KeyCheck,
    stack: AsyncExitStack,
) -> Entered:
    """Dial a host, judge its key and log in."""
    settings = host.settings
    dialer = Dialer(settings, via, host.addresses, check.validate)
    stack.push_async_callback(dialer.close)
    async with AsyncExitStack() as own:
        await own.enter_async_context(paced(settings.hostname, settings.port))
        login = Login(await list_offers(host.key_files, settings, own), host.password_env)
        with explained(host.device, settings):
            try:
                connection = await asyncssh.connect(
                    settings.hostname,
                    settings.port,
                    tunnel=dialer,
                    username=settings.user,
                    client_factory=lambda: login,
                    server_host_key_algs=list(kinds),
                    encryption_algs=_CIPHERS,
                    login_timeout=HANDSHAKE_S,
                    keepalive_interval=_KEEPALIVE_S,
                    keepalive_count_max=_LOST_AFTER,
                    **_NOTHING_ELSE,
                )
            except (asyncssh.Error, OSError) as error:
                raise await _find_cause(error, host, dialer, check, login) from error
    stack.push_async_callback(_close, connection)
    return Entered(connection, check.shown[-1], settings)


async def _find_cause(
    error: Exception, host: _Host, dialer: Dialer, check: KeyCheck, login: Login
) -> Exception:
    """Return what an error of asyncssh comes from, as far as that can be told."""
    settings = host.settings
    if isinstance(error, asyncssh.HostKeyNotVerifiable) and check.shown:
        return check.find_refusal()
    # A host hangs up after so many keys; before the first was refused, the connection was lost.
    if isinstance(error, asyncssh.PermissionDenied) or login.refused:
        return make_refused_error(settings, host.key_files, login, host.device)
    if login.connection is None:
        return error
    if login.connection.get_extra_info("server_version") is None:
        return NotSshError(str(error))
    if not check.shown:
        with suppress(asyncssh.Error, OSError):
            offered = await read_offered_kinds(dialer, settings.hostname, settings.port)
            if not set(offered) & {*_KINDS, *(kind + SUFFIX for kind in _KINDS)}:
                return asyncssh.KeyExchangeFailed(f"no host key but {', '.join(offered)}")
    return error


async def _close(connection: asyncssh.SSHClientConnection) -> None:
    """Close a connection, also one whose other end no longer answers."""
    connection.close()
    with suppress(TimeoutError):
        await asyncio.wait_for(connection.wait_closed(), _CLOSE_S)
        return
    connection.abort()
