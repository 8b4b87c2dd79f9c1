"""What makes a run slow, each with what it costs at most and what may help. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from edgepack.base import statistics
from edgepack.base.schema import NotMeasured
from edgepack.records.other_work import compute_taken_share
from edgepack.records.profiled import ProfiledRun, has_loops
from edgepack.records.run import OtherWork, RunReport, Sample, Sampling, VariantFacts
from edgepack.records.topology import AFFINITIES
from edgepack.records.verdict import CLOCK_KEPT, FIRST_WINDOW, PHONES, WORKING
from edgepack.results.explaining.patterns import Unfused, find_unfused
from edgepack.results.explaining.roofline import (
    CPU,
    NodeCost,
    compute_int8_part,
    sum_shares,
)
from edgepack.results.explaining.work import is_packed
from edgepack.results.summary import format_count, shorten_provider

LEAST_SHARE = 0.01
"""What takes less of a run is not reported."""
LEAST_LOST = 0.25
"""The part of a run that is missing from the profiled one: on a quiet machine it is less."""
SHOWN_NODES = 3
COPIES = ("MemcpyToHost", "MemcpyFromHost")
CONVERSIONS = ("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear")
LAYOUTS = ("ReorderInput", "ReorderOutput", "Transpose")
PREPROCESSING = {
    "picture": "give pictures of the model's size, or put it into the model (preprocess: {in_graph:"
    " true}), which the build proves and bench measures",
    "text": "let the model do it (preprocess: {extensions: [tokenize]}), which bench measures",
}
"""What may help with it, by what is given; of tensors it is only their check."""
MOSTLY = 0.5
"""From which share of a run on it is the CPU's nodes that wait for slow cores."""


@dataclass(frozen=True)
class Bottleneck:
    """One reason why a run takes so long."""

    what: str
    """With names and numbers."""
    gain: float | None
    """Which part of that could be saved at most, 0 to 1; None where nothing tells."""
    remedy: str
    """What to do, with the command."""
    of: str = "a run"
    """What the gain is a part of."""

    @property
    def words(self) -> str:
        """The gain in words."""
        return "unknown" if self.gain is None else f"at most {self.gain:.0%} of {self.of}"


def list_bottlenecks(run: ProfiledRun, costs: Sequence[NodeCost]) -> list[Bottleneck]:
    """Return what makes a run slow, the one with the largest gain first.

    No gain is known on an emulated processor, whose times are no device's, nor of nodes that return
    before they have computed.
    """
    report = run.report
    of_nodes = [
        *_find_fallen(report, costs),
        *_find_copies(report, costs),
        *_find_conversions(report, costs),
        *_find_float(report, costs),
        *_find_layouts(costs),
        *_find_patterns(costs),
        *_find_between(run),
        *_find_far_below(report, costs),
    ]
    if run.returns_early:
        of_nodes = [replace(each, gain=None) for each in of_nodes]
    found = [
        *of_nodes,
        *_find_unprofiled(run),
        *_find_bound_copies(run),
        *_find_lost_clock(report),
        *_find_other_work(report),
        *_find_slow_cores(report, costs),
        *_find_around(report),
    ]
    if report.facts.emulated:
        found = [replace(each, gain=None) for each in found]
    return sorted(found, key=lambda each: -1.0 if each.gain is None else each.gain, reverse=True)


def _is_large(share: float) -> bool:
    return share >= LEAST_SHARE


def _name(costs: Sequence[NodeCost]) -> str:
    """Return the operators of nodes, and the names of those that take longest."""
    counts = Counter(cost.node.op for cost in costs).most_common()
    ops = ", ".join(f"{count} {op}" for op, count in counts[:SHOWN_NODES])
    longest = sorted(costs, key=lambda cost: -cost.us)[:SHOWN_NODES]
    names = ", ".join(cost.node.name for cost in longest if cost.node.name)
    more = ", ..." if len(counts) > SHOWN_NODES else ""
    return f"{ops}{more}; the slowest: {names}" if names else f"{ops}{more}"


