"""Sends queries to a model, times their answers, and checks when these times are steady.

The scenarios and their names are those of MLPerf's LoadGen. A query is one or more samples, a
sample is one inference.

- ``single-stream``: one sample a query; the next is issued when the one before is answered.
- ``multi-stream``: the same with several samples a query, issued together; the query's latency is
  that of the last of them.
- ``server``: queries of one sample arrive at random, whether or not earlier ones are answered; the
  times between them are exponential. Latency counts from the moment of arrival, waiting included.
- ``offline``: one query with all samples.

In the last two, samples that wait may be joined to batches, as inference servers do: Triton's
dynamic batching (``max_batch_size``, ``max_queue_delay_microseconds``).

Source: ``TestScenario`` in loadgen/test_settings.h of https://github.com/mlcommons/inference.

Needs Python 3.8 and numpy; nothing of a device: callers pass the function to run, the clock and the
sleep. All times are of one monotonic clock, which on Linux and macOS is also ``perf_counter``'s.
"""

from __future__ import annotations

import gc
import itertools
import math
import random
import threading
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from statistics import median
from typing import (
    Any,
    Callable,
    Deque,
    Dict,
    Iterator,
    List,
    Mapping,
    NamedTuple,
    Sequence,
    Set,
    Tuple,
)

import numpy as np

MORE_SAMPLES = 1.1
"""Offline: how many times the samples that should fill the duration LoadGen generates."""
STEADY_WINDOWS = 3
STEADY_SPREAD = 0.03
"""The medians of the last windows of the warm-up agree within this."""
TREND_WINDOWS = 7
TREND_DEVIATIONS = 1.5
TREND_PER_MINUTE = 0.01
"""A trend of less is none."""
NS = 1_000_000_000

Clock = Callable[[], int]
Sleep = Callable[[float], None]


class Timed(NamedTuple):
    """The times of a scenario, by a monotonic clock in nanoseconds."""

    latencies_ns: List[int]
    """Of each query, in the order in which they were issued."""
    from_ns: int
    to_ns: int
    inferences: int


class Inferences:
    """Inferences over prepared inputs, in turn.

    Args:
        run: The session's ``run``, or what stands for it.
        names: Of the outputs.
        feeds: The inputs by name, of each sample; at least one.
    """

    def __init__(
        self, run: Callable[[List[str], Any], Any], names: List[str], feeds: Sequence[Any]
    ) -> None:
        self.run = run
        self.names = names
        self.feeds = feeds
        self._next = 0

    def time_stream(
        self, duration_s: float, iterations: int, clock: Clock = time.monotonic_ns
    ) -> Timed:
        """Answer a single stream for a duration, and at least so many queries.

        Only the call is between the two clock readings, and the garbage collector is off, so this
        is a bare loop over ``run``.
        """
        run, names, feeds, number = self.run, self.names, self.feeds, self._next
        latencies_ns: List[int] = []
        with no_garbage_collection():
            started = clock()
            end = started + int(duration_s * NS)
            after = started
            while after < end or len(latencies_ns) < iterations:
                feed = feeds[number % len(feeds)]
                number += 1
                before = clock()
                run(names, feed)
                after = clock()
                latencies_ns.append(after - before)
        self._next = number
        return Timed(latencies_ns, started, after, len(latencies_ns))


