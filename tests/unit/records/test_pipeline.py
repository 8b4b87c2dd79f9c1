"""The verdict on several models, and what each stage takes of the whole."""

from __future__ import annotations

from typing import Any

import pytest
from edgepack.base.schema import NotMeasured
from edgepack.bundle.manifest import ManifestVariant
from edgepack.project.profile import Provider, Requires, SessionSettings
from edgepack.records.pipeline import (
    PipelineReport,
    StagedRun,
    StageTimes,
    judge_pipeline,
    summarize_stages,
)
from edgepack.records.presets import find_preset
from edgepack.records.run import Inconclusive, Invalid, Placement, Selection, Valid

from tests.support.reports.example_report import (
    CPU,
    example_facts,
    example_placement,
    example_run,
)

COMBINATION = "encoder=cpu-fp32 decoder=cpu-int8-static"


def variant(name: str, *, threads: int = 0) -> ManifestVariant:
    return ManifestVariant(
        id=name,
        backend="cpu",
        recipe="fp32",
        model="models/model.onnx",
        model_sha256="0" * 64,
        providers=[Provider(name=CPU)],
        placement="all",
        session=SessionSettings(intra_op_num_threads=threads),
        requires=Requires(),
        min_sqnr_db=60.0,
        accuracy=NotMeasured(reason="nobody knows"),
    )


def staged(seed: int, **changes: Any) -> StagedRun:
    """Return a run whose encoder takes a fourth of each call, and the decoder half."""
    run = example_run(seed)
    stages = [
        StageTimes(part="encoder", latencies_ns=[ns // 4 for ns in run.latencies_ns], tokens=[]),
        StageTimes(
            part="decoder", latencies_ns=[ns // 2 for ns in run.latencies_ns], tokens=[3, 5]
        ),
    ]
    fields = {"variant": COMBINATION, "golden_min_sqnr_db": 20.0, "stages": stages, **changes}
    return StagedRun.model_validate({**dict(run), **fields})


def judged(
    *changed: StagedRun,
    preset: str = "standard",
    decoder: Placement | NotMeasured | None = None,
) -> Valid | Invalid | Inconclusive:
    runs = [*changed, *(staged(seed) for seed in range(5 - len(changed)))]
    placement = {"encoder": example_placement(), "decoder": decoder or example_placement()}
    used = {"encoder": variant("cpu-fp32"), "decoder": variant("cpu-int8-static")}
    selection = Selection(variant=COMBINATION, unused=[], device=example_facts())
    return judge_pipeline(selection, runs, placement, used, find_preset(preset))


def test_verdict_is_valid_when_nothing_speaks_against_any_part() -> None:
    # 20 dB of the whole is no matter: the parts' limits of 60 dB are their own.
    assert judged() == Valid()


def test_verdict_is_invalid_when_nodes_of_one_part_ran_elsewhere() -> None:
    found = judged(decoder=example_placement("XnnpackExecutionProvider"))
    assert isinstance(found, Invalid)
    assert found.cause == "placement"


def test_verdict_says_which_part_was_not_profiled() -> None:
    found = judged(decoder=NotMeasured(reason="part decoder: it crashed"))
    assert isinstance(found, Invalid)
    assert found.reasons == ["where the nodes ran is unknown: part decoder: it crashed"]


def test_verdict_names_a_reason_once_whatever_the_parts() -> None:
    found = judged(staged(0, steady=False))
    assert isinstance(found, Invalid)
    assert found.reasons == ["run 1 was not steady after 60 s of warm-up"]


def test_verdict_is_invalid_when_a_run_used_other_variants() -> None:
    found = judged(staged(0, variant="encoder=cpu-fp32 decoder=cpu-fp32"))
    assert isinstance(found, Invalid)
    assert found.cause == "placement"


def test_verdict_is_inconclusive_when_the_preset_is_smoke() -> None:
    assert isinstance(judged(preset="smoke"), Inconclusive)


def test_summary_has_each_stage_and_the_whole() -> None:
    report = PipelineReport(
        schema_version=1,
        kind="pipeline",
        id="20261128T120000Z-a1b2c3",
        created="2026-11-28T12:00:00Z",
        device="board",
        facts=example_facts(),
        project="translation",
        bundle="translation-1.0.0-linux-x86-64",
        manifest_sha256="0" * 64,
        target="linux-x86-64",
        variants=COMBINATION,
        unused=[],
        preset="quick",
        edgepack="1.0.0",
        runs=[staged(0), staged(1)],
        placement={},
        verdict=Valid(),
        notes=[],
    )
    encoder, decoder, whole = summarize_stages(report)
    assert [each.name for each in (encoder, decoder, whole)] == ["encoder", "decoder", "pipeline"]
    assert (encoder.share, decoder.share, whole.share) == pytest.approx((0.25, 0.5, 1), abs=1e-3)
    assert (encoder.tokens, decoder.tokens, whole.tokens) == (None, 4.0, None)
    assert decoder.p90_ms == pytest.approx(whole.p90_ms / 2, rel=1e-3)
