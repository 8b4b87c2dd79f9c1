"""Reads JSON that a device sent, with limits: a device may be broken or hostile."""

from __future__ import annotations

import json
from typing import Any, NoReturn, TypeVar

from pydantic import BaseModel, ValidationError

from edgepack.errors import DeviceError

_Answer = TypeVar("_Answer", bound=BaseModel)

MAX_BYTES = 16 << 20
"""A report of 100,000 inferences and 100,000 nodes fits; ``pipes`` limits what is read before."""
MAX_DEPTH = 32
"""Lists and objects inside each other."""
_TOO_DEEP = f"is nested deeper than {MAX_DEPTH}"


class _AmbiguousError(ValueError):
    """JSON that parsers read differently: a key twice, or NaN."""


def parse_json(data: bytes, *, max_bytes: int = MAX_BYTES) -> Any:  # noqa: ANN401
    """Return one JSON document: UTF-8, each key once, no NaN, within limits of depth and length.

    Raises:
        ValueError: It is something else; the message says what, as the end of a sentence.
    """
    if len(data) > max_bytes:
        raise ValueError(f"has {len(data)} bytes and may have {max_bytes}")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"is not UTF-8 at byte {error.start}") from error
    try:
        value = json.loads(text, object_pairs_hook=_require_unique, parse_constant=_refuse_constant)
    except RecursionError as error:
        raise ValueError(_TOO_DEEP) from error
    except _AmbiguousError:
        raise
    except ValueError as error:  # a JSONDecodeError, or a number of thousands of digits
        raise ValueError(f"is not JSON: {error}") from error
    _check_depth(value)
    return value


def parse_answer(model: type[_Answer], data: bytes, *, max_bytes: int = MAX_BYTES) -> _Answer:
    """Return one JSON document as a model of it; see :func:`parse_json`.

    Raises:
        ValueError: It is no such document; the message says what, as the end of a sentence.
    """
    parse_json(data, max_bytes=max_bytes)  # for its limits
    try:
        return model.model_validate_json(data)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise ValueError(f"is wrong{f' at {place}' if place else ''}: {first['msg']}") from error


def read_answer(
    model: type[_Answer], data: bytes, *, device: str, what: str, max_bytes: int = MAX_BYTES
) -> _Answer:
    """Return the JSON document that a device answered as a model of it; see :func:`parse_answer`.

    Args:
        model: The model.
        data: The bytes that the device sent.
        device: The device's name, for the message.
        what: What was asked for, as the beginning of a sentence: ``the list of leases``.
        max_bytes: The longest document that is read.

    Raises:
        DeviceError: It is no such document.
    """
    try:
        return parse_answer(model, data, max_bytes=max_bytes)
    except ValueError as error:
        raise make_answer_error(f"{what} {error}", data, device=device) from error


def make_answer_error(problem: str, data: bytes, *, device: str) -> DeviceError:
    """Return the error for an answer that is not what was requested."""
    return DeviceError(
        f"{problem}; it begins with {data[:60]!r}",
        hint="see whether something on the device prints to stdout when a shell or Python starts"
        " (look into ~/.bashrc there)",
        where=device,
    )


def _require_unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for number, key in enumerate(keys) if key in keys[:number])
        raise _AmbiguousError(f"has the key {twice[:60]!r} twice")
    return found


def _refuse_constant(constant: str) -> NoReturn:
    raise _AmbiguousError(f"is not JSON: it has a {constant}")


def _check_depth(value: Any) -> None:  # noqa: ANN401
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        nested = [item for item in level if isinstance(item, dict | list)]
        if not nested:
            return
        level = [i for item in nested for i in (item.values() if isinstance(item, dict) else item)]
    raise ValueError(_TOO_DEEP)
