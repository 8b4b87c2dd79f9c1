"""edgepack: one ONNX model in, bundles out that run well, and provably, on edge devices.

The public functions carry the names of the commands: ``edgepack.build`` is ``edgepack build``.
They are loaded on first use, so that ``import edgepack`` costs next to nothing.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING

# onnxruntime 1.29 and newer report usage unless this is set before the library loads
# (onnxruntime/Privacy.md in the 1.31.1 wheel). Child processes inherit it.
os.environ["ORT_DISABLE_TELEMETRY"] = "1"

__version__ = "0.1.0"

if TYPE_CHECKING:
    from edgepack.bench import bench, evaluate
    from edgepack.build import build
    from edgepack.bundle import load_bundle, verify
    from edgepack.demo import demo
    from edgepack.devices import push
    from edgepack.errors import EdgepackError
    from edgepack.inspection import inspect
    from edgepack.scaffold import init

_HOMES = {
    "EdgepackError": "edgepack.errors",
    "bench": "edgepack.bench",
    "build": "edgepack.build",
    "demo": "edgepack.demo",
    "evaluate": "edgepack.bench",
    "init": "edgepack.scaffold",
    "inspect": "edgepack.inspection",
    "load_bundle": "edgepack.bundle",
    "push": "edgepack.devices",
    "verify": "edgepack.bundle",
}

__all__ = [
    "EdgepackError",
    "bench",
    "build",
    "demo",
    "evaluate",
    "init",
    "inspect",
    "load_bundle",
    "push",
    "verify",
]


def __getattr__(name: str) -> object:
    """Load the module that owns a public name the first time the name is used."""
    if name not in _HOMES:
        raise AttributeError(f"module 'edgepack' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
