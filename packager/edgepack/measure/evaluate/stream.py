"""The answers of a bundle to given samples, from one process on a device."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from edgepack.devices.frames import FrameError, SampleAnswer, encode, read_answer
from edgepack.devices.harness import Harness
from edgepack.devices.transport import Stream
from edgepack.errors import RemoteCommandError, SamplesError

_PIECE_BYTES = 1 << 17
"""Small samples are sent together, about this many bytes at a time."""

Inputs = Callable[[int], Mapping[str, np.ndarray]]
"""Gives the inputs of a sample by its number."""


def stream_answers(
    harness: Harness, inputs: Inputs, numbers: Sequence[int], variant: str | None
) -> Generator[SampleAnswer]:
    """Yield the answer to each sample, in order, from one process on the device.

    A thread sends samples as fast as the device's pipe takes them, so that the next one is there
    before the device needs it. The device runs each sample by itself, as an application does.

    Args:
        harness: Of the bundle.
        inputs: Called in that thread.
        numbers: Which samples.
        variant: This one, or None for the first that works.

    Raises:
        SamplesError: A sample does not fit the model.
        RemoteCommandError: The process crashed or hung, or no variant works there.
        DeviceError: The connection broke.
    """
    argv = harness.make_argv("serve", variant)
    # The stream is left first, which ends a write that waits.
    with (
        ThreadPoolExecutor(1) as pool,
        harness.transport.stream(argv, timeout_s=harness.load_timeout_s) as stream,
    ):
        sent = pool.submit(_send, stream, inputs, numbers)
        for number in numbers:
            yield _receive(harness, stream, sent, number)
        harness.check(stream.wait())


def _send(stream: Stream, inputs: Inputs, numbers: Sequence[int]) -> None:
    """Send samples, and end the program's stdin with the last, or with what went wrong."""
    waiting: list[bytes] = []
    try:
        for number in numbers:
            waiting.append(encode(inputs(number)))
            if sum(map(len, waiting)) >= _PIECE_BYTES:
                stream.write(b"".join(waiting))
                waiting.clear()
        stream.write(b"".join(waiting))
    finally:
        stream.close_stdin()


def _receive(harness: Harness, stream: Stream, sent: Future[None], number: int) -> SampleAnswer:
    try:
        answer = read_answer(stream.read)
    except FrameError as error:
        harness.check(stream.wait())
        # Waiting ends the program's stdin: a sample that could not be sent is a result of this.
        with contextlib.suppress(RemoteCommandError):
            sent.result()
        raise RemoteCommandError(
            f"the harness answered sample {number} with something else: {error}",
            hint="see whether something on the device prints to stdout when Python starts",
            where=harness.transport.name,
        ) from error
    if answer.error:
        raise SamplesError(
            f"the device refused sample {number}: {answer.error}",
            hint="use the samples that the project names under 'evaluation'",
        )
    return answer
