"""Rollouts as they are made: what a push to one device does, done to each of a fleet.

:mod:`edgepack.deploy.fleet` says which devices, when, and what is kept of it.
"""

from __future__ import annotations

from pathlib import Path

from edgepack.base.progress import Progress
from edgepack.deploy.fleet import rollout
from edgepack.deploy.fleet.rollout import Watcher
from edgepack.deploy.fleet.store import PushOptions, Rollout, RolloutStore
from edgepack.deploy.push.push import PushedRelease
from edgepack.deploy.release import deploy
from edgepack.devices.inventory import Device


def push_as_asked(
    bundle: Path, device: Device, options: PushOptions, *, progress: Progress
) -> PushedRelease:
    """Do to one device what ``push`` does, to one or to a fleet, now or when it is resumed."""
    return deploy(
        bundle,
        device,
        self_test=options.self_test,
        warm_up_s=options.warm_up_s,
        wait_s=options.wait_s,
        allowed_signers=options.allowed_signers,
        progress=progress,
    )


def resume_rollout(
    number: int,
    store: RolloutStore,
    *,
    watcher: Watcher | None = None,
    inventory: Path | None = None,
) -> Rollout:
    """Push to the devices of a rollout that are pending, and return how far it is then.

    What goes wrong on a device is in its record, and is not raised. A device that is not reached
    stays pending, so this may be called again and again.

    Args:
        number: The rollout's ``id``.
        store: Where it is kept.
        watcher: Who is shown what happens; default: nobody.
        inventory: devices.yaml, if it is not the usual one.

    Raises:
        EdgepackError: As :func:`.fleet.rollout.resume_rollout` does; nothing was sent.
    """
    return rollout.resume_rollout(
        number, store, push_as_asked, watcher=watcher, inventory=inventory
    )
