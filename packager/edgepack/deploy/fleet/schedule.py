"""When each device of a fleet is tried: waves, retries, deadlines. Pure: time is handed in."""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise
from typing import Literal

from edgepack.base.schema import StrictModel
from edgepack.errors import EdgepackError, RemoteCommandError, UsageError

State = Literal["done", "failed", "pending"]


class RolloutSettings(StrictModel):
    """How many devices run at a time, in which waves, with which retries and limits."""

    parallel: int = 16
    """Devices at a time."""
    deadline_s: float = 3600.0
    """Seconds for one device, from its first try; after that it has failed, and nothing waits for
    it."""
    tries: int = 4
    """Tries for one device that cannot be reached or is in use; other failures are not tried
    again."""
    backoff_s: float = 1.0
    """The longest pause before the second try; each further one may be twice as long."""
    longest_backoff_s: float = 60.0
    canary: int = 0
    """Devices that go first. No other starts unless one of them is done."""
    waves: int = 1
    """Parts of about the same size that the others go in, one after the other."""
    abort_at: float = 100.0
    """Percent: when more of a wave has failed, no further device starts."""

    def require_sound(self) -> None:
        """Check that the settings are valid.

        Raises:
            UsageError: A number is out of its range.
        """
        limits = [
            ("--parallel", self.parallel, 1),
            ("--deadline", self.deadline_s, 1),
            ("--tries", self.tries, 1),
            ("--canary", self.canary, 0),
            ("--waves", self.waves, 1),
            ("--abort-at", self.abort_at, 0),
        ]
        for flag, value, least in limits:
            if value < least:
                raise UsageError(f"{flag} is {value:g}", hint=f"give at least {least}", where=flag)


@dataclass(frozen=True)
class Start:
    """One try that begins now."""

    device: str
    number: int
    """From 1."""


@dataclass(frozen=True)
class Retry:
    """A try that failed in a way that may pass; the next is ``wait_s`` away."""

    device: str
    tries: int
    error: EdgepackError
    wait_s: float


@dataclass(frozen=True)
class Settled:
    """The result for a device in this pass."""

    device: str
    state: State
    """The new state; pending if the device could not be reached, is in use, or was not started."""
    tries: int
    error: EdgepackError | None = None


