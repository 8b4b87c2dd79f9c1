"""``edgepack device``: the inventory, trust, and what a device needs before it can be used."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from edgepack import api
from edgepack.cli.groups import QuickGroup
from edgepack.cli.options import JsonOption, WaitOption
from edgepack.cli.rollouts import (
    AbortAtOption,
    CanaryOption,
    DeadlineOption,
    ParallelOption,
    TriesOption,
    WavesOption,
    act_on_one,
    make_settings,
    run_rollout,
)
from edgepack.cli.several import NamesArgument, do_on_chosen, show_outcomes
from edgepack.errors import EdgepackError, UsageError

device_app = typer.Typer(
    cls=QuickGroup, help="The devices of devices.yaml.", no_args_is_help=True, rich_markup_mode=None
)


WheelOption = Annotated[
    list[Path] | None, typer.Option(help="A wheel of your own; repeat for more.")
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
        entry = device.host.entry
        host = getattr(entry, "host", None) or getattr(entry, "wanted", "this machine")
        tags = f"  [{', '.join(device.entry.tags)}]" if device.entry.tags else ""
        write_line(f"{name:16} {device.target:16} {device.entry.transport:6} {host}{tags}")
    if all(device.entry.transport == "local" for device in devices.values()):
        write_line("no other devices yet: edgepack device add NAME USER@HOST")
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
    password_env: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="The environment variable with the password, read at each login."
        ),
    ] = None,
    fingerprint: Annotated[
        str | None, typer.Option(help="The host key you expect, as SHA256:...")
    ] = None,
) -> None:
    """Add a device: trust its host key, probe it, propose its target, write it down."""
    from edgepack.cli.printing import write_line

    added = api.add_device(
        name,
        address,
        target=target,
        port=port,
        key=str(key) if key else None,
        password_env=password_env,
        fingerprint=fingerprint,
        confirm=_confirm,
    )
    for line in added.facts.format_lines():
        write_line(line)
    write_line(f"{name} has the target {added.device.target}; written to {added.inventory}")
    write_line(f"next: edgepack device check {name}")


@device_app.command(epilog="Example: edgepack device share tag:lab")
def share(names: NamesArgument) -> None:
    """Write devices of your devices.yaml into the team's inventory, where it has one."""
    from edgepack.cli.printing import write_line

    for device in api.select_devices(names):
        api.share_device(device)
        write_line(f"{device.name} is in the team's inventory; your devices.yaml goes before it")


@device_app.command(epilog="Example: edgepack device remove pi5")
def remove(
    name: Annotated[
        str, typer.Argument(metavar="DEVICE", help="A device of the team's inventory.")
    ],
) -> None:
    """Take a device out of the team's inventory; nothing changes on the device."""
    from edgepack.cli.printing import write_line

    api.remove_device(name)
    write_line(f"{name} is no longer in the team's inventory")


@device_app.command(
    "import",
    epilog="Examples: edgepack device import 'pi-*' --ssh-config ~/.ssh/config --tag lab  |  "
    "edgepack device import --ansible hosts.ini",
)
def import_devices(
    patterns: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[PATTERN]...",
            help="Which boards of the list, by name: 'pi-*' [default: all].",
            show_default=False,
        ),
    ] = None,
    ssh_config: Annotated[
        Path | None, typer.Option(help="Hosts of an SSH configuration; give patterns too.")
    ] = None,
    csv: Annotated[
        Path | None,
        typer.Option("--csv", help="A table with a line of column names: name, host and others."),
    ] = None,
    ansible: Annotated[Path | None, typer.Option(help="An Ansible inventory.")] = None,
    tag: Annotated[
        list[str] | None, typer.Option(help="A tag for all of them; repeat for more.")
    ] = None,
    target: Annotated[
        str | None, typer.Option(help="Their target [default: proposed after probing]")
    ] = None,
    password_env: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="The environment variable with the password, read at each login."
        ),
    ] = None,
    parallel: ParallelOption = 16,
    as_json: JsonOption = False,
) -> None:
    """Add the boards of a list: show their host keys together, probe them, write devices.yaml.

    A board that is there already is left as it is; one that cannot be added keeps no other from it.
    """
    lists = [
        (path, read)
        for path, read in (
            (ssh_config, api.read_ssh_config_devices),
            (csv, api.read_csv_devices),
            (ansible, api.read_ansible_devices),
        )
        if path is not None
    ]
    if len(lists) != 1:
        raise UsageError(
            f"{len(lists)} lists are given",
            hint="name one: --ssh-config FILE, --csv FILE or --ansible FILE",
        )
    if ssh_config is not None and not patterns:
        raise UsageError(
            "an SSH configuration has other hosts than boards, too",
            hint="say which: edgepack device import 'pi-*' --ssh-config FILE",
        )
    path, read = lists[0]
    outcomes = api.import_devices(
        api.choose_listed(read(path), patterns or [], path),
        confirm=lambda question: _confirm(
            question,
            "answer with y once you have compared them; or have them in ~/.ssh/known_hosts, or as"
            " 'fingerprint' in the CSV file",
        ),
        target=target,
        tags=tag or [],
        password_env=password_env,
        parallel=parallel,
    )
    show_outcomes(
        outcomes,
        lambda made: f"{made.target}, {made.host}{' (was there already)' * made.was_there}",
        as_json=as_json,
    )


