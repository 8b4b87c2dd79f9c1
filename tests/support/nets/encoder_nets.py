"""A sentence encoder of MiniLM's size and structure, made for the tests.

Its weights are random, but not only that: as in trained transformers, a few channels of the
residual stream are far larger than all others, and the weights that read them are as much smaller.
With one scale for a whole tensor those channels leave the others few steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto

from tests.support.nets import tiny_models
from tests.support.nets.net_builder import NetBuilder

Array = np.ndarray[Any, Any]

FLOAT = np.float32
LAYERS = 6
HIDDEN = 384
HEADS = 12
INNER = 1536
WORDS = 1024
LONGEST = 32
OUTLIERS = (17, 133, 301)
"""Channels of the residual stream that are large."""
OUTLYING = 15.0
"""By what factor."""
REMAINING = 2.0
"""A norm's gamma for large channels that keeps them as large: they are most of the variance."""


def sentences(count: int, seed: int) -> list[dict[str, Array]]:
    """Return inputs of 6 to 24 words, frequent ones more often, as words are in a text."""
    random = np.random.default_rng(seed)
    frequency = 1 / np.arange(10, WORDS + 10)
    found = []
    for _ in range(count):
        length = int(random.integers(6, 25))
        words = random.choice(WORDS, (1, length), p=frequency / frequency.sum())
        mask = np.ones((1, length), np.int64)
        found.append({"input_ids": words.astype(np.int64), "attention_mask": mask})
    return found


@dataclass
class _Builder(NetBuilder):
    outlying: float = field(kw_only=True)

    def linear(self, x: str, output: str, weights: Array) -> str:
        """Add ``x @ weights + bias``."""
        self.add("MatMul", [x, self.constant(f"{output}.weight", weights)], f"{output}.product")
        bias = self.random.standard_normal(weights.shape[1]) * 0.05
        return self.add("Add", [f"{output}.product", self.constant(f"{output}.bias", bias)], output)

    def reading(self, size: int, gain: float = 1.0) -> Array:
        """Return weights that read the residual stream: rows of large channels are small."""
        weights = self.random.standard_normal((HIDDEN, size)) * gain / np.sqrt(HIDDEN)
        weights[list(OUTLIERS)] /= self.outlying
        return weights

    def norm(self, x: str, output: str, outlying: float) -> str:
        gamma = self.random.uniform(0.9, 1.6, HIDDEN)
        gamma[list(OUTLIERS)] = outlying
        beta = self.random.standard_normal(HIDDEN) * 0.1
        names = [self.constant(f"{output}.gamma", gamma), self.constant(f"{output}.beta", beta)]
        return self.add("LayerNormalization", [x, *names], output, axis=-1, epsilon=1e-12)


def encoder(path: Path, layers: int = LAYERS, outlying: float = OUTLYING) -> Path:
    """Write an encoder of the size of all-MiniLM-L6, but for its vocabulary.

    ``input_ids`` and ``attention_mask`` (1, words) int64; ``sentence`` (1, 384) float32, the mean
    over the words, of length 1.
    """
    net = _Builder(np.random.default_rng(11), outlying=outlying)
    words = net.random.standard_normal((WORDS, HIDDEN))
    net.add("Gather", [net.constant("words", words), "input_ids"], "word", axis=0)
    net.add("Shape", ["input_ids"], "shape")
    for name, value in (("0", [0]), ("1", [1]), ("2", [2])):
        net.constant(name, value)
    net.add("Slice", ["shape", "1", "2"], "length")
    places = net.random.standard_normal((LONGEST, HIDDEN)) * 0.3
    net.add("Slice", [net.constant("places", places), "0", "length"], "place")
    net.add("Add", ["word", "place"], "embedded")
    x = net.norm("embedded", "embedding", outlying)
    net.add("Cast", ["attention_mask"], "mask", to=TensorProto.FLOAT)
    _mask(net)
    for layer in range(layers):
        x = _layer(net, x, f"layer{layer}", 1 / outlying if layer == layers - 1 else REMAINING)
    _pool(net, x)
    inputs = [(n, TensorProto.INT64, [1, "words"]) for n in ("input_ids", "attention_mask")]
    output = ("sentence", TensorProto.FLOAT, [1, HIDDEN])
    return tiny_models.save(path, net.nodes, inputs, [output], net.constants)


