"""Reads what ``~/.ssh/config`` says about a host, as OpenSSH itself reads it.

edgepack runs ``ssh -G``, which knows ``Include``, ``Match`` and all else. What becomes of each
keyword is in :mod:`.keywords`. A setting that changes how a connection is made and that edgepack
cannot follow is an error, never ignored.
"""

from __future__ import annotations

import getpass
import os
import re
import shlex
import shutil
import socket
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from edgepack.base.processes import run_program
from edgepack.devices.inventory import SshEntry
from edgepack.devices.ssh.keywords import HARMLESS
from edgepack.errors import DeviceError

CONNECT_TIMEOUT_S = 10.0
_SSH_S = 20.0

Values = Mapping[str, list[str]]
"""What ``ssh -G`` prints: keywords in lower case, and all values of each."""


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
    certificate_files: tuple[Path, ...] = ()
    """More certificates of these keys or of the agent's."""
    identities_only: bool = False
    agent: str | None = None
    """The socket of the agent; None for no agent."""
    pkcs11_provider: str = ""
    """A library whose keys the agent has; see ``ssh-add -s``."""
    proxy_jump: str = ""
    """Hosts to go through, separated by commas, the nearest first."""
    proxy_command: tuple[str, ...] = ()
    address_family: socket.AddressFamily = socket.AF_UNSPEC
    bind_address: str = ""
    bind_interface: str = ""
    known_hosts: tuple[Path, ...] = ()
    known_hosts_command: tuple[str, ...] = ()
    """Prints more lines of known hosts; its tokens about the connection are not replaced yet."""
    revoked_host_keys: Path | None = None
    host_key_alias: str = ""
    connect_timeout_s: float = CONNECT_TIMEOUT_S
    environment: tuple[tuple[str, str], ...] = ()
    """Variables for what runs there; the server may not accept them."""
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
        DeviceError: The configuration is wrong, or has a setting that edgepack cannot follow; or
            there is one, and no OpenSSH to read it.
    """
    if shutil.which("ssh") is None:
        _require_no_configuration(ssh_config, where)
        given = {"user": user, "port": port and str(port)}
        values = {key: [value] for key, value in given.items() if value}
        values["identityfile"] = ["~/.ssh/id_rsa", "~/.ssh/id_ecdsa", "~/.ssh/id_ed25519"]
        return _make_settings(host, values, ssh_config, where)
    argv = ["ssh", "-G"]
    argv += ["-F", str(Path(ssh_config).expanduser())] if ssh_config else []
    argv += ["-l", user] if user else []
    argv += ["-p", str(port)] if port else []
    result = run_program([*argv, "--", host], timeout_s=_SSH_S)
    if result.exit_code:
        raise DeviceError(
            f"'ssh -G {host}' failed with exit code {result.exit_code}{result.last_lines}",
            hint="fix the SSH configuration; 'ssh -G' with this host must work",
            where=where,
        )
    return _make_settings(host, _parse(result.text), ssh_config, where)


def _parse(printed: str) -> Values:
    values: dict[str, list[str]] = {}
    for line in printed.splitlines():
        key, _, value = line.partition(" ")
        values.setdefault(key.lower(), []).append(value)
    return values


def _require_no_configuration(ssh_config: str | None, where: str) -> None:
    """Check that there is no SSH configuration, where nothing can read it."""
    path = Path(ssh_config or "~/.ssh/config").expanduser()
    text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
    if any(line.strip() and not line.lstrip().startswith("#") for line in text.splitlines()):
        raise DeviceError(
            f"{path} needs OpenSSH to be read, and there is no 'ssh' here",
            hint="install the OpenSSH client (apt install openssh-client), or set host, user, port"
            " and key in devices.yaml and set ssh_config: /dev/null there",
            where=where,
        )


_KNOWN_HOSTS = {
    "userknownhostsfile": "~/.ssh/known_hosts ~/.ssh/known_hosts2",
    "globalknownhostsfile": "/etc/ssh/ssh_known_hosts /etc/ssh/ssh_known_hosts2",
}
_FAMILIES = {"any": socket.AF_UNSPEC, "inet": socket.AF_INET, "inet6": socket.AF_INET6}


def _make_settings(host: str, values: Values, ssh_config: str | None, where: str) -> SshSettings:
    _refuse_unsupported(values, where)
    settings = SshSettings(
        host=host,
        hostname=_find_first(values, "hostname", host),
        port=int(_find_first(values, "port", "22")),
        user=_find_first(values, "user", "") or getpass.getuser(),
        identities_only=_find_first(values, "identitiesonly", "no") in ("yes", "true"),
        pkcs11_provider=_find_first(values, "pkcs11provider", ""),
        proxy_jump=_find_first(values, "proxyjump", ""),
        address_family=_FAMILIES[_find_first(values, "addressfamily", "any")],
        bind_address=_find_first(values, "bindaddress", ""),
        bind_interface=_find_first(values, "bindinterface", ""),
        host_key_alias=_find_first(values, "hostkeyalias", ""),
        connect_timeout_s=float(_find_first(values, "connecttimeout", str(CONNECT_TIMEOUT_S))),
        environment=tuple(_parse_variables(values.get("setenv", []))),
        ssh_config=ssh_config,
    )
    return replace(
        settings,
        agent=_find_agent(_find_first(values, "identityagent", "SSH_AUTH_SOCK"), settings),
        identity_files=_expand_paths(values.get("identityfile", []), settings),
        certificate_files=_expand_paths(values.get("certificatefile", []), settings),
        known_hosts=tuple(
            path
            for key, usual in _KNOWN_HOSTS.items()
            for path in _expand_paths(_find_first(values, key, usual).split(), settings)
        ),
        known_hosts_command=tuple(shlex.split(_find_first(values, "knownhostscommand", ""))),
        revoked_host_keys=next(
            iter(_expand_paths(values.get("revokedhostkeys", []), settings)), None
        ),
        proxy_command=_parse_proxy_command(
            _find_first(values, "proxycommand", ""), settings, where
        ),
    )


def _find_first(values: Values, key: str, default: str) -> str:
    value = values.get(key, [default])[0]
    return default if value == "none" and key != "identityagent" else value


def _find_agent(said: str, settings: SshSettings) -> str | None:
    """Return the socket of an ``IdentityAgent``: a path, or the variable that has it."""
    if said == "none":
        return None
    if said == "SSH_AUTH_SOCK" or (said.startswith("$") and not said.startswith("${")):
        return os.environ.get(said.removeprefix("$")) or None
    return str(Path(expand_tokens(said, settings)).expanduser())


def _parse_variables(printed: list[str]) -> list[tuple[str, str]]:
    """Return the variables of ``SetEnv``, of which ``ssh -G`` prints one in a line."""
    return [(name, value) for name, _, value in (each.partition("=") for each in printed)]


def _refuse_unsupported(values: Values, where: str) -> None:
    for keyword, harmless in HARMLESS.items():
        for value in values.get(keyword.lower(), []):
            if value not in harmless:
                raise DeviceError(
                    "the SSH configuration has a setting that edgepack cannot follow:"
                    f" {keyword} {value}",
                    hint="make an exception for this host, or name another file with 'ssh_config'"
                    " in devices.yaml",
                    where=where,
                )


def expand_tokens(text: str, settings: SshSettings, more: Mapping[str, str] | None = None) -> str:
    """Replace OpenSSH's tokens and ``${VARIABLE}``; ``more`` has tokens of one keyword alone.

    Source: ssh_config(5), sections TOKENS and ENVIRONMENT VARIABLES, OpenSSH 9.2.
    """
    local = socket.gethostname()
    tokens = {
        "%": "%",
        "d": str(Path.home()),
        "h": settings.hostname,
        "i": str(os.getuid()),
        "k": settings.host_key_alias or settings.host,
        "L": local.partition(".")[0],
        "l": local,
        "n": settings.host,
        "p": str(settings.port),
        "r": settings.user,
        "u": getpass.getuser(),
        **(more or {}),
    }
    text = re.sub(r"\$\{(\w+)\}", lambda found: os.environ.get(found[1], found[0]), text)
    return re.sub("%([%A-Za-z])", lambda found: tokens.get(found[1], found[0]), text)


def _expand_paths(names: list[str], settings: SshSettings) -> tuple[Path, ...]:
    return tuple(
        Path(expand_tokens(name, settings)).expanduser() for name in names if name != "none"
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
    argv = [expand_tokens(word, settings) for word in shlex.split(text)]
    return tuple(argv[1:] if argv[0] == "exec" else argv)
