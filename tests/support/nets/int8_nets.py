"""Networks for the int8 tests, and the steps around quantizing them."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
from edgepack.backends.registry import BACKENDS
from edgepack.model.facts import read_signature
from edgepack.model.files import MODEL
from edgepack.model.reading import read_structure
from edgepack.project.profile import Dialect
from edgepack.samples.sample_set import write_sample_set
from edgepack.steps.base import run_step
from edgepack.steps.graph.simplified import Simplified
from edgepack.steps.recipes.calibration import Calibration
from onnx import TensorProto, helper

from tests.support.nets import tiny_models

FLOAT = np.float32


def dialect(activations, weights, *, symmetric=False, per_channel=True, bias="int32") -> Dialect:
    """A dialect in one line."""
    return Dialect(
        activations=activations,
        weights=weights,
        symmetric=symmetric,
        per_channel=per_channel,
        bias=bias,
    )


CPU = dialect("uint8", "int8")
TENSORRT = dialect("int8", "int8", symmetric=True, bias="float32")
XNNPACK = dialect("int8", "int8")
QNN_16 = dialect("uint16", "uint8", per_channel=False)
QNN_8 = dialect("uint8", "uint8", per_channel=False)
DIALECTS = {
    "cpu": CPU,
    "tensorrt": TENSORRT,
    "xnnpack": XNNPACK,
    "qnn-16": QNN_16,
    "qnn-8": QNN_8,
    "u8u8-per-channel": dialect("uint8", "uint8"),
}
_QNN = BACKENDS["qnn"]
QNN_RULES = {
    "every_op": _QNN.every_op,
    "least_span": _QNN.least_span,
    "output_grids": _QNN.output_grids,
}
"""What QNN asks of a quantized model beside its dialect, as settings of steps and writers."""


def rules_of(name: str) -> dict:
    """What the provider of a dialect asks beside it."""
    return QNN_RULES if name.startswith("qnn") else {}


def mixed_net(path: Path) -> Path:
    """Image [1, 3, 8, 8] to 5 probabilities through one operator of nearly every kind.

    ``pointwise`` and ``pointwise2`` share their weights and their bias.
    """
    random = np.random.default_rng(3)

    def normal(*shape):
        return random.standard_normal(shape).astype(FLOAT)

    def node(op, inputs, output, name, **attributes):
        return helper.make_node(op, inputs.split(), [output], name, **attributes)

    nodes = [
        node("Conv", "image w1 b1", "c1", "conv", pads=[1] * 4),
        node("Relu", "c1", "r1", "relu"),
        node("Conv", "r1 wd bd", "c2", "depthwise", pads=[1] * 4, group=8),
        node("Clip", "c2 low high", "k2", "clip"),
        node("Conv", "k2 w3 b3", "c3", "pointwise"),
        node("Add", "c3 r1", "a1", "add"),
        node("Conv", "a1 w3 b3", "c4", "pointwise2"),
        node("Add", "c4 a1", "a2", "add2"),
        node("ConvTranspose", "a2 wt bt", "t", "up", strides=[2, 2]),
        node("MaxPool", "t", "d", "down", kernel_shape=[2, 2], strides=[2, 2]),
        node("Concat", "a2 d", "k", "concat", axis=1),
        node("HardSwish", "k", "h", "swish"),
        node("GlobalAveragePool", "h", "g", "pool"),
        node("Flatten", "g", "f", "flat"),
        node("MatMul", "f wm", "scores", "matmul"),
        node("Softmax", "scores", "probabilities", "softmax"),
    ]
    constants = [
        ("w1", normal(8, 3, 3, 3)),
        ("b1", normal(8)),
        ("low", np.array(0, FLOAT)),
        ("high", np.array(6, FLOAT)),
        ("wd", normal(8, 1, 3, 3)),
        ("bd", normal(8)),
        ("w3", normal(8, 8, 1, 1) / 3),
        ("b3", normal(8)),
        ("wt", normal(8, 6, 2, 2) / 3),
        ("bt", normal(6)),
        ("wm", normal(14, 5) / 3),
    ]
    return tiny_models.save(
        path,
        nodes,
        [("image", TensorProto.FLOAT, [1, 3, 8, 8])],
        [("probabilities", TensorProto.FLOAT, [1, 5])],
        constants,
    )


def residual_net(path: Path) -> Path:
    """Image [1, 3, 8, 8] to [1, 3, 8, 8]: both convolutions feed two readers each.

    With int8 activations onnxruntime leaves both float on x86-64.
    """
    random = np.random.default_rng(4)
    nodes = [
        helper.make_node("Conv", ["image", "w1", "b1"], ["a"], "first"),
        helper.make_node("Add", ["a", "image"], ["b"], "add"),
        helper.make_node("Conv", ["b", "w2", "b2"], ["c"], "second"),
        helper.make_node("Add", ["c", "b"], ["y"], "add2"),
    ]
    constants = []
    for n in "12":
        constants.append((f"w{n}", random.standard_normal((3, 3, 1, 1)).astype(FLOAT)))
        constants.append((f"b{n}", random.standard_normal(3).astype(FLOAT)))
    value = (TensorProto.FLOAT, [1, 3, 8, 8])
    return tiny_models.save(path, nodes, [("image", *value)], [("y", *value)], constants)


def calibrated(folder: Path, model: Path, feeds, *, simplify: bool = True) -> dict[str, Path]:
    """Run the steps before Int8Static in folders of their own; return its inputs."""
    paths = {name: folder / name for name in ("raw", "samples", "model", "statistics")}
    for path in paths.values():
        path.mkdir(parents=True)
    shutil.copyfile(model, paths["raw"] / MODEL)
    inputs, _ = read_signature(read_structure(model))
    named = [(f"sample {n}", feed) for n, feed in enumerate(feeds)]
    write_sample_set(paths["samples"], inputs, named)
    if simplify:
        run_step(Simplified(), {"model": paths["raw"]}, paths["model"])
    else:
        shutil.copyfile(model, paths["model"] / MODEL)
    run_step(
        Calibration(every_op=True), {k: paths[k] for k in ("model", "samples")}, paths["statistics"]
    )
    del paths["raw"]
    return paths


def image_feeds(count: int = 8) -> list[dict[str, np.ndarray]]:
    """Samples for the networks with an image [1, 3, 8, 8]."""
    return [{"image": image[None]} for image in tiny_models.images(count, seed=5)]


def run(step, inputs, out: Path):
    """Run a step into a new folder and return its notes."""
    out.mkdir(parents=True)
    return run_step(step, inputs, out)
