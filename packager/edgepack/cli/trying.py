"""``edgepack try``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edgepack import api
from edgepack.cli.options import JsonOption

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text


def try_bundle(
    bundle: Annotated[
        Path, typer.Argument(help="A bundle's folder or archive.", show_default=False)
    ],
    given: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[INPUT]...",
            help="Photos, a folder of photos, texts, .wav, .npz or .npy files.",
        ),
    ] = None,
    inputs: Annotated[
        list[str] | None,
        typer.Option(
            "--input",
            metavar="NAME=VALUE",
            help="The value of one input of the model: such a file, a text, or a number that fills"
            " it; repeat for more.",
        ),
    ] = None,
    variant: Annotated[
        list[str] | None, typer.Option(help="Only this variant beside fp32; repeat for more.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="The most photos to take from a folder.")] = 12,
    html: Annotated[
        Path | None, typer.Option(help="Write an HTML page here, with boxes and masks drawn.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Write the pictures into this folder, as PNG.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show what fp32 and each variant of a bundle answer to the same photo, text or sound."""
    from edgepack.base.progress import make_terminal_progress
    from edgepack.cli.printing import print_json, write_line

    trial = api.try_bundle(
        bundle,
        given or (),
        inputs=_group_by_name(inputs or []),
        variants=variant or (),
        limit=limit,
        html=html,
        out=out,
        progress=make_terminal_progress(),
    )
    if as_json:
        print_json(trial.document())
    else:
        _print_trial(trial)
        if html:
            write_line(str(html))
        if out:
            write_line(
                str(out)
                if trial.has_pictures
                else f"no output can be drawn: nothing is written to {out}"
            )
        if trial.has_pictures and not (html or out):
            write_line("drawn into pictures: --html try.html, or --out FOLDER")
    trial.require_whole()


def _group_by_name(given: list[str]) -> dict[str, str]:
    from edgepack.errors import UsageError

    found: dict[str, str] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or name in found:
            what = "is given twice" if equals else "names no value"
            raise UsageError(
                f"{text!r} {what}",
                hint="write it as NAME=VALUE, once for each input",
                where="--input",
            )
        found[name] = value
    return found


def _print_trial(trial: api.Trial) -> None:
    from edgepack.cli.printing import print_table, write_line

    for column in trial.columns:
        if column.words:
            write_line(f"{column.variant}: {column.words}")
    for line in trial.said:
        write_line(line)
    for tried in trial.inputs:
        print_table(_make_table(tried))
        for line in tried.said:
            write_line(f"  {line}")
        for variant in tried.columns[1:]:
            write_line(f"  {variant}: {_format_verdict(tried, variant)}")
        for variant, reason in tried.problems.items():
            write_line(f"  {variant}: does not take this input: {reason}")


def _format_verdict(tried: api.InputTrial, variant: str) -> str:
    """Return a variant's level, with what is not in the table."""
    column = tried.columns.index(variant)
    words = [block.compared[column].words for block in tried.blocks if block.kind in _LISTED]
    return ", ".join([tried.level(variant).upper(), *words])


_LISTED = ("classification", "detection", "text")
"""Kinds whose rows are answers; of the others the comparison itself is a row."""


def _make_table(tried: api.InputTrial) -> Table:
    from rich.table import Table
    from rich.text import Text

    from edgepack.base.terminal import make_printable

    rows = [[Text("output"), *map(Text, tried.columns)]]
    sections = []
    for block in tried.blocks:
        for number, row in enumerate(block.rows):
            label = f"{block.output if not number else ''} {row.label}".strip()
            rows.append(
                [
                    Text(make_printable(label)),
                    *(_style_text(cell.text, cell.level) for cell in row.cells),
                ]
            )
        if block.kind not in _LISTED and len(block.compared) > 1:
            against = map(_join_beside, block.compared[1:])
            rows.append([Text(f"beside {tried.columns[0]}"), Text(), *against])
        sections.append(len(rows) - 2)
    widths = _compute_widths(rows)
    table = Table(title=Text(make_printable(tried.name)), title_justify="left")
    table.min_width = sum(widths) + _BORDERS * len(widths) + 1
    for head, width in zip(rows[0], widths, strict=True):
        table.add_column(head, width=width, overflow="fold")
    for number, texts in enumerate(rows[1:]):
        table.add_row(*texts, end_section=number in sections)
    return table


_BORDERS = 3
"""Columns that a table puts around a cell, on each but the last side."""


def _compute_widths(rows: list[list[Text]]) -> list[int]:
    """Return the columns' widths: no id of a variant is folded, and texts are where they must."""
    from rich.console import Console

    from edgepack.cli.printing import LEAST_COLUMNS

    natural = [max(text.cell_len for text in column) for column in zip(*rows, strict=True)]
    room = max(Console().width, LEAST_COLUMNS) - _BORDERS * len(natural) - 1
    for most in range(max(natural), _NARROWEST, -1):
        widths = [max(rows[0][k].cell_len, min(width, most)) for k, width in enumerate(natural)]
        if sum(widths) <= room:
            return widths
    return [max(rows[0][k].cell_len, min(width, _NARROWEST)) for k, width in enumerate(natural)]


_NARROWEST = 16
"""Columns that texts have at least; a terminal that has no room for them wraps lines."""


def _join_beside(compared: api.Compared) -> Text:

    return _style_text(compared.words, compared.level)


def _style_text(text: str, level: str) -> Text:
    from rich.text import Text

    from edgepack.base.terminal import make_printable

    style = {"differs": "bold red", "near": "yellow"}.get(level, "")
    return Text(make_printable(text), style=style)
