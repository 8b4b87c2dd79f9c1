"""Wall clocks that are wrong, for the programs that are given one."""

from __future__ import annotations

import shutil
import struct
import subprocess
from pathlib import Path


class Clocks:
    """What ``clock.c`` compiles to; a file of eight bytes is a clock.

    Args:
        folder: Where the compiled library goes.
    """

    def __init__(self, folder: Path) -> None:
        self._library = folder / "clock.so"
        source = Path(__file__).with_name("clock.c")
        argv = ["cc", "-O2", "-shared", "-fPIC", "-o", str(self._library), str(source), "-ldl"]
        self.possible = shutil.which("cc") is not None
        if self.possible:
            subprocess.run(argv, check=True)

    def make_clock(self, path: Path) -> dict[str, str]:
        """Write a clock that is right, and return what gives it to a program."""
        step_clock(path, 0)
        return {"LD_PRELOAD": str(self._library), "EDGEPACK_FARM_CLOCK": str(path)}


def step_clock(path: Path, seconds: int) -> None:
    """Let a clock be wrong by so much; programs have its bytes mapped, so they stay in place."""
    with path.open("r+b" if path.exists() else "wb") as file:
        file.write(struct.pack("q", seconds))
