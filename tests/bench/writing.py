"""How long writing Q/DQ pairs takes as graphs grow, against onnxruntime's quantizer.

A chain of Conv, Relu and Add; the ranges are given, nothing is calibrated. Both prepare the model,
find what they cannot take, and write; in one process, one after the other.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
import onnx
from edgepack.project.profile import Dialect
from edgepack.quantization.qdq.preparation import prepare_model
from edgepack.quantization.qdq.writer import QdqWriter
from onnx import TensorProto, helper, numpy_helper

from tests.bench.measuring import Row
from tests.support.nets.onnxruntime_writer import written_by_onnxruntime

OURS = (1500, 3000, 6000)
THEIRS = (750, 1500)
RUNS = 3
DIALECT = Dialect(activations="uint8", weights="int8", symmetric=False, per_channel=True)


def measure() -> Iterator[Row]:
    """Yield a row for growth, and one beside onnxruntime."""
    ours = {nodes: min(_ours(nodes) for _ in range(RUNS)) for nodes in OURS}
    first, _, last = OURS
    yield Row(
        f"writing Q/DQ pairs, {last} nodes / {first} nodes",
        f"best of {RUNS} runs each",
        f"{ours[last] / ours[first]:.2f}",
        f"{last / first:.0f}, and at most 10 s",
        "; ".join(f"{nodes} nodes {seconds:.2f} s" for nodes, seconds in ours.items()),
    )
    theirs = {nodes: _theirs(nodes) for nodes in THEIRS}
    yield Row(
        f"writing Q/DQ pairs, onnxruntime's quantizer / ours, {THEIRS[-1]} nodes",
        f"best of {RUNS} runs / one run",
        f"{theirs[THEIRS[-1]] / ours[THEIRS[-1]]:.1f}",
        "as much as it is",
        "; ".join(f"onnxruntime, {nodes} nodes {s:.2f} s" for nodes, s in theirs.items()),
    )


def _ours(nodes: int) -> float:
    model, ranges = chain(nodes)
    started = time.perf_counter()
    writer = QdqWriter(prepare_model(model), ranges, DIALECT)
    writer.write(writer.explain_unusable())
    return time.perf_counter() - started


def _theirs(nodes: int) -> float:
    model, ranges = chain(nodes)
    model = prepare_model(model)
    started = time.perf_counter()
    written_by_onnxruntime(model, ranges, DIALECT)
    return time.perf_counter() - started


def chain(nodes: int) -> tuple[onnx.ModelProto, dict[str, tuple[float, float]]]:
    """Return ``nodes // 3`` times Conv, Relu and Add on [1, 4, 4, 4], and ranges of all tensors."""
    generator = np.random.default_rng(0)
    made, constants, last = [], [], "x"
    for n in range(nodes // 3):
        weights = generator.standard_normal((4, 4, 1, 1)).astype(np.float32)
        constants += [
            numpy_helper.from_array(weights, f"w{n}"),
            numpy_helper.from_array(np.zeros(4, np.float32), f"b{n}"),
        ]
        made += [
            helper.make_node("Conv", [last, f"w{n}", f"b{n}"], [f"c{n}"], f"conv{n}"),
            helper.make_node("Relu", [f"c{n}"], [f"r{n}"], f"relu{n}"),
            helper.make_node("Add", [f"r{n}", last], [f"a{n}"], f"add{n}"),
        ]
        last = f"a{n}"
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 4, 4, 4]) for name in ("x", last)
    ]
    graph = helper.make_graph(made, "chain", ends[:1], ends[1:], constants)
    model = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 17)])
    names = ("x", *(node.output[0] for node in made))
    return model, dict.fromkeys(names, (-4.0, 4.0))
