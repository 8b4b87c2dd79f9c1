"""A small real bundle for tests of what runs on devices: two variants of one convolution."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import numpy as np
from edgepack.base.resources import find_ondevice_dir
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

VARIANTS = ("cpu-int8-static", "cpu-fp32")
LOADER = (
    "edgepack_answers.py",
    "edgepack_batches.py",
    "edgepack_binding.py",
    "edgepack_counters.py",
    "edgepack_ctc.py",
    "edgepack_frames.py",
    "edgepack_images.py",
    "edgepack_layouts.py",
    "edgepack_loader.py",
    "edgepack_masks.py",
    "edgepack_meaning.py",
    "edgepack_names.py",
    "edgepack_providers.py",
    "edgepack_nvidia.py",
    "edgepack_resizing.py",
    "edgepack_ring.py",
    "edgepack_shapes.py",
    "edgepack_sounds.py",
    "edgepack_wordpiece.py",
)
ROLES: dict[str, Literal["model", "golden", "harness"]] = {
    ".onnx": "model",
    ".bin": "golden",
    ".py": "harness",
}


def import_loader() -> ModuleType:
    """Import the loader as a user of a bundle does, from its file."""
    path = find_ondevice_dir() / "runtime/edgepack_loader.py"
    spec = importlib.util.spec_from_file_location("edgepack_loader", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def write_tiny_bundle(
    folder: Path, size: int = 8, save: Callable[[Path, int], object] | None = None
) -> Path:
    """Write a bundle whose two variants are both plain fp32, which is enough for a loader.

    ``save`` writes another model with the same inputs and outputs as :func:`save_model`'s.
    """
    for name in ("models", "golden", "harness"):
        (folder / name).mkdir(parents=True)
    for path in find_ondevice_dir().glob("*/edgepack_*.py"):
        shutil.copy(path, folder if path.name in LOADER else folder / "harness")
    (save or save_model)(folder / "models" / "cpu-fp32.onnx", size)
    goldens = [_golden(folder, index, size) for index in range(2)]
    manifest = _manifest(folder, goldens, size)
    _write_manifest(folder, manifest.model_dump_json(indent=2))
    return folder


def change_manifest(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Rewrite the manifest with a change, and its digest."""
    manifest = json.loads((folder / MANIFEST).read_text())
    change(manifest)
    _write_manifest(folder, json.dumps(manifest, indent=2))


def save_model(path: Path, size: int) -> None:
    """Save ``y = relu(conv(x))``, (n, 3, size, size) float32 to (n, 4, size, size) float32."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    weights = np.random.default_rng(7).standard_normal((4, 3, 3, 3)).astype(np.float32)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], name="conv", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["y"], name="relu"),
    ]
    graph = helper.make_graph(
        nodes,
        "tiny",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, size, size])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 4, size, size])],
        [numpy_helper.from_array(weights, "w")],
    )
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=9), path)


def _golden(folder: Path, index: int, size: int) -> Golden:
    import onnxruntime as ort

    x = np.random.default_rng(index).standard_normal((1, 3, size, size)).astype(np.float32)
    session = ort.InferenceSession(folder / "models" / "cpu-fp32.onnx")
    y = session.run(["y"], {"x": x})[0]
    output = _tensor(folder, f"golden/{index}-y.bin", "y", y)
    return Golden(
        inputs=[_tensor(folder, f"golden/{index}-x.bin", "x", x)],
        outputs={name: [output] for name in VARIANTS},
    )


def _tensor(folder: Path, path: str, name: str, array: np.ndarray) -> GoldenTensor:
    (folder / path).write_bytes(array.astype("<f4").tobytes())
    return GoldenTensor(name=name, path=path, dtype="float32", shape=list(array.shape))


def _variant(folder: Path, name: str) -> ManifestVariant:
    model = "models/cpu-fp32.onnx"
    return ManifestVariant(
        id=name,
        backend="cpu",
        recipe="int8-static" if "int8" in name else "fp32",
        model=model,
        model_sha256=_sha256(folder / model),
        providers=[Provider(name="CPUExecutionProvider")],
        placement="all",
        session=SessionSettings(intra_op_num_threads=1),
        requires=Requires(),
        min_sqnr_db=40.0,
        accuracy=NotMeasured(reason="the project has no evaluation samples"),
    )


def _manifest(folder: Path, goldens: list[Golden], size: int) -> Manifest:
    return Manifest(
        schema_version=1,
        name="tiny",
        version="1.0.0",
        target="linux-x86-64",
        family="linux",
        model=SourceModel(name="tiny.onnx", sha256="0" * 64, opset=17, ir_version=9),
        inputs=[Tensor(name="x", dtype="float32", shape=["n", 3, size, size])],
        outputs=[Tensor(name="y", dtype="float32", shape=["n", 4, size, size])],
        input_descriptions={},
        output_descriptions={},
        variants=[_variant(folder, name) for name in VARIANTS],
        unused=[],
        goldens=goldens,
        goldens_from="seeded random",
        runtime={"onnxruntime": ">=1.23", "numpy": ">=1.26"},
        built_on=BuildHost(os="Linux", processor="x86-64-vnni", tools={}),
        steps=[],
        plan_digest="0" * 64,
        files=[_file(folder, path) for path in sorted(folder.rglob("*")) if path.is_file()],
    )


def _file(folder: Path, path: Path) -> BundleFile:
    return BundleFile(
        path=path.relative_to(folder).as_posix(),
        sha256=_sha256(path),
        size_bytes=path.stat().st_size,
        mode="644",
        role="loader" if path.name in LOADER else ROLES[path.suffix],
    )


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _write_manifest(folder: Path, text: str) -> None:
    (folder / MANIFEST).write_text(text)
    digest = hashlib.sha256(text.encode()).hexdigest()
    (folder / MANIFEST_DIGEST).write_text(f"{digest}  {MANIFEST}\n")
