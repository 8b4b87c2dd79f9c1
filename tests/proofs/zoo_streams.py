"""Streaming models: their state goes in and comes out, and errors may add up.

The recurrent part is random with an echo that dies away (a reservoir); what is read of it is
fitted. Unseen samples are streams: each step gets the state that the variant itself gave.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from tests.proofs.cases import Feed, Made, Zoo
from tests.proofs.net import Array, Net
from tests.proofs.readings import Probability, Signal, Value
from tests.proofs.streams import streamed, unrolled
from tests.proofs.worlds import both

zoo = Zoo("stream")
STEPS, STREAMS = 60, 24
UNITS, WIDTH = 32, 8


def _streams(random: np.random.Generator, count: int) -> tuple[Array, Array]:
    """Return frames (count, steps, 8) of tones that come and go, and whether one is there."""
    on = np.cumsum(random.random((count, STEPS)) < 0.08, axis=1) % 2
    time = np.arange(STEPS)
    pitch = random.uniform(0.2, 0.6, (count, 1))
    wave = np.sin(pitch * time)[:, :, None] * random.uniform(0.5, 1.5, (count, 1, WIDTH))
    frames = on[:, :, None] * (1 + 0.4 * wave) + 0.25 * random.standard_normal(
        (count, STEPS, WIDTH)
    )
    return frames.astype(np.float32), on


def _fitted(
    folder: Path,
    seed: int,
    cell: Callable[[Net], tuple[str, dict[str, str]]],
    zeros: Feed,
    readout: Callable[[Net, str, Array, Array], dict[str, str]],
    readings: dict,
) -> Made:
    """Run a random cell over training streams, fit what is read of it, and return the case."""
    training, rest = both(seed)
    frames, on = _streams(training, 40)
    first = Net(seed, x=frames[:, 0], **{n: np.repeat(z, len(frames), 0) for n, z in zeros.items()})
    _, states = cell(first)
    bare = first.save(
        folder / "cell.onnx", **{f"{name}_out": value for name, value in states.items()}
    )
    given = {name: f"{name}_out" for name in states}
    met = unrolled(
        bare, [[{"x": frame[None]} for frame in stream] for stream in frames], given, zeros
    )
    net = Net(seed, **{n: np.concatenate([feed[n] for feed in met]) for n in met[0]})
    read, states = cell(net)
    outputs = readout(net, read, frames, on)
    outputs |= {f"{name}_out": value for name, value in states.items()}
    others = [[{"x": frame[None]} for frame in stream] for stream in _streams(rest, STREAMS + 8)[0]]
    return streamed(net.save(folder / "model.onnx", **outputs), others, given, zeros, readings)


def _speaks(net: Net, x: str, frames: Array, on: Array) -> dict[str, str]:
    del frames
    wanted = np.where(on.reshape(-1, 1) > 0, 4.0, -4.0)
    return {"speech": net.add("Sigmoid", net.fit_dense(x, wanted))}


def _smooths(net: Net, x: str, frames: Array, on: Array) -> dict[str, str]:
    del on
    smooth = frames.copy()
    for t in range(1, STEPS):
        smooth[:, t] = 0.8 * smooth[:, t - 1] + 0.2 * frames[:, t]
    return {"smooth": net.fit_dense(x, smooth.reshape(-1, WIDTH))}


def _zeros(*names: str, width: int = UNITS) -> Feed:
    return {name: np.zeros((1, width), np.float32) for name in names}


def _reservoir(net: Net) -> tuple[str, dict[str, str]]:
    random = np.random.default_rng(7)
    inner = np.linalg.qr(random.standard_normal((UNITS, UNITS)))[0] * 0.85
    outer = random.standard_normal((WIDTH, UNITS)) * 0.3
    total = net.add(
        "Add",
        net.add("MatMul", "state", net.constant(inner)),
        net.add("MatMul", "x", net.constant(outer)),
    )
    state = net.add("Tanh", total)
    return state, {"state": state}


def _gru(net: Net) -> tuple[str, dict[str, str]]:
    random = np.random.default_rng(8)
    weights = random.standard_normal((1, 3 * UNITS, WIDTH)) * 0.4
    inner = random.standard_normal((1, 3 * UNITS, UNITS)) * 0.6 / UNITS**0.5
    frames = net.add("Unsqueeze", "x", net.constant([0], np.int64))
    before = net.add("Unsqueeze", "state", net.constant([0], np.int64))
    _, last = net.add_many(
        "GRU", frames, net.constant(weights), net.constant(inner), "", "", before,
        outputs=2, hidden_size=UNITS,
    )  # fmt: skip
    state = net.add("Squeeze", last, net.constant([0], np.int64))
    return state, {"state": state}


def _lstm(net: Net) -> tuple[str, dict[str, str]]:
    random = np.random.default_rng(9)
    weights = random.standard_normal((1, 4 * UNITS, WIDTH)) * 0.4
    inner = random.standard_normal((1, 4 * UNITS, UNITS)) * 0.6 / UNITS**0.5
    axis = net.constant([0], np.int64)
    frames, hidden, kept = (net.add("Unsqueeze", name, axis) for name in ("x", "h", "c"))
    _, last, cell = net.add_many(
        "LSTM", frames, net.constant(weights), net.constant(inner), "", "", hidden, kept,
        outputs=3, hidden_size=UNITS,
    )  # fmt: skip
    h, c = (net.add("Squeeze", value, axis) for value in (last, cell))
    return net.add("Concat", h, c, axis=1), {"h": h, "c": c}


def _cache(net: Net) -> tuple[str, dict[str, str]]:
    """A convolution over time, whose last frames are kept."""
    random = np.random.default_rng(10)
    frames = net.add("Concat", "cache", "x", axis=1)
    rest = net.add("Slice", frames, *(net.constant([v], np.int64) for v in (WIDTH, 9 * WIDTH, 1)))
    rows = net.add("Reshape", frames, net.constant([0, 9, WIDTH], np.int64))
    rows = net.add("Transpose", rows, perm=[0, 2, 1])
    weights = random.standard_normal((64, WIDTH, 9)) * 0.2
    found = net.add("Relu", net.add("Conv", rows, net.constant(weights)))
    return net.add("Flatten", found), {"cache": rest}


def _integrator(net: Net) -> tuple[str, dict[str, str]]:
    """A leaky sum: what is wrong once stays for fifty steps."""
    random = np.random.default_rng(11)
    mixed = net.add("MatMul", "x", net.constant(random.standard_normal((WIDTH, UNITS)) * 0.2))
    kept = net.add("Mul", "state", net.constant(np.linspace(0.5, 0.98, UNITS)))
    state = net.add("Add", kept, mixed)
    return net.add("Tanh", state), {"state": state}


@zoo(quick=True)
def make_gru_speech(folder: Path) -> Made:
    return _fitted(folder, 101, _gru, _zeros("state"), _speaks, {"speech": Probability()})


@zoo()
def make_lstm_speech(folder: Path) -> Made:
    return _fitted(folder, 102, _lstm, _zeros("h", "c"), _speaks, {"speech": Probability()})


@zoo()
def make_reservoir_smoothing(folder: Path) -> Made:
    return _fitted(folder, 103, _reservoir, _zeros("state"), _smooths, {"smooth": Signal(window=8)})


@zoo()
def make_cached_convolution(folder: Path) -> Made:
    zeros = _zeros("cache", width=8 * WIDTH)
    return _fitted(folder, 104, _cache, zeros, _speaks, {"speech": Probability()})


@zoo()
def make_leaky_sum(folder: Path) -> Made:
    return _fitted(folder, 105, _integrator, _zeros("state"), _smooths, {"smooth": Value()})
