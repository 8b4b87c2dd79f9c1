"""Measure how fast this processor moves and multiplies at best. Prints one JSON document on stdout.

::

    python harness/edgepack_peak.py THREADS DURATION_S '{"session.intra_op.allow_spinning": "0"}'

``THREADS`` and the config entries are the session's own; 0 is the loader's choice. Each of five
kernels runs for ``DURATION_S``, and at least five times. What is timed are onnxruntime's own
kernels, by its own profiler, as the nodes of a model are: Relu, which reads and writes a tensor of
a size that lies in a small cache, a large one, or none; and a product with a square matrix of 512,
in float32 and in int8. The fastest of the repetitions counts.

Needs Python 3.8, numpy and onnxruntime 1.19.
"""

from __future__ import annotations

import base64
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Dict, List, Tuple

# A release on a device is never written to, not even with byte code.
sys.dont_write_bytecode = True
os.environ["ORT_DISABLE_TELEMETRY"] = "1"

import numpy as np  # noqa: E402
import onnxruntime as ort  # noqa: E402

if __package__:
    from ..runtime import edgepack_providers as providers
else:
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    import edgepack_providers as providers  # type: ignore[import-not-found,no-redef]

MOVE = base64.b64decode(
    "CAcSCGVkZ2VwYWNrOjgKDAoBeBIBeSIEUmVsdRIEbW92ZVoQCgF4EgsKCQgBEgUKAxIBbmIQCgF5EgsKCQgBEgUKAxIB"
    "bkIECgAQDQ=="
)
"""An ONNX model: Relu of a vector of float32."""
FLOAT32 = base64.b64decode(
    "CAcSCGVkZ2VwYWNrOrIBCi0SB3dfc2hhcGUiCENvbnN0YW50KhgKBXZhbHVlKgwIAhAHOgSABIAEQgCgAQQKNwoHd19z"
    "aGFwZRIBdyIPQ29uc3RhbnRPZlNoYXBlKhgKBXZhbHVlKgwIARABIgQK1yM8QgCgAQQKEQoBeAoBdxIBeSIGTWF0TXVs"
    "EgdmbG9hdDMyWhUKAXgSEAoOCAESCgoDEgFtCgMIgARiFQoBeRIQCg4IARIKCgMSAW0KAwiABEIECgAQDQ=="
)
"""An ONNX model: MatMul of any rows with a constant matrix of 512 x 512, in float32."""
INT8 = base64.b64decode(
    "CAcSCGVkZ2VwYWNrOrMBCi0SB3dfc2hhcGUiCENvbnN0YW50KhgKBXZhbHVlKgwIAhAHOgSABIAEQgCgAQQKNAoHd19z"
    "aGFwZRIBdyIPQ29uc3RhbnRPZlNoYXBlKhUKBXZhbHVlKgkIARADKgEBQgCgAQQKGAoBeAoBdxIBeSINTWF0TXVsSW50"
    "ZWdlchIEaW50OFoVCgF4EhAKDggCEgoKAxIBbQoDCIAEYhUKAXkSEAoOCAYSCgoDEgFtCgMIgARCBAoAEA0="
)
"""An ONNX model: MatMulInteger of any rows of uint8 with the same matrix of int8."""
SIZE = 512
MOVED_BYTES = (1 << 18, 1 << 21, 1 << 26)
"""Read and written together: for a core's cache, a cache of several cores, and main memory."""
LEAST_RUNS = 5


def main(threads: int, duration_s: float, config: Dict[str, str]) -> int:
    """Measure once and return the exit code."""
    threads = providers.choose_threads({"intra_op_num_threads": threads, "config": config})

    def make_options() -> ort.SessionOptions:
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.enable_profiling = True
        for key, value in config.items():
            options.add_session_config_entry(key, value)
        return options

    matrices: Dict[str, Tuple[bytes, np.ndarray]] = {
        "float32": (FLOAT32, np.ones((SIZE, SIZE), np.float32)),
        "int8": (INT8, np.ones((SIZE, SIZE), np.uint8)),
    }
    vectors = [np.ones(moved // 8, np.float32) for moved in MOVED_BYTES]
    document = {
        "threads": threads,
        "moves": [
            {"moved_bytes": vector.nbytes * 2, "bytes_per_s": vector.nbytes * 2 / best_s}
            for vector in vectors
            for best_s in [time_kernel(MOVE, vector, make_options(), duration_s)]
        ],
        "multiply_adds_per_s": {
            name: SIZE**3 / time_kernel(model, matrix, make_options(), duration_s)
            for name, (model, matrix) in matrices.items()
        },
    }
    print(json.dumps(document))
    return 0


def time_kernel(
    model: bytes, given: np.ndarray, options: ort.SessionOptions, duration_s: float
) -> float:
    """Return how many seconds the one node of a model takes at best."""
    with tempfile.TemporaryDirectory(prefix="edgepack-peak-") as folder:
        options.profile_file_prefix = os.path.join(folder, "profile")
        session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        end, runs = time.monotonic() + duration_s, 0
        while runs < LEAST_RUNS or time.monotonic() < end:
            session.run(None, {"x": given})
            runs += 1
        events: List[Dict[str, Any]] = json.loads(
            Path(session.end_profiling()).read_text(encoding="utf-8")
        )
    found_us = [
        event["dur"]
        for event in events
        if event.get("cat") == "Node" and event["name"].endswith("_kernel_time")
    ]
    # Its clock counts whole microseconds.
    return max(1.0, float(min(found_us))) / 1e6


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), float(sys.argv[2]), json.loads(sys.argv[3])))
