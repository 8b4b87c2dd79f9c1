"""``edgepack optimize``: builds what may be best for a device, searches there, and says what is."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Lock
from time import monotonic

from edgepack import __version__
from edgepack.backends.targets import choose_targets
from edgepack.base.clock import format_now
from edgepack.base.progress import Progress, Silent
from edgepack.base.schema import NotMeasured
from edgepack.builder.build import BuildResult, build_candidates
from edgepack.builder.cache import open_own_cache
from edgepack.builder.planner import has_attention
from edgepack.builder.sources import open_project
from edgepack.bundle.manifest import Accuracy, Manifest
from edgepack.bundle.reading import Bundle
from edgepack.bundle.unused import Unused
from edgepack.devices.inventory import Device
from edgepack.devices.transports import require_machine
from edgepack.errors import BugError, EdgepackError, LimitError, RemoteCommandError, format_one_line
from edgepack.measure.bench.assemble import make_report_id, make_variant_facts
from edgepack.measure.bench.session import (
    INTERRUPTS,
    AnyHarness,
    explain_end,
    open_harness,
    read_bundle,
    require_topology,
)
from edgepack.measure.evaluate.evaluate import evaluate
from edgepack.measure.optimize.candidates import add_candidates
from edgepack.measure.optimize.keeping import find_runs_dir
from edgepack.measure.optimize.pruning import (
    explain_few_samples,
    explain_lost,
    explain_too_poor,
)
from edgepack.measure.optimize.searching import OptimizeSearch
from edgepack.measure.tune.assembling import describe_pairs, find_front, make_candidate
from edgepack.measure.tune.journal import Journal
from edgepack.measure.tune.searching import (
    MeasuredCandidate,
    Site,
    TuneQuestion,
)
from edgepack.model.facts import read_model_facts
from edgepack.project.limits import Limits
from edgepack.project.loading import LoadedProject
from edgepack.records.limits import explain_missed_limit
from edgepack.records.optimizing import IS_BASE, SCHEMA_VERSION, OptimizeReport
from edgepack.records.tuning import Confirmation
from edgepack.records.verdict import EMULATED
from edgepack.steps.graph.attention import can_fuse

_BUILDING = Lock()
NOT_REACHED = NotMeasured(reason="it ended before")
NO_FP32 = NotMeasured(reason="no fp32 variant works there")


@dataclass(frozen=True)
class OptimizeQuestion:
    """What is to be optimized, and how."""

    loaded: LoadedProject
    budget_s: float = 1200.0
    """Seconds to measure speed on the device; building and the metric come on top."""
    seed: int = 0
    """Decides the order of runs, and which candidates are tried if not all can be."""
    wait_s: float = 0.0
    cache: Path = field(default_factory=find_runs_dir)
    """The folder where runs are written down, for a call that goes on."""
    reference: float | None = None
    """fp32's metric that an answer's loss is counted from; None: its own fp32's."""
    end: Callable[[Journal], None] = Journal.drop
    """What becomes of the runs that were written down, once the search has come to its end."""


@dataclass(frozen=True)
class Optimized:
    """What was found, and what a project file needs of it."""

    report: OptimizeReport
    manifest: Manifest
    """Of what was built for it: the answer's variant and those of the target's profile."""


@dataclass
class _Outcome:
    """What came of it so far."""

    search: OptimizeSearch
    limits: Limits
    unused: list[Unused]
    on_device: dict[str, Accuracy] = field(default_factory=dict)
    answer: MeasuredCandidate | None = None
    why: str = "it ended before an answer"
    over_fp32: Confirmation | NotMeasured = NOT_REACHED
    over_defaults: Confirmation | NotMeasured = NOT_REACHED


