"""Makes devices pull: installs the agent that follows a channel, and the timer that starts it.

The device needs nothing of this machine afterwards. What it trusts is decided here, over the
connection that pushes use: the signers are pinned, and a registry alone can make it run nothing.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel

from edgepack.base.resources import find_ondevice_dir
from edgepack.bundle.signing import NAMESPACE
from edgepack.deploy.operations import audited
from edgepack.devices.answers import read_answer
from edgepack.devices.checking import find_runtime_python, require_kind
from edgepack.devices.inventory import Device, LocalEntry, SshEntry
from edgepack.devices.probing import probe
from edgepack.devices.programs import open_device_program
from edgepack.devices.transport import Transport
from edgepack.devices.transports import connect
from edgepack.errors import DeviceError, PythonMissingError, UsageError
from edgepack.ondevice.agent.edgepack_registry import PROXY
from edgepack.project.names import is_taken
from edgepack.registry.channels import NAMESPACE as CHANNEL_NAMESPACE
from edgepack.registry.reference import Reference

PROGRAMS = (
    "edgepack_agent",
    "edgepack_channel",
    "edgepack_lease",
    "edgepack_pull",
    "edgepack_registry",
    "edgepack_releases",
    "edgepack_state",
)
"""What the agent consists of."""
_MODULES = ("edgepack_registry", "edgepack_releases", "edgepack_state", "edgepack_channel")
"""What the program that enrolls imports, in their order."""
_ANSWER_S = 300.0
_SHORTEST_S = 60.0


@dataclass(frozen=True)
class PullSettings:
    """How devices pull."""

    channel: str = "stable"
    """The tag that they follow."""
    project: str | None = None
    """The bundle's name; default: the last word of the repository."""
    every_s: float = 900.0
    """How long they wait between two runs, in seconds; up to half of it is added at random."""
    textfile: str | None = None
    """The folder of node_exporter's textfile collector, on the devices."""
    report_url: str | None = None
    """Where each run is reported as JSON."""
    report_token_env: str | None = None
    """The environment variable with the bearer token for that."""
    health_url: str | None = None
    """What has to answer well after a switch, on the device: ``http://127.0.0.1:8000/...``."""
    credentials_env: str | None = None
    """The environment variable with ``USER:PASSWORD`` for the registry."""
    proxy_env: str | None = None
    """The environment variable with the address of the proxy to use, which may have a password."""
    no_proxy: str | None = None
    """Hosts that the proxy is not used for, as curl has them."""
    ca: Path | None = None
    """Certificates to trust instead of the device's own."""
    plain_http: bool = False
    """Whether the registry is talked to without TLS."""


class Enrolled(BaseModel):
    """What came of an enrolment."""

    timer: str
    """``system``, ``user``, or ``none`` where no systemd runs."""
    left: str
    """What somebody still has to do; empty if nothing is."""
    cron: str
    """The line for a crontab, where there is no timer."""


class PulledProject(BaseModel):
    """A project that a device pulls, and how its last run ended."""

    registry: str
    repository: str
    channel: str
    project: str
    target: str
    every_s: float
    release: str
    """The current one; empty if there is none."""
    result: str | None = None
    """The result's word of the last run; None if there was none."""
    detail: str | None = None
    sequence: int | None = None
    follows: int | None = None
    """1 if the current release is the channel's."""
    run_timestamp_seconds: int | None = None
    """When, by the device's clock."""

    def __str__(self) -> str:
        follows = f"{self.project} from oci://{self.registry}/{self.repository}:{self.channel}"
        if self.result is None:
            return f"{follows}: no run yet"
        return f"{follows}: {self.release or 'no release'}; {self.result}: {self.detail}"


class _Shown(BaseModel):
    projects: list[PulledProject]


class _Ended(BaseModel):
    cron: str


def enroll_device(
    device: Device, reference: str, allowed_signers: Path, settings: PullSettings | None = None
) -> Enrolled:
    """Make a device pull a project from a channel of a registry.

    What it had for this project is replaced, but for what it remembers; its releases stay.

    Args:
        device: Where; over SSH, or this machine.
        reference: ``oci://HOST/REPOSITORY``.
        allowed_signers: Whose signatures of bundles and of channels it takes, from now on.
        settings: How.

    Raises:
        UsageError: The reference, the signers or a setting are wrong.
        DeviceError: The device cannot be reached, has no Python or no runtime, or cannot pull.
        RemoteCommandError: It could not be set up there.
        ToolError: The audit log cannot be written.
    """
    asked = settings or PullSettings()
    found = Reference.parse(reference)
    found.require_registry("a device follows a channel")
    if found.tag or found.digest:
        raise UsageError(
            f"{reference} names one bundle, and a device follows a channel",
            hint=f"edgepack device enroll {device.name} oci://{found.host}/{found.repository}"
            f" --channel {found.tag or 'stable'}",
        )
    document = _make_document(device, found, allowed_signers, asked)
    with audited("enroll", device) as operation, connect(device) as transport:
        operation.describe(
            host_key=transport.host_key,
            project=str(document["settings"]["project"]),
            detail=f"{reference} --channel {asked.channel}",
        )
        facts = probe(device, transport)
        require_kind(device, facts)
        document["settings"]["python"] = find_runtime_python(device, facts)
        said = _run(device, transport, "enroll", document)
    return read_answer(Enrolled, said, device=device.name, what="the answer to an enrolment")


