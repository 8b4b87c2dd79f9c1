"""Devices that tests see from both sides: over SSH, and where their files lie."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any, Self

from edgepack.deploy.transfer.client import PushAgent, PushedRelease, send_release
from edgepack.devices.inventory import Device, SshEntry
from edgepack.devices.transports import connect

from tests.support.reports.tiny_bundle import change_manifest


@dataclass(frozen=True)
class Board:
    """A device, and where it lies here."""

    device: Device
    slash: Path
    """What it calls ``/``."""

    def at(self, path: PurePosixPath | str) -> Path:
        """Return where a path of the device lies here."""
        return self.slash / str(path).lstrip("/")

    @property
    def entry(self) -> SshEntry:
        """How it is reached."""
        assert isinstance(self.device.entry, SshEntry)
        return self.device.entry

    @property
    def port(self) -> int:
        """Of its server."""
        assert self.entry.port is not None
        return self.entry.port

    @property
    def project(self) -> Path:
        """Where bundles of :func:`tiny_bundle.write_tiny_bundle` lie."""
        return self.at(self.entry.root) / "tiny"

    def current(self) -> str:
        """Return the release that is current."""
        return (self.project / "current").readlink().name

    def releases(self) -> list[str]:
        """Return the names of all that lies where releases do."""
        return sorted(path.name for path in (self.project / "releases").iterdir())

    def left_over(self) -> list[Path]:
        """Return what a push leaves only if it could not end."""
        return [
            *self.project.glob("releases/.*"),
            *(path for path in self.project.glob(".*") if path.name != ".lock"),
        ]

    def changed(self, **entry: Any) -> Self:
        """Return the same board with another inventory's entry."""
        return replace(self, device=Device("board", self.entry.model_copy(update=entry)))

    def push(self, bundle: Path, *, switch: bool = True) -> PushedRelease:
        """Push a bundle over a connection of its own."""
        with connect(self.device) as transport:
            return send_release(PushAgent(bundle, self.device, transport, switch=switch))


def with_file(
    bundle: Path, content: bytes, mode: str = "644", name: str = "files/a file.bin"
) -> Path:
    """Give a bundle a file, another if it has one of that name, and return the bundle."""
    path = bundle / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    path.chmod(int(mode, 8))
    entry = {
        "path": name,
        "sha256": hashlib.sha256(content).hexdigest(),
        "size_bytes": len(content),
        "mode": mode,
        "role": "file",
    }

    def replace(manifest: dict[str, Any]) -> None:
        others = [one for one in manifest["files"] if one["path"] != entry["path"]]
        manifest["files"] = [*others, entry]

    change_manifest(bundle, replace)
    return bundle


def tree(folder: Path) -> dict[str, tuple[bytes, bool]]:
    """Return the files below a folder: what they hold, and whether they can be run."""
    return {
        str(path.relative_to(folder)): (path.read_bytes(), os.access(path, os.X_OK))
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
