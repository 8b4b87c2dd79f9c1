"""Models as a provider's compiler makes them on this machine, one for each kind of hardware."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from edgepack.backends.registry import find_backend
from edgepack.errors import StepError
from edgepack.model.files import find_model_file
from edgepack.model.reading import read_model
from edgepack.model.running import Arrays, run_session
from edgepack.model.simulating import Simulator, compile_model, open_simulated
from edgepack.project.profile import Variant
from edgepack.steps.base import Inputs, Notes
from edgepack.steps.proofs.goldens import read_goldens, read_tensor

COMPILED = "compiled.json"
CONTEXT, PLACE = "EPContext", "ep_cache_context"
"""The operator of a compiled piece, and its attribute that names the file beside the model.

Source: onnxruntime.ai/docs/execution-providers/EP-Context-Design.html, and what onnxruntime-qnn
2.7.0 wrote."""
LIMIT_S = 300.0
"""The most that the compiler, or a run of the golden inputs, takes, in seconds."""
# v2.51.0.260929181845
_SDK = re.compile(r"v?(\d+\.\d+\.\d+)")


@dataclass(frozen=True)
class Compiled:
    """A variant's model, compiled for each kind of hardware that the variant names.

    A compiled model has one EPContext node for each piece of the graph that the provider takes, and
    the pieces in a file beside it. Each is run in the simulator as that hardware, and has to give
    the very outputs that the model gives there.

    Inputs: ``model``, the file that is shipped; ``goldens``.
    """

    name: ClassVar[str] = "compiled"
    libraries: ClassVar[tuple[str, ...]] = ("numpy", "onnx", "onnxruntime")
    cacheable = True
    variant: Variant
    compiler: Simulator

    def check(self, inputs: Inputs) -> None:
        """Accept any model that its goldens were made of."""

    def run(self, inputs: Inputs, out: Path) -> Notes:
        """Write ``compiled.json`` and a model with its file for each kind of hardware.

        Raises:
            StepError: The compiler refuses the model, crashes or takes too long.
        """
        found = []
        for hardware in self.variant.compiled_for:
            file = out / f"{hardware}.onnx"
            compile_model(
                self.compiler,
                find_model_file(inputs["model"]),
                self._find_options(hardware),
                self.variant.session.config,
                file,
                limit_s=LIMIT_S,
            )
            about = {"hardware": hardware, "compiler": str(self.compiler)}
            found.append({**about, **_read_compiled(file)})
        (out / COMPILED).write_text(json.dumps(found), encoding="utf-8")
        pieces = max(each["pieces"] for each in found)
        return Notes(
            f"compiled for {', '.join(self.variant.compiled_for)} by {self.compiler}, SDK"
            f" {found[0]['sdk']}, in {pieces} piece{'' if pieces == 1 else 's'}"
        )

    def verify(self, inputs: Inputs, out: Path) -> None:
        """Prove that each gives what the model gives on the same hardware.

        Raises:
            StepError: It does not, or the simulator fails.
        """
        model = find_model_file(inputs["model"])
        for hardware in self.variant.compiled_for:
            expected = self._run_goldens(model, hardware, inputs["goldens"])
            found = self._run_goldens(out / f"{hardware}.onnx", hardware, inputs["goldens"])
            for ours, theirs in zip(expected, found, strict=True):
                if not all(np.array_equal(ours[name], theirs[name]) for name in ours):
                    raise StepError(
                        f"the model that {self.compiler} compiled for {hardware} does not give"
                        " what the model itself gives there",
                        hint=f"leave {hardware!r} out of compiled_for",
                    )

    def _find_options(self, hardware: str) -> dict[str, str]:
        option = find_backend(self.variant).hardware_option
        return {**self.variant.providers[0].options, option: hardware}

    def _run_goldens(self, model: Path, hardware: str, folder: Path) -> list[Arrays]:
        with open_simulated(
            self.compiler,
            model,
            self._find_options(hardware),
            self.variant.session.config,
            limit_s=LIMIT_S,
        ) as session:
            return [
                run_session(
                    session, {each["name"]: read_tensor(folder, each) for each in golden["inputs"]}
                )
                for golden in read_goldens(folder)["goldens"]
            ]


def _read_compiled(file: Path) -> dict[str, Any]:
    """Return of a compiled model the file beside it, how many pieces it has, and the SDK."""
    nodes = [node for node in read_model(file).graph.node if node.op_type == CONTEXT]
    values = {each.name: each.s.decode() for node in nodes for each in node.attribute if each.s}
    sdk = _SDK.match(values["ep_sdk_version"])
    return {
        "file": file.name,
        "beside": values[PLACE],
        "pieces": len(nodes),
        "sdk": sdk[1] if sdk else values["ep_sdk_version"],
    }


def read_compiled(folder: Path) -> Any:  # noqa: ANN401  (plain JSON, written above)
    """Return what :class:`Compiled` wrote, of each hardware.

    ``hardware``, ``compiler``, ``sdk``, ``file``, the one ``beside`` it, and how many ``pieces`` it
    has.
    """
    return json.loads((folder / COMPILED).read_text(encoding="utf-8"))
