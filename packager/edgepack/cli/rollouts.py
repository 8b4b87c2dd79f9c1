"""``edgepack rollout``, and how commands that change several devices begin one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from edgepack import api
from edgepack.base.bugs import TITLE
from edgepack.base.machine import find_own_name
from edgepack.cli.groups import QuickGroup
from edgepack.cli.options import JsonOption, complete_selection
from edgepack.errors import (
    REPORT_IT,
    BugError,
    DeviceError,
    EdgepackError,
    RemoteCommandError,
    UsageError,
    format_one_line,
)

if TYPE_CHECKING:
    from edgepack.base.progress import Progress

Result = TypeVar("Result")

rollout_app = typer.Typer(
    cls=QuickGroup,
    help="Pushes, rollbacks and provisioning that are kept.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

SOME_PENDING = DeviceError.exit_code
SOME_FAILED = RemoteCommandError.exit_code


def complete_rollouts(incomplete: str) -> list[str]:
    """Return the numbers of rollouts for tab completion; nothing if the store cannot be read."""
    try:
        numbers = [str(rollout.id) for rollout in api.open_rollout_store().list_all().rollouts]
    except EdgepackError:
        return []
    return [number for number in numbers if number.startswith(incomplete)]


BundlesArgument = Annotated[
    list[Path],
    typer.Argument(
        metavar="BUNDLE",
        help="Bundles' folders, or a folder of bundles: each device gets the one for its target.",
        show_default=False,
    ),
]
DevicesOption = Annotated[
    list[str],
    typer.Option(
        help="A device of devices.yaml, 'local', tag:NAME, target:ID, backend:NAME (what its target"
        " runs on) or 'all'; repeat for more.",
        autocompletion=complete_selection,
        show_default=False,
    ),
]
ParallelOption = Annotated[int, typer.Option(min=1, help="Devices at a time.")]
DeadlineOption = Annotated[
    float, typer.Option(min=1, metavar="SECONDS", help="How long one device may take.")
]
TriesOption = Annotated[
    int, typer.Option(min=1, help="How often to try a device that cannot be reached.")
]
CanaryOption = Annotated[int, typer.Option(min=0, help="How many devices go first.")]
WavesOption = Annotated[int, typer.Option(min=1, help="How many waves the other devices form.")]
AbortAtOption = Annotated[
    float | None,
    typer.Option(
        min=0,
        max=100,
        metavar="PERCENT",
        help="Start no more devices once more of a wave failed"
        " [default: 0 with --canary or --waves, else 100]",
        show_default=False,
    ),
]
NoSelfTestOption = Annotated[
    bool,
    typer.Option("--no-self-test", help="Make it current without a trial by the device's loader."),
]
WarmUpOption = Annotated[
    float | None,
    typer.Option(
        "--warm-up",
        min=1,
        metavar="SECONDS",
        help="How long a device's loader may try variants and build engines"
        " [default: 900, or --deadline]",
        show_default=False,
    ),
]
NumberArgument = Annotated[
    int | None,
    typer.Argument(metavar="ID", help="The rollout's number.", autocompletion=complete_rollouts),
]


def make_settings(
    *,
    parallel: int,
    deadline: float,
    tries: int,
    canary: int,
    waves: int,
    abort_at: float | None,
) -> api.RolloutSettings:
    """Return how a rollout is worked through."""
    return api.RolloutSettings(
        parallel=parallel,
        deadline_s=deadline,
        tries=tries,
        canary=canary,
        waves=waves,
        abort_at=(0.0 if canary or waves > 1 else 100.0) if abort_at is None else abort_at,
    )


def run_rollout(rollout: api.Rollout, store: api.RolloutStore, *, as_json: bool) -> None:
    """Run a rollout, and end with the exit code that says how far it is."""
    _end([_run(rollout, store)], as_json=as_json)


def act_on_one(act: Callable[[Progress], Result]) -> Result:
    """Do on one device what is kept as a rollout; where it is pending, report that.

    Raises:
        EdgepackError: What went wrong.
    """
    from edgepack.base.progress import make_terminal_progress

    progress = make_terminal_progress()
    try:
        return act(progress)
    except EdgepackError as error:
        if error.transient:
            progress.note("it is pending: 'edgepack rollout resume' tries again")
        raise


@rollout_app.command("list", epilog="Example: edgepack rollout list")
def list_rollouts(as_json: JsonOption = False) -> None:
    """List the rollouts."""
    from edgepack.cli.printing import print_json, write_line

    store = api.open_rollout_store()
    listing = api.list_rollouts(store)
    if as_json:
        print_json(listing.rollouts)
    else:
        for rollout in listing.rollouts:
            write_line(_format_headline(rollout))
        write_line(f"from {store.name}")
    for problem in listing.broken:
        typer.echo(f"error: {problem}", err=True)


@rollout_app.command(epilog="Example: edgepack rollout status 7")
def status(number: NumberArgument = None, as_json: JsonOption = False) -> None:
    """Show how far a rollout is [default: the newest]; the exit code shows it too."""
    _end([api.read_rollout(number, api.open_rollout_store())], as_json=as_json)


@rollout_app.command(epilog="Example for cron: edgepack rollout resume")
def resume(
    number: NumberArgument = None,
    bundle: Annotated[
        list[Path] | None,
        typer.Option(
            help="The rollout's bundles, where they lie elsewhere by now, as on your machine.",
            show_default=False,
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Go on with the devices that are pending [default: of all rollouts]."""
    store = api.open_rollout_store()
    if number is not None:
        _end([_run(store.load(number), store, bundle or ())], as_json=as_json)
        return
    if bundle:
        raise UsageError(
            "--bundle is for one rollout",
            hint="give its ID: edgepack rollout list",
            where="--bundle",
        )
    run, errors = [], []
    for rollout in _open_rollouts(store):
        try:
            run.append(_run(rollout, store))
        except EdgepackError as error:  # one that cannot go on does not hold up the others
            typer.echo(f"error: {error}", err=True)
            errors.append(error)
    _end(run, as_json=as_json, single=False, errors=errors)


