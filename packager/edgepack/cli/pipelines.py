"""What ``bench`` does and prints of a bundle of several models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from edgepack import api
from edgepack.cli.several import MEASURING_S, choose_bundle, do_on_chosen
from edgepack.errors import UsageError

if TYPE_CHECKING:
    from edgepack.base.progress import Progress


def has_several_models(bundles: Mapping[str, api.AnyBundle]) -> bool:
    """Return whether bundles by target are of a project of several models."""
    return any(isinstance(bundle, api.PipelineBundle) for bundle in bundles.values())


def bench_pipelines(
    words: Sequence[str],
    bundles: Mapping[str, api.AnyBundle],
    refused: Mapping[str, object],
    store: api.ResultsStore,
    *,
    preset: str,
    runs: int | None,
    wait_s: float,
    parallel: int,
    as_json: bool,
) -> None:
    """Measure a bundle of several models on each device, store and print what came of it.

    Args:
        words: What chooses devices.
        bundles: By target.
        refused: Options that are for one model, with what was given.
        store: Where reports are kept.
        preset: How long and how often to measure.
        runs: Process runs, rather than the preset's.
        wait_s: How long to wait while others hold a device.
        parallel: On how many devices at once.
        as_json: Whether to print JSON instead.

    Raises:
        UsageError: There are refused options.
    """
    for option, given in refused.items():
        if given:
            raise UsageError(
                f"the bundle has several models, and {option} is for one",
                hint="leave it out, or measure a part: BUNDLE/parts/NAME",
                where=option,
            )

    def measure(device: api.Device, progress: Progress) -> api.PipelineReport:
        report = api.bench_pipeline(
            choose_bundle(device, bundles),
            device,
            preset=preset,
            runs=runs,
            wait_s=wait_s,
            progress=progress,
        )
        api.keep_report(store, report)
        return report

    do_on_chosen(
        words,
        measure,
        show=_show,
        summarize=_summarize,
        judge=api.require_valid_pipeline,
        settings=api.RolloutSettings(parallel=parallel, deadline_s=MEASURING_S),
        as_json=as_json,
    )


def _show(report: api.PipelineReport) -> None:
    from rich.table import Table

    from edgepack.cli.printing import print_table, write_line

    stages = api.summarize_stages(report)
    counts = {
        "tokens a call": [stage.tokens for stage in stages],
        "crops a call": [stage.crops for stage in stages],
    }
    # Only where a stage has such a number.
    counts = {title: each for title, each in counts.items() if set(each) != {None}}
    table = Table("stage", "p50 ms", "p90 ms", "of the whole", *counts)
    for column in table.columns[1:]:
        column.justify = "right"
    for number, stage in enumerate(stages):
        found = [each[number] for each in counts.values()]
        cells = ["" if count is None else f"{count:.1f}" for count in found]
        p50, p90 = f"{stage.p50_ms:.3f}", f"{stage.p90_ms:.3f}"
        table.add_row(stage.name, p50, p90, f"{stage.share:.0%}", *cells)
    write_line(f"{report.bundle} on {report.device}: {report.variants}")
    print_table(table)
    for note in report.notes:
        write_line(f"note: {note}")
    write_line(f"verdict: {report.verdict.kind.upper()}")
    write_line(f"stored as {report.id}")


def _summarize(report: api.PipelineReport) -> str:
    whole = api.summarize_stages(report)[-1]
    return f"p50 {whole.p50_ms:.3f} ms, {report.verdict.kind.upper()}"
