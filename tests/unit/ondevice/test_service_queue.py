"""The queue of a service, in an event loop of its own, with a model that waits to be let go."""

from __future__ import annotations

import asyncio
import threading

import pytest
from edgepack.ondevice.service.edgepack_queue import CLOCK, Queue, RefusedError
from edgepack.ondevice.service.edgepack_settings import Limits

LONG_S = 60.0


class Model:
    """Runs batches; each but the first waits for nothing, the first until it is let go."""

    def __init__(self) -> None:
        self.batches: list[list] = []
        self.go = threading.Event()
        self.began = threading.Event()

    def run(self, works):
        self.batches.append(list(works))
        self.began.set()
        assert self.go.wait(LONG_S)
        if "bad" in works:
            raise ValueError("bad work")
        return [f"done {work}" for work in works]


def run_with(limits: Limits, scenario) -> Model:
    model = Model()

    async def main() -> None:
        queue = Queue(model.run, limits, lambda _: None, "model")
        try:
            await scenario(queue, model)
        finally:
            model.go.set()
            await asyncio.wait_for(queue.close(), LONG_S)

    asyncio.run(main())
    return model


async def begin(queue: Queue, model: Model) -> asyncio.Task:
    """Return a request that the model has begun and does not end yet."""
    first = asyncio.ensure_future(queue.submit("first", None, CLOCK() + LONG_S))
    await asyncio.get_running_loop().run_in_executor(None, model.began.wait, LONG_S)
    return first


def later(queue: Queue, work, kind=None, seconds=LONG_S) -> asyncio.Task:
    return asyncio.ensure_future(queue.submit(work, kind, CLOCK() + seconds))


def test_each_gets_its_own_result_and_jobs_of_a_kind_are_joined_in_order() -> None:
    async def scenario(queue: Queue, model: Model) -> None:
        first = await begin(queue, model)
        rest = [later(queue, n, kind) for n, kind in enumerate("aaaba")]
        await asyncio.sleep(0)
        assert len(queue) == 5
        model.go.set()
        assert await first == "done first"
        assert await asyncio.gather(*rest) == [f"done {n}" for n in range(5)]

    assert run_with(Limits(joined=2), scenario).batches == [["first"], [0, 1], [2], [3], [4]]


def test_nothing_is_joined_unless_asked_for() -> None:
    async def scenario(queue: Queue, model: Model) -> None:
        first = await begin(queue, model)
        rest = [later(queue, n, "a") for n in range(3)]
        model.go.set()
        await asyncio.gather(first, *rest)

    assert run_with(Limits(), scenario).batches == [["first"], [0], [1], [2]]


def test_the_first_of_a_batch_waits_for_others() -> None:
    async def scenario(queue: Queue, model: Model) -> None:
        model.go.set()
        one = later(queue, 1, "a")
        await asyncio.sleep(0.02)
        two = later(queue, 2, "a")
        await asyncio.gather(one, two)

    assert run_with(Limits(joined=2, delay_s=LONG_S), scenario).batches == [[1, 2]]


def test_a_batch_that_fills_the_queue_waits_for_no_others() -> None:
    async def scenario(queue: Queue, model: Model) -> None:
        model.go.set()
        asked = asyncio.gather(later(queue, 1, "a"), later(queue, 2, "a"))
        assert await asyncio.wait_for(asked, LONG_S / 2) == ["done 1", "done 2"]

    limits = Limits(waiting=2, joined=4, delay_s=LONG_S)
    assert run_with(limits, scenario).batches == [[1, 2]]


def test_another_kind_behind_it_lets_a_batch_begin() -> None:
    async def scenario(queue: Queue, model: Model) -> None:
        model.go.set()
        asked = [later(queue, n, kind) for n, kind in enumerate("aab")]
        assert await asyncio.wait_for(asked[1], LONG_S / 2) == "done 1"
        asked[2].cancel()

    assert run_with(Limits(joined=4, delay_s=LONG_S), scenario).batches == [[0, 1]]


