from __future__ import annotations

import asyncio
import subprocess
import sys
import threading

import pytest
from edgepack.devices.ssh.loop import Loop

FIRST = """
import time
from concurrent.futures import ThreadPoolExecutor
from edgepack.devices.ssh import loop as loops

class Slow(loops.Loop):
    def __init__(self, name):
        time.sleep(0.1)
        super().__init__(name)

loops.Loop = Slow
with ThreadPoolExecutor(8) as pool:
    print(len(set(pool.map(lambda _: loops.find_loop(), range(8)))))
"""


def test_loop_when_many_threads_are_the_first_to_ask_is_one():
    done = subprocess.run(
        [sys.executable, "-c", FIRST], capture_output=True, text=True, check=True, timeout=60
    )
    assert (done.stdout, done.stderr) == ("1\n", "")


def test_loop_when_it_is_stopped_cancels_what_runs_and_leaves_no_thread():
    ended, loop = threading.Event(), Loop("stopped")
    kept: list[asyncio.Future[None]] = []

    async def wait() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()

    async def begin() -> int:
        kept.append(asyncio.ensure_future(wait()))
        await asyncio.sleep(0)
        return await asyncio.to_thread(lambda: 7)

    assert loop.run(begin()) == 7
    loop.stop()
    assert ended.wait(5)
    mine = [thread for thread in threading.enumerate() if thread.name.startswith("stopped")]
    for thread in mine:
        thread.join(5)
    assert not any(thread.is_alive() for thread in mine)


def test_loop_when_a_coroutine_fails_raises_that_in_the_caller():
    loop = Loop("failing")

    async def fail() -> None:
        raise EOFError("here")

    with pytest.raises(EOFError, match="here"):
        loop.run(fail())
    loop.stop()
