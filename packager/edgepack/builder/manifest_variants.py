"""What a manifest says of each variant: its model, how it runs, and what was found of it."""

from __future__ import annotations

from collections.abc import Sequence

from edgepack.base.schema import NotMeasured
from edgepack.builder.job import JudgedBundle
from edgepack.builder.judging import list_attempts, read_simulation
from edgepack.builder.model_files import ModelFiles
from edgepack.builder.plan import PlannedVariant
from edgepack.bundle.manifest import (
    Accuracy,
    Fused,
    LayerError,
    ManifestVariant,
    OutsideError,
    Predicted,
    Slice,
)
from edgepack.steps.base import read_notes
from edgepack.steps.graph.placed import read_placement
from edgepack.steps.proofs.goldens import read_goldens
from edgepack.steps.proofs.layer_errors import read_layer_errors
from edgepack.steps.proofs.outside import read_outside
from edgepack.steps.recipes.bucketed import read_buckets


def make_manifest_variants(
    judged: JudgedBundle, models: Sequence[ModelFiles], goldens: int
) -> list[ManifestVariant]:
    """Return the shipped variants as the manifest holds them.

    Args:
        judged: The bundle.
        models: Of each shipped variant.
        goldens: How many golden samples the bundle has.
    """
    return [
        _make_manifest_variant(judged, planned, accuracy, model, goldens)
        for (planned, accuracy), model in zip(judged.verdict.shipped, models, strict=True)
    ]


def _make_manifest_variant(
    judged: JudgedBundle,
    planned: PlannedVariant,
    accuracy: Accuracy | NotMeasured,
    model: ModelFiles,
    goldens: int,
) -> ManifestVariant:
    variant = planned.variant
    index = read_buckets(judged.find_folder(planned.bucketed)) if planned.bucketed else None
    proved = read_goldens(judged.find_folder(planned.goldens))
    return ManifestVariant(
        id=variant.id,
        backend=variant.backend,
        recipe=variant.recipe,
        dialect=variant.dialect,
        model=model.path,
        model_sha256=model.sha256,
        model_bytes=model.size_bytes,
        model_format=variant.model_format,
        buckets=model.buckets,
        slices=[Slice(**entry) for entry in index.slices] if index else [],
        exact=index.exact if index else False,
        providers=variant.providers,
        placement=variant.placement,
        session=variant.session,
        requires=variant.requires,
        min_sqnr_db=proved["min_sqnr_db"],
        untold=[
            what for what, told_by in proved["faults"] if told_by is None or told_by >= goldens
        ],
        accuracy=accuracy,
        predicted=_read_predicted(judged, planned),
        simulated=read_simulation(planned, judged.execution),
        compiled=model.compiled,
        fused=_read_fused(judged, planned),
        layers=_read_layers(judged, planned),
        outside=_read_outside(judged, planned),
        input_ranges=_read_input_ranges(judged, planned),
        tried=list_attempts(planned, judged.execution),
    )


def _read_predicted(judged: JudgedBundle, planned: PlannedVariant) -> Predicted | None:
    if planned.placed is None:
        return None
    placement = read_placement(judged.find_folder(planned.placed))
    return Predicted(
        provider=planned.variant.providers[0].name,
        share=placement["share"],
        nodes=len(placement["nodes"]),
        partitions=placement["partitions"],
    )


def _read_fused(judged: JudgedBundle, planned: PlannedVariant) -> Fused | None:
    if planned.fusion is None:
        return None
    facts = read_notes(judged.find_folder(planned.fusion)).facts
    return Fused(**{name: facts[name] for name in Fused.model_fields})


def _read_layers(judged: JudgedBundle, planned: PlannedVariant) -> list[LayerError] | NotMeasured:
    if planned.layers is None:
        return []
    if error := judged.execution.failed.get(planned.layers):
        return NotMeasured(reason=error.problem)
    judged.execution.artifacts[planned.layers].require_whole()
    names = LayerError.model_fields
    found = read_layer_errors(judged.find_folder(planned.layers))
    return [LayerError(**{name: layer[name] for name in names}) for layer in found]


def _read_outside(
    judged: JudgedBundle, planned: PlannedVariant
) -> list[OutsideError] | NotMeasured:
    if planned.outside is None:
        return []
    if error := judged.execution.failed.get(planned.outside):
        return NotMeasured(reason=error.problem)
    judged.execution.artifacts[planned.outside].require_whole()
    return [OutsideError(**each) for each in read_outside(judged.find_folder(planned.outside))]


def _read_input_ranges(
    judged: JudgedBundle, planned: PlannedVariant
) -> dict[str, tuple[float, float]]:
    """Return the calibrated ranges; with preprocessing in the model pictures have none."""
    inputs, _ = judged.signature
    floats = {spec.name for spec in inputs if spec.dtype.startswith("float")}
    notes = [read_notes(judged.find_folder(step_id)).facts for step_id in planned.history]
    found: dict[str, tuple[float, float]]
    found = next((facts["input_ranges"] for facts in notes if "input_ranges" in facts), {})
    return {name: (low, high) for name, (low, high) in found.items() if name in floats}