def test_who_comes_to_a_full_queue_is_refused_at_once() -> None:
    async def scenario(queue: Queue, model: Model) -> None:
        first = await begin(queue, model)
        waiting = [later(queue, n) for n in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(RefusedError) as caught:
            await queue.submit("one more", None, CLOCK() + LONG_S)
        assert (caught.value.status, caught.value.reason) == (429, "full")
        model.go.set()
        await asyncio.gather(first, *waiting)

    assert run_with(Limits(waiting=2), scenario).batches == [["first"], [0], [1]]


def test_who_waits_beyond_the_deadline_is_not_run() -> None:
    async def scenario(queue: Queue, model: Model) -> None:
        first = await begin(queue, model)
        late = later(queue, "late", "a", seconds=0.0)
        patient = later(queue, "patient", "a")
        await asyncio.sleep(0.01)
        model.go.set()
        with pytest.raises(RefusedError, match="beyond its deadline") as caught:
            await late
        assert caught.value.status == 503
        assert await patient == "done patient"
        await first

    assert run_with(Limits(joined=4), scenario).batches == [["first"], ["patient"]]


def test_who_waits_beyond_the_deadline_is_told_while_the_model_still_runs() -> None:
    async def scenario(queue: Queue, model: Model) -> None:
        first = await begin(queue, model)
        late = later(queue, "late", seconds=0.01)
        with pytest.raises(RefusedError, match="beyond its deadline"):
            await asyncio.wait_for(late, LONG_S)
        assert len(queue) == 0
        assert not first.done()
        model.go.set()
        await first

    assert run_with(Limits(waiting=1), scenario).batches == [["first"]]


def test_a_joined_request_is_not_held_beyond_its_own_deadline() -> None:
    async def scenario(queue: Queue, model: Model) -> None:
        model.go.set()
        one, two = later(queue, 1, "a"), later(queue, 2, "a", seconds=0.05)
        assert await asyncio.wait_for(asyncio.gather(one, two), LONG_S / 2) == ["done 1", "done 2"]

    assert run_with(Limits(joined=3, delay_s=LONG_S), scenario).batches == [[1, 2]]


def test_a_client_that_is_gone_is_not_run() -> None:
    async def scenario(queue: Queue, model: Model) -> None:
        first = await begin(queue, model)
        gone, stays = later(queue, "gone"), later(queue, "stays")
        await asyncio.sleep(0)
        gone.cancel()
        await asyncio.sleep(0)
        assert len(queue) == 1
        model.go.set()
        assert await stays == "done stays"
        await first

    assert run_with(Limits(), scenario).batches == [["first"], ["stays"]]


def test_a_client_that_goes_while_it_runs_harms_no_other() -> None:
    async def scenario(queue: Queue, model: Model) -> None:
        first = await begin(queue, model)
        first.cancel()
        model.go.set()
        assert await later(queue, "next") == "done next"

    assert run_with(Limits(), scenario).batches == [["first"], ["next"]]


def test_what_the_model_raises_each_of_a_batch_raises_and_the_next_runs() -> None:
    async def scenario(queue: Queue, model: Model) -> None:
        first = await begin(queue, model)
        bad, beside, after = later(queue, "bad", "a"), later(queue, 2, "a"), later(queue, 3)
        model.go.set()
        for each in (bad, beside):
            with pytest.raises(ValueError, match="bad work"):
                await each
        assert await after == "done 3"
        await first

    run_with(Limits(joined=2), scenario)


def test_a_closed_queue_runs_what_waits_and_takes_nothing_more() -> None:
    async def scenario(queue: Queue, model: Model) -> None:
        first = await begin(queue, model)
        waiting = later(queue, "waiting")
        closing = asyncio.ensure_future(queue.close())
        await asyncio.sleep(0)
        with pytest.raises(RefusedError, match="stops") as caught:
            await queue.submit("too late", None, CLOCK() + LONG_S)
        assert (caught.value.status, caught.value.reason) == (503, "stopping")
        model.go.set()
        assert await asyncio.gather(first, waiting) == ["done first", "done waiting"]
        await closing

    run_with(Limits(), scenario)


def test_a_queue_that_closes_runs_the_batch_that_waits_for_others() -> None:
    async def scenario(queue: Queue, model: Model) -> None:
        model.go.set()
        waiting = later(queue, 1, "a")
        await asyncio.sleep(0)
        await asyncio.wait_for(queue.close(), LONG_S / 2)
        assert await waiting == "done 1"

    assert run_with(Limits(joined=2, delay_s=LONG_S), scenario).batches == [[1]]
