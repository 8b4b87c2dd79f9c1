"""``bench``, ``evaluate``, ``runs``, ``report`` and ``demo``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edgepack.cli.options import (
    BundleArgument,
    DeviceOption,
    JsonOption,
    ProjectOption,
    VariantOption,
    WaitOption,
)

if TYPE_CHECKING:
    from edgepack.bench.report import RunReport

runs_app = typer.Typer(
    help="The reports that are stored here.", no_args_is_help=True, rich_markup_mode=None
)


def bench(
    bundle: BundleArgument,
    device: DeviceOption,
    preset: Annotated[str, typer.Option(help="quick, standard, gate or smoke.")] = "standard",
    variant: VariantOption = None,
    wait_s: WaitOption = 0.0,
    html: Annotated[Path | None, typer.Option(help="Write an HTML report here.")] = None,
    self_test: Annotated[
        bool,
        typer.Option(
            "--self-test", help="Measure it against itself, to learn how noisy the device is."
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Measure a bundle on a device, with a verdict."""
    from edgepack.bench import bench as bench_bundle
    from edgepack.bench import require_valid
    from edgepack.cli.printing import print_json, write_line
    from edgepack.devices import load_device
    from edgepack.errors import UsageError
    from edgepack.progress import terminal_progress
    from edgepack.results import save_report, write_html

    if self_test:
        if html:
            raise UsageError("--self-test makes no report for --html", hint="leave one of them out")
        _self_test(bundle, device, preset=preset, variant=variant, wait_s=wait_s, as_json=as_json)
        return

    def keep(report: RunReport) -> None:
        stored = save_report(report)
        if html:
            write_html([report], html)
        if as_json:
            print_json(report)
            return
        _print_report(report)
        write_line(f"stored as {stored}")
        if html:
            write_line(f"report: {html}")

    report = bench_bundle(
        bundle,
        load_device(device),
        preset=preset,
        variant=variant,
        wait_s=wait_s,
        progress=terminal_progress(),
        on_unfinished=keep,
    )
    keep(report)
    require_valid(report, bundle)


def _self_test(
    bundle: Path, device: str, *, preset: str, variant: str | None, wait_s: float, as_json: bool
) -> None:
    from edgepack.bench.presets import find_preset
    from edgepack.cli.printing import print_json, write_line
    from edgepack.comparison import Question, measure_noise
    from edgepack.devices import load_device
    from edgepack.errors import InconclusiveError
    from edgepack.progress import terminal_progress

    question = Question(bundle, variant=variant, preset=find_preset(preset), wait_s=wait_s)
    noise = measure_noise(question, load_device(device), progress=terminal_progress())
    if as_json:
        print_json(noise)
    else:
        write_line(f"{noise.device}, {noise.variant}, {noise.pairs} pairs of process runs")
        write_line(f"medians of runs deviate by {noise.run_deviation:.1%}")
        write_line(f"ratios of pairs deviate by {noise.pair_deviation:.1%}")
        write_line(f"second of a pair over the first: {noise.order_ratio - 1:+.1%}")
        write_line(
            f"smallest change that 'edgepack compare' shows here: {noise.smallest_slowdown:.1%}"
            f" beyond what is allowed, in 95 % of cases, within {noise.pairs} pairs"
        )
    if noise.reasons:
        raise InconclusiveError(
            "".join(["the runs may not be used", *(f"\n  - {each}" for each in noise.reasons)]),
            hint="let the device cool down and idle, and measure again",
            where=noise.device,
        )


def evaluate(
    bundle: BundleArgument,
    device: DeviceOption,
    project: ProjectOption = None,
    variant: VariantOption = None,
    wait_s: WaitOption = 0.0,
    as_json: JsonOption = False,
) -> None:
    """Measure the project's metric on a device."""
    from edgepack.bench import evaluate as evaluate_bundle
    from edgepack.cli.printing import print_device_accuracy, print_json
    from edgepack.devices import load_device
    from edgepack.progress import terminal_progress

    accuracy = evaluate_bundle(
        bundle,
        load_device(device),
        project=project,
        variant=variant,
        wait_s=wait_s,
        progress=terminal_progress(),
    )
    if as_json:
        print_json(accuracy)
    else:
        print_device_accuracy(accuracy)


@runs_app.command("list", epilog="Example: edgepack runs list")
def list_runs(as_json: JsonOption = False) -> None:
    """List the stored reports."""
    from edgepack.cli.printing import print_json, print_table, write_line
    from edgepack.results import list_reports, reports_dir, reports_table

    listing = list_reports()
    if as_json:
        print_json([report.id for report in listing.reports])
    else:
        print_table(reports_table(listing.reports))
        write_line(f"from {reports_dir()}")
    for problem in listing.broken:
        typer.echo(f"error: {problem}", err=True)


@runs_app.command(epilog="Example: edgepack runs show RUN")
def show(
    run: Annotated[str, typer.Argument(help="A run's id.")], as_json: JsonOption = False
) -> None:
    """Show one stored report."""
    from edgepack.cli.printing import print_json
    from edgepack.results import load_report

    report = load_report(run)
    if as_json:
        print_json(report)
    else:
        _print_report(report)


def report(
    runs: Annotated[list[str] | None, typer.Argument(help="Run ids [default: all]")] = None,
    html: Annotated[Path, typer.Option(help="The file to write.")] = Path("report.html"),
) -> None:
    """Write one HTML file about stored runs."""
    from edgepack.cli.printing import write_line
    from edgepack.results import list_reports, load_report, write_html

    reports = [load_report(run) for run in runs] if runs else list_reports().reports
    write_line(str(write_html(reports, html)))


def demo(
    out: Annotated[Path, typer.Option(help="Where the bundle and the report go.")] = Path("demo"),
) -> None:
    """Show the whole road on the bundled example."""
    from edgepack.cli.printing import print_build, write_line
    from edgepack.demo import demo as run_demo
    from edgepack.progress import terminal_progress

    done = run_demo(out, progress=terminal_progress())
    print_build(done.build)
    _print_report(done.report)
    write_line(f"report: {done.html}")


def _print_report(report: RunReport) -> None:
    from edgepack.cli.printing import print_table
    from edgepack.results import report_table

    print_table(report_table(report))
