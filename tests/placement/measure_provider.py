"""Where onnxruntime really puts every node of models with a provider; prints JSON.

Runs in an environment of its own (onnxruntime with the provider, numpy, the standard library;
nothing of edgepack's):

    python measure_provider.py --provider NAME [--plugin MODULE] [--option KEY=VALUE] model.onnx ...

Each model is loaded in a process of its own, because a provider that crashes takes its process
along. Nodes are those before fusion, as ``get_provider_graph_assignment_info`` has them; with the
provider's outputs come the CPU provider's, computed from the same seeded inputs. Qualcomm's
provider says in the log why it refuses a node; that comes along.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

os.environ["ORT_DISABLE_TELEMETRY"] = "1"

import numpy as np
import onnxruntime

CPU = "CPUExecutionProvider"
TELLS = hasattr(onnxruntime.InferenceSession, "get_provider_graph_assignment_info")
"""Whether it says where nodes are: 1.24 does, 1.21 does not."""
SECONDS = 180
"""After so long a model is given up."""
SAME = 200.0
"""The ratio of equal outputs, in dB."""
VERBOSE, SILENT = 0, 4
# The name and the reason of a node in the log of onnxruntime-qnn 2.7.0.
_REFUSAL = re.compile(r"Validation FAILED .*?\n((?:\tOperator type: .*\n)+)\tREASON : (.*)")
_NAME = re.compile(r"\tOperator type: \S+ Node name: (.*?) Node index: \d+")
_DTYPES = {
    "float": "float32",
    "double": "float64",
    "float16": "float16",
    "bool": "bool",
    **{f"{sign}int{bits}": f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)},
}


def measure(model: str, arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield the placement of one model, then the same with a comparison of its outputs.

    The outputs may take longer than a model may: the placement is said before.
    """
    result: dict[str, Any] = {"nodes": [], "error": None, "outputs": None}
    started = time.perf_counter()
    try:
        session = make_session(model, arguments)
    except Exception as error:  # noqa: BLE001  (whatever the provider throws is the result)
        yield {**result, "error": f"{type(error).__name__}: {ends(str(error))}"}
        return
    result["load_seconds"] = round(time.perf_counter() - started, 3)
    result["providers"] = session.get_providers()
    try:
        result["nodes"] = list_nodes(session)
    except Exception as error:  # noqa: BLE001
        yield {**result, "error": f"{type(error).__name__}: {ends(str(error))}"}
        return
    yield {**result, "outputs": {"compared": False, "why": "it took too long"}}
    yield {**result, "outputs": compare_outputs(session, model)}


def make_session(
    model: str, arguments: argparse.Namespace | None = None
) -> onnxruntime.InferenceSession:
    """Return a session that records where it puts nodes and does not fall back in silence.

    Without arguments it is one of the CPU provider's.
    """
    options = onnxruntime.SessionOptions()
    options.log_severity_level = VERBOSE if arguments and arguments.plugin else SILENT
    if TELLS:
        options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    elif arguments is not None:
        options.enable_profiling = True
        # onnxruntime adds only the second to the name, and two sessions may begin in one.
        options.profile_file_prefix = str(Path(tempfile.mkdtemp(), "profile"))
    providers: list[Any] | None = [CPU]
    if arguments is not None:
        passed = dict(option.split("=", 1) for option in arguments.option)
        if arguments.plugin:
            add_plugin(options, arguments.plugin, passed)
            providers = None
        elif arguments.provider != CPU:
            providers = [(arguments.provider, passed), CPU]
    return onnxruntime.InferenceSession(model, options, providers=providers, enable_fallback=0)


def list_nodes(session: onnxruntime.InferenceSession) -> list[dict[str, str]]:
    """Return the nodes before fusion; of an onnxruntime that does not tell, those of a profile."""
    if not TELLS:
        session.run(None, {value.name: random_input(value) for value in session.get_inputs()})
        with Path(session.end_profiling()).open(encoding="utf-8") as file:
            events = [event for event in json.load(file) if event.get("cat") == "Node"]
        return [
            {
                "name": event["name"].removesuffix("_kernel_time"),
                "op": event["args"]["op_name"],
                "provider": event["args"]["provider"],
            }
            for event in events
            if event["name"].endswith("_kernel_time")
        ]
    return [
        {"name": node.name, "op": node.op_type, "domain": node.domain, "provider": part.ep_name}
        for part in session.get_provider_graph_assignment_info()
        for node in part.get_nodes()
    ]


