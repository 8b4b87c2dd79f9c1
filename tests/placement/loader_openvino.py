"""Show that a bundle's loader takes OpenVINO where it works, and else says why it does not.

    python -m tests.placement.loader_openvino [--python .venv-openvino/bin/python]

Runs in edgepack's environment. ``--python`` starts that of an environment with numpy and either
``onnxruntime-openvino==1.24.1`` (the classic provider) or ``onnxruntime==1.31.1`` with
``onnxruntime-ep-openvino==1.8.1`` (the plugin, which lists devices on Intel hardware only). For
each case a small bundle gets an OpenVINO variant before its CPU variant and is loaded there, in a
process of its own. Exit status 1 if a case does not come out as expected.

On a processor of another maker, ``--python "qemu-x86_64-static -cpu Skylake-Client-v4 PYTHON"``
makes the plugin list the emulated one (tried 2026-11-21).
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ["ORT_DISABLE_TELEMETRY"] = "1"

from tests.support.reports.proof_report import Check, report
from tests.support.reports.tiny_bundle import change_manifest, write_tiny_bundle

OPENVINO = "OpenVINOExecutionProvider"
CPU = "CPUExecutionProvider"
SECONDS = 180
LOAD = """
import json, sys
import edgepack_loader
model = edgepack_loader.load(cache=sys.argv[1])
nodes = edgepack_loader.profile_nodes(model.bundle, model.entry, runs=2)
print(json.dumps({
    "variant": model.variant,
    "passed_over": model.passed_over,
    "sqnr_db": model.golden_sqnr_db,
    "providers": sorted({node["provider"] for node in nodes}),
}))
"""
KIND = """
import onnxruntime
if "OpenVINOExecutionProvider" in onnxruntime.get_available_providers():
    print("classic")
else:
    import onnxruntime_ep_openvino as plugin
    onnxruntime.register_execution_provider_library(plugin.get_ep_name(), plugin.get_library_path())
    names = [device.ep_name for device in onnxruntime.get_ep_devices()]
    print("plugin" if plugin.get_ep_name() in names else "no device")
"""


@dataclass(frozen=True)
class Case:
    """One OpenVINO variant, and what is to become of it, by kind of environment."""

    name: str
    options: dict[str, str]
    reason: dict[str, str] = field(default_factory=dict)
    """Words of the reason why it is passed over; chosen where the kind is not there."""
    placement: str | float = "all"


LEFT_OUT = "left OpenVINOExecutionProvider out of the session"
NOT_ALL = "does not take every node, or not this machine"
NOT_JSON = "load_config' is '/etc/openvino.json': it takes"
CASES = [
    Case("CPU", {"device_type": "CPU"}),
    Case("CPU, half of the nodes", {"device_type": "CPU"}, placement=0.5),
    Case("CPU, FP32", {"precision": "FP32", "num_of_threads": "1", "num_streams": "1"}),
    Case("CPU, cache", {"device_type": "CPU", "cache_dir": "{cache}"}),
    Case("CPU, load_config", {"load_config": '{"CPU": {"INFERENCE_NUM_THREADS": "1"}}'}),
    Case(
        "absent GPU, all nodes",
        {"device_type": "GPU.9"},
        {"classic": NOT_ALL, "plugin": "lists no GPU.9 on this machine, only CPU"},
    ),
    Case(
        "absent GPU",
        {"device_type": "GPU.9"},
        {"classic": LEFT_OUT, "plugin": "lists no GPU.9 on this machine, only CPU"},
        placement=0.5,
    ),
    # The plugin takes it as a hint; what comes of it is for the golden outputs to judge.
    Case(
        "CPU, FP16, all nodes",
        {"device_type": "CPU", "precision": "FP16"},
        {"classic": NOT_ALL},
    ),
    Case(
        "CPU, FP16",
        {"device_type": "CPU", "precision": "FP16"},
        {"classic": LEFT_OUT},
        placement=0.5,
    ),
    Case(
        "AUTO",
        {"device_type": "AUTO"},
        {"classic": "runs 0% of the nodes", "plugin": "lists no AUTO"},
        placement=0.5,
    ),
    Case(
        "load_config that is a path",
        {"load_config": "/etc/openvino.json"},
        {"classic": NOT_JSON, "plugin": NOT_JSON, "no device": "lists no device"},
    ),
    Case(
        "load_config with an unknown property",
        {"load_config": '{"CPU": {"NO_SUCH_PROPERTY": "1"}}'},
        {"classic": "NO_SUCH_PROPERTY", "plugin": "NO_SUCH_PROPERTY"},
    ),
    Case(
        "misspelt option",
        {"cachedir": "/tmp"},
        {"classic": "is it 'cache_dir'?", "plugin": "is it 'cache_dir'?"},
    ),
]


def main() -> int:
    """Run every case and say how it came out."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", default=".venv-openvino/bin/python", type=shlex.split)
    python = parser.parse_args().python
    kind = run(python, KIND, Path()).strip()
    print(f"OpenVINO here: {kind}")
    began, checks = time.monotonic(), []
    with tempfile.TemporaryDirectory() as folder:
        for number, case in enumerate(CASES):
            bundle = write_tiny_bundle(Path(folder) / str(number) / "bundle")
            change_manifest(bundle, lambda manifest, case=case: put_first(manifest, case))
            cache = bundle.parent / "cache"
            found = json.loads(run(python, LOAD, bundle, str(cache)))
            problem = problem_of(case, kind, found, cache)
            if cache.exists() and not problem:
                problem = second_start(python, bundle, cache, kind)
            checks.append(Check(case.name, problem))
            why = found["passed_over"][0][1] if found["passed_over"] else "chosen"
            print(f"{'WRONG' if problem else 'ok':5} {case.name}: {problem or why}")
    wrong = sum(bool(check.problem) for check in checks)
    report("loader-openvino", checks, time.monotonic() - began)
    print(f"{len(CASES) - wrong} of {len(CASES)} as expected")
    return 1 if wrong else 0


