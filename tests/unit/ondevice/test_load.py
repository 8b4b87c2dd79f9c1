"""How queries arrive: against a clock that only moves when something runs or sleeps."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from edgepack.ondevice.harness import edgepack_load as load

MS = 1_000_000


class FakeTime:
    """A clock that inferences and sleeps move."""

    def __init__(self, service_ns: Callable[[int], int]) -> None:
        self.now_ns = 5_000
        self.fed: list[Any] = []
        self._service_ns = service_ns

    def clock(self) -> int:
        return self.now_ns

    def sleep(self, seconds: float) -> None:
        self.now_ns += round(seconds * 1e9)

    def run(self, names: list[str], feed: Any) -> None:
        assert names == ["y"]
        self.now_ns += self._service_ns(len(self.fed))
        self.fed.append(feed)

    def pool(self) -> load.Pool:
        infer = load.Inferences(self.run, ["y"], ["a", "b", "c"])
        return load.Pool(infer, 1, self.clock, self.sleep)


def constant(service_ns: int) -> Callable[[int], int]:
    return lambda _: service_ns


def test_single_stream_when_time_is_up_stops_after_the_query_that_crossed_it() -> None:
    fake = FakeTime(constant(4 * MS))
    infer = load.Inferences(fake.run, ["y"], ["a", "b", "c"])
    timed = infer.time_stream(0.010, 1, fake.clock)
    assert timed == load.Timed([4 * MS] * 3, 5_000, 5_000 + 12 * MS, 3)
    assert infer.time_stream(0.0, 2, fake.clock).inferences == 2
    assert fake.fed == ["a", "b", "c", "a", "b"]


def test_multi_stream_when_one_thread_answers_counts_until_the_last_sample() -> None:
    fake = FakeTime(lambda number: (1 + number % 2) * MS)
    timed = load.run_multi_stream(fake.pool(), 0.0, 3, samples_per_query=4)
    assert timed.latencies_ns == [6 * MS] * 3
    assert timed.inferences == 12
    assert timed.to_ns - timed.from_ns == 18 * MS


def test_server_when_queries_queue_counts_their_waiting() -> None:
    service = [7 * MS, 1 * MS, 2 * MS, 5 * MS, 1 * MS]
    arrivals = [2 * MS, 4 * MS, 5 * MS, 30 * MS, 30 * MS]
    fake = FakeTime(lambda number: service[number])
    timed = load.run_server(fake.pool(), arrivals)
    expected, free = [], 0
    for arrival, taken in zip(arrivals, service, strict=True):
        free = max(free, arrival) + taken
        expected.append(free - arrival)
    assert timed.latencies_ns == expected
    assert timed.from_ns == 5_000
    assert timed.to_ns == 5_000 + free
    assert timed.inferences == 5


def test_offline_when_all_samples_are_there_is_one_query() -> None:
    fake = FakeTime(constant(3 * MS))
    timed = load.run_offline(fake.pool(), 10)
    assert timed == load.Timed([30 * MS], 5_000, 5_000 + 30 * MS, 10)
    assert load.count_offline_samples(timed, duration_s=1.5, samples=10) in (550, 551)
    assert load.count_offline_samples(timed, duration_s=0.001, samples=10) == 10


def test_poisson_schedule_when_seeded_has_exponential_gaps_and_repeats() -> None:
    schedule = load.make_poisson_schedule(100.0, 50.0, 1, seed=4)
    assert schedule == load.make_poisson_schedule(100.0, 50.0, 1, seed=4)
    assert schedule != load.make_poisson_schedule(100.0, 50.0, 1, seed=5)
    assert schedule == sorted(schedule)
    assert schedule[-1] < 50e9
    gaps = [b - a for a, b in zip([0, *schedule], schedule, strict=False)]
    assert statistics.mean(gaps) == pytest.approx(10 * MS, rel=0.06)
    # An exponential distribution's deviation is its mean, and 1/e of it lies beyond that.
    assert statistics.stdev(gaps) == pytest.approx(10 * MS, rel=0.08)
    beyond = sum(gap > 10 * MS for gap in gaps) / len(gaps)
    assert beyond == pytest.approx(np.exp(-1), abs=0.03)


def test_poisson_schedule_when_the_duration_is_short_has_the_least_number() -> None:
    assert len(load.make_poisson_schedule(10.0, 0.0, 662, seed=0)) == 662


def test_pool_when_it_has_threads_runs_at_once_and_answers_every_sample_once() -> None:
    barrier = threading.Barrier(3, timeout=20)
    fed: list[str] = []

    def run(_: list[str], feed: str) -> None:
        barrier.wait()  # returns only when three run at once
        fed.append(feed)

    infer = load.Inferences(run, ["y"], [str(number) for number in range(9)])
    with load.Pool(infer, 3) as pool:
        answered = pool.answer([time.monotonic_ns()] * 9)
    assert sorted(fed) == [str(number) for number in range(9)]
    assert all(answered)


def joined_pool(fake: FakeTime, most: int, delay_ns: int = 0) -> load.JoinedPool:
    """Joins feeds to text, and gives each sample its letter back."""
    run = fake.run

    def spell(names: list[str], feed: str) -> list[str]:
        run(names, feed)
        return [feed.upper()]

    joined = load.Joined(most, delay_ns, "".join, lambda outputs, _: list(outputs[0]))
    infer = load.Inferences(spell, ["y"], ["a", "b", "c"])
    return load.JoinedPool(infer, 1, joined, fake.clock, fake.sleep)


def test_joined_offline_runs_full_batches_and_a_rest() -> None:
    fake = FakeTime(constant(3 * MS))
    pool = joined_pool(fake, 4)
    timed = load.run_offline(pool, 10)
    assert fake.fed == ["abca", "bcab", "ca"]
    assert pool.sizes == [4, 4, 2]
    assert timed == load.Timed([9 * MS], 5_000, 5_000 + 9 * MS, 10)
    assert pool.last == {0: "A", 1: "B", 2: "C"}
    assert pool.rehearse(1).inferences == 12
    assert (pool.sizes, pool.last) == ([], {})


@pytest.mark.parametrize(
    ("delay_ms", "fed", "answered_ms"),
    [
        # While the first runs, from 2 to 12, three more arrive; the last is alone.
        (0, ["a", "bca", "b"], [12, 22, 22, 22, 50]),
        # The first waits until 4 and takes the second along; 'c' and 'a' are there at 14; the last
        # is the end of the load, and waits for nobody.
        (2, ["ab", "ca", "b"], [14, 14, 24, 24, 50]),
        # Full before the delay ends: nothing waits any longer.
        (7, ["abca", "b"], [18, 18, 18, 18, 50]),
    ],
)
def test_joined_server_takes_what_waits_and_counts_from_arrivals(
    delay_ms: int, fed: list[str], answered_ms: list[int]
) -> None:
    arrivals = [2 * MS, 4 * MS, 7 * MS, 8 * MS, 40 * MS]
    fake = FakeTime(constant(10 * MS))
    pool = joined_pool(fake, 4, delay_ms * MS)
    timed = load.run_server(pool, arrivals)
    assert fake.fed == fed
    expected = [ms * MS - arrival for ms, arrival in zip(answered_ms, arrivals, strict=True)]
    assert timed.latencies_ns == expected
    assert timed.inferences == 5


def test_joined_server_waits_for_the_delay_though_nobody_comes() -> None:
    fake = FakeTime(constant(10 * MS))
    timed = load.run_server(joined_pool(fake, 4, 3 * MS), [1 * MS, 30 * MS])
    assert timed.latencies_ns == [13 * MS, 10 * MS]


def test_joined_pool_when_it_has_threads_answers_every_sample_once_and_its_own() -> None:
    barrier = threading.Barrier(2, timeout=20)

    def run(_: list[str], feed: list[int]) -> list[list[int]]:
        barrier.wait()
        return [[10 * number for number in feed]]

    infer = load.Inferences(run, ["y"], list(range(12)))
    joined = load.Joined(3, 0, list, lambda outputs, _: outputs[0])
    pool = load.JoinedPool(infer, 2, joined)
    with pool:
        answered = pool.answer([time.monotonic_ns()] * 12)
    assert all(answered)
    assert pool.sizes == [3, 3, 3, 3]
    assert pool.last == {number: 10 * number for number in range(12)}


def test_joined_pool_when_a_batch_fails_says_so_and_ends() -> None:
    def run(_: list[str], feed: list[int]) -> list[list[int]]:
        time.sleep(0.001)
        if 3 in feed:
            raise ValueError("the model broke")
        return [feed]

    infer = load.Inferences(run, ["y"], list(range(50)))
    joined = load.Joined(2, 0, list, lambda outputs, _: outputs[0])
    with load.JoinedPool(infer, 4, joined) as pool, pytest.raises(ValueError, match="broke"):
        pool.answer([0] * 50)


def counting(names: list[str], feed: dict[str, np.ndarray]) -> list[np.ndarray]:
    """``y`` is ``x`` + ``h``, and ``h_out`` is one more than ``h``."""
    assert names == ["y", "h_out"]
    return [feed["x"] + feed["h"], feed["h"] + 1]


def samples(*states: float) -> list[dict[str, np.ndarray]]:
    return [{"x": np.zeros(1), "h": np.array([state])} for state in states]


def test_streams_feed_each_run_what_the_one_before_put_out() -> None:
    met: list[float] = []

    def run(names: list[str], feed: dict[str, np.ndarray]) -> list[np.ndarray]:
        met.append(float(feed["h"][0]))
        return counting(names, feed)

    given = samples(7, 0, 0)
    streams = load.Streams(run, ["y", "h_out"], {"h_out": "h"})
    infer = load.Inferences(streams.run, ["y", "h_out"], given)
    assert streams.frames == 0
    infer.time_stream(0.0, 4)
    infer.time_stream(0.0, 2)
    assert met == [7, 8, 9, 10, 11, 12]
    assert streams.frames == 6
    assert [float(sample["h"][0]) for sample in given] == [7, 0, 0]


def test_streams_when_threads_run_at_once_are_one_for_each() -> None:
    barrier = threading.Barrier(3, timeout=20)
    met: dict[int, list[float]] = {}

    def run(names: list[str], feed: dict[str, np.ndarray]) -> list[np.ndarray]:
        barrier.wait()
        met.setdefault(threading.get_ident(), []).append(float(feed["h"][0]))
        return counting(names, feed)

    streams = load.Streams(run, ["y", "h_out"], {"h_out": "h"})
    infer = load.Inferences(streams.run, ["y", "h_out"], samples(0))
    with load.Pool(infer, 3) as pool:
        pool.answer([time.monotonic_ns()] * 12)
    assert list(met.values()) == [[0, 1, 2, 3]] * 3
    assert streams.frames == 4


def test_streams_tell_which_outputs_of_floats_end_in_nan_or_infinity() -> None:
    def run(_: list[str], feed: dict[str, np.ndarray]) -> list[np.ndarray]:
        return [np.array([1]), feed["h"] * 1e200, np.sqrt(-feed["h"])]

    streams = load.Streams(run, ["count", "h_out", "y"], {"h_out": "h"})
    assert streams.find_nonfinite() == set()
    given = {"h": np.array([0.0])}
    streams.run([], given)
    assert streams.find_nonfinite() == set()
    streams = load.Streams(run, ["count", "h_out", "y"], {"h_out": "h"})
    with np.errstate(all="ignore"):
        streams.run([], {"h": np.array([1e200])})
        assert streams.find_nonfinite() == {"h_out", "y"}


def test_pool_when_a_sample_fails_says_so_and_ends() -> None:
    def run(_: list[str], feed: int) -> None:
        time.sleep(0.001)
        if feed == 3:
            raise ValueError("the model broke")

    infer = load.Inferences(run, ["y"], list(range(50)))
    with load.Pool(infer, 4) as pool, pytest.raises(ValueError, match="the model broke"):
        pool.answer([0] * 50)


def test_reshaped_when_sizes_differ_repeats_and_cuts() -> None:
    feed = {"x": np.arange(6).reshape(2, 3), "n": np.array(7)}
    changed = load.reshape_feed(feed, {"x": [3, 2], "n": []})
    np.testing.assert_array_equal(changed["x"], [[0, 1], [3, 4], [0, 1]])
    assert changed["n"] == 7
    with pytest.raises(ValueError, match="no input 'x' with 3 dimensions"):
        load.reshape_feed(feed, {"x": [1, 2, 3]})


@pytest.mark.parametrize(
    ("medians", "steady"),
    [
        ([10.0, 10.0], False),
        ([20.0, 10.0, 10.3, 10.2], True),
        ([10.0, 10.0, 10.0, 10.4], False),
        ([10.2, 10.1, 10.0], False),
        ([10.3, 10.2, 10.1, 10.05, 10.02], False),
        ([10.3, 10.1, 10.05, 10.02, 10.03], False),
        ([10.3, 10.1, 10.05, 10.1, 10.05], True),
        ([9.0, 9.1, 9.2, 10.3, 10.1, 10.05, 10.1, 10.05, 10.1, 10.05], True),
        ([10.0, 10.0, 10.0, 10.0, 10.0], True),
        ([10.0001, 10.0002, 10.0003], True),
    ],
)
def test_steady_when_the_last_three_windows_agree_and_the_last_seven_show_no_trend(
    medians: list[float], *, steady: bool
) -> None:
    assert load.is_steady(list(enumerate(medians))) is steady


def test_steady_when_latencies_settle_slowly_waits_and_when_they_only_vary_does_not() -> None:
    """A tenth too slow at first, settling over ten windows; against the same noise alone."""

    def windows_taken(excess: float, seed: int) -> int:
        generator = np.random.default_rng(seed)
        windows: list[tuple[float, float]] = []
        while not load.is_steady(windows):
            second = len(windows)
            latency = 100 * (1 + excess * np.exp(-second / 10)) * generator.normal(1, 0.002)
            windows.append((second, float(latency)))
        return len(windows)

    settling = [windows_taken(0.1, seed) for seed in range(100)]
    varying = [windows_taken(0.0, seed) for seed in range(100)]
    assert statistics.median(settling) > 20  # when 10 % have become less than 1.4 %
    assert statistics.mean(varying) < 4


def test_theil_sen_when_one_window_is_far_off_follows_the_others() -> None:
    points = [(second, 10 + 0.25 * second) for second in range(9)]
    points[4] = (4, 99.0)
    assert load.estimate_theil_sen(points) == pytest.approx(0.25)
