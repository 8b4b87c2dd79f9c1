"""Brings a release into use on a device: tries it before the switch, goes back if it fails.

The new release is put beside the current one, its loader chooses a variant there and compares the
golden outputs, and only then ``current`` is switched. What the inventory names under
``after_switch`` and ``health`` runs then; if either fails, the release before is current again.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import (
    AbstractContextManager,
    contextmanager,
    nullcontext,
    suppress,
)
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from edgepack.base.progress import Progress, Silent, Work
from edgepack.bundle.reading import AnyBundle, PipelineBundle
from edgepack.deploy.fleet.store import WARM_UP_S
from edgepack.deploy.leases import leased
from edgepack.deploy.operations import Operation, audited
from edgepack.deploy.transfer import client
from edgepack.deploy.transfer.client import PushAgent, PushedRelease, Switched
from edgepack.deploy.transfer.relay import Relays
from edgepack.devices.inventory import Device
from edgepack.devices.transport import CommandResult, Transport
from edgepack.devices.transports import connect
from edgepack.errors import (
    DeviceError,
    EdgepackError,
    PythonMissingError,
    RemoteCommandError,
    TooSlowError,
)

if TYPE_CHECKING:
    from edgepack.devices.harness import Harness
    from edgepack.devices.probing import ProbedFacts
    from edgepack.native.harness import NativeHarness
    from edgepack.records.run import VariantTrial


def push(  # noqa: PLR0913  (the command's options)
    bundle: Path,
    device: Device,
    *,
    self_test: bool = True,
    warm_up_s: float = WARM_UP_S,
    wait_s: float = 0.0,
    allowed_signers: Path | None = None,
    relays: Relays | None = None,
    progress: Progress | None = None,
) -> PushedRelease:
    """Push a bundle to a device, try it there, and make it current.

    Args:
        bundle: The bundle's folder.
        device: Where.
        self_test: Whether the loader must take a variant there first, by its golden outputs. It
            needs the runtime on the device.
        warm_up_s: How long that may take, with the engines that are built meanwhile. It is stopped
            there after that.
        wait_s: How long to wait while a benchmark holds the device.
        allowed_signers: The file that names the bundle's signer for the audit log; default:
            ``~/.ssh/allowed_signers``. :func:`require_signature` refuses other signers.
        relays: Those that devices share, where devices.yaml asks for one; default: its own.
        progress: Where to report; default: nowhere.

    Raises:
        BundleError: The bundle is not whole; nothing was sent.
        DeviceError: The device cannot be reached or used, is another target, has no space, lacks
            the runtime, or is held by a benchmark. ``current`` is what it was.
        RemoteCommandError: The self-test failed, or took too long, and ``current`` is what it was;
            or one of ``after_switch`` and ``health`` failed, and the release before is current
            again, as far as there was one.
    """
    progress = progress or Silent()
    client.begin_reading(bundle)
    with (
        audited("push", device, bundle, allowed_signers=allowed_signers) as operation,
        nullcontext(relays) if relays else Relays() as found,
        connect(device) as transport,
        PushAgent(
            bundle, device, transport, switch=not self_test, relay=found.find(device)
        ).started() as agent,
        leased(transport, device, "push", exclusive=False, wait_s=wait_s, progress=progress),
    ):
        operation.describe(host_key=transport.host_key)
        test = _SelfTest(device, transport, operation, warm_up_s, progress, agent.bundle)
        staged = client.send_release(
            agent,
            preflight=test.require if self_test else (lambda: None),
            progress=progress,
        )
        if staged.switched_from == staged.release:
            return staged
        if self_test:
            staged = test.run(staged)
            switched = client.switch_release(staged, _find_project(staged), device, transport)
            # Another push may have switched since it was staged.
            staged = replace(staged, switched_from=switched.switched_from)
            if staged.switched_from == staged.release:
                return staged
        operation.record("switch", switched_from=staged.switched_from)
        _finish_or_take_back(staged, device, transport, operation)
    return staged


def rollback(
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
        leased(transport, device, "rollback", exclusive=False, wait_s=wait_s),
    ):
        operation.describe(project=project, release=release, host_key=transport.host_key)
        done = client.switch_back(project, device, transport, release=release)
        operation.record("rollback", release=done.release, switched_from=done.switched_from)
        _run_hooks(device, transport)
    return done


@dataclass(frozen=True)
class _SelfTest:
    """Has a device's own loader try a release; without Python there, the measuring program."""

    device: Device
    transport: Transport
    operation: Operation
    warm_up_s: float
    progress: Progress
    bundle: AnyBundle

    @cached_property
    def facts(self) -> ProbedFacts:
        """What the device is."""
        # Where the device has the release already, nothing of this is needed.
        from edgepack.devices.probing import probe

        return probe(self.device, self.transport)

    @property
    def lacks_python(self) -> bool:
        """Whether the device is one that does without Python."""
        return self.facts.lacks_python and self.device.may_lack_python

    @cached_property
    def python(self) -> str:
        """The Python on the device that runs its target's bundles.

        Raises:
            DeviceError: The device lacks the runtime.
        """
        from edgepack.devices.checking import find_runtime_python

        return find_runtime_python(self.device, self.facts)

    def require(self) -> str | None:
        """Check that the release can be tried on the device, and return the Python that does it.

        Raises:
            DeviceError: The device is another kind of machine, or lacks the runtime; or without
                Python what tries the release.
        """
        from edgepack.devices.checking import require_kind

        if self.lacks_python:
            self._require_native()
        self.operation.describe(serial=self.facts.serial or None)
        require_kind(self.device, self.facts)
        return None if self.lacks_python else self.python

    def _require_native(self) -> None:
        from edgepack.devices.provisioning.native import list_native_problems
        from edgepack.project.profile import load_profile

        problems = list(list_native_problems(self.facts, load_profile(self.device.target)))
        if isinstance(self.bundle, PipelineBundle):
            problems.append("a pipeline is tried by its loader, which needs Python")
        if problems:
            raise PythonMissingError(
                "there is no Python on the device, and the release cannot be tried without;"
                " nothing was changed there" + "".join(f"\n  {each}" for each in problems),
                hint="push with --no-self-test; or fix that, or install python3 there, and then:"
                f" edgepack device provision {self.device.name}",
                where=self.device.name,
            )

    def run(self, staged: PushedRelease) -> PushedRelease:
        """Return the release with the variant that the loader takes.

        Raises:
            DeviceError: The device is another kind of machine, or lacks the runtime; or others have
                removed the release meanwhile.
            RemoteCommandError: No variant works there, or not in time.
        """
        began = time.monotonic()
        try:
            variant = self._choose_from_whole(staged)
        except EdgepackError as error:
            self.operation.record("self-test", result="failed", error=error.first_line)
            raise
        took_s = round(time.monotonic() - began, 1)
        self.operation.record("self-test", detail=f"{variant} in {took_s} s")
        return replace(staged, variant=variant, warm_up_s=took_s)

    def _choose_from_whole(self, staged: PushedRelease) -> str:
        try:
            return self._choose(staged)
        except RemoteCommandError:
            client.require_there(staged, self.transport)
            raise

    def _choose(self, staged: PushedRelease) -> str:
        """Let the loader choose a variant, and report every few seconds how far it is."""
        at = "starting"

        def on_trial(trial: VariantTrial) -> None:
            nonlocal at
            at = str(trial)
            if trial.building or trial.seconds >= 1:
                self.progress.show_status(at)

        try:
            title = f"{self.device.name}: trying the release"
            with self.progress.start_task(Work(title, total=1, finds=True)) as task:
                with self._opened(staged) as harness:
                    variant = harness.select(None, on_trial).variant
                task(f"{variant} works")
        except TooSlowError as error:
            raise TooSlowError(
                f"trying the release took longer than {self.warm_up_s:g} s and was stopped, at:"
                f" {at}; the current release is what it was",
                hint="if engines are still being built, push with a longer --warm-up SECONDS; if it"
                f" hangs, see what the device does: edgepack device check {self.device.name}",
                where=self.device.name,
            ) from error
        return variant

    @contextmanager
    def _opened(self, staged: PushedRelease) -> Iterator[Harness | NativeHarness]:
        """Yield what chooses a variant of the release on the device."""
        from edgepack.devices.harness import HARNESS, STAGES, Harness
        from edgepack.native.board import prepared_board

        if self.lacks_python:
            found = (self.device, self.transport, self.facts, self.progress)
            with prepared_board(*found) as make_harness:
                native = make_harness(self.bundle, staged.path)
                yield replace(native, load_timeout_s=self.warm_up_s)
            return
        yield Harness(
            self.transport,
            staged.path,
            self.python,
            tuple(self.device.entry.run_prefix),
            load_timeout_s=self.warm_up_s,
            program=STAGES if isinstance(self.bundle, PipelineBundle) else HARNESS,
        )


