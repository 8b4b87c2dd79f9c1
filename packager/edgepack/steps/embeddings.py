"""Which outputs hold embeddings: vectors that are compared with each other by their angle.

An error that leaves classes alone, because the highest score stays the highest, changes every
comparison of embeddings. Files do not say which outputs these are. Two properties show it: encoders
end in a normalization, behind which no weights follow, while scores come from weights of their own;
and embeddings that are ready for comparison have length 1.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

import numpy as np

from edgepack.base.arrays import Array
from edgepack.model.running import Arrays

if TYPE_CHECKING:
    import onnx


_UNIT = 1e-3
_NORMALIZATIONS = {
    "EmbedLayerNormalization",
    "LayerNormalization",
    "LpNormalization",
    "RMSNormalization",
    "SimplifiedLayerNormalization",
    "SkipLayerNormalization",
    "SkipSimplifiedLayerNormalization",
    # Of a normalization that is spelt out.
    "ReduceL2",
    "Sqrt",
}
_PRODUCTS = {"Attention", "Conv", "ConvTranspose", "GRU", "Gemm", "LSTM", "MatMul", "RNN"}


def find_normalized_outputs(model: onnx.ModelProto) -> frozenset[str]:
    """Return the outputs that have a normalization behind the last product with constant weights.

    They are an encoder's: a vector for each word, or what pooling makes of these.
    """
    makers = {name: node for node in model.graph.node for name in node.output if name}
    constants = {tensor.name for tensor in model.graph.initializer}
    constants |= {node.output[0] for node in model.graph.node if node.op_type == "Constant"}
    names = (value.name for value in model.graph.output)
    return frozenset(name for name in names if _is_normalized(name, makers, constants))


def _is_normalized(output: str, makers: dict[str, onnx.NodeProto], constants: set[str]) -> bool:
    queue, seen = [output], set()
    while queue:
        name = queue.pop()
        if name in seen or name not in makers:
            continue
        seen.add(name)
        node = makers[name]
        if node.op_type in _NORMALIZATIONS:
            return True
        if node.op_type not in _PRODUCTS or constants.isdisjoint(node.input):
            queue.extend(node.input)
    return False


def has_embeddings(values: Array, *, is_normalized: bool) -> bool:
    """Return whether an output of one sample holds embeddings.

    Probabilities are none: embeddings have negative values.

    Args:
        values: The output.
        is_normalized: Whether it is one of :func:`find_normalized_outputs`: then its last axis is
            that of a vector. Others hold an embedding if they are one vector of length 1.
    """
    if values.dtype.kind != "f" or not (values < 0).any():
        return False
    if is_normalized and values.ndim in (2, 3):
        return bool(values.shape[-1] > 1)
    vector = values.squeeze()
    length = float(np.linalg.norm(vector.astype(np.float64)))
    return vector.ndim == 1 and vector.size > 1 and abs(length - 1) < _UNIT


def find_embedding_outputs(outputs: Arrays, normalized: Collection[str]) -> list[str]:
    """Return which outputs of one sample hold embeddings, in their order.

    Args:
        outputs: By name.
        normalized: The :func:`find_normalized_outputs` of the model.
    """
    return [
        name
        for name, values in outputs.items()
        if has_embeddings(values, is_normalized=name in normalized)
    ]


def find_sentence_vectors(values: Array, *, is_normalized: bool) -> Array:
    """Return the embeddings in an output that holds such, float (vectors, width).

    Where there is a vector for each word, (sentences, words, width), a sentence's is their mean.
    """
    if not is_normalized or values.ndim not in (2, 3):
        return values.reshape(1, -1)
    vectors: Array = values.mean(axis=1) if values.ndim == 3 else values
    return vectors
