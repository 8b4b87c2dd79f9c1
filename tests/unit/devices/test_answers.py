"""What a device answers is read with limits, and what is none of it is named."""

from __future__ import annotations

import contextlib
import io
import json
import struct
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from edgepack.devices import answers
from edgepack.devices.answers import parse_json
from edgepack.devices.frames import FrameError, read_answer
from edgepack.devices.harness import Harness
from edgepack.devices.inventory import Device, LocalEntry
from edgepack.devices.probing import probe, probe_python
from edgepack.devices.transports import connect
from edgepack.errors import DeviceError, RemoteCommandError
from hypothesis import given
from hypothesis import strategies as st
from pydantic import RootModel

DEEP = b"[" * 100_000
DOCUMENT = RootModel[object]

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(value=JSON)
def test_json_when_it_is_whole_comes_back(value: object) -> None:
    wanted = json.loads(json.dumps(value))
    assert parse_json(json.dumps(value).encode()) == wanted


@given(data=st.binary(max_size=60))
def test_bytes_when_they_are_anything_raise_nothing_but_the_devices_error(data: bytes) -> None:
    with contextlib.suppress(DeviceError):
        answers.read_answer(DOCUMENT, data, device="pi5", what="the answer")


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (DEEP, "is nested deeper than 32"),
        (b'{"a":' * 100_000, "is nested deeper than 32"),
        (b"[" * 33 + b"1" + b"]" * 33, "is nested deeper than 32"),
        (b'{"a":' * 32 + b"{}" + b"}" * 32, "is nested deeper than 32"),
        (b'{"a": 1, "b": 2, "a": 3}', "has the key 'a' twice"),
        (b'["\xff"]', "is not UTF-8 at byte 2"),
        (b"[NaN]", "has a NaN"),
        (b"[-Infinity]", "has a -Infinity"),
        (b"9" * 5000, "is not JSON"),
        (b"", "is not JSON"),
        (b"{} {}", "is not JSON"),
        (b" " * 1_000_001, "has 1000001 bytes and may have 1000000"),
    ],
)
def test_json_when_it_breaks_a_limit_is_the_devices_error(data: bytes, said: str) -> None:
    with pytest.raises(DeviceError) as caught:
        answers.read_answer(DOCUMENT, data, device="pi5", what="the answer", max_bytes=10**6)
    assert said in caught.value.problem
    assert caught.value.where == "pi5"
    assert len(str(caught.value)) < 600


def test_json_when_it_is_as_deep_as_it_may_be_is_read() -> None:
    data = b"[" * 32 + b"]" * 32
    assert json.dumps(parse_json(data)).encode() == data


@pytest.mark.parametrize(
    "body", [DEEP, b'{"tensors": [], "tensors": []}', b'{"tensors": ["\xff"]}']
)
def test_frame_when_its_header_breaks_a_limit_is_refused(body: bytes) -> None:
    message = struct.pack(">I", len(body)) + body
    with pytest.raises(FrameError, match="the header"):
        read_answer(reader(message))


def test_frame_when_its_tensors_are_too_large_together_is_refused_before_they_are_read() -> None:
    heads = [{"name": str(k), "dtype": "float32", "shape": [1 << 27]} for k in range(3)]
    body = json.dumps({"tensors": heads}).encode()
    with pytest.raises(FrameError, match="larger than 1 GiB"):
        read_answer(reader(struct.pack(">I", len(body)) + body))


def reader(message: bytes) -> Callable[[int], bytes]:
    return io.BytesIO(message).read


def device_whose_python_prints(tmp_path: Path, data: bytes) -> Device:
    """A device whose Python runs edgepack's supervisor, and prints this for anything else."""
    (tmp_path / "data").write_bytes(data)
    python = tmp_path / "python"
    python.write_text(
        f'#!/bin/sh\n[ "$1" = -IS ] && exec {sys.executable} "$@"\ncat {tmp_path}/data\n'
    )
    python.chmod(0o755)
    return Device("odd", LocalEntry(transport="local", target="linux-x86-64", python=str(python)))


GOOD = {"python": "3.11.2", "numpy": "2.0.0", "onnxruntime_problem": "none", "distributions": {}}


@pytest.mark.parametrize(
    "data",
    [
        DEEP,
        b"{}",
        b"[]",
        b"\xff",
        json.dumps({**GOOD, "python": "3.11.2\u001b[31m"}).encode(),
        json.dumps({**GOOD, "numpy": "1" * 5000}).encode(),
        json.dumps({**GOOD, "providers": "all"}).encode(),
        json.dumps({**GOOD, "distributions": {"onnxruntime": 5}}).encode(),
    ],
)
def test_probe_when_python_answers_something_else_is_the_devices_error(
    tmp_path: Path, data: bytes
) -> None:
    device = device_whose_python_prints(tmp_path, data)
    with connect(device) as transport:
        with pytest.raises(DeviceError, match="what Python says about itself"):
            probe(device, transport)
        with pytest.raises(DeviceError, match="what Python says about itself"):
            probe_python(str(device.entry.python), device, transport)


def test_probe_python_when_nothing_is_printed_is_the_devices_error(tmp_path: Path) -> None:
    device = device_whose_python_prints(tmp_path, b"")
    with connect(device) as transport, pytest.raises(DeviceError, match="is not JSON"):
        probe_python(str(device.entry.python), device, transport)


@pytest.mark.parametrize(
    ("data", "said"),
    [(DEEP, "nested deeper"), (b'{"variant": 1, "variant": 2}', "twice"), (b"\xff", "not UTF-8")],
)
def test_harness_when_it_prints_beyond_a_limit_is_an_error_that_names_the_device(
    tmp_path: Path, data: bytes, said: str
) -> None:
    device = device_whose_python_prints(tmp_path, data)
    with connect(device) as transport:
        harness = Harness(transport, tmp_path, str(device.entry.python))  # type: ignore[arg-type]
        with pytest.raises(RemoteCommandError, match=said) as caught:
            harness.select(None)
    assert caught.value.where == "odd"
