"""Running one action on many devices, each in a thread, as a :class:`Schedule` says."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence

from edgepack.deploy.fleet.schedule import Retry, Schedule, Settled, Start
from edgepack.devices.inventory import Device
from edgepack.errors import EdgepackError

News = Start | Retry | Settled
_Ends = queue.SimpleQueue[tuple[Start, BaseException | None]]


def run_on_devices(
    devices: Sequence[Device],
    action: Callable[[Device], None],
    schedule: Schedule,
    *,
    on_news: Callable[[News], None],
    stop_reason: Callable[[], str] = lambda: "",
) -> None:
    """Do something on every device that a schedule has, until the schedule is over.

    What one device raises is news about it and hides no other's. A device whose deadline has
    passed is given up: its thread is left alone, and ends with the process at the latest.

    Args:
        devices: All that the schedule names.
        action: Called in a thread for each try. What it raises is tried again if it is
            :attr:`~.errors.EdgepackError.transient`.
        schedule: What starts when.
        on_news: Told of everything that happens, in the calling thread.
        stop_reason: Asked before anything starts; once it gives a reason, nothing more does.

    Raises:
        BaseException: What an action raised that is no EdgepackError, after all have ended.
    """
    by_name = {device.name: device for device in devices}
    ends: _Ends = queue.SimpleQueue()
    bugs: list[BaseException] = []
    while not schedule.over:
        reason = stop_reason()
        if reason:
            schedule.stop(reason)
        for start in schedule.starts(time.monotonic()):
            on_news(start)
            _begin(action, by_name[start.device], start, ends)
        bugs += _wait(ends, schedule)
        for news in schedule.news():
            on_news(news)
    if bugs:
        raise bugs[0]


def _begin(action: Callable[[Device], None], device: Device, start: Start, ends: _Ends) -> None:
    def work() -> None:
        try:
            action(device)
        except BaseException as error:  # noqa: BLE001  (the calling thread raises it)
            ends.put((start, error))
        else:
            ends.put((start, None))

    # Not a pool: its threads are waited for when Python ends, also for one that hangs.
    threading.Thread(target=work, name=device.name, daemon=True).start()


def _wait(ends: _Ends, schedule: Schedule) -> list[BaseException]:
    """Wait until a try ends or something is due, and return what was no EdgepackError."""
    wakes = schedule.wakes()
    if schedule.over:
        return []
    try:
        start, error = ends.get(
            timeout=None if wakes is None else max(0.0, wakes - time.monotonic())
        )
    except queue.Empty:
        schedule.give_up_overdue(time.monotonic())
        return []
    schedule.ended(start, error, time.monotonic())
    return [] if error is None or isinstance(error, EdgepackError) else [error]
