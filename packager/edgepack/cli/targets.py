"""``edgepack targets``: the profiles."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edgepack.cli.options import JsonOption, complete_targets

if TYPE_CHECKING:
    from edgepack.project.grades import Evidence

targets_app = typer.Typer(
    help="The targets that edgepack knows.", no_args_is_help=True, rich_markup_mode=None
)

TargetArgument = Annotated[
    str, typer.Argument(help="A target's id, or 'host'.", autocompletion=complete_targets)
]


@targets_app.command("list", epilog="Example: edgepack targets list")
def list_targets(as_json: JsonOption = False) -> None:
    """List the targets: how far each is proven, its variants, where its profile lies."""
    from edgepack.cli.printing import print_json, write_line
    from edgepack.errors import ProfileError
    from edgepack.project.grades import read_evidence
    from edgepack.project.profile import target_files

    evidence = read_evidence()
    rows = [_row(name, path, evidence) for name, path in target_files().items()]
    if as_json:
        print_json(rows)
    else:
        for row in rows:
            about = (
                f"{row['grade']:9} {row['title']}  [{', '.join(row['variants'])}]  {row['file']}"
            )
            write_line(f"{row['id']:20} {row['error'] or about}")
    wrong = [row["file"] for row in rows if row["error"]]
    if wrong:
        raise ProfileError(
            f"{len(wrong)} of {len(rows)} profiles cannot be used",
            hint=f"edgepack targets check {shlex.join(wrong)}",
        )


def _row(name: str, path: Path, evidence: list[Evidence]) -> dict[str, Any]:
    from edgepack.backends.targets import check_profile
    from edgepack.errors import ProfileError
    from edgepack.project.grades import target_grade

    row: dict[str, Any] = {
        "id": name, "title": "", "grade": "", "variants": [], "file": str(path), "error": ""
    }  # fmt: skip
    try:
        profile = check_profile(path)
    except ProfileError as error:
        return {**row, "error": f"{error.where or path}: {error.problem}"}
    return {
        **row,
        "title": profile.title,
        "grade": target_grade(profile, evidence, path),
        "variants": [v.id for v in profile.variants],
    }


@targets_app.command(epilog="Example: edgepack targets show raspberry-pi")
def show(target: TargetArgument) -> None:
    """Print a target's profile and say which file it is."""
    from edgepack.cli.printing import write_line
    from edgepack.project.profile import load_profile, target_files

    path = target_files()[load_profile(target).id]
    write_line(f"# {path}")
    write_line(path.read_text(encoding="utf-8").rstrip())


@targets_app.command(epilog="Example: edgepack targets check targets/my-board.yaml")
def check(files: Annotated[list[Path], typer.Argument(help="Profiles to check.")]) -> None:
    """Check profiles of your own: keys, backends, int8 dialects, options and session keys."""
    from edgepack.backends.targets import check_profile
    from edgepack.cli.printing import write_line
    from edgepack.errors import ProfileError

    wrong: list[ProfileError] = []
    for path in files:
        try:
            write_line(f"{path}: {check_profile(path).title}: ok")
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
    from edgepack.project.profile import Profile

    print_json(Profile.model_json_schema())
