"""Steps that a test holds, ends or breaks while a worker of a cluster is at them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from edgepack.base.worker import report, tell
from edgepack.errors import ModelError
from edgepack.steps.base import Notes


@dataclass(frozen=True)
class Held:
    """Writes its worker's process id into a folder, and ends when the file ``go`` is there."""

    name: ClassVar[str] = "prepared"
    libraries: ClassVar[tuple[str, ...]] = ()
    cacheable = True
    folder: str
    number: int = 0

    def check(self, inputs: Mapping[str, Path]) -> None:
        pass

    def run(self, inputs: Mapping[str, Path], out: Path) -> Notes:
        place = Path(self.folder)
        (place / f"{os.getppid()}.pid").write_text("")
        report(1, 2)
        tell("held")
        end = time.monotonic() + 120
        while not (place / "go").exists() and time.monotonic() < end:
            time.sleep(0.02)
        taken = "".join(sorted((path / "out.txt").read_text() for path in inputs.values()))
        (out / "out.txt").write_text(f"{taken}{self.number}")
        (out / "env.txt").write_text(os.environ.get("ORT_DISABLE_TELEMETRY", ""))
        return Notes("held")

    def verify(self, inputs: Mapping[str, Path], out: Path) -> None:
        pass


class Refusing(Held):
    """Refuses its model."""

    def check(self, inputs: Mapping[str, Path]) -> None:
        raise ModelError("there is a Loop", hint="leave Loops out", where="model.onnx")


class Deadly(Held):
    """Ends the worker that is at it."""

    def run(self, inputs: Mapping[str, Path], out: Path) -> Notes:
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(60)
        return Notes("")
