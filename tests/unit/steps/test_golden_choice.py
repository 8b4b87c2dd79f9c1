"""Which samples goldens are made of."""

from __future__ import annotations

import numpy as np
import pytest
from edgepack.model.facts import TensorSpec
from edgepack.samples.sample_set import SampleSet, write_sample_set
from edgepack.steps.proofs.candidates import Candidates, find_stride, is_silent, keep_values
from edgepack.steps.proofs.golden_choice import choose_covering, sort_farthest_first


def found(*values: float) -> dict[int, dict[str, np.ndarray]]:
    return {n: {"y": np.array([value, -value], np.float32)} for n, value in enumerate(values)}


def test_farthest_first_takes_what_differs_from_the_mean_and_from_each_other():
    assert sort_farthest_first(found(5, 5.1, 0, -5, 4.9), set(), [], 2) == [3, 1]


def test_farthest_first_takes_what_is_near_the_mean_once_it_has_the_ends():
    assert sort_farthest_first(found(5, 4.9, 0, -5, -4.9, 5), set(), [], 3) == [3, 0, 2]


def test_farthest_first_keeps_away_from_what_a_stranger_gives():
    outputs = found(5, -5, 0.1, 3)
    near = [{"y": np.array([-5, 5], np.float32)}]
    assert sort_farthest_first(outputs, set(), [], 1) == [1]
    assert sort_farthest_first(outputs, set(), near, 1) == [0]


def test_farthest_first_takes_silence_when_there_is_nothing_else():
    outputs = found(50, 1, 2)
    assert sort_farthest_first(outputs, {0}, [], 2) == [1, 2]
    assert sort_farthest_first(outputs, {0}, [], 3) == [1, 2, 0]
    assert sort_farthest_first(outputs, {0, 1, 2}, [], 3)[0] == 0


def test_farthest_first_spreads_samples_when_outputs_do_not_vary():
    assert sort_farthest_first(found(*[1] * 12), set(), [], 4) == [0, 3, 6, 9]


def test_farthest_first_counts_infinite_values_as_nothing():
    outputs = found(1, 2, 3)
    outputs[0]["y"][0] = np.inf
    outputs[1]["y"][0] = np.nan
    assert sorted(sort_farthest_first(outputs, set(), [], 3)) == [0, 1, 2]


def test_covering_takes_another_sample_when_only_that_tells_a_change():
    assert choose_covering([1, 2], [1, 1, 7]) == [1, 7]
    assert choose_covering([1, 2], [2, 2, 1]) == [2, 1]
    assert choose_covering([1, 2], []) == [1, 2]


def test_silence_is_constant_inputs_or_outputs_of_nothing():
    loud, nothing = np.array([1.0, 2.0]), np.zeros(3)
    assert is_silent({"x": nothing, "rate": np.array(16000)}, {"y": loud})
    assert is_silent({"x": loud}, {"y": nothing})
    assert not is_silent({"x": loud, "state": nothing}, {"y": loud, "state": nothing})
    assert not is_silent({"x": loud}, {"label": np.array([0])})


@pytest.mark.parametrize(("length", "inside"), [(10, 8), (1, 0), (200, 8), (400, 3)])
def test_candidates_are_frames_inside_streams_where_there_are_others_than_the_first(
    tmp_path, length, inside
):
    values = np.random.default_rng(0).standard_normal((800, 2)).astype(np.float32)
    if length == 400:  # all but three frames and the first of both streams are silence
        values[[n for n in range(800) if n not in (0, 10, 400, 410, 420)]] = 0
    streams = range(0, 800, length)
    frames = [(f"frame {n}", {"x": value}) for n, value in enumerate(values)]
    write_sample_set(tmp_path, [TensorSpec("x", "float32", (2,))], frames, streams=streams)
    numbers = Candidates(tmp_path / "none.onnx", SampleSet.read(tmp_path)).choose(8)
    assert len(set(numbers)) == len(numbers) == 8
    assert [number % length > 0 for number in numbers[:inside]] == [True] * inside
    if length == 400:
        assert numbers[:5] == [10, 410, 420, 0, 400]


def test_others_are_eight_with_what_is_chosen(tmp_path):
    frames = [(f"{n}", {"x": np.array([n, 1], np.float32)}) for n in range(80)]
    write_sample_set(tmp_path, [TensorSpec("x", "float32", (2,))], frames)
    candidates = Candidates(tmp_path / "none.onnx", SampleSet.read(tmp_path))
    assert candidates.choose_others([3, 10, 5, 70]) == [0, 20, 40, 50]
    assert candidates.choose_others(range(8)) == []
    assert Candidates(tmp_path / "none.onnx", None).choose_others([1, 0]) == [2, 3, 4, 5, 6, 7]


def test_stride_keeps_few_values_of_every_column():
    shape = (3, 512, 640)
    output = np.broadcast_to(np.arange(640, dtype=np.float32), shape)
    assert find_stride(output.size) > 1
    values = keep_values(output)
    assert values.size <= 1 << 16
    assert len(np.unique(values)) == 640
    small = np.zeros((4, 5))
    assert keep_values(small) is small
    assert find_stride(0) == 1
