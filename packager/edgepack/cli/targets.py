"""``edgepack targets``: the profiles."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from edgepack import api
from edgepack.cli.groups import QuickGroup
from edgepack.cli.options import JsonOption, WaitOption, complete_selection, complete_targets

targets_app = typer.Typer(
    cls=QuickGroup,
    help="The targets that edgepack knows.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

TargetArgument = Annotated[
    str, typer.Argument(help="A target's id, or 'host'.", autocompletion=complete_targets)
]


@targets_app.command("list", epilog="Example: edgepack targets list")
def list_targets(as_json: JsonOption = False) -> None:
    """List the targets: the variants, how far each is proven, and the file of the profile."""
    from edgepack.cli.printing import print_json, write_line
    from edgepack.errors import ProfileError

    rows = api.list_targets()
    if as_json:
        print_json(rows)
    else:
        for row in rows:
            variants = ", ".join(f"{name} {grade}" for name, grade in row.grades.items())
            about = f"{row.title}  [{variants}]  {row.file}"
            write_line(f"{row.id:20} {row.error or about}")
    wrong = [row.file for row in rows if row.error]
    if wrong:
        raise ProfileError(
            f"{len(wrong)} of {len(rows)} profiles cannot be used",
            hint=f"edgepack targets check {shlex.join(wrong)}",
        )


@targets_app.command(epilog="Example: edgepack targets show raspberry-pi")
def show(target: TargetArgument) -> None:
    """Print a target's profile and the path of its file."""
    from edgepack.cli.printing import write_line

    write_line(api.show_target(target))


@targets_app.command(epilog="Example: edgepack targets check targets/my-board.yaml")
def check(files: Annotated[list[Path], typer.Argument(help="Profiles to check.")]) -> None:
    """Check profiles of your own: keys, backends, int8 dialects, options and session keys."""
    from edgepack.cli.printing import write_line
    from edgepack.errors import ProfileError

    wrong: list[ProfileError] = []
    for path in files:
        try:
            write_line(f"{path}: {api.check_target(path).title}: ok")
        except ProfileError as error:
            wrong.append(error)
    if wrong:
        last = wrong.pop()
        before = "".join(f"{error}\nerror: " for error in wrong)
        raise ProfileError(
            before + (f"{last.where}: " if last.where else "") + last.problem, hint=last.hint
        )


@targets_app.command(
    epilog="Examples: edgepack targets prove jetson --device orin  |  "
    "edgepack targets prove raspberry-pi --device pi5 --project edgepack.yaml --out pi5.json"
)
def prove(
    target: TargetArgument,
    device: Annotated[
        str, typer.Option(help="The device's name.", autocompletion=complete_selection)
    ],
    project: Annotated[
        Path | None, typer.Option(help="The project file [default: the example in edgepack]")
    ] = None,
    preset: Annotated[str, typer.Option(help="As edgepack bench has it.")] = "standard",
    out: Annotated[
        Path | None, typer.Option(help="The file to write [default: TARGET-device.json]")
    ] = None,
    wait_s: WaitOption = 0.0,
    as_json: JsonOption = False,
) -> None:
    """Run every variant of a target on your device, and write the evidence for its grades.

    The file names the board and its processor, and nothing else of yours: add it to
    targets/evidence in a pull request.
    """
    from edgepack.base.progress import make_terminal_progress
    from edgepack.cli.printing import print_json, write_line

    proof = api.prove(
        target,
        api.load_device(device),
        project=project,
        preset=preset,
        out=out,
        wait_s=wait_s,
        progress=make_terminal_progress(),
    )
    if as_json:
        print_json(proof)
        return
    for seen in proof.evidence.variants:
        nodes = ", ".join(f"{count} nodes on {name}" for name, count in seen.nodes.items())
        doubts = "; ".join(proof.doubts.get(seen.id, ()))
        said = f": {doubts}" if doubts else ""
        write_line(
            f"{seen.id}: {nodes}; goldens {seen.golden_sqnr_db:.1f} dB; {seen.verdict}{said}"
        )
    for unused in proof.unused:
        write_line(f"{unused.stage} {unused}")
    write_line(f"wrote {proof.file}: add it to targets/evidence in a pull request")


@targets_app.command(epilog="Example: edgepack targets schema > profile.schema.json")
def schema() -> None:
    """Print the JSON Schema of profiles."""
    from edgepack.cli.printing import print_json

    print_json(api.make_target_schema())
