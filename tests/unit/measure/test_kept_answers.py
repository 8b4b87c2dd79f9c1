"""What a device has answered so far, on disk."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from threading import Thread

import numpy as np
import pytest
from edgepack.devices.frames import SampleAnswer
from edgepack.errors import ToolError
from edgepack.measure.evaluate.kept_answers import KeptAnswers, read_as_they_come

KEY = {"bundle": "a", "variant": "cpu-fp32"}


def answer(number: int) -> SampleAnswer:
    return SampleAnswer({"y": np.full((2, 3), number, np.float32)}, number + 1, "")


@pytest.fixture
def three() -> Iterator[Path]:
    with KeptAnswers(KEY, resume=True) as kept:
        for number in range(3):
            kept.add(answer(number))
    return kept.path


def test_answers_when_the_evaluation_is_the_same_are_still_there(three: Path) -> None:
    with KeptAnswers(dict(reversed(KEY.items())), resume=True) as kept:
        assert kept.inference_ns == [1, 2, 3]
        kept.add(answer(3))
    found = [float(each.outputs["y"][0, 0]) for each in read_as_they_come(three, 4)]
    assert found == [0, 1, 2, 3]


@pytest.mark.parametrize("size", [1, 5, 30])
def test_answers_when_the_last_is_torn_lack_it(three: Path, size: int) -> None:
    three.write_bytes(three.read_bytes()[:-size])
    with KeptAnswers(KEY, resume=True) as kept:
        assert kept.inference_ns == [1, 2]
        kept.add(answer(7))
    assert [each.ns for each in read_as_they_come(three, 3)] == [1, 2, 8]


def test_answers_when_anything_differs_or_nothing_is_wanted_are_none(three: Path) -> None:
    with KeptAnswers({**KEY, "variant": "cpu-int8"}, resume=True) as other:
        assert not len(other)
        assert other.path != three
    with KeptAnswers(KEY, resume=False) as kept:
        assert not len(kept)


def test_reader_when_an_answer_is_still_being_written_waits_for_it(tmp_path: Path) -> None:
    with KeptAnswers(KEY, resume=True) as kept:
        kept.add(answer(5))
    whole = kept.path.read_bytes()
    growing = tmp_path / "answers"
    growing.write_bytes(whole[:7])
    found: list[SampleAnswer] = []
    reader = Thread(target=lambda: found.extend(read_as_they_come(growing, 1)))
    reader.start()
    assert not found
    with growing.open("ab") as file:
        file.write(whole[7:])
    reader.join(10)
    assert [each.ns for each in found] == [6]


def test_answers_when_the_evaluation_is_done_are_gone(three: Path) -> None:
    with KeptAnswers(KEY, resume=True) as kept:
        pass
    kept.drop()
    assert not three.exists()


def test_answers_when_the_cache_cannot_be_written_say_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(ToolError, match="cannot write the device's answers") as caught:
        KeptAnswers(KEY, resume=True)
    assert "XDG_CACHE_HOME" in caught.value.hint
