"""Detectors of figures in 64 x 64 images, with the heads that detectors have.

Each cell of a grid says which figures have their middle in it or beside it, and how far their sides
are away: regressions on random features, as everything in this zoo.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from tests.proofs.cases import SAMPLES, Made, Zoo, feeds_of, split
from tests.proofs.net import Array, Net
from tests.proofs.objects import Decoded, Objects
from tests.proofs.worlds import both

zoo = Zoo("detection")
SIDE, STRIDE = 64, 8
CELLS = SIDE // STRIDE
KINDS = 3
_MIDDLES = (
    np.stack(np.meshgrid(np.arange(CELLS), np.arange(CELLS)), -1).reshape(-1, 2) + 0.5
) * STRIDE
"""(64, 2): x and y of each cell's middle."""


def _scenes(random: np.random.Generator, count: int) -> tuple[Array, Array, Array]:
    """Return images with 0 to 3 discs, squares and diamonds, scores by cell, and sides by cell.

    Scores are (count, 3, 8, 8) of 0 or 1, sides (count, 4, 8, 8) in pixels from the cell's middle.
    """
    images = 0.05 * random.standard_normal((count, 3, SIDE, SIDE)) + 0.3
    rows, columns = np.mgrid[:SIDE, :SIDE] + 0.5
    scores = np.zeros((count, KINDS, CELLS, CELLS))
    sides = np.zeros((count, 4, CELLS, CELLS))
    for k in range(count):
        for _ in range(random.integers(0, 4)):
            kind, radius = random.integers(0, KINDS), random.uniform(6, 11)
            x, y = random.uniform(radius, SIDE - radius, 2)
            down, right = abs(rows - y), abs(columns - x)
            shape = [np.hypot(down, right), np.maximum(down, right), down + right][kind] < radius
            images[k][:, shape] = 0.3
            images[k, kind][shape] = random.uniform(0.7, 1.0)
            column, row = int(x // STRIDE), int(y // STRIDE)
            scores[k, :, row, column] = 0
            scores[k, kind, row, column] = 1
            middle = _MIDDLES[row * CELLS + column]
            low, high = [x - radius, y - radius], [x + radius, y + radius]
            sides[k, :, row, column] = [*(middle - low), *(high - middle)]
    return images.astype(np.float32), scores, sides


def _features(net: Net) -> str:
    """Add features of what lies within 22 pixels of each cell's middle, and return them."""
    x = net.add("Relu", net.conv("x", 12, 3, strides=[2, 2]))
    x = net.add("Relu", net.conv(x, 24, 3, strides=[2, 2]))
    wide = net.add("Relu", net.conv(x, 64, 7, strides=[2, 2]))
    wider = net.add("Relu", net.conv(wide, 64, 3))
    return net.add("Concat", wide, wider, axis=1)


def _heads(net: Net, scores: Array, sides: Array) -> tuple[str, str]:
    """Add logits of the scores and the sides in pixels, both (count, k, 8, 8)."""
    features = _features(net)
    is_there = scores.max(1) > 0
    weight = np.repeat(np.where(scores > 0, 6.0, 0.0), 1, axis=1) - 3.0
    # Of a few cells in a hundred: these count more, as a focal loss would have it.
    logits = _weighted(net, features, weight, np.where(is_there, 12.0, 1.0))
    return logits, _weighted(net, features, sides, np.where(is_there, 1.0, 1e-4))


def _weighted(net: Net, x: str, wanted: Array, weight: Array) -> str:
    """Add the 1x1 convolution that is nearest to what is wanted, places weighted (count, 8, 8)."""
    features = np.moveaxis(net.values(x), 1, -1).reshape(-1, net.values(x).shape[1]).astype(float)
    aim = np.moveaxis(wanted, 1, -1).reshape(-1, wanted.shape[1])
    weight = weight.reshape(-1, 1)
    ones = np.concatenate([features, np.ones((len(features), 1))], 1)
    gram = ones.T @ (weight * ones)
    gram += 1e-3 * np.trace(gram) / len(gram) * np.eye(len(gram))
    found = np.linalg.solve(gram, ones.T @ (weight * aim))
    kernel = found[:-1].T[:, :, None, None]
    return net.add("Conv", x, net.constant(kernel), net.constant(found[-1]))


def _detector(seed: int) -> tuple[Net, str, str, Array]:
    training, rest = both(seed)
    images, scores, sides = _scenes(training, 400)
    net = Net(seed, x=images)
    logits, distances = _heads(net, scores, sides)
    return net, logits, distances, _scenes(rest, SAMPLES)[0]


def _rows(net: Net, x: str, channels: int) -> str:
    flat = net.add("Reshape", x, net.constant([0, channels, CELLS**2], np.int64))
    return net.add("Transpose", flat, perm=[0, 2, 1])


def _centred(net: Net, distances: str) -> str:
    """Add middle, width and height (count, 64, 4) of the sides."""
    sides = _rows(net, distances, 4)
    near, far = (
        net.add("Slice", sides, *(net.constant([v], np.int64) for v in (first, first + 2, 2)))
        for first in (0, 2)
    )
    shift = net.add("Mul", net.add("Sub", far, near), net.constant(0.5))
    middle = net.add("Add", shift, net.constant(_MIDDLES[None]))
    return net.add("Concat", middle, net.add("Add", near, far), axis=2)


def _made(net: Net, path: Path, images: Array, decode: object, **yaml: object) -> Made:
    calibration, evaluation, unseen = split(feeds_of(x=images))
    del net
    return Made(path, calibration, evaluation, unseen, objects=Objects(decode), yaml=dict(yaml))


def _corners(centred: Array) -> Array:
    return np.concatenate(
        [centred[:, :2] - centred[:, 2:] / 2, centred[:, :2] + centred[:, 2:] / 2], 1
    )


def _sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-np.clip(x.astype(np.float64), -60, 60)))


