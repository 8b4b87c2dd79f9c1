"""Logs in to hosts: with keys from files and the agent, or a password from the environment.

Secrets stay inside asyncssh's objects: no dataclass, message, log or traceback has them.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, suppress
from copy import copy
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import asyncssh

from edgepack.base.processes import run_program
from edgepack.devices.ssh.config import SshSettings
from edgepack.errors import DeviceError

_LOCKED = "Passphrase must be specified"
"""How asyncssh 2.24 begins its error for a private key that is encrypted; it has no class."""
_KEYGEN_S = 20.0

Offer = tuple[str, asyncssh.SSHKeyPair]
"""A key to offer to a host, after its name for messages."""


@dataclass
class KeyFiles:
    """What files say about the user's keys."""

    keys: list[tuple[Path, asyncssh.SSHKey]] = field(default_factory=list)
    certificates: list[asyncssh.SSHCertificate] = field(default_factory=list)
    configured: set[bytes] = field(default_factory=set)
    """The public keys that the settings name, those among them that only the agent has."""
    locked: list[Path] = field(default_factory=list)
    """Private keys that need a passphrase."""
    unusable: list[str] = field(default_factory=list)
    """Files and what is wrong with them."""


def read_key_files(settings: SshSettings) -> KeyFiles:
    """Read the private keys and certificates that the settings of a host name."""
    found = KeyFiles()
    for path in settings.identity_files:
        _read_key(path, found)
        for public in (path, Path(f"{path}.pub")):
            if blob := _read_public_blob(public):
                found.configured.add(blob)
        _read_certificate(Path(f"{path}-cert.pub"), found)
    for path in settings.certificate_files:
        _read_certificate(path, found)
    if settings.pkcs11_provider:
        _read_provider(settings.pkcs11_provider, found)
    found.configured |= {key.public_data for _, key in found.keys}
    return found


def _read_key(path: Path, found: KeyFiles) -> None:
    try:
        state = path.stat()
        key = _read_unchanged_key(path, (state.st_mtime_ns, state.st_size, state.st_ino))
    except FileNotFoundError:
        return
    except (OSError, ValueError) as error:
        if str(error).startswith(_LOCKED):
            found.locked.append(path)
        elif _read_public_blob(path) is None:
            found.unusable.append(f"{path} ({error})")
    else:
        found.keys.append((path, key))


@lru_cache(maxsize=64)
def _read_unchanged_key(path: Path, _stamp: tuple[int, int, int]) -> asyncssh.SSHKey:
    """Read a key once for all hosts: that of RSA is proven each time, which takes its time."""
    return asyncssh.read_private_key(path)


def _read_public_blob(path: Path) -> bytes | None:
    try:
        return base64.b64decode(path.read_text(encoding="utf-8").split()[1], validate=True)
    except (OSError, ValueError, IndexError):
        return None


def _read_certificate(path: Path, found: KeyFiles) -> None:
    try:
        found.certificates.append(asyncssh.read_certificate(path))
    except FileNotFoundError:
        return
    except (OSError, ValueError) as error:
        found.unusable.append(f"{path} ({error})")


def _read_provider(provider: str, found: KeyFiles) -> None:
    """Learn the public keys of a PKCS #11 library; the agent signs for them, as it has the PIN."""
    result = run_program(["ssh-keygen", "-D", provider], timeout_s=_KEYGEN_S)
    lines = [line.split() for line in result.text.splitlines()]
    blobs = {base64.b64decode(words[1]) for words in lines if len(words) > 1}
    if result.exit_code or not blobs:
        found.unusable.append(f"PKCS11Provider {provider} ({result.last_lines.strip()})")
    found.configured |= blobs


async def list_offers(
    files: KeyFiles, settings: SshSettings, stack: AsyncExitStack
) -> Sequence[Offer]:
    """Return keys as OpenSSH orders them: the agent's that are configured, files, other agent's.

    The stack closes the connection to the agent, which signs for its keys.
    """
    held = await _list_agent_keys(settings, stack)
    in_agent = {pair.public_data for pair in held}
    offers = [
        (f"agent: {pair.get_comment(errors='replace')}", each)
        for pair in held
        if pair.public_data in files.configured
        for each in _with_certificate(pair, files.certificates)
    ]
    offers += [
        (str(path), pair)
        for path, key in files.keys
        for pair in asyncssh.load_keypairs([key], certlist=files.certificates)
        if key.public_data not in in_agent or pair.has_cert
    ]
    if not settings.identities_only:
        offers += [
            (f"agent: {pair.get_comment(errors='replace')}", pair)
            for pair in held
            if pair.public_data not in files.configured
        ]
    return offers


