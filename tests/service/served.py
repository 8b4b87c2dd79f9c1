"""The bundle that is served: the example, with ``--service``."""

from __future__ import annotations

import functools
from pathlib import Path

from edgepack import api
from edgepack.base.processes import run_program
from edgepack.base.resources import find_example_dir
from edgepack.errors import ToolError

KEPT = Path(__file__).resolve().parents[2] / ".service"
"""What is made or fetched once; git ignores it."""
TARGET = "linux-x86-64"


@functools.cache
def make_bundle() -> Path:
    """Build it and return its folder."""
    result = api.build(
        project=find_example_dir() / "edgepack.yaml",
        targets=[TARGET],
        out=KEPT / "dist",
        service=True,
    )
    result.require_all()
    return result.bundles[0].bundle.path


def run_checked(argv: list[str], timeout_s: float = 300.0) -> str:
    """Run a program and return its stdout.

    Raises:
        ToolError: It failed, with what it said.
    """
    done = run_program(argv, timeout_s=timeout_s)
    if done.exit_code:
        raise ToolError(f"{' '.join(argv)}:{done.last_lines}", hint="mend what it names")
    return done.text
