"""``edgepack jobs``: commands on devices that a team's workers do."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from edgepack import api
from edgepack.cli.benching import bench
from edgepack.cli.comparing import compare
from edgepack.cli.groups import QuickGroup
from edgepack.cli.measuring import evaluate
from edgepack.cli.once import OnceCommand
from edgepack.cli.optimizing import optimize
from edgepack.cli.options import JsonOption, complete_selection, parse_seconds
from edgepack.cli.pushing import push, rollback
from edgepack.cli.tuning import tune
from edgepack.errors import BundleError, UsageError

jobs_app = typer.Typer(
    cls=QuickGroup,
    help="Commands on devices that a team's workers do, one at a time on each device.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

_COMMANDS: dict[str, Callable[..., None]] = {
    "push": push,
    "rollback": rollback,
    "bench": bench,
    "evaluate": evaluate,
    "compare": compare,
    "optimize": optimize,
    "tune": tune,
}
CANCELLED = 143
WIDE = 60
"""How many characters of a command a table shows."""


class JobState(StrEnum):
    """What a job may be."""

    waiting = "waiting"
    running = "running"
    done = "done"
    failed = "failed"
    cancelled = "cancelled"


NumberArgument = Annotated[
    int, typer.Argument(metavar="ID", help="The job's number.", show_default=False)
]


@jobs_app.command(
    epilog="Examples: edgepack jobs add -- bench dist --device tag:lab --variant all  |  "
    "edgepack jobs add --tries 5 -- push dist --device tag:lab --canary 1",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
def add(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="-- COMMAND...",
            help="push, rollback, bench, evaluate, compare, optimize or tune, with its arguments.",
            show_default=False,
        ),
    ],
    tries: Annotated[
        int, typer.Option(min=1, max=100, help="How often a job is tried at most.")
    ] = 3,
    as_json: JsonOption = False,
) -> None:
    """Add a job for each device that a command chooses, to be done in this folder by a worker.

    A push or rollback with --canary, --waves or --abort-at is one job for all its devices.
    """
    queue = api.JobQueue()
    _show(queue.add([replace(one, tries=tries) for one in _make_jobs(words)]), as_json=as_json)


@jobs_app.command("list", epilog="Example: edgepack jobs list --state waiting --state running")
def list_jobs(
    state: Annotated[
        list[JobState] | None,
        typer.Option(help="Only jobs that are so; repeat for more.", show_default=False),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="How many at most, the newest.")] = 50,
    as_json: JsonOption = False,
) -> None:
    """List the jobs, the newest last."""
    found = api.JobQueue().list_jobs(states=[one.value for one in state or ()], limit=limit)
    _show(found, as_json=as_json)


@jobs_app.command(epilog="Example: edgepack jobs show 17")
def show(number: NumberArgument, as_json: JsonOption = False) -> None:
    """Show a job: its command, what came of it, and the last of its output."""
    from edgepack.cli.printing import print_json, write_line

    job = api.JobQueue().load(number)
    if as_json:
        print_json(job)
        return
    for line in _format_job(job):
        write_line(line)


@jobs_app.command(epilog="Example: edgepack jobs cancel 17")
def cancel(number: NumberArgument, as_json: JsonOption = False) -> None:
    """Cancel a job; one that runs is stopped within seconds."""
    _show([api.JobQueue().cancel(number)], as_json=as_json)


@jobs_app.command(epilog="Example: edgepack jobs retry 17")
def retry(number: NumberArgument, as_json: JsonOption = False) -> None:
    """Do a job again that has failed or was cancelled."""
    _show([api.JobQueue().retry(number)], as_json=as_json)


@jobs_app.command(epilog="Example: edgepack jobs wait 17 18 --for 2h")
def wait(
    numbers: Annotated[
        list[int], typer.Argument(metavar="ID", help="The jobs' numbers.", show_default=False)
    ],
    most: Annotated[
        str | None,
        typer.Option(
            "--for",
            metavar="TIME",
            help="How long at most: 90s, 10m, 1h [default: until they end]",
            show_default=False,
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Wait until jobs have ended, and end with their exit code; of several, with the worst."""
    from edgepack.base.progress import make_terminal_progress

    most_s = None if most is None else parse_seconds(most, "--for")
    progress = make_terminal_progress()
    ended = api.wait_for_jobs(api.JobQueue(), numbers, most_s=most_s, progress=progress)
    _show(ended, as_json=as_json)
    if code := api.choose_worst_code(_find_code(job) for job in ended):
        raise typer.Exit(code)


