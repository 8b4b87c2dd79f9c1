"""Brings a bundle to a phone and hands out its measurements there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from edgepack.base.progress import Progress
from edgepack.bundle.reading import Bundle
from edgepack.deploy.leases import leased
from edgepack.devices.inventory import AdbEntry, Device
from edgepack.devices.transports import connect
from edgepack.errors import UsageError
from edgepack.native.harness import NativeHarness
from edgepack.records.run import Scenario


def require_asked_of_phones(device: Device, scenario: Scenario, *, tune: bool) -> None:
    """Check that phones support the requested measurement.

    Raises:
        UsageError: They do not.
    """
    if scenario.name != "single-stream":
        raise UsageError(
            f"a phone is measured as a single stream, not as {scenario.name}",
            hint="leave --scenario out",
            where=device.name,
        )
    if tune:
        raise UsageError(
            "the clocks of a phone cannot be held",
            hint="leave --tune out, and keep the phone cool, charged and idle",
            where=device.name,
        )


@contextmanager
def open_phone(
    bundle: Bundle, device: Device, purpose: str, *, wait_s: float, progress: Progress
) -> Iterator[NativeHarness]:
    """Put a bundle's models on a phone and lease it, through the machine that it is attached to.

    Args:
        bundle: What is run.
        device: Where.
        purpose: What the phone's lease is for, without the bundle: ``bench``.
        wait_s: How long to wait while others hold the phone.
        progress: Where to report.

    Raises:
        DeviceError: The phone, or that machine, cannot be reached or used; others hold the phone.
        ToolError: A program that is needed here or there is missing.
        ProfileError: The phone's target is for another system.
        RemoteCommandError: Something failed there.
    """
    from edgepack.measure.phones.android_ready import prepare_android
    from edgepack.measure.phones.apple import prepare_apple
    from edgepack.measure.phones.check import require_system

    require_system(device)
    ready = prepare_android if isinstance(device.entry, AdbEntry) else prepare_apple
    purpose = f"{purpose} {bundle.manifest.id}"
    with (
        connect(device.host) as transport,
        leased(transport, device.host, purpose, wait_s=wait_s, progress=progress),
        ready(bundle, device, transport, progress) as phone,
    ):
        yield NativeHarness(phone, bundle)
