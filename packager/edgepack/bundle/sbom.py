"""``sbom.cdx.json``: a bundle's parts, as a CycloneDX 1.6 machine learning BOM.

All of it is in the manifest too; this file has it in the format that inventories and dependency
scanners read (https://cyclonedx.org/docs/1.6/json/). The model card is written by hand:
cyclonedx-python-lib 11.12 has no model cards.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote
from uuid import NAMESPACE_OID, uuid5

from packaging.requirements import Requirement

from edgepack.bundle.manifest import (
    Accuracy,
    BundleFile,
    Manifest,
    ManifestVariant,
    SamplesUsed,
    Tensor,
)
from edgepack.bundle.pipeline import PipelineManifest

SBOM = "sbom.cdx.json"

_MODEL = "source-model"
_ORIGIN = "framework-model"
_NOT_ON_PYPI = ("edgepack", "python")

AnyManifest = Manifest | PipelineManifest


def make_sbom(manifest: Manifest, served: str = "") -> bytes:
    """Return the document for a manifest that does not list it yet.

    It has no time, and its serial number is made from the manifest: equal manifests give equal
    bytes. Figures belong to the file that they were measured on, fp32's to the model itself.

    Args:
        manifest: The bundle's.
        served: The content of ``requirements-serve.txt``, where the service is in the bundle.
    """
    files = [_make_model_file(manifest, file) for file in manifest.files if file.role == "model"]
    files += [_make_library(manifest, file) for file in manifest.files if file.role == "library"]
    packages = _list_packages(manifest, served)
    origin = _make_origin(manifest)
    parts = [*origin, _make_source_model(manifest), *files, *packages]
    depends = {manifest.id: [part["bom-ref"] for part in (*files, *packages)]}
    depends |= {file["bom-ref"]: [_MODEL] for file in files if file["type"] != "library"}
    if origin:
        depends[_MODEL] = [_ORIGIN]
    return _write(manifest, parts, depends, _make_provenance(manifest))


def make_pipeline_sbom(manifest: PipelineManifest, served: str = "") -> bytes:
    """Return the document for several models, as :func:`make_sbom`; it refers to those of parts."""
    boms = {file.path: file.sha256 for file in manifest.files}
    parts: list[dict[str, Any]] = [
        {
            "type": "application",
            "bom-ref": entry.path,
            "name": name,
            "version": manifest.version,
            "externalReferences": [
                {
                    "type": "bom",
                    "url": f"{entry.path}/{SBOM}",
                    "hashes": _make_hashes(boms[f"{entry.path}/{SBOM}"]),
                }
            ],
        }
        for name, entry in manifest.parts.items()
    ]
    parts += _list_packages(manifest, served)
    return _write(manifest, parts, {manifest.id: [part["bom-ref"] for part in parts]}, [])


def _write(
    manifest: AnyManifest,
    parts: list[dict[str, Any]],
    depends: Mapping[str, list[str]],
    properties: list[dict[str, str]],
) -> bytes:
    document = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": uuid5(NAMESPACE_OID, manifest.model_dump_json()).urn,
        "version": 1,
        "metadata": {
            "tools": {
                "components": [_make_tool(name, v) for name, v in manifest.built_on.tools.items()]
            },
            "component": {
                "type": "application",
                "bom-ref": manifest.id,
                "name": manifest.name,
                "version": manifest.version,
                "description": f"A bundle for {manifest.target}",
            },
            "properties": properties,
        },
        "components": parts,
        "dependencies": [{"ref": ref, "dependsOn": on} for ref, on in depends.items()],
    }
    return (json.dumps(document, indent=2) + "\n").encode()


def _make_origin(manifest: Manifest) -> list[dict[str, Any]]:
    """Return the component of what the ONNX model was converted from, if it was."""
    origin = manifest.model.converted_from
    if origin is None:
        return []
    packages = [_make_property(f"package:{name}", v) for name, v in origin.packages.items()]
    metrics = [_make_metric(f"farthest:{each.name}", each.farthest) for each in origin.outputs]
    return [
        {
            "type": "machine-learning-model",
            "bom-ref": _ORIGIN,
            "name": manifest.model.name,
            "version": manifest.version,
            "hashes": _make_hashes(origin.sha256),
            "properties": [_make_property("format", origin.format), *packages],
            "modelCard": _make_metrics(metrics),
        }
    ]


def _make_source_model(manifest: Manifest) -> dict[str, Any]:
    accuracies = [v.accuracy for v in manifest.variants if isinstance(v.accuracy, Accuracy)]
    fp32 = {a.metric: a.fp32 for a in accuracies if isinstance(a.fp32, float)}
    card: dict[str, Any] = {
        "modelParameters": {
            "inputs": [_format_tensor(tensor) for tensor in manifest.inputs],
            "outputs": [_format_tensor(tensor) for tensor in manifest.outputs],
        }
    }
    return {
        "type": "machine-learning-model",
        "bom-ref": _MODEL,
        "name": manifest.model.name,
        "version": manifest.version,
        "hashes": _make_hashes(manifest.model.sha256),
        "modelCard": card
        | _make_metrics([_make_metric(metric, value) for metric, value in fp32.items()]),
    }


def _make_model_file(manifest: Manifest, file: BundleFile) -> dict[str, Any]:
    """Return the component of a file in ``models``: a model, or weights that models share."""
    variants = [
        variant
        for variant in manifest.variants
        if file.path in {variant.model, *(bucket.model for bucket in variant.buckets)}
    ]
    component: dict[str, Any] = {
        "type": "machine-learning-model" if variants else "data",
        "bom-ref": file.path,
        "name": file.path,
        "version": manifest.version,
        "hashes": _make_hashes(file.sha256),
    }
    if variants:
        component["modelCard"] = _make_metrics(list(_list_figures(variants, file.path)))
        component["properties"] = [
            _make_property(name, value)
            for variant in variants
            for name, value in (("variant", variant.id), ("recipe", variant.recipe))
        ]
    return component


def _make_library(manifest: Manifest, file: BundleFile) -> dict[str, Any]:
    """Return the component of a library with custom operators."""
    return {
        "type": "library",
        "bom-ref": file.path,
        "name": file.path,
        "version": manifest.version,
        "hashes": _make_hashes(file.sha256),
    }


def _list_figures(variants: list[ManifestVariant], path: str) -> Iterator[dict[str, Any]]:
    """Yield each figure of a file once; that of a variant with buckets is at the largest."""
    seen = []
    for variant in variants:
        found = variant.accuracy
        if variant.model != path or not isinstance(found, Accuracy) or found in seen:
            continue
        seen.append(found)
        yield _make_metric(found.metric, found.value)
        if found.drop is not None:
            yield _make_metric(f"{found.metric} drop from fp32", found.drop, found.drop_interval)


def _make_metric(
    kind: str, value: float, interval: tuple[float, float] | None = None
) -> dict[str, Any]:
    metric: dict[str, Any] = {"type": kind, "value": str(value)}
    if interval:
        lower, upper = map(str, interval)
        metric["confidenceInterval"] = {"lowerBound": lower, "upperBound": upper}
    return metric


def _make_metrics(metrics: list[dict[str, Any]]) -> dict[str, Any]:
    return {"quantitativeAnalysis": {"performanceMetrics": metrics}} if metrics else {}


def _format_tensor(tensor: Tensor) -> dict[str, str]:
    shape = ", ".join(map(str, tensor.shape))
    return {"format": f"{tensor.name}: {tensor.dtype}[{shape}]"}


def _list_packages(manifest: AnyManifest, served: str) -> list[dict[str, Any]]:
    """Return the runtime's packages and, as components of their own, those of the service."""
    found = {}
    for name, pin in manifest.runtime.items():
        part = _make_package(manifest, name, pin)
        found[part["bom-ref"]] = part
    for line in served.splitlines():
        if not line or line.startswith("#"):
            continue
        wanted = Requirement(line)
        part = _make_package(manifest, wanted.name, str(wanted.specifier))
        if wanted.marker:
            marker = _make_property("marker", str(wanted.marker))
            part["properties"] = [*part.get("properties", []), marker]
        found.setdefault(part["bom-ref"], part)
    return list(found.values())


