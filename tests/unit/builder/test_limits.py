"""When a limit of the project is missed, and that a search and the build agree on it."""

from __future__ import annotations

import math

import pytest
from edgepack.base.schema import NotMeasured
from edgepack.builder.judging import explain_unsettled
from edgepack.bundle.manifest import Accuracy, Closeness
from edgepack.project.limits import Limits
from edgepack.records.limits import explain_missed_limit

DROP, SQNR = Limits(metric_drop=0.1), Limits(min_sqnr_db=20)
NOTHING = (0.0, 0.0)


def found(drop, sqnr_db):
    return Accuracy(
        metric="top1",
        higher_is_better=True,
        samples=10,
        fp32=0.5,
        value=0.5 - drop,
        drop=drop,
        drop_interval=None,
        agreement=None,
        worst=Closeness(output="y", cosine=1.0, sqnr_db=sqnr_db),
    )


@pytest.mark.parametrize(
    ("limits", "drop", "sqnr_db", "missed"),
    [
        (DROP, 0.1, -5.0, ""),
        (DROP, 0.11, 99.0, "top1 drops by 0.1100 on 10 samples, the limit is 0.1"),
        (DROP, math.nan, 99.0, "top1 drops by nan"),
        (DROP, math.inf, 99.0, "top1 drops by inf"),
        (SQNR, 0.9, 20.0, ""),
        (SQNR, 0.0, 19.9, "output 'y' is 19.9 dB from fp32, the limit is 20 dB"),
        (SQNR, 0.0, math.nan, "output 'y' is nan dB from fp32"),
    ],
)
def test_limit_when_it_is_missed_says_why(limits, drop, sqnr_db, missed):
    reason = explain_missed_limit(found(drop, sqnr_db), limits)
    assert reason.startswith(missed)
    assert bool(reason) == bool(missed) == (limits.compute_excess(drop, sqnr_db) > NOTHING)


def test_limit_when_there_is_none_is_not_missed():
    assert explain_missed_limit(found(0.9, -50.0), Limits()) == ""


@pytest.mark.parametrize(
    ("drop", "interval", "sqnr_db", "samples"),
    [
        (0.02, (-0.14, 0.18), 30.0, "about 40 samples would settle it"),
        (0.0, (-0.3, 0.3), 30.0, "about 30 samples would settle it"),
        (0.0, (0.0, 0.3), 30.0, "about 30 samples would settle it"),
        (0.0, (-0.2, 0.2), 30.0, "about 40 samples would settle it"),
        (0.02, (-0.04, 0.08), 30.0, ""),
        (0.2, (0.1, 0.3), 30.0, ""),
        (0.0, (-0.3, 0.3), 200.0, ""),
        (0.02, None, 30.0, ""),
    ],
    ids=[
        "too few",
        "none differs",
        "none of cosines",
        "as many each way",
        "settled",
        "missed",
        "equal outputs",
        "no interval",
    ],
)
def test_limit_when_samples_are_too_few_to_show_it_says_how_many_would(
    drop, interval, sqnr_db, samples
):
    accuracy = found(drop, sqnr_db).model_copy(update={"drop_interval": interval})
    told = explain_unsettled(accuracy, DROP)
    assert samples in told
    assert bool(told) == bool(samples)


def test_samples_that_settle_a_limit_settle_it():
    few = found(0.02, 30.0).model_copy(update={"drop_interval": (-0.14, 0.18)})
    enough = 40
    half = 0.16 * math.sqrt(few.samples / enough)
    many = {"drop_interval": (0.02 - half, 0.02 + half - 1e-9), "samples": enough}
    assert "40" in explain_unsettled(few, DROP)
    assert explain_unsettled(few.model_copy(update=many), DROP) == ""


@pytest.mark.parametrize(
    ("limits", "higher_is_better", "missed"),
    [
        (Limits(metric_at_least=0.4), True, ""),
        (Limits(metric_at_least=0.41), True, "top1 is 0.4000 (fp32 0.5000) on 10 samples, the"),
        (Limits(metric_at_most=0.4), False, ""),
        (Limits(metric_at_most=0.39), False, "top1 is 0.4000 (fp32 0.5000) on 10 samples, the"),
        (Limits(metric_at_least=0.1), False, "top1 is better when lower, so the limit has to be"),
        (Limits(metric_at_most=0.9), True, "top1 is better when higher, so the limit has to be"),
        (Limits(p50_ms=1), True, ""),
    ],
)
def test_limit_of_the_metrics_own_value_counts_as_the_metric_is_read(
    limits, higher_is_better, missed
):
    accuracy = found(0.1, 30.0).model_copy(update={"higher_is_better": higher_is_better})
    reason = explain_missed_limit(accuracy, limits)
    assert reason.startswith(missed)
    assert bool(reason) == bool(missed)


def test_limit_of_the_metrics_own_value_needs_no_fp32():
    alone = found(0.1, 30.0).model_copy(
        update={"fp32": NotMeasured(reason="it came so"), "drop": None, "worst": None}
    )
    reason = explain_missed_limit(alone, Limits(metric_at_least=0.5))
    assert reason == "top1 is 0.4000 on 10 samples, the limit is metric_at_least: 0.5"


def test_limit_of_the_metrics_own_value_that_is_no_number_is_missed():
    none = found(0.1, 30.0).model_copy(update={"value": math.nan})
    assert "top1 is nan" in explain_missed_limit(none, Limits(metric_at_least=0.0))