def optimize(
    question: OptimizeQuestion,
    device: Device,
    *,
    progress: Progress | None = None,
    on_unfinished: Callable[[OptimizeReport], None] = lambda _: None,
) -> Optimized:
    """Find the variant and settings with which a project's model is fastest there, within limits.

    Builds every variant that the device's target can run, prunes those that cannot be the answer,
    searches the settings of the others on the device, measures the metric of the best through the
    device's own provider, and compares it in pairs of process runs with fp32 and with
    onnxruntime's defaults. The device's current release is not touched; nothing is stored but what
    lets a call that was cut off go on.

    Args:
        question: What and how.
        device: Where.
        progress: Where to report; default: nowhere.
        on_unfinished: Called with the report of what was measured if it ends early; then the error
            or interrupt is raised.

    Raises:
        BudgetError: The budget is too small for any answer.
        LimitError: No variant can be built that is within the limits.
        DeviceError: The device cannot be reached or used; others hold it, or may have used it.
        RemoteCommandError: No variant works there.
        EdgepackError: As :func:`~edgepack.builder.build.build`.
    """
    require_machine(device)
    progress = progress or Silent()
    limits = question.loaded.find_limits(device.target, device.name)
    with tempfile.TemporaryDirectory(prefix="edgepack-") as name:
        with _BUILDING:  # of several devices' builds the first fills the cache for the others
            built = _build_candidates(question, device.target, limits, Path(name), progress)
        bundle = _take_bundle(built, device)
        asked = _ask(question, bundle, device, limits)
        unused = [each for several in built.unused.values() for each in several]
        outcome: _Outcome | None = None
        try:
            opening = open_harness(
                bundle, device, "optimize", wait_s=question.wait_s, progress=progress
            )
            with opening as harness:
                search = _begin(asked, bundle, device, harness, progress)
                outcome = _Outcome(search, limits, [*unused, *search.site.unused])
                search.run()
            if search.journal.taken:
                progress.note(f"{search.journal.taken} process runs of an earlier call were taken")
            _choose(question, outcome, device, progress)
            _confirm(outcome, device, progress)
        except (EdgepackError, *INTERRUPTS) as end:
            if outcome:
                on_unfinished(_make_report(question, outcome, unfinished=explain_end(end)))
            raise
        question.end(outcome.search.journal)
        report = _make_report(question, outcome)
        return Optimized(report, _shorten(bundle.manifest, report, question))


def _shorten(manifest: Manifest, report: OptimizeReport, question: OptimizeQuestion) -> Manifest:
    """Return a manifest with the answer and the profile's own variants alone."""
    [profile] = choose_targets(question.loaded, [manifest.target])
    names = {variant.id for variant in profile.variants}
    if report.answer is not None:
        names.add(report.candidate(report.answer).settings.variant)
    kept = [entry for entry in manifest.variants if entry.id in names]
    return manifest.model_copy(update={"variants": kept})


def _build_candidates(
    question: OptimizeQuestion, target: str, limits: Limits, out: Path, progress: Progress
) -> BuildResult:
    """Build every variant that may be the answer, into a folder."""
    loaded = open_project(question.loaded, open_own_cache(), progress)
    [profile] = choose_targets(loaded, [target])
    attention = can_fuse() and has_attention(read_model_facts(loaded.model_path))
    candidates = add_candidates(profile, attention=attention)
    return build_candidates(loaded, candidates, limits, out, progress=progress)


def _take_bundle(built: BuildResult, device: Device) -> Bundle:
    """Return the bundle that was built.

    Raises:
        LimitError: Every variant misses a limit.
        EdgepackError: None could be made.
    """
    if built.bundles:
        return read_bundle(built.bundles[0].bundle.path, device, None)
    missed = [each for several in built.unused.values() for each in several]
    if any(each.stage == "missed" for each in missed):
        raise LimitError(
            "no variant is within the project's limits: "
            + "; ".join(f"{each.variant}: {each.first_line}" for each in missed),
            hint="change 'limits' in edgepack.yaml to what one of these reaches",
        )
    built.require_all()
    raise BugError("a build without a bundle has no error")


