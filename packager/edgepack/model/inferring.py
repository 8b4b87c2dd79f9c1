"""Shape inference for models with weights of any size."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnx

# Constants that say shapes, axes and indices are small; larger ones do not help shape inference.
_SMALL = 1024


def infer_graph(model: onnx.ModelProto) -> onnx.GraphProto:
    """Return the main graph with the types and shapes that onnx infers, without large constants.

    onnx serializes its input, and protobuf is limited to 2 GiB: so constants of more than 1024
    values are replaced by their types. Time and memory do not depend on the weights' size.

    Args:
        model: Is not changed. Its weights may lie in other files.

    Raises:
        onnx.shape_inference.InferenceError: Shapes contradict each other, or onnx does not know an
            operator; or what is left without the large constants does not fit into a message.
    """
    import onnx
    from google.protobuf.message import EncodeError

    skeleton = onnx.ModelProto(ir_version=model.ir_version)
    skeleton.opset_import.extend(model.opset_import)
    skeleton.functions.extend(model.functions)
    graph = skeleton.graph
    graph.name = model.graph.name
    graph.node.extend(model.graph.node)
    graph.input.extend(model.graph.input)
    graph.output.extend(model.graph.output)
    graph.value_info.extend(model.graph.value_info)
    graph.sparse_initializer.extend(model.graph.sparse_initializer)
    given = {value.name for value in graph.input}
    for tensor in model.graph.initializer:
        if tensor.data_location != tensor.EXTERNAL and prod(tensor.dims) <= _SMALL:
            graph.initializer.add().CopyFrom(tensor)
        elif tensor.name not in given:
            value = onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
            graph.input.append(value)
    try:
        found = onnx.shape_inference.infer_shapes(skeleton, data_prop=True).graph
    except EncodeError as error:
        raise onnx.shape_inference.InferenceError("the graph is larger than 2 GiB") from error
    del found.input[len(model.graph.input) :]
    return found
