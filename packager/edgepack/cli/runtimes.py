"""``edgepack runtime``: builds of onnxruntime that no package index has."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from edgepack import api
from edgepack.cli.groups import QuickGroup
from edgepack.cli.options import JsonOption, complete_selection
from edgepack.errors import EdgepackError, UsageError

runtime_app = typer.Typer(
    cls=QuickGroup,
    help="Builds of onnxruntime that no package index has, for provisioning devices.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


def _list_ids() -> list[str]:
    return [kept.id for kept in api.RuntimeStore().list_all().runtimes]


RuntimeArgument = Annotated[
    str,
    typer.Argument(metavar="ID", help="Its id, or the beginning of it.", autocompletion=_list_ids),
]


@runtime_app.command("list", epilog="Example: edgepack runtime list")
def list_runtimes(as_json: JsonOption = False) -> None:
    """List the kept runtimes, newest first."""
    from edgepack.cli.printing import print_json, write_line

    listing = api.RuntimeStore().list_all()
    if as_json:
        print_json({"runtimes": listing.runtimes, "broken": [str(e) for e in listing.broken]})
        return
    for kept in listing.runtimes:
        size = f"{kept.size_bytes / 1e6:.0f} MB"
        write_line(f"{kept.id}  {kept.target:16} {kept.added[:10]}  {size:>7}  {kept.wheel}")
    for error in listing.broken:
        write_line(f"broken: {error.first_line}")
    if not listing.runtimes and not listing.broken:
        write_line("no runtimes yet: edgepack runtime add WHEEL --target TARGET")


@runtime_app.command(epilog="Example: edgepack runtime show 3f9a")
def show(runtime: RuntimeArgument, as_json: JsonOption = False) -> None:
    """Show where a runtime comes from, and check that it is unchanged."""
    from edgepack.cli.printing import print_json, write_line

    store = api.RuntimeStore()
    kept = store.find(runtime)
    path = store.require_whole(kept)
    if as_json:
        print_json(kept)
        return
    write_line(f"{kept.wheel} for {kept.target}, since {kept.added}")
    for name, value in kept.about.items():
        write_line(f"  {name}: {value}")
    write_line(f"  sha256: {kept.sha256}")
    write_line(f"  {path}")


@runtime_app.command(
    epilog="Example: edgepack runtime add onnxruntime_gpu-1.23.2-cp310-cp310-linux_aarch64.whl "
    "--target jetson --about jetpack=6.2"
)
def add(
    wheel: Annotated[Path, typer.Argument(help="The wheel.")],
    target: Annotated[str, typer.Option(help="The target whose devices get it.")],
    about: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Where it comes from; repeat for more."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Keep a wheel of onnxruntime: 'edgepack device provision' takes it for devices of the target.

    What 'edgepack runtime export' wrote beside it says where it comes from.
    """
    from edgepack.cli.printing import print_json, write_line

    said = dict(_parse_about(word) for word in about) if about else None
    kept = api.RuntimeStore().add(wheel, api.load_profile(target), said)
    if as_json:
        print_json(kept)
        return
    write_line(f"kept {kept.wheel} as {kept.id}")
    write_line(f"devices of target {kept.target} get it: edgepack device provision target:{target}")


def _parse_about(word: str) -> tuple[str, str]:
    name, equals, value = word.partition("=")
    if not (name and equals):
        raise typer.BadParameter(f"{word!r} is not NAME=VALUE", param_hint="--about")
    return name, value


@runtime_app.command(
    epilog="Examples: edgepack runtime build jetson --device orin  |  "
    "edgepack runtime build jetson --device orin --detach"
)
def build(
    target: Annotated[str, typer.Argument(help="The target whose instructions are followed.")],
    device: Annotated[
        str, typer.Option(help="Where it is built.", autocompletion=complete_selection)
    ],
    detach: Annotated[
        bool, typer.Option("--detach", help="Return when it has begun; call again to follow it.")
    ] = False,
    look: Annotated[bool, typer.Option("--look", help="Only say how it stands.")] = False,
    stop: Annotated[
        bool, typer.Option("--stop", help="Stop it; what is built stays there.")
    ] = False,
    remove: Annotated[
        bool, typer.Option("--remove", help="Stop it, and remove what is built.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Build onnxruntime on a device, prove it there, and keep the wheel for all of its kind.

    It takes hours, and goes on without this command: called again it follows the build, or goes on
    with one that was cut off, by a reboot for instance.
    """
    from edgepack.base.progress import make_terminal_progress
    from edgepack.cli.printing import print_json, write_line

    chosen = api.load_device(device)
    if chosen.target != target:
        raise UsageError(
            f"device {device!r} is of target {chosen.target!r}, not {target!r}",
            hint=f"edgepack runtime build {chosen.target} --device {device}",
        )
    if stop or remove:
        api.stop_build(chosen, remove=remove)
    if stop or remove or look:
        _show_build(api.look_at_build(chosen), as_json=as_json)
        return
    progress = make_terminal_progress()
    try:
        made = api.build_runtime(chosen, follow=not detach, progress=progress.show_status)
    except EdgepackError as error:
        if error.transient:
            progress.note("a build that runs there goes on: the same command follows it")
        raise
    if isinstance(made, api.BuildState):
        _show_build(made, as_json=as_json)
    elif as_json:
        print_json(made)
    else:
        work = made.about.get("providers", "its providers")
        write_line(f"kept {made.wheel} as {made.id}: {work} work on {device}")
        write_line(f"others get it: edgepack device provision target:{target}")


def _show_build(state: api.BuildState, *, as_json: bool) -> None:
    from edgepack.cli.printing import print_json, write_line

    if as_json:
        print_json(state)
        return
    ended = "it is not running" if state.exit_code is None else f"exit code {state.exit_code}"
    write_line(f"{'it runs' if state.runs else ended}; done: {', '.join(state.done) or 'nothing'}")
    write_line(state.last_lines.lstrip("\n"))


@runtime_app.command(epilog="Example: edgepack runtime remove 3f9a")
def remove(runtime: RuntimeArgument) -> None:
    """Remove a runtime from the store; devices that have it keep it."""
    from edgepack.cli.printing import write_line

    store = api.RuntimeStore()
    kept = store.find(runtime)
    store.remove(kept)
    write_line(f"removed {kept.wheel}")


@runtime_app.command(epilog="Example: edgepack runtime export 3f9a --to shared/runtimes")
def export(
    runtime: RuntimeArgument,
    to: Annotated[Path, typer.Option(metavar="FOLDER", help="The folder to put it into.")],
) -> None:
    """Copy a runtime and its record into a folder, for 'edgepack runtime add' elsewhere."""
    from edgepack.cli.printing import write_line

    store = api.RuntimeStore()
    write_line(str(store.export(store.find(runtime), to)))
