"""edgepack: one ONNX model in, bundles out that run well, and provably, on edge devices.

The public functions are in :mod:`edgepack.api`, under the names of the commands.
"""

import os

# onnxruntime 1.29 and newer report usage unless this is set before the library loads
# (onnxruntime/Privacy.md in the 1.31.1 wheel). Child processes inherit it.
os.environ["ORT_DISABLE_TELEMETRY"] = "1"

__version__ = "0.1.0"
