"""Runs the tools of fleet managers that write their packages."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from edgepack.base.processes import run_program
from edgepack.errors import ToolError

_WRITE_S = 600.0


def run_tool(argv: Sequence[str]) -> None:
    """Run a tool that writes a package.

    Raises:
        ToolError: It is missing, failed or took longer than ten minutes.
    """
    done = run_program(argv, timeout_s=_WRITE_S)
    if done.exit_code:
        said = f"{done.text.strip()}{done.last_lines}"
        raise ToolError(
            f"{Path(argv[0]).name} failed with the code {done.exit_code}: {said}",
            hint="read what it says above; docs/fleets.md has the versions that were tried",
        )
