"""``tune``."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edgepack import api
from edgepack.cli.limits import find_limits, find_own_project
from edgepack.cli.options import JsonOption, ProjectOption, WaitOption, parse_seconds
from edgepack.cli.rollouts import BundlesArgument, DevicesOption, ParallelOption
from edgepack.cli.several import MEASURING_S, choose_bundle, do_on_chosen, require_one_device

if TYPE_CHECKING:
    from edgepack.base.progress import Progress


def tune(
    bundle: BundlesArgument,
    device: DevicesOption,
    budget: Annotated[
        str, typer.Option(metavar="TIME", help="How long to measure: 90s, 10m, 1h.")
    ] = "10m",
    variant: Annotated[
        list[str] | None, typer.Option(help="Only this variant; repeat for more.")
    ] = None,
    project: ProjectOption = None,
    write: Annotated[
        bool, typer.Option("--write", help="Put a confirmed answer into the project file.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Decides the order of runs.")] = 0,
    wait_s: WaitOption = 0.0,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List what would be tried and stop.")
    ] = False,
    parallel: ParallelOption = 16,
    as_json: JsonOption = False,
) -> None:
    """Search for the session settings with which a bundle is fastest on each device.

    Each device gets the bundle for its target, from BUNDLE or the folders in it.
    """
    from edgepack.cli.printing import print_json

    path = _find_project_file(project)
    if write and path is None:
        raise _make_project_error()
    for option, is_given in (("--write", write), ("--dry-run", dry_run)):
        if is_given:
            require_one_device(device, option)
    bundles = api.load_bundles_by_target(bundle)
    name = next(iter(bundles.values())).manifest.name
    loaded = find_own_project(path if project or write else None, name)
    budget_s = parse_seconds(budget, "--budget")

    def ask(chosen: api.Device) -> api.TuneQuestion:
        return api.TuneQuestion(
            choose_bundle(chosen, bundles),
            budget_s=budget_s,
            variants=variant or (),
            limits=find_limits(loaded, chosen),
            seed=seed,
            wait_s=wait_s,
        )

    if dry_run:
        chosen = require_one_device(device, "--dry-run")
        plan = api.plan_tuning(ask(chosen), chosen)
        print_json(plan) if as_json else _print_plan(plan)
        return
    found = _search(
        ask, device, parallel=parallel, deadline_s=MEASURING_S + budget_s, as_json=as_json
    )
    if api.is_one_device(device) and path is not None:
        tuned = bundles[found[0].target].path
        _write_override(path, tuned, found[0], write=write, quiet=as_json)


def _search(
    ask: Callable[[api.Device], api.TuneQuestion],
    words: list[str],
    *,
    parallel: int,
    deadline_s: float,
    as_json: bool,
) -> Sequence[api.TuneReport]:
    """Search on each device, keep and print the reports, and return them."""
    from edgepack.cli.printing import print_json

    kept: dict[str, Path] = {}

    def keep(report: api.TuneReport) -> None:
        kept[report.device] = api.keep_tuning(report)

    def show(report: api.TuneReport) -> None:
        _print_report(report, kept[report.device])

    def keep_unfinished(report: api.TuneReport) -> None:
        keep(report)
        if api.is_one_device(words):
            print_json(report) if as_json else show(report)

    def search(chosen: api.Device, progress: Progress) -> api.TuneReport:
        report = api.tune(ask(chosen), chosen, progress=progress, on_unfinished=keep_unfinished)
        keep(report)
        return report

    found = do_on_chosen(
        words,
        search,
        show=show,
        summarize=_format_answer,
        settings=api.RolloutSettings(parallel=parallel, deadline_s=deadline_s),
        as_json=as_json,
    )
    return list(found.values())


def _format_answer(report: api.TuneReport) -> str:
    answer = report.candidate(report.answer).settings
    return f"{answer.variant} ({api.format_settings(answer)}): {report.why}"


def _find_project_file(given: Path | None) -> Path | None:

    here = Path(api.PROJECT_FILE)
    return given or (here if here.is_file() else None)


def _make_project_error() -> Exception:
    from edgepack.errors import UsageError

    return UsageError(
        "there is no project file to write the answer to",
        hint="name it: --project edgepack.yaml",
        where="--write",
    )


def _find_project_name(path: Path) -> str:

    return api.read_project(path).project.name


def _write_override(
    path: Path, bundle: Path, report: api.TuneReport, *, write: bool, quiet: bool
) -> None:
    """Write the answer into the project file, or say what would be written, if it is confirmed.

    A file of another project is left alone.
    """
    from edgepack.cli.printing import write_line

    if _find_project_name(path) != report.project:
        return
    if not report.confirmed:
        # The file may have settings that an earlier search confirmed: noise does not undo them.
        if not quiet:
            write_line(f"{path} is unchanged: no settings for it were confirmed")
        return

    settings = report.candidate(report.answer).settings
    about = f"edgepack tune on {report.device}, {report.created[:10]}: {report.why}"
    override = api.make_override(path, api.load_bundle(bundle).manifest, settings, about)
    if write:
        api.write_override(override)
    if not quiet:
        _print_override(override, report, bundle, written=write)


def _print_override(
    override: api.Override, report: api.TuneReport, bundle: Path, *, written: bool
) -> None:
    from edgepack.cli.printing import write_line

    if not override.needed:
        write_line(f"{override.path} has these settings already")
        return
    if written:
        write_line(f"wrote {override.path}; build again, and see what it gains:")
        project = shlex.quote(str(override.path))
        write_line(f"  edgepack build --project {project} --target {report.target} --out tuned")
        old, new = shlex.quote(str(bundle)), shlex.quote(f"tuned/{report.bundle}")
        write_line(f"  edgepack compare {old} {new} --device {report.device}")
    else:
        write_line(f"to use it, put this into {override.path} (or add --write):")
        write_line("targets:")
        write_line(override.lines.rstrip("\n"))


def _print_plan(plan: api.TunePlan) -> None:
    from edgepack.cli.printing import write_line

    write_line(
        f"{plan.bundle} on {plan.device}: {len(plan.candidates)} candidates,"
        f" {plan.topology.count} processors"
    )
    for settings in plan.candidates:
        write_line(f"  {settings.variant}: {api.format_settings(settings)}")
    for unused in plan.unused:
        write_line(f"{unused.stage} {unused}")


def _print_report(report: api.TuneReport, kept: Path) -> None:
    from rich.table import Table
    from rich.text import Text

    from edgepack.base.terminal import make_printable
    from edgepack.cli.printing import print_table, write_line

    table = Table()
    heads = ("variant", "settings", *POINT_HEADS, "which")
    for head in heads:
        table.add_column(head)
    facts = {variant.id: variant for variant in report.variants}
    for number in _choose_shown(report):
        one = report.candidate(number)
        cells = make_point_cells(one, facts[one.settings.variant])
        marks = _format_marks(report, one)
        row = (one.settings.variant, api.format_settings(one.settings), *cells, marks)
        table.add_row(*(Text(make_printable(cell)) for cell in row))
    print_table(table)
    write_line("best trade-off: nothing else is better in one column and no worse in the others")
    _print_lines(report)
    write_line(f"kept as {kept}")


def _print_lines(report: api.TuneReport) -> None:
    """Say what stands behind the table, and the answer."""
    from edgepack.cli.printing import write_line

    tried = sum(bool(one.runs) for one in report.candidates)
    answer = report.candidate(report.answer)
    lines = [
        f"{tried} of {len(report.candidates)} candidates ran in {report.elapsed_s:.0f} s",
        *(
            f"out: {one.settings.variant} ({api.format_settings(one.settings)}): {one.problem}"
            for one in report.candidates
            if one.problem
        ),
        *(f"{unused.stage} {unused}" for unused in report.unused),
        *(f"note: {note}" for note in report.notes),
        *([f"UNFINISHED: {report.unfinished}"] if report.unfinished else []),
        f"answer: {answer.settings.variant} ({api.format_settings(answer.settings)}): {report.why}",
    ]
    if isinstance(report.confirmation, api.Confirmation):
        base = report.candidate(report.confirmation.base).settings
        lines += [
            f"  {metric.name} over that of {base.variant} ({api.format_settings(base)}):"
            f" {format_metric_ratio(metric)}"
            for metric in report.confirmation.metrics
        ]
    for line in lines:
        write_line(line)


def format_metric_ratio(metric: api.ComparedMetric) -> str:
    """Return the ratio of a compared metric, with its interval if it has one."""
    if metric.low is None or metric.high is None:
        return f"{metric.ratio:.3f}"
    return f"{metric.ratio:.3f} ({metric.low:.3f} to {metric.high:.3f})"


def _choose_shown(report: api.TuneReport) -> list[int]:
    """Return the numbers of the front, the answer, the defaults and the present settings."""
    others = [
        one.number
        for one in report.candidates
        if one.runs and (one.defaults or one.present or one.number == report.answer)
    ]
    return list(dict.fromkeys([*report.front, *others]))


POINT_HEADS = ("p50, ms", "peak memory", "model size", "energy", "accuracy")
"""Of the cells of :func:`make_point_cells`."""


def make_point_cells(one: api.Candidate, facts: api.VariantFacts) -> list[str]:
    """Return latency, memory, size, energy and accuracy of a candidate, as cells of a table."""
    latency, memory, accuracy = one.latency, one.memory, facts.accuracy
    found = "not measured"
    if isinstance(latency, api.Latency):
        found = f"{latency.p50_ns / 1e6:.3f}"
        if latency.low_ns is not None and latency.high_ns is not None:
            found += f" ({latency.low_ns / 1e6:.3f} to {latency.high_ns / 1e6:.3f})"
    return [
        found,
        f"{memory.peak_bytes / 1e6:.1f} MB" if isinstance(memory, api.Memory) else "not measured",
        f"{facts.model_bytes / 1e6:.2f} MB",
        "not measured" if one.energy_mj is None else f"{one.energy_mj:.2f} mJ",
        f"{accuracy.metric} {accuracy.value:.4f}"
        if isinstance(accuracy, api.Accuracy)
        else "not measured",
    ]


def _format_marks(report: api.TuneReport, one: api.Candidate) -> str:
    found = [
        word
        for word, is_so in (
            ("answer", one.number == report.answer),
            ("best trade-off", one.number in report.front),
            ("onnxruntime's defaults", one.defaults),
            ("as the bundle has it", one.present),
        )
        if is_so
    ]
    return ", ".join(found)
