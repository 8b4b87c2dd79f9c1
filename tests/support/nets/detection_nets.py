"""Detectors built in code that find coloured rectangles, and what detectors' outputs say.

No weight is trained: a detector of rectangles can be written down. Linear maps tell six colours
apart, runs of ones along rows and columns count the cells from a place to each edge of its
rectangle, and a place is the middle where the counts to both sides are the same. What fits into few
channels is spread over many by random matrices, as in a trained network: SiLU(x) - SiLU(-x) = x
lets linear maps pass through activation functions unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from onnx import ModelProto, TensorProto, helper, version_converter
from PIL import Image

from tests.support.nets import tiny_models
from tests.support.nets.net_builder import NetBuilder

Array = np.ndarray[Any, Any]

FLOAT = np.float32
SIZE = 320
"""Pixels along each side of an image."""
STRIDE = 8
CELLS = SIZE // STRIDE
MIDDLE = 0.5 / STRIDE
"""Where in a cell its place is, in cells: three strides of 2 begin at the first pixel."""
SMALLEST, LARGEST = 48, 92
"""Sides of rectangles in pixels. An edge that is 2 pixels off, a quarter of a cell, leaves the
smallest an IoU of 0.96."""
REACH = 12
"""Cells to each side of a place that are counted: no rectangle is larger."""
BINS = 16
"""Of the distribution of each distance, in cells."""
COLOURS = np.array([(1, 0, 0), (0, 1, 0), (0, 0, 1), (1, 1, 0), (0, 1, 1), (1, 0, 1)], dtype=FLOAT)
"""One class each."""
CLASSES = len(COLOURS)


class Detection(NamedTuple):
    """One found thing."""

    kind: int
    score: float
    box: Array
    """(4,) x1, y1, x2, y2 in pixels."""


def scene(seed: int) -> tuple[Array, list[Detection]]:
    """Return an image (1, 3, 320, 320) of 0 to 1 with three rectangles on noise, and the truth.

    No two rectangles share a row or a column.
    """
    random = np.random.default_rng(seed)
    image = random.uniform(0, 0.1, (3, SIZE, SIZE)).astype(FLOAT)
    truth = []
    band = SIZE // 3
    for row, column in enumerate(random.permutation(3)):
        width, height = random.integers(SMALLEST, LARGEST, 2)
        x = int(column * band + random.integers(4, band - width - 4))
        y = int(row * band + random.integers(4, band - height - 4))
        kind = int(random.integers(CLASSES))
        shade = random.uniform(0.75, 1.0)
        image[:, y : y + height, x : x + width] += (COLOURS[kind] * shade)[:, None, None]
        truth.append(Detection(kind, 1.0, np.array([x, y, x + width, y + height], FLOAT)))
    return np.clip(image, 0, 1)[None], truth


@dataclass
class _Builder(NetBuilder):
    def conv(self, x: str, weights: Array, bias: Array, output: str, stride: int = 1) -> str:
        """Weights (out, in, height, width); the output is as large as the input over the stride."""
        names = [
            self.constant(f"{output}.{name}", np.asarray(values, FLOAT))
            for name, values in (("w", weights), ("b", bias))
        ]
        kernel = weights.shape[-1]
        return self.add("Conv", [x, *names], output, strides=[stride] * 2, pads=[kernel // 2] * 4)

    def mixed(self, x: str, rows: Array, bias: Array, width: int, output: str, **conv: Any) -> _Mix:
        """Compute linear maps, spread over ``width`` channels of SiLU.

        Args:
            rows: (maps, in, height, width) weights of the maps.
        """
        maps = len(rows)
        basis, _ = np.linalg.qr(self.random.standard_normal((width // 2, maps)))
        scale = self.random.uniform(0.5, 2, (width // 2, 1))
        spread = 4 * scale * basis
        weights = np.einsum("ck,kihw->cihw", spread, rows)
        both = [np.concatenate([a, -a]) for a in (weights, spread @ bias)]
        name = self.conv(x, *both, f"{output}.linear", **conv)
        self.add("Sigmoid", [name], f"{output}.gate")
        self.add("Mul", [name, f"{output}.gate"], output)
        back = np.linalg.pinv(spread)
        return _Mix(output, np.concatenate([back, -back], axis=1))


class _Mix(NamedTuple):
    name: str
    back: Array
    """(maps, channels): what makes the maps of the channels again."""

    def rows(self, weights: Array) -> Array:
        """Return weights (out, channels, ...) that do with channels what was meant for maps."""
        return np.einsum("om...,mc->oc...", weights, self.back)


def _pointwise(matrix: Array) -> Array:
    return matrix[:, :, None, None]


def _features(net: _Builder) -> _Mix:
    """Add the backbone: maps of 6 colours and of 4 distances (left, top, right, bottom) / REACH."""
    mean = np.eye(3)[:, :, None, None] * np.full((3, 3), 1 / 9)
    first = net.mixed("images", mean, np.zeros(3), 16, "stem", stride=2)
    second = net.mixed(first.name, first.rows(mean), np.zeros(3), 32, "down", stride=2)
    # Of a colour's own channels the sum, less the others: above the bias for that colour alone.
    primary = COLOURS.sum(1) == 1
    tells = np.where(COLOURS == 1, 1.0, -1.0)
    bias = np.where(primary, -0.3, -1.1)
    evidence = np.einsum("km,mihw->kihw", tells, mean)
    net.conv(second.name, second.rows(evidence), bias, "evidence", stride=2)
    net.add("Relu", ["evidence"], "colours")
    net.conv("colours", np.full((1, CLASSES, 1, 1), 4.0), np.zeros(1), "any")
    net.add("Clip", ["any", net.constant("zero", 0.0), net.constant("one", 1.0)], "inside")
    runs = np.zeros((4, 1, 2 * REACH - 1, 2 * REACH - 1))
    middle = REACH - 1
    for direction, part in enumerate(
        [np.s_[middle, : middle + 1], np.s_[: middle + 1, middle],
         np.s_[middle, middle:], np.s_[middle:, middle]]
    ):  # fmt: skip
        runs[direction, 0][part] = 1 / REACH
    net.conv("inside", runs, np.zeros(4), "counts")
    net.add("Concat", ["colours", "counts"], "found", axis=1)
    maps = CLASSES + 4
    return net.mixed("found", _pointwise(np.eye(maps)), np.zeros(maps), 48, "neck")


def _class_logits(net: _Builder, neck: _Mix, output: str) -> str:
    """Add logits: high where there is a colour and the distances to both sides are the same."""
    maps = CLASSES + 4
    apart = np.zeros((4, maps))
    for row, (plus, minus) in enumerate([(0, 2), (2, 0), (1, 3), (3, 1)]):
        apart[row, CLASSES + plus], apart[row, CLASSES + minus] = REACH, -REACH
    colour = np.eye(maps)[:CLASSES] * 4
    rows = _pointwise(np.concatenate([colour, apart]))
    net.conv(neck.name, neck.rows(rows), np.zeros(maps), f"{output}.terms")
    net.add("Relu", [f"{output}.terms"], f"{output}.relu")
    weights = np.concatenate([np.eye(CLASSES) * 6, np.full((CLASSES, 4), -2.0)], axis=1)
    return net.conv(f"{output}.relu", _pointwise(weights), np.full(CLASSES, -4.0), output)


def yolo(path: Path) -> Path:
    """Write a detector with the head that YOLOv8 has: distances as distributions, one output.

    ``images`` (1, 3, 320, 320) of 0 to 1; ``output0`` (1, 4 + 6, 1600): middle x, middle y, width
    and height in pixels, then a score of 0 to 1 for each class.
    """
    net = _Builder(np.random.default_rng(7))
    neck = _features(net)
    # Softmax of (2 d k - k^2) / 4 over the bins k has the mean d. What all bins share does not
    # matter to it: as weight decay would have it, their mean is taken off. A count holds its own
    # cell, half of which lies on either side.
    bins = np.arange(BINS)
    slopes, parabola = bins - bins.mean(), bins**2 - np.mean(bins**2)
    logits = np.zeros((4, BINS, CLASSES + 4))
    for side in range(4):
        logits[side, :, CLASSES + side] = 2 * slopes * REACH / 4
    rows = _pointwise(logits.reshape(4 * BINS, -1))
    bias = np.tile((-slopes - parabola) / 4, 4)
    net.conv(neck.name, neck.rows(rows), bias, "distances")
    _class_logits(net, neck, "classes")
    places = CELLS**2
    net.add("Concat", ["distances", "classes"], "head", axis=1)
    shape = net.constant("flat", [1, 4 * BINS + CLASSES, places])
    net.add("Reshape", ["head", shape], "places")
    split = net.constant("parts", [4 * BINS, CLASSES])
    net.nodes.append(helper.make_node("Split", ["places", split], ["sides", "kinds"], axis=1))
    net.add("Reshape", ["sides", net.constant("by_bin", [1, 4, BINS, places])], "sides.bins")
    net.add("Transpose", ["sides.bins"], "bins.sides", perm=[0, 2, 1, 3])
    net.add("Softmax", ["bins.sides"], "shares", axis=1)
    net.conv("shares", bins.reshape(1, BINS, 1, 1), np.zeros(1), "mean")
    net.add("Reshape", ["mean", net.constant("by_side", [1, 4, places])], "ltrb")
    _boxes(net, "ltrb")
    net.add("Sigmoid", ["kinds"], "scores")
    net.add("Concat", ["boxes", "scores"], "output0", axis=1)
    return _saved(net, path, [1, 4 + CLASSES, places])


def _boxes(net: _Builder, distances: str) -> None:
    """Add the decoding of distances from a place in cells to ``boxes`` in pixels."""
    grid = np.stack(np.meshgrid(np.arange(CELLS), np.arange(CELLS))).reshape(1, 2, -1) + MIDDLE
    net.constant("anchors", grid)
    for name, first in (("lt", 0), ("rb", 2)):
        limits = [net.constant(f"{name}.{k}", [v]) for k, v in (("from", first), ("to", first + 2))]
        net.add("Slice", [distances, *limits, net.constant(f"{name}.axis", [1])], name)
    net.add("Sub", ["anchors", "lt"], "start")
    net.add("Add", ["anchors", "rb"], "end")
    net.add("Add", ["start", "end"], "sum")
    net.add("Div", ["sum", net.constant("two", 2.0)], "middle")
    net.add("Sub", ["end", "start"], "size")
    net.add("Concat", ["middle", "size"], "cells", axis=1)
    net.add("Mul", ["cells", net.constant("stride", float(STRIDE))], "boxes")


def one_conv(path: Path) -> Path:
    """Write a detector whose last convolution gives distances and scores at once.

    ``images`` as for :func:`yolo`; ``output0`` (1, 1600, 4 + 6): distances left, top, right and
    bottom from the middle of the place's cell in pixels, then a score of about 0 to 1 per class.
    """
    net = _Builder(np.random.default_rng(8))
    neck = _features(net)
    logits = _class_logits(net, neck, "classes")
    net.add("Sigmoid", [logits], "likely")
    net.add("Concat", [neck.name, "likely"], "all", axis=1)
    sides = np.eye(CLASSES + 4)[CLASSES:] * REACH * STRIDE
    weights = np.zeros((4 + CLASSES, neck.back.shape[1] + CLASSES))
    weights[:4, : neck.back.shape[1]] = neck.rows(sides)
    weights[4:, neck.back.shape[1] :] = np.eye(CLASSES)
    bias = np.concatenate([np.full(4, -STRIDE / 2), np.zeros(CLASSES)])
    net.conv("all", _pointwise(weights), bias, "head")
    shape = net.constant("flat", [1, 4 + CLASSES, CELLS**2])
    net.add("Reshape", ["head", shape], "places")
    net.add("Transpose", ["places"], "output0", perm=[0, 2, 1])
    return _saved(net, path, [1, CELLS**2, 4 + CLASSES])


def _saved(net: _Builder, path: Path, shape: list[int]) -> Path:
    image = ("images", TensorProto.FLOAT, [1, 3, SIZE, SIZE])
    output = ("output0", TensorProto.FLOAT, shape)
    return tiny_models.save(path, net.nodes, [image], [output], net.constants)


def decode_yolo(outputs: Mapping[str, Array]) -> tuple[Array, Array]:
    """Return boxes (places, 4) as corners and scores (places, classes) of :func:`yolo`."""
    values = outputs["output0"][0].T
    middle, size = values[:, :2], values[:, 2:4]
    return np.concatenate([middle - size / 2, middle + size / 2], axis=1), values[:, 4:]


def decode_one_conv(outputs: Mapping[str, Array]) -> tuple[Array, Array]:
    """Return boxes (places, 4) as corners and scores (places, classes) of :func:`one_conv`."""
    values = outputs["output0"][0]
    grid = (np.stack(np.meshgrid(np.arange(CELLS), np.arange(CELLS)), -1) + MIDDLE) * STRIDE
    middle = grid.reshape(-1, 2)
    return np.concatenate([middle - values[:, :2], middle + values[:, 2:4]], 1), values[:, 4:]


def nanodet_image(path: Path) -> Array:
    """Return an image (1, 3, 320, 320) as the public nanodet_m takes it."""
    with Image.open(path) as image:
        scaled = image.convert("RGB").resize((SIZE, SIZE), Image.Resampling.BILINEAR)
    blue_first = np.asarray(scaled, FLOAT)[:, :, ::-1]
    normal = (blue_first - [103.53, 116.28, 123.675]) / [57.375, 57.12, 58.395]
    return np.ascontiguousarray(normal.transpose(2, 0, 1)[None], FLOAT)


def with_constant_weights(model: ModelProto) -> ModelProto:
    """Return a model whose weights are no inputs, in an opset with a scale for each channel."""
    copy = ModelProto()
    copy.CopyFrom(model)
    constants = {tensor.name for tensor in copy.graph.initializer}
    inputs = [value for value in copy.graph.input if value.name not in constants]
    del copy.graph.input[:]
    copy.graph.input.extend(inputs)
    copy.ir_version = max(copy.ir_version, 8)
    return version_converter.convert_version(copy, 17)


def decode_nanodet(outputs: Mapping[str, Array], size: int = 320) -> tuple[Array, Array]:
    """Return boxes (places, 4) as corners and scores (places, 80) of the public nanodet_m."""
    boxes, scores = [], []
    for stride in (8, 16, 32):
        logits = outputs[f"dis_pred_stride_{stride}"][0].reshape(-1, 4, 8)
        shares = np.exp(logits - logits.max(-1, keepdims=True))
        distances = stride * (shares @ np.arange(8)) / shares.sum(-1)
        axis = np.arange(size // stride)
        middle = np.stack(np.meshgrid(axis, axis), -1).reshape(-1, 2) * stride + (stride - 1) / 2
        corners = np.concatenate([middle - distances[:, :2], middle + distances[:, 2:]], axis=1)
        boxes.append(np.clip(corners, 0, size))
        scores.append(outputs[f"cls_pred_stride_{stride}"][0])
    return np.concatenate(boxes), np.concatenate(scores)


def detections(boxes: Array, scores: Array, least: float, overlap: float = 0.5) -> list[Detection]:
    """Return what is left of places with a score above ``least``, by non-maximum suppression."""
    found = []
    for kind in range(scores.shape[1]):
        order = np.flatnonzero(scores[:, kind] > least)
        order = order[np.argsort(-scores[order, kind], kind="stable")]
        while order.size:
            best, order = order[0], order[1:]
            found.append(Detection(kind, float(scores[best, kind]), boxes[best]))
            order = order[overlaps(boxes[best], boxes[order]) <= overlap]
    return found


def overlaps(box: Array, boxes: Array) -> Array:
    """Return the intersection over union of a box (4,) with each of boxes (n, 4)."""
    low, high = np.maximum(box[:2], boxes[:, :2]), np.minimum(box[2:], boxes[:, 2:])
    shared = np.clip(high - low, 0, None).prod(1)
    areas = [np.clip(b[..., 2:] - b[..., :2], 0, None).prod(-1) for b in (box, boxes)]
    return shared / np.maximum(areas[0] + areas[1] - shared, 1e-9)


def kept(reference: Sequence[Detection], found: Sequence[Detection], overlap: float = 0.9) -> int:
    """Return how many of the reference's detections are found: same class, IoU of 0.9 or more."""
    return sum(
        any(
            one.kind == other.kind and overlaps(one.box, other.box[None])[0] >= overlap
            for other in found
        )
        for one in reference
    )
