"""Reads what ``~/.ssh/config`` says about a host, as OpenSSH itself reads it.

paramiko's own reader silently ignores ``Include`` and most of ``Match``, so edgepack runs ``ssh
-G`` wherever OpenSSH is installed. A setting that changes how a connection is made and that
edgepack cannot follow is an error, never ignored.
"""

from __future__ import annotations

import getpass
import re
import shlex
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from edgepack.base.processes import run_program
from edgepack.devices.inventory import SshEntry
from edgepack.errors import DeviceError

CONNECT_TIMEOUT_S = 10.0

# Settings that change who answers or what runs, with the values that stand for "not set".
# Source: ssh_config(5), OpenSSH 9.2.
_CANNOT_FOLLOW = {
    "addressfamily": {"any"},
    "bindaddress": set[str](),
    "bindinterface": set[str](),
    "knownhostscommand": {"none"},
    "pkcs11provider": {"none"},
    "remotecommand": {"none"},
    "securitykeyprovider": {"internal"},
    "setenv": set[str](),
}


@dataclass(frozen=True)
class SshSettings:
    """How to reach one host and prove who we are to it."""

    host: str
    """The name that was asked for."""
    hostname: str
    """The address behind it."""
    port: int
    user: str
    identity_files: tuple[Path, ...] = ()
    """Private keys; a certificate is taken along if it is called ``<key>-cert.pub``."""
    identities_only: bool = False
    agent: bool = True
    proxy_jump: str = ""
    """Hosts to go through, separated by commas, the nearest first."""
    proxy_command: tuple[str, ...] = ()
    known_hosts: tuple[Path, ...] = ()
    revoked_host_keys: Path | None = None
    host_key_alias: str = ""
    connect_timeout_s: float = CONNECT_TIMEOUT_S
    ssh_config: str | None = None

    @property
    def known_as(self) -> str:
        """The name under which known_hosts files have the host's key."""
        if self.host_key_alias:
            return self.host_key_alias
        return self.hostname if self.port == 22 else f"[{self.hostname}]:{self.port}"

    @property
    def certified_as(self) -> str:
        """The name that a host's certificate must have."""
        return self.host_key_alias or self.hostname

    @property
    def address(self) -> str:
        """``user@hostname:port``, for messages."""
        return f"{self.user}@{self.hostname}:{self.port}"


def find_settings(entry: SshEntry, where: str) -> SshSettings:
    """Return how to reach a device: its entry first, the user's SSH configuration for the rest.

    Raises:
        DeviceError: The configuration is wrong, or has a setting that edgepack cannot follow.
    """
    settings = resolve(
        entry.host, user=entry.user, port=entry.port, ssh_config=entry.ssh_config, where=where
    )
    if entry.key is not None:
        key = Path(entry.key).expanduser()
        if not key.is_file():
            raise DeviceError(
                f"there is no key file {str(key)!r}",
                hint="correct 'key' in devices.yaml, or leave it out to use ~/.ssh and the agent",
                where=where,
            )
        settings = replace(settings, identity_files=(key,), identities_only=True)
    return settings


def resolve(
    host: str,
    *,
    user: str | None = None,
    port: int | None = None,
    ssh_config: str | None = None,
    where: str,
) -> SshSettings:
    """Return what the user's SSH configuration says about a host.

    Raises:
        DeviceError: The configuration is wrong, or has a setting that edgepack cannot follow.
    """
    read = _read_by_openssh if shutil.which("ssh") else _read_by_paramiko
    values = read(host, user=user, port=port, ssh_config=ssh_config, where=where)
    return _make_settings(host, values, ssh_config, where)


def _read_by_openssh(
    host: str, *, user: str | None, port: int | None, ssh_config: str | None, where: str
) -> dict[str, list[str]]:
    argv = ["ssh", "-G"]
    argv += ["-F", str(Path(ssh_config).expanduser())] if ssh_config else []
    argv += ["-l", user] if user else []
    argv += ["-p", str(port)] if port else []
    result = run_program([*argv, "--", host], timeout_s=20)
    if result.exit_code:
        raise DeviceError(
            f"'ssh -G {host}' failed with exit code {result.exit_code}{result.last_lines}",
            hint="fix the SSH configuration; 'ssh -G' with this host must work",
            where=where,
        )
    values: dict[str, list[str]] = {}
    for line in result.text.splitlines():
        key, _, value = line.partition(" ")
        values.setdefault(key.lower(), []).append(value)
    return values


def _read_by_paramiko(
    host: str, *, user: str | None, port: int | None, ssh_config: str | None, where: str
) -> dict[str, list[str]]:
    """Read the file without OpenSSH; what paramiko would drop silently is refused."""
    import paramiko

    path = Path(ssh_config or "~/.ssh/config").expanduser()
    text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
    dropped = re.search(r"^\s*(Include|Match)\b", text, re.IGNORECASE | re.MULTILINE)
    if dropped:
        raise DeviceError(
            f"{path} uses {dropped[1]!r}, which needs OpenSSH to be read correctly",
            hint="install the OpenSSH client (apt install openssh-client), or set host, user, port"
            " and key in devices.yaml and set ssh_config: /dev/null there",
            where=where,
        )
    # The first value counts, and %p and %r stand for it where paramiko reads them.
    given = [f"User {user}"] if user else []
    given += [f"Port {port}"] if port else []
    config = paramiko.SSHConfig.from_text("\n".join(["Host *", *given, text]))
    found: dict[str, str | list[str]] = {"identityfile": _IDENTITY_FILES, **config.lookup(host)}
    return {key: value if isinstance(value, list) else [value] for key, value in found.items()}


