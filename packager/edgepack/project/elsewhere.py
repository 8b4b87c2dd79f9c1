"""Hardware and providers that edgepack has no target for: what exists, and what to use."""

from __future__ import annotations

from typing import NamedTuple


class Elsewhere(NamedTuple):
    """What exists for somebody who asks for a target that is none, each in one sentence."""

    names: tuple[str, ...]
    exists: str
    use: str
    source: str


ELSEWHERE = (
    Elsewhere(
        ("directml", "dml", "windowsml", "winml", "windows"),
        "on Windows, where edgepack makes no bundles, onnxruntime comes with Windows ML, to which"
        " new work on DirectML has moved",
        "give Windows ML the model of a bundle (models/cpu-fp32.onnx), or take --target intel or"
        " linux-x86-64 for the same machine under Linux",
        "https://onnxruntime.ai/docs/execution-providers/DirectML-ExecutionProvider (2026-11-26)",
    ),
    Elsewhere(
        ("migraphx", "rocm", "amd", "radeon"),
        "MIGraphX is AMD's provider for GPUs with ROCm, in builds of onnxruntime that AMD offers,"
        " and edgepack does not know what it takes",
        "install onnxruntime as rocm.docs.amd.com says, and give it the model of a bundle"
        " (models/cpu-fp32.onnx); on the processor take --target linux-x86-64",
        "https://rocm.docs.amd.com/projects/ai-ecosystem, Install ONNX Runtime (2026-11-26)",
    ),
    Elsewhere(
        ("vitisai", "vitis-ai", "ryzenai", "ryzen-ai", "xdna", "kria", "zynq", "versal"),
        "VitisAI is AMD's provider for Ryzen AI under Windows and for Zynq and Versal boards under"
        " Linux, and compiles models with tools of AMD's",
        "follow AMD's Vitis AI; on a board's processor take --target linux-aarch64",
        "https://onnxruntime.ai/docs/execution-providers/Vitis-AI-ExecutionProvider (2026-11-26)",
    ),
    Elsewhere(
        ("rknpu", "rknn", "rockchip", "rk3566", "rk3568", "rk3576", "rk3588"),
        "onnxruntime's RKNPU provider is for the RK1808 alone; RK3566, RK3568, RK3576 and RK3588"
        " run models that RKNN-Toolkit2 has converted",
        "convert the model with RKNN-Toolkit2 (github.com/airockchip/rknn-toolkit2); on the board's"
        " processor take --target linux-aarch64",
        "https://onnxruntime.ai/docs/execution-providers/community-maintained/"
        "RKNPU-ExecutionProvider, README of airockchip/rknn-toolkit2 (2026-11-26)",
    ),
    Elsewhere(
        ("webgpu",),
        "in browsers the target 'web' has WebGPU, and natively the plugin onnxruntime-ep-webgpu"
        " does, for which edgepack makes no bundles",
        "take --target web, or give the plugin the model of a bundle (models/cpu-fp32.onnx)",
        "PyPI onnxruntime-ep-webgpu 0.4.0 (2026-11-22)",
    ),
    Elsewhere(
        ("wasm", "browser", "javascript", "npm", "onnxruntime-web"),
        "the target for browsers is called 'web'",
        "take --target web",
        "npm onnxruntime-web 1.30.0 (2026-11-28)",
    ),
)


def find_elsewhere(name: str) -> Elsewhere | None:
    """Return what exists for a name that is no target's; None if nothing is known of it."""
    wanted = name.lower().replace("_", "-")
    return next((each for each in ELSEWHERE if wanted in each.names), None)
