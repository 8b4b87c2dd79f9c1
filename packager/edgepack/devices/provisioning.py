"""Makes the Python environment that bundles run in; the device needs no internet.

Wheels are fetched here for the device's platform, or taken from a wheelhouse, and pushed; pip
itself is pushed too, since a stock system may have neither pip nor ``ensurepip``.
"""

from __future__ import annotations

import ensurepip
import hashlib
import re
import shlex
import sys
import sysconfig
import tempfile
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from packaging.specifiers import SpecifierSet

from edgepack.base.files import writing
from edgepack.base.processes import ProgramResult, run_program
from edgepack.devices.checking import find_unmet_pins
from edgepack.devices.inventory import Device
from edgepack.devices.probing import ProbedFacts, probe, probe_python
from edgepack.devices.transport import Transport
from edgepack.devices.transports import connect
from edgepack.errors import (
    DeviceError,
    EdgepackError,
    RemoteCommandError,
    ToolError,
    UsageError,
)
from edgepack.project.profile import Profile, load_profile

FETCH_S = 1800.0
INSTALL_S = 1800.0
_SHORT_S = 120.0
_OLDEST_GLIBC = 17
"""manylinux2014, the oldest that wheels are still built for, means glibc 2.17 (PEP 599)."""

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
# ensurepip (Debian ships that apart, in python3-venv).
_INSTALL = """
set -e
python=$1; place=$2; wheels=$3
shift 3
rm -rf -- "$place"
"$python" -m venv --without-pip "$place"
for pip in "$wheels"/pip-*.whl; do :; done
PYTHONPATH=$pip "$place/bin/python" -m pip install --quiet --disable-pip-version-check \\
  --no-cache-dir --no-index --find-links "$wheels" "$@"
: > "$place/.whole"
"""

_WHOLE = ".whole"
"""A file in an environment that was installed to its end."""


@dataclass(frozen=True)
class Provisioned:
    """An environment on a device, proven by importing onnxruntime there."""

    python: PurePosixPath
    """Its interpreter, through the link that later runs use."""
    packages: dict[str, str]
    """Versions as the device's own Python reports them."""
    providers: tuple[str, ...]
    """Execution providers that onnxruntime has there."""
    host_key: str | None = None
    """Fingerprint of the key that the device has proven."""
    serial: str | None = None

    def __str__(self) -> str:
        versions = ", ".join(f"{name} {version}" for name, version in self.packages.items())
        return f"{versions} ({', '.join(self.providers)}) in {self.python}"


@dataclass(frozen=True)
class WheelNeeds:
    """What decides which wheels a device takes: devices that share it take the same ones."""

    python: str
    """Its version, such as 3.11.2."""
    arch: str
    libc: str
    pins: tuple[str, ...]
    """What its target pins, as pip reads it."""

    def __str__(self) -> str:
        return f"Python {self.python} on {self.arch} with {self.libc or 'no glibc'}"


@dataclass(frozen=True)
class FetchedWheels:
    """The wheels that a device needs, in a wheelhouse."""

    needs: WheelNeeds
    wheelhouse: Path
    files: tuple[str, ...]

    def __str__(self) -> str:
        return f"{len(self.files)} wheels for {self.needs}"


@dataclass(frozen=True)
class _Source:
    """Where wheels come from: files first, then a folder, and the package index unless offline."""

    files: tuple[Path, ...]
    wheelhouse: Path | None = None
    is_offline: bool = False

    def require_there(self) -> None:
        """Check that the files and the folder are there.

        Raises:
            UsageError: One is not.
        """
        for path in self.files:
            if not path.is_file():
                raise UsageError(
                    f"there is no wheel {str(path)!r}", hint="check the path", where="--wheel"
                )
        if self.wheelhouse is not None and not self.wheelhouse.is_dir():
            raise UsageError(
                f"there is no folder {str(self.wheelhouse)!r}",
                hint=f"edgepack device wheels DEVICE --to {self.wheelhouse} makes it, where there"
                " is internet",
                where="--wheelhouse",
            )


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
    *,
    wheels: Sequence[Path] = (),
    wheelhouse: Path | None = None,
    offline: bool = False,
    progress: Callable[[str], None] = lambda _: None,
) -> Provisioned:
    """Make ``<root>/venv`` on a device with what its target pins.

    The new environment is built beside the old one and replaces it once it is proven. One that was
    cut off while it was made is made anew.

    Args:
        device: Where.
        wheels: Wheel files that are preferred to all others.
        wheelhouse: A folder that has all others, as :class:`Wheelhouse` fills it; the package index
            is left alone.
        offline: Use only ``wheels`` and ``wheelhouse``, which must have every needed package.
        progress: Called at the beginning of each stage.

    Raises:
        UsageError: The inventory names an interpreter for the device, so this one would not run; or
            a wheel or the wheelhouse is not there.
        DeviceError: The device has no Python, or not one that the runtime has wheels for.
        ToolError: A wheel cannot be fetched, or is missing.
        RemoteCommandError: A command on the device failed.
    """
    source = _Source(tuple(wheels), wheelhouse, offline or wheelhouse is not None)
    source.require_there()
    profile = _load_provisioned_profile(device)
    with connect(device) as transport, tempfile.TemporaryDirectory(prefix="edgepack-") as name:
        facts = probe(device, transport)
        needs = _find_needs(device, profile, facts, transport)
        site = _Site(device, transport, profile, facts.root, progress)
        folder = Path(name)
        progress(f"fetching wheels for {needs}")
        _fetch_wheels(folder, needs, source, device.name)
        place = site.root / f"venv-{_compute_digest(folder, needs.python)}"
        if not _is_proven(place, site):
            _push_wheels(folder, site)
            _install_packages(place, [path.name for path in source.files], needs, site)
        made = _switch_environment(place, site)
        return replace(made, host_key=transport.host_key, serial=facts.serial or None)


