"""Requests and responses of the Open Inference Protocol, as bytes."""

from __future__ import annotations

import json

import numpy as np
import pytest
from edgepack.ondevice.service import edgepack_protocol as protocol
from edgepack.ondevice.service.edgepack_protocol import ProtocolError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

DTYPES = ["bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64"]


def body_of(*inputs: dict, **more) -> bytes:
    return json.dumps({"inputs": list(inputs), **more}).encode()


def tensor(datatype="FP32", shape=(2,), data=(1.5, 2.5), name="x", **more) -> dict:
    return {"name": name, "datatype": datatype, "shape": list(shape), "data": list(data), **more}


def asking(*outputs: dict) -> protocol.Request:
    return protocol.read_request(body_of(tensor(), outputs=list(outputs)))


def refuse(body: bytes, header: str | None = None) -> str:
    with pytest.raises(ProtocolError) as caught:
        protocol.read_request(body, header)
    return str(caught.value)


def test_request_in_json_is_read() -> None:
    body = body_of(
        tensor(),
        tensor("INT64", (2, 2), [[1, 2], [3, 2**53 + 1]], name="ids"),
        tensor("BOOL", (1,), [True], name="flag"),
        id="seven",
        parameters={"timeout": 250_000},
        outputs=[{"name": "y", "parameters": {"binary_data": True}}, {"name": "z"}],
    )
    found = protocol.read_request(body)
    assert (found.id, found.timeout_us) == ("seven", 250_000)
    assert found.outputs == (("y", True), ("z", False))
    np.testing.assert_array_equal(found.inputs["x"], np.float32([1.5, 2.5]))
    np.testing.assert_array_equal(found.inputs["ids"], np.int64([[1, 2], [3, 2**53 + 1]]))
    assert {name: array.dtype.name for name, array in found.inputs.items()} == {
        "x": "float32",
        "ids": "int64",
        "flag": "bool",
    }


# Drawing arrays is slow on a machine that is busy, which is no fault of what is tested.
@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(
    st.sampled_from(DTYPES).flatmap(
        lambda dtype: arrays.arrays(dtype, arrays.array_shapes(min_dims=0, max_dims=3, min_side=0))
    )
)
def test_values_behind_the_json_are_read_to_the_bit(array: np.ndarray) -> None:
    size = {"binary_data_size": array.nbytes}
    entry = {
        "name": "x",
        "datatype": protocol.name_datatype(array.dtype.name),
        "shape": list(array.shape),
        "parameters": size,
    }
    second = {**entry, "name": "y"}
    header = body_of(entry, second)
    values = array.tobytes()
    found = protocol.read_request(header + values + values[::-1], str(len(header)))
    assert found.inputs["x"].tobytes() == values
    assert found.inputs["y"].tobytes() == values[::-1]
    assert (found.inputs["x"].dtype, found.inputs["x"].shape) == (array.dtype, array.shape)


@given(
    st.sampled_from(DTYPES).flatmap(
        lambda dtype: arrays.arrays(
            dtype,
            arrays.array_shapes(max_dims=3),
            elements={"allow_nan": False, "allow_infinity": False} if "float" in dtype else None,
        )
    ),
    st.booleans(),
)
def test_what_a_response_says_a_request_reads_back(array: np.ndarray, binary) -> None:
    asked = protocol.Request("i", {}, (), binary, None)
    data, length = protocol.write_response("net", "1.0", asked, {"y": array})
    end = len(data) if length is None else length
    document = json.loads(data[:end])
    assert (document["model_name"], document["model_version"], document["id"]) == (
        "net",
        "1.0",
        "i",
    )
    again = json.dumps({"inputs": document["outputs"]}).encode()
    found = protocol.read_request(again + data[end:], str(len(again)) if binary else None)
    assert found.inputs["y"].tobytes() == array.tobytes()
    assert found.inputs["y"].shape == array.shape


