"""A real transformer of molecules, from a package: what int8 leaves of the atoms it finds.

It was trained to look from a reaction's product at the atoms before it (chython-rxnmap 2.0, weights
under the LGPL 3 as the package says). Its 16 layers of attention are two kinds in turn, within
molecules and across them, with an own term for each distance in bonds, and share their weights.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from edgepack.errors import StepError
from edgepack.model.facts import read_signature
from edgepack.model.files import MODEL
from edgepack.model.reading import read_structure
from edgepack.model.running import make_session, run_session
from edgepack.project.profile import Dialect
from edgepack.samples.sample_set import write_sample_set
from edgepack.steps.base import run_step
from edgepack.steps.graph.attention import FusedAttention
from edgepack.steps.graph.simplified import Simplified
from edgepack.steps.recipes.int8_dynamic import Int8Dynamic

from tests.support.environments import fetch_from_package
from tests.support.nets import reactions

LEAST_FOUND = 92
"""Of 99 atoms of the products; the model itself finds 94. By chance it would be 32."""

DIALECT = Dialect(activations="uint8", weights="int8", symmetric=False, per_channel=True)


def fetch(folder: Path) -> Path:
    """Put the model into a folder; skip where it cannot be fetched, but in CI."""
    folder.mkdir(exist_ok=True)
    path = folder / MODEL
    path.write_bytes(fetch_from_package("chython-rxnmap", "2.0", "rxnmap.onnx").read_bytes())
    return path


def keep_samples(model: Path, folder: Path) -> Path:
    """Write four of the reactions as samples."""
    inputs, _ = read_signature(read_structure(model))
    folder.mkdir()
    chosen = reactions.list_reactions()[::4]
    write_sample_set(folder, inputs, [(str(n), dict(r.inputs)) for n, r in enumerate(chosen)])
    return folder


def count_all_found(model: Path) -> int:
    session = make_session(model)
    found = 0
    for reaction in reactions.list_reactions():
        attention = run_session(session, reaction.inputs)["attention"]
        found += reactions.count_found(reaction, attention)[0]
    return found


@pytest.mark.in_turns
@pytest.mark.slow(reason="fetches a transformer of 79 MB and quantizes it")
def test_transformer_that_shares_its_weights_finds_atoms_in_int8(tmp_path: Path):
    model = fetch(tmp_path / "in")
    samples = keep_samples(model, tmp_path / "samples")
    assert count_all_found(model) >= LEAST_FOUND
    given = tmp_path / "in"
    for step in (Simplified(), Int8Dynamic(DIALECT, max_ir=8)):
        out = tmp_path / step.name
        out.mkdir()
        run_step(step, {"model": given, "samples": samples}, out)
        given = out
    assert count_all_found(given / MODEL) >= LEAST_FOUND
    assert (given / MODEL).stat().st_size / model.stat().st_size < 0.27


@pytest.mark.slow(reason="fetches a transformer of 79 MB")
def test_attention_that_the_optimizer_does_not_know_is_refused(tmp_path: Path):
    # Its query, key and value are one product, cut into three.
    fetch(tmp_path / "in")
    (tmp_path / "out").mkdir()
    with pytest.raises(StepError, match="found no attention"):
        run_step(FusedAttention(), {"model": tmp_path / "in"}, tmp_path / "out")