def _load_provisioned_profile(device: Device) -> Profile:
    if device.entry.python is not None:
        raise UsageError(
            f"device {device.name!r} has 'python: {device.entry.python}' in devices.yaml, which"
            " would be used instead of a provisioned environment",
            hint="remove that line, or install the packages there yourself",
        )
    profile = load_profile(device.target)
    if profile.device.python is None:
        raise UsageError(
            f"target {profile.id!r} is for apps on {profile.device.os}, where no Python runs",
            hint="provision devices that run Linux or macOS; the bundle's packages.txt names what"
            " an app needs",
        )
    return profile


def _find_needs(
    device: Device, profile: Profile, facts: ProbedFacts, transport: Transport
) -> WheelNeeds:
    base = probe_python(device.plain_python, device, transport)
    _require_python(base.version, device, profile)
    pins = tuple(f"{name}{pin}" for name, pin in profile.runtime.packages.items())
    return WheelNeeds(base.version, facts.arch, facts.libc, pins)


class Wheelhouse:
    """A folder that is filled with what devices need, once for all that need the same.

    A wheel gets its name there when it is whole. Several threads may call :meth:`fetch`.
    """

    def __init__(self, folder: Path, files: Sequence[Path] = ()) -> None:
        """Note the folder, which is made when there is something in it; ``files`` go there too."""
        self.folder = folder
        self._source = _Source(tuple(files))
        self._lock = threading.Lock()
        self._fetched: dict[WheelNeeds, FetchedWheels | EdgepackError] = {}

    def fetch(
        self, device: Device, progress: Callable[[str], None] = lambda _: None
    ) -> FetchedWheels:
        """Ask a device what it is, and fetch what provisioning it needs, pip's wheel among that.

        Nothing is changed on the device.

        Raises:
            UsageError: It cannot be provisioned, or a wheel of the user's is not there.
            DeviceError: It has no Python, or not one that the runtime has wheels for.
            ToolError: A wheel cannot be fetched, or the folder cannot be written.
        """
        self._source.require_there()
        profile = _load_provisioned_profile(device)
        with connect(device) as transport:
            facts = probe(device, transport)
            needs = _find_needs(device, profile, facts, transport)
        with self._lock:
            found = self._fetched.get(needs)
            if found is None:
                progress(f"fetching wheels for {needs}")
                try:
                    found = self._fetch(needs, device.name)
                except ToolError as error:
                    found = error
                self._fetched[needs] = found
        if isinstance(found, EdgepackError):
            raise found
        return found

    def _fetch(self, needs: WheelNeeds, device: str) -> FetchedWheels:
        with writing("the wheels", self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=self.folder, prefix=".partial-") as name:
                _fetch_wheels(Path(name), needs, self._source, device)
                files = sorted(Path(name).iterdir())
                for path in files:
                    path.replace(self.folder / path.name)
        return FetchedWheels(needs, self.folder, tuple(path.name for path in files))


def _require_python(version: str, device: Device, profile: Profile) -> None:
    if version not in SpecifierSet(profile.device.python or ""):
        raise DeviceError(
            f"{device.plain_python} on the device is Python {version}; the runtime that target"
            f" {profile.id!r} pins has wheels for {profile.device.python}",
            hint="install a newer system there (Raspberry Pi OS 12 has Python 3.11), or make an"
            " environment yourself and name it with 'python' in devices.yaml",
            where=device.name,
        )


def _fetch_wheels(folder: Path, needs: WheelNeeds, source: _Source, device: str) -> None:
    """Fill a folder with all wheels that are needed, and pip's own."""
    argv = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    argv += ["--only-binary=:all:", "--implementation=cp", f"--dest={folder}"]
    argv += ["--python-version=" + ".".join(needs.python.split(".")[:2])]
    argv += [f"--platform={tag}" for tag in _list_platform_tags(needs.arch, needs.libc)]
    argv += ["--no-index"] if source.is_offline else []
    argv += [f"--find-links={source.wheelhouse.resolve()}"] if source.wheelhouse else []
    wanted = [*(str(path.resolve()) for path in source.files), *needs.pins]
    result = run_program([*argv, *wanted, *_choose_pip(source)], timeout_s=FETCH_S)
    if result.exit_code:
        raise _make_fetch_error(result, needs, source, device)


