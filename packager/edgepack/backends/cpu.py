"""onnxruntime's CPU execution provider: it takes every operator that onnxruntime has."""

from __future__ import annotations

from pathlib import Path

from edgepack.errors import ModelError
from edgepack.model.finding import Finding
from edgepack.model.running import make_session

NAME = "cpu"
PROVIDERS = frozenset({"CPUExecutionProvider"})
RECIPES = frozenset({"fp32", "int8-static"})


def check(model: Path) -> list[Finding]:
    """Return a blocking finding if no CPU session can be made, else nothing."""
    try:
        make_session(model)
    except ModelError as error:
        return [Finding(NAME, "blocks", "", error.problem, error.hint)]
    return []
