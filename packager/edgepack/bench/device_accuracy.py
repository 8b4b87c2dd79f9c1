"""``edgepack evaluate``: the project's metric, through the device's own execution provider."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from edgepack.bench.session import open_harness, read_bundle
from edgepack.bench.streaming import stream_outputs
from edgepack.build.cache import own_cache
from edgepack.build.execution import execute
from edgepack.build.planning import make_plan
from edgepack.bundle.manifest import Accuracy, NotMeasured
from edgepack.data import SampleSet
from edgepack.data.hook import load_arrays, save_arrays
from edgepack.devices.inventory import Device
from edgepack.errors import BundleError, UsageError
from edgepack.model.facts import model_facts
from edgepack.model.running import Arrays, make_session, run_session
from edgepack.processes import Workers
from edgepack.profile import load_profile
from edgepack.progress import Progress, Silent
from edgepack.project import PROJECT_FILE, LoadedProject, read_project
from edgepack.steps.base import MODEL
from edgepack.steps.evaluation import Judge, as_accuracy, hook_metric, uncompared


@dataclass(frozen=True)
class DeviceAccuracy:
    """The metric through the device beside the one simulated on the build host."""

    bundle: str
    device: str
    variant: str
    """The variant that the device chose."""
    measured: Accuracy
    simulated: Accuracy | NotMeasured
    """From the bundle's manifest."""


def evaluate(
    bundle: Path,
    device: Device,
    *,
    project: Path | None = None,
    variant: str | None = None,
    wait_s: float = 0.0,
    progress: Progress | None = None,
) -> DeviceAccuracy:
    """Run the project's evaluation samples on a device and judge its outputs here.

    Samples are streamed to the device and outputs back; fp32 runs on this machine's CPU. A model
    that came quantized or float16 has no fp32 model, and only a metric of labels or of the user's.
    The device is leased meanwhile; ``wait_s`` is how long to wait while others hold it.

    Raises:
        UsageError: There is no project here, it has no evaluation samples, or there is neither an
            fp32 model to compare with nor another metric.
        BundleError: The bundle is altered, or was made from another model.
        DeviceError: The device cannot be reached or used, or is not the bundle's target; others
            hold it, or may have used it meanwhile.
        RemoteCommandError: The harness crashed or hung, or no variant works there.
    """
    opened = read_bundle(bundle, device, variant)
    loaded = _project_here(project)
    progress = progress or Silent()
    with Workers(1) as workers, tempfile.TemporaryDirectory(prefix="edgepack-") as scratch:
        prepared, samples = _materials(loaded, opened.manifest.target, progress)
        _require_same_model(loaded, opened.manifest.model.sha256)
        references: Iterator[Arrays] | None = None
        if prepared:
            workers.call(write_reference, prepared / MODEL, samples.folder, Path(scratch))
            references = _references(Path(scratch), len(samples))
        with open_harness(opened, device, "evaluate", wait_s=wait_s, progress=progress) as harness:
            used = variant or harness.select(None).variant
            outputs = stream_outputs(harness, samples, used)
            measured = _judge(loaded, samples, references, outputs, progress)
    entry = next(entry for entry in opened.manifest.variants if entry.id == used)
    return DeviceAccuracy(opened.manifest.id, device.name, used, measured, entry.accuracy)


def _project_here(project: Path | None) -> LoadedProject:
    path = project or Path(PROJECT_FILE)
    if project is None and not path.is_file():
        raise UsageError(
            f"there is no {PROJECT_FILE} here, and its evaluation samples are needed",
            hint=f"name the project that the bundle was built from: --project {PROJECT_FILE}",
            where="--project",
        )
    return read_project(path)


def _materials(
    loaded: LoadedProject, target: str, progress: Progress
) -> tuple[Path | None, SampleSet]:
    """Return the folder of the fp32 reference, if there is one, and the evaluation samples."""
    plan = make_plan(loaded, model_facts(loaded.model_path), [load_profile(target)])
    judged = [v.evaluation for v in plan.bundles[0].variants if v.evaluation is not None]
    if not judged:
        raise UsageError(
            "the project has no evaluation samples",
            hint="add to edgepack.yaml: samples: {evaluation: {path: evaluation.npz}}",
            where=loaded.where("samples"),
        )
    inputs = next(step.inputs for step in plan.steps if step.id == judged[0])
    asked = {name: inputs[name] for name in ("reference", "samples") if name in inputs}
    needed = plan.only(asked.values())
    done = execute(needed, cache=own_cache(), jobs=1, progress=progress).artifacts
    reference = done[asked["reference"]].path if "reference" in asked else None
    return reference, SampleSet.read(done[asked["samples"]].path)


def _require_same_model(loaded: LoadedProject, sha256: str) -> None:
    if model_facts(loaded.model_path).sha256 != sha256:
        raise BundleError(
            f"the bundle was not made from {str(loaded.model_path)!r} as it is now",
            hint="build the bundle again, or name its project with --project",
        )


def write_reference(model: Path, samples: Path, out: Path) -> None:
    """Write the outputs of fp32 for every sample; called in a worker."""
    session = make_session(model)
    for index, feed in enumerate(SampleSet.read(samples)):
        save_arrays(out / f"{index}.npz", run_session(session, feed))


def _references(folder: Path, count: int) -> Iterator[Arrays]:
    return (load_arrays(folder / f"{index}.npz") for index in range(count))


def _judge(
    loaded: LoadedProject,
    samples: SampleSet,
    references: Iterator[Arrays] | None,
    outputs: Iterator[Arrays],
    progress: Progress,
) -> Accuracy:
    source = loaded.project.samples.evaluation
    metric = source.metric if source else None
    hooked = not isinstance(metric, str | None)
    outputs_of_model = [spec.name for spec in model_facts(loaded.model_path).outputs]
    scores_output = loaded.scores_output(outputs_of_model)
    judge = Judge(samples.labels, scores_output, keep_outputs=hooked)
    alone = ((output, output) for output in outputs)
    pairs = zip(references, outputs, strict=True) if references else alone
    with progress.task("evaluate", total=len(samples)) as advance:
        for index, (reference, output) in enumerate(pairs):
            judge.add(reference, output)
            advance(f"sample {index}")
    result = judge.result(
        metric,
        lambda arrays, labels: hook_metric(
            str(getattr(metric, "python", "")),
            arrays,
            labels,
            loaded.folder,
            loaded.project.interpreter,
        ),
    )
    found = as_accuracy(result if references else uncompared(result))
    if isinstance(found, NotMeasured):
        raise UsageError(
            f"there is nothing to measure: {found.reason}",
            hint="give labels with 'metric: top1', or a metric of your own, under"
            " samples.evaluation in edgepack.yaml",
            where=loaded.where("samples"),
        )
    return found
