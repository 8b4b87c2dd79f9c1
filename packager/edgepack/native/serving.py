"""Sends samples to the measuring program on a board, and makes its answers those of the bundle."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import numpy as np

from edgepack.devices.frames import Arrays, SampleAnswer
from edgepack.devices.transport import CommandResult, Stream
from edgepack.errors import SamplesError
from edgepack.native.board import Board
from edgepack.native.harness import NativeHarness
from edgepack.native.plans import Planner
from edgepack.native.program import limit_arguments


@dataclass
class NativeServing:
    """The program while it answers samples."""

    stream: Stream
    name: str
    """The device's."""
    _planner: Planner
    _cuts: deque[Callable[[Arrays], Arrays]] = field(default_factory=deque)
    """Of the samples that were sent and not answered yet."""

    def encode(self, inputs: Mapping[str, np.ndarray]) -> bytes:
        """Return the message that carries a sample, padded to the size of a model.

        Raises:
            SamplesError: No model of the variant takes it.
        """
        try:
            sent, cut = self._planner.place_sample(dict(inputs))
        except ValueError as error:
            raise SamplesError(
                f"the variant takes no such sample: {error}",
                hint="use the samples that the project names under 'evaluation'",
            ) from error
        self._cuts.append(cut)
        return sent

    def finish(self, answer: SampleAnswer) -> SampleAnswer:
        """Return an answer without what was padded. They come in the order of the samples."""
        cut = self._cuts.popleft()
        return answer if answer.error else replace(answer, outputs=cut(answer.outputs))

    def check(self, result: CommandResult) -> None:
        """Raise RemoteCommandError, with the program's last words, unless it succeeded."""
        hint = "its last lines are above; exit code 137 often means out of memory"
        result.check("the measuring program", device=self.name, hint=hint)


@contextmanager
def native_serving(harness: NativeHarness, variant: str) -> Iterator[NativeServing]:
    """Start the program on a board for samples of a variant.

    It ends with its stdin, or once a sample takes longer than loading may.

    Raises:
        DeviceError: The connection broke.
        RemoteCommandError: The plan cannot be put there.
    """
    board = harness.device
    if not isinstance(board, Board):
        raise TypeError(f"{board.name} is no board")
    planner = harness.make_planner(harness.bundle.manifest.find_variant(variant))
    board.send_plan(planner.plan_goldens())
    argv = board.run_in_release(
        board.make_command(limit_arguments(["serve"], harness.load_timeout_s))
    )
    streaming = harness.transport.stream(argv, timeout_s=harness.load_timeout_s, supervised=False)
    with streaming as stream:
        yield NativeServing(stream, board.name, planner)
