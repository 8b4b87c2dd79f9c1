"""The messages between host and harness: a header in JSON, then the tensors' bytes.

A message is the header's length (4 bytes, big-endian), the header, and one tensor after the other
(little-endian, C order). The harness's docstring describes the same from its side.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Annotated

import numpy as np
from pydantic import Field, ValidationError

from edgepack.base.schema import StrictModel
from edgepack.devices.answers import parse_json

MAX_HEADER_BYTES = 1 << 20
MAX_TENSORS_BYTES = 1 << 30
"""The most bytes of one message, all tensors together."""

Arrays = dict[str, np.ndarray]


class FrameError(ValueError):
    """The received bytes are not a message."""


class TensorHead(StrictModel):
    """One tensor that follows the header."""

    name: str
    dtype: Annotated[str, Field(pattern=r"^(float|int|uint)(8|16|32|64)$|^bool$")]
    shape: list[Annotated[int, Field(ge=0)]]


class AnswerHeader(StrictModel):
    """The header of an answer."""

    tensors: list[TensorHead]
    ns: int = 0
    """The inference on the device's monotonic clock."""
    error: str = ""
    """Why there is no output, if there is none."""


@dataclass(frozen=True)
class SampleAnswer:
    """One inference on the device."""

    outputs: Arrays
    ns: int
    error: str


def encode(tensors: Mapping[str, np.ndarray], *, ns: int = 0) -> bytes:
    """Return the message that carries these tensors; ``ns`` is :attr:`Header.ns`."""
    heads = [
        TensorHead(name=name, dtype=array.dtype.name, shape=list(array.shape))
        for name, array in tensors.items()
    ]
    header = AnswerHeader(tensors=heads, ns=ns).model_dump_json().encode()
    bodies = [
        np.ascontiguousarray(array, array.dtype.newbyteorder("<")).data
        for array in tensors.values()
    ]
    return b"".join([struct.pack(">I", len(header)), header, *bodies])


def read_answer(read: Callable[[int], bytes]) -> SampleAnswer:
    """Read one message.

    Args:
        read: Returns as many bytes as it is asked for, fewer only at the end.

    Raises:
        FrameError: The stream ended, or carries something else.
    """
    (length,) = struct.unpack(">I", _read_exactly(read, 4))
    if length > MAX_HEADER_BYTES:
        raise FrameError(f"a header of {length} bytes is no header")
    data = _read_exactly(read, length)
    try:
        header = AnswerHeader.model_validate(parse_json(data, max_bytes=MAX_HEADER_BYTES))
    except ValidationError as error:
        raise FrameError(f"the header is wrong: {error.errors()[0]['msg']}") from error
    except ValueError as error:
        raise FrameError(f"the header {error}") from error
    if sum(_count_bytes(head) for head in header.tensors) > MAX_TENSORS_BYTES:
        raise FrameError(f"its tensors are larger than {MAX_TENSORS_BYTES >> 30} GiB")
    outputs = {head.name: _read_tensor(read, head) for head in header.tensors}
    return SampleAnswer(outputs, header.ns, header.error)


def _count_bytes(head: TensorHead) -> int:
    return prod(head.shape) * np.dtype(head.dtype).itemsize


def _read_tensor(read: Callable[[int], bytes], head: TensorHead) -> np.ndarray:
    dtype = np.dtype(head.dtype).newbyteorder("<")
    data = _read_exactly(read, _count_bytes(head))
    array: np.ndarray = np.frombuffer(data, dtype).reshape(head.shape)
    return array.astype(head.dtype, copy=False)


def _read_exactly(read: Callable[[int], bytes], size: int) -> bytes:
    data = read(size)
    if len(data) < size:
        raise FrameError(f"the stream ended after {len(data)} of {size} bytes")
    return data
