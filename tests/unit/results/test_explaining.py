"""Why a run takes as long as it does: what bounds its nodes, and what may help."""

from __future__ import annotations

import pytest
from edgepack.base.schema import NotMeasured
from edgepack.bundle.unused import Unused
from edgepack.project.profile import SessionSettings
from edgepack.records.run import (
    BoundRuns,
    OtherWork,
    Phases,
    PlacedNode,
    ProcessRun,
    RunReport,
    Sample,
    Sampling,
)
from edgepack.records.topology import Processor, Topology
from edgepack.results.explaining.bottlenecks import Bottleneck
from edgepack.results.explaining.explaining import Explanation, explain
from edgepack.results.explaining.roofline import NodeCost
from edgepack.results.explaining.work import count_multiply_adds, find_arithmetic
from edgepack.results.page.plots import Figure
from edgepack.results.page.roofline import MARKS, draw_roofline
from edgepack.results.summary import summarize

from tests.support.reports.example_costs import (
    conv_node,
    costly_report,
    relu_node,
    sized_node,
)
from tests.support.reports.example_report import example_report, example_run

CONV_US = 115_605_504 / 5e10 * 1e6
"""How long a convolution of the example takes at best."""
MOVED = 2 * 4 * 64 * 56 * 56


def explained(report: RunReport) -> Explanation:
    return explain(report, summarize(report).p50_ms)


def costs_of(report: RunReport) -> list[NodeCost]:
    return explained(report).costs


def found_in(report: RunReport, words: str) -> Bottleneck | None:
    return next((each for each in explained(report).bottlenecks if words in each.what), None)


@pytest.mark.parametrize(
    ("op", "inputs", "output", "expected"),
    [
        ("Conv", [(1, 3, 8, 8), (16, 3, 3, 3), (16,)], (1, 16, 8, 8), 1024 * 27),
        ("FusedConv", [(1, 32, 8, 8), (32, 1, 3, 3)], (1, 32, 8, 8), 2048 * 9),
        ("QLinearConv", [(1, 8, 8, 4), (), (), (6, 4, 1, 1), (6,)], (1, 8, 8, 6), 384 * 4),
        ("ConvTranspose", [(1, 4, 5, 5), (4, 6, 2, 2)], (1, 6, 10, 10), 100 * 24),
        ("Gemm", [(3, 20), (20, 7), (7,)], (3, 7), 3 * 7 * 20),
        ("Gemm", [(20, 3), (7, 20), (7,)], (3, 7), 3 * 7 * 20),
        ("MatMul", [(2, 5, 20), (20, 7)], (2, 5, 7), 2 * 5 * 7 * 20),
        ("MatMul", [(2, 4, 5, 20), (2, 4, 20, 7)], (2, 4, 5, 7), 2 * 4 * 5 * 7 * 20),
        ("MatMul", [(20,), (20, 7)], (7,), 7 * 20),
        ("QLinearMatMul", [(5, 20), (), (), (20, 7), (), (), (), ()], (5, 7), 5 * 7 * 20),
        ("MatMulNBits", [(5, 64), (7, 2, 16), (14,)], (5, 7), 5 * 7 * 64),
        ("LSTM", [(9, 2, 4), (1, 32, 4), (1, 32, 8), (1, 64)], (9, 1, 2, 8), 18 * (128 + 256)),
        ("Relu", [(1, 3, 8, 8)], (1, 3, 8, 8), 0),
        ("MatMul", [(5, 20)], (5, 7), None),
        ("MatMul", [(5, 20), (8, 20, 7)], (8, 5, 7), 8 * 5 * 7 * 20),
        ("FusedMatMul", [(2, 20, 5), (20, 7)], (2, 5, 7), 2 * 5 * 7 * 20),
        ("Attention", [(1, 8, 16), (16, 48), (48,)], (1, 8, 16), None),
        ("MultiHeadAttention", [(1, 8, 16), (1, 8, 16), (1, 8, 16)], (1, 8, 16), None),
        ("Einsum", [(4, 5), (5, 6)], (4, 6), None),
    ],
)
def test_multiply_adds_are_those_of_the_shapes(op, inputs, output, expected):
    assert count_multiply_adds(sized_node(op, 1, inputs, output)) == expected


