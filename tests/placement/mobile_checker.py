"""Compares our NNAPI and CoreML predictions with onnxruntime's mobile usability checker.

::

    python -m tests.placement.mobile_checker MODEL_OR_FOLDER ...

The checker (``onnxruntime.tools.mobile_helpers.usability_checker``) compares operator names with
the lists in the wheel, and asks for fixed shapes; it knows nothing of dtypes, attributes or Q/DQ
groups. Every node on which we differ must be explained: by a refusal of ours about what the checker
does not look at, or by a known mistake of the checker. Exit code 1 if one is not.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ["ORT_DISABLE_TELEMETRY"] = "1"

from edgepack.backends import coreml, nnapi
from edgepack.backends.base import Backend, Refusal, find_partitions
from edgepack.backends.wheel_tables import WheelOpTable, load_op_table
from edgepack.errors import ModelError
from edgepack.model.graph import Graph, Node, read_graph
from edgepack.model.reading import read_model
from edgepack.model.running import make_session
from edgepack.project.profile import Dialect, Provider, Variant

_NAME = re.compile(r"'[^']*'")
UINT8 = Dialect(activations="uint8", weights="int8", symmetric=False, per_channel=False)
PROVIDERS = {
    "NNAPI": (nnapi.BACKEND, {}, "nnapi_supported_ops"),
    "CoreML NeuralNetwork": (coreml.BACKEND, {}, "coreml_supported_neuralnetwork_ops"),
    "CoreML MLProgram": (
        coreml.BACKEND,
        {"ModelFormat": "MLProgram"},
        "coreml_supported_mlprogram_ops",
    ),
}


@dataclass(frozen=True)
class Difference:
    """A node that one takes and the other does not."""

    node: Node
    ours: bool
    """Whether we say that the provider takes it."""
    why: str
    """The reason of our refusal, or what is wrong with the checker; empty if unexplained."""


@dataclass(frozen=True)
class Comparison:
    """One model on one provider."""

    model: str
    provider: str
    nodes: int
    our_nodes: int
    checker_nodes: int
    our_partitions: int
    checker_partitions: int
    differences: tuple[Difference, ...] = field(default=())

    @property
    def unexplained(self) -> list[Difference]:
        """What must not be: differences that no rule of ours and no mistake of theirs explains."""
        return [difference for difference in self.differences if not difference.why]

    @property
    def is_consistent(self) -> bool:
        """Whether the same nodes make the same number of partitions."""
        return bool(self.differences) or self.our_partitions == self.checker_partitions


def compare(model: Path) -> list[Comparison]:
    """Return the comparisons of one model, on the graph after onnxruntime's basic optimizations.

    Raises:
        ModelError: onnxruntime does not load the model.
    """
    import onnx

    with tempfile.TemporaryDirectory() as folder:
        optimized = Path(folder) / "basic.onnx"
        make_session(model, save_basic=optimized)
        graph = read_graph(read_model(optimized))
        try:
            # As the checker's own ModelProtoWithShapeInfo does it, whose __del__ fails after that.
            shaped = onnx.shape_inference.infer_shapes(onnx.load(str(optimized)), strict_mode=True)
        except onnx.shape_inference.InferenceError as error:
            raise ModelError(
                f"the checker stops: {error}", hint="none", where=model.name
            ) from error
        if any(not node.attribute for node in shaped.graph.node if node.op_type == "Transpose"):
            raise ModelError("the checker crashes on a Transpose without perm", hint="none")
        return [_compare(model.name, name, graph, shaped) for name in PROVIDERS]


def _variant(backend: Backend, options: dict[str, str], graph: Graph) -> Variant:
    quantized = any(node.op == "DequantizeLinear" for node in graph.nodes)
    recipe = "int8-static" if quantized and backend is nnapi.BACKEND else "fp32"
    return Variant(
        id=f"{backend.name}-{recipe}",
        backend=backend.name,
        recipe=recipe,
        dialect=UINT8 if recipe == "int8-static" else None,
        providers=[
            Provider(name=backend.provider, options=options),
            Provider(name="CPUExecutionProvider"),
        ],
    )


def _compare(model: str, provider: str, graph: Graph, shaped: Any) -> Comparison:
    from onnxruntime.tools.mobile_helpers import usability_checker

    backend, options, list_name = PROVIDERS[provider]
    # CoreML takes dynamic shapes, and the checker gives up where it knows no shape at all: then it
    # is asked about the operators alone.
    fixed = backend is nnapi.BACKEND and (
        len(shaped.graph.node) < 2 or bool(shaped.graph.value_info)
    )
    if backend is nnapi.BACKEND:
        info = usability_checker.check_nnapi_partitions(shaped, require_fixed_input_sizes=fixed)
    else:
        info = usability_checker.check_coreml_partitions(
            shaped, require_fixed_input_sizes=fixed, config_filename=f"{list_name}.md"
        )
    groups = [[_key(proto.op_type, proto.output) for proto in g] for g in info.supported_groups]
    by_key = {_key(node.op, node.outputs): node for node in graph.nodes}
    theirs = {by_key[key].index for group in groups for key in group if key in by_key}
    refused = backend.refusals(graph, _variant(backend, options, graph))
    table = load_op_table(list_name)
    differences = [
        Difference(node, node.index not in refused, _why(node, graph, refused, table))
        for node in graph.nodes
        if (node.index in theirs) == (node.index in refused)
    ]
    taken = [node for node in graph.nodes if node.index not in refused]
    return Comparison(
        model=model,
        provider=provider,
        nodes=len(graph.nodes),
        our_nodes=len(taken),
        checker_nodes=len(theirs),
        our_partitions=len(find_partitions(graph, taken)),
        # The checker counts nodes inside If, Loop and Scan too, which we do not see.
        checker_partitions=sum(any(key in by_key for key in group) for group in groups),
        differences=tuple(differences),
    )


def _key(op: str, outputs: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    return op, tuple(outputs)


def _why(node: Node, graph: Graph, refused: dict[int, Refusal], table: WheelOpTable) -> str:
    """Return why we differ, if it is for something that the checker does not look at."""
    op = node.qualified_op
    if node.index in refused:
        reason = refused[node.index].reason
        # A list that has the operator cannot be the reason to refuse it, but a Q or DQ node goes
        # with the operator of its group.
        same = reason.endswith(f"has no {op}")
        return "" if op in table and same else reason
    if op in table.respelled:
        return "the list spells it so that the checker does not find it"
    if "" in node.inputs:
        return "the checker takes an input that is left out for one of unknown shape"
    return ""


def find_models(paths: Sequence[Path]) -> list[Path]:
    """Return the models among files and in folders."""
    found = [
        p for path in paths for p in (sorted(path.rglob("*.onnx")) if path.is_dir() else [path])
    ]
    return list(dict.fromkeys(found))


def report(comparison: Comparison) -> list[str]:
    """Return lines that say how far both agree, and each kind of difference once."""
    c = comparison
    head = f"{c.model:45} {c.provider:22} {c.nodes:4} nodes:"
    ours = f"ours {c.our_nodes:4} in {c.our_partitions:3}"
    lines = [f"{head} {ours}, checker {c.checker_nodes:4} in {c.checker_partitions:3}"]
    kinds = Counter(
        (d.node.qualified_op, "+" if d.ours else "-", _NAME.sub("'...'", d.why) or "UNEXPLAINED")
        for d in c.differences
    )
    lines += [f"    {n} x {sign}{op}: {why}" for (op, sign, why), n in kinds.most_common()]
    return lines if c.is_consistent else [*lines, "    PARTITIONS DIFFER FOR THE SAME NODES"]


def main(arguments: Sequence[str]) -> int:
    """Compare all models and print what was found; return the exit code."""
    bad = compared = 0
    for model in find_models([Path(argument) for argument in arguments]):
        try:
            comparisons = compare(model)
        except ModelError as error:
            sys.stdout.write(f"{model.name}: skipped: {error.problem[:150]}\n")
            continue
        compared += 1
        for comparison in comparisons:
            bad += len(comparison.unexplained) + (not comparison.is_consistent)
            sys.stdout.write("\n".join(report(comparison)) + "\n")
    sys.stdout.write(f"{compared} models compared; {bad} differences are not explained\n")
    return 1 if bad else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