class Streams:
    """Runs of a model that is fed its own state: each thread's are the frames of one stream.

    A stream begins with the state in its first sample. Arrays are passed on, not copied.

    Args:
        run: The session's ``run``, or what stands for it.
        names: Of the outputs.
        state: Outputs, each with the input that it feeds in the next run.
    """

    def __init__(
        self,
        run: Callable[[List[str], Any], Sequence[np.ndarray]],
        names: List[str],
        state: Mapping[str, str],
    ) -> None:
        self._run = run
        self._names = names
        self._fed = [(name, names.index(output)) for output, name in state.items()]
        self._reached: Dict[int, Tuple[int, Sequence[np.ndarray]]] = {}

    def run(self, names: List[str], feed: Mapping[str, np.ndarray]) -> Sequence[np.ndarray]:
        """Return the outputs for a sample, with the state that the run before put out."""
        thread = threading.get_ident()
        frames, outputs = self._reached.get(thread, (0, ()))
        if frames:
            feed = {**feed, **{name: outputs[place] for name, place in self._fed}}
        outputs = self._run(names, feed)
        self._reached[thread] = frames + 1, outputs
        return outputs

    @property
    def frames(self) -> int:
        """Of the longest stream."""
        return max((frames for frames, _ in self._reached.values()), default=0)

    def find_nonfinite(self) -> Set[str]:
        """Return the outputs of floats that end with NaN or infinity in some stream."""
        found = set()
        for _, outputs in self._reached.values():
            pairs = zip(self._names, outputs)  # noqa: B905 (strict is unknown to Python 3.8)
            found |= {name for name, array in pairs if not is_finite(array)}
        return found


def find_nonfinite_goldens(model: Any) -> Set[str]:
    """Return the outputs that have NaN or infinity in a golden sample."""
    goldens = [
        model.bundle.read_golden_outputs(index, model.variant)
        for index in range(model.bundle.goldens)
    ]
    return {name for golden in goldens for name in golden if not is_finite(golden[name])}


def is_finite(array: np.ndarray) -> bool:
    """Return whether there is no NaN and no infinity."""
    return array.dtype.kind != "f" or bool(np.isfinite(array).all())


class Pool:
    """Threads that answer samples in the order of their arrival.

    Each takes the next sample, waits until it arrives, and runs it: a queue with so many servers.
    One thread is the caller's own, so that a pool of one starts none.
    """

    def __init__(
        self,
        infer: Inferences,
        threads: int,
        clock: Clock = time.monotonic_ns,
        sleep: Sleep = time.sleep,
    ) -> None:
        self.infer = infer
        self.threads = threads
        self.clock = clock
        self._sleep = sleep
        self._executor = ThreadPoolExecutor(max(1, threads - 1))

    def __enter__(self) -> Pool:  # noqa: PYI034 (Python 3.8 has no Self)
        return self

    def __exit__(self, *_: object) -> None:
        self._executor.shutdown()

    def answer(self, arrivals_ns: Sequence[int]) -> List[int]:
        """Run a sample for each arrival, in order, and return when each was answered.

        Args:
            arrivals_ns: By the clock; ascending. A sample whose arrival is past runs as soon as
                possible.
        """
        waiting: Deque[Tuple[int, int]] = deque(enumerate(arrivals_ns))
        answered = [0] * len(waiting)
        others = [
            self._executor.submit(self._answer_waiting, waiting, answered)
            for _ in range(min(self.threads, len(waiting)) - 1)
        ]
        try:
            self._answer_waiting(waiting, answered)
        finally:
            waiting.clear()
            for other in others:
                other.result()
        return answered

    def rehearse(self, samples: int) -> Timed:
        """Answer some samples at once, so that each thread has run."""
        return run_offline(self, samples)

    def _answer_waiting(self, waiting: Deque[Tuple[int, int]], answered: List[int]) -> None:
        run, names, feeds, clock = self.infer.run, self.infer.names, self.infer.feeds, self.clock
        while True:
            try:
                number, arrival = waiting.popleft()  # safe between threads, as documented
            except IndexError:
                return
            self._sleep_until(arrival)
            run(names, feeds[number % len(feeds)])
            answered[number] = clock()

    def _sleep_until(self, moment: int) -> None:
        while True:
            early_ns = moment - self.clock()
            if early_ns <= 0:
                return
            self._sleep(early_ns / NS)