def test_multiply_adds_without_shapes_are_unknown_not_none_at_all():
    bare = PlacedNode(name="x", op="Conv", provider="XNNPACK", mean_us=1, median_us=1)
    assert count_multiply_adds(bare) is None
    with pytest.raises(ValueError, match="are not known"):
        find_arithmetic(bare)


def test_a_node_is_bound_by_what_takes_longer_at_best_or_by_neither():
    report = costly_report(
        conv_node(1.1 * CONV_US, name="computes"),
        relu_node(1.2 * MOVED / 1e10 * 1e6, name="moves"),
        conv_node(10 * CONV_US, name="slow"),
        sized_node("Conv", 50, [(1, 64), (64, 64, 3, 3)], (1, 64), dtype="float16", name="half"),
    )
    costs = {cost.node.name: cost for cost in costs_of(report)}
    assert costs["computes"].bound == "arithmetic"
    assert costs["moves"].bound == "memory"
    assert costs["slow"].bound == "neither"
    assert costs["half"].bound is None
    assert sum(cost.share for cost in costs.values()) == pytest.approx(1)


def test_a_small_tensor_is_held_against_the_cache_that_it_fits_in():
    [cost] = costs_of(costly_report(relu_node(10, channels=4)))
    assert cost.roof.moving_us == pytest.approx(MOVED / 16 / 1e11 * 1e6)


def test_what_only_looks_into_a_table_or_moves_nothing_is_not_held_against_all_its_bytes():
    table = sized_node("Gather", 20, [(30_000, 768), (8,)], (8, 768))
    view = sized_node("Reshape", 5, [(1, 8, 768), (2,)], (8, 768))
    looked, seen = costs_of(costly_report(table, view))
    assert looked.roof.moving_us == pytest.approx(2 * 4 * 8 * 768 / 1e11 * 1e6)
    assert seen.roof is None


def test_time_between_nodes_is_no_more_than_they_leave_of_a_run_without_the_profiler():
    """p50 of the example is 10 ms."""
    report = costly_report(conv_node(9900), between_us=4000)
    assert explained(report).run.between_us == pytest.approx(100, rel=0.1)
    assert explained(costly_report(conv_node(900), between_us=40)).run.between_us == 40
    slower = costly_report(conv_node(15_000), between_us=4000)
    assert explained(slower).run.between_us == 0
    assert any("the profiler itself" in each for each in explained(slower).unknown)
    body = costly_report(relu_node(1000, op="If"), relu_node(900), between_us=100)
    assert found_in(body, "between the 1 node").gain == pytest.approx(0.1)


def test_a_run_that_takes_longer_than_the_profiled_one_waited_for_what_is_in_no_node():
    """p50 of the example is 10 ms."""
    waiting = found_in(costly_report(conv_node(3900), between_us=100), "is in no node")
    assert waiting.gain == pytest.approx(0.6, rel=0.01)
    assert "a run takes 10 ms, and took 4 ms while it was profiled" in waiting.what
    assert found_in(costly_report(conv_node(7900), between_us=100), "is in no node") is None
    assert found_in(costly_report(), "is in no node") is None
    looped = costly_report(relu_node(9500, op="Loop"), relu_node(90), between_us=100)
    assert found_in(looped, "is in no node") is None
    unknown = costly_report(conv_node(3900), between_us=NotMeasured(reason="an older report"))
    assert found_in(unknown, "is in no node") is None


def test_nodes_of_a_gpu_that_returns_before_it_has_computed_promise_nothing():
    cuda = {"provider": "CUDAExecutionProvider"}
    report = costly_report(
        conv_node(5, **cuda),
        relu_node(900, op="MemcpyToHost", **cuda),
        relu_node(300, op="NonZero"),
        between_us=8000,
        bound=BoundRuns(
            memory="cuda", write_ns=[10**6], run_ns=[1], read_ns=[10**6], graph_run_ns=[1]
        ),
    )
    assert found_in(report, "µs between") is None
    assert found_in(report, "copies between the memories of providers: 1 node").gain is None
    assert found_in(report, "run on CPU, not on CUDA").gain is None
    assert found_in(report, "1,000 µs to the device's memory").gain == pytest.approx(0.2, rel=0.1)
    assert any("a GPU works on" in each for each in explained(report).unknown)


