"""What a converter is: which files it takes, where it runs, and what it refuses at sight."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from edgepack.converters.environments import Lock, is_installed


def take_any(path: Path) -> None:
    """Accept any file: the framework's own reader decides."""
    del path


@dataclass(frozen=True)
class Converter:
    """One format of models, and what turns it into ONNX.

    The script runs in an environment that has the framework and not edgepack, confined unless it is
    the user's own code.
    """

    name: str
    """As in ``converters`` of edgepack.yaml."""
    words: str
    """For people: what the file is."""
    recognise: Callable[[Path], bool]
    """Whether a file or folder has this format, by its name and first bytes."""
    script: str
    """The module in ``inside`` that converts and runs it."""
    packages: tuple[str, ...]
    """Whose versions decide the result, the first of which must be there."""
    lock: Lock | None
    """The packages that edgepack installs for it; None where only the user's own Python will do."""
    look: Callable[[Path], None] = take_any
    """Look into the file before any framework reads it; raises ModelError for what it must not
    read."""
    opset: int = 18
    """Which opset it writes."""
    readable: tuple[str, ...] = ()
    """What it may read beside the model, by path."""
    own: tuple[str, ...] = ()
    """Packages with which the Python that edgepack runs in will do, before a lock's are installed;
    none where it never does."""
    makes: str = ""
    """What a function of the user's returns to be converted; empty where it takes files only."""

    @property
    def runs_beside(self) -> bool:
        """Whether it runs in the Python that edgepack runs in, which has the packages for it."""
        return bool(self.own) and all(map(is_installed, self.own))
