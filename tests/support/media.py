"""Videos and sounds that tests write."""

from __future__ import annotations

import struct
from pathlib import Path

import av
import numpy as np

SIZE = (64, 48)
"""Width and height."""


def write_video(
    path: Path, levels: list[int], *, fps: int = 10, codec: str = "mpeg4", sound: bool = False
) -> None:
    """Write frames that are grey all over but for a white left third."""
    width, height = SIZE
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=fps)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        stream.bit_rate = 2_000_000
        if sound:
            container.add_stream("pcm_s16le", rate=8000)
        for level in levels:
            pixels = np.full((height, width, 3), level, np.uint8)
            pixels[:, : width // 3] = 255
            frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
            container.mux(stream.encode(frame))
        container.mux(stream.encode())


def read_level(pixels: np.ndarray) -> float:
    """The grey of a frame that :func:`write_video` wrote."""
    return float(pixels[:, pixels.shape[1] // 2 :].mean())


def write_sound(path: Path, values: np.ndarray, *, rate: int = 16000, kind: str = "s16") -> None:
    """Write values ``(N,)`` or ``(N, channels)``, from -1 to 1, as one of several formats."""
    values = np.atleast_2d(values.T).T
    bits, code = int(kind[1:]), 3 if kind[0] == "f" else 1
    if kind[0] == "f":
        raw = values.astype(f"<f{bits // 8}").tobytes()
    elif bits == 8:
        raw = (np.round(values * 127) + 128).astype(np.uint8).tobytes()
    else:
        whole = np.round(values * (2 ** (bits - 1) - 1)).astype("<i8")
        raw = whole.reshape(-1, 1).view(np.uint8)[:, : bits // 8].tobytes()
    channels = values.shape[1]
    size = channels * bits // 8
    head = struct.pack("<HHIIHH", code, channels, rate, rate * size, size, bits)
    write_chunks(path, {b"fmt ": head, b"LIST": b"odd", b"data": raw})


def write_chunks(path: Path, chunks: dict[bytes, bytes]) -> None:
    """Write a RIFF file of these chunks."""
    path.parent.mkdir(parents=True, exist_ok=True)
    body = b"".join(
        name + struct.pack("<I", len(each)) + each + b"\0" * (len(each) % 2)
        for name, each in chunks.items()
    )
    path.write_bytes(b"RIFF" + struct.pack("<I", len(body) + 4) + b"WAVE" + body)