@device_app.command(
    epilog="Examples: edgepack device trust pi5 --fingerprint SHA256:...  |  "
    "edgepack device trust tag:lab"
)
def trust(
    names: NamesArgument,
    fingerprint: Annotated[
        str | None, typer.Option(help="Trust this key without asking, as SHA256:...")
    ] = None,
) -> None:
    """Show a device's host key and, if you say so, trust it."""
    from edgepack.cli.printing import write_line

    if fingerprint is not None and not api.is_one_device(names):
        raise UsageError(
            "--fingerprint is the key of one device",
            hint="name that device; several are shown one after the other",
            where="--fingerprint",
        )
    # One after the other, in this thread: each may ask.
    failed: list[EdgepackError] = []
    devices = api.select_devices(names)
    for device in devices:
        try:
            write_line(api.trust_device(device, fingerprint=fingerprint, confirm=_confirm))
        except EdgepackError as error:
            if len(devices) == 1:
                raise
            failed.append(error)
            typer.echo(f"error: {error}", err=True)
    if code := api.choose_exit_code(failed):
        raise typer.Exit(code)


@device_app.command(
    epilog="Examples: edgepack device check pi5  |  edgepack device check tag:lab --json"
)
def check(names: NamesArgument, parallel: ParallelOption = 16, as_json: JsonOption = False) -> None:
    """Report what a device is, and what it lacks for its target."""
    do_on_chosen(
        names,
        api.check_device,
        show=_print_checked,
        summarize=lambda checked: ", ".join(checked.facts.format_lines()[:1]),
        judge=api.Checked.require_ready,
        settings=api.RolloutSettings(parallel=parallel),
        as_json=as_json,
    )


def _print_checked(checked: api.Checked) -> None:
    from edgepack.cli.printing import write_line

    for line in (*checked.facts.format_lines(), *(f"problem: {p}" for p in checked.problems)):
        write_line(line)
    for line in checked.format_absent():
        write_line(line)
    for setting in checked.given_back:
        write_line(f"restored what a measurement had left changed: {setting}")


@device_app.command(epilog="Example: edgepack device wheels tag:lab --to wheels")
def wheels(
    names: NamesArgument,
    to: Annotated[Path, typer.Option(metavar="FOLDER", help="The folder to put them into.")],
    wheel: WheelOption = None,
    parallel: ParallelOption = 16,
    as_json: JsonOption = False,
) -> None:
    """Fetch the wheels that provisioning devices needs, once for all that need the same.

    Later, without internet: edgepack device provision NAME --wheelhouse FOLDER.
    """
    from edgepack.cli.printing import write_line

    wheelhouse = api.Wheelhouse(to, wheel or [])
    do_on_chosen(
        names,
        lambda device, progress: wheelhouse.fetch(device, progress.show_status),
        show=lambda fetched: write_line(
            f"{to} has {len(fetched.files)} wheels for {fetched.needs}"
        ),
        summarize=lambda fetched: f"{len(fetched.files)} wheels for {fetched.needs}",
        settings=api.RolloutSettings(parallel=parallel),
        as_json=as_json,
    )


@device_app.command(
    epilog="Examples: edgepack device provision pi5  |  "
    "edgepack device provision tag:lab --canary 1"
)
def provision(
    names: NamesArgument,
    wheel: WheelOption = None,
    wheelhouse: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Take all others from here, as 'edgepack device wheels' fetched them.",
        ),
    ] = None,
    offline: Annotated[
        bool, typer.Option("--offline", help="Ask no package index: --wheel has all of them.")
    ] = False,
    canary: CanaryOption = 0,
    waves: WavesOption = 1,
    abort_at: AbortAtOption = None,
    parallel: ParallelOption = 16,
    deadline: DeadlineOption = 3600.0,
    tries: TriesOption = 4,
    wait_s: WaitOption = 0.0,
    as_json: JsonOption = False,
) -> None:
    """Install on a device the runtime that its target pins; the device needs no internet.

    With --wheelhouse or --offline this machine needs none either. On several devices it is a
    rollout, as a push is.
    """
    from edgepack.cli.printing import print_json, write_line

    devices = api.select_devices(names)
    options = api.ProvisionOptions(
        wheels=wheel or [], wheelhouse=wheelhouse, offline=offline, wait_s=wait_s
    )
    store = api.open_rollout_store()
    if not api.is_one_device(names):
        settings = make_settings(
            parallel=parallel,
            deadline=deadline,
            tries=tries,
            canary=canary,
            waves=waves,
            abort_at=abort_at,
        )
        rollout = api.start_provisioning(devices, store, settings=settings, options=options)
        run_rollout(rollout, store, as_json=as_json)
        return
    made = act_on_one(
        lambda progress: api.provision_as_rollout(
            devices[0], store, options=options, progress=progress
        )
    )
    if as_json:
        print_json(made)
        return
    write_line(f"{devices[0].name} has {made}")


def _confirm(
    question: str,
    remedy: str = "compare the fingerprint above with the device's own, then: --fingerprint"
    " SHA256:...",
) -> bool:
    try:
        return typer.confirm(question, default=False, err=True)
    except typer.Abort as error:
        if not isinstance(error.__context__, EOFError):
            raise
    raise UsageError("there is nobody to ask: stdin has ended", hint=remedy)