def _ask(
    question: OptimizeQuestion, bundle: Bundle, device: Device, limits: Limits
) -> TuneQuestion:
    key = f"{bundle.digest} {device.name} {question.budget_s:g} {question.seed}"
    name = f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.jsonl"
    return TuneQuestion(
        bundle.path,
        budget_s=question.budget_s,
        limits=limits,
        seed=question.seed,
        wait_s=question.wait_s,
        journal=question.cache / name,
    )


def _begin(
    asked: TuneQuestion, bundle: Bundle, device: Device, harness: AnyHarness, progress: Progress
) -> OptimizeSearch:
    """Return the search over the variants that the device does not pass over.

    Raises:
        RemoteCommandError: No variant works there.
    """
    selection = harness.select(None)
    topology = require_topology(harness)
    passed_over = {each.variant for each in selection.unused}
    left = [entry for entry in bundle.manifest.variants if entry.id not in passed_over]
    site = Site(asked, device, bundle, harness, selection, topology, selection.unused, progress)
    return OptimizeSearch(site, left)


def _choose(
    question: OptimizeQuestion, outcome: _Outcome, device: Device, progress: Progress
) -> None:
    """Choose the fastest candidate whose variant keeps the limits on the device's own provider."""
    search = outcome.search
    began, refused = monotonic(), dict[str, str]()
    for tried in search.rank():
        variant = tried.settings.variant
        if variant not in outcome.on_device and variant not in refused:
            refused[variant] = _evaluate(question, outcome, device, variant, progress)
        if not refused.get(variant):
            outcome.answer = tried
            break
    # The metric has its own time, as the budget is that of the search.
    search.started += monotonic() - began
    told = [f"{name}: {why}" for name, why in refused.items() if why]
    if outcome.answer is None:
        outcome.why = f"nothing is within the limits: {'; '.join(told) or search.find_nearest()}"
        return
    outcome.why = f"the fastest of {search.count_runs()} process runs that is within the limits"
    if told:
        outcome.why += f"; faster, and refused: {'; '.join(told)}"


def _evaluate(
    question: OptimizeQuestion, outcome: _Outcome, device: Device, variant: str, progress: Progress
) -> str:
    """Measure a variant's metric on the device; return why it is refused, or nothing."""
    if question.loaded.project.samples.evaluation is None:
        return ""
    try:
        report = evaluate(
            outcome.search.question.bundle,
            device,
            project=question.loaded,
            variant=variant,
            wait_s=question.wait_s,
            progress=progress,
        )
    except RemoteCommandError as error:
        return format_one_line(error.problem)
    if report.reasons:
        return "; ".join(report.reasons)
    outcome.on_device[variant] = report.measured
    return (
        explain_missed_limit(report.measured, outcome.limits)
        or explain_too_poor(report.measured, outcome.limits)
        or explain_lost(report.measured, outcome.limits, question.reference)
    )


def _confirm(outcome: _Outcome, device: Device, progress: Progress) -> None:
    """Compare the answer in pairs with its own variant's defaults, and with fp32.

    Settings that are not shown to be no slower than onnxruntime's are not part of the answer.
    """
    answer, search = outcome.answer, outcome.search
    if answer is None:
        return
    if search.site.selection.device.emulated:
        outcome.over_fp32 = outcome.over_defaults = NotMeasured(reason=EMULATED)
        return
    own, fp32, wait_s = search.find_own_defaults(answer), search.find_fp32(), search.question.wait_s
    bundle, began = search.site.bundle, monotonic()
    with open_harness(bundle, device, "optimize", wait_s=wait_s, progress=progress) as harness:
        search.started += monotonic() - began
        outcome.over_defaults = _compare(search, harness, own, answer, share=0.5)
        if not _is_shown(outcome.over_defaults):
            answer = _fall_back(outcome, answer, own)
        outcome.over_fp32 = _compare(search, harness, fp32, answer) if fp32 else NO_FP32


