"""What the runtimes are tried with: one-node models, and projects to build bundles from."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from edgepack.project.profile import Dialect, OrtFormat, Profile, Variant
from onnx import TensorProto, helper

from tests.support.nets import tiny_models

IRS = range(8, 17)
OPSETS = range(15, 31)
NEWEST_IR = 13
"""The newest that the build's onnxruntime 1.31.1 loads; jetson's does not: the build lowers it."""
DYNAMIC = Dialect(activations="uint8", weights="uint8", symmetric=False, per_channel=True)
"""Weights of int8 would saturate where the build's processor is an x86-64 without VNNI."""


def write_limits(folder: Path) -> None:
    """Write ``ir-N.onnx`` and ``opset-N.onnx``, of one node each, and ``qdq-N.onnx``, of two.

    onnxruntime 1.23.2 loads opset 23 and has no kernel for its QuantizeLinear.
    """
    for version in IRS:
        tiny_models.relu(folder / f"ir-{version}.onnx", opset=15, ir=version)
    for version in OPSETS:
        tiny_models.relu(folder / f"opset-{version}.onnx", opset=version, ir=8)
        _quantize(folder / f"qdq-{version}.onnx", version)


def _quantize(path: Path, opset: int) -> None:
    value = (TensorProto.FLOAT, [1, 4])
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["q"], "quantize"),
        helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["y"], "dequantize"),
    ]
    constants = [("scale", np.float32(0.1)), ("zero", np.uint8(128))]
    tiny_models.save(path, nodes, [("x", *value)], [("y", *value)], constants, opset=opset, ir=8)


def write_newest_project(folder: Path, opset: int, profiles: Sequence[Profile]) -> Path:
    """Write a project whose model has the highest opset that these profiles' runtimes load.

    Its targets have their own variants, and beside them what no profile has: a dynamically
    quantized one, and one more in onnxruntime's format: for iPhones, its optimizations are left to
    the session.
    """
    _newest_net(folder / "net.onnx", opset)
    random = np.random.default_rng(5)
    for name in ("calibration", "evaluation"):
        image = random.standard_normal((24, 3, 8, 8)).astype(np.float32)
        np.savez(folder / f"{name}.npz", image=image)
    document: dict[str, Any] = {
        "schema_version": 1,
        "name": f"opset-{opset}",
        "version": "1.0.0",
        "model": "net.onnx",
        "samples": {
            "calibration": {"path": "calibration.npz"},
            "evaluation": {"path": "evaluation.npz"},
        },
        "targets": [_target(profile) for profile in profiles],
    }
    path = folder / "edgepack.yaml"
    path.write_text(json.dumps(document, indent=1))  # JSON is YAML
    return path


def write_pictures_project(folder: Path, profiles: Sequence[Profile]) -> Path:
    """Write a project whose models take pictures: preprocessing is in the graph.

    Its variants are for the CPU, as the operators that preprocess are.
    """
    tiny_models.conv_net(folder / "net.onnx")
    random = np.random.default_rng(6)
    pixels = random.integers(0, 256, (12, 37, 53, 3), np.uint8)
    np.savez(folder / "pictures.npz", image=pixels)
    samples = {"path": "pictures.npz"}
    variants = [{"backend": "cpu", "recipe": recipe} for recipe in ("int8-static", "fp32")]
    document: dict[str, Any] = {
        "schema_version": 1,
        "name": "pictures",
        "version": "1.0.0",
        "model": "net.onnx",
        "inputs": {"image": {"image": {"resize": {"letterbox": 8}, "scale": 1 / 255}}},
        "preprocess": {"in_graph": True},
        "samples": {"calibration": samples, "evaluation": samples},
        "targets": [{"id": profile.id, "variants": variants} for profile in profiles],
    }
    path = folder / "edgepack.yaml"
    path.write_text(json.dumps(document, indent=1))
    return path


def _newest_net(path: Path, opset: int) -> None:
    """Image [1, 3, 8, 8] to 4 probabilities, with operators that came with late opsets.

    Gelu came with opset 20 and RMSNormalization with 23, as the operator changelog of onnx has it.
    """
    random = np.random.default_rng(4)

    def node(op: str, inputs: str, output: str, **attributes: object):
        return helper.make_node(op, inputs.split(), [output], output, **attributes)

    def normal(*shape: int):
        return random.standard_normal(shape).astype(np.float32)

    nodes = [
        node("Conv", "image w1 b1", "conv1", pads=[1, 1, 1, 1]),
        node("Relu", "conv1", "relu1"),
        node("Conv", "relu1 w2 b2", "conv2", pads=[1, 1, 1, 1]),
        node("Relu", "conv2", "relu2"),
        node("GlobalAveragePool", "relu2", "pool"),
        node("Flatten", "pool", "flat"),
        node("LayerNormalization", "flat ones", "layer"),
        node("Gemm", "layer w3 b3", "gemm1"),
        node("Gelu", "gemm1", "gelu"),
        node("RMSNormalization" if opset >= 23 else "LayerNormalization", "gelu ones", "norm"),
        node("Gemm", "norm w4 b4", "gemm2"),
        node("Softmax", "gemm2", "scores"),
    ]
    weights = [
        ("w1", normal(8, 3, 3, 3)),
        ("b1", normal(8)),
        ("w2", normal(8, 8, 3, 3) / 8),
        ("b2", normal(8)),
        ("ones", np.ones(8, np.float32)),
        ("w3", normal(8, 8) / 3),
        ("b3", normal(8)),
        ("w4", normal(8, 4)),
        ("b4", normal(4)),
    ]
    image, scores = [1, 3, 8, 8], [1, 4]
    tiny_models.save(
        path,
        nodes,
        [("image", TensorProto.FLOAT, image)],
        [("scores", TensorProto.FLOAT, scores)],
        weights,
        opset=opset,
        ir=NEWEST_IR,
    )


def _target(profile: Profile) -> dict[str, Any]:
    variants = [*profile.variants, *_extra_variants(profile)]
    return {"id": profile.id, "variants": [_written(variant) for variant in variants]}


def _extra_variants(profile: Profile) -> list[Variant]:
    base = profile.find_variant("cpu-int8-static")
    dynamic = {"id": "cpu-int8-dynamic", "recipe": "int8-dynamic", "dialect": DYNAMIC}
    # What the converter notes for the session is unknown to runtimes before 1.30 (checking.py), and
    # saturates on builds on x86-64 without VNNI: see AsOrt.
    style = OrtFormat(
        ort="runtime" if profile.family == "apple" else "fixed",
        platform="arm" if profile.device.arch == "aarch64" else "amd64",
    )
    as_ort = {"id": "cpu-int8-static-ort", "model_format": style}
    onnx = {**dynamic, "model_format": "onnx"}
    # The converter writes kernels for Arm and x86-64 alone.
    others = [] if profile.family == "web" else [as_ort]
    return [base.model_copy(update=each) for each in (onnx, *others)]


def _written(variant: Variant) -> dict[str, Any]:
    return {key: value for key, value in variant.model_dump().items() if value is not None}
