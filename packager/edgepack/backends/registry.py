"""Lists every backend by the name that profiles use."""

from __future__ import annotations

from edgepack.backends import (
    acl,
    coreml,
    cpu,
    cuda,
    nnapi,
    openvino,
    plugin,
    qnn,
    tensorrt,
    webgpu,
    xnnpack,
)
from edgepack.backends.base import Backend
from edgepack.project.profile import Variant

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
"""The providers that edgepack knows."""


def find_backend(variant: Variant) -> Backend:
    """Return the backend of a variant: one that edgepack knows, or a profile's own plugin.

    Raises:
        KeyError: There is none of the name; profiles are checked for that as they are read.
    """
    if variant.backend == plugin.PLUGIN:
        return plugin.make_backend(variant)
    return BACKENDS[variant.backend]
