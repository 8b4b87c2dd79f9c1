"""Converts TensorFlow Lite's files with tf2onnx, and runs them with LiteRT itself."""

from __future__ import annotations

import os
import struct
from typing import Any, Callable, Dict, List, Tuple

from edgepack_inside import Refused, find_versions, list_some, make_signature, require_known

_PACKAGES = ("tf2onnx", "tensorflow-cpu", "tensorflow", "ai-edge-litert", "onnx")
# Built-in operators that keep state between runs (BuiltinOperator in TensorFlow Lite's schema.fbs).
_STATE = {129: "CALL_ONCE", 142: "VAR_HANDLE", 143: "READ_VARIABLE", 144: "ASSIGN_VARIABLE"}
_EXPORT_AGAIN = "export the model from its source again, "


def convert(source: str, folder: str, options: Dict[str, Any]) -> Dict[str, Any]:
    """Write ``model.onnx``; what TensorFlow Lite has quantized stays quantized."""
    _require_supported(source)
    import tf2onnx.convert

    model, _ = tf2onnx.convert.from_tflite(source, opset=options["opset"])
    require_known(model, "TensorFlow Lite")
    with open(os.path.join(folder, "model.onnx"), "wb") as file:
        file.write(model.SerializeToString())
    interpreter = _open(source)
    signature: Dict[str, Any] = make_signature(
        _name(model.graph.input, interpreter.get_input_details()),
        _name(model.graph.output, interpreter.get_output_details()),
        find_versions(_PACKAGES),
        {
            each["name"]: "%s %s" % (each["dtype"].__name__, each["shape_signature"].tolist())
            for each in interpreter.get_input_details() + interpreter.get_output_details()
        },
    )
    return signature


def load(
    source: str, signature: Dict[str, Any], _options: Dict[str, Any]
) -> Callable[[List[Any]], List[Any]]:
    """Return a function that runs the model on arrays in its own order of inputs."""
    interpreter = _open(source)
    order = [each["source"] for each in signature["outputs"]]

    def call(arrays: List[Any]) -> List[Any]:
        for details, array in zip(interpreter.get_input_details(), arrays):
            if list(details["shape"]) != list(array.shape):
                interpreter.resize_tensor_input(details["index"], array.shape)
        interpreter.allocate_tensors()
        for details, array in zip(interpreter.get_input_details(), arrays):
            interpreter.set_tensor(details["index"], array)
        interpreter.invoke()
        found = {d["name"]: d["index"] for d in interpreter.get_output_details()}
        return [interpreter.get_tensor(found[name]) for name in order]

    return call


def _open(source: str) -> Any:
    from ai_edge_litert.interpreter import Interpreter

    try:
        return Interpreter(model_path=source, num_threads=1)
    except ValueError as error:
        raise Refused(
            "LiteRT does not open the model: %s" % error,
            _EXPORT_AGAIN + "and see whether LiteRT opens it where it was made",
        ) from error


def _name(values: Any, details: Any) -> List[Tuple[str, str]]:
    """Return pairs of names: tf2onnx keeps LiteRT's, but may change their order."""
    converted = {value.name for value in values}
    names = [each["name"] for each in details]
    if converted != set(names):
        raise Refused(
            "the converted model has %s where the model has %s" % (sorted(converted), names),
            _EXPORT_AGAIN + "with a name of its own for each input and output",
        )
    return [(name, name) for name in names]


def _require_supported(source: str) -> None:
    """Raise, naming operators, where it is known that tf2onnx writes a wrong model or none.

    Seen with tf2onnx 1.17: sparse weights end in an error about shapes, variables in an index that
    is out of range, and an operator that is not TensorFlow Lite's own is written as it is.
    """
    from ai_edge_litert import schema_py_generated as schema

    with open(source, "rb") as file:
        data = file.read()
    try:
        model = schema.ModelT.InitFromObj(schema.Model.GetRootAs(data, 0))
    except (struct.error, IndexError, ValueError, TypeError) as error:
        raise Refused(
            "the file is cut off or damaged: %s" % error, "check that it was copied whole"
        ) from error
    codes = model.operatorCodes or []
    used = [
        (
            codes[operator.opcodeIndex],
            graph.tensors[operator.outputs[0]].name if len(operator.outputs) else b"",
        )
        for graph in model.subgraphs
        for operator in graph.operators or []
    ]
    custom = ["%s (%s)" % (_text(c.customCode), _text(name)) for c, name in used if c.customCode]
    if custom:
        raise Refused(
            "it has operators that are not TensorFlow Lite's own: %s" % list_some(custom),
            _EXPORT_AGAIN + "without them: their makers' runtime has them, ONNX does not",
        )
    state = [
        "%s (%s)" % (_STATE[c.builtinCode], _text(n)) for c, n in used if c.builtinCode in _STATE
    ]
    if state:
        raise Refused(
            "it keeps state in variables: %s" % list_some(state),
            _EXPORT_AGAIN + "with the state as inputs and outputs ('state' in edgepack.yaml feeds"
            " them)",
        )
    sparse = [
        _text(t.name) for g in model.subgraphs for t in g.tensors or [] if t.sparsity is not None
    ]
    if sparse:
        raise Refused(
            "it has sparse weights: %s" % list_some(sparse),
            _EXPORT_AGAIN + "with dense weights: leave out what compresses sparse tensors",
        )


def _text(name: Any) -> str:
    return name.decode("utf-8", "replace") if isinstance(name, bytes) else str(name)
