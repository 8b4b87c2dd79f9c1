"""Estimates how long the rest of a task takes, from how fast its parts were done.

A part is expected to take as long as the finished parts of its kind. While no part of a kind is
finished, there is no estimate: it would be a guess.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

LEAST_S = 2.0
"""Seconds after which a rate within a part is used; a shorter time left is not shown."""


@dataclass
class Part:
    """A part that runs."""

    kind: str
    began: float
    done: int = 0
    """Units of ``total`` done within the part; 0 if the part does not report them."""
    total: int = 0
    is_whole: bool = True
    """Whether this measures the whole part, and not only its present step."""
    counted_from: tuple[float, int] | None = None
    """The time of its first report, and how far it was then."""

    def record(self, done: int, total: int, now: float, *, is_whole: bool = True) -> None:
        """Record how far the part is; another total begins another count."""
        self.is_whole = is_whole
        if self.counted_from is None or total != self.total or done < self.done:
            self.counted_from = (now, done)
        self.done, self.total = done, total

    def estimate_left_s(self, now: float) -> float | None:
        """Return the seconds that the rest takes at the rate so far; None without a rate."""
        if self.counted_from is None:
            return None
        since, first = self.counted_from
        took, did = now - since, self.done - first
        if took < LEAST_S or did <= 0:
            return None
        return took * (self.total - self.done) / did


@dataclass
class Pace:
    """The parts of a task by kind. Times are seconds of one monotonic clock."""

    began: float
    left: Counter[str]
    """How many parts of each kind are not done. Parts of other kinds take too little to count."""
    running: dict[str, Part] = field(default_factory=dict)
    """By part."""
    _took: dict[str, list[float]] = field(default_factory=dict)
    """By kind: how long the finished parts took, in seconds."""

    @classmethod
    def of(cls, kinds: Mapping[str, int], now: float) -> Pace:
        """Return the pace of a task that begins now, with the number of parts of each kind."""
        return cls(now, Counter(kinds))

    def begin(self, part: str, kind: str, now: float) -> None:
        """Record that a part begins."""
        self.running[part] = Part(kind, now)

    def end(self, part: str, kind: str, now: float) -> None:
        """Record that a part is done; a part that never began took no time."""
        begun = self.running.pop(part, None)
        if begun is not None:
            kind = begun.kind
            self._took.setdefault(kind, []).append(now - begun.began)
        if kind in self.left:
            self.left[kind] -= 1

    def estimate_left_s(self, now: float) -> float | None:
        """Return about how many seconds the rest takes at the same parallelism; None if unknown.

        It is also unknown while a part takes longer than the others of its kind did.
        """
        works = [self._estimate_running_s(part, now) for part in self.running.values()]
        waiting = Counter({kind: count for kind, count in self.left.items() if count > 0})
        waiting.subtract(part.kind for part in self.running.values())
        for kind, count in waiting.items():
            if count > 0:
                mean = self._find_mean(kind)
                works.append(None if mean is None else count * mean)
        known = [work for work in works if work is not None]
        if len(known) < len(works) or not known:
            return None
        spent = sum(map(sum, self._took.values()))
        spent += sum(now - part.began for part in self.running.values())
        at_a_time = max(1.0, spent / max(now - self.began, 1e-9))
        longest = max(known[: len(self.running)], default=0.0)
        found = max(longest, sum(known) / at_a_time)
        return found if found >= LEAST_S else None

    def _find_mean(self, kind: str) -> float | None:
        took = self._took.get(kind)
        return sum(took) / len(took) if took else None

    def _estimate_running_s(self, part: Part, now: float) -> float | None:
        """Return how long a running part still takes; 0 for one of a kind that does not count."""
        left = part.estimate_left_s(now) if part.is_whole else None
        if left is not None:
            return left
        if part.kind not in self.left:
            return 0.0
        mean = self._find_mean(part.kind)
        if mean is None or now - part.began > mean:
            return None
        return mean - (now - part.began)


def format_time_left(seconds: float | None, *, at_most: bool = False) -> str:
    """Return an estimate in words, rounded up, or nothing where there is none."""
    if seconds is None or seconds < LEAST_S:
        return ""
    if seconds <= 10:
        return "less than 10 s left"
    if seconds <= 90:
        amount = f"{math.ceil(seconds / 10) * 10} s"
    elif seconds <= 90 * 60:
        amount = f"{math.ceil(seconds / 60)} min"
    else:
        amount = f"{seconds / 3600:.1f} h"
    return f"{'at most' if at_most else 'about'} {amount} left"
