"""Hold predicted placements against real ones: the entry of ``make placement``.

    python -m tests.placement.compare [--venv .venv-openvino] [--record FILE] [--only WORD]

Makes an environment with onnxruntime-openvino if there is none, measures every model of
``models.py`` there (``measure_openvino.py``), predicts the same here, and compares node by node.
Nodes are matched by name; every node of a main graph has one (``models.py`` sees to it). What is
counted:

* A node on both sides is equal if the provider is.
* A node that only one side has (its optimizer made it, or another version's removed it) counts as
  different.
* Nodes in the bodies of If, Loop and Scan are not predicted: they are counted and shown, not
  compared.
* A model that makes no session with the provider has no placement: it is listed with the error,
  and with what was predicted, and none of its nodes count.

Exit status 1 if less than 95 % of OpenVINO's nodes are equal, or fewer than 25 models compare.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

os.environ["ORT_DISABLE_TELEMETRY"] = "1"

from edgepack.backends import cpu, openvino
from edgepack.backends.base import Backend, predict
from edgepack.errors import EdgepackError
from edgepack.model.graph import make_partitioned_graph
from edgepack.project.profile import Provider, Variant

from tests.placement.models import BODY, collect
from tests.support.reports.proof_report import Check, report

RUNTIME = "onnxruntime-openvino==1.24.1"
LEAST_SHARE = 0.95
LEAST_MODELS = 25
BACKENDS: dict[str, Backend] = {"OpenVINO": openvino.BACKEND, "CPU": cpu.BACKEND}


@dataclass
class Comparison:
    """One model with one provider."""

    model: str
    backend: str
    compared: int = 0
    """Nodes of the main graph on either side."""
    equal: int = 0
    on_provider: int = 0
    """Nodes that are really there."""
    only_predicted: int = 0
    only_measured: int = 0
    in_bodies: int = 0
    differences: list[str] = field(default_factory=list)
    error: str | None = None
    """Why there is no placement; nothing is counted then."""
    error_kind: str = ""
    predicted_refusals: dict[str, int] = field(default_factory=dict)
    """Reasons of the prediction, with how many nodes each."""
    outputs: dict[str, Any] | None = None


def main() -> int:
    """Compare, print, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--venv", type=Path, default=Path(".venv-openvino"))
    parser.add_argument("--record", type=Path, help="write everything as JSON")
    parser.add_argument("--only", default="", help="models whose name holds this word")
    arguments = parser.parse_args()
    began = time.monotonic()
    logging.disable(logging.WARNING)  # the quantizer's advice
    data = os.environ.get("EDGEPACK_TEST_DATA")
    python = environment(arguments.venv)
    with tempfile.TemporaryDirectory(prefix="placement-") as folder:
        models = dict(collect(Path(data) if data else None, Path(folder), arguments.only))
        if not models:
            parser.error("there is no such model (EDGEPACK_TEST_DATA holds the real ones)")
        results = [
            result
            for backend in BACKENDS
            for result in compare(backend, models, measured(python, backend, models))
        ]
    blame_the_runtime(results)
    show(results)
    if arguments.record:
        record = {"runtime": RUNTIME, "results": [asdict(result) for result in results]}
        arguments.record.write_text(json.dumps(record, indent=1) + "\n")
    equal, nodes, count = totals([result for result in results if result.backend == "OpenVINO"])
    is_good = count >= LEAST_MODELS and equal >= LEAST_SHARE * nodes
    share = f"{equal} of {nodes} nodes of {count} models as predicted"
    checks = [Check("the prediction for OpenVINO", "" if is_good else share)]
    report("placement", checks, time.monotonic() - began)
    return 0 if is_good else 1


def blame_the_runtime(results: list[Comparison]) -> None:
    """Mark the models that the other onnxruntime does not load with its CPU provider either."""
    broken = {result.model for result in results if result.backend == "CPU" and result.error}
    for result in results:
        if result.error is not None and result.model in broken:
            result.error_kind = "no session with the CPU alone either"


def environment(folder: Path) -> Path:
    """Return the Python of the environment with the runtime, made if it is not there."""
    python = folder / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", RUNTIME], check=True)
    return python


def measured(python: Path, backend: str, models: dict[str, Path]) -> dict[str, Any]:
    """Return what the other environment measures, by the models' files."""
    script = Path(__file__).with_name("measure_openvino.py")
    command = [str(python), str(script), "--provider", BACKENDS[backend].provider]
    done = subprocess.run(
        [*command, *map(str, models.values())], capture_output=True, text=True, check=True
    )
    return dict(json.loads(done.stdout)["models"])


def compare(backend: str, models: dict[str, Path], real: dict[str, Any]) -> list[Comparison]:
    """Return one comparison for each model that edgepack can load."""
    found: list[Comparison] = []
    for name, file in models.items():
        try:
            predicted = prediction(BACKENDS[backend], file)
        except EdgepackError as error:
            problem = error.problem[-230:]
            found.append(Comparison(name, backend, error=problem, error_kind="no session here"))
            continue
        found.append(compare_nodes(name, backend, predicted, real[str(file)]))
    return found


def prediction(backend: Backend, file: Path) -> dict[str, tuple[str, str, str]]:
    """Return operator, provider and the reason, if any, of each node by its name."""
    graph = make_partitioned_graph(file)
    placement = predict(backend, graph, variant_of(backend))
    return {
        placed.node.name: (
            placed.node.qualified_op,
            placed.provider,
            placed.refusal.reason if placed.refusal else "",
        )
        for placed in placement.nodes
    }