def _mask(net: _Builder) -> None:
    """Add ``blocked`` (1, 1, 1, words): 0 where there is a word, -10000 elsewhere."""
    net.add("Unsqueeze", ["attention_mask", "1"], "mask.3d")
    net.add("Unsqueeze", ["mask.3d", "2"], "mask.4d")
    net.add("Cast", ["mask.4d"], "mask.float", to=TensorProto.FLOAT)
    net.add("Sub", [net.constant("one", 1.0), "mask.float"], "absent")
    net.add("Mul", ["absent", net.constant("never", -10000.0)], "blocked")


def _layer(net: _Builder, x: str, name: str, end: float) -> str:
    heads = net.constant(f"{name}.heads", [0, 0, HEADS, HIDDEN // HEADS])
    by_head, turned = [0, 2, 1, 3], [0, 2, 3, 1]
    for part, gain, order in (("q", 1.5, by_head), ("k", 1.5, turned), ("v", 1.0, by_head)):
        net.linear(x, f"{name}.{part}", net.reading(HIDDEN, gain))
        net.add("Reshape", [f"{name}.{part}", heads], f"{name}.{part}.split")
        net.add("Transpose", [f"{name}.{part}.split"], f"{name}.{part}.heads", perm=order)
    net.add("MatMul", [f"{name}.q.heads", f"{name}.k.heads"], f"{name}.dots")
    root = net.constant(f"{name}.root", float(np.sqrt(HIDDEN // HEADS)))
    net.add("Div", [f"{name}.dots", root], f"{name}.scaled")
    net.add("Add", [f"{name}.scaled", "blocked"], f"{name}.masked")
    net.add("Softmax", [f"{name}.masked"], f"{name}.shares", axis=-1)
    net.add("MatMul", [f"{name}.shares", f"{name}.v.heads"], f"{name}.context")
    net.add("Transpose", [f"{name}.context"], f"{name}.joined", perm=[0, 2, 1, 3])
    flat = net.constant(f"{name}.flat", [0, 0, HIDDEN])
    net.add("Reshape", [f"{name}.joined", flat], f"{name}.attended")
    out = net.random.standard_normal((HIDDEN, HIDDEN)) / np.sqrt(HIDDEN)
    net.linear(f"{name}.attended", f"{name}.out", out)
    net.add("Add", [x, f"{name}.out"], f"{name}.sum")
    middle = net.norm(f"{name}.sum", f"{name}.middle", REMAINING)
    net.linear(middle, f"{name}.up", net.reading(INNER))
    _gelu(net, f"{name}.up", f"{name}.gelu")
    down = net.random.standard_normal((INNER, HIDDEN)) * 2 / np.sqrt(INNER)
    # Else what Gelu has in the mean would make all sentences alike.
    net.linear(f"{name}.gelu", f"{name}.down", down - down.mean(0))
    net.add("Add", [middle, f"{name}.down"], f"{name}.total")
    return net.norm(f"{name}.total", f"{name}.end", end)


def _gelu(net: _Builder, x: str, output: str) -> None:
    """Add Gelu as exporters write it: x * (1 + erf(x / sqrt 2)) / 2."""
    net.add("Div", [x, net.constant(f"{output}.root", float(np.sqrt(2)))], f"{output}.in")
    net.add("Erf", [f"{output}.in"], f"{output}.erf")
    net.add("Add", [f"{output}.erf", "one"], f"{output}.share")
    net.add("Mul", [x, f"{output}.share"], f"{output}.twice")
    net.add("Mul", [f"{output}.twice", net.constant(f"{output}.half", 0.5)], output)


def _pool(net: _Builder, x: str) -> None:
    net.add("Unsqueeze", ["mask", "2"], "present")
    net.add("Mul", [x, "present"], "kept")
    net.add("ReduceSum", ["kept", "1"], "total", keepdims=0)
    net.add("ReduceSum", ["present", "1"], "count", keepdims=0)
    net.add("Div", ["total", "count"], "mean")
    net.add("ReduceL2", ["mean"], "size", axes=[-1], keepdims=1)
    net.add("Div", ["mean", "size"], "sentence")


def worst_cosine(reference: Sequence[Array], outputs: Sequence[Array]) -> float:
    """Return the smallest cosine of any sentence's two embeddings."""
    return min(
        float(np.vdot(a, b) / (np.linalg.norm(a) * np.linalg.norm(b)))
        for a, b in zip(reference, outputs, strict=True)
    )