async def _list_agent_keys(
    settings: SshSettings, stack: AsyncExitStack
) -> Sequence[asyncssh.SSHKeyPair]:
    """Return what the agent holds; nothing where there is no agent, as OpenSSH does."""
    if settings.agent is None:
        return ()
    with suppress(OSError, ValueError):
        agent = await asyncssh.connect_agent(settings.agent)
        stack.callback(agent.close)
        return await agent.get_keys()
    return ()


def _with_certificate(
    pair: asyncssh.SSHKeyPair, certificates: Sequence[asyncssh.SSHCertificate]
) -> Iterator[asyncssh.SSHKeyPair]:
    """Yield an agent's key with each of its certificates, and as it is."""
    for certificate in certificates:
        if certificate.key.public_data == pair.public_data:
            certified = copy(pair)
            certified.set_certificate(certificate)
            yield certified
    yield pair


class Login(asyncssh.SSHClient):
    """Answers what asyncssh asks while it logs in to one host; notes what the host refuses."""

    def __init__(self, offers: Sequence[Offer], password_env: str | None) -> None:
        self.connection: asyncssh.SSHClientConnection | None = None
        self.refused: list[str] = []
        self.wants_password = False
        self._offers = iter(offers)
        self._password_env = password_env
        self._offered = ""

    def connection_made(self, conn: asyncssh.SSHClientConnection) -> None:
        """Note the connection."""
        self.connection = conn

    def public_key_auth_requested(self) -> asyncssh.SSHKeyPair | None:
        """Return the next key to offer; to be asked again means that the last was refused."""
        self.note_refusal()
        self._offered, key = next(self._offers, ("", None))
        return key

    def password_auth_requested(self) -> str | None:
        """Return the password, once."""
        self.note_refusal()
        self.wants_password = True
        variable, self._password_env = self._password_env, None
        if variable is None:
            return None
        self._offered = f"the password in {variable}"
        return os.environ[variable]

    def kbdint_auth_requested(self) -> str | None:
        """Return that questions can be answered, if there is a password that was not given yet."""
        self.note_refusal()
        self.wants_password = True
        return None if self._password_env is None else ""

    def kbdint_challenge_received(
        self, _name: str, _instructions: str, _lang: str, prompts: Sequence[tuple[str, bool]]
    ) -> list[str] | None:
        """Answer the one question of servers that ask for a password this way."""
        if not prompts:
            return []
        password = self.password_auth_requested() if len(prompts) == 1 else None
        return None if password is None else [password]

    def note_refusal(self) -> None:
        """Note that what was offered last was refused."""
        if self._offered:
            self.refused.append(self._offered)
        self._offered = ""


def require_password(variable: str | None, device: str) -> None:
    """Check that the password of a device is in the environment.

    Raises:
        DeviceError: It is not, or empty.
    """
    if variable is not None and not os.environ.get(variable):
        raise DeviceError(
            f"the environment variable {variable!r} (password_env) is not set",
            hint=f"read -rs {variable} && export {variable}",
            where=device,
        )


def make_refused_error(
    settings: SshSettings, files: KeyFiles, login: Login, device: str
) -> DeviceError:
    """Return the error for a host that accepts nothing we have, with what was tried."""
    login.note_refusal()
    accepts = login.connection.get_server_auth_methods() if login.connection else ()
    lines = [f"refused: {label}" for label in login.refused]
    lines += [f"needs a passphrase: {path}" for path in files.locked]
    lines += [f"unusable: {text}" for text in files.unusable]
    lines += [f"the host wants: {', '.join(accepts)}"] if accepts else []
    if not login.refused and not files.locked:
        places = ", ".join(["the agent", *map(str, settings.identity_files)])
        lines.append(f"no key was found in {places}")
    hint = f"ssh-copy-id -p {settings.port} {settings.user}@{settings.hostname} puts your key there"
    if files.locked:
        hint = f"unlock the key for this session: ssh-add {files.locked[0]}"
    elif settings.pkcs11_provider and not login.refused:
        hint = f"put the token's keys into the agent: ssh-add -s {settings.pkcs11_provider}"
    elif login.wants_password:
        given = [label for label in login.refused if label.startswith("the password")]
        hint += ", or name a variable with its password: edgepack device add --password-env NAME"
        hint = f"correct {given[0]}" if given else hint
    return DeviceError(
        f"{settings.address} refuses the login" + "".join(f"\n  {line}" for line in lines),
        hint=f"{hint}; check 'user' and 'key' in devices.yaml",
        where=device,
    )
