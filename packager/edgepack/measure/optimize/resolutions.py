"""``edgepack optimize --resolution``: the same search for several sizes of pictures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from edgepack.base.progress import Progress, Silent
from edgepack.base.schema import NotMeasured
from edgepack.builder.cache import open_own_cache
from edgepack.builder.sources import open_project
from edgepack.bundle.manifest import Accuracy
from edgepack.devices.inventory import Device
from edgepack.errors import (
    BudgetError,
    LimitError,
    ModelError,
    SamplesError,
    StepError,
    UsageError,
    format_one_line,
    suggest_nearest,
)
from edgepack.measure.optimize.optimizing import Optimized, OptimizeQuestion, optimize
from edgepack.measure.optimize.pruning import compute_drop
from edgepack.measure.tune.journal import Journal
from edgepack.model.facts import read_model_facts
from edgepack.project.inputs import ImageInput, Letterbox, ShortSideCrop, Stretch
from edgepack.project.loading import LoadedProject
from edgepack.records.optimizing import OptimizeReport
from edgepack.records.tuning import Latency


@dataclass(frozen=True)
class ResolutionResult:
    """What was found for pictures of one size."""

    side: int
    """The width that pictures have in the model, in pixels."""
    changes: dict[str, object]
    """The keys ``dims`` and ``inputs`` of a project file for this size."""
    found: Optimized | None
    """None where nothing is within the limits."""
    refused: str
    """Why it is not the answer; empty where it may be."""
    metric: str = ""
    value: float | None = None
    """The metric of its answer: on the device, or else on the build host's CPU."""
    drop: float | None = None
    """How much less that is than fp32's at the first size."""

    @property
    def latency(self) -> Latency | None:
        """Of its answer; None without one."""
        return None if self.found is None else _find_latency(self.found.report)


def optimize_resolutions(
    question: OptimizeQuestion,
    device: Device,
    sides: Sequence[int],
    *,
    progress: Progress | None = None,
    on_report: Callable[[OptimizeReport], None] = lambda _: None,
) -> list[ResolutionResult]:
    """Optimize for each size of pictures, in an equal part of the budget.

    A size's metric is compared with fp32's at the first one, by labels: its own fp32 says nothing
    about what smaller pictures lose. Sizes run one after the other, so that their speeds are
    compared over the time of a call, not in pairs. A call that was cut off goes on.

    Args:
        question: What and how; its budget is for all sizes.
        device: Where.
        sides: The widths of pictures in the model, in pixels; the first is what the others are
            held against.
        progress: Where to report; default: nowhere.
        on_report: Called with the report of each size, also of one that ends early.

    Raises:
        UsageError: The model or the samples are of one size, or there are no labels.
        BudgetError: The first size's part of the budget is too small for an answer.
        LimitError: Nothing is within the limits at the first size, or its fp32 was not measured.
        DeviceError: As :func:`~edgepack.measure.optimize.optimizing.optimize`.
        RemoteCommandError: No variant works there.
    """
    projects = [change_resolution(question.loaded, side) for side in sides]
    results: list[ResolutionResult] = []
    ended: list[Journal] = []
    reference: float | None = None
    for side, project in zip(sides, projects, strict=True):
        part = replace(
            question,
            loaded=project,
            budget_s=question.budget_s / len(sides),
            reference=reference,
            end=ended.append,
        )
        try:
            found = optimize(part, device, progress=progress, on_unfinished=on_report)
        except BudgetError as error:
            error.hint = (
                f"each of the {len(sides)} sizes has an equal part: give --budget"
                f" {error.needed_s * len(sides)}s or more"
            )
            if not results:
                raise
            problem = f"{error.problem}; {error.hint}"
            results.append(ResolutionResult(side, list_changes(project), None, problem))
            continue
        except (LimitError, ModelError, StepError, SamplesError) as error:
            if not results:
                raise
            results.append(
                ResolutionResult(side, list_changes(project), None, format_one_line(error.problem))
            )
            continue
        on_report(found.report)
        if reference is None:
            reference = _require_fp32(found.report, side)
        results.append(_describe(side, project, found, reference))
    for journal in ended:
        journal.drop()
    return results


def choose_resolution(results: Sequence[ResolutionResult]) -> ResolutionResult | None:
    """Return the fastest size that is within the limits; None where none is."""
    left = [(each.latency, each) for each in results if not each.refused]
    timed = [(latency.p50_ns, each) for latency, each in left if latency]
    return min(timed, key=lambda pair: pair[0], default=(0, None))[1]


def require_resolution(results: Sequence[ResolutionResult]) -> None:
    """Check that a size is within the limits.

    Raises:
        LimitError: None is; the message has the reason for each.
    """
    if choose_resolution(results) is None:
        raise LimitError(
            "no size is within the limits: "
            + "; ".join(f"{each.side}: {each.refused}" for each in results),
            hint="change 'limits' in edgepack.yaml, or try larger sizes",
        )


