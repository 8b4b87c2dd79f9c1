"""How a project's model is converted, and what was converted."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from edgepack.base.worker import tell
from edgepack.converters.environments import Environment, find_python
from edgepack.converters.registry import CONVERTERS
from edgepack.converters.running import Inside

FUNCTION = "function"
"""The option that names a function of the user's."""


@dataclass(frozen=True)
class Conversion:
    """How models of one format are converted: settings that steps share."""

    converter: str
    """Its name."""
    environment: tuple[str, ...]
    """What decides the result beside the model: a lock, or packages of the user's Python."""
    python: str = ""
    """The user's own; empty where a lock is installed."""
    confined: bool = True
    """Whether the process gives up network, and files that are not its own."""
    options: tuple[tuple[str, str | int], ...] = ()

    @property
    def function(self) -> str:
        """The user's function that makes the model, ``module:name``; empty where it is a file."""
        return str(dict(self.options).get(FUNCTION, ""))

    def open(self, source: Path) -> Inside:
        """Return the converter in its environment, which is made first if it is not there.

        Raises:
            ToolError: The environment cannot be made.
        """
        converter = CONVERTERS[self.converter]
        own = Environment(None, self.python) if self.python else Environment(converter.lock)
        options = {"opset": converter.opset, **dict(self.options)}
        return Inside(converter, find_python(own, tell), source, options, self.confined)


@dataclass(frozen=True)
class ConvertedModel:
    """What an ONNX model was converted from."""

    source: Path
    digest: str
    """Of the framework's file, or of all files of its folder, or of the file of the function that
    makes the model."""
    conversion: Conversion
    folder: Path
    """Of the conversion's output."""
    folder_digest: str
