"""Classifiers: of images, sounds, clips, tables and sentences."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.proofs.cases import PRODUCTS, SAMPLES, Made, Zoo, made
from tests.proofs.net import Array, Net
from tests.proofs.readings import Classes
from tests.proofs.worlds import FIGURES, TRAINING, both, one_hot, scenes, sentences, tones, topics

zoo = Zoo("classes")
LOGIT = 8.0
"""What a readout is fitted to say of the right class, and 0 of the others."""


def _images(seed: int, **how: int) -> tuple[Net, Array, Array, Array]:
    """Return a net with its training images, their kinds, all other samples, and their kinds."""
    training, rest = both(seed)
    known, others = scenes(training, TRAINING, **how), scenes(rest, SAMPLES, **how)
    return Net(seed, x=known.images), known.kinds, others.images, others.kinds


def _pooled(net: Net, x: str) -> str:
    return net.add("Flatten", net.add("GlobalAveragePool", x))


def _two_convs(net: Net, channels: int = 24) -> str:
    first = net.add("Relu", net.conv("x", channels, 3))
    return net.add(
        "Relu",
        net.conv(net.add("MaxPool", first, kernel_shape=[2, 2], strides=[2, 2]), 2 * channels, 3),
    )


def _flat(net: Net, x: str) -> str:
    return net.add("Flatten", net.add("AveragePool", x, kernel_shape=[4, 4], strides=[4, 4]))


@zoo(quick=True)
def make_softmax(folder: Path) -> Made:
    net, kinds, given, truth = _images(1)
    logits = net.fit_dense(_flat(net, _two_convs(net)), LOGIT * one_hot(kinds, FIGURES))
    path = net.save(folder / "model.onnx", classes=net.add("Softmax", logits, axis=-1))
    return made(
        path,
        given,
        {"classes": Classes()},
        labels=truth[48:112],
        yaml={"outputs": {"classes": {"kind": "classification"}}},
    )


@zoo()
def make_logits(folder: Path) -> Made:
    net, kinds, given, _ = _images(2)
    features = net.add("Relu", net.conv(_two_convs(net, 16), 48, 3, strides=[2, 2]))
    logits = net.fit_dense(_pooled(net, features), LOGIT * one_hot(kinds, FIGURES))
    return made(net.save(folder / "model.onnx", logits=logits), given, {"logits": Classes()})


@zoo()
def make_two_classes(folder: Path) -> Made:
    net, kinds, given, _ = _images(3)
    logits = net.fit_dense(_flat(net, _two_convs(net, 12)), 6 * one_hot(kinds % 2, 2))
    path = net.save(folder / "model.onnx", classes=net.add("Softmax", logits, axis=-1))
    return made(path, given, {"classes": Classes()})


@zoo()
def make_depthwise(folder: Path) -> Made:
    net, kinds, given, _ = _images(4)
    x = net.conv("x", 24, 3)
    for channels in (32, 48):
        x = net.add("Clip", x, net.constant(0), net.constant(6))
        x = net.conv(x, net.values(x).shape[1], 3, group=net.values(x).shape[1])
        x = net.add("Clip", x, net.constant(0), net.constant(6))
        x = net.conv(x, channels, 1)
    logits = net.fit_dense(_flat(net, net.add("Relu", x)), LOGIT * one_hot(kinds, FIGURES))
    return made(net.save(folder / "model.onnx", logits=logits), given, {"logits": Classes()})


@zoo()
def make_grouped_residual(folder: Path) -> Made:
    net, kinds, given, _ = _images(5)
    x = net.add("Relu", net.conv("x", 32, 3))
    for _ in range(3):
        inner = net.add("Relu", net.conv(x, 32, 3, group=4))
        x = net.add("Relu", net.add("Add", net.conv(inner, 32, 1), x))
    logits = net.fit_dense(_flat(net, x), LOGIT * one_hot(kinds, FIGURES))
    return made(net.save(folder / "model.onnx", logits=logits), given, {"logits": Classes()})


@zoo()
def make_squeeze_and_excite(folder: Path) -> Made:
    net, kinds, given, _ = _images(6)
    x = net.add("HardSwish", net.conv("x", 24, 3))
    gate = net.add("HardSigmoid", net.conv(net.add("GlobalAveragePool", x), 24, 1))
    x = net.add("HardSwish", net.conv(net.add("Mul", x, gate), 40, 3, strides=[2, 2]))
    logits = net.fit_dense(_flat(net, x), LOGIT * one_hot(kinds, FIGURES))
    return made(net.save(folder / "model.onnx", logits=logits), given, {"logits": Classes()})


@zoo()
def make_tones_1d(folder: Path) -> Made:
    training, rest = both(7)
    known, _, kinds = tones(training, TRAINING)
    net = Net(7, x=known)
    x = net.add("Relu", net.conv("x", 32, 15, strides=[2]))
    x = net.add("Relu", net.conv(x, 48, 9, strides=[2]))
    logits = net.fit_dense(_pooled(net, x), LOGIT * one_hot(kinds, 6))
    return made(
        net.save(folder / "model.onnx", logits=logits),
        tones(rest, SAMPLES)[0],
        {"logits": Classes()},
    )


@zoo()
def make_clips_3d(folder: Path) -> Made:
    """Which way a bright place moves: the classes are six directions in space and time."""

    def clips(random: np.random.Generator, count: int) -> tuple[Array, Array]:
        kinds = random.integers(0, 4, count)
        steps = np.array([[0, 1], [0, -1], [1, 0], [-1, 0]])[kinds]
        starts = random.uniform(3, 9, (count, 2))
        grid = np.stack(np.mgrid[:12, :12], -1)
        frames = []
        for t in range(6):
            away = grid[None] - (starts + steps * (t - 2.5))[:, None, None]
            frames.append(np.exp(-(away**2).sum(-1) / 3))
        noise = 0.1 * random.standard_normal((count, 6, 12, 12))
        return (np.stack(frames, 1) + noise)[:, None].astype(np.float32), kinds

    training, rest = both(8)
    known, kinds = clips(training, TRAINING)
    net = Net(8, x=known)
    x = net.add("Relu", net.conv("x", 24, 3))
    x = net.add("Relu", net.conv(x, 48, 3, strides=[1, 2, 2]))
    logits = net.fit_dense(_pooled(net, x), LOGIT * one_hot(kinds, 4))
    return made(
        net.save(folder / "model.onnx", logits=logits),
        clips(rest, SAMPLES)[0],
        {"logits": Classes()},
    )


@zoo("linux-x86-64", PRODUCTS)
def make_table(folder: Path) -> Made:
    """An MLP on 20 columns, whose classes are by the products of some of them."""

    def rows(random: np.random.Generator, count: int) -> tuple[Array, Array]:
        given = random.standard_normal((count, 20))
        says = 2 * (given[:, 0] * given[:, 1] > 0) + (given[:, 2] + given[:, 3] > given[:, 4])
        return given.astype(np.float32), says.astype(int)

    training, rest = both(9)
    known, kinds = rows(training, 2000)
    net = Net(9, x=known)
    x = net.add("Relu", net.dense(net.add("Relu", net.dense("x", 128)), 256))
    logits = net.fit_dense(x, LOGIT * one_hot(kinds, 4))
    return made(
        net.save(folder / "model.onnx", logits=logits),
        rows(rest, SAMPLES)[0],
        {"logits": Classes()},
    )


@zoo("linux-x86-64", PRODUCTS, quick=True)
def make_attention(folder: Path) -> Made:
    """A transformer's block over the patches of an image."""
    net, kinds, given, _ = _images(10)
    x = net.conv("x", 48, 4, strides=[4, 4], pads=[0] * 4)
    x = net.add(
        "Transpose", net.add("Reshape", x, net.constant([0, 48, 16], np.int64)), perm=[0, 2, 1]
    )
    ones, zeros = net.constant(np.ones(48)), net.constant(np.zeros(48))
    normal = net.add("LayerNormalization", x, ones, zeros)
    query, key, value = (net.dense(normal, 48) for _ in range(3))
    likeness = net.add("MatMul", query, net.add("Transpose", key, perm=[0, 2, 1]))
    shares = net.add("Softmax", net.add("Mul", likeness, net.constant(48**-0.5)), axis=-1)
    x = net.add("Add", x, net.dense(net.add("MatMul", shares, value), 48))
    normal = net.add("LayerNormalization", x, ones, zeros)
    inner = net.dense(normal, 128)
    erf = net.add("Erf", net.add("Mul", inner, net.constant(2**-0.5)))
    half = net.add("Mul", inner, net.constant(0.5))
    gelu = net.add("Mul", half, net.add("Add", erf, net.constant(1)))
    x = net.add("Add", x, net.dense(gelu, 48))
    x = net.add("Flatten", x)
    logits = net.fit_dense(x, LOGIT * one_hot(kinds, FIGURES), ridge=0.1)
    return made(net.save(folder / "model.onnx", logits=logits), given, {"logits": Classes()})


