"""``edgepack device lease``, ``release`` and ``who``: whose a device is for now."""

from __future__ import annotations

from typing import Annotated

import typer

from edgepack import api
from edgepack.cli.devices import NameArgument
from edgepack.cli.options import JsonOption


def lease(
    name: NameArgument,
    minutes: Annotated[
        float, typer.Option("--for", min=0.1, max=7 * 24 * 60, help="How many minutes.")
    ] = 30.0,
    purpose: Annotated[str, typer.Option(help="What for; others see this text.")] = "work by hand",
    as_json: JsonOption = False,
) -> None:
    """Keep others off a device for a while; your own commands still run there."""
    from edgepack.cli.printing import print_json, write_line

    taken = api.lease_device(api.load_device(name), for_s=60 * minutes, purpose=purpose)
    if as_json:
        print_json(taken)
        return
    write_line(f"{name} is leased by {taken}")
    write_line(f"release it with: edgepack device release {name}")


def release(
    name: NameArgument,
    force: Annotated[
        bool,
        typer.Option("--force", help="Release others' leases too, and those of running commands."),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Release a device that you have leased."""
    from edgepack.cli.printing import print_json, write_line

    released = api.release_device(api.load_device(name), force=force)
    if as_json:
        print_json(released)
        return
    for one in released:
        write_line(f"released: {one}")
    if not released:
        write_line(f"{name} was free")


def who(name: NameArgument, as_json: JsonOption = False) -> None:
    """Show who holds a device, for what and until when."""
    from edgepack.cli.printing import print_json, write_line

    holders = api.list_leases(api.load_device(name))
    if as_json:
        print_json(holders)
        return
    for one in holders:
        write_line(f"{name} is leased by {one}")
    if not holders:
        write_line(f"{name} is free")