def _make_package(manifest: AnyManifest, name: str, pin: str) -> dict[str, Any]:
    """Return the component of a package; a package that is not pinned has no version."""
    version = pin.removeprefix("==")
    exact = version[:1].isdigit() and not {",", "*"} & set(version)
    purl = _make_purl(manifest, name) + (f"@{quote(version)}" if exact else "")
    component: dict[str, Any] = {"type": "library", "bom-ref": purl, "name": name, "purl": purl}
    if exact:
        return component | {"version": version}
    return component | {"properties": [_make_property("requirement", pin)]}


def _make_purl(manifest: AnyManifest, name: str) -> str:
    if manifest.family == "android":
        group, _, artifact = name.partition(":")
        return f"pkg:maven/{quote(group)}/{quote(artifact)}"
    kind = {"linux": "pypi", "web": "npm"}.get(manifest.family, "generic")
    return f"pkg:{kind}/{quote(name)}"


def _make_tool(name: str, version: str) -> dict[str, Any]:
    tool = {"type": "application", "name": name, "version": version}
    return tool if name in _NOT_ON_PYPI else tool | {"purl": f"pkg:pypi/{name}@{quote(version)}"}


def _make_provenance(manifest: Manifest) -> list[dict[str, str]]:
    found = manifest.provenance
    known = {"plan sha256": manifest.plan_digest}
    if found:
        known["profile sha256"] = found.profile_sha256
        for role in ("calibration", "evaluation"):
            samples: SamplesUsed | None = getattr(found, role)
            if samples:
                known[f"{role} samples"] = str(samples.samples)
                known[f"{role} samples sha256"] = samples.sha256
    return [_make_property(name, value) for name, value in known.items()]


def _make_property(name: str, value: str) -> dict[str, str]:
    return {"name": f"edgepack:{name.replace(' ', ':')}", "value": value}


def _make_hashes(sha256: str) -> list[dict[str, str]]:
    return [{"alg": "SHA-256", "content": sha256}]
