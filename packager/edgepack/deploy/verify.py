"""Checks that the files on a device are still what was pushed to it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from edgepack.base.schema import StrictModel
from edgepack.devices.answers import read_answer
from edgepack.devices.inventory import Device
from edgepack.devices.programs import open_device_program
from edgepack.devices.transports import connect
from edgepack.errors import BundleError, UsageError, suggest_nearest

HASH_S = 1800.0
"""How long a device may take: an SD card gives some 40 MB/s."""

_Text = Annotated[str, Field(max_length=4096)]
_Count = Annotated[int, Field(ge=0)]
_Hex16 = Annotated[str, Field(pattern="^[0-9a-f]{16}$")]


class Difference(StrictModel):
    """One file of a release that differs from its manifest."""

    path: _Text
    """Relative to the release."""
    kind: Literal["missing", "altered", "added"]
    why: _Text
    """What is wrong with an altered file."""

    def __str__(self) -> str:
        return f"{self.path} is {self.kind}" + (f": {self.why}" if self.why else "")


class ReleaseState(StrictModel):
    """A release on a device, compared with its manifest."""

    name: _Hex16
    digest: Annotated[str, Field(pattern="^([0-9a-f]{64})?$")]
    """SHA-256 of its manifest; empty if it cannot be read."""
    files: _Count
    """How many files were compared; 0 where the manifest is altered."""
    differences: Annotated[list[Difference], Field(max_length=1000)]
    more: _Count
    """The number of differences that are not listed."""


class HistoryState(StrictModel):
    """The state of a device's own history of a project."""

    lines: _Count
    broken_at: Annotated[int, Field(ge=1)] | None
    """The line where its chain breaks first, from 1."""
    current: _Text | None
    """The release of its last switch or rollback."""


class ProjectState(StrictModel):
    """A project on a device."""

    name: _Text
    releases: Annotated[list[ReleaseState], Field(max_length=10_000)]
    current: _Text | None
    """The target of the link ``current``: ``releases/`` and a release's name."""
    history: HistoryState

    def list_problems(self) -> Iterator[str]:
        """Yield each difference from what was pushed, a line each."""
        for release in self.releases:
            for difference in release.differences:
                yield f"{self.name} {release.name}: {difference}"
            if release.more:
                yield f"{self.name} {release.name}: {release.more} more files differ"
        current = self.current_release
        if self.current is not None and current is None:
            yield f"{self.name}: 'current' leads to {self.current!r}, which is not a release here"
        if self.history.broken_at is not None:
            yield f"{self.name}: its history is broken at line {self.history.broken_at}"
        elif self.history.current not in (None, current):
            yield (
                f"{self.name}: {current or 'no release'} is current, but by its history"
                f" {self.history.current!r} should be"
            )

    @property
    def current_release(self) -> str | None:
        """The name of the current release, if it exists."""
        names = [release.name for release in self.releases]
        return next((name for name in names if self.current == f"releases/{name}"), None)


class _Answer(StrictModel):
    all: Annotated[list[_Text], Field(max_length=100_000)]
    projects: Annotated[list[ProjectState], Field(max_length=10_000)]


@dataclass(frozen=True)
class DeviceState:
    """The state of a device as it reports it itself: a device that was taken over can lie."""

    device: str
    projects: tuple[ProjectState, ...]

    def list_problems(self) -> list[str]:
        """Return each difference from what was pushed, a line each."""
        return [problem for project in self.projects for problem in project.list_problems()]

    def require_whole(self) -> None:
        """Check that everything is as it was pushed.

        Raises:
            BundleError: Something differs.
        """
        found = self.list_problems()
        if found:
            lines = "".join(f"\n  {problem}" for problem in found)
            raise BundleError(
                f"what lies on the device is not what was pushed{lines}",
                hint="push the bundle again: files that differ are replaced. If nobody changed them"
                " there, look at the disk (dmesg) and at who has access to the device",
                where=self.device,
            )


def verify_device(device: Device, project: str | None = None) -> DeviceState:
    """Hash all releases of a project, or of all projects, on a device.

    Raises:
        UsageError: The device has no such project.
        DeviceError: The device cannot be reached or trusted, has no Python (its shell alone is not
            enough here), or answers nonsense.
        RemoteCommandError: It took longer than :data:`HASH_S`, or failed.
    """
    words = ("edgepack_drift", device.entry.root, project or "")
    with (
        connect(device) as transport,
        open_device_program(transport, device, *words, timeout_s=HASH_S) as stream,
    ):
        result = stream.wait()
    result.check(
        "hashing the files there",
        device=device.name,
        hint=f"look at the message above; bundles are in {device.entry.root} on the device",
    )
    what = "what it says of its releases"
    answer = read_answer(_Answer, result.stdout, device=device.name, what=what)
    if project is not None and project not in answer.all:
        raise UsageError(
            f"there is no project {project!r} on {device.name}",
            hint=suggest_nearest(project, answer.all),
        )
    return DeviceState(device.name, tuple(answer.projects))
