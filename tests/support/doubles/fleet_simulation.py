"""A fleet in simulated time: what a schedule starts ends as a script says, and nothing waits."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field

from edgepack.deploy.fleet.schedule import Retry, Schedule, Settled, Start

Script = Callable[[Start], tuple[float, BaseException | None]]
"""How many seconds a try takes, and what it raises."""


@dataclass
class Simulated:
    """What happened, in order, with its time in seconds."""

    starts: list[tuple[float, Start]] = field(default_factory=list)
    retries: list[tuple[float, Retry]] = field(default_factory=list)
    settled: dict[str, Settled] = field(default_factory=dict)
    most_at_once: int = 0
    seconds: float = 0.0

    @property
    def states(self) -> dict[str, str]:
        """The state of each device."""
        return {name: settled.state for name, settled in self.settled.items()}


def simulate(schedule: Schedule, script: Script) -> Simulated:
    """Drive a schedule to its end."""
    found = Simulated()
    ends: list[tuple[float, str, Start, BaseException | None]] = []
    now = 0.0
    while not schedule.over:
        for start in schedule.start_due(now):
            found.starts.append((now, start))
            took, error = script(start)
            heapq.heappush(ends, (now + took, start.device, start, error))
        found.most_at_once = max(found.most_at_once, len(ends))
        wakes = schedule.find_next_wake()
        if wakes is not None and (not ends or wakes < ends[0][0]):
            now = wakes
            schedule.give_up_overdue(now)
        elif ends:
            now, _, start, error = heapq.heappop(ends)
            schedule.record_end(start, error, now)
        for news in schedule.take_news():
            if isinstance(news, Retry):
                found.retries.append((now, news))
            else:
                assert news.device not in found.settled
                found.settled[news.device] = news
    found.seconds = now
    return found
