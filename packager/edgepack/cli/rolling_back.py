"""``edgepack rollback``."""

from __future__ import annotations

from typing import Annotated

import typer

from edgepack.cli.options import DeviceOption, JsonOption, WaitOption


def rollback(
    project: Annotated[str, typer.Argument(help="The project's name, as in edgepack.yaml.")],
    device: DeviceOption,
    to: Annotated[
        str | None, typer.Option(help="The release, 16 hex digits [default: the one before]")
    ] = None,
    wait_s: WaitOption = 0.0,
    as_json: JsonOption = False,
) -> None:
    """Make the release before the current one current again on a device; nothing is sent."""
    from edgepack.cli.printing import print_json, write_line
    from edgepack.deploying import roll_back
    from edgepack.devices import load_device

    done = roll_back(project, load_device(device), release=to, wait_s=wait_s)
    if as_json:
        print_json(done)
        return
    write_line(f"{device}: {done.path} is current (before: {done.switched_from})")