def test_an_emulated_processor_promises_nothing():
    facts = example_report().facts.model_copy(update={"emulated": True})
    found = explained(costly_report(conv_node(CONV_US), facts=facts))
    assert found.bottlenecks
    assert {each.gain for each in found.bottlenecks} == {None}
    assert any("is not a device's time" in each for each in found.unknown)


def test_parts_of_a_run_are_all_of_it():
    report = costly_report(conv_node(2500), relu_node(500), between_us=300)
    parts = {part.kind: part for part in explained(report).parts}
    assert {kind: part.nodes for kind, part in parts.items()} == {
        "arithmetic": 1, "memory": 1, "between": 0,
    }  # fmt: skip
    assert sum(part.share for part in parts.values()) == pytest.approx(1)
    assert sum(part.us for part in parts.values()) == 3300


def test_float_products_gain_what_int8_is_faster_and_name_the_variant_that_has_it():
    report = costly_report(conv_node(1.25 * CONV_US), relu_node(100, channels=1, size=1))
    found = found_in(report, "float32 in 1 of 1 product")
    share = 1.25 * CONV_US / (1.25 * CONV_US + 100)
    assert found.gain == pytest.approx(0.75 * share, abs=0.001)
    assert "the bundle has cpu-int8-static" in found.remedy
    alone = costly_report(conv_node(CONV_US), variants=report.variants[1:], unused=[])
    assert "edgepack optimize --device pi5-a" in found_in(alone, "float32 in").remedy
    lost = [Unused(variant="cpu-int8-static", stage="missed", reason="it loses 9 %")]
    refused = costly_report(conv_node(CONV_US), variants=report.variants[1:], unused=lost)
    assert "it loses 9 %" in found_in(refused, "float32 in").remedy


def test_float_products_of_an_int8_model_are_islands():
    quantized = sized_node(
        "QLinearConv", 900, [(1, 56, 56, 64), (64, 64, 3, 3)], (1, 56, 56, 64), dtype="uint8"
    )
    report = costly_report(quantized, conv_node(2 * CONV_US, name="head"))
    found = found_in(report, "islands of float in int8, 1 of 2 products")
    assert "head" in found.what
    lost = costly_report(relu_node(9, op="QuantizeLinear"), conv_node(2 * CONV_US))
    assert found_in(lost, "islands of float in int8, 1 of 1 product")
    assert found_in(costly_report(quantized), "float") is None


def test_nodes_that_fell_to_the_cpu_and_copies_are_reported_with_their_share():
    migraphx = {"provider": "MIGraphXExecutionProvider"}
    report = costly_report(
        conv_node(600, **migraphx),
        relu_node(50, op="MemcpyToHost", **migraphx),
        relu_node(300, op="NonZero", name="selects"),
        relu_node(50, op="MemcpyFromHost", **migraphx),
    )
    fallen = found_in(report, "run on CPU, not on MIGraphX")
    assert fallen.gain == pytest.approx(0.3)
    assert "selects" in fallen.what
    copies = found_in(report, "copies between the memories of providers: 2 nodes")
    assert copies.gain == pytest.approx(0.1)
    assert "selects" in fallen.what
    assert "--target raspberry-pi" in fallen.remedy
    assert found_in(costly_report(conv_node(600)), "run on CPU") is None


def test_the_provider_that_a_variant_is_for_is_the_manifests_not_the_most_frequent():
    engine = conv_node(9000, provider="QNNExecutionProvider")
    fallen = [relu_node(100, provider="XnnpackExecutionProvider") for _ in range(3)]
    variants = [
        each.model_copy(update={"providers": ["QNNExecutionProvider", "XnnpackExecutionProvider"]})
        for each in example_report().variants
    ]
    found = found_in(costly_report(engine, *fallen, variants=variants), "3 of 4 nodes run on")
    assert "on Xnnpack, not on QNN" in found.what
    old = costly_report(engine, *fallen)
    assert "not on QNN" in found_in(old, "3 of 4 nodes run on").what


