"""Tensors as the Open Inference Protocol (v2) has them: JSON, and its binary extension.

With the extension a body is JSON, whose length a header gives, and then the values of tensors one
after the other, little-endian. Source: "Predict Protocol - Version 2" of KServe,
rest_predict_v2.yaml, and "Binary Tensor Data Extension" of Triton Inference Server.

JSON is read and written by orjson, which takes a fifth of the time of Python's own for numbers.

Needs Python 3.8 or newer, numpy and orjson; nothing else.
"""

from __future__ import annotations

import math
from typing import Any, Dict, FrozenSet, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import numpy as np
import orjson

HEADER_LENGTH = "inference-header-content-length"
"""The header with the length of the JSON in front of binary values."""

_DATATYPES = {
    "bool": "BOOL",
    "uint8": "UINT8",
    "uint16": "UINT16",
    "uint32": "UINT32",
    "uint64": "UINT64",
    "int8": "INT8",
    "int16": "INT16",
    "int32": "INT32",
    "int64": "INT64",
    "float16": "FP16",
    "float32": "FP32",
    "float64": "FP64",
}
DTYPES = {datatype: dtype for dtype, datatype in _DATATYPES.items()}
"""By the name of a datatype in the protocol: numpy's."""

MOST_JSON = 8 << 20
"""Bytes of JSON in a request: reading more would keep others waiting."""
MOST_LISTED = 1 << 20
"""Values of an output that are written as JSON."""
_MOST_EXAMPLE = 256
"""Values of an input in an example."""
_LONGEST_US = 1 << 53

Arrays = Dict[str, np.ndarray]


class ProtocolError(ValueError):
    """A request is not what the protocol says; the text says where."""


class Wanted(NamedTuple):
    """An output that a request asks for."""

    name: str
    binary: bool


class Request(NamedTuple):
    """What a client asks."""

    id: str
    """Empty where it gave none."""
    inputs: Arrays
    outputs: Tuple[Wanted, ...]
    """In order; empty: all."""
    binary: bool
    """Whether outputs that it does not name are binary."""
    timeout_us: Optional[int]
    """How long it waits, in microseconds; None where it does not say."""


def name_datatype(dtype: str) -> str:
    """Return the protocol's name of a numpy dtype.

    Raises:
        ProtocolError: It has none.
    """
    if dtype not in _DATATYPES:
        raise ProtocolError(f"the protocol has no datatype for {dtype}")
    return _DATATYPES[dtype]


def describe_tensor(name: str, dtype: str, shape: Sequence[Any]) -> Dict[str, Any]:
    """Return a tensor's metadata; a size that is not fixed is -1."""
    sizes = [size if isinstance(size, int) else -1 for size in shape]
    return {"name": name, "datatype": name_datatype(dtype), "shape": sizes}


def make_example(inputs: Sequence[Tuple[str, str, Sequence[Any]]]) -> Optional[Dict[str, Any]]:
    """Return a request with zeros for inputs; None where those are many.

    Args:
        inputs: Name, dtype and shape of each; a size that is not fixed is 1 here.
    """
    entries = []
    for name, dtype, shape in inputs:
        sizes = [size if isinstance(size, int) else 1 for size in shape]
        if math.prod(sizes) > _MOST_EXAMPLE:
            return None
        values = np.zeros(math.prod(sizes), dtype).tolist()
        entries.append({**describe_tensor(name, dtype, sizes), "data": values})
    return {"inputs": entries}


