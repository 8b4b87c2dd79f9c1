"""Does something on many devices at once, of which nothing is kept, and collects the results."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from edgepack.base.progress import Progress
from edgepack.deploy.fleet.run import News, Unwatched, Watcher, run_on_devices
from edgepack.deploy.fleet.schedule import RolloutSettings, Schedule, Settled
from edgepack.devices.inventory import Device
from edgepack.errors import EdgepackError

Result = TypeVar("Result")

_WEIGHT = (70, 9, 8, 7, 6, 5, 4, 3, 2, 10, 11)
"""Exit codes, the weightiest first: what went wrong before what was measured, and a miss before
what is not settled."""


@dataclass(frozen=True)
class Outcome(Generic[Result]):
    """What came of it on one device: a result, an error, or both where the result is no good."""

    device: str
    result: Result | None
    error: EdgepackError | None


def do_on_devices(
    devices: Sequence[Device],
    action: Callable[[Device, Progress], Result],
    *,
    judge: Callable[[Result], None] = lambda _: None,
    settings: RolloutSettings | None = None,
    watcher: Watcher | None = None,
) -> list[Outcome[Result]]:
    """Do something on each device, several at a time; one device's error does not affect others.

    Args:
        devices: Where.
        action: Called in a thread for each device. A device that cannot be reached, or is in use,
            is tried again.
        judge: Raises an EdgepackError if a result is no good.
        settings: How many at a time, with which retries and deadline.
        watcher: Receives the events; default: nobody.

    Returns:
        An outcome for each device, in their order.

    Raises:
        UsageError: A setting is out of its range.
    """
    settings = settings or RolloutSettings()
    settings.require_sound()
    watcher = watcher or Unwatched()
    results: dict[str, Result] = {}
    errors: dict[str, EdgepackError | None] = {}

    def act(device: Device) -> None:
        result = action(device, watcher.progress(device.name))
        results[device.name] = result
        judge(result)

    def take_in(news: News) -> None:
        if isinstance(news, Settled):
            errors[news.device] = news.error
        watcher.tell(news)

    schedule = Schedule([device.name for device in devices], settings, random.random)
    run_on_devices(devices, act, schedule, on_news=take_in)
    return [
        Outcome(device.name, results.get(device.name), errors.get(device.name))
        for device in devices
    ]


def choose_exit_code(errors: Iterable[EdgepackError | None]) -> int:
    """Return the exit code for several devices: the weightiest of theirs, 0 if all are done."""
    return choose_worst_code(error.exit_code for error in errors if error is not None)


def choose_worst_code(codes: Iterable[int]) -> int:
    """Return the weightiest of several commands' exit codes, as :func:`choose_exit_code` does."""
    found = set(codes)
    return next((code for code in _WEIGHT if code in found), max(found, default=0))
