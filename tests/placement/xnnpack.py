"""Hold predicted placements against Debian's onnxruntime, which has XNNPACK.

    python -m tests.placement.xnnpack [--root .debian] [--only WORD] [--record FILE]

Makes a root file system of Debian 13 with ``python3-onnxruntime`` (1.21.0) and measures every model
of ``models.py`` in it. That onnxruntime does not tell where nodes were before it fused them, so
operators are counted, of those that XNNPACK knows: as many of each kind have to be on XNNPACK, and
as many on the CPU, as predicted. A Relu or Clip that joins another operator is not counted; neither
are the pairs of Q and DQ around an operator, which become one with it.

Exit status 1 if less than 95 % of the operators are where they were predicted, or fewer than 25
models compare; 3 without root, mmdebstrap or a mirror.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

os.environ["ORT_DISABLE_TELEMETRY"] = "1"

from edgepack.backends import xnnpack
from edgepack.backends.base import predict
from edgepack.base.clock import format_now
from edgepack.base.processes import ProgramResult, run_program
from edgepack.base.resources import find_example_dir
from edgepack.builder.build import build
from edgepack.errors import EdgepackError, ToolError
from edgepack.model.graph import make_partitioned_graph
from edgepack.project.profile import Provider, Variant

from tests.placement.models import ON_XNNPACK, collect
from tests.support.reports.proof_report import Check, report
from tests.support.servers.debian_roots import debian_root

RELEASE, PACKAGES = "trixie", ("python3-onnxruntime", "python3-numpy")
OPERATORS = (
    *("Conv", "ConvTranspose", "MaxPool", "AveragePool", "Softmax", "Resize", "Gemm", "MatMul"),
)
TARGET = "raspberry-pi-xnnpack"
FIRST = "xnnpack-int8-static"
"""The variant that its loader takes where XNNPACK is."""
# What a bundle's loader chooses, and what each variant does.
_LOAD = """
import json, platform, sys
sys.path.insert(0, sys.argv[1])
import edgepack_loader as loader
import onnxruntime
bundle = loader.Bundle(loader.Path(sys.argv[1]))
seen = []
for entry in bundle.list_variants(None):
    model = loader.load(sys.argv[1], entry["id"], cache="/tmp")
    nodes = [node["provider"] for node in loader.profile_nodes(bundle, entry, 1)]
    goldens = [model.measure_golden_db(index) for index in range(bundle.goldens)]
    counts = {name: nodes.count(name) for name in sorted(set(nodes))}
    seen.append({"id": entry["id"], "golden_sqnr_db": min(goldens), "nodes": counts})
chosen = loader.load(sys.argv[1], cache="/tmp")
runtime = {"python": platform.python_version(), "onnxruntime": onnxruntime.__version__}
print("\\n" + json.dumps({"chosen": chosen.variant, "variants": seen, "runtime": runtime}))
"""
LEAST_SHARE = 0.95
LEAST_MODELS = 25
TIMEOUT_S = 1800.0
# Arguments: the root, the folder of models, then the command. In a mount namespace of its own.
_ENTER = (
    'mount --bind "$2" "$1/mnt" && mount -t proc proc "$1/proc" && mount -t sysfs sys "$1/sys"'
    ' && root="$1" && shift 2 && exec chroot "$root" "$@"'
)

Counts = Counter[tuple[str, str]]
"""By operator and provider."""


@dataclass
class Comparison:
    """One model."""

    model: str
    equal: int = 0
    compared: int = 0
    on_provider: int = 0
    differences: list[str] = field(default_factory=list)
    error: str = ""
    sqnr_db: float | None = None
    """Against the CPU provider."""


def main() -> int:
    """Compare, print, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=Path, default=Path(".debian"), help="where roots are kept")
    parser.add_argument("--only", default="", help="models whose name holds this word")
    parser.add_argument("--record", type=Path, help="write everything as JSON")
    arguments = parser.parse_args()
    began = time.monotonic()
    logging.disable(logging.WARNING)  # the quantizer's advice
    data = os.environ.get("EDGEPACK_TEST_DATA")
    try:
        root = debian_root(arguments.root.resolve(), RELEASE, PACKAGES)
    except ToolError as error:
        say(f"not run: {error}")
        return 3
    with tempfile.TemporaryDirectory(prefix="placement-") as name:
        folder = Path(name)
        models = dict(
            collect(Path(data) if data else None, folder, arguments.only, ON_XNNPACK, fixed=True)
        )
        real = measure(root, folder, models)
        results = [
            compare(name, file, real[f"/mnt/{file.relative_to(folder)}"])
            for name, file in models.items()
        ]
        loaded = load_bundle(root, folder)
    show(results)
    say(f"  {loaded['chosen']} of {TARGET} is chosen by its loader; {json.dumps(loaded)}")
    if arguments.record:
        about = {"target": TARGET, "created": format_now(), "device": f"Debian {RELEASE} on x86-64"}
        record = {"models": [asdict(each) for each in results], "loaded": {**loaded, **about}}
        arguments.record.write_text(json.dumps(record, indent=1) + "\n")
    compared = [result for result in results if result.compared]
    equal, nodes = (sum(getattr(r, key) for r in compared) for key in ("equal", "compared"))
    is_good = len(compared) >= LEAST_MODELS and equal >= LEAST_SHARE * nodes
    share = f"{equal} of {nodes} operators of {len(compared)} models as predicted"
    checks = [
        Check("the prediction for XNNPACK", "" if is_good else share),
        *check_loaded(loaded),
    ]
    report("placement xnnpack", checks, time.monotonic() - began)
    return 1 if any(check.problem for check in checks) else 0


