"""Stores rollouts: one JSON file each in the user's data directory, or rows of a team's database.

Beside ``7.json`` are ``7.lock``, which the process that works on the rollout locks, and
``7.stopped`` once nothing more of it may start. ``7.stopped`` is a separate file so that a rollout
can be stopped while another process works on it. No file says that a newer rollout supersedes an
older one: readers work it out. :mod:`edgepack.deploy.fleet.team_store` keeps them in a database.
"""

from __future__ import annotations

import fcntl
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Annotated, Literal

from pydantic import AfterValidator, Field

from edgepack.base.clock import format_now
from edgepack.base.files import read_model, write_atomically, writing
from edgepack.base.machine import find_own_name
from edgepack.base.schema import StrictModel
from edgepack.bundle.reading import AnyBundle
from edgepack.deploy.fleet.schedule import RolloutSettings
from edgepack.errors import BundleError, BusyError, EdgepackError, UsageError, suggest_nearest

SCHEMA_VERSION: Literal[1] = 1
PUSH_AGAIN = "push again to the devices that were not done"

WARM_UP_S = 900.0
"""How long the self-test may take: a first TensorRT engine can take ten minutes to build."""

DeviceState = Literal["pending", "done", "failed", "superseded"]


class PushOptions(StrictModel):
    """The options of a push, which also apply when it is resumed."""

    action: Literal["push"] = "push"
    self_test: bool = True
    """Whether the device's loader tries the release before that becomes current."""
    warm_up_s: Annotated[float, Field(gt=0)] = WARM_UP_S
    """How long that may take."""
    wait_s: float = 0.0
    """How long to wait while others hold a device."""
    require_signature: bool = False
    """Whether one of the allowed signers must have signed each bundle."""
    allowed_signers: Annotated[Path, AfterValidator(Path.absolute)] | None = None
    """The file of allowed signers; default: ``~/.ssh/allowed_signers``."""


class RollbackOptions(StrictModel):
    """The options of a rollback."""

    action: Literal["rollback"] = "rollback"
    release: Annotated[str, Field(pattern="^[0-9a-f]{16}$")] | None = None
    """The release that becomes current; None for the one before the current one."""
    wait_s: float = 0.0
    """How long to wait while others hold a device."""


class ProvisionOptions(StrictModel):
    """The options of provisioning."""

    action: Literal["provision"] = "provision"
    wheels: list[Annotated[Path, AfterValidator(Path.absolute)]] = []
    """Wheel files that are preferred to all others."""
    wheelhouse: Annotated[Path, AfterValidator(Path.absolute)] | None = None
    """A folder that has all others; the package index is left alone."""
    offline: bool = False
    """Whether nothing but these is used."""
    wait_s: float = 0.0
    """How long to wait while others hold a device."""


Options = Annotated[PushOptions | RollbackOptions | ProvisionOptions, Field(discriminator="action")]
"""What a rollout does on each device, and how."""


class RolloutBundle(StrictModel):
    """The bundle for one target, as it was when the rollout began."""

    path: str
    version: str
    digest: str
    """The sha256 of ``manifest.json``, and so of the bundle's whole content."""


class DeviceRecord(StrictModel):
    """How far a rollout is on one device."""

    state: DeviceState = "pending"
    target: str
    time: str
    """The time of the last change, UTC."""
    tries: int = 0
    problem: str = ""
    hint: str = ""
    result: str = ""
    """What was done there, in words."""
    release: str = ""
    """The release that was made current there."""
    bytes_sent: int = 0
    variant: str = ""
    """What the device's loader chose when it tried the release."""
    warm_up_s: float = 0.0
    """Seconds that the self-test took."""


