"""Sounds of ``.wav`` files to input tensors, as ``sound`` in ``input_descriptions`` says.

PCM of 8, 16, 24 and 32 bits, and floats. Python's own ``wave`` reads no floats, and before 3.12 no
file with an extensible header, which recorders write for 24 bits. Source of the format: Microsoft,
Multiple Channel Audio Data and WAVE Files; RFC 2361 for the codes. The builder reads samples by
the same code. Nothing is resampled or mixed: a resampler is part of how a model was trained.

Needs Python 3.8 or newer and numpy; nothing else.
"""

from __future__ import annotations

import struct
from typing import Any, Dict, Mapping, NamedTuple, Optional, Sequence, Tuple

import numpy as np

_PCM, _FLOAT, _EXTENSIBLE = 1, 3, 0xFFFE
_SCALES: Mapping[Tuple[int, int], float] = {
    (_PCM, 8): 128.0,
    (_PCM, 16): 32768.0,
    (_PCM, 24): 8388608.0,
    (_PCM, 32): 2147483648.0,
    (_FLOAT, 32): 1.0,
    (_FLOAT, 64): 1.0,
}
"""By code and bits: the value that stands for 1."""
_CODES = {2: "ADPCM", 6: "A-law", 7: "mu-law", 17: "IMA ADPCM", 85: "MP3"}
_CONVERT = "convert it: ffmpeg -i OLD -c:a pcm_s16le NEW.wav"
_AGAIN = "copy or record it again"


class SoundError(ValueError):
    """A sound cannot be read, or is not as the input takes it.

    Attributes:
        advice: What to do.
    """

    def __init__(self, text: str, advice: str) -> None:
        super().__init__(text)
        self.advice = advice


class Sound(NamedTuple):
    """What a file holds."""

    rate: int
    """Values a second."""
    values: np.ndarray
    """float32 ``(channels, N)``, from -1 to 1."""


class _Format(NamedTuple):
    code: int
    channels: int
    rate: int
    bits: int


def read(data: bytes, name: str = "the sound", most: Optional[int] = None) -> Sound:
    """Return the sound in a file's content.

    Args:
        data: The file's.
        name: What messages call it.
        most: So many values of each channel are read at most; None: all.

    Raises:
        SoundError: It is no ``.wav``, holds something else than PCM or floats, or nothing, or
            values that are not finite, or ends before its end.
    """
    if data[:4] != b"RIFF" or data[8:12] != b"WAVE":
        raise SoundError(f"{name} is no .wav file: it begins with {bytes(data[:12])!r}", _CONVERT)
    chunks = _find_chunks(name, memoryview(data))
    if b"fmt " not in chunks or b"data" not in chunks:
        missing = "format" if b"fmt " not in chunks else "sound"
        raise SoundError(f"{name} has no {missing} in it", _CONVERT)
    found = _parse_format(name, chunks[b"fmt "])
    size = found.channels * found.bits // 8
    raw = chunks[b"data"]
    if len(raw) < size:
        raise SoundError(f"{name} is empty", "remove it, or record it again")
    count = len(raw) // size
    values = _decode(raw[: min(count, most or count) * size], found)
    if not np.isfinite(values).all():
        raise SoundError(f"{name} holds values that are not finite", _AGAIN)
    return Sound(found.rate, np.ascontiguousarray(values.reshape(-1, found.channels).T))


def _find_chunks(name: str, data: memoryview) -> Dict[bytes, memoryview]:
    """Return the content of the first chunk of each name."""
    chunks: Dict[bytes, memoryview] = {}
    at = 12
    while at + 8 <= len(data):
        chunk, (size,) = bytes(data[at : at + 4]), struct.unpack_from("<I", data, at + 4)
        content = data[at + 8 : at + 8 + size]
        if len(content) < size:
            raise SoundError(
                f"{name} is broken off: its part {chunk.decode('latin-1')!r} has"
                f" {len(content)} of {size} bytes",
                _AGAIN,
            )
        chunks.setdefault(chunk, content)
        # Chunks begin at even places.
        at += 8 + size + size % 2
    return chunks


