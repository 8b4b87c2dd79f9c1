"""Hold predicted placements against real ones: the entry of ``make placement``.

    python -m tests.placement.compare RUNTIME [--venv FOLDER] [--record FILE] [--only WORD]

Makes an environment with the provider if there is none, measures every model of ``models.py`` there
(``measure_provider.py``), predicts the same here, and compares node by node. Nodes are matched by
name; every node of a main graph has one (``models.py`` sees to it). What is counted:

* A node on both sides is equal if the provider is.
* A node that only one side has (its optimizer made it, or another version's removed it) counts as
  different.
* Nodes in the bodies of If, Loop and Scan are not predicted: they are counted and shown, not
  compared. So are the Transposes that onnxruntime puts around nodes for a provider with another
  layout, with pairs of Q and DQ, and those that it removes; the nodes between them keep their
  names before a suffix. Pairs that lost their names are matched with what is missed.
* A model that makes no session with the provider has no placement: it is listed with the error,
  and with what was predicted, and none of its nodes count.

Exit status 1 if less than 95 % of the provider's nodes are equal, or fewer than 25 models compare;
3 where the provider does not run on such a machine.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

os.environ["ORT_DISABLE_TELEMETRY"] = "1"

from edgepack.backends import cpu, openvino, qnn
from edgepack.backends.base import Backend, predict
from edgepack.errors import EdgepackError
from edgepack.model.graph import make_partitioned_graph
from edgepack.project.profile import Provider, Variant

from tests.placement.models import BODY, ON_HTP, ON_PROCESSORS, Dialect, collect
from tests.placement.operators import collect_operators
from tests.support.reports.proof_report import Check, report

Value = TypeVar("Value")
Ours = tuple[str, str, str]
"""Operator, provider and the reason, if any, that are predicted."""
Theirs = tuple[str, str]
"""Operator and provider that are real."""
LEAST_SHARE = 0.95
LEAST_MODELS = 25


@dataclass(frozen=True)
class Runtime:
    """An onnxruntime with a provider, installed in an environment of its own."""

    packages: tuple[str, ...]
    backend: Backend
    options: Mapping[str, str]
    dialects: Mapping[str, Dialect]
    fixed: bool = False
    """Whether real models get known dimensions."""
    is_nhwc: bool = False
    """Whether onnxruntime moves the channels to the end for it."""
    plugin: str = ""
    """The module of the provider where it is a library beside onnxruntime."""


RUNTIMES = {
    "openvino": Runtime(
        ("onnxruntime-openvino==1.24.1",),
        openvino.BACKEND,
        {"device_type": "CPU"},
        ON_PROCESSORS,
    ),
    # On x86-64 the wheel holds Qualcomm's simulator of the HTP.
    "qnn": Runtime(
        ("onnxruntime==1.31.1", "onnxruntime-qnn==2.7.0"),
        qnn.BACKEND,
        # A chip has to be named for float16: SM8550, with an HTP of version 73.
        {"backend_type": "htp", "soc_model": "43", "enable_htp_fp16_precision": "1"},
        ON_HTP,
        fixed=True,
        is_nhwc=True,
        plugin="onnxruntime_qnn",
    ),
}


@dataclass
class Comparison:
    """One model with one provider."""

    model: str
    provider: str
    compared: int = 0
    """Nodes of the main graph on either side."""
    equal: int = 0
    on_provider: int = 0
    """Nodes that are really there."""
    only_predicted: int = 0
    only_measured: int = 0
    in_bodies: int = 0
    transposes: int = 0
    """Nodes that onnxruntime added for the provider's layout."""
    differences: list[str] = field(default_factory=list)
    refusals: dict[str, str] = field(default_factory=dict)
    """By node: why the provider itself says that it refuses it, where it does."""
    error: str | None = None
    """Why there is no placement; nothing is counted then."""
    error_kind: str = ""
    predicted_refusals: dict[str, int] = field(default_factory=dict)
    """Reasons of the prediction, with how many nodes each."""
    outputs: dict[str, Any] | None = None


