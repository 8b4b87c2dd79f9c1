"""What a device has answered so far in an evaluation, on this machine's disk.

A file has the answers of one evaluation as they came, one message after the other. It is deleted
when the evaluation is done.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import BinaryIO, Self

from edgepack.base.files import writing
from edgepack.devices.frames import FrameError, SampleAnswer, encode, read_answer

_NO_CACHE = "free some space, or point XDG_CACHE_HOME to a folder that can be written"
_LOOK_S = 0.01
"""Seconds between a reader's looks for more answers."""


class KeptAnswers:
    """The answers of one evaluation; a context manager, after which the file stays.

    Args:
        key: The digest of everything that decides the answers.
        resume: Keep what an earlier evaluation with the same key received, and drop it otherwise.

    Raises:
        ToolError: The cache cannot be written.
    """

    def __init__(self, key: Mapping[str, object], *, resume: bool) -> None:
        from platformdirs import user_cache_path

        digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()
        self.path = user_cache_path("edgepack") / "evaluations" / digest[:32] / "answers"
        self.inference_ns: list[int] = []
        """Of each answer that is kept."""
        self.on_growth: Callable[[], None] = lambda: None
        """Called after each that is added."""
        with writing("the device's answers", self.path, _NO_CACHE):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if not resume:
                self.path.unlink(missing_ok=True)
            self._file = self.path.open("ab+")
            self._drop_torn_end()

    def __len__(self) -> int:
        return len(self.inference_ns)

    def _drop_torn_end(self) -> None:
        self._file.seek(0)
        whole = 0
        try:
            while True:
                self.inference_ns.append(read_answer(self._file.read).ns)
                whole = self._file.tell()
        except FrameError:
            self._file.truncate(whole)

    def add(self, answer: SampleAnswer) -> None:
        """Keep one more answer; :func:`read_as_they_come` sees it at once.

        Raises:
            ToolError: The disk is full.
        """
        with writing("the device's answers", self.path, _NO_CACHE):
            self._file.write(encode(answer.outputs, ns=answer.ns))
            self._file.flush()
        self.inference_ns.append(answer.ns)
        self.on_growth()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def drop(self) -> None:
        """Remove the file: the evaluation is done."""
        shutil.rmtree(self.path.parent, ignore_errors=True)


def read_as_they_come(path: Path, count: int) -> Iterator[SampleAnswer]:
    """Yield ``count`` answers of a file to which another process adds them, waiting for each.

    It waits forever: the caller has to end the process if answers never come.
    """
    with path.open("rb") as file:
        read = partial(_wait_for_bytes, file)
        for _ in range(count):
            yield read_answer(read)


def _wait_for_bytes(file: BinaryIO, size: int) -> bytes:
    data = file.read(size)
    while len(data) < size:
        time.sleep(_LOOK_S)
        data += file.read(size - len(data))
    return data
