"""When the numbers of a benchmark may be used."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from edgepack.bench.presets import find_preset
from edgepack.bench.report import (
    Inconclusive,
    Invalid,
    Placement,
    ProcessRun,
    Selection,
    Valid,
)
from edgepack.bench.verdict import WARM_NOTE, condition_notes, judge, require_valid, spread_notes
from edgepack.bundle.manifest import ManifestVariant, NotMeasured
from edgepack.errors import InconclusiveError, UsageError
from edgepack.profile import Provider, Requires, SessionSettings
from example_report import (
    COOL,
    CPU,
    example_facts,
    example_placement,
    example_report,
    example_run,
)

UNKNOWN = NotMeasured(reason="nobody knows")


def variant(placement: Any = "all") -> ManifestVariant:
    return ManifestVariant(
        id="cpu-int8-static",
        backend="cpu",
        recipe="int8-static",
        model="models/cpu-int8-static.onnx",
        model_sha256="0" * 64,
        providers=[Provider(name=CPU)],
        placement=placement,
        session=SessionSettings(),
        requires=Requires(),
        min_sqnr_db=20.0,
        accuracy=UNKNOWN,
    )


def selection() -> Selection:
    return Selection(variant="cpu-int8-static", passed_over=[], device=example_facts())


def verdict(
    *changed: ProcessRun, preset: str = "standard", placement: Placement | None = None
) -> Valid | Invalid | Inconclusive:
    runs = [*changed, *(example_run(seed) for seed in range(5 - len(changed)))]
    found = placement or example_placement()
    return judge(selection(), runs, found, variant(), find_preset(preset))


def test_verdict_is_valid_when_nothing_speaks_against_it() -> None:
    assert verdict() == Valid()


def test_verdict_is_valid_when_conditions_are_unknown() -> None:
    unknown = COOL.model_copy(
        update={"throttle_events": UNKNOWN, "throttled_now": UNKNOWN, "governor": UNKNOWN}
    )
    assert verdict(example_run(before=unknown, after=unknown, boot_id=UNKNOWN)) == Valid()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"golden_min_sqnr_db": 19.9}, "19.9 dB near the golden ones, 20.0 dB are needed"),
        ({"steady": False}, "not steady after 60 s"),
        ({"samples": 129}, "129 samples, not 130"),
        ({"boot_id": "boot-2"}, "restarted during the benchmark"),
        ({"variant": "cpu-fp32"}, "used variant cpu-fp32"),
        ({"after": COOL.model_copy(update={"throttle_events": 5})}, "throttled 2 times"),
        ({"after": COOL.model_copy(update={"throttled_now": ["under-voltage"]})}, "under-voltage"),
        (
            {"after": COOL.model_copy(update={"throttled_since_boot": ["x", "under-voltage"]})},
            "was slowed down: x",
        ),
        ({"after": COOL.model_copy(update={"governor": "powersave"})}, "governor changed"),
    ],
)
def test_verdict_is_invalid_with_the_reason_when_one_run_is_bad(
    changes: dict[str, Any], reason: str
) -> None:
    found = verdict(example_run(**changes))
    assert isinstance(found, Invalid)
    assert len(found.reasons) == 1
    assert reason in found.reasons[0]


def test_verdict_names_every_reason_when_there_are_several() -> None:
    found = verdict(example_run(steady=False, golden_min_sqnr_db=-200.0))
    assert isinstance(found, Invalid)
    assert len(found.reasons) == 2


def test_verdict_is_invalid_when_nodes_ran_elsewhere() -> None:
    nodes = [*example_placement().nodes, *example_placement("XnnpackExecutionProvider").nodes]
    mixed = example_placement().model_copy(update={"nodes": nodes})
    found = verdict(placement=mixed)
    assert isinstance(found, Invalid)
    assert "2 on XnnpackExecutionProvider" in found.reasons[0]


def test_verdict_is_valid_when_a_share_of_nodes_is_enough() -> None:
    nodes = [*example_placement().nodes, *example_placement("XnnpackExecutionProvider").nodes]
    mixed = example_placement().model_copy(update={"nodes": nodes})
    runs = [example_run(seed) for seed in range(5)]
    assert judge(selection(), runs, mixed, variant(0.5), find_preset("standard")) == Valid()


def test_verdict_is_invalid_when_there_are_too_few_runs() -> None:
    found = judge(
        selection(), [example_run()], example_placement(), variant(), find_preset("standard")
    )
    assert found == Invalid(reasons=["1 process runs were made, not 5"])


def test_verdict_is_inconclusive_when_the_preset_is_smoke() -> None:
    assert isinstance(verdict(example_run(steady=False), preset="smoke"), Inconclusive)


def test_verdict_is_inconclusive_when_the_processor_is_emulated() -> None:
    device = example_facts().model_copy(update={"emulated": True})
    emulated = selection().model_copy(update={"device": device})
    runs = [example_run(seed) for seed in range(5)]
    found = judge(emulated, runs, example_placement(), variant(), find_preset("standard"))
    assert isinstance(found, Inconclusive)
    assert "emulated" in found.reason
    assert found.reason in condition_notes(emulated)


def test_condition_notes_name_what_is_unknown() -> None:
    facts = example_facts()
    assert condition_notes(selection()) == [WARM_NOTE]
    hot = facts.conditions.model_copy(update={"temperature_c": UNKNOWN})
    device = facts.model_copy(update={"conditions": hot})
    noted = selection().model_copy(update={"device": device})
    assert condition_notes(noted) == [WARM_NOTE, "temperature unknown: nobody knows"]


def test_spread_notes_speak_up_when_run_medians_differ() -> None:
    slow = example_run(latencies_ns=[12_500_000] * 130)
    fast = example_run(latencies_ns=[10_000_000] * 130)
    assert spread_notes([fast, fast]) == []
    assert spread_notes([fast, slow])[0].startswith("run medians differ by 25%")


def test_find_preset_says_which_is_near_when_there_is_none() -> None:
    with pytest.raises(UsageError, match="standard"):
        find_preset("standart")


def test_report_when_valid_is_accepted() -> None:
    require_valid(example_report(), Path("dist/b"))


@pytest.mark.parametrize(
    ("changes", "said", "hint"),
    [
        (
            {"verdict": Inconclusive(reason="too short"), "preset": "smoke"},
            "INCONCLUSIVE: too short",
            "edgepack bench 'my dist/b' --device pi5-a --preset standard",
        ),
        (
            {"verdict": Invalid(reasons=["too hot", "too few"]), "preset": "quick"},
            "INVALID\n  - too hot\n  - too few",
            "cool down and idle, then: edgepack bench 'my dist/b' --device pi5-a --preset quick",
        ),
        (
            {"verdict": Invalid(reasons=["x"]), "variant_requested": "cpu-int8-static"},
            "INVALID",
            "--preset standard --variant cpu-int8-static",
        ),
        (
            {
                "verdict": Invalid(reasons=["wrong"]),
                "runs": [example_run(golden_min_sqnr_db=1.0)],
            },
            "INVALID",
            "edgepack device check pi5-a",
        ),
        (
            {
                "verdict": Inconclusive(reason="emulated"),
                "facts": example_facts().model_copy(update={"emulated": True}),
            },
            "emulated",
            "measure on a real device",
        ),
    ],
)
def test_report_when_not_valid_is_refused_with_what_mends_it(
    changes: dict[str, Any], said: str, hint: str
) -> None:
    with pytest.raises(InconclusiveError) as caught:
        require_valid(example_report(**changes), Path("my dist/b"))
    assert said in caught.value.problem
    assert hint in caught.value.hint


def test_verdict_is_inconclusive_when_process_runs_measure_different_speeds() -> None:
    run = example_run(9)
    slow = run.model_copy(update={"latencies_ns": [ns * 3 // 2 for ns in run.latencies_ns]})
    found = verdict(slow)
    assert isinstance(found, Inconclusive)
    assert "run medians differ by" in found.reason
