"""``edgepack converter``: the environments in which models of other frameworks become ONNX."""

from __future__ import annotations

from typing import Annotated

import typer

from edgepack import api
from edgepack.cli.groups import QuickGroup
from edgepack.cli.options import JsonOption

converter_app = typer.Typer(
    cls=QuickGroup,
    help="Environments in which models of other frameworks become ONNX.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


def _list_names() -> list[str]:
    return [each.name for each in api.list_converters()]


@converter_app.command("list", epilog="Example: edgepack converter list")
def list_converters(as_json: JsonOption = False) -> None:
    """List the converters: what each takes, and whether its environment is on this machine."""
    from edgepack.cli.printing import print_json, print_rows

    found = api.list_converters()
    if as_json:
        print_json(found)
        return
    print_rows(
        ("converter", "takes", "runs in", "here"),
        [
            (
                each.name,
                each.words,
                _describe_place(each),
                "yes" if each.ready or each.beside else "no" if each.environment else "",
            )
            for each in found
        ],
    )


def _describe_place(converter: api.ListedConverter) -> str:
    if converter.beside:
        return "edgepack's own Python, which has its packages"
    if converter.environment:
        return f"{converter.environment}, {converter.size}"
    return "a Python of yours"


@converter_app.command(epilog="Example: edgepack converter install keras")
def install(
    name: Annotated[
        str,
        typer.Argument(metavar="CONVERTER", help="Its name.", autocompletion=_list_names),
    ],
    as_json: JsonOption = False,
) -> None:
    """Make a converter's environment now, and not with the first build that needs it."""
    from edgepack.base.progress import make_terminal_progress
    from edgepack.cli.printing import print_json, write_line

    made = api.install_converter(name, make_terminal_progress().note)
    if as_json:
        print_json(made)
        return
    write_line(f"{made.name} runs in {made.folder}")
