"""``edgepack targets prove``: evidence for a target's grades, from a user's own device."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Literal

from edgepack.base.files import ELSEWHERE, SHARED, require_writable, write_atomically, writing
from edgepack.base.progress import Progress, Silent
from edgepack.base.resources import find_example_dir
from edgepack.base.schema import NotMeasured
from edgepack.builder.build import build
from edgepack.bundle.manifest import Manifest
from edgepack.bundle.reading import Bundle
from edgepack.bundle.unused import Unused
from edgepack.devices.inventory import Device
from edgepack.devices.transports import require_machine
from edgepack.errors import DeviceError, RemoteCommandError, UsageError
from edgepack.measure.bench.run import bench
from edgepack.measure.evaluate.evaluate import evaluate
from edgepack.project.grades import Evidence, SeenMetric, SeenVariant
from edgepack.project.loading import read_project
from edgepack.project.profile import load_profile
from edgepack.records.run import EvaluationReport, Inconclusive, RunReport, Valid

SYSTEMS = {"Linux": "linux", "Darwin": "macos"}
ARCHITECTURES: dict[str, Literal["x86-64", "aarch64"]] = {
    "x86_64": "x86-64",
    "aarch64": "aarch64",
    "arm64": "aarch64",
}
VERDICTS: dict[str, Literal["VALID", "INVALID", "INCONCLUSIVE"]] = {
    "valid": "VALID",
    "invalid": "INVALID",
    "inconclusive": "INCONCLUSIVE",
}
_OWN_MODEL = "a model of the user's"
_OWN_METRIC = "the project's metric"


@dataclass(frozen=True)
class Proof:
    """What a device showed of a target."""

    evidence: Evidence
    file: Path
    """Where it was written."""
    unused: tuple[Unused, ...]
    """The variants that nothing is shown of, each with the reason."""
    doubts: dict[str, tuple[str, ...]]
    """By variant, why its measurement is not VALID."""
    reports: tuple[RunReport, ...] = ()
    """What was measured, one for each variant that ran."""


def prove(  # noqa: PLR0913  (the command's options)
    target: str,
    device: Device,
    *,
    project: Path | None = None,
    preset: str = "standard",
    out: Path | None = None,
    wait_s: float = 0.0,
    progress: Progress | None = None,
) -> Proof:
    """Build a project for a target, run every variant on a device, and write what was seen.

    Each variant is measured, golden outputs and placement included, and answers the evaluation
    samples where the project has any. The file has nothing of the device but the names of its
    board and processor, and nothing of a project of the user's but figures.

    Args:
        target: The target's id; ``host`` means this machine.
        device: One of the inventory, of that target.
        project: The project file; default: the example that edgepack carries.
        preset: As :func:`~edgepack.measure.bench.run.bench` has it.
        out: The file to write; default: ``<target>-device.json`` here.
        wait_s: How long to wait while others hold the device.
        progress: Where to report; default: nowhere.

    Raises:
        UsageError: There is no such target, the device is of another one or a phone, or the
            project changes the target's variants.
        DeviceError: It cannot be reached or used, or no measurement there is VALID.
        RemoteCommandError: No variant works there.
        EdgepackError: As a build or a measurement.
    """
    require_machine(device)
    target = load_profile(target).id
    if device.target != target:
        raise UsageError(
            f"device {device.name!r} is of the target {device.target!r}",
            hint=f"edgepack device add with --target {target}, or name another device",
            where="--device",
        )
    if out is not None:
        require_writable(out, "--out")
    chosen = project or find_example_dir() / "edgepack.yaml"
    loaded = read_project(chosen)
    if target in loaded.project.named_variants:
        raise UsageError(
            f"the project has variants of its own for {target!r}; a grade is about the target's",
            hint="take them out of targets in edgepack.yaml, or prove it with another project",
            where=str(chosen),
        )
    progress = progress or Silent()
    with tempfile.TemporaryDirectory(prefix="edgepack-prove-") as folder:
        built = build(
            project=chosen, targets=[target], out=Path(folder), simulate_s=0, progress=progress
        )
        built.require_all()
        has_samples = loaded.project.samples.evaluation is not None
        trial = _Trial(
            built.bundles[0].bundle, device, chosen, preset, wait_s, progress, has_samples
        )
        trial.run()
    doubts = {report.variant_used: _list_doubts(report) for report in trial.reports}
    doubts = {variant: reasons for variant, reasons in doubts.items() if reasons}
    _require_valid(trial.reports, doubts)
    seen = make_evidence(
        trial.reports,
        f"edgepack targets prove {target} --device DEVICE",
        answers=trial.answers,
        manifest=trial.bundle.manifest,
    )
    if project is not None:
        seen = _hide_project(seen)
    file = out or Path(f"{target}-{seen.how}.json")
    with writing("the evidence", file, ELSEWHERE):
        write_atomically(file, seen.model_dump_json(indent=2) + "\n", mode=SHARED)
    return Proof(seen, file, tuple(trial.unused), doubts, tuple(trial.reports))


@dataclass
class _Trial:
    """The variants of a bundle on a device, one after the other."""

    bundle: Bundle
    device: Device
    project: Path
    preset: str
    wait_s: float
    progress: Progress
    has_samples: bool
    """Whether the project has any to evaluate by."""
    reports: list[RunReport] = field(default_factory=list)
    answers: dict[str, EvaluationReport] = field(default_factory=dict)
    """By variant."""
    unused: list[Unused] = field(default_factory=list)

    def run(self) -> None:
        """Measure and evaluate each variant that works there.

        Raises:
            RemoteCommandError: None works.
        """
        self.unused += self.bundle.manifest.unused
        lost: RemoteCommandError | None = None
        for variant in (each.id for each in self.bundle.manifest.variants):
            self.progress.note(f"measuring {variant} on {self.device.name}")
            try:
                self._run_variant(variant)
            except RemoteCommandError as error:
                lost = error
                passed = Unused(variant=variant, stage="passed over", reason=error.problem)
                self.unused.append(passed)
        if not self.reports and lost is not None:
            raise lost

    def _run_variant(self, variant: str) -> None:
        report = bench(
            self.bundle.path,
            self.device,
            preset=self.preset,
            variant=variant,
            wait_s=self.wait_s,
            progress=self.progress,
        )
        if self.has_samples:
            self.answers[variant] = evaluate(
                self.bundle.path,
                self.device,
                project=self.project,
                variant=variant,
                wait_s=self.wait_s,
                progress=self.progress,
            )
        self.reports.append(report)


def _hide_project(seen: Evidence) -> Evidence:
    """Return evidence without the names that a user's project gave: of its model and metric."""
    variants = [
        each.model_copy(
            update={"metric": each.metric and each.metric.model_copy(update={"name": _OWN_METRIC})}
        )
        for each in seen.variants
    ]
    return seen.model_copy(update={"model": _OWN_MODEL, "variants": variants})


