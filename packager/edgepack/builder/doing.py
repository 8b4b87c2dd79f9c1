"""Describes what a step does and for which variants, for somebody who watches a build."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from edgepack.builder.plan import Plan, PlannedStep
from edgepack.steps.recipes.recipes import RECIPES

WORDS = {
    "converted": "converting the model to ONNX",
    "reference-proof": "comparing it with the reference outputs",
    "framework-proof": "comparing it with the framework's own outputs",
    "cleaned": "cleaning the model of what its exporter left",
    "free-batch": "making the batch free",
    "prepared": "preparing the model (sizes fixed, shapes inferred)",
    "simplified": "simplifying the graph",
    "fused-attention": "fusing attention",
    "at-least-opset": "raising the opset",
    "at-most-opset": "lowering the opset",
    "rewritten": "rewriting nodes for the provider",
    "calibration": "finding the ranges of activations",
    "layer-errors": "measuring each node's error",
    "outside-errors": "running it on inputs unlike the samples",
    "input-check": "checking if the samples are what the model expects",
    "read-answers": "reading fp32's answers to the samples",
    "fusion": "counting what the CPU fuses",
    "golden-choice": "choosing samples for golden outputs",
    "goldens": "computing golden outputs",
    "evaluation": "measuring accuracy",
    "reference-answers": "computing fp32's answers to the samples",
    "compiled": "compiling it for the provider's hardware",
    "simulated": "running it in the provider's simulator",
    "placed": "predicting which nodes the provider takes",
    "bucketed": "making a model for each size",
    "ort-format": "converting to the ORT format",
    "in-graph": "putting preprocessing into the model",
    "in-graph-probes": "making samples for preprocessing in the model",
    "tensor-samples": "preprocessing samples",
    "image-samples": "reading pictures",
    "sound-samples": "reading sounds",
    "video-samples": "reading frames of videos",
    "picture-samples": "reading pictures",
    "npz-samples": "reading samples",
    "test-data-samples": "reading samples",
    "unrolled": "running the float model over streams",
    "python-samples": "running the samples' function",
}
"""By a step's name; recipes bring their own words."""

LONG = {
    "converted",
    "framework-proof",
    "bucketed",
    "calibration",
    "evaluation",
    "layer-errors",
    "outside-errors",
    "image-samples",
    "picture-samples",
    "python-samples",
    "reference-answers",
    "simulated",
    "sound-samples",
    "unrolled",
    "video-samples",
}
"""Steps that take most of a build's time, besides recipes; an estimate does not count others."""


def describe_step(name: str) -> str:
    """Return what the step of a name does."""
    return RECIPES[name].words if name in RECIPES else WORDS[name]


def is_long(name: str) -> bool:
    """Return whether steps of this name take most of a build's time."""
    return RECIPES[name].takes_long if name in RECIPES else name in LONG


@dataclass(frozen=True)
class Doing:
    """Says what the steps of one plan do."""

    plan: Plan

    def describe(self, step: PlannedStep, samples: int | None = None) -> str:
        """Return for which variants a step is, and what it does; with ``samples``, on how many."""
        what = describe_step(step.step.name)
        if step.step.name.endswith("samples") and (role := self._roles.get(step.id)):
            what += f" for {role}"
        if samples is not None:
            what += f" on {samples} sample{'' if samples == 1 else 's'}"
        whom, shared = describe_variants(self._variants.get(step.id, ()), self._all)
        return f"{whom}: {what}{shared}" if whom else f"{what}{shared}"

    def name_variant(self, step: PlannedStep) -> str:
        """Return for which variants a step is, to begin a line; empty for several targets."""
        found, _ = describe_variants(self._variants.get(step.id, ()), self._all)
        return f"{found}: " if found else ""

    @cached_property
    def _all(self) -> int:
        return sum(len(bundle.variants) for bundle in self.plan.bundles)

    @cached_property
    def _variants(self) -> Mapping[str, Sequence[tuple[str, str]]]:
        """By step: target and variant of all that need it."""
        found: dict[str, list[tuple[str, str]]] = {}
        for bundle in self.plan.bundles:
            for variant in bundle.variants:
                for step_id in self.plan.find_needed([*variant.steps, *variant.beside]):
                    found.setdefault(step_id, []).append((bundle.profile.id, variant.variant.id))
        return found

    @cached_property
    def _roles(self) -> Mapping[str, str]:
        """By step that makes samples: what they are for."""
        users: dict[str, set[str]] = {}
        for step in self.plan.steps:
            for origin in step.inputs.values():
                users.setdefault(origin, set()).add(step.step.name)
        found = {}
        for step_id, names in users.items():
            known = sorted(names & {"calibration", "evaluation"})
            if len(known) == 1:
                found[step_id] = known[0]
        return found


def describe_variants(variants: Sequence[tuple[str, str]], every: int) -> tuple[str, str]:
    """Return which variant a step is for, and how many others share it, if any do.

    Args:
        variants: Target and variant of each that needs it.
        every: How many variants there are.
    """
    if not variants:
        return "", ""
    targets = list(dict.fromkeys(target for target, _ in variants))
    names = list(dict.fromkeys(name for _, name in variants))
    if len(variants) == 1:
        return f"{targets[0]} {names[0]}", ""
    if len(variants) == every:
        return "", ", for all variants"
    if len(targets) == 1:
        return targets[0], f", for {len(names)} variants"
    if len(names) == 1:
        return names[0], f", for {len(targets)} targets"
    return "", f", for {len(variants)} variants of {len(targets)} targets"
