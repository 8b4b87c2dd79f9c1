"""A grade is what the recorded evidence shows, and no more."""

from __future__ import annotations

import pytest
from edgepack.base.resources import find_targets_dir
from edgepack.project.grades import (
    GRADES,
    HOW,
    Evidence,
    find_grades,
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


def grade(seen: list[Evidence], variant: str = "cpu-fp32", target: str = "raspberry-pi"):
    profile = load_profile(target)
    return find_grades(profile, seen, find_targets_dir() / f"{target}.yaml")[variant]


def test_grade_when_there_is_no_evidence_is_rendered():
    assert grade([]) == "rendered"
    assert grade([evidence()], target="raspberry-pi-acl") == "rendered"


def test_grade_when_there_are_several_is_that_of_the_best():
    seen = [evidence(how, "not measured") for how in ("compiler", "emulation", "simulator")]
    assert grade(seen[:1]) == "compiled"
    assert grade(seen[:2]) == "emulated"
    assert grade(seen) == "simulated"
    assert grade([*seen, evidence()]) == "verified"
    assert [*HOW.values(), "rendered"] == list(GRADES)


def test_grade_when_another_variant_ran_is_not_this_ones():
    assert grade([evidence()], "cpu-int8-static") == "rendered"


def test_grade_when_a_variants_measurement_was_not_valid_is_not_verified():
    seen = evidence()
    other = seen.variants[0].model_copy(update={"id": "cpu-int8-static", "verdict": "INVALID"})
    both = seen.model_copy(update={"variants": [*seen.variants, other]})
    assert (grade([both]), grade([both], "cpu-int8-static")) == ("verified", "rendered")


def test_grade_when_code_was_compiled_is_that_of_every_variant():
    code = evidence("compiler", "not measured").model_copy(update={"variants": []})
    assert (grade([code]), grade([code], "cpu-int8-static")) == ("compiled", "compiled")


def test_phones_when_graded_claim_no_more_than_a_compiler_or_a_simulator():
    phones: dict[str, set[str]] = {}
    for seen in read_evidence():
        phones.setdefault(seen.target, set()).add(seen.how)
    for name in ("ios", "android-nnapi", "android-xnnpack"):
        assert phones[name] == {"compiler"}
    assert phones["android-qnn"] == {"simulator"}
    assert phones["android"] == {"simulator", "compiler"}


def test_grade_when_the_profile_is_not_the_shipped_one_is_rendered(tmp_path):
    profile, seen = load_profile("raspberry-pi"), [evidence("emulation", "INVALID")]
    shipped = find_targets_dir() / "raspberry-pi.yaml"
    assert find_grades(profile, seen, shipped)["cpu-fp32"] == "emulated"
    assert find_grades(profile, seen, tmp_path / "raspberry-pi.yaml")["cpu-fp32"] == "rendered"


def test_device_when_it_is_another_kind_of_machine_shows_nothing():
    assert grade([evidence().model_copy(update={"arch": "x86-64"})]) == "rendered"


@pytest.mark.parametrize(
    ("how", "verdict", "problem"),
    [
        ("device", "INCONCLUSIVE", "no measurement is VALID"),
        ("emulation", "VALID", "only a device's time can be VALID"),
        ("simulator", "VALID", "only a device's time can be VALID"),
    ],
)
def test_evidence_when_it_claims_more_than_it_shows_is_refused(how, verdict, problem):
    with pytest.raises(ValueError, match=problem):
        evidence(how, verdict)
