"""Bundles of models that a test chooses, one for each variant, without a build."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from edgepack.base.schema import NotMeasured
from edgepack.bundle.manifest import (
    MANIFEST,
    MANIFEST_DIGEST,
    BuildHost,
    BundleFile,
    Golden,
    GoldenTensor,
    Manifest,
    ManifestVariant,
    SourceModel,
    Tensor,
)
from edgepack.project.profile import Provider, Requires, SessionSettings
from edgepack.project.project import Project
from onnx import TensorProto, helper

from tests.support.nets import tiny_models

Array = np.ndarray[Any, Any]
FLOAT = TensorProto.FLOAT


def answering(
    path: Path, inputs: Mapping[str, Sequence[Any]], outputs: Mapping[str, Array]
) -> Path:
    """Write a model that gives the same outputs to whatever it is given: float32 inputs."""
    constants = [("tiny", np.float32(1e-30))]
    nodes = [
        helper.make_node("ReduceMean", [name], [f"{name}.mean"], keepdims=0) for name in inputs
    ]
    means = [f"{name}.mean" for name in inputs]
    nodes.append(helper.make_node("Sum", means, ["mean"]))
    nodes.append(helper.make_node("Mul", ["mean", "tiny"], ["nothing"]))
    for name, value in outputs.items():
        constants.append((f"{name}.value", np.asarray(value, np.float32)))
        nodes.append(helper.make_node("Add", [f"{name}.value", "nothing"], [name]))
    return tiny_models.save(
        path,
        nodes,
        [(name, FLOAT, list(shape)) for name, shape in inputs.items()],
        [(name, FLOAT, list(np.shape(value))) for name, value in outputs.items()],
        constants,
    )


def write_bundle(
    folder: Path,
    models: Mapping[str, Path],
    *,
    described: Mapping[str, Any] | None = None,
    files: Mapping[str, str] | None = None,
    providers: Mapping[str, str] | None = None,
) -> Path:
    """Write a bundle of models with one interface, best first; zeros are its golden input.

    Args:
        folder: Of the bundle.
        models: By variant id, ``<backend>-<recipe>``.
        described: ``inputs``, ``outputs`` and ``preprocess`` as edgepack.yaml has them.
        files: Texts by name.
        providers: By variant, another execution provider than the CPU's.
    """
    for name in ("models", "golden", "files"):
        (folder / name).mkdir(parents=True)
    for name, text in (files or {}).items():
        (folder / "files" / name).write_text(text)
    outputs = {}
    for name, path in models.items():
        (folder / "models" / f"{name}.onnx").write_bytes(path.read_bytes())
        session = ort.InferenceSession(path)
        feed = {
            spec.name: np.zeros([s if isinstance(s, int) else 1 for s in spec.shape], _dtype(spec))
            for spec in session.get_inputs()
        }
        names = [spec.name for spec in session.get_outputs()]
        outputs[name] = [
            _golden(folder, f"golden/{name}-{number}.bin", each, value)
            for number, (each, value) in enumerate(
                zip(names, session.run(names, feed), strict=True)
            )
        ]
        specs = session.get_inputs(), session.get_outputs()
    given = [
        _golden(folder, f"golden/{number}.bin", name, value)
        for number, (name, value) in enumerate(feed.items())
    ]
    project = Project.model_validate(
        {"schema_version": 1, "name": "x", "model": "x.onnx", **(described or {})}
    )
    manifest = Manifest(
        schema_version=1,
        name="tried",
        version="1.0.0",
        target="linux-x86-64",
        family="linux",
        model=SourceModel(name="x.onnx", sha256="0" * 64, opset=17, ir_version=9),
        inputs=[_tensor(spec) for spec in specs[0]],
        outputs=[_tensor(spec) for spec in specs[1]],
        input_descriptions=project.inputs,
        output_descriptions=project.outputs,
        preprocess=project.preprocess,
        variants=[_variant(folder, name, (providers or {}).get(name)) for name in models],
        unused=[],
        goldens=[Golden(inputs=given, outputs=outputs)],
        goldens_from="seeded random",
        runtime={"onnxruntime": ">=1.23"},
        built_on=BuildHost(os="Linux", processor="x86-64-vnni", tools={}),
        steps=[],
        plan_digest="0" * 64,
        files=[_file(folder, path) for path in sorted(folder.rglob("*")) if path.is_file()],
    )
    text = manifest.model_dump_json(indent=2)
    (folder / MANIFEST).write_text(text)
    digest = hashlib.sha256(text.encode()).hexdigest()
    (folder / MANIFEST_DIGEST).write_text(f"{digest}  {MANIFEST}\n")
    return folder


DTYPES = {"tensor(float)": "float32", "tensor(int64)": "int64", "tensor(uint8)": "uint8"}


def _dtype(spec: Any) -> str:
    return DTYPES[spec.type]


def _tensor(spec: Any) -> Tensor:
    return Tensor(name=spec.name, dtype=_dtype(spec), shape=list(spec.shape))


def _golden(folder: Path, path: str, name: str, array: Array) -> GoldenTensor:
    (folder / path).write_bytes(array.tobytes())
    return GoldenTensor(name=name, path=path, dtype=str(array.dtype), shape=list(array.shape))


def _variant(folder: Path, name: str, provider: str | None) -> ManifestVariant:
    backend, _, recipe = name.partition("-")
    return ManifestVariant(
        id=name,
        backend=backend,
        recipe=recipe,
        model=f"models/{name}.onnx",
        model_sha256=_sha256(folder / "models" / f"{name}.onnx"),
        providers=[Provider(name=provider or "CPUExecutionProvider")],
        placement="all",
        session=SessionSettings(intra_op_num_threads=1),
        requires=Requires(),
        min_sqnr_db=40.0,
        accuracy=NotMeasured(reason="the project has no evaluation samples"),
    )


ROLES = {"models": "model", "golden": "golden", "files": "file"}


def _file(folder: Path, path: Path) -> BundleFile:
    return BundleFile(
        path=path.relative_to(folder).as_posix(),
        sha256=_sha256(path),
        size_bytes=path.stat().st_size,
        mode="644",
        role=ROLES[path.parent.name],
    )


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
