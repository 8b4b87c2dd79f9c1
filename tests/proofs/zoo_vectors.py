"""Embeddings, tokens, and outputs of mixed kinds."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.proofs.cases import PRODUCTS, SAMPLES, Made, Zoo, made, split
from tests.proofs.net import Array, Net
from tests.proofs.readings import Classes, Constant, Embedding, Mask, Probability, Tokens, Value
from tests.proofs.worlds import (
    FIGURES,
    TRAINING,
    Scenes,
    both,
    one_hot,
    scenes,
    sentences,
    tones,
    topics,
)

zoo = Zoo("embedding")


def _axes(kinds: Array, count: int, width: int) -> Array:
    """Return a direction for each kind, of those that are no axes."""
    return np.random.default_rng(5).standard_normal((count, width))[kinds]


def _normalized(net: Net, x: str) -> str:
    return net.add("Div", x, net.add("ReduceL2", x, axes=[-1], keepdims=1))


@zoo(quick=True)
def make_image_embedding(folder: Path) -> Made:
    """Vectors of length 1, near for the same figure."""
    training, rest = both(81)
    known, others = scenes(training, TRAINING), scenes(rest, SAMPLES)
    net = Net(81, x=known.images)
    x = net.add("Relu", net.conv("x", 24, 3, strides=[2, 2]))
    x = net.add("Flatten", net.add("Relu", net.conv(x, 48, 3, strides=[2, 2])))
    vector = net.fit_dense(
        x, np.concatenate([_axes(known.kinds, FIGURES, 24), known.boxes / 4], 1), ridge=0.1
    )
    path = net.save(folder / "model.onnx", vector=_normalized(net, vector))
    yaml = {"outputs": {"vector": {"kind": "embedding", "pooling": "none"}}}
    return made(path, others.images, {"vector": Embedding()}, yaml=yaml)


@zoo()
def make_sound_embedding(folder: Path) -> Made:
    """Vectors that are not normalized, with a large mean that all share."""
    training, rest = both(82)
    known, _, kinds = tones(training, TRAINING)
    net = Net(82, x=known)
    x = net.add("Relu", net.conv("x", 32, 15, strides=[2]))
    x = net.add("Relu", net.conv(x, 48, 9, strides=[2]))
    x = net.add("Flatten", net.add("GlobalAveragePool", x))
    vector = net.fit_dense(x, 10 + _axes(kinds, 6, 32))
    return made(
        net.save(folder / "model.onnx", vector=vector),
        tones(rest, SAMPLES)[0],
        {"vector": Embedding()},
    )


def _words(net: Net, width: int) -> str:
    """Add an embedding of words and their places, and one of the word before."""
    table = net.constant(net.random.standard_normal((32, width)))
    return net.add("Gather", table, "x")


def _token_feeds(result: Made, words: Array) -> Made:
    feeds = [{"x": row[None]} for row in words]
    result.calibration, result.evaluation, result.unseen = split(feeds)
    return result


@zoo("linux-x86-64", PRODUCTS)
def make_sentence_embedding(folder: Path) -> Made:
    """A transformer's block over words, mean of the positions."""
    training, rest = both(83)
    known, _ = sentences(training, 1000)
    net = Net(83, x=known)
    x = _words(net, 48)
    query, key, value = (net.dense(x, 48) for _ in range(3))
    scores = net.add("MatMul", query, net.add("Transpose", key, perm=[0, 2, 1]))
    shares = net.add("Softmax", net.add("Mul", scores, net.constant(0.1)), axis=-1)
    x = net.add("Add", x, net.dense(net.add("MatMul", shares, value), 48))
    x = net.add("LayerNormalization", x, net.constant(np.ones(48)), net.constant(np.zeros(48)))
    x = net.add("Add", x, net.dense(net.add("Relu", net.dense(x, 96)), 48))
    mean = net.add("ReduceMean", x, axes=[1], keepdims=0)
    counts = np.stack([np.bincount(row // 4, minlength=8) for row in known])
    vector = net.fit_dense(mean, np.concatenate([counts, _axes(topics(known), 4, 24)], 1))
    path = net.save(folder / "model.onnx", vector=_normalized(net, vector))
    return _token_feeds(
        Made(path, [], [], [], {"vector": Embedding()}), sentences(rest, SAMPLES)[0]
    )


@zoo(kind="tokens", quick=True)
def make_heard_letters(folder: Path) -> Made:
    """A letter for each frame of sound, chosen in the graph; repeated ones are one, as in CTC."""
    training, rest = both(84)
    known, letters = _spoken(training, 250)
    net = Net(84, x=known)
    scores = net.fit_conv(_frames(net), 8 * one_hot(letters, 5).transpose(0, 2, 1))
    best = net.add("ArgMax", scores, axis=1, keepdims=0)
    path = net.save(folder / "model.onnx", letters=best)
    return made(path, _spoken(rest, SAMPLES)[0], {"letters": Tokens(blank=0)})


@zoo("linux-x86-64", kind="tokens")
def make_any_length(folder: Path) -> Made:
    """The same as scores, of sounds of any length."""
    training, rest = both(85)
    known, letters = _spoken(training, 250)
    net = Net(85, x=known)
    scores = net.fit_conv(_frames(net), 8 * one_hot(letters, 5).transpose(0, 2, 1))
    path = net.save(
        folder / "model.onnx",
        free={"x": [1, 1, "length"], "letters": [1, "frames", 5]},
        letters=net.add("Transpose", scores, perm=[0, 2, 1]),
    )
    sounds = _spoken(rest, SAMPLES)[0]
    lengths = rest.integers(5, 11, SAMPLES) * 32
    feeds = [{"x": sound[None, :, :length]} for sound, length in zip(sounds, lengths, strict=True)]
    return Made(path, *split(feeds), {"letters": Tokens(blank=0)})


def _spoken(random: np.random.Generator, count: int) -> tuple[Array, Array]:
    """Return sounds (count, 1, 320) of ten letters or pauses, and that of each of 40 frames."""
    letters = np.repeat(random.integers(0, 5, (count, 10)), 4, axis=1)
    pitch = np.array([0.0, 0.04, 0.08, 0.14, 0.22])[np.repeat(letters, 8, axis=1)]
    sound = np.where(pitch > 0, np.sin(2 * np.pi * np.cumsum(pitch, 1)), 0)
    heard = sound + 0.2 * random.standard_normal(sound.shape)
    return heard[:, None].astype(np.float32), letters


def _frames(net: Net) -> str:
    x = net.add("Abs", net.conv("x", 48, 17, strides=[2]))
    x = net.add("Relu", net.conv(x, 48, 9, strides=[2]))
    return net.add("Relu", net.conv(x, 64, 5, strides=[2]))


@zoo("linux-x86-64", PRODUCTS, kind="tokens")
def make_tags(folder: Path) -> Made:
    """A tag for each word, by the word and the one before."""
    training, rest = both(86)
    known, tags = sentences(training, 800)
    net = Net(86, x=known)
    x = _words(net, 40)
    begin = net.add("Slice", x, *(net.constant([v], np.int64) for v in (0, 11, 1)))
    before = net.add("Pad", begin, net.constant([0, 1, 0, 0, 0, 0], np.int64))
    x = net.add("Relu", net.dense(net.add("Concat", x, before, axis=2), 160))
    scores = net.fit_dense(x, 8 * one_hot(tags, 5))
    result = Made(net.save(folder / "model.onnx", tags=scores), [], [], [], {"tags": Tokens()})
    return _token_feeds(result, sentences(rest, SAMPLES)[0])


@zoo(kind="tokens")
def make_yes_or_no(folder: Path) -> Made:
    """Eight decisions as bools: whether there is light in each part of the image."""
    training, rest = both(87)
    known, others = scenes(training, 600), scenes(rest, SAMPLES)
    net = Net(87, x=known.images)
    x = net.add("Flatten", net.add("Relu", net.conv("x", 24, 3, strides=[2, 2])))
    parts = known.masks.reshape(-1, 4, 4, 2, 8).mean((2, 4)).reshape(-1, 8)
    scores = net.fit_dense(x, np.where(parts > 0.15, 1.0, -1.0), ridge=0.1)
    path = net.save(folder / "model.onnx", decisions=net.add("Greater", scores, net.constant(0)))
    return made(path, others.images, {"decisions": Tokens()})


def _two_heads(seed: int) -> tuple[Net, str, Scenes, Array]:
    training, rest = both(seed)
    known, others = scenes(training, 600), scenes(rest, SAMPLES)
    net = Net(seed, x=known.images)
    x = net.add("Relu", net.conv("x", 24, 3, strides=[2, 2]))
    x = net.add("Relu", net.conv(x, 48, 3))
    return net, x, known, others.images


@zoo(kind="mixed", quick=True)
def make_class_score_and_mask(folder: Path) -> Made:
    net, x, known, given = _two_heads(91)
    flat = net.add("Flatten", net.add("AveragePool", x, kernel_shape=[2, 2], strides=[2, 2]))
    small = known.masks.reshape(-1, 8, 2, 8, 2).mean((2, 4))[:, None]
    path = net.save(
        folder / "model.onnx",
        classes=net.fit_dense(flat, 8 * one_hot(known.kinds, FIGURES)),
        area=net.fit_dense(flat, 5 + known.masks.mean((1, 2))[:, None]),
        mask=net.fit_conv(x, 8 * small - 4),
    )
    return made(path, given, {"classes": Classes(), "area": Value(), "mask": Mask()})


@zoo(kind="mixed")
def make_two_classes_of_a_shape(folder: Path) -> Made:
    """Two outputs of one shape that mean different things: what can be swapped unseen."""
    net, x, known, given = _two_heads(92)
    flat = net.add("Flatten", net.add("AveragePool", x, kernel_shape=[2, 2], strides=[2, 2]))
    middle = np.clip((known.boxes[:, 0] + known.boxes[:, 2]) / 2 / 16 * 6, 0, 5).astype(int)
    path = net.save(
        folder / "model.onnx",
        figure=net.fit_dense(flat, 8 * one_hot(known.kinds, FIGURES)),
        place=net.fit_dense(flat, 8 * one_hot(middle, 6)),
    )
    return made(path, given, {"figure": Classes(), "place": Classes()})


@zoo(kind="mixed")
def make_score_beside_large_map(folder: Path) -> Made:
    """One small number beside a map of thousands of large ones."""
    net, x, known, given = _two_heads(93)
    flat = net.add("Flatten", net.add("GlobalAveragePool", x))
    small = known.masks.reshape(-1, 8, 2, 8, 2).mean((2, 4))[:, None]
    there = np.where(np.isin(known.kinds, [1, 3, 4]), 5.0, -5.0)[:, None]
    path = net.save(
        folder / "model.onnx",
        heat=net.fit_conv(x, 500 * small),
        there=net.add("Sigmoid", net.fit_dense(flat, there)),
    )
    return made(path, given, {"heat": Mask(threshold=250), "there": Probability()})


@zoo(kind="mixed")
def make_constant_beside_classes(folder: Path) -> Made:
    """The version of the model, or its anchors, as an output beside the answer."""
    net, x, known, given = _two_heads(94)
    flat = net.add("Flatten", net.add("AveragePool", x, kernel_shape=[2, 2], strides=[2, 2]))
    zero = net.add("Mul", net.add("ReduceMean", flat, axes=[1], keepdims=1), net.constant(0))
    path = net.save(
        folder / "model.onnx",
        classes=net.fit_dense(flat, 8 * one_hot(known.kinds, FIGURES)),
        version=net.add("Add", zero, net.constant([[1.5, 2.5, 7.25]])),
    )
    return made(path, given, {"classes": Classes(), "version": Constant()})


@zoo(kind="mixed")
def make_constant_alone(folder: Path) -> Made:
    """A model that says the same of everything: of that, too, a bundle is what it is."""
    net, x, _, given = _two_heads(95)
    flat = net.add("Flatten", net.add("GlobalAveragePool", x))
    path = net.save(
        folder / "model.onnx",
        score=net.add(
            "Add", net.add("Mul", net.dense(flat, 3), net.constant(0)), net.constant([[0.5, -1, 3]])
        ),
    )
    return made(path, given, {"score": Constant()})
