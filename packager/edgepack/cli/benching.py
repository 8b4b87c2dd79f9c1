"""``bench``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
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
    WaitOption,
    parse_seconds,
)
from edgepack.cli.pipelines import bench_pipelines, has_several_models
from edgepack.cli.rollouts import BundlesArgument, DevicesOption, ParallelOption
from edgepack.cli.several import MEASURING_S, choose_bundle, do_on_chosen, require_one_device
from edgepack.errors import (
    EdgepackError,
    InconclusiveError,
    LimitError,
    RemoteCommandError,
    UsageError,
)

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
        help="server: the latency that 99 % of the queries must meet. With --batch: the one that"
        " the best batch must meet.",
        show_default=False,
    ),
]
SamplesOption = Annotated[
    int | None,
    typer.Option(help="multi-stream: inferences in a query [default: 8]", show_default=False),
]
MaxBatchOption = Annotated[
    int | None,
    typer.Option(
        "--max-batch",
        help="server, offline: join so many waiting samples to a batch at most [default: 1]",
        show_default=False,
    ),
]
DelayOption = Annotated[
    float | None,
    typer.Option(
        "--queue-delay-ms",
        help="server: how long a query waits for others to be joined with [default: 0]",
        show_default=False,
    ),
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
    runs: Annotated[
        int | None,
        typer.Option(
            min=2, max=1000, help="Process runs, rather than the preset's.", show_default=False
        ),
    ] = None,
    variant: Annotated[
        str | None,
        typer.Option(
            help="Only this variant, whatever the loader would choose; 'all': each that works"
            " there, their process runs in turn, with the speedup over fp32."
        ),
    ] = None,
    scenario: ScenarioOption = "single-stream",
    queries_per_s: QueriesOption = None,
    latency_bound_ms: BoundOption = None,
    samples_per_query: SamplesOption = None,
    max_batch: MaxBatchOption = None,
    queue_delay_ms: DelayOption = None,
    batch: BatchOption = None,
    shape: ShapeOption = None,
    wait_s: WaitOption = 0.0,
    html: Annotated[Path | None, typer.Option(help="Write an HTML report here.")] = None,
    perfetto: Annotated[
        Path | None, typer.Option(help="Write a trace for Perfetto here.", show_default=False)
    ] = None,
    junit: Annotated[
        Path | None, typer.Option(help="Write JUnit XML here.", show_default=False)
    ] = None,
    markdown: Annotated[
        Path | None,
        typer.Option(help="Write a comment for a pull request here.", show_default=False),
    ] = None,
    quiet_wait: Annotated[
        float,
        typer.Option(
            min=0,
            metavar="SECONDS",
            help="How long to wait, over all runs of a variant, while others use the device.",
        ),
    ] = 60.0,
    tune: TuneOption = False,
    project: ProjectOption = None,
    resume: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="With --variant all: leave out devices that were measured whole within this time"
            " (12h).",
            show_default=False,
        ),
    ] = None,
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
    load = api.make_scenario(
        scenario,
        queries_per_s=queries_per_s,
        # Without a server, it is the batches' own.
        latency_bound_ms=None if batch and scenario != "server" else latency_bound_ms,
        samples_per_query=samples_per_query,
        max_batch=max_batch,
        queue_delay_ms=queue_delay_ms,
    )
    bundles = api.load_bundles_by_target(bundle)
    outputs = _Outputs(html, junit, markdown)
    if has_several_models(bundles):
        bench_pipelines(
            device,
            bundles,
            {
                "--variant": variant,
                "--scenario": load.name != "single-stream",
                "--batch": batch,
                "--shape": shape,
                "--html": html,
                "--perfetto": perfetto,
                "--junit": junit,
                "--markdown": markdown,
                "--tune": tune,
                "--project": project,
                "--resume": resume,
                "--self-test": self_test,
            },
            open_store(results),
            preset=preset,
            runs=runs,
            wait_s=wait_s,
            parallel=parallel,
            as_json=as_json,
        )
        return
    if self_test:
        given = (batch, shape, tune, perfetto, resume, runs, project)
        plain = load.name == "single-stream" and not any(given)
        _require_plain(is_plain=plain and outputs == _Outputs() and variant != api.ALL_VARIANTS)
        chosen = require_one_device(device, "--self-test")
        path = choose_bundle(chosen, bundles)
        question = api.CompareQuestion(
            path, variant=variant, preset=api.find_preset(preset), wait_s=wait_s
        )
        _run_self_test(question, chosen, as_json=as_json)
        return
    _require_fitting(device, variant, perfetto, resume)
    outputs.require_writable()
    asked = _Asked(
        bundles=bundles,
        loaded=find_own_project(project, next(iter(bundles.values())).manifest.name),
        preset=preset,
        runs=runs,
        variant=variant,
        scenario=load,
        batches=batch or (),
        shapes=shape or (),
        batch_bound_ms=latency_bound_ms if batch else None,
        perfetto=perfetto,
        # What concludes nothing has nothing to wait for.
        quiet_s=quiet_wait if api.find_preset(preset).conclusive else 0.0,
        tune=tune,
        wait_s=wait_s,
        since_s=None if resume is None else parse_seconds(resume, "--resume"),
    )
    _Bench(device, asked, open_store(results), outputs, parallel, as_json).run()


def _require_fitting(
    device: list[str], variant: str | None, perfetto: Path | None, resume: str | None
) -> None:
    """Check that options fit each other.

    Raises:
        UsageError: One is for one device or variant, or for all variants only.
    """
    if perfetto:
        require_one_device(device, "--perfetto")
        if variant == api.ALL_VARIANTS:
            raise UsageError(
                "--perfetto is for one variant, and --variant all measures several",
                hint="name the variant",
                where="--perfetto",
            )
    if resume is not None and variant != api.ALL_VARIANTS:
        raise UsageError(
            "--resume goes on with --variant all", hint="add --variant all", where="--resume"
        )


def _require_plain(*, is_plain: bool) -> None:
    if not is_plain:
        raise UsageError(
            "--self-test times a single stream of one variant, and makes no report",
            hint="leave --scenario, --batch, --shape, --html, --junit, --markdown, --perfetto,"
            " --project, --resume, --runs, --tune and --variant all out",
        )


@dataclass(frozen=True)
class _Asked:
    """What is measured on each device."""

    bundles: Mapping[str, api.AnyBundle]
    loaded: api.LoadedProject | None
    preset: str
    runs: int | None
    variant: str | None
    scenario: api.Scenario
    batches: Sequence[int]
    shapes: Sequence[str]
    batch_bound_ms: float | None
    """What the latency of the best of the batches must not exceed."""
    perfetto: Path | None
    quiet_s: float
    tune: bool
    wait_s: float
    since_s: float | None
    """How long ago a device may have been measured that is left out."""

    def measure_one(self, device: api.Device, progress: Progress, keep: Keep) -> api.RunReport:
        """Measure one variant."""
        return api.bench(
            choose_bundle(device, self.bundles),
            device,
            preset=self.preset,
            runs=self.runs,
            variant=self.variant,
            scenario=self.scenario,
            batches=self.batches,
            shapes=self.shapes,
            batch_bound_ms=self.batch_bound_ms,
            perfetto=self.perfetto,
            limits=find_limits(self.loaded, device),
            quiet_s=self.quiet_s,
            tune=self.tune,
            wait_s=self.wait_s,
            progress=progress,
            on_unfinished=keep,
        )

    def measure_all(self, device: api.Device, progress: Progress, keep: Keep) -> api.VariantsBench:
        """Measure all variants."""
        return api.bench_variants(
            choose_bundle(device, self.bundles),
            device,
            preset=self.preset,
            runs=self.runs,
            scenario=self.scenario,
            batches=self.batches,
            shapes=self.shapes,
            batch_bound_ms=self.batch_bound_ms,
            limits=find_limits(self.loaded, device),
            quiet_s=self.quiet_s,
            tune=self.tune,
            wait_s=self.wait_s,
            progress=progress,
            on_unfinished=keep,
        )

    def find_measured(
        self, device: api.Device, store: api.ResultsStore
    ) -> api.VariantsBench | None:
        """Return what was measured there before, if that may be taken, by the limits of now."""
        if self.since_s is None:
            return None
        bundle = api.load_bundle(choose_bundle(device, self.bundles))
        asked = api.MeasuredBefore(
            device.name,
            bundle.digest,
            self.preset,
            self.runs or api.find_preset(self.preset).runs,
            self.scenario,
            self.since_s,
            sweep=api.make_sweep_points(bundle.manifest, self.batches, self.shapes),
            tune=self.tune,
        )
        found = api.find_measured(store, asked)
        limits = find_limits(self.loaded, device)
        reports = [
            report.model_copy(update={"limits": limits, "best_batch": self._choose_batch(report)})
            for report in found
        ]
        return api.VariantsBench(device.name, reports, api.list_out(found[0])) if found else None

    def _choose_batch(self, report: api.RunReport) -> api.BestBatch | api.NotMeasured | None:
        if self.batch_bound_ms is None:
            return None
        return api.choose_best_batch(report.sweep[: len(self.batches)], self.batch_bound_ms)


@dataclass(frozen=True)
class _Outputs:
    """Files that are written beside what is printed."""

    html: Path | None = None
    junit: Path | None = None
    markdown: Path | None = None

    def require_writable(self) -> None:
        from edgepack.base.files import require_writable

        for path, option in (
            (self.html, "--html"),
            (self.junit, "--junit"),
            (self.markdown, "--markdown"),
        ):
            if path:
                require_writable(path, option)


@dataclass
class _Bench:
    """Measures on the chosen devices, keeps and judges the reports, and writes files of them all.

    Devices are measured in threads of their own, which add to these lists.
    """

    words: list[str]
    asked: _Asked
    store: api.ResultsStore
    outputs: _Outputs
    parallel: int
    as_json: bool
    kept: list[str] = field(default_factory=list)
    """Ids of the reports that were stored, and of those that an earlier call stored."""
    reports: list[api.RunReport] = field(default_factory=list)
    """Those that came to their end."""
    out: dict[str, list[api.Unused]] = field(default_factory=dict)
    """By device, the variants without a report."""
    problems: dict[str, str] = field(default_factory=dict)
    """By device, why nothing came of it."""

    def run(self) -> None:
        """Measure one variant, or all, on each device, and print what came of it."""
        if self._is_all:
            self._run_all()
            return
        with self._writing_files():
            do_on_chosen(
                self.words,
                self._measure_one,
                show=_show,
                summarize=api.format_run_line,
                judge=self._require_good,
                settings=self._settings,
                as_json=self.as_json,
            )

    def _run_all(self) -> None:
        with self._writing_files():
            do_on_chosen(
                self.words,
                self._measure_all,
                show=lambda _: None,
                summarize=_format_fastest,
                judge=self._require_all_good,
                settings=self._settings,
                as_json=self.as_json,
            )

    def _measure_one(self, device: api.Device, progress: Progress) -> api.RunReport:
        with self._noting_problem(device):
            report = self.asked.measure_one(device, progress, self.keep_unfinished)
            self._keep([report])
        return report

    def _measure_all(self, device: api.Device, progress: Progress) -> api.VariantsBench:
        with self._noting_problem(device):
            found = self.asked.find_measured(device, self.store)
            if found:
                first = found.reports[0].id
                progress.note(f"{device.name}: it was measured before: {first} and beside")
                self.reports += found.reports
                self.kept += [report.id for report in found.reports]
            else:
                found = self.asked.measure_all(device, progress, self.keep_unfinished)
                self._keep(found.reports)
        self.out[device.name] = found.out
        return found

    def keep_unfinished(self, report: api.RunReport) -> None:
        """Keep a report of what was measured before the end came early, and show one device's."""
        from edgepack.cli.printing import print_json

        api.keep_report(self.store, report)
        self.kept.append(report.id)
        # With several variants the one document is that of the end.
        if api.is_one_device(self.words) and not (self.as_json and self._is_all):
            print_json(report) if self.as_json else _show(report)

    @property
    def _is_all(self) -> bool:
        return self.asked.variant == api.ALL_VARIANTS

    @property
    def _settings(self) -> api.RolloutSettings:
        return api.RolloutSettings(parallel=self.parallel, deadline_s=MEASURING_S)

    @contextmanager
    def _noting_problem(self, device: api.Device) -> Iterator[None]:
        """Keep why nothing came of a device, until a later try comes to its end."""
        try:
            yield
        except EdgepackError as error:
            self.problems[device.name] = error.first_line
            raise
        self.problems.pop(device.name, None)

    def _keep(self, reports: Sequence[api.RunReport]) -> None:
        """Store each report; one that cannot be stored takes none of the others with it."""
        self.reports += reports
        errors: list[EdgepackError] = []
        for report in reports:
            try:
                api.keep_report(self.store, report)
            except EdgepackError as error:
                errors.append(error)
            else:
                self.kept.append(report.id)
        if errors:
            raise errors[0]

    @contextmanager
    def _writing_files(self) -> Iterator[None]:
        """However measuring ends, print the table and write the files of what was measured."""
        from edgepack.base.files import ELSEWHERE, SHARED, write_atomically, writing
        from edgepack.cli.printing import write_line

        try:
            yield
            if self.asked.perfetto and not self.as_json:
                write_line(f"trace: {self.asked.perfetto}")
        finally:
            self._note_missing()
            if self._is_all and not self.as_json:
                _print_variants(self.reports, self.out)
            for path, make in (
                (self.outputs.junit, api.format_variants_junit),
                (self.outputs.markdown, api.format_variants_markdown),
            ):
                if path:
                    text = make(self.reports, self.out, self.problems)
                    with writing("the results", path, ELSEWHERE):
                        write_atomically(path, text, mode=SHARED)
            if self.outputs.html and self.kept:
                api.report(self.outputs.html, self.store, runs=self.kept)
                if not self.as_json:
                    write_line(f"report: {self.outputs.html}")

    def _note_missing(self) -> None:
        """Give devices of which nothing is known a line in the files."""
        known = {report.device for report in self.reports} | self.problems.keys()
        for device in api.select_devices(self.words):
            if device.name not in known:
                self.problems[device.name] = "it did not come to its end"

    def _require_good(self, report: api.RunReport) -> None:
        """Check that a report's numbers may be used, and that its variant is within the limits."""
        api.require_valid(report, self.asked.bundles[report.target].path)
        if report.limits.given:
            api.require_limits(report, api.load_others(self.store, report))

    def _require_all_good(self, found: api.VariantsBench) -> None:
        """Check that all that work were measured and may be used, and one is within the limits."""
        if found.failed:
            raise RemoteCommandError(
                "failed while they were measured: "
                + "; ".join(f"{each.variant}: {each.first_line}" for each in found.failed),
                hint=f"measure it alone: --variant {found.failed[0].variant}",
                where=found.device,
            )
        for report in found.reports:
            api.require_valid(report, self.asked.bundles[report.target].path)
        missing: list[LimitError | InconclusiveError] = []
        for report in found.reports:
            try:
                api.require_limits(report, found.reports)
            except (LimitError, InconclusiveError) as error:
                missing.append(error)
        if len(missing) == len(found.reports):
            raise min(missing, key=lambda error: isinstance(error, InconclusiveError))


def _show(report: api.RunReport) -> None:
    from edgepack.cli.printing import print_table, write_line

    print_table(api.make_report_table(report))
    write_line(f"stored as {report.id}")


def _format_fastest(found: api.VariantsBench) -> str:
    """Return how many variants were measured, and which is best."""
    return f"{len(found.reports)} variants; {api.format_best_variant(found.reports)}"


def _print_variants(
    reports: Sequence[api.RunReport], out: Mapping[str, Sequence[api.Unused]]
) -> None:
    """Print a row for each device and variant, their best batches, and what has no row."""
    from edgepack.cli.printing import print_rows, write_line

    if rows := api.list_variant_rows(reports):
        one = len({row[0] for row in rows}) == 1
        first = int(one)  # the name of the only device is the title
        shown = [row[first:] for row in rows]
        print_rows(api.VARIANT_HEADS[first:], shown, title=rows[0][0] if one else "")
    for report in reports:
        if report.best_batch is not None:
            write_line(f"{report.device}: {api.format_run_line(report)}")
    for device, several in out.items():
        for each in several:
            write_line(f"{device}: {each.stage} {each.variant}: {each.first_line}")


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