def variant_of(backend: Backend, device: str = "CPU") -> Variant:
    """Return the variant that is measured."""
    options = {"device_type": device} if backend.name == "openvino" else {}
    return Variant(
        id=f"{backend.name}-fp32",
        backend=backend.name,
        recipe="fp32",
        providers=[
            Provider(name=backend.provider, options=options),
            Provider(name="CPUExecutionProvider"),
        ],
    )


def compare_nodes(
    model: str, backend: str, predicted: dict[str, tuple[str, str, str]], real: dict[str, Any]
) -> Comparison:
    """Compare the nodes of one model."""
    reasons = Counter(reason for _, _, reason in predicted.values() if reason)
    result = Comparison(model, backend, predicted_refusals=dict(reasons), outputs=real["outputs"])
    if real["error"]:
        foreseen = any(reason.startswith("no session") for reason in reasons)
        result.error = real["error"]
        result.error_kind = f"no session, {'as' if foreseen else 'not'} predicted"
        return result
    main_graph = [node for node in real["nodes"] if not node["name"].startswith(BODY)]
    result.in_bodies = len(real["nodes"]) - len(main_graph)
    there = by_name(main_graph)
    for name in [*there, *(name for name in predicted if name not in there)]:
        compare_node(result, name, predicted.get(name), there.get(name))
    return result


def by_name(nodes: list[dict[str, str]]) -> dict[str, tuple[str, str]]:
    """Return operator and provider by name; what shares a name, or has none, gets a number."""
    found: dict[str, tuple[str, str]] = {}
    for node in nodes:
        name = node["name"]
        while not name or name in found:
            name = f"{node['name']}#{len(found)}"
        found[name] = (node["op"], node["provider"])
    return found


def compare_node(
    result: Comparison,
    name: str,
    predicted: tuple[str, str, str] | None,
    real: tuple[str, str] | None,
) -> None:
    """Add one node to the comparison."""
    result.compared += 1
    result.on_provider += real is not None and real[1] == BACKENDS[result.backend].provider
    if predicted is None:
        result.only_measured += 1
        where = f"{real[0]}, on {real[1]}" if real else ""
        result.differences.append(f"{name} ({where}): only the other onnxruntime has it")
    elif real is None:
        result.only_predicted += 1
        result.differences.append(f"{name} ({predicted[0]}): only onnxruntime here has it")
    elif predicted[1] == real[1]:
        result.equal += 1
    else:
        why = f" because {predicted[2]}" if predicted[2] else ""
        result.differences.append(
            f"{name} ({predicted[0]}): predicted {predicted[1]}{why}; is on {real[1]}"
        )


def say(line: str) -> None:
    """Write a line."""
    sys.stdout.write(line + "\n")


def show(results: list[Comparison]) -> None:
    """Write one line for each model, every difference, and the sums."""
    for backend in BACKENDS:
        say(f"\n{backend} of {RUNTIME}")
        say(f"  {'equal':>5} {'nodes':>5} {'there':>5} {'bodies':>6} {'outputs':>8}  model")
        own = [result for result in results if result.backend == backend]
        for result in own:
            if result.error is None:
                show_model(result)
        for result in own:
            if result.error is not None:
                say(f"  {result.error_kind}: {result.model}\n        {result.error[-230:]}")
        show_sums(own)


def show_model(result: Comparison) -> None:
    """Write the line of one model, and what is different."""
    say(
        f"  {result.equal:5} {result.compared:5} {result.on_provider:5} {result.in_bodies:6}"
        f" {closeness(result):>8}  {result.model}"
    )
    for difference in result.differences:
        say(f"        differs: {difference}")
    if result.outputs is not None and not result.outputs["compared"]:
        say(f"        outputs not compared: {result.outputs['why'][-150:]}")


def show_sums(results: list[Comparison]) -> None:
    """Write what the models of one provider come to."""
    equal, nodes, count = totals(results)
    alone = sum(result.only_predicted + result.only_measured for result in results)
    bodies = sum(result.in_bodies for result in results)
    kinds = Counter(result.error_kind for result in results if result.error is not None)
    say(
        f"  {results[0].backend}: {equal} of {nodes} nodes equal ({equal / max(nodes, 1):.2%})"
        f" in {count} models"
    )
    say(
        f"  of the nodes that both sides have: {equal} of {nodes - alone}"
        f" ({equal / max(nodes - alone, 1):.2%}); {alone} nodes are on one side only, because the"
        f" two versions of onnxruntime optimize differently; {bodies} are in bodies"
    )
    say("  " + "; ".join(f"{number} models: {kind}" for kind, number in kinds.items()))


def closeness(result: Comparison) -> str:
    """Return the relative difference of the outputs to the CPU provider's."""
    if result.outputs is None or not result.outputs["compared"]:
        return "-"
    return f"{result.outputs['difference']:.1e}"


def totals(results: list[Comparison]) -> tuple[int, int, int]:
    """Return equal nodes, all nodes, and models with at least one node."""
    counted = [result for result in results if result.compared]
    return (
        sum(result.equal for result in counted),
        sum(result.compared for result in counted),
        len(counted),
    )


if __name__ == "__main__":
    sys.exit(main())
