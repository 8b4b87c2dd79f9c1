"""Makes an environment on a device from wheels that are fetched here and pushed."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath

from packaging.specifiers import SpecifierSet

from edgepack.devices.checking import find_absent_providers, find_unmet_pins
from edgepack.devices.inventory import Device
from edgepack.devices.probing import ProbedFacts, probe, probe_python
from edgepack.devices.provisioning.native import (
    RUNTIME,
    ask_runtime,
    find_folder,
    send_library,
    send_program,
)
from edgepack.devices.provisioning.native_program import PROGRAM
from edgepack.devices.provisioning.needs import find_needs, load_provisioned_profile
from edgepack.devices.provisioning.proving import find_broken_providers
from edgepack.devices.provisioning.wheels import WheelSource, fetch_wheels
from edgepack.devices.transport import Transport
from edgepack.devices.transports import connect
from edgepack.errors import DeviceError, RemoteCommandError
from edgepack.project.profile import Profile

INSTALL_S = 1800.0
_INDEX = WheelSource()
_SHORT_S = 120.0

# Arguments: the root, the new environment's name, the wheels' folder name. The link is replaced in
# one rename; the environment that it pointed to before stays for what still runs in it.
_SWITCH = """
import os, shutil, sys
root, name, wheels = sys.argv[1:]
link = os.path.join(root, "venv")
keep = {name, os.path.basename(os.readlink(link)) if os.path.islink(link) else name}
if os.path.lexists(link) and not os.path.islink(link):
    sys.exit(link + " is in the way: it was not made by edgepack")
partial = link + ".partial-%d" % os.getpid()
os.symlink(name, partial)
os.replace(partial, link)
for found in os.listdir(root):
    if found.startswith("venv-") and found not in keep:
        shutil.rmtree(os.path.join(root, found))
shutil.rmtree(os.path.join(root, wheels), ignore_errors=True)
"""

# Arguments: the Python to build on, the environment's place, the folder of wheels, what to
# install. pip runs from its own wheel: the environment is made without it, which needs no
# ensurepip (Debian ships that apart, in python3-venv). Only what is imported is compiled, by the
# probe that follows: to compile all takes as long as the rest on a small board.
_INSTALL = """
set -e
python=$1; place=$2; wheels=$3
shift 3
rm -rf -- "$place"
"$python" -m venv --without-pip "$place"
for pip in "$wheels"/pip-*.whl; do :; done
PYTHONPATH=$pip "$place/bin/python" -m pip install --quiet --disable-pip-version-check \\
  --no-compile --no-cache-dir --no-index --find-links "$wheels" "$@"
: > "$place/.whole"
"""

_WHOLE = ".whole"
"""A file in an environment that was installed to its end."""


@dataclass(frozen=True)
class Provisioned:
    """An environment on a device, proven by importing onnxruntime there."""

    python: PurePosixPath
    """Its interpreter, through the link that later runs use; without Python the measuring
    program."""
    packages: dict[str, str]
    """Versions as the device's own Python reports them."""
    providers: tuple[str, ...]
    """Execution providers that onnxruntime has there."""
    host_key: str | None = None
    """Fingerprint of the key that the device has proven."""
    serial: str | None = None
    origin: str = ""
    """Where onnxruntime is from; empty for the package index, or a wheel of the user's."""
    passed_over: tuple[str, ...] = ()
    """The target's other origins, which the device does not have, each with the reason."""
    broken: dict[str, str] = field(default_factory=dict)
    """Providers of the target's that onnxruntime lists and that computed nothing right, and why:
    each has run a convolution."""

    def __str__(self) -> str:
        versions = ", ".join(f"{name} {version}" for name, version in self.packages.items())
        origin = f" from {self.origin}" if self.origin else ""
        passed_over = "".join(f"; not from {why}" for why in self.passed_over)
        broken = "".join(f"; {name} does not work: {why}" for name, why in self.broken.items())
        where = f"{origin} in {self.python}{passed_over}{broken}"
        return f"{versions} ({', '.join(self.providers)}){where}"


@dataclass(frozen=True)
class _Site:
    """The device, paths and target of an environment that is being made."""

    device: Device
    transport: Transport
    profile: Profile
    root: PurePosixPath
    progress: Callable[[str], None]

    @property
    def wheels(self) -> PurePosixPath:
        return self.root / ".wheels"


def provision(
    device: Device,
    source: WheelSource = _INDEX,
    *,
    require_all: bool = False,
    hold: Callable[[Transport], AbstractContextManager[object]] = lambda _: nullcontext(),
    progress: Callable[[str], None] = lambda _: None,
) -> Provisioned:
    """Make ``<root>/venv`` on a device with what its target pins; without Python ``<root>/native``.

    The new environment is built beside the old one and replaces it once it is proven. One that was
    cut off while it was made is made anew.

    Args:
        device: Where.
        source: Where wheels come from.
        require_all: Leave the old environment in use if a provider of the target is missing in the
            new one or does not work in it.
        hold: Gives what keeps others away while the device is changed; not while wheels are
            fetched.
        progress: Called at the beginning of each stage.

    Raises:
        UsageError: The inventory names an interpreter for the device, so this one would not run; or
            a wheel or the wheelhouse is not there.
        DeviceError: The device has not a Python that the runtime has wheels for, or lacks what it
            needs without any; or it is not to be had.
        ToolError: A wheel cannot be fetched, or is missing.
        RemoteCommandError: A command on the device failed.
    """
    source.require_there()
    profile = load_provisioned_profile(device)
    with connect(device) as transport, tempfile.TemporaryDirectory(prefix="edgepack-") as name:
        facts = probe(device, transport)
        needs = find_needs(device, profile, facts, transport, source=source)
        site = _Site(device, transport, profile, facts.root, progress)
        folder = Path(name)
        wanted = fetch_wheels(folder, needs, source, device.name, progress)
        if needs.is_native:
            with hold(transport):
                made = _provision_native(folder, facts, site)
            return replace(made, host_key=transport.host_key, serial=facts.serial or None)
        place = site.root / f"venv-{_compute_digest(folder, needs.python)}"
        with hold(transport):
            if not _is_proven(place, site):
                _push_wheels(folder, site)
                _install_packages(place, wanted, site)
            made = _prove(place, site, require_all=require_all)
            _switch_environment(place, site)
        return replace(
            made,
            host_key=transport.host_key,
            serial=facts.serial or None,
            origin=str(needs.runtime or ""),
            passed_over=needs.passed_over,
        )