def _list_doubts(report: RunReport) -> tuple[str, ...]:
    """Return why a measurement is not VALID."""
    verdict = report.verdict
    if isinstance(verdict, Inconclusive):
        return (verdict.reason,)
    return () if isinstance(verdict, Valid) else tuple(verdict.reasons)


def _require_valid(reports: Sequence[RunReport], doubts: dict[str, tuple[str, ...]]) -> None:
    """Check that at least one measurement is VALID, unless the processor is an emulated one.

    Raises:
        DeviceError: None is.
    """
    if reports[0].facts.emulated or any(r.verdict.kind == "valid" for r in reports):
        return
    said = "".join(f"\n  {variant}: {'; '.join(reasons)}" for variant, reasons in doubts.items())
    raise DeviceError(
        f"no measurement is VALID, so it shows nothing{said}",
        hint="mend what is named (an idle, cool device, a longer --preset), and prove it again",
        where=reports[0].device,
    )


def make_evidence(
    reports: Sequence[RunReport],
    reproduce: str,
    *,
    answers: dict[str, EvaluationReport] | None = None,
    manifest: Manifest | None = None,
    software_only: bool = False,
) -> Evidence:
    """Return what reports of one bundle on one device show.

    Args:
        reports: One for each variant.
        reproduce: The command that shows it again.
        answers: By variant, its evaluation there.
        manifest: The bundle's, which has the predicted placement.
        software_only: Whether a provider's own software ran on a machine of another maker.

    Raises:
        UsageError: They are of several.
    """
    first = reports[0]
    if len({(report.device, report.bundle, report.target) for report in reports}) > 1:
        raise UsageError("the reports are of several devices or bundles", hint="give one's only")
    facts = first.facts
    names = [name for name in (facts.model, facts.cpu) if not isinstance(name, NotMeasured)]
    seen = [_see_variant(r, timed=not (facts.emulated or software_only)) for r in reports]
    predicted = {v.id: v.predicted for v in manifest.variants} if manifest else {}
    return Evidence(
        schema_version=1,
        target=first.target,
        how="simulator" if software_only else "emulation" if facts.emulated else "device",
        date=datetime.fromisoformat(first.created).date(),
        os=SYSTEMS[facts.os.split()[0]],
        arch=ARCHITECTURES[facts.arch],
        device="an emulated board" if facts.emulated else ", ".join(names) or "a machine",
        runtime={"python": facts.python, "onnxruntime": facts.onnxruntime},
        model=first.bundle,
        variants=[
            each.model_copy(
                update={
                    "metric": _see_metric(found)
                    if (found := (answers or {}).get(each.id))
                    else None,
                    "predicted_share": due.share if (due := predicted.get(each.id)) else None,
                }
            )
            for each in seen
        ],
        reproduce=reproduce,
    )


def _see_variant(report: RunReport, *, timed: bool) -> SeenVariant:
    placement = report.placement
    return SeenVariant(
        id=report.variant_used,
        golden_sqnr_db=min(run.golden_min_sqnr_db for run in report.runs),
        nodes={} if isinstance(placement, NotMeasured) else placement.counts,
        verdict=VERDICTS[report.verdict.kind] if timed else "not measured",
    )


def _see_metric(report: EvaluationReport) -> SeenMetric | None:
    found = report.measured
    if isinstance(found.fp32, NotMeasured) or report.reasons:
        return None
    return SeenMetric(name=found.metric, value=found.value, fp32=found.fp32, samples=found.samples)
