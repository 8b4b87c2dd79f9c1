"""Runs rollouts: pushes to each device of a fleet what a push to one device does.

:mod:`edgepack.deploy.fleet` says which devices, when, and what is kept of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from edgepack.base.progress import Progress, Silent
from edgepack.bundle.reading import Bundle
from edgepack.deploy.fleet import rollout
from edgepack.deploy.fleet.rollout import Watcher
from edgepack.deploy.fleet.store import PushOptions, Rollout, RolloutListing, RolloutStore
from edgepack.deploy.push import push
from edgepack.deploy.transfer.client import PushedRelease
from edgepack.devices.inventory import Device
from edgepack.errors import UsageError


def push_as_asked(
    bundle: Path, device: Device, options: PushOptions, *, progress: Progress
) -> PushedRelease:
    """Push to one device with a rollout's options, now or when the rollout is resumed."""
    return push(
        bundle,
        device,
        self_test=options.self_test,
        warm_up_s=options.warm_up_s,
        wait_s=options.wait_s,
        allowed_signers=options.allowed_signers,
        progress=progress,
    )


def push_as_rollout(
    bundles: Mapping[str, Bundle],
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
    return rollout.push_to_one(
        bundles, device, store, push_as_asked, options=options, progress=progress or Silent()
    )


def resume_rollout(
    number: int,
    store: RolloutStore,
    *,
    watcher: Watcher | None = None,
    inventory: Path | None = None,
) -> Rollout:
    """Push to the pending devices of a rollout, and return its state.

    What goes wrong on a device is in its record, and is not raised. A device that is not reached
    stays pending, so this may be called again and again.

    Args:
        number: The rollout's ``id``.
        store: Where it is kept.
        watcher: Receives the events, to show them; default: nobody.
        inventory: devices.yaml, if it is not the usual one.

    Raises:
        EdgepackError: As :func:`.fleet.rollout.run_rollout` does; nothing was sent.
    """
    return rollout.run_rollout(number, store, push_as_asked, watcher=watcher, inventory=inventory)


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
    """Start nothing more of a rollout, and return its state; running pushes continue to their end.

    Raises:
        UsageError: There is no such rollout.
        BundleError: Its file, or that of a newer one, is broken or of another schema version.
        ToolError: The store cannot be written to.
    """
    store.load(number)
    store.stop(number, "edgepack rollout abort")
    return store.load(number)
