"""Bringing a release into use on a device: tried before it becomes current, taken back if it fails.

The new release is put beside the current one, its loader chooses a variant there and compares the
golden outputs, and only then ``current`` is switched. What the inventory names under
``after_switch`` and ``health`` runs then; if either fails, the release before is current again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import (
    AbstractContextManager,
    ExitStack,
    contextmanager,
    nullcontext,
    suppress,
)
from dataclasses import dataclass
from pathlib import Path

from edgepack import devices
from edgepack.bench.harness import Harness
from edgepack.devices import (
    Device,
    PushedRelease,
    Switched,
    Transport,
    connect,
    probe,
    runtime_python,
)
from edgepack.devices.leases import leased
from edgepack.errors import DeviceError, EdgepackError, PythonMissingError, RemoteCommandError
from edgepack.operations import Operation, audited
from edgepack.progress import Progress, Silent

WARM_UP_S = 900.0
"""How long the self-test may take: a first TensorRT engine can take ten minutes to build."""


@dataclass(frozen=True)
class Deployed:
    """A release that is current on a device."""

    pushed: PushedRelease
    variant: str | None
    """What the device's loader chose in the self-test; None where there was none: it was left out,
    or the release was current already."""


def deploy(
    bundle: Path,
    device: Device,
    *,
    self_test: bool = True,
    warm_up_s: float = WARM_UP_S,
    wait_s: float = 0.0,
    progress: Progress | None = None,
) -> Deployed:
    """Push a bundle to a device, try it there, and make it current.

    Args:
        bundle: The bundle's folder.
        device: Where.
        self_test: Whether the loader must take a variant there first, by its golden outputs. It
            needs the runtime on the device.
        warm_up_s: How long that may take.
        wait_s: How long to wait while a benchmark holds the device.
        progress: Where to report; default: nowhere.

    Raises:
        BundleError: The bundle is not whole; nothing was sent.
        DeviceError: The device cannot be reached or used, is another target, has no space, lacks
            the runtime, or is held by a benchmark. ``current`` is what it was.
        RemoteCommandError: The self-test failed, and ``current`` is what it was; or one of
            ``after_switch`` and ``health`` failed, and the release before is current again, as far
            as there was one.
    """
    progress = progress or Silent()
    with (
        audited("push", device, bundle) as operation,
        connect(device) as transport,
        _shared(transport, device, "push", wait_s, progress),
    ):
        operation.describe(host_key=transport.host_key)
        staged = devices.push(bundle, device, transport, switch=False, progress=progress)
        if staged.switched_from == staged.release:
            return Deployed(staged, None)
        variant = None
        if self_test:
            progress.note(f"{device.name}: trying the release")
            variant = _tried(staged, device, transport, operation, warm_up_s)
        devices.switch(staged, _project(staged), device, transport)
        operation.record("switch", switched_from=staged.switched_from)
        _finish_or_take_back(staged, device, transport, operation)
    return Deployed(staged, variant)


def roll_back(
    project: str, device: Device, *, release: str | None = None, wait_s: float = 0.0
) -> Switched:
    """Make an earlier release current on a device, and run what follows a switch.

    Args:
        project: The ``name`` of the bundle.
        device: Where.
        release: Its 16 hex digits; default: the one before the current one.
        wait_s: How long to wait while a benchmark holds the device.

    Raises:
        UsageError: The name or the release cannot be one.
        DeviceError: The device cannot be reached, or is held by a benchmark.
        RemoteCommandError: The device has no such release, or not all of it, and nothing was
            changed; or ``after_switch`` or ``health`` failed, and the earlier release is current.
    """
    with (
        audited("rollback", device, only_failure=True) as operation,
        connect(device) as transport,
        _shared(transport, device, "rollback", wait_s, Silent()),
    ):
        operation.describe(project=project, release=release, host_key=transport.host_key)
        done = devices.rollback(project, device, transport, release=release)
        operation.record("rollback", release=done.release, switched_from=done.switched_from)
        _run_hooks(device, transport)
    return done


@contextmanager
def _shared(
    transport: Transport, device: Device, purpose: str, wait_s: float, progress: Progress
) -> Iterator[None]:
    """Keep benchmarks off a device meanwhile, as far as it has the Python that leases need."""
    with ExitStack() as stack:
        try:
            lease = leased(
                transport, device, purpose, exclusive=False, wait_s=wait_s, progress=progress
            )
            stack.enter_context(lease)
        except PythonMissingError:
            if device.entry.python is not None:
                raise
            progress.note(f"{device.name} has no Python: no lease keeps others off it")
        yield


def _tried(
    staged: PushedRelease,
    device: Device,
    transport: Transport,
    operation: Operation,
    warm_up_s: float,
) -> str:
    """Return the variant that the device's loader takes.

    Raises:
        DeviceError: The device lacks the runtime.
        RemoteCommandError: No variant works there, or not in time.
    """
    try:
        python = runtime_python(device, probe(device, transport))
        prefix = tuple(device.entry.run_prefix)
        harness = Harness(transport, staged.path, python, prefix, load_timeout_s=warm_up_s)
        variant = harness.select(None).variant
    except EdgepackError as error:
        operation.record("self-test", result="failed", error=error.problem.partition("\n")[0])
        raise
    operation.record("self-test", detail=variant)
    return variant


def _finish_or_take_back(
    pushed: PushedRelease, device: Device, transport: Transport, operation: Operation
) -> None:
    """Run what follows a switch; if that fails, switch back and run it for the release before."""
    try:
        _run_hooks(device, transport)
    except RemoteCommandError as error:
        raise _taken_back(pushed, device, operation, error, nullcontext(transport)) from error
    except DeviceError as error:
        # The connection is gone: what was asked for may have restarted the network.
        raise _taken_back(pushed, device, operation, error, connect(device)) from error


def _run_hooks(device: Device, transport: Transport) -> None:
    for title, argv in (
        ("after_switch", device.entry.after_switch),
        ("health", device.entry.health),
    ):
        if argv:
            transport.run(argv, timeout_s=device.entry.hook_timeout_s).check(
                f"{title!r} of {device.name}",
                device=device.name,
                hint=f"run it there by hand: {' '.join(argv)}",
            )


def _taken_back(
    pushed: PushedRelease,
    device: Device,
    operation: Operation,
    error: EdgepackError,
    connection: AbstractContextManager[Transport],
) -> RemoteCommandError:
    """Make the release before current again, and return the error that says how that went."""
    before = pushed.switched_from
    if before is None:
        end = f"{pushed.release} stays current, for there was none before it"
    else:
        end = f"{before} is current again"
        try:
            with connection as transport:
                devices.rollback(_project(pushed), device, transport, release=before)
                operation.record("rollback", release=before, switched_from=pushed.release)
                with suppress(RemoteCommandError):  # whatever it says, there is nothing else to do
                    _run_hooks(device, transport)
        except EdgepackError as second:
            end = f"going back to {before} failed too: {second.problem}"
    return RemoteCommandError(f"{error.problem}; {end}", hint=error.hint, where=device.name)


def _project(pushed: PushedRelease) -> str:
    """Return the project of a release: ``<root>/<project>/releases/<release>``."""
    return pushed.path.parent.parent.name
