"""Golden inputs of pictures in bundles: a palette where apps download them, values where not."""

from __future__ import annotations

import re

import numpy as np
import pytest
from edgepack.builder.build import build
from edgepack.bundle.reading import verify
from edgepack.errors import BundleError
from edgepack.trying.verify import verify as verify_here

from tests.mobile.sealing import PALETTES, pack_input
from tests.support.nets import tiny_models
from tests.support.reports.tiny_bundle import change_manifest, write_tiny_bundle

CPU = "cpu-fp32"


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Bundles of each family for pictures of 16 grays, by target."""
    folder = tmp_path_factory.mktemp("pictures")
    project = tiny_models.write_project(folder, "dims: {batch: 1}")
    grays = np.random.default_rng(1).integers(0, 16, (24, 3, 8, 8)).astype(np.float32) / 15
    np.savez(folder / "cal.npz", image=grays)
    np.savez(folder / "eval.npz", image=grays, labels=np.arange(24) % 4)
    targets = ["android-xnnpack", "ios", "web", "linux-x86-64"]
    result = build(project=project, targets=targets, variants=[CPU], out=folder / "dist")
    result.require_all()
    return {made.bundle.manifest.target: made.bundle for made in result.bundles}


def test_golden_input_of_a_picture_when_built_has_a_palette_in_bundles_for_apps_alone(built):
    inputs = {target: bundle.manifest.goldens[0].inputs[0] for target, bundle in built.items()}
    assert inputs.pop("linux-x86-64").palette is None
    for target, tensor in inputs.items():
        assert (tensor.palette.step, tensor.palette.sizes) == (1, [16])
        assert (built[target].path / tensor.path).stat().st_size == 3 * 8 * 8 + 4 * 16
    assert len(inputs) == 3


def test_bundle_when_a_palette_holds_its_input_reproduces_its_goldens_here(built):
    for bundle in built.values():
        checks = verify_here(bundle.path).goldens
        assert [check.passed for check in checks] == [True]


@pytest.mark.parametrize("what", ["half a palette", "a place too few"])
def test_verify_when_a_file_does_not_fit_its_palette_says_what_it_takes(tmp_path, what):
    folder = write_tiny_bundle(tmp_path)
    pack_input(folder, PALETTES[what][0])
    change_manifest(folder, lambda _: None)
    said = "'golden/0-x.bin' has {} bytes, and 192 values of float32 with their palette take 964"
    found = (folder / "golden/0-x.bin").stat().st_size
    with pytest.raises(BundleError, match=re.escape(said.format(found))):
        verify(folder)
