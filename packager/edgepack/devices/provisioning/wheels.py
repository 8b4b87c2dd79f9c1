"""Fetches the wheels that a device needs, which are installed there without internet.

pip is among them, since a stock system may have neither pip nor ``ensurepip``.
"""

from __future__ import annotations

import ensurepip
import os
import re
import shlex
import sys
import sysconfig
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.utils import canonicalize_name, parse_wheel_filename

from edgepack.base.files import hash_file
from edgepack.base.processes import ProgramResult, make_child_environment, run_program
from edgepack.devices.provisioning.debian import DebianRuntime
from edgepack.devices.provisioning.debian_wheel import make_wheel
from edgepack.devices.provisioning.store import KeptRuntime, RuntimeStore
from edgepack.devices.provisioning.wheel_files import brings_onnxruntime, fits, require_wheel
from edgepack.errors import DeviceError, ToolError, UsageError
from edgepack.project.profile import IndexWheels

FETCH_S = 1800.0
_OLDEST_GLIBC = 17
"""manylinux2014, the oldest that wheels are still built for, means glibc 2.17 (PEP 599)."""


@dataclass(frozen=True)
class WheelNeeds:
    """What decides which wheels a device takes: devices that share it take the same ones."""

    python: str
    """Its version, such as 3.11.2."""
    arch: str
    libc: str
    pins: tuple[str, ...]
    """What its target pins, as pip reads it."""
    runtime: DebianRuntime | KeptRuntime | None = None
    """The onnxruntime that is installed; None takes it from the package index, or a wheel of the
    user's."""
    indexed: tuple[IndexWheels, ...] = ()
    """What comes from other indexes than the one that pip asks."""
    passed_over: tuple[str, ...] = ()
    """Origins of the target's that the device does not have, each with the reason."""
    is_native: bool = False
    """Whether the device has no Python, and takes onnxruntime's library alone out of its wheel."""

    @property
    def cpython(self) -> str:
        """The tag of its Python, such as cp311."""
        return "cp" + "".join(self.python.split(".")[:2])

    def __str__(self) -> str:
        if self.is_native:
            return f"a board without Python, {self.arch} with {self.libc or 'no glibc'}"
        return f"Python {self.python} on {self.arch} with {self.libc or 'no glibc'}"


@dataclass(frozen=True)
class WheelSource:
    """Where wheels come from: files first, then a folder, and the package index unless offline."""

    files: tuple[Path, ...] = ()
    """Preferred to all others."""
    wheelhouse: Path | None = None
    """A folder that has all others, as
    :class:`~edgepack.devices.provisioning.wheelhouse.Wheelhouse` fills it."""
    is_offline: bool = False

    @property
    def has_onnxruntime(self) -> bool:
        """Whether a file brings the module ``onnxruntime``, under whatever name."""
        return any(map(brings_onnxruntime, self.files))

    def require_there(self) -> None:
        """Check that the files are whole wheels, and that the folder is there.

        Raises:
            UsageError: One is not.
        """
        for path in self.files:
            require_wheel(path)
        if self.wheelhouse is not None and not self.wheelhouse.is_dir():
            raise UsageError(
                f"there is no folder {str(self.wheelhouse)!r}",
                hint=f"edgepack device wheels DEVICE --to {self.wheelhouse} makes it, where there"
                " is internet",
                where="--wheelhouse",
            )


def fetch_wheels(
    folder: Path,
    needs: WheelNeeds,
    source: WheelSource,
    device: str,
    progress: Callable[[str], None] = lambda _: None,
) -> list[str]:
    """Fill a folder with all wheels that a device needs, and pip's own if it has Python.

    Returns:
        What is to be installed: names of files in the folder, and pins.

    Raises:
        DeviceError: There are no wheels for its C library.
        ToolError: One cannot be fetched or made, or a file is for another kind of device.
    """
    platforms = list_platform_tags(needs.arch, needs.libc)
    files = list(source.files)
    for path in files:
        _require_fit(path, needs, platforms, device)
    if isinstance(needs.runtime, KeptRuntime):
        files.append(RuntimeStore().require_whole(needs.runtime, source.wheelhouse))
    elif needs.runtime is not None:
        tag = f"{needs.cpython}-{needs.cpython}-{platforms[0]}"
        files.append(make_wheel(needs.runtime, tag, progress=progress))
    argv = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    argv += ["--only-binary=:all:", "--implementation=cp", f"--dest={folder}"]
    argv += ["--python-version=" + ".".join(needs.python.split(".")[:2])]
    argv += [f"--platform={tag}" for tag in platforms]
    for index in () if source.is_offline else needs.indexed:
        progress(f"fetching {index}")
        files += _fetch_indexed(argv, folder, index, device)
    progress(f"fetching wheels for {needs}")
    argv += ["--no-index"] if source.is_offline else []
    argv += [f"--find-links={source.wheelhouse.resolve()}"] if source.wheelhouse else []
    pins = _drop_replaced(needs.pins, files)
    for index in needs.indexed if source.is_offline else ():
        pins += [f"{name}{pin}" for name, pin in index.packages.items()]
    wanted = [*(str(path.resolve()) for path in files), *pins]
    argv += ["--no-deps"] if needs.is_native else []
    pip = [] if needs.is_native else _choose_pip(source)
    result = run_program([*argv, *wanted, *pip], timeout_s=FETCH_S)
    if result.exit_code:
        raise _make_fetch_error(result, needs, source, device)
    for index in needs.indexed:
        names = {canonicalize_name(name) for name in index.packages}
        _require_digests(
            index,
            [path for path in folder.iterdir() if parse_wheel_filename(path.name)[0] in names],
            device,
        )
    return [*(path.name for path in files if not path.name.startswith("pip-")), *pins]