@zoo("linux-x86-64", PRODUCTS)
def make_topics(folder: Path) -> Made:
    """Token ids to a topic, by an embedding table and what it sums to."""
    training, rest = both(11)
    known, _ = sentences(training, 1500)
    net = Net(11, x=known)
    table = net.constant(net.random.standard_normal((32, 48)))
    x = net.add("Relu", net.dense(net.add("Gather", table, "x"), 64))
    x = net.add("ReduceMean", x, axes=[1], keepdims=0)
    logits = net.fit_dense(x, LOGIT * one_hot(topics(known), 4))
    path = net.save(folder / "model.onnx", logits=logits)
    result = made(path, sentences(rest, SAMPLES)[0], {"logits": Classes()})
    for feeds in (result.calibration, result.evaluation, result.unseen):
        for feed in feeds:
            feed["x"] = feed["x"].astype(np.int64)
    return result


@zoo()
def make_tiny_weights(folder: Path) -> Made:
    """Weights of 1e-5 and inputs of 1e4."""
    net, kinds, given, _ = _images(12)
    net.samples["x"] = net.samples["x"] * np.float32(1e4)
    logits = net.fit_dense(_flat(net, _two_convs(net)), LOGIT * one_hot(kinds, FIGURES))
    return made(net.save(folder / "model.onnx", logits=logits), given * 1e4, {"logits": Classes()})