class Rollout(StrictModel):
    """An action on several devices that is kept: what to do, and how far each device is."""

    schema_version: Literal[1]
    id: int
    """Higher is newer."""
    project: str
    """Whose release is pushed or rolled back; empty where a device is provisioned."""
    created: str
    by: str = ""
    """Who began it, as ``user@host``."""
    settings: RolloutSettings
    options: Options = PushOptions()
    bundles: dict[str, RolloutBundle]
    """What is pushed, by target."""
    devices: dict[str, DeviceRecord]
    """By name."""
    stopped: str = ""
    """Why nothing more is started; empty while devices still start."""

    @property
    def counts(self) -> Counter[str]:
        """How many devices are in each state."""
        return Counter(record.state for record in self.devices.values())

    @property
    def pending(self) -> list[str]:
        """The devices on which it is still to be done."""
        return [name for name, record in self.devices.items() if record.state == "pending"]

    def covers(self, device: str) -> bool:
        """Return whether this rollout includes a device."""
        if device not in self.devices:
            return False
        return self.options.action != "push" or self.devices[device].target in self.bundles


@dataclass(frozen=True)
class RolloutListing:
    """All readable rollouts, oldest first, and the problems of the others."""

    rollouts: list[Rollout] = field(default_factory=list)
    broken: list[EdgepackError] = field(default_factory=list)


