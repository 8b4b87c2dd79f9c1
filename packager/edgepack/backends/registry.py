"""Every backend: one module each, in one dict."""

from __future__ import annotations

from edgepack.backends import acl, coreml, cpu, cuda, nnapi, openvino, qnn, tensorrt, xnnpack
from edgepack.backends.base import Backend

BACKENDS: dict[str, Backend] = {
    acl.NAME: acl,
    coreml.NAME: coreml,
    cpu.NAME: cpu,
    cuda.NAME: cuda,
    nnapi.NAME: nnapi,
    openvino.NAME: openvino,
    qnn.NAME: qnn,
    tensorrt.NAME: tensorrt,
    xnnpack.NAME: xnnpack,
}
"""Every backend by the name that profiles use."""
