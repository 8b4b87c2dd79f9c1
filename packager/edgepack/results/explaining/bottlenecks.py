"""What makes a run slow, each with what it costs at most and what may help. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from edgepack.base import statistics
from edgepack.base.schema import NotMeasured
from edgepack.records.run import OtherWork, Placement, RunReport, Sample, Sampling, VariantFacts
from edgepack.results.explaining.patterns import find_unfused
from edgepack.results.explaining.roofline import CPU, NodeCost, compute_int8_part, sum_shares
from edgepack.results.summary import format_count, shorten_provider

LEAST_SHARE = 0.01
"""What takes less of a run is not reported."""
SHOWN_NODES = 3
COPIES = ("MemcpyToHost", "MemcpyFromHost")
CONVERSIONS = ("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear")
LAYOUTS = ("ReorderInput", "ReorderOutput", "Transpose")
WORKING = 0.9
"""From how much of a core on a cluster counts as at work."""
LOST_CLOCK = 0.03


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


def list_bottlenecks(report: RunReport, costs: Sequence[NodeCost]) -> list[Bottleneck]:
    """Return what makes a run slow, the one with the largest gain first."""
    found = [
        *_find_fallen(report, costs),
        *_find_copies(report, costs),
        *_find_conversions(report, costs),
        *_find_float(report, costs),
        *_find_layouts(costs),
        *_find_patterns(costs),
        *_find_between(report),
        *_find_far_below(report, costs),
        *_find_lost_clock(report),
        *_find_other_work(report),
        *_find_slow_cores(report),
        *_find_around(report),
    ]
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


def _find_first_provider(placement: Placement | NotMeasured) -> str:
    """Return the provider that takes most of the time, the CPU last."""
    if isinstance(placement, NotMeasured):
        return CPU
    others = [node.provider for node in placement.nodes if node.provider != CPU]
    return Counter(others).most_common(1)[0][0] if others else CPU


def _find_fallen(report: RunReport, costs: Sequence[NodeCost]) -> Iterator[Bottleneck]:
    first = _find_first_provider(report.placement)
    fallen = [c for c in costs if c.node.provider == CPU and c.node.op not in COPIES]
    if first == CPU or not fallen:
        return
    share = sum_shares(fallen)
    yield Bottleneck(
        f"{len(fallen)} of {len(costs)} nodes run on the CPU, not on {shorten_provider(first)}:"
        f" {_name(fallen)}",
        share,
        "edgepack inspect MODEL --target TARGET says which rule refuses each",
    )


def _find_copies(report: RunReport, costs: Sequence[NodeCost]) -> Iterator[Bottleneck]:
    copies = [cost for cost in costs if cost.node.op in COPIES]
    providers = [cost.node.provider for cost in costs]
    switches = sum(a != b for a, b in pairwise(providers))
    if copies:
        yield Bottleneck(
            f"{len(copies)} copies between the memories of providers, which change"
            f" {switches} times in a run",
            sum_shares(copies),
            "keep the operators between them on one provider: edgepack inspect MODEL --target"
            f" {report.target}",
        )


def _find_conversions(report: RunReport, costs: Sequence[NodeCost]) -> Iterator[Bottleneck]:
    found = [cost for cost in costs if cost.node.op in CONVERSIONS]
    if _is_large(sum_shares(found)):
        yield Bottleneck(
            f"conversions between float and integers: {_name(found)}",
            sum_shares(found),
            "those of the model's own inputs and outputs stay; for the others try the dialects that"
            f" the processor fuses: edgepack optimize --device {report.device}",
        )


def _find_float(report: RunReport, costs: Sequence[NodeCost]) -> Iterator[Bottleneck]:
    """Yield what int8 would save: in the whole of a float model, or in islands of an int8 one."""
    if isinstance(report.peak, NotMeasured):
        return
    peak, integer = report.peak, _is_integer(costs)
    found = [cost for cost in costs if cost.arithmetic == "float32"]
    saved = [(1 - compute_int8_part(cost, peak)) * cost.share for cost in found]
    gain = sum(saved)
    if not _is_large(gain):
        return
    products = sum(cost.arithmetic is not None for cost in costs)
    faster = peak.multiply_adds_per_s["int8"] / peak.multiply_adds_per_s["float32"]
    speed = f"this processor multiplies int8 {faster:.1f} times as fast"
    if integer:
        what = f"{len(found)} of {products} products are islands of float in int8: {_name(found)}"
        remedy = (
            "edgepack build --verbose says which the build keeps in float for their accuracy; other"
            f" dialects: edgepack optimize --device {report.device}"
        )
    else:
        what = f"all is float32, {format_count(products, 'product')}"
        remedy = _suggest_int8(report)
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
    return f"let int8 be tried on it: edgepack optimize --device {report.device}"


def _find_layouts(costs: Sequence[NodeCost]) -> Iterator[Bottleneck]:
    found = [cost for cost in costs if cost.node.op in LAYOUTS]
    if _is_large(sum_shares(found)):
        yield Bottleneck(
            f"data is only put in another order: {_name(found)}",
            sum_shares(found),
            "export the model without Transpose nodes; onnxruntime's own (Reorder) come with the"
            " optimization level 'all' and go with 'extended': edgepack tune tries both",
        )


def _find_patterns(costs: Sequence[NodeCost]) -> Iterator[Bottleneck]:
    by_kind: dict[str, list[tuple[float, NodeCost]]] = {}
    for each in find_unfused(costs):
        by_kind.setdefault(each.what, []).extend((1 - each.kept, cost) for cost in each.nodes)
    for what, nodes in by_kind.items():
        gain = sum(part * cost.share for part, cost in nodes)
        if _is_large(gain):
            yield Bottleneck(
                f"{what} is not fused: {_name([cost for _, cost in nodes])}",
                gain,
                "export with a newer opset that has an operator for it, or without what stands"
                " between the nodes; and see that the session's optimization level is 'all'",
            )


def _find_between(report: RunReport) -> Iterator[Bottleneck]:
    if isinstance(report.placement, NotMeasured):
        return
    between = report.placement.between_us
    if isinstance(between, NotMeasured):
        return
    nodes = sum(node.median_us for node in report.placement.nodes)
    share = between / max(nodes + between, 1e-9)
    if _is_large(share):
        yield Bottleneck(
            f"onnxruntime takes {between:,.0f} µs between the"
            f" {len(report.placement.nodes)} nodes of a run",
            share,
            "fewer and larger nodes take less: join samples to batches, or simplify the model",
        )


def _find_far_below(report: RunReport, costs: Sequence[NodeCost]) -> Iterator[Bottleneck]:
    found = [cost for cost in costs if cost.bound == "neither"]
    if _is_large(sum_shares(found)):
        yield Bottleneck(
            f"{sum_shares(found):.0%} of a run are nodes far below what the processor reaches, too"
            f" small or of a shape that its kernels are not made for: {_name(found)}",
            None,
            "try other numbers of threads and providers: edgepack optimize --device"
            f" {report.device}",
        )


def _find_lost_clock(report: RunReport) -> Iterator[Bottleneck]:
    samples = [each for run in report.runs for each in _list_samples(run.sampling)]
    lost: dict[str, float] = {}
    for name in {name for sample in samples for name in sample.clocks_hz}:
        clocks = [s.clocks_hz[name] for s in samples if _is_working(s, name)]
        if clocks:
            lost[name] = 1 - sum(clocks) / len(clocks) / max(1, *clocks)
    causes = sorted({cause for sample in samples for cause in sample.throttled})
    worst = max(lost, key=lambda name: lost[name], default="")
    if not worst or lost[worst] < LOST_CLOCK:
        return
    why = f", slowed down by {', '.join(causes)}" if causes else ""
    yield Bottleneck(
        f"the clock of {worst} was {lost[worst]:.0%} below its highest on average{why}",
        lost[worst],
        "cool the device, or hold its clocks: edgepack bench --tune",
    )


def _list_samples(sampling: Sampling | NotMeasured) -> list[Sample]:
    return [] if isinstance(sampling, NotMeasured) else sampling.samples


def _is_working(sample: Sample, clock: str) -> bool:
    return clock in sample.clocks_hz and sample.busy.get(clock, 0.0) >= WORKING


def _find_other_work(report: RunReport) -> Iterator[Bottleneck]:
    works = [run.other_work for run in report.runs if isinstance(run.other_work, OtherWork)]
    if not works:
        return
    taken = sum(work.other_cores + work.stolen_cores for work in works) / len(works)
    cores = works[0].cores
    if _is_large(taken / cores):
        yield Bottleneck(
            f"others took {taken:.2f} of {cores} cores, the host of a virtual machine included",
            taken / cores,
            "stop what else runs there, or wait for it: edgepack bench --quiet-wait SECONDS",
        )


def _find_around(report: RunReport) -> Iterator[Bottleneck]:
    """Yield what a call of ``predict`` spends beside the session's run."""
    if isinstance(report.phases, NotMeasured):
        return
    whole_ns = max(1.0, statistics.median(report.phases.predict_ns))
    remedies = {
        "preprocessing": "give pictures of the model's size, or put it into the model (preprocess:"
        " {in_graph: true}), which the build proves and bench measures",
        "answers": "ask for fewer: a higher threshold, or the largest classes alone",
    }
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


def _find_slow_cores(report: RunReport) -> Iterator[Bottleneck]:
    if isinstance(report.topology, NotMeasured):
        return
    variant, clusters = _find_variant(report), report.topology.clusters
    if len(clusters) < 2 or variant is None or variant.session is None:
        return
    threads = variant.session.intra_op_num_threads or report.topology.count
    fast = len(clusters[0])
    if threads > fast:
        yield Bottleneck(
            f"{threads} threads on {fast} fast cores: each operator waits for the slow ones",
            None,
            f"try {fast} threads on the fast cores: edgepack tune --device {report.device}",
        )
