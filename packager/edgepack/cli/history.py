"""``edgepack runs``: what was measured, and is kept in the results store."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from edgepack import api
from edgepack.cli.groups import QuickGroup
from edgepack.cli.options import JsonOption, ResultsOption, parse_moment

runs_app = typer.Typer(
    cls=QuickGroup, help="The stored reports of runs.", no_args_is_help=True, rich_markup_mode=None
)

RunArgument = Annotated[str, typer.Argument(help="A run's id.", show_default=False)]
SinceOption = Annotated[
    str | None, typer.Option(help="Only runs from then or later: ISO 8601, UTC.")
]


def open_store(url: str | None) -> api.ResultsStore:
    """Open the results store."""
    return api.ResultsStore(url)


@runs_app.command(
    "list",
    epilog="Examples: edgepack runs list --device pi5  |  edgepack runs list --by device",
)
def list_runs(
    project: Annotated[str | None, typer.Option(help="Only of this project.")] = None,
    target: Annotated[str | None, typer.Option(help="Only for this target.")] = None,
    device: Annotated[str | None, typer.Option(help="Only on this device.")] = None,
    device_model: Annotated[
        str | None, typer.Option(help="Only on devices of this model: 'Raspberry Pi 5 Model B'.")
    ] = None,
    variant: Annotated[str | None, typer.Option(help="Only with this variant.")] = None,
    runtime: Annotated[str | None, typer.Option(help="Only with this onnxruntime.")] = None,
    verdict: Annotated[
        Literal["VALID", "INVALID", "INCONCLUSIVE"] | None,
        typer.Option(help="Only with this verdict.", case_sensitive=False),
    ] = None,
    since: SinceOption = None,
    limit: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="How many of the newest runs [default: 50; all with --by]",
            show_default=False,
        ),
    ] = None,
    by: Annotated[
        Literal["device", "target", "variant"] | None,
        typer.Option(help="A line for each of these, the worst first, of the newest benchmarks."),
    ] = None,
    results: ResultsOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the stored reports, the newest last."""
    from edgepack.cli.printing import print_json, write_line

    store = open_store(results)
    most = limit or (None if by else 50)
    wanted = api.RunFilter(
        project=project,
        target=target,
        device=device,
        device_model=device_model,
        variant=variant,
        runtime=runtime,
        verdict=verdict,
        since=parse_moment(since) if since else None,
        limit=most,
    )
    rows = api.list_runs(store, wanted)
    if as_json:
        print_json(rows)
        return
    for line in api.format_groups(rows, by) if by else api.format_rows(rows):
        write_line(line)
    for label in () if by else api.explain_incomparable(store, rows):
        write_line(label)
    more = f", the newest {most}: --limit shows more" if len(rows) == most else ""
    write_line(f"from {store.name}{more}")


@runs_app.command(epilog="Example: edgepack runs show 20261121T093012Z-a1b2c3")
def show(run: RunArgument, results: ResultsOption = None, as_json: JsonOption = False) -> None:
    """Show one stored report."""
    from edgepack.cli.printing import print_json, print_table

    report = api.show_run(open_store(results), run)
    if as_json:
        print_json(report)
    else:
        print_table(api.make_report_table(report))


