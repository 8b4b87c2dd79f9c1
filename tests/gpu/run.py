"""``make gpu``: the target ``nvidia`` on this machine's own NVIDIA GPU.

::

    .venv/bin/python -m tests.gpu.run [--wheelhouse FOLDER] [--out FILE] [--preset quick]

Provisions an environment with what the target pins, from the package index or, where there is no
network, from a folder that ``edgepack device wheels`` has filled. Then ``edgepack targets prove``:
the example is built, and each variant is loaded, held to its golden outputs and predicted
placement, measured, and asked the evaluation samples. It writes the evidence file that the grades
are made from. Each GPU variant has to run on its provider, and none may lose to the CPU in what it
answers. Bound in the GPU's memory it has to give the golden outputs, and the driver has to tell its
clock and memory; what copies took, and a recorded run, is printed.

Exit codes: 0 all held, 1 something did not, 3 there is no NVIDIA GPU here, or no driver for it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

os.environ["ORT_DISABLE_TELEMETRY"] = "1"

from edgepack import api
from edgepack.base.progress import make_terminal_progress
from edgepack.devices.checking import find_driver_problem
from edgepack.devices.probing import probe
from edgepack.errors import EdgepackError

from tests.support.reports.proof_report import Check, report

CANNOT_RUN_EXIT = 3
METRIC_TOLERANCE = 0.02
"""Between a variant's metric on the GPU and the float model's on this machine's CPU."""


def main() -> int:
    """Prove, print, and return the exit code."""
    arguments = _parse()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="edgepack-gpu-") as name, contextlib.chdir(name):
        device = _write_inventory(Path(name), arguments.target)
        profile = api.load_profile(arguments.target)
        with api.connect(device) as transport:
            problem = find_driver_problem(probe(device, transport), profile)
        if problem:
            report("gpu", [], time.monotonic() - began, not_run=problem[0])
            say(f"gpu: cannot run here: {problem[0]}: {problem[1]}")
            return CANNOT_RUN_EXIT
        try:
            checks = _prove(device, profile, arguments)
        except EdgepackError as error:
            checks = [Check("the target was proven", str(error))]
    report("gpu", checks, time.monotonic() - began)
    for check in checks:
        say(f"  {'FAIL' if check.problem else 'ok  '}  {check.what}  {check.problem}")
    failed = any(check.problem for check in checks)
    say(f"gpu: {'FAILED' if failed else 'all held'} in {time.monotonic() - began:.0f} s")
    return 1 if failed else 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", default="nvidia", help="another target of this machine")
    parser.add_argument("--wheelhouse", type=_absolute, help="where wheels lie, without a network")
    parser.add_argument("--out", type=_absolute, help="the evidence file to write")
    parser.add_argument("--preset", default="standard", help="how long each variant is measured")
    return parser.parse_args()


def _absolute(path: str) -> Path:
    return Path(path).absolute()


def _write_inventory(folder: Path, target: str) -> api.Device:
    """Make this machine a device of the target, with a root and an environment of its own."""
    entry = {"transport": "local", "target": target, "root": str(folder / "root")}
    inventory = folder / "devices.yaml"
    inventory.write_text(json.dumps({"schema_version": 1, "devices": {"gpu": entry}}))
    return api.load_device("gpu")


def _prove(device: api.Device, profile: api.Profile, arguments: argparse.Namespace) -> list[Check]:
    progress = make_terminal_progress()
    options = api.ProvisionOptions(wheelhouse=arguments.wheelhouse)
    made = api.provision_device(device, options, progress=progress.show_status)
    say(f"provisioned: {made}")
    checks = [Check(f"{name} computes", why) for name, why in made.broken.items()]
    proof = api.prove(
        profile.id, device, preset=arguments.preset, out=arguments.out, progress=progress
    )
    seen = {variant.id: variant for variant in proof.evidence.variants}
    reports = {report.variant_used: report for report in proof.reports}
    for variant in profile.variants:
        first = variant.providers[0].name
        if variant.id not in seen:
            why = next((each.reason for each in proof.unused if each.variant == variant.id), "")
            checks.append(Check(f"{variant.id} runs", why or "nothing is shown of it"))
            continue
        found = seen[variant.id]
        share = found.nodes.get(first, 0) / max(sum(found.nodes.values()), 1)
        least = 1.0 if variant.placement == "all" else variant.placement
        problem = "" if share >= least else f"its nodes are on {found.nodes}"
        checks.append(Check(f"{variant.id} runs on {first}", problem))
        if first != "CPUExecutionProvider":
            checks += _check_gpu(reports[variant.id])
        if metric := found.metric:
            lost = metric.fp32 - metric.value
            problem = "" if lost <= METRIC_TOLERANCE else f"it loses {lost:.3f} of {metric.name}"
            checks.append(Check(f"{variant.id} answers as the float model", problem))
    return checks


def _check_gpu(report: api.RunReport) -> list[Check]:
    """Return whether the GPU computed in its own memory and was watched; print what copies took."""
    name, bound, memory = report.variant_used, report.bound, report.memory
    gpu_bytes = memory if isinstance(memory, api.NotMeasured) else memory.gpu_bytes
    sampled = [run.sampling for run in report.runs if not isinstance(run.sampling, api.NotMeasured)]
    clocks = {clock for each in sampled for one in each.samples for clock in one.clocks_hz}
    watched = any(clock.split()[0] == "gpu" for clock in clocks) and isinstance(gpu_bytes, int)
    problem = "" if watched else f"clocks are {sorted(clocks)}, its memory {gpu_bytes}"
    checks = [Check(f"the driver tells of {name}", problem)]
    if isinstance(bound, api.NotMeasured):
        return [*checks, Check(f"{name} runs when bound", bound.reason)]
    parts = {"copying in": bound.write_ns, "bound": bound.run_ns, "copying out": bound.read_ns}
    if isinstance(bound.graph_run_ns, api.NotMeasured):
        say(f"  {name}: no recorded run: {bound.graph_run_ns.reason}")
    else:
        parts["recorded"] = bound.graph_run_ns
    parts["as called"] = report.latencies_ns
    medians = ", ".join(f"{what} {median(ns) / 1e6:.3f} ms" for what, ns in parts.items())
    say(f"  {name}: {medians}")
    return [*checks, Check(f"{name} runs when bound", "")]


def say(text: str) -> None:
    """Print one line at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