def load_bundle(root: Path, folder: Path) -> dict[str, Any]:
    """Return what the loader of the example's bundle does in a root file system."""
    built = build(
        project=find_example_dir() / "edgepack.yaml", targets=[TARGET], out=folder / "dist"
    )
    (folder / "load.py").write_text(_LOAD, encoding="utf-8")
    bundle = f"/mnt/dist/{built.bundles[0].bundle.path.name}"
    done = enter(root, folder, "/usr/bin/python3", "/mnt/load.py", bundle)
    return dict(json.loads(done.text.splitlines()[-1]))


def check_loaded(loaded: Mapping[str, Any]) -> list[Check]:
    """Return whether the loader took XNNPACK, and whether every node that may be there is."""
    chosen = loaded["chosen"]
    checks = [Check("the loader takes XNNPACK", "" if chosen == FIRST else f"it takes {chosen}")]
    for seen in loaded["variants"]:
        wanted = seen["id"].startswith("xnnpack-")
        is_there = bool(seen["nodes"].get(xnnpack.BACKEND.provider))
        problem = "" if is_there == wanted else f"its nodes are on {seen['nodes']}"
        checks.append(Check(f"the nodes of {seen['id']}", problem))
    return checks


def enter(root: Path, folder: Path, *argv: str) -> ProgramResult:
    """Run a program in a root file system that has a folder at /mnt.

    Raises:
        ToolError: It failed.
    """
    entering = ["unshare", "--mount", "sh", "-c", _ENTER, "sh", str(root), str(folder)]
    done = run_program([*entering, *argv], timeout_s=TIMEOUT_S)
    if done.exit_code:
        raise ToolError(f"{argv[1]} failed in the root{done.last_lines}", hint="look there")
    return done


def measure(root: Path, folder: Path, models: Mapping[str, Path]) -> dict[str, Any]:
    """Return what the onnxruntime in a root file system does with models in a folder."""
    shutil.copyfile(Path(__file__).with_name("measure_provider.py"), folder / "measure.py")
    argv = ["/usr/bin/python3", "/mnt/measure.py", "--provider", xnnpack.BACKEND.provider]
    files = [f"/mnt/{file.relative_to(folder)}" for file in models.values()]
    return dict(json.loads(enter(root, folder, *argv, *files).text)["models"])


def compare(name: str, file: Path, real: Mapping[str, Any]) -> Comparison:
    """Compare one model's operators."""
    result = Comparison(name, error=real["error"] or "")
    outputs = real["outputs"] or {}
    result.sqnr_db = outputs.get("sqnr_db")
    if result.error:
        return result
    try:
        predicted = count_predicted(file)
    except EdgepackError as error:
        result.error = f"no session here: {error.problem}"
        return result
    there = Counter((plain(node["op"]), node["provider"]) for node in real["nodes"])
    for key in sorted({*predicted, *there}):
        if key[0] not in OPERATORS:
            continue
        result.compared += max(predicted[key], there[key])
        result.equal += min(predicted[key], there[key])
        result.on_provider += there[key] if key[1] == xnnpack.BACKEND.provider else 0
        if predicted[key] != there[key]:
            op, provider = key
            result.differences.append(
                f"{op} on {provider}: {predicted[key]} predicted, {there[key]} there"
            )
    return result


def count_predicted(file: Path) -> Counts:
    """Return how many of each operator are predicted on each provider."""
    variant = Variant(
        id="xnnpack-fp32",
        backend="xnnpack",
        recipe="fp32",
        providers=[
            Provider(name=xnnpack.BACKEND.provider),
            Provider(name="CPUExecutionProvider"),
        ],
    )
    placement = predict(xnnpack.BACKEND, make_partitioned_graph(file), variant)
    return Counter((plain(placed.node.op), placed.provider) for placed in placement.nodes)


def plain(op: str) -> str:
    """Return an operator's name without what onnxruntime fused it with."""
    for word in ("QLinear", "Fused", "Nhwc", "Q"):
        op = op.removeprefix(word)
    return op


def say(line: str) -> None:
    """Write a line."""
    sys.stdout.write(line + "\n")


def show(results: list[Comparison]) -> None:
    """Write one line for each model, every difference, and the sums."""
    say(f"\n{xnnpack.BACKEND.provider} of {' '.join(PACKAGES)} in Debian {RELEASE}")
    say(f"  {'equal':>5} {'ops':>5} {'there':>5} {'outputs':>8}  model")
    for result in results:
        if result.error:
            continue
        near = "-" if result.sqnr_db is None else f"{result.sqnr_db:.0f} dB"
        say(
            f"  {result.equal:5} {result.compared:5} {result.on_provider:5} {near:>8}"
            f"  {result.model}"
        )
        for difference in result.differences:
            say(f"        differs: {difference}")
    for result in results:
        if result.error:
            say(f"  no session: {result.model}\n        {result.error[-230:]}")
    compared = [result for result in results if result.compared]
    equal, nodes = (sum(getattr(r, key) for r in compared) for key in ("equal", "compared"))
    there = sum(result.on_provider for result in compared)
    say(
        f"  {equal} of {nodes} operators as predicted ({equal / max(nodes, 1):.2%}) in"
        f" {len(compared)} models; {there} on XNNPACK"
    )


if __name__ == "__main__":
    sys.exit(main())
