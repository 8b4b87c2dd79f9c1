"""What the interpreter of pipelines feeds to parts, call by call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from edgepack.ondevice.runtime.edgepack_pipeline import (
    Chain,
    Part,
    make_empty,
    make_infer,
    make_zeros,
)
from edgepack.ondevice.runtime.edgepack_shapes import TensorSpec

IDS = TensorSpec("ids", "int32", (1, "tokens"))
PLACES = TensorSpec("places", "int64", (1, "tokens"))
MASK = TensorSpec("mask", "float32", (1, "total"))
CACHE = TensorSpec("cache", "float32", ("batch", "past", 2))
VOCABULARY = 10


class Counting:
    """A part that answers each token with the next one, and notes what it was fed."""

    def __init__(self) -> None:
        self.fed: list[dict[str, Any]] = []

    def __call__(self, feed: dict[str, Any], _kept: Any) -> dict[str, Any]:
        self.fed.append({name: np.array(value) for name, value in feed.items()})
        ids = feed["ids"]
        scores = np.eye(VOCABULARY, dtype=np.float32)[(ids + 1) % VOCABULARY]
        outputs = {"logits": scores}
        if "cache" in feed:
            more = np.zeros((1, ids.shape[1], 2), np.float32)
            outputs["longer"] = np.concatenate([feed["cache"], more], axis=1)
        return outputs


def decode(infer: Counting, inputs: list[TensorSpec], **changes: Any) -> Chain:
    stage = {
        "decode": "decoder",
        "inputs": {},
        "token": "ids",
        "logits": "logits",
        "start": [3],
        "end": [8],
        "most": 20,
        "past": {},
        "position": None,
        "mask": None,
        "output": "tokens",
    }
    document = {"inputs": ["x"], "stages": [{**stage, **changes}], "outputs": ["tokens"]}
    return Chain(document, {"decoder": Part(infer, inputs, {})})


def feeds_of(infer: Counting, name: str) -> list[list[Any]]:
    return [feed[name].tolist() for feed in infer.fed]


def test_decoder_with_a_cache_gets_the_newest_token_alone() -> None:
    infer = Counting()
    chain = decode(infer, [IDS, CACHE], past={"longer": "cache"})
    assert chain({})["tokens"].tolist() == [4, 5, 6, 7]
    assert feeds_of(infer, "ids") == [[[3]], [[4]], [[5]], [[6]], [[7]]]
    assert [feed["cache"].shape for feed in infer.fed] == [(1, past, 2) for past in range(5)]
    assert infer.fed[0]["ids"].dtype == np.int32
    # Another call begins with an empty cache.
    chain({})
    assert infer.fed[5]["cache"].shape == (1, 0, 2)


def test_decoder_without_a_cache_gets_all_tokens() -> None:
    infer = Counting()
    assert decode(infer, [IDS], start=[5])({})["tokens"].tolist() == [6, 7]
    assert feeds_of(infer, "ids") == [[[5]], [[5, 6]], [[5, 6, 7]]]


@pytest.mark.parametrize("past", [{}, {"longer": "cache"}])
def test_places_and_mask_follow_the_tokens(past: dict[str, str]) -> None:
    infer = Counting()
    inputs = [IDS, PLACES, MASK, *([CACHE] if past else [])]
    chain = decode(infer, inputs, start=[2, 6], position="places", mask="mask", past=past)
    assert chain({})["tokens"].tolist() == [7]
    assert feeds_of(infer, "ids") == [[[2, 6]], [[7]] if past else [[2, 6, 7]]]
    assert feeds_of(infer, "places") == [[[0, 1]], [[2]] if past else [[0, 1, 2]]]
    assert feeds_of(infer, "mask") == [[[1, 1]], [[1, 1, 1]]]
    assert infer.fed[0]["mask"].dtype == np.float32


@pytest.mark.parametrize(("most", "expected"), [(1, [4]), (3, [4, 5, 6]), (4, [4, 5, 6, 7])])
def test_there_are_at_most_so_many_tokens(most: int, expected: list[int]) -> None:
    infer = Counting()
    assert decode(infer, [IDS], most=most)({})["tokens"].tolist() == expected
    # The last token is not fed: nothing is chosen after it.
    assert len(infer.fed) == most


def test_any_of_several_tokens_ends() -> None:
    chain = decode(Counting(), [IDS], end=[9, 6])
    tokens = chain({})["tokens"]
    assert (tokens.tolist(), tokens.dtype) == ([4, 5], np.int64)
    assert decode(Counting(), [IDS], end=[4])({})["tokens"].shape == (0,)


def test_state_of_fixed_size_begins_anew_with_each_sequence() -> None:
    fed = []

    def infer(feed: dict[str, Any], _kept: Any) -> dict[str, Any]:
        fed.append(float(feed["sum"][0]))
        return {"logits": np.eye(3, dtype=np.float32)[[[1]]], "total": feed["sum"] + 1}

    state = TensorSpec("sum", "float32", (1,))
    chain = decode(Counting(), [])
    part = Part(infer, [IDS, state], {"total": "sum"})
    chain = Chain(
        {"inputs": [], "stages": [{**chain.described[0], "most": 2}], "outputs": ["tokens"]},
        {"decoder": part},
    )
    chain({})
    chain({})
    assert fed == [0, 1, 0, 1]


def test_values_go_from_stage_to_stage_and_one_part_may_run_twice() -> None:
    part = Part(
        lambda feed, _: {"y": feed["x"] * 2, "unused": feed["x"]},
        [TensorSpec("x", "float32", (1,))],
        {},
    )
    stages = [
        {"run": "double", "inputs": {"x": "a"}, "outputs": {"y": "b"}},
        {"run": "double", "inputs": {"x": "b"}, "outputs": {"y": "c"}},
    ]
    chain = Chain({"inputs": ["a"], "stages": stages, "outputs": ["c", "b"]}, {"double": part})
    found = chain({"a": np.float32([3])})
    assert {name: array.tolist() for name, array in found.items()} == {"c": [12.0], "b": [6.0]}
    assert len(chain.stage_ns) == 2


def test_each_stage_keeps_the_state_of_its_own_stream() -> None:
    part = Part(
        lambda feed, _: {"y": feed["x"] + feed["s"], "t": feed["s"] + 1},
        [TensorSpec("x", "float32", (1,)), TensorSpec("s", "float32", (1,))],
        {"t": "s"},
    )
    stages = [
        {"run": "adder", "inputs": {"x": "a"}, "outputs": {"y": "b", "t": "seen"}},
        {"run": "adder", "inputs": {"x": "b"}, "outputs": {"y": "c"}},
    ]
    begun = []
    chain = Chain(
        {"inputs": ["a"], "stages": stages, "outputs": ["c", "seen"]},
        {"adder": part},
        lambda name, feed, fresh: begun.append(fresh),
    )
    calls = [chain({"a": np.float32([0])}) for _ in range(3)]
    assert [call["c"].tolist() for call in calls] == [[0], [2], [4]]
    assert [call["seen"].tolist() for call in calls] == [[1], [2], [3]]
    chain.reset()
    assert chain({"a": np.float32([0])})["c"].tolist() == [0]
    assert begun == [True, True, False, False, False, False, True, True]


def test_first_state_and_empty_cache_have_the_sizes_that_nobody_gives() -> None:
    spec = TensorSpec("cache", "float16", ("batch", 4, "past", 8))
    assert (make_empty(spec).shape, make_zeros(spec).shape) == ((1, 4, 0, 8), (1, 4, 1, 8))
    assert make_empty(spec).dtype == np.float16


class OnDevice:
    """A value that is not in this process's memory."""


