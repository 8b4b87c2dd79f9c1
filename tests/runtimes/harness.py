"""Runs every mode of a bundle's harness in an environment, as on a device."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from edgepack.bundle.manifest import Golden, GoldenTensor
from edgepack.bundle.reading import load_bundle

from tests.runtimes.environments import Environment

VARIANT = "cpu-fp32"
FEW = (
    *("--duration-s", "0.1", "--iterations", "5", "--warm-up-s", "0.05"),
    *("--warm-up-iterations", "2", "--window-s", "0.05", "--warm-up-cap-s", "0.5"),
)
"""Of what ``measure`` does by default: that it runs is asked here, not how fast."""
SAME = 1e-3


def run_modes(environment: Environment, bundle: Path) -> Iterator[tuple[str, bool]]:
    """Run every mode; yield what has to hold of it, with whether it does.

    Raises:
        ToolError: The harness fails.
    """
    ids = {variant.id for variant in load_bundle(bundle).manifest.variants}
    chosen = _document(environment, bundle, "select")
    yield "select finds a variant", chosen["variant"] in ids
    yield (
        "select says what runs it",
        chosen["device"]["onnxruntime"] == environment.pin.version
        and chosen["device"]["python"] == environment.interpreter.version,
    )
    measured = _document(environment, bundle, "measure", "--variant", VARIANT, *FEW)
    yield "measure times inferences", len(measured["latencies_ns"]) >= 5
    yield "measure is near the goldens", measured["golden_min_sqnr_db"] >= 60.0
    memory = _document(environment, bundle, "memory", "--variant", VARIANT)
    yield "memory sees the model", memory["peak_bytes"] >= memory["loaded_bytes"] > 0
    profile = _document(environment, bundle, "profile", "--variant", VARIANT)
    providers = {node["provider"] for node in profile["nodes"]}
    yield "profile sees every node on the CPU", providers == {"CPUExecutionProvider"}
    yield "serve answers with the golden outputs", _serves(environment, bundle)


def _program(bundle: Path) -> Path:
    return bundle / "harness" / "edgepack_harness.py"


def _document(environment: Environment, bundle: Path, mode: str, *arguments: str) -> Any:
    return environment.run(_program(bundle), mode, "--bundle", bundle, *arguments)


def _serves(environment: Environment, bundle: Path) -> bool:
    golden = load_bundle(bundle).manifest.goldens[0]
    request = _message(bundle, golden)
    answer = environment.output(
        *(_program(bundle), "serve", "--bundle", bundle, "--variant", VARIANT), input_bytes=request
    )
    size = struct.unpack(">I", answer[:4])[0]
    header, data = json.loads(answer[4 : 4 + size]), answer[4 + size :]
    [tensor], [expected] = header["tensors"], golden.outputs[VARIANT]
    found = np.frombuffer(data, tensor["dtype"]).reshape(tensor["shape"])
    return bool(np.allclose(found, _array(bundle, expected), rtol=SAME, atol=SAME))


def _message(bundle: Path, golden: Golden) -> bytes:
    tensors = [
        {"name": tensor.name, "dtype": tensor.dtype, "shape": tensor.shape}
        for tensor in golden.inputs
    ]
    header = json.dumps({"tensors": tensors}).encode()
    data = b"".join((bundle / tensor.path).read_bytes() for tensor in golden.inputs)
    return struct.pack(">I", len(header)) + header + data


def _array(bundle: Path, tensor: GoldenTensor) -> np.ndarray:
    return np.frombuffer((bundle / tensor.path).read_bytes(), tensor.dtype).reshape(tensor.shape)
