"""Boards of a labgrid, over SSH."""

from __future__ import annotations

from typing import IO, Self

from edgepack.devices.inventory import Device
from edgepack.devices.places import acquire_place, release_place
from edgepack.devices.ssh.transport import SshTransport


class LabgridTransport(SshTransport):
    """A board of a labgrid, whose place is acquired while this is connected.

    Raises:
        DeviceError: The coordinator does not answer, or the place has no NetworkService.
    """

    def __init__(self, device: Device) -> None:
        super().__init__(device)
        self._device = device
        self._use: IO[bytes] | None = None

    def __enter__(self) -> Self:
        """Acquire the place, and connect.

        Raises:
            BusyError: Somebody else has the place.
            DeviceError: As :class:`SshTransport` does.
        """
        self._use = acquire_place(self._device)
        try:
            return super().__enter__()
        except BaseException:
            self._leave()
            raise

    def __exit__(self, *_: object) -> None:
        try:
            super().__exit__()
        finally:
            self._leave()

    def _leave(self) -> None:
        use, self._use = self._use, None
        if use is not None:
            release_place(self._device, use)
