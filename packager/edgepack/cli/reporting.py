"""``edgepack report``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from edgepack import api
from edgepack.cli.history import open_store
from edgepack.cli.options import ResultsOption


def report(
    runs: Annotated[
        list[str] | None,
        typer.Argument(metavar="[RUN]...", help="Ids of runs [default: the newest]"),
    ] = None,
    html: Annotated[Path, typer.Option(help="The file to write.")] = Path("report.html"),
    project: Annotated[str | None, typer.Option(help="Only of this project.")] = None,
    target: Annotated[str | None, typer.Option(help="Only for this target.")] = None,
    device: Annotated[str | None, typer.Option(help="Only on this device.")] = None,
    last: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="How many of the newest runs [default: 100, and the newest of each device and"
            " variant]",
            show_default=False,
        ),
    ] = None,
    results: ResultsOption = None,
) -> None:
    """Write one HTML page about stored runs; the page needs no network."""
    from edgepack.cli.printing import write_line
    from edgepack.errors import UsageError

    if runs and (project or target or device):
        raise UsageError(
            "runs are named by their ids or chosen by --project, --target and --device",
            hint="leave one of them out",
        )
    wanted = api.RunFilter(project=project, target=target, device=device)
    tags = {name: device.entry.tags for name, device in api.load_devices().items()}
    page = api.report(
        html, open_store(results), runs=runs or (), wanted=wanted, last=last, tags=tags
    )
    more = page.found - page.shown
    left_out = f", the newest {page.shown} of {page.found} runs: --last shows more" if more else ""
    write_line(f"{page.path}{left_out}")
