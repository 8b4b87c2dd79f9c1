"""``edgepack targets``: the profiles."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from edgepack import api
from edgepack.cli.groups import QuickGroup
from edgepack.cli.options import JsonOption, complete_targets

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


@targets_app.command(epilog="Example: edgepack targets schema > profile.schema.json")
def schema() -> None:
    """Print the JSON Schema of profiles."""
    from edgepack.cli.printing import print_json

    print_json(api.make_target_schema())