def unenroll_device(device: Device, project: str) -> str:
    """Make a device pull a project no more; its releases stay, and the current one is in use.

    Returns:
        What somebody still has to do; empty if nothing is.

    Raises:
        UsageError: The name cannot be one.
        DeviceError: The device cannot be reached.
        RemoteCommandError: It does not pull this project.
        ToolError: The audit log cannot be written.
    """
    _require_project(project)
    with audited("unenroll", device) as operation, connect(device) as transport:
        operation.describe(host_key=transport.host_key, project=project)
        said = _run(device, transport, "unenroll", {"project": project})
    return read_answer(_Ended, said, device=device.name, what="the answer").cron


def list_pulled(device: Device) -> tuple[PulledProject, ...]:
    """Return what a device pulls, and how the last runs ended.

    Raises:
        DeviceError: The device cannot be reached.
        RemoteCommandError: What it has cannot be read.
    """
    with connect(device) as transport:
        said = _run(device, transport, "show", None)
    return tuple(read_answer(_Shown, said, device=device.name, what="the answer").projects)


def _run(
    device: Device, transport: Transport, do: str, document: Mapping[str, object] | None
) -> bytes:
    words = ("edgepack_enroll", device.entry.root, do)
    try:
        with open_device_program(
            transport, device, *words, modules=_MODULES, timeout_s=_ANSWER_S, supervised=False
        ) as stream:
            if document is not None:
                data = json.dumps(document).encode()
                stream.write(b"%d\n" % len(data) + data)
            result = stream.wait()
    except PythonMissingError as error:
        raise PythonMissingError(
            "there is no Python 3.8 on the device, and the agent that pulls needs one",
            hint="install python3 there; or push to it: edgepack push BUNDLE --device"
            f" {device.name}",
            where=device.name,
        ) from error
    return result.check(
        f"'{do}' there",
        device=device.name,
        hint="put right what it says and do it again; until then the device pulls as it did",
    ).stdout


def _make_document(
    device: Device, reference: Reference, allowed_signers: Path, asked: PullSettings
) -> dict[str, dict[str, object]]:
    """Return what the device is told, but for its Python."""
    entry = device.entry
    if not isinstance(entry, LocalEntry | SshEntry):
        raise DeviceError(
            "phones and browsers do not pull: their apps bring the model",
            hint="ship it in the app (docs/apps.md)",
            where=device.name,
        )
    project = asked.project or reference.repository.rpartition("/")[2]
    _require_project(project)
    if asked.every_s < _SHORTEST_S:
        raise UsageError(
            f"every {asked.every_s:g} s is too often",
            hint="a minute is the least, and 15m is usual",
            where="--every",
        )
    Reference.parse(f"oci://{reference.host}/{reference.repository}:{asked.channel}")
    for option, url in (("--report-url", asked.report_url), ("--health-url", asked.health_url)):
        _require_url(option, url)
    settings = {
        "schema_version": 1,
        "device": device.name,
        "registry": reference.host,
        "repository": reference.repository,
        "channel": asked.channel,
        "project": project,
        "target": entry.target,
        "every_s": asked.every_s,
        "plain_http": asked.plain_http or reference.is_loopback,
        "no_proxy": asked.no_proxy,
        "textfile": asked.textfile,
        "report_url": asked.report_url,
        "health_url": asked.health_url,
        "after_switch": entry.after_switch,
        "health": entry.health,
        "hook_timeout_s": entry.hook_timeout_s,
        "keep_releases": entry.keep_releases,
    }
    folder = find_ondevice_dir() / "agent"
    return {
        "settings": settings,
        "programs": {f"{name}.py": (folder / f"{name}.py").read_text() for name in PROGRAMS},
        "credentials": _read_credentials(asked),  # type: ignore[dict-item]
        "signers": _read_signers(allowed_signers),  # type: ignore[dict-item]
        "ca": _read_ca(asked.ca) if asked.ca else None,  # type: ignore[dict-item]
    }


def _require_project(project: str) -> None:
    if not re.fullmatch(r"[A-Za-z0-9]+([._-][A-Za-z0-9]+)*", project) or is_taken(project):
        raise UsageError(
            f"{project!r} is no project's name",
            hint="give the 'name' of edgepack.yaml: --project NAME",
            where="--project",
        )


def _require_url(option: str, url: str | None) -> None:
    if url is not None and not re.fullmatch(r"https?://[^\s/?#@]+([/?]\S*)?", url):
        raise UsageError(
            f"{option} is no address that can be used",
            hint="write it as https://host/path; a login in it would be readable for others",
            where=option,
        )


