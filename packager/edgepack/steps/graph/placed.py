"""Where the nodes of a variant's model will run, predicted from the backend's rules."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from edgepack.backends.base import CPU, PredictedPlacement, predict
from edgepack.backends.registry import find_backend
from edgepack.errors import BugError
from edgepack.model.files import MODEL
from edgepack.model.graph import make_partitioned_graph
from edgepack.project.profile import Variant
from edgepack.steps.base import Inputs, Notes

PLACEMENT = "placement.json"


@dataclass(frozen=True)
class Placed:
    """The predicted placement of every node. Input: ``model``."""

    name: ClassVar[str] = "placed"
    libraries: ClassVar[tuple[str, ...]] = ("onnx", "onnxruntime")
    cacheable = True
    variant: Variant

    def check(self, inputs: Inputs) -> None:
        """Accept any model that a recipe has proven."""

    def run(self, inputs: Inputs, out: Path) -> Notes:
        """Write ``placement.json``."""
        placement = predict_placement(inputs["model"] / MODEL, self.variant)
        (out / PLACEMENT).write_text(json.dumps(_make_json(placement)), encoding="utf-8")
        provider = find_backend(self.variant).provider
        return Notes(
            f"{placement.share:.0%} of {len(placement.nodes)} nodes predicted on {provider},"
            f" in {placement.partitions} partitions"
        )

    def verify(self, inputs: Inputs, out: Path) -> None:
        """Prove that every node has a place among the variant's, and a reason if not the first.

        Raises:
            StepError: A node has no such place or no reason.
        """
        del inputs
        # onnxruntime falls back to the CPU even where a variant does not list it.
        names = [*(provider.name for provider in self.variant.providers), CPU]
        for node in read_placement(out)["nodes"]:
            if node["provider"] not in names or bool(node["reason"]) == (
                node["provider"] == names[0]
            ):
                raise BugError(
                    f"node {node['name']!r} is placed on {node['provider']}"
                    f" for the reason {node['reason']!r}"
                )


def predict_placement(model: Path, variant: Variant) -> PredictedPlacement:
    """Return where the nodes of a model file are predicted to run in a variant.

    Raises:
        ModelError: onnxruntime refuses the model.
    """
    return predict(find_backend(variant), make_partitioned_graph(model), variant)


def read_placement(folder: Path) -> Any:  # noqa: ANN401  (plain JSON, written above)
    """Return what :class:`Placed` wrote: ``share``, ``partitions`` and ``nodes``."""
    return json.loads((folder / PLACEMENT).read_text(encoding="utf-8"))


def _make_json(placement: PredictedPlacement) -> dict[str, Any]:
    return {
        "share": placement.share,
        "partitions": placement.partitions,
        "nodes": [
            {
                "name": placed.node.name,
                "op": placed.node.qualified_op,
                "provider": placed.provider,
                "reason": placed.refusal.reason if placed.refusal else "",
                "remedy": placed.refusal.remedy if placed.refusal else "",
            }
            for placed in placement.nodes
        ],
    }
