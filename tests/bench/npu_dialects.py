"""What each int8 dialect is worth to each operator on Qualcomm's NPU, by generation.

Nets of one operator, whose channels differ in size as those of trained nets do, are built for a
target with all dialects that its provider takes, and judged in Qualcomm's simulator as any build
is: as an HTP of version 68 and as one of version 73, which versions 75, 79 and 81 equal.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import yaml
from edgepack.backends.registry import BACKENDS
from edgepack.backends.simulators import find_backend_simulator
from edgepack.base.resources import find_targets_dir
from edgepack.model.simulating import Simulator
from onnx import TensorProto, helper, numpy_helper

from tests.bench.measuring import EDGEPACK, Table, own_folders, run, scratch

SAMPLES = 128
GENERATIONS = ("68", "73")
DIALECTS = {
    "u8-u8": ("uint8", "uint8", False),
    "u8-s8": ("uint8", "int8", False),
    "u8-s8c": ("uint8", "int8", True),
    "u16-u8": ("uint16", "uint8", False),
    "u16-s8": ("uint16", "int8", False),
    "u16-s8c": ("uint16", "int8", True),
}
"""By name: activations, weights, and whether each channel has its own scale."""


@dataclass(frozen=True)
class Net:
    """A net of one operator."""

    op: str
    taken: tuple[int, ...]
    """The shape of its input."""
    given: tuple[int, ...]
    """The shape of its output."""
    weights: tuple[int, ...]
    channels: int
    """The axis of the weights that counts output channels."""
    attributes: dict[str, Any]


_PLANE, _SAME = (1, 16, 24, 24), [1, 1, 1, 1]
NETS = {
    "Conv 3x3": Net("Conv", _PLANE, (1, 32, 24, 24), (32, 16, 3, 3), 0, {"pads": _SAME}),
    "Conv 1x1": Net("Conv", _PLANE, (1, 32, 24, 24), (32, 16, 1, 1), 0, {}),
    "Conv depthwise": Net("Conv", _PLANE, _PLANE, (16, 1, 3, 3), 0, {"pads": _SAME, "group": 16}),
    "Conv grouped": Net(
        "Conv", _PLANE, (1, 32, 24, 24), (32, 4, 3, 3), 0, {"pads": _SAME, "group": 4}
    ),
    "Conv 1-D": Net("Conv", (1, 16, 64), (1, 32, 64), (32, 16, 3), 0, {"pads": [1, 1]}),
    "ConvTranspose": Net(
        "ConvTranspose", (1, 16, 12, 12), (1, 32, 24, 24), (16, 32, 2, 2), 1, {"strides": [2, 2]}
    ),
    "Gemm": Net("Gemm", (1, 64), (1, 48), (48, 64), 0, {"transB": 1}),
    "MatMul": Net("MatMul", (1, 16, 64), (1, 16, 48), (64, 48), 1, {}),
}


def measure() -> Iterator[Table]:
    """Yield one table, where the simulator is installed."""
    found = find_backend_simulator(BACKENDS["qnn"])
    if not isinstance(found, Simulator):
        print(f"dialects of Qualcomm's NPU: {found}", file=sys.stderr)
        return
    rows = []
    for name, net in NETS.items():
        with scratch() as folder:
            rows += [(name, *row) for row in _measure_net(net, folder)]
        print(*rows[-1], file=sys.stderr)
    heads = ("operator", "HTP", *DIALECTS)
    yield Table(f"SQNR to fp32 in {found}, dB (of the same file on the CPU)", heads, tuple(rows))


def _measure_net(net: Net, folder: Path) -> Iterator[tuple[str, ...]]:
    """Yield the version of an HTP and the cell of each dialect."""
    _write_project(net, folder)
    names = [_write_target(folder, version) for version in GENERATIONS]
    wanted = [word for name in names for word in ("--target", name)]
    out = folder / "dist"
    run([EDGEPACK, "build", *wanted, "--out", str(out), "--json"], own_folders(folder), folder)
    for version, name in zip(GENERATIONS, names, strict=True):
        (file,) = out.glob(f"*{name}*/manifest.json")
        variants = {
            each["id"].removeprefix("qnn-int8-static-"): each
            for each in json.loads(file.read_bytes())["variants"]
        }
        yield (version, *(_format_cell(variants[dialect]) for dialect in DIALECTS))


def _format_cell(variant: dict[str, Any]) -> str:
    there, here = variant["simulated"]["accuracy"], variant["accuracy"]
    return f"{there['worst']['sqnr_db']:.1f} ({here['worst']['sqnr_db']:.1f})"


def _write_project(net: Net, folder: Path) -> None:
    rng = np.random.default_rng(3)
    # No more unequal than 8 bits hold: else the output would have 16.
    sizes = np.exp(rng.normal(0, 0.5, net.weights[net.channels]))
    wide = [-1 if axis == net.channels else 1 for axis in range(len(net.weights))]
    fan = np.prod(net.weights) / len(sizes)
    weights = rng.standard_normal(net.weights) * sizes.reshape(wide) / np.sqrt(fan)
    constants = {"weights": weights}
    if net.op != "MatMul":
        constants["bias"] = rng.standard_normal(len(sizes)) * sizes
    node = helper.make_node(net.op, ["x", *constants], ["y"], **net.attributes)
    graph = helper.make_graph(
        [node],
        net.op,
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, net.taken)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, net.given)],
        [numpy_helper.from_array(v.astype(np.float32), name) for name, v in constants.items()],
    )
    model = helper.make_model(graph, ir_version=9, opset_imports=[helper.make_opsetid("", 17)])
    onnx.save(model, folder / "net.onnx")
    spread = np.exp(rng.normal(0, 0.7, net.taken[1:]))
    values = rng.standard_normal((SAMPLES, *net.taken[1:])) * spread
    np.savez(folder / "samples.npz", x=values.astype(np.float32))
    source = {"path": "samples.npz"}
    project = {
        "schema_version": 1,
        "name": "net",
        "model": "net.onnx",
        "samples": {"calibration": source, "evaluation": source},
    }
    (folder / "edgepack.yaml").write_text(yaml.safe_dump(project), encoding="utf-8")


def _write_target(folder: Path, version: str) -> str:
    """Write a profile with all dialects for a version of the HTP; return its name."""
    shipped = find_targets_dir() / "qualcomm-linux.yaml"
    profile = yaml.safe_load(shipped.read_text(encoding="utf-8"))
    options = {"backend_type": "htp", "htp_arch": version}
    profile["id"] = f"htp{version}"
    profile["sources"] = []
    profile["variants"] = [
        {
            "id": f"qnn-int8-static-{name}",
            "backend": "qnn",
            "recipe": "int8-static",
            "dialect": {
                "activations": activations,
                "weights": weights,
                "symmetric": False,
                "per_channel": per_channel,
            },
            "providers": [
                {"name": "QNNExecutionProvider", "options": options},
                {"name": "CPUExecutionProvider"},
            ],
            # A net of one operator is mostly its own conversions, which the CPU does.
            "placement": 0.05,
        }
        for name, (activations, weights, per_channel) in DIALECTS.items()
    ]
    (folder / "targets").mkdir(exist_ok=True)
    path = folder / "targets" / f"{profile['id']}.yaml"
    path.write_text(yaml.safe_dump(profile), encoding="utf-8")
    return str(profile["id"])
