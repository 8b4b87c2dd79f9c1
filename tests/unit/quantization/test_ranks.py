"""Rewrites of random convolutional networks of rank 3, 4 and 5 compute what the network did."""

from __future__ import annotations

import numpy as np
import pytest
from edgepack.project.profile import Dialect
from edgepack.quantization.methods.cross_layer_equalization import equalize_layers
from edgepack.quantization.methods.spare_channels import duplicate_channels
from edgepack.quantization.qdq.kept_float import write_qdq
from edgepack.quantization.qdq.writer import QdqWriter

from tests.support.nets.equalization_nets import Net, images, run, statistics_of

U8 = Dialect(activations="uint8", weights="int8", symmetric=False, per_channel=True)


def random_net(seed):
    """A stack of convolutions; returns it with its input's shape.

    Lengths from 1 to 64, more channels than values along an axis and fewer, groups, depthwise and
    transposed ones, channels that are always 0, weights that two layers share.
    """
    net = Net(seed, [], {})
    draw = net.random
    axes = int(draw.integers(1, 4))
    lengths = [int(draw.choice([1, 2, 5, 9, 64 // axes**2])) for _ in range(axes)]
    channels = first = int(draw.choice([1, 3, 4, 17]))
    made = "x"
    for layer in range(int(draw.integers(2, 5))):
        kind = draw.choice(["plain", "depthwise", "groups", "transposed", "pointwise"])
        side = 1 if kind == "pointwise" or min(lengths) < 3 else int(draw.choice([1, 3]))
        kernel, pads = [side] * axes, [side // 2] * (2 * axes)
        outputs = int(draw.choice([2, 8, 24]))
        name = f"c{layer}"
        if kind == "depthwise" and channels > 1:
            net.conv(made, name, (channels, 1, *kernel), spread=1.5, group=channels, pads=pads)
            outputs = channels
        elif kind == "groups" and channels % 2 == 0:
            net.conv(made, name, (outputs, channels // 2, *kernel), spread=1.5, group=2, pads=pads)
        elif kind == "transposed":
            net.conv(made, name, (channels, outputs, *kernel), op="ConvTranspose", pads=pads)
        else:
            net.conv(made, name, (outputs, channels, *kernel), spread=1.5, pads=pads)
            spare = draw.random(outputs) < 0.3
            net.constants[f"w_{name}"][spare] = 0
            net.constants[f"b_{name}"][spare] = -0.5
        net.add("Relu", name, f"{name}_r")
        made, channels = f"{name}_r", outputs
    net.conv(made, "head", (5, channels, *[1] * axes))
    net.nodes[-1].input[:] = [made, "w_head", "b_head"]
    net.nodes.append(type(net.nodes[-1])())
    net.nodes[-1].CopyFrom(net.nodes[-2])
    net.nodes[-1].output[:] = ["twin"]
    net.add("Concat", "head twin", "out", axis=1)
    return net, (1, first, *lengths)


@pytest.mark.parametrize("seed", range(40))
def test_rewrites_of_a_random_network_change_nothing_in_float(seed, tmp_path):
    net, shape = random_net(seed)
    model = net.model("out", shape)
    feeds = images(4, shape, seed)
    expected = run(model, feeds)
    statistics = statistics_of(model, feeds, tmp_path)
    for name, known in statistics.items():
        if f"w_{name}" in net.constants:
            transposed = any(n.op_type == "ConvTranspose" for n in net.nodes if name in n.output)
            outputs = net.constants[f"w_{name}"].shape[1 if transposed else 0]
            assert (known.channel_axis, len(known.channel_low)) == (1, outputs), name
    wider = equalize_layers(model, statistics, 0.75)
    np.testing.assert_allclose(run(wider.model, feeds), expected, rtol=1e-3, atol=1e-3)
    copied = duplicate_channels(model, statistics, U8)
    ranges = {name: (known.low, known.high) for name, known in copied.statistics.items()}
    writer = QdqWriter(copied.model, ranges, U8)
    written = write_qdq(
        writer, writer.explain_unusable(), {n.name for n in copied.model.graph.node}
    )
    error = run(written, feeds) - expected
    assert np.sum(error**2) < np.sum(expected**2) / 10
