"""``evaluate`` and ``demo``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edgepack import api
from edgepack.cli.history import open_store
from edgepack.cli.options import (
    JsonOption,
    ProjectOption,
    ResultsOption,
    WaitOption,
)
from edgepack.cli.rollouts import BundlesArgument, DevicesOption, ParallelOption
from edgepack.cli.several import MEASURING_S, choose_bundle, do_on_chosen

if TYPE_CHECKING:
    from edgepack.base.progress import Progress


def evaluate(
    bundle: BundlesArgument,
    device: DevicesOption,
    project: ProjectOption = None,
    variant: Annotated[
        str | None,
        typer.Option(
            help="Only this variant, whatever the loader would choose; 'all': each that works"
            " there."
        ),
    ] = None,
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
    from edgepack.cli.printing import format_evaluation

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

    def measure_all(chosen: api.Device, progress: Progress) -> api.VariantsEvaluation:
        return api.evaluate_variants(
            choose_bundle(chosen, bundles),
            chosen,
            project=project,
            wait_s=wait_s,
            resume=not no_resume,
            progress=progress,
            on_report=lambda report: api.keep_report(store, report),
        )

    settings = api.RolloutSettings(parallel=parallel, deadline_s=MEASURING_S)
    if variant == api.ALL_VARIANTS:
        do_on_chosen(
            device,
            measure_all,
            show=_show_all,
            summarize=lambda found: "; ".join(map(format_evaluation, found.reports)),
            judge=api.require_all_usable,
            settings=settings,
            as_json=as_json,
        )
        return
    do_on_chosen(
        device,
        measure,
        show=_show,
        summarize=format_evaluation,
        judge=api.require_usable,
        settings=settings,
        as_json=as_json,
    )


def _show(report: api.EvaluationReport) -> None:
    from edgepack.cli.printing import print_evaluation, write_line

    print_evaluation(report)
    write_line(f"stored as {report.id}")


def _show_all(found: api.VariantsEvaluation) -> None:
    from edgepack.cli.printing import write_line

    for report in found.reports:
        _show(report)
    for each in found.out:
        write_line(f"{each.stage} {each.variant}: {each.first_line}")


def demo(
    out: Annotated[Path, typer.Option(help="Where the bundle and the report go.")] = Path("demo"),
) -> None:
    """Build, push and measure the bundled example on this machine."""
    from edgepack.base.progress import make_terminal_progress
    from edgepack.cli.building import print_build
    from edgepack.cli.printing import print_table, write_line

    done = api.demo(out, progress=make_terminal_progress())
    print_build(done.build)
    print_table(api.make_report_table(done.report))
    write_line(f"report: {done.html}")