def _find_variant(report: RunReport) -> VariantFacts | None:
    return next((each for each in report.variants if each.id == report.variant_used), None)


def _is_integer(costs: Sequence[NodeCost]) -> bool:
    """Return whether a model computes in integers, or puts activations into them."""
    return any(c.arithmetic == "int8" or c.node.op == "QuantizeLinear" for c in costs)


def _find_first_provider(report: RunReport, costs: Sequence[NodeCost]) -> str:
    """Return the provider that the variant is for; of an old report the one that takes longest."""
    variant = _find_variant(report)
    if variant and variant.providers:
        return variant.providers[0]
    took = Counter[str]()
    for cost in costs:
        if cost.node.provider != CPU and cost.node.op not in COPIES:
            took[cost.node.provider] += round(cost.us)
    return took.most_common(1)[0][0] if took else CPU


def _suggest_search(report: RunReport) -> str:
    """Return the command that tries other variants and settings on the device."""
    if report.facts.os.startswith(PHONES):
        return f"edgepack bench BUNDLE --device {report.device} --variant all"
    return f"edgepack optimize --device {report.device}"


def _find_fallen(report: RunReport, costs: Sequence[NodeCost]) -> Iterator[Bottleneck]:
    first = _find_first_provider(report, costs)
    fallen = [c for c in costs if c.node.provider != first and c.node.op not in COPIES]
    share = sum_shares(fallen)
    if first == CPU or not _is_large(share):
        return
    others = ", ".join(sorted({shorten_provider(cost.node.provider) for cost in fallen}))
    yield Bottleneck(
        f"{len(fallen)} of {len(costs)} nodes run on {others}, not on {shorten_provider(first)}:"
        f" {_name(fallen)}",
        share,
        f"edgepack inspect MODEL --target {report.target} says which rule refuses each",
    )


def _find_copies(report: RunReport, costs: Sequence[NodeCost]) -> Iterator[Bottleneck]:
    copies = [cost for cost in costs if cost.node.op in COPIES]
    if copies:
        yield Bottleneck(
            f"copies between the memories of providers: {format_count(len(copies), 'node')}",
            sum_shares(copies),
            "keep the operators between them on one provider: edgepack inspect MODEL --target"
            f" {report.target}",
        )


def _find_bound_copies(run: ProfiledRun) -> Iterator[Bottleneck]:
    """Yield the copies around a run, where they were timed apart."""
    bound = run.report.bound
    if isinstance(bound, NotMeasured):
        return
    write, read = (statistics.median(each) / 1e3 for each in (bound.write_ns, bound.read_ns))
    share = (write + read) / max(1.0, run.p50_us)
    if _is_large(share):
        yield Bottleneck(
            f"inputs take {write:,.0f} µs to the device's memory, outputs {read:,.0f} µs back",
            min(1.0, share),
            "make and use them there: Model.bind of the bundle's loader",
        )


def _find_conversions(report: RunReport, costs: Sequence[NodeCost]) -> Iterator[Bottleneck]:
    found = [cost for cost in costs if cost.node.op in CONVERSIONS]
    if _is_large(sum_shares(found)):
        yield Bottleneck(
            f"conversions between float and integers: {_name(found)}",
            sum_shares(found),
            "those of the model's own inputs and outputs stay; for the others try the dialects that"
            f" the processor fuses: {_suggest_search(report)}",
        )


def _find_float(report: RunReport, costs: Sequence[NodeCost]) -> Iterator[Bottleneck]:
    """Yield what int8 would save: in the whole of a float model, or in islands of an int8 one."""
    if isinstance(report.peak, NotMeasured) or len(report.peak.multiply_adds_per_s) < 2:
        return
    peak = report.peak
    found = [c for c in costs if c.arithmetic == "float32" and not is_packed(c.node.op)]
    gain = sum((1 - compute_int8_part(cost, peak)) * cost.share for cost in found)
    if not _is_large(gain):
        return
    products = sum(bool(cost.multiply_adds) for cost in costs)
    faster = peak.multiply_adds_per_s["int8"] / peak.multiply_adds_per_s["float32"]
    some = f"{len(found)} of {format_count(products, 'product')}"
    if _is_integer(costs):
        what = f"islands of float in int8, {some}: {_name(found)}"
        remedy = (
            "edgepack build --verbose says which the build keeps in float for their accuracy; other"
            f" dialects: {_suggest_search(report)}"
        )
    else:
        what, remedy = f"float32 in {some}", _suggest_int8(report)
    speed = f"this processor multiplies int8 {faster:.1f} times as fast"
    yield Bottleneck(f"{what}; {speed}", gain, remedy)


