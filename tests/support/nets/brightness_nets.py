"""A model that tells four shades of red apart, and pictures of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from onnx import TensorProto, helper
from PIL import Image

from tests.support.nets import tiny_models

SHADES = (32, 96, 160, 224)
"""Of red, by class; green and blue are anything."""
RIGHT = "{resize: {width: 8, height: 8}, scale: 0.00784314, mean: [1.0, 1.0, 1.0]}"
"""-1 to 1, and red first."""


def save(
    path: Path,
    *,
    norm: bool = False,
    head: bool = False,
    classes: int = 4,
    sides: tuple[int | str, int | str] = (8, 8),
) -> Path:
    """Write a model of [1, 3, 8, 8], which is trained on -1 to 1, and gives ``classes`` scores.

    Args:
        path: Where to.
        norm: A BatchNormalization behind its first Conv.
        head: It makes -1 to 1 of 0 to 255 itself.
        classes: More than four never win.
        sides: Height and width, or names of them.
    """
    centres = np.array(SHADES, np.float32) / 127.5 - 1
    weights, bias = 2 * centres, -(centres**2)
    weights = np.append(weights, np.zeros(classes - 4, np.float32))
    bias = np.append(bias, np.full(classes - 4, -9, np.float32))
    values = [
        ("red", np.array([[[[1]], [[0]], [[0]]]], np.float32)),
        ("w", 10 * weights[None]),
        ("b", 10 * bias),
        ("ones", np.ones(1, np.float32)),
        ("zeros", np.zeros(1, np.float32)),
        ("mean", np.array([centres.mean()], np.float32)),
        ("variance", np.array([centres.var()], np.float32)),
        ("deviation", np.array([[centres.std()]], np.float32).reshape(1, 1, 1, 1)),
        ("centre", np.array([centres.mean()], np.float32).reshape(1, 1, 1, 1)),
        ("level", np.array(1 / 127.5, np.float32)),
        ("one", np.array(1, np.float32)),
    ]
    nodes = []
    if head:
        nodes += [
            helper.make_node("Mul", ["image", "level"], ["scaled"], "scaling"),
            helper.make_node("Sub", ["scaled", "one"], ["given"], "centring"),
        ]
    first = "given" if head else "image"
    nodes.append(helper.make_node("Conv", [first, "red"], ["c"], "conv"))
    if norm:
        parameters = ["ones", "zeros", "mean", "variance"]
        nodes += [
            helper.make_node("BatchNormalization", ["c", *parameters], ["n"], "bn", epsilon=0.0),
            helper.make_node("Mul", ["n", "deviation"], ["m"], "undone"),
            helper.make_node("Add", ["m", "centre"], ["r"], "moved"),
        ]
    nodes += [
        helper.make_node("GlobalAveragePool", ["r" if norm else "c"], ["p"], "pool"),
        helper.make_node("Flatten", ["p"], ["f"], "flat"),
        helper.make_node("Gemm", ["f", "w", "b"], ["scores"], "linear"),
    ]
    used = {name for node in nodes for name in node.input}
    return tiny_models.save(
        path,
        nodes,
        [("image", TensorProto.FLOAT, [1, 3, *sides])],
        [("scores", TensorProto.FLOAT, [1, classes])],
        [(name, value) for name, value in values if name in used],
    )


def pictures(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return uint8 (count, 8, 8, 3) and their classes."""
    random = np.random.default_rng(seed)
    labels = np.arange(count) % len(SHADES)
    found = random.integers(0, 256, (count, 1, 1, 3))
    found[:, 0, 0, 0] = np.array(SHADES)[labels] + random.integers(-20, 21, count)
    return np.broadcast_to(found, (count, 8, 8, 3)).astype(np.uint8), labels


def write_project(folder: Path, image: str, *, labels: str = ", labels: labels.csv", **net) -> Path:
    """Write a model, 40 pictures with a CSV of labels, and a project that describes them."""
    save(folder / "net.onnx", **net)
    (folder / "photos").mkdir()
    found, classes = pictures(40)
    for number, picture in enumerate(found):
        Image.fromarray(picture).save(folder / "photos" / f"{number:02}.png")
    rows = [f"{number:02}.png,{label}\n" for number, label in enumerate(classes)]
    (folder / "labels.csv").write_text("".join(rows))
    path = folder / "edgepack.yaml"
    path.write_text(
        "schema_version: 1\nname: net\nmodel: net.onnx\n"
        f"inputs: {{image: {{image: {image}}}}}\n"
        f"samples: {{evaluation: {{images: photos{labels}}}}}\n"
    )
    return path
