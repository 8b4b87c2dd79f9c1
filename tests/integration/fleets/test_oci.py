"""``edgepack export --format oci``: a layout that other tools bring to a registry as published."""

from __future__ import annotations

import json
import os
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest
from edgepack.bundle.manifest import MANIFEST_SIGNATURE
from edgepack.errors import BundleError
from edgepack.fleets.export import export_bundle
from edgepack.registry.fetching import fetch
from edgepack.registry.publishing import publish
from edgepack.registry.reference import Reference

from tests.support.reports.tiny_bundle import write_tiny_bundle
from tests.support.servers.registry import running_registry
from tests.support.servers.tools import require_tool


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return write_tiny_bundle(tmp_path / "bundle")


def read_index(archive: Path) -> list[dict[str, Any]]:
    with tarfile.open(archive) as tar:
        file = tar.extractfile("index.json")
        assert file is not None
        manifests: list[dict[str, Any]] = json.load(file)["manifests"]
        return manifests


@pytest.mark.skipif(os.geteuid() != 0, reason="this skopeo unpacks archives as root alone")
def test_layout_when_copied_by_skopeo_is_what_publish_sends(bundle: Path, tmp_path: Path):
    require_tool("skopeo")
    archive = export_bundle(bundle, "oci", tmp_path / "out").path
    with running_registry(tmp_path / "registry") as registry:
        to = f"docker://{registry.host}/copied:1.0.0"
        argv = ["skopeo", "copy", "--quiet", "--insecure-policy", "--dest-tls-verify=false"]
        subprocess.run([*argv, f"oci-archive:{archive}:1.0.0", to], check=True, timeout=120)
        copied = Reference.parse(registry.address("copied:1.0.0"))
        [got] = fetch(copied, out=tmp_path / "got")
        assert (got.path / "manifest.json").read_bytes() == (bundle / "manifest.json").read_bytes()
        [sent] = publish([bundle], copied)
        assert sent.digest == read_index(archive)[0]["digest"]


def test_layout_when_the_bundle_is_signed_has_the_signature_beside_it(bundle: Path, tmp_path: Path):
    unsigned = export_bundle(bundle, "oci", tmp_path / "unsigned").path
    (bundle / MANIFEST_SIGNATURE).write_bytes(b"-----BEGIN SSH SIGNATURE-----\n")
    signed = export_bundle(bundle, "oci", tmp_path / "signed").path
    new = [one for one in read_index(signed) if one not in read_index(unsigned)]
    assert [one["artifactType"] for one in new] == ["application/vnd.edgepack.signature.v1"]


def test_layout_when_written_twice_has_the_same_bytes(bundle: Path, tmp_path: Path):
    one, two = (export_bundle(bundle, "oci", tmp_path / name).path for name in ("a", "b"))
    assert one.read_bytes() == two.read_bytes()


def test_layout_when_a_file_was_altered_is_not_written(bundle: Path, tmp_path: Path):
    (bundle / "models" / "cpu-fp32.onnx").write_bytes(b"other")
    with pytest.raises(BundleError, match=r"cpu-fp32\.onnx"):
        export_bundle(bundle, "oci", tmp_path / "out")
    assert not (tmp_path / "out").exists()
