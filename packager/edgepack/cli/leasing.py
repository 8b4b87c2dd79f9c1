"""``edgepack device lease``, ``release``, ``who`` and ``power``: whose a device is; its power."""

from __future__ import annotations

from typing import Annotated, get_args

import typer

from edgepack import api
from edgepack.cli.options import JsonOption, WaitOption, parse_seconds
from edgepack.cli.rollouts import ParallelOption
from edgepack.cli.several import NamesArgument, do_on_chosen
from edgepack.errors import UsageError


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


def power(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="DEVICE... on|off|cycle",
            help="Devices as in devices.yaml, tag:NAME, target:ID, backend:NAME or 'all'; then what"
            " to do.",
            show_default=False,
        ),
    ],
    most: Annotated[
        str,
        typer.Option(
            "--for", metavar="TIME", help="How long to wait until a device answers: 90s, 10m."
        ),
    ] = "5m",
    wait_s: WaitOption = 0.0,
    force: Annotated[
        bool, typer.Option("--force", help="Switch whoever uses the device; no lease is taken.")
    ] = False,
    parallel: ParallelOption = 16,
    as_json: JsonOption = False,
) -> None:
    """Switch a device's power, by its labgrid or by 'power' in devices.yaml.

    After on and cycle it waits until the device answers.
    """
    from edgepack.cli.printing import write_line

    *names, last = words
    action = next((each for each in get_args(api.PowerAction) if each == last), None)
    if action is None or not names:
        raise UsageError(
            f"{' '.join(words)!r} does not say which device, and then on, off or cycle",
            hint="write the device first: edgepack device power pi5 cycle",
        )
    options = api.PowerOptions(parse_seconds(most, "--for"), wait_s, force)
    do_on_chosen(
        names,
        lambda device, progress: api.switch_power(
            device, action, options=options, progress=progress
        ),
        show=lambda switched: write_line(f"{names[0]} {switched}"),
        summarize=str,
        settings=api.RolloutSettings(parallel=parallel),
        as_json=as_json,
    )