@jobs_app.command(
    epilog="Examples: edgepack jobs work --only tag:lab  |  edgepack jobs work --until-empty"
)
def work(
    only: Annotated[
        list[str] | None,
        typer.Option(
            help="What chooses the devices that this worker reaches [default: all of its"
            " devices.yaml]; repeat for more.",
            autocompletion=complete_selection,
            show_default=False,
        ),
    ] = None,
    until_empty: Annotated[
        bool,
        typer.Option("--until-empty", help="End once no job for these devices waits or runs."),
    ] = False,
) -> None:
    """Do jobs, one after the other; start several workers for several devices at once.

    SIGTERM or Ctrl-C stops the job and gives it back. With --until-empty, the exit code is the
    worst of the jobs that this worker has ended.
    """
    from edgepack.base.progress import make_terminal_progress

    settings = api.WorkSettings(only=only or ["all"], until_empty=until_empty)
    ended = api.work_on_jobs(api.JobQueue(), settings, progress=make_terminal_progress())
    if code := api.choose_worst_code(ended):
        raise typer.Exit(code)


def _make_jobs(words: Sequence[str]) -> list[api.NewJob]:
    """Return a command's jobs.

    Raises:
        UsageError: It is no command that a job may be, or its arguments are wrong.
        BundleError: Its bundle is missing or was changed.
        TyperException: The command line does not take the arguments.
    """
    command = words[0]
    if command not in _COMMANDS:
        raise UsageError(
            f"{command!r} is no command that a job may be",
            hint=f"these are: {', '.join(_COMMANDS)}",
        )
    asked = _parse(words)
    if asked.get("results"):
        raise UsageError(
            "a job's results go into the team's database",
            hint="leave --results out: it would lie in the job, and may have a password in it",
            where="--results",
        )
    devices = [device.name for device in api.select_devices(asked["device"])]
    listed = {device.name for device in api.select_devices(["all"])}
    if foreign := [name for name in devices if name not in listed]:
        raise UsageError(
            f"{foreign[0]!r} is another machine for each worker",
            hint="name a device of devices.yaml or of the team",
            where="--device",
        )
    is_rollout = (
        asked.get("canary") or asked.get("waves", 1) > 1 or asked.get("abort_at") is not None
    )
    chosen = [tuple(devices)] if is_rollout else [(name,) for name in devices]
    commands = [(_choose_devices(words, each, asked), each) for each in chosen]
    folder, bundles = str(Path.cwd()), _find_digests(asked)
    return [api.NewJob(command, each, folder, bundles) for command, each in commands]


def _parse(words: Sequence[str]) -> dict[str, Any]:
    """Return a command's parameters as the command line understands them."""
    from typer.main import get_command

    try:
        "\0".join(words).encode()
    except UnicodeEncodeError as error:
        raise UsageError(
            "a word of the command is no text", hint="rename the file that has such a name"
        ) from error
    app = typer.Typer(add_completion=False)
    app.command(cls=OnceCommand)(_COMMANDS[words[0]])
    context = get_command(app).make_context(f"edgepack {words[0]}", list(words[1:]))
    return dict(context.params)


