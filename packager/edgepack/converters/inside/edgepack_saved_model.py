"""Converts TensorFlow's SavedModel folders, and runs them."""

from __future__ import annotations

import os
from typing import Any, Callable, Dict, List

from edgepack_inside import Refused
from edgepack_tensorflow import write_onnx

# Operators that read and write files, or run Python (tensorflow/core/ops/io_ops.cc and
# script_ops.cc). Those that restore a model's own variables are not among them.
_REFUSED = {
    "EagerPyFunc",
    "FixedLengthRecordDataset",
    "FixedLengthRecordDatasetV2",
    "FixedLengthRecordReader",
    "FixedLengthRecordReaderV2",
    "InitializeTableFromTextFile",
    "InitializeTableFromTextFileV2",
    "LMDBReader",
    "MatchingFiles",
    "PrintV2",
    "PyFunc",
    "PyFuncStateless",
    "ReadFile",
    "TFRecordDataset",
    "TFRecordDatasetV2",
    "TFRecordReader",
    "TFRecordReaderV2",
    "TextLineDataset",
    "TextLineReader",
    "TextLineReaderV2",
    "WholeFileReader",
    "WholeFileReaderV2",
    "WriteFile",
}
_DEFAULT = "serving_default"


def convert(source: str, folder: str, options: Dict[str, Any]) -> Dict[str, Any]:
    """Write ``model.onnx`` of the signature that is served."""
    function = _load(source)
    specs = _list_specs(function)
    names = [spec.name for spec in specs]

    def call(*arrays: Any) -> Dict[str, Any]:
        outputs: Dict[str, Any] = function(**dict(zip(names, arrays)))
        return outputs

    signature: Dict[str, Any] = write_onnx(call, specs, folder, options["opset"])
    return signature


def load(
    source: str, signature: Dict[str, Any], _options: Dict[str, Any]
) -> Callable[[List[Any]], List[Any]]:
    """Return a function that runs TensorFlow's own graph."""
    import tensorflow as tf

    function = _load(source)
    names = [spec.name for spec in _list_specs(function)]

    def call(arrays: List[Any]) -> List[Any]:
        outputs = function(**{n: tf.constant(a) for n, a in zip(names, arrays)})
        return [outputs[each["source"]].numpy() for each in signature["outputs"]]

    call.keeps = function  # type: ignore[attr-defined]  # a function holds its model weakly
    return call


def _load(source: str) -> Any:
    import tensorflow as tf
    from google.protobuf.message import DecodeError
    from tensorflow.core.protobuf import saved_model_pb2

    described = saved_model_pb2.SavedModel()
    try:
        with open(os.path.join(source, "saved_model.pb"), "rb") as file:
            described.ParseFromString(file.read())
    except DecodeError as error:
        raise Refused("saved_model.pb is broken: %s" % error, "copy the folder again") from error
    _require_harmless(described)
    try:
        model = tf.saved_model.load(source)
    except (OSError, ValueError, tf.errors.OpError) as error:
        raise Refused(
            "TensorFlow does not load the model: %s" % " ".join(str(error).split())[:300],
            "copy the whole folder, with its 'variables'; a model of TensorFlow 1 is to be exported"
            " again",
        ) from error
    return _choose(model)


def _require_harmless(described: Any) -> None:
    """Raise for operators that read files or run Python, before anything is loaded."""
    graphs = [meta.graph_def for meta in described.meta_graphs]
    functions = [function for graph in graphs for function in graph.library.function]
    nodes = [node for graph in graphs for node in graph.node]
    nodes += [node for function in functions for node in function.node_def]
    found = sorted({"%s (%s)" % (node.op, node.name) for node in nodes if node.op in _REFUSED})
    if found:
        raise Refused(
            "it has operators that reach files or run Python: %s" % ", ".join(found[:4]),
            "export the model without them: reading files belongs before the model",
        )


def _choose(model: Any) -> Any:
    names = list(model.signatures)
    if _DEFAULT in names or len(names) == 1:
        function = model.signatures[_DEFAULT if _DEFAULT in names else names[0]]
        function.keeps = model  # its variables live as long as the model
        return function
    raise Refused(
        "it has no signature %r, but %s" % (_DEFAULT, ", ".join(map(repr, names)) or "none"),
        "save it with one: tf.saved_model.save(model, folder, signatures={%r: function})"
        % _DEFAULT,
    )


def _list_specs(function: Any) -> List[Any]:
    _, named = function.structured_input_signature
    return [named[name] for name in sorted(named)]
