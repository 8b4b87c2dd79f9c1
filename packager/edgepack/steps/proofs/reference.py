"""Proves a model against outputs that its framework gave, which the user has beside the samples."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import ClassVar

from edgepack.model.facts import read_model_facts
from edgepack.model.ir import loadable
from edgepack.model.running import make_session, run_session
from edgepack.samples.constants import Constant, make_constant_arrays
from edgepack.samples.sample_set import SampleSet
from edgepack.steps.base import Inputs, Notes
from edgepack.steps.proofs.framework import COMPARED, ComparedOutput, compare_output, require_near
from edgepack.steps.samples import read_references

_WORDS = "the reference"
_HINT = (
    "see that the reference is of these very samples, in their order, and of this model; if it is,"
    " the exporter changed the model: export it again, with its newest version"
)


@dataclass(frozen=True)
class ReferenceProof:
    """The proof that a model gives what the user says its framework gave.

    Inputs: ``source``, the model file; ``samples``, a set with references.
    """

    name: ClassVar[str] = "reference-proof"
    libraries: ClassVar[tuple[str, ...]] = ("onnxruntime",)
    cacheable = True
    constants: tuple[Constant, ...] = ()
    """Inputs that have one value for good, which samples lack."""

    def check(self, inputs: Inputs) -> None:
        """Accept any model; running it is the check."""

    def run(self, inputs: Inputs, out: Path) -> Notes:
        """Run the model on the samples, and note how far each output is from the reference.

        Raises:
            ModelError: The model does not run on a sample.
            StepError: The shapes differ.
        """
        samples, references = SampleSet.read(inputs["samples"]), read_references(inputs["samples"])
        fixed = make_constant_arrays(self.constants)
        with loadable(inputs["source"]) as source:
            session = make_session(source)
            given = {
                k: run_session(session, {**samples.read_inputs(k), **fixed}) for k in references
            }
        quantized = read_model_facts(inputs["source"]).quantization is not None
        compared = []
        for name in dict.fromkeys(name for values in references.values() for name in values):
            numbers = [k for k, values in references.items() if name in values]
            pairs = [references[k] for k in numbers], [given[k] for k in numbers]
            names = [samples.names[k] for k in numbers]
            compared.append(compare_output(name, name, names, pairs, quantized=quantized))
        found = [asdict(each) for each in compared]
        (out / COMPARED).write_text(json.dumps(found), encoding="utf-8")
        worst = max(compared, key=lambda each: each.farthest / (each.tolerance or 1.0))
        return Notes(
            f"on {len(references)} samples at most {worst.farthest:.3g} from {_WORDS}"
            f" ({worst.name!r}, {worst.sample}; {worst.tolerance:.3g} is allowed)",
            {"outputs": found, "samples": len(references)},
        )

    def verify(self, inputs: Inputs, out: Path) -> None:
        """Prove that every output is as near to the reference as it has to be.

        Raises:
            StepError: One is not; names the output, the sample and how far it is.
        """
        del inputs
        for found in json.loads((out / COMPARED).read_text(encoding="utf-8")):
            require_near(ComparedOutput(**found), _WORDS, _HINT)
