"""Where onnxruntime really puts every node of models when it has OpenVINO; prints JSON.

Runs in an environment of its own (onnxruntime-openvino, numpy, the standard library; nothing of
edgepack's):

    python measure_openvino.py [--device CPU] [--provider OpenVINOExecutionProvider] model.onnx ...

Each model is loaded in a process of its own, because a provider that crashes takes its process
along. Nodes are those before fusion, as ``get_provider_graph_assignment_info`` has them; with the
provider's outputs come the CPU provider's, computed from the same seeded inputs.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

os.environ["ORT_DISABLE_TELEMETRY"] = "1"

import numpy as np
import onnxruntime

CPU = "CPUExecutionProvider"
SECONDS = 180
"""After so long a model is given up."""
_DTYPES = {
    "float": "float32",
    "double": "float64",
    "float16": "float16",
    "bool": "bool",
    **{f"{sign}int{bits}": f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)},
}


def measure(model: str, provider: str, options: dict[str, str]) -> dict[str, Any]:
    """Return the placement of one model, and how far its outputs are from the CPU provider's."""
    result: dict[str, Any] = {"nodes": [], "error": None, "outputs": None}
    started = time.perf_counter()
    try:
        session = make_session(model, [(provider, options), CPU])
    except Exception as error:  # noqa: BLE001  (whatever the provider throws is the result)
        return {**result, "error": f"{type(error).__name__}: {ends(str(error))}"}
    result["load_seconds"] = round(time.perf_counter() - started, 3)
    result["providers"] = session.get_providers()
    result["nodes"] = [
        {"name": node.name, "op": node.op_type, "domain": node.domain, "provider": part.ep_name}
        for part in session.get_provider_graph_assignment_info()
        for node in part.get_nodes()
    ]
    result["outputs"] = compare_outputs(session, model)
    return result


def make_session(model: str, providers: list[Any]) -> onnxruntime.InferenceSession:
    """Return a session that records where it puts nodes and does not fall back in silence."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    return onnxruntime.InferenceSession(model, options, providers=providers, enable_fallback=0)


def ends(text: str) -> str:
    """Return a long message without its middle, on one line: what matters stands at the end."""
    line = " ".join(text.split())
    return line if len(line) < 500 else f"{line[:100]} ... {line[-350:]}"


def compare_outputs(session: onnxruntime.InferenceSession, model: str) -> dict[str, Any]:
    """Return the largest difference to the CPU provider, relative to its largest value."""
    try:
        feed = {value.name: random_input(value) for value in session.get_inputs()}
        reference = make_session(model, [CPU]).run(None, feed)
    except Exception as error:  # noqa: BLE001
        return {"compared": False, "why": f"{type(error).__name__}: {ends(str(error))}"}
    try:
        outputs = session.run(None, feed)
        started = time.perf_counter()
        session.run(None, feed)
        seconds = time.perf_counter() - started
    except Exception as error:  # noqa: BLE001
        return {"compared": False, "why": f"only the CPU runs it: {ends(str(error))}"}
    worst = max((difference(*pair) for pair in zip(outputs, reference, strict=True)), default=0.0)
    return {"compared": True, "difference": worst, "seconds": round(seconds, 5)}


def random_input(value: Any) -> Any:
    """Return a seeded input; unknown dimensions are 1, integers 0 or 1."""
    dtype = _DTYPES[value.type.removeprefix("tensor(").removesuffix(")")]
    shape = [size if isinstance(size, int) else 1 for size in value.shape]
    generator = np.random.default_rng(0)
    if "float" in dtype:
        return generator.standard_normal(shape).astype(dtype)
    return generator.integers(0, 2, shape).astype(dtype)


def difference(found: Any, wanted: Any) -> float:
    """Return the largest difference over the largest value; infinite where nothing compares."""
    if not isinstance(found, np.ndarray) or not isinstance(wanted, np.ndarray):
        return 0.0 if type(found) is type(wanted) else float("inf")
    if found.shape != wanted.shape or found.dtype != wanted.dtype:
        return float("inf")
    if found.dtype.kind not in "fiub":
        return 0.0 if np.array_equal(found, wanted) else float("inf")
    one, two = found.astype(np.float64), wanted.astype(np.float64)
    apart = np.where(np.isnan(one) & np.isnan(two), 0.0, np.abs(one - two))
    return float(np.nan_to_num(apart, nan=np.inf).max(initial=0.0)) / max(
        float(np.nan_to_num(np.abs(two)).max(initial=0.0)), 1e-6
    )


def measure_apart(model: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return :func:`measure` of a model, made in another process."""
    command = [sys.executable, __file__, "--one", "--device", arguments.device]
    command += ["--provider", arguments.provider, model]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return {"nodes": [], "error": f"no answer after {SECONDS} s", "outputs": None}
    lines = done.stdout.splitlines()
    if done.returncode != 0 or not lines:
        return {"nodes": [], "error": f"process ended with {done.returncode}", "outputs": None}
    return dict(json.loads(lines[-1]))


def main() -> None:
    """Measure the models of the command line and print one JSON document."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="CPU")
    parser.add_argument("--provider", default="OpenVINOExecutionProvider")
    parser.add_argument("--one", action="store_true", help="in this process, the last line is JSON")
    parser.add_argument("models", nargs="+")
    arguments = parser.parse_args()
    options = {"device_type": arguments.device} if "OpenVINO" in arguments.provider else {}
    if arguments.one:
        result: dict[str, Any] = measure(arguments.models[0], arguments.provider, options)
    else:
        result = {
            "runtime": onnxruntime.__version__,
            "provider": arguments.provider,
            "device": arguments.device,
            "models": {
                str(Path(model)): measure_apart(model, arguments) for model in arguments.models
            },
        }
    sys.stdout.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