@pytest.mark.parametrize(
    ("body", "header", "words"),
    [
        (b"\xff\x00", None, "no JSON"),
        (b"[1]", None, "no JSON object"),
        (b"[" * 100_000, None, "no JSON"),
        (b"{}", None, "'inputs' has to be a list"),
        (body_of(), None, "'inputs' has to be a list"),
        (body_of({"datatype": "FP32"}), None, "with a 'name'"),
        (body_of(tensor(), tensor()), None, "'x' is there twice"),
        (body_of(tensor("FP8")), None, "datatype of 'x' is 'FP8', expected one of BOOL"),
        (body_of(tensor("BYTES", (1,), ["a"])), None, "datatype of 'x' is 'BYTES'"),
        (body_of(tensor(shape=(3,))), None, "'x' has 2 values, its shape [3]"),
        (body_of(tensor(shape=(-1,))), None, "list of sizes"),
        (body_of(tensor(shape=(True, 2))), None, "list of sizes"),
        (body_of(tensor("UINT8", (1,), [256])), None, "whole numbers within uint8"),
        (body_of(tensor("INT8", (1,), [-129])), None, "whole numbers within int8"),
        (body_of(tensor("INT64", (1,), [2**63])), None, "whole numbers within int64"),
        (body_of(tensor("INT32", (1,), [1.5])), None, "whole numbers within int32"),
        (body_of(tensor("FP32", (1,), ["1"])), None, "numbers within float32"),
        (body_of(tensor("BOOL", (1,), [1])), None, "true and false"),
        (body_of(tensor(shape=(2, 2), data=[[1.0], [1.0, 2.0, 3.0]])), None, "numbers"),
        (body_of(tensor("FP32", (1,), [1e39])), None, "numbers within float32"),
        (body_of(tensor("FP32", (1,), [10**400])), None, "infinity"),
        (body_of(tensor("FP32", (1,), [float("nan")])), None, "no JSON: unexpected character"),
        (body_of(tensor("UINT64", (1,), [-1])), None, "whole numbers within uint64"),
        (body_of(tensor("UINT64", (1,), [2**64])), None, "whole numbers within uint64"),
        (body_of(tensor("FP32", (1,), [True])), None, "numbers within float32"),
        (body_of(tensor("INT64", (1,), [True])), None, "whole numbers within int64"),
        (body_of({**tensor(), "datatype": []}), None, "datatype of 'x' is []"),
        (body_of(tensor(), parameters={"timeout": 10**30}), None, "number of microseconds"),
        (body_of(tensor(), outputs=[{"name": "y"}] * 2), None, "'y' is asked for twice"),
        (b" " * protocol.MOST_JSON + b"{}", None, "send the values as binary"),
        (body_of(tensor(), parameters=[1]), None, "'parameters' of the request"),
        (body_of(tensor(), parameters={"timeout": -1}), None, "number of microseconds"),
        (body_of(tensor(), parameters={"timeout": True}), None, "number of microseconds"),
        (body_of(tensor(), outputs={"name": "y"}), None, "'outputs' has to be a list"),
        (
            body_of(tensor(), outputs=[{"name": "y", "parameters": {"classification": 3}}]),
            None,
            "POST to predict",
        ),
        (body_of(tensor(), id=7), None, "'id' has to be a text"),
        (body_of(tensor()), "x", "expected a number up to"),
        (body_of(tensor()), "-1", "expected a number up to"),
        (body_of(tensor()), "\u0663", "expected a number up to"),
        (body_of(tensor()), "999", "expected a number up to"),
        (body_of(tensor()) + b"junk", str(len(body_of(tensor()))), "are 4 bytes"),
    ],
)
def test_what_is_no_request_is_one_sentence(body: bytes, header: str | None, words: str) -> None:
    assert words in refuse(body, header)


def test_numbers_of_json_that_numpy_has_no_type_for_are_read() -> None:
    body = body_of(tensor("UINT64", (2,), [1, 2**63]), tensor("FP32", (1,), [10**20], name="y"))
    found = protocol.read_request(body).inputs
    assert found["x"].tolist() == [1, 2**63]
    assert found["y"].tolist() == [np.float32(1e20)]


def test_a_timeout_of_0_is_none() -> None:
    assert protocol.read_request(body_of(tensor(), parameters={"timeout": 0})).timeout_us is None


def test_large_outputs_are_asked_for_in_binary() -> None:
    large = np.zeros(protocol.MOST_LISTED + 1, np.float32)
    with pytest.raises(ProtocolError, match="'binary_data': true"):
        protocol.write_response("net", "1", asking(), {"y": large})


def test_binary_values_have_to_be_all_there() -> None:
    entry = {"name": "x", "datatype": "FP32", "shape": [2], "parameters": {"binary_data_size": 8}}
    header = body_of(entry)
    assert "ends 3 bytes before 'x' does" in refuse(header + b"12345", str(len(header)))
    short = body_of({**entry, "parameters": {"binary_data_size": 4}})
    assert "FP32 [2] has 8 bytes" in refuse(short + b"1234", str(len(short)))


def test_what_json_cannot_hold_is_asked_for_in_binary() -> None:
    outputs = {"y": np.float32([1, np.nan])}
    with pytest.raises(ProtocolError, match="'binary_data': true"):
        protocol.write_response("net", "1", asking(), outputs)
    asked = asking({"name": "y", "parameters": {"binary_data": True}})
    data, length = protocol.write_response("net", "1", asked, outputs)
    assert data[length:] == outputs["y"].tobytes()


def test_an_output_that_is_not_there_is_named() -> None:
    asked = asking({"name": "z"})
    with pytest.raises(ProtocolError, match=r"no output 'z'; there are \['y'\]"):
        protocol.write_response("net", "1", asked, {"y": np.zeros(1)})
