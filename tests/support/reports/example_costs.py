"""Reports of runs whose nodes say what they read, write and compute."""

from __future__ import annotations

from math import prod
from typing import Any

from edgepack.base.schema import NotMeasured
from edgepack.records.run import Move, NodeSizes, Peak, PlacedNode, Placement, RunReport, TensorSize

from tests.support.reports.example_report import CPU, example_report

BYTES = {"float": 4, "float16": 2, "uint8": 1, "int8": 1, "int64": 8}
Shape = tuple[int, ...]


def example_peak(**changes: Any) -> Peak:
    """Return a processor with 10 GB/s from memory and 100 from its cache."""
    return Peak(
        threads=2,
        moves=[
            Move(moved_bytes=1 << 18, bytes_per_s=1e11),
            Move(moved_bytes=1 << 26, bytes_per_s=1e10),
        ],
        multiply_adds_per_s={"float32": 5e10, "int8": 2e11},
    ).model_copy(update=changes)


def sized_node(
    op: str,
    us: float,
    inputs: list[Shape],
    output: Shape,
    *,
    dtype: str = "float",
    name: str = "",
    provider: str = CPU,
) -> PlacedNode:
    """Return a node whose first input is its activation, the others its weights."""

    def size(*shapes: Shape) -> int:
        return sum(BYTES[dtype] * prod(shape) for shape in shapes)

    return PlacedNode(
        name=name or op.lower(),
        op=op,
        provider=provider,
        mean_us=us,
        median_us=us,
        sizes=NodeSizes(
            activation_bytes=size(inputs[0]),
            parameter_bytes=size(*inputs[1:]),
            output_bytes=size(output),
            inputs=[TensorSize(dtype=dtype, dims=list(shape)) for shape in inputs],
            outputs=[TensorSize(dtype=dtype, dims=list(output))],
        ),
    )


def conv_node(us: float, channels: int = 64, size: int = 56, **about: Any) -> PlacedNode:
    """Return a convolution of 3 x 3 that keeps its channels: 115.6 million multiply-adds."""
    shape = (1, channels, size, size)
    return sized_node("Conv", us, [shape, (channels, channels, 3, 3)], shape, **about)


def relu_node(us: float, channels: int = 64, size: int = 56, **about: Any) -> PlacedNode:
    """Return a Relu of the convolution's size."""
    shape = (1, channels, size, size)
    return sized_node(about.pop("op", "Relu"), us, [shape], shape, **about)


def costly_report(
    *nodes: PlacedNode, between_us: float | NotMeasured = 0.0, **changes: Any
) -> RunReport:
    """Return a report whose run has these nodes."""
    placement = Placement(variant="cpu-int8-static", runs=10, nodes=[*nodes], between_us=between_us)
    return example_report(**{"placement": placement, "peak": example_peak(), **changes})