class Binding:
    """Notes what is bound where, as onnxruntime's does for its run."""

    def __init__(self) -> None:
        self.inputs: dict[str, Any] = {}
        self.outputs: dict[str, tuple[str, int]] = {}

    def bind_cpu_input(self, name: str, array: Any) -> None:
        self.inputs[name] = array

    def bind_ortvalue_input(self, name: str, value: Any) -> None:
        self.inputs[name] = value

    def bind_output(self, name: str, memory: str, device_id: int) -> None:
        self.outputs[name] = (memory, device_id)

    def get_outputs(self) -> list[OnDevice]:
        return [OnDevice() for _ in self.outputs]


class OnGpu:
    """A loaded part whose provider has a memory of its own."""

    buckets: tuple[()] = ()
    outputs = (TensorSpec("y", "float32", (1,)), TensorSpec("t", "float32", (1,)))
    entry = {"providers": [{"name": "CUDAExecutionProvider", "options": {"device_id": "1"}}]}

    def __init__(self) -> None:
        self.bindings: list[Binding] = []
        self.session = self

    def io_binding(self) -> Binding:
        self.bindings.append(Binding())
        return self.bindings[-1]

    def check_ranges(self, feed: Mapping[str, Any]) -> None:
        assert feed

    def watch(self, call: Callable[..., None], *given: Any) -> None:
        call(*given)

    def run_with_iobinding(self, binding: Binding) -> None:
        assert binding is self.bindings[-1]


def test_what_is_kept_stays_in_the_memory_of_the_device() -> None:
    model = OnGpu()
    infer = make_infer(model)
    first = infer({"x": np.float32([1]), "s": np.float32([0])}, ["t"])
    infer({"x": np.float32([2]), "s": first["t"]}, ["t"])
    assert [each.outputs for each in model.bindings] == [{"y": ("cpu", 0), "t": ("cuda", 1)}] * 2
    # It goes back as it is, without a copy through this process.
    assert model.bindings[1].inputs["s"] is first["t"]
    assert model.bindings[1].inputs["x"].tolist() == [2]
