"""A real transformer of molecules, from a package: what each recipe leaves of the atoms it finds.

It was trained to look from a reaction's product at the atoms before it (chython-rxnmap 2.0, weights
under the LGPL 3 as the package says). Its 16 layers of attention are two kinds in turn, within
molecules and across them, with an own term for each distance in bonds, and share their weights.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from edgepack.builder.build import build
from edgepack.bundle.reading import Bundle
from edgepack.errors import StepError
from edgepack.model.files import MODEL
from edgepack.model.running import make_session, run_session
from edgepack.steps.base import run_step
from edgepack.steps.graph.attention import FusedAttention

from tests.support.environments import fetch_from_package
from tests.support.nets import reactions

LEAST_FOUND = 93
"""Of 100 atoms of the products; the model itself finds 95. By chance it would be 34."""

PROJECT = """
schema_version: 1
name: reactions
version: 1.0.0
model: model.onnx
samples: {calibration: {python: 'taking:calibration'}, evaluation: {python: 'taking:evaluation'}}
targets:
  - id: linux-x86-64
    variants:
      - {backend: cpu, recipe: fp32}
      - {backend: cpu, recipe: int8-dynamic}
      - {backend: cpu, recipe: int4-weight}
"""
# Reactions have as many tokens as they have, so they are no rows of one array.
TAKING = """
from pathlib import Path
import numpy as np

def calibration():
    return take(0)

def evaluation():
    return take(1)

def take(begin):
    for path in sorted(Path(__file__).parent.glob("*.npz"))[begin::2]:
        with np.load(path) as arrays:
            yield dict(arrays)
"""


def fetch(folder: Path) -> Path:
    """Put the model into a folder; skip where it cannot be fetched, but in CI."""
    folder.mkdir(exist_ok=True)
    path = folder / MODEL
    path.write_bytes(fetch_from_package("chython-rxnmap", "2.0", "rxnmap.onnx").read_bytes())
    return path


def build_mapper(folder: Path) -> Bundle:
    """Build with every second reaction to calibrate and the others to evaluate with."""
    fetch(folder)
    for number, reaction in enumerate(reactions.list_reactions()):
        np.savez(folder / f"{number:02}.npz", **reaction.inputs)
    (folder / "taking.py").write_text(TAKING)
    (folder / "edgepack.yaml").write_text(PROJECT)
    result = build(project=folder / "edgepack.yaml", out=folder / "dist")
    result.require_all()
    return result.bundles[0].bundle


def count_all_found(model: Path) -> int:
    session = make_session(model)
    found = 0
    for reaction in reactions.list_reactions():
        attention = run_session(session, reaction.inputs)["attention"]
        found += reactions.count_found(reaction, attention)[0]
    return found


@pytest.mark.slow(reason="fetches a transformer of 79 MB and builds it")
def test_transformer_that_shares_its_weights_finds_atoms_in_int8_and_in_4_bits(tmp_path: Path):
    bundle = build_mapper(tmp_path)
    assert count_all_found(tmp_path / MODEL) >= LEAST_FOUND
    whole = (tmp_path / MODEL).stat().st_size
    most = {"fp32": 1.01, "int8-dynamic": 0.27, "int4-weight": 0.17}
    assert {variant.recipe for variant in bundle.manifest.variants} == set(most)
    for variant in bundle.manifest.variants:
        path = bundle.path / variant.model
        assert count_all_found(path) >= LEAST_FOUND
        assert path.stat().st_size / whole < most[variant.recipe]


@pytest.mark.slow(reason="fetches a transformer of 79 MB")
def test_attention_that_the_optimizer_does_not_know_is_refused(tmp_path: Path):
    # Its query, key and value are one product, cut into three.
    fetch(tmp_path / "in")
    (tmp_path / "out").mkdir()
    with pytest.raises(StepError, match="found no attention"):
        run_step(FusedAttention(), {"model": tmp_path / "in"}, tmp_path / "out")
