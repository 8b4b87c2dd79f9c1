"""The outputs of a bundle for given samples, from one process on a device."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from edgepack.bench.frames import Arrays, FrameError, encode, read_answer
from edgepack.bench.harness import Harness
from edgepack.devices.transport import Stream
from edgepack.errors import RemoteCommandError, SamplesError


def stream_outputs(
    harness: Harness, samples: Iterable[Mapping[str, np.ndarray]], variant: str | None
) -> Iterator[Arrays]:
    """Yield the outputs for each sample from one process on the device.

    Raises:
        SamplesError: A sample does not fit the model.
        RemoteCommandError: The process crashed or hung, or no variant works there.
    """
    argv = harness.argv("serve", variant)
    with harness.transport.stream(argv, timeout_s=harness.load_timeout_s) as stream:
        for index, sample in enumerate(samples):
            yield _infer(harness, stream, index, sample)
        stream.close_stdin()
        harness.check(stream.wait())


def _infer(
    harness: Harness, stream: Stream, index: int, sample: Mapping[str, np.ndarray]
) -> Arrays:
    stream.write(encode(sample))
    try:
        answer = read_answer(stream.read)
    except FrameError as error:
        harness.check(stream.wait())
        raise RemoteCommandError(
            f"the harness answered sample {index} with something else: {error}",
            hint="see whether something on the device prints to stdout when Python starts",
            where=harness.transport.name,
        ) from error
    if answer.error:
        raise SamplesError(
            f"the device refused sample {index}: {answer.error}",
            hint="use the samples that the project names under 'evaluation'",
        )
    return answer.outputs
