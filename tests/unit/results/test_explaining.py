"""Why a run takes as long as it does: what bounds its nodes, and what may help."""

from __future__ import annotations

import pytest
from edgepack.base.schema import NotMeasured
from edgepack.bundle.unused import Unused
from edgepack.project.profile import SessionSettings
from edgepack.records.run import Phases, PlacedNode, RunReport, Sample, Sampling
from edgepack.records.topology import Processor, Topology
from edgepack.results.explaining.bottlenecks import Bottleneck
from edgepack.results.explaining.explaining import explain
from edgepack.results.explaining.roofline import compute_costs
from edgepack.results.explaining.work import count_multiply_adds, find_arithmetic
from edgepack.results.page.explained import make_explained

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


def found_in(report: RunReport, words: str) -> Bottleneck | None:
    return next((each for each in explain(report).bottlenecks if words in each.what), None)


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
    costs = {cost.node.name: cost for cost in compute_costs(report)}
    assert costs["computes"].bound == "arithmetic"
    assert costs["moves"].bound == "memory"
    assert costs["slow"].bound == "neither"
    assert costs["half"].bound is None
    assert sum(cost.share for cost in costs.values()) == pytest.approx(1)


def test_a_small_tensor_is_held_against_the_cache_that_it_fits_in():
    [cost] = compute_costs(costly_report(relu_node(10, channels=4)))
    assert cost.roof.moving_us == pytest.approx(MOVED / 16 / 1e11 * 1e6)


def test_parts_of_a_run_are_all_of_it():
    report = costly_report(conv_node(2500), relu_node(500), between_us=300)
    parts = {part.kind: part for part in explain(report).parts}
    assert {kind: part.nodes for kind, part in parts.items()} == {
        "arithmetic": 1, "memory": 1, "between": 0,
    }  # fmt: skip
    assert sum(part.share for part in parts.values()) == pytest.approx(1)
    assert sum(part.us for part in parts.values()) == 3300


def test_float_products_gain_what_int8_is_faster_and_name_the_variant_that_has_it():
    report = costly_report(conv_node(1.25 * CONV_US), relu_node(100, channels=1, size=1))
    found = found_in(report, "all is float32, 1 product;")
    share = 1.25 * CONV_US / (1.25 * CONV_US + 100)
    assert found.gain == pytest.approx(0.75 * share, abs=0.001)
    assert "the bundle has cpu-int8-static" in found.remedy
    alone = costly_report(conv_node(CONV_US), variants=report.variants[1:], unused=[])
    assert "edgepack optimize --device pi5-a" in found_in(alone, "float32").remedy
    lost = [Unused(variant="cpu-int8-static", stage="missed", reason="it loses 9 %")]
    refused = costly_report(conv_node(CONV_US), variants=report.variants[1:], unused=lost)
    assert "it loses 9 %" in found_in(refused, "float32").remedy


def test_float_products_of_an_int8_model_are_islands():
    quantized = sized_node(
        "QLinearConv", 900, [(1, 56, 56, 64), (64, 64, 3, 3)], (1, 56, 56, 64), dtype="uint8"
    )
    report = costly_report(quantized, conv_node(2 * CONV_US, name="head"))
    found = found_in(report, "1 of 2 products are islands of float")
    assert "head" in found.what
    lost = costly_report(relu_node(9, op="QuantizeLinear"), conv_node(2 * CONV_US))
    assert found_in(lost, "1 of 1 products are islands of float")
    assert found_in(costly_report(quantized), "float") is None


def test_nodes_that_fell_to_the_cpu_and_copies_are_reported_with_their_share():
    report = costly_report(
        conv_node(600, provider="CUDAExecutionProvider"),
        relu_node(50, op="MemcpyToHost", provider="CUDAExecutionProvider"),
        relu_node(300, op="NonZero", name="selects"),
        relu_node(50, op="MemcpyFromHost", provider="CUDAExecutionProvider"),
    )
    fallen = found_in(report, "run on the CPU, not on CUDA")
    assert fallen.gain == pytest.approx(0.3)
    assert "selects" in fallen.what
    copies = found_in(report, "2 copies")
    assert copies.gain == pytest.approx(0.1)
    assert found_in(costly_report(conv_node(600)), "run on the CPU") is None


@pytest.mark.parametrize(
    ("ops", "what", "gain"),
    [
        (("Add", "Clip", "Mul", "Div"), "hard swish is not fused", 0.75),
        (("Sigmoid", "Mul"), "swish is not fused", 0.5),
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
    def run_at(*hertz: int, busy: float = 1.0):
        samples = [
            Sample(at_ns=at, clocks_hz={"policy0": hz}, busy={"policy0": busy})
            for at, hz in enumerate(hertz)
        ]
        sampling = Sampling(interval_s=0.5, samples=samples, unknown={}, cpu_ns=1, elapsed_ns=9)
        return example_run(0, sampling=sampling)

    slowed = costly_report(conv_node(900), runs=[run_at(2_000, 2_000, 1_000, 1_000)])
    assert found_in(slowed, "the clock of policy0").gain == pytest.approx(0.25)
    idle = costly_report(conv_node(900), runs=[run_at(2_000, 1_000, busy=0.1)])
    assert found_in(idle, "the clock") is None


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


def test_bottlenecks_begin_with_the_largest_gain_and_end_with_unknown_ones():
    report = costly_report(conv_node(50 * CONV_US), relu_node(100, op="Transpose"), between_us=4000)
    gains = [each.gain for each in explain(report).bottlenecks]
    known = [gain for gain in gains if gain is not None]
    assert known == sorted(known, reverse=True)
    assert gains[-1] is None


def test_what_an_older_report_lacks_is_said():
    found = explain(example_report())
    assert [part.kind for part in found.parts] == ["unknown"]
    assert any("what the processor reaches" in each for each in found.unknown)
    bare = explain(example_report(placement=NotMeasured(reason="it crashed")))
    assert (bare.costs, bare.parts) == ([], [])
    assert bare.unknown == ["no node was timed: it crashed"]


def test_the_roofline_has_each_product_and_no_figure_without_one():
    figure = make_explained(costly_report(conv_node(2 * CONV_US), relu_node(100))).roofline
    marks = [series for series in figure.panels[0].series if series.kind == "marks"]
    assert [(series.name, series.y) for series in marks] == [("bound by arithmetic", [25.0])]
    assert marks[0].x == [pytest.approx(115_605_504 / (MOVED + 4 * 64 * 64 * 9), rel=1e-4)]
    assert make_explained(costly_report(relu_node(100))).roofline is None
    assert make_explained(example_report()).roofline is None
