"""``edgepack device verify``: whether what lies on a device is still what was pushed."""

from __future__ import annotations

from typing import Annotated

import typer

from edgepack import api
from edgepack.cli.devices import NameArgument
from edgepack.cli.options import JsonOption


def verify_device(
    name: NameArgument,
    project: Annotated[
        str | None, typer.Argument(help="Only this project [default: all]", show_default=False)
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Hash the bundles on a device, and report what is missing, altered or added."""
    from edgepack.cli.printing import print_json, write_line

    state = api.verify_device(api.load_device(name), project)
    if as_json:
        print_json(state)
    else:
        for found in state.projects:
            for release in found.releases:
                is_current = "  current" if release.name == found.current_release else ""
                wrong = len(release.differences) + release.more
                said = f"{wrong} differ" if wrong else f"{release.files} files as they were pushed"
                write_line(f"{found.name} {release.name}  {said}{is_current}")
            if found.history.lines and found.history.broken_at is None:
                write_line(f"{found.name} history  {found.history.lines} lines, unbroken")
        if not state.projects:
            write_line(f"there is no bundle on {name}")
    state.require_whole()
