"""Options that several commands share."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edgepack import api
from edgepack.errors import UsageError

if TYPE_CHECKING:
    from datetime import datetime


def complete_targets(incomplete: str) -> list[str]:
    """Return target ids for tab completion."""
    return [
        name for name in ["all", "host", *api.find_target_files()] if name.startswith(incomplete)
    ]


def complete_selection(incomplete: str) -> list[str]:
    """Return what chooses devices, for tab completion; nothing if the inventory is wrong."""
    from edgepack.errors import EdgepackError

    try:
        return api.complete_selection(incomplete)
    except EdgepackError:
        return []


def parse_moment(since: str) -> datetime:
    """Return what ``--since`` was given.

    Raises:
        UsageError: It is no time.
    """
    try:
        return api.parse_moment(since)
    except ValueError as error:
        raise UsageError(
            f"{since!r} is no date",
            hint="write it as 2026-11-21 or 2026-11-21T09:30",
            where="--since",
        ) from error


ModelArgument = Annotated[
    Path | None,
    typer.Argument(help="The ONNX model [default: that of edgepack.yaml]", show_default=False),
]
ProjectOption = Annotated[
    Path | None, typer.Option(help="The project file [default: edgepack.yaml here]")
]
TargetOption = Annotated[
    list[str] | None,
    typer.Option(
        help="A target's id, 'host' or 'all'; repeat for more.", autocompletion=complete_targets
    ),
]
BundleArgument = Annotated[Path, typer.Argument(help="A bundle's folder.", show_default=False)]
VariantOption = Annotated[
    str | None, typer.Option(help="Only this variant, whatever the loader would choose.")
]
WaitOption = Annotated[
    float,
    typer.Option(
        "--wait", min=0, metavar="SECONDS", help="How long to wait while others hold the device."
    ),
]
TuneOption = Annotated[
    bool,
    typer.Option(
        "--tune", help="Hold the device's clocks at their highest, and restore them afterwards."
    ),
]
PythonOption = Annotated[
    str | None,
    typer.Option(
        "--python",
        metavar="PATH",
        help="A Python with the model's framework [default: an environment of edgepack's own]",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]
VerboseOption = Annotated[
    bool, typer.Option("--verbose", "-v", help="Also show what was tried to keep accuracy.")
]
ResultsOption = Annotated[
    str | None,
    typer.Option(
        "--results",
        metavar="URL",
        help="The results store [default: EDGEPACK_RESULTS, else a file in your home]",
        show_default=False,
    ),
]


_SECONDS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}


def parse_seconds(text: str, option: str) -> float:
    """Return a time that the user wrote, in seconds.

    Raises:
        UsageError: It is no time; the error names the option.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text.strip())
    if found is None or not float(found[1]):
        raise UsageError(f"{text!r} is no time", hint="write 90s, 10m or 1h", where=option)
    return float(found[1]) * _SECONDS[found[2]]
