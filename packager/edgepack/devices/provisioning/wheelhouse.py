"""Fills a folder with wheels where there is internet, for devices that are elsewhere."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from edgepack.base.files import writing
from edgepack.devices.inventory import Device
from edgepack.devices.probing import probe
from edgepack.devices.provisioning.needs import find_needs, load_provisioned_profile
from edgepack.devices.provisioning.store import KeptRuntime
from edgepack.devices.provisioning.wheels import WheelNeeds, WheelSource, fetch_wheels
from edgepack.devices.transports import connect
from edgepack.errors import EdgepackError, ToolError


@dataclass(frozen=True)
class FetchedWheels:
    """The wheels that a device needs, in a wheelhouse."""

    needs: WheelNeeds
    wheelhouse: Path
    files: tuple[str, ...]

    def __str__(self) -> str:
        return f"{len(self.files)} wheels for {self.needs}"


class Wheelhouse:
    """A folder that is filled with what devices need, once for all that need the same.

    A wheel gets its name there when it is whole. Several threads may call :meth:`fetch`.
    """

    def __init__(self, folder: Path, files: Sequence[Path] = ()) -> None:
        """Note the folder, which is made when there is something in it; ``files`` go there too."""
        self.folder = folder
        self._source = WheelSource(tuple(files))
        self._lock = threading.Lock()
        self._fetched: dict[str, FetchedWheels | EdgepackError] = {}
        """By what decides it, in full."""

    def fetch(
        self, device: Device, progress: Callable[[str], None] = lambda _: None
    ) -> FetchedWheels:
        """Ask a device what it is, and fetch what provisioning it needs, pip's wheel among that.

        Nothing is changed on the device.

        Raises:
            UsageError: It cannot be provisioned, or a wheel of the user's is not there.
            DeviceError: It has not a Python that the runtime has wheels for, or lacks what it needs
                without any.
            ToolError: A wheel cannot be fetched, or the folder cannot be written.
        """
        self._source.require_there()
        profile = load_provisioned_profile(device)
        with connect(device) as transport:
            facts = probe(device, transport)
            needs = find_needs(device, profile, facts, transport, source=self._source)
        with self._lock:
            found = self._fetched.get(repr(needs))
            if found is None:
                try:
                    found = self._fetch(needs, device.name, progress)
                except ToolError as error:
                    found = error
                self._fetched[repr(needs)] = found
        if isinstance(found, EdgepackError):
            raise found
        return found

    def _fetch(
        self, needs: WheelNeeds, device: str, progress: Callable[[str], None] = lambda _: None
    ) -> FetchedWheels:
        with writing("the wheels", self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=self.folder, prefix=".partial-") as name:
                fetch_wheels(Path(name), needs, self._source, device, progress)
                if isinstance(needs.runtime, KeptRuntime):
                    record = Path(name) / f"{needs.runtime.wheel}.json"
                    record.write_text(needs.runtime.model_dump_json(indent=1) + "\n")
                files = sorted(Path(name).iterdir())
                for path in files:
                    path.replace(self.folder / path.name)
        return FetchedWheels(needs, self.folder, tuple(path.name for path in files))
