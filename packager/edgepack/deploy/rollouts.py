"""Runs rollouts: does on each device of a fleet what a command does on one.

:mod:`edgepack.deploy.fleet` says which devices, when, and what is kept of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

from edgepack.base.progress import Progress, Silent
from edgepack.base.team import is_in_team
from edgepack.bundle.reading import AnyBundle
from edgepack.deploy.fleet import rollout
from edgepack.deploy.fleet.rollout import Asked, Done
from edgepack.deploy.fleet.run import Watcher
from edgepack.deploy.fleet.store import (
    ProvisionOptions,
    PushOptions,
    RollbackOptions,
    Rollout,
    RolloutListing,
    RolloutStore,
)
from edgepack.deploy.operations import provision_device
from edgepack.deploy.push import push, rollback
from edgepack.deploy.transfer.client import PushedRelease, Switched
from edgepack.deploy.transfer.relay import Relays
from edgepack.devices.inventory import Device
from edgepack.errors import UsageError

if TYPE_CHECKING:
    from edgepack.devices.provisioning.provision import Provisioned


def act_as_asked(
    asked: Rollout, device: Device, *, relays: Relays | None = None, progress: Progress
) -> Done:
    """Do on one device what a rollout asks for, now or when it is resumed."""
    options = asked.options
    if isinstance(options, PushOptions):
        bundle = Path(asked.bundles[device.target].path)
        return push_as_asked(bundle, device, options, relays=relays, progress=progress)
    if isinstance(options, RollbackOptions):
        switched = rollback(asked.project, device, release=options.release, wait_s=options.wait_s)
        before = switched.switched_from or "none"
        said = f"{switched.release} is current (before: {before})"
        return Done(switched, said, switched.release)
    made = provision_device(device, options, progress=progress.show_status)
    return Done(made, str(made))


def push_as_asked(
    bundle: Path,
    device: Device,
    options: PushOptions,
    *,
    relays: Relays | None = None,
    progress: Progress,
) -> Done:
    """Push to one device with a rollout's options."""
    pushed = push(
        bundle,
        device,
        self_test=options.self_test,
        warm_up_s=options.warm_up_s,
        wait_s=options.wait_s,
        allowed_signers=options.allowed_signers,
        relays=relays,
        progress=progress,
    )
    return Done(
        pushed,
        "was there already" if pushed.already_there else f"{pushed.bytes_sent} bytes",
        pushed.release,
        pushed.bytes_sent,
        pushed.variant or "",
        pushed.warm_up_s or 0.0,
    )


def push_as_rollout(
    bundles: Mapping[str, AnyBundle],
    device: Device,
    store: RolloutStore,
    *,
    options: PushOptions,
    progress: Progress | None = None,
) -> PushedRelease:
    """Push to one device at once, and keep that as a rollout of its own.

    It is pending if the device was not reached or is in use, and failed if it went wrong otherwise.

    Args:
        bundles: By target; :func:`load_bundles_by_target` reads them.
        device: Where.
        store: Where the rollout is kept.
        options: How it is pushed.
        progress: Where to report; default: nowhere.

    Raises:
        EdgepackError: What :func:`edgepack.deploy.push.push` raises; or a bundle lacks a required
            signature.
    """
    asked = Asked(options, bundles=bundles)
    return cast("PushedRelease", _act_on_one(asked, device, store, progress).value)


def rollback_as_rollout(
    project: str,
    device: Device,
    store: RolloutStore,
    *,
    options: RollbackOptions | None = None,
    progress: Progress | None = None,
) -> Switched:
    """Make an earlier release current on one device, and keep that as a rollout of its own.

    It supersedes what is pending of the project there. It is itself pending if the device was not
    reached or is in use.

    Raises:
        EdgepackError: What :func:`edgepack.deploy.push.rollback` raises.
    """
    asked = Asked(options or RollbackOptions(), project)
    return cast("Switched", _act_on_one(asked, device, store, progress).value)


def provision_as_rollout(
    device: Device,
    store: RolloutStore,
    *,
    options: ProvisionOptions | None = None,
    progress: Progress | None = None,
) -> Provisioned:
    """Install the runtime on one device, and keep that as a rollout of its own.

    It is pending if the device was not reached, or is in use.

    Raises:
        EdgepackError: What :func:`edgepack.deploy.operations.provision_device` raises.
    """
    asked = Asked(options or ProvisionOptions())
    return cast("Provisioned", _act_on_one(asked, device, store, progress).value)


def _act_on_one(
    asked: Asked, device: Device, store: RolloutStore, progress: Progress | None
) -> Done:
    return rollout.act_on_one(asked, device, store, act_as_asked, progress=progress or Silent())


def resume_rollout(
    number: int,
    store: RolloutStore,
    *,
    watcher: Watcher | None = None,
    inventory: Path | None = None,
    moved: Sequence[Path] = (),
) -> Rollout:
    """Do what a rollout is for on its pending devices, and return its state.

    What goes wrong on a device is in its record, and is not raised. A device that is not reached
    stays pending, so this may be called again and again.

    Args:
        number: The rollout's ``id``.
        store: Where it is kept.
        watcher: Receives the events, to show them; default: nobody.
        inventory: devices.yaml, if it is not the usual one.
        moved: Its bundles, where they lie elsewhere by now: on another machine than it began on.

    Raises:
        EdgepackError: As :func:`.fleet.rollout.run_rollout` does; nothing was sent.
    """
    with Relays() as relays:
        act = partial(act_as_asked, relays=relays)
        return rollout.run_rollout(
            number, store, act, watcher=watcher, inventory=inventory, moved=moved
        )


def open_rollout_store() -> RolloutStore:
    """Return the team's store where the environment names its database, else the user's folder.

    Raises:
        EdgepackError: As :func:`edgepack.base.team_tables.open_team_database` does.
    """
    if not is_in_team():
        return RolloutStore()
    from edgepack.deploy.fleet.team_store import TeamRolloutStore

    return TeamRolloutStore()


def list_rollouts(store: RolloutStore) -> RolloutListing:
    """Return all rollouts, oldest first, and what is wrong with files that cannot be read."""
    return store.list_all()


def read_rollout(number: int | None, store: RolloutStore) -> Rollout:
    """Return the state of a rollout.

    Args:
        number: Its ``id``; None stands for the newest.
        store: Where it is kept.

    Raises:
        UsageError: There is no such rollout, or none at all.
        BundleError: Its file, or that of a newer one, is broken or of another schema version.
    """
    if number is not None:
        return store.load(number)
    rollouts = store.list_all().rollouts
    if not rollouts:
        raise UsageError(
            "there is no rollout yet", hint="edgepack push BUNDLE --device tag:NAME begins one"
        )
    return rollouts[-1]


def abort_rollout(number: int, store: RolloutStore) -> Rollout:
    """Start nothing more of a rollout, and return its state; what runs continues to its end.

    Raises:
        UsageError: There is no such rollout.
        BundleError: Its file, or that of a newer one, is broken or of another schema version.
        ToolError: The store cannot be written to.
    """
    store.load(number)
    store.stop(number, "edgepack rollout abort")
    return store.load(number)
