"""``bench``, ``evaluate`` and ``demo``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from edgepack import api
from edgepack.cli.history import open_store
from edgepack.cli.options import (
    BundleArgument,
    DeviceOption,
    JsonOption,
    ProjectOption,
    ResultsOption,
    TuneOption,
    VariantOption,
    WaitOption,
)

ScenarioOption = Annotated[
    str,
    typer.Option(help="single-stream, multi-stream, server or offline, as MLPerf defines them."),
]
QueriesOption = Annotated[
    float | None,
    typer.Option("--qps", help="server: queries per second, on average.", show_default=False),
]
BoundOption = Annotated[
    float | None,
    typer.Option(
        "--latency-bound-ms",
        help="server: the latency that 99 % of the queries must meet.",
        show_default=False,
    ),
]
SamplesOption = Annotated[
    int | None,
    typer.Option(help="multi-stream: inferences in a query [default: 8]", show_default=False),
]
BatchOption = Annotated[
    list[int] | None,
    typer.Option(help="Also measure this batch size; repeat for more.", show_default=False),
]
ShapeOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=1x3x320x320",
        help="Also measure an input of this shape; repeat for more.",
        show_default=False,
    ),
]


def bench(
    bundle: BundleArgument,
    device: DeviceOption,
    preset: Annotated[
        str, typer.Option(help="quick, standard, gate, sustained or smoke.")
    ] = "standard",
    variant: VariantOption = None,
    scenario: ScenarioOption = "single-stream",
    queries_per_s: QueriesOption = None,
    latency_bound_ms: BoundOption = None,
    samples_per_query: SamplesOption = None,
    batch: BatchOption = None,
    shape: ShapeOption = None,
    wait_s: WaitOption = 0.0,
    html: Annotated[Path | None, typer.Option(help="Write an HTML report here.")] = None,
    perfetto: Annotated[
        Path | None, typer.Option(help="Write a trace for Perfetto here.", show_default=False)
    ] = None,
    tune: TuneOption = False,
    self_test: Annotated[
        bool,
        typer.Option(
            "--self-test", help="Measure the bundle against itself, to see how noisy the device is."
        ),
    ] = False,
    results: ResultsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Measure a bundle on a device, with a verdict."""
    from edgepack.base.progress import make_terminal_progress
    from edgepack.cli.printing import print_json, write_line
    from edgepack.errors import UsageError

    load = api.make_scenario(
        scenario,
        queries_per_s=queries_per_s,
        latency_bound_ms=latency_bound_ms,
        samples_per_query=samples_per_query,
    )
    if self_test:
        if html or perfetto or batch or shape or tune or load.name != "single-stream":
            raise UsageError(
                "--self-test times a single stream, and makes no report",
                hint="leave --scenario, --batch, --shape, --html, --perfetto and --tune out",
            )
        _run_self_test(
            bundle, device, preset=preset, variant=variant, wait_s=wait_s, as_json=as_json
        )
        return

    _check_page(html)
    store = open_store(results)

    def keep(report: api.RunReport) -> None:
        api.keep_report(store, report)
        if html:
            api.report(html, store, runs=[report.id])
        if as_json:
            print_json(report)
            return
        _print_report(report)
        write_line(f"stored as {report.id}" + (f"\nreport: {html}" if html else ""))

    report = api.bench(
        bundle,
        api.load_device(device),
        preset=preset,
        variant=variant,
        scenario=load,
        batches=batch or (),
        shapes=shape or (),
        perfetto=perfetto,
        tune=tune,
        wait_s=wait_s,
        progress=make_terminal_progress(),
        on_unfinished=keep,
    )
    keep(report)
    if perfetto and not as_json:
        write_line(f"trace: {perfetto}")
    api.require_valid(report, bundle)


def _check_page(html: Path | None) -> None:
    from edgepack.base.files import require_writable

    if html:
        require_writable(html, "--html")


def _run_self_test(
    bundle: Path, device: str, *, preset: str, variant: str | None, wait_s: float, as_json: bool
) -> None:
    from edgepack.base.progress import make_terminal_progress
    from edgepack.cli.printing import print_json, write_line
    from edgepack.errors import InconclusiveError

    question = api.CompareQuestion(
        bundle, variant=variant, preset=api.find_preset(preset), wait_s=wait_s
    )
    noise = api.measure_noise(question, api.load_device(device), progress=make_terminal_progress())
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
            "".join(["the runs must not be used", *(f"\n  - {each}" for each in noise.reasons)]),
            hint="let the device cool down and idle, and measure again",
            where=noise.device,
        )


def evaluate(
    bundle: BundleArgument,
    device: DeviceOption,
    project: ProjectOption = None,
    variant: VariantOption = None,
    wait_s: WaitOption = 0.0,
    no_resume: Annotated[
        bool,
        typer.Option(
            "--no-resume",
            help="Start again from the first sample, where an earlier call ended early.",
        ),
    ] = False,
    results: ResultsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Measure the project's metric on a device."""
    from edgepack.base.progress import make_terminal_progress
    from edgepack.cli.printing import print_evaluation, print_json, write_line

    store = open_store(results)
    report = api.evaluate(
        bundle,
        api.load_device(device),
        project=project,
        variant=variant,
        wait_s=wait_s,
        resume=not no_resume,
        progress=make_terminal_progress(),
    )
    api.keep_report(store, report)
    if as_json:
        print_json(report)
    else:
        print_evaluation(report)
        write_line(f"stored as {report.id}")
    api.require_usable(report)


def demo(
    out: Annotated[Path, typer.Option(help="Where the bundle and the report go.")] = Path("demo"),
) -> None:
    """Build, push and measure the bundled example on this machine."""
    from edgepack.base.progress import make_terminal_progress
    from edgepack.cli.building import print_build
    from edgepack.cli.printing import write_line

    done = api.demo(out, progress=make_terminal_progress())
    print_build(done.build)
    _print_report(done.report)
    write_line(f"report: {done.html}")


def _print_report(report: api.RunReport) -> None:
    from edgepack.cli.printing import print_table

    print_table(api.make_report_table(report))