def _fetch_indexed(pip: Sequence[str], folder: Path, index: IndexWheels, device: str) -> list[Path]:
    """Fetch the wheels of another index into a folder.

    ``pip`` is how it is called for the device. Nothing else may come from the index that pip asks,
    nor from this one: a name that both have would be taken from either.
    """
    before = set(folder.iterdir())
    wanted = [f"{name}{pin}" for name, pin in index.packages.items()]
    # Files of settings may name more indexes, and pip cannot be told to leave these out.
    environment = make_child_environment({"PIP_CONFIG_FILE": os.devnull})
    for name in ("PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS"):
        environment.pop(name, None)
    argv = [*pip, "--no-deps", "--index-url", index.url, *wanted]
    done = run_program(argv, timeout_s=FETCH_S, environment=environment)
    if done.exit_code:
        raise ToolError(
            f"{index.url} gave no fitting {', '.join(wanted)}{done.last_lines}",
            hint="check that it can be reached from here (pip.conf is not read for it, PIP_PROXY"
            " and PIP_CERT are); wheels that you have go with --wheel FILE"
            ", and a target of your own need not have that origin",
            where=device,
        )
    return sorted(set(folder.iterdir()) - before)


def _require_digests(index: IndexWheels, files: Sequence[Path], device: str) -> None:
    for path in files if index.sha256 else ():
        sha256 = hash_file(path)
        if index.sha256.get(path.name) != sha256:
            raise ToolError(
                f"{index.url} gave another {path.name} than the target names: its sha256 is"
                f" {sha256}",
                hint="if that is the file you want, write its sha256 into the target's origin",
                where=device,
            )


def _require_fit(wheel: Path, needs: WheelNeeds, platforms: Sequence[str], device: str) -> None:
    """Check that a device's pip would take a wheel."""
    if not fits(wheel.name, needs.python, platforms):
        tags = parse_wheel_filename(wheel.name)[3]
        raise ToolError(
            f"{wheel.name} is for {', '.join(sorted(map(str, tags)))}, and the device has {needs}",
            hint=f"give a wheel for {needs.cpython} and {platforms[0]} or an older C library",
            where=device,
        )


def _drop_replaced(pins: Sequence[str], files: Sequence[Path]) -> list[str]:
    """Leave out onnxruntime's pin where a wheel of another name brings that module.

    Both would be installed, one over the other. Of the pinned packages whose names begin with
    onnxruntime it is the one with the shortest name, as :attr:`Runtime.onnxruntime` has it.
    """
    brought = {parse_wheel_filename(path.name)[0] for path in files if brings_onnxruntime(path)}
    names = {pin: canonicalize_name(re.split("[^A-Za-z0-9._-]", pin)[0]) for pin in pins}
    found = [pin for pin in pins if names[pin].startswith("onnxruntime")]
    runtime = min(found, key=lambda pin: len(names[pin]), default="")
    is_replaced = bool(brought - {names.get(runtime, "")})
    return [pin for pin in pins if not (is_replaced and pin == runtime)]


def _choose_pip(source: WheelSource) -> list[str]:
    """Return what pip's own wheel is asked for by; none if the user's files have it."""
    if any(path.name.startswith("pip-") for path in source.files):
        return []
    has_pip = source.wheelhouse is not None and any(source.wheelhouse.glob("pip-*.whl"))
    bundled = [] if has_pip or not source.is_offline else find_bundled_pip()
    return bundled or ["pip"]


def _make_fetch_error(
    result: ProgramResult, needs: WheelNeeds, source: WheelSource, device: str
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


def find_bundled_pip() -> list[str]:
    """Return the pip wheel that Python or its system ships; some have none.

    Source: ``ensurepip`` of Python 3.11 and newer, which looks at ``WHEEL_PKG_DIR`` first, as
    Debian's and Fedora's Pythons want it.
    """
    folders = [Path(ensurepip.__file__).parent / "_bundled"]
    if of_the_system := sysconfig.get_config_var("WHEEL_PKG_DIR"):
        folders.insert(0, Path(of_the_system))
    return [str(path) for folder in folders for path in folder.glob("pip-*.whl")][:1]


def list_platform_tags(arch: str, libc: str) -> list[str]:
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
