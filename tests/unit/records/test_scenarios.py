"""Which scenarios may be asked for, and when a bound on latency is kept."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from edgepack.base.schema import NotMeasured
from edgepack.errors import UsageError
from edgepack.project.profile import SessionSettings
from edgepack.records.presets import find_preset
from edgepack.records.run import (
    Invalid,
    Joined,
    OutputCheck,
    ProcessRun,
    Scenario,
    SweepPoint,
    Valid,
)
from edgepack.records.scenarios import (
    format_command_options,
    list_scenario_reasons,
    make_harness_arguments,
    make_scenario,
    set_threads,
)
from edgepack.records.verdict import find_remedy, judge, judge_sweep

from tests.support.reports.example_report import example_placement, example_report, example_run
from tests.unit.records.test_verdict import selection, variant

SERVER = make_scenario("server", queries_per_s=50, latency_bound_ms=20)


def served(latencies_ms: Sequence[float]) -> ProcessRun:
    return example_run(latencies_ns=[int(each * 1e6) for each in latencies_ms])


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("sever", {}, "there is no scenario 'sever'"),
        ("server", {}, "needs --qps and --latency-bound-ms"),
        ("server", {"queries_per_s": 5}, "needs --latency-bound-ms"),
        ("offline", {"queries_per_s": 5}, "--qps belongs to the scenario server"),
        ("single-stream", {"samples_per_query": 4}, "belongs to the scenario multi-stream"),
        ("server", {"queries_per_s": 0, "latency_bound_ms": 5}, "--qps is 0"),
        ("server", {"queries_per_s": float("nan"), "latency_bound_ms": 5}, "--qps is nan"),
        ("multi-stream", {"samples_per_query": -1}, "--samples-per-query is -1"),
        ("multi-stream", {"max_batch": 4}, "--max-batch belongs to the scenario server or offline"),
        ("offline", {"max_batch": 0}, "--max-batch is 0"),
        ("offline", {"max_batch": 4, "queue_delay_ms": 1}, "--queue-delay-ms belongs to the"),
        (
            "server",
            {"queries_per_s": 5, "latency_bound_ms": 5, "queue_delay_ms": 1},
            "how long queries wait to be joined, and none are",
        ),
    ],
)
def test_make_scenario_when_options_do_not_fit_says_which(
    name: str, options: dict[str, float], said: str
) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        make_scenario(name, **options)  # type: ignore[arg-type]
    assert caught.value.hint


def test_make_scenario_when_multi_stream_has_eight_samples_unless_told() -> None:
    assert make_scenario("multi-stream").samples_per_query == 8
    assert make_scenario("multi-stream", samples_per_query=3).samples_per_query == 3
    assert make_scenario() == Scenario()


def test_arguments_when_single_stream_are_none_for_old_harnesses() -> None:
    assert make_harness_arguments(Scenario()) == format_command_options(Scenario()) == []
    assert find_preset("standard").with_scenario(Scenario()) == find_preset("standard")


def test_arguments_when_samples_are_joined_say_so() -> None:
    joined = make_scenario(
        "server", queries_per_s=50, latency_bound_ms=20, max_batch=8, queue_delay_ms=1.5
    )
    assert {"--max-batch=8", "--queue-delay-ms=1.5"} < set(make_harness_arguments(joined))
    options = format_command_options(joined)
    assert options[-4:] == ["--max-batch", "8", "--queue-delay-ms", "1.5"]
    assert "max_batch" not in SERVER.model_dump()
    assert "--max-batch" not in " ".join(make_harness_arguments(SERVER))


def test_verdict_when_outputs_are_wrong_in_batches_or_at_a_size_is_invalid() -> None:
    runs = [
        served([10.0] * 150).model_copy(update={"joined": Joined(batches=40, min_sqnr_db=each)})
        for each in (200.0, 3.0, 200.0, 200.0, 200.0)
    ]
    preset = find_preset("standard").with_scenario(SERVER)
    verdict = judge(selection(), runs, example_placement(), variant(), preset)
    assert isinstance(verdict, Invalid)
    assert verdict.cause == "outputs"
    assert verdict.reasons == [
        (
            "run 2: in batches, outputs are 3.0 dB near the golden ones of their samples, 20.0 dB"
            " are needed"
        )
    ]
    check = OutputCheck(how="golden", nearness_db=3, needed_db=40, problem="outputs are far")
    shapes = {"x": [4, 3]}
    wrong = SweepPoint(
        shapes=shapes, batch=4, latencies_ns=[], checked=check, problem="outputs are far"
    )
    refused = SweepPoint(shapes=shapes, batch=4, latencies_ns=[], problem="x is fixed")
    assert judge_sweep(Valid(), [refused]) == Valid()
    swept = judge_sweep(Invalid(reasons=["hot"]), [refused, wrong])
    assert swept == Invalid(reasons=["hot", "x=4x3: outputs are far"], cause="outputs")
    report = example_report(
        runs=runs, sweep=[wrong], verdict=swept, scenario=SERVER.model_copy(update={"max_batch": 8})
    )
    hint = find_remedy(report, Path("dist/b"))
    assert hint.startswith("use it one by one, in its own sizes: edgepack bench dist/b")
    assert "--max-batch" not in hint


def test_threads_when_a_session_takes_some_cores_fill_the_others() -> None:
    two = variant().model_copy(update={"session": SessionSettings(intra_op_num_threads=2)})
    every = variant().model_copy(update={"session": SessionSettings(intra_op_num_threads=0)})
    assert set_threads(SERVER, 8, two).threads == 4
    assert set_threads(SERVER, 3, two).threads == 1
    assert set_threads(SERVER, 8, every).threads == 1
    assert set_threads(Scenario(), 8, two).threads == 1


def test_preset_when_served_makes_enough_queries_for_p99() -> None:
    preset = find_preset("quick").with_scenario(SERVER)
    assert preset.runs * preset.iterations >= 662
    assert preset.longest_s >= preset.iterations / 50
    assert "--scenario=server" in preset.arguments
    assert "--qps=50" in preset.arguments or "--qps=50.0" in preset.arguments


def test_server_when_one_in_a_hundred_is_late_is_judged_by_p99() -> None:
    kept = [10.0] * 993 + [25.0] * 7
    assert list(list_scenario_reasons(SERVER, [served(kept)])) == []
    late = [10.0] * 980 + [25.0] * 20
    (reason,) = list_scenario_reasons(SERVER, [served(late)])
    assert reason == "p99 is 25 ms at 50 queries/s, and the bound is 20 ms"
    (reason,) = list_scenario_reasons(SERVER, [served([10.0] * 330), served([10.0] * 331)])
    assert reason == "661 queries were made, and their p99 needs 662"


def test_verdict_when_the_bound_is_broken_is_invalid() -> None:
    preset = find_preset("standard").with_scenario(SERVER)
    good = [served([10.0] * 150)] * 5
    bad = [*good[:4], served([30.0] * 150)]
    of = [judge(selection(), runs, example_placement(), variant(), preset) for runs in (good, bad)]
    assert of[0] == Valid()
    assert isinstance(of[1], Invalid)
    assert any("p99" in reason for reason in of[1].reasons)


def test_verdict_when_offline_counts_inferences_and_compares_them_one_by_one() -> None:
    preset = find_preset("standard").with_scenario(make_scenario("offline"))
    runs = [
        example_run(latencies_ns=[count * 10_000_000], inferences=count)
        for count in (1000, 1900, 1400, 1100, 1200)
    ]
    assert judge(selection(), runs, example_placement(), variant(), preset) == Valid()
    few = [*runs[:4], example_run(latencies_ns=[10_000_000], inferences=1)]
    verdict = judge(selection(), few, example_placement(), variant(), preset)
    assert verdict == Invalid(reasons=["run 5 has 1 samples, not 130"])


def test_throughput_when_times_are_known_is_inferences_over_the_whole_time() -> None:
    run = example_run(timed_from_ns=5_000, timed_to_ns=5_000 + 2_000_000_000, inferences=300)
    assert run.throughput == 150.0
    unknown = NotMeasured(reason="the device does not tell")
    untimed = run.model_copy(update={"timed_from_ns": unknown, "timed_to_ns": unknown})
    assert untimed.throughput == unknown
