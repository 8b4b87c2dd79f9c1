"""What a search keeps, in which order it tries, and where it ends; judged by made-up models."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from edgepack.errors import ModelError, StepError
from edgepack.project.limits import Limits
from edgepack.quantization.search.closeness import ModelCloseness
from edgepack.quantization.search.costs import Costs, PlaceStretch
from edgepack.quantization.search.outside import BrokenOutput
from edgepack.quantization.search.scheme import Scheme
from edgepack.quantization.search.search import (
    MOST_MEASURED,
    Measured,
    Method,
    SchemeTrial,
    Search,
    SearchLine,
    describe,
)
from onnx import TensorProto, helper, numpy_helper

NODES = ("a", "b", "c", "d", "e", "f", "g", "h")


def weights(value):
    """Eight nodes, each with a weight of its own."""
    nodes = [helper.make_node("Mul", [f"x{n}", f"w{n}"], [f"x{n}'"], n) for n in NODES]
    value_info = helper.make_tensor_value_info("xa", TensorProto.FLOAT, [1])
    constants = [numpy_helper.from_array(np.array([value], np.float32), f"w{n}") for n in NODES]
    graph = helper.make_graph(nodes, "g", [value_info], [value_info], constants)
    return helper.make_model(graph)


@dataclass
class MadeUp:
    """Quantized models whose closeness is a sum: a base, and what each node gains when float."""

    folder: object
    base_db: float
    gains: dict[str, float] = field(default_factory=dict)
    drop_per_db: float = 0.01
    refused: int = len(NODES)
    """So many nodes left float are too many for the target."""
    files: int = 0
    measured: list[float] = field(default_factory=list)
    shares: dict[str, float] = field(default_factory=dict)
    """What places are said to cost; without, what they gain."""
    fit_db: float = 0.0
    """What fitted weights gain."""
    refitted: int = 0

    def level(self, scheme):
        extra = sum(float(scale) for scale in scheme.weight_scales.values())
        lone = sum(self.gains.get(name, 0.0) for name in scheme.unpaired | scheme.wide)
        return self.base_db + extra + lone + sum(self.gains.get(n, 0.0) for n in scheme.left)

    def make(self, scheme, *, fitted=False):
        if len(scheme.left) >= self.refused:
            return None
        if fitted:
            scheme = self.fitted(scheme)
        self.files += 1
        path = self.folder / str(self.files) / "model.onnx"
        path.parent.mkdir()
        path.write_bytes(b"")
        noise = np.full((10, 1), 10 ** (-self.level(scheme) / 10))
        return SchemeTrial(
            scheme, path, ModelCloseness(np.ones((10, 1)), noise, np.full(1, 10.0), (0,), None)
        )

    def compare(self, trial, other):
        return trial.closeness.judge(other.closeness)

    def fitted(self, scheme):
        self.refitted += 1
        return replace(scheme, weight_scales={"fitted": np.float32(self.fit_db)})

    def measure_costs(self, trial):
        """Nodes that gain cost more than tensors that gain, and these more than what gains 0."""
        del trial
        nodes = [PlaceStretch((n,), self.cost(n, 2.0)) for n in NODES]
        tensors = [PlaceStretch((t,), self.cost(t, 1.0)) for t in ("t", "v")]
        return Costs(tuple(nodes), (*tensors, PlaceStretch(("u",), 0.0)))

    def cost(self, place, most):
        if self.shares:
            return self.shares.get(place, 0.01)
        return most * max(0.01, self.gains.get(place, 0.0))

    def measure(self, trial):
        level = self.level(trial.scheme)
        self.measured.append(level)
        return Measured(max(0.0, (30 - level) * self.drop_per_db), level)


def search_of(maker, *, mixed=False):
    exact = weights(0.5)
    return Search(maker, maker.make(Scheme(exact, exact, {})), mixed=mixed)


def method(what, *gains):
    """Alternatives that gain so many dB each, whatever they are put on."""
    return Method(
        what,
        lambda scheme: [
            replace(scheme, weight_scales={**scheme.weight_scales, what: np.float32(gain)})
            for gain in gains
        ],
    )


def test_improve_when_methods_help_or_hurt_keeps_those_that_help(tmp_path):
    maker = MadeUp(tmp_path, 10)
    search = search_of(maker)
    search.improve([method("good", 3), method("bad", -1), method("none"), method("two", 1, 2)])
    assert set(search.best.scheme.weight_scales) == {"good", "two"}
    assert search.best.closeness.sqnr_db == pytest.approx(15)
    assert [(each.what, each.accepted) for each in search.tried[1:]] == [
        ("good", True),
        ("bad", False),
        ("two", True),
        ("two", True),
    ]


def test_improve_when_a_method_fails_says_so_and_goes_on(tmp_path):
    def fail(scheme):
        raise StepError("it met its end", hint="")

    search = search_of(MadeUp(tmp_path, 10))
    search.improve([Method("bold", fail), method("good", 3)])
    assert str(search.tried[1]) == "bold failed, it met its end"
    assert search.tried[2].accepted


def test_optional_when_it_fails_says_so_and_hides_no_bug(tmp_path):
    search = search_of(MadeUp(tmp_path, 10))
    with search.optional("choosing"):
        raise ModelError("it does not run", hint="")
    with pytest.raises(TypeError), search.optional("choosing"):
        raise TypeError
    assert [str(each) for each in search.tried] == ["choosing failed, it does not run"]


def test_improve_when_done_leaves_the_best_model_alone_on_disk(tmp_path):
    search = search_of(MadeUp(tmp_path, 10))
    search.improve([method("good", 3), method("bad", -1), method("better", 1)])
    assert list(tmp_path.rglob("model.onnx")) == [search.best.path]


def test_signal_when_it_is_there_tries_nothing(tmp_path):
    maker = MadeUp(tmp_path, 2)
    search_of(maker).require_signal()
    assert maker.files == 1


def test_signal_when_it_is_noise_is_repaired_with_as_few_float_nodes_as_do(tmp_path):
    maker = MadeUp(tmp_path, -5, dict.fromkeys(NODES, 8.0))
    search = search_of(maker)
    search.require_signal()
    assert set(search.best.scheme.left) == {"a", "b"}, "the two with the largest losses"
    assert maker.refitted == 1


def test_signal_when_16_bits_bring_it_back_leaves_nothing_float(tmp_path):
    search = search_of(MadeUp(tmp_path, -5, {"t": 8.0, "v": 8.0, "a": 30.0}), mixed=True)
    search.require_signal()
    assert search.best.scheme.wide == {"t", "v"}
    assert not search.best.scheme.left


def test_signal_when_16_bits_do_not_bring_it_back_leaves_nodes_float(tmp_path):
    search = search_of(MadeUp(tmp_path, -5, {"t": 1.0, "a": 30.0}), mixed=True)
    search.require_signal()
    assert set(search.best.scheme.left) == {"a"}


def test_signal_when_it_stays_noise_is_refused_with_what_was_tried(tmp_path):
    search = search_of(MadeUp(tmp_path, -5, dict.fromkeys(NODES, 1.0)))
    with pytest.raises(
        StepError, match=r"int8 gives noise.*\(-5\.0 dB\); tried: .*float: 'a'"
    ) as no:
        search.require_signal()
    assert "--variant cpu-fp32" in no.value.hint


def test_signal_when_nothing_brings_it_back_fits_no_weights_again(tmp_path):
    maker = MadeUp(tmp_path, -5)
    with pytest.raises(StepError, match="int8 gives noise"):
        search_of(maker).require_signal()
    assert maker.refitted == 0


def test_signal_when_the_target_takes_no_more_float_nodes_is_refused(tmp_path):
    search = search_of(MadeUp(tmp_path, -5, dict.fromkeys(NODES, 3.0), refused=2))
    with pytest.raises(StepError, match="int8 gives noise"):
        search.require_signal()


def test_approach_when_outputs_are_near_tries_nothing(tmp_path):
    maker = MadeUp(tmp_path, 26)
    search_of(maker).approach(25)
    assert maker.files == 1


def test_approach_when_a_little_float_is_enough_leaves_what_costs_predict(tmp_path):
    # Without 'd' and 'b' a quarter of the error is left, which is 6 dB less.
    maker = MadeUp(tmp_path, 20, {"d": 4.0, "b": 2.0}, shares={"d": 0.5, "b": 0.25, "c": 0.2})
    search = search_of(maker)
    search.approach(25.5)
    assert set(search.best.scheme.left) == {"d", "b"}
    assert not search.best.scheme.unpaired
    assert maker.files == 2, "what was there, and one attempt"
    assert list(tmp_path.rglob("model.onnx")) == [search.best.path]


def test_approach_when_16_bits_are_taken_leaves_nothing_float(tmp_path):
    tensors = tuple(PlaceStretch((f"t{n}",), 10.0**-n) for n in range(8))

    class OfManyTensors(MadeUp):
        def measure_costs(self, trial):
            return replace(super().measure_costs(trial), tensors=tensors)

    search = search_of(OfManyTensors(tmp_path, 20, {"t0": 4.0}), mixed=True)
    search.approach(23)
    assert search.best.scheme.wide == {"t0"}
    assert not search.best.scheme.left
    assert not search.best.scheme.unpaired


def test_approach_when_weights_are_what_costs_tries_no_16_bits(tmp_path):
    tensors = tuple(PlaceStretch((f"t{n}",), 0.01 * 10.0**-n) for n in range(8))

    class OfManyTensors(MadeUp):
        def measure_costs(self, trial):
            return replace(super().measure_costs(trial), tensors=tensors)

    maker = OfManyTensors(tmp_path, 20, {"a": 30.0}, shares={"a": 0.9})
    search = search_of(maker, mixed=True)
    search.approach(23)
    assert maker.files == 1
    assert not search.best.scheme.left


def test_approach_when_costs_promise_too_much_takes_more(tmp_path):
    gains = {"d": 1.0, "b": 4.0}
    maker = MadeUp(tmp_path, 20, gains, shares={"d": 0.7, "b": 0.2, "c": 0.05})
    search = search_of(maker)
    search.approach(25)
    assert set(search.best.scheme.left) == {"d", "b"}
    assert [each.accepted for each in search.tried] == [True, True]


def test_approach_when_it_stays_far_takes_what_gains_a_decibel_with_each_doubling(tmp_path):
    shares = {"a": 0.4, "b": 0.15, "c": 0.02, "d": 0.02}
    search = search_of(MadeUp(tmp_path, 10, dict.fromkeys("abcd", 2.0), shares=shares))
    search.approach(40)
    # 10 places: one leaves 0.6 of the error, two leave 0.45, which is 1.2 dB less.
    assert set(search.best.scheme.left) == {"a", "b"}
    assert all(each.on == "calibration" for each in search.tried)


def test_approach_when_float_gains_nothing_is_not_kept(tmp_path):
    search = search_of(MadeUp(tmp_path, 10, {}, shares={"a": 0.9}))
    search.approach(25)
    assert not search.best.scheme.left
    assert not search.tried[-1].accepted


def test_limit_when_met_at_once_measures_once(tmp_path):
    maker = MadeUp(tmp_path, 25)
    search = search_of(maker)
    search.meet(Limits(metric_drop=0.06))
    assert maker.measured == [25]
    assert not search.best.scheme.left


def test_limit_when_missed_leaves_float_what_gains_most_first(tmp_path):
    maker = MadeUp(tmp_path, 20, {"d": 4.0, "b": 1.0})
    search = search_of(maker)
    search.meet(Limits(metric_drop=0.07))
    assert list(search.best.scheme.left) == ["d"], "not 'a', whose own error is the largest"
    assert search.tried[-1].accepted
    assert search.tried[-1].metric_drop == pytest.approx(0.06)
    assert maker.refitted == 0, "no weights were fitted before"


def test_limit_when_weights_were_fitted_fits_them_to_what_stays_quantized(tmp_path):
    maker = MadeUp(tmp_path, 20, {"d": 4.0}, fit_db=3)
    search = search_of(maker)
    search.improve([Method("fitted", lambda scheme: [maker.fitted(scheme)])])
    search.meet(Limits(metric_drop=0.04))
    assert list(search.best.scheme.left) == ["d"]
    assert maker.measured == [23, 27]
    assert maker.refitted == 2
    assert maker.files == 2 + 1, "those kept, and one rung"
    assert list(tmp_path.rglob("model.onnx")) == [search.best.path]


def test_limit_when_a_tensor_hurts_most_leaves_that_unquantized(tmp_path):
    search = search_of(MadeUp(tmp_path, 20, {"t": 9.0}))
    search.meet(Limits(min_sqnr_db=28))
    assert search.best.scheme.unpaired == {"t"}
    assert not search.best.scheme.left


def test_limit_when_16_bits_are_enough_leaves_nothing_float(tmp_path):
    maker = MadeUp(tmp_path, 20, {"t": 3.0, "v": 3.0, "a": 20.0})
    search = search_of(maker, mixed=True)
    search.meet(Limits(min_sqnr_db=25))
    assert search.best.scheme.wide == {"t", "v"}
    assert not search.best.scheme.left
    assert maker.measured == [20, 23, 26]


def test_limit_when_16_bits_gain_nothing_goes_on_to_float(tmp_path):
    maker = MadeUp(tmp_path, 20, {"a": 6.0})
    search = search_of(maker, mixed=True)
    search.meet(Limits(min_sqnr_db=25))
    assert not search.best.scheme.wide
    assert list(search.best.scheme.left) == ["a"]
    assert maker.measured == [20, 26]


def test_limit_when_16_bits_are_too_few_judges_places_against_them(tmp_path):
    maker = MadeUp(tmp_path, 20, {"t": 3.0, "v": 3.0, "a": -1.0, "d": 4.0})
    search = search_of(maker, mixed=True)
    search.meet(Limits(min_sqnr_db=50))
    # The others gain nothing alone, so they come in the order of their errors: 'a' is the largest.
    assert [each.what for each in search.tried if each.what.startswith("float")][:2] == [
        "float: 'd'",
        "float: 'd', 'a'",
    ]


def test_limit_when_a_large_step_meets_it_looks_for_a_smaller_one(tmp_path):
    maker = MadeUp(tmp_path, 20, {"a": 2.0, "b": 2.0, "c": 2.0})
    search = search_of(maker)
    search.meet(Limits(min_sqnr_db=26))
    assert set(search.best.scheme.left) == {"a", "b", "c"}
    assert maker.measured == [20, 22, 24, 26, 26], "none, then 1, 2, 4 and 3 places"


def test_limit_when_the_metric_gains_from_what_the_worst_output_loses_by_is_met(tmp_path):
    class OfAnotherOutput(MadeUp):
        def measure(self, trial):
            found = super().measure(trial)
            return replace(found, drop=0.0 if "a" in trial.scheme.left else 0.1)

    search = search_of(OfAnotherOutput(tmp_path, 20, {"a": -1.0}))
    search.meet(Limits(metric_drop=0.0))
    assert list(search.best.scheme.left) == ["a"]


def test_limit_when_there_are_many_places_reaches_the_most_with_few_measurements(tmp_path):
    tensors = tuple(PlaceStretch((f"t{n}",), 1 / (n + 1)) for n in range(200))

    class OfManyTensors(MadeUp):
        def measure_costs(self, trial):
            return replace(super().measure_costs(trial), tensors=tensors)

    gains = {each.places[0]: 0.1 for each in tensors}
    maker = OfManyTensors(tmp_path, 20, {**gains, **dict.fromkeys("abcd", 5.0)})
    search = search_of(maker, mixed=True)
    search.meet(Limits(min_sqnr_db=59.9))
    assert len(search.best.scheme.wide) == len(tensors)
    assert set(search.best.scheme.left) == set("abcd")
    assert len(maker.measured) <= MOST_MEASURED


def test_limit_when_the_metric_is_no_number_is_missed_and_writes_json(tmp_path):
    class WithoutMetric(MadeUp):
        def measure(self, trial):
            found = super().measure(trial)
            return replace(found, drop=found.drop if trial.scheme.left else np.nan)

    search = search_of(WithoutMetric(tmp_path, 20, {"d": 4.0}))
    search.meet(Limits(metric_drop=0.07))
    assert list(search.best.scheme.left) == ["d"]
    assert "as it is, with which the metric is no number: 20.0 dB" in describe(search.tried)
    json.dumps([each.make_facts() for each in search.tried], allow_nan=False)


def test_limit_when_out_of_reach_keeps_the_nearest_and_ends(tmp_path):
    maker = MadeUp(tmp_path, 10, {"b": 2.0, "c": -1.0})
    search = search_of(maker)
    search.meet(Limits(metric_drop=0.01))
    assert list(search.best.scheme.left) == ["b"]
    assert [each.what for each in search.tried if each.accepted][-1] == "float: 'b'"
    assert search.best.closeness.sqnr_db == pytest.approx(max(maker.measured))
    assert len(maker.measured) <= 5, "1, 2, 4 and 5 of 10 places at most, and none"
    assert list(tmp_path.rglob("model.onnx")) == [search.best.path]


def test_tried_when_written_says_what_was_kept_and_on_which_samples(tmp_path):
    maker = MadeUp(tmp_path, 20, {"b": 4.0}, fit_db=3)
    search = search_of(maker)
    search.improve([Method("fitted", lambda scheme: [maker.fitted(scheme)])])
    search.meet(Limits(metric_drop=0.04))
    facts = json.loads(json.dumps([each.make_facts() for each in search.tried]))
    assert facts[-1]["on"] == "evaluation"
    assert facts[-1]["metric_drop"] == pytest.approx(0.03)
    assert [SearchLine(**entry) for entry in facts] == [
        replace(t, **numbers(t)) for t in search.tried
    ]
    lines = describe(search.tried).split("; ")
    assert lines[1:3] == ["fitted: 23.0 dB (kept)", "as it is: metric drop 0.0700, 23.0 dB (kept)"]
    assert lines[-1] == "float: 'b': metric drop 0.0300, 27.0 dB (kept)"


def numbers(tried):
    facts = tried.make_facts()
    return {name: facts[name] for name in ("sqnr_db", "agreement", "metric_drop")}


def test_scheme_when_weights_are_exact_copies_no_model_to_leave_nodes_float():
    exact = weights(0.5)
    assert Scheme(exact, exact, {}).leave_float({"b": "first"}).model is exact


def test_scheme_when_nodes_are_left_float_has_their_exact_weights():
    exact, rounded = weights(0.5), weights(0.25)
    scheme = Scheme(exact, rounded, {}, left={"a": "first"}).leave_float(
        {"b": "second", "a": "third"}
    )
    values = {t.name: float(numpy_helper.to_array(t)[0]) for t in scheme.model.graph.initializer}
    found = {node.name: values[node.input[1]] for node in scheme.model.graph.node}
    assert found["b"] == 0.5
    assert found["c"] == 0.25
    assert found["a"] == 0.25, "it was left before, and is as the scheme had it"
    assert scheme.left == {"a": "first", "b": "second"}


@dataclass
class Broken:
    """What breaks models: the first one, and what was found anew."""

    before: list[float]
    after: list[float]
    asked: int = 0

    def find_errors(self, model):
        del model
        self.asked += 1
        errors = self.before if self.asked == 1 else self.after
        return [BrokenOutput(kind, "y", e, 0.1) for kind, e in zip(KINDS, errors, strict=False)]


KINDS = ("silence", "times 2", "noise")


@pytest.mark.parametrize(
    ("after", "gain_db", "left", "is_kept"),
    [
        ([], 0.0, (), True),
        ([4.0], 2.0, (), True),
        ([], -3.0, (), False),
        ([], 0.5, ("a",), False),
        ([], 3.0, ("a",), True),
        ([5.0, 1.0], 0.0, (), False),
        ([6.0], 0.0, (), False),
    ],
    ids=["free", "one mended", "farther", "more float", "worth it", "as many", "worse than any"],
)
def test_hold_anew_keeps_what_breaks_less_if_samples_lose_nothing(
    tmp_path, after, gain_db, left, is_kept
):
    maker = MadeUp(tmp_path, 20)
    search = search_of(maker)
    first, asked = search.best, []

    def anew(kinds):
        asked.append(kinds)
        scheme = replace(first.scheme, weight_scales={"found": np.float32(gain_db)})
        return maker.make(scheme.leave_float(dict.fromkeys(left, "it costs much")))

    search.hold_anew(Broken([5.0, 2.0], after), anew)
    assert asked == [["silence", "times 2"]]
    (tried,) = search.tried
    assert (search.best is not first, tried.accepted) == (is_kept, is_kept)
    assert tried.what == "all anew, with silence (zeros), samples times 2 among the samples"
    assert tried.why.startswith(f"{len(after)} outputs are broken, and 2 were before; ")
    assert ("less is in 8 bits" in tried.why) == bool(left)


def test_hold_anew_when_nothing_is_broken_searches_nothing(tmp_path):
    search = search_of(MadeUp(tmp_path, 20))
    search.hold_anew(Broken([], []), lambda kinds: pytest.fail(f"searched for {kinds}"))
    assert search.tried == []
