from __future__ import annotations

import random

import pytest
from edgepack.deploy.fleet.schedule import RolloutSettings, Schedule, Start
from edgepack.errors import (
    BusyError,
    DeviceError,
    RemoteCommandError,
    UnreachableError,
    UsageError,
)

from tests.support.doubles.fleet_simulation import Script, Simulated, simulate


def names(count: int) -> list[str]:
    return [f"d{number:03}" for number in range(count)]


def run(count: int, script: Script, draw: float = 1.0, **settings: object) -> Simulated:
    schedule = Schedule(names(count), RolloutSettings.model_validate(settings), lambda: draw)
    return simulate(schedule, script)


def unreachable(device: str = "") -> UnreachableError:
    return UnreachableError("refuses connections", hint="h", where=device)


def denied(device: str = "") -> DeviceError:
    return DeviceError("refuses the login", hint="h", where=device)


def failing(*devices: str) -> Script:
    return lambda start: (1.0, denied() if start.device in devices else None)


def test_devices_when_more_than_the_bound_run_no_more_at_once():
    found = run(500, lambda _: (1.0, None), parallel=16)
    assert found.most_at_once == 16
    assert set(found.states.values()) == {"done"}
    assert found.seconds == pytest.approx(-(-500 // 16))


def test_failure_when_permanent_is_tried_once_and_the_others_are_done():
    found = run(20, failing("d003"))
    assert [start.number for _, start in found.starts if start.device == "d003"] == [1]
    assert found.states == {n: "failed" if n == "d003" else "done" for n in names(20)}
    assert isinstance(found.settled["d003"].error, DeviceError)


def test_device_when_it_is_never_reached_is_pending_after_its_tries():
    found = run(1, lambda _: (0.0, unreachable()), tries=4, backoff_s=1, longest_backoff_s=3)
    assert [retry.wait_s for _, retry in found.retries] == [1, 2, 3]
    assert [time for time, _ in found.starts] == [0, 1, 3, 6]
    assert found.settled["d000"].state == "pending"
    assert found.settled["d000"].tries == 4


def test_device_when_it_answers_the_third_time_is_done():
    found = run(1, lambda start: (0.0, unreachable() if start.number < 3 else None))
    assert found.settled["d000"].state == "done"
    assert found.settled["d000"].tries == 3


def test_pauses_when_devices_were_lost_together_are_spread_over_all_of_the_range():
    generator = random.Random(5)
    schedule = Schedule(names(200), RolloutSettings(parallel=200, tries=2), generator.random)
    found = simulate(schedule, lambda start: (0.0, unreachable() if start.number == 1 else None))
    waits = [retry.wait_s for _, retry in found.retries]
    assert len(waits) == 200
    assert min(waits) < 0.1
    assert max(waits) > 0.9
    assert sum(waits) / 200 == pytest.approx(0.5, abs=0.1)


def test_device_when_it_waits_for_its_next_try_holds_no_place():
    def script(start: Start) -> tuple[float, BaseException | None]:
        return 0.5, unreachable() if start.device == "d000" else None

    found = run(3, script, parallel=1, tries=2, backoff_s=100, longest_backoff_s=100)
    assert [start.device for _, start in found.starts] == ["d000", "d001", "d002", "d000"]


def test_device_when_it_hangs_is_failed_at_its_deadline_and_its_place_is_free():
    def script(start: Start) -> tuple[float, BaseException | None]:
        return (1e6 if start.device == "d000" else 1.0), None

    found = run(3, script, parallel=1, deadline_s=60)
    assert found.states == {"d000": "failed", "d001": "done", "d002": "done"}
    assert isinstance(found.settled["d000"].error, RemoteCommandError)
    assert "longer than 60 s" in str(found.settled["d000"].error)
    assert [time for time, _ in found.starts] == [0, 60, 61]


def test_try_when_it_ends_after_it_was_given_up_changes_nothing():
    schedule = Schedule(["a"], RolloutSettings(deadline_s=10), lambda: 1.0)
    (start,) = schedule.start_due(0.0)
    schedule.give_up_overdue(10.0)
    assert [news.device for news in schedule.take_news()] == ["a"]
    schedule.record_end(start, None, 11.0)
    assert schedule.take_news() == []
    assert schedule.over


def test_retry_when_it_would_come_after_the_deadline_is_not_made():
    found = run(1, lambda _: (9.5, unreachable()), deadline_s=10, tries=5)
    assert found.settled["d000"].state == "pending"
    assert found.settled["d000"].tries == 1


def test_waves_when_there_is_a_canary_start_one_after_the_other_in_even_parts():
    found = run(11, lambda _: (1.0, None), canary=1, waves=3)
    times = [time for time, _ in found.starts]
    assert [times.count(second) for second in (0, 1, 2, 3)] == [1, 3, 3, 4]


def test_waves_when_there_are_more_than_devices_have_one_device_each():
    found = run(3, lambda _: (1.0, None), waves=9)
    assert [time for time, _ in found.starts] == [0, 1, 2]


def test_canary_when_it_fails_keeps_the_rest_from_starting():
    found = run(10, failing("d000"), canary=2, abort_at=0)
    assert found.states["d001"] == "done"
    assert found.states["d000"] == "failed"
    assert [found.states[name] for name in names(10)[2:]] == ["pending"] * 8
    assert len(found.starts) == 2


def test_canary_when_all_of_it_failed_stops_the_rest_whatever_share_may_fail():
    schedule = Schedule(names(5), RolloutSettings(canary=1), lambda: 1.0)
    found = simulate(schedule, failing("d000"))
    assert list(found.states.values()).count("pending") == 4
    assert schedule.stopped == "no canary was done"


def test_canary_when_it_is_off_leaves_the_rest_for_another_time():
    schedule = Schedule(names(5), RolloutSettings(canary=1, tries=2), lambda: 1.0)
    found = simulate(
        schedule, lambda start: (1.0, unreachable() if start.device == "d000" else None)
    )
    assert set(found.states.values()) == {"pending"}
    assert [found.settled[name].tries for name in names(5)] == [2, 0, 0, 0, 0]
    assert schedule.stopped == ""


def test_abort_when_too_many_failed_lets_what_runs_end():
    def script(start: Start) -> tuple[float, BaseException | None]:
        return (1.0, denied()) if start.device < "d003" else (5.0, None)

    schedule = Schedule(names(10), RolloutSettings(parallel=4, abort_at=20), lambda: 1.0)
    found = simulate(schedule, script)
    assert "3 of the 10 devices of wave 1 failed, more than 20 %" in schedule.stopped
    assert [start.device for _, start in found.starts] == names(6)
    assert [found.states[name] for name in names(10)] == [
        *["failed"] * 3, *["done"] * 3, *["pending"] * 4,
    ]  # fmt: skip


def test_abort_when_no_more_than_the_share_failed_does_not_happen():
    found = run(10, failing("d000", "d001"), abort_at=20)
    assert list(found.states.values()).count("done") == 8


def test_device_when_it_is_lost_after_everything_was_stopped_is_not_tried_again():
    schedule = Schedule(["a", "b"], RolloutSettings(parallel=1), lambda: 1.0)
    (start,) = schedule.start_due(0.0)
    schedule.stop("by hand")
    schedule.record_end(start, unreachable(), 1.0)
    assert {news.device: news.tries for news in schedule.take_news()} == {"a": 1, "b": 0}
    assert schedule.over


def test_schedule_when_there_are_no_devices_is_over():
    assert Schedule([], RolloutSettings(canary=1), lambda: 1.0).over


@pytest.mark.parametrize("field", ["parallel", "tries", "waves", "deadline_s"])
def test_setting_when_it_is_out_of_range_is_an_error(field):
    with pytest.raises(UsageError, match="is 0"):
        RolloutSettings.model_validate({field: 0}).require_sound()


def test_device_when_others_use_it_is_tried_again():
    busy = BusyError("it is leased", hint="h")
    found = run(1, lambda start: (0.0, busy if start.number == 1 else None))
    assert found.settled["d000"].state == "done"
    assert [retry.error for _, retry in found.retries] == [busy]
