"""Makes the Python environment that bundles run in; the device needs no internet.

Wheels are fetched here for the device's platform and pushed; pip itself is pushed too, since a
stock system may have neither pip nor ``ensurepip``.
"""

from __future__ import annotations

import ensurepip
import hashlib
import re
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from packaging.specifiers import SpecifierSet

from edgepack.base.processes import run_program
from edgepack.devices.checking import find_unmet_pins
from edgepack.devices.inventory import Device
from edgepack.devices.probing import ProbedFacts, PythonFacts, probe, probe_python
from edgepack.devices.transport import Transport
from edgepack.devices.transports import connect
from edgepack.errors import DeviceError, RemoteCommandError, ToolError, UsageError
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
"""


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

    @property
    def pins(self) -> list[str]:
        return [f"{name}{pin}" for name, pin in self.profile.runtime.packages.items()]


def provision(
    device: Device,
    *,
    wheels: Sequence[Path] = (),
    offline: bool = False,
    progress: Callable[[str], None] = lambda _: None,
) -> Provisioned:
    """Make ``<root>/venv`` on a device with what its target pins.

    The new environment is built beside the old one and replaces it once it is proven.

    Args:
        device: Where.
        wheels: Wheel files that are preferred to the package index.
        offline: Use only ``wheels``, which must include every needed package.
        progress: Called at the beginning of each stage.

    Raises:
        UsageError: The inventory names an interpreter for the device, so this one would not run.
        DeviceError: The device has no Python, or not one that the runtime has wheels for.
        ToolError: A wheel cannot be fetched.
        RemoteCommandError: A command on the device failed.
    """
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
    with connect(device) as transport:
        facts = probe(device, transport)
        base = probe_python(device.plain_python, device, transport)
        _require_python(base.version, device, profile)
        site = _Site(device, transport, profile, facts.root, progress)
        made = _make_environment(
            site, facts, base, [path.resolve() for path in wheels], offline=offline
        )
        return replace(made, host_key=transport.host_key, serial=facts.serial or None)


def _make_environment(
    site: _Site, facts: ProbedFacts, base: PythonFacts, wheels: Sequence[Path], *, offline: bool
) -> Provisioned:
    with tempfile.TemporaryDirectory(prefix="edgepack-wheels-") as name:
        folder = Path(name)
        site.progress(f"fetching wheels for {facts.arch}, {facts.libc}, Python {base.version}")
        wanted = [*map(str, wheels), *site.pins]
        _fetch_wheels(folder, wanted, facts, base, offline=offline)
        place = site.root / f"venv-{_compute_digest(folder, base.version)}"
        if not _is_proven(place, site):
            _push_wheels(folder, site)
            _install_packages(place, [path.name for path in wheels], site)
    return _switch_environment(place, site)


def _require_python(version: str, device: Device, profile: Profile) -> None:
    if version not in SpecifierSet(profile.device.python or ""):
        raise DeviceError(
            f"{device.plain_python} on the device is Python {version}; the runtime that target"
            f" {profile.id!r} pins has wheels for {profile.device.python}",
            hint="install a newer system there (Raspberry Pi OS 12 has Python 3.11), or make an"
            " environment yourself and name it with 'python' in devices.yaml",
            where=device.name,
        )


def _fetch_wheels(
    folder: Path, wanted: Sequence[str], facts: ProbedFacts, base: PythonFacts, *, offline: bool
) -> None:
    """Fill a folder with all wheels that are needed, and pip's own."""
    argv = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    argv += ["--only-binary=:all:", "--implementation=cp", f"--dest={folder}"]
    argv += ["--python-version=" + ".".join(base.version.split(".")[:2])]
    argv += [f"--platform={tag}" for tag in _list_platform_tags(facts)]
    argv += ["--no-index"] if offline else []
    pip = _find_bundled_pip() if offline else ["pip"]
    result = run_program([*argv, *wanted, *pip], timeout_s=FETCH_S)
    if result.exit_code:
        raise ToolError(
            f"pip cannot fetch the wheels for the device{result.last_lines}",
            hint="give all of them with --wheel FILE and --offline (without them: check the"
            " network here, and that 'python -m pip' works)",
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


def _list_platform_tags(facts: ProbedFacts) -> list[str]:
    """Return the wheel platforms that the device can load.

    Source: PEP 600 (manylinux_X_Y means: glibc X.Y or newer), PEP 599 (manylinux2014).
    """
    family, _, version = facts.libc.partition(" ")
    numbers = [int(number) for number in re.findall(r"[0-9]+", version)]
    if family == "glibc" and len(numbers) >= 2:
        machine = facts.arch.replace("-", "_")
        tags = [f"manylinux_2_{minor}" for minor in range(numbers[1], _OLDEST_GLIBC - 1, -1)]
        return [f"{tag}_{machine}" for tag in (*tags, "manylinux2014", "linux")]
    if family == "macOS" and numbers:
        return [f"macosx_{numbers[0]}_0_arm64"]
    raise DeviceError(
        f"onnxruntime has no wheels for the device's C library ({facts.libc or 'not glibc'})",
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
    return not find_unmet_pins(found, site.profile.runtime.packages)


def _push_wheels(folder: Path, site: _Site) -> None:
    clear = ["sh", "-c", 'rm -rf -- "$1" && mkdir -p -- "$1"', "sh", str(site.wheels)]
    site.transport.run(clear, timeout_s=_SHORT_S).check(
        f"making {site.wheels}", device=site.device.name, hint="check 'root' in devices.yaml"
    )
    for path in sorted(folder.iterdir()):
        site.progress(f"pushing {path.name} ({path.stat().st_size >> 10} KiB)")
        site.transport.put(path, site.wheels / path.name, timeout_s=INSTALL_S)


def _install_packages(place: PurePosixPath, files: Sequence[str], site: _Site) -> None:
    """Build an environment where it will stay: a virtual environment cannot be moved."""
    site.progress("installing on the device")
    wanted = [*(str(site.wheels / name) for name in files), *site.pins]
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
