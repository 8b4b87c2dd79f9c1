"""What a backend, or ONNX itself, has to say about a model."""

from __future__ import annotations

import re
from collections.abc import Iterable
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


def group_findings(findings: Iterable[Finding]) -> list[list[Finding]]:
    """Return findings grouped by what they say, in the order of their first.

    Alike are those whose reasons differ in nothing but quoted names, shapes and numbers.
    """
    groups: dict[tuple[str, str, str, str], list[Finding]] = {}
    for found in findings:
        said = re.sub(r"'[^']*'|\[[^]]*\]|\d+", "_", found.reason)
        key = (found.backend, found.severity, said, found.remedy)
        groups.setdefault(key, []).append(found)
    return [*groups.values()]
