"""``edgepack device``: the inventory, trust, and what a device needs before it can be used."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from edgepack import api
from edgepack.cli.options import JsonOption, complete_devices
from edgepack.errors import UsageError

device_app = typer.Typer(
    help="The devices of devices.yaml.", no_args_is_help=True, rich_markup_mode=None
)

NameArgument = Annotated[
    str, typer.Argument(help="The device's name.", autocompletion=complete_devices)
]


@device_app.command("list", epilog="Example: edgepack device list")
def list_devices(as_json: JsonOption = False) -> None:
    """List the devices."""
    from edgepack.cli.printing import print_json, write_line

    devices = api.load_devices()
    if as_json:
        print_json({name: device.entry for name, device in devices.items()})
        return
    for name, device in devices.items():
        host = getattr(device.host.entry, "host", "this machine")
        tags = f"  [{', '.join(device.entry.tags)}]" if device.entry.tags else ""
        write_line(f"{name:16} {device.target:16} {device.entry.transport:6} {host}{tags}")
    write_line(f"from {api.describe_inventory()}")


@device_app.command(epilog="Example: edgepack device add pi5 bench@192.0.2.17")
def add(
    name: Annotated[str, typer.Argument(help="What to call it.")],
    address: Annotated[str, typer.Argument(help="USER@HOST, or a host of ~/.ssh/config.")],
    target: Annotated[
        str | None, typer.Option(help="Its target [default: proposed after probing]")
    ] = None,
    port: Annotated[int | None, typer.Option(min=1, max=65535, help="SSH port.")] = None,
    key: Annotated[Path | None, typer.Option(help="The private key to use.")] = None,
    fingerprint: Annotated[
        str | None, typer.Option(help="The host key you expect, as SHA256:...")
    ] = None,
) -> None:
    """Add a device: trust its host key, probe it, propose its target, write devices.yaml."""
    from edgepack.cli.printing import write_line

    added = api.add_device(
        name,
        address,
        target=target,
        port=port,
        key=str(key) if key else None,
        fingerprint=fingerprint,
        confirm=_confirm,
    )
    for line in added.facts.format_lines():
        write_line(line)
    write_line(f"{name} has the target {added.device.target}; written to {added.inventory}")
    write_line(f"next: edgepack device check {name}")


@device_app.command(epilog="Example: edgepack device trust pi5 --fingerprint SHA256:...")
def trust(
    name: NameArgument,
    fingerprint: Annotated[
        str | None, typer.Option(help="Trust this key without asking, as SHA256:...")
    ] = None,
) -> None:
    """Show a device's host key and, if you say so, trust it."""
    from edgepack.cli.printing import write_line

    write_line(api.trust_device(api.load_device(name), fingerprint=fingerprint, confirm=_confirm))


@device_app.command(epilog="Example: edgepack device check pi5")
def check(name: NameArgument, as_json: JsonOption = False) -> None:
    """Report what a device is, and what it lacks for its target."""
    from edgepack.cli.printing import print_json, write_line

    checked = api.check_device(api.load_device(name))
    if as_json:
        print_json(checked)
    else:
        for line in (*checked.facts.format_lines(), *(f"problem: {p}" for p in checked.problems)):
            write_line(line)
        for line in checked.format_absent():
            write_line(line)
        for setting in checked.given_back:
            write_line(f"restored what a measurement had left changed: {setting}")
    checked.require_ready()


@device_app.command(epilog="Example: edgepack device provision pi5")
def provision(
    name: NameArgument,
    wheel: Annotated[
        list[Path] | None, typer.Option(help="A wheel of your own; repeat for more.")
    ] = None,
) -> None:
    """Install on a device the runtime that its target pins; the device needs no internet."""
    from edgepack.base.progress import make_terminal_progress
    from edgepack.cli.printing import write_line

    progress = make_terminal_progress()
    made = api.provision_device(api.load_device(name), wheels=wheel or (), progress=progress.note)
    write_line(f"{name} has {made}")


def _confirm(question: str) -> bool:
    try:
        return typer.confirm(question, default=False, err=True)
    except typer.Abort as error:
        if not isinstance(error.__context__, EOFError):
            raise
    raise UsageError(
        "there is nobody to ask: stdin has ended",
        hint="compare the fingerprint above with the device's own, then: --fingerprint SHA256:...",
    )
