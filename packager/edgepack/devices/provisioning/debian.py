"""Asks a device's apt for onnxruntime, which needs no root and changes nothing.

apt says, from the lists that it has verified, of which files a package consists and what their
hashes are.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import unquote

from edgepack.devices.probing import Missing
from edgepack.devices.transport import Transport
from edgepack.errors import DeviceError
from edgepack.project.profile import DebianPackage, parse_release

APT_S = 300.0
"""How long apt may take to read its lists: seconds on a board, if root's apt-get update has left
what it makes of them; else half a minute or more."""
_MOST_FILES = 200
_NO_PROGRAM = 127
"""What env(1) ends with where there is no such program."""

# As if nothing were installed or downloaded, so that the answer is the same on all devices of a
# release. Options of apt 1.0 and newer; apt-get(8), apt.conf(5).
_APT = (
    *("env", "LC_ALL=C", "apt-get", "install", "--print-uris", "-qq", "--no-install-recommends"),
    *("-o", "Dir::State::status=/dev/null", "-o", "Dir::Cache::archives=/nonexistent"),
    *("-o", "Acquire::ForceHash=SHA256"),
)
_BASE = ("python3", "libstdc++6")
"""What every device that runs bundles has, with all that it needs."""
_LINE = re.compile(
    r"'(?P<uri>[^']+)' (?P<name>[\w.+%~-]+)_(?P<version>[\w.+%~-]+)_(?P<arch>\w+)\.deb"
    r" (?P<size>\d+) SHA256:(?P<sha256>[0-9a-f]{64})"
)


@dataclass(frozen=True)
class DebianFile:
    """A file of a Debian repository."""

    name: str
    """The package's."""
    version: str
    uri: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True)
class DebianRuntime:
    """onnxruntime as a device's Debian has it, and the libraries that a stock system lacks."""

    package: str
    version: str
    """Debian's, such as 1.21.0+dfsg-1."""
    files: tuple[DebianFile, ...]

    def __str__(self) -> str:
        return f"{self.package} {self.version} of the device's own system"


def ask_debian(
    wanted: DebianPackage, python: str, device: str, transport: Transport
) -> DebianRuntime | Missing:
    """Ask a device's apt for a package, or why it is not to be had there.

    Args:
        wanted: The package.
        python: The version of the device's Python, such as 3.13.5.
        device: The device's name.
        transport: The connection to it.

    Raises:
        DeviceError: The connection broke, or apt's answer is not what apt says.
    """
    base = _list_files(_BASE, transport)
    if isinstance(base, Missing):
        return base
    found = _list_files([wanted.package], transport)
    if isinstance(found, Missing):
        return found
    known = {file.name: file for file in found}
    if not {wanted.package, "python3"} <= known.keys() or len(found) > _MOST_FILES:
        raise DeviceError(
            f"apt-get names {len(found)} files for {wanted.package}, which cannot be right",
            hint=f"see what it says there: {shlex.join([*_APT, wanted.package])}",
            where=device,
        )
    version = known[wanted.package].version
    if parse_release(version) < parse_release(wanted.at_least):
        return Missing(f"its {wanted.package} is {version}, older than {wanted.at_least}")
    of_debian = known["python3"].version
    if python.split(".")[:2] != of_debian.split(".")[:2]:
        return Missing(f"it is for Python {of_debian}, and python3 there is {python}")
    # Debian Policy 8.1: a shared library's package is named after it.
    lacking = {name for name in known if name.startswith("lib")} - {file.name for file in base}
    files = tuple(known[name] for name in sorted(lacking | {wanted.package}))
    for file in files:
        if not file.uri.startswith(("http://", "https://")):
            return Missing(f"its apt names {file.uri}, which cannot be fetched from here")
    return DebianRuntime(wanted.package, version, files)


def _list_files(packages: Sequence[str], transport: Transport) -> list[DebianFile] | Missing:
    """Return the files of packages and of all that they need."""
    done = transport.send([*_APT, *packages], [], timeout_s=APT_S)
    if done.exit_code == _NO_PROGRAM:
        return Missing("there is no apt-get")
    if done.exit_code:
        said = re.search("^E: (.+)", done.stderr.decode("utf-8", "replace"), re.MULTILINE)
        problem = said[1] if said else f"exit code {done.exit_code}"
        return Missing(f"apt-get says: {problem} (if its lists are old: sudo apt-get update)")
    found = []
    for line in filter(None, map(_LINE.fullmatch, done.text.splitlines())):
        version = unquote(line["version"]).rpartition(":")[2]
        size_bytes, sha256 = int(line["size"]), line["sha256"]
        found.append(DebianFile(line["name"], version, line["uri"], size_bytes, sha256))
    return found
