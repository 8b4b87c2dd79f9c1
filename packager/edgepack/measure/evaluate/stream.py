"""The answers of a bundle to given samples, from one process on a device."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from edgepack.devices.frames import FrameError, SampleAnswer, encode, read_answer
from edgepack.devices.harness import Harness
from edgepack.devices.transport import CommandResult, Stream
from edgepack.errors import RemoteCommandError, SamplesError
from edgepack.measure.bench.session import AnyHarness
from edgepack.native.harness import NativeHarness
from edgepack.native.serving import native_serving

_PIECE_BYTES = 1 << 17
"""Small samples are sent together, about this many bytes at a time."""

Inputs = Callable[[int], Mapping[str, np.ndarray]]
"""Gives the inputs of a sample by its number."""


class Serving(Protocol):
    """A process on a device that answers samples."""

    @property
    def stream(self) -> Stream:
        """Its pipes."""

    @property
    def name(self) -> str:
        """The device's name."""

    def encode(self, inputs: Mapping[str, np.ndarray]) -> bytes:
        """Return the message that carries a sample."""

    def finish(self, answer: SampleAnswer) -> SampleAnswer:
        """Return the answer of the bundle; they come in the order of the samples."""

    def check(self, result: CommandResult) -> None:
        """Raise RemoteCommandError, with its last words, unless it succeeded."""


@dataclass(frozen=True)
class _PythonServing:
    stream: Stream
    _harness: Harness

    @property
    def name(self) -> str:
        return self._harness.transport.name

    def encode(self, inputs: Mapping[str, np.ndarray]) -> bytes:
        return encode(inputs)

    def finish(self, answer: SampleAnswer) -> SampleAnswer:
        return answer

    def check(self, result: CommandResult) -> None:
        self._harness.check(result)


@contextmanager
def _serving(harness: AnyHarness, variant: str) -> Iterator[Serving]:
    if isinstance(harness, NativeHarness):
        with native_serving(harness, variant) as native:
            yield native
        return
    argv = harness.make_argv("serve", variant)
    with harness.transport.stream(argv, timeout_s=harness.load_timeout_s) as stream:
        yield _PythonServing(stream, harness)


def stream_answers(
    harness: AnyHarness, inputs: Inputs, numbers: Sequence[int], variant: str
) -> Generator[SampleAnswer]:
    """Yield the answer to each sample, in order, from one process on the device.

    A thread sends samples as fast as the device's pipe takes them, so that the next one is there
    before the device needs it. The device runs each sample by itself, as an application does.

    Args:
        harness: Of the bundle.
        inputs: Called in that thread.
        numbers: Which samples.
        variant: The variant.

    Raises:
        SamplesError: A sample does not fit the model.
        RemoteCommandError: The process crashed or hung, or the variant does not work there.
        DeviceError: The connection broke.
    """
    # The process is left first, which ends a write that waits.
    with ThreadPoolExecutor(1) as pool, _serving(harness, variant) as serving:
        sent = pool.submit(_send, serving, inputs, numbers)
        for number in numbers:
            yield _receive(serving, sent, number)
        serving.check(serving.stream.wait())


def _send(serving: Serving, inputs: Inputs, numbers: Sequence[int]) -> None:
    """Send samples, and end the program's stdin with the last, or with what went wrong."""
    waiting: list[bytes] = []
    try:
        for number in numbers:
            waiting.append(serving.encode(inputs(number)))
            if sum(map(len, waiting)) >= _PIECE_BYTES:
                serving.stream.write(b"".join(waiting))
                waiting.clear()
        serving.stream.write(b"".join(waiting))
    finally:
        serving.stream.close_stdin()


def _receive(serving: Serving, sent: Future[None], number: int) -> SampleAnswer:
    stream = serving.stream
    try:
        answer = read_answer(stream.read)
    except FrameError as error:
        serving.check(stream.wait())
        # Waiting ends the program's stdin: a sample that could not be sent is a result of this.
        with contextlib.suppress(RemoteCommandError):
            sent.result()
        raise RemoteCommandError(
            f"the harness answered sample {number} with something else: {error}",
            hint="see whether something on the device prints to stdout when Python starts",
            where=serving.name,
        ) from error
    if answer.error:
        raise SamplesError(
            f"the device refused sample {number}: {answer.error}",
            hint="use the samples that the project names under 'evaluation'",
        )
    return serving.finish(answer)
