"""Models with a batch of fixed size, which a constant of each fixes in its own way."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from onnx import TensorProto, helper

from tests.support.nets.tiny_models import save

FLOAT = TensorProto.FLOAT


def _ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def _reshape(shape: list[int]) -> tuple:
    nodes = [
        helper.make_node("Reshape", ["x", "shape"], ["r"], "reshape"),
        helper.make_node("Exp", ["r"], ["y"], "exp"),
    ]
    return nodes, [("shape", _ints(*shape))], shape


def _in_the_middle() -> tuple:
    """The batch as the second axis, as in recurrent networks."""
    nodes = [
        helper.make_node("Transpose", ["x"], ["t"], "turn", perm=[1, 0, 2, 3]),
        helper.make_node("Reshape", ["t", "shape"], ["r"], "reshape"),
        helper.make_node("Transpose", ["r"], ["y"], "back", perm=[1, 0, 2]),
    ]
    return nodes, [("shape", _ints(2, 1, 12))], [1, 2, 12]


def _windows() -> tuple:
    """Parts of a sample as a batch, as in networks with windows."""
    nodes = [
        helper.make_node("Reshape", ["x", "apart"], ["parts"], "apart"),
        helper.make_node("Softmax", ["parts"], ["s"], "soft", axis=-1),
        helper.make_node("Reshape", ["s", "whole"], ["y"], "whole"),
    ]
    return nodes, [("apart", _ints(4, 6)), ("whole", _ints(1, 2, 12))], [1, 2, 12]


def _resize() -> tuple:
    node = helper.make_node("Resize", ["x", "", "", "sizes"], ["y"], "resize", mode="nearest")
    return [node], [("sizes", _ints(1, 2, 6, 8))], [1, 2, 6, 8]


def _token() -> tuple:
    """A constant before each sample's own rows, as in vision transformers."""
    nodes = [
        helper.make_node("Concat", ["token", "x"], ["joined"], "join", axis=2),
        helper.make_node("Tanh", ["joined"], ["y"], "tanh"),
    ]
    return nodes, [("token", np.full((1, 2, 1, 4), 0.5, np.float32))], [1, 2, 4, 4]


FREED = {
    "a shape": lambda: _reshape([1, 24]),
    "a shape with -1": lambda: _reshape([1, -1, 4]),
    "in the middle": _in_the_middle,
    "windows": _windows,
    "sizes of a Resize": _resize,
    "a class token": _token,
}


def _sum() -> tuple:
    node = helper.make_node("ReduceMax", ["x"], ["y"], "over_all", axes=[0], keepdims=1)
    return [node], [], [1, 2, 3, 4]


def _norm() -> tuple:
    """The mean over the batch: a sample's values depend on the others."""
    nodes = [
        helper.make_node("ReduceMean", ["x"], ["mean"], "mean", axes=[0], keepdims=1),
        helper.make_node("Sub", ["x", "mean"], ["less"], "less"),
        helper.make_node("Add", ["less", "x"], ["y"], "again"),
    ]
    return nodes, [], [1, 2, 3, 4]


def _expand() -> tuple:
    """A Tile of what is made for one sample."""
    nodes = [
        helper.make_node("Split", ["x"], ["y"], "split", axis=0),
    ]
    return nodes, [("parts", _ints(1))], [1, 2, 3, 4]


REFUSED = {"one for all": _sum, "samples that depend on each other": _norm, "parts": _expand}


def save_batch(path: Path, net: str) -> Path:
    """x [1, 2, 3, 4] to y, by one of FREED or REFUSED."""
    nodes, initializers, shape = {**FREED, **REFUSED}[net]()
    if net == "parts":
        nodes[0].input.append("parts")
    sized = [1 if net == "a shape with -1" and n == 0 else size for n, size in enumerate(shape)]
    known = [6 if size == -1 else size for size in sized]
    return save(path, nodes, [("x", FLOAT, [1, 2, 3, 4])], [("y", FLOAT, known)], initializers)
