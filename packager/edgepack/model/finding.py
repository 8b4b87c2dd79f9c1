"""Findings of a backend, or of ONNX itself, about a model."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Finding:
    """One problem of a model, or a note about it."""

    backend: str
    """A backend's name, or ``onnx`` for findings that apply everywhere."""
    severity: Literal["blocks", "falls-back", "note"]
    node: str
    """The node it is about; empty where it is about the model."""
    reason: str
    remedy: str


def group_findings(findings: Iterable[Finding]) -> list[list[Finding]]:
    """Return findings grouped by what they say, in the order of their first.

    Findings belong to one group if their reasons differ only in quoted names, shapes and numbers.
    """
    groups: dict[tuple[str, str, str, str], list[Finding]] = {}
    for found in findings:
        said = re.sub(r"'[^']*'|\[[^]]*\]|\d+", "_", found.reason)
        key = (found.backend, found.severity, said, found.remedy)
        groups.setdefault(key, []).append(found)
    return [*groups.values()]
