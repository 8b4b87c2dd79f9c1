"""A bundle's models: written with their weights, a file each or one per size."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from edgepack.backends.registry import find_backend
from edgepack.base.schema import NotMeasured
from edgepack.builder.job import JudgedBundle
from edgepack.builder.plan import PlannedVariant
from edgepack.bundle.manifest import Bucket, CompiledModel
from edgepack.bundle.writing import BundleWriter
from edgepack.model.files import MODEL, ORT_MODEL
from edgepack.model.reading import (
    hash_model,
    list_external_files,
    list_external_tensors,
    read_model,
    read_outline,
    read_structure,
)
from edgepack.steps.graph.compiled import CONTEXT, PLACE, read_compiled
from edgepack.steps.graph.ort_format import OPERATORS
from edgepack.steps.recipes.bucketed import read_buckets


@dataclass(frozen=True)
class ModelFiles:
    """What a bundle has of one variant's model."""

    path: str
    """In the bundle; with buckets that of the largest."""
    sha256: str
    """Of the model with its weights: caches of compiled models go by it."""
    buckets: list[Bucket]
    size_bytes: int
    """Of all models with their weights."""
    compiled: list[CompiledModel] | NotMeasured


def write_models(judged: JudgedBundle, writer: BundleWriter) -> list[ModelFiles]:
    """Write the models of the variants, and which operators their .ort files need.

    Raises:
        BundleError: Two files have one name.
    """
    models = [_write_model(judged, planned, writer) for planned in judged.shipped]
    if operators := list_ort_operators(judged):
        text = "".join(f"{line}\n" for line in operators)
        writer.add(f"models/{OPERATORS}", text.encode(), role="document")
    return models


def list_ort_operators(judged: JudgedBundle) -> list[str]:
    """Return what a runtime for all the .ort files needs, as lines of a build's config.

    Each line is an operator set with operators and types; a build takes the union of lines.
    """
    configs = [
        judged.find_folder(planned.shipped) / OPERATORS
        for planned in judged.shipped
        if planned.variant.model_format != "onnx"
    ]
    lines = [line for path in configs for line in path.read_text("utf-8").splitlines()]
    return sorted(set(lines))


def _write_model(judged: JudgedBundle, planned: PlannedVariant, writer: BundleWriter) -> ModelFiles:
    folder, variant = judged.find_folder(planned.shipped), planned.variant
    if planned.bucketed:
        index = read_buckets(judged.find_folder(planned.bucketed))
        buckets = [
            _write_bucket(writer, folder / bucket.file, variant.id, bucket.dims)
            for bucket in index.buckets
        ]
        last = buckets[-1]
        size = _count_bytes(writer, [bucket.model for bucket in buckets])
        compiled = _write_compiled(judged, planned, writer, last.model_sha256)
        return ModelFiles(last.model, last.model_sha256, buckets, size, compiled)
    if variant.model_format == "onnx":
        path = add_onnx(writer, folder / MODEL, variant.id, f"{variant.id}.onnx")
        digest = hash_model(writer.folder / path)
        compiled = _write_compiled(judged, planned, writer, digest)
        return ModelFiles(path, digest, [], _count_bytes(writer, [path]), compiled)
    data = (folder / ORT_MODEL).read_bytes()
    path = writer.add(f"models/{variant.id}.ort", data, role="model")
    return ModelFiles(path, writer.files[path].sha256, [], len(data), [])


def _write_compiled(
    judged: JudgedBundle, planned: PlannedVariant, writer: BundleWriter, source_sha256: str
) -> list[CompiledModel] | NotMeasured:
    """Write the models that were compiled from a variant's, each with the file beside it."""
    if not isinstance(planned.compiled, str):
        return planned.compiled or []
    if error := judged.execution.failed.get(planned.compiled):
        return NotMeasured(reason=error.problem)
    artifact, variant = judged.execution.artifacts[planned.compiled], planned.variant
    artifact.require_whole()
    written = []
    for each in read_compiled(artifact.path):
        stem = f"models/{variant.id}.{each['hardware']}"
        data = (artifact.path / each["beside"]).read_bytes()
        beside = writer.add(f"{stem}.bin", data, role="model")
        model = read_model(artifact.path / each["file"])
        for node in model.graph.node:
            for attribute in node.attribute if node.op_type == CONTEXT else ():
                if attribute.name == PLACE and attribute.s:
                    attribute.s = PurePosixPath(beside).name.encode()
        path = writer.add(f"{stem}.onnx", model.SerializeToString(), role="model")
        digests = [writer.files[name].sha256 for name in (path, beside)]
        written.append(
            CompiledModel(
                hardware=each["hardware"],
                option=find_backend(variant).hardware_option,
                model=path,
                model_sha256=hashlib.sha256("".join(digests).encode()).hexdigest(),
                beside=beside,
                source_sha256=source_sha256,
                compiler=each["compiler"],
                sdk=each["sdk"],
            )
        )
    return written


def _write_bucket(
    writer: BundleWriter, model: Path, variant_id: str, dims: dict[str, int]
) -> Bucket:
    name = f"{variant_id}.{'x'.join(map(str, dims.values()))}.onnx"
    path = add_onnx(writer, model, variant_id, name)
    return Bucket(dims=dims, model=path, model_sha256=hash_model(writer.folder / path))


def _count_bytes(writer: BundleWriter, models: list[str]) -> int:
    """Return the size of .onnx models together with the files that hold their weights."""
    found = [list_external_files(read_outline(writer.folder / path)) for path in models]
    paths = {*models, *(f"models/{name}" for names in found for name in names)}
    return sum(writer.files[path].size_bytes for path in paths)


def add_onnx(writer: BundleWriter, model: Path, variant: str, name: str) -> str:
    """Write a model into ``models``, with its external data under the variant's name.

    The model is written anew to say where its data lies, so that two variants with data of their
    own do not want the same name; those with the same data share the file.

    Returns:
        The model's path in the bundle.
    """
    files = list_external_files(read_outline(model))
    if not files:
        return writer.add(f"models/{name}", model.read_bytes(), role="model")
    structure = read_structure(model)
    places = {}
    for file in files:
        path = f"models/{variant}.{file.removeprefix(f'{MODEL}.').removeprefix('model.')}"
        data = (model.parent / file).read_bytes()
        places[file] = PurePosixPath(writer.add(path, data, role="model")).name
    for tensor in list_external_tensors(structure):
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = places[entry.value]
    return writer.add(f"models/{name}", structure.SerializeToString(), role="model")
