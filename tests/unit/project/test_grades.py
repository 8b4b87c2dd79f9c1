"""A grade is what the recorded evidence shows, and no more."""

from __future__ import annotations

import pytest
from edgepack.base.resources import find_targets_dir
from edgepack.project.grades import (
    GRADES,
    HOW,
    Evidence,
    find_best_evidence,
    find_target_grade,
    read_evidence,
)
from edgepack.project.profile import load_profile

SEEN = {"id": "cpu-fp32", "golden_sqnr_db": 120.0, "nodes": {"CPUExecutionProvider": 3}}


def evidence(how: str = "device", verdict: str = "VALID", **changes) -> Evidence:
    return Evidence.model_validate_json(
        Evidence.model_construct(
            schema_version=1,
            target="raspberry-pi",
            how=how,
            date="2026-11-21",
            os="linux",
            arch="aarch64",
            device="Raspberry Pi 5",
            runtime={"onnxruntime": "1.31.1"},
            model="digits",
            variants=[{**SEEN, "verdict": verdict}],
            reproduce="edgepack bench",
            **changes,
        ).model_dump_json(warnings=False)
    )


def test_evidence_when_shipped_is_read_and_names_known_targets_and_variants():
    for seen in read_evidence():
        known = {variant.id for variant in load_profile(seen.target).variants}
        assert {variant.id for variant in seen.variants} <= known


def test_grade_when_there_is_no_evidence_is_none():
    assert find_best_evidence(load_profile("raspberry-pi"), []) is None
    assert find_best_evidence(load_profile("raspberry-pi-acl"), [evidence()]) is None


def test_grade_when_there_are_several_is_that_of_the_best():
    emulated = evidence("emulation", "INVALID")
    best = find_best_evidence(load_profile("raspberry-pi"), [emulated, evidence()])
    assert best is not None
    assert best.grade == "verified"
    assert find_best_evidence(load_profile("raspberry-pi"), [emulated]) == emulated


def test_grade_when_code_was_compiled_for_another_system_is_below_compiled():
    elsewhere, compiled = (
        evidence(how, "not measured") for how in ("compiler-elsewhere", "compiler")
    )
    assert find_best_evidence(load_profile("raspberry-pi"), [elsewhere, compiled]) == compiled
    assert elsewhere.grade == "compiled-elsewhere"
    assert [*HOW.values(), "rendered"] == list(GRADES)


def test_phones_when_graded_claim_no_more_than_code_compiled_on_another_system():
    claimed = {e.target: e.grade for e in read_evidence() if e.os != "macos"}
    phones = {name: claimed[name] for name in ("ios", "android", "android-xnnpack")}
    assert set(phones.values()) == {"compiled-elsewhere"}


def test_grade_when_a_target_has_evidence_is_its_grade_for_the_shipped_profile_only(tmp_path):
    profile, seen = load_profile("raspberry-pi"), [evidence("emulation", "INVALID")]
    shipped = find_targets_dir() / "raspberry-pi.yaml"
    assert find_target_grade(profile, seen, shipped) == "emulated"
    assert find_target_grade(profile, [], shipped) == "rendered"
    assert find_target_grade(profile, seen, tmp_path / "raspberry-pi.yaml") == "rendered"


def test_device_when_it_is_another_kind_of_machine_shows_nothing():
    other = evidence().model_copy(update={"arch": "x86-64"})
    assert find_best_evidence(load_profile("raspberry-pi"), [other]) is None


@pytest.mark.parametrize(
    ("how", "verdict", "problem"),
    [
        ("device", "INCONCLUSIVE", "no measurement is VALID"),
        ("emulation", "VALID", "emulated time cannot be VALID"),
    ],
)
def test_evidence_when_it_claims_more_than_it_shows_is_refused(how, verdict, problem):
    with pytest.raises(ValueError, match=problem):
        evidence(how, verdict)
