"""Loads the libraries of NVIDIA's wheels, which lie where no linker looks for them.

Needs nothing but Python 3.8; where those wheels are not installed it does nothing.
"""

import contextlib
import ctypes
import glob
import importlib.util
import io
import os
from typing import Any

PROVIDERS = ("CUDAExecutionProvider", "TensorrtExecutionProvider")

# In the order in which they need each other. Sources: DT_NEEDED of onnxruntime's TensorRT provider
# (onnxruntime-gpu 1.31.1); NVIDIA/TensorRT issue 2218: since 8.4.1 libnvinfer no longer looks
# beside itself for its builder resources, which it opens by their names.
_TENSORRT_LIBRARIES = (
    "libnvinfer.so.*",
    "libnvinfer_plugin.so.*",
    "libnvonnxparser.so.*",
    "libnvinfer_builder_resource*.so.*",
)


def preload(ort: Any) -> None:
    """Load CUDA, cuDNN and TensorRT from wheels, as far as they are there.

    What fails to load is reported by the session that needs it.

    Args:
        ort: The module ``onnxruntime``; 1.21 and newer load CUDA and cuDNN themselves.
    """
    if importlib.util.find_spec("nvidia") is not None and hasattr(ort, "preload_dlls"):
        with contextlib.redirect_stdout(io.StringIO()):  # it prints what it does not find
            ort.preload_dlls()
    found = importlib.util.find_spec("tensorrt_libs")
    for folder in (found and found.submodule_search_locations) or []:
        for pattern in _TENSORRT_LIBRARIES:
            for path in sorted(glob.glob(os.path.join(folder, pattern))):
                with contextlib.suppress(OSError):
                    ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
