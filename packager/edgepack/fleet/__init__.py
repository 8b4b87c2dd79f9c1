"""Fleets: which devices, in what order, and pushes to many of them that are kept as rollouts."""

from edgepack.fleet.bundles import bundles_by_target, require_signatures
from edgepack.fleet.rollout import (
    Push,
    Unwatched,
    Watcher,
    push_to_one,
    resume_rollout,
    start_rollout,
)
from edgepack.fleet.running import News, run_on_devices
from edgepack.fleet.scheduling import Retry, Schedule, Settings, Settled, Start
from edgepack.fleet.selection import complete_selection, is_one_device, select_devices
from edgepack.fleet.store import (
    WARM_UP_S,
    DeviceRecord,
    PushOptions,
    Rollout,
    RolloutBundle,
    RolloutListing,
    RolloutStore,
)

__all__ = [
    "WARM_UP_S",
    "DeviceRecord",
    "News",
    "Push",
    "PushOptions",
    "Retry",
    "Rollout",
    "RolloutBundle",
    "RolloutListing",
    "RolloutStore",
    "Schedule",
    "Settings",
    "Settled",
    "Start",
    "Unwatched",
    "Watcher",
    "bundles_by_target",
    "complete_selection",
    "is_one_device",
    "push_to_one",
    "require_signatures",
    "resume_rollout",
    "run_on_devices",
    "select_devices",
    "start_rollout",
]
