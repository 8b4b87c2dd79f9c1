"""``edgepack evaluate --variant all``: the project's metric of every variant on one device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from edgepack.base.progress import Progress
from edgepack.bundle.unused import Stage, Unused
from edgepack.devices.inventory import Device
from edgepack.errors import (
    EdgepackError,
    LimitError,
    RemoteCommandError,
    VariantRefusedError,
    format_one_line,
)
from edgepack.measure.bench.session import read_bundle
from edgepack.measure.evaluate.evaluate import evaluate, require_usable
from edgepack.records.run import EvaluationReport


@dataclass(frozen=True)
class VariantsEvaluation:
    """What was evaluated of a bundle's variants on one device."""

    device: str
    reports: list[EvaluationReport]
    """In the order of the manifest."""
    out: list[Unused]
    """Variants that do not work there, or failed."""


def evaluate_variants(  # noqa: PLR0913  (the command's options)
    bundle: Path,
    device: Device,
    *,
    project: Path | None = None,
    wait_s: float = 0.0,
    resume: bool = True,
    progress: Progress | None = None,
    on_report: Callable[[EvaluationReport], None] = lambda _: None,
) -> VariantsEvaluation:
    """Evaluate all variants of a bundle that work on a device, one after the other.

    A variant that fails does not stop the others. What an earlier call left of the variant that it
    ended in is taken, as by :func:`~edgepack.measure.evaluate.evaluate.evaluate`.

    Args:
        bundle: The bundle's folder.
        device: Where to run it.
        project: The project file; default: the one in the working directory.
        wait_s: How long to wait while others hold the device.
        resume: Whether to go on where an earlier call ended early.
        progress: Where to report; default: nowhere.
        on_report: Called with each report as it is made.

    Raises:
        EdgepackError: As :func:`~edgepack.measure.evaluate.evaluate.evaluate`; but a variant that
            fails is an error only where none is left.
    """
    reports: list[EvaluationReport] = []
    out: list[Unused] = []
    for entry in read_bundle(bundle, device, None).manifest.variants:
        try:
            report = evaluate(
                bundle,
                device,
                project=project,
                variant=entry.id,
                wait_s=wait_s,
                resume=resume,
                progress=progress,
            )
        except RemoteCommandError as error:
            stage: Stage = "passed over" if isinstance(error, VariantRefusedError) else "failed"
            reason = format_one_line(error.problem)
            out.append(Unused(variant=entry.id, stage=stage, reason=reason))
            continue
        reports.append(report)
        on_report(report)
    if not reports:
        raise RemoteCommandError(
            "no variant could be evaluated there: "
            + "; ".join(f"{each.variant}: {each.reason}" for each in out),
            hint=f"see what the device lacks: edgepack device check {device.name}",
            where=device.name,
        )
    return VariantsEvaluation(device.name, reports, out)


def require_all_usable(found: VariantsEvaluation) -> None:
    """Check that all metrics may be used, and that one variant at least is within the limits.

    Raises:
        RemoteCommandError: A variant failed.
        InconclusiveError: A metric is not that of what was requested.
        LimitError: All miss a limit.
    """
    if failed := [each for each in found.out if each.stage == "failed"]:
        raise RemoteCommandError(
            "failed: " + "; ".join(f"{each.variant}: {each.first_line}" for each in failed),
            hint=f"evaluate it alone: --variant {failed[0].variant}",
            where=found.device,
        )
    missed: list[EdgepackError] = []
    for report in found.reports:
        try:
            require_usable(report)
        except LimitError as error:
            missed.append(error)
    if len(missed) == len(found.reports):
        raise missed[0]