def _choose_pip(source: _Source) -> list[str]:
    """Return what pip's own wheel is asked for by; none if the user's files have it."""
    if any(path.name.startswith("pip-") for path in source.files):
        return []
    has_pip = source.wheelhouse is not None and any(source.wheelhouse.glob("pip-*.whl"))
    bundled = [] if has_pip or not source.is_offline else _find_bundled_pip()
    return bundled or ["pip"]


def _make_fetch_error(
    result: ProgramResult, needs: WheelNeeds, source: _Source, device: str
) -> ToolError:
    """Return why pip could not fetch wheels: the one that is missing, if it says which."""
    missing = re.search(r"No matching distribution found for (.+)", result.last_lines)
    what = f"wheel of {missing[1].strip()}" if missing else "fitting set of wheels"
    if not source.is_offline:  # a network that is down looks to pip like an empty index
        return ToolError(
            f"the package index gave no {what} for {needs}{result.last_lines}",
            hint="check the network here, and that 'python -m pip' works; what the index does not"
            " have goes with --wheel FILE",
            where=device,
        )
    folder = shlex.quote(str(source.wheelhouse or "FOLDER"))
    said = "" if missing else result.last_lines
    return ToolError(
        f"{source.wheelhouse or '--wheel'} has no {what} for {needs}{said}",
        hint=f"where there is internet: edgepack device wheels {device} --to {folder}; then"
        f" provision with --wheelhouse {folder}",
        where=device,
    )


def _find_bundled_pip() -> list[str]:
    """Return the pip wheel that Python or its system ships; some have none.

    Source: ``ensurepip`` of Python 3.11 and newer, which looks at ``WHEEL_PKG_DIR`` first, as
    Debian's and Fedora's Pythons want it.
    """
    folders = [Path(ensurepip.__file__).parent / "_bundled"]
    if of_the_system := sysconfig.get_config_var("WHEEL_PKG_DIR"):
        folders.insert(0, Path(of_the_system))
    return [str(path) for folder in folders for path in folder.glob("pip-*.whl")][:1]


def _list_platform_tags(arch: str, libc: str) -> list[str]:
    """Return the wheel platforms that the device can load.

    Source: PEP 600 (manylinux_X_Y means: glibc X.Y or newer), PEP 599 (manylinux2014).
    """
    family, _, version = libc.partition(" ")
    numbers = [int(number) for number in re.findall(r"[0-9]+", version)]
    if family == "glibc" and len(numbers) >= 2:
        machine = arch.replace("-", "_")
        tags = [f"manylinux_2_{minor}" for minor in range(numbers[1], _OLDEST_GLIBC - 1, -1)]
        return [f"{tag}_{machine}" for tag in (*tags, "manylinux2014", "linux")]
    if family == "macOS" and numbers:
        return [f"macosx_{numbers[0]}_0_arm64"]
    raise DeviceError(
        f"onnxruntime has no wheels for the device's C library ({libc or 'not glibc'})",
        hint="use a system with glibc (Debian, Ubuntu, Raspberry Pi OS), or install onnxruntime"
        " there yourself and name its 'python' in devices.yaml",
    )


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


def _install_packages(
    place: PurePosixPath, files: Sequence[str], needs: WheelNeeds, site: _Site
) -> None:
    """Build an environment where it will stay: a virtual environment cannot be moved."""
    site.progress("installing on the device")
    own = [name for name in files if not name.startswith("pip-")]
    wanted = [*(str(site.wheels / name) for name in own), *needs.pins]
    python = site.device.plain_python
    argv = ["sh", "-c", _INSTALL, "sh", python, str(place), str(site.wheels), *wanted]
    site.transport.run(argv, timeout_s=INSTALL_S).check(
        "installing the runtime",
        device=site.device.name,
        hint="look at the message above: free space is the usual reason (edgepack device check"
        f" {site.device.name})",
    )


def _switch_environment(place: PurePosixPath, site: _Site) -> Provisioned:
    """Prove an environment and make it the one that is used."""
    found = probe_python(str(place / "bin" / "python"), site.device, site.transport)
    problems = find_unmet_pins(found, site.profile.runtime.packages)
    if problems:
        raise DeviceError(
            f"the runtime was installed but does not work: {problems[0]}",
            hint=f"see what Python says there: {place}/bin/python -c 'import onnxruntime'",
            where=site.device.name,
        )
    python = [site.device.plain_python, "-IS", "-c", _SWITCH]
    argv = [*python, str(site.root), place.name, site.wheels.name]
    site.transport.run(argv, timeout_s=_SHORT_S).check(
        "switching to the new environment",
        device=site.device.name,
        hint="look at the message above; the old one is still in use",
    )
    packages = {name: str(version) for name, version in found.packages.items()}
    return Provisioned(site.root / "venv" / "bin" / "python", packages, found.providers)
