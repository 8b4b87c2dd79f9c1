"""``edgepack evaluate``: the project's metric, through the device's own execution provider."""

from __future__ import annotations

import hashlib
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from edgepack.backends.targets import load_target
from edgepack.base.clock import format_now
from edgepack.base.machine import find_processor
from edgepack.base.processes import Workers
from edgepack.base.progress import Progress, Silent, Work
from edgepack.base.schema import NotMeasured
from edgepack.builder.cache import open_own_cache
from edgepack.builder.cleaning import read_source_facts
from edgepack.builder.execution import execute
from edgepack.builder.planner import make_plan
from edgepack.builder.sources import open_project
from edgepack.bundle.manifest import Accuracy, SourceModel, find_decisive
from edgepack.bundle.reading import Bundle
from edgepack.devices.frames import SampleAnswer
from edgepack.devices.inventory import BrowserEntry, Device
from edgepack.devices.transports import require_machine
from edgepack.errors import BundleError, EdgepackError, InconclusiveError, LimitError, UsageError
from edgepack.measure.bench.assemble import make_report_id
from edgepack.measure.bench.session import INTERRUPTS, open_harness, read_bundle
from edgepack.measure.browsers.browsers import answer_samples, open_browser
from edgepack.measure.evaluate.judge import Judged, Judging, judge_answers
from edgepack.measure.evaluate.kept_answers import KeptAnswers, read_as_they_come
from edgepack.measure.evaluate.stream import Inputs as SampleInputs
from edgepack.measure.evaluate.stream import stream_answers
from edgepack.model.facts import ModelFacts
from edgepack.model.running import Arrays
from edgepack.project.loading import PROJECT_FILE, LoadedProject, read_project
from edgepack.records.limits import explain_missed_limit
from edgepack.records.run import EvaluationReport, Selection
from edgepack.records.verdict import list_placement_reasons
from edgepack.samples.sample_set import SampleSet

_REFERENCES = "references"


def evaluate(  # noqa: PLR0913  (the command's options)
    bundle: Path,
    device: Device,
    *,
    project: Path | LoadedProject | None = None,
    variant: str | None = None,
    wait_s: float = 0.0,
    resume: bool = True,
    progress: Progress | None = None,
) -> EvaluationReport:
    """Run the project's evaluation samples on a device and evaluate its outputs here.

    Samples are streamed to the device and outputs back; fp32 runs on this machine's CPU meanwhile.
    A model that came quantized or float16 has no fp32 model, so it needs a metric of labels or of
    the user. The device is leased. Only the outputs of an evaluation that ends early are stored, in
    the user's cache: the next call with the same bundle, variant, device and samples continues from
    there.

    Args:
        bundle: The bundle's folder.
        device: Where to run it.
        project: The project, or its file; default: the one in the working directory.
        variant: Evaluate this one, rather than the first that works there.
        wait_s: How long to wait while others hold the device.
        resume: Whether to go on where an earlier call ended early.
        progress: Where to report; default: nowhere.

    Raises:
        UsageError: There is no project here, it has no evaluation samples, or there is neither an
            fp32 model to compare with nor another metric.
        BundleError: The bundle is altered, or was made from another model.
        DeviceError: The device cannot be reached or used, or is not the bundle's target; others
            hold it, or may have used it meanwhile.
        RemoteCommandError: The harness crashed or hung, or no variant works there.
    """
    began_ns = time.monotonic_ns()
    progress = progress or Silent()
    road = _choose_road(device)
    opened = read_bundle(bundle, device, variant)
    loaded = open_project(_read_project_here(project), open_own_cache(), progress)
    facts = read_source_facts(loaded)
    _require_same_model(loaded, facts, opened.manifest.model)
    materials = _make_materials(loaded, facts, opened.manifest.target, progress)
    with ThreadPoolExecutor(1) as pool, Workers(1) as workers:
        with road.open(opened, device, "evaluate", wait_s=wait_s, progress=progress) as harness:
            selection = harness.select(variant)
            key = _make_key(opened, device, selection, materials)
            total = len(materials.samples)
            with KeptAnswers(key, resume=resume) as kept, _reporting_kept(kept, total, progress):
                resumed = len(kept)
                given = materials.make_judging(loaded, facts, kept.path)
                judged = pool.submit(_judge_in_worker, workers, given, materials, progress)
                title = f"{device.name} {selection.variant}: measuring accuracy"
                with _counting(kept, title, total, progress):
                    inputs = _make_own_state(materials.samples, kept, loaded.project.state)
                    numbers = range(len(kept), len(materials.samples))
                    answers = road.answer(harness, inputs, numbers, selection.variant)
                    _receive(answers, len(numbers), kept, judged)
                placement = harness.profile(selection.variant)
        progress.show_status("computing the metric from the answers")
        found = judged.result()
    kept.drop()
    entry = opened.manifest.find_variant(selection.variant)
    created = format_now()
    return EvaluationReport(
        schema_version=1,
        id=make_report_id(created),
        created=created,
        device=device.name,
        facts=selection.device,
        project=opened.manifest.name,
        bundle=opened.manifest.id,
        manifest_sha256=opened.digest,
        target=opened.manifest.target,
        variant=selection.variant,
        unused=selection.unused,
        samples_sha256=materials.samples_sha256,
        measured=_make_accuracy(found, loaded),
        interval=found.interval,
        simulated=find_decisive(entry.accuracy, entry.simulated),
        placement=placement,
        limits=loaded.find_limits(opened.manifest.target, device.name),
        reasons=list(list_placement_reasons(placement, entry)),
        inference_ns=kept.inference_ns,
        resumed=resumed,
        elapsed_ns=time.monotonic_ns() - began_ns,
    )


