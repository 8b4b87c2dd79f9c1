"""Whether a short look tells that int8 is slower than fp32."""

from __future__ import annotations

from pathlib import Path

import pytest
from edgepack.builder import timing
from edgepack.builder.cache import StepCache
from edgepack.builder.timing import (
    LatencyComparison,
    SlowerVariant,
    find_comparison,
    judge_turns,
)
from edgepack.cli.building import _format_slower

UNKNOWN = {"kind": "not-measured", "reason": "there is no /proc/stat"}


def work(others: float, stolen: float = 0.0) -> dict[str, object]:
    """Return what others took of two cores."""
    return {
        "cores": 2, "own_cores": 1.9, "other_cores": others, "stolen_cores": stolen, "waiting": 0.5
    }  # fmt: skip


def turns(*medians_ms: float) -> list[list[float]]:
    """Return the turns of int8, fp32, fp32 and int8, of three runs each."""
    return [[each * 1e-3 * jitter for jitter in (0.98, 1.0, 1.02)] for each in medians_ms]


@pytest.mark.parametrize("others", [work(0.02), UNKNOWN])
def test_int8_when_every_turn_took_longer_on_a_quiet_machine_is_slower(
    others: dict[str, object],
) -> None:
    found = judge_turns(turns(3.0, 2.0, 2.1, 3.1), others)
    assert (found.took_longer, found.inconclusive, found.runs) == (True, "", 6)
    assert (found.variant_ms, found.other_ms) == pytest.approx((3.05, 2.05), rel=0.02)


def test_int8_that_took_no_longer_is_not_said_to_be_slower() -> None:
    assert not judge_turns(turns(2.0, 2.0, 2.0, 2.0), work(0.0)).took_longer


def test_int8_that_took_less_in_every_turn_is_told_apart() -> None:
    found = judge_turns(turns(1.0, 2.0, 2.1, 1.1), work(0.0))
    assert (found.took_longer, found.inconclusive) == (False, "")


@pytest.mark.parametrize(("inconclusive", "runs"), [("", 1), ("others took the cores", 2)])
def test_comparison_is_kept_where_it_could_tell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inconclusive: str, runs: int
) -> None:
    cache = StepCache(tmp_path)
    models = [cache.keep(name, lambda out, n=name: (out / n).write_text(n)) for name in ("a", "b")]
    other = cache.keep("c", lambda out: (out / "c").write_text("c"))
    told = LatencyComparison(2.0, 3.0, 8, inconclusive)
    asked: list[object] = []
    monkeypatch.setattr(timing, "compare_latency", lambda *given: asked.append(given) or told)
    for _ in range(2):
        assert find_comparison(*models, None, {"a": "1"}, cache) == told
    assert len(asked) == runs
    # Another model, other samples and another setting are other measurements.
    find_comparison(models[0], other, None, {"a": "1"}, cache)
    find_comparison(*models, other, {"a": "1"}, cache)
    find_comparison(*models, None, {}, cache)
    assert len(asked) == runs + 3
    # So are other threads and other processors.
    monkeypatch.setenv("EDGEPACK_THREADS", "97")
    find_comparison(*models, None, {}, cache)
    monkeypatch.setattr(timing.os, "sched_getaffinity", lambda _: {97}, raising=False)
    find_comparison(*models, None, {}, cache)
    assert len(asked) == runs + 5


@pytest.mark.parametrize(
    ("taken", "why"),
    [
        (work(1.5), "others took 75% of the 2 cores that the model runs on"),
        (work(0.0, stolen=0.3), "the host of a virtual machine took 0.30"),
    ],
)
def test_int8_that_took_longer_beside_other_work_is_inconclusive(
    taken: dict[str, object], why: str
) -> None:
    found = judge_turns(turns(3.0, 2.0, 2.1, 3.1), taken)
    assert found.took_longer
    assert why in found.inconclusive


def test_int8_that_took_longer_in_one_turn_only_is_inconclusive() -> None:
    found = judge_turns(turns(2.0, 2.0, 2.1, 9.0), UNKNOWN)
    assert found.took_longer
    assert "turns of one model differ as much as the two do: 2.000, 2.000, 2.100, 9.000 ms" in (
        found.inconclusive
    )


def test_build_says_slower_only_where_the_times_tell() -> None:
    sure = SlowerVariant("t", "cpu-int8", LatencyComparison(3.0, 2.0, 6))
    busy = SlowerVariant("t", "cpu-int8", LatencyComparison(3.0, 2.0, 6, "others took 75%"))
    assert _format_slower(sure).startswith(
        "warning: cpu-int8 is slower than fp32 on this computer: 3.000 against 2.000 ms (medians"
    )
    assert _format_slower(busy).startswith(
        "INCONCLUSIVE whether cpu-int8 is slower than fp32 on this computer: 3.000 against 2.000 ms"
        " (medians of 6 runs in turns), but others took 75%. Build again when"
    )
