"""Logs in to hosts: with keys from files and the agent, or a password from the environment.

Secrets stay inside paramiko's objects: no dataclass, message, log or traceback has them.
"""

from __future__ import annotations

import base64
import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import paramiko
from cryptography.exceptions import UnsupportedAlgorithm
from paramiko.pkey import UnknownKeyType

from edgepack.devices.ssh.config import SshSettings
from edgepack.errors import DeviceError


@dataclass
class _Tried:
    """What was offered to the host, for the message if it accepts nothing."""

    refused: list[str] = field(default_factory=list)
    locked: list[Path] = field(default_factory=list)
    unusable: list[str] = field(default_factory=list)
    accepts: list[str] = field(default_factory=list)


def authenticate(
    connection: paramiko.Transport, hop: SshSettings, password_env: str | None, device: str
) -> None:
    """Log in to a host whose key is trusted.

    Raises:
        DeviceError: It accepts nothing we have; the message says what was tried.
    """
    tried = _Tried()
    with contextlib.ExitStack() as stack:
        agent = stack.enter_context(contextlib.closing(paramiko.Agent())) if hop.agent else None
        for label, key in _list_keys(hop, agent.get_keys() if agent else (), tried):
            if not _offer_key(connection, hop.user, label, key, tried):
                break
    if password_env is not None and not connection.is_authenticated():
        _offer_password(connection, hop.user, password_env, tried, device)
    if not connection.is_authenticated():
        raise _make_refused_error(hop, tried, device)


def _list_keys(
    hop: SshSettings, agent_keys: Sequence[paramiko.AgentKey], tried: _Tried
) -> Iterator[tuple[str, paramiko.PKey]]:
    """Yield keys as OpenSSH orders them: the agent's that are configured, files, other agent's."""
    files = {path: key for path in hop.identity_files if (key := _load_key(path, tried))}
    configured = {key.asbytes() for key in files.values()}
    configured |= {blob for path in hop.identity_files if (blob := _read_public_blob(path))}
    held = {key.asbytes() for key in agent_keys}
    for agent_key in agent_keys:
        if agent_key.asbytes() in configured:
            yield f"agent: {agent_key.comment}", agent_key
    for path, key in files.items():
        if key.asbytes() not in held:
            yield str(path), key
    for agent_key in agent_keys:
        if agent_key.asbytes() not in configured and not hop.identities_only:
            yield f"agent: {agent_key.comment}", agent_key


def _load_key(path: Path, tried: _Tried) -> paramiko.PKey | None:
    """Read a private key; ``<path>-cert.pub`` beside it is taken along."""
    try:
        return paramiko.PKey.from_path(path)
    except FileNotFoundError:
        return None
    except (TypeError, paramiko.PasswordRequiredException):  # cryptography says TypeError
        tried.locked.append(path)
    except (OSError, ValueError, UnsupportedAlgorithm, paramiko.SSHException) as error:
        tried.unusable.append(f"{path} ({type(error).__name__})")
    except UnknownKeyType:
        tried.unusable.append(f"{path} (a kind of key that paramiko does not know)")
    return None


def _read_public_blob(path: Path) -> bytes | None:
    try:
        return base64.b64decode(Path(f"{path}.pub").read_text(encoding="utf-8").split()[1])
    except (OSError, ValueError, IndexError):
        return None


def _offer_key(
    connection: paramiko.Transport, user: str, label: str, key: paramiko.PKey, tried: _Tried
) -> bool:
    """Offer one key; return whether to go on with the next."""
    try:
        tried.accepts = connection.auth_publickey(user, key)
    except paramiko.BadAuthenticationType as error:
        tried.accepts = error.allowed_types
        return False
    except paramiko.SSHException:  # the host refused it, or the agent does not sign
        if not connection.is_active() and not tried.refused:
            raise  # the connection was lost; after refusals it is the host that hangs up
        tried.refused.append(label)
        return connection.is_active()
    return False


def _offer_password(
    connection: paramiko.Transport, user: str, variable: str, tried: _Tried, device: str
) -> None:
    if variable not in os.environ:
        raise DeviceError(
            f"the environment variable {variable!r} (password_env) is not set",
            hint=f"read -rs {variable} && export {variable}",
            where=device,
        )
    try:
        tried.accepts = connection.auth_password(user, os.environ[variable])
    except paramiko.BadAuthenticationType as error:
        tried.accepts = error.allowed_types
    except (OSError, EOFError, paramiko.SSHException) as error:
        lost = not connection.is_active() and not tried.refused  # as with a key
        if lost or not isinstance(error, paramiko.AuthenticationException):
            raise error.with_traceback(None) from None  # paramiko's frames hold the password
        tried.refused.append(f"the password in {variable}")


def _make_refused_error(hop: SshSettings, tried: _Tried, device: str) -> DeviceError:
    lines = [f"refused: {label}" for label in tried.refused]
    lines += [f"needs a passphrase: {path}" for path in tried.locked]
    lines += [f"unusable: {text}" for text in tried.unusable]
    lines += [f"the host wants: {', '.join(tried.accepts)}"] if tried.accepts else []
    if not tried.refused and not tried.locked:
        places = ", ".join(["the agent", *map(str, hop.identity_files)])
        lines.append(f"no key was found in {places}")
    hint = f"ssh-copy-id -p {hop.port} {hop.user}@{hop.hostname} puts your key there"
    if tried.locked:
        hint = f"unlock the key for this session: ssh-add {tried.locked[0]}"
    return DeviceError(
        f"{hop.address} refuses the login" + "".join(f"\n  {line}" for line in lines),
        hint=f"{hint}; check 'user' and 'key' in devices.yaml",
        where=device,
    )
