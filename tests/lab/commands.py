"""Runs ``edgepack`` commands, one for each board at a time, and passes on what they say."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from edgepack.base.processes import start_program

from tests.lab.host import LabError

EDGEPACK = str(Path(sys.executable).with_name("edgepack"))
"""The installed command, of the interpreter that runs this."""
INTERRUPTED_S = 15.0
"""How long an interrupted command may take to end what it started; then it is killed."""


def say(text: str) -> None:
    """Print one line at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


@dataclass(frozen=True)
class Finished:
    """A command that has ended."""

    exit_code: int
    stdout: str
    stderr: str
    seconds: float

    def document(self) -> Any:
        """Return the JSON document that it printed.

        Raises:
            LabError: It printed none.
        """
        try:
            return json.loads(self.stdout)
        except ValueError as error:
            said = self.stderr.strip().splitlines()[-5:]
            raise LabError(
                f"no document, exit code {self.exit_code}: {' | '.join(said)}"
            ) from error


class Command:
    """An ``edgepack`` command that runs, in a process group of its own."""

    def __init__(self, name: str, argv: Sequence[str]) -> None:
        self._name = name
        self._started = time.monotonic()
        self._out: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  (closed by close)
        self._err: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  (closed by close)
        self._said = 0
        self._child = start_program(
            [EDGEPACK, *argv],
            stdin=subprocess.DEVNULL,
            stdout=self._out.fileno(),
            stderr=self._err.fileno(),
        )

    @property
    def runs(self) -> bool:
        """Whether it has not ended yet."""
        return self._child.poll() is None

    def pass_on(self) -> None:
        """Print the whole lines of its stderr that have come since the last call."""
        text = _content(self._err)
        lines = text[self._said :].splitlines(keepends=True)
        for line in lines:
            if line.endswith("\n") or not self.runs:
                say(f"      {self._name} | {line.rstrip()}")
                self._said += len(line)

    def finished(self) -> Finished:
        """Return how it ended."""
        seconds = time.monotonic() - self._started
        return Finished(self._child.wait(), _content(self._out), _content(self._err), seconds)

    def kill(self) -> None:
        """Kill it without a chance to clean up, as a power cut of the host would."""
        os.killpg(self._child.pid, signal.SIGKILL)
        self._child.wait()

    def close(self) -> None:
        """Interrupt it if it still runs, and kill it if that does not end it."""
        with contextlib.suppress(ProcessLookupError):
            if self.runs:
                self._child.send_signal(signal.SIGINT)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._child.wait(INTERRUPTED_S)
            if self.runs:
                self.kill()
        self._out.close()
        self._err.close()


def _content(file: IO[bytes]) -> str:
    size = os.fstat(file.fileno()).st_size
    return os.pread(file.fileno(), size, 0).decode("utf-8", "replace")


@contextlib.contextmanager
def started(name: str, argv: Sequence[str]):
    """Hold a command that runs; it is ended with the block."""
    command = Command(name, argv)
    try:
        yield command
    finally:
        command.close()


def run_each(
    commands: Mapping[str, Sequence[str]], *, timeout_s: float, show: bool = True
) -> dict[str, Finished]:
    """Run commands side by side to their end, whatever their exit codes.

    ``show`` passes their stderr on as it comes.

    Raises:
        LabError: One took too long; all have been ended.
    """
    deadline = time.monotonic() + timeout_s
    done: dict[str, Finished] = {}
    with contextlib.ExitStack() as stack:
        running = {
            name: stack.enter_context(started(name, argv)) for name, argv in commands.items()
        }
        while running:
            for name, command in list(running.items()):
                ended = not command.runs
                if show:
                    command.pass_on()
                if ended:
                    done[name] = running.pop(name).finished()
            if time.monotonic() > deadline:
                raise LabError(f"{', '.join(running)}: longer than {timeout_s:g} s: {commands}")
            time.sleep(0.1)
    return done


def run_one(argv: Sequence[str], *, timeout_s: float) -> Finished:
    """Run one command on this machine to its end."""
    return run_each({"here": argv}, timeout_s=timeout_s)["here"]
