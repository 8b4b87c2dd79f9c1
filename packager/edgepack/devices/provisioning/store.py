"""Keeps wheels of onnxruntime that no package index has, for all devices of a target.

``<user data>/runtimes/<id>/`` has the wheel and ``runtime.json``. An entry exists as a whole or
not at all, and its hash is checked at every use.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final, Literal

from packaging.specifiers import SpecifierSet
from packaging.utils import parse_wheel_filename
from pydantic import Field, field_validator

from edgepack.base.clock import format_now
from edgepack.base.files import hash_file, read_model, write_atomically, writing
from edgepack.base.schema import Id, StrictModel
from edgepack.devices.provisioning.wheel_files import brings_onnxruntime, fits, require_wheel
from edgepack.errors import BundleError, EdgepackError, UsageError, suggest_nearest
from edgepack.project.profile import Profile

SCHEMA_VERSION: Final = 1
_RECORD = "runtime.json"
_ID_DIGITS = 12


class KeptRuntime(StrictModel):
    """A wheel in the store, and where it comes from."""

    schema_version: Literal[1]
    target: Id
    wheel: Annotated[str, Field(pattern=r"^[\w.+-]+\.whl$")]
    """The file's name."""
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    size_bytes: int
    added: str
    about: dict[str, str] = {}
    """What whoever made it said of it: source, commit, flags, versions of the system it was built
    on."""

    @field_validator("wheel")
    @classmethod
    def _check_wheel(cls, wheel: str) -> str:
        parse_wheel_filename(wheel)
        return wheel

    @property
    def id(self) -> str:
        """What it is called: the first digits of its hash."""
        return self.sha256[:_ID_DIGITS]

    def __str__(self) -> str:
        name, version, _, _ = parse_wheel_filename(self.wheel)
        return f"{name} {version} of the runtime store ({self.id})"


@dataclass
class RuntimeListing:
    """All readable runtimes, newest first, and the problems of the others."""

    runtimes: list[KeptRuntime] = field(default_factory=list)
    broken: list[EdgepackError] = field(default_factory=list)