def read_request(body: bytes, header_length: Optional[str] = None) -> Request:
    """Return the request in a body.

    Args:
        body: JSON, or with the binary extension JSON and values.
        header_length: The value of the header :data:`HEADER_LENGTH`; None without it.

    Raises:
        ProtocolError: It is no request. Which inputs a model takes is not looked at here.
    """
    end = read_header_length(header_length, len(body))
    if end > MOST_JSON:
        raise ProtocolError(
            f"the request has {end} bytes of JSON, at most {MOST_JSON} are read: send the values as"
            f" binary, with 'binary_data_size' and the header {HEADER_LENGTH}"
        )
    document = _read_json(body[:end])
    parameters = _read_mapping(document, "parameters", "the request")
    entries = document.get("inputs")
    if not isinstance(entries, list) or not entries:
        raise ProtocolError("'inputs' has to be a list of tensors")
    inputs: Arrays = {}
    begin = end
    for entry in entries:
        name = _read_name(entry, "inputs")
        if name in inputs:
            raise ProtocolError(f"the input {name!r} is there twice")
        inputs[name], begin = _read_tensor(name, entry, body, begin)
    if begin != len(body):
        raise ProtocolError(f"behind the values of the last input are {len(body) - begin} bytes")
    identity = document.get("id", "")
    if not isinstance(identity, str):
        raise ProtocolError("'id' has to be a text")
    binary = parameters.get("binary_data_output", False) is True
    outputs = _read_outputs(document.get("outputs"), binary=binary)
    return Request(identity, inputs, outputs, binary, _read_timeout(parameters))


def read_header_length(text: Optional[str], length: int) -> int:
    """Return how many of a body's bytes are JSON.

    Args:
        text: The value of the header :data:`HEADER_LENGTH`; None without it.
        length: Of the body.

    Raises:
        ProtocolError: It is no number, or beyond the body.
    """
    if text is None:
        return length
    if not text.isascii() or not text.isdigit() or int(text) > length:
        raise ProtocolError(
            f"the header {HEADER_LENGTH} is {text!r}, expected a number up to the body's {length}"
        )
    return int(text)


def _read_json(data: bytes) -> Mapping[str, Any]:
    try:
        document = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise ProtocolError(f"the request is no JSON: {error}") from error
    if not isinstance(document, dict):
        raise ProtocolError("the request is no JSON object")
    return document


def _read_mapping(entry: Mapping[str, Any], key: str, where: str) -> Mapping[str, Any]:
    found = entry.get(key)
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise ProtocolError(f"{key!r} of {where} has to be an object")
    return found


def _read_name(entry: Any, where: str) -> str:
    if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
        raise ProtocolError(f"each of {where!r} has to be an object with a 'name'")
    return str(entry["name"])


def _read_timeout(parameters: Mapping[str, Any]) -> Optional[int]:
    found = parameters.get("timeout", 0)
    if type(found) is not int or not 0 <= found <= _LONGEST_US:
        raise ProtocolError("'timeout' has to be a number of microseconds; 0: none")
    return found or None


def _read_outputs(entries: Any, *, binary: bool) -> Tuple[Wanted, ...]:
    if entries is None:
        return ()
    if not isinstance(entries, list):
        raise ProtocolError("'outputs' has to be a list")
    found: List[Wanted] = []
    for entry in entries:
        name = _read_name(entry, "outputs")
        parameters = _read_mapping(entry, "parameters", f"the output {name!r}")
        if parameters.get("classification"):
            raise ProtocolError("'classification' is not offered: POST to predict gives answers")
        if any(name == each.name for each in found):
            raise ProtocolError(f"the output {name!r} is asked for twice")
        found.append(Wanted(name, parameters.get("binary_data", binary) is True))
    return tuple(found)


def _read_tensor(
    name: str, entry: Mapping[str, Any], body: bytes, begin: int
) -> Tuple[np.ndarray, int]:
    """Return a tensor and where the values of the next begin."""
    datatype, shape = entry.get("datatype"), entry.get("shape")
    if not isinstance(datatype, str) or datatype not in DTYPES:
        known = ", ".join(DTYPES)
        raise ProtocolError(f"the datatype of {name!r} is {datatype!r}, expected one of {known}")
    if not isinstance(shape, list) or not all(type(s) is int and s >= 0 for s in shape):
        raise ProtocolError(f"the shape of {name!r} has to be a list of sizes")
    dtype = np.dtype(DTYPES[datatype])
    parameters = _read_mapping(entry, "parameters", f"the input {name!r}")
    if "binary_data_size" not in parameters:
        return _read_values(name, entry.get("data"), dtype, shape), begin
    size, needed = parameters["binary_data_size"], math.prod(shape) * dtype.itemsize
    if type(size) is not int or size != needed:
        raise ProtocolError(
            f"'binary_data_size' of {name!r} is {size!r}, {datatype} {shape} has {needed} bytes"
        )
    if begin + size > len(body):
        raise ProtocolError(f"the body ends {begin + size - len(body)} bytes before {name!r} does")
    array = np.frombuffer(body, dtype.newbyteorder("<"), math.prod(shape), begin)
    return array.astype(dtype, copy=False).reshape(shape), begin + size


