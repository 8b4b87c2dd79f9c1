"""``edgepack device lease``, ``release`` and ``who``: whose a device is for now."""

from __future__ import annotations

from typing import Annotated

import typer

from edgepack import api
from edgepack.cli.options import JsonOption
from edgepack.cli.rollouts import ParallelOption
from edgepack.cli.several import NamesArgument, do_on_chosen


def lease(
    names: NamesArgument,
    minutes: Annotated[
        float, typer.Option("--for", min=0.1, max=7 * 24 * 60, help="How many minutes.")
    ] = 30.0,
    purpose: Annotated[str, typer.Option(help="What for; others see this text.")] = "work by hand",
    parallel: ParallelOption = 16,
    as_json: JsonOption = False,
) -> None:
    """Keep others off a device for a while; your own commands still run there."""
    from edgepack.cli.printing import write_line

    def show(taken: api.Lease) -> None:
        write_line(f"{names[0]} is leased by {taken}")
        write_line(f"release it with: edgepack device release {names[0]}")

    do_on_chosen(
        names,
        lambda device, _progress: api.lease_device(device, for_s=60 * minutes, purpose=purpose),
        show=show,
        summarize=lambda taken: f"leased by {taken}",
        settings=api.RolloutSettings(parallel=parallel),
        as_json=as_json,
    )


def release(
    names: NamesArgument,
    force: Annotated[
        bool,
        typer.Option("--force", help="Release others' leases too, and those of running commands."),
    ] = False,
    parallel: ParallelOption = 16,
    as_json: JsonOption = False,
) -> None:
    """Release a device that you have leased."""
    from edgepack.cli.printing import write_line

    def show(released: tuple[api.Lease, ...]) -> None:
        for one in released:
            write_line(f"released: {one}")
        if not released:
            write_line(f"{names[0]} was free")

    do_on_chosen(
        names,
        lambda device, _progress: api.release_device(device, force=force),
        show=show,
        summarize=lambda released: ", ".join(f"released: {one}" for one in released) or "was free",
        settings=api.RolloutSettings(parallel=parallel),
        as_json=as_json,
    )


def who(names: NamesArgument, parallel: ParallelOption = 16, as_json: JsonOption = False) -> None:
    """Show who holds a device, for what and until when."""
    from edgepack.cli.printing import write_line

    def show(holders: tuple[api.Lease, ...]) -> None:
        for one in holders:
            write_line(f"{names[0]} is leased by {one}")
        if not holders:
            write_line(f"{names[0]} is free")

    do_on_chosen(
        names,
        lambda device, _progress: api.list_leases(device),
        show=show,
        summarize=lambda holders: ", ".join(f"leased by {one}" for one in holders) or "free",
        settings=api.RolloutSettings(parallel=parallel),
        as_json=as_json,
    )
