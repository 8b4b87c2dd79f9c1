"""Changes devices, with a record of each change in the audit log.

The functions do what those of the same names in :mod:`edgepack.devices` do. All other changes of a
device go through :func:`audited`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from edgepack.base.progress import Silent
from edgepack.bundle.kept import Kept, read_stamps
from edgepack.bundle.reading import load_any
from edgepack.bundle.signing import Signature, find_allowed_signers, read_signature
from edgepack.deploy import audit
from edgepack.deploy.audit_lines import Action, Event
from edgepack.devices.inventory import Device
from edgepack.errors import EdgepackError, ToolError

if TYPE_CHECKING:
    from edgepack.deploy.fleet.store import ProvisionOptions
    from edgepack.devices.checking import Checked
    from edgepack.devices.provisioning.provision import Provisioned
    from edgepack.devices.ssh.host_keys import HostKey
    from edgepack.devices.transport import Transport


class Operation:
    """Something that is being done to a device, as far as it is known."""

    def __init__(self, event: Event) -> None:
        self.event = event

    def describe(self, **facts: str | None) -> None:
        """Add facts to its record: fields of :class:`~edgepack.deploy.audit.Event`."""
        self.event = self.event.model_copy(update=facts)

    def describe_bundle(self, bundle: Path, allowed_signers: Path | None) -> None:
        """Add the bundle to its record. A folder that is no bundle is refused later, by its reader.

        Raises:
            BundleError: The bundle's manifest or its signature was altered.
        """
        if bundle.is_dir():
            found = load_any(bundle)
            self.describe(
                project=found.manifest.name,
                release=found.digest[:16],
                digest=found.digest,
                signer=_find_signer(bundle, allowed_signers),
            )

    def record(self, action: Action, **facts: str | None) -> None:
        """Record an action now that belongs to it, as a switch belongs to a push.

        For another release than the operation's, as in a rollback, digest and signer are unknown.

        Raises:
            ToolError: The log cannot be written.
        """
        known = self.event.model_dump()
        if facts.get("release", self.event.release) != self.event.release:
            known |= {"digest": None, "signer": None}
        audit.record(Event.model_validate({**known, "action": action, **facts}))

    def record_trust(self, host: str, key: HostKey) -> None:
        """Record a host key as it comes to be trusted, whatever follows."""
        self.record("trust", host_key=key.fingerprint, detail=f"the {key.kind} key of {host}")


@contextmanager
def audited(
    action: Action,
    device: str | Device,
    bundle: Path | None = None,
    *,
    allowed_signers: Path | None = None,
    only_failure: bool = False,
) -> Iterator[Operation]:
    """Record the context's action: as done, or as failed with its error's first line.

    It does not begin if it could not be recorded. A process that is killed records nothing: the
    device's own history has the switches that it made.

    Args:
        action: What is done.
        device: The device, or only its name.
        bundle: What it is about.
        allowed_signers: Who may have signed that; default: ``~/.ssh/allowed_signers``.
        only_failure: Record only a failure; :meth:`Operation.record` records what was done.

    Raises:
        ToolError: The log cannot be written.
        BundleError: The bundle's manifest or its signature was altered; that is recorded too.
    """
    audit.require_writable()
    name = device if isinstance(device, str) else device.name
    pinned = None if isinstance(device, str) else getattr(device.entry, "host_key", None)
    operation = Operation(Event(action=action, device=name, host_key=pinned))
    try:
        if bundle is not None:
            operation.describe_bundle(bundle, allowed_signers)
        yield operation
    except BaseException as error:
        operation.record(action, result="failed", error=_find_first_line(error))
        raise
    if not only_failure:
        operation.record(action)


def _read_signature(bundle_and_signers: tuple[Path, Path]) -> Signature | None:
    bundle, allowed = bundle_and_signers
    return read_signature(bundle, allowed if allowed != find_allowed_signers() else None)


# Once for a whole fleet: it starts several programs.
_signature = Kept(_read_signature, lambda paths: read_stamps(*paths))


def _find_signer(bundle: Path, allowed_signers: Path | None) -> str | None:
    """Return who signed a bundle and with which key; None if nobody did."""
    try:
        found = _signature((bundle, allowed_signers or find_allowed_signers()))
    except ToolError as error:
        return f"not checked: {error.problem}"
    if found is None:
        return None
    return f"{found.signer} ({found.fingerprint})" if found.signer else found.fingerprint


def _find_first_line(error: BaseException) -> str:
    return error.first_line if isinstance(error, EdgepackError) else type(error).__name__


class _Told(Silent):
    """Tells a function what is noted."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell

    def note(self, text: str) -> None:
        """Tell it."""
        self._tell(text)


