"""Which variants a bundle holds, and in which order."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from edgepack.base.schema import NotMeasured
from edgepack.builder.execution import Execution
from edgepack.builder.judging import Verdict, explain_unproven, explain_unworthy, ship_most
from edgepack.builder.timing import LatencyComparison, SlowerVariant, drop_slower
from edgepack.bundle.manifest import Accuracy, Closeness, MetricValue
from edgepack.project.limits import Limits

NOT_MEASURED = NotMeasured(reason="the project has no evaluation samples")


def accuracy(drop=0.0, interval=(0.0, 0.0), samples=40):
    return Accuracy(
        metric="f1@0.5",
        output="boxes",
        higher_is_better=True,
        samples=samples,
        fp32=1.0,
        value=1 - drop,
        drop=drop,
        drop_interval=interval,
        agreement=None,
        worst=Closeness(output="boxes", cosine=0.9995, sqnr_db=30),
    )


def planned(name, *, carried=False, named=False):
    backend, recipe = name.split("-", 1)
    variant = SimpleNamespace(id=name, backend=backend, recipe=recipe)
    return SimpleNamespace(
        variant=variant,
        carried=carried,
        named=named,
        may_fail=not named,
        model=name,
        reference="fp32",
        unfused=None,
    )


def verdict(*entries):
    shipped = tuple((planned(name), found) for name, found in entries)
    return Verdict("phone", shipped, (), ())


def ids(found):
    return [each.variant.id for each, _ in found.shipped]


@pytest.mark.parametrize(
    ("name", "found", "why"),
    [
        ("cpu-fp32", NOT_MEASURED, ""),
        ("cpu-int8-static", NOT_MEASURED, "its accuracy was not measured: the project has no"),
        ("cpu-int8-dynamic", accuracy(0.005, (0, 0.01)), ""),
        ("cpu-int8-dynamic", accuracy(0.005, (0, 0.04)), "f1@0.5 drops by 0.0050 on 40 samples"),
        ("cpu-int8-static", accuracy(samples=7), "7 samples are too few to show what it loses"),
    ],
)
def test_variant_that_nothing_shows_to_be_as_good_is_unproven(name, found, why):
    said = explain_unproven(planned(name), found, Limits(metric_drop=0.01))
    assert said.startswith(why) if why else not said


@pytest.mark.parametrize(("drop", "why"), [(0.04, ""), (0.23, "it loses 23% of fp32's f1@0.5")])
def test_variant_without_limits_is_unproven_where_it_loses_much(drop, why):
    said = explain_unproven(planned("cpu-int8-static"), accuracy(drop, (0, 1)), Limits())
    assert said.startswith(why) if why else not said
    assert not explain_unproven(planned("cpu-fp16"), accuracy(drop, (0, 1)), Limits())


@pytest.mark.parametrize(("drop", "why"), [(0.03, ""), (0.06, "it loses 6% of fp32's cer")])
def test_variant_loses_of_an_error_rate_the_share_of_what_is_right(drop, why):
    found = accuracy(drop, (0, 1)).model_copy(
        update={"metric": "cer", "output": "", "higher_is_better": False, "fp32": 0.02}
    )
    said = explain_unproven(planned("cpu-int8-static"), found, Limits())
    assert said.startswith(why) if why else not said
    # Twice as many errors are not half of what is right.
    assert not explain_unworthy(planned("cpu-int8-static"), found)


@pytest.mark.parametrize(
    ("changes", "named", "why"),
    [
        ({}, False, ""),
        ({"says_nothing": "R² is -1"}, True, "it is no better than a constant: R² is -1"),
        ({"says_little": "f1@0.5 of 'b' is 0.283"}, False, "it keeps less than half"),
        ({"says_little": "f1@0.5 of 'b' is 0.283"}, True, ""),
        ({"says_little": "r2 of 'b' is 0.1", "output": ""}, False, ""),
        ({"drop": 0.7, "metric": "top1", "output": ""}, False, "it loses 70% of fp32's top1"),
        ({"drop": 0.7, "metric": "top1", "output": ""}, True, ""),
    ],
    ids=[
        *("good", "constant", "little", "little, and named", "little, by a metric of the user's"),
        *("most labels lost", "most labels lost, and named"),
    ],
)
def test_variant_that_says_little_is_not_worth_shipping_unless_it_is_named(changes, named, why):
    found = accuracy().model_copy(update=changes)
    said = explain_unworthy(planned("cpu-int8-static", named=named), found)
    assert said.startswith(why) if why else not said


@pytest.mark.parametrize(
    ("f1", "weak", "gone"), [(0.9, "", ""), (0.7, "f1", ""), (0.1, "f1", "f1")]
)
def test_scores_that_are_all_lower_count_though_their_order_is_the_same(f1, weak, gone):
    values = {
        "map50": MetricValue(value=0.8, fp32=0.8),
        "f1": MetricValue(value=f1, fp32=0.9),
    }
    found = accuracy().model_copy(update={"metric": "map50", "output": "", "values": values})
    variant = planned("cpu-int8-static")
    assert (f"of fp32's {weak}" in explain_unproven(variant, found, Limits())) is bool(weak)
    assert (f"of fp32's {gone}" in explain_unworthy(variant, found)) is bool(gone)
    # A limit of the metric that decides says nothing of the other.
    assert (
        f"of fp32's {weak}" in explain_unproven(variant, found, Limits(metric_drop=0.1))
    ) is bool(weak)
    bundle = verdict(("npu-int8-static", found), ("cpu-int8-static", found), ("cpu-fp32", found))
    assert ("cpu-fp32" in ids(ship_most(bundle, 2))) is bool(weak)
    hooked = found.model_copy(update={"metric": "mine"})
    assert not explain_unproven(variant, hooked, Limits())


@pytest.mark.parametrize("found", [accuracy(0.075, (0.02, 0.13)), NOT_MEASURED])
def test_bundle_of_few_when_int8_loses_keeps_one_in_float(found):
    given = verdict(
        ("npu-int8-static", found),
        ("cpu-int8-static", found),
        ("npu-fp16", accuracy()),
        ("cpu-fp32", accuracy()),
    )
    assert ids(ship_most(given, 2)) == ["npu-int8-static", "cpu-fp32"]


def test_bundle_of_few_when_int8_loses_nothing_needs_none_in_float():
    given = verdict(
        ("npu-int8-static", accuracy(0.002, (0, 0.004))),
        ("cpu-int8-static", accuracy(0.002, (0, 0.004))),
        ("cpu-fp32", accuracy()),
    )
    assert ids(ship_most(given, 2)) == ["npu-int8-static", "cpu-int8-static"]


def test_bundle_of_few_when_one_that_loses_makes_up_for_the_first_keeps_one_in_float():
    given = verdict(
        ("npu-int8-static", accuracy()),
        ("npu-int8-dynamic", accuracy()),
        ("cpu-int8-static", accuracy(0.075, (0.02, 0.13))),
        ("cpu-fp32", accuracy()),
    )
    assert ids(ship_most(given, 2)) == ["npu-int8-static", "cpu-fp32"]


@pytest.mark.parametrize("first", ["cpu-int8-static", "npu-int8-static"])
def test_bundle_of_few_without_one_that_is_both_for_the_cpu_and_in_float_holds_one_of_each(first):
    found = accuracy(0.075, (0.02, 0.13))
    second = {"cpu-int8-static", "npu-int8-static"} - {first}
    given = verdict((first, found), (*second, found), ("npu-fp16", accuracy()))
    assert sorted(ids(ship_most(given, 2))) == ["cpu-int8-static", "npu-fp16"]


@pytest.mark.parametrize("drop", [1 / 7, 0.0512, 0.23, 0.999])
def test_limit_that_is_named_allows_what_it_is_named_for(drop):
    said = explain_unproven(planned("cpu-int8-static"), accuracy(drop, (0, 1)), Limits())
    limit = float(re.search(r"metric_drop: ([\d.]+)}", said)[1])
    assert drop <= limit < 1.1 * drop


def slow_and(tmp_path: Path, bytes_of_int8: int, *, named=False, others=True):
    """A verdict of int8 that is slower than fp32, with files of these sizes."""
    artifacts = {}
    for name, size in (("cpu-int8-static", bytes_of_int8), ("fp32", 300_000)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.onnx").write_bytes(bytes(size))
        artifacts[name] = SimpleNamespace(path=tmp_path / name)
    artifacts["cpu-fp32"] = artifacts["fp32"]
    int8 = (planned("cpu-int8-static", named=named), accuracy())
    shipped = (int8, (planned("cpu-fp32"), accuracy())) if others else (int8,)
    slower = SlowerVariant("phone", "cpu-int8-static", LatencyComparison(2.0, 1.0, 40))
    execution = Execution(artifacts, frozenset(), {})
    return drop_slower(Verdict("phone", shipped, (), ()), [slower], execution)


def test_int8_that_is_larger_and_slower_is_left_out_with_both_numbers(tmp_path):
    found = slow_and(tmp_path, 320_000)
    assert ids(found) == ["cpu-fp32"]
    (unused,) = found.unused
    assert (unused.variant, unused.stage) == ("cpu-int8-static", "left out")
    assert "(0.32 against 0.30 MB)" in unused.reason
    assert "(2.000 against 1.000 ms)" in unused.reason


@pytest.mark.parametrize(
    "how", [{"bytes_of_int8": 100_000}, {"bytes_of_int8": 320_000, "named": True}], ids=str
)
def test_int8_that_is_smaller_or_named_stays(tmp_path, how):
    assert "cpu-int8-static" in ids(slow_and(tmp_path, **how))


def test_int8_that_is_all_there_is_stays(tmp_path):
    assert ids(slow_and(tmp_path, 320_000, others=False)) == ["cpu-int8-static"]


PHONE = (
    *("npu-int8-static", "npu-fp16", "xnnpack-int8-static", "cpu-int8-static"),
    *("xnnpack-fp32", "cpu-fp32"),
)
"""The variants of a target with three providers."""


@pytest.mark.parametrize(
    ("drop", "shipped"),
    [
        (0.002, ["npu-int8-static", "xnnpack-int8-static", "cpu-int8-static"]),
        (0.075, ["npu-int8-static", "xnnpack-int8-static", "cpu-fp32"]),
    ],
)
def test_bundle_of_few_when_there_are_three_providers_holds_the_best_of_each(drop, shipped):
    found = accuracy(drop, (0, 2 * drop))
    given = verdict(*((name, accuracy() if "fp" in name else found) for name in PHONE))
    assert ids(ship_most(given, 3)) == shipped


def fused_and(measured, *, named=False, others=True):
    """A verdict of fused attention, with what it and the model without are said to take."""
    fused = planned("cpu-fp32", named=named)
    fused.variant.id, fused.unfused = "cpu-fp32-fused", "plain"
    shipped = ((fused, accuracy()), (planned("cpu-fp32"), accuracy()))
    slower = SlowerVariant("phone", "cpu-fp32-fused", measured, "the model without")
    given = Verdict("phone", shipped if others else shipped[:1], (), ())
    return drop_slower(given, [slower], Execution({}, frozenset(), {}))


@pytest.mark.parametrize(
    ("measured", "why"),
    [
        (LatencyComparison(9.8, 10.0, 8), r"not clearly faster .* \(9.800 against 10.000 ms\)"),
        (LatencyComparison(11.0, 10.0, 8), r"\(11.000 against 10.000 ms\)"),
        (LatencyComparison(5.0, 10.0, 8, "others took 75%"), r"10.000 ms\): others took 75%"),
    ],
)
def test_fused_attention_that_is_not_shown_to_be_faster_is_left_out(measured, why):
    found = fused_and(measured)
    assert ids(found) == ["cpu-fp32"]
    assert found.unused[0].stage == "left out"
    assert re.search(why, found.unused[0].reason)


@pytest.mark.parametrize("how", [{"named": True}, {"others": False}], ids=str)
def test_fused_attention_that_is_named_or_all_there_is_stays(how):
    assert ids(fused_and(LatencyComparison(11.0, 10.0, 8), **how))[0] == "cpu-fp32-fused"


@pytest.mark.parametrize(
    ("times", "busy", "faster"),
    [((9.0, 10.0), "", True), ((9.6, 10.0), "", False), ((5.0, 10.0), "others", False)],
)
def test_faster_is_what_is_shown_to_be_by_5_percent(times, busy, faster):
    assert LatencyComparison(*times, 8, busy).is_faster == faster