def _make_settings(
    host: str, values: Mapping[str, list[str]], ssh_config: str | None, where: str
) -> SshSettings:
    _refuse_unsupported(values, where)
    hostname = _find_first(values, "hostname", host)
    settings = SshSettings(
        host=host,
        hostname=hostname,
        port=int(_find_first(values, "port", "22")),
        user=_find_first(values, "user", "") or getpass.getuser(),
        identities_only=_find_first(values, "identitiesonly", "no") in ("yes", "true"),
        agent=_find_first(values, "identityagent", "") != "none",
        proxy_jump=_find_first(values, "proxyjump", ""),
        known_hosts=tuple(
            Path(name).expanduser()
            for key in ("userknownhostsfile", "globalknownhostsfile")
            for name in _find_first(values, key, _KNOWN_HOSTS[key]).split()
        ),
        host_key_alias=_find_first(values, "hostkeyalias", ""),
        connect_timeout_s=float(_find_first(values, "connecttimeout", str(CONNECT_TIMEOUT_S))),
        ssh_config=ssh_config,
    )
    identity_files = _expand_paths(values.get("identityfile", []), settings)
    for path in _expand_paths(values.get("certificatefile", []), settings):
        if path not in [Path(f"{identity}-cert.pub") for identity in identity_files]:
            raise _make_unsupported_error(
                f"certificatefile {path} (it must be called <key>-cert.pub)", where
            )
    return replace(
        settings,
        identity_files=identity_files,
        revoked_host_keys=next(
            iter(_expand_paths(values.get("revokedhostkeys", []), settings)), None
        ),
        proxy_command=_parse_proxy_command(
            _find_first(values, "proxycommand", ""), settings, where
        ),
    )


_IDENTITY_FILES = ["~/.ssh/id_rsa", "~/.ssh/id_ecdsa", "~/.ssh/id_ed25519"]
"""OpenSSH's own, as far as paramiko reads them. Source: ssh_config(5), IdentityFile."""
_KNOWN_HOSTS = {
    "userknownhostsfile": "~/.ssh/known_hosts ~/.ssh/known_hosts2",
    "globalknownhostsfile": "/etc/ssh/ssh_known_hosts /etc/ssh/ssh_known_hosts2",
}


def _find_first(values: Mapping[str, list[str]], key: str, default: str) -> str:
    value = values.get(key, [default])[0]
    return default if value == "none" and key != "identityagent" else value


def _refuse_unsupported(values: Mapping[str, list[str]], where: str) -> None:
    agent = _find_first(values, "identityagent", "none")
    problems = [
        f"{key} {value}"
        for key, harmless in _CANNOT_FOLLOW.items()
        for value in values.get(key, [])
        if value not in harmless
    ]
    if agent not in ("none", "SSH_AUTH_SOCK", "$SSH_AUTH_SOCK"):
        problems.append(f"identityagent {agent}")
    if problems:
        raise _make_unsupported_error(problems[0], where)


def _make_unsupported_error(setting: str, where: str) -> DeviceError:
    return DeviceError(
        f"the SSH configuration has a setting that edgepack cannot follow: {setting}",
        hint="make an exception for this host, or name another file with 'ssh_config' in"
        " devices.yaml",
        where=where,
    )


def _expand_tokens(text: str, settings: SshSettings) -> str:
    """Replace OpenSSH's tokens. Source: ssh_config(5), section TOKENS."""
    tokens = {
        "%": "%",
        "d": str(Path.home()),
        "h": settings.hostname,
        "n": settings.host,
        "p": str(settings.port),
        "r": settings.user,
        "u": getpass.getuser(),
    }
    return re.sub("%([%dhnpru])", lambda found: tokens[found[1]], text)


def _expand_paths(names: list[str], settings: SshSettings) -> tuple[Path, ...]:
    return tuple(
        Path(_expand_tokens(name, settings)).expanduser() for name in names if name != "none"
    )


def _parse_proxy_command(text: str, settings: SshSettings, where: str) -> tuple[str, ...]:
    """Split a ProxyCommand into an argv; one that needs a shell is refused."""
    if not text:
        return ()
    if re.search(r"[|&;<>$`\\*?\[\]()~\n]", text):
        raise DeviceError(
            f"ProxyCommand {text!r} needs a shell, and edgepack runs none",
            hint="use ProxyJump instead, or put the command into a script of its own",
            where=where,
        )
    argv = [_expand_tokens(word, settings) for word in shlex.split(text)]
    return tuple(argv[1:] if argv[0] == "exec" else argv)
