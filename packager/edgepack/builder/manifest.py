"""The manifest of a bundle: its model, variants and goldens, and what they were made from."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Iterable
from functools import cache
from importlib.metadata import version
from pathlib import PurePosixPath

import edgepack
from edgepack.base.machine import find_processor
from edgepack.builder.job import JudgedBundle
from edgepack.builder.plan import hash_bundle, hash_profile
from edgepack.bundle.manifest import (
    BuildHost,
    BundleFile,
    ComparedOutput,
    ConvertedFrom,
    Golden,
    Manifest,
    ManifestVariant,
    Provenance,
    SamplesUsed,
    SourceModel,
    Tensor,
)
from edgepack.model.facts import TensorSpec
from edgepack.steps.base import NOTES, read_notes
from edgepack.steps.proofs.framework import FrameworkProof
from edgepack.steps.proofs.reference import ReferenceProof
from edgepack.steps.recipes.recipes import RECIPES

# Their versions decide the bytes of a bundle.
_TOOLS = ("numpy", "onnx", "onnxruntime", "onnxsim", "pillow")


def make_manifest(
    judged: JudgedBundle,
    variants: list[ManifestVariant],
    goldens: list[Golden],
    files: list[BundleFile],
) -> Manifest:
    """Return the manifest of a bundle with these variants, golden samples and files."""
    project, facts, profile = judged.project, judged.job.facts, judged.profile
    inputs, outputs = judged.signature
    real_samples = read_notes(judged.find_folder(judged.shipped[0].goldens)).facts["real"]
    return Manifest(
        schema_version=1,
        name=project.name,
        version=project.version,
        target=profile.id,
        family=profile.family,
        model=SourceModel(
            name=judged.job.loaded.model_name,
            sha256=facts.sha256,
            opset=facts.opset,
            ir_version=facts.ir_version,
            converted_from=_make_converted_from(judged),
            reference=_list_references(judged),
        ),
        inputs=[_make_tensor(spec) for spec in inputs],
        outputs=[_make_tensor(spec) for spec in outputs],
        constants=project.constants,
        state=project.state,
        custom_ops=_find_libraries(files),
        input_descriptions=project.inputs,
        output_descriptions=project.outputs,
        preprocess=project.preprocess,
        variants=variants,
        unused=[*judged.verdict.unused],
        goldens=goldens,
        goldens_from="samples" if real_samples else "seeded random",
        runtime=judged.packages,
        provider_sources=profile.runtime.providers,
        built_on=find_build_host(),
        steps=_list_history(judged),
        plan_digest=hash_bundle(judged.planned),
        provenance=_make_provenance(judged),
        files=files,
    )


def _list_references(judged: JudgedBundle) -> list[ComparedOutput]:
    """Return how far outputs are from the reference that lies beside the samples, if one does."""
    steps = {step.id: step.step.name for step in judged.job.plan.steps}
    proofs = [s for s in judged.shipped[0].history if steps[s] == ReferenceProof.name]
    found = [read_notes(judged.find_folder(proof)).facts["outputs"] for proof in proofs]
    return [ComparedOutput(**each) for outputs in found for each in outputs]


def _make_converted_from(judged: JudgedBundle) -> ConvertedFrom | None:
    """Return what the model was converted from, with the proof; None where it came as ONNX."""
    converted = judged.job.loaded.converted
    if converted is None:
        return None
    steps = {step.id: step.step.name for step in judged.job.plan.steps}
    [proof] = {s for s in judged.shipped[0].history if steps[s] == FrameworkProof.name}
    facts = read_notes(judged.find_folder(proof)).facts
    return ConvertedFrom(
        format=converted.conversion.converter,
        sha256=converted.digest,
        packages=facts["versions"],
        confined=facts["confined"],
        samples=facts["samples"],
        samples_from="samples" if facts["real"] else "seeded random",
        outputs=[ComparedOutput(**each) for each in facts["outputs"]],
    )


@cache
def find_build_host() -> BuildHost:
    """Return what builds here: the system, the processor, and the tools with their versions."""
    return BuildHost(
        os=platform.system(),
        processor=find_processor(),
        tools={
            "edgepack": edgepack.__version__,
            "python": platform.python_version(),
            **{name: version(name) for name in _TOOLS},
        },
    )


def _find_libraries(files: Iterable[BundleFile]) -> dict[str, str]:
    """Return the libraries of custom operators by the machine that they are for, their folder."""
    paths = [file.path for file in files if file.role == "library"]
    return {PurePosixPath(path).parent.name: path for path in paths}


def _make_tensor(spec: TensorSpec) -> Tensor:
    return Tensor(name=spec.name, dtype=spec.dtype, shape=list(spec.shape or ()))


def _list_history(judged: JudgedBundle) -> list[str]:
    """Return what was done, a line per step and variant, shared steps once."""
    steps = [step_id for p in judged.shipped for step_id in (*p.history, p.goldens)]
    done = (f"{step_id}: {read_notes(judged.find_folder(step_id)).done}" for step_id in steps)
    return list(dict.fromkeys([*judged.job.loaded.model_history, *done]))


def _make_provenance(judged: JudgedBundle) -> Provenance:
    steps = {step.id: step for step in judged.job.plan.steps}
    shipped = judged.shipped
    made = [steps[step_id] for planned in shipped for step_id in planned.history]
    evaluated = [steps[planned.evaluation] for planned in shipped if planned.evaluation]
    return Provenance(
        profile_sha256=hash_profile(judged.profile),
        calibration=_make_samples_used(
            judged,
            (
                step.inputs.get(RECIPES[step.step.name].calibration)
                for step in made
                if step.step.name in RECIPES
            ),
        ),
        evaluation=_make_samples_used(judged, (step.inputs["samples"] for step in evaluated)),
    )


def _make_samples_used(judged: JudgedBundle, origins: Iterable[str | None]) -> SamplesUsed | None:
    """Return the one set of samples that steps read, if any of them reads one."""
    used = next((origin for origin in origins if origin), None)
    if used is None:
        return None
    artifact = judged.execution.artifacts[used]
    # The notes say where the samples came from, which does not make them others.
    data = {name: sha256 for name, sha256 in artifact.files.items() if name != NOTES}
    return SamplesUsed(
        samples=read_notes(artifact.path).facts["samples"],
        sha256=hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest(),
    )