def add_plugin(options: Any, module: str, passed: dict[str, str]) -> None:
    """Register a provider that is a library beside onnxruntime, and give it its first device."""
    plugin = importlib.import_module(module)
    name = plugin.get_ep_name()
    onnxruntime.register_execution_provider_library(name, plugin.get_library_path())
    devices = [device for device in onnxruntime.get_ep_devices() if device.ep_name == name]
    options.add_provider_for_devices(devices[:1], passed)


def read_refusals(log: str) -> dict[str, str]:
    """Return why the provider says it refuses nodes, by name."""
    return {
        name: found[2].strip()
        for found in _REFUSAL.finditer(log)
        for name in _NAME.findall(found[1])
    }


def ends(text: str) -> str:
    """Return a long message without its middle, on one line: what matters stands at the end."""
    line = " ".join(text.split())
    return line if len(line) < 500 else f"{line[:100]} ... {line[-350:]}"


def compare_outputs(session: onnxruntime.InferenceSession, model: str) -> dict[str, Any]:
    """Return the signal-to-noise ratio in dB against the CPU provider, of the worst output."""
    try:
        feed = {value.name: random_input(value) for value in session.get_inputs()}
        reference = make_session(model).run(None, feed)
    except Exception as error:  # noqa: BLE001
        return {"compared": False, "why": f"{type(error).__name__}: {ends(str(error))}"}
    try:
        started = time.perf_counter()
        outputs = session.run(None, feed)
        seconds = time.perf_counter() - started
    except Exception as error:  # noqa: BLE001
        return {"compared": False, "why": f"only the CPU runs it: {ends(str(error))}"}
    worst = min((find_sqnr(*pair) for pair in zip(outputs, reference, strict=True)), default=SAME)
    return {"compared": True, "sqnr_db": round(worst, 1), "seconds": round(seconds, 3)}


def random_input(value: Any) -> Any:
    """Return a seeded input; unknown dimensions are 1, integers 0 or 1."""
    dtype = _DTYPES[value.type.removeprefix("tensor(").removesuffix(")")]
    shape = [size if isinstance(size, int) else 1 for size in value.shape]
    generator = np.random.default_rng(0)
    if "float" in dtype:
        return generator.standard_normal(shape).astype(dtype)
    return generator.integers(0, 2, shape).astype(dtype)


def find_sqnr(found: Any, wanted: Any) -> float:
    """Return the ratio of two outputs in dB, at most ``SAME``; its negative where none compares."""
    if not isinstance(found, np.ndarray) or not isinstance(wanted, np.ndarray):
        return SAME if type(found) is type(wanted) else -SAME
    if found.shape != wanted.shape or found.dtype != wanted.dtype:
        return -SAME
    if np.array_equal(found, wanted, equal_nan=found.dtype.kind == "f"):
        return SAME
    if found.dtype.kind not in "fiub":
        return -SAME
    one, two = (np.nan_to_num(each.astype(np.float64)) for each in (found, wanted))
    signal, noise = np.square(two).sum(), np.square(one - two).sum()
    return float(np.clip(10 * np.log10(max(signal, 1e-30) / max(noise, 1e-30)), -SAME, SAME))


def measure_apart(model: str, given: Sequence[str]) -> dict[str, Any]:
    """Return :func:`measure`'s last result for a model, made in another process.

    The provider may print, too: a result is a line of JSON.
    """
    command = [sys.executable, __file__, *given, "--one", model]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            out, log = process.communicate(timeout=SECONDS)
            problem = f"process ended with {process.returncode}"
        except subprocess.TimeoutExpired:
            process.kill()
            out, log = process.communicate()
            problem = f"no answer after {SECONDS} s"
    found = [line for line in out.decode(errors="replace").splitlines() if line[:2] == '{"']
    if not found:
        return {"nodes": [], "error": problem, "outputs": None}
    return {**json.loads(found[-1]), "refusals": read_refusals(log.decode(errors="replace"))}


def main() -> None:
    """Measure the models of the command line and print one JSON document."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--provider", required=True)
    parser.add_argument("--plugin", default="", help="the module of a provider beside onnxruntime")
    parser.add_argument("--option", action="append", default=[], help="KEY=VALUE of the provider")
    parser.add_argument("--one", action="store_true", help="in this process, a line for each step")
    parser.add_argument("models", nargs="+")
    arguments = parser.parse_args()
    if arguments.one:
        for result in measure(arguments.models[0], arguments):
            sys.stdout.write("\n" + json.dumps(result) + "\n")
            sys.stdout.flush()
        return
    given = [word for word in sys.argv[1:] if word not in arguments.models]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        results = pool.map(partial(measure_apart, given=given), arguments.models)
        models = dict(zip(arguments.models, results, strict=True))
    sys.stdout.write(json.dumps({"runtime": onnxruntime.__version__, "models": models}) + "\n")


if __name__ == "__main__":
    main()