class Joined(NamedTuple):
    """How samples are joined to batches."""

    most: int
    """In a batch."""
    delay_ns: int
    """How long after its arrival a sample waits for others, if the batch is not full."""
    join: Callable[[List[Any]], Any]
    """Makes the inputs of a batch of those of samples."""
    split: Callable[[Sequence[Any], int], List[Any]]
    """Makes the outputs of each sample of those of a batch."""


class JoinedPool(Pool):
    """Threads that join samples that wait to a batch, in the order of their arrival, and run it.

    One thread at a time forms a batch: it takes the next sample when it has arrived, and what else
    has until then or does within the delay. Joining and splitting are part of the time.

    Attributes:
        sizes: The samples of each batch that was run.
        last: By the number of a feed: the outputs that the last sample with this feed was given.
    """

    def __init__(
        self,
        infer: Inferences,
        threads: int,
        joined: Joined,
        clock: Clock = time.monotonic_ns,
        sleep: Sleep = time.sleep,
    ) -> None:
        super().__init__(infer, threads, clock, sleep)
        self.joined = joined
        self.sizes: List[int] = []
        self.last: Dict[int, Any] = {}
        self._forming = threading.Lock()

    def rehearse(self, samples: int) -> Timed:
        """Answer some samples at once, three full batches for each thread at least."""
        timed = super().rehearse(max(samples, 3 * self.joined.most * self.threads))
        self.sizes.clear()
        self.last.clear()
        return timed

    def _answer_waiting(self, waiting: Deque[Tuple[int, int]], answered: List[int]) -> None:
        run, names, feeds = self.infer.run, self.infer.names, self.infer.feeds
        while True:
            with self._forming:
                numbers = self._take(waiting)
            if not numbers:
                return
            places = [number % len(feeds) for number in numbers]
            outputs = run(names, self.joined.join([feeds[place] for place in places]))
            parts = self.joined.split(outputs, len(numbers))
            after = self.clock()
            for number, place, part in zip(numbers, places, parts):  # noqa: B905
                answered[number] = after
                self.last[place] = part
            self.sizes.append(len(numbers))

    def _take(self, waiting: Deque[Tuple[int, int]]) -> List[int]:
        """Return the numbers of the samples of the next batch; none if all were taken.

        After the last sample nothing is waited for: as LoadGen's ``FlushQueries`` tells.
        """
        numbers: List[int] = []
        until = 0
        while len(numbers) < self.joined.most:
            try:
                number, arrival = waiting[0]
            except IndexError:  # also where another thread failed
                break
            until = until if numbers else arrival + self.joined.delay_ns
            if numbers and arrival > max(until, self.clock()):
                self._sleep_until(until)
                break
            self._sleep_until(arrival)
            numbers.append(number)
            try:
                waiting.popleft()
            except IndexError:
                return []
        return numbers


def run_multi_stream(pool: Pool, duration_s: float, queries: int, samples_per_query: int) -> Timed:
    """Answer queries of several samples for a duration, and at least so many queries."""
    latencies_ns: List[int] = []
    with no_garbage_collection():
        started = after = pool.clock()
        end = started + int(duration_s * NS)
        while after < end or len(latencies_ns) < queries:
            before = pool.clock()
            after = max(pool.answer([before] * samples_per_query))
            latencies_ns.append(after - before)
    return Timed(latencies_ns, started, after, len(latencies_ns) * samples_per_query)


def run_server(pool: Pool, schedule_ns: Sequence[int]) -> Timed:
    """Answer queries that arrive at moments of a schedule, which counts from now."""
    with no_garbage_collection():
        started = pool.clock()
        arrivals_ns = [started + moment for moment in schedule_ns]
        answered_ns = pool.answer(arrivals_ns)
    pairs = zip(answered_ns, arrivals_ns)  # noqa: B905 (strict is unknown to Python 3.8)
    latencies_ns = [answered - arrived for answered, arrived in pairs]
    return Timed(latencies_ns, started, max(answered_ns), len(latencies_ns))


