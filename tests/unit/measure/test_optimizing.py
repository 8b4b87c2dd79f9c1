"""What ``edgepack optimize`` decides without a device: candidates, pruning, runs written down."""

from __future__ import annotations

from pathlib import Path

import pytest
from edgepack.backends.targets import find_misfits
from edgepack.base.schema import NotMeasured
from edgepack.bundle.manifest import Accuracy, ManifestVariant
from edgepack.measure.optimize.candidates import add_candidates
from edgepack.measure.optimize.pruning import (
    GAIN,
    Screened,
    explain_few_samples,
    find_pruned,
)
from edgepack.measure.tune.journal import Journal, JournaledRun
from edgepack.project.limits import Limits
from edgepack.project.profile import find_target_files, load_profile
from edgepack.records.tuning import RunTimes

from tests.support.reports.example_report import example_accuracy


@pytest.mark.parametrize("target", sorted(find_target_files()))
def test_candidates_keep_the_profiles_own_first_and_fit_its_providers(target: str) -> None:
    profile = load_profile(target)
    found = add_candidates(profile)
    own = [variant.id for variant in profile.variants]
    ids = [variant.id for variant in found.variants]
    assert ids[: len(own)] == own
    assert len(set(ids)) == len(ids)
    assert found.variants[: len(own)] == profile.variants
    for variant in found.variants[len(own) :]:
        assert find_misfits(variant, profile) == []
    # No two make the same model for the same provider.
    made = [v.model_dump_json(exclude={"id", "session"}) for v in found.variants]
    assert len(set(made)) == len(made)


def test_candidates_of_a_cpu_are_every_recipe_and_the_dialects_of_its_kernels() -> None:
    found = add_candidates(load_profile("raspberry-pi"))
    ids = {variant.id for variant in found.variants}
    assert {"cpu-fp32", "cpu-int8-static", "cpu-int8-dynamic", "cpu-int4-weight"} <= ids
    tensor = found.find_variant("cpu-int8-static-s8s8-symmetric-tensor").dialect
    assert tensor is not None
    assert (tensor.activations, tensor.symmetric, tensor.per_channel) == ("int8", True, False)


def test_candidates_of_a_model_with_attention_have_it_fused_where_the_provider_takes_that() -> None:
    found = add_candidates(load_profile("raspberry-pi"), attention=True)
    fused = [variant.id for variant in found.variants if variant.fused_attention]
    assert fused == ["cpu-fp32-fused"]
    compiled = add_candidates(load_profile("intel"), attention=True).variants
    assert {v.backend for v in compiled if v.fused_attention} <= {"cpu"}
    assert not any(v.fused_attention for v in add_candidates(load_profile("raspberry-pi")).variants)


def entry(recipe: str = "int8-static", accuracy: Accuracy | None = None) -> ManifestVariant:
    return ManifestVariant.model_construct(
        id="x",
        recipe=recipe,
        accuracy=accuracy or NotMeasured(reason="no samples"),
        simulated=None,
    )


def test_pruned_is_what_settings_cannot_make_up_for() -> None:
    screened = {
        "fast": Screened(entry(), 10.0),
        "near": Screened(entry(), 10.0 * GAIN),
        "slow": Screened(entry("fp32"), 10.0 * GAIN + 0.1),
    }
    pruned = find_pruned(screened, Limits())
    assert pruned.keys() == {"slow"}
    assert "1.51 times as long as fast" in pruned["slow"]
    assert find_pruned({}, Limits()) == {}


def test_variant_that_loses_too_much_is_no_measure_for_the_others() -> None:
    poor = example_accuracy(0.9, 20.0)
    screened = {
        "poor": Screened(entry(accuracy=poor), 1.0),
        "good": Screened(entry(accuracy=example_accuracy(0.985, 30.0)), 10.0),
        "fp32": Screened(entry("fp32", example_accuracy(0.9861, 200.0)), 14.0),
    }
    assert isinstance(poor.fp32, float)
    assert poor.drop == pytest.approx(poor.fp32 - 0.9)
    pruned = find_pruned(screened, Limits())
    assert pruned.keys() == {"poor"}
    assert "more than 1%; say in edgepack.yaml" in pruned["poor"]
    # A limit of the project's is the build's to judge, and what it shipped is within it.
    assert find_pruned(screened, Limits(metric_drop=0.2)).keys() == {"good", "fp32"}


def times(ms: float) -> RunTimes:
    return RunTimes(p50_ns=round(ms * 1e6), p90_ns=round(ms * 1.1e6))


def test_journal_gives_back_what_was_written_in_order_and_once(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "runs.jsonl"
    first = Journal(path)
    assert first.take("a") is None
    for key, ms in (("a", 1), ("b", 2), ("a", 3)):
        first.add(JournaledRun(key=key, found=times(ms), took_s=0.5))
    first.add(JournaledRun(key="c", problem="it crashed", took_s=0.1))
    again = Journal(path)
    assert [again.take(key) for key in ("a", "a", "a")] == [
        JournaledRun(key="a", found=times(1), took_s=0.5),
        JournaledRun(key="a", found=times(3), took_s=0.5),
        None,
    ]
    taken = again.take("c")
    assert taken is not None
    assert (taken.problem, again.taken) == ("it crashed", 3)
    again.drop()
    assert not path.exists()


def test_journal_that_was_cut_off_in_a_line_goes_on_behind_the_last_whole_one(
    tmp_path: Path,
) -> None:
    path = tmp_path / "runs.jsonl"
    Journal(path).add(JournaledRun(key="a", found=times(1), took_s=1))
    with path.open("a") as file:
        file.write('{"key": "b", "fou')
    second = Journal(path)
    second.add(JournaledRun(key="c", found=times(2), took_s=1))
    third = Journal(path)
    assert [bool(third.take(key)) for key in ("a", "b", "c")] == [True, False, True]


def test_journal_that_was_cut_off_in_a_character_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    Journal(path).add(JournaledRun(key="a", problem="größer\u2028als", took_s=1))
    with path.open("ab") as file:
        file.write('{"key": "ö'.encode()[:-1])
    taken = Journal(path).take("a")
    assert taken is not None
    assert taken.problem == "größer\u2028als"


def test_journal_without_a_file_writes_nothing_down() -> None:
    nothing = Journal(None)
    nothing.add(JournaledRun(key="a", found=times(1), took_s=1))
    assert nothing.take("a") is None
    nothing.drop()


@pytest.mark.parametrize(
    ("samples", "interval", "limits", "needed"),
    [
        (360, (-0.0027, 0.0083), Limits(), ""),
        (360, (-0.0172, 0.0228), Limits(metric_drop=0.01), "about 1440 would"),
        (360, (-0.0172, 0.0228), Limits(metric_drop=0.03), ""),
        (40, (0.0, 0.0), Limits(metric_drop=0.01), "about 300 would"),
        (400, (0.0, 0.0), Limits(metric_drop=0.01), ""),
    ],
)
def test_samples_that_cannot_tell_the_loss_say_how_many_would(
    samples: int, interval: tuple[float, float], limits: Limits, needed: str
) -> None:
    found = example_accuracy(0.9833, 24.3).model_copy(
        update={"samples": samples, "drop_interval": interval}
    )
    told = explain_few_samples(found, limits)
    assert (needed in told) if needed else told == ""
