"""When the numbers of a benchmark may be used."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from edgepack.base.schema import NotMeasured
from edgepack.bundle.manifest import ManifestVariant
from edgepack.bundle.unused import Unused
from edgepack.errors import InconclusiveError, UsageError
from edgepack.project.profile import Provider, Requires, SessionSettings
from edgepack.records.other_work import count_threads, list_work_notes
from edgepack.records.presets import PRESETS, find_preset
from edgepack.records.run import (
    HIDDEN,
    Inconclusive,
    Invalid,
    OtherWork,
    Placement,
    ProcessRun,
    Sample,
    Sampling,
    Scenario,
    Selection,
    TunedSetting,
    Valid,
    list_latencies_ns,
)
from edgepack.records.verdict import (
    count_runs_for,
    explain_heavy_tail,
    explain_heavy_tail_of,
    find_remedy,
    judge,
    list_condition_notes,
    list_spread_notes,
    require_valid,
)
from hypothesis import given
from hypothesis import strategies as st

from tests.support.reports.example_report import (
    COOL,
    CPU,
    example_facts,
    example_placement,
    example_report,
    example_run,
    interrupted_run,
)

SPACING_NS = 100_000_000
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
    return Selection(variant="cpu-int8-static", unused=[], device=example_facts())


def verdict(
    *changed: ProcessRun, preset: str = "standard", placement: Placement | None = None
) -> Valid | Invalid | Inconclusive:
    runs = [*changed, *(example_run(seed) for seed in range(5 - len(changed)))]
    found = placement or example_placement()
    return judge(selection(), runs, found, variant(), find_preset(preset))


def sampled(
    *,
    celsius: float = 50.0,
    mhz: Sequence[int] = (2400,) * 20,
    busy: float = 4.0,
    name: str = "policy0",
    throttled: Sequence[str] = (),
) -> Sampling:
    """Describe the sensors during the 20 first half seconds of ``example_run()``."""
    begun_ns = example_run().timed_from_ns
    assert isinstance(begun_ns, int)
    samples = [
        Sample(
            at_ns=begun_ns + index * SPACING_NS,
            temperatures_c={"cpu-thermal": celsius},
            clocks_hz={name: each * 1_000_000},
            busy={"policy0": busy},
            throttled=list(throttled),
        )
        for index, each in enumerate(mhz)
    ]
    return Sampling(
        interval_s=0.5,
        samples=samples,
        unknown={},
        trip_points_c={"cpu-thermal": 85.0},
        cpu_ns=1,
        elapsed_ns=1_000_000,
    )


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
        ({"golden_min_sqnr_db": float("nan")}, "nan dB near the golden ones"),
        (
            {"not_finite": ["hn", "y"]},
            "the model was fed its own state, and hn, y became NaN or infinite",
        ),
        ({"sampling": sampled(throttled=["hot"])}, "was slowed down: hot"),
        (
            {"after": COOL.model_copy(update={"throttled_now": ["thermal status light"]})},
            "was slowed down: thermal status light",
        ),
        ({"after": COOL.model_copy(update={"power_mode": "low power"})}, "the phone saved power"),
        ({"sampling": sampled(celsius=82.0)}, "cpu-thermal reached 82.0 °C, and slows down from"),
        ({"sampling": sampled(mhz=[2400] * 17 + [2300] * 2 + [2400])}, "was 2300 MHz, not 2400"),
    ],
)
def test_verdict_is_invalid_with_the_reason_when_one_run_is_bad(
    changes: dict[str, Any], reason: str
) -> None:
    found = verdict(example_run(**changes))
    assert isinstance(found, Invalid)
    assert len(found.reasons) == 1
    assert reason in found.reasons[0]


@pytest.mark.parametrize(
    "sampling",
    [
        sampled(celsius=81.9),
        sampled(mhz=[2400] * 19 + [600]),  # one sample is not yet 5 % of the time
        sampled(mhz=[2400] * 10 + [2330] * 10),  # 97.1 %
        sampled(mhz=[2400] * 5 + [600] * 15, busy=0.5),  # without work a clock may fall
        sampled(mhz=[2400] * 5 + [600] * 15, name="gpu"),  # whose use is not known
        UNKNOWN,
    ],
)
def test_verdict_is_valid_when_the_sensors_saw_nothing_out_of_order(sampling: Sampling) -> None:
    assert verdict(example_run(sampling=sampling)) == Valid()


def test_verdict_is_valid_when_only_the_warm_up_was_slow() -> None:
    run = example_run(sampling=sampled(mhz=[600] * 4 + [2400] * 16))
    assert isinstance(run.timed_from_ns, int)
    later = run.model_copy(update={"timed_from_ns": run.timed_from_ns + 2_000_000_000})
    assert verdict(later) == Valid()


def test_verdict_of_a_sustained_run_is_valid_when_heat_slows_it_down() -> None:
    hot = sampled(celsius=90.0, mhz=[2400] * 10 + [1500] * 10, throttled=["throttled"])
    run = example_run(samples=700, sampling=hot)
    found = judge(selection(), [run], example_placement(), variant(), find_preset("sustained"))
    assert found == Valid()
    starved = run.model_copy(update={"sampling": sampled(throttled=["under-voltage"])})
    found = judge(selection(), [starved], example_placement(), variant(), find_preset("sustained"))
    assert isinstance(found, Invalid)
    assert found.cause == "supply"


def test_verdict_is_invalid_when_a_later_run_has_a_lower_clock() -> None:
    fast, slow = sampled(mhz=[2400] * 20), sampled(mhz=[2200] * 20)
    found = verdict(*(example_run(sampling=each) for each in (fast, slow)))
    assert isinstance(found, Invalid)
    assert found.reasons == [
        "run 2: the clock of policy0 was 2200 MHz, not 2400 MHz, for 100% of the time"
    ]


@pytest.mark.parametrize(
    ("governor", "cause"), [("ondemand", "settings"), ("performance", "conditions")]
)
def test_verdict_advises_to_tune_when_no_governor_held_the_clock(governor: str, cause: str) -> None:
    moment = COOL.model_copy(update={"governor": governor})
    run = example_run(sampling=sampled(mhz=[2400] * 10 + [1500] * 10), before=moment, after=moment)
    found = judge(selection(), [run] * 5, example_placement(), variant(), find_preset("standard"))
    assert isinstance(found, Invalid)
    assert found.cause == cause


def test_verdict_is_invalid_when_the_power_mode_changes_between_runs() -> None:
    modes = [COOL.model_copy(update={"power_mode": mode}) for mode in ("MAXN", "15W")]
    found = verdict(*(example_run(before=mode, after=mode) for mode in modes))
    assert isinstance(found, Invalid)
    assert found.reasons == ["the power mode changed: MAXN, 15W"]
    assert found.cause == "conditions"  # which --tune would not mend


def test_verdict_is_invalid_when_it_ended_early() -> None:
    runs = [example_run(seed) for seed in range(5)]
    found = judge(
        selection(), runs, example_placement(), variant(), find_preset("standard"), unfinished="cut"
    )
    assert found == Invalid(reasons=["it ended early: cut"])
    unplaced = judge(selection(), runs, UNKNOWN, variant(), find_preset("standard"))
    assert isinstance(unplaced, Invalid)
    assert unplaced.cause == "conditions"  # to measure again, not another variant


def test_verdict_is_invalid_for_its_supply_when_the_voltage_falls() -> None:
    found = verdict(example_run(sampling=sampled(throttled=["under-voltage"])))
    assert isinstance(found, Invalid)
    assert found.cause == "supply"


def test_remedy_is_to_charge_when_a_phone_saves_power() -> None:
    low = COOL.model_copy(update={"power_mode": "low power"})
    found = verdict(example_run(before=low, after=low), preset="sustained")
    assert isinstance(found, Invalid)
    facts = example_facts().model_copy(update={"os": "Android 15 (API 35)"})
    report = example_report(verdict=found, facts=facts)
    assert find_remedy(report, Path("b")).startswith(
        "charge the phone and switch its battery saver"
    )
    assert find_remedy(example_report(verdict=found), Path("b")).startswith(
        "give the device a stronger"
    )


@pytest.mark.parametrize(("level", "noted"), [(19.0, True), (20.0, False)])
def test_low_battery_is_noted(level: float, noted: bool) -> None:  # noqa: FBT001
    run = example_run(after=COOL.model_copy(update={"battery_percent": level}))
    notes = list_condition_notes(selection(), [run])
    assert ("the battery was at 19 %: below 20 % a phone may slow itself down" in notes) is noted


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
    assert found.reason in list_condition_notes(emulated)


def test_condition_notes_name_what_is_unknown() -> None:
    facts = example_facts()
    assert list_condition_notes(selection()) == []
    hot = facts.conditions.model_copy(update={"temperature_c": UNKNOWN})
    device = facts.model_copy(update={"conditions": hot})
    noted = selection().model_copy(update={"device": device})
    assert list_condition_notes(noted) == ["temperature unknown: nobody knows"]


def test_condition_notes_say_why_a_later_variant_is_measured() -> None:
    passed = [Unused(stage="passed over", variant="xnnpack-int8", reason="XNNPACK is not there")]
    later = selection().model_copy(update={"unused": passed})
    assert list_condition_notes(later) == [
        "cpu-int8-static is measured because xnnpack-int8 was passed over: XNNPACK is not there"
    ]


def test_condition_notes_warn_when_a_gate_has_no_sensors() -> None:
    conditions = COOL.model_copy(
        update={"temperature_c": UNKNOWN, "throttle_events": UNKNOWN, "throttled_now": UNKNOWN}
    )
    device = example_facts().model_copy(update={"conditions": conditions})
    blind = selection().model_copy(update={"device": device})
    warning = "warning: a gate without temperature and throttling"
    assert list_condition_notes(blind, [], find_preset("gate"))[-1].startswith(warning)
    others = list_condition_notes(blind, [], find_preset("standard"))
    assert not any(note.startswith("warning") for note in others)
    assert not any(
        "warning" in note for note in list_condition_notes(selection(), [], find_preset("gate"))
    )


def test_condition_notes_say_so_when_the_sampler_takes_much() -> None:
    greedy = sampled().model_copy(update={"cpu_ns": 20_000})
    notes = list_condition_notes(selection(), [example_run(), example_run(sampling=greedy)])
    assert notes[-1].startswith("reading the sensors took 2.0% of a core")


def test_condition_notes_say_which_run_began_warm() -> None:
    first_c = selection().device.conditions.temperature_c
    assert isinstance(first_c, float)
    moments = [COOL.model_copy(update={"temperature_c": first_c + more}) for more in (9.9, 10.1)]
    notes = list_condition_notes(selection(), [example_run(before=moment) for moment in moments])
    assert notes == [f"run 2 began at {first_c + 10.1:.1f} °C, the device at {first_c:.1f} °C"]


def test_condition_notes_say_what_the_sampler_could_not_read() -> None:
    blind = sampled().model_copy(update={"unknown": {"clocks": "no cpufreq"}})
    runs = [example_run(sampling=blind), example_run(sampling=UNKNOWN)]
    notes = list_condition_notes(selection(), runs)
    assert "clocks unknown: no cpufreq" in notes
    assert "course of temperatures and clocks unknown: nobody knows" in notes


ELSE = {
    "wrong_run": st.integers(0, 4),
    "preset": st.sampled_from(sorted(PRESETS)),
    "placement": st.sampled_from([example_placement(), example_placement("QNN"), UNKNOWN]),
    "emulated": st.booleans(),
    "steady": st.booleans(),
    "throttled": st.sampled_from([[], ["hot"]]),
    "faster": st.integers(1, 100),
    "unfinished": st.sampled_from(["", "the connection broke"]),
}
RUNS = [example_run(seed, samples=130) for seed in range(5)]


@given(
    wrong_db=st.floats(max_value=20.0, exclude_max=True) | st.just(float("nan")),
    case=st.fixed_dictionaries(ELSE),
)
def test_verdict_is_never_valid_when_outputs_are_wrong(
    wrong_db: float, case: dict[str, Any]
) -> None:
    changes = {"steady": case["steady"], "sampling": sampled(throttled=case["throttled"])}
    runs = [run.model_copy(update=changes) for run in RUNS]
    wrong = runs[case["wrong_run"]]
    fast = [ns // case["faster"] for ns in wrong.latencies_ns]
    runs[case["wrong_run"]] = wrong.model_copy(
        update={"golden_min_sqnr_db": wrong_db, "latencies_ns": fast}
    )
    device = example_facts().model_copy(update={"emulated": case["emulated"]})
    found = judge(
        selection().model_copy(update={"device": device}),
        runs,
        case["placement"],
        variant(),
        find_preset(case["preset"]),
        unfinished=case["unfinished"],
    )
    assert isinstance(found, Invalid)
    assert found.cause == "outputs"
    assert any("near the golden ones" in reason for reason in found.reasons)


def test_spread_notes_speak_up_when_run_medians_differ() -> None:
    slow = example_run(latencies_ns=[12_500_000] * 130)
    fast = example_run(latencies_ns=[10_000_000] * 130)
    assert list_spread_notes([fast, fast]) == []
    assert list_spread_notes([fast, slow])[0].startswith("run medians differ by 25%")


def test_spread_notes_say_how_many_runs_would_tell_the_median_all_the_same() -> None:
    runs = [
        example_run(
            latencies_ns=[round(10_000_000 * factor)] * 130,
            timed_from_ns=0,
            timed_to_ns=15_000_000_000,
        )
        for factor in (0.95, 1.07, 0.96, 1.05, 1.0)
    ]
    [note] = list_spread_notes(runs)
    needed = count_runs_for(runs, 0.03)
    # t * s / sqrt(n): of these runs s is 0.0533, so 12 runs reach 3.4 % and 15 reach 2.95 %.
    assert needed == 15
    assert note.endswith("about 15 runs, 4 min of measuring, bring its p50 to ±3%: --runs 15")
    assert count_runs_for(runs, 0.2) == 5


def test_spread_notes_propose_no_runs_where_none_would_do() -> None:
    runs = [example_run(latencies_ns=[ns] * 130) for ns in (1_000_000, 9_000_000)]
    [note] = list_spread_notes(runs)
    assert note.endswith("200 runs would not bring its p50 to ±3%")


def test_find_preset_says_which_is_near_when_there_is_none() -> None:
    with pytest.raises(UsageError, match="standard"):
        find_preset("standart")


PHONE = example_facts().model_copy(update={"os": "Android 15 (API 35)"})


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
            {"verdict": Invalid(reasons=["wrong"], cause="outputs")},
            "INVALID",
            "edgepack device check pi5-a",
        ),
        (
            {"verdict": Invalid(reasons=["NaN"], cause="stream")},
            "INVALID",
            "as long as a device's, then: edgepack evaluate 'my dist/b' --device pi5-a",
        ),
        (
            {"verdict": Invalid(reasons=["CPU"], cause="placement")},
            "INVALID",
            "--preset standard --variant cpu-fp32",
        ),
        (
            {
                "verdict": Invalid(reasons=["CPU"], cause="placement"),
                "variants": example_report().variants[:1],
            },
            "INVALID",
            "edgepack inspect MODEL --target raspberry-pi",
        ),
        (
            {"verdict": Invalid(reasons=["ondemand"], cause="settings"), "tuned": []},
            "INVALID",
            "edgepack bench 'my dist/b' --device pi5-a --preset standard --tune",
        ),
        (
            {
                "verdict": Invalid(reasons=["15W"], cause="settings"),
                "tuned": [
                    TunedSetting(name="clocks", before="dynamic", during="held", restored=True)
                ],
            },
            "INVALID",
            "idle, then: edgepack bench 'my dist/b' --device pi5-a --preset standard --tune",
        ),
        (
            {"verdict": Invalid(reasons=["volts"], cause="supply")},
            "INVALID",
            "a stronger power supply, then: edgepack bench",
        ),
        (
            {"verdict": Invalid(reasons=["wrong"], cause="outputs"), "facts": PHONE},
            "INVALID",
            "--preset standard --variant cpu-fp32",
        ),
        (
            {"verdict": Invalid(reasons=["x"], cause="settings"), "facts": PHONE, "tuned": []},
            "INVALID",
            "cool down and idle, then: edgepack bench 'my dist/b' --device pi5-a --preset standard",
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


def others(used: float, *, stolen: float = 0.0, cores: int = 2) -> OtherWork:
    return OtherWork(cores=cores, own_cores=0.5, other_cores=used, stolen_cores=stolen, waiting=0.9)


def judged(
    work: OtherWork | NotMeasured, *, threads: int = 0, preset: str = "standard"
) -> Valid | Invalid | Inconclusive:
    """Judge five runs with so much other work beside them, of a variant with so many threads."""
    runs = [example_run(seed, other_work=work) for seed in range(5)]
    session = SessionSettings(intra_op_num_threads=threads)
    own = variant().model_copy(update={"session": session})
    return judge(selection(), runs, example_placement(), own, find_preset(preset))


@pytest.mark.parametrize(
    ("work", "threads", "share"),
    [
        (others(1.86), 0, "93% of the 2 cores"),
        (others(0.1), 2, "5% of the 2 cores"),
        (others(1.2), 1, "20% of the core "),
        (others(2.5, cores=4), 2, "25% of the 2 cores"),
        (others(0.0, stolen=0.2), 2, "10% of the 2 cores"),
        (others(0.5, stolen=0.06), 1, "6% of the core "),
    ],
)
def test_verdict_is_invalid_when_others_take_cores_that_the_model_runs_on(
    work: OtherWork, threads: int, share: str
) -> None:
    found = judged(work, threads=threads)
    assert isinstance(found, Invalid)
    assert found.cause == "work"
    assert len(found.reasons) == 5
    assert found.reasons[0].startswith(f"run 1: others took {share}")
    assert f"other processes used {work.other_cores:.2f} of {work.cores}" in found.reasons[0]
    assert "something waited for a core 90% of the time" in found.reasons[0]


@pytest.mark.parametrize(
    ("work", "threads"),
    [
        (others(0.09), 2),
        (others(1.04), 1),
        (others(2.05, cores=4), 2),
        (others(0.0, stolen=0.09), 2),
        (UNKNOWN, 2),
    ],
)
def test_verdict_is_valid_when_others_leave_the_model_the_cores_it_runs_on(
    work: OtherWork | NotMeasured, threads: int
) -> None:
    assert judged(work, threads=threads) == Valid()


@pytest.mark.parametrize("preset", ["sustained", "quick"])
def test_verdict_is_invalid_for_other_work_whatever_the_preset(preset: str) -> None:
    assert isinstance(judged(others(1.9), preset=preset), Invalid)


def test_verdict_of_a_smoke_preset_says_that_it_is_too_short_whatever_else_runs() -> None:
    assert isinstance(judged(others(1.9), preset="smoke"), Inconclusive)


def test_remedy_when_a_page_was_hidden_is_to_keep_it_in_front() -> None:
    hidden = example_run(after=COOL.model_copy(update={"throttled_now": [HIDDEN]}))
    found = verdict(hidden)
    assert isinstance(found, Invalid)
    assert find_remedy(example_report(verdict=found), Path("b")).startswith(
        "keep the page open and in front, then: edgepack bench b"
    )


def test_remedy_when_others_took_cores_is_to_end_them() -> None:
    invalid = Invalid(reasons=["run 1: others took 93 % of the 2 cores"], cause="work")
    assert find_remedy(example_report(verdict=invalid), Path("b")).startswith(
        "end what else runs there (top shows it), or on its host, then: edgepack bench b"
    )


@pytest.mark.parametrize(
    ("backend", "options", "threads"),
    [
        ("cpu", {}, 4),
        ("xnnpack", {"intra_op_num_threads": "3"}, 3),
        ("openvino", {"device_type": "CPU", "num_of_threads": "2"}, 2),
        ("openvino", {"device_type": "GPU"}, 1),
        ("tensorrt", {}, 1),
    ],
)
def test_cores_of_a_model_are_those_of_its_threads(
    backend: str, options: dict[str, str], threads: int
) -> None:
    providers = [Provider(name="X", options=options)]
    one = variant().model_copy(update={"backend": backend, "providers": providers})
    assert count_threads(one, Scenario(), 4) == threads
    assert count_threads(one, Scenario(name="server", threads=2), 4) == 2 * threads


def test_notes_say_how_much_others_used_when_it_is_little_but_not_nothing() -> None:
    def notes(*works: OtherWork | NotMeasured, judged: bool = True) -> list[str]:
        return list_work_notes([example_run(other_work=work) for work in works], 2, judged=judged)

    assert notes(others(0.01), UNKNOWN) == []
    (said,) = notes(others(0.06), others(0.01))
    assert "used up to 0.06 of 2 cores during a run, and others took up to 3% of those" in said
    (said,) = notes(others(1.5, cores=4))
    assert "up to 1.50 of 4 cores during a run, and others took up to 0% of those" in said
    assert notes(others(1.5)) == []
    (said,) = notes(others(1.5), judged=False)
    assert "others took up to 75% of those" in said


def test_condition_notes_say_that_other_work_is_unknown() -> None:
    notes = list_condition_notes(selection(), [example_run(other_work=UNKNOWN)])
    assert notes == ["other work unknown: nobody knows"]


def test_only_p50_may_be_used_when_p99_is_more_than_ten_times_as_long() -> None:
    assert explain_heavy_tail(Scenario(), 1e6, 10e6) == ""
    said = explain_heavy_tail(Scenario(), 1e6, 10.01e6)
    assert said.startswith("p99 is 10 ms, more than 10 times the p50 of 1 ms: all figures but p50")


@pytest.mark.parametrize("name", ["single-stream", "multi-stream"])
def test_tail_of_all_runs_together_decides_what_may_be_used(name: Any) -> None:
    runs = [interrupted_run(), example_run(1, latencies_ns=[1_000_000] * 200)]
    assert explain_heavy_tail_of(Scenario(name=name), list_latencies_ns(runs)).startswith(
        "p99 is 50 ms"
    )
    assert explain_heavy_tail_of(Scenario(name=name), example_report().latencies_ns) == ""
    assert explain_heavy_tail_of(Scenario(name=name), interrupted_run(times=1).latencies_ns) == ""


def test_tail_of_server_which_holds_waiting_is_left_to_its_bound() -> None:
    assert explain_heavy_tail_of(Scenario(name="server"), interrupted_run().latencies_ns) == ""
