"""Makes sure that nodes left float in a QDQ model stay float.

onnxruntime quantizes the weights of a Conv, ConvTranspose or Gemm by itself where its input comes
from a DequantizeLinear and its output goes to a QuantizeLinear, through Relu and Clip or directly:
to int8 with one scale for the whole tensor, whatever the dialect is, on every execution provider.
On mobilenet_v1_0.25_128 one pointwise convolution that is left float this way costs 12 dB instead
of gaining one (onnxruntime 1.31.1, x86-64, 2026-11-21). Source: WeightBiasQuantization,
onnxruntime/core/optimizer/qdq_transformer/weight_bias_quantization.cc (read 2026-11-21).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import TYPE_CHECKING

import numpy as np

from edgepack.model.editing import take_name
from edgepack.quantization.qdq.dialect import BIASED, DEQUANTIZE, QUANTIZE
from edgepack.quantization.qdq.mixed_width import unify_widths
from edgepack.quantization.qdq.operators import CLAMPS
from edgepack.quantization.qdq.preparation import count_reads, list_read_names, replace_items
from edgepack.quantization.qdq.writer import QdqWriter

if TYPE_CHECKING:
    import onnx


def write_qdq(
    writer: QdqWriter, left: Collection[str], exact: Collection[str] = ()
) -> onnx.ModelProto:
    """Return the QDQ model in which the nodes that are left float stay so in onnxruntime.

    Where some activations have 16 bits, all activations of one operator have the same width.

    Args:
        writer: What writes it.
        left: Nodes that stay float.
        exact: Nodes that have their constants as floats; their activations are integers.

    Raises:
        StepError: As :meth:`QdqWriter.write`.
    """
    model = writer.write(left)
    if writer.wide:
        unify_widths(model)
    if exact:
        _give_exact_constants(model, writer.model, frozenset(exact))
    keep_float(model)
    return model


def _give_exact_constants(
    written: onnx.ModelProto, source: onnx.ModelProto, names: frozenset[str]
) -> None:
    """Let nodes read the constants of the float model that a QDQ model was made from."""
    constants = {tensor.name: tensor for tensor in source.graph.initializer}
    nodes = {node.name: node for node in source.graph.node if node.name in names}
    present = {tensor.name for tensor in written.graph.initializer}
    for node in written.graph.node:
        if node.name not in nodes or node.op_type != nodes[node.name].op_type:
            continue
        for place, name in enumerate(nodes[node.name].input):
            if name in constants and node.input[place] != name:
                node.input[place] = name
                if name not in present:
                    written.graph.initializer.add().CopyFrom(constants[name])
                    present.add(name)
    _drop_unread(written)


def _drop_unread(model: onnx.ModelProto) -> None:
    """Take out the conversions of constants that nothing reads any more, and the constants."""
    graph = model.graph
    read = list_read_names(graph)
    nodes = [n for n in graph.node if n.op_type != DEQUANTIZE or n.output[0] in read]
    replace_items(graph.node, nodes)
    read = list_read_names(graph)
    replace_items(graph.initializer, [t for t in graph.initializer if t.name in read])


def keep_float(model: onnx.ModelProto) -> None:
    """Put a Max between a float product's output and its QuantizeLinear.

    The Max takes the smallest value that the integers can represent, so it only changes values that
    the QuantizeLinear cuts off anyway. It costs one pass over the tensor. The output of the Max has
    the name that the tensor had before the QuantizeLinear; the tensor that the Max reads gets a new
    name.

    Args:
        model: A QDQ model as :class:`~edgepack.quantization.qdq.writer.QdqWriter` writes it;
        changed.
    """
    import onnx
    from onnx import numpy_helper

    graph = model.graph
    constants = {tensor.name: tensor for tensor in graph.initializer}
    producers = {name: node for node in graph.node for name in node.output}
    readers = count_reads(graph)
    taken = {*constants, *producers, *readers}
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        product = _find_product(node, producers, readers)
        if product is not None and _is_taken(product, producers, constants):
            step, zero = (numpy_helper.to_array(constants[name]) for name in node.input[1:3])
            lowest = np.array((np.iinfo(zero.dtype).min - int(zero)) * float(step), np.float32)
            tensor = node.input[0]
            raw, least = (take_name(f"{tensor}/{part}", taken) for part in ("raw", "lowest"))
            producers[tensor].output[0] = raw
            graph.initializer.append(numpy_helper.from_array(lowest, least))
            nodes.append(
                onnx.helper.make_node("Max", [raw, least], [tensor], f"{tensor}/kept_float")
            )
        nodes.append(node)
    replace_items(graph.node, nodes)


def _find_product(
    node: onnx.NodeProto, producers: dict[str, onnx.NodeProto], readers: Counter[str]
) -> onnx.NodeProto | None:
    """Return the product whose output only a QuantizeLinear reads, through Relu and Clip."""
    if node.op_type != QUANTIZE:
        return None
    before = producers.get(node.input[0])
    while before is not None and readers[before.output[0]] == 1:
        if before.op_type in BIASED:
            return before
        if before.op_type not in CLAMPS:
            return None
        before = producers.get(before.input[0])
    return None


def _is_taken(
    product: onnx.NodeProto,
    producers: dict[str, onnx.NodeProto],
    constants: dict[str, onnx.TensorProto],
) -> bool:
    import onnx

    source = producers.get(product.input[0])
    weights = constants.get(product.input[1])
    dequantized = source is not None and source.op_type == DEQUANTIZE
    return dequantized and weights is not None and weights.data_type == onnx.TensorProto.FLOAT
