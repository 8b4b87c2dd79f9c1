"""Boards of a labgrid, over SSH."""

from __future__ import annotations

import logging
from typing import IO, Self

from edgepack.base.terminal import make_printable
from edgepack.devices.inventory import Device
from edgepack.devices.places import acquire_place, release_place
from edgepack.devices.reservations import find_place
from edgepack.devices.ssh.transport import SshTransport
from edgepack.errors import EdgepackError

_LOG = logging.getLogger("edgepack.labgrid")


class LabgridTransport(SshTransport):
    """A board of a labgrid, whose place is acquired while this is connected.

    A place that cannot be released is warned of: what was done on the board is not undone by that,
    and the next command there releases it.

    Raises:
        DeviceError: The coordinator does not answer, or the place has no NetworkService; or no
            place of those that the inventory allows became free in time.
    """

    def __init__(self, device: Device) -> None:
        self._device = find_place(device)
        super().__init__(self._device)
        self._use: IO[bytes] | None = None

    def __enter__(self) -> Self:
        """Acquire the place, and connect.

        Raises:
            BusyError: Somebody else has the place, or its user on another host.
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
        if use is None:
            return
        try:
            release_place(self._device, use)
        except EdgepackError as error:
            _LOG.warning("%s stays acquired: %s", self.name, make_printable(str(error)))