@runs_app.command(
    epilog="Example: edgepack runs prune --keep 20 --project detector --dry-run",
)
def prune(
    keep: Annotated[
        int,
        typer.Option(
            min=0,
            show_default=False,
            help="How many to keep of each project, target, device and variant: the newest.",
        ),
    ],
    project: Annotated[str | None, typer.Option(help="Only of this project.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only print what would be deleted.")
    ] = False,
    results: ResultsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Delete old reports."""
    from edgepack.cli.printing import print_json, write_line

    store = open_store(results)
    gone = api.prune_runs(store, keep, project, dry_run=dry_run)
    if as_json:
        print_json(gone)
        return
    if gone:
        for line in api.format_rows(gone):
            write_line(line)
    write_line(f"{len(gone)} {'would be deleted' if dry_run else 'deleted'} from {store.name}")


@runs_app.command(
    "import",
    epilog="Examples: edgepack runs import colleague/report.json"
    "  |  edgepack runs import trtexec.log --device orin --model detector",
)
def import_runs(
    files: Annotated[
        list[Path],
        typer.Argument(
            help="Report files, or logs of onnxruntime_perf_test, trtexec, OpenVINO's benchmark_app"
            " or LiteRT's benchmark_model.",
            show_default=False,
        ),
    ],
    device: Annotated[
        str | None, typer.Option(help="For logs: the device they come from, as you name it.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="For logs: the model's name, where the log lacks it.")
    ] = None,
    tool: Annotated[
        Literal["onnxruntime_perf_test", "trtexec", "benchmark_app", "litert_benchmark_model"]
        | None,
        typer.Option(help="For logs: the tool that wrote them [default: recognized]"),
    ] = None,
    results: ResultsOption = None,
) -> None:
    """Store what was measured elsewhere: all files, or none if one cannot be read."""
    from edgepack.cli.printing import write_line

    store = open_store(results)
    for report in api.import_runs(store, files, device=device, model=model, tool=tool):
        write_line(f"stored as {report.id}")


@runs_app.command(
    epilog="Examples: edgepack runs changes --project detector  |  edgepack runs changes --last 10"
    " --gate",
)
def changes(
    project: Annotated[str | None, typer.Option(help="Only of this project.")] = None,
    device_model: Annotated[
        str | None, typer.Option(help="Only on devices of this model: 'Raspberry Pi 5 Model B'.")
    ] = None,
    variant: Annotated[str | None, typer.Option(help="Only with this variant.")] = None,
    since: SinceOption = None,
    last: Annotated[
        int | None,
        typer.Option(min=1, help="Only changes that began within this many of the newest runs."),
    ] = None,
    gate: Annotated[
        bool,
        typer.Option("--gate", help="Fail (exit 10) if a model became slower or a device is slow."),
    ] = False,
    results: ResultsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show since when models are slower or faster, and which devices are slow, and the cause."""
    from edgepack.cli.printing import print_json, write_line

    wanted = api.RunFilter(
        kind="bench",
        project=project,
        device_model=device_model,
        variant=variant,
        since=parse_moment(since) if since else None,
    )
    found = api.find_newest_changes(api.find_changes(open_store(results), wanted), last)
    if as_json:
        print_json(found)
    else:
        for line in api.format_series(found):
            write_line(line)
    if gate:
        api.require_no_slowdown(found)


@runs_app.command(
    epilog="Examples: edgepack runs export -o runs.csv  |  edgepack runs export --device pi5"
    " --format bencher -o bmf.json",
)
def export(
    out: Annotated[
        Path, typer.Option("--out", "-o", help="The file to write.", show_default=False)
    ],
    runs: Annotated[
        list[str] | None, typer.Argument(help="Run ids [default: all]", show_default=False)
    ] = None,
    file_format: Annotated[
        Literal["json", "csv", "parquet", "bencher", "mlflow"] | None,
        typer.Option("--format", help="What to write [default: by the file's ending, else json]"),
    ] = None,
    project: Annotated[str | None, typer.Option(help="Only of this project.")] = None,
    device: Annotated[str | None, typer.Option(help="Only on this device.")] = None,
    since: SinceOption = None,
    samples: Annotated[
        bool, typer.Option("--samples", help="For csv and parquet: write a line for every query.")
    ] = False,
    every: Annotated[
        bool, typer.Option("--all", help="For bencher: write invalid and unfinished runs too.")
    ] = False,
    results: ResultsOption = None,
) -> None:
    """Write stored runs to a file that other tools read."""
    from edgepack.cli.printing import write_line

    store = open_store(results)
    moment = parse_moment(since) if since else None
    wanted = api.RunFilter(project=project, device=device, since=moment)
    ids = runs or [row.id for row in api.list_runs(store, wanted)]
    count = api.export_runs(store, ids, out, file_format, samples=samples, invalid=every)
    write_line(f"{count} run{'' if count == 1 else 's'} in {out}")
