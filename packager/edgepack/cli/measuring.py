"""``bench``, ``evaluate`` and ``demo``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edgepack import api
from edgepack.cli.history import open_store
from edgepack.cli.limits import find_limits, find_own_project
from edgepack.cli.options import (
    JsonOption,
    ProjectOption,
    ResultsOption,
    TuneOption,
    VariantOption,
    WaitOption,
)
from edgepack.cli.rollouts import BundlesArgument, DevicesOption, ParallelOption
from edgepack.cli.several import MEASURING_S, choose_bundle, do_on_chosen, require_one_device

if TYPE_CHECKING:
    from edgepack.base.progress import Progress

    Keep = Callable[[api.RunReport], None]

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
    bundle: BundlesArgument,
    device: DevicesOption,
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
    project: ProjectOption = None,
    self_test: Annotated[
        bool,
        typer.Option(
            "--self-test", help="Measure the bundle against itself, to see how noisy the device is."
        ),
    ] = False,
    parallel: ParallelOption = 16,
    results: ResultsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Measure a bundle on each device, with a verdict.

    Each device gets the bundle for its target, from BUNDLE or the folders in it. The limits of the
    bundle's project are judged, if its file is here or named.
    """
    from edgepack.cli.printing import write_line
    from edgepack.errors import UsageError

    load = api.make_scenario(
        scenario,
        queries_per_s=queries_per_s,
        latency_bound_ms=latency_bound_ms,
        samples_per_query=samples_per_query,
    )
    bundles = api.load_bundles_by_target(bundle)
    if self_test:
        if html or perfetto or batch or shape or tune or load.name != "single-stream":
            raise UsageError(
                "--self-test times a single stream, and makes no report",
                hint="leave --scenario, --batch, --shape, --html, --perfetto and --tune out",
            )
        chosen = require_one_device(device, "--self-test")
        path = choose_bundle(chosen, bundles)
        question = api.CompareQuestion(
            path, variant=variant, preset=api.find_preset(preset), wait_s=wait_s
        )
        _run_self_test(question, chosen, as_json=as_json)
        return
    if perfetto:
        require_one_device(device, "--perfetto")
    loaded = find_own_project(project, next(iter(bundles.values())).manifest.name)

    def measure(chosen: api.Device, progress: Progress, keep: Keep) -> api.RunReport:
        return api.bench(
            choose_bundle(chosen, bundles),
            chosen,
            preset=preset,
            variant=variant,
            scenario=load,
            batches=batch or (),
            shapes=shape or (),
            perfetto=perfetto,
            limits=find_limits(loaded, chosen),
            tune=tune,
            wait_s=wait_s,
            progress=progress,
            on_unfinished=keep,
        )

    _measure_on(
        device,
        measure,
        bundles,
        html=html,
        results=results,
        parallel=parallel,
        as_json=as_json,
    )
    if perfetto and not as_json:
        write_line(f"trace: {perfetto}")


def _measure_on(
    words: list[str],
    measure: Callable[[api.Device, Progress, Keep], api.RunReport],
    bundles: Mapping[str, api.Bundle],
    *,
    html: Path | None,
    results: str | None,
    parallel: int,
    as_json: bool,
) -> None:
    """Measure on each device; keep, print and judge the reports, and write a page of them all."""
    from edgepack.cli.printing import print_json, write_line

    _check_page(html)
    store = open_store(results)
    kept: list[str] = []

    def keep(report: api.RunReport) -> None:
        api.keep_report(store, report)
        kept.append(report.id)

    def show(report: api.RunReport) -> None:
        _print_report(report)
        write_line(f"stored as {report.id}")

    def keep_unfinished(report: api.RunReport) -> None:
        keep(report)
        if api.is_one_device(words):
            print_json(report) if as_json else show(report)

    def measure_and_keep(device: api.Device, progress: Progress) -> api.RunReport:
        report = measure(device, progress, keep_unfinished)
        keep(report)
        return report

    try:
        do_on_chosen(
            words,
            measure_and_keep,
            show=show,
            summarize=api.format_run_line,
            judge=lambda report: _require_good(report, bundles[report.target].path, store),
            settings=api.RolloutSettings(parallel=parallel, deadline_s=MEASURING_S),
            as_json=as_json,
        )
    finally:
        if html and kept:
            api.report(html, store, runs=kept)
            if not as_json:
                write_line(f"report: {html}")


def _require_good(report: api.RunReport, bundle: Path, store: api.ResultsStore) -> None:
    """Check that a report's numbers may be used, and that its variant is within the limits."""
    api.require_valid(report, bundle)
    if report.limits.given:
        api.require_limits(report, api.load_others(store, report))


def _check_page(html: Path | None) -> None:
    from edgepack.base.files import require_writable

    if html:
        require_writable(html, "--html")


def _run_self_test(question: api.CompareQuestion, device: api.Device, *, as_json: bool) -> None:
    from edgepack.base.progress import make_terminal_progress
    from edgepack.cli.printing import print_json, write_line
    from edgepack.errors import InconclusiveError

    noise = api.measure_noise(question, device, progress=make_terminal_progress())
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
    bundle: BundlesArgument,
    device: DevicesOption,
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
    parallel: ParallelOption = 16,
    results: ResultsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Measure the project's metric on each device.

    Each device gets the bundle for its target, from BUNDLE or the folders in it.
    """
    from edgepack.cli.printing import format_evaluation, print_evaluation, write_line

    store = open_store(results)
    bundles = api.load_bundles_by_target(bundle)

    def measure(chosen: api.Device, progress: Progress) -> api.EvaluationReport:
        report = api.evaluate(
            choose_bundle(chosen, bundles),
            chosen,
            project=project,
            variant=variant,
            wait_s=wait_s,
            resume=not no_resume,
            progress=progress,
        )
        api.keep_report(store, report)
        return report

    def show(report: api.EvaluationReport) -> None:
        print_evaluation(report)
        write_line(f"stored as {report.id}")

    do_on_chosen(
        device,
        measure,
        show=show,
        summarize=format_evaluation,
        judge=api.require_usable,
        settings=api.RolloutSettings(parallel=parallel, deadline_s=MEASURING_S),
        as_json=as_json,
    )


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
