"""``edgepack inspect``: facts of a model, and per variant what stands in its way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from edgepack.backends import BACKENDS
from edgepack.model.checking import checker_findings
from edgepack.model.facts import ModelFacts, model_facts
from edgepack.model.finding import Finding
from edgepack.processes import Workers
from edgepack.profile import load_profile


@dataclass(frozen=True)
class Inspection:
    """Facts and findings of one model."""

    facts: ModelFacts
    findings: tuple[Finding, ...]


def inspect(model: Path, targets: Sequence[str] = ()) -> Inspection:
    """Return facts of a model, and findings for the backends of the targets (``host`` if none).

    The model is loaded by onnx and onnxruntime in a process of its own, so that one that crashes
    them is a finding too.

    Raises:
        ModelError: The file cannot be read as a model.
        UsageError: There is no such target.
    """
    facts = model_facts(model)
    names = {
        variant.backend
        for target in targets or ["host"]
        for variant in load_profile(target).variants
    }
    with Workers(1) as workers:
        findings = [*workers.call(checker_findings, model)]
        for name in sorted(names):
            findings += workers.call(BACKENDS[name].check, model)
    return Inspection(facts, tuple(findings))
