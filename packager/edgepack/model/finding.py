"""What a backend, or ONNX itself, has to say about a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Finding:
    """One thing that stands in a model's way, or is worth knowing."""

    backend: str
    """A backend's name, or ``onnx`` for what holds everywhere."""
    severity: Literal["blocks", "falls-back", "note"]
    node: str
    """The node it is about; empty where it is about the model."""
    reason: str
    remedy: str
