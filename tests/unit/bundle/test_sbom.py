"""The SBOM of a bundle, held against the manifest that it is made from."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from edgepack.base.resources import find_templates_dir
from edgepack.bundle.manifest import (
    Accuracy,
    Bucket,
    BundleFile,
    Manifest,
    Provenance,
    SamplesUsed,
)
from edgepack.bundle.reading import parse_manifest
from edgepack.bundle.sbom import make_sbom

from tests.support.reports.tiny_bundle import write_tiny_bundle

SHA256 = re.compile("[0-9a-f]{64}")


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    folder = write_tiny_bundle(tmp_path_factory.mktemp("tiny") / "bundle")
    return parse_manifest((folder / "manifest.json").read_bytes())


def document(manifest: Manifest, **changes: Any) -> dict[str, Any]:
    found = json.loads(make_sbom(manifest.model_copy(update=changes)))
    assert isinstance(found, dict)
    return found


def component(document: dict[str, Any], ref: str) -> dict[str, Any]:
    [found] = [entry for entry in document["components"] if entry["bom-ref"] == ref]
    return found


def metrics(component: dict[str, Any]) -> list[dict[str, Any]]:
    found = component["modelCard"]["quantitativeAnalysis"]["performanceMetrics"]
    assert isinstance(found, list)
    return found


def accuracy(value: float, drop: float | None) -> Accuracy:
    return Accuracy(
        metric="top1",
        higher_is_better=True,
        samples=100,
        fp32=0.75,
        value=value,
        drop=drop,
        drop_interval=None if drop is None else (drop - 0.125, drop + 0.125),
        agreement=None,
        worst=None,
    )


def test_document_when_read_is_a_bom_of_cyclonedx_whose_references_hold(manifest):
    found = document(manifest)
    assert (found["bomFormat"], found["specVersion"], found["version"]) == ("CycloneDX", "1.6", 1)
    refs = [found["metadata"]["component"]["bom-ref"], *(c["bom-ref"] for c in found["components"])]
    assert len(refs) == len(set(refs))
    for entry in found["dependencies"]:
        assert {entry["ref"], *entry["dependsOn"]} <= set(refs)
    for entry in found["components"]:
        assert all(SHA256.fullmatch(h["content"]) for h in entry.get("hashes", []))


def test_document_when_made_again_is_the_same_and_names_its_content(manifest):
    assert make_sbom(manifest) == make_sbom(manifest)
    assert b"timestamp" not in make_sbom(manifest)
    serial = document(manifest)["serialNumber"]
    # Version 5 is the one that is made from a name, and the variant is RFC 4122's.
    assert re.fullmatch(
        "urn:uuid:[0-9a-f]{8}-[0-9a-f]{4}-5[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}", serial
    )
    assert document(manifest, plan_digest="1" * 64)["serialNumber"] != serial


def test_models_when_listed_have_the_hashes_and_figures_of_the_manifest(manifest):
    int8, fp32 = manifest.variants
    file = BundleFile(
        path="models/cpu-int8-static.onnx", sha256="a" * 64, size_bytes=1, mode="644", role="model"
    )
    weights = file.model_copy(update={"path": "models/shared.weights", "sha256": "b" * 64})
    variants = [
        int8.model_copy(update={"model": file.path, "accuracy": accuracy(0.5, 0.25)}),
        fp32.model_copy(update={"accuracy": accuracy(0.75, None)}),
    ]
    found = document(manifest, variants=variants, files=[*manifest.files, file, weights])
    source = component(found, "source-model")
    assert source["type"] == "machine-learning-model"
    assert source["name"] == "tiny.onnx"
    assert source["hashes"] == [{"alg": "SHA-256", "content": manifest.model.sha256}]
    assert metrics(source) == [{"type": "top1", "value": "0.75"}]
    assert component(found, file.path)["hashes"][0]["content"] == "a" * 64
    assert metrics(component(found, file.path)) == [
        {"type": "top1", "value": "0.5"},
        {
            "type": "top1 drop from fp32",
            "value": "0.25",
            "confidenceInterval": {"lowerBound": "0.125", "upperBound": "0.375"},
        },
    ]
    assert metrics(component(found, fp32.model)) == [{"type": "top1", "value": "0.75"}]
    assert component(found, weights.path)["type"] == "data"
    assert "modelCard" not in component(found, weights.path)


def test_models_when_a_variant_has_one_for_each_size_have_its_figures_once(manifest):
    files = [
        BundleFile(
            path=f"models/n.{n}.onnx", sha256=f"{n}" * 64, size_bytes=1, mode="644", role="model"
        )
        for n in (1, 2)
    ]
    buckets = [
        Bucket(dims={"n": n + 1}, model=f.path, model_sha256=f.sha256) for n, f in enumerate(files)
    ]
    variant = manifest.variants[0].model_copy(
        update={"model": files[1].path, "buckets": buckets, "accuracy": accuracy(0.5, None)}
    )
    found = document(manifest, variants=[variant], files=files)
    small, large = (component(found, file.path) for file in files)
    assert metrics(large) == [{"type": "top1", "value": "0.5"}]
    assert small["modelCard"] == {}
    assert small["properties"] == large["properties"]


def test_packages_when_pinned_have_a_version_in_their_purl(manifest):
    found = document(manifest, runtime={"onnxruntime": "==1.31.1", "numpy": ">=1.26"})
    pinned, open_ = (
        component(found, "pkg:pypi/onnxruntime@1.31.1"),
        component(found, "pkg:pypi/numpy"),
    )
    assert (pinned["version"], pinned["purl"]) == ("1.31.1", "pkg:pypi/onnxruntime@1.31.1")
    assert "version" not in open_
    assert open_["properties"] == [{"name": "edgepack:requirement", "value": ">=1.26"}]


@pytest.mark.parametrize(
    ("family", "name", "purl"),
    [
        (
            "android",
            "com.microsoft.onnxruntime:onnxruntime-android",
            "pkg:maven/com.microsoft.onnxruntime/onnxruntime-android@1.31.1",
        ),
        ("apple", "onnxruntime-c", "pkg:generic/onnxruntime-c@1.31.1"),
        ("web", "onnxruntime-web", "pkg:npm/onnxruntime-web@1.31.1"),
    ],
)
def test_packages_when_of_apps_are_of_their_own_registries(manifest, family, name, purl):
    found = document(manifest, family=family, runtime={name: "1.31.1"})
    assert component(found, purl)["name"] == name


def test_packages_when_the_service_is_in_the_bundle_are_its_too(manifest):
    served = (find_templates_dir() / "service/requirements-serve.txt").read_text()
    found = json.loads(make_sbom(manifest, served))
    purls = [entry["purl"] for entry in found["components"] if "purl" in entry]
    assert len(purls) == len(set(purls))
    wanted = [line for line in served.splitlines() if not line.startswith("#")]
    assert len(purls) == len(manifest.runtime) + len(wanted)
    assert set(purls) <= set(found["dependencies"][0]["dependsOn"])
    [uvicorn] = [entry for entry in found["components"] if entry["name"] == "uvicorn"]
    assert f"uvicorn=={uvicorn['version']}" in wanted
    pinned, open_ = (entry for entry in found["components"] if entry["name"] == "fastapi")
    assert "version" not in open_
    assert pinned["properties"] == [
        {"name": "edgepack:marker", "value": 'python_version >= "3.11"'}
    ]


def test_provenance_when_known_is_told(manifest):
    provenance = Provenance(
        profile_sha256="c" * 64,
        calibration=SamplesUsed(samples=24, sha256="d" * 64),
        evaluation=None,
    )
    told = document(manifest, provenance=provenance)["metadata"]["properties"]
    assert {entry["name"]: entry["value"] for entry in told} == {
        "edgepack:plan:sha256": manifest.plan_digest,
        "edgepack:profile:sha256": "c" * 64,
        "edgepack:calibration:samples": "24",
        "edgepack:calibration:samples:sha256": "d" * 64,
    }


def test_example_manifest_when_made_into_a_bom_lists_every_model_file():
    path = Path(__file__).resolve().parents[3] / "docs/examples/manifest.json"
    example = parse_manifest(path.read_bytes())
    listed = {entry["bom-ref"] for entry in document(example)["components"]}
    assert {file.path for file in example.files if file.role == "model"} <= listed