def _provision_native(folder: Path, facts: ProbedFacts, site: _Site) -> Provisioned:
    """Put the measuring program and the library out of the one wheel in a folder on a board."""
    device, transport, profile = site.device, site.transport, site.profile
    [wheel] = folder.glob("*.whl")
    site.progress("pushing the measuring program and onnxruntime's library")
    send_program(device, transport, facts)
    send_library(wheel, device, transport, facts)
    about = ask_runtime(device, transport, facts)
    if about.onnxruntime not in SpecifierSet(profile.runtime.packages[RUNTIME]):
        raise DeviceError(
            f"the library is that of onnxruntime {about.onnxruntime}, and target {profile.id!r}"
            f" pins {profile.runtime.packages[RUNTIME]}",
            hint="give the wheel of that version with --wheel FILE",
            where=device.name,
        )
    program = find_folder(facts) / PROGRAM
    return Provisioned(program, {RUNTIME: about.onnxruntime}, tuple(about.providers))


def _compute_digest(folder: Path, python_version: str) -> str:
    """Name an environment by what goes into it."""
    digest = hashlib.sha256(python_version.encode())
    for path in sorted(folder.iterdir()):
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()[:12]


def _is_proven(place: PurePosixPath, site: _Site) -> bool:
    """Return whether an environment exists already and has the pinned packages."""
    try:
        found = probe_python(str(place / "bin" / "python"), site.device, site.transport)
    except RemoteCommandError:
        return False
    if find_unmet_pins(found, site.profile.runtime.packages):
        return False
    ended = site.transport.send(["test", "-f", str(place / _WHOLE)], [], timeout_s=_SHORT_S)
    return ended.exit_code == 0


def _push_wheels(folder: Path, site: _Site) -> None:
    clear = ["sh", "-c", 'rm -rf -- "$1" && mkdir -p -- "$1"', "sh", str(site.wheels)]
    site.transport.run(clear, timeout_s=_SHORT_S).check(
        f"making {site.wheels}", device=site.device.name, hint="check 'root' in devices.yaml"
    )
    for path in sorted(folder.iterdir()):
        site.progress(f"pushing {path.name} ({path.stat().st_size >> 10} KiB)")
        site.transport.put(path, site.wheels / path.name, timeout_s=INSTALL_S)


def _install_packages(place: PurePosixPath, wanted: Sequence[str], site: _Site) -> None:
    """Build an environment where it will stay: a virtual environment cannot be moved."""
    site.progress("installing on the device")
    names = [str(site.wheels / name) if name.endswith(".whl") else name for name in wanted]
    python = site.device.plain_python
    argv = ["sh", "-c", _INSTALL, "sh", python, str(place), str(site.wheels), *names]
    site.transport.run(argv, timeout_s=INSTALL_S).check(
        "installing the runtime",
        device=site.device.name,
        hint="look at the message above: free space is the usual reason (edgepack device check"
        f" {site.device.name})",
    )


def _prove(place: PurePosixPath, site: _Site, *, require_all: bool) -> Provisioned:
    """Prove an environment, before it is used."""
    python = str(place / "bin" / "python")
    found = probe_python(
        python,
        site.device,
        site.transport,
        hint="the runtime does not run on this system: give another with --wheel FILE",
    )
    problems = find_unmet_pins(found, site.profile.runtime.packages)
    if problems:
        raise DeviceError(
            f"the runtime was installed but does not work: {problems[0]}",
            hint=f"see what Python says there: {python} -c 'import onnxruntime'",
            where=site.device.name,
        )
    site.progress("proving what is installed")
    broken = find_broken_providers(
        python, site.profile, found.providers, site.device.name, site.transport
    )
    if require_all:
        absent = find_absent_providers(found, site.profile)
        lacking = {each.provider: "it is not in the runtime" for each in absent}
        _require_none(lacking | broken, site)
    packages = {name: str(version) for name, version in found.packages.items()}
    used = site.root / "venv" / "bin" / "python"
    return Provisioned(used, packages, found.providers, broken=broken)


def _require_none(broken: Mapping[str, str], site: _Site) -> None:
    """Check that no provider of the target is missing, before the environment is used."""
    if broken:
        lines = "".join(f"\n  {name}: {why}" for name, why in broken.items())
        raise RemoteCommandError(
            f"the runtime does not have what target {site.profile.id!r} is for{lines}",
            hint="mend that on the device, or build with other arguments; the environment before it"
            " is still in use",
            where=site.device.name,
        )


def _switch_environment(place: PurePosixPath, site: _Site) -> None:
    """Make an environment the one that is used."""
    python = [site.device.plain_python, "-IS", "-c", _SWITCH]
    argv = [*python, str(site.root), place.name, site.wheels.name]
    site.transport.run(argv, timeout_s=_SHORT_S).check(
        "switching to the new environment",
        device=site.device.name,
        hint="look at the message above; the old one is still in use",
    )