def main() -> int:
    """Compare, print, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runtime", choices=RUNTIMES)
    parser.add_argument("--venv", type=Path, help="the environment; else .venv-RUNTIME")
    parser.add_argument("--record", type=Path, help="write everything as JSON")
    parser.add_argument("--operators", action="store_true", help="models of one operator instead")
    parser.add_argument("--only", default="", help="models whose name holds this word")
    arguments = parser.parse_args()
    runtime = RUNTIMES[arguments.runtime]
    if runtime.plugin and (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        say(f"{runtime.backend.provider} has its simulator on Linux with x86-64 alone")
        return 3
    began = time.monotonic()
    logging.disable(logging.WARNING)  # the quantizer's advice
    data = os.environ.get("EDGEPACK_TEST_DATA")
    python = make_environment(arguments.venv or Path(f".venv-{arguments.runtime}"), runtime)
    with tempfile.TemporaryDirectory(prefix="placement-") as name:
        folder, root = Path(name), Path(data) if data else None
        models = dict(
            collect_operators(folder)
            if arguments.operators
            else collect(root, folder, arguments.only, runtime.dialects, fixed=runtime.fixed)
        )
        if not models:
            parser.error("there is no such model (EDGEPACK_TEST_DATA holds the real ones)")
        own = compare(runtime, models, measure(python, runtime, models))
        plain = replace(runtime, backend=cpu.BACKEND, options={}, plugin="", is_nhwc=False)
        # A plugin stands beside the onnxruntime that is here.
        cpus = [] if runtime.plugin else compare(plain, models, measure(python, plain, models))
    blame_the_runtime([*own, *cpus])
    show(runtime, own)
    show(plain, cpus)
    if arguments.record:
        results = [asdict(result) for result in (*own, *cpus)]
        record = {"runtime": runtime.packages, "results": results}
        arguments.record.write_text(json.dumps(record, indent=1) + "\n")
    equal, nodes, count = totals(own)
    is_good = count >= LEAST_MODELS and equal >= LEAST_SHARE * nodes
    share = f"{equal} of {nodes} nodes of {count} models as predicted"
    checks = [Check(f"the prediction for {arguments.runtime}", "" if is_good else share)]
    report(f"placement {arguments.runtime}", checks, time.monotonic() - began)
    return 0 if is_good else 1


def blame_the_runtime(results: list[Comparison]) -> None:
    """Mark the models that the other onnxruntime does not load with its CPU provider either."""
    broken = {
        result.model
        for result in results
        if result.provider == cpu.BACKEND.provider and result.error
    }
    for result in results:
        if result.error is not None and result.model in broken:
            result.error_kind = "no session with the CPU alone either"


def make_environment(folder: Path, runtime: Runtime) -> Path:
    """Return the Python of the environment with the runtime, made if it is not there."""
    python = folder / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        install = [str(python), "-m", "pip", "install", "--quiet", *runtime.packages]
        subprocess.run(install, check=True)
    return python


def measure(python: Path, runtime: Runtime, models: dict[str, Path]) -> dict[str, Any]:
    """Return what the other environment measures, by the models' files."""
    script = Path(__file__).with_name("measure_provider.py")
    command = [str(python), str(script), "--provider", runtime.backend.provider]
    command += [f"--plugin={runtime.plugin}"] if runtime.plugin else []
    command += [f"--option={key}={value}" for key, value in runtime.options.items()]
    done = subprocess.run(
        [*command, *map(str, models.values())], stdout=subprocess.PIPE, text=True, check=True
    )
    return dict(json.loads(done.stdout)["models"])


def compare(runtime: Runtime, models: dict[str, Path], real: dict[str, Any]) -> list[Comparison]:
    """Return one comparison for each model that edgepack can load."""
    found: list[Comparison] = []
    for name, file in models.items():
        try:
            predicted = predict_nodes(runtime, file)
        except EdgepackError as error:
            result = Comparison(name, runtime.backend.provider)
            result.error, result.error_kind = error.problem[-230:], "no session here"
            found.append(result)
            continue
        found.append(compare_nodes(name, runtime, predicted, real[str(file)]))
    return found


def predict_nodes(runtime: Runtime, file: Path) -> dict[str, tuple[str, str, str]]:
    """Return operator, provider and the reason, if any, of each node by its name."""
    graph = make_partitioned_graph(file)
    placement = predict(runtime.backend, graph, make_variant(runtime))
    return by_name(
        (
            placed.node.name,
            (
                placed.node.qualified_op,
                placed.provider,
                placed.refusal.reason if placed.refusal else "",
            ),
        )
        for placed in placement.nodes
    )


def make_variant(runtime: Runtime) -> Variant:
    """Return the variant that is measured."""
    return Variant(
        id=f"{runtime.backend.name}-fp32",
        backend=runtime.backend.name,
        recipe="fp32",
        providers=[
            Provider(name=runtime.backend.provider, options=dict(runtime.options)),
            Provider(name="CPUExecutionProvider"),
        ],
    )


