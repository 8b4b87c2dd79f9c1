"""Which conditions make numbers comparable, and which differ from run to run anyway."""

from __future__ import annotations

import pytest
from edgepack.base.schema import NotMeasured
from edgepack.records.run import Scenario
from edgepack.results.store.fingerprint import find_run_prefix, list_differences, make_fingerprint

from tests.support.reports.example_report import COOL, example_facts, example_report, example_run

REPORT = example_report()


def with_facts(**changes):
    return example_report(facts=example_facts().model_copy(update=changes))


def with_conditions(**changes):
    settled = COOL.model_copy(update=changes)
    return example_report(runs=[example_run(seed, before=settled) for seed in range(5)])


@pytest.mark.parametrize(
    "other",
    [
        with_facts(boot_id="boot-2"),
        with_facts(conditions=COOL.model_copy(update={"temperature_c": 70.0})),
        with_conditions(temperature_c=70.0, throttle_events=9, load=3.0),
        with_conditions(power_mode=NotMeasured(reason="another reason")),
        example_report(id="another", created="2026-12-01T00:00:00Z", device="pi5-b"),
        example_report(variant_used="cpu-fp32", bundle="digits-2.0.0-raspberry-pi"),
        example_report(preset="quick"),
        with_facts(os="Linux 6.12.34+rpt-rpi-2712", python="3.11.9", numpy="2.3.9"),
    ],
)
def test_fingerprint_when_only_the_moment_differs_is_the_same(other):
    assert make_fingerprint(other) == make_fingerprint(REPORT)
    assert list_differences(REPORT, other) == []


@pytest.mark.parametrize(
    ("other", "difference"),
    [
        (with_facts(onnxruntime="1.30.0"), "onnxruntime: 1.31.1, then 1.30.0"),
        (with_facts(python="3.12.1"), "Python: 3.11, then 3.12"),
        (with_facts(os="Linux 6.6.51"), "system: Linux 6.12, then Linux 6.6"),
        (with_facts(driver="L4T-36.4.7"), "driver: unknown, then L4T-36.4.7"),
        (with_facts(emulated=True), "emulated: no, then yes"),
        (with_conditions(governor="ondemand"), "clock governor: performance, then ondemand"),
        (with_conditions(power_mode="MAXN"), "power mode: unknown, then MAXN"),
        (
            example_report(argv=["taskset", "-c", "2", "python3", "-B", "h/edgepack_harness.py"]),
            "run prefix: none, then taskset -c 2",
        ),
        (
            example_report(scenario=Scenario(name="offline", samples_per_query=8)),
            "scenario: single-stream, then offline, 8 samples a query",
        ),
        (
            example_report(scenario=Scenario(name="offline", samples_per_query=8, threads=2)),
            "scenario: single-stream, then offline, 8 samples a query, 2 at once",
        ),
        (
            example_report(argv=["python3", "edgepack_harness.py", "measure", "--session", "{}"]),
            "session settings: the bundle's, then {}",
        ),
        (example_report(preset="sustained"), "preset: quick, standard or gate, then sustained"),
        (example_report(edgepack="0.1.0"), "edgepack: unknown, then 0.1"),
    ],
)
def test_fingerprint_when_a_condition_differs_is_another_and_says_which(other, difference):
    assert make_fingerprint(other) != make_fingerprint(REPORT)
    assert list_differences(REPORT, other) == [difference]


def test_fingerprint_is_the_same_whatever_the_reason_why_a_condition_is_not_known():
    one = with_conditions(power_mode=NotMeasured(reason="it may not be read"))
    other = with_conditions(power_mode=NotMeasured(reason="there is no nvpmodel"))
    assert make_fingerprint(one) == make_fingerprint(other)


@pytest.mark.parametrize(
    ("argv", "prefix"),
    [
        ([], []),
        (["/v/bin/python", "-B", "/r/harness/edgepack_harness.py", "measure"], []),
        (["nice", "-n", "-5", "py", "-B", "edgepack_harness.py"], ["nice", "-n", "-5"]),
        (["sh", "measure.sh"], []),
        (["taskset", "f0", "env", "A=1", "/tools/edgepack_measure", "measure"], ["taskset", "f0"]),
    ],
)
def test_run_prefix_when_given_a_command_is_what_stands_before_the_harness(argv, prefix):
    assert find_run_prefix(argv) == prefix