def _fall_back(
    outcome: _Outcome, answer: MeasuredCandidate, own: MeasuredCandidate
) -> MeasuredCandidate:
    """Take onnxruntime's defaults for settings that are not shown to gain, if those will do."""
    if own.entrant.problem or any(outcome.search.explain_missed(own)):
        outcome.why += "; its settings are not shown to be faster than onnxruntime's, which miss"
        outcome.why += f" a limit or fail: {own.entrant.problem or 'they are slower'}"
        return answer
    outcome.answer, outcome.over_defaults = own, IS_BASE
    outcome.why += "; its settings are onnxruntime's, as others are not shown to be faster"
    return own


def _is_shown(found: Confirmation | NotMeasured) -> bool:
    """Return whether pairs show that a candidate is no slower, or it is the base itself."""
    if isinstance(found, NotMeasured):
        return found == IS_BASE
    return found.outcome == "PASS"


def _compare(
    search: OptimizeSearch,
    harness: AnyHarness,
    base: MeasuredCandidate,
    answer: MeasuredCandidate,
    share: float = 1.0,
) -> Confirmation | NotMeasured:
    """Compare two candidates in pairs, in a share of the time that is left."""
    if base is answer:
        return IS_BASE
    search.site = replace(search.site, harness=harness)
    pairs = search.confirm(base, answer, share)
    if search.dropped:
        return NotMeasured(reason=f"a run failed: {search.dropped}")
    if not pairs.whole:
        return NotMeasured(reason="the budget was used up before")
    return describe_pairs(pairs, base, answer)


def _make_report(
    question: OptimizeQuestion, outcome: _Outcome, *, unfinished: str = ""
) -> OptimizeReport:
    search, created = outcome.search, format_now()
    manifest = search.site.bundle.manifest
    pruned = [
        Unused(variant=name, stage="left out", reason=reason)
        for name, reason in search.pruned.items()
    ]
    pairs = (outcome.over_fp32, outcome.over_defaults)
    in_pairs = sum(2 * len(each.base_runs) for each in pairs if isinstance(each, Confirmation))
    search.fastest = outcome.answer or search.base
    return OptimizeReport(
        schema_version=SCHEMA_VERSION,
        id=make_report_id(created),
        created=created,
        edgepack=__version__,
        device=search.site.device.name,
        facts=search.site.selection.device,
        topology=search.site.topology,
        project=manifest.name,
        bundle=manifest.id,
        manifest_sha256=search.site.bundle.digest,
        target=manifest.target,
        limits=outcome.limits,
        variants=[make_variant_facts(manifest, entry) for entry in manifest.variants],
        unused=[*outcome.unused, *pruned],
        seed=question.seed,
        budget_s=question.budget_s,
        elapsed_s=search.elapsed_s,
        runs=search.count_runs() + in_pairs,
        resumed=search.journal.taken,
        candidates=[make_candidate(tried) for tried in search.tried],
        front=find_front(search),
        on_device=outcome.on_device,
        answer=None if outcome.answer is None else outcome.answer.entrant.number,
        why=outcome.why,
        over_fp32=outcome.over_fp32,
        over_defaults=outcome.over_defaults,
        unfinished=unfinished,
        notes=[*search.list_notes(), *_list_few_samples(outcome)],
    )


def _list_few_samples(outcome: _Outcome) -> Iterator[str]:
    """Yield whether the answer's samples are too few to tell what it may lose."""
    if outcome.answer is not None:
        found = outcome.on_device.get(outcome.answer.settings.variant)
        if found and (few := explain_few_samples(found, outcome.limits)):
            yield few


def require_answer(report: OptimizeReport) -> None:
    """Check that something is within the limits.

    Raises:
        LimitError: Nothing is; the message has the nearest.
    """
    if report.answer is None:
        raise LimitError(
            report.why,
            hint="change 'limits' in edgepack.yaml, give a larger --budget, or a model that is"
            " smaller",
            where=report.device,
        )
