"""What commands do on one device, done on all that were chosen: one table, one exit code."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from edgepack import api
from edgepack.cli.options import complete_selection
from edgepack.errors import BugError, EdgepackError, InconclusiveError, LimitError, UsageError

if TYPE_CHECKING:
    from edgepack.base.progress import Progress

Result = TypeVar("Result")

MEASURING_S = 12 * 3600.0
"""How long one device may measure: a sustained benchmark of several variants takes hours."""

NamesArgument = Annotated[
    list[str],
    typer.Argument(
        metavar="DEVICE",
        help="A device of devices.yaml, tag:NAME, target:ID, backend:NAME or 'all'; several may"
        " be given.",
        autocompletion=complete_selection,
        show_default=False,
    ),
]


def require_one_device(words: Sequence[str], option: str) -> api.Device:
    """Return the device that is meant, where an option is for one only.

    Raises:
        UsageError: The words choose several.
    """
    if not api.is_one_device(words):
        raise UsageError(
            f"{option} is for one device, and {' '.join(words)} may be several",
            hint=f"name one device, or leave {option} out",
            where=option,
        )
    return api.select_devices(words)[0]


def choose_bundle(device: api.Device, bundles: Mapping[str, api.AnyBundle]) -> Path:
    """Return the bundle for a device's target, or the only one, which is then checked when used.

    Raises:
        DeviceError: There are several, and none for its target.
    """
    if len(bundles) == 1:
        return next(iter(bundles.values())).path
    return api.find_bundle(device, bundles).path


def do_on_chosen(
    words: Sequence[str],
    action: Callable[[api.Device, Progress], Result],
    *,
    show: Callable[[Result], None],
    summarize: Callable[[Result], str],
    judge: Callable[[Result], None] = lambda _: None,
    settings: api.RolloutSettings | None = None,
    as_json: bool,
) -> dict[str, Result]:
    """Do something on the chosen devices, print what came of it, and return the results.

    Args:
        words: What chooses devices. One device's name is done at once, and shown whole.
        action: Does it, on a device.
        show: Prints the result of one device.
        summarize: Returns a result as a cell of the table of several devices.
        judge: Raises an EdgepackError if a result is no good.
        settings: How several devices are worked through.
        as_json: Whether to print JSON instead.

    Raises:
        EdgepackError: What went wrong on the one device; of several, the table has it, and the
            command ends with :func:`.api.choose_exit_code`.
    """
    from edgepack.base.progress import make_terminal_progress
    from edgepack.cli.fleet_view import watch
    from edgepack.cli.printing import print_json

    devices = api.select_devices(words)
    if api.is_one_device(words):
        result = action(devices[0], make_terminal_progress())
        if as_json:
            print_json(result)
        else:
            show(result)
        judge(result)
        return {devices[0].name: result}
    with watch([device.name for device in devices]) as watcher:

        def act(device: api.Device, progress: Progress) -> Result:
            result = action(device, progress)
            watcher.show(device.name, summarize(result))
            return result

        outcomes = api.do_on_devices(devices, act, judge=judge, settings=settings, watcher=watcher)
    show_outcomes(outcomes, summarize, as_json=as_json)
    return {each.device: each.result for each in outcomes if each.result is not None}


def show_outcomes(
    outcomes: Sequence[api.Outcome[Result]],
    summarize: Callable[[Result], str],
    *,
    as_json: bool,
    what: str = "device",
) -> None:
    """Print what came of several devices, and end the command if anything went wrong.

    Args:
        outcomes: Of each.
        summarize: Returns a result as a cell of the table.
        as_json: Whether to print JSON instead.
        what: What was done, if not a device.
    """
    from edgepack.cli.printing import print_json

    if as_json:
        print_json({f"{what}s": {each.device: make_document(each) for each in outcomes}})
    else:
        print_outcomes(outcomes, summarize, what)
    if code := api.choose_exit_code(each.error for each in outcomes):
        raise typer.Exit(code)


def _find_state(error: EdgepackError | None) -> str:
    """Return one word for what came of it: a measurement that settles nothing is no failure."""
    if error is None:
        return "done"
    if isinstance(error, InconclusiveError):
        return "inconclusive"
    return "missed" if isinstance(error, LimitError) else "failed"


def make_document(outcome: api.Outcome[Result]) -> dict[str, object]:
    """Return what came of it on one device, for JSON."""
    return {
        "state": _find_state(outcome.error),
        "problem": outcome.error.problem if outcome.error else "",
        "hint": outcome.error.hint if outcome.error else "",
        "exit_code": outcome.error.exit_code if outcome.error else 0,
        "result": outcome.result,
    }


def print_outcomes(
    outcomes: Sequence[api.Outcome[Result]],
    summarize: Callable[[Result], str],
    what: str = "device",
) -> None:
    """Print a line for each device, what went wrong first, and each hint once."""
    from rich.table import Table
    from rich.text import Text

    from edgepack.base.terminal import make_printable
    from edgepack.cli.printing import print_table, write_line

    table = Table(what, "state", "found")
    for each in sorted(outcomes, key=lambda each: each.error is None):
        found = "" if each.result is None else summarize(each.result)
        if each.error is not None:
            found = f"{found}; {each.error.first_line}" if found else each.error.first_line
        cells = (each.device, _find_state(each.error), found)
        table.add_row(*(Text(make_printable(cell)) for cell in cells))
    print_table(table)
    for hint in dict.fromkeys(each.error.hint for each in outcomes if each.error):
        write_line(f"  hint: {hint}")
    for each in outcomes:
        if isinstance(each.error, BugError):
            typer.echo(f"{each.device}: {each.error.problem}", err=True)
