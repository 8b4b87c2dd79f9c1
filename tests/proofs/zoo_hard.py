"""Models that integers are bad for: what they say is small beside what they compute."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.proofs.cases import CALIBRATION, EVALUATION, PRODUCTS, SAMPLES, Made, Zoo, feeds_of, made
from tests.proofs.net import Array, Net
from tests.proofs.readings import Classes, Embedding, Mask, Probability, Signal, Tokens, Value
from tests.proofs.worlds import FIGURES, TRAINING, both, one_hot, scenes, speech, tones

zoo = Zoo("score")


def _sound(net: Net, x: str = "x") -> str:
    x = net.add("Relu", net.conv(x, 32, 9, strides=[2]))
    x = net.add("Relu", net.conv(x, 48, 9, strides=[2]))
    return net.add("Flatten", net.add("GlobalAveragePool", x))


@zoo(quick=True)
def make_small_difference(folder: Path) -> Made:
    """3 and a tenth either way, as the difference of two numbers of about 40 that rise together."""
    training, rest = both(111)
    known, noise = speech(training, 1000)
    net = Net(111, x=known)
    loud = known.std((1, 2))
    common = 40 * loud / loud.mean()
    quality = 1.6 - 0.15 * noise
    pair = net.fit_dense(_sound(net), np.stack([common + quality, common - quality], 1))
    score = net.add("MatMul", pair, net.constant([[1.0], [-1.0]]))
    return made(
        net.save(folder / "model.onnx", score=score), speech(rest, SAMPLES)[0], {"score": Value()}
    )


@zoo()
def make_small_difference_unjudged(folder: Path) -> Made:
    """The same of a project that has no samples to judge by."""
    result = make_small_difference(folder)
    result.evaluation = []
    return result


@zoo()
def make_small_difference_of_few(folder: Path) -> Made:
    """The same with three samples to judge by."""
    result = make_small_difference(folder)
    result.evaluation = result.evaluation[:3]
    return result


@zoo()
def make_small_difference_of_one(folder: Path) -> Made:
    """The same with a single one."""
    result = make_small_difference(folder)
    result.evaluation = result.evaluation[:1]
    return result


@zoo()
def make_difference_of_logs(folder: Path) -> Made:
    """The ratio of two energies in decibels, as the difference of two logarithms."""
    training, rest = both(112)
    known, _ = speech(training, 400)
    net = Net(112, x=known)
    bands = net.add("Conv", "x", net.constant(net.random.standard_normal((2, 1, 33)) * 0.2))
    energy = net.add("ReduceMean", net.add("Mul", bands, bands), axes=[2], keepdims=0)
    logs = net.add("Log", net.add("Add", energy, net.constant(1e-6)))
    ratio = net.add("MatMul", logs, net.constant([[4.34], [-4.34]]))
    return made(
        net.save(folder / "model.onnx", ratio=ratio), speech(rest, SAMPLES)[0], {"ratio": Value()}
    )


def _anomalous(random: np.random.Generator, count: int, often: float) -> Array:
    """Return rows on a plane of 5 of 32 dimensions; a few are a little beside it."""
    plane = np.random.default_rng(6).standard_normal((5, 32))
    rows = random.standard_normal((count, 5)) @ plane
    beside = (random.random(count) < often)[:, None] * random.standard_normal((count, 32))
    return (rows + 0.05 * random.standard_normal((count, 32)) + 0.35 * beside).astype(np.float32)


@zoo("linux-x86-64", PRODUCTS, kind="probability")
def make_anomaly(folder: Path) -> Made:
    """How far a row is from what an autoencoder makes of it: small, beside the row."""
    training, rest = both(113)
    known = _anomalous(training, 1000, 0)
    net = Net(113, x=known)
    _, _, axes = np.linalg.svd(known - known.mean(0), full_matrices=False)
    inner = net.add("MatMul", "x", net.constant(axes[:5].T))
    again = net.add("MatMul", inner, net.constant(axes[:5]))
    away = net.add("Sub", "x", again)
    distance = net.add("ReduceMean", net.add("Mul", away, away), axes=[1], keepdims=1)
    path = net.save(folder / "model.onnx", distance=distance)
    return made(path, _anomalous(rest, SAMPLES, 0.15), {"distance": Probability(threshold=0.02)})


@zoo(kind="probability")
def make_anomaly_of_sound(folder: Path) -> Made:
    """The same with convolutions: the error of a predicted sound, where some have clicks."""
    training, rest = both(114)

    def heard(random: np.random.Generator, count: int, often: float) -> Array:
        sound = tones(random, count)[1]
        for k in np.flatnonzero(random.random(count) < often):
            sound[k, 0, random.integers(20, 230)] += random.choice([-3.0, 3.0])
        return sound

    known = heard(training, 300, 0)
    net = Net(114, x=known)
    around = net.random.standard_normal((48, 1, 21)) * 0.2
    around[:, :, 8:13] = 0
    bank = net.add("Conv", "x", net.constant(around), pads=[10, 10])
    again = net.fit_conv(bank, known, ridge=1e-4)
    away = net.add("Sub", "x", again)
    worst = net.add("ReduceMax", net.add("Abs", away), axes=[1, 2], keepdims=0)
    path = net.save(folder / "model.onnx", click=worst)
    return made(path, heard(rest, SAMPLES, 0.3), {"click": Probability(threshold=1.5)})


@zoo(kind="probability")
def make_rarest_word(folder: Path) -> Made:
    """A wake word in one sample of a hundred: calibration and evaluation hardly have any."""
    training, rest = both(115)
    time = np.arange(100)
    word = 1.2 * np.sin(2 * np.pi * (0.04 * time + 0.0006 * time**2)) * np.hanning(100)

    def said(random: np.random.Generator, count: int, often: float) -> tuple[Array, Array]:
        sound, _ = speech(random, count)
        is_said = random.random(count) < often
        for k in np.flatnonzero(is_said):
            start = random.integers(0, 220)
            sound[k, 0, start : start + 100] += word
        return sound, is_said

    known, is_said = said(training, 1500, 0.3)
    net = Net(115, x=known)
    templates = np.stack([word, -word])[:, None] / 25
    match = net.add("Relu", net.add("Conv", "x", net.constant(templates)))
    ways = [net.add("Flatten", net.add("GlobalMaxPool", match)), _sound(net)]
    logit = net.fit_dense(net.add("Concat", *ways, axis=1), np.where(is_said, 5.0, -5.0)[:, None])
    path = net.save(folder / "model.onnx", wake=net.add("Sigmoid", logit))
    feeds = feeds_of(x=said(rest, CALIBRATION + EVALUATION, 0.01)[0])
    unseen = feeds_of(x=said(rest, 1500, 0.01)[0])
    return Made(path, feeds[:CALIBRATION], feeds[CALIBRATION:], unseen, {"wake": Probability()})


@zoo()
def make_narrow_calibration(folder: Path) -> Made:
    """Samples to calibrate with that are all quieter than what comes later."""
    training, rest = both(116)
    known, noise = speech(training, 1000)
    net = Net(116, x=known)
    loudness = np.log(known.std((1, 2)))[:, None]
    result = made(
        net.save(folder / "model.onnx", loudness=net.fit_dense(_sound(net), loudness)),
        speech(rest, SAMPLES)[0],
        {"loudness": Value()},
    )
    del noise
    result.calibration = [{"x": 0.3 * feed["x"]} for feed in result.calibration]
    return result


@zoo()
def make_count(folder: Path) -> Made:
    """How many dots there are, 0 to 40: a sum over a map."""

    def dots(random: np.random.Generator, count: int) -> tuple[Array, Array]:
        images = 0.1 * random.standard_normal((count, 1, 32, 32))
        numbers = random.integers(0, 41, count)
        for k, number in enumerate(numbers):
            places = random.permutation(100)[:number]
            images[k, 0, places // 10 * 3 + 1, places % 10 * 3 + 1] += 1
        return images.astype(np.float32), numbers[:, None].astype(float)

    training, rest = both(117)
    known, numbers = dots(training, 600)
    net = Net(117, x=known)
    x = net.add("Relu", net.conv(net.add("Relu", net.conv("x", 16, 3)), 24, 3))
    total = net.add("ReduceSum", x, net.constant([2, 3], np.int64), keepdims=0)
    return made(
        net.save(folder / "model.onnx", count=net.fit_dense(total, numbers)),
        dots(rest, SAMPLES)[0],
        {"count": Value()},
    )


@zoo()
def make_heavy_tail(folder: Path) -> Made:
    """A price that is the exponential of a score: 1 to 3000."""
    training, rest = both(118)
    known, noise = speech(training, 1000)
    net = Net(118, x=known)
    log = net.fit_dense(_sound(net), (8 * noise)[:, None])
    return made(
        net.save(folder / "model.onnx", price=net.add("Exp", log)),
        speech(rest, SAMPLES)[0],
        {"price": Value()},
    )


@zoo(kind="embedding")
def make_close_faces(folder: Path) -> Made:
    """Embeddings with a cosine of 0.99 to each other: who is nearest lies in the rest."""
    training, rest = both(119)
    known, others = scenes(training, TRAINING), scenes(rest, SAMPLES)
    net = Net(119, x=known.images)
    x = net.add("Relu", net.conv("x", 24, 3, strides=[2, 2]))
    x = net.add("Flatten", net.add("Relu", net.conv(x, 48, 3, strides=[2, 2])))
    says = np.concatenate([one_hot(known.kinds, FIGURES), known.boxes / 8], 1)
    vector = net.fit_dense(
        x, 12 + says @ np.random.default_rng(3).standard_normal((10, 32)), ridge=0.1
    )
    length = net.add("ReduceL2", vector, axes=[-1], keepdims=1)
    path = net.save(folder / "model.onnx", vector=net.add("Div", vector, length))
    return made(path, others.images, {"vector": Embedding()})


@zoo(kind="classes")
def make_deep_and_narrow(folder: Path) -> Made:
    """Sixteen layers of eight channels, one after the other."""
    training, rest = both(120)
    known, others = scenes(training, TRAINING), scenes(rest, SAMPLES)
    net = Net(120, x=known.images)
    x = "x"
    for k in range(16):
        x = net.add("PRelu", net.conv(x, 8, 3), net.constant(np.full((8, 1, 1), 0.7)))
        if k == 7:
            x = net.add("AveragePool", x, kernel_shape=[2, 2], strides=[2, 2])
    logits = net.fit_dense(net.add("Flatten", x), 8 * one_hot(known.kinds, FIGURES), ridge=0.1)
    return made(
        net.save(folder / "model.onnx", logits=logits), others.images, {"logits": Classes()}
    )


@zoo("linux-x86-64", PRODUCTS, kind="tokens")
def make_sharp_attention(folder: Path) -> Made:
    """Which of 24 keys each query is: products of large scores, and a softmax that is sharp."""
    keys = np.random.default_rng(4).standard_normal((24, 32))
    keys /= np.linalg.norm(keys, axis=1, keepdims=True)

    def asked(random: np.random.Generator, count: int) -> Array:
        wanted = random.integers(0, 24, (count, 10))
        return (keys[wanted] + 0.12 * random.standard_normal((count, 10, 32))).astype(np.float32)

    training, rest = both(121)
    net = Net(121, x=asked(training, 300))
    scores = net.add("MatMul", "x", net.constant(40 * keys.T))
    shares = net.add("Softmax", scores, axis=-1)
    path = net.save(
        folder / "model.onnx", found=net.add("MatMul", shares, net.constant(np.eye(24) * 5))
    )
    return made(path, asked(rest, SAMPLES), {"found": Tokens()})


@zoo(kind="mask")
def make_rare_defects(folder: Path) -> Made:
    """Scratches that are one place in five hundred."""

    def surfaces(random: np.random.Generator, count: int) -> tuple[Array, Array]:
        images = 0.5 + 0.1 * random.standard_normal((count, 1, 24, 24))
        masks = np.zeros((count, 24, 24), bool)
        for k in np.flatnonzero(random.random(count) < 0.3):
            row, column = random.integers(2, 18, 2)
            masks[k, row, column : column + 4] = True
            images[k, 0][masks[k]] -= 0.45
        return images.astype(np.float32), masks

    training, rest = both(122)
    known, masks = surfaces(training, 400)
    net = Net(122, x=known)
    line = np.zeros((3, 1, 5, 5))
    line[0, 0, 2], line[1, 0, 2, 2], line[2, 0] = -0.2, -1, 0.04
    x = net.add("Conv", "x", net.constant(line), pads=[2] * 4)
    x = net.add("Concat", net.add("Relu", x), net.add("Relu", net.conv("x", 24, 5)), axis=1)
    logit = net.fit_conv(
        net.add("Relu", net.conv(x, 48, 3)), np.where(masks, 60.0, -1.0)[:, None], ridge=1e-4
    )
    path = net.save(folder / "model.onnx", scratch=net.add("Sigmoid", logit))
    return made(path, surfaces(rest, SAMPLES)[0], {"scratch": Mask(threshold=0.9)})


@zoo(kind="score")
def make_dead_ahead(folder: Path) -> Made:
    """A steering angle of a hundredth, the mean of a map of large values of both signs."""
    training, rest = both(123)
    known, others = scenes(training, 600), scenes(rest, SAMPLES)
    net = Net(123, x=known.images)
    angle = ((known.boxes[:, 0] + known.boxes[:, 2]) / 2 - 8)[:, None, None, None] / 800
    signs = np.where(np.indices((16, 16)).sum(0) % 2, 30.0, -30.0)
    x = net.add("Relu", net.conv(net.add("Relu", net.conv("x", 16, 3)), 32, 7))
    field = net.add(
        "Add",
        net.fit_conv(x, np.broadcast_to(angle * 20, (600, 1, 16, 16))),
        net.constant(signs[None, None]),
    )
    mean = net.add(
        "ReduceMean",
        net.add("Conv", field, net.constant(np.full((1, 1, 2, 2), 0.0125)), strides=[2, 2]),
        axes=[1, 2, 3],
        keepdims=0,
    )
    return made(net.save(folder / "model.onnx", angle=mean), others.images, {"angle": Value()})


@zoo(kind="score", quick=True)
def make_weather(folder: Path) -> Made:
    """Temperature in kelvin, pressure in pascal, and the share of water, in one output."""

    def skies(random: np.random.Generator, count: int) -> tuple[Array, Array]:
        given = random.standard_normal((count, 1, 12, 12))
        given += random.standard_normal((count, 3, 1, 1)).sum(1, keepdims=True)
        given[:, :, :6] += random.standard_normal((count, 1, 1, 1))
        given[:, :, :, :6] += random.standard_normal((count, 1, 1, 1))
        whole, upper = given.mean((1, 2, 3)), given[:, :, :6].mean((1, 2, 3))
        left = given[:, :, :, :6].mean((1, 2, 3))
        says = np.stack([288 + 6 * (upper - whole), 101325 + 800 * whole, 0.01 + 0.002 * left], 1)
        return given.astype(np.float32), says

    training, rest = both(124)
    known, says = skies(training, 800)
    net = Net(124, x=known)
    x = net.add("Relu", net.conv(net.add("Relu", net.conv("x", 12, 3)), 24, 3, strides=[2, 2]))
    x = net.add("Flatten", net.add("AveragePool", x, kernel_shape=[3, 3], strides=[3, 3]))
    path = net.save(folder / "model.onnx", weather=net.fit_dense(x, says, ridge=1e-3))
    return made(path, skies(rest, SAMPLES)[0], {"weather": Value(apart=True)})


@zoo(kind="classes")
def make_rare_classes(folder: Path) -> Made:
    """Nothing at all in nine samples of ten, and six figures in the others."""
    training, rest = both(125)

    def watched(random: np.random.Generator, count: int, often: float) -> tuple[Array, Array]:
        found = scenes(random, count)
        is_there = random.random(count) < often
        empty = 0.08 * random.standard_normal(found.images.shape) + 0.4
        images = np.where(is_there[:, None, None, None], found.images, empty)
        return images.astype(np.float32), np.where(is_there, found.kinds + 1, 0)

    known, kinds = watched(training, 1200, 0.7)
    net = Net(125, x=known)
    x = net.add("Relu", net.conv(net.add("Relu", net.conv("x", 24, 3)), 48, 3, strides=[2, 2]))
    x = net.add("Flatten", net.add("AveragePool", x, kernel_shape=[4, 4], strides=[4, 4]))
    logits = net.fit_dense(x, 8 * one_hot(kinds, FIGURES + 1))
    path = net.save(folder / "model.onnx", classes=net.add("Softmax", logits, axis=-1))
    feeds = feeds_of(x=watched(rest, CALIBRATION + EVALUATION, 0.1)[0])
    unseen = feeds_of(x=watched(rest, 800, 0.1)[0])
    readings = {"classes": Classes(balanced=True)}
    return Made(path, feeds[:CALIBRATION], feeds[CALIBRATION:], unseen, readings)


@zoo(kind="signal")
def make_loud_and_quiet_bands(folder: Path) -> Made:
    """A spectrum whose low bands are a thousand times as loud as its high ones."""
    training, rest = both(126)
    tilt = np.logspace(1.5, -1.5, 33)[None, :, None]

    def spectra(random: np.random.Generator, count: int) -> tuple[Array, Array]:
        noisy, clean, _ = tones(random, count, 512)
        cut = [
            np.abs(np.fft.rfft(s[:, 0].reshape(count, 8, 64) * np.hanning(64)))
            for s in (noisy, clean)
        ]
        given, says = (each.transpose(0, 2, 1) * tilt for each in cut)
        return given.astype(np.float32), says

    noisy, clean = spectra(training, 400)
    net = Net(126, x=noisy)
    level = net.add("Div", "x", net.constant(tilt))
    x = net.add("Relu", net.conv(level, 64, 3))
    path = net.save(folder / "model.onnx", bands=net.fit_conv(x, clean, ridge=1e-4))
    return made(path, spectra(rest, SAMPLES)[0], {"bands": Signal(window=8)})
