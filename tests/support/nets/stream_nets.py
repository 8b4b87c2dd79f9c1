"""Small models that are fed their own state."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from onnx import TensorProto, helper

from tests.support.nets.tiny_models import save

FLOAT = TensorProto.FLOAT
WIDTH, HIDDEN, ANSWERS = 8, 16, 3


def _normal(*shape: int, seed: int, scale: float) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(np.float32)


def gru(path: Path, *, bias: float = 0.0, batch: int | str = 1) -> Path:
    """``x`` [1, 8] and ``h`` [1, 16] to ``y`` [1, 3] and ``h_out``: a gated cell of products.

    ``bias`` is added to the state that comes out: with little of it a frame by itself is right.
    """
    node = helper.make_node
    nodes = [
        node("Concat", ["x", "h"], ["xh"], "join", axis=1),
        node("Gemm", ["xh", "wz", "bz"], ["zs"], "gate"),
        node("Sigmoid", ["zs"], ["z"], "z"),
        node("Gemm", ["xh", "wn", "bn"], ["ns"], "new"),
        node("Tanh", ["ns"], ["n"], "n"),
        node("Sub", ["n", "h"], ["step"], "step"),
        node("Mul", ["z", "step"], ["moved"], "moved"),
        node("Add", ["h", "moved"], ["reached"], "reached"),
        node("Add", ["reached", "bias"], ["h_out"], "biased"),
        node("Gemm", ["reached", "wy", "by"], ["y"], "answer"),
    ]
    weights = [
        ("wz", _normal(WIDTH + HIDDEN, HIDDEN, seed=1, scale=0.3)),
        ("bz", np.full(HIDDEN, -2.0, np.float32)),
        ("wn", _normal(WIDTH + HIDDEN, HIDDEN, seed=2, scale=0.3)),
        ("bn", np.zeros(HIDDEN, np.float32)),
        ("wy", _normal(HIDDEN, ANSWERS, seed=3, scale=0.5)),
        ("by", np.zeros(ANSWERS, np.float32)),
        ("bias", np.full(HIDDEN, bias, np.float32)),
    ]
    state = (FLOAT, [batch, HIDDEN])
    return save(
        path,
        nodes,
        [("x", FLOAT, [batch, WIDTH]), ("h", *state)],
        [("y", FLOAT, [batch, ANSWERS]), ("h_out", *state)],
        weights,
    )


def lstm(path: Path) -> Path:
    """``x`` [1, 1, 8], ``h`` and ``c`` [1, batch, 16] to ``y`` [1, 1, 3], ``hn`` and ``cn``."""
    node = helper.make_node
    nodes = [
        node(
            "LSTM",
            ["x", "w", "r", "b", "", "h", "c"],
            ["all", "hn", "cn"],
            "cell",
            hidden_size=HIDDEN,
        ),
        node("Reshape", ["hn", "row"], ["flat"], "flat"),
        node("Gemm", ["flat", "wy", "by"], ["answer"], "answer"),
        node("Reshape", ["answer", "shape"], ["y"], "y"),
    ]
    weights = [
        ("w", _normal(1, 4 * HIDDEN, WIDTH, seed=4, scale=0.4)),
        ("r", _normal(1, 4 * HIDDEN, HIDDEN, seed=5, scale=0.2)),
        ("b", _normal(1, 8 * HIDDEN, seed=6, scale=0.1)),
        ("wy", _normal(HIDDEN, ANSWERS, seed=7, scale=0.5)),
        ("by", np.zeros(ANSWERS, np.float32)),
        ("row", np.array([1, HIDDEN])),
        ("shape", np.array([1, 1, ANSWERS])),
    ]
    state = (FLOAT, [1, "batch", HIDDEN])
    return save(
        path,
        nodes,
        [("x", FLOAT, [1, 1, WIDTH]), ("h", *state), ("c", *state)],
        [("y", FLOAT, [1, 1, ANSWERS]), ("hn", *state), ("cn", *state)],
        weights,
    )


def counter(path: Path) -> Path:
    """``x``, ``u`` and ``sum`` [1, 1] to ``y`` = the new sum and 30 ``u``, and ``sum_out``.

    In integers of 8 bits what is added to a large sum is lost, frame by frame.
    """
    node = helper.make_node
    nodes = [
        node("Concat", ["sum", "x"], ["both"], "join", axis=1),
        node("Gemm", ["both", "ones", "zero"], ["added"], "add"),
        node("Relu", ["added"], ["positive"], "positive"),
        node("Gemm", ["positive", "one", "zero"], ["sum_out"], "scale"),
        node("Mul", ["u", "thirty"], ["beside"], "beside"),
        node("Add", ["sum_out", "beside"], ["y"], "y"),
    ]
    one = (FLOAT, [1, 1])
    weights = [
        ("ones", np.ones((2, 1), np.float32)),
        ("one", np.ones((1, 1), np.float32)),
        ("zero", np.zeros(1, np.float32)),
        ("thirty", np.float32(30)),
    ]
    inputs = [("x", *one), ("u", *one), ("sum", *one)]
    return save(path, nodes, inputs, [("y", *one), ("sum_out", *one)], weights)


def doubling(path: Path) -> Path:
    """``x`` and ``h`` [1, 1] to ``h_out`` = ``x`` + 2 ``h``, which grows for ever, and ``y``.

    A frame by itself is right, and so is a short stream.
    """
    nodes = [
        helper.make_node("Mul", ["h", "two"], ["twice"], "twice"),
        helper.make_node("Add", ["x", "twice"], ["h_out"], "grown"),
        helper.make_node("Neg", ["h_out"], ["y"], "answer"),
    ]
    one = (FLOAT, [1, 1])
    outputs = [("y", *one), ("h_out", *one)]
    return save(path, nodes, [("x", *one), ("h", *one)], outputs, [("two", np.float32(2))])


POSITIONS = 64


def limited(path: Path) -> Path:
    """``x`` [1, 8] and ``at`` [1] to ``y`` [1, 8] and ``at_out``: it has only 64 positions."""
    nodes = [
        helper.make_node("Gather", ["table", "at"], ["row"], "look_up"),
        helper.make_node("Add", ["x", "row"], ["y"], "add"),
        helper.make_node("Add", ["at", "one"], ["at_out"], "next"),
    ]
    weights = [
        ("table", _normal(POSITIONS, WIDTH, seed=8, scale=0.5)),
        ("one", np.ones(1, np.int64)),
    ]
    whole = (TensorProto.INT64, [1])
    x = (FLOAT, [1, WIDTH])
    outputs = [("y", *x), ("at_out", *whole)]
    return save(path, nodes, [("x", *x), ("at", *whole)], outputs, weights)


def frames(count: int, *shape: int, seed: int = 0) -> np.ndarray:
    """What moves slowly, as sound and sensors do: (count, *shape) float32."""
    noise = np.random.default_rng(seed).standard_normal((count, *shape))
    slow = np.empty_like(noise)
    slow[0] = noise[0]
    for number in range(1, count):
        slow[number] = 0.8 * slow[number - 1] + 0.6 * noise[number]
    return slow.astype(np.float32)
