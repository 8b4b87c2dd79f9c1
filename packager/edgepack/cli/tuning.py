"""``tune``."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edgepack.cli.options import (
    BundleArgument,
    DeviceOption,
    JsonOption,
    ProjectOption,
    WaitOption,
)

if TYPE_CHECKING:
    from edgepack.measure.tune.tuning import TunePlan
    from edgepack.measure.tune.writing import Override
    from edgepack.project.project import Limits
    from edgepack.records.comparison import ComparedMetric
    from edgepack.records.run import VariantFacts
    from edgepack.records.tuning import Candidate, TuneReport

_SECONDS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}


def tune(
    bundle: BundleArgument,
    device: DeviceOption,
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
    as_json: JsonOption = False,
) -> None:
    """Search the session settings with which a bundle is fastest on a device."""
    from edgepack.base.progress import terminal_progress
    from edgepack.bundle.reading import load_bundle
    from edgepack.cli.printing import print_json
    from edgepack.devices.inventory import load_device
    from edgepack.measure.tune import keeping, searching, tuning

    path = _project_file(project)
    if write and path is None:
        raise _no_project()
    name = load_bundle(bundle).manifest.name
    question = searching.Question(
        bundle,
        budget_s=_seconds(budget),
        variants=variant or (),
        limits=_limits(path, name, must_be=project is not None or write),
        seed=seed,
        wait_s=wait_s,
    )
    chosen = load_device(device)
    if dry_run:
        plan = tuning.plan_tuning(question, chosen)
        print_json(plan) if as_json else _print_plan(plan)
        return

    def show(report: TuneReport) -> None:
        kept = keeping.keep_tuning(report)
        print_json(report) if as_json else _print_report(report, kept)

    report = tuning.tune(question, chosen, progress=terminal_progress(), on_unfinished=show)
    show(report)
    if path is not None and _name_of(path) == report.project:
        _override(path, bundle, report, write=write, quiet=as_json)


def _seconds(text: str) -> float:
    from edgepack.errors import UsageError

    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text.strip())
    if found is None or not float(found[1]):
        raise UsageError(f"{text!r} is no time", hint="write 90s, 10m or 1h", where="--budget")
    return float(found[1]) * _SECONDS[found[2]]


def _project_file(given: Path | None) -> Path | None:
    from edgepack.project.project import PROJECT_FILE

    here = Path(PROJECT_FILE)
    return given or (here if here.is_file() else None)


def _no_project() -> Exception:
    from edgepack.errors import UsageError

    return UsageError(
        "there is no project file to write the answer to",
        hint="name it: --project edgepack.yaml",
        where="--write",
    )


def _name_of(path: Path) -> str:
    from edgepack.project.project import read_project

    return read_project(path).project.name


def _limits(path: Path | None, name: str, *, must_be: bool) -> Limits:
    """Return the limits of the bundle's project; a file that was not named may be another's."""
    from edgepack.errors import UsageError
    from edgepack.project.project import Limits, read_project

    if path is None:
        return Limits()
    found = read_project(path).project
    if found.name == name:
        return found.limits
    if must_be:
        raise UsageError(
            f"{path} is the project {found.name!r}, the bundle is of {name!r}",
            hint="name the bundle's project file",
            where="--project",
        )
    return Limits()


def _override(path: Path, bundle: Path, report: TuneReport, *, write: bool, quiet: bool) -> None:
    """Write the answer into the project file, or say what would be written, if it is confirmed."""
    from edgepack.bundle.reading import load_bundle
    from edgepack.cli.printing import write_line
    from edgepack.measure.tune import writing

    if not report.confirmed:
        # The file may have settings that an earlier search confirmed: noise does not undo them.
        if not quiet:
            write_line(f"{path} stays as it is: nothing was confirmed that could be put into it")
        return

    settings = report.candidate(report.answer).settings
    about = f"edgepack tune on {report.device}, {report.created[:10]}: {report.why}"
    override = writing.make_override(path, load_bundle(bundle).manifest, settings, about)
    if write:
        writing.write_override(override)
    if not quiet:
        _print_override(override, report, bundle, written=write)


def _print_override(override: Override, report: TuneReport, bundle: Path, *, written: bool) -> None:
    from edgepack.cli.printing import write_line

    if not override.needed:
        write_line(f"{override.path} says so already")
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


def _print_plan(plan: TunePlan) -> None:
    from edgepack.cli.printing import write_line
    from edgepack.measure.tune.space import words

    write_line(
        f"{plan.bundle} on {plan.device}: {len(plan.candidates)} candidates,"
        f" {plan.topology.count} processors"
    )
    for settings in plan.candidates:
        write_line(f"  {settings.variant}: {words(settings)}")
    for passed in plan.passed_over:
        write_line(f"not tried: {passed.variant}: {passed.reason}")


def _print_report(report: TuneReport, kept: Path) -> None:
    from rich.table import Table
    from rich.text import Text

    from edgepack.base.terminal import printable
    from edgepack.cli.printing import print_table, write_line
    from edgepack.measure.tune.space import words

    table = Table()
    heads = ("variant", "settings", "p50, ms", "peak memory", "model size", "accuracy", "which")
    for head in heads:
        table.add_column(head)
    facts = {variant.id: variant for variant in report.variants}
    for number in _shown(report):
        one = report.candidate(number)
        cells = _cells(one, facts[one.settings.variant])
        marks = _marks(report, one)
        row = (one.settings.variant, words(one.settings), *cells, marks)
        table.add_row(*(Text(printable(cell)) for cell in row))
    print_table(table)
    write_line("best trade-off: nothing else is better in one column and no worse in the others")
    _print_lines(report)
    write_line(f"kept as {kept}")


def _print_lines(report: TuneReport) -> None:
    """Say what stands behind the table, and the answer."""
    from edgepack.cli.printing import write_line
    from edgepack.measure.tune.space import words
    from edgepack.records.tuning import Confirmation

    tried = sum(bool(one.runs) for one in report.candidates)
    answer = report.candidate(report.answer)
    lines = [
        f"{tried} of {len(report.candidates)} candidates ran in {report.elapsed_s:.0f} s",
        *(
            f"out: {one.settings.variant} ({words(one.settings)}): {one.problem}"
            for one in report.candidates
            if one.problem
        ),
        *(f"not tried: {each.variant}: {each.reason}" for each in report.passed_over),
        *(f"note: {note}" for note in report.notes),
        *([f"UNFINISHED: {report.unfinished}"] if report.unfinished else []),
        f"answer: {answer.settings.variant} ({words(answer.settings)}): {report.why}",
    ]
    if isinstance(report.confirmation, Confirmation):
        base = report.candidate(report.confirmation.base).settings
        lines += [
            f"  {metric.name} over that of {base.variant} ({words(base)}): {_ratio(metric)}"
            for metric in report.confirmation.metrics
        ]
    for line in lines:
        write_line(line)


def _ratio(metric: ComparedMetric) -> str:
    if metric.low is None or metric.high is None:
        return f"{metric.ratio:.3f}"
    return f"{metric.ratio:.3f} ({metric.low:.3f} to {metric.high:.3f})"


def _shown(report: TuneReport) -> list[int]:
    """Return the numbers of the front, the answer, the defaults and the present settings."""
    others = [
        one.number
        for one in report.candidates
        if one.runs and (one.defaults or one.present or one.number == report.answer)
    ]
    return list(dict.fromkeys([*report.front, *others]))


def _cells(one: Candidate, facts: VariantFacts) -> list[str]:
    from edgepack.bundle.manifest import Accuracy
    from edgepack.records.run import Memory
    from edgepack.records.tuning import Latency

    latency, memory, accuracy = one.latency, one.memory, facts.accuracy
    found = "not measured"
    if isinstance(latency, Latency):
        found = f"{latency.p50_ns / 1e6:.3f}"
        if latency.low_ns is not None and latency.high_ns is not None:
            found += f" ({latency.low_ns / 1e6:.3f} to {latency.high_ns / 1e6:.3f})"
    return [
        found,
        f"{memory.peak_bytes / 1e6:.1f} MB" if isinstance(memory, Memory) else "not measured",
        f"{facts.model_bytes / 1e6:.2f} MB",
        f"{accuracy.metric} {accuracy.value:.4f}"
        if isinstance(accuracy, Accuracy)
        else "not measured",
    ]


def _marks(report: TuneReport, one: Candidate) -> str:
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
