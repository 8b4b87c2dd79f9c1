"""Steps of builds that run at once share this machine."""

from __future__ import annotations

import threading

import pytest
from edgepack.builder.room import Room


@pytest.fixture
def entering():
    """What runs a thread that takes a place, and tells when it has it."""
    threads = []

    def start(room, needed, stopping):
        inside = threading.Event()

        def enter():
            with room.take(needed, stopping):
                inside.set()

        threads.append(threading.Thread(target=enter))
        threads[-1].start()
        return inside

    yield start
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()


@pytest.mark.parametrize("room", [Room(1, 100), Room(9, 15)])
def test_step_when_there_is_no_room_waits_until_there_is(room, entering):
    with room.take(10, threading.Event()):
        inside = entering(room, 10, threading.Event())
        assert not inside.wait(0.2)
    assert inside.wait(60)


def test_step_when_there_is_room_enters_beside_others(entering):
    room = Room(2, 20)
    with room.take(10, threading.Event()):
        assert entering(room, 10, threading.Event()).wait(60)


def test_step_when_it_is_larger_than_the_machine_enters_alone():
    room = Room(2, 20)
    with room.take(100, threading.Event()):
        assert room.used_bytes == 100
    assert (room.inside, room.used_bytes) == (0, 0)


def test_step_when_its_build_is_given_up_waits_no_longer(entering):
    room, stopping = Room(1, 100), threading.Event()
    with room.take(10, threading.Event()):
        inside = entering(room, 10, stopping)
        stopping.set()
        assert inside.wait(60)
