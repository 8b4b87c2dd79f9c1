"""Writes what TensorFlow calls a function as ONNX, for Keras and SavedModel alike."""

from __future__ import annotations

import os
from typing import Any, Dict, List, Sequence, Tuple

from edgepack_inside import Refused, find_versions, make_signature, require_known

_PACKAGES = ("tf2onnx", "keras", "tensorflow-cpu", "tensorflow", "onnx")


def _write_erfc(graph: Any, node: Any, _name: str, _arguments: Any) -> None:
    """Write 1 - Erf(x): tf2onnx 1.17 does not know Erfc, of which Keras makes its GELU."""
    import numpy as np
    from tf2onnx import utils

    shapes, dtypes = [graph.get_shape(node.output[0])], [graph.get_dtype(node.output[0])]
    erf = graph.make_node("Erf", node.input, shapes=shapes, dtypes=dtypes)
    one = graph.make_const(
        utils.make_name("one"), np.ones((), utils.map_onnx_to_numpy_type(dtypes[0]))
    )
    graph.remove_node(node.name)
    graph.make_node(
        "Sub",
        [one.output[0], erf.output[0]],
        outputs=node.output,
        name=node.name,
        shapes=shapes,
        dtypes=dtypes,
    )


def write_onnx(call: Any, specs: Sequence[Any], folder: str, opset: int) -> Dict[str, Any]:
    """Write ``model.onnx`` of a function that returns its outputs by name.

    Args:
        call: It takes tensors in the order of ``specs``.
        specs: A ``tf.TensorSpec`` for each, with a name.
        folder: Where the model goes.
        opset: Of the model.

    Returns:
        The signature, in the order of the function's own inputs and outputs.
    """
    import tensorflow as tf
    import tf2onnx.convert

    traced = tf.function(call, input_signature=list(specs))
    outputs = traced.get_concrete_function().structured_outputs
    both = sorted(set(outputs) & {spec.name for spec in specs})
    if both:
        raise Refused(
            "an output has the name of an input: %s" % ", ".join(both),
            "give each a name of its own, which ONNX needs",
        )
    model, _ = tf2onnx.convert.from_function(
        traced,
        input_signature=list(specs),
        opset=opset,
        custom_op_handlers={"Erfc": (_write_erfc, [])},
    )
    require_known(model, "TensorFlow")
    with open(os.path.join(folder, "model.onnx"), "wb") as file:
        file.write(model.SerializeToString())
    pairs: List[Tuple[str, str]] = [(spec.name, spec.name) for spec in specs]
    tensors = {spec.name: spec for spec in specs}
    tensors.update(outputs)
    signature: Dict[str, Any] = make_signature(
        pairs,
        [(name, name) for name in outputs],
        find_versions(_PACKAGES),
        {name: "%s %s" % (each.dtype.name, each.shape) for name, each in tensors.items()},
    )
    return signature