@zoo()
def make_ranges_apart(folder: Path) -> Made:
    """Channels whose ranges are 1000-fold apart, as after a folded batch normalization."""
    net, kinds, given, _ = _images(13)
    x = net.add("Relu", net.conv("x", 24, 3))
    factors = np.logspace(-1.5, 1.5, 24).reshape(1, 24, 1, 1)
    x = net.add("Mul", x, net.constant(factors))
    x = net.add("Relu", net.conv(net.add("Div", x, net.constant(factors)), 48, 3, strides=[2, 2]))
    logits = net.fit_dense(_flat(net, x), LOGIT * one_hot(kinds, FIGURES))
    return made(net.save(folder / "model.onnx", logits=logits), given, {"logits": Classes()})


@zoo()
def make_many_classes(folder: Path) -> Made:
    """60 classes whose scores are near each other: in which of 10 cells which figure is."""
    training, rest = both(14)
    known, others = scenes(training, 1500), scenes(rest, SAMPLES)
    net = Net(14, x=known.images)
    middle = (known.boxes[:, 0] + known.boxes[:, 2]) / 2
    kinds = known.kinds * 10 + np.clip(middle / 1.6, 0, 9).astype(int)
    features = net.add(
        "Flatten", net.add("AveragePool", _two_convs(net), kernel_shape=[2, 2], strides=[2, 2])
    )
    logits = net.fit_dense(features, LOGIT * one_hot(kinds, 60), ridge=0.1)
    return made(
        net.save(folder / "model.onnx", logits=logits), others.images, {"logits": Classes()}
    )


@zoo()
def make_class_index(folder: Path) -> Made:
    """The index of the best class, chosen in the graph, beside its scores."""
    net, kinds, given, _ = _images(15)
    logits = net.fit_dense(_flat(net, _two_convs(net)), LOGIT * one_hot(kinds, FIGURES))
    best = net.add("ArgMax", logits, axis=1, keepdims=0)
    path = net.save(folder / "model.onnx", index=best)
    from tests.proofs.readings import Tokens

    return made(path, given, {"index": Tokens()})
