"""Frames of video files, upright and in order, as pictures.

PyAV decodes (``edgepack[video]``): it has FFmpeg's libraries in its wheels, gives each frame with
its time, and raises where a file is broken.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from edgepack.base.arrays import Array
from edgepack.errors import SamplesError, ToolError

if TYPE_CHECKING:
    from types import ModuleType

SUFFIXES = frozenset({".avi", ".m4v", ".mkv", ".mov", ".mp4", ".mpg", ".ts", ".webm"})
_MICROSECONDS = 1e6
_SLACK_S = 1.0
"""By how much a file may end before the end that it names."""


@dataclass(frozen=True)
class FrameChoice:
    """Which frames of a video are taken."""

    every: int | None = None
    """One of so many, the first included."""
    fps: float | None = None
    """So many a second of the video's own time: the first at or after each moment."""

    def choose(self, frames: Iterator[tuple[float, Array]]) -> Iterator[tuple[int, Array]]:
        """Yield the number and pixels of those that are taken."""
        begin, due = None, 0
        for number, (time, pixels) in enumerate(frames):
            begin = time if begin is None else begin
            if self.fps is not None:
                moment = (time - begin + _TICK_S) * self.fps
                if moment < due:
                    continue
                due = int(moment) + 1
            elif number % (self.every or 1):
                continue
            yield number, pixels


_TICK_S = 1e-3
"""To which Matroska rounds times."""
ALL = FrameChoice()
"""All frames."""


def list_videos(path: Path) -> list[Path]:
    """Return a video, or the videos under a folder, sorted by path.

    Raises:
        SamplesError: There is none.
    """
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise SamplesError(
            f"there is no video {str(path)!r}", hint="check 'video' in edgepack.yaml"
        )
    found = sorted(p for p in path.rglob("*") if p.suffix.lower() in SUFFIXES and p.is_file())
    if not found:
        raise SamplesError(
            f"there are no videos in {str(path)!r}",
            hint=f"videos end in {', '.join(sorted(SUFFIXES))}",
        )
    return found


def import_decoder() -> ModuleType:
    """Return PyAV.

    Raises:
        ToolError: It is not installed.
    """
    try:
        import av
    except ImportError as error:
        raise ToolError(
            "samples from a video need PyAV, which is not installed",
            hint="pip install 'edgepack[video]', or give the frames as a folder of images",
        ) from error
    return av


def read_frames(path: Path, choice: FrameChoice = ALL) -> Iterator[tuple[int, Array]]:
    """Yield the number and pixels of frames: uint8 ``(H, W, 3)``, RGB, upright.

    Raises:
        SamplesError: The file is no video, is empty or broken, or ends before its end.
        ToolError: PyAV is not installed.
    """
    av = import_decoder()
    try:
        with av.open(str(path)) as container:
            if not container.streams.video:
                raise SamplesError(
                    f"{str(path)!r} has no picture, only {_list_streams(container)}",
                    hint="give a video, or sounds as a folder of .wav files",
                )
            yield from choice.choose(_decode(path, container))
    except av.FFmpegError as error:
        raise SamplesError(
            f"cannot decode {str(path)!r}: {error.strerror}",
            hint="play it, or convert it anew: ffmpeg -i OLD.mp4 NEW.mp4",
        ) from error


def _list_streams(container: Any) -> str:  # noqa: ANN401  (PyAV's)
    return " and ".join(sorted({stream.type for stream in container.streams})) or "nothing"


def _decode(path: Path, container: Any) -> Iterator[tuple[float, Array]]:  # noqa: ANN401
    """Yield the time and pixels of all frames; the end is that of the file only if it is whole."""
    stream = container.streams.video[0]
    stream.thread_type = "AUTO"
    rate = float(stream.average_rate or 0) or 1.0
    number, end = 0, 0.0
    for number, frame in enumerate(container.decode(stream), 1):
        time = (number - 1) / rate if frame.time is None else float(frame.time)
        end = max(end, time + 1 / rate)
        turns = round(frame.rotation / 90)
        yield time, np.ascontiguousarray(np.rot90(frame.to_ndarray(format="rgb24"), turns))
    if not number:
        raise SamplesError(f"{str(path)!r} has no frame", hint="play it, or give another video")
    wanted = _find_end(container, stream)
    if end < wanted - _SLACK_S and end < wanted * 0.95:
        raise SamplesError(
            f"{str(path)!r} ends after {end:.4g} s of {wanted:.4g} s: it is broken off",
            hint="copy it again, or convert what is there: ffmpeg -i OLD.mp4 NEW.mp4",
        )


def _find_end(container: Any, stream: Any) -> float:  # noqa: ANN401  (PyAV's)
    """Return the time in seconds at which frames end, as far as the file says; else 0."""
    begin = float((stream.start_time or 0) * stream.time_base)
    if stream.duration is not None:
        return begin + float(stream.duration * stream.time_base)
    # Another stream may be longer.
    alone = len(container.streams) == 1 and container.duration
    return float(container.duration / _MICROSECONDS) if alone else 0.0


def count_frames(videos: Sequence[Path], choice: FrameChoice) -> int:
    """Return how many frames are taken of all videos together.

    Raises:
        SamplesError: As :func:`read_frames`.
    """
    return sum(1 for path in videos for _ in read_frames(path, choice))
