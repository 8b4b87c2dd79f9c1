"""Masks, maps, and signals: outputs as large as their inputs."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.proofs.cases import SAMPLES, Made, Zoo, made
from tests.proofs.net import Array, Net
from tests.proofs.readings import Mask, Signal, Value
from tests.proofs.worlds import FIGURES, Scenes, both, scenes, tones

zoo = Zoo("mask")


def _scenes(seed: int, **how: int) -> tuple[Net, Scenes, Array]:
    training, rest = both(seed)
    known = scenes(training, 250, **how)
    return Net(seed, x=known.images), known, scenes(rest, SAMPLES, **how).images


def _classes(known: Scenes) -> Array:
    """Return 0 for the background, else 1 or 2 by the figure, for each place."""
    return known.masks * (1 + known.kinds % 2)[:, None, None]


def _features(net: Net) -> str:
    """Add features of each place and of what is around it."""
    first = net.add("Relu", net.conv("x", 16, 3))
    around = net.add("Relu", net.conv(first, 24, 5))
    wide = net.add("Relu", net.conv(around, 24, 3, dilations=[2, 2], pads=[2] * 4))
    return net.add("Concat", first, around, wide, axis=1)


def _scores(net: Net, known: Scenes) -> str:
    kinds = np.eye(3)[_classes(known)].transpose(0, 3, 1, 2)
    return net.fit_conv(_features(net), 6 * kinds)


@zoo(quick=True)
def make_mask_logits(folder: Path) -> Made:
    net, known, given = _scenes(61)
    return made(
        net.save(folder / "model.onnx", classes=_scores(net, known)), given, {"classes": Mask()}
    )


@zoo()
def make_mask_sigmoid(folder: Path) -> Made:
    net, known, given = _scenes(62)
    logit = net.fit_conv(_features(net), np.where(known.masks, 5.0, -5.0)[:, None])
    path = net.save(folder / "model.onnx", mask=net.add("Sigmoid", logit))
    return made(path, given, {"mask": Mask(threshold=0.5)})


@zoo()
def make_mask_argmax(folder: Path) -> Made:
    """The class of each place as an integer, chosen in the graph."""
    net, known, given = _scenes(63)
    best = net.add("ArgMax", _scores(net, known), axis=1, keepdims=0)
    return made(net.save(folder / "model.onnx", classes=best), given, {"classes": Mask()})


@zoo()
def make_mask_u_net(folder: Path) -> Made:
    """Down, and up again by a transposed convolution, with the large features beside."""
    net, known, given = _scenes(64)
    large = net.add("Relu", net.conv("x", 16, 3))
    small = net.add("Relu", net.conv(large, 32, 3, strides=[2, 2]))
    smaller = net.add("Relu", net.conv(small, 48, 3))
    up = net.add("Relu", net.conv(smaller, 32, 2, op="ConvTranspose", strides=[2, 2]))
    features = net.add("Concat", large, up, axis=1)
    features = net.add("Relu", net.conv(features, 48, 3))
    logit = net.fit_conv(features, np.where(known.masks, 5.0, -5.0)[:, None])
    return made(net.save(folder / "model.onnx", logit=logit), given, {"logit": Mask()})


@zoo()
def make_thin_lines(folder: Path) -> Made:
    """A mask that few places are in: the edges of figures."""
    net, known, given = _scenes(65)
    masks = np.pad(known.masks, ((0, 0), (1, 1), (1, 1)))
    inner = masks[:, :-2, 1:-1] & masks[:, 2:, 1:-1] & masks[:, 1:-1, :-2] & masks[:, 1:-1, 2:]
    edge = known.masks & ~inner
    logit = net.fit_conv(_features(net), np.where(edge, 8.0, -4.0)[:, None])
    path = net.save(folder / "model.onnx", edges=net.add("Sigmoid", logit))
    return made(path, given, {"edges": Mask(threshold=0.4)})


@zoo(kind="score")
def make_depth(folder: Path) -> Made:
    """How far each place is, 2 to 10 metres: a map that is read value by value."""
    net, known, given = _scenes(66)
    depth = 10 - 8 * known.masks * (known.kinds + 1)[:, None, None] / FIGURES
    return made(
        net.save(folder / "model.onnx", depth=net.fit_conv(_features(net), depth[:, None])),
        given,
        {"depth": Value()},
    )


@zoo(kind="signal", quick=True)
def make_denoise(folder: Path) -> Made:
    """Sound without its noise, by a bank of filters."""
    training, rest = both(71)
    noisy, clean, _ = tones(training, 200)
    net = Net(71, x=noisy)
    x = net.add("Tanh", net.conv("x", 32, 33))
    x = net.add("Concat", x, net.add("Tanh", net.conv(x, 32, 9)), axis=1)
    path = net.save(folder / "model.onnx", clean=net.fit_conv(x, clean))
    return made(path, tones(rest, SAMPLES)[0], {"clean": Signal()})


@zoo(kind="signal")
def make_enhance_by_gain(folder: Path) -> Made:
    """A gain for each band of a spectrum, times the spectrum."""

    def spectra(random: np.random.Generator, count: int) -> tuple[Array, Array]:
        noisy, clean, _ = tones(random, count, 512)
        cut = [
            np.abs(np.fft.rfft(s[:, 0].reshape(count, 8, 64) * np.hanning(64)))
            for s in (noisy, clean)
        ]
        given, says = (each.transpose(0, 2, 1).astype(np.float32) for each in cut)
        return given, says

    training, rest = both(72)
    noisy, clean = spectra(training, 400)
    net = Net(72, x=noisy)
    loud = net.add("Log", net.add("Add", "x", net.constant(0.05)))
    x = net.add("Relu", net.conv(loud, 64, 3))
    gain = net.add(
        "Clip",
        net.fit_conv(x, np.clip(clean / (noisy + 0.05), 0, 1)),
        net.constant(0),
        net.constant(1),
    )
    path = net.save(folder / "model.onnx", enhanced=net.add("Mul", "x", gain))
    return made(path, spectra(rest, SAMPLES)[0], {"enhanced": Signal(window=33)})


@zoo(kind="signal")
def make_super_resolution(folder: Path) -> Made:
    """Twice as large, from depth to space."""
    training, rest = both(73)
    large, others = (
        scenes(r, n, side=32, channels=1).images for r, n in ((training, 250), (rest, SAMPLES))
    )

    def halved(images: Array) -> Array:
        return images.reshape(len(images), 1, 16, 2, 16, 2).mean((3, 5))

    net = Net(73, x=halved(large))
    x = net.add("Relu", net.conv("x", 32, 5))
    x = net.add("Concat", "x", x, net.add("Relu", net.conv(x, 32, 3)), axis=1)
    parts = large.reshape(-1, 1, 16, 2, 16, 2).transpose(0, 3, 5, 1, 2, 4).reshape(-1, 4, 16, 16)
    path = net.save(
        folder / "model.onnx",
        large=net.add("DepthToSpace", net.fit_conv(x, parts), blocksize=2, mode="DCR"),
    )
    return made(path, halved(others), {"large": Signal(window=32)})


@zoo(kind="signal")
def make_upsample(folder: Path) -> Made:
    """Sound at twice the rate, by a transposed convolution."""
    training, rest = both(74)
    known, others = tones(training, 300)[1], tones(rest, SAMPLES)[1]
    net = Net(74, x=known[:, :, ::2].copy())
    x = net.add("Tanh", net.conv("x", 24, 9))
    x = net.add("Relu", net.conv(x, 48, 4, op="ConvTranspose", strides=[2], pads=[1, 1]))
    path = net.save(folder / "model.onnx", sound=net.fit_conv(x, known))
    return made(path, others[:, :, ::2].copy(), {"sound": Signal()})


@zoo(kind="signal")
def make_gate(folder: Path) -> Made:
    """Sound that is silent in most samples: a loud one passes, the others give zeros."""
    training, rest = both(75)

    def heard(random: np.random.Generator, count: int) -> Array:
        sound = tones(random, count)[0]
        return np.where(random.random((count, 1, 1)) < 0.8, 0.05, 1.0).astype(np.float32) * sound

    known = heard(training, 300)
    net = Net(75, x=known)
    level = net.add("ReduceMean", net.add("Abs", "x"), axes=[2], keepdims=1)
    gate = net.add(
        "Clip",
        net.add("Mul", net.add("Sub", level, net.constant(0.1)), net.constant(20)),
        net.constant(0),
        net.constant(1),
    )
    smooth = net.conv("x", 16, 9)
    sound = net.fit_conv(smooth, known)
    path = net.save(folder / "model.onnx", sound=net.add("Mul", sound, gate))
    return made(path, heard(rest, SAMPLES), {"sound": Signal()})


@zoo(kind="signal")
def make_wide_range(folder: Path) -> Made:
    """Predictions of 0.001 to 1000: loud and quiet samples count alike."""
    training, rest = both(76)

    def heard(random: np.random.Generator, count: int) -> Array:
        sound = tones(random, count)[1]
        return (sound * 10 ** random.uniform(-2, 2, (count, 1, 1))).astype(np.float32)

    known = heard(training, 300)
    net = Net(76, x=known[:, :, :128])
    path = net.save(
        folder / "model.onnx",
        sound=net.fit_conv(net.conv("x", 32, 33), known[:, :, :128] * 0.5, ridge=1e-5),
    )
    return made(path, heard(rest, SAMPLES)[:, :, :128], {"sound": Signal()})