def require_usable(report: EvaluationReport) -> None:
    """Check that the metric is that of what was requested, and within the limits.

    Raises:
        InconclusiveError: It is not what was requested; the message has all reasons.
        LimitError: It misses a limit.
    """
    if report.reasons:
        raise InconclusiveError(
            "".join(["the metric must not be used", *(f"\n  - {why}" for why in report.reasons)]),
            hint=f"see what the device lacks: edgepack device check {report.device}",
            where=report.device,
        )
    if missed := explain_missed_limit(report.measured, report.limits):
        raise LimitError(
            f"{report.variant}: {missed}",
            hint="evaluate another variant (--variant), or change 'limits' in edgepack.yaml",
            where=report.device,
        )


@dataclass(frozen=True)
class _Road:
    """How samples get to a device, and answers back."""

    open: Callable[..., AbstractContextManager[Any]]
    answer: Callable[..., Generator[SampleAnswer]]


def _choose_road(device: Device) -> _Road:
    if isinstance(device.entry, BrowserEntry):
        return _Road(open_browser, answer_samples)
    require_machine(device)
    return _Road(open_harness, stream_answers)


@dataclass(frozen=True)
class _Materials:
    """What an evaluation needs beside the bundle."""

    samples: SampleSet
    samples_sha256: str
    reference: Path | None
    """The folder of the prepared fp32 model, if there is one."""
    reference_sha256: str
    """Of that folder, and of what it runs with."""
    library: Path | None
    """Of the model's custom operators, where it has some."""

    def make_judging(self, loaded: LoadedProject, facts: ModelFacts, answers: Path) -> Judging:
        source = loaded.project.samples.evaluation
        outputs = [spec.name for spec in facts.outputs]
        return Judging(
            answers=answers,
            samples=self.samples.folder,
            reference=self.reference,
            references=None,
            metric=source.metric if source else None,
            scores_output=loaded.find_scores_output(outputs, facts.label_outputs),
            described=loaded.describe_outputs(),
            project=loaded.folder,
            interpreter=loaded.project.interpreter,
            state=tuple(loaded.project.state.items()),
            library=self.library,
        )


def _make_key(
    bundle: Bundle, device: Device, selection: Selection, materials: _Materials
) -> dict[str, object]:
    """Return all that decides a device's outputs."""
    facts = selection.device
    known = ["arch", "model", "cpu", "numpy", "onnxruntime", "providers"]
    if isinstance(device.entry, BrowserEntry):
        # One device may be any browser that opens its page: these have the browser, its system,
        # the GPU and the threads.
        known += ["os", "driver", "python"]
    return {
        "bundle": bundle.digest,
        "variant": selection.variant,
        "device": device.name,
        **facts.model_dump(include=set(known)),
        "samples": materials.samples_sha256,
    }


def _judge_in_worker(
    workers: Workers, given: Judging, materials: _Materials, progress: Progress
) -> Judged:
    """Evaluate in a worker; fp32's outputs for the samples are kept for later evaluations."""
    if given.reference is None:
        return workers.call(judge_answers, given, on_note=progress.note)
    cache = open_own_cache()
    known = (
        materials.reference_sha256,
        materials.samples_sha256,
        find_processor(),
        version("numpy"),
    )
    key = hashlib.sha256("\n".join((*known, version("onnxruntime"))).encode()).hexdigest()
    found: list[Judged] = []

    def judge(folder: Path) -> None:
        with_file = replace(given, references=folder / _REFERENCES)
        found.append(workers.call(judge_answers, with_file, on_note=progress.note))

    if kept := cache.find(key):
        judge(kept.path)
    else:
        cache.keep(key, judge)
    return found[0]