class Schedule:
    """Decides what to try next, and records the results.

    The caller starts what :meth:`start_due` returns, passes each result to :meth:`record_end`, and
    reads the news with :meth:`take_news`. Times are seconds of one monotonic clock.

    Args:
        devices: Names, in the order in which they start.
        settings: How they are worked through.
        random: Returns a number from 0 to 1. Each pause is drawn from its whole range, so that
            devices that were lost together do not all retry at once.
    """

    def __init__(
        self, devices: Sequence[str], settings: RolloutSettings, random: Callable[[], float]
    ) -> None:
        self._settings = settings
        self._random = random
        self._waves = _cut_waves(devices, settings)
        self._wave = _Wave(0)
        self._waiting: deque[str] = deque()
        self._retries: list[tuple[float, str]] = []
        self._running: dict[str, Start] = {}
        self._deadlines: dict[str, float] = {}
        self._lost: dict[str, tuple[int, EdgepackError]] = {}
        self._news: list[Retry | Settled] = []
        self._stopped = ""

    @property
    def stopped(self) -> str:
        """Why nothing more is started; empty while tries still start."""
        return self._stopped

    @property
    def over(self) -> bool:
        """Whether every device is settled."""
        return not (self._running or self._retries or self._waiting or self._waves)

    def start_due(self, now: float) -> list[Start]:
        """Return the tries to start now, and count them as started."""
        begun = []
        while len(self._running) < self._settings.parallel:
            device = self._take_next(now)
            if device is None:
                break
            tries, _ = self._lost.get(device, (0, None))
            self._deadlines.setdefault(device, now + self._settings.deadline_s)
            self._running[device] = Start(device, tries + 1)
            begun.append(self._running[device])
        return begun

    def record_end(self, start: Start, error: EdgepackError | None, now: float) -> None:
        """Record how a try ended; a try that was given up before no longer counts."""
        if self._running.get(start.device) != start:
            return
        del self._running[start.device]
        if isinstance(error, EdgepackError) and error.transient:
            self._put_off(start, error, now)
        else:
            state: State = "done" if error is None else "failed"
            self._settle(Settled(start.device, state, start.number, error))

    def give_up_overdue(self, now: float) -> None:
        """Fail the devices whose deadline has passed; their places are free again."""
        late = [start for name, start in self._running.items() if self._deadlines[name] <= now]
        for start in late:
            error = RemoteCommandError(
                f"it took longer than {self._settings.deadline_s:g} s, and may still run there",
                hint="look at the device, then push again; --deadline gives it more time",
                where=start.device,
            )
            self.record_end(start, error, now)

    def stop(self, reason: str) -> None:
        """Start nothing more; running tries continue to their end, and the rest stays pending."""
        if self._stopped:
            return
        self._stopped = reason
        self._leave_rest()

    def _leave_rest(self) -> None:
        left = [*(name for _, name in self._retries), *self._waiting, *chain(*self._waves)]
        self._retries.clear()
        self._waiting.clear()
        self._waves.clear()
        for name in left:
            self._leave(name)

    def take_news(self) -> list[Retry | Settled]:
        """Return what was decided since the last call."""
        news, self._news = self._news, []
        return news

    def find_next_wake(self) -> float | None:
        """Return the next time at which something is due even if no try ends; None if never."""
        times = [self._deadlines[name] for name in self._running]
        if self._retries and len(self._running) < self._settings.parallel:
            times.append(self._retries[0][0])
        return min(times, default=None)

    def _take_next(self, now: float) -> str | None:
        if self._retries and self._retries[0][0] <= now:
            return heapq.heappop(self._retries)[1]
        if self._waves and not (self._waiting or self._running or self._retries):
            self._begin_wave()
        return self._waiting.popleft() if self._waiting else None

    def _begin_wave(self) -> None:
        canary = self._wave.number == 1 and self._settings.canary
        if canary and not self._wave.states["done"]:
            if self._wave.states["failed"]:
                self.stop("no canary was done")
            else:  # it may be there another time
                self._leave_rest()
            return
        number = self._wave.number + 1
        names = self._waves.popleft()
        self._wave = _Wave(number, len(names))
        self._waiting.extend(names)

    def _put_off(self, start: Start, error: EdgepackError, now: float) -> None:
        settings, name = self._settings, start.device
        self._lost[name] = (start.number, error)
        longest = min(settings.longest_backoff_s, settings.backoff_s * 2.0 ** (start.number - 1))
        wait_s = self._random() * longest
        too_late = now + wait_s >= self._deadlines[name]
        if self._stopped or too_late or start.number >= settings.tries:
            self._leave(name)
        else:
            heapq.heappush(self._retries, (now + wait_s, name))
            self._news.append(Retry(name, start.number, error, wait_s))

    def _leave(self, name: str) -> None:
        tries, error = self._lost.get(name, (0, None))
        self._settle(Settled(name, "pending", tries, error))

    def _settle(self, settled: Settled) -> None:
        self._news.append(settled)
        wave = self._wave
        wave.states[settled.state] += 1
        failed = wave.states["failed"]
        if settled.state == "failed" and 100 * failed > self._settings.abort_at * wave.size:
            self.stop(
                f"{failed} of the {wave.size} devices of wave {wave.number} failed, more than"
                f" {self._settings.abort_at:g} %"
            )


@dataclass
class _Wave:
    number: int
    size: int = 0
    states: Counter[str] = field(default_factory=Counter)


def _cut_waves(devices: Sequence[str], settings: RolloutSettings) -> deque[Sequence[str]]:
    """Cut the devices into the canary and waves whose sizes differ by one at most."""
    canary, rest = devices[: settings.canary], devices[settings.canary :]
    waves = min(settings.waves, len(rest))
    ends = [len(rest) * number // waves for number in range(waves + 1)] if waves else [0]
    parts = [canary, *(rest[first:last] for first, last in pairwise(ends))]
    return deque(part for part in parts if part)