def _read_values(name: str, data: Any, dtype: np.dtype, shape: List[int]) -> np.ndarray:
    words, kinds = _VALUES[dtype.kind]
    problem = f"'data' of {name!r} has to be a list of {words} within {dtype}"
    if not isinstance(data, list):
        raise ProtocolError(problem)
    values = data
    if not set(map(type, values)) <= kinds:  # rows in rows, or something else
        values = np.array(data, dtype=object).reshape(-1).tolist()
        if not set(map(type, values)) <= kinds:
            raise ProtocolError(problem)
    if len(values) != math.prod(shape):
        raise ProtocolError(f"{name!r} has {len(values)} values, its shape {shape} needs others")
    try:
        array = _convert(values, dtype)
    except OverflowError:
        raise ProtocolError(problem) from None
    if array is None:
        raise ProtocolError(problem)
    return array.reshape(shape)


def _convert(values: List[Any], dtype: np.dtype) -> Optional[np.ndarray]:
    """Return values of the right types as a vector; None where one is beyond the dtype.

    Raises:
        OverflowError: One is far beyond it.
    """
    if dtype.kind == "f":
        with np.errstate(over="ignore"):
            array = np.array(values, dtype=dtype)
        return array if np.all(np.isfinite(array)) else None
    if dtype.kind == "b":
        return np.array(values, dtype=dtype)
    if dtype == np.uint64:
        # Wider than int64; before version 2 numpy wrapped what is below 0.
        if min(values, default=0) < 0:
            return None
        return np.array(values, dtype=dtype)
    wide, limits = np.array(values, dtype=np.int64), np.iinfo(dtype)
    if wide.size and not (limits.min <= wide.min() and wide.max() <= limits.max):
        return None
    return wide.astype(dtype)


_VALUES: Mapping[str, Tuple[str, FrozenSet[type]]] = {
    "b": ("true and false", frozenset({bool})),
    "u": ("whole numbers", frozenset({int})),
    "i": ("whole numbers", frozenset({int})),
    "f": ("numbers", frozenset({int, float})),
}
"""By the kind of a dtype: what its values in JSON are, in words and types."""


def write_response(
    model: str, version: str, request: Request, outputs: Mapping[str, np.ndarray]
) -> Tuple[bytes, Optional[int]]:
    """Return the body of a response, and the length of its JSON if values follow it.

    Args:
        model: Its name.
        version: Of the bundle.
        request: What is answered.
        outputs: All outputs by name.

    Raises:
        ProtocolError: There is no such output, or JSON cannot hold its values.
    """
    wanted = request.outputs or tuple(Wanted(name, request.binary) for name in outputs)
    entries: List[Dict[str, Any]] = []
    values: List[bytes] = []
    for name, binary in wanted:
        if name not in outputs:
            raise ProtocolError(f"there is no output {name!r}; there are {sorted(outputs)}")
        array = outputs[name]
        entry = describe_tensor(name, array.dtype.name, array.shape)
        if binary:
            data = array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()
            entry["parameters"] = {"binary_data_size": len(data)}
            values.append(data)
        else:
            entry["data"] = _list_values(name, array)
        entries.append(entry)
    document: Dict[str, Any] = {"model_name": model, "model_version": version, "outputs": entries}
    if request.id:
        document["id"] = request.id
    header = orjson.dumps(document)
    return b"".join([header, *values]), len(header) if values else None


def _list_values(name: str, array: np.ndarray) -> List[Any]:
    if array.size > MOST_LISTED:
        raise ProtocolError(
            f"the output {name!r} has {array.size} values, at most {MOST_LISTED} are written as"
            " JSON: ask for it with 'binary_data': true"
        )
    if array.dtype.kind == "f" and not np.all(np.isfinite(array)):
        raise ProtocolError(
            f"the output {name!r} has values that are no numbers, which JSON cannot hold: ask for"
            " it with 'binary_data': true"
        )
    found: List[Any] = array.reshape(-1).tolist()
    return found
