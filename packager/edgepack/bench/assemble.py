"""Puts a report together from what the device said and what the bundle says. No device here."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from edgepack.bench.presets import Preset
from edgepack.bench.report import (
    Memory,
    Placement,
    ProcessRun,
    RunReport,
    Selection,
    VariantFacts,
)
from edgepack.bench.verdict import condition_notes, judge, spread_notes
from edgepack.bundle.manifest import Manifest, ManifestVariant, NotMeasured
from edgepack.clock import utc_now

WORST_LAYERS = 20
"""Of each variant, kept in a report."""


@dataclass(frozen=True)
class Measurements:
    """All that the device said, in the order in which it was asked."""

    selection: Selection
    runs: Sequence[ProcessRun]
    memory: Memory
    placement: Placement


@dataclass(frozen=True)
class Question:
    """What was asked to be measured."""

    device: str
    manifest: Manifest
    manifest_sha256: str
    variant: str | None
    preset: Preset


def make_report(question: Question, measured: Measurements) -> RunReport:
    """Return the report with its verdict."""
    manifest, selection = question.manifest, measured.selection
    used = next(entry for entry in manifest.variants if entry.id == selection.variant)
    created = utc_now()
    return RunReport(
        schema_version=1,
        id=f"{created.replace(':', '').replace('-', '')}-{secrets.token_hex(3)}",
        created=created,
        device=question.device,
        facts=selection.device,
        bundle=manifest.id,
        manifest_sha256=question.manifest_sha256,
        target=manifest.target,
        bundle_bytes=sum(file.size_bytes for file in manifest.files),
        variants=[variant_facts(manifest, entry) for entry in manifest.variants],
        variant_requested=question.variant or "first that works",
        variant_used=selection.variant,
        passed_over=selection.passed_over,
        preset=question.preset.name,
        runs=list(measured.runs),
        memory=measured.memory,
        placement=measured.placement,
        verdict=judge(selection, measured.runs, measured.placement, used, question.preset),
        notes=[*spread_notes(measured.runs), *condition_notes(selection)],
    )


def variant_facts(manifest: Manifest, entry: ManifestVariant) -> VariantFacts:
    """Return what the manifest says of a variant, as the report keeps it."""
    sizes = {file.path: file.size_bytes for file in manifest.files}
    return VariantFacts(
        id=entry.id,
        recipe=entry.recipe,
        model_bytes=sizes[entry.model],
        min_sqnr_db=entry.min_sqnr_db,
        accuracy=entry.accuracy,
        layers=entry.layers
        if isinstance(entry.layers, NotMeasured)
        else sorted(entry.layers, key=lambda layer: layer.sqnr_db)[:WORST_LAYERS],
    )
