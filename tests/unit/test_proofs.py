"""The measures of ``make proofs``: what is right says all, and a constant says nothing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.proofs.judging import CLEARLY, Found, judge
from tests.proofs.mutations import is_equivalent, is_harmful, mutants
from tests.proofs.net import Net
from tests.proofs.objects import Found as Object
from tests.proofs.objects import Objects, f1
from tests.proofs.readings import (
    Classes,
    Embedding,
    Mask,
    Probability,
    Signal,
    Skill,
    Tokens,
    Value,
    r2,
)
from tests.proofs.running import collect
from tests.proofs.shipped import Bundle, Wanted, meets_goldens

PROOFS = Path(__file__).resolve().parents[1] / "proofs"

COUNT = 40


def outputs(seed: int, *shape: int) -> list[np.ndarray]:
    return list(np.random.default_rng(seed).standard_normal((COUNT, 1, *shape)))


CASES = [
    (Value(), outputs(1, 3)),
    (Classes(), outputs(2, 6)),
    (Probability(0.0), outputs(3)),
    (Mask(), outputs(4, 8, 8)),
    (Embedding(), outputs(5, 16)),
    (Tokens(), [np.floor(2 * values).astype(int) for values in outputs(6, 9)]),
    (Signal(window=8), outputs(7, 64)),
]
KINDS = [type(reading).__name__ for reading, _ in CASES]


def constant_of(reference: list[np.ndarray]) -> list[np.ndarray]:
    """Return the mean for every sample; of integers the first sample."""
    mean = np.mean(reference, axis=0)
    return [mean if reference[0].dtype.kind == "f" else reference[0]] * len(reference)


@pytest.mark.parametrize(("reading", "reference"), CASES, ids=KINDS)
def test_reading_of_the_same_outputs_says_all(reading, reference):
    skill = reading.skill(reference, [values.copy() for values in reference])
    assert skill.share == pytest.approx(1)
    assert skill.lost_points == pytest.approx(0)


@pytest.mark.parametrize(("reading", "reference"), CASES, ids=KINDS)
def test_reading_of_a_constant_says_nothing(reading, reference):
    assert reading.skill(reference, constant_of(reference)).share < CLEARLY


@pytest.mark.parametrize(("reading", "reference"), CASES, ids=KINDS)
def test_reading_of_other_samples_outputs_says_nothing(reading, reference):
    assert reading.skill(reference, reference[1:] + reference[:1]).share < CLEARLY


def test_score_around_three_has_a_constants_r2_where_the_mean_is_said():
    score = [3 + 0.1 * values for values in outputs(8, 1)]
    assert r2(score, constant_of(score)) == pytest.approx(0)
    assert r2(score, [values + 0.01 for values in score]) > 0.98


def test_rare_yes_that_is_never_said_is_no_better_than_a_constant():
    said = [np.array([[float(k % 20 == 0)]]) for k in range(COUNT)]
    never = [0.4 * values for values in said]
    skill = Probability().skill(said, never)
    assert skill.share == 0
    assert skill.r2 > 0.5


def test_windows_of_silence_do_not_count():
    quiet = np.zeros((1, 64))
    loud = outputs(9, 64)
    half = [np.concatenate([values, quiet], axis=1) for values in loud]
    wrong_in_silence = [values.copy() for values in half]
    for values in wrong_in_silence:
        values[:, 64:] += 0.01
    assert Signal(window=8).skill(half, wrong_in_silence).measure == pytest.approx(1)


def test_edit_distance_of_collapsed_tokens():
    reading = Tokens(blank=0)
    ours = [np.array([1, 1, 0, 2, 2, 3]), np.array([2, 0, 0, 2, 1, 1])]
    theirs = [np.array([1, 0, 0, 2, 3, 3]), np.array([2, 0, 0, 3, 1, 1])]
    assert reading.skill(ours, theirs).measure == pytest.approx((1 + 2 / 3) / 2)


def test_objects_of_another_class_or_place_are_not_the_same():
    box = np.array([0.0, 0, 10, 10])
    one = [[Object(1, 0.9, box)]]
    assert f1(one, [[Object(1, 0.5, box + 1)]]) == 1
    assert f1(one, [[Object(2, 0.9, box)]]) == 0
    assert f1(one, [[Object(1, 0.9, box + 8)]]) == 0
    assert f1(one, [[]]) == 0


def test_dead_detector_says_nothing():
    random = np.random.default_rng(10)
    alive = [
        {
            "boxes": np.array([0, 0, 60, 60]) + random.uniform(0, 50, (4, 4)),
            "scores": random.random((4, 2)),
        }
        for _ in range(COUNT)
    ]
    dead = [{**each, "scores": 0.3 * each["scores"]} for each in alive]
    reading = Objects(lambda found: (found["boxes"], found["scores"]))
    assert reading.skill(alive, alive).share == pytest.approx(1)
    assert reading.skill(alive, dead).share <= 0


def test_mutant_is_equivalent_only_within_noise():
    own = {"y": outputs(11, 5)}
    noisy = {"y": [values * (1 + 1e-6) for values in own["y"]]}
    nearly = {"y": [values + 1e-3 for values in own["y"]]}
    changed = {"y": [values + 0.05 for values in own["y"]]}
    assert is_equivalent(own, noisy, nearly)
    assert not is_equivalent(own, noisy, changed)
    assert not is_harmful(own, changed)
    assert is_harmful(own, {"y": own["y"][1:] + own["y"][:1]})


def test_goldens_with_a_limit_of_an_outputs_own_go_by_it():
    expected = {"score": np.full((1, 4), 3.0, np.float32)}
    found = {"score": [expected["score"] + np.float32(0.1)]}
    assert meets_goldens([({}, expected, {"score": whole(20.0, 1)})], found)
    assert not meets_goldens([({}, expected, {"score": whole(40.0, 1)})], found)
    some = {"score": expected["score"].reshape(-1)[::2]}
    assert meets_goldens([({}, some, {"score": whole(20.0, 2)})], found)


def whole(sqnr_db: float, stride: int) -> Wanted:
    return Wanted([sqnr_db], stride, [0], 1)


def test_golden_of_several_quantities_is_met_by_each():
    boxes, scores = np.full((1, 4, 5), 300.0), np.full((1, 3, 5), 0.5)
    golden = np.concatenate([boxes, scores], axis=1)
    weak = {"y": [np.concatenate([boxes, 0.3 * scores], axis=1)]}
    assert meets_goldens([({}, {"y": golden}, {"y": whole(20.0, 1)})], weak)
    each = Wanted([20.0, 20.0], 1, [0, 0, 0, 0, 1, 1, 1], 5)
    assert not meets_goldens([({}, {"y": golden}, {"y": each})], weak)
    assert meets_goldens([({}, {"y": golden}, {"y": each})], {"y": [golden * 1.01]})


def test_golden_tensor_may_want_more_than_the_variant_and_hold_some_values(tmp_path):
    values = np.ones((1, 2), np.float32)
    (tmp_path / "t.bin").write_bytes(values.tobytes())
    tensor = {"name": "x", "path": "t.bin", "dtype": "float32", "shape": [1, 2]}
    outputs = [{**tensor, "name": "a"}, {**tensor, "name": "b", "extra_db": 35.0, "stride": 2}]
    manifest = {
        "target": "t",
        "variants": [{"id": "v", "min_sqnr_db": 20.0}],
        "goldens": [{"inputs": [tensor], "outputs": {"v": outputs}}],
    }
    ((inputs, expected, limits),) = Bundle(tmp_path, manifest).goldens("v")
    assert np.array_equal(inputs["x"], values)
    assert sorted(expected) == ["a", "b"]
    assert limits == {"a": whole(20.0, 1), "b": whole(55.0, 2)}


def test_mutants_are_one_weight_one_channel_and_swapped_outputs(tmp_path):
    random = np.random.default_rng(14)
    net = Net(14, x=random.standard_normal((4, 8)).astype(np.float32))
    given = random.standard_normal((8, 8))
    product = net.add("MatMul", "x", net.constant(given))
    path = net.save(tmp_path / "model.onnx", one=product, other=net.add("Relu", product))
    feeds = [{"x": net.samples["x"][:1]}]
    own = collect(path, feeds)
    found = {what: collect(m.SerializeToString(), feeds) for what, m in mutants(onnx.load(path))}
    mirrored, cleared, swapped = found.values()
    assert np.count_nonzero(mirrored["one"][0] != own["one"][0]) == 1
    assert np.count_nonzero(cleared["one"][0] == 0) == 1
    assert np.array_equal(swapped["one"][0], own["other"][0])
    assert np.array_equal(swapped["other"][0], own["one"][0])


class _Variant:
    """A shipped variant of which the manifest claims a loss."""

    def __init__(self, model, claimed):
        self.model = model
        self.entry = {"accuracy": {}}
        self.claim = "claimed"
        self.claimed_loss = lambda _: claimed
        self.claimed_r2 = lambda _: 1 - claimed / 100


@pytest.mark.parametrize(
    ("noise", "claimed", "broken", "weak"),
    [(0.05, 1, False, False), (0.6, 50, False, True), (0.6, 5, True, False), (2, 500, True, False)],
)
def test_variant_is_broken_where_it_says_nothing_or_less_than_was_claimed(
    monkeypatch, noise, claimed, broken, weak
):
    reference = outputs(12, 8)
    random = np.random.default_rng(13)
    changed = [values + noise * random.standard_normal(values.shape) for values in reference]
    monkeypatch.setattr("tests.proofs.judging.collect", lambda *_: {"y": changed})
    made = type(
        "Made", (), {"unseen": [], "state": {}, "readings": {"y": Value()}, "objects": None}
    )
    found: Found = judge(_Variant("", claimed), made, {"y": reference})
    assert (bool(found.broken), bool(found.weak)) == (broken, weak)
    assert found.below_claim == {"y": found.worst.r2 < 1 - claimed / 100}


def test_what_judges_is_independent_of_edgepack():
    calls_it = {"building.py", "planting.py", "planted_steps.py"}
    for path in PROOFS.glob("*.py"):
        lines = path.read_text(encoding="utf-8").splitlines()
        imports = [line for line in lines if line.startswith(("from edgepack", "import edgepack"))]
        assert not imports or path.name in calls_it, f"{path.name}: {imports}"


def test_share_is_between_the_constant_and_fp32():
    assert Skill(0.9, 0.8, None, "").share == pytest.approx(0.5)
