"""What a converter is: which files it takes, where it runs, and what it refuses at sight."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from edgepack.converters.environments import Lock, is_installed

TREES, TABLES, NETS, LOOSE_NETS = 1e-5, 5e-5, 1e-4, 1e-3
"""How far a value may be from the framework's, in parts of the largest one of its output.

Each is some times what was seen of right conversions. Trees add float32 leaves, each rounded by at
most 6e-8 of itself (IEEE 754): 1e-7 to 2.8e-6 (800 trees, their sum's exponential). What takes the
mean off features loses more: PCA 1.4e-5 where it is 200 times the spread. Kernels of nets add
products in another order, layer after layer: 5e-7 of small nets of Keras, below 1e-4 of PyTorch's,
3e-4 of TensorFlow Lite's with float16 weights.
"""


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
    tolerance: float
    """How far a value of the ONNX model may be from the framework's, in parts of the largest one of
    its output."""
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
