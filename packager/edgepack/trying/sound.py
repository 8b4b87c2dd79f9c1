"""Sound files to rows of samples: PCM of 16 bits, mixed to one channel."""

from __future__ import annotations

import wave
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from edgepack.errors import SamplesError

_FULL_SCALE = 32768.0
_CONVERT = "convert it: ffmpeg -i SOUND -ac 1 -ar RATE -c:a pcm_s16le sound.wav"


@dataclass(frozen=True)
class Sound:
    """What a sound file holds."""

    samples: np.ndarray[Any, Any]
    """float32 ``(N,)``, -1 to 1: the mean of the channels."""
    rate_hz: int
    channels: int

    @property
    def words(self) -> str:
        """Rate, channels and length, for people."""
        channels = "1 channel" if self.channels == 1 else f"{self.channels} channels, mixed to one"
        length_s = len(self.samples) / self.rate_hz
        return f"{self.rate_hz} Hz, {channels}, {length_s:.3g} s"

    def fit_to(self, shape: Sequence[int | str]) -> tuple[np.ndarray[Any, Any], str]:
        """Return the samples as an input takes them, and what was done to them for that.

        Args:
            shape: Of the input: a row of samples, as :func:`is_row` tells.

        Returns:
            float32 with the rank of ``shape``. Where its last axis is fixed, the beginning is
            taken, or zeros are put behind.
        """
        row, size = self.samples, shape[-1]
        said = ""
        if isinstance(size, int) and size != len(row):
            length = f"{size} samples ({size / self.rate_hz:.3g} s)"
            cut = f"the input takes the first {length} of {len(row)}"
            filled = f"the input has {length}: {size - len(row)} zeros are put behind"
            said = cut if size < len(row) else filled
            row = np.pad(row[:size], (0, max(0, size - len(row))))
        return row.reshape([1] * (len(shape) - 1) + [-1]), said


def is_row(dtype: str, shape: Sequence[int | str]) -> bool:
    """Return whether an input is one row of samples: ``(N,)``, ``(1, N)`` or ``(1, 1, N)``."""
    before = all(size == 1 or isinstance(size, str) for size in shape[:-1])
    return dtype.startswith("float") and 1 <= len(shape) <= 3 and before and shape[-1] != 1


def read_sound(path: Path) -> Sound:
    """Return a WAV file's samples.

    Raises:
        SamplesError: It is no whole WAV file of 16-bit PCM.
    """
    try:
        with wave.open(str(path), "rb") as file:
            bits, channels = 8 * file.getsampwidth(), file.getnchannels()
            rate_hz, data = file.getframerate(), file.readframes(file.getnframes())
    except (OSError, EOFError, wave.Error) as error:
        raise SamplesError(
            f"cannot read {str(path)!r} as WAV with PCM: {str(error) or 'it ends too early'}",
            hint=_CONVERT,
        ) from error
    if bits != 16:
        raise SamplesError(f"{str(path)!r} has {bits} bits a sample, not 16", hint=_CONVERT)
    whole = len(data) // (2 * channels)
    if not whole or not rate_hz:
        raise SamplesError(f"{str(path)!r} holds no sound", hint="record it again")
    values = np.frombuffer(data, "<i2", whole * channels).reshape(whole, channels)
    mixed = (values.astype(np.float64).mean(axis=1) / _FULL_SCALE).astype(np.float32)
    return Sound(mixed, rate_hz, channels)
