"""Lists every backend by the name that profiles use."""

from __future__ import annotations

from edgepack.backends import (
    acl,
    coreml,
    cpu,
    cuda,
    nnapi,
    openvino,
    qnn,
    tensorrt,
    webgpu,
    xnnpack,
)
from edgepack.backends.base import Backend

BACKENDS: dict[str, Backend] = {
    "acl": acl.BACKEND,
    "coreml": coreml.BACKEND,
    "cpu": cpu.BACKEND,
    "cuda": cuda.BACKEND,
    "nnapi": nnapi.BACKEND,
    "openvino": openvino.BACKEND,
    "qnn": qnn.BACKEND,
    "tensorrt": tensorrt.BACKEND,
    "webgpu": webgpu.BACKEND,
    "xnnpack": xnnpack.BACKEND,
}
