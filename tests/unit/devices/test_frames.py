"""Messages between host and harness."""

from __future__ import annotations

import io
import json
import struct

import numpy as np
import pytest
from edgepack.devices.frames import FrameError, encode, read_answer
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of

DTYPES = st.sampled_from(["float32", "float16", "int64", "uint8", "bool"])
ARRAYS = DTYPES.flatmap(
    lambda dtype: arrays_of.arrays(dtype, arrays_of.array_shapes(min_dims=0, min_side=0))
)


@given(st.dictionaries(st.text(max_size=8), ARRAYS, max_size=3))
def test_tensors_survive_the_way(tensors: dict[str, np.ndarray]) -> None:
    stream = io.BytesIO(encode(tensors))
    answer = read_answer(stream.read)
    assert list(answer.outputs) == list(tensors)
    for name, array in tensors.items():
        np.testing.assert_array_equal(answer.outputs[name], array)
        assert answer.outputs[name].dtype == array.dtype
    assert stream.read() == b""


@given(st.integers(0, 60))
def test_read_answer_raises_when_the_stream_is_cut(size: int) -> None:
    whole = encode({"y": np.ones((2, 3), np.float32)})
    with pytest.raises(FrameError, match="ended"):
        read_answer(io.BytesIO(whole[:size]).read)


def header(**changes: object) -> bytes:
    head = {"name": "y", "dtype": "float32", "shape": [1], **changes}
    text = json.dumps({"tensors": [head]}).encode()
    return struct.pack(">I", len(text)) + text


@pytest.mark.parametrize(
    "data",
    [
        b"welcome to this board\n",
        struct.pack(">I", 5) + b"hello",
        header(dtype="object"),
        header(shape=[-1]),
        header(shape=[1 << 40]),
    ],
)
def test_read_answer_raises_when_it_is_no_message(data: bytes) -> None:
    with pytest.raises(FrameError):
        read_answer(io.BytesIO(data).read)
