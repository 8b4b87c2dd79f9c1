"""Sets a device's conditions for a benchmark: keeps its clocks at their highest."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from edgepack.deploy.operations import audited
from edgepack.devices.clocks import HeldSetting, held_clocks
from edgepack.devices.inventory import Device
from edgepack.devices.transport import Transport
from edgepack.records.run import TunedSetting


@contextmanager
def tuned(transport: Transport, device: Device, *, tune: bool) -> Iterator[list[HeldSetting]]:
    """Keep the device's clocks at their highest during the context, if requested, and record it.

    Raises:
        DeviceError: They cannot be set, or could not be restored.
    """
    if not tune:
        yield []
        return
    with ExitStack() as stack:
        with audited("tune", device) as operation:
            held = stack.enter_context(held_clocks(transport, device))
            changes = [f"{each.name}: {each.before} to {each.during}" for each in held]
            operation.describe(detail=", ".join(changes) or "nothing to change")
        yield held


def make_tuned_settings(held: list[HeldSetting]) -> list[TunedSetting]:
    """Return held settings as a report has them."""
    return [
        TunedSetting(
            name=each.name, before=each.before, during=each.during, restored=each.given_back
        )
        for each in held
    ]