@rollout_app.command(epilog="Example: edgepack rollout abort 7")
def abort(number: NumberArgument = None) -> None:
    """Start no more devices of a rollout; what runs goes on to its end."""
    from edgepack.cli.printing import write_line

    store = api.open_rollout_store()
    rollouts = _open_rollouts(store) if number is None else [store.load(number)]
    if len(rollouts) != 1:
        numbers = ", ".join(str(rollout.id) for rollout in rollouts) or "none"
        raise UsageError(
            f"it is not clear which rollout is meant: {numbers} could go on",
            hint="give its number: edgepack rollout list",
        )
    for line in _format_rollout(api.abort_rollout(rollouts[0].id, store)):
        write_line(line)


def _open_rollouts(store: api.RolloutStore) -> list[api.Rollout]:
    """Return the rollouts that can go on, oldest first; a broken one is an error on stderr."""
    listing = api.list_rollouts(store)
    for problem in listing.broken:
        typer.echo(f"error: {problem}", err=True)
    return [rollout for rollout in listing.rollouts if rollout.pending and not rollout.stopped]


def _run(rollout: api.Rollout, store: api.RolloutStore, moved: Sequence[Path] = ()) -> api.Rollout:
    from edgepack.cli.fleet_view import watch

    with watch([] if rollout.stopped else rollout.pending) as watcher:
        return api.resume_rollout(rollout.id, store, watcher=watcher, moved=moved)


def _end(
    rollouts: Sequence[api.Rollout],
    *,
    as_json: bool,
    single: bool = True,
    errors: Sequence[EdgepackError] = (),
) -> None:
    """Print how far rollouts are, and end with the exit code that says it."""
    from edgepack.cli.printing import print_json, write_line

    if as_json:
        print_json(rollouts[0] if single else rollouts)
    else:
        for line in [line for rollout in rollouts for line in _format_rollout(rollout)]:
            write_line(line)
        if not rollouts and not errors:
            write_line("nothing is pending")
    if errors:
        raise typer.Exit(errors[0].exit_code)
    if bugs := _list_bugs(rollouts):
        typer.echo("\n".join([*bugs, REPORT_IT]), err=True)
        raise typer.Exit(BugError.exit_code)
    states = {state for rollout in rollouts for state in rollout.counts}
    if "failed" in states:
        raise typer.Exit(SOME_FAILED)
    if "pending" in states:
        raise typer.Exit(SOME_PENDING)


def _list_bugs(rollouts: Sequence[api.Rollout]) -> list[str]:
    """Return the reports of what edgepack did not foresee on devices."""
    return [
        f"{name}: {record.problem}"
        for rollout in rollouts
        for name, record in rollout.devices.items()
        if record.state == "failed" and record.problem.startswith(TITLE)
    ]


def _format_rollout(rollout: api.Rollout) -> list[str]:
    lines = [_format_headline(rollout)]
    for name, record in rollout.devices.items():
        if record.state in ("failed", "pending"):
            is_bug = record.problem.startswith(TITLE)
            said = record.problem.partition("\n")[0] if is_bug else format_one_line(record.problem)
            problem = said or "not started"
            lines.append(f"{name} {record.state}: {problem}")
            if record.state == "failed" and record.hint:
                lines.append(f"  hint: {record.hint}")
    if rollout.pending and not rollout.stopped:
        lines.append(f"to go on: edgepack rollout resume {rollout.id}")
    return lines


def _format_headline(rollout: api.Rollout) -> str:
    counts = rollout.counts
    order = ("done", "pending", "failed", "superseded")
    said = ", ".join(f"{counts[state]} {state}" for state in order if counts[state])
    stopped = f"; stopped: {rollout.stopped}" if rollout.stopped else ""
    versions = "/".join(sorted({bundle.version for bundle in rollout.bundles.values()}))
    what = {
        "push": f"of {rollout.project} {versions}",
        "rollback": f"back, of {rollout.project}",
        "provision": "of runtimes",
    }[rollout.options.action]
    by = f" by {rollout.by}" if rollout.by not in ("", find_own_name()) else ""
    return f"rollout {rollout.id} {what}{by}: {said}{stopped}"
