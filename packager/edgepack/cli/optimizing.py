"""``optimize``."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edgepack import api
from edgepack.cli.options import JsonOption, ProjectOption, WaitOption, parse_seconds
from edgepack.cli.rollouts import DevicesOption, ParallelOption
from edgepack.cli.several import MEASURING_S, do_on_chosen, require_one_device
from edgepack.cli.tuning import POINT_HEADS, format_metric_ratio, make_point_cells

if TYPE_CHECKING:
    from collections.abc import Sequence

    from edgepack.base.progress import Progress


def optimize(
    device: DevicesOption,
    project: ProjectOption = None,
    budget: Annotated[
        str,
        typer.Option(
            metavar="TIME",
            help="How long to measure speed: 90s, 20m, 1h; building and the metric come on top.",
        ),
    ] = "20m",
    write: Annotated[
        bool, typer.Option("--write", help="Put a confirmed answer into the project file.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Decides the order of runs.")] = 0,
    resolution: Annotated[
        list[int] | None,
        typer.Option(
            min=1,
            help="Also search over the width of pictures in the model; repeat for each, the one to"
            " compare with first.",
            show_default=False,
        ),
    ] = None,
    wait_s: WaitOption = 0.0,
    parallel: ParallelOption = 16,
    as_json: JsonOption = False,
) -> None:
    """Find the fastest variant and settings on each device that are within the project's limits.

    Builds every variant that the device's target can run, searches on the device, measures the
    metric there, and compares the answer in pairs with fp32. Called again after an end that came
    early, it goes on.
    """
    from edgepack.errors import UsageError

    path = project or Path(api.PROJECT_FILE)
    loaded = api.read_project(path)
    if write:
        require_one_device(device, "--write")
    budget_s = parse_seconds(budget, "--budget")
    kept: dict[str, Path] = {}

    def keep(report: api.OptimizeReport) -> None:
        kept[report.device] = api.keep_optimizing(report)

    question = api.OptimizeQuestion(loaded, budget_s=budget_s, seed=seed, wait_s=wait_s)
    limits_s = api.RolloutSettings(parallel=parallel, deadline_s=MEASURING_S + budget_s)
    if resolution:
        if write:
            raise UsageError(
                "--write takes no sizes of pictures",
                hint="write the lines that are printed into the project file yourself",
                where="--resolution",
            )
        do_on_chosen(
            device,
            lambda chosen, progress: api.optimize_resolutions(
                question, chosen, resolution, progress=progress, on_report=keep
            ),
            show=_print_resolutions,
            summarize=_format_resolution,
            judge=api.require_resolution,
            settings=limits_s,
            as_json=as_json,
        )
        return

    def search(chosen: api.Device, progress: Progress) -> api.Optimized:
        found = api.optimize(question, chosen, progress=progress, on_unfinished=keep)
        keep(found.report)
        return found

    found = do_on_chosen(
        device,
        search,
        show=lambda found: _print_report(found.report, kept[found.report.device]),
        summarize=lambda found: _format_answer(found.report),
        judge=lambda found: api.require_answer(found.report),
        settings=limits_s,
        as_json=as_json,
    )
    if api.is_one_device(device):
        _write_answer(path, *found.values(), write=write, quiet=as_json)


def _format_resolution(results: Sequence[api.ResolutionResult]) -> str:
    best = api.choose_resolution(results)
    if best is None or best.found is None:
        return "no size is within the limits"
    return f"{best.side} pixels: {_format_answer(best.found.report)}"


def _print_resolutions(results: Sequence[api.ResolutionResult]) -> None:
    """Print the answer of each size, and what a project file needs for the best of them."""
    import json

    from edgepack.cli.printing import print_rows, write_line

    best = api.choose_resolution(results)
    rows = []
    for each in results:
        report = None if each.found is None else each.found.report
        answer = _format_answer(report) if report and report.answer is not None else ""
        rows.append(
            (
                str(each.side),
                answer,
                f"{each.latency.p50_ns / 1e6:.3f}" if each.latency else "not measured",
                f"{each.metric} {each.value:.4f}" if each.value is not None else "not measured",
                f"{each.drop:+.4f}" if each.drop is not None else "not measured",
                "answer" if each is best else each.refused,
            )
        )
    heads = ("width", "answer", "p50, ms", "metric", "lost against fp32 at the first", "which")
    print_rows(heads, rows)
    write_line("sizes ran one after the other, not in pairs")
    if best is not None:
        write_line("to use the answer, put this into the project file, and optimize again:")
        for key, value in best.changes.items():
            write_line(f"{key}: {json.dumps(value)}")


def _format_answer(report: api.OptimizeReport) -> str:
    if report.answer is None:
        return report.why
    settings = report.candidate(report.answer).settings
    return (
        f"{settings.variant} ({api.format_settings(settings)}), {_format_speedup(report, 'fp32')}"
    )


def _format_speedup(report: api.OptimizeReport, base: str) -> str:
    """Return how fast the answer is beside ``fp32`` or its own ``defaults``, in words."""
    found = report.over_fp32 if base == "fp32" else report.over_defaults
    name = "fp32" if base == "fp32" else "its own"
    speedup = report.find_speedup(found)
    if not isinstance(speedup, tuple):
        if found == api.IS_BASE:
            return f"which is {name} with onnxruntime's defaults"
        return f"not known how much faster than {name}: {speedup.reason}"
    ratio, *reach = speedup
    interval = f" ({reach[0]:.2f} to {reach[1]:.2f})" if reach else ""
    return f"{ratio:.2f} times{interval} as fast as {name} with onnxruntime's defaults"


def _print_report(report: api.OptimizeReport, kept: Path) -> None:
    from edgepack.cli.printing import print_rows, write_line

    heads = ("variant", "settings", *POINT_HEADS, "which")
    facts = {variant.id: variant for variant in report.variants}
    shown = [*report.front, *([] if report.answer is None else [report.answer])]
    rows = []
    for number in dict.fromkeys(shown):
        one = report.candidate(number)
        cells = make_point_cells(one, facts[one.settings.variant])
        if one.settings.variant in report.on_device:
            found = report.on_device[one.settings.variant]
            cells[-1] = f"{found.metric} {found.value:.4f} there"
        mark = "answer" if number == report.answer else "best trade-off"
        rows.append((one.settings.variant, api.format_settings(one.settings), *cells, mark))
    if rows:
        print_rows(heads, rows, title=f"{report.project} on {report.device}")
    write_line("best trade-off: nothing else is better in one column and no worse in the others")
    for unused in report.unused:
        write_line(f"{unused.stage} {unused.variant}: {unused.first_line}")
    for note in report.notes:
        write_line(f"note: {note}")
    tried = sum(bool(one.runs) for one in report.candidates)
    resumed = f", {report.resumed} of them by an earlier call" if report.resumed else ""
    write_line(
        f"{tried} of {len(report.candidates)} candidates ran in {report.elapsed_s:.0f} s, with"
        f" {report.runs} process runs{resumed}"
    )
    _print_answer(report)
    write_line(f"kept as {kept}")


def _print_answer(report: api.OptimizeReport) -> None:
    from edgepack.cli.printing import write_line

    if report.answer is None:
        write_line(f"no answer: {report.why}")
        return
    settings = report.candidate(report.answer).settings
    write_line(f"answer: {settings.variant} ({api.format_settings(settings)}): {report.why}")
    for base, found in (("fp32", report.over_fp32), ("defaults", report.over_defaults)):
        write_line(f"  {_format_speedup(report, base)}")
        if isinstance(found, api.Confirmation):
            for metric in found.metrics:
                write_line(f"    {metric.name} over that: {format_metric_ratio(metric)}")


def _write_answer(path: Path, found: api.Optimized, *, write: bool, quiet: bool) -> None:
    """Write the answer into the project file, or say what would be written, if it is confirmed."""
    from edgepack.cli.printing import write_line

    report = found.report
    if report.answer is None or not report.confirmed:
        if not quiet:
            write_line(f"{path} is unchanged: nothing is shown to be no slower than fp32")
        return
    settings = report.candidate(report.answer).settings
    speed = _format_speedup(report, "fp32")
    about = f"edgepack optimize on {report.device}, {report.created[:10]}: {speed}"
    override = api.make_override(path, found.manifest, settings, about)
    if write:
        api.write_override(override)
    if quiet:
        return
    if not override.needed:
        write_line(f"{path} has this first already")
    elif write:
        write_line(f"wrote {path}; build again: edgepack build --project {shlex.quote(str(path))}")
    else:
        write_line(f"to ship it first, put this into {path} (or add --write):")
        write_line("targets:")
        write_line(override.lines.rstrip("\n"))