def change_resolution(loaded: LoadedProject, side: int) -> LoadedProject:
    """Return a project whose pictures are that wide in the model, of the same shape as before.

    Raises:
        UsageError: The model or the samples are of one size, or there are no labels.
    """
    project = loaded.project
    images = {name: each.image for name, each in project.inputs.items() if each.image is not None}
    if len(images) != 1:
        raise UsageError(
            f"--resolution needs one input that is an image, and the project has {len(images)}",
            hint="describe it: inputs: {NAME: {image: {resize: {letterbox: 640}}}}",
            where=loaded.locate("inputs"),
        )
    _require_pictures(loaded)
    [(name, image)] = images.items()
    resize = _resize(image, side)
    height = resize.height if isinstance(resize, Stretch) else side
    axes = _find_axes(loaded, name, image)
    changed = project.inputs[name].model_copy(
        update={"image": image.model_copy(update={"resize": resize})}
    )
    return replace(
        loaded,
        project=project.model_copy(
            update={
                "dims": {**project.dims, axes[0]: height, axes[1]: side},
                "inputs": {**project.inputs, name: changed},
            }
        ),
    )


def list_changes(loaded: LoadedProject) -> dict[str, object]:
    """Return what a project file says of sizes, as its keys."""
    project = loaded.project
    return {
        "dims": project.model_dump(mode="json", include={"dims"})["dims"],
        "inputs": {
            name: each.model_dump(mode="json", exclude_defaults=True)
            for name, each in project.inputs.items()
        },
    }


def _require_pictures(loaded: LoadedProject) -> None:
    samples = loaded.project.samples
    for kind, source in (("calibration", samples.calibration), ("evaluation", samples.evaluation)):
        if source is not None and source.images is None and source.video is None:
            raise UsageError(
                f"the {kind} samples are tensors of one size",
                hint=f"give a folder of pictures: samples: {{{kind}: {{images: FOLDER}}}}",
                where=loaded.locate("samples", kind),
            )
    if samples.evaluation is None or samples.evaluation.labels is None:
        raise UsageError(
            "sizes are compared by a metric of labels, and the evaluation samples have none",
            hint="samples: {evaluation: {images: FOLDER, labels: labels.csv}}",
            where=loaded.locate("samples"),
        )


def _resize(image: ImageInput, side: int) -> Letterbox | ShortSideCrop | Stretch:
    resize = image.resize
    if isinstance(resize, Letterbox):
        return resize.model_copy(update={"letterbox": side})
    if isinstance(resize, ShortSideCrop):
        short = round(resize.short_side * side / resize.crop)
        return resize.model_copy(update={"short_side": short, "crop": side})
    height = max(1, round(resize.height * side / resize.width))
    return resize.model_copy(update={"width": side, "height": height})


def _find_axes(loaded: LoadedProject, name: str, image: ImageInput) -> tuple[str, str]:
    """Return the model's names of the picture's height and width."""
    opened = open_project(loaded, open_own_cache(), Silent())
    inputs = {each.name: each for each in read_model_facts(opened.model_path).inputs}
    if name not in inputs:
        raise UsageError(
            f"the model has no input {name!r}",
            hint=suggest_nearest(name, inputs),
            where=loaded.locate("inputs", name),
        )
    spec = inputs[name]
    shape = spec.shape or ()
    first = 2 if image.layout == "NCHW" else 1
    found = shape[first : first + 2]
    if len(found) != 2 or not all(isinstance(size, str) and size != "?" for size in found):
        raise UsageError(
            f"the model takes pictures of one size: {spec}",
            hint="export it with names for height and width (torch.onnx.export: dynamic_axes)",
            where=loaded.model_name,
        )
    return str(found[0]), str(found[1])


def _require_fp32(report: OptimizeReport, side: int) -> float:
    """Return fp32's metric on the build host.

    Raises:
        LimitError: It was not measured.
    """
    found = [each.accuracy for each in report.variants if isinstance(each.accuracy, Accuracy)]
    for accuracy in found:
        if not isinstance(accuracy.fp32, NotMeasured):
            return accuracy.fp32
    raise LimitError(
        f"fp32's metric at {side} pixels was not measured, and other sizes are held against it",
        hint="give a float32 model, with labels for its evaluation samples",
    )


def _describe(
    side: int, project: LoadedProject, found: Optimized, reference: float
) -> ResolutionResult:
    """Return a size's result, with how much its answer lost against the first size's fp32."""
    report, changes = found.report, list_changes(project)
    if report.answer is None:
        return ResolutionResult(side, changes, found, report.why)
    variant = report.candidate(report.answer).settings.variant
    facts = next(each for each in report.variants if each.id == variant)
    accuracy = report.on_device.get(variant, facts.accuracy)
    if isinstance(accuracy, NotMeasured):
        return ResolutionResult(side, changes, found, "its metric was not measured")
    drop = compute_drop(accuracy, reference)
    return ResolutionResult(side, changes, found, "", accuracy.metric, accuracy.value, drop)


def _find_latency(report: OptimizeReport) -> Latency | None:
    if report.answer is None:
        return None
    latency = report.candidate(report.answer).latency
    return latency if isinstance(latency, Latency) else None