def _make_own_state(
    samples: SampleSet, kept: KeptAnswers, state: Mapping[str, str]
) -> SampleInputs:
    """Return the function of a sample's inputs; inside a stream without the state.

    The device has that state itself. Only the first sent sample has the state that the device had
    reached when an earlier evaluation ended.
    """
    first, begins = len(kept), set(samples.streams)

    def make_inputs(number: int) -> Arrays:
        feed = samples.read_inputs(number)
        if number in begins or not state:
            return feed
        reached: Arrays = {}
        if number == first:
            [last] = deque(read_as_they_come(kept.path, first), maxlen=1)
            reached = {name: last.outputs[output] for output, name in state.items()}
        own = state.values()
        return {name: feed[name] for name in feed if name not in own} | reached

    return make_inputs


def _receive(
    answers: Generator[SampleAnswer], count: int, kept: KeptAnswers, judged: Future[Judged]
) -> None:
    """Receive and keep the answers to all samples that have none yet, which are so many.

    Raises:
        EdgepackError: As the function does that gives the answers, or what ended the judging.
    """
    if not count:
        return
    with closing(answers):
        for answer in answers:
            kept.add(answer)
            if judged.done():
                judged.result()


@contextmanager
def _counting(kept: KeptAnswers, title: str, total: int, progress: Progress) -> Iterator[None]:
    """Show how many samples are answered."""
    with progress.start_task(Work(title, total=1, kinds={"": 1})) as task:
        samples = f"{total} samples" + (f", {len(kept)} known already" if len(kept) else "")
        task.begin(samples)
        kept.on_growth = lambda: task.report(samples, len(kept), total)
        yield
        task(samples)


@contextmanager
def _reporting_kept(kept: KeptAnswers, total: int, progress: Progress) -> Iterator[None]:
    """Report how many answers stay if the evaluation ends early, even after the last answer."""
    try:
        yield
    except (EdgepackError, *INTERRUPTS):
        progress.note(
            f"{len(kept)} of {total} samples are answered and kept:"
            " the same command continues there"
        )
        raise


def _read_project_here(project: Path | LoadedProject | None) -> LoadedProject:
    if isinstance(project, LoadedProject):
        return project
    path = project or Path(PROJECT_FILE)
    if project is None and not path.is_file():
        raise UsageError(
            f"there is no {PROJECT_FILE} here, and its evaluation samples are needed",
            hint=f"name the project that the bundle was built from: --project {PROJECT_FILE}",
            where="--project",
        )
    return read_project(path)


def _make_materials(
    loaded: LoadedProject, facts: ModelFacts, target: str, progress: Progress
) -> _Materials:
    """Make the fp32 reference and the evaluation samples, as a build does."""
    plan = make_plan(loaded, facts, [load_target(target)])
    judged = [v.evaluation for v in plan.bundles[0].variants if v.evaluation is not None]
    if not judged:
        raise UsageError(
            "the project has no evaluation samples",
            hint="add to edgepack.yaml: samples: {evaluation: {path: evaluation.npz}}",
            where=loaded.locate("samples"),
        )
    inputs = next(step.inputs for step in plan.steps if step.id == judged[0])
    asked = {name: inputs[name] for name in ("reference", "samples") if name in inputs}
    needed = plan.only(asked.values())
    done = execute(needed, cache=open_own_cache(), jobs=1, progress=progress).artifacts
    samples = done[asked["samples"]]
    reference = done[asked["reference"]] if "reference" in asked else None
    library = plan.library.digest if plan.library else ""
    return _Materials(
        samples=SampleSet.read(samples.path),
        samples_sha256=samples.digest,
        reference=reference.path if reference else None,
        reference_sha256=f"{reference.digest}{library}" if reference else "",
        library=plan.library_path,
    )


def _require_same_model(loaded: LoadedProject, facts: ModelFacts, made_from: SourceModel) -> None:
    """Check that the bundle's model is the project's: the file that the user has, in any format."""
    origin, now = made_from.converted_from, loaded.converted
    same = origin.sha256 == now.digest if origin and now else facts.sha256 == made_from.sha256
    if not same:
        raise BundleError(
            f"the bundle was not made from {str(loaded.named_model)!r} as it is now",
            hint="build the bundle again, or name its project with --project",
        )


def _make_accuracy(found: Judged, loaded: LoadedProject) -> Accuracy:
    if isinstance(found.accuracy, NotMeasured):
        raise UsageError(
            f"there is nothing to measure: {found.accuracy.reason}",
            hint="give labels with 'metric: top1', or a metric of your own, under"
            " samples.evaluation in edgepack.yaml",
            where=loaded.locate("samples"),
        )
    return found.accuracy
