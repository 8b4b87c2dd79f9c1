"""Numbers: scores, regressions, and the probability of one class."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.proofs.cases import PRODUCTS, SAMPLES, Made, Zoo, made
from tests.proofs.net import Array, Net
from tests.proofs.readings import Probability, Value
from tests.proofs.worlds import FIGURES, TRAINING, both, one_hot, scenes, speech, tones

zoo = Zoo("score")


def _sound_features(net: Net) -> str:
    x = net.add("Relu", net.conv("x", 32, 9, strides=[2]))
    x = net.add("Relu", net.conv(x, 48, 9, strides=[2]))
    return net.add("Flatten", net.add("GlobalAveragePool", x))


@zoo(quick=True)
def make_speech_quality(folder: Path) -> Made:
    """A score around 3 that differs by a tenth: what a constant is near to, and says nothing."""
    training, rest = both(31)
    known, noise = speech(training, 1000)
    net = Net(31, x=known)
    score = net.fit_dense(_sound_features(net), (3.2 - 0.35 * noise)[:, None])
    return made(
        net.save(folder / "model.onnx", score=score), speech(rest, SAMPLES)[0], {"score": Value()}
    )


@zoo()
def make_fine_quality(folder: Path) -> Made:
    """The same, from 4.00 to 4.05, with a bias that dwarfs all features."""
    training, rest = both(32)
    known, noise = speech(training, 1000)
    net = Net(32, x=known)
    score = net.fit_dense(_sound_features(net), (4 + 0.05 * noise)[:, None])
    return made(
        net.save(folder / "model.onnx", score=score), speech(rest, SAMPLES)[0], {"score": Value()}
    )


@zoo()
def make_small_score(folder: Path) -> Made:
    """A score of a thousandth."""
    training, rest = both(33)
    known, others = scenes(training, TRAINING), scenes(rest, SAMPLES)
    net = Net(33, x=known.images)
    x = net.add("Relu", net.conv(net.add("Relu", net.conv("x", 24, 3)), 32, 3, strides=[2, 2]))
    area = known.masks.mean((1, 2))[:, None] * 1e-3
    score = net.fit_dense(net.add("Flatten", net.add("GlobalAveragePool", x)), area)
    return made(net.save(folder / "model.onnx", score=score), others.images, {"score": Value()})


@zoo("linux-x86-64", PRODUCTS)
def make_price(folder: Path) -> Made:
    """An MLP on a table, whose answers are tens of thousands."""

    def rows(random: np.random.Generator, count: int) -> tuple[Array, Array]:
        given = random.standard_normal((count, 16)).astype(np.float32)
        says = 4e4 + 9e3 * given[:, 0] + 6e3 * np.maximum(given[:, 1], given[:, 2])
        return given, says[:, None]

    training, rest = both(34)
    known, says = rows(training, 2000)
    net = Net(34, x=known)
    x = net.add("Relu", net.dense(net.add("Relu", net.dense("x", 64)), 128))
    return made(
        net.save(folder / "model.onnx", price=net.fit_dense(x, says)),
        rows(rest, SAMPLES)[0],
        {"price": Value()},
    )


@zoo()
def make_age(folder: Path) -> Made:
    """The expectation over classes: a softmax times 0 to 60."""
    training, rest = both(35)
    known, others = scenes(training, TRAINING), scenes(rest, SAMPLES)
    net = Net(35, x=known.images)
    x = net.add("Relu", net.conv(net.add("Relu", net.conv("x", 24, 3)), 48, 3, strides=[2, 2]))
    x = net.add("Flatten", net.add("AveragePool", x, kernel_shape=[4, 4], strides=[4, 4]))
    shares = net.add("Softmax", net.fit_dense(x, 6 * one_hot(known.kinds, FIGURES)), axis=-1)
    age = net.add("MatMul", shares, net.constant(np.arange(FIGURES)[:, None] * 12))
    return made(net.save(folder / "model.onnx", age=age), others.images, {"age": Value()})


@zoo()
def make_where(folder: Path) -> Made:
    """Numbers of other ranges in one output: the middle in pixels, the size in kilometres."""
    training, rest = both(36)
    known, others = scenes(training, 1000), scenes(rest, SAMPLES)
    net = Net(36, x=known.images)
    x = net.add("Relu", net.conv(net.add("Relu", net.conv("x", 16, 3)), 24, 3, strides=[2, 2]))
    middle = (known.boxes[:, :2] + known.boxes[:, 2:]) / 2
    size = (known.boxes[:, 2:3] - known.boxes[:, :1]) / 1000
    places = net.fit_dense(net.add("Flatten", x), np.concatenate([middle, size], 1), ridge=0.1)
    return made(
        net.save(folder / "model.onnx", places=places), others.images, {"places": Value(apart=True)}
    )


@zoo()
def make_keypoints(folder: Path) -> Made:
    """The four corners of a figure, as a landmark net gives them."""
    training, rest = both(37)
    known, others = scenes(training, 1000), scenes(rest, SAMPLES)
    net = Net(37, x=known.images)
    x = net.add("LeakyRelu", net.conv("x", 24, 3, strides=[2, 2]))
    x = net.add("LeakyRelu", net.conv(x, 24, 3))
    points = net.fit_dense(net.add("Flatten", x), known.boxes, ridge=0.1)
    return made(net.save(folder / "model.onnx", points=points), others.images, {"points": Value()})


@zoo(kind="probability", quick=True)
def make_wake_word(folder: Path) -> Made:
    """Whether a word was said; one sample in 25 has it."""

    def said(random: np.random.Generator, count: int, often: float) -> tuple[Array, Array]:
        sound, _ = speech(random, count)
        is_said = random.random(count) < often
        time = np.arange(100)
        word = 1.2 * np.sin(2 * np.pi * (0.04 * time + 0.0006 * time**2)) * np.hanning(100)
        for k in np.flatnonzero(is_said):
            start = random.integers(0, 220)
            sound[k, 0, start : start + 100] += word
        return sound, is_said

    training, rest = both(41)
    known, is_said = said(training, 1500, 0.3)
    net = Net(41, x=known)
    time = np.arange(100)
    word = np.sin(2 * np.pi * (0.04 * time + 0.0006 * time**2)) * np.hanning(100)
    x = net.conv("x", 24, 21)
    templates = np.random.default_rng(41).standard_normal((8, 1, 100)) * 0.2
    templates[:2, 0] = [word, -word]
    match = net.add("Relu", net.add("Conv", "x", net.constant(templates / 25)))
    features = [
        net.add("Flatten", net.add(op, name))
        for name in (net.add("Relu", x), match)
        for op in ("GlobalAveragePool", "GlobalMaxPool")
    ]
    both_ = net.add("Concat", *features, axis=1)
    logit = net.fit_dense(both_, np.where(is_said, 5.0, -5.0)[:, None])
    path = net.save(folder / "model.onnx", wake=net.add("Sigmoid", logit))
    return made(path, said(rest, SAMPLES, 0.04)[0], {"wake": Probability()})


@zoo(kind="probability")
def make_presence(folder: Path) -> Made:
    """Whether there is a ring or a frame: a sigmoid of an image."""
    training, rest = both(42)
    known, others = scenes(training, 1000), scenes(rest, SAMPLES)
    net = Net(42, x=known.images)
    x = net.add("Relu", net.conv(net.add("Relu", net.conv("x", 24, 3)), 48, 3, strides=[2, 2]))
    x = net.add("Flatten", net.add("AveragePool", x, kernel_shape=[4, 4], strides=[4, 4]))
    is_there = np.isin(known.kinds, [1, 3])
    logit = net.fit_dense(x, np.where(is_there, 6.0, -6.0)[:, None])
    path = net.save(folder / "model.onnx", there=net.add("Sigmoid", logit))
    return made(path, others.images, {"there": Probability()})


@zoo(kind="probability")
def make_rare_logit(folder: Path) -> Made:
    """A logit that is above 0 for one sample in 20, and far below for all others."""
    training, rest = both(43)
    known, _, kinds = tones(training, 1500)
    net = Net(43, x=known)
    x = net.add("Relu", net.conv("x", 32, 15, strides=[2]))
    x = net.add("Relu", net.conv(x, 48, 9, strides=[2]))
    loud = known[:, 0].std(1)
    rare = (kinds == 2) & (loud > 0.45)
    logit = net.fit_dense(
        net.add("Flatten", net.add("GlobalAveragePool", x)),
        np.where(rare, 8.0, -12.0)[:, None],
        ridge=1e-3,
    )
    return made(
        net.save(folder / "model.onnx", logit=logit),
        tones(rest, SAMPLES)[0],
        {"logit": Probability(threshold=-2.0)},
    )
