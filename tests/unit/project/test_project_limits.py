"""Limits in the project file: of the project, of targets, of devices, and which win."""

from __future__ import annotations

from pathlib import Path

import pytest
from edgepack.errors import ProfileError
from edgepack.project.limits import Limits
from edgepack.project.loading import LoadedProject, read_project

HEAD = "schema_version: 1\nname: net\nmodel: net.onnx\n"
SAMPLES = "samples: {evaluation: {path: evaluation.npz}}\n"


def read(folder: Path, text: str) -> LoadedProject:
    path = folder / "edgepack.yaml"
    path.write_text(HEAD + text, encoding="utf-8")
    return read_project(path)


def test_limits_of_a_device_win_over_the_targets_which_win_over_the_projects(
    tmp_path: Path,
) -> None:
    loaded = read(
        tmp_path,
        "limits: {p50_ms: 30, size_mb: 8, memory_mb: 200}\n"
        "targets: [{id: raspberry-pi, limits: {p50_ms: 40, p99_ms: 60}}, jetson]\n"
        "devices: {pi5: {limits: {p50_ms: 20}}}\n",
    )
    assert loaded.find_limits("jetson").given == {"p50_ms": 30, "size_mb": 8, "memory_mb": 200}
    beside = {"size_mb": 8, "memory_mb": 200, "p99_ms": 60}
    assert loaded.find_limits("raspberry-pi").given == {"p50_ms": 40} | beside
    assert loaded.find_limits("raspberry-pi", "pi4").given == {"p50_ms": 40} | beside
    assert loaded.find_limits("raspberry-pi", "pi5").given == {"p50_ms": 20} | beside


def test_limit_is_taken_away_from_one_device_by_null(tmp_path: Path) -> None:
    loaded = read(
        tmp_path,
        "limits: {energy_mj: 30, p50_ms: 8}\ndevices: {old: {limits: {energy_mj: null}}}\n",
    )
    assert loaded.find_limits("jetson", "old").given == {"p50_ms": 8}
    assert loaded.find_limits("jetson", "new").given == {"energy_mj": 30, "p50_ms": 8}


def test_limits_of_a_target_by_another_of_its_names_are_its_own(tmp_path: Path) -> None:
    loaded = read(tmp_path, "targets: [{id: linux-x86-64, limits: {p50_ms: 40}}]\n")
    assert loaded.find_limits("linux-x86-64") == Limits(p50_ms=40)
    assert loaded.project.named_variants == {}


@pytest.mark.parametrize(
    ("text", "problem", "hint"),
    [
        ("limits: {p50_ms: 30, p99_ms: 20}", "p50_ms: 30 is above p99_ms: 20", "swap them"),
        ("limits: {load_ms: 30, first_ms: 20}", "load_ms: 30 is above first_ms: 20", "swap"),
        (
            "limits: {metric_at_least: 0.5, metric_at_most: 0.9}\n" + SAMPLES,
            "both given",
            "which values are good",
        ),
        ("limits: {p50_ms: 0}", "'p50_ms' cannot be 0", "0"),
        ("limits: {p50_ms: .inf}", "'p50_ms' cannot be inf", ""),
        ("limits: {p50: 3}", "p50", "p50_ms"),
        ("limits: {metric_at_least: 0.9}", "no evaluation samples", "evaluation.npz"),
        (
            "devices: {pi5: {limits: {metric_drop: 0.1}}}",
            "no evaluation samples",
            "evaluation.npz",
        ),
    ],
)
def test_limits_that_cannot_be_met_or_judged_are_refused(
    tmp_path: Path, text: str, problem: str, hint: str
) -> None:
    with pytest.raises(ProfileError) as caught:
        read(tmp_path, text)
    assert problem in caught.value.problem
    assert hint in caught.value.hint


def test_limits_of_a_device_that_contradict_its_targets_are_refused_where_they_stand(
    tmp_path: Path,
) -> None:
    loaded = read(
        tmp_path,
        "targets: [{id: jetson, limits: {p99_ms: 20}}]\ndevices: {orin: {limits: {p50_ms: 30}}}\n",
    )
    assert loaded.find_limits("jetson").given == {"p99_ms": 20}
    with pytest.raises(ProfileError, match="p50_ms: 30 is above p99_ms: 20") as caught:
        loaded.find_limits("jetson", "orin")
    assert caught.value.hint == "swap them, or leave p50_ms out"
    assert caught.value.where.endswith("edgepack.yaml:5:18")


def test_limits_of_speed_alone_need_no_samples(tmp_path: Path) -> None:
    loaded = read(tmp_path, "limits: {p50_ms: 30, size_mb: 2}\n")
    assert not loaded.project.limits.need_samples
    assert Limits(metric_at_most=0.2).need_samples