def compare_nodes(
    model: str, runtime: Runtime, predicted: dict[str, tuple[str, str, str]], real: dict[str, Any]
) -> Comparison:
    """Compare the nodes of one model."""
    reasons = Counter(reason for _, _, reason in predicted.values() if reason)
    result = Comparison(
        model,
        runtime.backend.provider,
        predicted_refusals=dict(reasons),
        outputs=real["outputs"],
    )
    result.refusals = real.get("refusals", {})
    if real["error"]:
        foreseen = any(reason.startswith("no session") for reason in reasons)
        result.error = real["error"]
        result.error_kind = f"no session, {'as' if foreseen else 'not'} predicted"
        return result
    main_graph = [node for node in real["nodes"] if not node["name"].startswith(BODY)]
    result.in_bodies = len(real["nodes"]) - len(main_graph)
    there = by_name((node["name"], (node["op"], node["provider"])) for node in main_graph)
    pairs = {name: (predicted.get(name), there.get(name)) for name in {**there, **predicted}}
    if runtime.is_nhwc:
        pair_renamed(pairs)
    for name, (ours, theirs) in pairs.items():
        came = theirs is not None and theirs[0] in MADE_FOR_LAYOUT
        went = ours is not None and ours[0] == "Transpose"
        if runtime.is_nhwc and ((ours is None and came) or (theirs is None and went)):
            result.transposes += 1
        else:
            compare_node(result, name, ours, theirs)
    return result


def pair_renamed(pairs: dict[str, tuple[Ours | None, Theirs | None]]) -> None:
    """Pair the nodes that lost their name with those of the same operator that are missed.

    onnxruntime makes the pairs of Q and DQ anew around what it moves for the provider's layout.
    """
    for name, (ours, theirs) in list(pairs.items()):
        if ours is not None or theirs is None or not _UNNAMED.fullmatch(name):
            continue
        lost = (
            other
            for other, (mine, found) in pairs.items()
            if mine is not None and found is None and (mine[0], mine[1]) == theirs
        )
        if (other := next(lost, None)) is not None:
            pairs[other] = (pairs[other][0], theirs)
            del pairs[name]


# Source: names that onnxruntime 1.31.1 gives to nodes that it makes for NHWC providers (observed).
_TOKEN = re.compile(r"_token_\d+$")
_UNNAMED = re.compile(r"(DequantizeLinear|QuantizeLinear)(#\d+)?")
MADE_FOR_LAYOUT = ("Transpose", "QuantizeLinear", "DequantizeLinear")


def by_name(nodes: Iterable[tuple[str, Value]]) -> dict[str, Value]:
    """Return what is known of nodes by their name; what shares a name, or has none, is numbered."""
    found: dict[str, Value] = {}
    seen: Counter[str] = Counter()
    for given, value in nodes:
        name = _TOKEN.sub("", given)
        seen[name] += 1
        found[name if name and seen[name] == 1 else f"{name}#{seen[name]}"] = value
    return found


def compare_node(
    result: Comparison,
    name: str,
    predicted: tuple[str, str, str] | None,
    real: tuple[str, str] | None,
) -> None:
    """Add one node to the comparison."""
    result.compared += 1
    result.on_provider += real is not None and real[1] == result.provider
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
        said = f", which says: {said}" if (said := result.refusals.get(name)) else ""
        result.differences.append(
            f"{name} ({predicted[0]}): predicted {predicted[1]}{why}; is on {real[1]}{said}"
        )


def say(line: str) -> None:
    """Write a line."""
    sys.stdout.write(line + "\n")


def show(runtime: Runtime, results: list[Comparison]) -> None:
    """Write one line for each model, every difference, and the sums."""
    if not results:
        return
    say(f"\n{runtime.backend.provider} of {' with '.join(runtime.packages)}")
    say(f"  {'equal':>5} {'nodes':>5} {'there':>5} {'bodies':>6} {'outputs':>8}  model")
    for result in results:
        if result.error is None:
            show_model(result)
    for result in results:
        if result.error is not None:
            say(f"  {result.error_kind}: {result.model}\n        {result.error[-230:]}")
    show_sums(results)


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
    transposes = sum(result.transposes for result in results)
    kinds = Counter(result.error_kind for result in results if result.error is not None)
    say(
        f"  {results[0].provider}: {equal} of {nodes} nodes equal ({equal / max(nodes, 1):.2%})"
        f" in {count} models"
    )
    say(
        f"  of the nodes that both sides have: {equal} of {nodes - alone}"
        f" ({equal / max(nodes - alone, 1):.2%}); {alone} nodes are on one side only, because the"
        f" two versions of onnxruntime optimize differently; {bodies} are in bodies,"
        f" {transposes} came or went with the provider's layout"
    )
    say("  " + "; ".join(f"{number} models: {kind}" for kind, number in kinds.items()))


def closeness(result: Comparison) -> str:
    """Return the ratio of the outputs to the CPU provider's."""
    if result.outputs is None or not result.outputs["compared"]:
        return "-"
    return f"{result.outputs['sqnr_db']:.0f} dB"


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
