"""What a comparison asks of each process run."""

from __future__ import annotations

from pathlib import Path

import pytest
from edgepack.devices.inventory import Device, LocalEntry
from edgepack.errors import DeviceError, EdgepackError
from edgepack.measure.compare import comparing
from edgepack.measure.compare.comparing import CompareQuestion, compare

DEVICE = Device("here", LocalEntry(transport="local", target="linux-x86-64"))


@pytest.mark.parametrize(("metric", "iterations"), [("p50", 130), ("p90", 130), ("p99", 662)])
def test_compare_when_a_tail_is_compared_makes_as_many_iterations_as_it_needs(
    monkeypatch: pytest.MonkeyPatch, metric: str, iterations: int
) -> None:
    asked: list[int] = []

    def on_all(session: comparing._Session, _: list[Device]) -> list[EdgepackError]:
        asked.append(session.question.preset.iterations)
        return [DeviceError("gone", hint="find it")]

    monkeypatch.setattr(comparing, "_compare_on_all", on_all)
    here = Path("bundle")
    with pytest.raises(DeviceError, match="gone"):
        compare(CompareQuestion(here, base=here, margins={metric: 0.03}), [DEVICE])
    assert asked == [iterations]