def _image_of(layout: str) -> dict[str, object]:
    return {
        "inputs": {
            "x": {"image": {"resize": {"width": SIDE, "height": SIDE}, "scale": 0.00392157}}
        },
        "outputs": {"found": {"kind": "detection", "layout": layout}},
    }


@zoo(quick=True)
def make_yolo(folder: Path) -> Made:
    """``(1, 4 + C, N)``: boxes in pixels and scores in one output."""
    net, logits, distances, images = _detector(51)
    rows = net.add(
        "Concat", _centred(net, distances), net.add("Sigmoid", _rows(net, logits, KINDS)), axis=2
    )
    path = net.save(folder / "model.onnx", found=net.add("Transpose", rows, perm=[0, 2, 1]))

    def decode(outputs: Mapping[str, Array]) -> Decoded:
        rows = outputs["found"][0].T
        return _corners(rows[:, :4]), rows[:, 4:]

    return _made(net, path, images, decode, **_image_of("yolo"))


@zoo()
def make_yolov5(folder: Path) -> Made:
    """``(1, N, 5 + C)``: the score that there is an object at all comes first."""
    net, logits, distances, images = _detector(52)
    scores = _rows(net, logits, KINDS)
    best = net.add("Sigmoid", net.add("ReduceMax", scores, axes=[2], keepdims=1))
    kinds = net.add("Softmax", net.add("Mul", scores, net.constant(2)), axis=-1)
    path = net.save(
        folder / "model.onnx",
        found=net.add("Concat", _centred(net, distances), best, kinds, axis=2),
    )

    def decode(outputs: Mapping[str, Array]) -> Decoded:
        rows = outputs["found"][0]
        return _corners(rows[:, :4]), rows[:, 4:5] * rows[:, 5:]

    return _made(net, path, images, decode, **_image_of("yolov5"))


@zoo()
def make_many_heads(folder: Path) -> Made:
    """Classes, objectness and boxes as outputs of their own, as in YuNet and YOLOX."""
    net, logits, distances, images = _detector(53)
    there = net.add("Sigmoid", net.add("ReduceMax", logits, axes=[1], keepdims=1))
    path = net.save(
        folder / "model.onnx",
        cls=net.add("Sigmoid", _rows(net, logits, KINDS)),
        obj=_rows(net, there, 1),
        bbox=_rows(net, distances, 4),
    )

    def decode(outputs: Mapping[str, Array]) -> Decoded:
        sides = outputs["bbox"][0]
        boxes = np.concatenate([_MIDDLES - sides[:, :2], _MIDDLES + sides[:, 2:]], 1)
        return boxes, np.sqrt(np.maximum(outputs["cls"][0] * outputs["obj"][0], 0))

    return _made(net, path, images, decode)


@zoo()
def make_raw_maps(folder: Path) -> Made:
    """Logits and sides as maps, decoded by the app."""
    net, logits, distances, images = _detector(54)
    path = net.save(folder / "model.onnx", logits=logits, sides=distances)

    def decode(outputs: Mapping[str, Array]) -> Decoded:
        sides = outputs["sides"][0].reshape(4, -1).T
        boxes = np.concatenate([_MIDDLES - sides[:, :2], _MIDDLES + sides[:, 2:]], 1)
        return boxes, _sigmoid(outputs["logits"][0].reshape(KINDS, -1).T)

    return _made(net, path, images, decode)


@zoo()
def make_normalized_boxes(folder: Path) -> Made:
    """Boxes of 0 to 1 beside logits in one output of rows, as SSD heads have them."""
    net, logits, distances, images = _detector(55)
    boxes = net.add("Div", _centred(net, distances), net.constant(SIDE))
    path = net.save(
        folder / "model.onnx", found=net.add("Concat", boxes, _rows(net, logits, KINDS), axis=2)
    )

    def decode(outputs: Mapping[str, Array]) -> Decoded:
        rows = outputs["found"][0]
        return _corners(rows[:, :4] * SIDE), _sigmoid(rows[:, 4:])

    return _made(net, path, images, decode)


@zoo()
def make_one_face(folder: Path) -> Made:
    """A score for each cell and a box: with 64 cells of which one is right, most are background."""
    net, logits, distances, images = _detector(56)
    score = net.add("ReduceMax", logits, axes=[1], keepdims=1)
    path = net.save(
        folder / "model.onnx",
        scores=net.add("Sigmoid", score),
        boxes=net.add("Div", distances, net.constant(4)),
    )

    def decode(outputs: Mapping[str, Array]) -> Decoded:
        sides = outputs["boxes"][0].reshape(4, -1).T * 4
        boxes = np.concatenate([_MIDDLES - sides[:, :2], _MIDDLES + sides[:, 2:]], 1)
        return boxes, outputs["scores"][0].reshape(1, -1).T

    return _made(net, path, images, decode)