def _parse_format(name: str, content: memoryview) -> _Format:
    try:
        code, channels, rate, _, size, bits = struct.unpack_from("<HHIIHH", content)
        if code == _EXTENSIBLE:
            # The first two bytes of the GUID behind are the code.
            (code,) = struct.unpack_from("<H", content, 24)
    except struct.error as error:
        raise SoundError(f"{name} has a broken format: {len(content)} bytes", _CONVERT) from error
    if (code, bits) not in _SCALES or not channels or not rate:
        held = _CODES.get(code, f"code {code}")
        kind = {_PCM: "PCM", _FLOAT: "floats"}.get(code, held)
        raise SoundError(
            f"{name} holds {kind} of {bits} bits, {channels} channels and {rate} Hz", _CONVERT
        )
    if size != channels * bits // 8:
        raise SoundError(
            f"{name} has {size} bytes for each moment, and {_count(channels)} of {bits} bits",
            _CONVERT,
        )
    return _Format(code, channels, rate, bits)


def _decode(raw: memoryview, found: _Format) -> np.ndarray:
    """Return values from -1 to 1: float32 ``(N,)``."""
    scale = _SCALES[found.code, found.bits]
    if found.code == _FLOAT:
        with np.errstate(over="ignore"):  # what is too large becomes infinite, and is refused
            return np.frombuffer(raw, f"<f{found.bits // 8}").astype(np.float32)
    if found.bits == 8:
        # Only 8 bits are without a sign.
        return ((np.frombuffer(raw, np.uint8).astype(np.float32)) - scale) / np.float32(scale)
    if found.bits == 24:
        wide = np.zeros((len(raw) // 3, 4), np.uint8)
        wide[:, 1:] = np.frombuffer(raw, np.uint8).reshape(-1, 3)
        return (wide.view("<i4")[:, 0] >> 8).astype(np.float32) / np.float32(scale)
    values = np.frombuffer(raw, f"<i{found.bits // 8}")
    return (values / scale).astype(np.float32)


def read_described(
    data: bytes,
    described: Mapping[str, Any],
    name: str = "the sound",
    most: Optional[int] = None,
) -> np.ndarray:
    """Return the values of a sound that is as described: float32 ``(channels, N)``.

    Args:
        data: As :func:`read` takes it, as ``name`` and ``most``.
        described: ``sound`` of the input: ``rate`` and ``channels``.
        name: What messages call it.
        most: Values of each channel.

    Raises:
        SoundError: It has another rate or number of channels, or as :func:`read`.
    """
    rate, values = read(data, name, most)
    if (rate, len(values)) != (described["rate"], described["channels"]):
        raise SoundError(
            f"{name} has {rate} Hz and {_count(len(values))}, and the input takes"
            f" {described['rate']} Hz and {_count(described['channels'])}",
            f"convert it: ffmpeg -i OLD.wav -ar {described['rate']} -ac {described['channels']}"
            " NEW.wav",
        )
    return values


def _count(channels: int) -> str:
    return f"{channels} channel{'' if channels == 1 else 's'}"


def make_tensor(
    data: bytes,
    described: Mapping[str, Any],
    dtype: str,
    rank: int,
    name: str = "the sound",
) -> np.ndarray:
    """Return the tensor of a sound: its first ``length`` values, filled up with silence.

    Args:
        data: A file's content.
        described: ``sound`` of the input.
        dtype: Of the input, as ``rank``.
        rank: 1 for ``(N,)``, 2 for ``(1, N)``, 3 for ``(1, C, N)``.
        name: What messages call the sound.

    Raises:
        SoundError: As :func:`read_described`.
    """
    values = read_described(data, described, name, described["length"])
    length = described["length"] or values.shape[1]
    window = np.zeros((len(values), length), np.float32)
    window[:, : values.shape[1]] = values
    return shape_window(window, dtype, rank)


def shape_window(window: np.ndarray, dtype: str, rank: int) -> np.ndarray:
    """Return a window, float32 ``(channels, N)``, as an input of a dtype and a rank takes it."""
    shape: Sequence[int] = {1: (window.size,), 2: window.shape}.get(rank, (1, *window.shape))
    if dtype == "int16":
        levels = np.round(window * _SCALES[_PCM, 16]).clip(-32768, 32767)
        return np.asarray(levels.astype(np.int16).reshape(shape))
    return np.asarray(window.reshape(shape).astype(dtype))
