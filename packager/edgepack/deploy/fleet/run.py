"""Runs one action on many devices, each in a thread, in the order of a :class:`Schedule`."""

from __future__ import annotations

import queue
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Protocol

from edgepack.base.bugs import format_bug
from edgepack.base.progress import Progress, Silent
from edgepack.deploy.fleet.schedule import Retry, Schedule, Settled, Start
from edgepack.devices.inventory import Device
from edgepack.errors import BugError, EdgepackError

News = Start | Retry | Settled


class Watcher(Protocol):
    """Receives the events of a run over devices, to show them."""

    def tell(self, news: News) -> None:
        """Receive an event; called by the thread that runs over the devices."""

    def show(self, device: str, text: str) -> None:
        """Receive what was done on a device, in words; called from any thread."""

    def progress(self, device: str) -> Progress:
        """Return where the work on a device reports; called from any thread."""


class Unwatched:
    """Shows nothing."""

    def tell(self, news: News) -> None:
        """Ignore it."""

    def show(self, device: str, text: str) -> None:
        """Ignore it."""

    def progress(self, device: str) -> Progress:
        """Return a progress that reports nothing."""
        del device
        return Silent()


_Ends = queue.SimpleQueue[tuple[Start, EdgepackError | None]]


def run_on_devices(
    devices: Sequence[Device],
    action: Callable[[Device], None],
    schedule: Schedule,
    *,
    on_news: Callable[[News], None],
    stop_reason: Callable[[], str] = lambda: "",
) -> None:
    """Run an action on every device of a schedule, until the schedule is over.

    One device's error becomes news about it and does not affect the others. After a device's
    deadline it is given up: its thread is left alone, and ends with the process at the latest.

    Args:
        devices: All that the schedule names.
        action: Called in a thread for each try. What it raises is tried again if it is
            :attr:`~.errors.EdgepackError.transient`.
        schedule: Decides when each try starts.
        on_news: Called with each event, in the calling thread.
        stop_reason: Called before each start; once it returns a reason, nothing more starts.

    What an action raises that is no EdgepackError is a bug, and this device's failure.
    """
    by_name = {device.name: device for device in devices}
    ends: _Ends = queue.SimpleQueue()
    while not schedule.over:
        reason = stop_reason()
        if reason:
            schedule.stop(reason)
        for start in schedule.start_due(time.monotonic()):
            on_news(start)
            _begin_try(action, by_name[start.device], start, ends)
        _wait_for_end(ends, schedule)
        for news in schedule.take_news():
            on_news(news)


def _begin_try(action: Callable[[Device], None], device: Device, start: Start, ends: _Ends) -> None:
    def work() -> None:
        failure: EdgepackError | None = None
        try:
            action(device)
        except EdgepackError as error:
            failure = error
        except BaseException:  # noqa: BLE001  (the other devices go on)
            failure = BugError(format_bug(traceback.format_exc()), where=device.name)
        ends.put((start, failure))

    # Not a pool: its threads are waited for when Python ends, also for one that hangs.
    threading.Thread(target=work, name=device.name, daemon=True).start()


def _wait_for_end(ends: _Ends, schedule: Schedule) -> None:
    """Wait until a try ends or something is due."""
    wakes = schedule.find_next_wake()
    if schedule.over:
        return
    try:
        start, error = ends.get(
            timeout=None if wakes is None else max(0.0, wakes - time.monotonic())
        )
    except queue.Empty:
        schedule.give_up_overdue(time.monotonic())
        return
    schedule.record_end(start, error, time.monotonic())
