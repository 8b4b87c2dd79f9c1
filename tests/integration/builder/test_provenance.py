"""What a built bundle says about where it comes from."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
from edgepack.builder.build import build
from edgepack.bundle.manifest import Manifest
from edgepack.bundle.reading import verify
from edgepack.project.profile import load_profile

from tests.support.nets import tiny_models


def built(project: Path) -> tuple[Path, Manifest]:
    """Build for one target and return the bundle's folder and manifest."""
    result = build(project=project, targets=["raspberry-pi"], out=project.parent / "dist")
    bundle = verify(result.bundles[0].bundle.path)
    return bundle.path, bundle.manifest


def test_bundle_when_built_names_its_model_profile_samples_and_tools(tmp_path):
    _, manifest = built(tiny_models.write_project(tmp_path, count=24))
    found = manifest.provenance
    assert found is not None
    profile = load_profile("raspberry-pi").model_dump(mode="json")
    text = json.dumps(profile, sort_keys=True).encode()
    assert found.profile_sha256 == hashlib.sha256(text).hexdigest()
    assert manifest.model.sha256 == sha256(tmp_path / "net.onnx")
    assert {"edgepack", "onnx", "onnxruntime", "onnxsim"} <= set(manifest.built_on.tools)
    assert found.calibration is not None
    assert found.evaluation is not None
    assert (found.calibration.samples, found.evaluation.samples) == (24, 24)
    assert found.calibration.sha256 != found.evaluation.sha256


@pytest.mark.slow(reason="builds twice")
def test_samples_when_the_same_from_another_file_have_the_same_digest(tmp_path):
    project = tiny_models.write_project(tmp_path)
    _, first = built(project)
    (tmp_path / "cal.npz").rename(tmp_path / "renamed.npz")
    project.write_text(project.read_text().replace("cal.npz", "renamed.npz"))
    _, renamed = built(project)
    np.savez(tmp_path / "renamed.npz", image=tiny_models.images(24, seed=3))
    _, others = built(project)
    digests = [each.provenance.calibration.sha256 for each in (first, renamed, others)]
    assert digests[0] == digests[1] != digests[2]
    assert first.provenance.evaluation == others.provenance.evaluation


def test_bundle_when_nothing_is_calibrated_or_evaluated_says_so(tmp_path):
    _, manifest = built(tiny_models.write_project(tmp_path, samples=False))
    assert manifest.provenance is not None
    assert manifest.provenance.calibration is None
    assert manifest.provenance.evaluation is None


def test_sbom_when_built_has_the_hashes_of_the_files(tmp_path):
    folder, manifest = built(tiny_models.write_project(tmp_path))
    [entry] = [file for file in manifest.files if file.path == "sbom.cdx.json"]
    assert entry.role == "document"
    components = json.loads((folder / entry.path).read_text())["components"]
    hashes = {c["name"]: c["hashes"][0]["content"] for c in components if "hashes" in c}
    assert hashes.pop("net.onnx") == sha256(tmp_path / "net.onnx")
    models = {path.relative_to(folder).as_posix() for path in (folder / "models").iterdir()}
    assert hashes == {name: sha256(folder / name) for name in models}


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