def _choose_devices(
    words: Sequence[str], devices: Sequence[str], asked: Mapping[str, Any]
) -> tuple[str, ...]:
    """Return a command for these devices, instead of those that it chooses.

    Raises:
        UsageError: What chooses devices does not stand alone.
    """
    kept: list[str] = []
    rest = iter(words[1:])
    for word in rest:
        if word == "--device":
            next(rest, None)
        elif not word.startswith("--device="):
            kept.append(word)
    chosen = [part for name in devices for part in ("--device", name)]
    made = (words[0], *chosen, *kept)
    if _parse(made) != {**asked, "device": list(devices)}:
        raise UsageError(
            f"what is meant is not clear: {' '.join(words)}",
            hint="write what chooses devices as --device NAME, before other arguments",
        )
    return made


def _find_digests(asked: Mapping[str, Any]) -> dict[str, str]:
    """Return the digests of the bundles that a command names, by their absolute paths.

    What is no folder here is left to the command: ``current``, or a place elsewhere.
    """
    given = [asked.get(name) for name in ("bundle", "base", "candidate")]
    paths = [
        Path(path)
        for each in given
        for path in (each if isinstance(each, list) else [each])
        if path
    ]
    named = [path for path in paths if path.is_dir()]
    for path in paths:
        if path not in named and str(path) != "current" and ":" not in str(path):
            raise BundleError(
                "there is no bundle", hint="edgepack build makes bundles, in dist", where=str(path)
            )
    found = [one for path in named for one in api.load_bundles_by_target([path]).values()]
    return {str(one.path.resolve()): one.digest for one in found}


def _show(jobs: Sequence[api.Job], *, as_json: bool) -> None:
    from edgepack.cli.printing import print_json, print_rows, write_line

    if as_json:
        print_json(jobs)
    elif jobs:
        print_rows(("job", "state", "device", "command", ""), [_make_cells(job) for job in jobs])
    else:
        write_line("there are no such jobs")


def _make_cells(job: api.Job) -> tuple[str, ...]:
    command = " ".join(job.words)
    devices = job.devices[0] if len(job.devices) == 1 else f"{len(job.devices)} devices"
    found = job.note.partition("\n")[0]
    if job.state == "running":
        found = "is being stopped" if job.stopping else f"since {job.started}, by {job.worker}"
    elif job.state == "failed" and not found:
        said = [line for line in job.output.splitlines() if line.startswith("error:")]
        found = said[-1] if said else f"exit code {job.exit_code}"
    state = job.state if job.attempt <= 1 else f"{job.state} ({job.attempt})"
    shown = command if len(command) <= WIDE else f"{command[: WIDE - 3]}..."
    return str(job.id), state, devices, shown, found


def _format_job(job: api.Job) -> list[str]:
    import shlex

    lines = [
        f"job {job.id} is {job.state}: edgepack {shlex.join(job.words)}",
        f"in {job.folder}, for {', '.join(job.devices)}",
        f"added {job.added} by {job.owner}",
        f"taken up {job.attempt} times; {job.tries_left} of {job.tries} tries left",
    ]
    lines += [f"bundle {path}: {digest}" for path, digest in job.bundles.items()]
    if job.worker:
        ended = f", ended {job.ended}" if job.ended else ""
        lines.append(f"begun {job.started} by {job.worker}{ended}")
    if job.state == "waiting" and job.note:
        lines.append(f"not before {job.not_before}: {job.note}")
    elif job.note:
        lines.append(job.note)
    for run in job.runs:
        given_up = "" if run.attempt == job.attempt else ", in a try that was given up afterwards"
        lines.append(f"report {run.id}{given_up}")
    if job.exit_code is not None:
        lines.append(f"exit code {job.exit_code}")
    return [*lines, *(f"  | {line}" for line in job.output.splitlines())]


def _find_code(job: api.Job) -> int:
    """Return the exit code that says what a job came to; one that has not ended is pending."""
    if job.state in ("waiting", "running"):
        return 8
    return CANCELLED if job.state == "cancelled" else job.exit_code or int(job.state == "failed")
