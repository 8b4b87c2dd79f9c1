"""Sounds in ``.wav`` files: PCM of 8, 16, 24 and 32 bits, and floats.

Python's own ``wave`` reads no floats, and before 3.12 no file with an extensible header, which
recorders write for 24 bits. Source of the format: Microsoft, Multiple Channel Audio Data and WAVE
Files; RFC 2361 for the codes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from edgepack.base.arrays import Array
from edgepack.errors import SamplesError
from edgepack.model.facts import TensorSpec
from edgepack.project.inputs import SoundInput
from edgepack.samples.sample_set import Sample
from edgepack.samples.spreading import choose_spread

SUFFIXES = frozenset({".wav"})
_PCM, _FLOAT, _EXTENSIBLE = 1, 3, 0xFFFE
_SCALES: Mapping[tuple[int, int], float] = {
    (_PCM, 8): 128.0,
    (_PCM, 16): 32768.0,
    (_PCM, 24): 8388608.0,
    (_PCM, 32): 2147483648.0,
    (_FLOAT, 32): 1.0,
    (_FLOAT, 64): 1.0,
}
"""By code and bits: the value that stands for 1."""
_CODES = {2: "ADPCM", 6: "A-law", 7: "mu-law", 17: "IMA ADPCM", 85: "MP3"}


class Sound(NamedTuple):
    """What a file holds."""

    rate: int
    """Values a second."""
    values: Array
    """float32 ``(channels, N)``, from -1 to 1."""


@dataclass(frozen=True)
class _Format:
    code: int
    channels: int
    rate: int
    bits: int


def read_sound(path: Path) -> Sound:
    """Return the sound in a file.

    Raises:
        SamplesError: It is no ``.wav``, holds something else than PCM or floats, or nothing, or
            ends before its end.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise SamplesError(
            f"cannot read {str(path)!r}: {error.strerror}", hint="check the file's permissions"
        ) from error
    if data[:4] != b"RIFF" or data[8:12] != b"WAVE":
        raise SamplesError(
            f"{str(path)!r} is no .wav file: it begins with {data[:12]!r}",
            hint="convert it: ffmpeg -i OLD -c:a pcm_s16le NEW.wav",
        )
    chunks = _find_chunks(path, data)
    if b"fmt " not in chunks or b"data" not in chunks:
        raise SamplesError(
            f"{str(path)!r} has no {'format' if b'fmt ' not in chunks else 'sound'} in it",
            hint="copy or convert it again: ffmpeg -i OLD -c:a pcm_s16le NEW.wav",
        )
    found = _parse_format(path, chunks[b"fmt "])
    size = found.channels * found.bits // 8
    raw = chunks[b"data"]
    if len(raw) < size:
        raise SamplesError(f"{str(path)!r} is empty", hint="remove it, or record it again")
    values = _decode(raw[: len(raw) // size * size], found)
    return Sound(found.rate, np.ascontiguousarray(values.reshape(-1, found.channels).T))


def _find_chunks(path: Path, data: bytes) -> dict[bytes, bytes]:
    """Return the content of the first chunk of each name."""
    chunks: dict[bytes, bytes] = {}
    at = 12
    while at + 8 <= len(data):
        name, (size,) = data[at : at + 4], struct.unpack_from("<I", data, at + 4)
        content = data[at + 8 : at + 8 + size]
        if len(content) < size:
            raise SamplesError(
                f"{str(path)!r} is broken off: its part {name.decode('latin-1')!r} has"
                f" {len(content)} of {size} bytes",
                hint="copy or record it again",
            )
        chunks.setdefault(name, content)
        # Chunks begin at even places.
        at += 8 + size + size % 2
    return chunks


def _parse_format(path: Path, content: bytes) -> _Format:
    try:
        code, channels, rate, _, _, bits = struct.unpack_from("<HHIIHH", content)
        if code == _EXTENSIBLE:
            # The first two bytes of the GUID behind are the code.
            (code,) = struct.unpack_from("<H", content, 24)
    except struct.error as error:
        raise SamplesError(
            f"{str(path)!r} has a broken format: {len(content)} bytes",
            hint="convert it: ffmpeg -i OLD -c:a pcm_s16le NEW.wav",
        ) from error
    if (code, bits) not in _SCALES or not channels or not rate:
        held = _CODES.get(code, f"code {code}")
        name = {_PCM: "PCM", _FLOAT: "floats"}.get(code, held)
        raise SamplesError(
            f"{str(path)!r} holds {name} of {bits} bits, {channels} channels and {rate} Hz",
            hint="convert it to PCM: ffmpeg -i OLD -c:a pcm_s16le NEW.wav",
        )
    return _Format(code, channels, rate, bits)


def _decode(raw: bytes, found: _Format) -> Array:
    """Return values from -1 to 1: float32 ``(N,)``."""
    scale = _SCALES[found.code, found.bits]
    if found.code == _FLOAT:
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


def list_sound_files(folder: Path, limit: int | None = None) -> list[Path]:
    """Return the sounds under a folder, sorted by path; with a limit, evenly spread over them.

    Raises:
        SamplesError: There is no such folder, or no sound in it.
    """
    if not folder.is_dir():
        raise SamplesError(
            f"there is no folder {str(folder)!r}", hint="check 'sounds' in edgepack.yaml"
        )
    files = sorted(p for p in folder.rglob("*") if p.suffix.lower() in SUFFIXES and p.is_file())
    if not files:
        raise SamplesError(
            f"there are no sounds in {str(folder)!r}",
            hint="sounds end in .wav; convert others: ffmpeg -i OLD -c:a pcm_s16le NEW.wav",
        )
    return choose_spread(files, limit)


def read_described_sound(path: Path, described: SoundInput) -> Array:
    """Return the values of a sound that is as the project says: float32 ``(channels, N)``.

    Raises:
        SamplesError: It has another rate or number of channels, or as :func:`read_sound`.
    """
    rate, values = read_sound(path)
    if (rate, len(values)) != (described.rate, described.channels):
        raise SamplesError(
            f"{str(path)!r} has {rate} Hz and {_count(len(values))}, and the input takes"
            f" {described.rate} Hz and {_count(described.channels)}",
            hint=f"convert it: ffmpeg -i OLD.wav -ar {described.rate} -ac {described.channels}"
            " NEW.wav",
        )
    return values


def _count(channels: int) -> str:
    return f"{channels} channel{'' if channels == 1 else 's'}"


def read_sound_samples(
    files: Sequence[Path], folder: Path, spec: TensorSpec, described: SoundInput
) -> Iterator[Sample]:
    """Yield one sample per file: its beginning, filled up with silence.

    Raises:
        SamplesError: As :func:`read_described_sound`.
    """
    for path in files:
        values = read_described_sound(path, described)
        length = described.length or values.shape[1]
        window = np.zeros((len(values), length), np.float32)
        window[:, : values.shape[1]] = values[:, :length]
        yield path.relative_to(folder).as_posix(), {spec.name: _shape(window, spec)}


def read_sound_streams(
    files: Sequence[Path],
    folder: Path,
    spec: TensorSpec,
    described: SoundInput,
    first: Mapping[str, Array],
) -> Iterator[Sample]:
    """Yield the windows of each file in order; each file is a stream.

    Args:
        files: The sounds.
        folder: In which they lie.
        spec: Of the input that takes them.
        described: With ``length``. What is left of a file behind its last window is left out.
        first: What the first window of a file holds beside: the state.

    Raises:
        SamplesError: A file is shorter than a window, or as :func:`read_described_sound`.
    """
    length = described.length or 0
    for path in files:
        values = read_described_sound(path, described)
        if values.shape[1] < length:
            raise SamplesError(
                f"{str(path)!r} has {values.shape[1]} values, and a window has {length}",
                hint="remove it, or give a longer sound",
            )
        begins = range(0, values.shape[1] - length + 1, described.hop or length)
        for number, begin in enumerate(begins):
            window = _shape(values[:, begin : begin + length], spec)
            name = f"{path.relative_to(folder).as_posix()}, window {number}"
            yield name, {spec.name: window, **(first if not number else {})}


def _shape(window: Array, spec: TensorSpec) -> Array:
    """Return a window ``(channels, N)`` as the input takes it."""
    rank = len(spec.shape) if spec.shape is not None else 2
    shape = {1: (window.size,), 2: window.shape}.get(rank, (1, *window.shape))
    if spec.dtype == "int16":
        levels = np.round(window * _SCALES[_PCM, 16]).clip(-32768, 32767)
        return np.asarray(levels.astype(np.int16).reshape(shape))
    return np.asarray(window.reshape(shape).astype(spec.dtype))