@pytest.mark.parametrize(
    ("ops", "what", "gain"),
    [
        (("Add", "Clip", "Mul", "Div"), "hard swish is not fused", 0.5),
        (("HardSigmoid", "Mul"), "is not fused", None),
        (("Sigmoid", "Mul"), "is not fused", None),
        (("BatchNormalization",), "batch normalization is not fused", 1.0),
        (("Add", "Clip", "Div", "Sub"), "is not fused", None),
    ],
)
def test_operators_that_could_be_one_are_found_where_they_run_in_a_row(ops, what, gain):
    nodes = [relu_node(100, op=op) for op in ops]
    whole = 100 * len(ops) / (100 * len(ops) + 600)
    found = found_in(costly_report(relu_node(600, op="Concat"), *nodes), what)
    assert (found and found.gain) == (gain and pytest.approx(gain * whole))


def test_a_relu_after_a_convolution_of_another_size_is_not_its_own():
    fused = found_in(costly_report(conv_node(900), relu_node(100)), "Relu after a convolution")
    assert fused.gain == pytest.approx(0.1)
    other = costly_report(conv_node(900), relu_node(100, channels=32))
    assert found_in(other, "after a convolution") is None


def test_conversions_layouts_and_the_time_between_nodes_are_reported():
    report = costly_report(
        relu_node(50, op="QuantizeLinear"), relu_node(50, op="Transpose"), between_us=100
    )
    assert found_in(report, "conversions").gain == pytest.approx(0.25)
    assert found_in(report, "another order").gain == pytest.approx(0.25)
    assert found_in(report, "between the 2 nodes").gain == pytest.approx(0.5)


def test_a_lost_clock_costs_what_it_lost_and_an_idle_one_nothing():
    def run_at(*hertz: int, busy: float = 1.0) -> ProcessRun:
        samples = [
            Sample(at_ns=at, clocks_hz={"policy0": hz}, busy={"policy0": busy})
            for at, hz in enumerate(hertz)
        ]
        sampling = Sampling(interval_s=0.5, samples=samples, unknown={}, cpu_ns=1, elapsed_ns=9)
        return example_run(0, sampling=sampling)

    slowed = costly_report(conv_node(900), runs=[run_at(*[2_000] * 3, *[1_000] * 3)])
    assert found_in(slowed, "the clock of policy0").gain == pytest.approx(0.25)
    idle = costly_report(conv_node(900), runs=[run_at(*[2_000] * 3, *[1_000] * 3, busy=0.1)])
    assert found_in(idle, "the clock") is None
    turbo = costly_report(conv_node(900), runs=[run_at(3_000, *[2_000] * 9)])
    assert found_in(turbo, "the clock") is None


@pytest.mark.parametrize(("threads", "other_cores", "share"), [(1, 3.1, 0.1), (1, 1.0, None)])
def test_other_work_counts_where_it_takes_the_models_cores(threads, other_cores, share):
    work = OtherWork(cores=4, own_cores=1, other_cores=other_cores, stolen_cores=0, waiting=0.1)
    session = SessionSettings(intra_op_num_threads=threads)
    variants = [each.model_copy(update={"session": session}) for each in example_report().variants]
    runs = [example_run(0).model_copy(update={"other_work": work})]
    found = found_in(costly_report(conv_node(900), runs=runs, variants=variants), "others took")
    assert (found and found.gain) == (share and pytest.approx(share))


def test_four_bit_weights_are_no_float_that_int8_would_make_smaller():
    packed = sized_node("MatMulNBits", 5000, [(1, 4096), (4096, 128, 16), (4096,)], (1, 4096))
    assert found_in(costly_report(packed), "float32 in") is None
    half = conv_node(900, dtype="float16")
    mixed = found_in(costly_report(half, conv_node(CONV_US)), "float32 in")
    assert "float32 in 1 of 2 products" in mixed.what


