"""What places cost: where each one is known, and in chains of products, held against numpy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx
import pytest
from edgepack.quantization.qdq.preparation import prepare_model
from edgepack.quantization.qdq.writer import QdqWriter
from edgepack.quantization.search.closeness import Chosen, FloatOutputs, HeldOut
from edgepack.quantization.search.costs import Costs, PlaceStretch, find_costs, measure_costs
from onnx import TensorProto, helper

from tests.support.nets import int8_nets, tiny_models

FLOAT = np.float32
PER_TENSOR = int8_nets.dialect("uint8", "int8", per_channel=False)


def asked(costs):
    """Return a cost function that adds up known costs, and the list of what it is asked for."""
    calls = []

    def cost(places):
        calls.append(tuple(places))
        return float(sum(costs[place] for place in places))

    return cost, calls


def test_costs_when_one_place_costs_nearly_all_finds_it_in_few_runs():
    costs = dict.fromkeys((f"t{n:03}" for n in range(256)), 0.001) | {"t077": 5.0}
    cost, calls = asked(costs)
    found = find_costs(sorted(costs), cost, most_runs=17)
    # One run for all, and two for each of the eight halvings of 256.
    assert len(calls) == 17
    assert found[0] == PlaceStretch(("t077",), 5.0)


def test_costs_when_runs_are_enough_gives_each_place_alone_in_order():
    costs = {"a": 1.0, "b": 3.0, "c": 0.5, "d": 2.0, "e": 0.25}
    cost, calls = asked(costs)
    found = find_costs(list(costs), cost, most_runs=100)
    assert [each.places for each in found] == [("b",), ("d",), ("a",), ("c",), ("e",)]
    assert [each.cost for each in found] == [3.0, 2.0, 1.0, 0.5, 0.25]
    assert len(calls) == 2 * len(costs) - 1


@pytest.mark.parametrize("runs", [1, 2, 6, 7, 50])
def test_costs_when_runs_are_limited_names_every_place_once(runs):
    costs = {f"t{n:02}": 1.0 + n for n in range(23)}
    cost, calls = asked(costs)
    found = find_costs(list(costs), cost, runs)
    assert sorted(place for each in found for place in each.places) == sorted(costs)
    assert len(calls) <= runs
    densities = [each.density for each in found]
    assert densities == sorted(densities, reverse=True)


def test_costs_when_nothing_costs_anything_asks_once():
    cost, calls = asked(dict.fromkeys("abcdef", 0.0))
    assert find_costs("abcdef", cost, most_runs=50) == (PlaceStretch(tuple("abcdef"), 0.0),)
    assert len(calls) == 1


def test_costs_when_there_are_no_places_asks_nothing():
    cost, calls = asked({})
    assert find_costs((), cost, most_runs=50) == ()
    assert calls == []


def test_tensors_db_when_they_cost_nine_tenths_is_ten():
    nodes = (PlaceStretch(("a",), 0.25), PlaceStretch(("b",), 0.75))
    assert Costs(nodes, (PlaceStretch(("t",), 9.0),)).tensors_db == pytest.approx(10)
    assert Costs(nodes, ()).tensors_db == 0
    assert Costs((), (PlaceStretch(("t",), 1.0),)).tensors_db == np.inf


def test_costs_when_weights_are_fitted_leave_nodes_what_tensors_do_not_explain():
    nodes = (PlaceStretch(("a",), 0.08), PlaceStretch(("b", "c"), 0.04))
    plain = Costs(nodes, (PlaceStretch(("t",), 0.02),))
    assert [s.cost for s in plain.shrink_to_fitted_weights(0.05).nodes] == pytest.approx(
        [0.02, 0.01]
    )
    assert plain.shrink_to_fitted_weights(0.05).tensors == plain.tensors
    assert [s.cost for s in plain.shrink_to_fitted_weights(0.01).nodes] == [0, 0]
    assert plain.shrink_to_fitted_weights(0.2) == plain
    assert plain.shrink_to_fitted_weights(0.6) == plain, "noise"


@dataclass
class Samples:
    """As much of a sample set as a judge reads."""

    feeds: list

    def read_inputs(self, index):
        return self.feeds[index]


def feeds(count=6):
    random = np.random.default_rng(2)
    return [{"x": random.standard_normal((1, 16)).astype(FLOAT)} for _ in range(count)]


def matrices(count=3):
    random = np.random.default_rng(1)
    return [random.standard_normal((16, 16)).astype(FLOAT) / 4 for _ in range(count)]


def chain(path, weights):
    """MatMul after MatMul, "p0", "p1" and so on; each makes "t0", "t1" and so on, the last "y"."""
    nodes, last = [], "x"
    for n in range(len(weights)):
        out = f"t{n}" if n + 1 < len(weights) else "y"
        nodes.append(helper.make_node("MatMul", [last, f"w{n}"], [out], f"p{n}"))
        last = out
    value = (TensorProto.FLOAT, [1, 16])
    constants = [(f"w{n}", matrix) for n, matrix in enumerate(weights)]
    return onnx.load(tiny_models.save(path, nodes, [("x", *value)], [("y", *value)], constants))


def costs_of(folder, weights, ranges, wide=()):
    model = prepare_model(chain(folder / "net.onnx", weights))
    samples = feeds()
    chosen = Chosen(Samples(samples), tuple(range(len(samples))))
    held_out = HeldOut(FloatOutputs(folder / "net.onnx", chosen))
    writer = QdqWriter(model, ranges, PER_TENSOR, wide=frozenset(wide))
    return measure_costs(writer, (), held_out)


def share(weights, rounded_weights, rounded_after=None):
    """The share of error in the output, where some weights, or one tensor, are rounded."""
    exact = noisy = np.concatenate([feed["x"] for feed in feeds()]).astype(np.float64)
    for n, (matrix, rounded) in enumerate(zip(weights, rounded_weights, strict=True)):
        exact, noisy = exact @ matrix, noisy @ rounded
        if rounded_after and rounded_after[0] == n:
            noisy = np.rint(noisy / rounded_after[1]) * rounded_after[1]
    return float(np.sum((exact - noisy) ** 2) / np.sum((exact - exact.mean(0)) ** 2))


def test_node_when_only_its_weights_are_rounded_costs_what_that_does_to_the_output(tmp_path):
    weights = matrices()
    weights[1][0, 0] = 40  # leaves 127 steps of 0.3 for the others
    found = costs_of(tmp_path, weights, dict.fromkeys(("x", "t0", "t1", "y"), (-500.0, 500.0)))
    assert found.nodes[0].places == ("p1",)
    assert {each.places for each in found.nodes} == {("p0",), ("p1",), ("p2",)}
    for each in found.nodes:
        number = int(each.places[0][1])
        rounded = list(weights)
        step = np.abs(weights[number]).max() / 127
        rounded[number] = np.rint(weights[number] / step).clip(-127, 127) * step
        assert each.cost == pytest.approx(share(weights, rounded), rel=0.01)


def test_tensor_when_it_has_16_bits_is_no_place_and_counts_for_no_other(tmp_path):
    ranges = dict.fromkeys(("x", "t0", "t1", "y"), (-8.0, 8.0))
    costs = [
        {each.places: each.cost for each in costs_of(tmp_path, matrices(), ranges, wide).tensors}
        for wide in ((), ("t1",))
    ]
    narrow, mixed = costs
    assert set(narrow) - set(mixed) == {("t1",)}
    assert mixed == {places: narrow[places] for places in mixed}


def test_tensor_when_only_its_pair_is_there_costs_what_that_does_to_the_output(tmp_path):
    weights = matrices()
    ranges = {"x": (-4.0, 4.0), "t0": (-8.0, 8.0), "t1": (-800.0, 800.0), "y": (-8.0, 8.0)}
    found = costs_of(tmp_path, weights, ranges)
    assert found.tensors[0].places == ("t1",)
    assert {each.places for each in found.tensors} == {("x",), ("t0",), ("t1",), ("y",)}
    due = share(weights, weights, rounded_after=(1, 1600 / 255))
    assert found.tensors[0].cost == pytest.approx(min(due, 1.0), rel=0.02)
    least = next(each.cost for each in found.tensors if each.places == ("t0",))
    assert least == pytest.approx(share(weights, weights, rounded_after=(0, 16 / 255)), rel=0.02)