def _finish_or_take_back(
    pushed: PushedRelease, device: Device, transport: Transport, operation: Operation
) -> None:
    """Run what follows a switch; if that fails, switch back and run it for the release before."""
    try:
        _run_hooks(device, transport)
    except RemoteCommandError as error:
        raise _take_back(pushed, device, operation, error, nullcontext(transport)) from error
    except DeviceError as error:
        # The connection is gone: what was asked for may have restarted the network.
        raise _take_back(pushed, device, operation, error, connect(device)) from error


def _run_hooks(device: Device, transport: Transport) -> None:
    for title, argv in (
        ("after_switch", device.entry.after_switch),
        ("health", device.entry.health),
    ):
        if argv:
            _run_hook(argv, device, transport).check(
                f"{title!r} of {device.name}",
                device=device.name,
                hint=f"run it there by hand: {' '.join(argv)}",
            )


def _run_hook(argv: list[str], device: Device, transport: Transport) -> CommandResult:
    timeout_s = device.entry.hook_timeout_s
    try:
        return transport.run(argv, timeout_s=timeout_s)
    except PythonMissingError:
        if not device.may_lack_python:
            raise
        return transport.run(argv, timeout_s=timeout_s, supervisor="shell")


def _take_back(
    pushed: PushedRelease,
    device: Device,
    operation: Operation,
    error: EdgepackError,
    connection: AbstractContextManager[Transport],
) -> RemoteCommandError:
    """Make the release before current again, and return the error that says how that went."""
    before = pushed.switched_from
    if before is None:
        end = f"{pushed.release} stays current, because there was none before it"
    else:
        end = f"{before} is current again"
        try:
            with connection as transport:
                client.switch_back(_find_project(pushed), device, transport, release=before)
                operation.record("rollback", release=before, switched_from=pushed.release)
                with suppress(RemoteCommandError):  # whatever it says, there is nothing else to do
                    _run_hooks(device, transport)
        except EdgepackError as second:
            end = f"going back to {before} failed too: {second.problem}"
    return RemoteCommandError(f"{error.problem}; {end}", hint=error.hint, where=device.name)


def _find_project(pushed: PushedRelease) -> str:
    """Return the project of a release: ``<root>/<project>/releases/<release>``."""
    return pushed.path.parent.parent.name
