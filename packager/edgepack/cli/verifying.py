"""``edgepack device verify``: whether what lies on a device is still what was pushed."""

from __future__ import annotations

from typing import Annotated

import typer

from edgepack import api
from edgepack.cli.options import JsonOption
from edgepack.cli.rollouts import ParallelOption
from edgepack.cli.several import NamesArgument, do_on_chosen


def verify_device(
    names: NamesArgument,
    project: Annotated[
        str | None, typer.Option(help="Only this project [default: all]", show_default=False)
    ] = None,
    parallel: ParallelOption = 16,
    as_json: JsonOption = False,
) -> None:
    """Hash the bundles on a device, and report what is missing, altered or added."""
    do_on_chosen(
        names,
        lambda device, _progress: api.verify_device(device, project),
        show=_print_state,
        summarize=lambda state: "; ".join(map(_format_project, state.projects)) or "no bundle",
        judge=api.DeviceState.require_whole,
        settings=api.RolloutSettings(parallel=parallel),
        as_json=as_json,
    )


def _print_state(state: api.DeviceState) -> None:
    from edgepack.cli.printing import write_line

    for found in state.projects:
        for release in found.releases:
            is_current = "  current" if release.name == found.current_release else ""
            wrong = len(release.differences) + release.more
            said = f"{wrong} differ" if wrong else f"{release.files} files as they were pushed"
            write_line(f"{found.name} {release.name}  {said}{is_current}")
        if found.history.lines and found.history.broken_at is None:
            write_line(f"{found.name} history  {found.history.lines} lines, unbroken")
    if not state.projects:
        write_line(f"there is no bundle on {state.device}")


def _format_project(found: api.ProjectState) -> str:
    wrong = sum(len(release.differences) + release.more for release in found.releases)
    said = f"{wrong} files differ" if wrong else "as it was pushed"
    return f"{found.name} {found.current_release or 'without a current release'}: {said}"
