"""A decoder with rotary positions, as PyTorch's tracing exporter writes transformers' ones.

Cosine and sine of each position are computed in the graph and multiplied by a scale of 1, and the
halves of each head are turned by Slice, Neg and Concat: what transformers' ``LlamaRotaryEmbedding``
and ``rotate_half`` do (torch 2.14.1, ``torch.onnx.export(dynamo=False)``). The exporter of today
(``dynamo=True``) leaves the scale of 1 out.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto

from tests.support.nets import tiny_models
from tests.support.nets.net_builder import NetBuilder

Array = np.ndarray[Any, Any]

HIDDEN = 128
HEADS = 4
WORDS = 64
INPUTS = ("input_ids", "attention_mask", "position_ids")


def decoder(path: Path, bases: Sequence[float] = (10000.0,), *, scaled: bool = True) -> Path:
    """Write a decoder.

    ``input_ids``, ``attention_mask`` and ``position_ids`` (1, words) int64; ``logits`` (1, words,
    64) float32.

    Args:
        path: Where to.
        bases: For each layer, what the speeds of turning are powers of.
        scaled: Whether cosine and sine are multiplied by 1.
    """
    net = NetBuilder(np.random.default_rng(12))
    x = net.add("Gather", [net.constant("words", _draw(net, WORDS, HIDDEN)), "input_ids"], "word")
    _mask(net)
    for layer, base in enumerate(bases):
        _positions(net, f"{layer}.", base, scaled=scaled)
        attended = _attention(net, f"{layer}.", x)
        x = net.add("Add", [x, attended], f"{layer}.sum")
    net.add("MatMul", [x, net.constant("head", _draw(net, HIDDEN, WORDS))], "logits")
    inputs = [(name, TensorProto.INT64, [1, "words"]) for name in INPUTS]
    output = ("logits", TensorProto.FLOAT, [1, "words", WORDS])
    return tiny_models.save(path, net.nodes, inputs, [output], net.constants)


def make_words(count: int, seed: int) -> dict[str, Array]:
    """Return inputs of so many words, none of them hidden."""
    words = np.random.default_rng(seed).integers(0, WORDS, (1, count))
    places = np.arange(count)[None]
    return dict(zip(INPUTS, (words, np.ones_like(words), places), strict=True))


def _draw(net: NetBuilder, rows: int, columns: int) -> Array:
    return np.asarray(net.random.standard_normal((rows, columns)) / np.sqrt(rows))


def _mask(net: NetBuilder) -> None:
    """Add ``blocked`` (1, 1, 1, words): 0 where there is a word, -10000 elsewhere."""
    for name, value in (("0", [0]), ("1", [1]), ("1, 2", [1, 2]), ("2", 2), ("3", 3)):
        net.constant(name, value)
    net.add("Unsqueeze", ["attention_mask", "1, 2"], "mask.4d")
    net.add("Cast", ["mask.4d"], "mask", to=TensorProto.FLOAT)
    net.add("Sub", [net.constant("one", 1.0), "mask"], "absent")
    net.add("Mul", ["absent", net.constant("never", -10000.0)], "blocked")


def _positions(net: NetBuilder, at: str, base: float, *, scaled: bool) -> None:
    """Add ``cos`` and ``sin`` (1, 1, words, size of a head) of a layer."""
    size = HIDDEN // HEADS
    speeds = net.constant(f"{at}speeds", (base ** -(np.arange(0, size, 2) / size))[None, :, None])
    net.add("Unsqueeze", ["position_ids", "1"], f"{at}places.3d")
    net.add("Cast", [f"{at}places.3d"], f"{at}places", to=TensorProto.FLOAT)
    net.add("MatMul", [speeds, f"{at}places"], f"{at}turned")
    net.add("Transpose", [f"{at}turned"], f"{at}half", perm=[0, 2, 1])
    net.add("Concat", [f"{at}half", f"{at}half"], f"{at}angles", axis=-1)
    for name, operator in (("cos", "Cos"), ("sin", "Sin")):
        last = net.add(operator, [f"{at}angles"], f"{at}{name}.plain")
        if scaled:
            scale = net.constant(f"{at}{name}.scale", 1.0)
            last = net.add("Mul", [last, scale], f"{at}{name}.scaled")
        net.add("Unsqueeze", [last, "1"], f"{at}{name}")


def _attention(net: NetBuilder, at: str, x: str) -> str:
    """Add the attention of a layer, (1, words, HIDDEN)."""
    heads = net.constant(f"{at}heads", [0, 0, HEADS, HIDDEN // HEADS])
    for part in ("q", "k", "v"):
        weights = net.constant(f"{at}{part}.w", _draw(net, HIDDEN, HIDDEN))
        net.add("MatMul", [x, weights], f"{at}{part}")
        net.add("Reshape", [f"{at}{part}", heads], f"{at}{part}.split")
        net.add("Transpose", [f"{at}{part}.split"], f"{at}{part}.heads", perm=[0, 2, 1, 3])
    query, key = _turn(net, at, "q"), _turn(net, at, "k")
    net.add("Transpose", [key], f"{at}across", perm=[0, 1, 3, 2])
    net.add("MatMul", [query, f"{at}across"], f"{at}dots")
    root = net.constant(f"{at}root", float(np.sqrt(HIDDEN // HEADS)))
    net.add("Div", [f"{at}dots", root], f"{at}scaled")
    net.add("Add", [f"{at}scaled", "blocked"], f"{at}masked")
    net.add("Softmax", [f"{at}masked"], f"{at}shares", axis=-1)
    net.add("MatMul", [f"{at}shares", f"{at}v.heads"], f"{at}context")
    net.add("Transpose", [f"{at}context"], f"{at}joined", perm=[0, 2, 1, 3])
    flat = net.constant(f"{at}flat", [0, 0, HIDDEN])
    net.add("Reshape", [f"{at}joined", flat], f"{at}flattened")
    weights = net.constant(f"{at}o.w", _draw(net, HIDDEN, HIDDEN))
    return net.add("MatMul", [f"{at}flattened", weights], f"{at}attended")


def _turn(net: NetBuilder, at: str, part: str) -> str:
    """Add ``x * cos + rotate_half(x) * sin`` of the heads of query or key."""
    x, at_part = f"{at}{part}.heads", f"{at}{part}."
    for name, value in (("end", [2**62]), ("last", [3])):
        net.constant(at_part + name, value)
    # Tracing asks for the size of a head, though it never changes.
    net.add("Shape", [x], f"{at_part}shape")
    net.add("Gather", [f"{at_part}shape", "3"], f"{at_part}size")
    net.add("Div", [f"{at_part}size", "2"], f"{at_part}middle")
    cut = net.add("Unsqueeze", [f"{at_part}middle", "0"], f"{at_part}cut")
    end, last = f"{at_part}end", f"{at_part}last"
    first = net.add("Slice", [x, "0", cut, last, "1"], f"{at_part}first")
    second = net.add("Slice", [x, cut, end, last, "1"], f"{at_part}second")
    minus = net.add("Neg", [second], f"{at_part}minus")
    half = net.add("Concat", [minus, first], f"{at_part}half", axis=-1)
    net.add("Mul", [x, f"{at}cos"], f"{at_part}cos")
    net.add("Mul", [half, f"{at}sin"], f"{at_part}sin")
    return net.add("Add", [f"{at_part}cos", f"{at_part}sin"], f"{at_part}turned")