def put_first(manifest: dict[str, Any], case: Case) -> None:
    """Put an OpenVINO variant before the bundle's plain fp32 one, and take out the others."""
    plain = next(entry for entry in manifest["variants"] if entry["id"] == "cpu-fp32")
    first = deepcopy(plain)
    first.update(
        id="openvino-fp32",
        backend="openvino",
        providers=[{"name": OPENVINO, "options": case.options}, {"name": CPU, "options": {}}],
        placement=case.placement,
    )
    manifest["variants"] = [first, plain]
    for golden in manifest["goldens"]:
        golden["outputs"]["openvino-fp32"] = golden["outputs"]["cpu-fp32"]


def problem_of(case: Case, kind: str, found: dict[str, Any], cache: Path) -> str:
    """Return how an outcome differs from what is expected, or nothing."""
    reason = case.reason.get(kind, "lists no device" if kind == "no device" else "")
    if reason:
        why = found["passed_over"][0][1] if found["passed_over"] else "chosen"
        fits = reason in why and found["variant"] == "cpu-fp32"
        return "" if fits else f"expected {reason!r}, found {why!r}"
    if found["variant"] != "openvino-fp32":
        return f"passed over: {found['passed_over']}"
    if found["providers"] != [OPENVINO]:
        return f"nodes ran on {found['providers']}"
    if "{cache}" in case.options.values() and not any(cache.rglob("*")):
        return "nothing in the cache"
    return ""


def second_start(python: list[str], bundle: Path, cache: Path, kind: str) -> str:
    """Load once more; the plugin reads what it compiled, the classic CPU compiles it anew."""
    before = {path: path.stat().st_mtime_ns for path in cache.rglob("*")}
    run(python, LOAD, bundle, str(cache))
    reads = before == {path: path.stat().st_mtime_ns for path in cache.rglob("*")}
    return "" if reads == (kind == "plugin") else f"read on the second start: {reads}"


def run(python: list[str], code: str, bundle: Path, *arguments: str) -> str:
    """Run code with the bundle on the path and return what it printed; its stderr is shown."""
    done = subprocess.run(
        [*python, "-B", "-c", code, *arguments],
        env={**os.environ, "PYTHONPATH": str(bundle)},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    if done.returncode:
        raise SystemExit(done.stderr)
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