def _suggest_int8(report: RunReport) -> str:
    others = [each.id for each in report.variants if each.recipe.startswith("int8")]
    if others:
        return (
            f"the bundle has {', '.join(others)}: edgepack bench BUNDLE --device {report.device}"
            " --variant all"
        )
    left_out = [each for each in report.unused if "int8" in each.variant]
    if left_out:
        return f"{left_out[0].variant} is not in the bundle: {left_out[0].reason}"
    return f"let int8 be tried on it: {_suggest_search(report)}"


def _find_layouts(costs: Sequence[NodeCost]) -> Iterator[Bottleneck]:
    found = [cost for cost in costs if cost.node.op in LAYOUTS]
    if _is_large(sum_shares(found)):
        yield Bottleneck(
            f"data is only put in another order: {_name(found)}",
            sum_shares(found),
            "leave Transpose out of the model where it is the model's own; onnxruntime puts some"
            " around kernels of another layout, and Reorder with the optimization level 'all':"
            " edgepack tune tries others",
        )


def _find_patterns(costs: Sequence[NodeCost]) -> Iterator[Bottleneck]:
    by_kind: dict[tuple[str, str], list[Unfused]] = {}
    for each in find_unfused(costs):
        by_kind.setdefault((each.what, each.remedy), []).append(each)
    for (what, remedy), several in by_kind.items():
        nodes = [cost for each in several for cost in each.nodes]
        gain = sum((1 - each.kept) * sum_shares(each.nodes) for each in several)
        if _is_large(gain):
            yield Bottleneck(f"{what} is not fused: {_name(nodes)}", gain, remedy)


def _find_between(run: ProfiledRun) -> Iterator[Bottleneck]:
    if isinstance(run.between_us, NotMeasured):
        return
    share = run.between_us / max(run.whole_us, 1e-9)
    if _is_large(share):
        nodes = format_count(len(run.nodes), "node")
        yield Bottleneck(
            f"onnxruntime takes up to {run.between_us:,.0f} µs between the {nodes} of a run",
            share,
            "fewer and larger nodes take less: join samples to batches, or simplify the model",
        )


def _find_unprofiled(run: ProfiledRun) -> Iterator[Bottleneck]:
    """Yield what timed runs take beyond the profiled ones: they waited for something."""
    placement = run.report.placement
    if isinstance(placement, NotMeasured) or isinstance(run.between_us, NotMeasured):
        return
    is_whole = run.is_single and bool(run.nodes) and not has_loops(placement.nodes)
    lost = 1 - run.whole_us / max(run.p50_us, 1e-9)
    if is_whole and lost >= LEAST_LOST:
        yield Bottleneck(
            f"a run takes {run.p50_us / 1000:.4g} ms, and took {run.whole_us / 1000:.4g} ms while"
            " it was profiled: the rest is in no node",
            lost,
            "more threads than cores wait for each other (session: {intra_op_num_threads: 1} shows"
            " it), or the machine was busier: measure again with --quiet-wait",
        )


def _find_far_below(report: RunReport, costs: Sequence[NodeCost]) -> Iterator[Bottleneck]:
    found = [cost for cost in costs if cost.bound == "neither"]
    if _is_large(sum_shares(found)):
        yield Bottleneck(
            f"{sum_shares(found):.0%} of a run are nodes far below what the processor reaches, too"
            f" small or of a shape that its kernels are not made for: {_name(found)}",
            None,
            f"try other numbers of threads and providers: {_suggest_search(report)}",
        )