def provision_device(
    device: Device,
    options: ProvisionOptions | None = None,
    *,
    require_all: bool = False,
    progress: Callable[[str], None] = lambda _: None,
) -> Provisioned:
    """Make the Python environment that a device's target pins; the device needs no internet.

    The new environment is built beside the old one and replaces it once it is proven. A device
    without Python gets the measuring program, and onnxruntime's library out of its wheel. The
    device is leased from when wheels are pushed on.

    Args:
        device: Where.
        options: Where wheels come from, and how long to wait for others; by default the package
            index, and not at all.
        require_all: Leave the old environment in use if a provider of the target is missing in the
            new one or does not work in it.
        progress: Called at the beginning of each stage.

    Raises:
        UsageError: The inventory names an interpreter for the device, so this one would not run; or
            a wheel or the wheelhouse is not there.
        DeviceError: The device has not a Python that the runtime has wheels for, or lacks what it
            needs without any; or others use it; or the lease was lost, and others may have come
            between: do it again.
        ToolError: A wheel cannot be fetched, or is missing; or the audit log cannot be written.
        RemoteCommandError: A command on the device failed.
    """
    from edgepack.deploy.fleet.store import ProvisionOptions
    from edgepack.deploy.leases import leased
    from edgepack.devices.provisioning.provision import provision
    from edgepack.devices.provisioning.wheels import WheelSource

    asked = options or ProvisionOptions()
    is_offline = asked.offline or asked.wheelhouse is not None
    source = WheelSource(tuple(asked.wheels), asked.wheelhouse, is_offline)

    def hold(transport: Transport) -> AbstractContextManager[object]:
        told = _Told(progress)
        return leased(transport, device, "provision", wait_s=asked.wait_s, progress=told)

    with audited("provision", device) as operation:
        made = provision(device, source, require_all=require_all, hold=hold, progress=progress)
        operation.describe(host_key=made.host_key, serial=made.serial, detail=str(made))
    return made


def check_machine(device: Device) -> Checked:
    """Return what a machine is and lacks; see :func:`edgepack.devices.checking.check`."""
    from edgepack.devices import checking

    checked = checking.check(device)
    if checked.given_back:
        with audited("tune", device) as operation:
            operation.describe(detail=f"restored: {', '.join(checked.given_back)}")
    return checked


def trust_device(device: Device, fingerprint: str | None, confirm: Callable[[str], bool]) -> str:
    """Fetch a device's host key, and those of the hosts on the way, and make them known.

    Args:
        device: The device, reached over SSH.
        fingerprint: Accept the device's key without asking if it has this fingerprint;
            ``SHA256:...``.
        confirm: Asked about every other key, with a text that shows it.

    Returns:
        The newly trusted host keys, a line for each host.

    Raises:
        UsageError: The device is not reached over SSH.
        DeviceError: A host cannot be reached, or its key was not accepted.
        ToolError: The audit log cannot be written.
    """
    from edgepack.devices.ssh import trust as trusting

    with audited("trust", device, only_failure=True) as operation:
        return trusting.trust(device, fingerprint, confirm, on_trusted=operation.record_trust)