def test_phones_are_not_told_to_search_on_them():
    facts = example_report().facts.model_copy(update={"os": "Android 14 (API 34)"})
    report = costly_report(conv_node(50 * CONV_US), facts=facts)
    assert "edgepack optimize" not in found_in(report, "far below").remedy
    assert "--variant all" in found_in(report, "far below").remedy


def test_more_threads_than_fast_cores_are_reported():
    cores = [
        Processor(number=n, core=str(n), max_khz=0, capacity=1024 if n < 2 else 400)
        for n in range(6)
    ]
    topology = Topology(count=6, processors=cores)

    def with_threads(threads: int) -> RunReport:
        session = SessionSettings(intra_op_num_threads=threads)
        variants = [
            each.model_copy(update={"session": session}) for each in example_report().variants
        ]
        return costly_report(conv_node(900), variants=variants, topology=topology)

    assert found_in(with_threads(4), "4 threads on 2 fast cores").gain is None
    elsewhere = costly_report(
        conv_node(900, provider="QNNExecutionProvider"),
        variants=with_threads(4).variants,
        topology=topology,
    )
    assert found_in(elsewhere, "fast core") is None
    assert found_in(with_threads(0), "6 threads on 2 fast cores")
    assert found_in(with_threads(2), "fast cores") is None


def test_preprocessing_around_a_run_is_a_part_of_a_call_not_of_the_run():
    ns = {"run_ns": [6], "predict_ns": [10], "preprocess_ns": [3, 3, 9], "answers_ns": [0]}
    unknown = NotMeasured(reason="it is in the run")
    others = dict.fromkeys(("decode_ns", "copy_in_ns", "copy_out_ns"), unknown)
    phases = Phases(given="a picture of 1280 x 720", found="", **ns, **others)
    report = costly_report(conv_node(900), phases=phases)
    found = found_in(report, "preprocessing takes")
    assert found.words == "at most 30% of a call of predict"
    assert "1280 x 720" in found.what
    assert found_in(report, "making answers") is None
    text = phases.model_copy(update={"given": "a text of 80 characters"})
    assert "tokenize" in found_in(costly_report(phases=text), "preprocessing takes").remedy
    tensors = phases.model_copy(update={"given": "tensors"})
    assert found_in(costly_report(phases=tensors), "preprocessing takes") is None


def test_bottlenecks_begin_with_the_largest_gain_and_end_with_unknown_ones():
    report = costly_report(conv_node(50 * CONV_US), relu_node(100, op="Transpose"), between_us=4000)
    gains = [each.gain for each in explained(report).bottlenecks]
    known = [gain for gain in gains if gain is not None]
    assert known == sorted(known, reverse=True)
    assert gains[-1] is None


def test_what_an_older_report_lacks_is_said():
    found = explained(example_report())
    assert [part.kind for part in found.parts] == ["unknown"]
    assert any("what the processor reaches" in each for each in found.unknown)
    bare = explained(example_report(placement=NotMeasured(reason="it crashed")))
    assert (bare.costs, bare.parts) == ([], [])
    assert bare.unknown == ["no node was timed: it crashed"]


def test_the_roofline_has_the_longest_products_and_there_is_none_without_one():
    def draw(report: RunReport) -> Figure | None:
        return draw_roofline(explained(report).costs, report.peak)

    figure = draw(costly_report(conv_node(2 * CONV_US), relu_node(100)))
    marks = [series for series in figure.panels[0].series if series.kind == "marks"]
    assert [(series.name, series.y) for series in marks] == [("bound by arithmetic", [25.0])]
    assert marks[0].x == [pytest.approx(115_605_504 / (MOVED + 4 * 64 * 64 * 9), rel=1e-4)]
    assert draw(costly_report(relu_node(100))) is None
    many = [conv_node(CONV_US + n, name=f"conv{n}") for n in range(2 * MARKS)]
    [series] = [each for each in draw(costly_report(*many)).panels[0].series if each.text]
    assert len(series.text) == MARKS
    assert all(f"conv{n} " in " ".join(series.text) for n in range(MARKS, 2 * MARKS))
