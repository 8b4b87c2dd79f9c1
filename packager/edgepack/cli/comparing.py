"""``compare``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from edgepack import api
from edgepack.cli.options import BundleArgument, JsonOption, TuneOption, VariantOption, WaitOption
from edgepack.cli.rollouts import DevicesOption

_CURRENT = "current"
_OUTCOME_STYLES = {"PASS": "bold green", "FAIL": "bold red", "INCONCLUSIVE": "bold yellow"}

MarginOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="METRIC=PERCENT",
        help="The slowdown that is allowed; repeat for more [default: p50=3, p90=5]",
        show_default=False,
    ),
]
PairsOption = Annotated[
    int, typer.Option(min=6, help="The most pairs of process runs to measure; an even number.")
]


def compare(
    base: Annotated[
        Path,
        typer.Argument(
            help="A bundle's folder, or 'current': the release in use on the device.",
            show_default=False,
        ),
    ],
    candidate: BundleArgument,
    device: DevicesOption,
    variant: VariantOption = None,
    preset: Annotated[str, typer.Option(help="gate, standard, quick or smoke.")] = "gate",
    margin: MarginOption = None,
    max_pairs: PairsOption = 20,
    error: Annotated[
        float,
        typer.Option(min=0.01, max=49, metavar="PERCENT", help="The chance of a false FAIL."),
    ] = 1.0,
    tune: TuneOption = False,
    wait_s: WaitOption = 0.0,
    junit: Annotated[Path | None, typer.Option(help="Write JUnit XML here.")] = None,
    markdown: Annotated[
        Path | None, typer.Option(help="Write a comment for a pull request here.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Report whether a bundle is slower than another on a device: PASS, FAIL or INCONCLUSIVE."""
    from edgepack.base.files import ELSEWHERE, SHARED, require_writable, write_atomically, writing
    from edgepack.base.progress import Lines, make_terminal_progress
    from edgepack.cli.printing import print_json

    question = api.CompareQuestion(
        candidate=candidate,
        base=None if str(base) == _CURRENT else base,
        variant=variant,
        preset=api.find_preset(preset),
        rule=_make_rule(error, max_pairs),
        tune=tune,
        wait_s=wait_s,
    )
    if margin:
        question = replace(question, margins=_parse_margins(margin))
    devices = api.select_devices(device)
    for path, option in ((junit, "--junit"), (markdown, "--markdown")):
        if path:
            require_writable(path, option)
    progress = make_terminal_progress() if len(devices) == 1 else Lines()

    def show(found: api.Comparison) -> None:
        for path, make in (
            (junit, api.format_comparison_junit),
            (markdown, api.format_comparison_markdown),
        ):
            if path:
                with writing("the comparison", path, ELSEWHERE):
                    write_atomically(path, make(found), mode=SHARED)
        if as_json:
            print_json(found)
        else:
            _print_comparison(found)

    found = api.compare(question, devices, progress=progress, on_interrupted=show)
    show(found)
    _end(found)


def _parse_margins(given: list[str]) -> dict[str, float]:
    from edgepack.errors import UsageError

    found = {}
    for text in given:
        name, _, percent = text.partition("=")
        try:
            found[name] = float(percent.removesuffix("%")) / 100
        except ValueError:
            raise UsageError(
                f"{text!r} is no margin", hint="write --margin p50=3", where="--margin"
            ) from None
    return found


def _make_rule(error: float, max_pairs: int) -> api.Rule:
    from edgepack.errors import UsageError

    try:
        return api.Rule(error / 100, max_pairs)
    except ValueError as problem:
        raise UsageError(str(problem), hint="20 is the default", where="--max-pairs") from None


def _print_comparison(found: api.Comparison) -> None:
    from rich.table import Table
    from rich.text import Text

    from edgepack.base.terminal import make_printable
    from edgepack.cli.printing import print_table, write_line

    table = Table()
    for head in api.COMPARISON_HEADS:
        table.add_column(head)
    for row in api.format_comparison_rows(found):
        *cells, outcome = (make_printable(cell) for cell in row)
        table.add_row(*map(Text, cells), Text(outcome, style=_OUTCOME_STYLES[outcome]))
    print_table(table)
    for device in found.devices:
        write_line(f"{device.device}: {device.outcome} after {device.pairs} pairs")
        for reason in (*device.reasons, *device.notes):
            write_line(f"  - {reason}")
    for lost in found.not_compared:
        write_line(f"{lost.device}: not compared: {lost.problem}")
        write_line(f"  hint: {lost.hint}")


def _end(found: api.Comparison) -> None:
    """End with the exit code of the outcome."""
    from edgepack.errors import InconclusiveError, LimitError

    names = [one.device for one in found.devices if one.outcome == found.outcome]
    if found.outcome == "INCONCLUSIVE":
        names += [one.device for one in found.not_compared]
    devices = ", ".join(names)
    if found.outcome == "FAIL":
        raise LimitError(
            f"the candidate FAILs on {devices}",
            hint="see the reasons above; 'edgepack bench' of both shows which nodes take the time",
        )
    if found.outcome == "INCONCLUSIVE":
        raise InconclusiveError(
            f"the comparison is INCONCLUSIVE on {devices}",
            hint="let the device idle, or allow more pairs: --max-pairs; 'edgepack bench"
            " --self-test' measures how noisy it is",
        )