class RolloutStore:
    """The folder of the rollouts.

    Args:
        folder: Default: ``rollouts`` in the user's data directory. It need not exist yet.
    """

    def __init__(self, folder: Path | None = None) -> None:
        import platformdirs

        self.folder = folder or platformdirs.user_data_path("edgepack") / "rollouts"

    @property
    def name(self) -> str:
        """Where they lie: the folder, or the database's URL without its password."""
        return str(self.folder)

    def create(
        self,
        project: str,
        targets: Mapping[str, str],
        settings: RolloutSettings,
        options: Options,
        bundles: Mapping[str, AnyBundle],
    ) -> Rollout:
        """Store a new rollout, every device of it pending; it supersedes older ones of the project.

        Args:
            project: Whose release is pushed or rolled back; empty for provisioning.
            targets: The target of each device, by its name.
            settings: How it is worked through.
            options: What is done on each device.
            bundles: What is pushed, by target; empty for anything else.

        Raises:
            ToolError: The store cannot be written to.
        """
        now = format_now()
        with self._numbering() as number:
            rollout = Rollout(
                schema_version=SCHEMA_VERSION,
                id=number,
                project=project,
                created=now,
                by=find_own_name(),
                settings=settings,
                options=options,
                bundles={
                    target: RolloutBundle(
                        path=str(bundle.path.resolve()),
                        version=bundle.manifest.version,
                        digest=bundle.digest,
                    )
                    for target, bundle in bundles.items()
                },
                devices={
                    name: DeviceRecord(target=target, time=now) for name, target in targets.items()
                },
            )
            self.save(rollout)
        return rollout

    def save(self, rollout: Rollout) -> None:
        """Write a rollout whole or not at all; the caller must have its lock.

        Raises:
            ToolError: The store cannot be written to.
        """
        path = self._find_path(rollout.id)
        with writing("the rollout", path):
            write_atomically(path, format_rollout(rollout) + "\n")

    def load(self, number: int) -> Rollout:
        """Return one rollout, with what a newer one supersedes marked so.

        Raises:
            UsageError: There is no such rollout.
            BundleError: Its file, or that of a newer one, is broken or of another schema version.
        """
        known = self._list_ids()
        if number not in known:
            raise UsageError(
                f"there is no rollout {number}",
                hint=f"{suggest_nearest(str(number), map(str, known))} (edgepack rollout list)",
            )
        *newer, rollout = map(_require_read, self._read_each(number))
        return _mark_superseded(rollout, newer)

    def list_all(self) -> RolloutListing:
        """Return all rollouts; a broken file hides no other."""
        listing = RolloutListing()
        for found in self._read_each():
            if isinstance(found, BundleError):
                listing.broken.append(found)
            else:
                listing.rollouts.append(_mark_superseded(found, listing.rollouts))
        listing.rollouts.reverse()
        return listing

    def is_superseded(self, rollout: Rollout, device: str) -> bool:
        """Return whether a newer rollout of the same project includes a device.

        Raises:
            BundleError: The file of a newer one is broken.
        """
        newer = map(_require_read, self._read_each(rollout.id + 1))
        return any(other.project == rollout.project and other.covers(device) for other in newer)

    @contextmanager
    def lock(self, number: int) -> Iterator[None]:
        """Lock a rollout, so that only this process works on it.

        Raises:
            BusyError: Another process holds it.
            ToolError: The store cannot be written to.
        """
        with self._open_file(f"{number}.lock") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise make_held_error(number, f"process {file.read() or '?'}") from error
            try:
                file.truncate(0)
                file.write(str(os.getpid()))
                file.flush()
                yield
            finally:
                # Closing is not enough: a child that another thread has just forked has it too.
                fcntl.flock(file, fcntl.LOCK_UN)

    def stop(self, number: int, reason: str) -> None:
        """Stop a rollout: nothing more starts, also in a process that works on it now.

        Raises:
            ToolError: The store cannot be written to.
        """
        path = self.folder / f"{number}.stopped"
        with (
            writing("the rollout", path),
            suppress(FileExistsError),
            path.open("x", encoding="utf-8") as file,
        ):
            file.write(reason)

    def read_stop_reason(self, number: int) -> str:
        """Return why nothing more of a rollout is started; empty if it is not stopped."""
        try:
            text = (self.folder / f"{number}.stopped").read_text(encoding="utf-8")
        except FileNotFoundError:
            return ""
        return text or "it was stopped"

    def _find_path(self, number: int) -> Path:
        return self.folder / f"{number}.json"

    def _list_ids(self) -> list[int]:
        names = (path.stem for path in self.folder.glob("*.json"))
        return sorted(int(name) for name in names if name.isdecimal())

    @contextmanager
    def _numbering(self) -> Iterator[int]:
        """Give the number of a new rollout, which is stored in the block."""
        with writing("the rollout", self.folder), self._open_file(".lock") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield max(self._list_ids(), default=0) + 1

    def _read_each(self, first: int = 0) -> Iterator[Rollout | BundleError]:
        """Yield the rollouts from a number on, or what is wrong with them, the newest first."""
        for number in reversed(self._list_ids()):
            if number >= first:
                try:
                    yield self._read_rollout(number)
                except BundleError as error:
                    yield error

    @contextmanager
    def _open_file(self, name: str) -> Iterator[IO[str]]:
        path = self.folder / name
        with writing("the rollout", path):
            self.folder.mkdir(parents=True, exist_ok=True)
            file = path.open("a+", encoding="ascii")
        with file:
            file.seek(0)
            yield file

    def _read_rollout(self, number: int) -> Rollout:
        rollout = read_model(
            self._find_path(number),
            Rollout,
            version=SCHEMA_VERSION,
            what="the rollout",
            remedy=f"delete the file, and {PUSH_AGAIN}",
        )
        return rollout.model_copy(update={"stopped": self.read_stop_reason(number)})


def format_rollout(rollout: Rollout) -> str:
    """Return a rollout as it is stored: that it is stopped is stored apart."""
    return rollout.model_dump_json(exclude={"stopped"})


def make_held_error(number: int, holder: str) -> BusyError:
    """Return the error for a rollout on which somebody works already."""
    return BusyError(
        f"rollout {number} is being worked on by {holder}",
        hint=f"wait for it, or stop what it has not started: edgepack rollout abort {number}",
    )


def _require_read(found: Rollout | BundleError) -> Rollout:
    if isinstance(found, BundleError):
        raise found
    return found


def _mark_superseded(rollout: Rollout, newer: list[Rollout]) -> Rollout:
    covering = [other for other in newer if other.project == rollout.project]
    devices = {
        name: record.model_copy(update={"state": "superseded"})
        if record.state == "pending" and any(other.covers(name) for other in covering)
        else record
        for name, record in rollout.devices.items()
    }
    return rollout.model_copy(update={"devices": devices})