def _require_proxy(name: str | None, proxy: str) -> None:
    """Raise unless it is an address, without showing it: it may have a password."""
    if not re.fullmatch(PROXY, proxy):
        raise UsageError(
            f"the environment variable {name!r} has no proxy's address",
            hint="write it as http://HOST:PORT or http://USER:PASSWORD@HOST:PORT, with '/', '@' and"
            " the like in the password as %2F and %40",
            where="--proxy-env",
        )


def _read_ca(path: Path) -> str:
    text = _read_file(path, "--ca")
    try:
        ssl.create_default_context(cafile=str(path.expanduser()))
    except (OSError, ValueError) as error:
        raise UsageError(
            f"{str(path)!r} has no certificates",
            hint="name a file with certificates in PEM format",
            where="--ca",
        ) from error
    return text


def _read_credentials(asked: PullSettings) -> str | None:
    """Return the file of secrets; None if there is none."""
    found: dict[str, str | int] = {}
    if (login := _read_variable(asked.credentials_env, "--credentials-env")) is not None:
        user, colon, password = login.partition(":")
        if not colon or not password:
            raise UsageError(
                f"the environment variable {asked.credentials_env!r} is not USER:PASSWORD",
                hint="a registry's token is the password, beside the user's name that it wants",
                where="--credentials-env",
            )
        found |= {"username": user, "password": password}
    if (token := _read_variable(asked.report_token_env, "--report-token-env")) is not None:
        found["report_token"] = token
    if (proxy := _read_variable(asked.proxy_env, "--proxy-env")) is not None:
        _require_proxy(asked.proxy_env, proxy)
        found["proxy"] = proxy
    return json.dumps({"schema_version": 1, **found}) if found else None


def _read_variable(name: str | None, option: str) -> str | None:
    if name is None:
        return None
    value = os.environ.get(name)
    if not value or any(ord(char) < 32 for char in value):
        raise UsageError(
            f"the environment variable {name!r} is not set, or has more than one line",
            hint=f"read -rs {shlex.quote(name)} && export {shlex.quote(name)}",
            where=option,
        )
    return value


def _read_signers(path: Path) -> str:
    """Return a file of allowed signers after checking that a device can rely on it.

    Raises:
        UsageError: It has no signers for both signatures, or one that counts for a time only.
    """
    text = _read_file(path, "--allowed-signers")
    lines = [line.strip() for line in text.split("\n")]
    lines = [line for line in lines if line and not line.startswith("#")]
    listed = [_find_options(line, path) for line in lines]
    for options in listed:
        if re.search(r"(^|,)(valid-(after|before)=|cert-authority)", options, re.IGNORECASE):
            raise UsageError(
                f"{str(path)!r} has a signer who counts for a time only, or a certificate"
                " authority, whose certificates do",
                hint="a device's clock may be wrong by years: pin plain keys, and enroll again when"
                " one changes",
                where="--allowed-signers",
            )
    for namespace in (NAMESPACE, CHANNEL_NAMESPACE):
        if not any(_allows(options, namespace) for options in listed):
            raise UsageError(
                f"{str(path)!r} lets nobody sign in the namespace {namespace!r}",
                hint=_SIGNER_HINT,
                where="--allowed-signers",
            )
    return text


_SIGNER_HINT = (
    f'NAME namespaces="{NAMESPACE},{CHANNEL_NAMESPACE}" KEY, where KEY is what the signer\'s .pub'
    " file holds; two signers may have one each"
)
_OPTION = r'(?i:cert-authority|(?:namespaces|valid-after|valid-before)="(?:\\"|[^"])*")'
_SIGNER = re.compile(
    r'(?:"[^"]*"|[^\s"]+)[ \t]+'  # who
    rf"(?:({_OPTION}(?:,{_OPTION})*)[ \t]+)?"
    r"(?:sk-)?(?:ssh|ecdsa)-[a-z0-9@.-]+[ \t]+[A-Za-z0-9+/]+=*"
)
"""A signer's line, as ssh-keygen(1) has it in "ALLOWED SIGNERS": principals and the options' values
may be in quotes, with spaces in them."""


def _find_options(line: str, path: Path) -> str:
    found = _SIGNER.match(line)
    if found is None:
        raise UsageError(
            f"{str(path)!r} has a line that is no signer: {line[:40]!r}",
            hint=_SIGNER_HINT,
            where="--allowed-signers",
        )
    return found[1] or ""


def _allows(options: str, namespace: str) -> bool:
    found = re.search(r'(?:^|,)namespaces="([^"]*)"', options, re.IGNORECASE)
    return found is None or _matches(found[1].split(","), namespace)


def _matches(patterns: Sequence[str], namespace: str) -> bool:
    """Return whether a list of patterns has a name, as ssh_config(5) says in "PATTERNS"."""
    hits = [one for one in patterns if _matches_one(one.removeprefix("!"), namespace)]
    return bool(hits) and not any(one.startswith("!") for one in hits)


def _matches_one(pattern: str, namespace: str) -> bool:
    written = re.escape(pattern).replace(r"\*", ".*").replace(r"\?", ".")
    return re.fullmatch(written, namespace) is not None


def _read_file(path: Path, option: str) -> str:
    try:
        return path.expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"{str(path)!r} cannot be read", hint="name a text file", where=option
        ) from error