class RuntimeStore:
    """The folder of kept runtimes.

    Args:
        folder: Default: ``runtimes`` in the user's data directory. It need not exist yet.
    """

    def __init__(self, folder: Path | None = None) -> None:
        import platformdirs

        self.folder = folder or platformdirs.user_data_path("edgepack") / "runtimes"

    def add(
        self, wheel: Path, profile: Profile, about: Mapping[str, str] | None = None
    ) -> KeptRuntime:
        """Keep a wheel for the devices of a target; one that is there already stays as it is.

        A record that :meth:`export` wrote beside the wheel says where it comes from, if ``about``
        does not.

        Raises:
            UsageError: It is no whole wheel, brings no onnxruntime, or one that the target does not
                take: another version, or for another processor.
            BundleError: The record beside it is broken, or of another wheel.
            ToolError: The store cannot be written to.
        """
        require_wheel(wheel)
        _require_of_target(wheel, profile)
        sha256 = hash_file(wheel)
        beside = wheel.with_name(f"{wheel.name}.json")
        if about is None and beside.exists():
            said = _read(beside)
            if said.sha256 != sha256:
                raise BundleError(
                    f"{beside.name} is of another wheel: sha256 {said.sha256}, not {sha256}",
                    hint=f"remove {beside.name}, or copy both again",
                    where=str(wheel),
                )
            about = said.about
        kept = KeptRuntime(
            schema_version=SCHEMA_VERSION,
            target=profile.id,
            wheel=wheel.name,
            sha256=sha256,
            size_bytes=wheel.stat().st_size,
            added=format_now(),
            about=dict(about or {}),
        )
        for known in self.list_all().runtimes:
            if known.id == kept.id and known.target == kept.target:
                return known
        with writing("the runtime", self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=self.folder, prefix=".partial-") as name:
                made = Path(name) / "made"
                made.mkdir()
                shutil.copyfile(wheel, made / wheel.name)
                (made / _RECORD).write_text(kept.model_dump_json(indent=1) + "\n")
                try:
                    made.rename(self._find_folder(kept))
                except OSError:
                    if not self._find_folder(kept).is_dir():
                        raise
                    self.require_whole(_read(self._find_folder(kept) / _RECORD))  # was faster
        return kept

    def list_all(self) -> RuntimeListing:
        """Return all runtimes, newest first; a broken entry hides no other."""
        listing = RuntimeListing()
        for path in sorted(self.folder.glob(f"[!.]*/{_RECORD}")):
            try:
                listing.runtimes.append(_read(path))
            except BundleError as error:
                listing.broken.append(error)
        listing.runtimes.sort(key=lambda kept: kept.added, reverse=True)
        return listing

    def find(self, runtime_id: str) -> KeptRuntime:
        """Return a runtime by its id, or the beginning of it that no other has.

        Where several targets have the same wheel, it is the id, a dash and the target.

        Raises:
            UsageError: There is none such, or several.
        """
        known = self.list_all().runtimes
        names = {f"{kept.id}-{kept.target}": kept for kept in known}
        found = [kept for name, kept in names.items() if runtime_id and name.startswith(runtime_id)]
        if len(found) == 1:
            return found[0]
        ids = [name for name, kept in names.items() if not found or kept in found]
        raise UsageError(
            f"{len(found) or 'no'} runtimes begin with {runtime_id!r}",
            hint=f"{suggest_nearest(runtime_id, ids)} (edgepack runtime list)",
        )

    def remove(self, kept: KeptRuntime) -> None:
        """Remove a runtime; devices that have it keep it.

        Raises:
            ToolError: The store cannot be written to.
        """
        with (
            writing("the runtime store", self.folder),
            tempfile.TemporaryDirectory(dir=self.folder, prefix=".partial-") as name,
        ):
            self._find_folder(kept).rename(Path(name) / "removed")

    def export(self, kept: KeptRuntime, folder: Path) -> Path:
        """Copy a wheel and its record into a folder, for another machine's ``add``.

        Raises:
            BundleError: The wheel has changed.
            ToolError: The folder cannot be written to.
        """
        wheel = self.require_whole(kept)
        with writing("the wheel", folder):
            folder.mkdir(parents=True, exist_ok=True)
            write_atomically(folder / f"{wheel.name}.json", (wheel.parent / _RECORD).read_bytes())
            partial = folder / f".{wheel.name}.partial"
            shutil.copyfile(wheel, partial)
            partial.replace(folder / wheel.name)
        return folder / wheel.name

    def choose(
        self, target: str, python: str, platforms: Sequence[str], wheelhouse: Path | None = None
    ) -> KeptRuntime | None:
        """Return the newest runtime of a target that a device can load.

        Those that a wheelhouse carries come first.

        Args:
            target: The target's id.
            python: The version of the device's Python.
            platforms: The wheel platforms that it loads.
            wheelhouse: A folder that may carry some, with their records.

        Raises:
            BundleError: A record in the wheelhouse is broken.
        """
        carried = sorted(wheelhouse.glob("*.whl.json")) if wheelhouse else []
        for kept in [*map(_read, carried), *self.list_all().runtimes]:
            if kept.target == target and fits(kept.wheel, python, platforms):
                return kept
        return None

    def require_whole(self, kept: KeptRuntime, wheelhouse: Path | None = None) -> Path:
        """Return the file of a runtime, after checking that it is what was kept.

        Raises:
            BundleError: It is gone or has changed.
        """
        path = self._find_folder(kept) / kept.wheel
        if wheelhouse is not None and (wheelhouse / kept.wheel).is_file():
            path = wheelhouse / kept.wheel
        if not path.is_file() or hash_file(path) != kept.sha256:
            raise BundleError(
                f"{kept} has changed since it was kept",
                hint=f"edgepack runtime remove {kept.id}, and add or build it again",
                where=str(path),
            )
        return path

    def _find_folder(self, kept: KeptRuntime) -> Path:
        return self.folder / f"{kept.id}-{kept.target}"


def _read(path: Path) -> KeptRuntime:
    remedy = f"remove {path.parent}, and add or build the runtime again"
    what = "the record of the runtime"
    return read_model(path, KeptRuntime, version=SCHEMA_VERSION, what=what, remedy=remedy)


def _require_of_target(wheel: Path, profile: Profile) -> None:
    """Check that devices of a target may load a wheel, as far as its name says."""
    name, version, _, tags = parse_wheel_filename(wheel.name)
    if not brings_onnxruntime(wheel):
        raise UsageError(
            f"{wheel.name} does not bring onnxruntime",
            hint="the store is for onnxruntime; other wheels go with: provision --wheel",
            where=str(wheel),
        )
    pins = profile.runtime.packages
    pin = pins.get(name, pins.get("onnxruntime", ""))
    if not SpecifierSet(pin).contains(version, prereleases=True):
        raise UsageError(
            f"{wheel.name} has onnxruntime {version}; target {profile.id!r} is for {pin}",
            hint="build that version, or write a target of your own with another pin",
            where=str(wheel),
        )
    machine = profile.device.arch.replace("-", "_")
    machines = ("arm64", "universal2") if profile.device.os == "macos" else (machine,)
    if not any(tag.platform == "any" or tag.platform.endswith(machines) for tag in tags):
        raise UsageError(
            f"{wheel.name} is for another processor; devices of target {profile.id!r} have"
            f" {profile.device.arch}",
            hint=f"add a wheel whose name ends in {machines[0]}.whl",
            where=str(wheel),
        )
