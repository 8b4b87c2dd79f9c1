"""Brings a bundle to a device and yields its harness there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from edgepack.base.progress import Progress
from edgepack.base.schema import NotMeasured
from edgepack.bundle.reading import AnyBundle, Bundle
from edgepack.deploy.leases import leased
from edgepack.deploy.operations import audited
from edgepack.deploy.transfer.client import PushAgent, PushedRelease, read_for, send_release
from edgepack.devices.checking import find_runtime_python
from edgepack.devices.harness import Harness, Measurer
from edgepack.devices.inventory import Device
from edgepack.devices.probing import ProbedFacts, probe
from edgepack.devices.topology import ask_topology
from edgepack.devices.transport import Transport
from edgepack.devices.transports import connect
from edgepack.errors import DeviceError, EdgepackError, UsageError, format_one_line, suggest_nearest
from edgepack.native.board import prepared_board
from edgepack.native.board_files import read_board_files
from edgepack.native.harness import NativeHarness
from edgepack.records.topology import Topology

AnyHarness = Harness | NativeHarness
HarnessMaker = Callable[[AnyBundle, PurePosixPath], AnyHarness]
"""Makes the harness of a bundle, given its folder on the device."""

INTERRUPTS = (KeyboardInterrupt, SystemExit)
"""What Ctrl-C and SIGTERM raise."""
INTERRUPTED = "it was interrupted here"


def explain_end(end: BaseException) -> str:
    """Return what ended a measurement early, as one line: an error, or an interrupt."""
    return format_one_line(end.problem) if isinstance(end, EdgepackError) else INTERRUPTED


def read_bundle(path: Path, device: Device, variant: str | None) -> Bundle:
    """Return a bundle for a device after checking all its files.

    Raises:
        BundleError: A file was changed.
        DeviceError: The bundle is for another target than the device is.
        UsageError: The bundle has no such variant.
    """
    return read_variants(path, device, () if variant is None else (variant,))


def read_variants(path: Path, device: Device, variants: Sequence[str]) -> Bundle:
    """Do the same, and check that the bundle has all of these variants."""
    bundle = read_for(device, path)
    known = [entry.id for entry in bundle.manifest.variants]
    for variant in variants:
        if variant not in known:
            raise UsageError(
                f"the bundle {bundle.manifest.id} has no variant {variant!r}",
                hint=suggest_nearest(variant, known),
                where="--variant",
            )
    return bundle


@contextmanager
def open_harness(
    bundle: AnyBundle, device: Device, purpose: str, *, wait_s: float, progress: Progress
) -> Iterator[AnyHarness]:
    """Push a bundle beside the device's current release, and lease the device for its harness.

    Args:
        bundle: What is run.
        device: Where.
        purpose: What the device's lease is for, without the bundle: ``bench``.
        wait_s: How long to wait while others hold the device.
        progress: Where to report.

    Raises:
        DeviceError: The device cannot be reached or used, or lacks the runtime; others hold it; or
            the lease was lost before the end.
        RemoteCommandError: The push failed.
    """
    purpose = f"{purpose} {bundle.manifest.id}"
    with (
        connect(device) as transport,
        leased(transport, device, purpose, wait_s=wait_s, progress=progress),
        prepared(device, transport, progress) as make_harness,
    ):
        pushed = stage_bundle(bundle, device, transport, progress)
        yield make_harness(bundle, pushed.path)


@contextmanager
def prepared(device: Device, transport: Transport, progress: Progress) -> Iterator[HarnessMaker]:
    """Find what runs harnesses on a leased device: its Python, or a program that is put there.

    Raises:
        DeviceError: The device lacks the runtime, or what it needs without Python.
        ToolError: Without Python: what makes the program, or the runtime's wheel, is missing here.
        RemoteCommandError: Without Python: the device does not take the program.
    """
    facts = probe(device, transport)
    if facts.lacks_python and device.may_lack_python:
        with prepared_board(device, transport, facts, progress) as make_native:
            yield make_native
        return
    python, prefix = find_runtime_python(device, facts), tuple(device.entry.run_prefix)
    yield lambda _, path: Harness(transport, path, python, prefix)


def require_topology(harness: Measurer) -> Topology:
    """Return the processors that a device lets a measured process use.

    Raises:
        DeviceError: It does not say.
    """
    return _require_known(harness.topology(), harness.transport.name)


def ask_processors(device: Device, transport: Transport, facts: ProbedFacts) -> Topology:
    """Return the same of a device on which nothing was put yet.

    Raises:
        DeviceError: It does not say, or lacks the runtime.
    """
    prefix = tuple(device.entry.run_prefix)
    if facts.lacks_python and device.may_lack_python:
        return _require_known(read_board_files(transport, prefix).read_topology(), device.name)
    return ask_topology(transport, find_runtime_python(device, facts), prefix)


def _require_known(found: Topology | NotMeasured, device: str) -> Topology:
    if isinstance(found, NotMeasured):
        raise DeviceError(
            f"the device does not tell which processors it has: {found.reason}",
            hint="tune on a device with a whole /proc",
            where=device,
        )
    return found


def stage_bundle(
    bundle: AnyBundle, device: Device, transport: Transport, progress: Progress
) -> PushedRelease:
    """Push a bundle beside a device's current release, and record that.

    Raises:
        DeviceError: The connection broke, or the disk is full.
        RemoteCommandError: The push failed.
    """
    with audited("push", device, bundle.path) as operation:
        operation.describe(host_key=transport.host_key)
        return send_release(
            PushAgent(bundle.path, device, transport, switch=False), progress=progress
        )