def run_offline(pool: Pool, samples: int) -> Timed:
    """Answer one query with all samples."""
    with no_garbage_collection():
        started = pool.clock()
        after = max(pool.answer([started] * samples))
    return Timed([after - started], started, after, samples)


def make_poisson_schedule(
    queries_per_s: float, duration_s: float, queries: int, seed: int
) -> List[int]:
    """Return when queries arrive, in nanoseconds from the beginning.

    There are as many as arrive in the duration, and at least ``queries``. The same seed gives the
    same schedule.
    """
    generator = random.Random(seed)  # noqa: S311 (arrivals, no secret)
    end = int(duration_s * NS)
    schedule_ns: List[int] = []
    moment = generator.expovariate(queries_per_s) * NS
    while moment < end or len(schedule_ns) < queries:
        schedule_ns.append(int(moment))
        moment += generator.expovariate(queries_per_s) * NS
    return schedule_ns


def count_offline_samples(rehearsed: Timed, duration_s: float, samples: int) -> int:
    """Return how many samples should fill a duration and a little more, and at least ``samples``.

    Args:
        rehearsed: Some samples in the same pool.
        duration_s: To be filled.
        samples: The least.
    """
    sample_ns = (rehearsed.to_ns - rehearsed.from_ns) / rehearsed.inferences
    return max(samples, math.ceil(MORE_SAMPLES * duration_s * NS / max(1.0, sample_ns)))


def is_steady(windows: Sequence[Tuple[float, float]]) -> bool:
    """Return whether the last windows agree and show no trend.

    The medians of the last three are within 3 %, and those of the last seven, or of as many as
    there are, have no trend of 1 % a minute or more.

    Args:
        windows: When each began, in seconds, and its median latency, in any unit.
    """
    last = [latency for _, latency in windows[-STEADY_WINDOWS:]]
    if len(last) < STEADY_WINDOWS or max(last) > min(last) * (1 + STEADY_SPREAD):
        return False
    recent = windows[-TREND_WINDOWS:]
    per_minute = 60 * estimate_theil_sen(recent) / max(1.0, median(last))
    return abs(per_minute) < TREND_PER_MINUTE or not has_trend(recent)


def has_trend(points: Sequence[Tuple[float, float]]) -> bool:
    """Return whether values rise or fall more than by chance, by Mann and Kendall's test.

    Three points in a random order look like a trend once in three times, more points about once in
    ten: then the warm-up takes one window longer.
    """
    count = len(points)
    pairs = itertools.combinations([value for _, value in points], 2)
    rising = sum((after > before) - (after < before) for before, after in pairs)
    deviation = math.sqrt(count * (count - 1) * (2 * count + 5) / 18)
    return abs(rising) > TREND_DEVIATIONS * deviation


def estimate_theil_sen(points: Sequence[Tuple[float, float]]) -> float:
    """Return the median slope between all pairs of points, whose first numbers differ."""
    pairs = itertools.combinations(points, 2)
    return median((after[1] - before[1]) / (after[0] - before[0]) for before, after in pairs)


def reshape_feed(
    feed: Mapping[str, np.ndarray], shapes: Mapping[str, Sequence[int]]
) -> Dict[str, np.ndarray]:
    """Return inputs of other shapes: cut where they are too long, repeated where too short.

    Args:
        feed: The inputs by name.
        shapes: By name, of those that change.

    Raises:
        ValueError: There is no such input, or it has another number of dimensions.
    """
    changed = dict(feed)
    for name, shape in shapes.items():
        array = feed.get(name)
        if array is None or array.ndim != len(shape) or not array.size:
            raise ValueError(f"there is no input {name!r} with {len(shape)} dimensions to repeat")
        for axis, size in enumerate(shape):
            array = np.take(array, np.arange(size) % array.shape[axis], axis=axis)
        changed[name] = array
    return changed


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Collect now, and not before the end of the block."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