def _find_lost_clock(report: RunReport) -> Iterator[Bottleneck]:
    """Yield the clock that was lowest on average, beside what it was when the work began."""
    samples = [each for run in report.runs for each in _list_samples(run.sampling)]
    lost: dict[str, float] = {}
    for name in {name for sample in samples for name in sample.clocks_hz}:
        clocks = [s.clocks_hz[name] for s in samples if _is_working(s, name)]
        if len(clocks) > FIRST_WINDOW:
            begun = statistics.median(clocks[:FIRST_WINDOW])
            lost[name] = 1 - sum(clocks) / len(clocks) / max(1.0, begun)
    causes = sorted({cause for sample in samples for cause in sample.throttled})
    worst = max(lost, key=lambda name: lost[name], default="")
    if not worst or 1 - lost[worst] >= CLOCK_KEPT:
        return
    why = f", slowed down by {', '.join(causes)}" if causes else ""
    yield Bottleneck(
        f"the clock of {worst} was {lost[worst]:.0%} below that of the beginning on average{why}",
        lost[worst],
        "cool the device, or hold its clocks: edgepack bench --tune",
    )


def _list_samples(sampling: Sampling | NotMeasured) -> list[Sample]:
    return [] if isinstance(sampling, NotMeasured) else sampling.samples


def _is_working(sample: Sample, clock: str) -> bool:
    return clock in sample.clocks_hz and sample.busy.get(clock, 0.0) >= WORKING


def _find_other_work(report: RunReport) -> Iterator[Bottleneck]:
    """Yield what others took of the cores that the model runs on.

    With several threads an operator waits for the slowest, so their share is no bound of the gain.
    """
    variant = _find_variant(report)
    works = [run.other_work for run in report.runs if isinstance(run.other_work, OtherWork)]
    if not works:
        return
    settings = variant.session if variant else None
    threads = (settings.intra_op_num_threads if settings else 0) or works[0].cores
    share = sum(compute_taken_share(work, threads) for work in works) / len(works)
    if _is_large(share):
        yield Bottleneck(
            f"others took {share:.0%} of the cores that it runs on, the host of a virtual machine"
            " included",
            share if threads == 1 else None,
            "stop what else runs there, or wait for it: edgepack bench --quiet-wait SECONDS",
        )


def _find_slow_cores(report: RunReport, costs: Sequence[NodeCost]) -> Iterator[Bottleneck]:
    variant = _find_variant(report)
    if isinstance(report.topology, NotMeasured) or variant is None or variant.session is None:
        return
    on_cpu = sum_shares([cost for cost in costs if cost.node.provider == CPU])
    clusters, settings = report.topology.clusters, variant.session
    if len(clusters) < 2 or on_cpu < MOSTLY or AFFINITIES in settings.config:
        return
    threads = settings.intra_op_num_threads or report.topology.count
    fast = len(clusters[0])
    if threads > fast:
        few = format_count(fast, "fast core")
        yield Bottleneck(
            f"{threads} threads on {few}: each operator waits for the slow ones",
            None,
            f"try {format_count(fast, 'thread')} there: edgepack tune BUNDLE --device"
            f" {report.device}",
        )


def _find_around(report: RunReport) -> Iterator[Bottleneck]:
    """Yield what a call of ``predict`` spends beside the session's run."""
    if isinstance(report.phases, NotMeasured):
        return
    whole_ns = max(1.0, statistics.median(report.phases.predict_ns))
    remedies = {"answers": "ask for fewer: a higher threshold, or the largest classes alone"}
    for kind, remedy in PREPROCESSING.items():
        if kind in report.phases.given:
            remedies["preprocessing"] = remedy
    for name, remedy in remedies.items():
        took = report.phases.parts[name]
        if isinstance(took, NotMeasured):
            continue
        share = min(1.0, statistics.median(took) / whole_ns)
        if _is_large(share):
            doing = "making answers" if name == "answers" else name
            yield Bottleneck(
                f"{doing} takes {statistics.median(took) / 1e6:.3f} ms beside the run, of"
                f" {report.phases.given}",
                share,
                remedy,
                of="a call of predict",
            )
